"""Decisions: what is fused, what is not, and the reasons given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq import cascade, reference
from redfuser_eq.cascade import Cascade
from redfuser_eq.cost import cost
from redfuser_eq.device import DEVICES, device
from redfuser_eq.expr import Program
from redfuser_eq.plan import Plan, dependent, plan, wait
from redfuser_eq.rules import default
from redfuser_eq.trace import trace
from redfuser_eq.validate import random_arrays, small_extents

rng = np.random.default_rng(23)


def shape(*sizes: int) -> Any:
    return np.broadcast_to(np.float32(0), sizes)


def planned(f: Any, *arrays: Any, on: str | None = None, **options: Any) -> Plan:
    return plan(trace(f, arrays).program, default, device(on), verify="raise", budget=None, **options)


def peak(x: Any) -> Any:
    return np.max(x, axis=-1, keepdims=True)


def softmax(x: Any) -> Any:
    e = np.exp(x - peak(x))
    return e / np.sum(e, axis=-1, keepdims=True)


def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ k.T) @ v


def spread(x: Any, v: Any) -> Any:
    """Mean and variance of the columns of v under the weights softmax(x)."""
    p = softmax(x)
    mean = p @ v
    return mean, np.sum(p[..., None] * (v - mean[:, None, :]) ** 2, axis=1)


def standardised(x: Any) -> Any:
    s = (x - np.mean(x, axis=-1, keepdims=True)) / np.std(x, axis=-1, keepdims=True)
    e = np.exp(s)
    return np.sum(e / np.sum(e, axis=-1, keepdims=True) * x, axis=-1)


def right(program: Program, c: Cascade) -> None:
    """The cascade computes the program, in any tiles and segments."""
    extents = small_extents(program, rng)
    arrays = random_arrays(program, extents, rng)
    want = reference.evaluate(program, arrays, extents)
    for _ in range(3):
        for g, e in zip(reference.stream(c, arrays, extents, rng=rng), want, strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-8, atol=1e-10)


# ---- reasons


def test_a_chain_that_streams_only_in_part() -> None:
    p = planned(standardised, shape(64, 512))
    r = p.report
    assert (r.passes_before, r.passes_after, r.fused) == (4, 2, True)
    assert str(r.reason).startswith("one more pass is needed for: sum over 'k' of")
    assert "exp(" in str(r.reason)
    right(p.program, p.cascade)


def test_a_chain_that_does_not_stream() -> None:
    p = planned(lambda x: np.sum(np.tanh(x * peak(x)), axis=-1), shape(64, 512))
    r = p.report
    assert (r.passes_before, r.passes_after, r.fused) == (2, 2, False)
    assert "no law of the rule set moves an earlier partial result to new parameters for: sum over 'k' of tanh(" in str(r.reason)


@pytest.mark.parametrize("f", [lambda x: np.sum(x, axis=-1), lambda x: np.exp(x) + 1, lambda x: (np.sum(x, -1), np.max(x, -1))])
def test_nothing_to_fuse(f: Any) -> None:
    r = planned(f, shape(64, 512)).report
    assert r.reason == "nothing to fuse: no reduction depends on another one over the same axis" or r.fused


def test_a_fused_program_needs_no_reason() -> None:
    assert planned(attention, shape(64, 32), shape(512, 32), shape(512, 32)).report.reason is None


def test_an_early_stop_is_a_reason() -> None:
    f = rf.optimize(attention, budget=rf.Budget(rounds=1), target="numpy", verify="raise")
    r = f.report(shape(64, 32), shape(512, 32), shape(512, 32))
    assert not r.saturated and r.stopped == "1 rounds"
    assert r.fused or "saturation stopped early at the 1 rounds" in str(r.reason)


# ---- costs


@pytest.mark.parametrize("on", DEVICES)
@pytest.mark.parametrize(("columns", "passes"), [(1, 1), (4, 1), (256, 2), (4096, 2)])
def test_wide_columns_wait(on: str, columns: int, passes: int) -> None:
    """Moving a wide second moment along costs more operations than one more sweep over the weights does."""
    p = planned(spread, shape(1024, 2048), shape(2048, columns), on=on)
    r = p.report
    assert (r.passes_before, r.passes_after) == (4, passes)
    if passes == 1:
        assert r.reason is None
    else:
        assert "fusing everything costs more than it saves: 5 accumulators" in str(r.reason)
        assert "one more pass is needed for: sum over" in str(r.reason)
        assert r.flops[1] < 1.2 * r.flops[0]
    right(p.program, p.cascade)


@pytest.mark.parametrize("on", DEVICES)
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (2, 5, 3), (1, 100_000, 128), (4096, 4096, 64), (16, 16, 512)])
def test_attention_fuses_at_every_size(on: str, m: int, n: int, d: int) -> None:
    r = planned(attention, shape(m, d), shape(n, d), shape(n, d), on=on).report
    if n > 1:
        assert (r.passes_before, r.passes_after) == (3, 1)


def test_the_chosen_program_is_never_modelled_much_slower() -> None:
    for f, arrays in ((spread, (shape(64, 300), shape(300, 64))), (standardised, (shape(64, 512),)), (softmax, (shape(64, 512),))):
        for d in DEVICES.values():
            p = plan(trace(f, arrays).program, default, d, verify=False, budget=None)
            assert cost(p.cascade, d).seconds <= 1.2 * cost(p.plain, d).seconds


def test_waiting_moves_an_accumulator_to_a_later_pass() -> None:
    p = planned(spread, shape(8, 64), shape(64, 1))
    (one,) = p.cascade.passes
    for a in one.accumulators:
        if a.rebase is None:
            continue
        moved = wait(p.cascade, a.name)
        cascade.check(moved)
        assert len(moved.passes) > 1 and {q.axis for q in moved.passes} == {one.axis}
        assert a.name not in {b.name for b in moved.passes[0].accumulators}
        assert all(b.rebase is None for b in moved.accumulators() if b.name == a.name)
        right(p.program, moved)


# ---- the report


def test_report_fields() -> None:
    r = planned(attention, shape(64, 32), shape(512, 32), shape(512, 32), traced=0.25).report
    assert set(r.seconds) == {"trace", "saturate", "extract", "validate"} and r.seconds["trace"] == 0.25
    assert r.rows > 0 and r.saturated and r.stopped == ""
    assert r.rules_fired and set(r.rules_fired) <= {rule.name for rule in default}
    assert r.accumulators == 3 and r.rule_set == "default"
    assert r.bytes[1] < r.bytes[0] and len(r.flops) == 2
    with pytest.raises(AttributeError):
        r.fused = False  # type: ignore[misc]


def test_build_time_and_target_are_reported() -> None:
    f = rf.optimize(attention, target="numpy")
    r = f.report(shape(64, 32), shape(512, 32), shape(512, 32))
    assert r.seconds["build"] >= 0 and r.target == "numpy"


def test_dependent_reductions() -> None:
    program = trace(attention, (shape(4, 3), shape(5, 3), shape(5, 2))).program
    assert [e.op for e in dependent(program)] == ["sum", "sum"]


def test_refused_forms_are_listed() -> None:
    r = planned(lambda x: np.log(np.sum(np.exp(x - peak(x)), axis=-1)), shape(64, 512)).report
    assert all("unbounded" in text for text in r.refused)
