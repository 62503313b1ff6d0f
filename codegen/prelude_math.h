/* Elementwise functions. The polynomials are Chebyshev interpolants computed for this file with 100 digits. The bounds below are
   in units in the last place of the compute type, float and double alike, with FMA or without, over the whole range;
   tests/test_prelude.py measures them. Special values are those of C99 and NumPy: exp(-inf) = 0, log(0) = -inf, log(-1) = NaN,
   NaN stays NaN; subnormal arguments and results are honoured unless a line says otherwise.
     v_exp, v_exp2        1.5
     v_expz, v_exp2z      1.5 above twice the least normal number, below it 0; of x <= 0 only: values relative to a maximum
     v_expm1              2.5
     v_log                1.5
     v_log2, v_log1p      2.5
     v_tanh               3.5
     v_erf                2.5
     v_sin, v_cos         2.5  (|x| below 8192 or 2^20; beyond, the C library, lane by lane)
     v_power, v_floor_divide, v_remainder   the C library, lane by lane
   + - * / v_sqrt are rounded correctly, v_recip and v_rsqrt are quotients of correctly rounded operations. */

#if RF_DOUBLE
#define RF_C(f, d) d
#define RF_M(name) name
#define RF_MANTISSA 52
#define RF_BIAS 1023
#define RF_SHIFT 0x1.8p52 /* adding it rounds to an integer, which then stands in the low bits */
#else
#define RF_C(f, d) f
#define RF_M(name) RF_CAT(name, f)
#define RF_MANTISSA 23
#define RF_BIAS 127
#define RF_SHIFT 0x1.8p23f
#endif
#define RF_POLY(x, c) rf_poly(x, c, (int)(sizeof(c) / sizeof(c[0])))
#define RF_LANEWISE1(name, expr) \
  RF_NOINLINE V name(V a) { \
    for (int l = 0; l < LANES; l++) { rf_real x = a[l]; a[l] = expr; } \
    return a; \
  }
#define RF_LANEWISE2(name, expr) \
  RF_NOINLINE V name(V a, V b) { \
    for (int l = 0; l < LANES; l++) { rf_real x = a[l], y = b[l]; a[l] = expr; } \
    return a; \
  }

/* c[0] + c[1] x + ... by Horner's rule */
RF_INLINE V rf_poly(V x, const rf_real *c, int n) {
  V p = set1(c[n - 1]);
  RF_UNROLL(16)
  for (int i = n - 2; i >= 0; i--) p = v_fma(p, x, set1(c[i]));
  return p;
}
RF_INLINE VU rf_all(rf_bits x) { return (VU){0} + x; }

/* ---- exponentials: 2^n times a polynomial in the rest, |rest| <= ln 2 / 2 ---- */
#if RF_DOUBLE
static const rf_real rf_exp_q[] = {0.5000000000000001, 0.16666666666666669, 0.041666666666624094, 0.00833333333333006,
  0.0013888888917230724, 0.00019841269863066696, 2.4801521269532122e-05, 2.7557268439678e-06, 2.7620101012098e-07, 2.5100395159429243e-08};
static const rf_real rf_exp2_c[] = {0.6931471805599453, 0.24022650695910072, 0.055504108664821625, 0.00961812910762848,
  0.0013333558146406436, 0.00015403530393370715, 1.5252733841601815e-05, 1.3215486808727859e-06, 1.0178057064573359e-07,
  7.054897292691627e-09, 4.455822025014915e-10, 2.5729344553786755e-11};
#define RF_LN2_HI 0.693147180559663
#define RF_LN2_LO 2.8235290563031577e-13
#define RF_LOG2E 1.4426950408889634
#else
static const rf_real rf_exp_q[] = {0.5f, 0.16666576266288757f, 0.041666556149721146f, 0.008363185450434685f, 0.0013926191022619605f};
static const rf_real rf_exp2_c[] = {0.6931471824645996f, 0.24022650718688965f, 0.055503569543361664f, 0.009618082083761692f,
  0.0013390886597335339f, 0.00015453182277269661f};
#define RF_LN2_HI 0.693115234375f /* few bits, so that n * RF_LN2_HI is exact even without FMA */
#define RF_LN2_LO 3.194618329871446e-05f
#define RF_LOG2E 1.4426950408889634f
#endif

