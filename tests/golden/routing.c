/* redfuser_kernel
*/
_Static_assert(LANES == 8 && sizeof(rf_real) == 4, "built for another target");
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }
/* fold LANES (value, position) candidates into one: the best, ties by position; the first NaN wins */
#define PAIR_FOLD(NAME, BETTER) \
  RF_NOINLINE void NAME(rf_real *best, rf_real *at, V v, V p) { \
    for (int l = 0; l < LANES; l++) { \
      const rf_real x = lane(v, l), i = lane(p, l), b = *best; \
      if ((x BETTER b) || (x != x && b == b) || ((x == b || (x != x && b != b)) && i < *at)) { *best = x; *at = i; } \
    } \
  }
PAIR_FOLD(pair_fold_max, >)
PAIR_FOLD(pair_fold_min, <)
/* put the lanes of v that are set in `hit` into a list of the k best, best first; ties by position, a NaN stays;
   a place at position -1 is still free and takes anything, -inf too */
RF_NOINLINE void top_insert(rf_real *best, rf_real *at, int64_t k, V v, V p, M hit) {
  const V on = m_to_v(hit);
  for (int l = 0; l < LANES; l++) {
    const rf_real x = lane(v, l);
    if (lane(on, l) == 0 || (x == x && !(x > best[k - 1]) && at[k - 1] >= 0)) continue;
    int64_t t = k - 1;
    for (; t > 0 && (best[t - 1] < x || at[t - 1] < 0 || (x != x && best[t - 1] == best[t - 1])); t--) {
      best[t] = best[t - 1]; at[t] = at[t - 1];
    }
    best[t] = x; at[t] = lane(p, l);
  }
}
/* the same for k <= LANES, the list in a register: what goes before x stays, x follows it, the rest moves up a lane */
RF_INLINE M top_before(V b, V at, V x) { return m_and(m_not(m_lt(at, set1(0))), m_and(m_not(m_lt(b, x)), m_or(m_eq(x, x), m_isnan(b)))); }
RF_NOINLINE void top_insert_lanes(rf_real *best, rf_real *at, int64_t k, const rf_real *values, const rf_real *positions, int64_t n) {
  const M own = tail(k), first = tail(1);
  V b = sel(own, ldm_real(own, best), set1(-RF_INF)), a = sel(own, ldm_real(own, at), set1(-1));
  for (int64_t c = 0; c < n; c++) {
    const V x = set1(values[c]), i = set1(positions[c]);
    const V below = sel(first, set1(RF_NAN), v_up(b)), below_at = sel(first, set1(0), v_up(a));
    const M stays = top_before(b, a, x), follows = top_before(below, below_at, x);
    b = sel(stays, b, sel(follows, x, below)); a = sel(stays, a, sel(follows, i, below_at));
  }
  stm_real(own, best, b); stm_real(own, at, a);
}
/* candidates for the list, gathered without a branch: which lanes have one cannot be foreseen */
#define TOP_FOUND 64
RF_INLINE int64_t top_found(rf_real *values, rf_real *positions, int64_t n, V v, V p, M hit) {
  const uint32_t bits = m_bits(hit);
  st_front(values + n, v, bits); st_front(positions + n, p, bits);
  return n + __builtin_popcount(bits);
}

struct context {
  int64_t n_i;
  int64_t n_h;
  int64_t n_j;
  int64_t n_t;
  int64_t n_segment;
  const f32_t * in_w;
  int64_t in_w_s0;
  const f32_t * in_x;
  int64_t in_x_s0;
  f32_t * out_out0;
  int64_t out_out0_s0;
  i64_t * out_out1;
  int64_t out_out1_s0;
  rf_real * buf_stream0;
  int64_t buf_stream0_s0;
  uint8_t * flags;
  int64_t off_tile0;
  rf_real *work; int64_t work_size;
};

