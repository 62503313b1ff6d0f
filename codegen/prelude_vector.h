/* Masks, selection, horizontal operations, and the arithmetic that has instructions of its own.
   v_max_raw and v_min_raw with a NaN operand give either operand, except that a NaN second operand always comes out. */

#if defined(RF_AVX512)
#if LANES == 16
typedef __mmask16 M;
#else
typedef __mmask8 M;
#endif
#define RF_OP(name) RF_PS(_mm512_##name)
#if RF_DOUBLE
#define RF_CMP(a, b, how) _mm512_cmp_pd_mask(a, b, how)
#define RF_CMPI(a, b, how) _mm512_cmp_epi64_mask((__m512i)(a), (__m512i)(b), how)
#define RF_BLENDI(m, a, b) ((VI)_mm512_mask_blend_epi64(m, (__m512i)(b), (__m512i)(a)))
#else
#define RF_CMP(a, b, how) _mm512_cmp_ps_mask(a, b, how)
#define RF_CMPI(a, b, how) _mm512_cmp_epi32_mask((__m512i)(a), (__m512i)(b), how)
#define RF_BLENDI(m, a, b) ((VI)_mm512_mask_blend_epi32(m, (__m512i)(b), (__m512i)(a)))
#endif
#define IN_REGISTER(v) __asm__("" : "+v"(v)) /* else GCC loads it again for every FMA of a small block */
RF_INLINE V set1(rf_real x) { return RF_OP(set1)(x); }
RF_INLINE M m_all(void) { return (M)-1; }
RF_INLINE M m_none(void) { return 0; }
RF_INLINE uint32_t m_bits(M m) { return m; }
RF_INLINE int m_any(M m) { return m != 0; }
RF_INLINE int m_every(M m) { return m == (M)-1; }
RF_INLINE M m_and(M a, M b) { return (M)(a & b); }
RF_INLINE M m_or(M a, M b) { return (M)(a | b); }
RF_INLINE M m_xor(M a, M b) { return (M)(a ^ b); }
RF_INLINE M m_not(M a) { return (M)~a; }
RF_INLINE M tail(int64_t n) { return n >= LANES ? (M)-1 : n <= 0 ? (M)0 : (M)((1u << n) - 1); }
RF_INLINE M m_lt(V a, V b) { return RF_CMP(a, b, _CMP_LT_OQ); }
RF_INLINE M m_le(V a, V b) { return RF_CMP(a, b, _CMP_LE_OQ); }
RF_INLINE M m_eq(V a, V b) { return RF_CMP(a, b, _CMP_EQ_OQ); }
RF_INLINE M m_ne(V a, V b) { return RF_CMP(a, b, _CMP_NEQ_UQ); }
RF_INLINE M vi_lt(VI a, VI b) { return RF_CMPI(a, b, _MM_CMPINT_LT); }
RF_INLINE M vi_eq(VI a, VI b) { return RF_CMPI(a, b, _MM_CMPINT_EQ); }
RF_INLINE V sel(M m, V a, V b) { return RF_OP(mask_blend)(m, b, a); }
RF_INLINE V keep(M m, V a) { return RF_OP(maskz_mov)(m, a); }
RF_INLINE VI vi_sel(M m, VI a, VI b) { return RF_BLENDI(m, a, b); }
RF_INLINE V v_fma(V a, V b, V c) { return RF_OP(fmadd)(a, b, c); }
RF_INLINE V v_max_raw(V a, V b) { return RF_OP(max)(a, b); }
RF_INLINE V v_min_raw(V a, V b) { return RF_OP(min)(a, b); }
RF_INLINE V v_sqrt(V a) { return RF_OP(sqrt)(a); }
RF_INLINE V v_floor(V a) { return RF_OP(roundscale)(a, 1); }
RF_INLINE V v_ceil(V a) { return RF_OP(roundscale)(a, 2); }
RF_INLINE V v_round(V a) { return RF_OP(roundscale)(a, 8); }
RF_INLINE void rf_fence(void) { _mm_sfence(); }
RF_INLINE void st_stream_real(rf_real *p, V a) { RF_OP(stream)(p, a); }

