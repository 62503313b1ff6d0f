/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_r;
  int64_t n_k;
  int64_t n_n;
  int64_t n_segment;
  const f32_t * in_g;
  const f32_t * in_h;
  const f32_t * in_w;
  int64_t in_w_s0;
  const f32_t * in_x;
  int64_t in_x_s0;
  f32_t * out_out0;
  int64_t out_out0_s0;
  rf_real * buf_columns0_y;
  int64_t buf_columns0_y_s0;
  int64_t acc_gw_ld;
  int64_t acc_y_ld;
  int64_t acc_hw_ld;
  uint8_t * flags;
  int64_t off_weight0_0;
  int64_t off_coefficient0_1;
  int64_t off_gw;
  int64_t off_y;
  int64_t off_hw;
  rf_real *work; int64_t work_size;
};

RF_INLINE void contract_68_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *coefficient0, const rf_real *column0) {
  int64_t const acc_y_ld = ctx->acc_y_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * acc_y_ld + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * 272]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + v_fma(set1(coefficient0[i]), ld_real(column0 + j * LANES), ld_real(d + i * acc_y_ld + j * LANES)); } else { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_y_ld + j * LANES); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_y_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_68_4(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *coefficient0, const rf_real *column0) {
  int64_t const acc_y_ld = ctx->acc_y_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[4][2];
  RF_UNROLL(4) for (int i = 0; i < 4; i++) { PREFETCH_WRITE(d + i * acc_y_ld + 0 * RF_LINE); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(4) for (int i = 0; i < 4; i++) { const V y = set1(a[i * 272]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + v_fma(set1(coefficient0[i]), ld_real(column0 + j * LANES), ld_real(d + i * acc_y_ld + j * LANES)); } else { RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_y_ld + j * LANES); }
  RF_UNROLL(4) for (int i = 0; i < 4; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_y_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_68_2(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *coefficient0, const rf_real *column0) {
  int64_t const acc_y_ld = ctx->acc_y_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[2][2];
  RF_UNROLL(2) for (int i = 0; i < 2; i++) { PREFETCH_WRITE(d + i * acc_y_ld + 0 * RF_LINE); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(2) for (int i = 0; i < 2; i++) { const V y = set1(a[i * 272]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + v_fma(set1(coefficient0[i]), ld_real(column0 + j * LANES), ld_real(d + i * acc_y_ld + j * LANES)); } else { RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_y_ld + j * LANES); }
  RF_UNROLL(2) for (int i = 0; i < 2; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_y_ld + j * LANES, x[i][j]);
}
RF_INLINE void contract_68_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *coefficient0, const rf_real *column0) {
  int64_t const acc_y_ld = ctx->acc_y_ld;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * acc_y_ld + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * 272]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (zero != 2)
  if (zero) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + v_fma(set1(coefficient0[i]), ld_real(column0 + j * LANES), ld_real(d + i * acc_y_ld + j * LANES)); } else { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * acc_y_ld + j * LANES); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * acc_y_ld + j * LANES, x[i][j]);
}
RF_NOINLINE void contract_68(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, const rf_real *coefficient0, const rf_real *column0, int64_t rows) {
  int64_t const acc_y_ld = ctx->acc_y_ld;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_68_6(ctx, a + i * 272, b, n, d + i * acc_y_ld, zero, last, test, nj, coefficient0 + i, column0);
  for (; i + 4 <= rows; i += 4) contract_68_4(ctx, a + i * 272, b, n, d + i * acc_y_ld, zero, last, test, nj, coefficient0 + i, column0);
  for (; i + 2 <= rows; i += 2) contract_68_2(ctx, a + i * 272, b, n, d + i * acc_y_ld, zero, last, test, nj, coefficient0 + i, column0);
  for (; i + 1 <= rows; i += 1) contract_68_1(ctx, a + i * 272, b, n, d + i * acc_y_ld, zero, last, test, nj, coefficient0 + i, column0);
}
RF_NOINLINE void contract_69(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d) {
  (void)ctx; V x[4][2]; int64_t c = 0;
  RF_UNROLL(4) for (int u = 0; u < 4; u++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[u][j] = set1(0);
  for (; c + 4 <= n; c += 4, a += 4 * 1, b += 64) RF_UNROLL(4) for (int u = 0; u < 4; u++) {
    const V y = set1(a[u * 1]); RF_UNROLL(2) for (int j = 0; j < 2; j++) x[u][j] = v_fma(y, ld_real(b + u * 16 + j * LANES), x[u][j]);
  }
  for (; c < n; c++, a += 1, b += 16) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[0][j] = v_fma(set1(a[0]), ld_real(b + j * LANES), x[0][j]);
  RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + j * LANES, ld_real(d + j * LANES) + ((x[0][j] + x[1][j]) + (x[2][j] + x[3][j])));
}
RF_NOINLINE void contract_70(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d) {
  (void)ctx; V x[4][2]; int64_t c = 0;
  RF_UNROLL(4) for (int u = 0; u < 4; u++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[u][j] = set1(0);
  for (; c + 4 <= n; c += 4, a += 4 * 1, b += 64) RF_UNROLL(4) for (int u = 0; u < 4; u++) {
    const V y = set1(a[u * 1]); RF_UNROLL(2) for (int j = 0; j < 2; j++) x[u][j] = v_fma(y, ld_real(b + u * 16 + j * LANES), x[u][j]);
  }
  for (; c < n; c++, a += 1, b += 16) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[0][j] = v_fma(set1(a[0]), ld_real(b + j * LANES), x[0][j]);
  RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + j * LANES, ld_real(d + j * LANES) + ((x[0][j] + x[1][j]) + (x[2][j] + x[3][j])));
}
static void phase_0_pack_columns0_y(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_k = ctx->n_k;
  int64_t const n_n = ctx->n_n;
  const f32_t * const in_w = ctx->in_w;
  int64_t const in_w_s0 = ctx->in_w_s0;
  rf_real * const buf_columns0_y = ctx->buf_columns0_y;
  int64_t rest = item; (void)rest;
  const int64_t x_n_0 = rest % ((n_n + 255) / 256) * 256; rest /= ((n_n + 255) / 256);
  const int64_t x_n_c = rf_min(256, n_n - x_n_0);
  for (int64_t c0 = 0; c0 < n_k; c0 += 32) for (int64_t p = 0; p < x_n_c; p += 16) {
    rf_real *const to = buf_columns0_y + x_n_0 * (n_k) + p * (n_k); const int64_t left = x_n_c - p;
    if (left >= 16) for (int64_t x_k = c0; x_k < rf_min(c0 + 32, n_k); x_k++) for (int64_t l = 0; l < 16; l += LANES) {
      const V t1 = ld_f32(in_w + x_k * in_w_s0 + (x_n_0 + (p + l)));
      st_real(to + x_k * 16 + l, t1);
    }
    else for (int64_t x_k = c0; x_k < rf_min(c0 + 32, n_k); x_k++) for (int64_t l = 0; l < 16; l += LANES) {
      const M m = tail(left - l);
      const V t2 = ldm_f32(m, in_w + x_k * in_w_s0 + (x_n_0 + (p + l)));
      st_real(to + x_k * 16 + l, keep(m, t2));
    }
  }
}
static void phase_1_over_k(void *ctx_, int64_t item, int worker) {
    /* n: sum of 1 */
    /* a: sum of x[r,k] */
    /* q: sum of (x[r,k] - (a / n))**2; rebase (q' + (n' * ((a' / n') - (a / n))**2)) */
    /* gw: sum of (g[k] * w[k,n]) */
    /* y: sum of (((x[r,k] - (a / n)) * g[k]) * w[k,n]); rebase (y' + (((a' / n') - (a / n)) * gw')) */
    /* hw: sum of (h[k] * w[k,n]) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_k = ctx->n_k;
  int64_t const n_n = ctx->n_n;
  const f32_t * const in_g = ctx->in_g;
  const f32_t * const in_h = ctx->in_h;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  rf_real * const buf_columns0_y = ctx->buf_columns0_y;
  int64_t const acc_gw_ld = ctx->acc_gw_ld;
  int64_t const acc_y_ld = ctx->acc_y_ld;
  int64_t const acc_hw_ld = ctx->acc_hw_ld;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_weight0_0 = work + ctx->off_weight0_0;
  rf_real *const buf_coefficient0_1 = work + ctx->off_coefficient0_1;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % ((n_r + 263) / 264) * 264; rest /= ((n_r + 263) / 264);
  const int64_t x_r_c = rf_min(264, n_r - x_r_0);
  rf_real acc_n[264] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 264; t++) acc_n[t] = (rf_real)0;
  rf_real acc_n_old[264] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 264; t++) acc_n_old[t] = (rf_real)0;
  rf_real acc_a[264] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 264; t++) acc_a[t] = (rf_real)0;
  rf_real acc_a_old[264] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 264; t++) acc_a_old[t] = (rf_real)0;
  rf_real acc_q[264] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 264; t++) acc_q[t] = (rf_real)0;
  rf_real *acc_gw = work + ctx->off_gw;
  for (int64_t t = 0; t < 1 * acc_gw_ld + 32; t++) acc_gw[t] = (rf_real)0;
  rf_real *acc_y = work + ctx->off_y;
  rf_real *acc_hw = work + ctx->off_hw;
  for (int64_t t = 0; t < 1 * acc_hw_ld + 32; t++) acc_hw[t] = (rf_real)0;
  for (int64_t x_k_0 = 0; x_k_0 < n_k; x_k_0 += 256) {
    const int64_t x_k_c = rf_min(256, n_k - x_k_0);
    for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
      {
        int64_t x_k = 0;
        V a3 = set1((rf_real)0);
        V a4 = set1((rf_real)0);
        V a5 = set1((rf_real)0);
        V a6 = set1((rf_real)0);
        for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
          const V t7 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          a3 = a3 + t7;
          const V t8 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
          a4 = a4 + t8;
          const V t9 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)));
          a5 = a5 + t9;
          const V t10 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 3 * LANES)));
          a6 = a6 + t10;
        }
        for (; x_k + LANES <= x_k_c; x_k += LANES) {
          const V t11 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          a3 = a3 + t11;
        }
        if (x_k < x_k_c) {
          const M m = tail(x_k_c - x_k);
          const V t12 = ldm_f32(m, in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          a3 = a3 + keep(m, t12);
        }
        acc_a_old[x_r] = acc_a[x_r];
        acc_a[x_r] += h_sum(((a3 + a4) + (a5 + a6)));
        acc_n_old[x_r] = acc_n[x_r];
        acc_n[x_r] += (rf_real)x_k_c;
      }
    }
    for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
      if ((acc_a[x_r] != acc_a_old[x_r] || acc_n[x_r] != acc_n_old[x_r]) && !(acc_a_old[x_r] == (rf_real)0 && acc_n_old[x_r] == (rf_real)0)) {
        const V t13 = set1(acc_q[x_r]);
        const V t14 = set1(acc_n_old[x_r]);
        const V t15 = set1(acc_a_old[x_r]);
        const V t16 = t15 / t14;
        const V t17 = set1(acc_a[x_r]);
        const V t18 = set1(acc_n[x_r]);
        const V t19 = t17 / t18;
        const V t20 = t16 - t19;
        const V t21 = t20 * t20;
        const V t22 = t14 * t21;
        const V t23 = t13 + t22;
        const V n24 = t23;
        *(acc_q + x_r) = lane0(n24);
      }
    }
    for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
      {
        int64_t x_k = 0;
        const V t26 = set1(acc_a[x_r]);
        const V t27 = set1(acc_n[x_r]);
        const V t28 = t26 / t27;
        for (; x_k + 1 * LANES <= x_k_c; x_k += 1 * LANES) {
          const V t25 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          const V t29 = t25 - t28;
          const V t30 = ld_f32(in_g + (x_k_0 + x_k));
          const V t31 = t29 * t30;
          st_real(buf_weight0_0 + x_r * 272 + x_k, t31);
        }
        if (x_k < x_k_c) {
          const M m = tail(x_k_c - x_k);
          const V t32 = ldm_f32(m, in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          const V t33 = t32 - t28;
          const V t34 = ldm_f32(m, in_g + (x_k_0 + x_k));
          const V t35 = t33 * t34;
          st_real(buf_weight0_0 + x_r * 272 + x_k, t35);
        }
      }
    }
    for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
      if (!(acc_a[x_r] == (rf_real)0 && acc_n[x_r] == (rf_real)0)) {
        int64_t x_k = 0;
        const V t41 = set1(acc_a[x_r]);
        const V t42 = set1(acc_n[x_r]);
        const V t43 = t41 / t42;
        V a36 = set1((rf_real)0);
        V a37 = set1((rf_real)0);
        V a38 = set1((rf_real)0);
        V a39 = set1((rf_real)0);
        for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
          const V t40 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          const V t44 = t40 - t43;
          const V t45 = t44 * t44;
          a36 = v_fma(t44, t44, a36);
          const V t46 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
          const V t47 = t46 - t43;
          const V t48 = t47 * t47;
          a37 = v_fma(t47, t47, a37);
          const V t49 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)));
          const V t50 = t49 - t43;
          const V t51 = t50 * t50;
          a38 = v_fma(t50, t50, a38);
          const V t52 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + (x_k + 3 * LANES)));
          const V t53 = t52 - t43;
          const V t54 = t53 * t53;
          a39 = v_fma(t53, t53, a39);
        }
        for (; x_k + LANES <= x_k_c; x_k += LANES) {
          const V t55 = ld_f32(in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          const V t56 = t55 - t43;
          const V t57 = t56 * t56;
          a36 = v_fma(t56, t56, a36);
        }
        if (x_k < x_k_c) {
          const M m = tail(x_k_c - x_k);
          const V t58 = ldm_f32(m, in_x + (x_r_0 + x_r) * in_x_s0 + (x_k_0 + x_k));
          const V t59 = t58 - t43;
          const V t60 = t59 * t59;
          a36 = a36 + keep(m, t60);
        }
        acc_q[x_r] += h_sum(((a36 + a37) + (a38 + a39)));
      }
    }
    for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
      if ((acc_a[x_r] != acc_a_old[x_r] || acc_n[x_r] != acc_n_old[x_r]) && !(acc_a_old[x_r] == (rf_real)0 && acc_n_old[x_r] == (rf_real)0)) {
        const V t61 = set1(acc_a_old[x_r]);
        const V t62 = set1(acc_n_old[x_r]);
        const V t63 = t61 / t62;
        const V t64 = set1(acc_a[x_r]);
        const V t65 = set1(acc_n[x_r]);
        const V t66 = t64 / t65;
        const V t67 = t63 - t66;
        put_real(buf_coefficient0_1 + x_r, lane0(t67));
      }
      else {
        put_real(buf_coefficient0_1 + x_r, lane0(set1((rf_real)0)));
      }
    }
    for (int64_t c0 = 0; c0 < x_k_c || c0 == 0; c0 += 256) for (int64_t p = 0; p < n_n; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= n_n; const int test = (0 || !whole); (void)whole; (void)test;
      contract_68(ctx, buf_weight0_0 + c0 * 1, buf_columns0_y + x_k_0 * 16 + p * (n_k) + c0 * 16, rf_min(256, x_k_c - c0), acc_y + p, (c0 == 0) * (1 + (x_k_0 == 0)), c0 + 256 >= x_k_c, test, n_n - p, buf_coefficient0_1, acc_gw + p, x_r_c);
      contract_69(ctx, in_h + x_k_0 + c0 * 1, buf_columns0_y + x_k_0 * 16 + p * (n_k) + c0 * 16, rf_min(256, x_k_c - c0), acc_hw + p);
      contract_70(ctx, in_g + x_k_0 + c0 * 1, buf_columns0_y + x_k_0 * 16 + p * (n_k) + c0 * 16, rf_min(256, x_k_c - c0), acc_gw + p);
    }
  }
  for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
    V bad71 = set1(0);
    {
      int64_t x_n = 0;
      const V t73 = set1(acc_q[x_r]);
      const V t74 = set1(acc_n[x_r]);
      const V t75 = t73 / t74;
      const V t76 = t75 + set1((rf_real)0x1.4f8b588e368f1p-17);
      const V t77 = v_rsqrt(t76);
      for (; x_n + LANES <= n_n; x_n += LANES) {
        const V t72 = ld_real(acc_y + x_r * acc_y_ld + x_n);
        const V t78 = t72 * t77;
        const V t79 = ld_real(acc_hw + x_n);
        const V t80 = t78 + t79;
        const V t81 = ld_real(acc_y + x_r * acc_y_ld + x_n);
        st_f32(out_out0 + (x_r_0 + x_r) * out_out0_s0 + x_n, t80);
        bad71 = bad71 + t81 * set1(0);
        bad71 = bad71 + t79 * set1(0);
      }
      const V t83 = set1(acc_q[x_r]);
      const V t84 = set1(acc_n[x_r]);
      const V t85 = t83 / t84;
      const V t86 = t85 + set1((rf_real)0x1.4f8b588e368f1p-17);
      const V t87 = v_rsqrt(t86);
      if (x_n < n_n) { const M m = tail(n_n - x_n); (void)m;
        const V t82 = ld_real(acc_y + x_r * acc_y_ld + x_n);
        const V t88 = t82 * t87;
        const V t89 = ld_real(acc_hw + x_n);
        const V t90 = t88 + t89;
        const V t91 = ld_real(acc_y + x_r * acc_y_ld + x_n);
        stm_f32(m, out_out0 + (x_r_0 + x_r) * out_out0_s0 + x_n, t90);
        bad71 = bad71 + keep(m, t91 * set1(0));
        bad71 = bad71 + keep(m, t89 * set1(0));
      }
    }
    if (m_any(m_isnan(bad71))) __atomic_store_n(flags + (0 * n_r + (x_r_0 + x_r)), (uint8_t)1, __ATOMIC_RELAXED);
  }
  for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
    int bad92 = 0;
    bad92 |= !isfinite(acc_n[x_r]);
    bad92 |= !isfinite(acc_a[x_r]);
    bad92 |= !isfinite(acc_q[x_r]);
    V bad93 = set1(0);
    {
      int64_t x_n = 0;
      for (; x_n + LANES <= n_n; x_n += LANES) {
        const V t94 = ld_real(acc_gw + x_n);
        bad93 = bad93 + t94 * set1(0);
      }
      if (x_n < n_n) { const M m = tail(n_n - x_n); (void)m;
        const V t95 = ld_real(acc_gw + x_n);
        bad93 = bad93 + keep(m, t95 * set1(0));
      }
    }
    bad92 |= m_any(m_isnan(bad93));
    if (bad92) __atomic_store_n(flags + (0 * n_r + (x_r_0 + x_r)), (uint8_t)1, __ATOMIC_RELAXED);
  }
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_r = ctx->n_r = n[0]; (void)n_r;
  const int64_t n_k = ctx->n_k = n[1]; (void)n_k;
  const int64_t n_n = ctx->n_n = n[2]; (void)n_n;
  ctx->in_w_s0 = n[5];
  ctx->in_x_s0 = n[7];
  ctx->out_out0_s0 = n[9];
  ctx->in_g = (f32_t *)in[0];
  ctx->in_h = (f32_t *)in[1];
  ctx->in_w = (f32_t *)in[2];
  ctx->in_x = (f32_t *)in[3];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  ctx->buf_columns0_y_s0 = (rf_up(n_n, 16));
  const int64_t acc_gw_ld = ctx->acc_gw_ld = (rf_up(n_n, 32)) + ((rf_up(n_n, 32)) % 512 == 0 ? 16 : 0);
  const int64_t acc_y_ld = ctx->acc_y_ld = (rf_up(n_n, 32)) + ((rf_up(n_n, 32)) % 512 == 0 ? 16 : 0);
  const int64_t acc_hw_ld = ctx->acc_hw_ld = (rf_up(n_n, 32)) + ((rf_up(n_n, 32)) % 512 == 0 ? 16 : 0);
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_columns0_y = size; size += rf_up((n_k) * (rf_up(n_n, 16)) + 8, 16) + 16;
  ctx->off_weight0_0 = work; work += rf_up(71816, 16) + 16;
  ctx->off_coefficient0_1 = work; work += rf_up(272, 16) + 16;
  ctx->off_gw = work; work += rf_up(1 * acc_gw_ld + 32, 16) + 16;
  ctx->off_y = work; work += rf_up(264 * acc_y_ld + 32, 16) + 16;
  ctx->off_hw = work; work += rf_up(1 * acc_hw_ld + 32, 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_columns0_y = shared + at_buf_columns0_y;
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_r));
  rf_parallel(phase_0_pack_columns0_y, ctx, ((n_n + 255) / 256), threads, 0);
  rf_parallel(phase_1_over_k, ctx, ((n_r + 263) / 264), threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
