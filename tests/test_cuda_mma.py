"""Phases on tensor cores: emitted CUDA on the emulator against float64, and what ptxas makes of it at full size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cascades
import emulator
import ml_dtypes
import numpy as np
import pytest
from emulated import Run, run
from emulator import SCHEDULES, Schedule
from writing import Builder, T, cast, fn

import redfuser_eq
from redfuser_eq.cascade import Cascade, Pass
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.expr import Expr, Load, Output, transform
from redfuser_eq.gpu import GPUS, Gpu

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
A100, H200 = GPUS["a100"], GPUS["h200"]
Array = np.ndarray[Any, Any]


def some(quick: Any, slow: Any) -> list[Any]:
    """Parameters for every run of the tests, and more for the long one."""
    return [*quick, *(pytest.param(*(x if isinstance(x, tuple) else (x,)), marks=pytest.mark.thorough) for x in slow)]


def narrowed(w: cascades.Workload, dtype: Any = BF16, keep: tuple[str, ...] = (), out: Any = None) -> cascades.Workload:
    """The workload with its float32 sources in a 16-bit dtype."""
    names = {s.name for s in w.cascade.sources if s.dtype == np.float32 and s.name not in keep}

    def load(e: Expr) -> Expr | None:
        return Load(e.source, e.dims, dtype) if isinstance(e, Load) and e.source in names else None

    def narrow(e: Expr | None) -> Any:
        return None if e is None else transform(e, load)

    c = w.cascade
    passes = tuple(Pass(p.axis, tuple(replace(a, lift=narrow(a.lift), rebase=narrow(a.rebase)) for a in p.accumulators)) for p in c.passes)
    outputs = tuple(Output(narrow(o.expr), o.dims, np.dtype(out) if out and o.dtype == np.float32 else o.dtype) for o in c.outputs)
    sources = tuple(replace(s, dtype=np.dtype(dtype)) if s.name in names else s for s in c.sources)

    def make(rng: np.random.Generator, extents: Any) -> list[Array]:
        return [a.astype(dtype) if s.name in names else a for s, a in zip(c.sources, w.make(rng, extents), strict=True)]

    return replace(w, cascade=Cascade(sources, passes, outputs, c.extents), make=make)


def check(w: cascades.Workload, extents: dict[str, int] | None = None, tolerance: float = 6e-3, seed: int = 0, arrange: Any = None,
          **options: Any) -> Run:  # fmt: skip
    """Run on the tensor-core form and compare."""
    extents = w.extents | (extents or {})
    arrays = w.make(np.random.default_rng(seed), extents)
    arrays = [arrange(a) for a in arrays] if arrange else arrays
    r = run(w.cascade, arrays, extents, **options)
    assert any(p.place is not None and p.place.form in ("mma", "wgmma") for p in r.kernel.phases)
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        scale = 1e-3 + np.max(np.abs(want), initial=0)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=tolerance * scale)
    assert not r.flags.any()
    return r


KEPT = {"attention_bias": ("b",)}
EXACT = {"linear_logsumexp": 1e-6, "cross_entropy": 1e-6, "kmeans": 0.0, "routing": 2e-6, "quantised_linear": 1e-6}
WORKLOADS = ("attention", "attention_causal", "attention_window", "attention_bias", "attention_gqa", "mla", "linear_logsumexp",
             "cross_entropy", "rms_linear", "layernorm_linear", "kmeans", "routing", "quantised_linear")  # fmt: skip


def workload(name: str, dtype: Any = BF16, out: Any = None) -> cascades.Workload:
    return narrowed(cascades.WORKLOADS[name](), dtype, KEPT.get(name, ()), out)


def form(r: Run) -> str:
    return next(p.place.form for p in r.kernel.phases if p.place is not None and p.place.form in ("mma", "wgmma"))


@pytest.mark.parametrize("dtype", some([BF16], [F16]), ids=str)
@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name: str, dtype: Any) -> None:
    check(workload(name, dtype), tolerance=EXACT.get(name, 6e-3))


WARPGROUPS = (
    "attention",
    "attention_window",
    "attention_bias",
    "linear_logsumexp",
    "cross_entropy",
    "layernorm_linear",
    "kmeans",
    "routing",
)


@pytest.mark.parametrize("name", some(WARPGROUPS[:-1], WARPGROUPS[-1:]))
def test_warpgroups(name: str) -> None:
    r = check(workload(name), tolerance=EXACT.get(name, 6e-3), gpu=H200)
    assert form(r) == "wgmma"


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("order", some([SCHEDULES[i] for i in (0, 3, 4)], [SCHEDULES[i] for i in (1, 2, 5, 6, 7)]), ids=str)
@pytest.mark.parametrize("name", ["attention_window", "cross_entropy"])
def test_any_order_of_threads_and_copies(name: str, order: Schedule, gpu: Gpu) -> None:
    extents = {"h": 1, "i": 70, "j": 70} if name != "cross_entropy" else {"r": 70, "v": 300, "h": 300}
    check(workload(name), extents, order=order, seed=order.seed, gpu=gpu, choice={"depth": 16})


@pytest.mark.parametrize("rows", some([17, 130], [1, 65]))
@pytest.mark.parametrize("keys", some([1, 129], [63]))
def test_ragged_sizes(rows: int, keys: int) -> None:
    w, extents = workload("attention", out=BF16), {"b": 1, "h": 1, "i": rows, "j": keys}
    check(w, extents, seed=rows + keys)
    check(w, extents, seed=rows + keys, gpu=H200)


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("head", some([24, 136], [8, 72, 128, 256]))
def test_head_sizes(head: int, gpu: Gpu) -> None:
    """Beyond 128 columns go to the grid; beyond 256 inner elements come in blocks."""
    check(workload("attention_causal"), {"h": 1, "i": 67, "j": 67, "e": head, "d": head}, gpu=gpu)


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
def test_inner_axis_in_blocks(gpu: Gpu) -> None:
    check(workload("mla"), {"b": 1, "h": 17, "j": 131, "e": 320, "d": 144}, gpu=gpu)
    check(workload("linear_logsumexp"), {"r": 35, "v": 300, "h": 420}, 1e-6, gpu=gpu)


def transposed(a: Array) -> Array:
    """The same numbers, the last two axes exchanged in memory."""
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if a.ndim > 1 else a


def padded(a: Array) -> Array:
    """The same numbers, no row at a multiple of 16 bytes."""
    wide = np.full((*a.shape[:-1], a.shape[-1] + 3), np.nan).astype(a.dtype)
    wide[..., : a.shape[-1]] = a
    return wide[..., : a.shape[-1]]


def spread(a: Array) -> Array:
    """The same numbers, every other element of memory."""
    wide = np.full((*a.shape[:-1], 2 * a.shape[-1]), np.nan).astype(a.dtype)
    wide[..., ::2] = a
    return wide[..., ::2]


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("arrange", some([transposed, padded], [spread]))
@pytest.mark.parametrize("name", ["attention_causal", "linear_logsumexp", "rms_linear", "kmeans"])
def test_strides(name: str, arrange: Callable[[Array], Array], gpu: Gpu) -> None:
    extents = {"h": 1} if name == "attention_causal" else {}
    check(workload(name), extents, EXACT.get(name, 6e-3), arrange=arrange, gpu=gpu)


@pytest.mark.parametrize("name", ["attention", "decode_rows", "linear_logsumexp", "kmeans", "routing", "mla"])
def test_segments(name: str) -> None:
    """The stream in parts, merged by a second kernel."""
    name = name.replace("decode_rows", "attention_gqa")
    w = workload(name)
    small = {a: n for a, n in {"j": 150, "v": 150, "i": 20, "r": 20, "h": 24}.items() if a in w.extents}
    r = check(w, small, EXACT.get(name, 6e-3), choice={"segment": 32, "depth": 16})
    assert any(p.name == "merge" for p in r.kernel.phases)


def test_rows_without_a_valid_key_are_flagged() -> None:
    """A row of -inf is for the plain program; the others are untouched."""
    w = workload("attention_bias")
    extents = w.extents
    b, k, q, v = w.make(np.random.default_rng(3), extents)
    b[1, 5] = -np.inf
    r = run(w.cascade, [b, k, q, v], extents)
    assert r.flags[1, 5] == 1 and r.flags.sum() == 1
    want = w.expected(*(np.delete(a.astype(np.float64), 5, 1) if n in (0, 2) else a.astype(np.float64) for n, a in enumerate((b, k, q, v))))
    np.testing.assert_allclose(np.delete(r.outputs[0].astype(float), 5, 1), want[0], atol=6e-3)


def test_nan_in_a_value_that_a_mask_hides() -> None:
    """0 * NaN is NaN: tiles are skipped only while the values are finite."""
    w = workload("attention_causal")
    k, q, v = w.make(np.random.default_rng(3), w.extents)
    v[0, -1, 3] = np.nan
    r = run(w.cascade, [k, q, v], w.extents)
    assert r.flags[0].all() and not r.flags[1].any()


def test_float32_stays_off_tensor_cores() -> None:
    w = cascades.attention()
    kernel = schedule(w.cascade, w.extents, {}, GPUS["a100"])
    assert all(p.place is None or p.place.form != "mma" for p in kernel.phases)


@pytest.mark.parametrize("axis", ["i", "j", "e", "d"])
def test_empty_axes_take_another_form(axis: str) -> None:
    w = workload("attention")
    kernel = schedule(w.cascade, w.extents | {axis: 0}, {}, A100)
    assert all(p.place is None or p.place.form != "mma" for p in kernel.phases)


def test_equal_decisions_share_a_build() -> None:
    """Another batch or length is another argument."""
    w = workload("attention")
    texts = {
        emit(schedule(w.cascade, dict(w.extents, b=b, j=j), {}, GPUS["a100"]), GPUS["a100"]).key for b, j in ((2, 75), (3, 75), (2, 99))
    }
    assert len(texts) == 1


E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def quantised(to: Any, source: Any, most: float) -> cascades.Workload:
    """Per-row abs-max scaling to a format of one byte, times weights of that format."""
    w = cascades.quantised_linear()
    x = T(Load("x", ("r", "k"), source))
    b, c = Builder("k", "rn"), Builder("k", "rn")
    hi = b.add("hi", "max", fn("abs")(x))
    scaled = x / (hi / most)
    scaled = scaled if to == E4M3 else fn("round")(scaled)
    y = c.add("y", "sum", cast(cast(scaled, to), np.float32) * cast(T(Load("w", ("k", "n"), to)), np.float32))
    sources = tuple(replace(s, dtype=np.dtype(to if s.name == "w" else source)) for s in w.cascade.sources)
    outputs = (Output((y * (hi / most)).e, w.cascade.outputs[0].dims, np.dtype(np.float32)),)

    def make(rng: np.random.Generator, extents: Any) -> list[Array]:
        weights, values = w.make(rng, extents)
        return [(weights * 9).astype(to), values.astype(source)]

    def expected(weights: Array, values: Array) -> list[Array]:
        scale = (np.abs(values).astype(np.float32).max(-1, keepdims=True) / np.float32(most)).astype(np.float32)
        scaled = values.astype(np.float32) / scale
        q = (scaled if to == E4M3 else np.rint(scaled)).astype(to).astype(np.float64)
        return [(q @ weights) * scale]

    return replace(w, cascade=Cascade(sources, (b.done(), c.done()), outputs, w.cascade.extents), make=make, expected=expected)


@pytest.mark.parametrize(
    "to, source, most, gpu",
    [
        *some(
            [(E4M3, BF16, 448.0, A100), (E4M3, np.float32, 448.0, H200)],
            [(E4M3, BF16, 448.0, H200), (np.dtype(np.int8), BF16, 127.0, A100), (np.dtype(np.int8), BF16, 127.0, H200)],
        )
    ],
)
def test_products_of_bytes(to: Any, source: Any, most: float, gpu: Gpu) -> None:
    """Exact in bfloat16 operands, whatever the operands' layout; beyond a block of columns the scale is a pass of its own."""
    w = quantised(to, source, most)
    check(w, {"r": 67}, 1e-6, gpu=gpu)
    check(w, {"r": 67}, 1e-6, gpu=gpu, arrange=transposed)
    r = check(w, {"r": 17, "n": 136}, 1e-6, gpu=gpu)
    assert [p.place.form for p in r.kernel.phases if p.place] == ["rows", "mma" if gpu is A100 else "wgmma"]


