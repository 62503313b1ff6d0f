"""The vector language of the printed kernels: accuracy in ulp, special values, conversions, and memory past the end."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import mmap
import subprocess
import sys
import zlib
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from redfuser_eq.errors import BackendError
from redfuser_eq.runtime import compiler
from redfuser_eq.runtime.device import cpu

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")

UNARY = [
    "v_exp", "v_exp2", "v_expz", "v_exp2z", "v_expm1", "v_log", "v_log2", "v_log1p", "v_tanh", "v_erf", "v_sin", "v_cos", "v_sqrt",
    "v_rsqrt", "v_recip", "v_floor", "v_ceil", "v_round", "v_abs", "v_sign",
]  # fmt: skip
BINARY = ["v_maximum", "v_minimum", "v_max_raw", "v_min_raw", "v_power", "v_floor_divide", "v_remainder", "v_copysign"]
COMPARE = ["m_lt", "m_le", "m_gt", "m_ge", "m_eq", "m_ne"]
TAGS = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32,
    "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "b8": np.bool_,
}  # fmt: skip
HARNESS = """
#define LOOP for (int64_t i = 0; i < n; i += LANES)
#define UNARY(f) RF_EXPORT void t_##f(const rf_real *a, rf_real *o, int64_t n) { LOOP { M m = tail(n - i); stm_real(m, o + i, f(ldm_real(m, a + i))); } }
#define BINARY(f) RF_EXPORT void t_##f(const rf_real *a, const rf_real *b, rf_real *o, int64_t n) { \\
  LOOP { M m = tail(n - i); stm_real(m, o + i, f(ldm_real(m, a + i), ldm_real(m, b + i))); } }
#define COMPARE(f) RF_EXPORT void t_##f(const rf_real *a, const rf_real *b, uint8_t *o, int64_t n) { \\
  LOOP { M m = tail(n - i); stm_b8(m, o + i, m_to_v(f(ldm_real(m, a + i), ldm_real(m, b + i)))); } }
