/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }

struct context {
  int64_t n_h;
  int64_t n_j;
  int64_t n_e;
  int64_t n_d;
  int64_t n_segment;
  const f32_t * in_k;
  int64_t in_k_s0;
  int64_t in_k_s1;
  const f32_t * in_q;
  int64_t in_q_s0;
  const f32_t * in_v;
  int64_t in_v_s0;
  int64_t in_v_s1;
  f32_t * out_out0;
  int64_t out_out0_s0;
  rf_real * buf_part0_m;
  int64_t buf_part0_m_s0;
  rf_real * buf_part0_s;
  int64_t buf_part0_s_s0;
  rf_real * buf_part0_o;
  int64_t buf_part0_o_s0;
  int64_t buf_part0_o_s1;
  int64_t acc_o_ld;
  uint8_t * flags;
  int64_t off_tile0;
  int64_t off_o;
  rf_real *work; int64_t work_size;
};

RF_NOINLINE void dot_1(const struct context *ctx, rf_real *d, const f32_t *a, const f32_t *b, int64_t n, int64_t nc) {
  int64_t const in_k_s1 = ctx->in_k_s1;
  (void)ctx;
  for (int64_t k = 0; k < n; k++, b += in_k_s1) { V x = set1(0), y = set1(0); int64_t c = 0;
    for (; c + 2 * LANES <= nc; c += 2 * LANES) { x = v_fma(ld_f32(a + (c)), ld_f32(b + (c)), x); y = v_fma(ld_f32(a + (c + LANES)), ld_f32(b + (c + LANES)), y); }
    for (; c < nc; c += LANES) { const M m = tail(nc - c); x = v_fma(ldm_f32(m, a + (c)), ldm_f32(m, b + (c)), x); }
    d[k * 1] = h_sum(x + y); }
}
static void phase_0_over_j(void *ctx_, int64_t item, int worker) {
    /* m: max of (sum_e((q[h,e] * k[h,j,e])) * 0.2) */
    /* s: sum of exp(((sum_e((q[h,e] * k[h,j,e])) * 0.2) - m)); rebase (s' * exp((m' - m))) */
    /* o: sum of (exp(((sum_e((q[h,e] * k[h,j,e])) * 0.2) - m)) * v[h,j,d]); rebase (o' * exp((m' - m))) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  int64_t const n_e = ctx->n_e;
  int64_t const n_d = ctx->n_d;
  int64_t const n_segment = ctx->n_segment;
  const f32_t * const in_k = ctx->in_k;
  int64_t const in_k_s0 = ctx->in_k_s0;
  int64_t const in_k_s1 = ctx->in_k_s1;
  const f32_t * const in_q = ctx->in_q;
  int64_t const in_q_s0 = ctx->in_q_s0;
  const f32_t * const in_v = ctx->in_v;
  int64_t const in_v_s0 = ctx->in_v_s0;
  int64_t const in_v_s1 = ctx->in_v_s1;
  rf_real * const buf_part0_m = ctx->buf_part0_m;
  int64_t const buf_part0_m_s0 = ctx->buf_part0_m_s0;
  rf_real * const buf_part0_s = ctx->buf_part0_s;
  int64_t const buf_part0_s_s0 = ctx->buf_part0_s_s0;
  rf_real * const buf_part0_o = ctx->buf_part0_o;
  int64_t const buf_part0_o_s0 = ctx->buf_part0_o_s0;
  int64_t const buf_part0_o_s1 = ctx->buf_part0_o_s1;
  int64_t const acc_o_ld = ctx->acc_o_ld;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_tile0 = work + ctx->off_tile0;
  int64_t rest = item; (void)rest;
  const int64_t x_segment = rest % n_segment; rest /= n_segment;
  const int64_t segment_from = x_segment * 4096, segment_to = rf_min(n_j, segment_from + 4096);
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  rf_real acc_m[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_m_old[t] = -RF_INF;
  double acc_s[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_s[t] = (rf_real)0;
  rf_real *acc_o = work + ctx->off_o;
  for (int64_t t = 0; t < 1 * acc_o_ld + 32; t++) acc_o[t] = (rf_real)0;
  for (int64_t x_j_0 = segment_from; x_j_0 < segment_to; x_j_0 += 128) {
    const int64_t x_j_c = rf_min(128, segment_to - x_j_0);
    for (int64_t i = 0; i < 1; i++)
    dot_1(ctx, buf_tile0 + i * 0, in_q + x_h_0 * in_q_s0 + i * 0, in_k + x_h_0 * in_k_s0 + x_j_0 * in_k_s1, x_j_c, n_e);
    {
      int64_t x_j = 0;
      V a2 = set1(-RF_INF);
      V a3 = set1(-RF_INF);
      V a4 = set1(-RF_INF);
      V a5 = set1(-RF_INF);
      for (; x_j + 4 * LANES <= x_j_c; x_j += 4 * LANES) {
        const V t6 = ld_real(buf_tile0 + x_j);
        const V t7 = t6 * set1((rf_real)0x1.999999999999ap-3);
        a2 = v_max_raw(a2, t7);
        st_real(buf_tile0 + x_j, t7);
        const V t8 = ld_real(buf_tile0 + (x_j + 1 * LANES));
        const V t9 = t8 * set1((rf_real)0x1.999999999999ap-3);
        a3 = v_max_raw(a3, t9);
        st_real(buf_tile0 + (x_j + 1 * LANES), t9);
        const V t10 = ld_real(buf_tile0 + (x_j + 2 * LANES));
        const V t11 = t10 * set1((rf_real)0x1.999999999999ap-3);
        a4 = v_max_raw(a4, t11);
        st_real(buf_tile0 + (x_j + 2 * LANES), t11);
        const V t12 = ld_real(buf_tile0 + (x_j + 3 * LANES));
        const V t13 = t12 * set1((rf_real)0x1.999999999999ap-3);
        a5 = v_max_raw(a5, t13);
        st_real(buf_tile0 + (x_j + 3 * LANES), t13);
      }
      for (; x_j + LANES <= x_j_c; x_j += LANES) {
        const V t14 = ld_real(buf_tile0 + x_j);
        const V t15 = t14 * set1((rf_real)0x1.999999999999ap-3);
        a2 = v_max_raw(a2, t15);
        st_real(buf_tile0 + x_j, t15);
      }
      if (x_j < x_j_c) {
        const M m = tail(x_j_c - x_j);
        const V t16 = ld_real(buf_tile0 + x_j);
        const V t17 = t16 * set1((rf_real)0x1.999999999999ap-3);
        a2 = sel(m, v_max_raw(a2, t17), a2);
        st_real(buf_tile0 + x_j, t17);
      }
      acc_m_old[0] = acc_m[0];
      acc_m[0] = lane0(v_maximum(set1(acc_m[0]), set1(h_max((v_maximum((v_maximum(a2, a3)), (v_maximum(a4, a5))))))));
    }
    if ((acc_m[0] != acc_m_old[0]) && !(acc_m_old[0] == -RF_INF)) {
      const V t18 = sel(m_eq(set1(acc_m_old[0]), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(acc_m_old[0]));
      const V t19 = v_settle(set1(acc_m[0]));
      const V t20 = t18 - t19;
      const V t21 = v_exp(t20);
      const double d22 = (acc_s[0]) * ((double)lane0(t21));
      const double d23 = d22;
      acc_s[0] = d23;
    }
    {
      int64_t x_j = 0;
      const V t27 = v_settle(set1(acc_m[0]));
      V a24 = set1((rf_real)0);
      V a25 = set1((rf_real)0);
      for (; x_j + 2 * LANES <= x_j_c; x_j += 2 * LANES) {
        const V t26 = ld_real(buf_tile0 + x_j);
        const V t28 = t26 - t27;
        const V t29 = v_exp(t28);
        a24 = a24 + t29;
        st_real(buf_tile0 + x_j, t29);
        const V t30 = ld_real(buf_tile0 + (x_j + 1 * LANES));
        const V t31 = t30 - t27;
        const V t32 = v_exp(t31);
        a25 = a25 + t32;
        st_real(buf_tile0 + (x_j + 1 * LANES), t32);
      }
      for (; x_j + LANES <= x_j_c; x_j += LANES) {
        const V t33 = ld_real(buf_tile0 + x_j);
        const V t34 = t33 - t27;
        const V t35 = v_exp(t34);
        a24 = a24 + t35;
        st_real(buf_tile0 + x_j, t35);
      }
      if (x_j < x_j_c) {
        const M m = tail(x_j_c - x_j);
        const V t36 = ld_real(buf_tile0 + x_j);
        const V t37 = t36 - t27;
        const V t38 = v_exp(t37);
        a24 = a24 + keep(m, t38);
        st_real(buf_tile0 + x_j, t38);
      }
      acc_s[0] += h_sum((a24 + a25));
    }
    if ((acc_m[0] != acc_m_old[0]) && !(acc_m_old[0] == -RF_INF)) {
      {
        int64_t x_d = 0;
        const V t40 = sel(m_eq(set1(acc_m_old[0]), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(acc_m_old[0]));
        const V t41 = v_settle(set1(acc_m[0]));
        const V t42 = t40 - t41;
        const V t43 = v_exp(t42);
        for (; x_d + LANES <= n_d; x_d += LANES) {
          const V t39 = ld_real(acc_o + x_d);
          const V t44 = t39 * t43;
          st_real(acc_o + x_d, t44);
        }
        const V t46 = sel(m_eq(set1(acc_m_old[0]), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(acc_m_old[0]));
        const V t47 = v_settle(set1(acc_m[0]));
        const V t48 = t46 - t47;
        const V t49 = v_exp(t48);
        if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
          const V t45 = ld_real(acc_o + x_d);
          const V t50 = t45 * t49;
          st_real(acc_o + x_d, t50);
        }
      }
    }
    {
      int64_t x_d = 0;
      for (; x_d + 4 * LANES <= n_d; x_d += 4 * LANES) {
        V a51 = ld_real(acc_o + x_d);
        V a55 = ld_real(acc_o + (x_d + 1 * LANES));
        V a59 = ld_real(acc_o + (x_d + 2 * LANES));
        V a63 = ld_real(acc_o + (x_d + 3 * LANES));
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t52 = set1(get_real(buf_tile0 + x_j));
          const V t53 = ld_f32(in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + x_d);
          const V t54 = t52 * t53;
          a51 = v_fma(t52, t53, a51);
          const V t56 = set1(get_real(buf_tile0 + x_j));
          const V t57 = ld_f32(in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + (x_d + 1 * LANES));
          const V t58 = t56 * t57;
          a55 = v_fma(t56, t57, a55);
          const V t60 = set1(get_real(buf_tile0 + x_j));
          const V t61 = ld_f32(in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + (x_d + 2 * LANES));
          const V t62 = t60 * t61;
          a59 = v_fma(t60, t61, a59);
          const V t64 = set1(get_real(buf_tile0 + x_j));
          const V t65 = ld_f32(in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + (x_d + 3 * LANES));
          const V t66 = t64 * t65;
          a63 = v_fma(t64, t65, a63);
        }
        st_real(acc_o + x_d, a51);
        st_real(acc_o + (x_d + 1 * LANES), a55);
        st_real(acc_o + (x_d + 2 * LANES), a59);
        st_real(acc_o + (x_d + 3 * LANES), a63);
      }
      for (; x_d < n_d; x_d += 1 * LANES) {
        const M m = tail(n_d - x_d);
        V a67 = ld_real(acc_o + x_d);
        for (int64_t x_j = 0; x_j < x_j_c; x_j++) {
          const V t68 = set1(get_real(buf_tile0 + x_j));
          const V t69 = ldm_f32(m, in_v + x_h_0 * in_v_s0 + (x_j_0 + x_j) * in_v_s1 + x_d);
          const V t70 = t68 * t69;
          a67 = v_fma(t68, t69, a67);
        }
        st_real(acc_o + x_d, a67);
      }
    }
  }
  put_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment, lane0(set1(acc_m[0])));
  put_real(buf_part0_s + x_h_0 * buf_part0_s_s0 + x_segment, lane0(set1(acc_s[0])));
  {
    int64_t x_d = 0;
    for (; x_d + LANES <= n_d; x_d += LANES) {
      st_real(buf_part0_o + x_h_0 * buf_part0_o_s0 + x_segment * buf_part0_o_s1 + x_d, ld_real(acc_o + x_d));
    }
    if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
      stm_real(m, buf_part0_o + x_h_0 * buf_part0_o_s0 + x_segment * buf_part0_o_s1 + x_d, ld_real(acc_o + x_d));
    }
  }
}
static void phase_1_merge(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_d = ctx->n_d;
  int64_t const n_segment = ctx->n_segment;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  rf_real * const buf_part0_m = ctx->buf_part0_m;
  int64_t const buf_part0_m_s0 = ctx->buf_part0_m_s0;
  rf_real * const buf_part0_s = ctx->buf_part0_s;
  int64_t const buf_part0_s_s0 = ctx->buf_part0_s_s0;
  rf_real * const buf_part0_o = ctx->buf_part0_o;
  int64_t const buf_part0_o_s0 = ctx->buf_part0_o_s0;
  int64_t const buf_part0_o_s1 = ctx->buf_part0_o_s1;
  int64_t const acc_o_ld = ctx->acc_o_ld;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  int64_t rest = item; (void)rest;
  const int64_t x_h_0 = rest % n_h; rest /= n_h;
  rf_real acc_m[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_m[t] = -RF_INF;
  double acc_s[1] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 1; t++) acc_s[t] = (rf_real)0;
  rf_real *acc_o = work + ctx->off_o;
  for (int64_t t = 0; t < 1 * acc_o_ld + 32; t++) acc_o[t] = (rf_real)0;
  for (int64_t x_segment = 0; x_segment < n_segment; x_segment++) {
    const V t71 = set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment));
    *(acc_m + 0) = lane0(v_maximum(set1(acc_m[0]), t71));
  }
  for (int64_t x_segment = 0; x_segment < n_segment; x_segment++) {
    if (*(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment) == -RF_INF) continue;
    const V t72 = set1(get_real(buf_part0_s + x_h_0 * buf_part0_s_s0 + x_segment));
    const V t73 = sel(m_eq(set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)));
    const V t74 = v_settle(set1(acc_m[0]));
    const V t75 = t73 - t74;
    const V t76 = v_exp(t75);
    const V t77 = t72 * t76;
    *(acc_s + 0) = lane0(set1(acc_s[0]) + t77);
  }
  for (int64_t x_segment = 0; x_segment < n_segment; x_segment++) {
    if (*(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment) == -RF_INF) continue;
    {
      int64_t x_d = 0;
      const V t79 = sel(m_eq(set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)));
      const V t80 = v_settle(set1(acc_m[0]));
      const V t81 = t79 - t80;
      const V t82 = v_exp(t81);
      for (; x_d + LANES <= n_d; x_d += LANES) {
        const V t78 = ld_real(buf_part0_o + x_h_0 * buf_part0_o_s0 + x_segment * buf_part0_o_s1 + x_d);
        const V t83 = t78 * t82;
        st_real(acc_o + x_d, ld_real(acc_o + x_d) + t83);
      }
      const V t85 = sel(m_eq(set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)), set1(-RF_INF)), v_settle(set1(acc_m[0])), set1(get_real(buf_part0_m + x_h_0 * buf_part0_m_s0 + x_segment)));
      const V t86 = v_settle(set1(acc_m[0]));
      const V t87 = t85 - t86;
      const V t88 = v_exp(t87);
      if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
        const V t84 = ldm_real(m, buf_part0_o + x_h_0 * buf_part0_o_s0 + x_segment * buf_part0_o_s1 + x_d);
        const V t89 = t84 * t88;
        st_real(acc_o + x_d, ld_real(acc_o + x_d) + t89);
      }
    }
  }
  V bad90 = set1(0);
  {
    int64_t x_d = 0;
    const V t92 = set1(acc_s[0]);
    for (; x_d + LANES <= n_d; x_d += LANES) {
      const V t91 = ld_real(acc_o + x_d);
      const V t93 = t91 / t92;
      const V t94 = ld_real(acc_o + x_d);
      st_f32(out_out0 + x_h_0 * out_out0_s0 + x_d, t93);
      bad90 = bad90 + t94 * set1(0);
    }
    const V t96 = set1(acc_s[0]);
    if (x_d < n_d) { const M m = tail(n_d - x_d); (void)m;
      const V t95 = ld_real(acc_o + x_d);
      const V t97 = t95 / t96;
      const V t98 = ld_real(acc_o + x_d);
      stm_f32(m, out_out0 + x_h_0 * out_out0_s0 + x_d, t97);
      bad90 = bad90 + keep(m, t98 * set1(0));
    }
  }
  if (m_any(m_isnan(bad90))) __atomic_store_n(flags + (0 * n_h + x_h_0), (uint8_t)1, __ATOMIC_RELAXED);
  int bad99 = 0;
  bad99 |= !isfinite(acc_m[0]);
  bad99 |= !isfinite(acc_s[0]);
  if (bad99) __atomic_store_n(flags + (0 * n_h + x_h_0), (uint8_t)1, __ATOMIC_RELAXED);
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_h = ctx->n_h = n[0]; (void)n_h;
  const int64_t n_j = ctx->n_j = n[1]; (void)n_j;
  const int64_t n_e = ctx->n_e = n[2]; (void)n_e;
  const int64_t n_d = ctx->n_d = n[3]; (void)n_d;
  ctx->in_k_s0 = n[4];
  ctx->in_k_s1 = n[5];
  ctx->in_q_s0 = n[7];
  ctx->in_v_s0 = n[9];
  ctx->in_v_s1 = n[10];
  ctx->out_out0_s0 = n[12];
  ctx->in_k = (f32_t *)in[0];
  ctx->in_q = (f32_t *)in[1];
  ctx->in_v = (f32_t *)in[2];
  ctx->out_out0 = (f32_t *)out[0];
  const int64_t n_segment = ctx->n_segment = rf_max(1, (n_j + 4095) / 4096);
  ctx->buf_part0_m_s0 = (n_segment);
  ctx->buf_part0_s_s0 = (n_segment);
  ctx->buf_part0_o_s0 = (n_segment) * (n_d);
  ctx->buf_part0_o_s1 = (n_d);
  const int64_t acc_o_ld = ctx->acc_o_ld = (rf_up(n_d, 32)) + ((rf_up(n_d, 32)) % 512 == 0 ? 16 : 0);
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_part0_m = size; size += rf_up((n_h) * (n_segment) + 8, 16) + 16;
  const int64_t at_buf_part0_s = size; size += rf_up((n_h) * (n_segment) + 8, 16) + 16;
  const int64_t at_buf_part0_o = size; size += rf_up((n_h) * (n_segment) * (n_d) + 8, 16) + 16;
  ctx->off_tile0 = work; work += rf_up(152, 16) + 16;
  ctx->off_o = work; work += rf_up(1 * acc_o_ld + 32, 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_part0_m = shared + at_buf_part0_m;
  ctx->buf_part0_s = shared + at_buf_part0_s;
  ctx->buf_part0_o = shared + at_buf_part0_o;
  ctx->flags = (uint8_t *)out[1];
  memset(ctx->flags, 0, (size_t)(n_h));
  rf_parallel(phase_0_over_j, ctx, n_h * n_segment, threads, 0);
  rf_parallel(phase_1_merge, ctx, n_h, threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
