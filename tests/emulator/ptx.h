// What PTX instructions mean, as inline functions: included by every translated kernel. No standard headers, to build fast.
#pragma once
#include "runtime.h"

#ifdef __SANITIZE_THREAD__
extern "C" void __tsan_read_range(void*, size);
extern "C" void __tsan_write_range(void*, size);
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#define INLINE static inline __attribute__((always_inline))

template <class T, class F>
INLINE T as(F f) {  // a register read or written under another type: the same bits, or a narrower or wider integer
  if constexpr (sizeof(T) == sizeof(F)) return __builtin_bit_cast(T, f);
  else return (T)f;
}
template <class R, class E>
INLINE void put(R& r, E e) {
  r = as<R>(e);
}
template <class T>
struct Bits;
template <> struct Bits<u8> { using S = s8; using U = u8; using Wide = u16; };
template <> struct Bits<s8> { using S = s8; using U = u8; using Wide = s16; };
template <> struct Bits<u16> { using S = s16; using U = u16; using Wide = u32; };
template <> struct Bits<s16> { using S = s16; using U = u16; using Wide = s32; };
template <> struct Bits<u32> { using S = s32; using U = u32; using Wide = u64; };
template <> struct Bits<s32> { using S = s32; using U = u32; using Wide = s64; };
template <> struct Bits<u64> { using S = s64; using U = u64; using Wide = unsigned __int128; };
template <> struct Bits<s64> { using S = s64; using U = u64; using Wide = __int128; };
template <> struct Bits<float> { using U = u32; };
template <> struct Bits<double> { using U = u64; };
template <class T>
constexpr bool kFloating = (T)0.5 != (T)0;
template <class T>
constexpr bool kSigned = (T)-1 < (T)0;

// ---- memory: every access is checked for alignment and bounds
enum Space { GENERIC, GLOBAL, SHARED, LOCAL, CONSTANT, PARAM };
template <class T, int N>
struct Vector {
  T at[N];
};
template <int S>
INLINE char* locate(u64 a, u32 bytes, u32 align, Site* site) {
  if (a % align) emu_fail(site, "misaligned address");
  if constexpr (S == GENERIC) {
    if (a - (u64)emu_shared < emu_shared_bytes) return locate<SHARED>(a - (u64)emu_shared, bytes, align, site);
    if (a - (u64)emu_thread->stack < kStackBytes) return (char*)a;
    return locate<GLOBAL>(a, bytes, align, site);
  } else if constexpr (S == SHARED) {
    if (a < site->low || a + bytes > site->high) emu_find_shared(a, bytes, site);
    return emu_shared + a;
  } else if constexpr (S == GLOBAL || S == CONSTANT) {
    if (a < site->low || a + bytes > site->high) emu_find_global(a, bytes, site);
    return (char*)a;
  } else if constexpr (S == LOCAL) {
    if (a - (u64)emu_thread->stack >= kStackBytes) emu_fail(site, "the address is outside the thread's local memory");
    return (char*)a;
  }
  return (char*)a;
}
enum Ordering { WEAK_ACCESS, RELAXED = 1, ORDERED = 2 };  // ORDERED: acquire in a load, release in a store
template <class T, int N, int S, int O>
INLINE Vector<T, N> load(u64 a, Site* site) {
  const T* p = (const T*)locate<S>(a, sizeof(T) * N, sizeof(T) * N, site);
  Vector<T, N> v;
  if constexpr (O != WEAK_ACCESS) emu_yield();  // others may write what this thread spins on
  for (int i = 0; i < N; i++)
    if constexpr (O == WEAK_ACCESS) v.at[i] = p[i];
    else v.at[i] = as<T>(__atomic_load_n((const typename Bits<T>::U*)p + i, __ATOMIC_RELAXED));
  if constexpr (O != WEAK_ACCESS) emu_atomic((u64)p, O == ORDERED, false);
  return v;
}
template <class T, int N, int S, int O, bool Proxies>
INLINE void store(u64 a, Vector<T, N> v, Site* site) {
  T* p = (T*)locate<S>(a, sizeof(T) * N, sizeof(T) * N, site);
  if constexpr (O != WEAK_ACCESS) emu_atomic((u64)p, false, O == ORDERED);
  for (int i = 0; i < N; i++)
    if constexpr (O == WEAK_ACCESS) p[i] = v.at[i];
    else __atomic_store_n((typename Bits<T>::U*)p + i, as<typename Bits<T>::U>(v.at[i]), __ATOMIC_RELAXED);
  if constexpr (Proxies && S == SHARED) emu_generic_write((u32)a, sizeof(T) * N);
}

