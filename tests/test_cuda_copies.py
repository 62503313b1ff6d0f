"""Operands by tensor maps: which can, the copies themselves on the emulator, and the driver's part in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cascades
import cascades_products
import emulated_cupy
import emulator
import numpy as np
import pytest
from emulated import Run
from emulator import SCHEDULES, Schedule, sanitize
from test_cuda_mma import E4M3, EXACT, check, narrowed, quantised, some, spread, transposed, workload

import redfuser_eq as rf
from redfuser_eq import cuda_copies
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.codegen.kernel_check import check as check_kernel
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.demo.workloads import named
from redfuser_eq.errors import IRError
from redfuser_eq.gpu import GPUS
from redfuser_eq.runtime import cuda, tensor_map

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
H200 = GPUS["h200"]
Array = np.ndarray[Any, Any]
SIZES: dict[str, dict[str, int]] = {
    "attention": {"b": 1, "h": 2, "i": 70, "j": 75, "e": 24, "d": 40},
    "attention_causal": {"h": 1, "i": 140, "j": 140, "e": 72, "d": 136},
    "attention_gqa": {"b": 1, "g": 2, "r": 2, "i": 20, "j": 75, "e": 16, "d": 24},
    "mla": {"b": 1, "h": 17, "j": 131, "e": 320, "d": 144},
    "cross_entropy": {"r": 70, "v": 133, "h": 304},
    "layernorm_linear": {"r": 70, "k": 72, "n": 40},
    "kmeans": {"i": 70, "f": 24, "j": 37},
}


def copies(k: ir.Kernel) -> dict[str, bool]:
    """Whether a source's tiles come by tensor maps."""
    return {s.source.source: s.mapped for p in k.phases for s in ir.statements(p.body) if isinstance(s, ir.Stage)}


def warps(k: ir.Kernel) -> int:
    return max(p.place.producers for p in k.phases if p.place is not None)