#else
typedef VI M; /* lanes of 0 or -1 */
RF_INLINE M m_all(void) { return vi_set1(-1); }
RF_INLINE M m_none(void) { return vi_set1(0); }
RF_INLINE M m_and(M a, M b) { return a & b; }
RF_INLINE M m_or(M a, M b) { return a | b; }
RF_INLINE M m_xor(M a, M b) { return a ^ b; }
RF_INLINE M m_not(M a) { return ~a; }
RF_INLINE M vi_lt(VI a, VI b) { return (M)(a < b); }
RF_INLINE M vi_eq(VI a, VI b) { return (M)(a == b); }
RF_INLINE M tail(int64_t n) { return (M)(vi_iota() < vi_set1(rf_max(rf_min(n, LANES), 0))); }
RF_INLINE M m_lt(V a, V b) { return (M)(a < b); }
RF_INLINE M m_le(V a, V b) { return (M)(a <= b); }
RF_INLINE M m_eq(V a, V b) { return (M)(a == b); }
RF_INLINE M m_ne(V a, V b) { return (M)(a != b); }
RF_INLINE V keep(M m, V a) { return (V)((VI)a & m); }
RF_INLINE VI vi_sel(M m, VI a, VI b) { return (a & m) | (b & ~m); }

#if defined(RF_AVX2)
#define RF_OP(name) RF_PS(_mm256_##name)
#define IN_REGISTER(v) __asm__("" : "+x"(v))
RF_INLINE V set1(rf_real x) { return RF_OP(set1)(x); }
RF_INLINE uint32_t m_bits(M m) { return (uint32_t)RF_OP(movemask)((V)m); }
RF_INLINE int m_any(M m) { return m_bits(m) != 0; }
RF_INLINE int m_every(M m) { return m_bits(m) == (1u << LANES) - 1; }
RF_INLINE V sel(M m, V a, V b) { return RF_OP(blendv)(b, a, (V)m); }
RF_INLINE V v_fma(V a, V b, V c) { return RF_OP(fmadd)(a, b, c); }
RF_INLINE V v_max_raw(V a, V b) { return RF_OP(max)(a, b); }
RF_INLINE V v_min_raw(V a, V b) { return RF_OP(min)(a, b); }
RF_INLINE V v_sqrt(V a) { return RF_OP(sqrt)(a); }
RF_INLINE V v_floor(V a) { return RF_OP(floor)(a); }
RF_INLINE V v_ceil(V a) { return RF_OP(ceil)(a); }
RF_INLINE V v_round(V a) { return RF_OP(round)(a, 8); }
RF_INLINE void rf_fence(void) { _mm_sfence(); }
RF_INLINE void st_stream_real(rf_real *p, V a) { RF_OP(stream)(p, a); }

#else
#define RF_SAME(l) x
RF_INLINE V set1(rf_real x) { return (V){RF_EACH(RF_SAME)}; }
RF_INLINE V sel(M m, V a, V b) { return (V)vi_sel(m, (VI)a, (VI)b); }
RF_INLINE void rf_fence(void) {}
RF_INLINE void st_stream_real(rf_real *p, V a) { memcpy(p, &a, sizeof a); }
#if defined(RF_NEON)
#if RF_DOUBLE
#define RF_OP(name) name##_f64
#else
#define RF_OP(name) name##_f32
#endif
#define IN_REGISTER(v) __asm__("" : "+w"(v))
RF_INLINE V v_fma(V a, V b, V c) { return (V)RF_OP(vfmaq)(c, a, b); }
RF_INLINE V v_max_raw(V a, V b) { return (V)RF_OP(vmaxq)(a, b); }
RF_INLINE V v_min_raw(V a, V b) { return (V)RF_OP(vminq)(a, b); }
RF_INLINE V v_sqrt(V a) { return (V)RF_OP(vsqrtq)(a); }
RF_INLINE V v_floor(V a) { return (V)RF_OP(vrndmq)(a); }
RF_INLINE V v_ceil(V a) { return (V)RF_OP(vrndpq)(a); }
RF_INLINE V v_round(V a) { return (V)RF_OP(vrndnq)(a); }
#else
#define IN_REGISTER(v) ((void)(v))
RF_INLINE V v_max_raw(V a, V b) { return sel(m_lt(b, a), a, b); }
RF_INLINE V v_min_raw(V a, V b) { return sel(m_lt(a, b), a, b); }
#if RF_DOUBLE
#define RF_LIBM(name) __builtin_##name
#else
#define RF_LIBM(name) __builtin_##name##f
#endif
#define RF_LANEWISE(name, call) \
  RF_INLINE V name(V a) { \
    for (int l = 0; l < LANES; l++) a[l] = RF_LIBM(call)(a[l]); \
    return a; \
  }