// ---- atomics
template <class T> INLINE T at_add(T old, T v) { return old + v; }
template <class T> INLINE T at_min(T old, T v) { return v < old ? v : old; }
template <class T> INLINE T at_max(T old, T v) { return v > old ? v : old; }
template <class T> INLINE T at_and(T old, T v) { return old & v; }
template <class T> INLINE T at_or(T old, T v) { return old | v; }
template <class T> INLINE T at_xor(T old, T v) { return old ^ v; }
template <class T> INLINE T at_exch(T, T v) { return v; }
template <class T> INLINE T at_inc(T old, T v) { return old >= v ? 0 : old + 1; }
template <class T> INLINE T at_dec(T old, T v) { return old == 0 || old > v ? v : old - 1; }
template <class T, int S, bool Acquire, bool Release>
INLINE T atomic(T (*change)(T, T), u64 a, T v, Site* site) {
  using U = typename Bits<T>::U;
  U* p = (U*)locate<S>(a, sizeof(T), sizeof(T), site);
  emu_atomic((u64)p, Acquire, Release);
  U old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, as<U>(change(as<T>(old), v)), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return as<T>(old);
}
template <class T, int S, bool Acquire, bool Release>
INLINE T compare_and_swap(u64 a, T expected, T v, Site* site) {
  using U = typename Bits<T>::U;
  U* p = (U*)locate<S>(a, sizeof(T), sizeof(T), site);
  emu_atomic((u64)p, Acquire, Release);
  U old = as<U>(expected);
  __atomic_compare_exchange_n(p, &old, as<U>(v), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return as<T>(old);
}

// ---- arithmetic
template <class T> INLINE bool is_nan(T x) { return x != x; }
template <class T> INLINE T op_add(T a, T b) { return a + b; }
template <class T> INLINE T op_sub(T a, T b) { return a - b; }
template <class T> INLINE T op_mul(T a, T b) {
  if constexpr (kFloating<T>) return a * b;
  else return (T)((typename Bits<T>::U)a * (typename Bits<T>::U)b);
}
template <class T> INLINE typename Bits<T>::Wide op_mul_wide(T a, T b) { return (typename Bits<T>::Wide)a * (typename Bits<T>::Wide)b; }
template <class T> INLINE T op_mul_hi(T a, T b) { return (T)(op_mul_wide<T>(a, b) >> sizeof(T) * 8); }
template <class T> INLINE T op_mad(T a, T b, T c) { return op_mul<T>(a, b) + c; }
template <class T> INLINE T op_mad_hi(T a, T b, T c) { return op_mul_hi<T>(a, b) + c; }
template <class T> INLINE typename Bits<T>::Wide op_mad_wide(T a, T b, typename Bits<T>::Wide c) { return op_mul_wide<T>(a, b) + c; }
INLINE float op_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <class T> INLINE T op_div(T a, T b) {
  if constexpr (!kFloating<T>) {
    if (b == 0) return (T)-1;
    if (kSigned<T> && b == (T)-1) return (T)(0 - (typename Bits<T>::U)a);
  }
  return a / b;
}
template <class T> INLINE T op_rem(T a, T b) { return b == 0 ? a : kSigned<T> && b == (T)-1 ? 0 : a % b; }
template <class T> INLINE T op_neg(T a) { return -a; }
template <class T> INLINE T op_abs(T a) {
  if constexpr (kFloating<T>) return __builtin_copysign(a, (T)0);
  else return a < 0 ? -a : a;
}
template <class T> INLINE T op_min(T a, T b) {
  if constexpr (kFloating<T>) {
    if (is_nan(a)) return b;
    if (a == b) return __builtin_signbit(a) ? a : b;
  }
  return b < a ? b : a;
}
template <class T> INLINE T op_max(T a, T b) {
  if constexpr (kFloating<T>) {
    if (is_nan(a)) return b;
    if (a == b) return __builtin_signbit(a) ? b : a;
  }
  return b > a ? b : a;
}
template <class T> INLINE T op_min_nan(T a, T b) { return is_nan(a) || is_nan(b) ? (T)__builtin_nan("") : op_min<T>(a, b); }
template <class T> INLINE T op_max_nan(T a, T b) { return is_nan(a) || is_nan(b) ? (T)__builtin_nan("") : op_max<T>(a, b); }
template <class T> INLINE T op_saturate(T a) { return a > 0 ? a < 1 ? a : 1 : 0; }
template <class T> INLINE T op_rcp(T a) { return 1 / a; }
template <class T> INLINE T op_sqrt(T a) { return (T)(sizeof(T) == 4 ? __builtin_sqrtf((float)a) : __builtin_sqrt((double)a)); }
template <class T> INLINE T op_rsqrt(T a) { return 1 / op_sqrt<T>(a); }
template <class T> INLINE T op_copysign(T sign, T a) { return (T)__builtin_copysign(a, sign); }
INLINE float flushed(float x) { return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x; }

// ---- bits
template <class T> INLINE T op_and(T a, T b) { return a & b; }
template <class T> INLINE T op_or(T a, T b) { return a | b; }
template <class T> INLINE T op_xor(T a, T b) { return a ^ b; }
template <class T> INLINE T op_not(T a) {
  if constexpr ((T)2 == (T)1) return !a;  // a predicate
  else return ~a;
}
template <class T> INLINE T op_cnot(T a) { return a == 0; }
template <class T> INLINE T op_shl(T a, u32 n) { return n >= sizeof(T) * 8 ? 0 : (T)((typename Bits<T>::U)a << n); }
template <class T> INLINE T op_shr(T a, u32 n) { return n >= sizeof(T) * 8 ? (kSigned<T> ? a >> (sizeof(T) * 8 - 1) : 0) : a >> n; }
INLINE u32 op_shf_l(u32 a, u32 b, u32 n, bool wrap) {
  n = wrap ? n & 31 : n > 32 ? 32 : n;
  return (u32)(((u64)b << 32 | a) << n >> 32) | (n == 32 ? a : 0);
}
INLINE u32 op_shf_r(u32 a, u32 b, u32 n, bool wrap) {
  n = wrap ? n & 31 : n > 32 ? 32 : n;
  return (u32)(((u64)b << 32 | a) >> n);
}
template <class T> INLINE u32 op_popc(T a) { return __builtin_popcountll((typename Bits<T>::U)a); }
template <class T> INLINE u32 op_clz(T a) {
  constexpr u32 width = sizeof(T) * 8;
  return a == 0 ? width : __builtin_clzll((typename Bits<T>::U)a) - (64 - width);
}
template <class T> INLINE T op_brev(T a) {
  T r = 0;
  for (u32 i = 0; i < sizeof(T) * 8; i++) r |= (a >> i & 1) << (sizeof(T) * 8 - 1 - i);
  return r;
}
template <class T> INLINE u32 op_bfind(T a) {
  const auto u = (typename Bits<T>::U)(kSigned<T> && a < 0 ? ~a : a);
  return u ? 63 - __builtin_clzll(u) : ~0u;
}
template <class T> INLINE T op_bfi(T a, T b, u32 at, u32 n) {
  at &= 255, n &= 255;
  const T mask = op_shl<T>(n >= sizeof(T) * 8 ? (T)~(T)0 : ((T)1 << n) - 1, at);
  return (b & ~mask) | (op_shl<T>(a, at) & mask);
}
template <class T> INLINE T op_bfe(T a, u32 at, u32 n) {
  at &= 255, n &= 255;
  if (n == 0) return 0;
  const u32 width = sizeof(T) * 8;
  if (at >= width) return kSigned<T> && a < 0 ? (T)-1 : 0;
  if (at + n > width) n = width - at;
  return (T)((typename Bits<T>::U)a << (width - at - n)) >> (width - n);
}
INLINE u32 op_lop3(u32 a, u32 b, u32 c, int table) {
  u32 r = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return r;
}
INLINE u32 op_prmt(u32 a, u32 b, u32 select) {
  const u64 bytes = a | (u64)b << 32;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    const u32 k = select >> 4 * i & 15;
    u8 x = (u8)(bytes >> (k & 7) * 8);
    if (k & 8) x = x & 128 ? 255 : 0;
    r |= (u32)x << 8 * i;
  }
  return r;
}
template <class T> INLINE T op_selp(T a, T b, bool p) { return p ? a : b; }
template <class A, class B> INLINE s32 op_dot(A a, B b, s32 c) {  // dp4a: A, B are u32 or s32
  for (int i = 0; i < 4; i++) {
    const s32 x = kSigned<A> ? (s32)(s8)(a >> 8 * i) : (s32)(u8)(a >> 8 * i);
    c += x * (kSigned<B> ? (s32)(s8)(b >> 8 * i) : (s32)(u8)(b >> 8 * i));
  }
  return c;
}
template <class T> INLINE bool unordered(T a, T b) { return is_nan(a) || is_nan(b); }

