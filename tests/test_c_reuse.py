"""Values that several sweeps share, and outputs along the stream: in scratch, moved to the final parameters, past the caches."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from typing import Any

import cascades
import numpy as np
import pytest
from native import error, run

import redfuser_eq as rf
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.expr import Acc, Const, Index, Load, Map, nodes
from redfuser_eq.reuse import movable, shared
from redfuser_eq.roles import classify, compute_type
from redfuser_eq.runtime import cpu as backend
from redfuser_eq.runtime.device import cpu
from redfuser_eq.schedule import schedule

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
OWN = cpu()
TINY = replace(OWN, l3=0)  # every output is larger than the caches


def sweeps(kernel: ir.Kernel) -> list[ir.Sweep]:
    return [s for p in kernel.phases for s in ir.statements(p.body) if isinstance(s, ir.Sweep)]


def softmax64(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("device", [OWN, TINY, cpu("scalar"), replace(cpu("generic"), l3=0)], ids=["own", "past", "scalar", "generic"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 511), (4, 1025), (2, 3001), (33, 130)])
def test_softmax_moves_saved_exponentials(device: Any, shape: tuple[int, int]) -> None:
    w = cascades.softmax()
    rng = np.random.default_rng(shape[1])
    x = (rng.standard_normal(shape) * 8 + np.linspace(-60, 60, shape[1])).astype(np.float32)  # the maximum moves at every tile
    r = run(w.cascade, [x], {"r": shape[0], "k": shape[1]}, device=device, choice={"depth": 64})
    assert error(r.outputs[0], softmax64(x)) < 2e-5
    assert any(isinstance(s, ir.Recall) for p in r.kernel.phases for s in ir.statements(p.body))
    assert any(s.past_cache for s in sweeps(r.kernel)) == (device.l3 == 0)


@pytest.mark.parametrize("skew", range(18))
def test_stores_past_the_cache_from_any_address(skew: int) -> None:
    """The output begins anywhere in a cache line, rows too; nothing is written outside it. skew in quarters of a number: an
    address that is no multiple of 4 has no whole line."""
    w = cascades.softmax()
    rows, k = 3, 301
    x = np.random.default_rng(skew).standard_normal((rows, k)).astype(np.float32)
    kernel = schedule(w.cascade, {"r": rows, "k": k}, {}, TINY, 1, {"depth": 64})
    assert any(s.past_cache for s in sweeps(kernel))
    build = backend.kernel_build(kernel, TINY)
    offset = skew * 4 if skew < 16 else skew - 15
    size = rows * k * 4
    memory = np.full(size + 256, 0xA5, np.uint8)
    flags = np.zeros(rows, np.uint8)
    ins = (ctypes.c_void_p * 1)(x.ctypes.data)
    outs = (ctypes.c_void_p * 2)(memory.ctypes.data + 64 + offset, flags.ctypes.data)
    extents = {"r": rows, "k": k}
    sizes = np.array([extents[a[1]] if a[0] == "extent" else (k, 1)[a[2]] for a in kernel.args], np.int64)
    assert build.function(ctypes.addressof(ins), ctypes.addressof(outs), sizes.ctypes.data, 1) == 0
    got = np.frombuffer(memory[64 + offset : 64 + offset + size].tobytes(), np.float32).reshape(rows, k)
    assert error(got, softmax64(x)) < 2e-5
    assert (memory[: 64 + offset] == 0xA5).all() and (memory[64 + offset + size :] == 0xA5).all()


@pytest.mark.parametrize("lanes", ["stream", "row"])
def test_a_level_takes_over_what_an_earlier_one_computed(lanes: str) -> None:
    w = cascades.softmax_variance()
    arrays = w.make(np.random.default_rng(3), w.extents)
    r = run(w.cascade, arrays, w.extents, choice={"lanes": lanes, "depth": 16})
    saved = {target for s in sweeps(r.kernel) for target, _ in s.stores if target.startswith("saved")}
    assert saved
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        assert error(got, want) < 2e-5


def test_what_is_shared_reads_only_what_is_final() -> None:
    w = cascades.softmax_variance()
    (p,) = w.cascade.passes
    lifts = {a.name: a.lift for a in p.accumulators}
    levels = [[a.name for a in level] for level in classify(p).levels]
    for n, e in shared(levels, lifts, [], p.axis, frozenset()):
        later = {x for names in levels[n:] for x in names}
        assert not {x.name for x in nodes(e) if isinstance(x, Acc)} & later


def test_a_value_moves_only_by_the_law_of_its_own_sum() -> None:
    w = cascades.softmax()
    (p,) = w.cascade.passes
    lifts = {a.name: a.lift for a in p.accumulators}
    rebases = {a.name: a.rebase for a in p.accumulators if a.rebase is not None}
    total = next(a for a in p.accumulators if a.op == "sum")
    found = movable(total.lift, p.accumulators, lifts, rebases)
    assert found is not None and not isinstance(found, Const)
    assert movable(total.lift, p.accumulators, lifts, {}) is None
    other = Map("mul", (total.lift, total.lift), total.lift.dtype)
    assert movable(other, p.accumulators, lifts, rebases) is None


# ---- integers that only meet positions
I64 = np.dtype(np.int64)


def plus(label: Load, by: Load | int, op: str = "add") -> Map:
    return Map(op, (label, Const(by, I64) if isinstance(by, int) else by), I64)


def wrapped(label: Load) -> Map:
    return Map("where", (Map("lt", (label, Const(0, I64)), np.dtype(bool)), plus(label, 50257), label), I64)


@pytest.mark.parametrize(
    ("build", "n", "real"),
    [
        (lambda label: Map("eq", (label, Index("k"))), 50257, "float"),
        (lambda label: Map("eq", (wrapped(label), Index("k"))), 50257, "float"),
        (lambda label: Map("eq", (plus(label, 1 << 24), Index("k"))), 50257, "double"),
        (lambda label: Map("eq", (label, Index("k"))), 1 << 25, "double"),
        (lambda label: Map("eq", (plus(label, 2, "mul"), Index("k"))), 50257, "double"),
        (lambda label: Map("eq", (plus(label, label), Index("k"))), 50257, "double"),
    ],
)
def test_labels_need_no_doubles(build: Any, n: int, real: str) -> None:
    """Rounding is monotone: a label that float32 cannot hold is beyond every position, also after a constant was added."""
    w = cascades.WORKLOADS["logsumexp"]()
    label = Load("label", ("r",), np.dtype(np.int64))
    (p,) = w.cascade.passes
    first = p.accumulators[0]
    condition = build(label)
    lift = Map("where", (Map(condition.op, condition.args, np.dtype(bool)), first.lift, Const(0.0, np.dtype(np.float32))), first.lift.dtype)
    chosen = replace(first, name="chosen", op="sum", lift=lift, rebase=None)
    c = replace(w.cascade, passes=(replace(p, accumulators=(*p.accumulators, chosen)),))
    assert compute_type(c, {"r": 4, "k": n}) == real


def test_a_factor_that_could_overflow_stays_outside_the_product() -> None:
    a, b = np.full((20, 24), 2.0**115, np.float32), np.full((30, 24), 2.0**-110, np.float32)
    for f in (lambda a, b: (a @ b.T) * np.float32(2**20), lambda a, b: (a @ b.T) / np.float32(2**-20)):
        assert (rf.optimize(f, target="cpu")(a, b) == np.float32(24 * 2.0**25)).all()


def test_division_by_the_least_power_of_two() -> None:
    """Its reciprocal is beyond float32."""
    least = np.float32(2.0**-149)
    x = np.array([[0, 2.0**-149, -(2.0**-140)]], np.float32)
    got = rf.optimize(lambda x: np.max(x / least, axis=0), target="cpu")(x)
    assert got.tolist() == [0, 1, -512]