RF_LANEWISE(v_sqrt, sqrt)
RF_LANEWISE(v_floor, floor)
RF_LANEWISE(v_ceil, ceil)
RF_LANEWISE(v_round, rint)
#if defined(__FP_FAST_FMA) && defined(__FP_FAST_FMAF)
RF_INLINE V v_fma(V a, V b, V c) {
  for (int l = 0; l < LANES; l++) a[l] = RF_LIBM(fma)(a[l], b[l], c[l]);
  return a;
}
#else
RF_INLINE V v_fma(V a, V b, V c) { return a * b + c; }
#endif
#endif
RF_INLINE uint32_t m_bits(M m) {
  uint32_t bits = 0;
  for (int l = 0; l < LANES; l++) bits |= (uint32_t)(m[l] & 1) << l;
  return bits;
}
RF_INLINE int m_any(M m) { return m_bits(m) != 0; }
RF_INLINE int m_every(M m) { return m_bits(m) == (1u << LANES) - 1; }
#endif
#endif

RF_INLINE V v_fnma(V a, V b, V c) { return v_fma(-a, b, c); }
RF_INLINE M m_gt(V a, V b) { return m_lt(b, a); }
RF_INLINE M m_ge(V a, V b) { return m_le(b, a); }
RF_INLINE M vi_gt(VI a, VI b) { return vi_lt(b, a); }
RF_INLINE V v_abs(V a) { return (V)((VU)a & ((VU){0} + ((rf_bits)-1 >> 1))); }
RF_INLINE V v_copysign(V a, V sign) { return (V)((VU)v_abs(a) | ((VU)sign & ~((VU){0} + ((rf_bits)-1 >> 1)))); }
RF_INLINE M m_isnan(V a) { return m_ne(a, a); }
RF_INLINE M m_isfinite(V a) { return m_lt(v_abs(a), set1(RF_INF)); }
RF_INLINE V m_to_v(M m) { return keep(m, set1(1)); }
RF_INLINE M v_to_m(V a) { return m_ne(a, set1(0)); }
/* every lane takes the one below it, the lowest the highest */
RF_INLINE V v_up(V a) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(RF_SCALAR)
  return __builtin_shuffle(a, (vi_iota() - 1) & (LANES - 1));
#else
  V r;
  for (int l = 0; l < LANES; l++) r[l] = a[(l + LANES - 1) % LANES];
  return r;
#endif
}
RF_INLINE int m_first(M m) { return m_any(m) ? __builtin_ctz(m_bits(m)) : -1; }
/* NumPy's maximum and minimum: a NaN on either side comes out */
RF_INLINE V v_maximum(V a, V b) { return sel(m_isnan(a), a, v_max_raw(a, b)); }
RF_INLINE V v_minimum(V a, V b) { return sel(m_isnan(a), a, v_min_raw(a, b)); }
RF_INLINE V v_sign(V a) { return sel(m_isnan(a), a, m_to_v(m_lt(set1(0), a)) - m_to_v(m_lt(a, set1(0)))); }
RF_INLINE V v_rsqrt(V a) { return set1(1) / v_sqrt(a); }
RF_INLINE V v_recip(V a) { return set1(1) / a; }

