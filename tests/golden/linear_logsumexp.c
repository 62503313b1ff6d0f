/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_r;
  int64_t n_v;
  int64_t n_h;
  int64_t n_segment;
  const f32_t * in_w;
  int64_t in_w_s0;
  const f32_t * in_x;
  int64_t in_x_s0;
  f32_t * out_out0;
  rf_real * buf_rows0;
  int64_t buf_rows0_s0;
  rf_real * buf_part0_m;
  int64_t buf_part0_m_s0;
  rf_real * buf_part0_s;
  int64_t buf_part0_s_s0;
  uint8_t * flags;
  int64_t off_tile0;
  int64_t off_m;
  int64_t off_m_old;
  int64_t off_s;
  rf_real *work; int64_t work_size;
};

RF_INLINE void contract_2_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_segment, int64_t x_r_0, int64_t x_v_0, int64_t x_v, int64_t x_r, rf_real *acc_m) {
  int64_t const in_w_s0 = ctx->in_w_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * in_w_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a4 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t3 = x[i][j];
        a4 = v_max_raw(a4, t3);
        st_real(d + i * 144 + j * LANES, t3);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a4);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a6 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(6) for (int i = 0; i < 6; i++) {
        const V t5 = x[i][j];
        a6 = v_max_raw(a6, t5);
        st_real(d + i * 144 + j * LANES, t5);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a6);
    }
  }
}
RF_INLINE void contract_2_3(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_segment, int64_t x_r_0, int64_t x_v_0, int64_t x_v, int64_t x_r, rf_real *acc_m) {
  int64_t const in_w_s0 = ctx->in_w_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[3][2];
  RF_UNROLL(3) for (int i = 0; i < 3; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(3) for (int i = 0; i < 3; i++) { const V y = set1(a[i * in_w_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a8 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t7 = x[i][j];
        a8 = v_max_raw(a8, t7);
        st_real(d + i * 144 + j * LANES, t7);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a8);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a10 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(3) for (int i = 0; i < 3; i++) {
        const V t9 = x[i][j];
        a10 = v_max_raw(a10, t9);
        st_real(d + i * 144 + j * LANES, t9);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a10);
    }
  }
}
RF_INLINE void contract_2_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_segment, int64_t x_r_0, int64_t x_v_0, int64_t x_v, int64_t x_r, rf_real *acc_m) {
  int64_t const in_w_s0 = ctx->in_w_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * in_w_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      
      V a12 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t11 = x[i][j];
        a12 = v_max_raw(a12, t11);
        st_real(d + i * 144 + j * LANES, t11);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a12);
    }
  } else {
    RF_UNROLL(2) for (int j = 0; j < 2; j++) {
      const M m = tail(nj - j * LANES); (void)m;
      V a14 = ld_real(acc_m + (x_r_0 + (x_r + j * LANES)));
      RF_UNROLL(1) for (int i = 0; i < 1; i++) {
        const V t13 = x[i][j];
        a14 = v_max_raw(a14, t13);
        st_real(d + i * 144 + j * LANES, t13);
      }
      st_real(acc_m + (x_r_0 + (x_r + j * LANES)), a14);
    }
  }
}
RF_NOINLINE void contract_2(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_segment, int64_t x_r_0, int64_t x_v_0, int64_t x_r, rf_real *acc_m, int64_t rows) {
  int64_t const in_w_s0 = ctx->in_w_s0;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_2_6(ctx, a + i * in_w_s0, b, n, d + i * 144, zero, last, test, nj, x_segment, x_r_0, x_v_0, i, x_r, acc_m);
  for (; i + 3 <= rows; i += 3) contract_2_3(ctx, a + i * in_w_s0, b, n, d + i * 144, zero, last, test, nj, x_segment, x_r_0, x_v_0, i, x_r, acc_m);
  for (; i + 1 <= rows; i += 1) contract_2_1(ctx, a + i * in_w_s0, b, n, d + i * 144, zero, last, test, nj, x_segment, x_r_0, x_v_0, i, x_r, acc_m);
}
static void phase_0_pack_rows0(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_h = ctx->n_h;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  rf_real * const buf_rows0 = ctx->buf_rows0;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % ((n_r + 63) / 64) * 64; rest /= ((n_r + 63) / 64);
  const int64_t x_r_c = rf_min(64, n_r - x_r_0);
  for (int64_t p = 0; p < x_r_c; p += 16) for (int64_t l = 0; l < 16; l += LANES) {
    rf_real *to = buf_rows0 + x_r_0 * (n_h) + p * (n_h) + l; const int64_t left = x_r_c - p - l; (void)left;
    for (int64_t x_h = 0; x_h < n_h; x_h += LANES) {
      V r[LANES]; const M m = tail(n_h - x_h);
      for (int q = 0; q < LANES; q++) {
        r[q] = set1(0); if (q < left) {
          const V t1 = ldm_f32(m, in_x + (x_r_0 + (p + l + q)) * in_x_s0 + x_h);
          r[q] = t1;
        }
      }
      v_transpose(r);
      for (int q = 0; q < LANES && x_h + q < n_h; q++)
      st_real(to + (x_h + q) * 16, r[q]);
    }
  }
}
static void phase_1_over_v(void *ctx_, int64_t item, int worker) {
    /* m: max of sum_h((x[r,h] * w[v,h])) */
    /* s: sum of exp((sum_h((x[r,h] * w[v,h])) - m)); rebase (s' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_v = ctx->n_v;
  int64_t const n_h = ctx->n_h;
  int64_t const n_segment = ctx->n_segment;
  const f32_t * const in_w = ctx->in_w;
  int64_t const in_w_s0 = ctx->in_w_s0;
  rf_real * const buf_rows0 = ctx->buf_rows0;
  rf_real * const buf_part0_m = ctx->buf_part0_m;
  int64_t const buf_part0_m_s0 = ctx->buf_part0_m_s0;
  rf_real * const buf_part0_s = ctx->buf_part0_s;
  int64_t const buf_part0_s_s0 = ctx->buf_part0_s_s0;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_tile0 = work + ctx->off_tile0;
  int64_t rest = item; (void)rest;
  const int64_t x_segment = rest % n_segment; rest /= n_segment;
  const int64_t segment_from = x_segment * 1044, segment_to = rf_min(n_v, segment_from + 1044);
  rf_real *acc_m = work + ctx->off_m;
  for (int64_t t = 0; t < rf_up(n_r, 8); t++) acc_m[t] = -RF_INF;
  rf_real *acc_m_old = work + ctx->off_m_old;
  for (int64_t t = 0; t < rf_up(n_r, 8); t++) acc_m_old[t] = -RF_INF;
  rf_real *acc_s = work + ctx->off_s;
  for (int64_t t = 0; t < rf_up(n_r, 8); t++) acc_s[t] = (rf_real)0;
  for (int64_t x_v_0 = segment_from; x_v_0 < segment_to; x_v_0 += 36) {
    const int64_t x_v_c = rf_min(36, segment_to - x_v_0);
    for (int64_t x_r_0 = 0; x_r_0 < n_r; x_r_0 += 128) {
      const int64_t x_r_c = rf_min(128, n_r - x_r_0);
      for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
        acc_m_old[(x_r_0 + x_r)] = acc_m[(x_r_0 + x_r)];
      }
      for (int64_t c0 = 0; c0 < n_h || c0 == 0; c0 += 352) for (int64_t p = 0; p < x_r_c; p += (2 * LANES)) {
        const int whole = p + (2 * LANES) <= x_r_c; const int test = (0 || !whole); (void)whole; (void)test;
        contract_2(ctx, in_w + x_v_0 * in_w_s0 + c0 * 1, buf_rows0 + x_r_0 * (n_h) + p * (n_h) + c0 * 16, rf_min(352, n_h - c0), buf_tile0 + p, c0 == 0, c0 + 352 >= n_h, test, x_r_c - p, x_segment, x_r_0, x_v_0, p, acc_m, x_v_c);
      }
      for (int64_t x_r = 0; x_r < x_r_c; x_r += LANES) {
        const M m15 = m_and(m_ne(ld_real(acc_m + (x_r_0 + x_r)), ld_real(acc_m_old + (x_r_0 + x_r))), m_not(m_eq(ld_real(acc_m_old + (x_r_0 + x_r)), set1(-RF_INF))));
        if (m_any(m15)) {
          const V t17 = ld_real(acc_s + (x_r_0 + x_r));
          const V t18 = sel(m_eq(ld_real(acc_m_old + (x_r_0 + x_r)), set1(-RF_INF)), v_settle(ld_real(acc_m + (x_r_0 + x_r))), ld_real(acc_m_old + (x_r_0 + x_r)));
          const V t19 = v_settle(ld_real(acc_m + (x_r_0 + x_r)));
          const V t20 = t18 - t19;
          const V t21 = v_exp(t20);
          const V t22 = t17 * t21;
          const V n16 = t22;
          st_real(acc_s + (x_r_0 + x_r), sel(m15, n16, ld_real(acc_s + (x_r_0 + x_r))));
        }
      }
      {
        int64_t x_r = 0;
        for (; x_r + 2 * LANES <= x_r_c; x_r += 2 * LANES) {
          V a23 = ld_real(acc_s + (x_r_0 + x_r));
          V a28 = ld_real(acc_s + (x_r_0 + (x_r + 1 * LANES)));
          const V t25 = v_settle(ld_real(acc_m + (x_r_0 + x_r)));
          const V t30 = v_settle(ld_real(acc_m + (x_r_0 + (x_r + 1 * LANES))));
          for (int64_t x_v = 0; x_v < x_v_c; x_v++) {
            const V t24 = ld_real(buf_tile0 + x_v * 144 + x_r);
            const V t26 = t24 - t25;
            const V t27 = v_expz(t26);
            a23 = a23 + t27;
            const V t29 = ld_real(buf_tile0 + x_v * 144 + (x_r + 1 * LANES));
            const V t31 = t29 - t30;
            const V t32 = v_expz(t31);
            a28 = a28 + t32;
          }
          st_real(acc_s + (x_r_0 + x_r), a23);
          st_real(acc_s + (x_r_0 + (x_r + 1 * LANES)), a28);
        }
        for (; x_r < x_r_c; x_r += 1 * LANES) {
          const M m = tail(x_r_c - x_r);
          V a33 = ld_real(acc_s + (x_r_0 + x_r));
          const V t35 = v_settle(ld_real(acc_m + (x_r_0 + x_r)));
          for (int64_t x_v = 0; x_v < x_v_c; x_v++) {
            const V t34 = ld_real(buf_tile0 + x_v * 144 + x_r);
            const V t36 = t34 - t35;
            const V t37 = v_expz(t36);
            a33 = a33 + t37;
          }
          st_real(acc_s + (x_r_0 + x_r), a33);
        }
      }
    }
  }
  for (int64_t x_r = 0; x_r < n_r; x_r += 1) {
    put_real(buf_part0_m + x_segment * buf_part0_m_s0 + x_r, lane0(set1(acc_m[x_r])));
  }
  for (int64_t x_r = 0; x_r < n_r; x_r += 1) {
    put_real(buf_part0_s + x_segment * buf_part0_s_s0 + x_r, lane0(set1(acc_s[x_r])));
  }
}
static void phase_2_merge(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_segment = ctx->n_segment;
  f32_t * const out_out0 = ctx->out_out0;
  rf_real * const buf_part0_m = ctx->buf_part0_m;
  int64_t const buf_part0_m_s0 = ctx->buf_part0_m_s0;
  rf_real * const buf_part0_s = ctx->buf_part0_s;
  int64_t const buf_part0_s_s0 = ctx->buf_part0_s_s0;
  uint8_t * const flags = ctx->flags;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % ((n_r + 127) / 128) * 128; rest /= ((n_r + 127) / 128);
  const int64_t x_r_c = rf_min(128, n_r - x_r_0);
  rf_real acc_m[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_m[t] = -RF_INF;
  rf_real acc_s[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_s[t] = (rf_real)0;
  for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
    for (int64_t x_segment = 0; x_segment < n_segment; x_segment++) {
      const V t38 = set1(get_real(buf_part0_m + x_segment * buf_part0_m_s0 + (x_r_0 + x_r)));
      *(acc_m + x_r) = lane0(v_maximum(set1(acc_m[x_r]), t38));
    }
    for (int64_t x_segment = 0; x_segment < n_segment; x_segment++) {
      if (*(buf_part0_m + x_segment * buf_part0_m_s0 + (x_r_0 + x_r)) == -RF_INF) continue;
      const V t39 = set1(get_real(buf_part0_s + x_segment * buf_part0_s_s0 + (x_r_0 + x_r)));
      const V t40 = sel(m_eq(set1(get_real(buf_part0_m + x_segment * buf_part0_m_s0 + (x_r_0 + x_r))), set1(-RF_INF)), v_settle(set1(acc_m[x_r])), set1(get_real(buf_part0_m + x_segment * buf_part0_m_s0 + (x_r_0 + x_r))));
      const V t41 = v_settle(set1(acc_m[x_r]));
      const V t42 = t40 - t41;
      const V t43 = v_exp(t42);
      const V t44 = t39 * t43;
      *(acc_s + x_r) = lane0(set1(acc_s[x_r]) + t44);
    }
  }
  {
    int64_t x_r = 0;
    for (; x_r + LANES <= x_r_c; x_r += LANES) {
      const V t45 = ld_real(acc_m + x_r);
      const V t46 = ld_real(acc_s + x_r);
      const V t47 = v_log(t46);
      const V t48 = t45 + t47;
      st_f32(out_out0 + (x_r_0 + x_r), t48);
    }
    if (x_r < x_r_c) { const M m = tail(x_r_c - x_r); (void)m;
      const V t49 = ld_real(acc_m + x_r);
      const V t50 = ld_real(acc_s + x_r);
      const V t51 = v_log(t50);
      const V t52 = t49 + t51;
      stm_f32(m, out_out0 + (x_r_0 + x_r), t52);
    }
  }
  for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
    int bad53 = 0;
    bad53 |= !isfinite(acc_m[x_r]);
    bad53 |= !isfinite(acc_s[x_r]);
    if (bad53) __atomic_store_n(flags + (0 * n_r + (x_r_0 + x_r)), (uint8_t)1, __ATOMIC_RELAXED);
  }
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_r = ctx->n_r = n[0]; (void)n_r;
  const int64_t n_v = ctx->n_v = n[1]; (void)n_v;
  const int64_t n_h = ctx->n_h = n[2]; (void)n_h;
  ctx->in_w_s0 = n[3];
  ctx->in_x_s0 = n[5];
  ctx->in_w = (f32_t *)in[0];
  ctx->in_x = (f32_t *)in[1];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = rf_max(1, (n_v + 1043) / 1044);
  ctx->buf_rows0_s0 = (rf_up(n_r, 16));
  ctx->buf_part0_m_s0 = (n_r);
  ctx->buf_part0_s_s0 = (n_r);
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_rows0 = size; size += rf_up((n_h) * (rf_up(n_r, 16)) + 8, 16) + 16;
  const int64_t at_buf_part0_m = size; size += rf_up((n_segment) * (n_r) + 8, 16) + 16;
  const int64_t at_buf_part0_s = size; size += rf_up((n_segment) * (n_r) + 8, 16) + 16;
  ctx->off_tile0 = work; work += rf_up(5192, 16) + 16;
  ctx->off_m = work; work += rf_up(rf_up(n_r, 8), 16) + 16;
  ctx->off_m_old = work; work += rf_up(rf_up(n_r, 8), 16) + 16;
  ctx->off_s = work; work += rf_up(rf_up(n_r, 8), 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_rows0 = shared + at_buf_rows0;
  ctx->buf_part0_m = shared + at_buf_part0_m;
  ctx->buf_part0_s = shared + at_buf_part0_s;
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_r));
  rf_parallel(phase_0_pack_rows0, ctx, ((n_r + 63) / 64), threads, 0);
  rf_parallel(phase_1_over_v, ctx, n_segment, threads, 0);
  rf_parallel(phase_2_merge, ctx, ((n_r + 127) / 128), threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