RF_INLINE void contract_3_6(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_i_0, int64_t x_j_0, int64_t x_i, int64_t x_j) {
  int64_t const in_x_s0 = ctx->in_x_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[6][2];
  RF_UNROLL(6) for (int i = 0; i < 6; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  RF_UNROLL(4) for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(6) for (int i = 0; i < 6; i++) { const V y = set1(a[i * in_x_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(6) for (int i = 0; i < 6; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(6) for (int i = 0; i < 6; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        
        const V t4 = x[i][j];
        st_real(d + i * 144 + j * LANES, t4);
      }
    }
  } else {
    RF_UNROLL(6) for (int i = 0; i < 6; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        const M m = tail(nj - j * LANES); (void)m;
        const V t5 = x[i][j];
        st_real(d + i * 144 + j * LANES, t5);
      }
    }
  }
}
RF_INLINE void contract_3_3(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_i_0, int64_t x_j_0, int64_t x_i, int64_t x_j) {
  int64_t const in_x_s0 = ctx->in_x_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[3][2];
  RF_UNROLL(3) for (int i = 0; i < 3; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(3) for (int i = 0; i < 3; i++) { const V y = set1(a[i * in_x_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(3) for (int i = 0; i < 3; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(3) for (int i = 0; i < 3; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        
        const V t6 = x[i][j];
        st_real(d + i * 144 + j * LANES, t6);
      }
    }
  } else {
    RF_UNROLL(3) for (int i = 0; i < 3; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        const M m = tail(nj - j * LANES); (void)m;
        const V t7 = x[i][j];
        st_real(d + i * 144 + j * LANES, t7);
      }
    }
  }
}
RF_INLINE void contract_3_1(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_i_0, int64_t x_j_0, int64_t x_i, int64_t x_j) {
  int64_t const in_x_s0 = ctx->in_x_s0;
  (void)ctx; (void)last; (void)test; (void)nj; (void)zero;
  V x[1][2];
  RF_UNROLL(1) for (int i = 0; i < 1; i++) { PREFETCH_WRITE(d + i * 144 + 0 * RF_LINE); }
  RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = set1(0);
  for (int64_t c = 0; c < n; c++, a += 1, b += 16) {
    V b0 = ld_real(b + 0 * LANES); IN_REGISTER(b0); V b1 = ld_real(b + 1 * LANES); IN_REGISTER(b1);
    RF_UNROLL(1) for (int i = 0; i < 1; i++) { const V y = set1(a[i * in_x_s0]);
      x[i][0] = v_fma(y, b0, x[i][0]);
      x[i][1] = v_fma(y, b1, x[i][1]);
    }
  }
  if (!zero)
  { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) x[i][j] = x[i][j] + ld_real(d + i * 144 + j * LANES); }
  if (!last) { RF_UNROLL(1) for (int i = 0; i < 1; i++) RF_UNROLL(2) for (int j = 0; j < 2; j++) st_real(d + i * 144 + j * LANES, x[i][j]); return; }
  if (!test) {
    RF_UNROLL(1) for (int i = 0; i < 1; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        
        const V t8 = x[i][j];
        st_real(d + i * 144 + j * LANES, t8);
      }
    }
  } else {
    RF_UNROLL(1) for (int i = 0; i < 1; i++) {
      RF_UNROLL(2) for (int j = 0; j < 2; j++) {
        const M m = tail(nj - j * LANES); (void)m;
        const V t9 = x[i][j];
        st_real(d + i * 144 + j * LANES, t9);
      }
    }
  }
}
RF_NOINLINE void contract_3(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj, int64_t x_i_0, int64_t x_j_0, int64_t x_j, int64_t rows) {
  int64_t const in_x_s0 = ctx->in_x_s0;
  int64_t i = 0;
  for (; i + 6 <= rows; i += 6) contract_3_6(ctx, a + i * in_x_s0, b, n, d + i * 144, zero, last, test, nj, x_i_0, x_j_0, i, x_j);
  for (; i + 3 <= rows; i += 3) contract_3_3(ctx, a + i * in_x_s0, b, n, d + i * 144, zero, last, test, nj, x_i_0, x_j_0, i, x_j);
  for (; i + 1 <= rows; i += 1) contract_3_1(ctx, a + i * in_x_s0, b, n, d + i * 144, zero, last, test, nj, x_i_0, x_j_0, i, x_j);
}
static void phase_0_pack_stream0(void *ctx_, int64_t item, int worker) {
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  const f32_t * const in_w = ctx->in_w;
  int64_t const in_w_s0 = ctx->in_w_s0;
  rf_real * const buf_stream0 = ctx->buf_stream0;
  int64_t rest = item; (void)rest;
  const int64_t x_j_0 = rest % ((n_j + 63) / 64) * 64; rest /= ((n_j + 63) / 64);
  const int64_t x_j_c = rf_min(64, n_j - x_j_0);
  for (int64_t c0 = 0; c0 < n_h; c0 += 32) for (int64_t p = 0; p < x_j_c; p += 16) {
    rf_real *const to = buf_stream0 + x_j_0 * (n_h) + p * (n_h); const int64_t left = x_j_c - p;
    if (left >= 16) for (int64_t x_h = c0; x_h < rf_min(c0 + 32, n_h); x_h++) for (int64_t l = 0; l < 16; l += LANES) {
      const V t1 = ld_f32(in_w + x_h * in_w_s0 + (x_j_0 + (p + l)));
      st_real(to + x_h * 16 + l, t1);
    }
    else for (int64_t x_h = c0; x_h < rf_min(c0 + 32, n_h); x_h++) for (int64_t l = 0; l < 16; l += LANES) {
      const M m = tail(left - l);
      const V t2 = ldm_f32(m, in_w + x_h * in_w_s0 + (x_j_0 + (p + l)));
      st_real(to + x_h * 16 + l, keep(m, t2));
    }
  }
}
static void phase_1_over_j(void *ctx_, int64_t item, int worker) {
    /* m: max of sum_h((x[i,h] * w[h,j])) */
    /* s: sum of exp((sum_h((x[i,h] * w[h,j])) - m)); rebase (s' * exp((m' - m))) */
    /* best: top_values4 of sum_h((x[i,h] * w[h,j])) */
  const struct context *ctx = (const struct context *)ctx_;
  (void)item; (void)worker;
  int64_t const n_i = ctx->n_i;
  int64_t const n_h = ctx->n_h;
  int64_t const n_j = ctx->n_j;
  int64_t const n_t = ctx->n_t;
  const f32_t * const in_x = ctx->in_x;
  int64_t const in_x_s0 = ctx->in_x_s0;
  f32_t * const out_out0 = ctx->out_out0;
  int64_t const out_out0_s0 = ctx->out_out0_s0;
  i64_t * const out_out1 = ctx->out_out1;
  int64_t const out_out1_s0 = ctx->out_out1_s0;
  rf_real * const buf_stream0 = ctx->buf_stream0;
  uint8_t * const flags = ctx->flags;
  rf_real *const work = ctx->work + worker * ctx->work_size;
  rf_real *const buf_tile0 = work + ctx->off_tile0;
  int64_t rest = item; (void)rest;
  const int64_t x_i_0 = rest % ((n_i + 95) / 96) * 96; rest /= ((n_i + 95) / 96);
  const int64_t x_i_c = rf_min(96, n_i - x_i_0);
  rf_real acc_m[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_m[t] = -RF_INF;
  rf_real acc_m_old[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_m_old[t] = -RF_INF;
  rf_real acc_s[96] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 96; t++) acc_s[t] = (rf_real)0;
  rf_real acc_best[392] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 392; t++) acc_best[t] = -RF_INF;
  rf_real acc_best_at[392] __attribute__((aligned(64)));
  for (int64_t t = 0; t < 392; t++) acc_best_at[t] = -1;
  for (int64_t x_j_0 = 0; x_j_0 < n_j; x_j_0 += 128) {
    const int64_t x_j_c = rf_min(128, n_j - x_j_0);
    for (int64_t c0 = 0; c0 < n_h || c0 == 0; c0 += 16) for (int64_t p = 0; p < x_j_c; p += (2 * LANES)) {
      const int whole = p + (2 * LANES) <= x_j_c; const int test = (0 || !whole); (void)whole; (void)test;
      contract_3(ctx, in_x + x_i_0 * in_x_s0 + c0 * 1, buf_stream0 + x_j_0 * (n_h) + p * (n_h) + c0 * 16, rf_min(16, n_h - c0), buf_tile0 + p, c0 == 0, c0 + 16 >= n_h, test, x_j_c - p, x_i_0, x_j_0, p, x_i_c);
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
      {
        int64_t x_j = 0;
        V floor10 = set1(-RF_INF);
        if ((x_j_0 == 0)) {
          for (; x_j + LANES <= x_j_c; x_j += LANES) {
            const V t19 = ld_real(buf_tile0 + x_i * 144 + x_j);
            floor10 = v_max_raw(floor10, t19);
          }
          x_j = 0; floor10 = set1(h_min(floor10));
        }
        V a11 = set1(-RF_INF);
        rf_real a12[TOP_FOUND + 2 * LANES], a12_at[TOP_FOUND + 2 * LANES]; int64_t a12_n = 0;
        const V a12_last = set1((acc_best_at + x_i * 4)[3] < 0 ? RF_NAN : (acc_best + x_i * 4)[3]);
        for (; x_j + 1 * LANES <= x_j_c; x_j += 1 * LANES) {
          const V t13 = ld_real(buf_tile0 + x_i * 144 + x_j);
          a11 = v_max_raw(a11, t13);
          const V t14 = set1((rf_real)(x_j_0 + x_j)) + iota();
          const M m15 = m_and(m_not(m_le(t13, a12_last)), m_not(m_lt(t13, floor10)));
          if ((x_j_0 == 0) || m_any(m15)) a12_n = top_found(a12, a12_at, a12_n, t13, t14, m15);
          if (a12_n >= TOP_FOUND) { top_insert_lanes(acc_best + x_i * 4, acc_best_at + x_i * 4, 4, a12, a12_at, a12_n); a12_n = 0; }
        }
        if (x_j < x_j_c) {
          const M m = tail(x_j_c - x_j);
          const V t16 = ld_real(buf_tile0 + x_i * 144 + x_j);
          a11 = sel(m, v_max_raw(a11, t16), a11);
          const V t17 = set1((rf_real)(x_j_0 + x_j)) + iota();
          const M m18 = m_and(m, m_and(m_not(m_le(t16, a12_last)), m_not(m_lt(t16, floor10))));
          if ((x_j_0 == 0) || m_any(m18)) a12_n = top_found(a12, a12_at, a12_n, t16, t17, m18);
          if (a12_n >= TOP_FOUND) { top_insert_lanes(acc_best + x_i * 4, acc_best_at + x_i * 4, 4, a12, a12_at, a12_n); a12_n = 0; }
        }
        acc_m_old[x_i] = acc_m[x_i];
        acc_m[x_i] = lane0(v_maximum(set1(acc_m[x_i]), set1(h_max(a11))));
        top_insert_lanes(acc_best + x_i * 4, acc_best_at + x_i * 4, 4, a12, a12_at, a12_n); a12_n = 0;
      }
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
      if ((acc_m[x_i] != acc_m_old[x_i]) && !(acc_m_old[x_i] == -RF_INF)) {
        const V t20 = set1(acc_s[x_i]);
        const V t21 = sel(m_eq(set1(acc_m_old[x_i]), set1(-RF_INF)), v_settle(set1(acc_m[x_i])), set1(acc_m_old[x_i]));
        const V t22 = v_settle(set1(acc_m[x_i]));
        const V t23 = t21 - t22;
        const V t24 = v_exp(t23);
        const V t25 = t20 * t24;
        const V n26 = t25;
        *(acc_s + x_i) = lane0(n26);
      }
    }
    for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
      {
        int64_t x_j = 0;
        const V t30 = v_settle(set1(acc_m[x_i]));
        V a27 = set1((rf_real)0);
        V a28 = set1((rf_real)0);
        for (; x_j + 2 * LANES <= x_j_c; x_j += 2 * LANES) {
          const V t29 = ld_real(buf_tile0 + x_i * 144 + x_j);
          const V t31 = t29 - t30;
          const V t32 = v_expz(t31);
          a27 = a27 + t32;
          const V t33 = ld_real(buf_tile0 + x_i * 144 + (x_j + 1 * LANES));
          const V t34 = t33 - t30;
          const V t35 = v_expz(t34);
          a28 = a28 + t35;
        }
        for (; x_j + LANES <= x_j_c; x_j += LANES) {
          const V t36 = ld_real(buf_tile0 + x_i * 144 + x_j);
          const V t37 = t36 - t30;
          const V t38 = v_expz(t37);
          a27 = a27 + t38;
        }
        if (x_j < x_j_c) {
          const M m = tail(x_j_c - x_j);
          const V t39 = ld_real(buf_tile0 + x_i * 144 + x_j);
          const V t40 = t39 - t30;
          const V t41 = v_expz(t40);
          a27 = a27 + keep(m, t41);
        }
        acc_s[x_i] += h_sum((a27 + a28));
      }
    }
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    {
      int64_t x_t = 0;
      const V t43 = set1(acc_m[x_i]);
      const V t46 = set1(acc_s[x_i]);
      for (; x_t + LANES <= n_t; x_t += LANES) {
        const V t42 = ld_real(acc_best + x_i * 4 + x_t);
        const V t44 = t42 - t43;
        const V t45 = v_exp(t44);
        const V t47 = t45 / t46;
        st_f32(out_out0 + (x_i_0 + x_i) * out_out0_s0 + x_t, t47);
      }
      const V t49 = set1(acc_m[x_i]);
      const V t52 = set1(acc_s[x_i]);
      if (x_t < n_t) { const M m = tail(n_t - x_t); (void)m;
        const V t48 = ld_real(acc_best + x_i * 4 + x_t);
        const V t50 = t48 - t49;
        const V t51 = v_exp(t50);
        const V t53 = t51 / t52;
        stm_f32(m, out_out0 + (x_i_0 + x_i) * out_out0_s0 + x_t, t53);
      }
    }
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    {
      int64_t x_t = 0;
      for (; x_t + LANES <= n_t; x_t += LANES) {
        const V t54 = ld_real(acc_best_at + x_i * 4 + x_t);
        st_i64(out_out1 + (x_i_0 + x_i) * out_out1_s0 + x_t, t54);
      }
      if (x_t < n_t) { const M m = tail(n_t - x_t); (void)m;
        const V t55 = ld_real(acc_best_at + x_i * 4 + x_t);
        stm_i64(m, out_out1 + (x_i_0 + x_i) * out_out1_s0 + x_t, t55);
      }
    }
  }
  for (int64_t x_i = 0; x_i < x_i_c; x_i += 1) {
    int bad56 = 0;
    bad56 |= !isfinite(acc_m[x_i]);
    bad56 |= !isfinite(acc_s[x_i]);
    for (int64_t t = 0; t < 4; t++) bad56 |= !isfinite(acc_best[x_i * 4 + t]);
    if (bad56) __atomic_store_n(flags + (0 * n_i + (x_i_0 + x_i)), (uint8_t)1, __ATOMIC_RELAXED);
  }
}
RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {
  struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;
  const int64_t n_i = ctx->n_i = n[0]; (void)n_i;
  const int64_t n_h = ctx->n_h = n[1]; (void)n_h;
  const int64_t n_j = ctx->n_j = n[2]; (void)n_j;
  const int64_t n_t = ctx->n_t = n[3]; (void)n_t;
  ctx->in_w_s0 = n[4];
  ctx->in_x_s0 = n[6];
  ctx->out_out0_s0 = n[8];
  ctx->out_out1_s0 = n[10];
  ctx->in_w = (f32_t *)in[0];
  ctx->in_x = (f32_t *)in[1];
  ctx->out_out0 = (f32_t *)out[0];
  ctx->out_out1 = (i64_t *)out[1];
  const int64_t n_segment = ctx->n_segment = 1; (void)n_segment;
  ctx->buf_stream0_s0 = (rf_up(n_j, 16));
  int64_t size = 0, work = 0; (void)work;
  const int64_t at_buf_stream0 = size; size += rf_up((n_h) * (rf_up(n_j, 16)) + 8, 16) + 16;
  ctx->off_tile0 = work; work += rf_up(13832, 16) + 16;
  work = rf_up(work, 1024) + 16; ctx->work_size = work;
  rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);
  ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);
  if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }
  ctx->buf_stream0 = shared + at_buf_stream0;
  ctx->flags = (uint8_t *)out[2];
  memset(ctx->flags, 0, (size_t)(n_i));
  rf_parallel(phase_0_pack_stream0, ctx, ((n_j + 63) / 64), threads, 0);
  rf_parallel(phase_1_over_j, ctx, ((n_i + 95) / 96), threads, 0);
  rf_free(shared); rf_free(ctx->work);
  return 0;
}
