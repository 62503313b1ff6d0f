//@ from_bf16 : bfloat16 bits to float.
DEV float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }

//@ from_f16 : float16 bits to float.
DEV float from_f16(u16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
  return r;
}

//@ from_e4m3 : float8 e4m3 bits to float. Below sm_89 through float16, whose exponent is biased by 8 more.
DEV float from_e4m3(u8 x) {
#if __CUDA_ARCH__ >= 890
  u32 pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)x));
  return from_f16((u16)pair);
#else
  if ((x & 0x7f) == 0x7f) return __int_as_float(0x7fc00000);
  return from_f16((u16)((x & 0x80) << 8 | (x & 0x7f) << 7)) * 256.0f;
#endif
}

//@ to_bf16 : float to bfloat16 bits, to nearest even.
DEV u16 to_bf16(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

//@ to_f16 : float to float16 bits, to nearest even.
DEV u16 to_f16(float x) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}

//@ to_e4m3 : float to float8 e4m3 bits, to nearest even, beyond 448 saturated.
DEV u8 to_e4m3(float x) {
#if __CUDA_ARCH__ >= 890
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return (u8)pair;
#else
  const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  if (x != x) return 0x7f;
  const float a = fminf(fabsf(x), 448.0f);
  if (a < 0.015625f) return (u8)(sign | (u32)rintf(a * 512.0f));
  const u32 u = __float_as_uint(a);
  return (u8)(sign | ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
#endif
}

//@ pack_bf16 : two floats as bfloat16 in one register, the first in the low half.
DEV u32 pack_bf16(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

//@ pack_f16 : two floats as float16 in one register, the first in the low half.
DEV u32 pack_f16(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

//@ pack_e4m3 : four floats as e4m3 in one register, the first in the low byte.
DEV u32 pack_e4m3(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  u16 low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | (u32)high << 16;
#else
  return to_e4m3(a) | (u32)to_e4m3(b) << 8 | (u32)to_e4m3(c) << 16 | (u32)to_e4m3(d) << 24;
#endif
}

//@ pack_i8 : four floats that are numbers of eight bits as signed bytes in one register, the first in the low byte.
DEV u32 pack_i8(float a, float b, float c, float d) {
  return ((int)a & 0xff) | ((int)b & 0xff) << 8 | ((int)c & 0xff) << 16 | (u32)(int)d << 24;
}

//@ in_e4m3 : the number, or NaN beyond the range of e4m3.
DEV float in_e4m3(float x) { return fabsf(x) <= 464.0f ? x : NOT_A_NUMBER; }

//@ from_e5m2 : float8 e5m2 bits to float: the high half of a float16.
DEV float from_e5m2(u8 x) { return from_f16((u16)(x << 8)); }

//@ to_e5m2 : float to float8 e5m2 bits, to nearest even, infinite beyond the range.
DEV u8 to_e5m2(float x) {
  const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  if (x != x) return 0x7f;
  const float a = fabsf(x);
  if (a >= 61440.0f) return (u8)(sign | 0x7c);
  if (a < 6.103515625e-5f) return (u8)(sign | (u32)rintf(a * 65536.0f));
  const u32 u = __float_as_uint(a);
  return (u8)(sign | ((u + 0xfffff + (u >> 21 & 1)) >> 21) - (112 << 2));
}
