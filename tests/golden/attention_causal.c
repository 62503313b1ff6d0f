/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_h;
  int64_t n_i;
  int64_t n_j;
  int64_t n_e;
  int64_t n_d;
  int64_t n_segment;
  const f32_t * in_k;
  int64_t in_k_s0;
  int64_t in_k_s1;
  const f32_t * in_q;
  int64_t in_q_s0;
  int64_t in_q_s1;
  const f32_t * in_v;
  int64_t in_v_s0;
  int64_t in_v_s1;
  f32_t * out_out0;
  int64_t out_out0_s0;
  int64_t out_out0_s1;
  rf_real * buf_finite0_v;
  rf_real * buf_columns0_o;
  int64_t buf_columns0_o_s0;
  int64_t buf_columns0_o_s1;
  int64_t acc_o_ld;
  uint8_t * flags;
  int64_t off_tile0;
  int64_t off_rows0;
  int64_t off_factor0_3;
  int64_t off_o;
  rf_real *work; int64_t work_size;
};

RF_INLINE void contract_7_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s1 = ctx->in_k_s1;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  if (test & 2) {
    M some = m_none();
    RF_UNROLL(2) for (int j = 0; j < 2; j++) { const M m = tail(nj - j * LANES);
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t8 = set1((rf_real)(x_j_0 + (x_j + i)));
        const V t9 = set1((rf_real)(x_i_0 + (x_i + j * LANES))) + iota();
        const M t10 = m_le(t8, t9);
        some = m_or(some, m_and(m, t10));
      }
    }
    if (!m_any(some)) { if (last) RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 112 + j * LANES, set1(-RF_INF)); return; }
  }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * 112 + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * in_k_s1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 112 + j * LANES); }
  if (!last) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 112 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a12 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t11 = x[i][j];
        a12 = v_max_raw(a12, t11);
        st_real(d + i * 112 + j * LANES, t11);
      }
      st_real(acc_m + (x_i + j * LANES), a12);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a18 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t13 = set1((rf_real)(x_j_0 + (x_j + i)));
        const V t14 = set1((rf_real)(x_i_0 + (x_i + j * LANES))) + iota();
        const M t15 = m_le(t13, t14);
        const V t16 = x[i][j];
        const V t17 = sel(t15, t16, set1(-RF_INF));
        a18 = v_max_raw(a18, t17);
        st_real(d + i * 112 + j * LANES, t17);
      }
      st_real(acc_m + (x_i + j * LANES), a18);
    }
  }
}
RF_INLINE void contract_7_3(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s1 = ctx->in_k_s1;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[3][2];
  RF_UNROLL(3) for (int i = 0; i < 3; i++) { PREFETCH_WRITE(d + i * 112 + 0 * RF_LINE); }
  RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(3) for (int i = 0; i < 3; i++) { const V y = set1(a[i * in_k_s1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 112 + j * LANES); }
  if (!last) { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 112 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a20 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t19 = x[i][j];
        a20 = v_max_raw(a20, t19);
        st_real(d + i * 112 + j * LANES, t19);
      }
      st_real(acc_m + (x_i + j * LANES), a20);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a26 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t21 = set1((rf_real)(x_j_0 + (x_j + i)));
        const V t22 = set1((rf_real)(x_i_0 + (x_i + j * LANES))) + iota();
        const M t23 = m_le(t21, t22);
        const V t24 = x[i][j];
        const V t25 = sel(t23, t24, set1(-RF_INF));
        a26 = v_max_raw(a26, t25);
        st_real(d + i * 112 + j * LANES, t25);
      }
      st_real(acc_m + (x_i + j * LANES), a26);
    }
  }
}
RF_INLINE void contract_7_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t x_i, rf_real *acc_m) {
  int64_t const in_k_s1 = ctx->in_k_s1;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * 112 + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * in_k_s1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 112 + j * LANES); }
  if (!last) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 112 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a28 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t27 = x[i][j];
        a28 = v_max_raw(a28, t27);
        st_real(d + i * 112 + j * LANES, t27);
      }
      st_real(acc_m + (x_i + j * LANES), a28);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a34 = ld_real(acc_m + (x_i + j * LANES));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t29 = set1((rf_real)(x_j_0 + (x_j + i)));
        const V t30 = set1((rf_real)(x_i_0 + (x_i + j * LANES))) + iota();
        const M t31 = m_le(t29, t30);
        const V t32 = x[i][j];
        const V t33 = sel(t31, t32, set1(-RF_INF));
        a34 = v_max_raw(a34, t33);
        st_real(d + i * 112 + j * LANES, t33);
      }
      st_real(acc_m + (x_i + j * LANES), a34);
    }
  }
}
RF_NOINLINE void contract_7(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_h_0, int64_t x_i_0, int64_t x_j_0, int64_t x_i, rf_real *acc_m, int64_t rows) {
  int64_t const in_k_s1 = ctx->in_k_s1;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_7_6(ctx, a + i * in_k_s1, b, n, d + i * 112, zero, last, test, nj, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
  for (; i + 3 <= rows; i += 3) contract_7_3(ctx, a + i * in_k_s1, b, n, d + i * 112, zero, last, test, nj, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
  for (; i + 1 <= rows; i += 1) contract_7_1(ctx, a + i * in_k_s1, b, n, d + i * 112, zero, last, test, nj, x_h_0, x_i_0, x_j_0, i, x_i, acc_m);
}
RF_INLINE void contract_63_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  if (test) { n = rf_used(a, 112, 6, n); const int64_t from = rf_unused(a, 112, 6, n);
    a += from * 112; b += from * 16; n -= from; }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 112, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_63_4(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[4][2];
  if (test) { n = rf_used(a, 112, 4, n); const int64_t from = rf_unused(a, 112, 4, n);
    a += from * 112; b += from * 16; n -= from; }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 112, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(4) for (int i = 0; i < 4; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero) { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_63_2(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[2][2];
  if (test) { n = rf_used(a, 112, 2, n); const int64_t from = rf_unused(a, 112, 2, n);
    a += from * 112; b += from * 16; n -= from; }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 112, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(2) for (int i = 0; i < 2; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero) { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_63_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  if (test) { n = rf_used(a, 112, 1, n); const int64_t from = rf_unused(a, 112, 1, n);
    a += from * 112; b += from * 16; n -= from; }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * acc_o_ld + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 112, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * 1]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES) * set1(factor[i]); } else { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_o_ld + j * LANES); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_o_ld + j * LANES, x[i][j]);
}
RF_NOINLINE void contract_63(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *factor, int64_t rows) {
  int64_t const acc_o_ld = ctx->acc_o_ld;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_63_6(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 4 <= rows; i += 4) contract_63_4(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 2 <= rows; i += 2) contract_63_2(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
  for (; i + 1 <= rows; i += 1) contract_63_1(ctx, a + i * 1, b, n, d + i * acc_o_ld, zero, last, test, nj, factor + i);
}
static void phase_0_scan_v(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  int64_t const n_d = ctx->n_d;
  const f32_t * const in_v = ctx->in_v;
  int64_t const in_v_s0 = ctx->in_v_s0;
  int64_t const in_v_s1 = ctx->in_v_s1;
  rf_real * const buf_finite0_v = ctx->buf_finite0_v;
  int64_t rest = item; (void)rest;
  const int64_t x_j_0 = rest % ((n_j + 255) / 256) * 256; rest /= ((n_j + 255) / 256);
  const int64_t x_j_c = rf_min(256, n_j - x_j_0);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  {
    V bad = set1(0);
    for (int64_t x_j = 0; x_j < x_j_c; x_j++)
    for (int64_t x_d = 0; x_d < n_d; x_d += LANES) { const M m = tail(n_d - x_d);
      const V t1 = ldm_f32(m, in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + x_d);
      bad = bad + keep(m, t1 * set1(0));
    }
    if (m_any(m_isnan(bad))) { const rf_real no = 0; __atomic_store(buf_finite0_v, &no, __ATOMIC_RELAXED); }
  }
}
static void phase_1_pack_columns0_o(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  int64_t const n_d = ctx->n_d;
  const f32_t * const in_v = ctx->in_v;
  int64_t const in_v_s0 = ctx->in_v_s0;
  int64_t const in_v_s1 = ctx->in_v_s1;
  rf_real * const buf_columns0_o = ctx->buf_columns0_o;
  int64_t const buf_columns0_o_s0 = ctx->buf_columns0_o_s0;
  int64_t rest = item; (void)rest;
  const int64_t x_d_0 = rest % ((n_d + 255) / 256) * 256; rest /= ((n_d + 255) / 256);
  const int64_t x_d_c = rf_min(256, n_d - x_d_0);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  for (int64_t c0 = 0; c0 < n_j; c0 += 32) for (int64_t p = 0; p < x_d_c; p += 16) {
    rf_real *const to = buf_columns0_o + x_h_0 * buf_columns0_o_s0 + x_d_0 * (n_j) + p * (n_j); const int64_t left = x_d_c - p;
    if (left >= 16) for (int64_t x_j = c0; x_j < rf_min(c0 + 32, n_j); x_j++) for (int64_t l = 0; l < 16; l += LANES) {
      const V t2 = ld_f32(in_v + x_h_0 * in_v_s0 + x_j * in_v_s1 + (x_d_0 + (p + l)));
      st_real(to + x_j * 16 + l, t2);
    }
    else for (int64_t x_j = c0; x_j < rf_min(c0 + 32, n_j); x_j++) for (int64_t l = 0; l < 16; l += LANES) {
      const M m = tail(left - l);
      const V t3 = ldm_f32(m, in_v + x_h_0 * in_v_s0 + x_j * in_v_s1 + (x_d_0 + (p + l)));
      st_real(to + x_j * 16 + l, keep(m, t3));
    }
  }
}
static void phase_2_over_j(void *ctx_, int64_t item, int worker) {
    /* m: max of where((#j <= #i), (sum_e((q[h,i,e] * k[h,j,e])) * 0.25), -inf) */
    /* s: sum of exp((where((#j <= #i), (sum_e((q[h,i,e] * k[h,j,e])) * 0.25), -inf) - m)); rebase (s' * exp((m' - m))) */
    /* o: sum of (exp((where((#j <= #i), (sum_e((q[h,i,e] * k[h,j,e])) * 0.25), -inf) - m)) * v[h,j,d]); rebase (o' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_i = ctx->n_i;
  int64_t const n_j = ctx->n_j;
  int64_t const n_e = ctx->n_e;
  int64_t const n_d = ctx->n_d;
  const f32_t * const in_k = ctx->in_k;
  int64_t const in_k_s0 = ctx->in_k_s0;
  int64_t const in_k_s1 = ctx->in_k_s1;
  const f32_t * const in_q = ctx->in_q;
  int64_t const in_q_s0 = ctx->in_q_s0;
  int64_t const in_q_s1 = ctx->in_q_s1;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  int64_t const out_out0_s1 = ctx->out_out0_s1;
  rf_real * const buf_finite0_v = ctx->buf_finite0_v;
  rf_real * const buf_columns0_o = ctx->buf_columns0_o;
  int64_t const buf_columns0_o_s0 = ctx->buf_columns0_o_s0;
  int64_t const acc_o_ld = ctx->acc_o_ld;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_tile0 = work + ctx->off_tile0;
  rf_real *const buf_rows0 = work + ctx->off_rows0;
  rf_real *const buf_factor0_3 = work + ctx->off_factor0_3;
  int64_t rest = item; (void)rest;
  const int64_t x_i_0 = rest % ((n_i + 95) / 96) * 96; rest /= ((n_i + 95) / 96);
  const int64_t x_i_c = rf_min(96, n_i - x_i_0);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  rf_real acc_m[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_m_old[t] = -RF_INF;
  rf_real acc_s[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_s[t] = (rf_real)0;
  rf_real *acc_o = work + ctx->off_o;
  for (int64_t t = 0; t < 96 * acc_o_ld + 32; t++) acc_o[t] = (rf_real)0;
  for (int64_t p = 0; p < x_i_c; p += 16) for (int64_t l = 0; l < 16; l += LANES) {
    rf_real *to = buf_rows0 + p * (n_e) + l; const int64_t left = x_i_c - p - l; (void)left;
    for (int64_t x_e = 0; x_e < n_e; x_e += LANES) {
      V r[LANES]; const M m = tail(n_e - x_e);
      for (int q = 0; q < LANES; q++) {
        r[q] = set1(0); if (q < left) {
          const V t4 = ldm_f32(m, in_q + x_h_0 * in_q_s0 + (x_i_0 + (p + l + q)) * in_q_s1 + x_e);
          const V t5 = t4 * set1((rf_real)0x1.0000000000000p-2);
          r[q] = t5;
        }
      }
      v_transpose(r);
      for (int q = 0; q < LANES && x_e + q < n_e; q++)
      st_real(to + (x_e + q) * 16, r[q]);
    }
  }
  for (int64_t x_j_0 = 0; x_j_0 < n_j; x_j_0 += 96) {
    const int64_t x_j_c = rf_min(96, n_j - x_j_0);
    if ((0 + 1 * (x_i_0 + x_i_c - 1) + -1 * x_j_0 < 0) && buf_finite0_v[0] != 0) continue;
    const int cut6 = 0 + 1 * x_i_0 + -1 * (x_j_0 + x_j_c - 1) < 0;
    for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
      acc_m_old[x_i] = acc_m[x_i];
    }
    for (int64_t c0 = 0; c0 < n_e || c0 == 0; c0 += 64) for (int64_t p = 0; p < x_i_c; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= x_i_c; const int test = (cut6 || !whole) + 2 * (cut6 && buf_finite0_v[0] != 0); (void)whole; (void)test;
      contract_7(ctx, in_k + x_h_0 * in_k_s0 + x_j_0 * in_k_s1 + c0 * 1, buf_rows0 + p * (n_e) + c0 * 16, rf_min(64, n_e - c0), buf_tile0 + p, c0 == 0, c0 + 64 >= n_e, test, x_i_c - p, x_h_0, x_i_0, x_j_0, p, acc_m, x_j_c);
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += LANES) {
      const M m35 = m_and(m_ne(ld_real(acc_m + x_i), ld_real(acc_m_old + x_i)), m_not(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF))));
      if (m_any(m35)) {
        const V t37 = ld_real(acc_s + x_i);
        const V t38 = sel(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF)), v_settle(ld_real(acc_m + x_i)), ld_real(acc_m_old + x_i));
        const V t39 = v_settle(ld_real(acc_m + x_i));
        const V t40 = t38 - t39;
        const V t41 = v_exp(t40);
        const V t42 = t37 * t41;
        const V n36 = t42;
        st_real(acc_s + x_i, sel(m35, n36, ld_real(acc_s + x_i)));
      }
    }
    {
      int64_t x_i = 0;
      for (; x_i + 2 * LANES <= x_i_c; x_i += 2 * LANES) {
        V a43 = ld_real(acc_s + x_i);
        V a48 = ld_real(acc_s + (x_i + 1 * LANES));
        const V t45 = v_settle(ld_real(acc_m + x_i));
        const V t50 = v_settle(ld_real(acc_m + (x_i + 1 * LANES)));
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t44 = ld_real(buf_tile0 + x_j * 112 + x_i);
          const V t46 = t44 - t45;
          const V t47 = v_expz(t46);
          a43 = a43 + t47;
          st_real(buf_tile0 + x_j * 112 + x_i, t47);
          const V t49 = ld_real(buf_tile0 + x_j * 112 + (x_i + 1 * LANES));
          const V t51 = t49 - t50;
          const V t52 = v_expz(t51);
          a48 = a48 + t52;
          st_real(buf_tile0 + x_j * 112 + (x_i + 1 * LANES), t52);
        }
        st_real(acc_s + x_i, a43);
        st_real(acc_s + (x_i + 1 * LANES), a48);
      }
      for (; x_i < x_i_c; x_i += 1 * LANES) {
        const M m = tail(x_i_c - x_i);
        V a53 = ld_real(acc_s + x_i);
        const V t55 = v_settle(ld_real(acc_m + x_i));
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t54 = ld_real(buf_tile0 + x_j * 112 + x_i);
          const V t56 = t54 - t55;
          const V t57 = v_expz(t56);
          a53 = a53 + t57;
          st_real(buf_tile0 + x_j * 112 + x_i, t57);
        }
        st_real(acc_s + x_i, a53);
      }
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += LANES) {
      const M m58 = m_and(m_ne(ld_real(acc_m + x_i), ld_real(acc_m_old + x_i)), m_not(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF))));
      st_real(buf_factor0_3 + x_i, set1((rf_real)1));
      if (m_any(m58)) {
        const V t59 = sel(m_eq(ld_real(acc_m_old + x_i), set1(-RF_INF)), v_settle(ld_real(acc_m + x_i)), ld_real(acc_m_old + x_i));
        const V t60 = v_settle(ld_real(acc_m + x_i));
        const V t61 = t59 - t60;
        const V t62 = v_exp(t61);
        st_real(buf_factor0_3 + x_i, sel(m58, t62, set1((rf_real)1)));
      }
    }
    for (int64_t c0 = 0; c0 < x_j_c || c0 == 0; c0 += 96) for (int64_t p = 0; p < n_d; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= n_d; const int test = (cut6 && buf_finite0_v[0] != 0); (void)whole; (void)test;
      contract_63(ctx, buf_tile0 + c0 * 112, buf_columns0_o + x_h_0 * buf_columns0_o_s0 + x_j_0 * 16 + p * (n_j) + c0 * 16, rf_min(96, x_j_c - c0), acc_o + p, c0 == 0, c0 + 96 >= x_j_c, test, n_d - p, buf_factor0_3, x_i_c);
    }
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    V bad64 = set1(0);
    {
      int64_t x_d = 0;
      const V t66 = set1(acc_s[x_i]);
      for (; x_d + LANES <= n_d; x_d += LANES) {
        const V t65 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        const V t67 = t65 / t66;
        const V t68 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        st_f32(out_out0 + x_h_0 * out_out0_s0 + (x_i_0 + x_i) * out_out0_s1 + x_d, t67);
        bad64 = bad64 + t68 * set1(0);
      }
      const V t70 = set1(acc_s[x_i]);
      if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
        const V t69 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        const V t71 = t69 / t70;
        const V t72 = ld_real(acc_o + x_i * acc_o_ld + x_d);
        stm_f32(m, out_out0 + x_h_0 * out_out0_s0 + (x_i_0 + x_i) * out_out0_s1 + x_d, t71);
        bad64 = bad64 + keep(m, t72 * set1(0));
      }
    }
    if (m_any(m_isnan(bad64))) __atomic_store_n(flags + ((0 * n_h + x_h_0) * n_i + (x_i_0 + x_i)), (uint8_t)1, __ATOMIC_RELAXED);
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    int bad73 = 0;
    bad73 |= !isfinite(acc_m[x_i]);
    bad73 |= !isfinite(acc_s[x_i]);
    if (bad73) __atomic_store_n(flags + ((0 * n_h + x_h_0) * n_i + (x_i_0 + x_i)), (uint8_t)1, __ATOMIC_RELAXED);
  }
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_h = ctx->n_h = n[0]; (void)n_h;
  const int64_t n_i = ctx->n_i = n[1]; (void)n_i;
  const int64_t n_j = ctx->n_j = n[2]; (void)n_j;
  const int64_t n_e = ctx->n_e = n[3]; (void)n_e;
  const int64_t n_d = ctx->n_d = n[4]; (void)n_d;
  ctx->in_k_s0 = n[5];
  ctx->in_k_s1 = n[6];
  ctx->in_q_s0 = n[8];
  ctx->in_q_s1 = n[9];
  ctx->in_v_s0 = n[11];
  ctx->in_v_s1 = n[12];
  ctx->out_out0_s0 = n[14];
  ctx->out_out0_s1 = n[15];
  ctx->in_k = (f32_t *)in[0];
  ctx->in_q = (f32_t *)in[1];
  ctx->in_v = (f32_t *)in[2];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  ctx->buf_columns0_o_s0 = (n_j) * (rf_up(n_d, 16));
  ctx->buf_columns0_o_s1 = (rf_up(n_d, 16));
  const int64_t acc_o_ld = ctx->acc_o_ld = (rf_up(n_d, 32)) + ((rf_up(n_d, 32)) % 512 == 0 ? 16 : 0);
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_finite0_v = size; size += rf_up(9, 16) + 16;
  const int64_t at_buf_columns0_o = size; size += rf_up((n_h) * (n_j) * (rf_up(n_d, 16)) + 8, 16) + 16;
  ctx->off_tile0 = work; work += rf_up(10760, 16) + 16;
  ctx->off_rows0 = work; work += rf_up((n_e) * (96) + 8, 16) + 16;
  ctx->off_factor0_3 = work; work += rf_up(104, 16) + 16;
  ctx->off_o = work; work += rf_up(96 * acc_o_ld + 32, 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_finite0_v = shared + at_buf_finite0_v;
  ctx->buf_columns0_o = shared + at_buf_columns0_o;
  ctx->buf_finite0_v[0] = 1;
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_h * n_i));
  rf_parallel(phase_0_scan_v, ctx, n_h * ((n_j + 255) / 256), threads, 0);
  rf_parallel(phase_1_pack_columns0_o, ctx, n_h * ((n_d + 255) / 256), threads, 0);
  rf_parallel(phase_2_over_j, ctx, n_h * ((n_i + 95) / 96), threads, 1);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
