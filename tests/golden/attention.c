/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_b;
  int64_t n_h;
  int64_t n_i;
  int64_t n_j;
  int64_t n_e;
  int64_t n_d;
  int64_t n_segment;
  const f32_t * in_k;
  int64_t in_k_s0;
  int64_t in_k_s1;
  int64_t in_k_s2;
  const f32_t * in_q;
  int64_t in_q_s0;
  int64_t in_q_s1;
  int64_t in_q_s2;
  const f32_t * in_v;
  int64_t in_v_s0;
  int64_t in_v_s1;
  int64_t in_v_s2;
  f32_t * out_out0;
  int64_t out_out0_s0;
  int64_t out_out0_s1;
  int64_t out_out0_s2;
  rf_real * buf_columns0_o;
  int64_t buf_columns0_o_s0;
  int64_t buf_columns0_o_s1;
  int64_t buf_columns0_o_s2;
  int64_t acc_o_ld;
  uint8_t * flags;
  int64_t off_tile0;
  int64_t off_rows0;
  int64_t off_factor0_2;
  int64_t off_o;
  rf_real *work; int64_t work_size;
};

RF_INLINE void contract_5_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_b_0, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s2 = ctx->in_k_s2;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * in_k_s2]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a7 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t6 = x[i][j];
        a7 = v_max_raw(a7, t6);
        st_real(d + i * 144 + j * LANES, t6);
      }
      st_real(acc_m + (x_i + j * LANES), a7);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a9 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t8 = x[i][j];
        a9 = v_max_raw(a9, t8);
        st_real(d + i * 144 + j * LANES, t8);
      }
      st_real(acc_m + (x_i + j * LANES), a9);
    }
  }
}
RF_INLINE void contract_5_3(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_b_0, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s2 = ctx->in_k_s2;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[3][2];
  RF_UNROLL(3) for (int i = 0; i < 3; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(3) for (int i = 0; i < 3; i++) { const V y = set1(a[i * in_k_s2]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a11 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t10 = x[i][j];
        a11 = v_max_raw(a11, t10);
        st_real(d + i * 144 + j * LANES, t10);
      }
      st_real(acc_m + (x_i + j * LANES), a11);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a13 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t12 = x[i][j];
        a13 = v_max_raw(a13, t12);
        st_real(d + i * 144 + j * LANES, t12);
      }
      st_real(acc_m + (x_i + j * LANES), a13);
    }
  }
}
RF_INLINE void contract_5_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_b_0, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s2 = ctx->in_k_s2;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * in_k_s2]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a15 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t14 = x[i][j];
        a15 = v_max_raw(a15, t14);
        st_real(d + i * 144 + j * LANES, t14);
      }
      st_real(acc_m + (x_i + j * LANES), a15);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a17 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t16 = x[i][j];
        a17 = v_max_raw(a17, t16);
        st_real(d + i * 144 + j * LANES, t16);
      }
      st_real(acc_m + (x_i + j * LANES), a17);
    }
  }
}
RF_NOINLINE void contract_5(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_b_0, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_i, rf_real *acc_m, int64_t rows) {
  int64_t const in_k_s2 = ctx->in_k_s2;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_5_6(ctx, a + i * in_k_s2, b, n, d + i * 144, zero, last, test, nj, x_b_0, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
  for (; i + 3 <= rows; i += 3) contract_5_3(ctx, a + i * in_k_s2, b, n, d + i * 144, zero, last, test, nj, x_b_0, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
  for (; i + 1 <= rows; i += 1) contract_5_1(ctx, a + i * in_k_s2, b, n, d + i * 144, zero, last, test, nj, x_b_0, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
}
RF_INLINE void contract_46_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 144, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_46_4(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[4][2];
  RF_UNROLL(4) for (int i = 0; i < 4; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 144, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(4) for (int i = 0; i < 4; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_46_2(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[2][2];
  RF_UNROLL(2) for (int i = 0; i < 2; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 144, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(2) for (int i = 0; i < 2; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_46_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 144, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_NOINLINE void contract_46(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor, int64_t rows) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_46_6(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 4 <= rows; i += 4) contract_46_4(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 2 <= rows; i += 2) contract_46_2(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 1 <= rows; i += 1) contract_46_1(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
}
static void phase_0_pack_columns0_o(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_b = ctx->n_b;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  int64_t const n_d = ctx->n_d;
  const f32_t * const in_v = ctx->in_v;
  int64_t const in_v_s0 = ctx->in_v_s0;
  int64_t const in_v_s1 = ctx->in_v_s1;
  int64_t const in_v_s2 = ctx->in_v_s2;
  rf_real * const buf_columns0_o = ctx->buf_columns0_o;
  int64_t const buf_columns0_o_s0 = ctx->buf_columns0_o_s0;
  int64_t const buf_columns0_o_s1 = ctx->buf_columns0_o_s1;
  int64_t rest = item; (void)rest;
  const int64_t x_d_0 = rest % ((n_d + 255) / 256) * 256; rest /= ((n_d + 255) / 256);
  const int64_t x_d_c = rf_min(256, n_d - x_d_0);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  const int64_t x_b_0 = rest % n_b; rest /= n_b;
  for (int64_t c0 = 0; c0 < n_j; c0 += 32) for (int64_t p = 0; p < x_d_c; p += 16) {
    rf_real *const to = buf_columns0_o + x_b_0 * buf_columns0_o_s0 + x_h_0 * buf_columns0_o_s1 + x_d_0 * (n_j) + p * (n_j); const int64_t left = x_d_c - p;
    if (left >= 16) for (int64_t x_j = c0; x_j < rf_min(c0 + 32, n_j); x_j++) for (int64_t l = 0; l < 16; l += LANES) {
      const V t1 = ld_f32(in_v + x_b_0 * in_v_s0 + x_h_0 * in_v_s1 + x_j * in_v_s2 + (x_d_0 + (p + l)));
      st_real(to + x_j * 16 + l, t1);
    }
    else for (int64_t x_j = c0; x_j < rf_min(c0 + 32, n_j); x_j++) for (int64_t l = 0; l < 16; l += LANES) {
      const M m = tail(left - l);
      const V t2 = ldm_f32(m, in_v + x_b_0 * in_v_s0 + x_h_0 * in_v_s1 + x_j * in_v_s2 + (x_d_0 + (p + l)));
      st_real(to + x_j * 16 + l, keep(m, t2));
    }
  }
}
static void phase_1_over_j(void *ctx_, int64_t item, int worker) {
    /* m: max of (sum_e((q[b,h,i,e] * k[b,h,j,e])) * 0.25) */
    /* s: sum of exp(((sum_e((q[b,h,i,e] * k[b,h,j,e])) * 0.25) - m)); rebase (s' * exp((m' - m))) */
    /* o: sum of (exp(((sum_e((q[b,h,i,e] * k[b,h,j,e])) * 0.25) - m)) * v[b,h,j,d]); rebase (o' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_b = ctx->n_b;
  int64_t const n_h = ctx->n_h;
  int64_t const n_i = ctx->n_i;
  int64_t const n_j = ctx->n_j;
  int64_t const n_e = ctx->n_e;
  int64_t const n_d = ctx->n_d;
  const f32_t * const in_k = ctx->in_k;
  int64_t const in_k_s0 = ctx->in_k_s0;
  int64_t const in_k_s1 = ctx->in_k_s1;
  int64_t const in_k_s2 = ctx->in_k_s2;
  const f32_t * const in_q = ctx->in_q;
  int64_t const in_q_s0 = ctx->in_q_s0;
  int64_t const in_q_s1 = ctx->in_q_s1;
  int64_t const in_q_s2 = ctx->in_q_s2;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  int64_t const out_out0_s1 = ctx->out_out0_s1;
  int64_t const out_out0_s2 = ctx->out_out0_s2;
  rf_real * const buf_columns0_o = ctx->buf_columns0_o;
  int64_t const buf_columns0_o_s0 = ctx->buf_columns0_o_s0;
  int64_t const buf_columns0_o_s1 = ctx->buf_columns0_o_s1;
  int64_t const acc_o_ld = ctx->acc_o_ld;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_tile0 = work + ctx->off_tile0;
  rf_real *const buf_rows0 = work + ctx->off_rows0;
  rf_real *const buf_factor0_2 = work + ctx->off_factor0_2;
  int64_t rest = item; (void)rest;
  const int64_t x_i_0 = rest % ((n_i + 127) / 128) * 128; rest /= ((n_i + 127) / 128);
  const int64_t x_i_c = rf_min(128, n_i - x_i_0);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  const int64_t x_b_0 = rest % n_b; rest /= n_b;
  rf_real acc_m[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_m_old[t] = -RF_INF;
  rf_real acc_s[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_s[t] = (rf_real)0;
  rf_real *acc_o = work + ctx->off_o;
  for (int64_t p = 0; p < x_i_c; p += 16) for (int64_t l = 0; l < 16; l += LANES) {
    rf_real *to = buf_rows0 + p * (n_e) + l; const int64_t left = x_i_c - p - l; (void)left;
    for (int64_t x_e = 0; x_e < n_e; x_e += LANES) {
      V r[LANES]; const M m = tail(n_e - x_e);
      for (int q = 0; q < LANES; q++) {
        r[q] = set1(0); if (q < left) {
          const V t3 = ldm_f32(m, in_q + x_b_0 * in_q_s0 + x_h_0 * in_q_s1 + (x_i_0 + (p + l + q)) * in_q_s2 + x_e);
          const V t4 = t3 * set1((rf_real)0x1.0000000000000p-2);
          r[q] = t4;
        }
      }
      v_transpose(r);
      for (int q = 0; q < LANES && x_e + q < n_e; q++)
      st_real(to + (x_e + q) * 16, r[q]);
    }
  }
  for (int64_t x_j_0 = 0; x_j_0 < n_j; x_j_0 += 132) {
    const int64_t x_j_c = rf_min(132, n_j - x_j_0);
    for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
      acc_m_old[x_i] = acc_m[x_i];
    }
    for (int64_t c0 = 0; c0 < n_e || c0 == 0; c0 += 64) for (int64_t p = 0; p < x_i_c; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= x_i_c; const int test = (0 || !whole); (void)whole; (void)test;
      contract_5(ctx, in_k + x_b_0 * in_k_s0 + x_h_0 * in_k_s1 + x_j_0 * in_k_s2 + c0 * 1, buf_rows0 + p * (n_e) + c0 * 16, rf_min(64, n_e - c0), buf_tile0 + p, c0 == 0, c0 + 64 >= n_e, test, x_i_c - p, x_b_0, x_h_0, x_i_0, x_j_0, p, acc_m, x_j_c);
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += LANES) {
      const M m18 = m_and(m_ne(ld_real(acc_m + x_i), ld_real(acc_m_old + x_i)), m_not(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF))));
      if (m_any(m18)) {
        const V t20 = ld_real(acc_s + x_i);
        const V t21 = sel(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF)), v_settle(ld_real(acc_m + x_i)), ld_real(acc_m_old + x_i));
        const V t22 = v_settle(ld_real(acc_m + x_i));
        const V t23 = t21 - t22;
        const V t24 = v_exp(t23);
        const V t25 = t20 * t24;
        const V n19 = t25;
        st_real(acc_s + x_i, sel(m18, n19, ld_real(acc_s + x_i)));
      }
    }
    {
      int64_t x_i = 0;
      for (; x_i + 2 * LANES <= x_i_c; x_i += 2 * LANES) {
        V a26 = ld_real(acc_s + x_i);
        V a31 = ld_real(acc_s + (x_i + 1 * LANES));
        const V t28 = v_settle(ld_real(acc_m + x_i));
        const V t33 = v_settle(ld_real(acc_m + (x_i + 1 * LANES)));
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t27 = ld_real(buf_tile0 + x_j * 144 + x_i);
          const V t29 = t27 - t28;
          const V t30 = v_expz(t29);
          a26 = a26 + t30;
          st_real(buf_tile0 + x_j * 144 + x_i, t30);
          const V t32 = ld_real(buf_tile0 + x_j * 144 + (x_i + 1 * LANES));
          const V t34 = t32 - t33;
          const V t35 = v_expz(t34);
          a31 = a31 + t35;
          st_real(buf_tile0 + x_j * 144 + (x_i + 1 * LANES), t35);
        }
        st_real(acc_s + x_i, a26);
        st_real(acc_s + (x_i + 1 * LANES), a31);
      }
      for (; x_i < x_i_c; x_i += 1 * LANES) {
        const M m = tail(x_i_c - x_i);
        V a36 = ld_real(acc_s + x_i);
        const V t38 = v_settle(ld_real(acc_m + x_i));
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t37 = ld_real(buf_tile0 + x_j * 144 + x_i);
          const V t39 = t37 - t38;
          const V t40 = v_expz(t39);
          a36 = a36 + t40;
          st_real(buf_tile0 + x_j * 144 + x_i, t40);
        }
        st_real(acc_s + x_i, a36);
      }
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += LANES) {
      const M m41 = m_and(m_ne(ld_real(acc_m + x_i), ld_real(acc_m_old + x_i)), m_not(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF))));
      st_real(buf_factor0_2 + x_i, set1((rf_real)1));
      if (m_any(m41)) {
        const V t42 = sel(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF)), v_settle(ld_real(acc_m + x_i)), ld_real(acc_m_old + x_i));
        const V t43 = v_settle(ld_real(acc_m + x_i));
        const V t44 = t42 - t43;
        const V t45 = v_exp(t44);
        st_real(buf_factor0_2 + x_i, sel(m41, t45, set1((rf_real)1)));
      }
    }
    for (int64_t c0 = 0; c0 < x_j_c || c0 == 0; c0 += 132) for (int64_t p = 0; p < n_d; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= n_d; const int test = (0 || !whole); (void)whole; (void)test;
      contract_46(ctx, buf_tile0 + c0 * 144, buf_columns0_o + x_b_0 * buf_columns0_o_s0 + x_h_0 * buf_columns0_o_s1 + x_j_0 * 16 + p * (n_j) + c0 * 16, rf_min(132, x_j_c - c0), acc_o + p, (c0 == 0) * (1 + (x_j_0 == 0)), c0 + 132 >= x_j_c, test, n_d - p, buf_factor0_2, x_i_c);
    }
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    V bad47 = set1(0);
    {
      int64_t x_d = 0;
      const V t49 = set1(acc_s[x_i]);
      for (; x_d + LANES <= n_d; x_d += LANES) {
        const V t48 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        const V t50 = t48 / t49;
        const V t51 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        st_f32(out_out0 + x_b_0 * out_out0_s0 + x_h_0 * out_out0_s1 + (x_i_0 + x_i) * out_out0_s2 + x_d, t50);
        bad47 = bad47 + t51 * set1(0);
      }
      const V t53 = set1(acc_s[x_i]);
      if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
        const V t52 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        const V t54 = t52 / t53;
        const V t55 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        stm_f32(m, out_out0 + x_b_0 * out_out0_s0 + x_h_0 * out_out0_s1 + (x_i_0 + x_i) * out_out0_s2 + x_d, t54);
        bad47 = bad47 + keep(m, t55 * set1(0));
      }
    }
    if (m_any(m_isnan(bad47))) __atomic_store_n(flags + (((0 * n_b + x_b_0) * n_h + x_h_0) * n_i + (x_i_0 + x_i)), (uint8_t)1, __ATOMIC_RELAXED);
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    int bad56 = 0;
    bad56 |= !isfinite(acc_m[x_i]);
    bad56 |= !isfinite(acc_s[x_i]);
    if (bad56) __atomic_store_n(flags + (((0 * n_b + x_b_0) * n_h + x_h_0) * n_i + (x_i_0 + x_i)), (uint8_t)1, __ATOMIC_RELAXED);
  }
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_b = ctx->n_b = n[0]; (void)n_b;
  const int64_t n_h = ctx->n_h = n[1]; (void)n_h;
  const int64_t n_i = ctx->n_i = n[2]; (void)n_i;
  const int64_t n_j = ctx->n_j = n[3]; (void)n_j;
  const int64_t n_e = ctx->n_e = n[4]; (void)n_e;
  const int64_t n_d = ctx->n_d = n[5]; (void)n_d;
  ctx->in_k_s0 = n[6];
  ctx->in_k_s1 = n[7];
  ctx->in_k_s2 = n[8];
  ctx->in_q_s0 = n[10];
  ctx->in_q_s1 = n[11];
  ctx->in_q_s2 = n[12];
  ctx->in_v_s0 = n[14];
  ctx->in_v_s1 = n[15];
  ctx->in_v_s2 = n[16];
  ctx->out_out0_s0 = n[18];
  ctx->out_out0_s1 = n[19];
  ctx->out_out0_s2 = n[20];
  ctx->in_k = (f32_t *)in[0];
  ctx->in_q = (f32_t *)in[1];
  ctx->in_v = (f32_t *)in[2];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  ctx->buf_columns0_o_s0 = (n_h) * (n_j) * (rf_up(n_d, 16));
  ctx->buf_columns0_o_s1 = (n_j) * (rf_up(n_d, 16));
  ctx->buf_columns0_o_s2 = (rf_up(n_d, 16));
  const int64_t acc_o_ld = ctx->acc_o_ld = (rf_up(n_d, 32)) + ((rf_up(n_d, 32)) % 512 == 0 ? 16 : 0);
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_columns0_o = size; size += rf_up((n_b) * (n_h) * (n_j) * (rf_up(n_d, 16)) + 8, 16) + 16;
  ctx->off_tile0 = work; work += rf_up(19016, 16) + 16;
  ctx->off_rows0 = work; work += rf_up((n_e) * (128) + 8, 16) + 16;
  ctx->off_factor0_2 = work; work += rf_up(136, 16) + 16;
  ctx->off_o = work; work += rf_up(128 * acc_o_ld + 32, 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_columns0_o = shared + at_buf_columns0_o;
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_b * n_h * n_i));
  rf_parallel(phase_0_pack_columns0_o, ctx, n_b * n_h * ((n_d + 255) / 256), threads, 0);
  rf_parallel(phase_1_over_j, ctx, n_b * n_h * ((n_i + 127) / 128), threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
