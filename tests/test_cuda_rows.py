"""Streaming rows as CUDA, on the emulator, against float64: shapes, strides, dtypes, merges, values that are not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import ml_dtypes
import numpy as np
import pytest
from emulator import Schedule

from redfuser_eq.cascade import Accumulator, Cascade, Pass
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.codegen.kernel_check import check as check_kernel
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Cast, Index, Load, Map, Output, Source
from redfuser_eq.gpu import GPUS

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulated import Run, error, run

ROWS = ("logsumexp", "logsumexp_axis0", "softmax", "entropy", "kl", "variance", "weighted_variance", "softmax_variance", "covariance",
        "several", "plain_monoids", "total_variance")  # fmt: skip
DESC, RANDOM = Schedule("desc", lazy=False), Schedule("pct", seed=5)
F32 = np.dtype(np.float32)


def check(w: cascades.Workload, extents: dict[str, int] | None = None, seed: int = 0, tolerance: float = 2e-6, **options: Any) -> Run:
    extents = extents or w.extents
    arrays = w.make(np.random.default_rng(seed), extents)
    r = run(options.pop("cascade", w.cascade), arrays, extents, choice={"form": "rows"} | options.pop("choice", {}), **options)
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        assert error(got, want) < tolerance
    assert not r.flags.any()
    return r


# ---- forms
@pytest.mark.parametrize("name", ROWS)
def test_fused(name: str) -> None:
    check(cascades.WORKLOADS[name](), order=DESC)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(cascades.WORKLOADS))
@pytest.mark.parametrize("which", ["cascade", "plain"])
def test_every_workload_has_this_form(name: str, which: str) -> None:
    w = cascades.WORKLOADS[name]()
    check(w, cascade=getattr(w, which), order=RANDOM, tolerance=2e-5)


@pytest.mark.parametrize("group", [1, 4, 32, 64, 256])
def test_any_number_of_threads_a_row(group: int) -> None:
    check(cascades.softmax_variance(), {"r": 3, "k": 1100}, choice={"group": group, "elems": 4}, order=RANDOM)


@pytest.mark.parametrize("name", ["entropy", "weighted_variance", "several", "plain_monoids", "logsumexp_axis0"])
def test_segments_merge(name: str) -> None:
    r = check(cascades.WORKLOADS[name](), {"r": 5, "k": 700}, choice={"segment": 64, "group": 8, "elems": 8}, order=DESC)
    assert r.kernel.phases[-1].name == "merge" and len(r.program.launches) == 2


@pytest.mark.parametrize("name", ["softmax", "total_variance"])
def test_outputs_along_rows_that_are_cut(name: str) -> None:
    """Segments, their merge, and a phase that writes along the rows."""
    w = cascades.WORKLOADS[name]()
    r = check(w, w.extents | {"k": 701}, choice={"segment": 64, "group": 8, "elems": 8}, order=DESC)
    assert [p.name for p in r.kernel.phases] == ["over_k", "merge", "along_k"]


@pytest.mark.parametrize("k", [1, 3, 31, 64, 1000, 9001, 17000])
def test_outputs_along_the_stream(k: int) -> None:
    """Rows that fit in registers are read once, longer ones twice where they are not held elsewhere."""
    r = check(cascades.softmax(), {"r": 3, "k": k}, choice={"near": False}, order=RANDOM)
    once = [s.once for p in r.kernel.phases for s in ir.statements(p.body) if isinstance(s, ir.Fetch)]
    assert once == ([True] if k < 17000 else [False, False])


@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in ("softmax", "variance", "logsumexp_axis0"):
        check(cascades.WORKLOADS[name](), {"r": int(rng.integers(1, 70)), "k": int(rng.integers(1, 600))}, seed)


def test_an_empty_stream_leaves_the_identity() -> None:
    w = cascades.logsumexp()
    r = run(w.cascade, [np.zeros((3, 0), np.float32)], {"r": 3, "k": 0})
    assert np.all(r.outputs[0] == -np.inf) and r.flags.all()


# ---- memory
@pytest.mark.parametrize("kind", ["transposed", "reversed", "spread", "offset", "expanded"])
def test_strides(kind: str) -> None:
    w = cascades.entropy()
    extents = {"r": 4, "k": 300}
    (x,) = w.make(np.random.default_rng(3), extents)
    if kind == "transposed":
        x = np.ascontiguousarray(x.T).T
    elif kind == "reversed":
        x = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    elif kind == "expanded":
        x = np.broadcast_to(x[:1], x.shape)
    else:
        room = np.full((9, 607), np.nan, np.float32)
        view = room[1:9:2, 3:603:2] if kind == "spread" else room[1:9:2, 5:305]
        view[...] = x
        x = view
    r = run(w.cascade, [x], extents)
    assert error(r.outputs[0], w.expected(x.astype(np.float64))[0]) < 2e-6 and not r.flags.any()


def test_outputs_with_strides() -> None:
    w = cascades.softmax()
    extents = {"r": 5, "k": 77}
    (x,) = w.make(np.random.default_rng(4), extents)
    for out in (np.empty((77, 5), np.float32).T, np.empty((5, 200), np.float32)[:, 1:78], np.empty((5, 231), np.float32)[:, ::3]):
        r = run(w.cascade, [x], extents, out=[out])
        assert error(r.outputs[0], w.expected(x.astype(np.float64))[0]) < 2e-6


# ---- dtypes
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=["f16", "bf16", "f64"])
@pytest.mark.parametrize("name", ["logsumexp", "variance"])
def test_dtypes(name: str, dtype: Any) -> None:
    check(getattr(cascades, name)(np.dtype(dtype)), {"r": 4, "k": 520}, tolerance={2: 1e-2, 8: 1e-13}[np.dtype(dtype).itemsize])


TYPES = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.bool_, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_sums_and_copies_of_every_dtype(dtype: Any) -> None:
    """A sum, and each element converted and converted back."""
    d = np.dtype(dtype)
    x = np.random.default_rng(8).integers(0, 2 if d.kind == "b" else 100, (3, 75)).astype(d)
    e = Load("x", ("r", "k"), d)
    wide = np.dtype(np.float32 if d.itemsize < 4 else np.float64)
    total = Accumulator("n", "sum", ("r",), wide, Cast(e, wide))
    back = Cast(Map("add", (Cast(e, wide), Cast(Acc("n", frozenset("r"), wide), wide))), d if d.kind != "b" else wide)
    outs = (Output(Acc("n", frozenset("r"), wide), (("r",),), wide), Output(back, (("r",), ("k",)), back.dtype))
    c = Cascade((Source("x", 0, d, 2),), (Pass("k", (total,)),), outs, {"r": None, "k": None})
    small = x if d.itemsize > 1 and d.kind in "iu" else (x.astype(np.float64) * 0 + 1).astype(d)
    small = small if d.itemsize > 2 else (small.astype(np.float64) * 0.2).astype(d) if d.kind == "V" else small
    r = run(c, [small], {"r": 3, "k": 75})
    want = small.astype(np.float64).sum(1)
    assert np.array_equal(r.outputs[0], want.astype(wide))
    shifted = (small.astype(wide) + r.outputs[0][:, None]).astype(back.dtype)
    assert np.array_equal(r.outputs[1].astype(np.float64), shifted.astype(np.float64))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=["e4m3", "e5m2"])
def test_rounding_to_eight_bits(dtype: Any) -> None:
    d = np.dtype(dtype)
    rng = np.random.default_rng(9)
    x = (rng.standard_normal((2, 400)) * np.exp(rng.uniform(-12, 7, (2, 400)))).astype(np.float32)
    x[0, :6] = 464, 480, 1e9, -1e9, np.nan, 0
    e = Load("x", ("r", "k"))
    top = Accumulator("m", "max", ("r",), F32, e)
    cast = Output(Cast(e, d), (("r",), ("k",)), d)
    outs = (Output(Acc("m", frozenset("r"), F32), (("r",),), F32), cast)
    c = Cascade((Source("x", 0, F32, 2),), (Pass("k", (top,)),), outs, {"r": None, "k": None})
    r = run(c, [x], {"r": 2, "k": 400})
    np.testing.assert_array_equal(r.outputs[1].astype(np.float32), x.astype(d).astype(np.float32))
    assert r.flags.tolist() == [1, 0] and np.isnan(r.outputs[0][0])


# ---- values that are not finite
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 130])
def test_rows_that_are_not_finite_are_flagged_alone(bad: float, column: int) -> None:
    w = cascades.softmax()
    extents = {"r": 5, "k": 133}
    (x,) = w.make(np.random.default_rng(6), extents)
    x[1] = -np.inf if bad == -np.inf else x[1]
    x[1, column] = bad
    r = run(w.cascade, [x], extents)
    assert r.flags.tolist() == [0, 1, 0, 0, 0]
    clean = np.delete(np.arange(5), 1)
    assert error(r.outputs[0][clean], w.expected(x.astype(np.float64))[0][clean]) < 2e-6


@pytest.mark.parametrize("choice", [{}, {"segment": 128, "group": 16, "elems": 4}], ids=str)
def test_threads_and_segments_that_see_only_minus_infinity_are_neutral(choice: dict[str, Any]) -> None:
    w = cascades.entropy()
    x = np.full((3, 700), -1e30, np.float32)
    x[:, 600:] = np.random.default_rng(8).standard_normal((3, 100))
    x[:, :600:2] = -np.inf
    lse = run(cascades.logsumexp().cascade, [x], {"r": 3, "k": 700}, choice=choice)
    assert error(lse.outputs[0], cascades.lse64(x[:, 600:].astype(np.float64))) < 1e-6 and not lse.flags.any()
    x[:, :600] = -1e30
    r = run(w.cascade, [x], {"r": 3, "k": 700}, choice=choice)
    assert error(r.outputs[0], w.expected(x[:, 600:].astype(np.float64))[0]) < 1e-6


def test_a_score_is_computed_once() -> None:
    """logsumexp(x * third) at 7e9: were the product contracted with the subtraction, exp would overflow."""
    x = np.array([[7e9, 1e9, -3e9] * 30], np.float32)
    third = Map("mul", (Load("x", ("r", "k")), Load("c", ())))
    m = Accumulator("m", "max", ("r",), F32, third)
    one = Acc("m", frozenset("r"))
    s = Accumulator("s", "sum", ("r",), F32, Map("exp", (Map("sub", (third, one)),)))
    out = Output(Acc("s", frozenset("r")), (("r",),), F32)
    sources = (Source("x", 0, F32, 2), Source("c", 1, F32, 0))
    c = Cascade(sources, (Pass("k", (m,)), Pass("k", (s,))), (out,), {"r": None, "k": None})
    r = run(c, [x, np.array(1 / 3, np.float32)], {"r": 1, "k": 90})
    assert r.outputs[0].item() == 30.0


# ---- lists and places
def winner(op: str, x: np.ndarray[Any, Any], choice: dict[str, Any]) -> Run:
    best = Accumulator("best", op, ("r",), F32, Load("x", ("r", "k")))
    out = Output(Acc("best", frozenset("r"), np.int64, "index"), (("r",),), np.dtype(np.int64))
    c = Cascade((Source("x", 0, F32, 2),), (Pass("k", (best,)),), (out,), {"r": None, "k": None})
    return run(c, [x], {"r": x.shape[0], "k": x.shape[1]}, choice=choice, order=RANDOM)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("choice", [{}, {"segment": 32, "group": 4, "elems": 4}, {"group": 64, "elems": 4}], ids=str)
def test_ties_go_to_the_first(op: str, choice: dict[str, Any]) -> None:
    x = np.random.default_rng(9).integers(0, 4, (20, 150)).astype(np.float32)
    assert np.array_equal(winner(op, x, choice).outputs[0], getattr(np, op)(x, axis=1))
    x[3, [70, 140]] = np.nan
    r = winner(op, x, choice)
    assert r.flags.tolist() == [int(i == 3) for i in range(20)] and r.outputs[0][3] == 70


@pytest.mark.parametrize("choice", [{}, {"segment": 32, "group": 4, "elems": 4}, {"group": 64}], ids=str)
@pytest.mark.parametrize("k", [1, 6])
def test_top_k_ties_go_to_the_first(choice: dict[str, Any], k: int) -> None:
    x = np.random.default_rng(10).integers(0, 5, (7, 150)).astype(np.float32)
    x[2, 3:] = -np.inf
    best = Accumulator("best", "top_values", ("r",), F32, Load("x", ("r", "k")), None, k, "t")
    fields = ((np.float32, "value"), (np.int64, "index"))
    outs = [Output(Acc("best", frozenset("rt"), d, f), (("r",), ("t",)), np.dtype(d)) for d, f in fields]
    c = Cascade((Source("x", 0, F32, 2),), (Pass("k", (best,)),), tuple(outs), dict.fromkeys("rkt"))
    r = run(c, [x], {"r": 7, "k": 150, "t": k}, choice=choice, order=DESC)
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    assert np.array_equal(r.outputs[1], order) and np.array_equal(r.outputs[0], np.take_along_axis(x, order, 1))


def test_positions_in_a_lift() -> None:
    """sum_k x[k] * k over the second axis of three, the rows read through a stride."""
    x = np.random.default_rng(11).integers(-9, 9, (3, 50, 4)).astype(np.float32)
    lift = Map("mul", (Load("x", ("a", "k", "b")), Cast(Index("k"), F32)))
    n = Accumulator("n", "sum", ("a", "b"), F32, lift)
    out = Output(Acc("n", frozenset("ab")), (("a",), ("b",)), F32)
    c = Cascade((Source("x", 0, F32, 3),), (Pass("k", (n,)),), (out,), dict.fromkeys("akb"))
    r = run(c, [x], {"a": 3, "k": 50, "b": 4})
    assert np.array_equal(r.outputs[0], (x * np.arange(50)[:, None]).sum(1))
    assert r.kernel.phases[0].place is not None and r.kernel.phases[0].place.along == "row"


# ---- independence
@pytest.mark.parametrize("name", ["entropy", "several", "softmax"])
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    (x,) = w.make(np.random.default_rng(11), {"r": 20, "k": 3001})
    whole = run(w.cascade, [x], {"r": 20, "k": 3001}).outputs
    alone = run(w.cascade, [x[17:18].copy()], {"r": 1, "k": 3001}).outputs
    assert all(np.array_equal(a[17:18], b) for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_threads_changes_nothing(seed: int) -> None:
    w = cascades.several()
    arrays = w.make(np.random.default_rng(12), w.extents)
    first = run(w.cascade, arrays, w.extents).outputs
    again = run(w.cascade, arrays, w.extents, order=Schedule("pct", seed=seed)).outputs
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_another_batch_or_length_is_the_same_source() -> None:
    w = cascades.logsumexp()
    arrays = [w.make(np.random.default_rng(13), {"r": r, "k": k}) for r, k in ((3, 20000), (9, 20003))]
    a, b = (run(w.cascade, x, {"r": x[0].shape[0], "k": x[0].shape[1]}) for x in arrays)
    assert a.program.key == b.program.key and a.kernel.key == b.kernel.key


# ---- the grammar
PLACES = (ir.Place("rows", 8, group=512), ir.Place("rows", 64), ir.Place("rows", 4, elems=6, vector=4), ir.Place("?", 1))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_block_that_cannot_be_is_refused(place: ir.Place) -> None:
    w = cascades.logsumexp()
    kernel = schedule(w.cascade, w.extents, {}, GPUS["h200"])
    with pytest.raises(IRError, match="no block has the place"):
        check_kernel(replace(kernel, phases=(replace(kernel.phases[0], place=place),)))


def test_a_statement_without_a_form_is_refused() -> None:
    w = cascades.logsumexp()
    kernel = schedule(w.cascade, w.extents, {}, GPUS["h200"])
    pack = ir.Pack("x", Load("x", ("r", "k")), "k")
    with pytest.raises(IRError, match="Pack has no place in rows"):
        emit(replace(kernel, phases=(replace(kernel.phases[0], body=(pack,)),)), GPUS["h200"])
    with pytest.raises(IRError, match="no place on a GPU"):
        emit(replace(kernel, phases=(replace(kernel.phases[0], place=None),)), GPUS["h200"])


def test_the_source_names_the_laws_and_includes_nothing() -> None:
    w = cascades.entropy()
    text = emit(schedule(w.cascade, w.extents, {}, GPUS["h200"]), GPUS["h200"]).text
    assert all(f"/* {a.name}: {a.op} of " in text for a in w.cascade.accumulators()) and "#include" not in text


@pytest.mark.parametrize("name", ["softmax_variance", "softmax", "total_variance"])
def test_segments_of_several_passes(name: str) -> None:
    """Each pass has its own segments and reads the merged states of those before it."""
    w = cascades.WORKLOADS[name]()
    extents = {a: 700 if a == "k" else min(n, 5) for a, n in w.extents.items()}
    r = check(w, extents, cascade=w.plain, choice={"segment": 64, "group": 8, "elems": 8}, order=DESC)
    merges = [p for p in r.kernel.phases if p.name == "merge"]
    assert len(merges) == len(w.plain.passes) > 1