#define FOLD(f) RF_EXPORT rf_real t_##f(const rf_real *a) { return f(ld_real(a)); }
#define DTYPE(T) \\
  RF_EXPORT void load_##T(const T##_t *a, int64_t s, rf_real *o, int64_t n) { LOOP { M m = tail(n - i); \\
    st_real(o + i, s != 1 ? lds_##T(a + i * s, s, m) : n - i >= LANES ? ld_##T(a + i) : ldm_##T(m, a + i)); } } \\
  RF_EXPORT void store_##T(const rf_real *a, T##_t *o, int64_t s, int64_t n) { LOOP { M m = tail(n - i); V x = ldm_real(m, a + i); \\
    if (s != 1) sts_##T(o + i * s, s, m, x); else if (n - i >= LANES) st_##T(o + i, x); else stm_##T(m, o + i, x); } } \\
  RF_EXPORT void round_##T##_(const rf_real *a, rf_real *o, int64_t n) { LOOP { M m = tail(n - i); stm_real(m, o + i, round_##T(ldm_real(m, a + i))); } } \\
  RF_EXPORT void get_##T##_(const T##_t *a, rf_real *o, int64_t n) { for (int64_t i = 0; i < n; i++) o[i] = get_##T(a + i); } \\
  RF_EXPORT void put_##T##_(const rf_real *a, T##_t *o, int64_t n) { for (int64_t i = 0; i < n; i++) put_##T(o + i, a[i]); }
RF_EXPORT int t_lanes(void) { return LANES; }
RF_EXPORT int t_bytes(void) { return sizeof(rf_real); }
FOLD(h_sum) FOLD(h_prod) FOLD(h_max) FOLD(h_min)
RF_EXPORT int64_t t_argfirst(const rf_real *a, rf_real x) { return h_argfirst(m_eq(ld_real(a), set1(x)), vi_iota() + vi_set1(100)); }
RF_EXPORT int t_first(const rf_real *a, rf_real x) { return m_first(m_eq(ld_real(a), set1(x))); }
RF_EXPORT void t_transpose(const rf_real *a, rf_real *o) {
  V r[LANES];
  for (int i = 0; i < LANES; i++) r[i] = ld_real(a + i * LANES);
  v_transpose(r);
  for (int i = 0; i < LANES; i++) st_real(o + i * LANES, r[i]);
}
RF_EXPORT void t_front(const rf_real *a, uint32_t bits, rf_real *o) { st_front(o, ld_real(a), bits); }
RF_EXPORT void t_masks(int64_t n, int *o) {
  M m = tail(n);
  o[0] = m_bits(m), o[1] = m_any(m), o[2] = m_every(m), o[3] = m_bits(m_not(m)), o[4] = m_bits(m_and(m, m_all())), o[5] = m_bits(m_or(m, m_none()));
  o[6] = m_bits(m_xor(m, m_all())), o[7] = m_bits(v_to_m(keep(m, set1(2)))), o[8] = m_bits(m_isnan(sel(m, set1(RF_NAN), set1(RF_INF))));
  o[9] = m_bits(m_isfinite(sel(m, set1(1), set1(-RF_INF))));
}
RF_EXPORT void t_index(const rf_real *a, int64_t *wide, int32_t *narrow, int64_t n) {
  LOOP { M m = tail(n - i); VI x = v_to_vi(ldm_real(m, a + i)) + vi_iota(); stmi_i64(m, wide + i, x); stmi_i32(m, narrow + i, x); }
}
RF_EXPORT void t_fma(const rf_real *a, rf_real *o) { st_real(o, v_fma(ld_real(a), ld_real(a + LANES), ld_real(a + 2 * LANES))); }
"""  # noqa: E501
ORDER = ["scalar", "neon"] if cpu().isa == "neon" else ["scalar", "generic", "avx2", "avx512"]
ISAS = ORDER[: ORDER.index(cpu().isa) + 1]


class Prelude:
    """The harness built for one instruction set and compute type, called on arrays."""

    def __init__(self, isa: str, dtype: str) -> None:
        text = [f'#define RF_REAL {"float" if dtype == "float32" else "double"}\n#include "prelude.h"', HARNESS]
        for kind, names in (("UNARY", UNARY), ("BINARY", BINARY), ("COMPARE", COMPARE), ("DTYPE", list(TAGS))):
            text += [f"{kind}({n})" for n in names]
        self.lib = compiler.load("\n".join(text), cpu(isa))
        self.isa, self.dtype = isa, np.dtype(dtype)
        self.real = ctypes.c_float if dtype == "float32" else ctypes.c_double
        self.lanes = self.lib.t_lanes()

    def __call__(self, name: str, *args, out=None):
        """The elementwise function `name`; args of the compute type."""
        arrays = [np.ascontiguousarray(a, self.dtype) for a in args]
        out = np.full(arrays[0].shape, 77, self.dtype if out is None else out)
        getattr(self.lib, "t_" + name)(*(a.ctypes.data_as(ctypes.c_void_p) for a in (*arrays, out)), ctypes.c_int64(out.size))
        return out

    def fold(self, name: str, a):
        f = getattr(self.lib, "t_" + name)
        f.restype = self.real
        return f(np.ascontiguousarray(a, self.dtype).ctypes.data_as(ctypes.c_void_p))


@cache
def prelude(isa: str, dtype: str) -> Prelude:
    return Prelude(isa, dtype)


@pytest.fixture(params=[(i, d) for i in ISAS for d in ("float32", "float64")], ids="-".join)
def p(request) -> Prelude:
    return prelude(*request.param)


def pointer(a: np.ndarray, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(a.ctypes.data + offset)


def ulp(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units in the last place of `got`'s type; want has more digits. Infinities must agree."""
    info = np.finfo(got.dtype)
    rounded = want.astype(got.dtype)
    unit = np.maximum(np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, info.max))), info.smallest_subnormal)
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(want.dtype) - want) / unit.astype(want.dtype)
    return np.where(got == rounded, np.minimum(np.nan_to_num(error, nan=0, posinf=0), 0.5), error)


