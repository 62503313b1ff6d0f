"""Products of small numbers in pairs: integers exactly as int64 has them, bfloat16 as its instruction is defined."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native import run
from numpy.typing import DTypeLike

import redfuser_eq as rf
from redfuser_eq.pairs import BOUNDS, integer_most
from redfuser_eq.runtime import compiler
from redfuser_eq.runtime.device import Device, cpu

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
Array = np.ndarray[Any, Any]
OWN = cpu()
BF16 = replace(OWN, pairs=("i16", "bf16"))
RNG = np.random.default_rng


def call(f: Callable[..., Any], arrays: list[Array], pairs: str, device: Device = OWN, **options: Any) -> Array:
    """f through C. Its products must be taken in pairs of the dtype `pairs`, "" for none."""
    bound = rf.optimize(f, target="numpy")._bind(tuple(arrays), {})
    out = run(bound.plan.cascade, bound.inputs(list(arrays)), bound.extents, device, **options)
    assert {b.dtype for b in out.kernel.buffers} - {""} == ({pairs} if pairs else set())
    assert not out.flags.any()
    return out.outputs[0]


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DTypeLike, extreme: bool = False) -> Array:
    if np.dtype(dtype) == bool:
        return rng.random(shape) < 0.5
    info = np.iinfo(dtype)
    if extreme:
        return np.full(shape, info.min if info.min else info.max, dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype)


def matmul32(a: Any, b: Any) -> Any:
    return np.matmul(a, b, dtype=np.int32)


def matmul_float(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32)


# ---- products with columns
SHAPES = [(1, 1, 1), (1, 5, 1), (2, 2, 2), (2, 0, 3), (0, 5, 2), (4, 3, 0), (5, 1, 7), (7, 255, 17), (13, 257, 33), (110, 515, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["kn", "nk", "transposed", "strided"])
def test_integer_product_is_exact(shape: tuple[int, int, int], layout: str) -> None:
    m, k, n = shape
    rng = RNG(m + k)
    a, b = integers(rng, (m, k), np.int8), integers(rng, (k, n), np.int8)
    if layout == "nk":
        b = np.ascontiguousarray(b.T).T
    if layout == "transposed":
        a = np.ascontiguousarray(a.T).T
    if layout == "strided":
        a, b = np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3], np.repeat(np.repeat(b, 3, 0), 2, 1)[::3, ::2]
    want = a.astype(np.int64) @ b.astype(np.int64)
    if min(shape) < 2:  # no matrix product
        assert np.array_equal(rf.optimize(matmul32, target="cpu")(a, b), want)
        return
    for device in (OWN, cpu("scalar")) if k == 257 else (OWN,):
        assert np.array_equal(call(matmul32, [a, b], "i16", device).reshape(m, n), want)
        assert np.array_equal(call(matmul_float, [a, b], "i16", device).reshape(m, n), want)  # below 2^24


@pytest.mark.parametrize("left", ["int8", "uint8", "bool", "int16"])
@pytest.mark.parametrize("right", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("extreme", [False, True])
def test_every_small_integer(left: str, right: str, extreme: bool) -> None:
    rng = RNG(3)
    a, b = integers(rng, (9, 2051), left, extreme), integers(rng, (2051, 35), right, extreme)
    want = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(call(lambda a, b: np.matmul(a, b, dtype=np.int64), [a, b], "i16"), want)
    close = call(matmul_float, [a, b], "i16")
    assert np.all(np.abs(close - want) <= 2e-7 * np.abs(want).max(initial=1))


@pytest.mark.parametrize("device", [OWN, cpu("scalar"), cpu("generic")] if OWN.isa != "neon" else [OWN, cpu("scalar")], ids=lambda d: d.isa)
@pytest.mark.parametrize("depth", [16, 250])
def test_short_tiles_and_segments(device: Device, depth: int) -> None:
    rng = RNG(5)
    a, b = integers(rng, (3, 1001), np.int8), integers(rng, (1001, 70), np.uint8)
    want = a.astype(np.int64) @ b.astype(np.int64)
    f = lambda a, b: np.matmul(a.astype(np.int32), b.astype(np.int32))  # noqa: E731
    for choice in ({"depth": depth}, {"depth": depth, "segment": 2 * depth}):
        assert np.array_equal(call(f, [a, b], "i16", device, choice=choice), want)


def test_batches() -> None:
    rng = RNG(6)
    a, b = integers(rng, (3, 20, 77), np.int8), integers(rng, (3, 77, 33), np.int8)
    want = np.matmul(a, b, dtype=np.int64)
    assert np.array_equal(call(matmul32, [a, b], "i16"), want)


def quantised(x: Any, w: Any) -> Any:
    s = np.max(np.abs(x), axis=-1, keepdims=True) / 127
    q = np.round(x / s).astype(np.int8)
    return (q.astype(np.float32) @ w.astype(np.float32)) * s


@pytest.mark.parametrize("shape", [(3, 5, 4), (33, 301, 50), (100, 1024, 17)])
def test_quantised_rows(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = RNG(7)
    x, w = rng.standard_normal((m, k)).astype(np.float32), integers(rng, (k, n), np.int8)
    assert np.array_equal(call(quantised, [x, w], "i16"), quantised(x, w))
    first = call(quantised, [x, w], "i16", threads=1)
    for threads in (2, 3):
        assert np.array_equal(call(quantised, [x, w], "i16", threads=threads), first)
    few = call(quantised, [x[1:3].copy(), w], "i16")
    assert np.array_equal(few, first[1:3])


# ---- products inside elements
def nearest(q: Any, v: Any) -> Any:
    return np.argmax(np.matmul(q, v.T, dtype=np.int32), axis=-1)


def lse(q: Any, v: Any) -> Any:
    s = (q.astype(np.float32) @ v.astype(np.float32).T) * np.float32(1e-4)
    return np.log(np.sum(np.exp(s), axis=-1))


@pytest.mark.parametrize("lanes", ["row", "stream"])
@pytest.mark.parametrize("inner", [2, 31, 1301])
def test_scores(lanes: str, inner: int) -> None:
    rng = RNG(inner)
    for layout in ("straight", "transposed"):
        q, v = integers(rng, (37, inner), np.int8), integers(rng, (91, inner), np.int8)
        q[0] = -128
        v[5] = -128
        if layout == "transposed":
            q, v = np.asfortranarray(q), np.asfortranarray(v)
        scores = q.astype(np.int64) @ v.astype(np.int64).T
        s = scores * 1e-4
        best = np.log(np.sum(np.exp(s - s.max(-1, keepdims=True)), -1)) + s.max(-1)
        for device in (OWN, cpu("scalar")) if inner == 31 and layout == "straight" else (OWN,):
            assert np.array_equal(call(nearest, [q, v], "i16", device, choice={"lanes": lanes}), scores.argmax(-1))
            got = call(lse, [q, v], "i16", device, choice={"lanes": lanes})
            assert np.abs(got - best).max() < 1e-5 * max(1, np.abs(best).max())


def test_computed_factors() -> None:
    """Neither operand is an array: both are packed from values."""
    rng = RNG(9)
    q, v = rng.standard_normal((20, 45)).astype(np.float32), rng.standard_normal((70, 45)).astype(np.float32)

    def f(q: Any, v: Any) -> Any:
        a, b = np.round(q * 40).astype(np.int8), np.round(v * 30).astype(np.int8)
        return np.max(a.astype(np.float32) @ b.astype(np.float32).T, axis=-1)

    for lanes in ("row", "stream"):
        assert np.array_equal(call(f, [q, v], "i16", choice={"lanes": lanes}), f(q, v))


# ---- what does not qualify
@pytest.mark.parametrize(
    ("left", "right"),
    [("int8", "float32"), ("int8", "float16"), ("int8", "bfloat16"), ("int8", "uint16"), ("int16", "int16"), ("float8_e4m3fn", "int8")],
)
def test_other_factors_stay(left: str, right: str) -> None:
    rng = RNG(11)
    a, b = (rng.integers(0, 8, s).astype(np.dtype(t)) for s, t in (((20, 33), left), ((33, 40), right)))
    got = call(matmul_float, [a, b], "", BF16)
    assert np.array_equal(got, a.astype(np.float32) @ b.astype(np.float32))


def test_a_sum_that_could_overflow_is_cut() -> None:
    for a in BOUNDS.values():
        for b in BOUNDS.values():
            for real in ("float", "double"):
                most = integer_most(a * b, real)
                assert most % 2 == 0 and most * a * b < 2**31
                assert real == "double" or a * b > 2**18 or most * a * b <= 2**24
    assert integer_most(128 * 128, "float") == 1024


# ---- bfloat16
def bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_bfloat16_pairs_step_by_step() -> None:
    """The high halves first, one rounding each."""
    text = """#define RF_REAL float
