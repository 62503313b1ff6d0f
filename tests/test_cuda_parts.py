"""Warps along the stream: few rows, the block's parts merged through shared memory, on the emulator against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import numpy as np
import pytest
from emulated import Run, run
from emulator import SCHEDULES, Schedule
from test_cuda_mma import A100, EXACT, F16, H200, check, some, transposed, workload

from redfuser_eq.codegen import kernel as ir
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.expr import Expr, Load, Map, Source, transform
from redfuser_eq.gpu import Gpu

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
FEW: dict[str, dict[str, int]] = {
    "decode": {"h": 2, "j": 300, "e": 24, "d": 40},
    "attention_gqa": {"b": 1, "i": 1, "r": 5, "j": 300},
    "attention_bias": {"h": 1, "i": 7, "j": 300},
    "attention_window": {"h": 1, "i": 40, "j": 300},
    "attention_causal": {"h": 1, "i": 17, "j": 300},
    "mla": {"b": 1, "h": 11, "j": 300, "e": 272},
    "linear_logsumexp": {"r": 5, "v": 300, "h": 40},
    "rms_linear": {"r": 3, "k": 300, "n": 40},
    "kmeans": {"i": 9, "j": 300},
    "routing": {"i": 9, "j": 300},
}


def parts(r: Run) -> int:
    return max(p.place.parts for p in r.kernel.phases if p.place is not None)


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("name", FEW)
def test_few_rows(name: str, gpu: Gpu) -> None:
    r = check(workload(name), FEW[name], EXACT.get(name, 6e-3), gpu=gpu, choice={"groups": False})
    assert parts(r) > 1


@pytest.mark.parametrize("order", some([SCHEDULES[i] for i in (0, 3, 4)], [SCHEDULES[i] for i in (1, 2, 5, 6, 7)]), ids=str)
@pytest.mark.parametrize("name", ["decode", "attention_window"])
def test_any_order_of_threads_and_copies(name: str, order: Schedule) -> None:
    check(workload(name), FEW[name] | {"h": 1}, order=order, seed=order.seed, choice={"depth": 16})


@pytest.mark.parametrize("number", [2, 4, 8])
@pytest.mark.parametrize("keys", [257, 300])
def test_numbers_of_parts(number: int, keys: int) -> None:
    """The last tile leaves some parts without an element."""
    r = check(workload("attention_gqa", F16, F16), FEW["attention_gqa"] | {"j": keys}, seed=keys, choice={"parts": number, "depth": 16})
    assert parts(r) == number


@pytest.mark.parametrize("name", ["decode", "attention_gqa", "kmeans", "routing", "linear_logsumexp"])
def test_parts_of_segments(name: str) -> None:
    choice = {"segment": 64, "depth": 16, "parts": 4, "groups": False}
    r = check(workload(name), FEW[name], EXACT.get(name, 6e-3), choice=choice, arrange=transposed)
    assert parts(r) == 4 and any(p.name == "merge" for p in r.kernel.phases)


def test_parts_that_see_only_minus_infinity() -> None:
    """A part whose elements are all -inf changes nothing; a row of nothing else is flagged."""
    w, extents = workload("attention_bias"), {**workload("attention_bias").extents, **FEW["attention_bias"]}
    b, k, q, v = w.make(np.random.default_rng(5), extents)
    b[0, 2, 16:] = -np.inf
    b[0, 4] = -np.inf
    r = run(w.cascade, [b, k, q, v], extents, choice={"depth": 16, "parts": 4})
    assert parts(r) == 4 and r.flags[0, 4] == 1 and r.flags.sum() == 1
    with np.errstate(invalid="ignore"):
        want = w.expected(*(a.astype(np.float64) for a in (b, k, q, v)))[0]
    np.testing.assert_allclose(np.delete(r.outputs[0].astype(float), 4, 1), np.delete(want, 4, 1), atol=6e-3)


def test_a_boolean_mask_of_few_rows() -> None:
    """The summary says of each part's own tile whether the mask leaves anything; parts go on at different times."""
    w = workload("attention_causal")
    extents = w.extents | {"h": 1, "i": 9, "j": 300}
    (p,) = w.cascade.passes

    def other(e: Expr) -> Expr:
        return transform(e, lambda x: Load("t", ("j",), bool) if isinstance(x, Map) and x.op == "le" else None)

    accs = tuple(replace(a, lift=other(a.lift)) for a in p.accumulators)
    c = replace(w.cascade, passes=(replace(p, accumulators=accs),), sources=(*w.cascade.sources, Source("t", 3, np.dtype(bool), 1)))
    rng = np.random.default_rng(4)
    k, q, v = w.make(rng, extents)
    t = rng.random(300) < 0.7
    t[16:48], t[100:200], t[290:] = False, False, False
    z = np.einsum("hie,hje->hij", q.astype(np.float64), k.astype(np.float64)) * 0.25
    want = cascades.softmax64(np.where(t, z, -np.inf)) @ v.astype(np.float64)
    for order in (SCHEDULES[0], SCHEDULES[4]):
        r = run(c, [k, q, v, t], extents, choice={"depth": 16, "parts": 4, "segment": 0}, order=order)
        assert parts(r) == 4 and next(s for ph in r.kernel.phases for s in ir.statements(ph.body) if isinstance(s, ir.Skip)).summary
        np.testing.assert_allclose(r.outputs[0].astype(float), want, atol=6e-3)


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    w = workload("attention_gqa")
    extents = w.extents | FEW["attention_gqa"] | {"b": 3}
    arrays = w.make(np.random.default_rng(2), extents)
    together = run(w.cascade, arrays, extents).outputs[0]
    alone = run(w.cascade, [a[1:2] for a in arrays], extents | {"b": 1}).outputs[0]
    np.testing.assert_array_equal(together[1:2], alone)


def test_long_streams_are_cut_into_segments_by_their_length_alone() -> None:
    def segments(b: int, j: int) -> Any:
        w = workload("attention_gqa")
        k = schedule(w.cascade, w.extents | {"b": b, "g": 8, "r": 8, "i": 1, "j": j, "e": 128, "d": 128}, {}, H200)
        return [g.step for p in k.phases for g in p.grid if g.axis == "@segment"]

    assert segments(1, 8192) == segments(64, 8192) != []
    assert 16 <= -(-8192 // segments(1, 8192)[0]) <= 128 and -(-131072 // segments(1, 131072)[0]) <= 128
