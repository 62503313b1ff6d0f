//@ times : a product that is never contracted with a sum, so that equal expressions have equal values.
DEV float times(float a, float b) { return __fmul_rn(a, b); }
DEV double times(double a, double b) { return __dmul_rn(a, b); }

//@ maximum : the larger value, NaN when either is.
DEV float maximum(float a, float b) { return fmax_nan(a, b); }
DEV double maximum(double a, double b) { return a != a ? a : b != b ? b : fmax(a, b); }

//@ minimum : the smaller value, NaN when either is.
DEV float minimum(float a, float b) { return fmin_nan(a, b); }
DEV double minimum(double a, double b) { return a != a ? a : b != b ? b : fmin(a, b); }

//@ settle : 0 for an infinity, so that an extremum still at its identity reads as 0.
DEV float settle(float x) { return fabsf(x) == INF ? 0.0f : x; }
DEV double settle(double x) { return fabs(x) == INF ? 0.0 : x; }

//@ sign_of : -1, 0 or 1; NaN stays.
template <class T> DEV T sign_of(T x) { return x != x ? x : (T)((x > 0) - (x < 0)); }

//@ remainder_of : with the sign of the divisor.
DEV float remainder_of(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
DEV double remainder_of(double a, double b) {
  if (fabs(b) == INF && fabs(a) < INF) return a == 0 || (a < 0) == (b < 0) ? a : b;
  const double r = fma(-floor(a / b), b, a);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

//@ finite : neither infinite nor NaN.
template <class T> DEV bool finite(T x) { return fabs(x) < INF; }

//@ get_f32 : an element as a number.
DEV float get_f32(const float *p) { return *p; }

//@ get_f64 : an element as a number.
DEV double get_f64(const double *p) { return *p; }

//@ get_f16 : an element as a number.
DEV float get_f16(const u16 *p) { return from_f16(*p); }

//@ get_bf16 : an element as a number.
DEV float get_bf16(const u16 *p) { return from_bf16(*p); }

//@ get_e4m3 : an element as a number.
DEV float get_e4m3(const u8 *p) { return from_e4m3(*p); }

//@ get_e5m2 : an element as a number.
DEV float get_e5m2(const u8 *p) { return from_e5m2(*p); }

//@ get_i8 : an element as a number.
DEV int get_i8(const signed char *p) { return *p; }

//@ get_u8 : an element as a number.
DEV int get_u8(const u8 *p) { return *p; }

//@ get_b8 : an element as a truth value.
DEV bool get_b8(const u8 *p) { return *p != 0; }

//@ get_i16 : an element as a number.
DEV int get_i16(const short *p) { return *p; }

//@ get_u16 : an element as a number.
DEV int get_u16(const u16 *p) { return *p; }

//@ get_i32 : an element as a number.
DEV int get_i32(const int *p) { return *p; }

//@ get_u32 : an element as a number.
DEV u32 get_u32(const u32 *p) { return *p; }

//@ get_i64 : an element as a number.
DEV i64 get_i64(const i64 *p) { return *p; }

//@ get_u64 : an element as a number.
DEV u64 get_u64(const u64 *p) { return *p; }

//@ put_f32 : store a number.
DEV void put_f32(float *p, double x) { *p = (float)x; }
DEV void put_f32(float *p, float x) { *p = x; }

//@ put_f64 : store a number.
DEV void put_f64(double *p, double x) { *p = x; }

//@ put_f16 : store a number, rounded to nearest even.
DEV void put_f16(u16 *p, float x) { *p = to_f16(x); }

//@ put_bf16 : store a number, rounded to nearest even.
DEV void put_bf16(u16 *p, float x) { *p = to_bf16(x); }

//@ put_e4m3 : store a number, rounded to nearest even; NaN beyond the range.
DEV void put_e4m3(u8 *p, float x) { *p = fabsf(x) <= 464.0f ? to_e4m3(x) : 0x7f; }

//@ put_e5m2 : store a number, rounded to nearest even; infinite beyond the range.
DEV void put_e5m2(u8 *p, float x) { *p = to_e5m2(x); }

//@ put_i8 : store a number.
template <class T> DEV void put_i8(signed char *p, T x) { *p = (signed char)(int)x; }

//@ put_u8 : store a number.
template <class T> DEV void put_u8(u8 *p, T x) { *p = (u8)(int)x; }

//@ put_b8 : store a truth value.
template <class T> DEV void put_b8(u8 *p, T x) { *p = x != 0; }

//@ put_i16 : store a number.
template <class T> DEV void put_i16(short *p, T x) { *p = (short)(int)x; }

//@ put_u16 : store a number.
template <class T> DEV void put_u16(u16 *p, T x) { *p = (u16)(int)x; }

//@ put_i32 : store a number.
template <class T> DEV void put_i32(int *p, T x) { *p = (int)x; }

//@ put_u32 : store a number.
template <class T> DEV void put_u32(u32 *p, T x) { *p = (u32)(i64)x; }

//@ put_i64 : store a number.
template <class T> DEV void put_i64(i64 *p, T x) { *p = (i64)x; }

//@ put_u64 : store a number.
template <class T> DEV void put_u64(u64 *p, T x) { *p = (u64)x; }

//@ round_f32 : to the nearest float.
template <class T> DEV T round_f32(T x) { return (T)(float)x; }

//@ round_f64 : to the nearest double.
template <class T> DEV T round_f64(T x) { return x; }

//@ round_f16 : to the nearest float16.
template <class T> DEV T round_f16(T x) { return (T)from_f16(to_f16((float)x)); }

//@ round_bf16 : to the nearest bfloat16.
template <class T> DEV T round_bf16(T x) { return (T)from_bf16(to_bf16((float)x)); }

//@ round_e4m3 : to the nearest e4m3; NaN beyond the range.
template <class T> DEV T round_e4m3(T x) { return fabs(x) <= 464 ? (T)from_e4m3(to_e4m3((float)x)) : (T)NOT_A_NUMBER; }

//@ round_e5m2 : to the nearest e5m2.
template <class T> DEV T round_e5m2(T x) { return (T)from_e5m2(to_e5m2((float)x)); }

//@ round_i8 : towards zero, to int8.
template <class T> DEV T round_i8(T x) { return (T)(signed char)(int)x; }

//@ round_u8 : towards zero, to uint8.
template <class T> DEV T round_u8(T x) { return (T)(u8)(int)x; }

//@ round_i16 : towards zero, to int16.
template <class T> DEV T round_i16(T x) { return (T)(short)(int)x; }

//@ round_u16 : towards zero, to uint16.
template <class T> DEV T round_u16(T x) { return (T)(u16)(int)x; }

//@ round_i32 : towards zero, to int32.
template <class T> DEV T round_i32(T x) { return (T)(int)x; }

//@ round_u32 : towards zero, to uint32.
template <class T> DEV T round_u32(T x) { return (T)(u32)(i64)x; }

//@ round_i64 : towards zero, to int64.
template <class T> DEV T round_i64(T x) { return (T)(i64)x; }

//@ round_u64 : towards zero, to uint64.
template <class T> DEV T round_u64(T x) { return (T)(u64)x; }

//@ chunk_f32 : N consecutive elements at a multiple of 16 bytes, as floats.
template <int N> DEV void chunk_f32(float *d, const float *p) {
  UNROLL for (int i = 0; i < N; i += 4) spread_f32(d + i, load128_once(p + i));
}

//@ chunk_bf16 : N consecutive elements at a multiple of 16 bytes, as floats.
template <int N> DEV void chunk_bf16(float *d, const u16 *p) {
  UNROLL for (int i = 0; i < N; i += 8) spread_bf16(d + i, load128_once(p + i));
}

//@ chunk_f16 : N consecutive elements at a multiple of 16 bytes, as floats.
template <int N> DEV void chunk_f16(float *d, const u16 *p) {
  UNROLL for (int i = 0; i < N; i += 8) spread_f16(d + i, load128_once(p + i));
}

//@ chunk_e4m3 : N consecutive elements at a multiple of 16 bytes, as floats.
template <int N> DEV void chunk_e4m3(float *d, const u8 *p) {
  UNROLL for (int i = 0; i < N; i += 16) spread_e4m3(d + i, load128_once(p + i));
}

//@ chunk_f64 : N consecutive elements at a multiple of 16 bytes.
template <int N> DEV void chunk_f64(double *d, const double *p) {
  UNROLL for (int i = 0; i < N; i += 2) {
    const uint4 v = load128_once(p + i);
    d[i] = __hiloint2double(v.y, v.x), d[i + 1] = __hiloint2double(v.w, v.z);
  }
}

//@ spill_f32 : N floats to consecutive elements at a multiple of 16 bytes.
template <int N> DEV void spill_f32(float *p, const float *s) {
  UNROLL for (int i = 0; i < N; i += 4) store128(p + i, gather_f32(s + i));
}

//@ spill_bf16 : N floats to consecutive elements at a multiple of 16 bytes.
template <int N> DEV void spill_bf16(u16 *p, const float *s) {
  UNROLL for (int i = 0; i < N; i += 8) store128(p + i, gather_bf16(s + i));
}

//@ spill_f16 : N floats to consecutive elements at a multiple of 16 bytes.
template <int N> DEV void spill_f16(u16 *p, const float *s) {
  UNROLL for (int i = 0; i < N; i += 8) store128(p + i, gather_f16(s + i));
}

//@ spill_e4m3 : N floats to consecutive elements at a multiple of four bytes, NaN beyond the range.
template <int N> DEV void spill_e4m3(u8 *p, const float *s) {
  UNROLL for (int i = 0; i < N; i += 4)
    *(u32 *)(p + i) = pack_e4m3(in_e4m3(s[i]), in_e4m3(s[i + 1]), in_e4m3(s[i + 2]), in_e4m3(s[i + 3]));
}

//@ spill_i8 : N floats that are numbers of eight bits to consecutive elements at a multiple of four bytes.
template <int N> DEV void spill_i8(signed char *p, const float *s) {
  UNROLL for (int i = 0; i < N; i += 4) *(u32 *)(p + i) = pack_i8(s[i], s[i + 1], s[i + 2], s[i + 3]);
}

//@ spill_f64 : N doubles to consecutive elements at a multiple of 16 bytes.
template <int N> DEV void spill_f64(double *p, const double *s) {
  UNROLL for (int i = 0; i < N; i += 2) *(double2 *)(p + i) = make_double2(s[i], s[i + 1]);
}

//@ split : the remainder of an item's number by n; the number becomes the quotient. In 32 bits where they suffice.
DEV i64 split(i64 &item, i64 n) {
  const i64 quotient = ((u64)(item | n) >> 32) == 0 ? (i64)((u32)item / (u32)n) : item / n, rest = item - quotient * n;
  item = quotient;
  return rest;
}

//@ Divisor : a divisor prepared for many dividends: scaled into the middle of the range, and its inverse.
struct Divisor { float value, inverse, scale; };
struct Divisor64 { double value; };

//@ divisor : prepares a divisor.
DEV Divisor divisor(float s) {
  const float a = fabsf(s), scale = a > 0x1p64f ? 0x1p-64f : a < 0x1p-64f ? 0x1p64f : 1.0f, t = __fmul_rn(s, scale), r = rcp(t);
  const float rest = fmaf(-t, r, 1.0f);
  return {t, fabsf(rest) < 1.0f ? fmaf(r, rest, r) : r, scale};
}
DEV Divisor64 divisor(double s) { return {s}; }

//@ divide : a quotient rounded to nearest, without branches (Markstein: two products and the rest of the division).
DEV float divide(float x, Divisor d) {
  const float y = __fmul_rn(x, d.scale), q = __fmul_rn(y, d.inverse), rest = fmaf(-q, d.value, y), better = fmaf(rest, d.inverse, q);
  return fabsf(better) < INF ? better : q;
}
DEV double divide(double x, Divisor64 d) { return x / d.value; }

//@ shared16 : 16 bytes of shared memory as numbers.
DEV void shared16(float *d, const float *p) {
  const float4 v = *(const float4 *)p;
  d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
}
DEV void shared16(double *d, const double *p) {
  const double2 v = *(const double2 *)p;
  d[0] = v.x, d[1] = v.y;
}
