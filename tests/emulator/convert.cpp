// Number formats and functions whose rounding the host's C++ does not give directly.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>

#include "runtime.h"

namespace {
struct Format {
  int mantissa, bias;
  u32 largest, nan;  // encodings; conversions to the 8-bit types saturate
};
constexpr Format kE4M3{3, 7, 0x7e, 0x7f}, kE5M2{2, 15, 0x7b, 0x7f};

float decode(const Format& f, int bits, u32 v) {
  const u32 magnitude = v & ((1u << (bits - 1)) - 1), exponent = magnitude >> f.mantissa, fraction = magnitude & ((1u << f.mantissa) - 1);
  float x;
  if (&f == &kE4M3 ? magnitude == 0x7f : magnitude > 0x7c) x = NAN;
  else if (&f == &kE5M2 && magnitude == 0x7c) x = INFINITY;
  else if (!exponent) x = std::ldexp(float(fraction), 1 - f.bias - f.mantissa);
  else x = std::ldexp(float(fraction | 1u << f.mantissa), int(exponent) - f.bias - f.mantissa);
  return v >> (bits - 1) & 1 ? -x : x;
}

u32 encode(const Format& f, float x) {  // to nearest even, saturating
  const u32 sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return f.nan;
  if (x == 0 || std::isinf(x)) return sign | (x == 0 ? 0 : f.largest);
  const double a = std::fabs(double(x));
  int e;
  std::frexp(a, &e);
  const int exponent = std::max(e - 1, 1 - f.bias);
  if (exponent > f.bias + 1) return sign | f.largest;
  const auto scaled = u32(std::nearbyint(std::ldexp(a, f.mantissa - exponent)));  // the hidden bit is the mantissa-th
  const u32 code = u32(exponent + f.bias - 1 << f.mantissa) + scaled;
  return sign | std::min(code, f.largest);
}

struct Tables {
  float e4m3[256], e5m2[256];
  Tables() {
    for (int i = 0; i < 256; i++) e4m3[i] = decode(kE4M3, 8, i), e5m2[i] = decode(kE5M2, 8, i);
  }
};
const Tables kTables;

float from_bits(u32 u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
}  // namespace

extern "C" {
float emu_small_to_float(int type, u32 bits) {
  if (type == BF16) return from_bits(bits << 16);
  if (type == TF32) return from_bits(bits & ~0x1fffu);  // the hardware ignores the low 13 bits
  if (type == E4M3) return kTables.e4m3[bits & 255];
  if (type == E5M2) return kTables.e5m2[bits & 255];
  if (type == S8) return s8(bits);
  const u16 half = u16(bits);
  _Float16 x;
  memcpy(&x, &half, 2);
  return float(x);
}

double emu_accumulator(int type, u32 bits) { return type == S8 ? double(s32(bits)) : double(from_bits(bits)); }

u32 emu_accumulated(int type, double sum) {
  if (type == S8) return u32(s64(sum));
  const float x = float(sum);
  u32 u;
  memcpy(&u, &x, 4);
  return u;
}

// The sum of a matrix instruction on bytes. Of 8-bit floats the hardware keeps 14 bits of each term, aligned to the largest (DeepSeek-V3
// Technical Report, 2024, 3.3.2); integers are exact and wrap.
double emu_sum_of_bytes(int type, double start, const double* terms, int count) {
  double sum = start, most = std::fabs(start);
  for (int i = 0; i < count; i++) sum += terms[i], most = std::max(most, std::fabs(terms[i]));
  if (type == S8 || !(most > 0) || std::isnan(sum) || std::isinf(sum)) return sum;
  const int low = std::ilogb(most) - 13;
  const double up = std::ldexp(1.0, -low);
  sum = std::trunc(start * up);
  for (int i = 0; i < count; i++) sum += std::trunc(terms[i] * up);
  return std::ldexp(sum, low);
}

u16 emu_float_to_small(int type, float x) {
  if (type == E4M3) return u16(encode(kE4M3, x));
  if (type == E5M2) return u16(encode(kE5M2, x));
  if (x != x) return 0x7fff;
  u32 u;
  memcpy(&u, &x, 4);
  if (type == BF16) return u16((u + 0x7fff + (u >> 16 & 1)) >> 16);
  const auto half = _Float16(x);
  u16 v;
  memcpy(&v, &half, 2);
  return v;
}

float emu_fma_directed(float a, float b, float c, int mode) {  // mode: 0 zero, 1 down, 2 up
  const int before = std::fegetround();
  std::fesetround(mode == 0 ? FE_TOWARDZERO : mode == 1 ? FE_DOWNWARD : FE_UPWARD);
  volatile float x = a, y = b, z = c;
  volatile float r = std::fma(x, y, z);
  std::fesetround(before);
  return r;
}

// The approximate functions at full precision; tanh.approx keeps the 11 bits that the hardware gives.
float emu_unary(int function, float x) {
  switch (function) {
    case EX2: return std::exp2(x);
    case LG2: return std::log2(x);
    case SIN: return std::sin(x);
    case COS: return std::cos(x);
    default: {
      const float t = std::tanh(x);
      u32 u;
      memcpy(&u, &t, 4);
      return t != t ? t : from_bits(u + 0x800 & ~0xfffu);
    }
  }
}
}