/* x = n ln 2 + rest; the low bits of *shifted are n + bias */
RF_INLINE V rf_exp_rest(V x, rf_real bias, V *shifted, V *n) {
  *shifted = v_fma(x, set1(RF_LOG2E), set1(RF_SHIFT + bias));
  *n = *shifted - set1(RF_SHIFT + bias);
  return v_fnma(*n, set1(RF_LN2_LO), v_fnma(*n, set1(RF_LN2_HI), x));
}
/* p 2^n in two factors, so that only the last product rounds a subnormal result; shifted has the bias 2 RF_BIAS */
RF_INLINE V rf_scale(V p, V n, V shifted) {
#if defined(RF_AVX512)
  (void)shifted;
  return RF_OP(scalef)(p, n);
#else
  (void)n;
  VU i = (VU)shifted, half = i >> 1;
  return p * (V)(half << RF_MANTISSA) * (V)((i - half) << RF_MANTISSA);
#endif
}
RF_INLINE V v_exp(V x) {
  V shifted, n, r;
  x = v_min_raw(set1(RF_C(89, 710)), v_max_raw(set1(RF_C(-104, -746)), x));
  r = rf_exp_rest(x, 2 * RF_BIAS, &shifted, &n);
  return rf_scale(v_fma(v_fma(RF_POLY(r, rf_exp_q), r, set1(1)), r, set1(1)), n, shifted);
}
RF_INLINE V v_exp2(V x) {
  x = v_min_raw(set1(RF_C(129, 1025)), v_max_raw(set1(RF_C(-151, -1076)), x));
  V shifted = x + set1(RF_SHIFT + 2 * RF_BIAS), n = shifted - set1(RF_SHIFT + 2 * RF_BIAS), f = x - n;
  return rf_scale(v_fma(RF_POLY(f, rf_exp2_c), f, set1(1)), n, shifted);
}
/* of x <= 0 or NaN: 2^n in one factor, which is 0 at the least n */
RF_INLINE V v_expz(V x) {
  V shifted, n, r;
  x = v_max_raw(set1(RF_C(-88, -709)), x);
  r = rf_exp_rest(x, RF_BIAS, &shifted, &n);
  return v_fma(v_fma(RF_POLY(r, rf_exp_q), r, set1(1)), r, set1(1)) * (V)((VU)shifted << RF_MANTISSA);
}
RF_INLINE V v_exp2z(V x) {
  x = v_max_raw(set1(-RF_BIAS), x);
  V shifted = x + set1(RF_SHIFT + RF_BIAS), f = x - (shifted - set1(RF_SHIFT + RF_BIAS));
  return v_fma(RF_POLY(f, rf_exp2_c), f, set1(1)) * (V)((VU)shifted << RF_MANTISSA);
}
/* 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): no overflow before the result's own */
RF_INLINE V v_expm1(V a) {
  V shifted, n, r, s, x = v_min_raw(set1(RF_C(89, 710)), v_max_raw(set1(RF_C(-30, -60)), a));
  r = rf_exp_rest(x, RF_BIAS - 1, &shifted, &n);
  s = (V)((VU)shifted << RF_MANTISSA);
  r = v_fma(RF_POLY(r, rf_exp_q) * r, r, r);
  r = v_fma(s, r, s - set1(0.5));
  return v_copysign(r + r, a);
}

/* ---- logarithms: x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2) ---- */
#if RF_DOUBLE
static const rf_real rf_log_c[] = {0.666666666666667, 0.3999999999989827, 0.2857142862653362, 0.22222211043776857,
  0.18182895750119193, 0.1533150161114533, 0.1461916613488797};
#define RF_SQRT_HALF 0x3fe6a09e667f3bcdull
#define RF_LOG2E_LO 2.0355273740931033e-17
#else
static const rf_real rf_log_c[] = {0.3333333134651184f, -0.2499999701976776f, 0.20000715553760529f, -0.1666780263185501f,
  0.14249058067798615f, -0.12425687164068222f, 0.11685419827699661f, -0.11479733884334564f, 0.06971611827611923f};
