"""CUDA primitives that read and write elements of every dtype, and that fold over groups of lanes, against NumPy."""

from __future__ import annotations

from typing import Any

import emulator
import ml_dtypes
import numpy as np
import pytest

from redfuser_eq.codegen.cuda_expr import TYPES
from redfuser_eq.codegen.dtypes import DTYPES
from redfuser_eq.codegen.primitives import paste

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulator import Module, Schedule

RNG = np.random.default_rng(3)
NUMPY = {tag: np.dtype(getattr(ml_dtypes, name, name)) for name, tag in DTYPES.items()}
WIDE = {"float": np.float32, "double": np.float64}
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 464.0, 465.0, 61439.0, 61441.0, 2.0**-9, 3 * 2.0**-18, 1e9, -1e9, 0.5]


def launch(body: str, args: list[Any], threads: int, real: str = "float") -> None:
    """Run the body of a kernel `k(params) { ... }` with the primitives it names."""
    source = f'{paste(body)}typedef {real} real;\nextern "C" __global__ void k{body}'
    Module(source, "sm_80").kernel("k").launch((1,), (threads,), 0, args, Schedule("pct", seed=1))


def stored(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As the emulator takes it: element types that NumPy's ctypes do not know become their bits."""
    return a.view(np.uint8) if a.dtype.itemsize == 1 else a.view(np.uint16) if a.dtype.itemsize == 2 else a


@pytest.mark.parametrize("name", sorted(TYPES))
def test_elements_are_read_rounded_and_written(name: str) -> None:
    d, kind = NUMPY[name], TYPES[name]
    real, wide = ("double", np.float64) if d.itemsize > 4 or name in ("i32", "u32") else ("float", np.float32)
    exact = d.kind in "iub"
    x = RNG.integers(0 if d.kind in "ub" else -90, 2 if d.kind == "b" else 90, 128).astype(wide) if exact else None
    if x is None:
        x = (RNG.standard_normal(112) * np.exp(RNG.uniform(-9, 9, 112))).astype(wide)
        x = np.concatenate([x, np.array(SPECIAL, wide)])
    with np.errstate(all="ignore"):
        want = x.astype(d)
    out, read, rounded = np.zeros(128, d), np.zeros(128, wide), np.full(128, 7, wide)
    rounds = f"z[t] = round_{name}(x[t]);" if name != "b8" else "z[t] = x[t];"
    body = (
        f"(const real *x, {kind} *o, real *y, real *z) {{ const int t = threadIdx.x; put_{name}(o + t, x[t]); "
        f"y[t] = (real)get_{name}(o + t); {rounds} }}"
    )
    launch(body, [x, out_bits := stored(out), read, rounded], 128, real)
    got = out_bits.view(d)
    np.testing.assert_array_equal(got.astype(wide), want.astype(wide))
    np.testing.assert_array_equal(read, want.astype(wide))
    np.testing.assert_array_equal(rounded, want.astype(wide))


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_sixteen_bytes_at_a_time(name: str) -> None:
    d, kind, wide = NUMPY[name], TYPES[name], np.float64 if name == "f64" else np.float32
    n = 2 * 16 // d.itemsize
    x = RNG.standard_normal(32 * n).astype(d)
    y = np.zeros(32 * n, d)
    body = (
        f"(const {kind} *x, {kind} *y) {{ real v[{n}]; chunk_{name}<{n}>(v, x + threadIdx.x * {n}); "
        f"for (int i = 0; i < {n}; i++) v[i] = 2 * v[i]; spill_{name}<{n}>(y + threadIdx.x * {n}, v); }}"
    )
    launch(body, [stored(x), bits := stored(y), *()], 32, "double" if name == "f64" else "float")
    np.testing.assert_array_equal(bits.view(d).astype(wide), 2 * x.astype(wide))


def test_chunks_of_bytes() -> None:
    x = RNG.standard_normal(512).astype(NUMPY["e4m3"])
    y = np.zeros(512, np.float32)
    launch("(const u8 *x, float *y) { chunk_e4m3<16>(y + threadIdx.x * 16, x + threadIdx.x * 16); }", [stored(x), y], 32)
    np.testing.assert_array_equal(y, x.astype(np.float32))


def test_spills_of_bytes() -> None:
    x, y, z = (np.linspace(-500, 500, 256)).astype(np.float32), np.zeros(256, NUMPY["e4m3"]), np.zeros(256, np.int8)
    whole = RNG.integers(-128, 128, 256).astype(np.float32)
    body = """(const float *x, const float *whole, u8 *y, signed char *z) { const int at = threadIdx.x * 8;
      spill_e4m3<8>(y + at, x + at); spill_i8<8>(z + at, whole + at); }"""
    launch(body, [x, whole, bits := stored(y), z], 32)
    np.testing.assert_array_equal(bits.view(NUMPY["e4m3"]).astype(np.float32), x.astype(NUMPY["e4m3"]).astype(np.float32))
    np.testing.assert_array_equal(z, whole)


@pytest.mark.parametrize("real", ["float", "double"])
@np.errstate(all="ignore")
def test_scalars(real: str) -> None:
    wide = np.float32 if real == "float" else np.float64
    a = np.concatenate([RNG.standard_normal(112), SPECIAL]).astype(wide)
    b = np.concatenate([SPECIAL, RNG.standard_normal(112)]).astype(wide)
    out = np.zeros((7, 128), wide)
    body = """(const real *a, const real *b, real *y) { const int t = threadIdx.x; const real x = a[t], z = b[t];
    y[t] = times(x, z); y[128 + t] = maximum(x, z); y[256 + t] = minimum(x, z); y[384 + t] = settle(x); y[512 + t] = sign_of(x);
    y[640 + t] = remainder_of(x, z); y[768 + t] = finite(x); }"""
    launch(body, [a, b, out], 128, real)
    for got, want in zip(out[:5], (a * b, np.maximum(a, b), np.minimum(a, b), np.where(np.isinf(a), 0, a), np.sign(a)), strict=True):
        np.testing.assert_array_equal(got, want)
    whole = np.isfinite(a) & np.isfinite(b) & (np.abs(b) > 0)
    np.testing.assert_allclose(out[5][whole], np.remainder(a, b)[whole], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out[6], np.isfinite(a))


@pytest.mark.parametrize("width", [2, 8, 32])
@pytest.mark.parametrize("real", ["float", "double"])
def test_folds_over_groups(real: str, width: int) -> None:
    wide = np.float32 if real == "float" else np.float64
    x = RNG.integers(-3, 4, 32).astype(wide)
    out = np.zeros((7, 32), wide)
    body = f"""(const real *x, real *y) {{ const int t = threadIdx.x; real v = x[t], at = t, w = x[t], w_at = t;
    y[t] = group_sum<{width}>(x[t]); y[32 + t] = group_prod<{width}>(x[t]); y[64 + t] = group_max<{width}>(x[t]);
    y[96 + t] = group_min<{width}>(x[t]); group_best<{width}, 1>(v, at); y[128 + t] = at; group_best<{width}, -1>(w, w_at);
    y[160 + t] = w_at; y[192 + t] = exchange(x[t], 1); }}"""
    launch(body, [x, out], 32, real)
    groups = x.reshape(-1, width)
    first = np.arange(0, 32, width)
    wanted = [groups.sum(1), groups.prod(1), groups.max(1), groups.min(1), groups.argmax(1) + first, groups.argmin(1) + first]
    for got, want in zip(out, wanted, strict=False):
        np.testing.assert_array_equal(got.reshape(-1, width), np.repeat(want, width).reshape(-1, width))
    np.testing.assert_array_equal(out[6], x.reshape(-1, 2)[:, ::-1].reshape(-1))


def test_lists_of_the_best() -> None:
    """Two candidates a lane, with ties and a NaN; the first comes first."""
    x = RNG.integers(0, 6, 64).astype(np.float32)
    x[37] = np.nan
    out = np.zeros((2, 32, 3), np.float32)
    body = """(const real *x, real *y) { const int t = threadIdx.x; real best[3], at[3];
    for (int i = 0; i < 3; i++) best[i] = -INF, at[i] = -1;
    insert<3, 1>(best, at, x[32 + t], (real)(32 + t)); insert<3, 1>(best, at, x[t], (real)t);
    group_list<32, 3, 1>(best, at);
    for (int i = 0; i < 3; i++) y[t * 3 + i] = best[i], y[96 + t * 3 + i] = at[i]; }"""
    launch(body, [x, out], 32)
    order = np.argsort(-np.nan_to_num(x, nan=99), kind="stable")[:3]
    assert order[0] == 37 and np.all(out[1] == order)
    np.testing.assert_array_equal(out[0], np.broadcast_to(x[order], (32, 3)))


def test_an_item_is_split_in_either_width() -> None:
    item, n = np.array([17, 1 << 40, (1 << 33) + 5, 0, 4294967295, 7], np.int64), np.array([5, 3, 1 << 33, 9, 10, 1 << 34], np.int64)
    out = np.zeros((2, 6), np.int64)
    body = "(const i64 *item, const i64 *n, i64 *y) { const int t = threadIdx.x; i64 i = item[t]; y[6 + t] = split(i, n[t]); y[t] = i; }"
    launch(body, [item, n, out], 6)
    assert np.array_equal(out[0], item // n) and np.array_equal(out[1], item % n)


@np.errstate(all="ignore")
def test_quotients_are_rounded_to_nearest() -> None:
    special = np.array([0, 1, -1, np.inf, -np.inf, np.nan, 3e38, -3e-38, 2.0**100, 2.0**-100, 2.0**64, 7], np.float32)
    a, b = (RNG.standard_normal((2, 512)) * np.exp(RNG.uniform(-30, 30, (2, 512)))).astype(np.float32)
    a[:144], b[:144] = np.repeat(special, 12), np.tile(special, 12)
    out = np.zeros(512, np.float32)
    launch(
        "(const float *a, const float *b, float *y) { const int t = threadIdx.x; y[t] = divide(a[t], divisor(b[t])); }", [a, b, out], 512
    )
    want = a / b
    tiny = np.abs(want) < 2.0**-124  # results near the subnormal numbers, which are flushed
    np.testing.assert_array_equal(out[~tiny], want[~tiny])
    assert np.all(np.abs(out[tiny]) < 2.0**-124)
    x, by, wide = RNG.standard_normal(32), RNG.standard_normal(32), np.zeros(32)
    launch("(const double *a, const double *b, double *y) { y[threadIdx.x] = divide(a[threadIdx.x], divisor(b[threadIdx.x])); }",
           [x, by, wide], 32)  # fmt: skip
    np.testing.assert_array_equal(wide, x / by)


@pytest.mark.parametrize("real", ["float", "double"])
def test_shared_memory_sixteen_bytes_at_a_time(real: str) -> None:
    n = 4 if real == "float" else 2
    x, y = RNG.standard_normal(32 * n).astype(WIDE[real]), np.zeros(32 * n, WIDE[real])
    body = f"""(const real *x, real *y) {{ __shared__ __align__(16) real s[{32 * n}]; const int t = threadIdx.x;
    for (int i = 0; i < {n}; i++) s[t * {n} + i] = x[t * {n} + i];
    __syncthreads(); real v[{n}]; shared16(v, s + (31 - t) * {n}); for (int i = 0; i < {n}; i++) y[t * {n} + i] = v[i]; }}"""
    launch(body, [x, y], 32, real)
    np.testing.assert_array_equal(y.reshape(32, n), x.reshape(32, n)[::-1])
