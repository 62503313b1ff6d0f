"""Products of operands of one byte on the matrix instructions for them, on the emulator against float64.

The emulator keeps 14 bits of each term of a sum of e4m3 products, aligned to the largest term, as the hardware is known to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cascades
import emulator
import numpy as np
import pytest
from emulated import Run, run
from test_cuda_mma import A100, BF16, E4M3, H200, Array, check, form, narrowed, quantised, some, transposed
from writing import F32, Builder, Extents, T, cast, fn

import redfuser_eq
from redfuser_eq.cascade import Cascade, Pass
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.expr import Cast, Expr, Load, Map, Output, Source, transform
from redfuser_eq.gpu import Gpu

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
ADA = replace(A100, name="ada", capability=89, shared_limit=99 << 10)
I8 = np.dtype(np.int8)
LOST = 2e-3  # of the largest result: what sums of 128 products of e4m3 may lose


def column_major(a: Array) -> Array:
    """The weights with the contracted axis contiguous; the values as they are."""
    return transposed(a) if a.dtype in (E4M3, I8) else a


def mapped(r: Run) -> set[Any]:
    """What tensor maps describe."""
    return {a[1] for x in r.program.launches for a in x.args if a[0] == "map"}


def multiplied(text: str) -> str:
    """Which matrix instructions for bytes a program has."""
    return next((x for x in ("wgmma_e4m3", "wgmma_i8", "mma_e4m3", "mma_i8") if f"DEV void {x}" in text), "")


INSTRUCTIONS = {(E4M3, "h200"): "wgmma_e4m3", (E4M3, "ada"): "mma_e4m3", (E4M3, "a100"): ""}
INSTRUCTIONS |= {(I8, "h200"): "wgmma_i8", (I8, "ada"): "mma_i8", (I8, "a100"): "mma_i8"}
CASES = [(E4M3, BF16, 448.0, H200), (E4M3, np.float32, 448.0, ADA), (I8, BF16, 127.0, A100), (I8, np.float32, 127.0, H200)]
MORE = [(E4M3, np.float16, 448.0, ADA), (E4M3, np.float32, 448.0, H200), (I8, BF16, 127.0, H200), (E4M3, BF16, 448.0, A100)]


@pytest.mark.parametrize("to, source, most, gpu", some(CASES, MORE))
def test_quantised_products(to: Any, source: Any, most: float, gpu: Gpu) -> None:
    """A product of two arrays of bytes, of which the first kernel has written one; with few columns, in the loop that follows the
    scale's, where Hopper has no instructions for e4m3."""
    w, tolerance = quantised(to, source, most), LOST if to == E4M3 else 1e-6
    for extents in ({"r": 17, "n": 136, "k": 37}, {"r": 67, "n": 150, "k": 290}):
        r = check(w, extents, tolerance, gpu=gpu, arrange=column_major)
        assert multiplied(r.program.text) == INSTRUCTIONS[to, gpu.name]
        assert [b.name for b in r.program.buffers] == ["written0", "hi@memory"]
        assert ("buffer", "written0") in mapped(r) or gpu is not H200
    r = check(w, {"r": 35}, tolerance, gpu=gpu, arrange=column_major)
    few = INSTRUCTIONS[to, gpu.name].removeprefix("wg")
    assert multiplied(r.program.text) == ("" if to == E4M3 and gpu is H200 else few)


def scaled(to: Any, source: Any) -> cascades.Workload:
    """The same with a scale that is given, so that the product's own kernel narrows its operand."""
    w = quantised(to, source, 1.0)
    x, s = T(Load("x", ("r", "k"), source)), T(Load("s", ("r",), np.dtype(np.float32)))
    b = Builder("k", "rn")
    y = b.add("y", "sum", cast(cast(x / s, to), np.float32) * cast(T(Load("w", ("k", "n"), to)), np.float32))
    sources = (Source("s", 2, np.dtype(np.float32), 1), *w.cascade.sources)

    def make(rng: np.random.Generator, extents: Extents) -> list[Array]:
        weights, values = w.make(rng, extents)
        return [rng.uniform(0.05, 0.1, extents["r"]).astype(np.float32), weights, values]

    def expected(scale: Array, weights: Array, values: Array) -> list[Array]:
        q = (values.astype(np.float32) / scale.astype(np.float32)[:, None]).astype(to).astype(np.float64)
        return [q @ weights]

    outputs = (Output(y.e, ("r", "n"), np.dtype(np.float32)),)
    return replace(w, cascade=Cascade(sources, (b.done(),), outputs, w.cascade.extents), make=make, expected=expected)