#define RF_SQRT_HALF 0x3f3504f3u
#define RF_LOG2E_LO 1.9259629911266175e-08f
#endif
RF_INLINE V rf_log_split(V x, V *e) {
  const rf_bits one = (rf_bits)RF_BIAS << RF_MANTISSA;
  M small = m_lt(x, set1(RF_C(0x1p-126f, 0x1p-1022)));
  VU i = (VU)sel(small, x * set1(RF_C(0x1p32f, 0x1p64)), x), power = (i + rf_all(one - RF_SQRT_HALF)) >> RF_MANTISSA;
  V unbiased = (V)(power | rf_all((rf_bits)(RF_BIAS + RF_MANTISSA) << RF_MANTISSA)) - set1(RF_C(0x1p23f, 0x1p52) + RF_BIAS);
  *e = unbiased - keep(small, set1(RF_C(32, 64)));
  return (V)(i - ((power - rf_all(RF_BIAS)) << RF_MANTISSA)) - set1(1);
}
/* log(1 + f) - f */
RF_INLINE V rf_log_tail(V f) {
#if RF_DOUBLE
  V s = f / (f + set1(2)), z = s * s, half = set1(0.5) * f * f;
  return v_fma(s, v_fma(RF_POLY(z, rf_log_c), z, half), -half);
#else
  V z = f * f;
  return v_fma(RF_POLY(f, rf_log_c) * f, z, set1(-0.5f) * z);
#endif
}
/* r for positive finite x; 0, infinity, and NaN for the others */
RF_INLINE V rf_log_special(V x, V r) {
  V other = sel(m_eq(x, set1(0)), set1(-RF_INF), sel(m_eq(x, set1(RF_INF)), x, set1(RF_NAN)));
  return sel(m_and(m_lt(set1(0), x), m_lt(x, set1(RF_INF))), r, other);
}
RF_INLINE V v_log(V x) {
  V e, f = rf_log_split(x, &e);
  return rf_log_special(x, v_fma(e, set1(RF_LN2_HI), f + v_fma(e, set1(RF_LN2_LO), rf_log_tail(f))));
}
RF_INLINE V v_log2(V x) {
  V e, f = rf_log_split(x, &e), low = v_fma(rf_log_tail(f), set1(RF_LOG2E), f * set1(RF_LOG2E_LO));
  return rf_log_special(x, v_fma(f, set1(RF_LOG2E), low) + e);
}
/* u = 1 + x rounded, and log u + (what the rounding lost) / u */
RF_INLINE V v_log1p(V x) {
  V u = set1(1) + x, b = u - set1(1), lost = (set1(1) - (u - b)) + (x - b);
  V r = v_log(u), exact = r + lost / u;
  return v_copysign(sel(m_and(m_lt(set1(0), u), m_lt(u, set1(RF_INF))), exact, r), x);
}

/* ---- tanh(|x|) = -t / (2 + t), t = e^(-2 |x|) - 1 ---- */
RF_INLINE V v_tanh(V x) {
  V t = v_expm1(set1(-2) * v_abs(x));
  return v_copysign(t / (set1(2) + t), x);
}

/* ---- erf: x + x E(x^2) near 0; else 1 - erfc ---- */
#if RF_DOUBLE
static const rf_real rf_erf_c[] = {0.12837916709551256, -0.37612638903183543, 0.11283791670945006, -0.02686617064323777,
  0.0052239776071164225, -0.0008548325975389692, 0.00012055294904839707, -1.492473690741966e-05, 1.6447424703317362e-06,
  -1.6208483801871705e-07, 1.3720064546777686e-08, -7.795898827002142e-10};
/* erfc(x) = e^(-x^2) G(1 / (x + 3)) */
static const rf_real rf_erfc_c[] = {-2.8190354049173737e-06, 0.5644169352589831, 1.6841564753846934, 4.9846036233640385,
  9.820443013511415, 62.07607349486588, -180.55271873239408, 1577.9651247151392, -6062.296396960126, 19064.817658666445,
  -38815.08298662516, 42109.92502489558, -18815.009116515812};
#define RF_ERF_SPLIT 1.0
#define RF_ERF_ONE 6.0
#else
static const rf_real rf_erf_c[] = {0.12837916612625122f, -0.37612631916999817f, 0.11283669620752335f, -0.026857959106564522f,
  0.005197487305849791f, -0.0008102915599010885f, 8.204169716918841e-05f};
/* erfc(x) = e^-(x + x T(x)) */
static const rf_real rf_erfc_c[] = {0.1289040446281433f, 0.6341380476951599f, 0.10787820816040039f, -0.025162553414702415f,
  0.004316309932619333f, -0.0005025844438932836f, 3.4976059396285564e-05f, -1.0833930446096929e-06f};
