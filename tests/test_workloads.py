"""Every workload: its passes, its numbers, and what it loses without the laws it rests on."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq.demo.workloads import WORKLOADS, Workload, named
from redfuser_eq.device import device
from redfuser_eq.experiments import stream_axis
from redfuser_eq.plan import Plan, plan
from redfuser_eq.rules import NAMED, RuleSet
from redfuser_eq.trace import trace

ROUNDING = ("fp8 quantise -> linear", "fp8 quantise -> linear, fast", "fp8 quantise -> linear, power of two")
NEGATIVES = [(w, theme) for w in WORKLOADS for theme in w.themes]

every_workload = pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.name)


@cache
def planned(w: Workload, rules: RuleSet) -> Plan:
    return plan(trace(w.function, w.shapes(), {}).program, rules, device(None), verify="raise", budget=None)


def passes(w: Workload, p: Plan) -> tuple[int, int]:
    return p.report.passes[stream_axis(p.program, *w.stream)]


def rng(w: Workload) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(w.name.encode()))


def leaves(result: Any) -> list[Any]:
    if isinstance(result, dict):
        result = tuple(result.values())
    return [np.asarray(r) for r in (result if isinstance(result, tuple) else (result,))]


def assert_right(w: Workload, rules: RuleSet) -> None:
    arrays = w.example(rng(w), small=True)
    got = leaves(rf.optimize(w.function, rules=rules, target="numpy", verify="raise")(*arrays))
    if w.name in ROUNDING:  # the written-out float32 code: its roundings to float8 are the right ones
        want, tolerance = leaves(w.function(*arrays)), 0.1 if w.numerics == "fast" else 1e-5
    else:
        want, tolerance = leaves(w.exact(arrays)), 2e-5
    assert len(got) == len(want)
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        if e.dtype.kind in "iu":
            np.testing.assert_array_equal(g, e)
        else:
            assert np.isfinite(g).all()
            assert np.max(np.abs(g - e)) <= tolerance * max(1.0, np.max(np.abs(e)))


@every_workload
def test_passes(w: Workload) -> None:
    p = planned(w, NAMED[w.numerics])
    assert passes(w, p) == (w.before, w.after), p.report.reason
    assert p.report.saturated
    assert p.report.rows < 20_000
    assert p.report.fused == any(after < before for before, after in p.report.passes.values())


@every_workload
def test_right(w: Workload) -> None:
    assert_right(w, NAMED[w.numerics])


@pytest.mark.parametrize(("w", "theme"), NEGATIVES, ids=[f"{w.name} without {theme}" for w, theme in NEGATIVES])
def test_not_found_without_its_laws(w: Workload, theme: str) -> None:
    p = planned(w, NAMED[w.numerics] - {theme})
    assert passes(w, p)[1] > w.after
    assert p.report.saturated
    assert p.report.reason


@pytest.mark.parametrize("w", [w for w in WORKLOADS if w.themes], ids=lambda w: w.name)
def test_right_without_its_laws(w: Workload) -> None:
    assert_right(w, NAMED[w.numerics] - set(w.themes))


@pytest.mark.parametrize("name", ["attention without the max", "logsumexp without the max", "softmax without the max, weighted sum"])
def test_naive_exponentials_do_not_overflow(name: str) -> None:
    w = named(name)
    arrays = tuple(a * np.float32(1000) if n == 0 else a for n, a in enumerate(w.example(rng(w), small=True)))
    with np.errstate(all="ignore"):
        assert not np.isfinite(w.function(*arrays)).all()
    got = rf.optimize(w.function, target="numpy", verify="raise")(*arrays)
    assert np.isfinite(got).all()


def test_quantised_values_are_bit_equal_by_default() -> None:
    w = named("fp8 quantise -> linear")

    def quantised(x: Any) -> Any:
        return (x / (np.max(np.abs(x), axis=-1, keepdims=True) / 448.0)).astype("float8_e4m3fn")

    x, _ = w.example(rng(w), small=True)
    got = rf.optimize(quantised, target="numpy", verify="raise")(x)
    np.testing.assert_array_equal(got.view(np.uint8), quantised(x).view(np.uint8))


def test_sizes_of_examples() -> None:
    w = named("attention, grouped queries")
    q, k, v = w.example(rng(w), small=True)
    assert q.shape[1] == 2 * k.shape[1] and k.shape[2] == v.shape[2] < 64
    assert [a.shape for a in w.shapes()] == [a.shape for a in w.example(rng(w))]
    assert all(a.nbytes and not any(a.strides) for a in w.shapes())


def test_named_asks_for_one() -> None:
    assert named("variance").name == "variance"
    assert named("covariance").name == "covariance of two columns"
    with pytest.raises(ValueError, match="several have"):
        named("attention,")
    with pytest.raises(ValueError, match="none has"):
        named("quicksort")
