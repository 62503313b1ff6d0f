"""Warpgroups that divide the columns of a state: scores once, elements exchanged; and operands that lie in another's tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import numpy as np
import pytest
from emulated import Run, run
from emulator import SCHEDULES, Schedule, sanitize
from test_cuda_mma import A100, BF16, F16, H200, check, narrowed, padded, some, spread, transposed, workload
from writing import Builder, load, total
from writing import workload as written

import redfuser_eq as rf
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.kernel_check import check as check_kernel
from redfuser_eq.cuda_layout import starts_at
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.errors import IRError
from redfuser_eq.expr import Load, Source, View

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
Array = np.ndarray[Any, Any]
TWO = {"across": 2}
SIZES: dict[str, dict[str, int]] = {
    "attention": {"b": 1, "h": 2, "i": 70, "j": 75, "e": 24, "d": 40},
    "attention_causal": {"h": 1, "i": 140, "j": 140, "e": 72, "d": 136},
    "attention_window": {"h": 1, "i": 100, "j": 150, "e": 16, "d": 20},
    "attention_bias": {"h": 2, "i": 37, "j": 75, "e": 16, "d": 20},
    "attention_gqa": {"b": 1, "g": 2, "r": 2, "i": 20, "j": 75, "e": 16, "d": 24},
    "mla": {"b": 2, "h": 19, "j": 131, "e": 320, "d": 144},
}


def place(k: ir.Kernel) -> ir.Place:
    return next(p.place for p in k.phases if p.place is not None and p.place.form in ("mma", "wgmma"))


def across(k: ir.Kernel) -> int:
    return place(k).across


def fetched(k: ir.Kernel) -> set[str]:
    """Arrays whose tiles are staged."""
    return {s.source.source for p in k.phases for s in ir.statements(p.body) if isinstance(s, ir.Stage)}


def divided(name: str, extents: dict[str, int] | None = None, **options: Any) -> Run:
    choice = TWO | options.pop("choice", {})
    r = check(workload(name, *options.pop("dtypes", ())), SIZES[name] | (extents or {}), gpu=H200, choice=choice, **options)
    assert across(r.kernel) == 2
    return r


@pytest.mark.parametrize("name", SIZES)
def test_columns_divided(name: str) -> None:
    divided(name)


@pytest.mark.parametrize("order", some([SCHEDULES[i] for i in (1, 3, 4)], [SCHEDULES[i] for i in (2, 5, 6, 7)]), ids=str)
@pytest.mark.parametrize("name", ["attention", "attention_window", "mla"])
def test_any_order_of_threads_and_copies(name: str, order: Schedule) -> None:
    small = {"h": 1} if name == "attention" else {"b": 1, "j": 70} if name == "mla" else {}
    divided(name, small, order=order, seed=order.seed, choice={"depth": 16})


@pytest.mark.parametrize("rows", some([17, 65], [64, 130]))
@pytest.mark.parametrize("keys", some([1, 33, 129], [31, 32, 64]))
def test_ragged_sizes(rows: int, keys: int) -> None:
    """With a last tile of which a warpgroup has no element, or all."""
    divided("attention", {"h": 1, "i": rows, "j": keys}, dtypes=(F16, F16), seed=keys, choice={"depth": 16})


@pytest.mark.parametrize("arrange", some([padded, spread], []))
def test_operands_copied_by_threads(arrange: Any) -> None:
    divided("attention", {"h": 1}, arrange=arrange)


def test_values_contiguous_along_the_stream() -> None:
    turn = iter("kqv")
    divided("attention", {"h": 1, "j": 80}, arrange=lambda a: transposed(a) if next(turn) == "v" else a)


def test_keys_contiguous_along_the_stream_are_not_divided() -> None:
    """Half of their tile may begin within a panel."""
    turn = iter("kqv")
    r = check(workload("attention"), SIZES["attention"] | {"h": 1, "j": 80}, gpu=H200, choice=TWO,
              arrange=lambda a: transposed(a) if next(turn) == "k" else a)  # fmt: skip
    assert across(r.kernel) == 1


def test_segments_and_blocks_of_columns() -> None:
    r = divided("mla", {"b": 1, "e": 32, "d": 560}, choice={"segment": 64, "depth": 16})
    (phase,) = [p for p in r.kernel.phases if p.place is place(r.kernel)]
    assert {g.axis: g.step for g in phase.grid}.items() >= {"d": 512, ir.SEGMENT: 64}.items()
    assert any(p.name == "merge" for p in r.kernel.phases)


def test_a_boolean_mask() -> None:
    """Tiles are left out by all warpgroups together."""
    w = workload("attention_causal")
    extents = w.extents | {"h": 1, "i": 70, "j": 300}
    c = narrowed(replace(w, cascade=cascades.masked_by_array("j"))).cascade
    rng = np.random.default_rng(4)
    k, q, v = w.make(rng, extents)
    t = rng.random(300) < 0.7
    t[16:48], t[100:200], t[290:] = False, False, False
    z = np.einsum("hie,hje->hij", q.astype(np.float64), k.astype(np.float64)) * 0.25
    want = cascades.softmax64(np.where(t, z, -np.inf)) @ v.astype(np.float64)
    for order in (SCHEDULES[0], SCHEDULES[4]):
        r = run(c, [k, q, v, t], extents, gpu=H200, choice=TWO | {"depth": 16}, order=order)
        skip = next(s for ph in r.kernel.phases for s in ir.statements(ph.body) if isinstance(s, ir.Skip))
        assert across(r.kernel) == 2 and skip.tiles == (("j", 32),)
        np.testing.assert_allclose(r.outputs[0].astype(float), want, atol=6e-3)


def test_rows_without_a_valid_key_are_flagged() -> None:
    w = workload("attention_bias")
    b, k, q, v = w.make(np.random.default_rng(3), w.extents)
    b[1, 5], b[0, :, 16:32] = -np.inf, -np.inf
    r = run(w.cascade, [b, k, q, v], w.extents, gpu=H200, choice=TWO | {"depth": 16})
    assert across(r.kernel) == 2 and r.flags[1, 5] == 1 and r.flags.sum() == 1
    with np.errstate(invalid="ignore"):
        want = w.expected(*(a.astype(np.float64) for a in (b, k, q, v)))[0]
    np.testing.assert_allclose(np.delete(r.outputs[0].astype(float), 5, 1), np.delete(want, 5, 1), atol=6e-3)


def linear_attention() -> cascades.Workload:
    """No accumulator is read by another: nothing is exchanged but the elements."""
    value = load("v", "bjd")
    b = Builder("j", "bid")
    raw = total("e", load("q", "bie") * load("k", "bje"))
    o = b.add("o", "sum", raw * value)

    def make(rng: np.random.Generator, ext: Any) -> list[Array]:
        return [rng.standard_normal([ext[a] for a in axes]).astype(np.float32) for axes in ("bje", "bie", "bjd")]

    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return [q @ k.swapaxes(-1, -2) @ v]

    ext = {"b": 1, "i": 70, "j": 140, "e": 16, "d": 72}
    return written("linear attention", ext, [b.done()], [(o, "bid")], [total("j", raw * value)], make, expected)


@pytest.mark.parametrize("order", [SCHEDULES[0], SCHEDULES[3], SCHEDULES[4]], ids=str)
def test_a_tile_without_parameters(order: Schedule) -> None:
    r = check(narrowed(linear_attention()), gpu=H200, choice=TWO | {"depth": 16}, order=order)
    assert across(r.kernel) == 2 and "__shared__ float" not in r.program.text


def test_when_columns_are_divided() -> None:
    """Where they are too many for one warpgroup; not where rows are few or no warpgroups multiply."""

    def chosen(extents: dict[str, int], gpu: Any = H200, name: str = "mla", dtype: Any = BF16) -> int:
        w = workload(name, dtype) if dtype != np.float32 else cascades.WORKLOADS[name]()
        k = schedule(w.cascade, w.extents | extents, {}, gpu)
        return max(p.place.across for p in k.phases if p.place is not None)

    big = {"b": 4, "h": 128, "j": 4096, "e": 576, "d": 512}
    assert chosen(big) == chosen(big | {"e": 64}) == 2
    assert chosen(big | {"d": 256}) == chosen(big | {"h": 16}) == chosen(big, A100) == chosen(big, dtype=np.float32) == 1


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    w = workload("mla")
    extents = w.extents | SIZES["mla"] | {"b": 3}
    arrays = w.make(np.random.default_rng(2), extents)
    together = run(w.cascade, arrays, extents, gpu=H200, choice=TWO).outputs[0]
    alone = run(w.cascade, [a[1:2] for a in arrays], extents | {"b": 1}, gpu=H200, choice=TWO).outputs[0]
    np.testing.assert_array_equal(together[1:2], alone)


def test_no_block_has_half_a_warpgroup() -> None:
    kernel = schedule(workload("attention").cascade, workload("attention").extents | SIZES["attention"], {}, H200, TWO)
    (phase,) = kernel.phases
    assert phase.place is not None
    with pytest.raises(IRError, match="no block has the place"):
        check_kernel(replace(kernel, phases=(replace(phase, place=replace(phase.place, warps=phase.place.warps - 2)),)))


@pytest.mark.thorough
@pytest.mark.skipif(bool(sanitize.unavailable()), reason=sanitize.unavailable() or "available")
@pytest.mark.parametrize("name", ["attention", "mla"])
def test_no_two_accesses_are_unordered(name: str) -> None:
    assert sanitize.races("test_cuda_across:divided", name) == []


# ---- values that are a slice of the keys
def latent(start: int = 0, name: str = "mla") -> cascades.Workload:
    """The workload with v[...] = k[..., start:start + d], and NaN where v itself would be read."""
    w = cascades.WORKLOADS[name]()
    sources = {s.name: s for s in w.cascade.sources}
    dims = {"mla": 3, "attention": 4, "attention_causal": 3}[name]
    cut = View((*(slice(None),) * (dims - 1), slice(start, start + w.extents["d"])))
    changed = {"v": replace(sources["v"], param=sources["k"].param, view=cut)}
    c = replace(w.cascade, sources=tuple(changed.get(s.name, s) for s in w.cascade.sources))

    def make(rng: np.random.Generator, extents: Any) -> list[Array]:
        k, q, v = w.make(rng, extents)
        return [k, q, np.full_like(v, np.nan)]

    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return w.expected(k, q, k[..., start : start + v.shape[-1]])

    return replace(w, cascade=c, make=make, expected=expected)


def shared(start: int, name: str = "mla", extents: dict[str, int] | None = None, **options: Any) -> Run:
    sizes = {"mla": {"b": 1, "h": 19, "j": 131}, "attention": {"b": 1, "h": 1, "i": 70}, "attention_causal": {"h": 1, "i": 70, "j": 70}}
    r = check(narrowed(latent(start, name)), sizes[name] | {"e": 200, "d": 128} | (extents or {}), gpu=options.pop("gpu", H200), **options)
    assert fetched(r.kernel) == {"k", "q"}
    return r


@pytest.mark.parametrize("start", [0, 64])
@pytest.mark.parametrize("name", ["mla", "attention_causal"])
def test_a_slice_is_not_fetched_again(name: str, start: int) -> None:
    assert across(shared(start, name, choice=TWO).kernel) == 2
    assert across(shared(start, name).kernel) == 1


@pytest.mark.parametrize("order", [SCHEDULES[3], SCHEDULES[4]], ids=str)
def test_a_shared_tile_in_any_order(order: Schedule) -> None:
    shared(0, "mla", {"j": 100, "e": 136, "d": 124}, order=order, choice=TWO | {"depth": 16})


def test_a_shared_tile_of_warps() -> None:
    """The same without warpgroups: few rows, and parts of a block."""
    r = shared(64, "mla", {"h": 11, "j": 300, "d": 64}, gpu=A100)
    assert place(r.kernel).form == "mma" and place(r.kernel).parts > 1
    assert place(shared(64, "attention", {"d": 64}, gpu=A100).kernel).parts == 1


def test_a_shared_tile_copied_by_threads() -> None:
    shared(0, choice=TWO, arrange=padded)


def test_a_shared_tile_of_keys_contiguous_along_the_stream() -> None:
    turn = iter("kqv")
    shared(64, "attention", {"j": 80}, arrange=lambda a: transposed(a) if next(turn) != "q" else a)


@pytest.mark.parametrize(("start", "extents"), [(8, {}), (0, {"e": 96, "d": 90}), (64, {"e": 300, "d": 128})])
def test_other_slices_are_fetched(start: int, extents: dict[str, int]) -> None:
    """Those that start within a panel, or of which the tile has not all columns, or whose inner axis comes in blocks."""
    w = narrowed(latent(start))
    kernel = schedule(w.cascade, w.extents | {"h": 19, "e": 200, "d": 128} | extents, {}, H200, TWO if not start else {})
    assert "v" in fetched(kernel)


def source(name: str, param: int, *index: Any, **fields: Any) -> Source:
    return Source(name, param, np.dtype(BF16), 2, View(index, **fields))


EVERY = slice(None)


@pytest.mark.parametrize(
    ("k", "v", "offset"),
    [
        (source("k", 0), source("v", 0, EVERY, slice(3, 20)), 3),
        (source("k", 0, EVERY, slice(2, None)), source("v", 0, EVERY, slice(6, 8)), 4),
        (source("k", 0, 1, EVERY, EVERY), source("v", 0, 1, EVERY, slice(0, 8, 1)), 0),
        (source("k", 0), source("v", 1, EVERY, slice(3, 20)), -1),
        (source("k", 0, 1, EVERY, EVERY), source("v", 0, 2, EVERY, EVERY), -1),
        (source("k", 0), source("v", 0, slice(1, None), EVERY), -1),
        (source("k", 0), source("v", 0, EVERY, slice(0, 8, 2)), -1),
        (source("k", 0), source("v", 0, EVERY, slice(-8, None)), -1),
        (source("k", 0, EVERY, slice(4, None)), source("v", 0), -1),
        (source("k", 0), source("v", 0, EVERY, EVERY, merges=(2,)), -1),
        (source("k", 0, 0, EVERY, EVERY), source("v", 0, EVERY, 0, EVERY), -1),
    ],
)
def test_where_a_slice_starts(k: Source, v: Source, offset: int) -> None:
    a, b = Load("k", ("j", "e"), BF16), Load("v", ("j", "d"), BF16)
    assert starts_at(a, "e", b, "d", (k, v)) == offset
    assert starts_at(a, "e", Load("v", ("d", "j"), BF16), "d", (k, v)) == -1
    assert starts_at(a, "e", Load("k", ("j", "d"), BF16), "d", (k, v)) == 0


def latent_decode(q: Any, cache: Any) -> Any:
    s = q @ np.swapaxes(cache, -1, -2) * 0.1
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ cache[..., :512]


def keys_are_values(q: Any, k: Any) -> Any:
    s = q @ np.swapaxes(k, -1, -2) * 0.1
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ k


@pytest.mark.parametrize(("f", "width", "wide"), [(latent_decode, 576, 2), (keys_are_values, 128, 1)])
def test_programs_as_they_are_written(f: Any, width: int, wide: int) -> None:
    rng = np.random.default_rng(6)
    q, cache = (rng.standard_normal(s).astype(BF16) for s in ((2, 40, width), (2, 70, width)))
    c = rf.optimize(f).cascade(q, cache)
    views = {s.param: cache if s.param else q for s in c.sources}
    arrays = [views[s.param][s.view.index] if s.view.index else views[s.param] for s in c.sources]
    extents = {a: n for a, n in c.extents.items() if n is not None}
    r = run(c, arrays, extents, gpu=H200)
    assert across(r.kernel) == wide and len(fetched(r.kernel)) == 2
    want = f(q.astype(np.float64), cache.astype(np.float64))
    np.testing.assert_allclose(r.outputs[0].astype(np.float64), want, atol=2e-2 * np.abs(want).max())
    assert not r.flags.any()