#include "prelude.h"
RF_EXPORT void t(const void *a, const void *b, float *s, int64_t n) {
  for (int64_t i = 0; i < n; i += PAIR_LANES) {
    PF x; memcpy(&x, s + i, sizeof x);
    x = dot_bf16(ld_pairs((const char *)a + 4 * i), ld_pairs((const char *)b + 4 * i), x);
    memcpy(s + i, &x, sizeof x);
  }
}"""
    rng = RNG(13)
    n = 1 << 12
    a, b, s = bf16(rng, (n, 2)), bf16(rng, (n, 2)), rng.standard_normal(n).astype(np.float32)
    x, y = a.astype(np.float64), b.astype(np.float64)
    want = (s + x[:, 1] * y[:, 1]).astype(np.float32)
    want = (want + x[:, 0] * y[:, 0]).astype(np.float32)
    library = compiler.load(text, OWN)
    library.t(*(ctypes.c_void_p(z.ctypes.data) for z in (a, b, s)), ctypes.c_int64(n))
    assert np.array_equal(s, want)


@pytest.mark.parametrize("shape", [(2, 2, 3), (33, 301, 50), (7, 1500, 9)])
def test_bfloat16_product(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = RNG(14)
    a, b = bf16(rng, (m, k)), bf16(rng, (k, n))
    want = a.astype(np.float64) @ b.astype(np.float64)
    for device in (BF16, replace(cpu("scalar"), pairs=("bf16",))):
        got = call(matmul_float, [a, b], "bf16", device).reshape(m, n)
        assert np.abs(got - want).max() < 1e-6 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))).max()
    call(matmul_float, [a, b], "")


@pytest.mark.parametrize("lanes", ["row", "stream"])
def test_bfloat16_scores(lanes: str) -> None:
    rng = RNG(15)
    q, k, v = bf16(rng, (40, 63)), bf16(rng, (90, 63)), bf16(rng, (90, 31))

    def f(q: Any, k: Any, v: Any) -> Any:
        s = (q.astype(np.float32) @ k.astype(np.float32).T) / np.float32(8)
        p = np.exp(s - np.max(s, axis=-1, keepdims=True))
        return (p / np.sum(p, axis=-1, keepdims=True)) @ v.astype(np.float32)

    got = call(f, [q, k, v], "bf16", BF16, choice={"lanes": lanes})
    want = f(*(x.astype(np.float64) for x in (q, k, v)))
    assert np.abs(got - want).max() < 1e-5


# ---- instructions that this machine may lack
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gcc") or platform.machine() not in ("x86_64", "AMD64"), reason="needs gcc for x86")
@pytest.mark.parametrize("real", ["float", "double"])
@pytest.mark.parametrize(
    ("march", "instructions"),
    [("sapphirerapids", ("vpdpwssd", "vdpbf16ps")), ("alderlake", ("vpdpwssd",)), ("x86-64-v4", ("vpmaddwd",)), ("x86-64", ("pmaddwd",))],
)
def test_compiles_to_its_instructions(tmp_path: Path, real: str, march: str, instructions: tuple[str, ...]) -> None:
    (tmp_path / "k.c").write_text(f"""#define RF_REAL {real}