erf = np.vectorize(math.erf, otypes=[np.float64])
REFERENCE = {
    "v_exp": np.exp, "v_expz": np.exp, "v_exp2": np.exp2, "v_exp2z": np.exp2, "v_expm1": np.expm1, "v_log": np.log, "v_log2": np.log2,
    "v_log1p": np.log1p, "v_tanh": np.tanh, "v_erf": lambda x: erf(x.astype(np.float64)).astype(x.dtype), "v_sin": np.sin, "v_cos": np.cos,
    "v_sqrt": np.sqrt, "v_rsqrt": lambda x: 1 / np.sqrt(x), "v_recip": lambda x: 1 / x,
}  # fmt: skip
# stated in prelude_math.h; without FMA the reduced argument carries one more rounding
BOUND = {
    "v_exp": 1.5, "v_exp2": 1.5, "v_expz": 1.5, "v_exp2z": 1.5, "v_expm1": 2.5, "v_log": 1.5, "v_log2": 2.5, "v_log1p": 2.5, "v_tanh": 3.5,
    "v_erf": 2.5, "v_sin": 2.5, "v_cos": 2.5, "v_sqrt": 0.501, "v_rsqrt": 1.6, "v_recip": 0.501,
}  # fmt: skip
RANGE = {
    "v_exp": (-104, 89, -746, 710), "v_expz": (-86, 0, -707, 0), "v_exp2": (-150, 128.5, -1075, 1024.5),
    "v_exp2z": (-125, 0, -1020, 0),
    "v_expm1": (-40, 89, -60, 710), "v_tanh": (-12, 12, -24, 24), "v_erf": (-5, 5, -7, 7), "v_sin": (-9000, 9000, -2e6, 2e6),
    "v_cos": (-9000, 9000, -2e6, 2e6),
}  # fmt: skip


def arguments(name: str, dtype: np.dtype, rng: np.random.Generator, n: int) -> np.ndarray:
    """Dense and random arguments over the whole range of a function, and every magnitude."""
    info = np.finfo(dtype)
    exponents = rng.uniform(math.log2(info.smallest_subnormal), info.maxexp, n)
    sign = np.where(rng.random(n) < 0.5, -1, 1)
    every = np.exp2(np.minimum(exponents.astype(np.longdouble), info.maxexp - 1e-9)).astype(dtype)
    near_one = 1 + rng.uniform(-0.6, 1.5, n) * np.exp2(rng.uniform(-20, 0, n))
    if name in ("v_log", "v_log2", "v_sqrt", "v_rsqrt"):
        return np.concatenate([every, near_one.astype(dtype), rng.uniform(0, 10, n).astype(dtype)])
    if name == "v_log1p":
        return np.concatenate([every, (near_one - 1).clip(-0.9999).astype(dtype), -rng.random(n).astype(dtype) * dtype.type(0.999)])
    if name not in RANGE:
        return every * sign
    lo, hi = RANGE[name][:2] if dtype == np.float32 else RANGE[name][2:]
    small = every[(every < hi)] * dtype.type(1)
    small = np.concatenate([small, -small[small < -lo]])
    return np.concatenate(
        [np.linspace(lo, hi, n, dtype=dtype), rng.uniform(lo, hi, n).astype(dtype), small, rng.uniform(-2, 2, n).astype(dtype)]
    )


@pytest.mark.parametrize("name", REFERENCE)
def test_accuracy(p: Prelude, name: str) -> None:
    if p.dtype == np.float64 and np.finfo(np.longdouble).nmant < 60:
        pytest.skip("no wider floating-point type to compare with on this platform")
    n = 20_000 if name == "v_erf" else 100_000
    x = arguments(name, p.dtype, np.random.default_rng(zlib.crc32(name.encode())), n)
    wide = np.float64 if p.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        got, want = p(name, x), REFERENCE[name](x.astype(wide))
    error = ulp(got, want)
    if name in ("v_expz", "v_exp2z"):
        low = want < 2 * np.finfo(p.dtype).smallest_normal
        assert (got[low] <= 4 * np.finfo(p.dtype).smallest_normal).all()
        error[low] = 0
    bound = BOUND[name] + (0.5 if name == "v_erf" and p.dtype == np.float64 else 0)  # the reference itself is a float64
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{error[worst]} ulp at {x[worst]!r}: {got[worst]!r}, want {want[worst]!r}"