@pytest.mark.parametrize(
    "to, source, gpu", some([(E4M3, BF16, H200), (I8, np.float32, A100)], [(E4M3, np.float32, H200), (I8, BF16, H200)])
)
def test_operands_narrowed_in_registers(to: Any, source: Any, gpu: Gpu) -> None:
    w, tolerance = scaled(to, source), LOST if to == E4M3 else 1e-6
    for extents in ({"r": 35}, {"r": 130, "n": 136, "k": 290}):
        r = check(w, extents, tolerance, gpu=gpu, arrange=column_major)
        assert multiplied(r.program.text) == INSTRUCTIONS[to, gpu.name]
    check(w, {"r": 35}, tolerance, gpu=gpu, arrange=transposed)


@pytest.mark.parametrize("gpu", [H200, ADA], ids=lambda g: g.name)
def test_long_sums_of_e4m3_are_promoted(gpu: Gpu) -> None:
    """Sums of 128 of these numbers fit in the bits that the hardware keeps, longer ones do not."""
    w = quantised(E4M3, np.float32, 448.0)

    def make(rng: np.random.Generator, extents: Extents) -> list[Array]:
        weights, values = (np.full([extents[a] for a in dims], 1.125, np.float32) for dims in ("kn", "rk"))
        values[:, 0], weights[0] = 448.0, 0.0
        return [weights.astype(E4M3), values]

    r = check(replace(w, make=make), {"r": 20, "k": 900, "n": 136}, 1e-7, gpu=gpu, arrange=column_major)
    assert multiplied(r.program.text)


def test_where_bytes_are_multiplied_in_16_bits() -> None:
    """Rows of weights that are not contiguous, an older GPU, or strict numerics."""
    w = quantised(E4M3, BF16, 448.0)
    strides = {"w": (1, w.extents["k"]), "x": (w.extents["k"], 1)}
    strict = replace(w.cascade, numerics="strict")
    extents = w.extents | {"n": 256}
    for c, where, gpu in ((w.cascade, {}, H200), (w.cascade, strides, A100), (strict, strides, H200)):
        assert not multiplied(emit(schedule(c, extents, where, gpu), gpu).text)
    assert multiplied(emit(schedule(w.cascade, extents, strides, H200), H200).text)
    check(replace(w, cascade=strict), {"r": 67}, 1e-6, gpu=H200, arrange=column_major)


def integer_sums(most: float, wide: Any) -> cascades.Workload:
    """An int32 product of int8, as it is and with the scale of its quantised rows."""
    w = quantised(I8, np.float32, 127.0)
    x, v = T(Load("x", ("r", "k"), np.dtype(np.float32))), T(Load("w", ("k", "n"), I8))
    b, c = Builder("k", "rn"), Builder("k", "rn")
    hi = b.add("hi", "max", fn("abs")(x))
    y = c.add("y", "sum", cast(cast(fn("round")(x / (hi / most)), I8), np.dtype(wide)) * cast(v, np.dtype(wide)))
    outputs = (Output(y.e, w.cascade.outputs[0].dims, y.e.dtype), Output((cast(y, F32) * hi).e, w.cascade.outputs[0].dims, F32))

    def make(rng: np.random.Generator, extents: Extents) -> list[Array]:
        weights, values = (rng.integers(90, 128, [extents[a] for a in dims]) for dims in ("kn", "rk"))
        return [weights.astype(np.int8), values.astype(np.float32)]

    def expected(weights: Array, values: Array) -> list[Array]:
        scale = (values.max(-1, keepdims=True).astype(np.float32) / np.float32(most)).astype(np.float32)
        y = np.rint(values.astype(np.float32) / scale).astype(np.int64) @ weights.astype(np.int64)
        return [y, y * values.max(-1, keepdims=True)]

    return replace(w, cascade=Cascade(w.cascade.sources, (b.done(), c.done()), outputs, w.cascade.extents), make=make, expected=expected)


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("n", [24, 136])
def test_integer_sums_are_exact(n: int, gpu: Gpu) -> None:
    """Beyond what float32 could hold."""
    w = integer_sums(127.0, np.int32)
    extents = w.extents | {"r": 20, "k": 1700, "n": n}
    arrays = [column_major(a) for a in w.make(np.random.default_rng(5), extents)]
    r = run(w.cascade, arrays, extents, gpu=gpu)
    assert multiplied(r.program.text) in ("wgmma_i8", "mma_i8") and r.kernel.real == "float"
    y, scaled = w.expected(*(a.astype(np.float64) for a in arrays))
    assert y.min() > 1 << 24
    np.testing.assert_array_equal(r.outputs[0], y)
    np.testing.assert_allclose(r.outputs[1], scaled, rtol=2e-7)


