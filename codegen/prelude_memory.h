/* Loads, stores and conversions. For each dtype tag T (f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i16 u16 i32 u32 i64 u64 b8), with T_t
   its storage:
     ld_T(p), ldm_T(m, p), lds_T(p, stride, m)         LANES elements as V; masked; strided (stride in elements, any sign)
     st_T(p, v), stm_T(m, p, v), sts_T(p, stride, m, v)
     get_T(p), put_T(p, x)                             one element
     round_T(v)                                        to T and back
   Lanes that a mask leaves out are not touched in memory and read as 0. Addresses need no alignment.
   Conversions mean what NumPy's astype means: floats round to nearest, ties to even, once (also from double); float16 and e5m2
   overflow to infinity, e4m3 (which has none) to NaN; NaN stays NaN; integers truncate; b8 is x != 0. */

#define RF_PICK(m, a, b) (((a) & (m)) | ((b) & ~(m))) /* on integer vectors, m of lanes 0 or -1 */

/* ---- raw bits of LANES elements of 8, 16, 32 or 64 bits ---- */
#define RF_RAW(bits) \
  RF_INLINE U##bits rf_ld##bits(const void *p) { U##bits x; memcpy(&x, p, sizeof x); return x; } \
  RF_INLINE void rf_st##bits(void *p, U##bits x) { memcpy(p, &x, sizeof x); } \
  RF_INLINE U##bits rf_lds##bits(const void *p, int64_t stride, M m) { \
    U##bits x = {0}; \
    uint32_t on = m_bits(m); \
    const char *q = (const char *)p; \
    if (m_every(m)) for (int l = 0; l < LANES; l++) { uint##bits##_t e; memcpy(&e, q + l * stride * (bits / 8), sizeof e); x[l] = e; } \
    else for (int l = 0; l < LANES; l++) if (on >> l & 1) { uint##bits##_t e; memcpy(&e, q + l * stride * (bits / 8), sizeof e); x[l] = e; } \
    return x; \
  } \
  RF_INLINE void rf_sts##bits(void *p, int64_t stride, M m, U##bits x) { \
    uint32_t on = m_bits(m); \
    char *q = (char *)p; \
    for (int l = 0; l < LANES; l++) if (on >> l & 1) { uint##bits##_t e = x[l]; memcpy(q + l * stride * (bits / 8), &e, sizeof e); } \
  }
RF_RAW(8)
RF_RAW(16)
RF_RAW(32)
RF_RAW(64)
#define RF_MASKED_LANEWISE(bits) \
  RF_NOINLINE U##bits rf_ldm##bits(M m, const void *p) { return rf_lds##bits(p, 1, m); } \
  RF_NOINLINE void rf_stm##bits(M m, void *p, U##bits x) { rf_sts##bits(p, 1, m, x); }
#define RF_MASKED(bits, load, store) \
  RF_INLINE U##bits rf_ldm##bits(M m, const void *p) { return (U##bits)load; } \
  RF_INLINE void rf_stm##bits(M m, void *p, U##bits x) { store; }
#if defined(RF_AVX512) && LANES == 16
RF_MASKED(8, _mm_maskz_loadu_epi8(m, p), _mm_mask_storeu_epi8(p, m, (__m128i)x))
RF_MASKED(16, _mm256_maskz_loadu_epi16(m, p), _mm256_mask_storeu_epi16(p, m, (__m256i)x))
RF_MASKED(32, _mm512_maskz_loadu_epi32(m, p), _mm512_mask_storeu_epi32(p, m, (__m512i)x))
RF_MASKED_LANEWISE(64)
#elif defined(RF_AVX512)
RF_MASKED_LANEWISE(8)
RF_MASKED(16, _mm_maskz_loadu_epi16(m, p), _mm_mask_storeu_epi16(p, m, (__m128i)x))
RF_MASKED(32, _mm256_maskz_loadu_epi32(m, p), _mm256_mask_storeu_epi32(p, m, (__m256i)x))
RF_MASKED(64, _mm512_maskz_loadu_epi64(m, p), _mm512_mask_storeu_epi64(p, m, (__m512i)x))
#elif defined(RF_AVX2) && LANES == 8
RF_MASKED_LANEWISE(8)
RF_MASKED_LANEWISE(16)
RF_MASKED(32, _mm256_maskload_epi32((const int *)p, (__m256i)m), _mm256_maskstore_epi32((int *)p, (__m256i)m, (__m256i)x))
RF_MASKED_LANEWISE(64)
#elif defined(RF_AVX2)
#define RF_HALF(m) ((__m128i)__builtin_convertvector(m, S32))
RF_MASKED_LANEWISE(8)
RF_MASKED_LANEWISE(16)
RF_MASKED(32, _mm_maskload_epi32((const int *)p, RF_HALF(m)), _mm_maskstore_epi32((int *)p, RF_HALF(m), (__m128i)x))
RF_MASKED(64, _mm256_maskload_epi64((const long long *)p, (__m256i)m), _mm256_maskstore_epi64((long long *)p, (__m256i)m, (__m256i)x))
#else
RF_MASKED_LANEWISE(8)
RF_MASKED_LANEWISE(16)
RF_MASKED_LANEWISE(32)
RF_MASKED_LANEWISE(64)
#endif

/* ---- V <-> float lanes. Into a format narrower than float a double is first rounded to odd (toward zero, the last bit
   set when inexact), so that the second rounding is the only one that counts (Boldo and Melquiond 2008). ---- */
#if RF_DOUBLE
RF_INLINE V rf_widen(F x) { return __builtin_convertvector(x, V); }
RF_INLINE F rf_to_odd(V a) {
  F f = __builtin_convertvector(a, F);
  D back = __builtin_convertvector(f, D);
  U32 inexact = (U32)__builtin_convertvector((S64)(back != a) & (S64)(a == a), S32);
  U32 away = (U32)__builtin_convertvector((S64)((D)((U64)back & (~(U64){0} >> 1)) > (D)((U64)a & (~(U64){0} >> 1))), S32);
  U32 bits = (U32)f + (away & inexact); /* minus one where the magnitude grew */
  return (F)(bits | (inexact & 1));
}
#else
RF_INLINE V rf_widen(F x) { return x; }
RF_INLINE F rf_to_odd(V a) { return a; }
#endif

/* ---- small floats, as unsigned integers of LANES lanes ---- */
#define RF_SIGN(x) ((x)&0x80000000u)
#define RF_MAGNITUDE(x) ((x)&0x7fffffffu)
/* a float's magnitude bits m rounded to `keep` mantissa bits and the exponent bias of the small format; below the small format's
   normal range, adding `magic` rounds to its fixed step */
RF_INLINE U32 rf_shrink(U32 m, int keep, int bias, float least, float magic) {
  int drop = 23 - keep;
  U32 step = ((U32){0} + (1u << (drop - 1)) - 1) + ((m >> drop) & 1);
  U32 normal = ((m + step) >> drop) - ((uint32_t)(127 - bias) << keep);
  F tiny = (F)m + magic;
  uint32_t base;
  memcpy(&base, &magic, sizeof base);
  return RF_PICK((U32)((F)m < least), (U32)tiny - base, normal);
}
RF_INLINE F rf_grow(U32 m, int keep, int bias) { /* exact, subnormals included; infinities and NaN are the caller's */
  uint32_t bits = (uint32_t)(254 - bias) << 23;  /* 2^(127 - bias) */
  float scale;
  memcpy(&scale, &bits, sizeof scale);
  return (F)(m << (23 - keep)) * scale;
}
RF_INLINE V rf_of_bf16(U16 x) { return rf_widen((F)(__builtin_convertvector(x, U32) << 16)); }
RF_INLINE U16 rf_to_bf16(V a) {
  U32 x = (U32)rf_to_odd(a), rounded = (x + 0x7fffu + ((x >> 16) & 1)) >> 16;
  U32 nan = (U32)(RF_MAGNITUDE(x) > 0x7f800000u);
  return __builtin_convertvector(RF_PICK(nan, (x >> 16) | 0x7fc0u, rounded), U16);
}
#if defined(__F16C__) && (defined(RF_AVX512) || defined(RF_AVX2))
#if LANES == 16
RF_INLINE V rf_of_f16(U16 x) { return rf_widen((F)_mm512_cvtph_ps((__m256i)x)); }
RF_INLINE U16 rf_to_f16(V a) { return (U16)_mm512_cvtps_ph((__m512)rf_to_odd(a), 8); }
#elif LANES == 8
RF_INLINE V rf_of_f16(U16 x) { return rf_widen((F)_mm256_cvtph_ps((__m128i)x)); }
RF_INLINE U16 rf_to_f16(V a) { return (U16)_mm256_cvtps_ph((__m256)rf_to_odd(a), 8); }
#else
RF_INLINE V rf_of_f16(U16 x) {
  __m128i h = {0};
  memcpy(&h, &x, sizeof x);
  return rf_widen((F)_mm_cvtph_ps(h));
}
RF_INLINE U16 rf_to_f16(V a) {
  __m128i h = _mm_cvtps_ph((__m128)rf_to_odd(a), 8);
  U16 x;
  memcpy(&x, &h, sizeof x);
  return x;
}
#endif
#else
RF_INLINE V rf_of_f16(U16 h) {
  U32 x = __builtin_convertvector(h, U32), m = x & 0x7fff;
  U32 special = (U32)(m >= 0x7c00) & 0x7f800000u;
  return rf_widen((F)((U32)rf_grow(m, 10, 15) | special | (x & 0x8000) << 16));
}
RF_INLINE U16 rf_to_f16(V a) {
  U32 x = (U32)rf_to_odd(a), m = RF_MAGNITUDE(x), y = rf_shrink(m, 10, 15, 0x1p-14f, 0.5f);
  y = RF_PICK((U32)(y > 0x7c00), (U32){0} + 0x7c00, y);
  y = RF_PICK((U32)(m > 0x7f800000u), (U32){0} + 0x7e00, y);
  return __builtin_convertvector(y | RF_SIGN(x) >> 16, U16);
}
#endif
RF_INLINE V rf_of_e5m2(U8 h) { return rf_of_f16(__builtin_convertvector(h, U16) << 8); }
RF_INLINE U8 rf_to_e5m2(V a) {
  U32 x = (U32)rf_to_odd(a), m = RF_MAGNITUDE(x), y = rf_shrink(m, 2, 15, 0x1p-14f, 128.0f);
  y = RF_PICK((U32)(y > 0x7c), (U32){0} + 0x7c, y);
  y = RF_PICK((U32)(m > 0x7f800000u), (U32){0} + 0x7e, y);
  return __builtin_convertvector(y | RF_SIGN(x) >> 24, U8);
}
RF_INLINE V rf_of_e4m3(U8 h) {
  U32 x = __builtin_convertvector(h, U32), m = x & 0x7f;
  U32 nan = (U32)(m == 0x7f) & 0x7fc00000u;
  return rf_widen((F)((U32)rf_grow(m, 3, 7) | nan | (x & 0x80) << 24));
}
RF_INLINE U8 rf_to_e4m3(V a) {
  U32 x = (U32)rf_to_odd(a), m = RF_MAGNITUDE(x), y = rf_shrink(m, 3, 7, 0x1p-6f, 0x1p14f);
  y = RF_PICK((U32)((m > 0x7f800000u) | (y > 0x7e)), (U32){0} + 0x7f, y);
  return __builtin_convertvector(y | RF_SIGN(x) >> 24, U8);
}

/* ---- wide floats and integers ---- */
RF_INLINE V rf_of_f32(U32 x) { return rf_widen((F)x); }
RF_INLINE V rf_of_f64(U64 x) { return __builtin_convertvector((D)x, V); }
RF_INLINE U32 rf_to_f32(V a) { return (U32)__builtin_convertvector(a, F); }
RF_INLINE U64 rf_to_f64(V a) { return (U64)__builtin_convertvector(a, D); }
/* through the next wider signed integer, as C does for a scalar; narrowing wraps */
#define RF_INTEGER(T, bits, lanes, by) \
  RF_INLINE V rf_of_##T(U##bits x) { return __builtin_convertvector((lanes)x, V); } \
  RF_INLINE U##bits rf_to_##T(V a) { return __builtin_convertvector(__builtin_convertvector(a, by), U##bits); }
RF_INTEGER(i8, 8, S8, S32)
RF_INTEGER(u8, 8, U8, S32)
RF_INTEGER(i16, 16, S16, S32)
RF_INTEGER(u16, 16, U16, S32)
RF_INTEGER(i32, 32, S32, S32)
RF_INTEGER(u32, 32, U32, S64)
RF_INTEGER(i64, 64, S64, S64)
RF_INTEGER(u64, 64, U64, U64)
RF_INLINE V rf_of_b8(U8 x) { return __builtin_convertvector((U8)(x != 0) & 1, V); }
RF_INLINE U8 rf_to_b8(V a) { return __builtin_convertvector((U32)(rf_to_f32(m_to_v(v_to_m(a))) != 0), U8) & 1; }

#define RF_DTYPE(T, type, bits) \
  typedef type T##_t; \
  RF_INLINE V ld_##T(const T##_t *p) { return rf_of_##T(rf_ld##bits(p)); } \
  RF_INLINE V ldm_##T(M m, const T##_t *p) { return rf_of_##T(rf_ldm##bits(m, p)); } \
  RF_INLINE V lds_##T(const T##_t *p, int64_t stride, M m) { return rf_of_##T(rf_lds##bits(p, stride, m)); } \
  RF_INLINE void st_##T(T##_t *p, V a) { rf_st##bits(p, rf_to_##T(a)); } \
  RF_INLINE void stm_##T(M m, T##_t *p, V a) { rf_stm##bits(m, p, rf_to_##T(a)); } \
  RF_INLINE void sts_##T(T##_t *p, int64_t stride, M m, V a) { rf_sts##bits(p, stride, m, rf_to_##T(a)); } \
  RF_INLINE V round_##T(V a) { return rf_of_##T(rf_to_##T(a)); }
#define RF_SCALAR_DIRECT(T) \
  RF_INLINE rf_real get_##T(const T##_t *p) { T##_t x; memcpy(&x, p, sizeof x); return (rf_real)x; }
#define RF_SCALAR_LANE(T, bits) \
  RF_INLINE rf_real get_##T(const T##_t *p) { U##bits x = {0}; T##_t e; memcpy(&e, p, sizeof e); x[0] = (uint##bits##_t)e; return rf_of_##T(x)[0]; }
#define RF_PUT_LANE(T) \
  RF_INLINE void put_##T(T##_t *p, rf_real x) { T##_t e = (T##_t)rf_to_##T(set1(x))[0]; memcpy(p, &e, sizeof e); }
#define RF_PUT_DIRECT(T) \
  RF_INLINE void put_##T(T##_t *p, rf_real x) { T##_t e = (T##_t)x; memcpy(p, &e, sizeof e); }
RF_DTYPE(f64, double, 64) RF_SCALAR_DIRECT(f64) RF_PUT_DIRECT(f64)
RF_DTYPE(f32, float, 32) RF_SCALAR_DIRECT(f32) RF_PUT_DIRECT(f32)
RF_DTYPE(f16, uint16_t, 16) RF_SCALAR_LANE(f16, 16) RF_PUT_LANE(f16)
RF_DTYPE(bf16, uint16_t, 16) RF_SCALAR_LANE(bf16, 16) RF_PUT_LANE(bf16)
RF_DTYPE(e4m3, uint8_t, 8) RF_SCALAR_LANE(e4m3, 8) RF_PUT_LANE(e4m3)
RF_DTYPE(e5m2, uint8_t, 8) RF_SCALAR_LANE(e5m2, 8) RF_PUT_LANE(e5m2)
RF_DTYPE(i8, int8_t, 8) RF_SCALAR_DIRECT(i8) RF_PUT_LANE(i8)
RF_DTYPE(u8, uint8_t, 8) RF_SCALAR_DIRECT(u8) RF_PUT_LANE(u8)
RF_DTYPE(i16, int16_t, 16) RF_SCALAR_DIRECT(i16) RF_PUT_LANE(i16)
RF_DTYPE(u16, uint16_t, 16) RF_SCALAR_DIRECT(u16) RF_PUT_LANE(u16)
RF_DTYPE(i32, int32_t, 32) RF_SCALAR_DIRECT(i32) RF_PUT_LANE(i32)
RF_DTYPE(u32, uint32_t, 32) RF_SCALAR_DIRECT(u32) RF_PUT_LANE(u32)
RF_DTYPE(i64, int64_t, 64) RF_SCALAR_DIRECT(i64) RF_PUT_LANE(i64)
RF_DTYPE(u64, uint64_t, 64) RF_SCALAR_DIRECT(u64) RF_PUT_LANE(u64)
RF_DTYPE(b8, uint8_t, 8) RF_SCALAR_LANE(b8, 8)
RF_INLINE void put_b8(b8_t *p, rf_real x) { *p = x != 0; }

/* memory of the compute type, and index lanes */
#if RF_DOUBLE
#define RF_REAL_TAG(name) name##_f64
#define RF_PAST(bits) _mm##bits##_stream_pd
#else
#define RF_REAL_TAG(name) name##_f32
#define RF_PAST(bits) _mm##bits##_stream_ps
#endif
/* elements up to the first one that begins a cache line (none does where the array is not aligned); and stores from there that
   do not read the line first, which other threads see after rf_past_done() */
RF_INLINE int64_t rf_to_line(const rf_real *p) {
  const uintptr_t left = -(uintptr_t)p & 63;
  return left % sizeof(rf_real) ? INT64_MAX : (int64_t)(left / sizeof(rf_real));
}
#if defined(RF_AVX512)
RF_INLINE void st_past(rf_real *p, V a) { RF_PAST(512)(p, a); }
RF_INLINE void rf_past_done(void) { _mm_sfence(); }
#elif defined(RF_AVX2)
RF_INLINE void st_past(rf_real *p, V a) { RF_PAST(256)(p, a); }
RF_INLINE void rf_past_done(void) { _mm_sfence(); }
#else
RF_INLINE void st_past(rf_real *p, V a) { RF_REAL_TAG(st)(p, a); }
RF_INLINE void rf_past_done(void) {}
#endif
RF_INLINE V ld_real(const rf_real *p) { return RF_REAL_TAG(ld)(p); }
RF_INLINE V ldm_real(M m, const rf_real *p) { return RF_REAL_TAG(ldm)(m, p); }
RF_INLINE V lds_real(const rf_real *p, int64_t stride, M m) { return RF_REAL_TAG(lds)(p, stride, m); }
RF_INLINE void st_real(rf_real *p, V a) { RF_REAL_TAG(st)(p, a); }
RF_INLINE void stm_real(M m, rf_real *p, V a) { RF_REAL_TAG(stm)(m, p, a); }
RF_INLINE rf_real get_real(const rf_real *p) { return *p; }
RF_INLINE void put_real(rf_real *p, rf_real x) { *p = x; }
RF_INLINE void sts_real(rf_real *p, int64_t stride, M m, V a) { RF_REAL_TAG(sts)(p, stride, m, a); }
RF_INLINE void sti_i64(int64_t *p, VI a) { rf_st64(p, (U64)__builtin_convertvector(a, S64)); }
RF_INLINE void stmi_i64(M m, int64_t *p, VI a) { rf_stm64(m, p, (U64)__builtin_convertvector(a, S64)); }
RF_INLINE void sti_i32(int32_t *p, VI a) { rf_st32(p, (U32)__builtin_convertvector(a, S32)); }
RF_INLINE void stmi_i32(M m, int32_t *p, VI a) { rf_stm32(m, p, (U32)__builtin_convertvector(a, S32)); }

/* whether `rows` elements (and perhaps some after them) are 0 */
RF_INLINE int rf_zeros(const rf_real *a, int rows) {
  M other = m_none();
  for (int i = 0; i < rows; i += LANES) other = m_or(other, m_ne(ld_real(a + i), set1(0)));
  return !m_any(other);
}
/* of n such groups: up to where not all are 0, and from where */
RF_INLINE int64_t rf_used(const rf_real *a, int64_t step, int rows, int64_t n) {
  while (n > 0 && rf_zeros(a + (n - 1) * step, rows)) n--;
  return n;
}
RF_INLINE int64_t rf_unused(const rf_real *a, int64_t step, int rows, int64_t n) {
  int64_t i = 0;
  while (i < n && rf_zeros(a + i * step, rows)) i++;
  return i;
}

/* the lanes of x whose bits are set, one after the other; up to a vector is written */
#if defined(RF_AVX512)
RF_INLINE void st_front(rf_real *to, V x, uint32_t bits) { st_real(to, RF_OP(maskz_compress)((M)bits, x)); }
#elif defined(RF_AVX2)
#define RF_LANE(l) 4 * l, 4 * l + 1, 4 * l + 2, 4 * l + 3
#define RF_FRONT(a, b, c, d) {RF_LANE(a), RF_LANE(b), RF_LANE(c), RF_LANE(d)}
static const uint8_t rf_front[16][16] = {RF_FRONT(0, 0, 0, 0), RF_FRONT(0, 0, 0, 0), RF_FRONT(1, 0, 0, 0), RF_FRONT(0, 1, 0, 0),
  RF_FRONT(2, 0, 0, 0), RF_FRONT(0, 2, 0, 0), RF_FRONT(1, 2, 0, 0), RF_FRONT(0, 1, 2, 0), RF_FRONT(3, 0, 0, 0), RF_FRONT(0, 3, 0, 0),
  RF_FRONT(1, 3, 0, 0), RF_FRONT(0, 1, 3, 0), RF_FRONT(2, 3, 0, 0), RF_FRONT(0, 2, 3, 0), RF_FRONT(1, 2, 3, 0), RF_FRONT(0, 1, 2, 3)};
RF_INLINE void st_front(rf_real *to, V x, uint32_t bits) {
  for (int h = 0; h < 2; h++) {
    const uint32_t own = bits >> h * (LANES / 2) & ((1u << LANES / 2) - 1), row = RF_DOUBLE ? (own & 1) * 3 | (own >> 1) * 12 : own;
    const __m128i half = _mm_castps_si128(h ? _mm256_extractf128_ps((__m256)x, 1) : _mm256_castps256_ps128((__m256)x));
    _mm_storeu_si128((__m128i *)to, _mm_shuffle_epi8(half, _mm_loadu_si128((const __m128i *)rf_front[row])));
    to += __builtin_popcount(own);
  }
}
#else
RF_INLINE void st_front(rf_real *to, V x, uint32_t bits) {
  for (int l = 0; l < LANES; l++)
    if (bits >> l & 1) *to++ = x[l];
}
#endif