#include "prelude.h"
RF_EXPORT void f(P *a, P *b, P *s, PF *t) {{ *s = dot_i16(*a, *b, *s); *t = dot_bf16(*a, *b, *t); }}""")
    command = ["gcc", *compiler.COMMON_FLAGS, f"-march={march}", "-Wall", "-Werror", f"-I{compiler.SOURCES}", "-S", "k.c", "-o", "k.s"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if "bad value" in done.stderr:
        pytest.skip(f"this gcc does not know {march}")
    assert done.returncode == 0, done.stderr
    assert all(i in (tmp_path / "k.s").read_text() for i in instructions)


# ---- anything
@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    shape=st.tuples(st.integers(0, 60), st.integers(0, 300), st.integers(0, 60)),
    dtypes=st.tuples(st.sampled_from(["int8", "uint8", "bool"]), st.sampled_from(["int8", "uint8", "int16"])),
    to=st.sampled_from(["int32", "int64", "float32", "float64"]),
    turned=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_products(shape: tuple[int, int, int], dtypes: tuple[str, str], to: str, turned: tuple[bool, bool], seed: int) -> None:
    m, k, n = shape
    rng = RNG(seed)
    a, b = integers(rng, (m, k), dtypes[0]), integers(rng, (k, n), dtypes[1])
    a, b = (np.asfortranarray(x) if t else x for x, t in zip((a, b), turned, strict=True))
    want = a.astype(np.int64) @ b.astype(np.int64)
    fused = rf.optimize(lambda a, b: np.matmul(a.astype(to), b.astype(to)), target="cpu")
    got = fused(a, b)
    assert got.dtype == np.dtype(to) and np.abs(got - want).max(initial=0) <= (2e-7 * np.abs(want).max(initial=0) if to == "float32" else 0)
