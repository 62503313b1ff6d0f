//@ ex2 : 2^x to two units in the last place; subnormal results are zero.
DEV float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

//@ lg2 : log2(x), absolute error 2^-22 near 1.
DEV float lg2(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

//@ rcp : 1 / x to one unit in the last place.
DEV float rcp(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

//@ rsqrt_fast : 1 / sqrt(x) to two units in the last place.
DEV float rsqrt_fast(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

//@ tanh_fast : tanh(x) to 2^-11, one instruction.
DEV float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

//@ fmax_nan : the larger value, NaN when either is.
DEV float fmax_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

//@ fmin_nan : the smaller value, NaN when either is.
DEV float fmin_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

//@ imin : the smaller of two integers.
DEV int imin(int a, int b) { return a < b ? a : b; }

//@ imax : the larger of two integers.
DEV int imax(int a, int b) { return a > b ? a : b; }

//@ settled : 0 for an infinity, so that a maximum still at its identity reads as 0.
DEV float settled(float x) { return x == INF || x == -INF ? 0.0f : x; }

//@ in_32_bits : an integer as 32 bits; one that does not fit becomes the nearest that does.
DEV int in_32_bits(i64 x) { return x > 0x7fffffff ? 0x7fffffff : x < -0x7fffffff ? -0x7fffffff : (int)x; }