# pairs of argument and result: a dictionary would take 0 and -0.0 for one
SPECIAL = {
    "v_exp": [(-np.inf, 0), (np.inf, np.inf), (np.nan, np.nan), (0, 1), (-0.0, 1), (1e4, np.inf), (-1e4, 0)],
    "v_expz": [(-np.inf, 0), (np.nan, np.nan), (0, 1), (-1e4, 0)],
    "v_exp2": [(-np.inf, 0), (np.inf, np.inf), (np.nan, np.nan), (3, 8), (-2, 0.25), (2e3, np.inf), (-2e3, 0)],
    "v_exp2z": [(-np.inf, 0), (np.nan, np.nan), (0, 1), (-2, 0.25), (-2e3, 0)],
    "v_expm1": [(-np.inf, -1), (np.inf, np.inf), (np.nan, np.nan), (0, 0), (-0.0, -0.0), (1e4, np.inf), (-1e4, -1)],
    "v_log": [(0, -np.inf), (-0.0, -np.inf), (-1, np.nan), (-np.inf, np.nan), (np.inf, np.inf), (np.nan, np.nan), (1, 0)],
    "v_log2": [(0, -np.inf), (-1, np.nan), (np.inf, np.inf), (np.nan, np.nan), (1, 0), (8, 3), (0.125, -3)],
    "v_log1p": [(-1, -np.inf), (-2, np.nan), (np.inf, np.inf), (np.nan, np.nan), (0, 0), (-0.0, -0.0), (-np.inf, np.nan)],
    "v_tanh": [(-np.inf, -1), (np.inf, 1), (np.nan, np.nan), (0, 0), (-0.0, -0.0)],
    "v_erf": [(-np.inf, -1), (np.inf, 1), (np.nan, np.nan), (0, 0), (-0.0, -0.0)],
    "v_sin": [(-np.inf, np.nan), (np.inf, np.nan), (np.nan, np.nan), (0, 0), (-0.0, -0.0)],
    "v_cos": [(-np.inf, np.nan), (np.inf, np.nan), (np.nan, np.nan), (0, 1)],
    "v_sqrt": [(-1, np.nan), (np.inf, np.inf), (np.nan, np.nan), (0, 0), (-0.0, -0.0)],
    "v_rsqrt": [(0, np.inf), (-0.0, -np.inf), (np.inf, 0), (-1, np.nan)],
    "v_recip": [(0, np.inf), (-0.0, -np.inf), (np.inf, 0), (-np.inf, -0.0)],
    "v_floor": [(-0.5, -1), (2.5, 2), (-np.inf, -np.inf), (np.nan, np.nan), (1e30, 1e30)],
    "v_ceil": [(-0.5, -0.0), (2.5, 3), (np.inf, np.inf), (np.nan, np.nan)],
    "v_round": [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, -0.0), (-1.5, -2), (np.inf, np.inf), (np.nan, np.nan), (1e30, 1e30)],
    "v_abs": [(-0.0, 0), (-np.inf, np.inf), (np.nan, np.nan)],
    "v_sign": [(-3, -1), (0, 0), (5, 1), (np.nan, np.nan), (np.inf, 1)],
}


@pytest.mark.parametrize("name", UNARY)
def test_special_values(p: Prelude, name: str) -> None:
    x, want = np.array(SPECIAL[name], p.dtype).T
    for shift in range(p.lanes):  # each value in each lane, among others that must not disturb it
        fill = np.ones(shift, p.dtype)
        got = p(name, np.concatenate([fill, x]))[shift:]
        np.testing.assert_array_equal(got, want)
        kept = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(want[kept]))


@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary(p: Prelude, name: str) -> None:
    """Every pair of values that matter, against NumPy."""
    some = [0.0, -0.0, 1, -1, 2, 3.5, -3.5, 0.5, 7, -7, 1e30, np.inf, -np.inf, np.nan]
    rng = np.random.default_rng(1)
    a, b = (x.ravel().astype(p.dtype) for x in np.meshgrid(some, some))
    a = np.concatenate([a, rng.normal(size=501).astype(p.dtype) * 10])
    b = np.concatenate([b, rng.normal(size=501).astype(p.dtype)])
    numpy = {
        "v_maximum": np.maximum, "v_minimum": np.minimum, "v_max_raw": np.maximum, "v_min_raw": np.minimum, "v_power": np.power,
        "v_floor_divide": np.floor_divide, "v_remainder": np.remainder, "v_copysign": np.copysign, "m_lt": np.less, "m_le": np.less_equal,
        "m_gt": np.greater, "m_ge": np.greater_equal, "m_eq": np.equal, "m_ne": np.not_equal,
    }[name]  # fmt: skip
    with np.errstate(all="ignore"):
        want = numpy(a, b)
    got = p(name, a, b, out=np.uint8 if name in COMPARE else None)
    if name == "v_power":
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(p.dtype).eps)
        return
    if name.endswith("_raw"):
        keep = ~np.isnan(a) & ~np.isnan(b)
        assert (np.isnan(got) | (got == np.nan_to_num(a, nan=0)) | (got == b))[~keep].all()
        assert np.isnan(got[np.isnan(b)]).all()
        a, b, got, want = a[keep], b[keep], got[keep], want[keep]
    np.testing.assert_array_equal(got, want)