def test_integer_sums_that_have_another_form() -> None:
    """Too long for 32 bits, read by arithmetic of integers, or of weights whose contracted axis is not contiguous."""
    w, strides = integer_sums(127.0, np.int32), {"w": (1, 1700)}
    extents = w.extents | {"k": 1700, "n": 136}
    assert schedule(w.cascade, extents, strides, A100).real == "float"
    more = replace(w.cascade, outputs=(replace(w.cascade.outputs[0], expr=Map("add", (w.cascade.outputs[0].expr,) * 2)),))
    for c, sizes, where in ((w.cascade, extents, {}), (w.cascade, extents | {"k": 1 << 17}, strides), (more, extents, strides)):
        kernel = schedule(c, sizes, where, A100)
        assert kernel.real == "double" and all(p.place is None or p.place.form != "mma" for p in kernel.phases)


def in_bytes(w: cascades.Workload, names: dict[str, Any]) -> cascades.Workload:
    """The workload with some sources in dtypes of one byte, widened where they are read."""

    def load(e: Expr) -> Expr | None:
        return Cast(Load(e.source, e.dims, names[e.source]), np.dtype(np.float32)) if isinstance(e, Load) and e.source in names else None

    def widen(e: Expr | None) -> Any:
        return None if e is None else transform(e, load)

    c = w.cascade
    passes = tuple(Pass(p.axis, tuple(replace(a, lift=widen(a.lift), rebase=widen(a.rebase)) for a in p.accumulators)) for p in c.passes)
    outputs = tuple(Output(widen(o.expr), o.dims, o.dtype) for o in c.outputs)
    sources = tuple(replace(s, dtype=np.dtype(names.get(s.name, s.dtype))) for s in c.sources)

    def make(rng: np.random.Generator, extents: Any) -> list[Array]:
        arrays = w.make(rng, extents)
        return [(a * (20 if names.get(s.name) == I8 else 1)).astype(s.dtype) for s, a in zip(sources, arrays, strict=True)]

    return replace(w, cascade=Cascade(sources, passes, outputs, c.extents), make=make)


@pytest.mark.parametrize("gpu", [A100, H200, ADA], ids=lambda g: g.name)
@pytest.mark.parametrize("dtype", [E4M3, I8], ids=str)
@pytest.mark.parametrize("h", some([30, 300], [129, 700]))
def test_scores_of_bytes(dtype: Any, gpu: Gpu, h: int) -> None:
    """In one tile of the inner axis, in blocks of it, and beyond what a sum of e4m3 may be long."""
    w = in_bytes(cascades.linear_logsumexp(), {"x": dtype, "w": dtype})
    choice = {"depth": 32} if gpu is ADA else {}
    r = check(w, {"h": h, "r": 35, "v": 200}, LOST if dtype == E4M3 else 1e-6, gpu=gpu, choice=choice)
    assert multiplied(r.program.text) == INSTRUCTIONS[dtype, gpu.name]
    check(w, {"h": h, "r": 35}, 1e-6, gpu=gpu, choice=choice, arrange=transposed)
    assert form(r) == ("wgmma" if gpu is H200 else "mma")


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("names", some([{"q": E4M3, "k": E4M3}, {"k": I8}], [{"q": I8, "k": I8}, {"q": E4M3, "k": I8}]), ids=str)
def test_attention_of_bytes(names: dict[str, Any], gpu: Gpu) -> None:
    """A byte next to 16 bits, or next to another kind of byte, is multiplied as 16 bits."""
    check(narrowed(in_bytes(cascades.attention_causal(), names)), {"h": 1}, 8e-3, gpu=gpu)


def fp8_linear(x: Any, w: Any) -> Any:
    s = np.abs(x).max(-1, keepdims=True) / 448.0
    return ((x / s).astype(E4M3).astype(np.float32) @ w.T.astype(np.float32)) * s


def int8_linear(x: Any, w: Any) -> Any:
    s = np.abs(x).max(-1, keepdims=True) / 127.0
    return (np.round(x / s).astype(np.int8).astype(np.int32) @ w.T.astype(np.int32)).astype(np.float32) * s


@pytest.mark.parametrize("f, dtype, name", [(fp8_linear, E4M3, "wgmma_e4m3"), (int8_linear, I8, "wgmma_i8")])
def test_programs_as_they_are_written(f: Callable[..., Any], dtype: Any, name: str) -> None:
    x, w = np.ones((512, 512), np.float32), np.ones((256, 512), dtype)
    assert multiplied(redfuser_eq.optimize(f).source("cuda", x, w)) == name
    if dtype == E4M3:
        assert not multiplied(redfuser_eq.optimize(f, numerics="strict").source("cuda", x, w))