// ---- conversions
INLINE float to_float(int type, u32 bits) { return type == BF16 ? __builtin_bit_cast(float, bits << 16) : emu_small_to_float(type, bits); }
INLINE u16 to_small(int type, float x) { return emu_float_to_small(type, x); }
INLINE u32 to_pair(int type, float high, float low) {
  const u32 width = type >= E4M3 ? 8 : 16;
  return (u32)to_small(type, high) << width | to_small(type, low);
}
INLINE u32 small_pair_to_half_pair(int type, u32 bits) { return to_pair(F16, to_float(type, bits >> 8 & 255), to_float(type, bits & 255)); }
INLINE u16 half_pair_to_small_pair(int type, u32 bits) {
  return (u16)to_pair(type, to_float(F16, bits >> 16), to_float(F16, bits & 0xffff));
}
INLINE u32 to_tf32(float x) {
  const u32 u = __builtin_bit_cast(u32, x);
  return is_nan(x) ? 0x7fffffff : (u + 0x1000) & ~0x1fffu;  // rna: halves away from zero
}
template <class T, class F>
INLINE T to_integer(F x) {  // x is whole; out of range saturates, NaN is 0
  if (is_nan(x)) return 0;
  constexpr T low = kSigned<T> ? (T)((typename Bits<T>::U)1 << (sizeof(T) * 8 - 1)) : 0, high = (T)~low;
  return (double)x <= (double)low ? low : (double)x >= (double)high ? high : (T)x;
}
template <class T> INLINE T round_even(T x) { return (T)(sizeof(T) == 4 ? __builtin_nearbyintf(x) : __builtin_nearbyint(x)); }
template <class T> INLINE T round_zero(T x) { return (T)(sizeof(T) == 4 ? __builtin_truncf(x) : __builtin_trunc(x)); }
template <class T> INLINE T round_down(T x) { return (T)(sizeof(T) == 4 ? __builtin_floorf(x) : __builtin_floor(x)); }
template <class T> INLINE T round_up(T x) { return (T)(sizeof(T) == 4 ? __builtin_ceilf(x) : __builtin_ceil(x)); }
template <class T, class F>
INLINE T clamp_integer(F x) {
  constexpr T low = kSigned<T> ? (T)((typename Bits<T>::U)1 << (sizeof(T) * 8 - 1)) : 0, high = (T)~low;
  return (__int128)x < (__int128)low ? low : (__int128)x > (__int128)high ? high : (T)x;
}
// 16-bit float arithmetic: `f` on float, rounded to the type; pairs by halves.
template <int Type, class F, class... A>
INLINE u16 small(F f, A... a) {
  return to_small(Type, f(to_float(Type, a)...));
}
template <int Type, class F, class... A>
INLINE u32 small_pair(F f, A... a) {
  return (u32)small<Type>(f, (u16)(a >> 16)...) << 16 | small<Type>(f, (u16)a...);
}

// ---- warps
INLINE bool shuffle(char mode, u32 a, u32 b, u32 c, u32 mask, u32& out, const Site* site) {
  const int lane = emu_thread->lane, offset = b & 31, clamp = c & 31, segment = c >> 8 & 31;
  const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
  int source = mode == 'u' ? lane - offset : mode == 'd' ? lane + offset : mode == 'b' ? lane ^ offset : first | (offset & ~segment);
  const bool valid = mode == 'u' ? source >= last : source <= last;
  if (!valid) source = lane;
  out = emu_shuffle(a, source, mask, site);
  return valid;
}
INLINE void backward(const Site* site) {  // every backward branch passes here
  if (!SANITIZED && --emu_budget < 0) emu_hang(site);
}
// What the runtime reads or writes for an instruction, said here so that ThreadSanitizer can name its line.
INLINE void touch(u32 offset, u32 bytes, bool writes) {
#if SANITIZED
  if (offset + bytes <= emu_shared_bytes) (writes ? __tsan_write_range : __tsan_read_range)(emu_shared + offset, bytes);
#endif
}
