/* Pairs of 16-bit numbers: a vector P holds PAIR_LANES words of 32 bits, in each two numbers that follow one another along the
   inner axis of a product, the first in the low half.

     ld_pairs(p)                        PAIR_LANES words
     set1_pair(p), set1_first(p)        the two numbers at p, or one and a zero, in every word
     dot_i16(a, b, s)                   s + a.low * b.low + a.high * b.high, in int32
     dot_bf16(a, b, s)                  the same in float32: the high halves are added first, then the low ones, each product with
                                        its sum rounded once where the target has a fused multiply-add
     of_i16(s, part), of_bf16(s, part)  LANES of the sums, as V; there are PAIR_PARTS such parts
     pair_i16(a, b), pair_bf16(a, b)    LANES words of the numbers in a and b (integers that fit; rounded to bfloat16)

   The instructions are vpmaddwd and an addition (SSE2, AVX2, AVX-512), vpdpwssd (AVX-VNNI, AVX512-VNNI) and vdpbf16ps
   (AVX512-BF16, which takes subnormal numbers as zero). Callers keep integer sums within 2^31 - 1. */

#define PAIR_PARTS (RF_DOUBLE ? 2 : 1)
#define PAIR_LANES (LANES * PAIR_PARTS)
typedef int32_t P __attribute__((vector_size(PAIR_LANES * 4), may_alias));
typedef uint32_t PU __attribute__((vector_size(PAIR_LANES * 4), may_alias));
typedef float PF __attribute__((vector_size(PAIR_LANES * 4), may_alias));
typedef P sum_i16;
typedef PF sum_bf16;

RF_INLINE P ld_pairs(const void *p) { P x; memcpy(&x, p, sizeof x); return x; }
RF_INLINE P set1_pair(const void *p) { int32_t x; memcpy(&x, p, sizeof x); return (P){0} + x; }
RF_INLINE P set1_first(const void *p) { uint16_t x; memcpy(&x, p, sizeof x); return (P){0} + (int32_t)x; }

#if defined(RF_AVX512) && defined(__AVX512VNNI__)
RF_INLINE P dot_i16(P a, P b, P s) { return (P)_mm512_dpwssd_epi32((__m512i)s, (__m512i)a, (__m512i)b); }
#elif defined(RF_AVX512)
RF_INLINE P dot_i16(P a, P b, P s) { return s + (P)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
#elif defined(RF_AVX2) && defined(__AVXVNNI__)
RF_INLINE P dot_i16(P a, P b, P s) { return (P)_mm256_dpwssd_avx_epi32((__m256i)s, (__m256i)a, (__m256i)b); }
#elif defined(RF_AVX2)
RF_INLINE P dot_i16(P a, P b, P s) { return s + (P)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
#elif defined(__SSE2__) && !defined(RF_SCALAR)
typedef short rf_shorts __attribute__((vector_size(16)));
RF_INLINE P dot_i16(P a, P b, P s) { return s + (P)__builtin_ia32_pmaddwd128((rf_shorts)a, (rf_shorts)b); }
#else
RF_INLINE P rf_low(P a) { return (P)((PU)a << 16) >> 16; }
RF_INLINE P dot_i16(P a, P b, P s) { return s + rf_low(a) * rf_low(b) + (a >> 16) * (b >> 16); }
#endif

#if defined(RF_AVX512) && defined(__AVX512BF16__)
RF_INLINE PF dot_bf16(P a, P b, PF s) { return (PF)_mm512_dpbf16_ps((__m512)s, (__m512bh)a, (__m512bh)b); }
#elif RF_DOUBLE
RF_INLINE PF rf_pair_fma(PU a, PU b, PF s) { return (PF)a * (PF)b + s; }
#else
RF_INLINE PF rf_pair_fma(PU a, PU b, PF s) { return (PF)v_fma((V)a, (V)b, (V)s); }
#endif
#if !(defined(RF_AVX512) && defined(__AVX512BF16__))
RF_INLINE PF dot_bf16(P a, P b, PF s) {
  s = rf_pair_fma((PU)a & 0xffff0000u, (PU)b & 0xffff0000u, s);
  return rf_pair_fma((PU)a << 16, (PU)b << 16, s);
}
#endif

RF_INLINE V of_i16(P s, int part) {
  S32 x;
  memcpy(&x, (const char *)&s + part * (int)sizeof x, sizeof x);
  return __builtin_convertvector(x, V);
}
RF_INLINE V of_bf16(PF s, int part) {
  F x;
  memcpy(&x, (const char *)&s + part * (int)sizeof x, sizeof x);
  return rf_widen(x);
}
RF_INLINE U32 rf_pair(U32 a, U32 b) { return (a & 0xffffu) | b << 16; }
RF_INLINE U32 pair_i16(V a, V b) { return rf_pair((U32)__builtin_convertvector(a, S32), (U32)__builtin_convertvector(b, S32)); }
RF_INLINE U32 pair_bf16(V a, V b) { return rf_pair(__builtin_convertvector(rf_to_bf16(a), U32), __builtin_convertvector(rf_to_bf16(b), U32)); }

/* 8-bit integers into pairs without a float between: pairs_T fills a panel of w columns (a multiple of LANES) from n_c x n_j
   elements, with zeros past the last row and column; shorts_T fills a row of n */
#define RF_PAIRS_FROM(T, signs) \
  RF_INLINE U32 rf_ints_##T(const T##_t *p) { return (U32)__builtin_convertvector((signs)rf_ld8(p), S32); } \
  RF_INLINE void pairs_##T(i16_t *to, int w, const T##_t *p, int64_t s_c, int64_t s_j, int64_t n_c, int64_t n_j) { \
    for (int64_t c = 0; c < n_c; c += 2, p += 2 * s_c, to += 2 * w) { \
      const int two = c + 1 < n_c; \
      const T##_t *q = two ? p + s_c : p; \
      int64_t l = 0; \
      if (s_j == 1 && two) \
        for (; l + LANES <= rf_min(w, n_j); l += LANES) rf_st32(to + 2 * l, rf_pair(rf_ints_##T(p + l), rf_ints_##T(q + l))); \
      for (; l < w; l++) { \
        to[2 * l] = l < n_j ? p[l * s_j] : 0; \
        to[2 * l + 1] = l < n_j && two ? q[l * s_j] : 0; \
      } \
    } \
  } \
  RF_INLINE void shorts_##T(i16_t *to, const T##_t *p, int64_t s_c, int64_t n) { \
    int64_t c = 0; \
    if (s_c == 1) \
      for (; c + LANES <= n; c += LANES) rf_st16(to + c, (U16)__builtin_convertvector((signs)rf_ld8(p + c), S16)); \
    for (; c < n; c++) to[c] = p[c * s_c]; \
  }
RF_PAIRS_FROM(i8, S8)
RF_PAIRS_FROM(u8, U8)
