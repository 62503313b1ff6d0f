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
    /* m: max of x[k,r] */
    /* s: sum of exp((x[k,r] - m)); rebase (s' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_r = ctx->n_r;
  int64_t const n_k = ctx->n_k;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  f32_t * const out_out0 = ctx->out_out0;
  uint8_t * const flags = ctx->flags;
  int64_t rest = item; (void)rest;
  const int64_t x_r_0 = rest % ((n_r + 127) / 128) * 128; rest /= ((n_r + 127) / 128);
  const int64_t x_r_c = rf_min(128, n_r - x_r_0);
  rf_real acc_m[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_m_old[t] = -RF_INF;
  rf_real acc_s[128] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 128; t++) acc_s[t] = (rf_real)0;
  for (int64_t x_k_0 = 0; x_k_0 < n_k; x_k_0 += 64) {
    const int64_t x_k_c = rf_min(64, n_k - x_k_0);
    {
      int64_t x_r = 0;
      for (; x_r + 4 * LANES <= x_r_c; x_r += 4 * LANES) {
        V a1 = ld_real(acc_m + x_r);
        st_real(&acc_m_old[x_r], a1);
        V a3 = ld_real(acc_m + (x_r + 1 * LANES));
        st_real(&acc_m_old[(x_r + 1 * LANES)], a3);
        V a5 = ld_real(acc_m + (x_r + 2 * LANES));
        st_real(&acc_m_old[(x_r + 2 * LANES)], a5);
        V a7 = ld_real(acc_m + (x_r + 3 * LANES));
        st_real(&acc_m_old[(x_r + 3 * LANES)], a7);
        for (int64_t x_k = 0; x_k < x_k_c; x_k++) {
          const V t2 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + x_r));
          a1 = v_max_raw(a1, t2);
          const V t4 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + (x_r + 1 * LANES)));
          a3 = v_max_raw(a3, t4);
          const V t6 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + (x_r + 2 * LANES)));
          a5 = v_max_raw(a5, t6);
          const V t8 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + (x_r + 3 * LANES)));
          a7 = v_max_raw(a7, t8);
        }
        st_real(acc_m + x_r, a1);
        st_real(acc_m + (x_r + 1 * LANES), a3);
        st_real(acc_m + (x_r + 2 * LANES), a5);
        st_real(acc_m + (x_r + 3 * LANES), a7);
      }
      for (; x_r < x_r_c; x_r += 1 * LANES) {
        const M m = tail(x_r_c - x_r);
        V a9 = ld_real(acc_m + x_r);
        st_real(&acc_m_old[x_r], a9);
        for (int64_t x_k = 0; x_k < x_k_c; x_k++) {
          const V t10 = ldm_f32(m, in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + x_r));
          a9 = v_max_raw(a9, t10);
        }
        st_real(acc_m + x_r, a9);
      }
    }
    for (int64_t x_r = 0; x_r < x_r_c; x_r += LANES) {
      const M m11 = m_and(m_ne(ld_real(acc_m + x_r), ld_real(acc_m_old + x_r)), m_not(m_eq(ld_real(acc_m_old + x_r), set1(-RF_INF))));
      if (m_any(m11)) {
        const V t13 = ld_real(acc_s + x_r);
        const V t14 = sel(m_eq(ld_real(acc_m_old + x_r), set1(-RF_INF)), v_settle(ld_real(acc_m + x_r)), ld_real(acc_m_old + x_r));
        const V t15 = v_settle(ld_real(acc_m + x_r));
        const V t16 = t14 - t15;
        const V t17 = v_exp(t16);
        const V t18 = t13 * t17;
        const V n12 = t18;
        st_real(acc_s + x_r, sel(m11, n12, ld_real(acc_s + x_r)));
      }
    }
    {
      int64_t x_r = 0;
      for (; x_r + 2 * LANES <= x_r_c; x_r += 2 * LANES) {
        V a19 = ld_real(acc_s + x_r);
        V a24 = ld_real(acc_s + (x_r + 1 * LANES));
        const V t21 = v_settle(ld_real(acc_m + x_r));
        const V t26 = v_settle(ld_real(acc_m + (x_r + 1 * LANES)));
        for (int64_t x_k = 0; x_k < x_k_c; x_k++) {
          const V t20 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + x_r));
          const V t22 = t20 - t21;
          const V t23 = v_expz(t22);
          a19 = a19 + t23;
          const V t25 = ld_f32(in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + (x_r + 1 * LANES)));
          const V t27 = t25 - t26;
          const V t28 = v_expz(t27);
          a24 = a24 + t28;
        }
        st_real(acc_s + x_r, a19);
        st_real(acc_s + (x_r + 1 * LANES), a24);
      }
      for (; x_r < x_r_c; x_r += 1 * LANES) {
        const M m = tail(x_r_c - x_r);
        V a29 = ld_real(acc_s + x_r);
        const V t31 = v_settle(ld_real(acc_m + x_r));
        for (int64_t x_k = 0; x_k < x_k_c; x_k++) {
          const V t30 = ldm_f32(m, in_x + (x_k_0 + x_k) * in_x_s0 + (x_r_0 + x_r));
          const V t32 = t30 - t31;
          const V t33 = v_expz(t32);
          a29 = a29 + t33;
        }
        st_real(acc_s + x_r, a29);
      }
    }
  }
  {
    int64_t x_r = 0;
    for (; x_r + LANES <= x_r_c; x_r += LANES) {
      const V t34 = ld_real(acc_m + x_r);
      const V t35 = ld_real(acc_s + x_r);
      const V t36 = v_log(t35);
      const V t37 = t34 + t36;
      st_f32(out_out0 + (x_r_0 + x_r), t37);
    }
    if (x_r < x_r_c) { const M m = tail(x_r_c - x_r); (void)m;
      const V t38 = ld_real(acc_m + x_r);
      const V t39 = ld_real(acc_s + x_r);
      const V t40 = v_log(t39);
      const V t41 = t38 + t40;
      stm_f32(m, out_out0 + (x_r_0 + x_r), t41);
    }
  }
  for (int64_t x_r = 0; x_r < x_r_c; x_r += 1) {
    int bad42 = 0;
    bad42 |= !isfinite(acc_m[x_r]);
    bad42 |= !isfinite(acc_s[x_r]);
    if (bad42) __atomic_store_n(flags + (0 * n_r + (x_r_0 + x_r)), (uint8_t)1, __ATOMIC_RELAXED);
  }
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
  rf_parallel(phase_0_over_k, ctx, ((n_r + 127) / 128), threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