def softmax(s: Any) -> Any:
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ np.swapaxes(k, -1, -2) * 0.125) @ v


def normed_linear(x: Any, g: Any, w: Any) -> Any:
    y = x - x.mean(-1, keepdims=True)
    return (y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-5) * g) @ w


def linear_logsumexp(x: Any, w: Any) -> Any:
    s = x @ w
    m = s.max(-1)
    return m + np.log(np.exp(s - m[:, None]).sum(-1))


def fp8_linear(x: Any, w: Any) -> Any:
    s = np.abs(x).max(-1, keepdims=True) / 448.0
    return ((x / s).astype(E4M3).astype(np.float32) @ w.astype(np.float32)) * s


@pytest.mark.parametrize(
    "f, shapes",
    [
        (attention, [(2, 3, 64, 64)] * 3),
        (normed_linear, [(64, 128), (128,), (128, 96)]),
        (linear_logsumexp, [(64, 128), (128, 512)]),
        (fp8_linear, [(64, 128), (128, 96)]),
    ],
)
def test_programs_as_they_are_written(f: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.ones(s, BF16) for s in shapes]
    if f is fp8_linear:
        arrays[1] = arrays[1].astype(E4M3)
    c = redfuser_eq.optimize(f).cascade(*arrays)
    kernel = schedule(c, {a: n or 64 for a, n in c.extents.items()}, {}, A100)
    assert any(p.place is not None and p.place.form == "mma" for p in kernel.phases)
