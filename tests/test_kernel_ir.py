"""The Kernel: its checker refuses what the grammar forbids, its key is that of the code, schedules keep to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import numpy as np
import pytest

from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.c import emit
from redfuser_eq.codegen.kernel_check import check as check_kernel
from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Const, Expr, Index, Load, Map, Output, Reduce, Source
from redfuser_eq.masks import bounds, finite_needed, masked
from redfuser_eq.roles import classify, compute_type
from redfuser_eq.runtime.device import Device
from redfuser_eq.schedule import Unsupported, candidates, schedule

AVX2 = Device("avx2", 32, 2, 32 << 10, 512 << 10, 32 << 20)
AVX512 = Device("avx512", 64, 2, 48 << 10, 1 << 20, 32 << 20)
BIG = {
    "attention": {"b": 2, "h": 4, "i": 1024, "j": 1024, "e": 64, "d": 64},
    "linear_logsumexp": {"r": 512, "v": 50257, "h": 1024},
    "mla": {"b": 8, "h": 16, "j": 8192, "e": 576, "d": 512},
    "decode": {"h": 8, "j": 65536, "e": 128, "d": 128},
    "logsumexp": {"r": 1024, "k": 50257},
    "layernorm_linear": {"r": 2048, "k": 4096, "n": 1024},
}


def kernel(name: str, device: Device = AVX2, big: bool = False, **choice: Any) -> ir.Kernel:
    w = cascades.WORKLOADS[name]()
    return schedule(w.cascade, BIG[name] if big else w.extents, {}, device, None, choice)


def find(k: ir.Kernel, kind: type) -> list[Any]:
    return [s for p in k.phases for s in ir.statements(p.body) if isinstance(s, kind)]


# ---- the checker
def broken(k: ir.Kernel, old: ir.Stmt, new: ir.Stmt) -> ir.Kernel:
    def swap(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(
            new if s is old else replace(s, body=swap(s.body)) if isinstance(s, ir.Loop) else s  # type: ignore[misc]
            for s in body
        )

    return replace(k, phases=tuple(replace(p, body=swap(p.body)) for p in k.phases))


@pytest.mark.parametrize("name", sorted(cascades.WORKLOADS))
@pytest.mark.parametrize("device", [AVX2, AVX512], ids=lambda d: d.isa)
def test_schedules_keep_the_grammar(name: str, device: Device) -> None:
    w = cascades.WORKLOADS[name]()
    for c in (w.cascade, w.plain):
        for choice in ({}, {"lanes": "row"}, {"segment": 16}):
            k = schedule(c, w.extents, {}, device, None, choice)
            check_kernel(k)
            assert emit(k) == emit(schedule(c, w.extents, {}, device, None, choice))


def test_a_fold_into_an_unknown_state_is_refused() -> None:
    k = kernel("logsumexp")
    sweep = find(k, ir.Sweep)[0]
    bad = replace(sweep, folds=(replace(sweep.folds[0], acc="nobody"),))
    with pytest.raises(IRError, match=r"'nobody' is not a state"):
        check_kernel(broken(k, sweep, bad))


def test_an_unbound_axis_is_refused() -> None:
    k = kernel("logsumexp")
    sweep = find(k, ir.Sweep)[0]
    with pytest.raises(IRError, match="not bound"):
        check_kernel(broken(k, sweep, replace(sweep, folds=(replace(sweep.folds[0], lift=Index("elsewhere")),))))


def test_an_unknown_array_is_refused() -> None:
    k = kernel("logsumexp")
    sweep = find(k, ir.Sweep)[0]
    with pytest.raises(IRError, match="nothing is called 'ghost'"):
        check_kernel(broken(k, sweep, replace(sweep, folds=(replace(sweep.folds[0], lift=Load("ghost", ("k",))),))))


def test_an_empty_register_block_is_refused() -> None:
    k = kernel("attention")
    c = find(k, ir.Contract)[0]
    with pytest.raises(IRError, match="register block 0 x"):
        check_kernel(broken(k, c, replace(c, mr=0)))


def test_a_contraction_without_its_inner_axis_is_refused() -> None:
    k = kernel("attention")
    c = find(k, ir.Contract)[0]
    with pytest.raises(IRError, match="lacks one of"):
        check_kernel(broken(k, c, replace(c, a=replace(c.a, dims=tuple(d for d in c.a.dims if d != c.c)))))


def test_two_things_of_one_name_are_refused() -> None:
    k = kernel("attention")
    with pytest.raises(IRError, match="share a name"):
        check_kernel(replace(k, buffers=(*k.buffers, k.buffers[0])))


# ---- keys
def test_shapes_with_one_schedule_share_a_key() -> None:
    w = cascades.logsumexp()
    keys = {schedule(w.cascade, {"r": r, "k": 50000 + r}, {}, AVX2).key for r in (1, 7, 300)}
    assert len(keys) == 1
    assert schedule(w.cascade, {"r": 7, "k": 50000}, {"x": (1, 7)}, AVX2).key not in keys
    assert schedule(w.cascade, {"r": 7, "k": 50000}, {}, AVX512).key not in keys


def test_the_key_sees_dtypes() -> None:
    assert kernel("logsumexp").key != schedule(cascades.logsumexp(np.dtype(np.float16)).cascade, {"r": 3, "k": 133}, {}, AVX2).key


def test_arguments_are_extents_then_strides() -> None:
    k = kernel("logsumexp")
    assert k.args[: len(k.extent_names)] == tuple(("extent", a) for a in k.extent_names)
    assert k.args[len(k.extent_names) :] == (("in_stride", "x", 0), ("in_stride", "x", 1), ("out_stride", 0, 0))


# ---- decisions
def test_register_blocks_follow_the_registers() -> None:
    for device, block in ((AVX2, (6, 2)), (AVX512, (6, 4))):
        assert {(c.mr, c.nv) for c in find(kernel("attention", device, big=True), ir.Contract)} == {block}


def test_shared_heads_are_lanes_and_a_key_used_once_is_a_dot_product() -> None:
    k = kernel("mla", big=True)
    assert find(k, ir.Contract)[0].j == "h" and not find(k, ir.Dot)
    assert find(kernel("decode", big=True), ir.Dot)


def test_the_stream_goes_outside_when_its_operand_outgrows_the_cache() -> None:
    k = kernel("linear_logsumexp", big=True)
    main = next(p for p in k.phases if p.states)
    assert main.row_loop and any(g.axis == ir.SEGMENT for g in main.grid) and find(k, ir.Merge)
    assert not any(b.shared and {"r", "v"} <= set(b.dims) for b in k.buffers)  # no logits in memory


def test_segments_come_of_a_rows_own_extent() -> None:
    w = cascades.logsumexp()
    for rows in (1, 1000):
        k = schedule(w.cascade, {"r": rows, "k": 5_000_000}, {}, AVX2)
        assert any(g.axis == ir.SEGMENT for p in k.phases for g in p.grid)
    assert not any(g.axis == ir.SEGMENT for p in kernel("logsumexp", big=True).phases for g in p.grid)


def test_layernorm_starts_its_product_from_a_rank_one_term() -> None:
    c = next(c for c in find(kernel("layernorm_linear", big=True), ir.Contract) if c.dst == "y")
    assert [n for _, n in c.rank] == ["gw"] and {n for n, _ in c.extra} == {"gw", "hw"}


def test_masked_tiles_are_skipped_with_every_condition() -> None:
    assert len(find(kernel("attention_causal"), ir.Skip)[0].bounds) == 1
    window = find(kernel("attention_window"), ir.Skip)[0]
    assert len(window.bounds) == 2 and window.finite
    assert next(p for p in kernel("attention_causal").phases if p.states).shared_counter
    assert not find(kernel("attention"), ir.Skip)


def test_candidates_differ() -> None:
    w = cascades.attention()
    found = candidates(w.cascade, w.extents, {}, AVX2)
    assert found[0] == {} and len({schedule(w.cascade, w.extents, {}, AVX2, None, c).key for c in found}) == len(found) > 1


# ---- roles
def test_rows_columns_and_levels_are_read_off_the_terms() -> None:
    r = classify(cascades.attention().cascade.passes[0])
    assert r.rows == ("b", "h", "i") and r.columns["o"] == ("d",) and r.keep == {"m"}
    r = classify(cascades.layernorm_linear().cascade.passes[0])
    assert r.rows == ("r",) and r.columns["gw"] == ("n",) == r.columns["y"]


def test_the_compute_type_is_wide_only_where_it_must_be() -> None:
    for name, real in (("cross_entropy", "float"), ("plain_monoids", "double"), ("routing", "float")):
        w = cascades.WORKLOADS[name]()
        assert compute_type(w.cascade, w.extents) == real
    w = cascades.several()
    assert compute_type(w.cascade, {"r": 1, "k": 1 << 25}) == "double"  # positions beyond float32's integers


# ---- masks
def le(a: Expr, b: Expr) -> Expr:
    return Map("le", (a, b))


def test_affine_conditions_become_bounds() -> None:
    i, j = Index("i"), Index("j")
    found, complete = bounds(Map("logical_and", (le(j, i), Map("lt", (Map("sub", (i, j)), Const(5, np.int64))))))
    assert complete and found == [ir.Bound((("i", 1), ("j", -1)), 0), ir.Bound((("i", -1), ("j", 1)), 4)]
    found, complete = bounds(Map("logical_and", (le(j, i), Load("m", ("j",), bool))))
    assert not complete and len(found) == 1


def test_only_a_score_of_minus_infinity_is_peeled() -> None:
    x, c = Load("x", ("i", "j")), le(Index("j"), Index("i"))
    low, zero = Const(float("-inf")), Const(0.0)
    assert masked(Map("where", (c, x, low))).open is x
    assert masked(Map("where", (c, x, zero))).bounds == []
    load = Load("m", ("j",), bool)
    both = masked(Map("where", (Map("logical_and", (c, load)), x, low)))
    assert both.open is x and len(both.bounds) == 1 and both.others == [load]


def test_a_tile_may_be_left_out_only_where_it_adds_nothing() -> None:
    t, v, m = Load("t", ("i", "j")), Load("v", ("j", "d")), Acc("m", frozenset("i"))
    weight = Map("exp", (Map("sub", (t, m)),))
    assert finite_needed("max", t, t) == set()
    assert finite_needed("sum", weight, t) == set()
    assert finite_needed("sum", Map("mul", (weight, v)), t) == {v}
    assert finite_needed("sum", t, t) is None
    assert finite_needed("sum", Map("exp", (Map("neg", (t,)),)), t) is None
    assert finite_needed("min", t, t) is None


# ---- what has no form
def test_wrapping_arithmetic_is_left_to_numpy() -> None:
    from redfuser_eq.cascade import Accumulator, Cascade, Pass

    x = Load("x", ("r", "k"), np.int8)
    a = Accumulator("s", "sum", ("r",), np.dtype(np.int64), Map("mul", (x, x), np.int8))
    out = Output(Acc("s", frozenset("r"), np.int64), (("r",),), np.dtype(np.int64))
    c = Cascade((Source("x", 0, np.dtype(np.int8), 2),), (Pass("k", (a,)),), (out,), {"r": 2, "k": 3})
    with pytest.raises(Unsupported, match="wraps; convert"):
        schedule(c, {"r": 2, "k": 3}, {}, AVX2)


def test_a_top_k_inside_an_element_is_left_to_numpy() -> None:
    from redfuser_eq.cascade import Accumulator, Cascade, Pass

    x = Load("x", ("r", "k", "c"))
    best = Reduce("sum", "t", Reduce("top_values", "c", x, 2, "t"))
    a = Accumulator("s", "sum", ("r",), np.dtype(np.float32), best)
    out = Output(Acc("s", frozenset("r")), (("r",),), np.dtype(np.float32))
    sizes = {"r": 2, "k": 3, "c": 4, "t": 2}
    c = Cascade((Source("x", 0, np.dtype(np.float32), 3),), (Pass("k", (a,)),), (out,), sizes)
    with pytest.raises(Unsupported, match="top-k inside an element"):
        schedule(c, sizes, {}, AVX2)


@pytest.mark.parametrize(
    "name, axes", [("attention", "ij"), ("attention_causal", "ij"), ("decode", "j"), ("linear_logsumexp", "r"), ("rms_linear", "r")]
)
def test_another_length_is_the_same_code(name: str, axes: str) -> None:
    """Extents are run-time values: long rows share a build, short ones a few."""
    w = cascades.WORKLOADS[name]()

    def keys(lengths: range) -> set[str]:
        return {schedule(w.cascade, w.extents | dict.fromkeys(axes, n), {}, AVX2).key for n in lengths}

    assert len(keys(range(400, 4000, 113))) <= 2
    assert len(keys(range(1, 400, 9))) <= 10