def test_folds_and_transpose(p: Prelude) -> None:
    rng = np.random.default_rng(2)
    n = p.lanes
    for _ in range(20):
        x = rng.integers(-4, 5, n).astype(p.dtype)
        assert p.fold("h_sum", x) == x.sum() and p.fold("h_prod", x) == x.prod()
        assert p.fold("h_max", x) == x.max() and p.fold("h_min", x) == x.min()
        value = p.real(float(x[-1]))
        assert p.lib.t_first(pointer(x), value) == np.flatnonzero(x == x[-1])[0]
        assert p.lib.t_argfirst(pointer(x), value) == 100 + np.flatnonzero(x == x[-1])[0]
        x[rng.integers(n)] = np.nan
        assert math.isnan(p.fold("h_max", x)) and math.isnan(p.fold("h_min", x)) and math.isnan(p.fold("h_sum", x))
        assert p.lib.t_first(pointer(x), p.real(99)) == -1
    square = rng.normal(size=(n, n)).astype(p.dtype)
    out = np.full_like(square, np.nan)
    p.lib.t_transpose(pointer(square), pointer(out))
    np.testing.assert_array_equal(out, square.T)


def test_lanes_moved_to_the_front(p: Prelude) -> None:
    x = np.arange(p.lanes).astype(p.dtype)
    for bits in range(1 << p.lanes) if p.lanes <= 8 else [0, (1 << p.lanes) - 1, *np.random.default_rng(3).integers(0, 1 << p.lanes, 500)]:
        out = np.full(2 * p.lanes, -1, p.dtype)
        p.lib.t_front(pointer(x), ctypes.c_uint32(int(bits)), pointer(out))
        chosen = [lane for lane in range(p.lanes) if int(bits) >> lane & 1]
        assert list(out[: len(chosen)]) == chosen and (out[p.lanes :] == -1).all()


def test_masks(p: Prelude) -> None:
    every = (1 << p.lanes) - 1
    for n in (-5, 0, 1, p.lanes - 1, p.lanes, p.lanes + 1, 1 << 40):
        bits = (1 << max(0, min(n, p.lanes))) - 1
        out = np.zeros(10, np.int32)
        p.lib.t_masks(ctypes.c_int64(n), pointer(out))
        assert list(out) == [bits, bits != 0, bits == every, every ^ bits, bits, bits, every ^ bits, bits, bits, bits]


def test_index_lanes(p: Prelude) -> None:
    for n in (1, 5, 3 * p.lanes + 1):
        x = np.arange(n).astype(p.dtype) * 100 + p.dtype.type(0.7)
        wide, narrow = np.full(n + 2, -9, np.int64), np.full(n + 2, -9, np.int32)
        p.lib.t_index(pointer(x), pointer(wide), pointer(narrow), ctypes.c_int64(n))
        want = np.append(x.astype(np.int64) + np.arange(n) % p.lanes, [-9, -9])
        np.testing.assert_array_equal(wide, want)
        np.testing.assert_array_equal(narrow, want)


def test_fma_is_fused_where_the_machine_has_it(p: Prelude) -> None:
    e = np.finfo(p.dtype).eps
    a = np.concatenate([np.full(p.lanes, 1 + e), np.full(p.lanes, 1 - e), np.full(p.lanes, -1)]).astype(p.dtype)
    out = np.zeros(p.lanes, p.dtype)
    p.lib.t_fma(pointer(a), pointer(out))
    fused = p.isa in ("avx2", "avx512", "neon")
    assert (out == (-(p.dtype.type(e) ** 2) if fused else 0)).all()


