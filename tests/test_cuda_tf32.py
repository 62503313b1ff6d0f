"""Products of float32 on tensor cores, where `numerics="fast"` lets them be multiplied as tf32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import numpy as np
import pytest
from emulated import Run
from emulator import SCHEDULES, Schedule, sanitize
from test_cuda_copies import copies, late
from test_cuda_mma import A100, H200, check, form, padded, some, transposed

import redfuser_eq
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import Gpu

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
NAMES = ("attention", "linear_logsumexp", "layernorm_linear", "quantised_linear", "attention_window", "attention_gqa", "mla",
         "cross_entropy", "rms_linear")  # fmt: skip
TOLERANCE = {"linear_logsumexp": 1e-3, "cross_entropy": 1e-3}


def fast(name: str) -> cascades.Workload:
    w = cascades.WORKLOADS[name]()
    return replace(w, cascade=replace(w.cascade, numerics="fast"))


@pytest.mark.parametrize("name", some(NAMES[:4], NAMES[4:]))
def test_workloads(name: str) -> None:
    r = check(fast(name), tolerance=TOLERANCE.get(name, 3e-3))
    assert "mma_tf32" in r.program.text


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("sizes", some([{"i": 17, "j": 129, "e": 136, "d": 144}], [{"i": 130, "j": 33, "e": 20, "d": 8}]), ids=str)
def test_ragged_sizes(sizes: dict[str, int], gpu: Gpu) -> None:
    check(fast("attention_causal"), {"h": 1, **sizes, "j": max(sizes["i"], sizes["j"])}, 3e-3, gpu=gpu)


@pytest.mark.parametrize("arrange", some([transposed], [padded]))
def test_strides(arrange: Any) -> None:
    check(fast("attention_causal"), {"h": 1}, 3e-3, arrange=arrange)
    check(fast("rms_linear"), {"r": 35}, 3e-3, arrange=arrange)


def test_never_by_default() -> None:
    for numerics, gpu in (("strict", A100), ("default", A100), ("default", H200)):
        w = cascades.attention()
        kernel = schedule(replace(w.cascade, numerics=numerics), w.extents, {}, gpu)
        assert all(p.place is None or p.place.form not in ("mma", "wgmma") for p in kernel.phases)


# ---- warpgroups
SUMMED = {"attention": "v", "attention_causal": "v", "attention_gqa": "v", "mla": "v", "layernorm_linear": "w", "rms_linear": "w"}
EVEN: dict[str, dict[str, int]] = {
    "attention": {"b": 1, "h": 2, "i": 70, "j": 76, "e": 24, "d": 40},
    "attention_causal": {"h": 1, "i": 140, "j": 140, "e": 72, "d": 136},
    "attention_gqa": {"b": 1, "g": 2, "r": 2, "i": 20, "j": 76, "e": 16, "d": 24},
    "mla": {"b": 1, "h": 17, "j": 132, "e": 320, "d": 144},
    "cross_entropy": {"r": 70, "v": 133, "h": 304},
    "linear_logsumexp": {"r": 70, "v": 300, "h": 96},
    "layernorm_linear": {"r": 70, "k": 72, "n": 40},
    "rms_linear": {"r": 140, "k": 200, "n": 136},
    "kmeans": {"i": 70, "f": 24, "j": 37},
}


def on_warpgroups(name: str, extents: dict[str, int] | None = None, late_ones: tuple[str, ...] = (), **options: Any) -> Run:
    """With the summed axis of all right operands contiguous. late_ones: arrays that no tensor map takes."""
    w = fast(name)
    turn = iter(s.name for s in w.cascade.sources)

    def arrange(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        s = next(turn)
        a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if s == SUMMED.get(name) else a
        return late(a) if s in late_ones else a

    tolerance = 0.0 if name == "kmeans" else TOLERANCE.get(name, 3e-3)
    r = check(w, EVEN[name] | (extents or {}), tolerance, gpu=H200, arrange=arrange, **options)
    assert form(r) == "wgmma" and "wgmma_tf32" in r.program.text
    return r


@pytest.mark.parametrize("name", EVEN)
def test_warpgroups(name: str) -> None:
    """The copy engine brings what it can, rounded; the copying warps round what takes the order of registers."""
    r = on_warpgroups(name)
    assert copies(r.kernel) == {s: s not in ("v", "w") or name not in SUMMED for s in copies(r.kernel)}
    assert ("round_evens" in r.program.text) == (name in SUMMED) and "round_cells" not in r.program.text


@pytest.mark.parametrize("name, odd", [("attention", ("q", "k")), ("cross_entropy", ("w",)), ("linear_logsumexp", ("x", "w"))])
def test_what_no_tensor_map_takes_is_rounded_by_warps(name: str, odd: tuple[str, ...]) -> None:
    r = on_warpgroups(name, late_ones=odd)
    assert "round_cells" in r.program.text and not any(copies(r.kernel)[s] for s in odd)


@pytest.mark.parametrize("order", some(SCHEDULES[1:6:2], [*SCHEDULES[:6:2], *SCHEDULES[6:]]), ids=str)
@pytest.mark.parametrize("name, odd", [("attention", ("q",)), ("mla", ()), ("cross_entropy", ("x",)), ("layernorm_linear", ())])
def test_any_order_of_threads_and_copies(name: str, odd: tuple[str, ...], order: Schedule) -> None:
    small = {"attention": {"i": 130, "j": 44}, "mla": {"j": 72}}.get(name)
    on_warpgroups(name, small, odd, order=order, choice={"depth": 16} if name == "attention" else None)


def sanitized(name: str, odd: tuple[str, ...]) -> None:
    on_warpgroups(name, {"h": 1} if name == "attention" else {}, odd)


@pytest.mark.thorough
@pytest.mark.skipif(bool(sanitize.unavailable()), reason=sanitize.unavailable() or "available")
@pytest.mark.parametrize("name, odd", [("attention", ()), ("attention", ("q", "k")), ("cross_entropy", ("w",))])
def test_no_two_accesses_are_unordered(name: str, odd: tuple[str, ...]) -> None:
    assert sanitize.races("test_cuda_tf32:sanitized", name, odd) == []


@pytest.mark.parametrize("odd", [(), ("x", "w")])
def test_operands_are_rounded_to_nearest(odd: tuple[str, ...]) -> None:
    """All elements lie just below a number of tf32: without their low bits the product would be a thousandth too small."""
    w = fast("linear_logsumexp")

    def make(rng: np.random.Generator, extents: Any) -> list[np.ndarray[Any, Any]]:
        a, b = w.make(rng, extents)
        return [np.full(x.shape, f * (1 + 0.999 * 2**-10), np.float32) for x, f in ((a, 1.0), (b, 0.5))]

    turn = iter(s.name for s in w.cascade.sources)
    r = check(replace(w, make=make), {"r": 70, "v": 300, "h": 512}, 1e-5, gpu=H200, arrange=lambda a: late(a) if next(turn) in odd else a)
    assert form(r) == "wgmma"


def test_right_operands_that_lie_otherwise_stay_with_warps() -> None:
    """There is no instruction of a warpgroup for them; and a GPU may be told to use none."""
    for name in ("attention", "rms_linear"):
        assert form(check(fast(name), EVEN[name], 3e-3, gpu=H200)) == "mma"
    w = fast("linear_logsumexp")
    turned = {"w": (1, EVEN["linear_logsumexp"]["v"])}
    for strides, choice in ((turned, {}), ({}, {"groups": False})):
        kernel = schedule(w.cascade, w.extents | EVEN["linear_logsumexp"], strides, H200, choice)
        assert {p.place.form for p in kernel.phases if p.place is not None} & {"mma", "wgmma"} == {"mma"}


def test_the_program_says_it() -> None:
    def f(q: Any, k: Any) -> Any:
        s = q @ k.T
        m = s.max(-1, keepdims=True)
        return np.log(np.exp(s - m).sum(-1)) + m[:, 0]

    q, k = np.ones((64, 64), np.float32), np.ones((300, 64), np.float32)
    assert "mma_tf32" in redfuser_eq.optimize(f, numerics="fast").source("cuda", q, k)
    assert "mma_tf32" not in redfuser_eq.optimize(f).source("cuda", q, k)
