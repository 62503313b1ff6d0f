"""Extraction: the accumulators that come out, in scope, and what is left where nothing fuses."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from redfuser_eq import cascade, reference
from redfuser_eq.demo.workloads import WORKLOADS
from redfuser_eq.device import device
from redfuser_eq.expr import Acc, Index, Load, Prev, Reduce, nodes
from redfuser_eq.plan import Plan, plan
from redfuser_eq.rules import NAMED
from redfuser_eq.trace import trace
from redfuser_eq.validate import random_arrays, small_extents

every_workload = pytest.mark.parametrize("name", [w.name for w in WORKLOADS])


@cache
def planned(name: str) -> Plan:
    w = next(w for w in WORKLOADS if w.name == name)
    return plan(trace(w.function, w.shapes()).program, NAMED[w.numerics], device(None), verify="raise", budget=None)


# Accumulators by operation, and how many of them are rebased, of the one pass.
EXPECTED = {
    "logsumexp": ({"max": 1, "sum": 1}, 1),
    "variance": ({"sum": 4}, 2),  # sum, count; M2 and the sum of deviations
    "standard deviation": ({"sum": 4}, 2),
    "attention": ({"max": 1, "sum": 2}, 2),
    "attention, 2-D": ({"max": 1, "sum": 2}, 2),
    "attention, sink": ({"max": 1, "sum": 2}, 2),
    "entropy of softmax": ({"max": 1, "sum": 2}, 2),
    "softmax-weighted mean and variance": ({"max": 1, "sum": 4}, 4),
    "KL of two softmaxes": ({"max": 2, "sum": 3}, 3),
    "LayerNorm -> linear": ({"sum": 7}, 3),
    "RMSNorm -> linear": ({"sum": 3}, 0),
    "cosine similarity": ({"sum": 3}, 0),
    "MoE routing: softmax, top-8": ({"max": 1, "sum": 1, "top_values": 1}, 1),
    "cross-entropy from hidden states": ({"max": 1, "sum": 2}, 1),
    "k-means assignment": ({"argmin": 1}, 0),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_accumulators(name: str) -> None:
    c = planned(name).cascade
    (p,) = c.passes
    ops, rebased = EXPECTED[name]
    assert Counter(a.op for a in p.accumulators) == ops
    assert sum(a.rebase is not None for a in p.accumulators) == rebased


@every_workload
def test_every_cascade_is_well_formed(name: str) -> None:
    c = planned(name).cascade
    cascade.check(c)
    names = [a.name for a in c.accumulators()]
    assert len(names) == len(set(names))
    read = {n for a in c.accumulators() for n in a.reads() | a.previous()}
    read |= {e.name for o in c.outputs for e in nodes(o.expr) if isinstance(e, Acc)}
    assert set(names) == read, "an accumulator that nothing reads"
    assert set(c.extents) == set(planned(name).program.extents)


@every_workload
def test_every_axis_is_bound(name: str) -> None:
    c = planned(name).cascade
    for p in c.passes:
        for a in p.accumulators:
            assert a.lift.axes <= {*a.axes, p.axis}
            assert p.axis not in a.axes
            if a.rebase is not None:
                assert a.rebase.axes <= set(a.axes)
                assert not any(isinstance(e, (Load, Index)) and p.axis in e.axes for e in nodes(a.rebase))
                assert any(isinstance(e, Prev) for e in nodes(a.rebase))
    for o in c.outputs:
        assert o.expr.axes <= set(o.axes)


@every_workload
def test_scores_are_computed_once(name: str) -> None:
    """Lifts of a pass that hold the same contraction hold the same object, so it is evaluated once."""
    for p in planned(name).cascade.passes:
        inner = [e for a in p.accumulators for e in nodes(a.lift) if isinstance(e, Reduce)]
        bodies = {str(e) for e in inner}
        assert len({id(e) for e in inner}) == len(bodies)


@pytest.mark.parametrize("name", ["attention", "LayerNorm -> linear", "softmax-weighted mean and variance", "KL of two softmaxes"])
def test_streams_in_any_tiles_and_segments(name: str) -> None:
    p, rng = planned(name), np.random.default_rng(5)
    extents = small_extents(p.program, rng)
    given = random_arrays(p.program, extents, rng)
    want = reference.evaluate(p.program, given, extents)
    for seed in range(3):
        got = reference.stream(p.cascade, given, extents, rng=np.random.default_rng(seed))
        for g, e in zip(got, want, strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-9, atol=1e-11)


def test_division_leaves_the_loop() -> None:
    """Attention divides once for each row, not once for each element."""
    c = planned("attention").cascade
    per_element = [e for a in c.accumulators() for e in nodes(a.lift) if getattr(e, "op", "") in ("div", "recip")]
    assert all(not any(isinstance(n, Acc) for n in nodes(e.args[-1])) for e in per_element)
    assert any(getattr(e, "op", "") in ("div", "recip") for o in c.outputs for e in nodes(o.expr))


def test_counts_are_reductions() -> None:
    """The number of elements is an accumulator, so that its value on a prefix is the prefix's."""
    c = planned("variance").cascade
    ones = [a for a in c.accumulators() if not a.lift.axes and not a.axes]
    assert [a.op for a in ones] == ["sum"]


def test_independent_reductions_share_a_pass() -> None:
    def f(x: Any) -> Any:
        return np.sum(x, -1), np.max(x, -1), np.min(x, -1), np.argmax(x, -1), np.any(x > 1, -1), np.prod(x, -1)

    x = np.broadcast_to(np.float32(0), (8, 100))
    c = plan(trace(f, (x,)).program, NAMED["default"], device(None), verify="raise", budget=None).cascade
    (p,) = c.passes
    assert {a.op for a in p.accumulators} == {"sum", "max", "min", "argmax", "any", "prod"}
