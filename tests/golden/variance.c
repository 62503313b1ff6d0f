/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_r;
  int64_t n_k;
  int64_t n_segment;
  const f32_t * in_x;
  int64_t in_x_s0;
  f32_t * out_out0;
  uint8_t * flags;
  rf_real *work; int64_t work_size;
};

static void phase_0_over_k(void *ctx_, int64_t item, int worker) {
    /* n: sum of 1 */
    /* a: sum of x[r,k] */
    /* q: sum of (x[r,k] - (a / n))**2; rebase (q' + (n' * ((a' / n') - (a / n))**2)) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_k = ctx->n_k;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  f32_t * const out_out0 = ctx->out_out0;
  uint8_t * const flags = ctx->flags;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % n_r; rest /= n_r;
  double acc_n[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_n[t] = (rf_real)0;
  double acc_n_old[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_n_old[t] = (rf_real)0;
  double acc_a[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_a[t] = (rf_real)0;
  double acc_a_old[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_a_old[t] = (rf_real)0;
  double acc_q[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_q[t] = (rf_real)0;
  for (int64_t x_k_0 = 0; x_k_0 < n_k; x_k_0 += 512) {
    const int64_t x_k_c = rf_min(512, n_k - x_k_0);
    {
      int64_t x_k = 0;
      V a1 = set1((rf_real)0);
      V a2 = set1((rf_real)0);
      V a3 = set1((rf_real)0);
      V a4 = set1((rf_real)0);
      for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
        const V t5 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = a1 + t5;
        const V t6 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
        a2 = a2 + t6;
        const V t7 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)));
        a3 = a3 + t7;
        const V t8 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 3 * LANES)));
        a4 = a4 + t8;
      }
      for (; x_k + LANES <= x_k_c; x_k += LANES) {
        const V t9 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = a1 + t9;
      }
      if (x_k < x_k_c) {
        const M m = tail(x_k_c - x_k);
        const V t10 = ldm_f32(m, in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = a1 + keep(m, t10);
      }
      acc_a_old[0] = acc_a[0];
      acc_a[0] += h_sum(((a1 + a2) + (a3 + a4)));
      acc_n_old[0] = acc_n[0];
      acc_n[0] += (rf_real)x_k_c;
    }
    if ((acc_a[0] != acc_a_old[0] || acc_n[0] != acc_n_old[0]) && !(acc_a_old[0] == (rf_real)0 && acc_n_old[0] == (rf_real)0)) {
      const V t11 = set1(acc_n_old[0]);
      const V t12 = set1(acc_a_old[0]);
      const V t13 = t12 / t11;
      const V t14 = set1(acc_a[0]);
      const V t15 = set1(acc_n[0]);
      const V t16 = t14 / t15;
      const V t17 = t13 - t16;
      const V t18 = t17 * t17;
      const V t19 = t11 * t18;
      const double d20 = (acc_q[0]) + ((double)lane0(t19));
      const double d21 = d20;
      acc_q[0] = d21;
    }
    if (!(acc_a[0] == (rf_real)0 && acc_n[0] == (rf_real)0)) {
      int64_t x_k = 0;
      const V t27 = set1(acc_a[0]);
      const V t28 = set1(acc_n[0]);
      const V t29 = t27 / t28;
      V a22 = set1((rf_real)0);
      V a23 = set1((rf_real)0);
      V a24 = set1((rf_real)0);
      V a25 = set1((rf_real)0);
      for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
        PREFETCH(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)) + 2048);
        PREFETCH(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k) + 2048);
        const V t26 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t30 = t26 - t29;
        const V t31 = t30 * t30;
        a22 = v_fma(t30, t30, a22);
        const V t32 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
        const V t33 = t32 - t29;
        const V t34 = t33 * t33;
        a23 = v_fma(t33, t33, a23);
        const V t35 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)));
        const V t36 = t35 - t29;
        const V t37 = t36 * t36;
        a24 = v_fma(t36, t36, a24);
        const V t38 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 3 * LANES)));
        const V t39 = t38 - t29;
        const V t40 = t39 * t39;
        a25 = v_fma(t39, t39, a25);
      }
      for (; x_k + LANES <= x_k_c; x_k += LANES) {
        PREFETCH(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k) + 2048);
        const V t41 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t42 = t41 - t29;
        const V t43 = t42 * t42;
        a22 = v_fma(t42, t42, a22);
      }
      if (x_k < x_k_c) {
        const M m = tail(x_k_c - x_k);
        const V t44 = ldm_f32(m, in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t45 = t44 - t29;
        const V t46 = t45 * t45;
        a22 = a22 + keep(m, t46);
      }
      acc_q[0] += h_sum(((a22 + a23) + (a24 + a25)));
    }
  }
  {
    const V t47 = set1(acc_q[0]);
    const V t48 = set1(acc_n[0]);
    const V t49 = t47 / t48;
    put_f32(out_out0 + x_r_0, lane0(t49));
  }
  int bad50 = 0;
  bad50 |= !isfinite(acc_n[0]);
  bad50 |= !isfinite(acc_a[0]);
  bad50 |= !isfinite(acc_q[0]);
  if (bad50) __atomic_store_n(flags + (0 * n_r + x_r_0), (uint8_t)1, __ATOMIC_RELAXED);
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_r = ctx->n_r = n[0]; (void)n_r;
  const int64_t n_k = ctx->n_k = n[1]; (void)n_k;
  ctx->in_x_s0 = n[2];
  ctx->in_x = (f32_t *)in[0];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  int64_t size = 0, work = 0; (void)work;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_r));
  rf_parallel(phase_0_over_k, ctx, n_r, threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
