/* The vector language of the printed kernels: one compute type, one vector width, the same names on every CPU.

   RF_REAL (float or double) is defined before this file. The width follows the target: 64 bytes with AVX-512, 32 with
   AVX2 and FMA, 16 with NEON or anything else; -DRF_SCALAR gives one lane. V holds LANES numbers and has the operators
   + - * / of the compiler's vector extension; M is a mask of LANES bits or lanes.

   Nothing here may be contracted or reassociated by the compiler (-ffp-contract=off, never -ffast-math): two places that
   compute one score must round alike. v_fma is the only fused operation, and where the target has no FMA it is a * b + c. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define RF_CAT_(a, b) a##b
#define RF_CAT(a, b) RF_CAT_(a, b)
#define RF_STR_(a) #a
#define RF_STR(a) RF_STR_(a)
#define RF_INLINE static inline __attribute__((always_inline, unused))
#define RF_NOINLINE static __attribute__((noinline, unused))
#define RF_INF ((rf_real)INFINITY)
#define RF_NAN ((rf_real)NAN)
#define PREFETCH(p) __builtin_prefetch((p), 0, 3)
#define PREFETCH_WRITE(p) __builtin_prefetch((p), 1, 3)
#define RF_LINE (64 / (int64_t)sizeof(rf_real))
#if defined(__clang__)
#define RF_UNROLL(n) _Pragma(RF_STR(unroll n))
#else
#define RF_UNROLL(n) _Pragma(RF_STR(GCC unroll n))
#endif
#ifndef __has_builtin
#define __has_builtin(x) 0
#endif

#define RF_IS_float 0
#define RF_IS_double 1
#define RF_DOUBLE RF_CAT(RF_IS_, RF_REAL)
typedef RF_REAL rf_real;

/* ---- the target ---- */
#if defined(RF_SCALAR)
#define RF_BYTES (RF_DOUBLE ? 8 : 4)
#define LANES 1
#else
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define RF_AVX512 1
#define RF_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define RF_AVX2 1
#define RF_BYTES 32
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define RF_NEON 1
#define RF_BYTES 16
#else
#define RF_BYTES 16
#endif
#if RF_DOUBLE
#define LANES (RF_BYTES / 8)
#else
#define LANES (RF_BYTES / 4)
#endif
#endif

#if defined(RF_AVX512) || defined(RF_AVX2)
/* GCC before 14 spends 0.6 s in <immintrin.h>; the parts that are used take 0.1 s and include cleanly under its guard. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 14
#define _IMMINTRIN_H_INCLUDED
#include <xmmintrin.h>
#include <emmintrin.h>
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <fmaintrin.h>
#ifdef __F16C__
#include <f16cintrin.h>
#endif
#ifdef RF_AVX512
#include <avx512fintrin.h>
#include <avx512dqintrin.h>
#include <avx512vlintrin.h>
#include <avx512bwintrin.h>
#include <avx512vlbwintrin.h>
#ifdef __AVX512VNNI__
#include <avx512vnniintrin.h>
#endif
#ifdef __AVX512BF16__
#include <avx512bf16vlintrin.h> /* first: it has the types of the other */
#include <avx512bf16intrin.h>
#endif
#elif defined(__AVXVNNI__)
#include <avxvnniintrin.h>
#endif
#else
#include <immintrin.h>
#endif
#elif defined(RF_NEON)
#include <arm_neon.h>
#endif

/* ---- types ---- */
#define RF_VEC(type) __attribute__((vector_size(LANES * sizeof(type)), may_alias))
typedef uint8_t U8 RF_VEC(uint8_t);
typedef uint16_t U16 RF_VEC(uint16_t);
typedef uint32_t U32 RF_VEC(uint32_t);
typedef uint64_t U64 RF_VEC(uint64_t);
typedef int8_t S8 RF_VEC(int8_t);
typedef int16_t S16 RF_VEC(int16_t);
typedef int32_t S32 RF_VEC(int32_t);
typedef int64_t S64 RF_VEC(int64_t);
typedef float F RF_VEC(float);
typedef double D RF_VEC(double);
#if RF_DOUBLE
typedef int64_t rf_int;
typedef uint64_t rf_bits;
typedef D V;
typedef S64 VI;
typedef U64 VU;
#define RF_PS(name) RF_CAT(name, _pd)
#else
typedef int32_t rf_int;
typedef uint32_t rf_bits;
typedef F V;
typedef S32 VI;
typedef U32 VU;
#define RF_PS(name) RF_CAT(name, _ps)
#endif

#if LANES == 16
#define RF_EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9), f(10), f(11), f(12), f(13), f(14), f(15)
#elif LANES == 8
#define RF_EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#elif LANES == 4
#define RF_EACH(f) f(0), f(1), f(2), f(3)
#elif LANES == 2
#define RF_EACH(f) f(0), f(1)
#else
#define RF_EACH(f) f(0)
#endif
/* lane l of the result is lane f(l) of the 2 * LANES lanes of a and b */
#if __has_builtin(__builtin_shufflevector)
#define RF_SHUFFLE(a, b, f) __builtin_shufflevector(a, b, RF_EACH(f))
#else
#define RF_SHUFFLE(a, b, f) __builtin_shuffle(a, b, (VI){RF_EACH(f)})
#endif
#define RF_SELF(l) (l)

RF_INLINE int64_t rf_min(int64_t a, int64_t b) { return a < b ? a : b; }
RF_INLINE int64_t rf_max(int64_t a, int64_t b) { return a > b ? a : b; }
RF_INLINE VI vi_set1(int64_t x) { return (VI){0} + (rf_int)x; }
RF_INLINE VI vi_iota(void) { return (VI){RF_EACH(RF_SELF)}; }
RF_INLINE V iota(void) { return (V){RF_EACH(RF_SELF)}; }
RF_INLINE V vi_to_v(VI a) { return __builtin_convertvector(a, V); }
RF_INLINE VI v_to_vi(V a) { return __builtin_convertvector(a, VI); }
RF_INLINE rf_real lane(V v, int i) { return v[i]; }
RF_INLINE rf_real lane0(V v) { return v[0]; }
RF_INLINE rf_int vi_lane(VI v, int i) { return v[i]; }
RF_INLINE V v_insert(V v, int i, rf_real x) { v[i] = x; return v; }

#include "prelude_vector.h" /* masks, selection, horizontal operations */
#include "prelude_memory.h" /* loads, stores and conversions of every dtype */
#include "prelude_pairs.h"  /* products of 16-bit numbers, two at a time */
#include "prelude_math.h"   /* exp, log, ... */
#include "prelude_pool.h"   /* threads and scratch memory */