def values_of(tag: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """Values of a dtype: every bit pattern where there are few, with NaN and infinities; else random ones."""
    dtype = np.dtype(TAGS[tag])
    if tag == "b8":
        return rng.random(n) < 0.5
    if dtype.itemsize <= 2:
        every = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
        return every
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.concatenate([[info.min, info.max, 0, 1], rng.integers(info.min, info.max, n, dtype, endpoint=True)]).astype(dtype)
    return np.concatenate([rng.normal(size=n), [np.nan, np.inf, -np.inf, 0, -0.0, np.finfo(dtype).smallest_subnormal]]).astype(dtype)


@pytest.mark.parametrize("tag", TAGS)
def test_loads_convert(p: Prelude, tag: str) -> None:
    a = values_of(tag, np.random.default_rng(3), 301)
    with np.errstate(all="ignore"):
        want = a.astype(p.dtype)
    for stride in (1, 3, -2, 0):
        n = a.size if stride == 1 else 61
        at = (np.arange(n) * stride) if stride >= 0 else (np.arange(n) * stride + 2 * n)
        out = np.full(n + p.lanes, -77, p.dtype)
        start = pointer(a, int(at[0]) * a.itemsize)
        getattr(p.lib, f"load_{tag}")(start, ctypes.c_int64(stride), pointer(out), ctypes.c_int64(n))
        np.testing.assert_array_equal(out[:n], want[at])
        assert (out[n : -(-n // p.lanes) * p.lanes] == 0).all()  # lanes that the mask leaves out read as 0
    out = np.full(a.size, -77, p.dtype)
    getattr(p.lib, f"get_{tag}_")(pointer(a), pointer(out), ctypes.c_int64(a.size))
    np.testing.assert_array_equal(out, want)


def narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """x rounded once to the dtype. ml_dtypes goes from float64 over float32, so halfway cases are decided here."""
    with np.errstate(all="ignore"):
        y = x.astype(dtype)
        if x.dtype != np.float64 or dtype.itemsize > 2 or dtype == np.float16:
            return y
        f = x.astype(np.float32)
        toward_zero = np.where(np.abs(f.astype(np.float64)) > np.abs(x), np.nextafter(f, np.float32(0)), f)
        odd = (toward_zero.view(np.uint32) | (toward_zero.astype(np.float64) != x)).view(np.float32)
        return np.where(np.isfinite(x), odd, f).astype(dtype)


def floats_for(tag: str, p: Prelude, rng: np.random.Generator) -> np.ndarray:
    """Numbers whose rounding to the dtype is interesting: its values, points halfway and just beside, and random ones."""
    dtype = np.dtype(TAGS[tag])
    if tag == "b8":
        return np.array([0, -0.0, 1, 2, -3, 0.25, np.nan, np.inf, 1e-40] * 5, p.dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = max(info.min, -(2**31)), min(info.max, 2**31)
        return np.concatenate([rng.uniform(low, high * 0.99, 400), [0.5, 0.99, 3.0, max(low, -0.75)]]).astype(p.dtype)
    values = values_of(tag, rng, 300).astype(np.float64)
    values = np.sort(values[np.isfinite(values)])
    middle = (values[1:] + values[:-1]) / 2
    beside = np.concatenate([np.nextafter(middle.astype(p.dtype), p.dtype.type(w)) for w in (-np.inf, np.inf)])
    top = float(ml_dtypes.finfo(dtype).max)
    with np.errstate(over="ignore"):
        edge = np.array([top, top * 1.03, top * 1.07, top * 1.3, top * 2, 1e30, np.inf, np.nan])
        return np.concatenate([values, middle, edge, -edge, rng.normal(size=300), rng.normal(size=50) * 1e-6]).astype(
            p.dtype
        ).tolist() + list(beside)


@pytest.mark.parametrize("tag", TAGS)
def test_stores_convert(p: Prelude, tag: str) -> None:
    rng = np.random.default_rng(4)
    dtype = np.dtype(TAGS[tag])
    x = np.array(floats_for(tag, p, rng), p.dtype)
    want = (x != 0) if tag == "b8" else narrow(x, dtype)
    for stride in (1, 2, -1):
        n = x.size
        room = np.full(n * abs(stride) + 2 * p.lanes, 1, np.uint8).astype(dtype)
        before = room.copy()
        at = p.lanes + np.arange(n) * stride + (n if stride < 0 else 0)
        getattr(p.lib, f"store_{tag}")(pointer(x), pointer(room, int(at[0]) * room.itemsize), ctypes.c_int64(stride), ctypes.c_int64(n))
        np.testing.assert_array_equal(room[at].astype(np.float64), want.astype(np.float64))
        if dtype.kind != "b":
            np.testing.assert_array_equal(np.signbit(room[at].astype(np.float64)), np.signbit(want.astype(np.float64)))
        rest = np.ones(room.size, bool)
        rest[at] = False
        np.testing.assert_array_equal(room[rest].view(np.uint8), before[rest].view(np.uint8))
    one = np.zeros(n, dtype)
    getattr(p.lib, f"put_{tag}_")(pointer(x), pointer(one), ctypes.c_int64(n))
    np.testing.assert_array_equal(one.astype(np.float64), want.astype(np.float64))
    back = np.full(n, -77, p.dtype)
    getattr(p.lib, f"round_{tag}_")(pointer(x), pointer(back), ctypes.c_int64(n))
    np.testing.assert_array_equal(back, want.astype(p.dtype))


@pytest.mark.skipif(not hasattr(mmap, "PROT_READ"), reason="needs memory pages that cannot be touched")
@pytest.mark.parametrize("tag", TAGS)
def test_nothing_past_the_end_is_touched(p: Prelude, tag: str) -> None:
    """Arrays that end where a forbidden page begins, and that begin where one ends."""
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 3 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None)
    for at in (0, 2 * page):
        assert libc.mprotect(ctypes.c_void_p(base + at), ctypes.c_size_t(page), 0) == 0
    size = np.dtype(TAGS[tag]).itemsize
    x = np.ones(4 * p.lanes, p.dtype)
    out = np.zeros(4 * p.lanes, p.dtype)
    for n in range(1, 2 * p.lanes + 2):
        end = ctypes.c_void_p(base + 2 * page - n * size)
        getattr(p.lib, f"store_{tag}")(pointer(x), end, ctypes.c_int64(1), ctypes.c_int64(n))
        getattr(p.lib, f"load_{tag}")(end, ctypes.c_int64(1), pointer(out), ctypes.c_int64(n))
        assert (out[:n] == 1).all()
        last = ctypes.c_void_p(base + page + (n - 1) * size)  # backwards to the first byte
        getattr(p.lib, f"store_{tag}")(pointer(x), last, ctypes.c_int64(-1), ctypes.c_int64(n))
        getattr(p.lib, f"load_{tag}")(last, ctypes.c_int64(-1), pointer(out), ctypes.c_int64(n))
        assert (out[:n] == 1).all()
    for at in (0, 2 * page):
        libc.mprotect(ctypes.c_void_p(base + at), ctypes.c_size_t(page), 3)


CROSS = {
    "avx512": ["-target", "x86_64-linux-gnu", "-march=x86_64_v4"],
    "avx512, bf16": ["-target", "x86_64-linux-gnu", "-march=sapphirerapids"],
    "avx2, vnni": ["-target", "x86_64-linux-gnu", "-march=alderlake"],
    "avx2": ["-target", "x86_64-linux-gnu", "-march=x86_64_v3"],
    "sse2": ["-target", "x86_64-linux-gnu", "-march=x86_64"],
    "neon": ["-target", "aarch64-linux-gnu"],
    "macos": ["-target", "aarch64-macos"],
    "windows": ["-target", "x86_64-windows-gnu", "-march=x86_64_v3"],
}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the ziglang wheel")
@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize("target", CROSS)
def test_compiles_for_other_targets(tmp_path, target: str, real: str) -> None:
    calls = [f"{k}({n})" for k, names in (("UNARY", UNARY), ("BINARY", BINARY), ("COMPARE", COMPARE), ("DTYPE", TAGS)) for n in names]
    lines = ["int x; void rf_asm(V v) { IN_REGISTER(v); }"]
    (tmp_path / "k.c").write_text("\n".join([f'#define RF_REAL {real}\n#include "prelude.h"', HARNESS, *calls, *lines]))
    command = [sys.executable, "-m", "ziglang", "cc", *CROSS[target], *compiler.COMMON_FLAGS, "-Wall", "-Wextra", "-Werror"]
    for source in ("k.c", str(compiler.SOURCES / "pool.c")):
        done = subprocess.run([*command, f"-I{compiler.SOURCES}", "-c", source, "-o", "k.o"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_mistake_is_reported_with_the_compilers_words() -> None:
    with pytest.raises(BackendError, match="no_such_function"):
        compiler.load('#define RF_REAL float\n#include "prelude.h"\nRF_EXPORT V f(void) { return no_such_function(3) }')
