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
  int64_t out_out0_s0;
  uint8_t * flags;
  int64_t off_saved0_0;
  int64_t off_tiles0_m;
  rf_real *work; int64_t work_size;
};

static void phase_0_over_k(void *ctx_, int64_t item, int worker) {
    /* m: max of x[r,k] */
    /* s: sum of exp((x[r,k] - m)); rebase (s' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_k = ctx->n_k;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_saved0_0 = work + ctx->off_saved0_0;
  rf_real *const buf_tiles0_m = work + ctx->off_tiles0_m;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % n_r; rest /= n_r;
  rf_real acc_m[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_m_old[t] = -RF_INF;
  double acc_s[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_s[t] = (rf_real)0;
  for (int64_t x_k_0 = 0; x_k_0 < n_k; x_k_0 += 512) {
    const int64_t x_k_c = rf_min(512, n_k - x_k_0);
    {
      int64_t x_k = 0;
      V a1 = set1(-RF_INF);
      V a2 = set1(-RF_INF);
      V a3 = set1(-RF_INF);
      V a4 = set1(-RF_INF);
      for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
        const V t5 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = v_max_raw(a1, t5);
        const V t6 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
        a2 = v_max_raw(a2, t6);
        const V t7 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 2 * LANES)));
        a3 = v_max_raw(a3, t7);
        const V t8 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 3 * LANES)));
        a4 = v_max_raw(a4, t8);
      }
      for (; x_k + LANES <= x_k_c; x_k += LANES) {
        const V t9 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = v_max_raw(a1, t9);
      }
      if (x_k < x_k_c) {
        const M m = tail(x_k_c - x_k);
        const V t10 = ldm_f32(m, in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        a1 = sel(m, v_max_raw(a1, t10), a1);
      }
      acc_m_old[0] = acc_m[0];
      acc_m[0] = lane0(v_maximum(set1(acc_m[0]), set1(h_max((v_maximum((v_maximum(a1, a2)), (v_maximum(a3, a4))))))));
    }
    if ((acc_m[0] != acc_m_old[0]) && !(acc_m_old[0] == -RF_INF)) {
      const V t11 = sel(m_eq(set1(acc_m_old[0]), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(acc_m_old[0]));
      const V t12 = v_settle(set1(acc_m[0]));
      const V t13 = t11 - t12;
      const V t14 = v_exp(t13);
      const double d15 = (acc_s[0]) * ((double)lane0(t14));
      const double d16 = d15;
      acc_s[0] = d16;
    }
    {
      int64_t x_k = 0;
      const V t20 = v_settle(set1(acc_m[0]));
      V a17 = set1((rf_real)0);
      V a18 = set1((rf_real)0);
      for (; x_k + 2 * LANES <= x_k_c; x_k += 2 * LANES) {
        PREFETCH(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k) + 2048);
        const V t19 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t21 = t19 - t20;
        const V t22 = v_expz(t21);
        a17 = a17 + t22;
        st_real(buf_saved0_0 + (x_k_0 + x_k), t22);
        const V t23 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + (x_k + 1 * LANES)));
        const V t24 = t23 - t20;
        const V t25 = v_expz(t24);
        a18 = a18 + t25;
        st_real(buf_saved0_0 + (x_k_0 + (x_k + 1 * LANES)), t25);
      }
      for (; x_k + LANES <= x_k_c; x_k += LANES) {
        PREFETCH(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k) + 2048);
        const V t26 = ld_f32(in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t27 = t26 - t20;
        const V t28 = v_expz(t27);
        a17 = a17 + t28;
        st_real(buf_saved0_0 + (x_k_0 + x_k), t28);
      }
      if (x_k < x_k_c) {
        const M m = tail(x_k_c - x_k);
        const V t29 = ldm_f32(m, in_x + x_r_0 * in_x_s0 + (x_k_0 + x_k));
        const V t30 = t29 - t20;
        const V t31 = v_expz(t30);
        a17 = a17 + keep(m, t31);
        st_real(buf_saved0_0 + (x_k_0 + x_k), t31);
      }
      acc_s[0] += h_sum((a17 + a18));
    }
    buf_tiles0_m[x_k_0 / 512 * 1 + 0] = acc_m[0];
  }
  for (int64_t x_k_0 = 0; x_k_0 < n_k; x_k_0 += 512) {
    const int64_t x_k_c = rf_min(512, n_k - x_k_0);
    acc_m_old[0] = buf_tiles0_m[x_k_0 / 512 * 1 + 0];
    {
      int64_t x_k = 0;
      const V t34 = sel(m_eq(set1(acc_m_old[0]), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(acc_m_old[0]));
      const V t35 = v_settle(set1(acc_m[0]));
      const V t36 = t34 - t35;
      const V t37 = v_exp(t36);
      const V t39 = set1(acc_s[0]);
      const int64_t first32 = rf_min(rf_to_line(out_out0 + x_r_0 * out_out0_s0 + x_k_0), x_k_c);
      for (; x_k < first32; x_k += LANES) {
        const M m = tail(first32 - x_k);
        const V t33 = ld_real(buf_saved0_0 + (x_k_0 + x_k));
        const V t38 = t33 * t37;
        const V t40 = t38 / t39;
        stm_f32(m, out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + x_k), t40);
      }
      x_k = first32;
      for (; x_k + 4 * LANES <= x_k_c; x_k += 4 * LANES) {
        const V t41 = ld_real(buf_saved0_0 + (x_k_0 + x_k));
        const V t42 = t41 * t37;
        const V t43 = t42 / t39;
        st_past(out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + x_k), t43);
        const V t44 = ld_real(buf_saved0_0 + (x_k_0 + (x_k + 1 * LANES)));
        const V t45 = t44 * t37;
        const V t46 = t45 / t39;
        st_past(out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + (x_k + 1 * LANES)), t46);
        const V t47 = ld_real(buf_saved0_0 + (x_k_0 + (x_k + 2 * LANES)));
        const V t48 = t47 * t37;
        const V t49 = t48 / t39;
        st_past(out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + (x_k + 2 * LANES)), t49);
        const V t50 = ld_real(buf_saved0_0 + (x_k_0 + (x_k + 3 * LANES)));
        const V t51 = t50 * t37;
        const V t52 = t51 / t39;
        st_past(out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + (x_k + 3 * LANES)), t52);
      }
      for (; x_k + LANES <= x_k_c; x_k += LANES) {
        const V t53 = ld_real(buf_saved0_0 + (x_k_0 + x_k));
        const V t54 = t53 * t37;
        const V t55 = t54 / t39;
        st_f32(out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + x_k), t55);
      }
      if (x_k < x_k_c) {
        const M m = tail(x_k_c - x_k);
        const V t56 = ld_real(buf_saved0_0 + (x_k_0 + x_k));
        const V t57 = t56 * t37;
        const V t58 = t57 / t39;
        stm_f32(m, out_out0 + x_r_0 * out_out0_s0 + (x_k_0 + x_k), t58);
      }
    }
  }
  int bad59 = 0;
  bad59 |= !isfinite(acc_m[0]);
  bad59 |= !isfinite(acc_s[0]);
  if (bad59) __atomic_store_n(flags + (0 * n_r + x_r_0), (uint8_t)1, __ATOMIC_RELAXED);
  rf_past_done();
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_r = ctx->n_r = n[0]; (void)n_r;
  const int64_t n_k = ctx->n_k = n[1]; (void)n_k;
  ctx->in_x_s0 = n[2];
  ctx->out_out0_s0 = n[4];
  ctx->in_x = (f32_t *)in[0];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  int64_t size = 0, work = 0; (void)work;
  ctx->off_saved0_0 = work; work += rf_up((rf_up(n_k, 8) + 8) + 8, 16) + 16;
  ctx->off_tiles0_m = work; work += rf_up((((n_k + 511) / 512)) + 8, 16) + 16;
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