def roomy(a: Array) -> Array:
    """The same numbers, rows at multiples of 16 bytes, NaN behind each and behind the last."""
    if a.dtype.kind == "i":
        return a
    wide = np.full((*a.shape[:-1], -(-a.shape[-1] // 8) * 8 + 8), np.nan).astype(a.dtype)
    wide[..., : a.shape[-1]] = a
    return wide[..., : a.shape[-1]]


def turned(a: Array) -> Array:
    """The same numbers, all axes but the last exchanged in memory: heads lie inside of positions."""
    return np.ascontiguousarray(a.swapaxes(-3, -2)).swapaxes(-3, -2) if a.ndim > 2 else a


def late(a: Array) -> Array:
    """The same numbers, two bytes past a multiple of 16."""
    room = np.empty(a.size + 16, a.dtype)
    start = (-room.ctypes.data % 16) // a.itemsize + 1
    made = room[start : start + a.size].reshape(a.shape)
    made[...] = a
    return made


def mapped(name: str, extents: dict[str, int] | None = None, order: Schedule = SCHEDULES[0], arrange: Any = None) -> Run:
    return check(workload(name), SIZES[name] | (extents or {}), EXACT.get(name, 6e-3), gpu=H200, order=order, arrange=arrange)


@pytest.mark.parametrize("name", SIZES)
def test_all_operands_by_tensor_maps(name: str) -> None:
    r = mapped(name)
    assert all(copies(r.kernel).values()) and "cp_async" not in r.program.text
    assert warps(r.kernel) == (4 if r.program.launches[-1].block > 160 else 1)


@pytest.mark.parametrize("order", some(SCHEDULES[1:6:2], [*SCHEDULES[:6:2], *SCHEDULES[6:]]), ids=str)
@pytest.mark.parametrize("name", ["attention", "mla", "layernorm_linear"])
def test_any_order_of_threads_and_copies(name: str, order: Schedule) -> None:
    small = {"i": 130, "j": 40} if name == "attention" else {"j": 70} if name == "mla" else {}
    mapped(name, small, order)


@pytest.mark.parametrize("order", some(SCHEDULES[1:6:2], [*SCHEDULES[:6:2], *SCHEDULES[6:]]), ids=str)
@pytest.mark.parametrize("keys", [16, 32, 130])
def test_warpgroups_take_turns(keys: int, order: Schedule) -> None:
    """One tile, two, and many; where one warpgroup computes there is nobody to take turns with."""
    w, extents = workload("attention"), SIZES["attention"] | {"h": 1, "j": keys}
    r = check(w, w.extents | extents, gpu=H200, order=order, choice={"depth": 16})
    assert "barrier_sync" in r.program.text
    assert "barrier_sync" not in emit(schedule(w.cascade, w.extents | extents | {"i": 64}, {}, H200), H200).text


def sanitized(name: str, odd: bool) -> None:
    turn = iter(s.name for s in workload(name).cascade.sources)
    mapped(name, {"h": 1} if name == "attention" else {}, arrange=lambda a: late(a) if odd and next(turn) == "v" else a)


@pytest.mark.thorough
@pytest.mark.skipif(bool(sanitize.unavailable()), reason=sanitize.unavailable() or "available")
@pytest.mark.parametrize(("name", "odd"), [("attention", False), ("attention", True), ("cross_entropy", False)])
def test_no_two_accesses_are_unordered(name: str, odd: bool) -> None:
    assert sanitize.races("test_cuda_copies:sanitized", name, odd) == []


@pytest.mark.parametrize("arrange", [roomy, turned, transposed])
@pytest.mark.parametrize("name", ["attention", "cross_entropy", "layernorm_linear"])
def test_strides(name: str, arrange: Any) -> None:
    """Whatever the strides, as long as they are multiples of 16 bytes and one axis is contiguous."""
    even = {"attention": {"i": 72, "j": 80}, "cross_entropy": {"r": 72, "v": 136}, "layernorm_linear": {"r": 72}}[name]
    if arrange is transposed and name in ("attention", "cross_entropy"):  # the left operand lies along the inner axis
        turn = iter(s.name for s in workload(name).cascade.sources)
        r = mapped(name, even, arrange=lambda a: a if next(turn) in ("q", "x") else transposed(a))
    else:
        r = mapped(name, even, arrange=arrange)
    assert all(copies(r.kernel).values())


@pytest.mark.parametrize("rows", some([17, 129], [65]))
@pytest.mark.parametrize("keys", some([1, 129], [63]))
def test_ragged_sizes(rows: int, keys: int) -> None:
    r = mapped("attention", {"h": 1, "i": rows, "j": keys, "e": 8, "d": 72}, arrange=roomy)
    assert all(copies(r.kernel).values())


@pytest.mark.parametrize("order", [SCHEDULES[0], SCHEDULES[3], SCHEDULES[4]], ids=str)
@pytest.mark.parametrize("odd", [("q",), ("v",), ("k", "v"), ("q", "k", "v")])
def test_misaligned_operands_are_copied_by_threads(odd: tuple[str, ...], order: Schedule) -> None:
    """Each decides for itself."""
    w = workload("attention")
    extents = w.extents | SIZES["attention"]
    names = [s.name for s in w.cascade.sources]
    turn = iter(names)
    r = check(w, extents, gpu=H200, order=order, arrange=lambda a: late(a) if next(turn) in odd else a)
    assert copies(r.kernel) == {n: n not in odd for n in names} and warps(r.kernel) == 4


def test_rows_that_are_no_multiple_of_16_bytes_are_copied_by_threads() -> None:
    r = mapped("attention", {"e": 20})
    assert copies(r.kernel) == {"q": False, "k": False, "v": True}
    r = check(workload("attention"), SIZES["attention"], gpu=H200, arrange=spread)
    assert not any(copies(r.kernel).values())


def test_five_axes_and_no_more() -> None:
    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        s = np.einsum("abgrie,abgje->abgrij", q, k)
        p = np.exp(s - s.max(-1, keepdims=True))
        return [p / p.sum(-1, keepdims=True) @ v[:, :, :, None]]

    extents = {"a": 1, "b": 1, "g": 2, "r": 2, "i": 17, "j": 40, "e": 16, "d": 16}
    w = narrowed(cascades_products._attention("six axes", extents, "abgrie", "abgje", "abgjd", "abgrid", expected))
    assert copies(check(w, gpu=H200).kernel) == {"q": False, "k": True, "v": True}


def test_axes_of_one_element_may_have_any_stride() -> None:
    """And those that are broadcast are no dimensions of a map."""
    w = workload("attention")
    extents = w.extents | SIZES["attention"] | {"h": 1}
    arrays = w.make(np.random.default_rng(5), extents)
    odd = [np.lib.stride_tricks.as_strided(a, a.shape, (a.strides[0], 6, *a.strides[2:])) for a in arrays]
    turn = iter(odd)
    assert all(copies(check(w, extents, seed=5, gpu=H200, arrange=lambda a: next(turn)).kernel).values())
    one = {"k": (0, 75 * 24, 24, 1), "v": (0, 75 * 40, 40, 1)}
    kernel = schedule(w.cascade, extents | {"b": 3, "h": 2}, one, H200)
    assert all(copies(kernel).values())
    dims = {a[1][1]: len(a[2]) for x in emit(kernel, H200).launches for a in x.args if a[0] == "map"}
    assert dims == {"q": 4, "k": 3, "v": 3}


@pytest.mark.parametrize("strides", [(-24, 1), (1 << 40, 1), (12, 1), (24, 2)])
def test_strides_that_no_map_takes(strides: tuple[int, int]) -> None:
    array = ir.Array("x", "bf16", ("i", "e"), (None, 1 if strides[1] == 1 else None))
    sizes, extents = {"i": 64, "e": 32}, {"i": 100, "e": 24}
    assert cuda_copies.mapped(array, array.dims, "i", sizes, extents, (24, 1))
    assert not cuda_copies.mapped(array, array.dims, "i", sizes, extents, strides)


def test_maps_belong_to_warpgroups() -> None:
    w = workload("attention")
    kernel = schedule(w.cascade, w.extents | SIZES["attention"], {}, GPUS["a100"])
    assert not any(copies(kernel).values())
    (phase,) = kernel.phases
    stages = [s for s in ir.statements(phase.body) if isinstance(s, ir.Stage)]
    object.__setattr__(stages[0], "mapped", True)
    with pytest.raises(IRError, match="nobody copies by tensor maps"):
        check_kernel(kernel)


def test_float32_stays_off() -> None:
    w = cascades.attention()
    assert copies(schedule(w.cascade, w.extents, {}, H200)) == {}


# ---- the driver
@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[emulated_cupy.Current]:
    monkeypatch.setenv("REDFUSER_CACHE", str(tmp_path_factory.getbasetemp() / "cubins"))
    yield emulated_cupy.install(monkeypatch, arch="sm_90a")
    emulated_cupy.forget()


def attend(arrays: list[Array], shift: int = 0) -> Any:
    """The fused attention of the demos on the device; the arrays start `shift` elements past an aligned address."""
    f = rf.optimize(named("attention, 3-D").function, target="cuda")
    given = []
    for a in arrays:
        flat = emulated_cupy.asarray(np.concatenate([np.zeros(shift, a.dtype), a.reshape(-1)]))
        given.append(flat[shift:].reshape(a.shape))
    return f, given


def right(got: Any, arrays: list[Array]) -> bool:
    want = named("attention, 3-D").function(*(a.astype(np.float64) for a in arrays))
    return bool(np.max(np.abs(got.get() - want)) <= 2e-3 * np.max(np.abs(want)))


ARRAYS = [np.random.default_rng(9).standard_normal((2, 80, 64)).astype(np.float16) for _ in range(3)]


def test_maps_are_kept_by_address(gpu: emulated_cupy.Current) -> None:
    f, given = attend(ARRAYS)
    assert right(f(*given), ARRAYS) and "tma_load" in f.source("cuda", *given)
    assert gpu.encoded == 3
    f(*given)
    assert gpu.encoded == 3
    assert right(f(*given[:2], emulated_cupy.asarray(ARRAYS[2])), ARRAYS)
    assert gpu.encoded == 4


def test_arrays_at_odd_addresses(gpu: emulated_cupy.Current) -> None:
    """The same signature otherwise: another kernel."""
    f, given = attend(ARRAYS)
    assert right(f(*given), ARRAYS)
    _, shifted = attend(ARRAYS, 1)
    assert right(f(*shifted), ARRAYS) and gpu.encoded == 3
    assert right(f(given[0], shifted[1], given[2]), ARRAYS) and gpu.encoded == 5
    assert right(f(*given), ARRAYS) and gpu.encoded == 5


def test_a_driver_that_makes_no_maps(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.maps = False
    f, given = attend(ARRAYS)
    assert right(f(*given), ARRAYS) and gpu.encoded == 0
    with pytest.raises(tensor_map.NoMap, match=r"status 1.*shape \(64, 80\)"):
        tensor_map.tensor_map(1 << 20, 2, (64, 80), (2, 128), (64, 64))
    emulated_cupy.forget()
    monkeypatch.setattr(tensor_map, "driver", lambda: None)
    f, given = attend(ARRAYS)
    assert right(f(*given), ARRAYS) and gpu.encoded == 0
    with pytest.raises(tensor_map.NoMap, match="install one of CUDA 12"):
        tensor_map.tensor_map(1 << 20, 2, (64, 80), (2, 128), (64, 64))


def test_what_one_kernel_writes_for_the_next(gpu: emulated_cupy.Current) -> None:
    """Operands that are narrowed to bytes lie in scratch memory: maps are kept by its address, and its rows padded as maps need."""
    w = quantised(E4M3, np.dtype(np.float32), 448.0)
    extents = w.extents | {"r": 35, "n": 136, "k": 80}
    weights, x = w.make(np.random.default_rng(3), extents)
    (want,) = w.expected(weights.astype(np.float64), x.astype(np.float64))
    turned = emulated_cupy.asarray(weights.T)
    given = [emulated_cupy.ndarray(weights.shape, turned.dtype, turned.data, turned.strides[::-1]), emulated_cupy.asarray(x)]
    for maps in (True, False):
        gpu.maps, called = maps, cuda.build(w.cascade, w.cascade)
        for _ in range(3):
            (got,) = called(given, extents)
            assert np.max(np.abs(got.get() - want)) <= 2e-3 * np.max(np.abs(want))
        assert ("tma_load" in called.source, "cp_async" in called.source) == (maps, not maps)
        assert 2 <= gpu.encoded <= 5  # the weights', and one for each address that the pool gives: to the trial and to three calls
    emulated_cupy.forget()


def test_a_map_starts_at_a_multiple_of_64_bytes(gpu: emulated_cupy.Current) -> None:
    made = [tensor_map.tensor_map(1 << 20, 2, (64, 80, 1), (2, 128, 6), (64, 64, 1)) for _ in range(5)]
    assert all(m.size == 1 and m.itemsize == 128 and m.ctypes.data % 64 == 0 for m in made)
