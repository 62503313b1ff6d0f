"""Printed C against float64: every form of a schedule, odd shapes and strides, dtypes, values that are not finite."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import Any

import cascades
import ml_dtypes
import numpy as np
import pytest
from native import Run, error, run

from redfuser_eq.cascade import Accumulator, Cascade, Pass
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.c import emit
from redfuser_eq.expr import Acc, Cast, Const, Expr, Load, Map, Output, Source, rename, transform
from redfuser_eq.masks import added
from redfuser_eq.runtime.device import cpu
from redfuser_eq.schedule import schedule

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")), reason="needs a C compiler")
OWN = cpu()


def check(w: cascades.Workload, extents: dict[str, int] | None = None, seed: int = 0, tolerance: float = 2e-5, **options: Any) -> Run:
    extents = extents or w.extents
    arrays = w.make(np.random.default_rng(seed), extents)
    r = run(options.pop("cascade", w.cascade), arrays, extents, **options)
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        assert error(got, want) < tolerance
    assert not r.flags.any()
    return r


# ---- forms
@pytest.mark.parametrize("name", ["softmax_variance", "several", "plain_monoids", "attention_window", "layernorm_linear", "routing", "mla"])
def test_one_lane(name: str) -> None:
    check(cascades.WORKLOADS[name](), device=cpu("scalar"))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cascades.WORKLOADS))
@pytest.mark.parametrize("isa", ["own", "generic", "scalar"])
@pytest.mark.parametrize("which", ["cascade", "plain"])
def test_every_workload(name: str, isa: str, which: str) -> None:
    w = cascades.WORKLOADS[name]()
    device = OWN if isa == "own" else cpu(isa)
    check(w, cascade=getattr(w, which), device=device)


SMALL = {"segment": 16, "depth": 16, "rows": 16}


@pytest.mark.parametrize("name", ["entropy", "weighted_variance", "several", "routing", "decode", "mla", "kmeans", "cross_entropy"])
def test_segments_merge(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    small = {"i": 5, "r": 5} if name in ("routing", "kmeans", "cross_entropy") else {}
    r = check(w, w.extents | {a: n for a, n in small.items() if a in w.extents}, choice=SMALL)
    assert any(p.name == "merge" for p in r.kernel.phases)


@pytest.mark.parametrize("name", ["linear_logsumexp", "cross_entropy", "kmeans"])
@pytest.mark.parametrize("lanes", ["row", "stream"])
def test_the_stream_outside(name: str, lanes: str) -> None:
    r = check(cascades.WORKLOADS[name](), choice=SMALL | {"lanes": lanes, "stream_outer": True})
    assert next(p for p in r.kernel.phases if p.states).row_loop


@pytest.mark.parametrize("lanes", ["row", "stream"])
@pytest.mark.parametrize("name", ["attention", "attention_causal", "attention_bias", "attention_gqa", "kmeans", "attention_received"])
def test_either_lanes_of_a_product(name: str, lanes: str) -> None:
    check(cascades.WORKLOADS[name](), choice={"lanes": lanes, "depth": 24, "rows": 24})


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 23])
def test_every_height_of_a_register_block(rows: int) -> None:
    w = cascades.rms_linear()
    check(w, {"r": rows, "k": 37, "n": 19 + rows})


@pytest.mark.parametrize("seed", range(4))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in ("softmax", "variance", "attention", "layernorm_linear"):
        w = cascades.WORKLOADS[name]()
        extents = {a: int(rng.integers(1, 100)) if a not in "bh" else int(rng.integers(1, 3)) for a in w.extents}
        check(w, extents, seed)


# ---- memory
def strided(a: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    if kind == "transposed":
        return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if kind == "reversed":
        return np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    room = np.full([2 * n + 1 for n in a.shape], np.nan, a.dtype)
    view = room[tuple(slice(0, 2 * n, 2) for n in a.shape)]
    view[...] = a
    return view


@pytest.mark.parametrize("kind", ["transposed", "reversed", "spread"])
@pytest.mark.parametrize("name", ["entropy", "attention", "attention_bias", "rms_linear", "kmeans"])
def test_strides(name: str, kind: str) -> None:
    w = cascades.WORKLOADS[name]()
    arrays = w.make(np.random.default_rng(3), w.extents)
    want = w.expected(*(a.astype(np.float64) for a in arrays))
    moved = [strided(a, kind) if a.ndim > 1 else a for a in arrays]
    r = run(w.cascade, moved, w.extents)
    assert all(error(got, x) < 2e-5 for got, x in zip(r.outputs, want, strict=True)) and not r.flags.any()


def test_a_stride_of_zero() -> None:
    w = cascades.attention_bias()
    arrays = w.make(np.random.default_rng(4), w.extents)
    arrays[0] = np.broadcast_to(arrays[0][:1, :1], arrays[0].shape)
    r = run(w.cascade, arrays, w.extents)
    assert error(r.outputs[0], w.expected(*(a.astype(np.float64) for a in arrays))[0]) < 2e-5


@pytest.mark.parametrize("name", ["logsumexp", "attention", "rms_linear", "decode", "mla"])
def test_nothing_is_read_past_an_array(name: str) -> None:
    """NaN lies after the last element of every row; at the end of the block it would fault under a sanitizer."""
    w = cascades.WORKLOADS[name]()
    arrays = w.make(np.random.default_rng(5), w.extents)
    padded = []
    for a in arrays:
        room = np.full([*a.shape[:-1], a.shape[-1] + 9], np.nan, a.dtype)
        room[..., : a.shape[-1]] = a
        padded.append(room[..., : a.shape[-1]])
    r = run(w.cascade, padded, w.extents)
    assert error(r.outputs[0], w.expected(*(a.astype(np.float64) for a in arrays))[0]) < 2e-5 and not r.flags.any()


@pytest.mark.parametrize("lanes", ["row", "stream"])
def test_one_array_in_three_roles(lanes: str) -> None:
    """softmax(x @ x.T / 4) @ x: the axes are told apart though array and sizes are one."""
    w = cascades.attention()
    (p,) = w.cascade.passes

    def same(e: Expr) -> Expr:
        return transform(e, lambda x: Load("x", x.dims) if isinstance(x, Load) else None)

    accs = tuple(replace(a, lift=same(a.lift), rebase=None if a.rebase is None else same(a.rebase)) for a in p.accumulators)
    c = replace(w.cascade, passes=(replace(p, accumulators=accs),), sources=(Source("x", 0, np.dtype(np.float32), 4),))
    x = np.random.default_rng(20).standard_normal((2, 1, 33, 33), dtype=np.float32)
    r = run(c, [x], {"b": 2, "h": 1, "i": 33, "j": 33, "e": 33, "d": 33}, choice={"lanes": lanes})
    x = x.astype(np.float64)
    assert error(r.outputs[0], cascades.softmax64(x @ x.swapaxes(-1, -2) / 4) @ x) < 2e-5


# ---- dtypes
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=["f16", "bf16", "f64"])
@pytest.mark.parametrize("name", ["attention", "logsumexp", "variance"])
def test_dtypes(name: str, dtype: Any) -> None:
    w = getattr(cascades, name)(np.dtype(dtype))
    tolerance = {2: 1e-2, 8: 1e-13}[np.dtype(dtype).itemsize]
    check(w, tolerance=tolerance)


# ---- values that are not finite
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 40, 130])
def test_rows_that_are_not_finite_are_flagged_alone(bad: float, column: int) -> None:
    w = cascades.softmax()
    extents = w.extents | {"k": 133}
    (x,) = w.make(np.random.default_rng(6), extents)
    x[1] = -np.inf if bad == -np.inf else x[1]
    x[1, column] = bad
    r = run(w.cascade, [x], extents)
    assert r.flags.tolist() == [0, 1] + [0] * (extents["r"] - 2)
    clean = np.delete(np.arange(extents["r"]), 1)
    assert error(r.outputs[0][clean], w.expected(x.astype(np.float64))[0][clean]) < 2e-5


@pytest.mark.parametrize("where", ["k", "v"])
def test_a_value_that_is_not_finite_under_a_mask_is_not_lost(where: str) -> None:
    """Its weight is 0, and 0 * NaN is NaN: every row is flagged, whether or not its tile would have been skipped."""
    w = cascades.attention_causal()
    extents = w.extents | {"i": 200, "j": 200}
    k, q, v = w.make(np.random.default_rng(7), extents)
    (k if where == "k" else v)[0, 199, 3] = np.nan
    r = run(w.cascade, [k, q, v], extents, choice={"depth": 16, "rows": 16})
    assert not r.flags[1].any()
    if where == "v":
        assert r.flags[0].all()
    else:  # the masked score is replaced before anything is done with it
        assert r.flags[0].tolist() == [0] * 199 + [1]


@pytest.mark.parametrize("axes", ["ij", "hij", "j"])
@pytest.mark.parametrize("lanes", ["row", "stream"])
def test_a_boolean_mask_is_summarised(axes: str, lanes: str) -> None:
    """Tiles that are masked, open and mixed; V is not finite under the mask in one head."""
    w = cascades.attention_causal()
    extents = {"h": 2, "i": 70, "j": 90, "e": 16, "d": 20}
    c = cascades.masked_by_array(axes)
    rng = np.random.default_rng(21)
    k, q, v = w.make(rng, extents)
    t = rng.random([extents[a] for a in axes]) < 0.7
    t[..., :24] = True
    t[..., 24:48] = False
    r = run(c, [k, q, v, t], extents, choice={"lanes": lanes, "depth": 24, "rows": 24})
    assert next(s for ph in r.kernel.phases for s in ir.statements(ph.body) if isinstance(s, ir.Skip)).summary
    z = np.einsum("hie,hje->hij", q.astype(np.float64), k) * 0.25
    want = cascades.softmax64(np.where(np.broadcast_to(t, z.shape), z, -np.inf)) @ v
    assert error(r.outputs[0], want) < 2e-5 and not r.flags.any()
    v[1, 30, 2] = np.inf
    r = run(c, [k, q, v, t], extents, choice={"lanes": lanes, "depth": 24, "rows": 24})
    assert r.flags[1].all() and not r.flags[0].any() and error(r.outputs[0][0], want[0]) < 2e-5


@pytest.mark.parametrize("kind", ["lower", "window", "blocks", "some"])
@pytest.mark.parametrize("rows", [72, 70, 17])
def test_blocks_under_a_mask_are_not_multiplied(kind: str, rows: int) -> None:
    """Register blocks that a mask leaves nothing of, weights that begin and end with zeros; tiles that end within a block, cut
    by the mask and not; and no short cut where V is not finite."""
    w = cascades.attention_causal()
    extents = {"h": 2, "i": rows, "j": 100, "e": 16, "d": 20}
    rng = np.random.default_rng(rows)
    i, j = np.arange(rows)[:, None], np.arange(100)
    t = {
        "lower": j <= i + 30,
        "window": (j <= i + 20) & (j > i - 9),
        "blocks": (rng.random((1 + rows // 16, 17)) < 0.3).repeat(16, 0).repeat(6, 1)[:rows, :100],
        "some": rng.random((rows, 100)) < 0.1,
    }[kind]
    t[:, 0] |= ~t.any(-1)
    k, q, v = w.make(rng, extents)
    z = np.einsum("hie,hje->hij", q.astype(np.float64), k) * 0.25
    p = cascades.softmax64(np.where(t, z, -np.inf))
    choice = {"lanes": "row", "depth": 48, "rows": 48}
    r = run(cascades.masked_by_array("ij"), [k, q, v, t], extents, choice=choice)
    contracts = [s for ph in r.kernel.phases for s in ir.statements(ph.body) if isinstance(s, ir.Contract)]
    assert [(s.mask is not None, s.trim) for s in contracts] == [(True, False), (False, True)]
    assert error(r.outputs[0], p @ v) < 2e-5 and not r.flags.any()
    v[1, 7, 3] = np.nan
    r = run(cascades.masked_by_array("ij"), [k, q, v, t], extents, choice=choice)
    assert r.flags[1].all() and not r.flags[0].any() and error(r.outputs[0][0], p[0] @ v[0]) < 2e-5


@pytest.mark.parametrize("axes", ["ij", "hij", "ji"])
@pytest.mark.parametrize("lanes", ["row", "stream"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tiles_whose_bias_is_minus_infinity_are_left_out(axes: str, lanes: str, dtype: Any) -> None:
    """A bias with whole tiles of -inf, tiles with some of it, and none; then values under it that are not finite, which the sum
    does not hide: NaN - inf is NaN, as is 0 * inf."""
    w = cascades.attention_bias()
    extents = {"h": 2, "i": 70, "j": 90, "e": 16, "d": 20}
    (p,) = w.cascade.passes
    bias = Load("b", tuple(axes), np.dtype(dtype))
    wide = bias if dtype is np.float32 else Cast(bias, np.float32)
    accs = tuple(
        replace(a, lift=transform(a.lift, lambda x: wide if isinstance(x, Load) and x.source == "b" else None)) for a in p.accumulators
    )
    sources = tuple(Source("b", s.param, np.dtype(dtype), len(axes)) if s.name == "b" else s for s in w.cascade.sources)
    c = replace(w.cascade, passes=(replace(p, accumulators=accs),), sources=sources)
    rng = np.random.default_rng(23)
    b, k, q, v = w.make(rng, extents)
    low = np.zeros((2, 70, 90), bool)
    low[..., 20:50] = True
    low[..., 60:] = rng.random((30,)) < 0.5
    b = np.where(low, -np.inf, rng.standard_normal(low.shape)).astype(dtype)
    t = {"hij": b, "ij": b[0], "ji": np.ascontiguousarray(b[0].T)}[axes]
    seen = np.broadcast_to(b if axes == "hij" else b[0], b.shape)
    choice = {"lanes": lanes, "depth": 24, "rows": 24}
    r = run(c, [t, k, q, v], extents, choice=choice)
    assert any(isinstance(s, ir.Absent) for ph in r.kernel.phases for s in ir.statements(ph.body))
    want = w.expected(seen.astype(np.float64), *(x.astype(np.float64) for x in (k, q, v)))[0]
    assert error(r.outputs[0], want) < 2e-5 and not r.flags.any()
    for array, value in ((k, np.nan), (v, np.inf), (v, np.nan)):
        kept, array[1, 30, 2] = array[1, 30, 2], value
        r = run(c, [t, k, q, v], extents, choice=choice)
        assert r.flags[1].all() and not r.flags[0].any() and error(r.outputs[0][0], want[0]) < 2e-5
        array[1, 30, 2] = kept


def test_a_bias_hides_only_scores_that_are_finite() -> None:
    score, bias = Load("raw", ("i", "j"), np.float32), Load("b", ("i", "j"), np.float32)

    def sum_of(*parts: Expr) -> Expr:
        return Map("add", parts, np.float32)

    assert added(sum_of(score, bias), score, "i", "j") == (bias, set())
    assert added(sum_of(Map("exp", (score,), np.float32), bias), score, "i", "j") is None
    assert added(sum_of(Map("mul", (score, Const(1e9, np.float32)), np.float32), bias), score, "i", "j") is None
    assert added(sum_of(score, Load("b", ("j",), np.float32)), score, "i", "j") is None


def test_a_fully_masked_first_tile_is_neutral() -> None:
    w = cascades.logsumexp()
    x = np.full((3, 700), -np.inf, np.float32)
    x[:, 600:] = np.random.default_rng(8).standard_normal((3, 100))
    r = run(w.cascade, [x], {"r": 3, "k": 700}, choice={"depth": 64, "segment": 128})
    assert error(r.outputs[0], cascades.lse64(x[:, 600:].astype(np.float64))) < 1e-6 and not r.flags.any()


def test_a_score_is_computed_once() -> None:
    """softmax(x / 3) at 7e9: were the quotient rounded differently in two places, exp would overflow."""
    x = np.array([[7e9, 1e9, -3e9] * 30], np.float32)
    w = cascades.attention()
    e = w.extents | {"b": 1, "h": 1, "i": 1, "j": 90, "e": 1, "d": 1}
    k, q, v = x.reshape(1, 1, 90, 1), np.full((1, 1, 1, 1), 4 / 3, np.float32), np.ones((1, 1, 90, 1), np.float32)
    r = run(w.cascade, [k, q, v], e)
    assert r.outputs[0].item() == 1.0


def winner(op: str, x: np.ndarray[Any, Any], choice: dict[str, Any]) -> Run:
    best = Accumulator("best", op, ("r",), np.dtype(np.float32), Load("x", ("r", "k")))
    out = Output(Acc("best", frozenset("r"), np.int64, "index"), (("r",),), np.dtype(np.int64))
    c = Cascade((Source("x", 0, np.dtype(np.float32), 2),), (Pass("k", (best,)),), (out,), {"r": None, "k": None})
    return run(c, [x], {"r": x.shape[0], "k": x.shape[1]}, choice=choice)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("choice", [{}, {"segment": 32, "depth": 16}, {"lanes": "row"}], ids=str)
def test_ties_go_to_the_first(op: str, choice: dict[str, Any]) -> None:
    x = np.random.default_rng(9).integers(0, 4, (20, 150)).astype(np.float32)
    r = winner(op, x, choice)
    assert np.array_equal(r.outputs[0], getattr(np, op)(x, axis=1))
    x[3, [70, 140]] = np.nan
    r = winner(op, x, choice)
    assert r.flags.tolist() == [int(i == 3) for i in range(20)]
    assert r.outputs[0][3] == 70


@pytest.mark.parametrize("isa", ["own", "generic", "scalar"])
@pytest.mark.parametrize("segment", [0, 32])
@pytest.mark.parametrize("n", [1, 2, 4, 5, 8, 9, 16, 17])
def test_top_k_ties_go_to_the_first(n: int, segment: int, isa: str) -> None:
    """As many as a vector has lanes, fewer and more; infinities, and rows with fewer numbers than that."""
    rng = np.random.default_rng(10 + n)
    x = rng.integers(0, 5, (7, 150)).astype(np.float32)
    x[3] = -np.inf
    x[4, rng.permutation(150)[:140]] = -np.inf
    x[5, ::50] = np.inf
    x[6] = rng.standard_normal(150)
    best = Accumulator("best", "top_values", ("r",), np.dtype(np.float32), Load("x", ("r", "k")), None, n, "t")
    fields = ((np.float32, "value"), (np.int64, "index"))
    outs = [Output(Acc("best", frozenset("rt"), d, f), (("r",), ("t",)), np.dtype(d)) for d, f in fields]
    c = Cascade((Source("x", 0, np.dtype(np.float32), 2),), (Pass("k", (best,)),), tuple(outs), dict.fromkeys("rkt"))
    choice = {"segment": segment, "depth": 16} if segment else {}
    r = run(c, [x], {"r": 7, "k": 150, "t": n}, device=OWN if isa == "own" else cpu(isa), choice=choice)
    order = np.argsort(-x, axis=1, kind="stable")[:, :n]
    assert np.array_equal(r.outputs[1], order) and np.array_equal(r.outputs[0], np.take_along_axis(x, order, 1))


# ---- independence
@pytest.mark.parametrize("name", ["entropy", "several"])
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    (x,) = w.make(np.random.default_rng(11), {"r": 40, "k": 3000})
    whole = run(w.cascade, [x], {"r": 40, "k": 3000}).outputs
    alone = run(w.cascade, [x[17:18]], {"r": 1, "k": 3000}).outputs
    assert all(np.array_equal(a[17:18], b) for a, b in zip(whole, alone, strict=True))


@pytest.mark.parametrize("name", ["softmax", "attention_causal", "decode", "linear_logsumexp"])
def test_the_thread_count_changes_nothing(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    arrays = w.make(np.random.default_rng(12), w.extents)
    results = [run(w.cascade, arrays, w.extents, choice=SMALL, threads=t).outputs for t in (1, 2, 5)]
    assert all(np.array_equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


# ---- source
def test_what_a_user_wrote_never_reaches_the_source() -> None:
    w = cascades.logsumexp()
    evil = '"); system("x"); /* */ \\\n#error'
    k = rename(w.cascade.passes[0].accumulators[0].lift, {"k": evil})
    assert evil in k.axes
    accs = tuple(replace(a, lift=rename(a.lift, {"k": evil})) for a in w.cascade.passes[0].accumulators)
    c = replace(w.cascade, passes=(Pass(evil, accs),), extents={"r": None, evil: None})
    text = emit(schedule(c, {"r": 3, evil: 50}, {}, OWN))
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    assert "#error" not in code and "system" not in re.sub(r"\w*system_x_error\w*", "", code)
    arrays = w.make(np.random.default_rng(13), {"r": 3, "k": 50})
    r = run(c, arrays, {"r": 3, evil: 50})
    assert error(r.outputs[0], w.expected(arrays[0].astype(np.float64))[0]) < 2e-5


def test_the_source_names_the_laws() -> None:
    w = cascades.entropy()
    text = emit(schedule(w.cascade, w.extents, {}, OWN))
    for a in w.cascade.accumulators():
        assert f"/* {a.name}: {a.op} of " in text
    assert "; rebase " in text