#define RF_ERF_SPLIT 0.9f
#define RF_ERF_ONE 4.0f
#endif
RF_INLINE V v_erf(V x) {
  V a = v_min_raw(set1(RF_ERF_ONE), v_abs(x)), near = v_fma(RF_POLY(x * x, rf_erf_c), x, x);
#if RF_DOUBLE
  V far = v_expz(-a * a) * RF_POLY(set1(1) / (a + set1(3)), rf_erfc_c);
#else
  V far = v_expz(-v_fma(RF_POLY(a, rf_erfc_c), a, a));
#endif
  return sel(m_lt(v_abs(x), set1(RF_ERF_SPLIT)), near, v_copysign(set1(1) - far, x));
}

/* ---- sin, cos: x = q pi/2 + r; pi/2 in four parts short enough that q times a part is exact ---- */
#if RF_DOUBLE
static const rf_real rf_pio2[] = {1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32};
static const rf_real rf_sin_c[] = {-0.16666666666666666, 0.008333333333333331, -0.00019841269841265017, 2.755731921930192e-06,
  -2.5052106219521895e-08, 1.6058529572267877e-10, -7.586576588171073e-13};
static const rf_real rf_cos_c[] = {0.041666666666666664, -0.0013888888888888887, 2.4801587301584618e-05, -2.7557319221382114e-07,
  2.087675578389404e-09, -1.1470459749675607e-11, 4.745804889760674e-14};
#else
static const rf_real rf_pio2[] = {1.5703125f, 0.0004837512969970703f, 7.549533620476723e-08f, 2.5633440682570896e-12f};
static const rf_real rf_sin_c[] = {-0.1666666716337204f, 0.008333331905305386f, -0.00019840082677546889f, 2.7249313916399842e-06f};
static const rf_real rf_cos_c[] = {0.0416666679084301f, -0.00138888880610466f, 2.480059629306197e-05f, -2.730044741383608e-07f};
#endif
RF_LANEWISE1(rf_sin_big, RF_M(sin)(x))
RF_LANEWISE1(rf_cos_big, RF_M(cos)(x))
RF_INLINE V rf_sin_shifted(V x, int quarter) { /* sin(x + quarter pi/2) for moderate x */
  V shifted = v_fma(x, set1(RF_C(0.6366197723675814f, 0.6366197723675814)), set1(RF_SHIFT)), q = shifted - set1(RF_SHIFT), r = x;
  RF_UNROLL(4)
  for (int i = 0; i < 4; i++) r = v_fnma(q, set1(rf_pio2[i]), r);
  VI turn = (VI)shifted + vi_set1(quarter);
  V z = r * r, sine = v_fma(RF_POLY(z, rf_sin_c) * z, r, r);
  V cosine = v_fma(RF_POLY(z, rf_cos_c) * z, z, v_fma(z, set1(-0.5), set1(1)));
  V y = sel(vi_eq(turn & vi_set1(1), vi_set1(1)), cosine, sine);
  return (V)((VU)y ^ ((VU)(turn & vi_set1(2)) << (8 * sizeof(rf_real) - 2)));
}
RF_INLINE V v_sin(V x) {
  M big = m_lt(set1(RF_C(8192, 0x1p20)), v_abs(x));
  V y = sel(m_eq(x, set1(0)), x, rf_sin_shifted(x, 0));
  return m_any(big) ? sel(big, rf_sin_big(x), y) : y;
}
RF_INLINE V v_cos(V x) {
  M big = m_lt(set1(RF_C(8192, 0x1p20)), v_abs(x));
  V y = rf_sin_shifted(x, 1);
  return m_any(big) ? sel(big, rf_cos_big(x), y) : y;
}

/* ---- the C library, lane by lane; floor division and remainder as Python and NumPy have them ---- */
RF_INLINE rf_real rf_mod(rf_real a, rf_real b) {
  rf_real m = RF_M(fmod)(a, b);
  if (b == 0) return m;
  if (m == 0) return RF_M(copysign)(0, b);
  return (b < 0) != (m < 0) ? m + b : m;
}
RF_INLINE rf_real rf_floordiv(rf_real a, rf_real b) {
  rf_real m = RF_M(fmod)(a, b), d;
  if (b == 0) return a / b;
  d = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
  if (d == 0) return RF_M(copysign)(0, a / b);
  rf_real whole = RF_M(floor)(d);
  return d - whole > (rf_real)0.5 ? whole + 1 : whole;
}
RF_LANEWISE2(v_power, RF_M(pow)(x, y))
RF_LANEWISE2(v_floor_divide, rf_floordiv(x, y))
RF_LANEWISE2(v_remainder, rf_mod(x, y))