/* ---- across the lanes: halves are folded onto each other, so that the order is the same on every call ---- */
#define RF_X8(l) ((l) ^ 8)
#define RF_X4(l) ((l) ^ 4)
#define RF_X2(l) ((l) ^ 2)
#define RF_X1(l) ((l) ^ 1)
#if LANES == 16
#define RF_FOLD(a, f) a = f(a, RF_SHUFFLE(a, a, RF_X8)), a = f(a, RF_SHUFFLE(a, a, RF_X4)), a = f(a, RF_SHUFFLE(a, a, RF_X2)), a = f(a, RF_SHUFFLE(a, a, RF_X1))
#elif LANES == 8
#define RF_FOLD(a, f) a = f(a, RF_SHUFFLE(a, a, RF_X4)), a = f(a, RF_SHUFFLE(a, a, RF_X2)), a = f(a, RF_SHUFFLE(a, a, RF_X1))
#elif LANES == 4
#define RF_FOLD(a, f) a = f(a, RF_SHUFFLE(a, a, RF_X2)), a = f(a, RF_SHUFFLE(a, a, RF_X1))
#elif LANES == 2
#define RF_FOLD(a, f) a = f(a, RF_SHUFFLE(a, a, RF_X1))
#else
#define RF_FOLD(a, f) (void)0
#endif
RF_INLINE V rf_add(V a, V b) { return a + b; }
RF_INLINE V rf_mul(V a, V b) { return a * b; }
RF_INLINE VI rf_least(VI a, VI b) { return vi_sel(vi_lt(a, b), a, b); }
RF_INLINE rf_real h_sum(V a) { RF_FOLD(a, rf_add); return a[0]; }
RF_INLINE rf_real h_prod(V a) { RF_FOLD(a, rf_mul); return a[0]; }
RF_INLINE rf_real h_max(V a) { RF_FOLD(a, v_maximum); return a[0]; }
RF_INLINE rf_real h_min(V a) { RF_FOLD(a, v_minimum); return a[0]; }
/* the least index among the set lanes; the largest integer when none is set */
RF_INLINE rf_int h_argfirst(M m, VI index) {
  index = vi_sel(m, index, (VI)((VU){0} + ((rf_bits)-1 >> 1)));
  RF_FOLD(index, rf_least);
  return index[0];
}

/* ---- the square block r of LANES rows, transposed in place: inside 16 bytes by unpacking, then by exchanging halves ---- */
#define RF_N (16 / (int)sizeof(rf_real))
#define RF_LO1(l) (((l) & -RF_N) + ((l) % RF_N >> 1) + ((l) & 1) * LANES)
#define RF_HI1(l) (RF_LO1(l) + RF_N / 2)
#define RF_LO2(l) (((l) & -4) + ((l) & 1) + ((l) & 2 ? LANES : 0))
#define RF_HI2(l) (RF_LO2(l) + 2)
#define RF_LOX(l, d) ((l) & (d) ? LANES + (l) - (d) : (l))
#define RF_HIX(l, d) ((l) & (d) ? LANES + (l) : (l) + (d))
#define RF_LOX2(l) RF_LOX(l, 2)
#define RF_HIX2(l) RF_HIX(l, 2)
#define RF_LOX4(l) RF_LOX(l, 4)
#define RF_HIX4(l) RF_HIX(l, 4)
#define RF_LOX8(l) RF_LOX(l, 8)
#define RF_HIX8(l) RF_HIX(l, 8)
#define RF_EXCHANGE(r, d, lo, hi) \
  RF_UNROLL(16) \
  for (int i = 0; i < LANES; i++) \
    if (!(i & (d))) { \
      V a = r[i], b = r[i + (d)]; \
      r[i] = RF_SHUFFLE(a, b, lo); \
      r[i + (d)] = RF_SHUFFLE(a, b, hi); \
    }
RF_INLINE void v_transpose(V r[LANES]) {
#if LANES >= 4 && !RF_DOUBLE
  RF_UNROLL(4)
  for (int i = 0; i < LANES; i += 4) {
    V a = RF_SHUFFLE(r[i], r[i + 1], RF_LO1), b = RF_SHUFFLE(r[i], r[i + 1], RF_HI1);
    V c = RF_SHUFFLE(r[i + 2], r[i + 3], RF_LO1), d = RF_SHUFFLE(r[i + 2], r[i + 3], RF_HI1);
    r[i] = RF_SHUFFLE(a, c, RF_LO2);
    r[i + 1] = RF_SHUFFLE(a, c, RF_HI2);
    r[i + 2] = RF_SHUFFLE(b, d, RF_LO2);
    r[i + 3] = RF_SHUFFLE(b, d, RF_HI2);
  }
#elif LANES >= 2
  RF_UNROLL(4)
  for (int i = 0; i < LANES; i += 2) {
    V a = r[i], b = r[i + 1];
    r[i] = RF_SHUFFLE(a, b, RF_LO1);
    r[i + 1] = RF_SHUFFLE(a, b, RF_HI1);
  }
#endif
#if LANES >= 4 && RF_DOUBLE
  RF_EXCHANGE(r, 2, RF_LOX2, RF_HIX2)
#endif
#if LANES >= 8
  RF_EXCHANGE(r, 4, RF_LOX4, RF_HIX4)
#endif
#if LANES >= 16
  RF_EXCHANGE(r, 8, RF_LOX8, RF_HIX8)
#endif
  (void)r;
}
