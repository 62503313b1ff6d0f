"""Rows held in shared memory between their sweeps, on the emulator: sizes, alignments, dtypes, several rows a block, many rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import ml_dtypes
import numpy as np
import pytest
from emulator import Schedule
from test_gpu_model import CHIP

from redfuser_eq.codegen import kernel as ir
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.errors import IRError
from redfuser_eq.gpu import GPUS, Gpu
from redfuser_eq.gpu_model import model

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulated import Run, error, run

TWO = replace(GPUS["a100"], multiprocessors=1)  # blocks have several rows to do
TYPES = (np.float16, ml_dtypes.bfloat16, np.float64, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8, np.int32)
SMALL = {"form": "rows", "near": True, "threads": 64, "elems": 4}
LAZY, EAGER = Schedule("pct", seed=5), Schedule("desc", lazy=False)


def held(k: ir.Kernel) -> list[tuple[str, str]]:
    return [(p.name, s.source.source) for p in k.phases for s in p.body if isinstance(s, ir.Stage)]


def check(
    w: cascades.Workload, extents: dict[str, int], choice: dict[str, Any] = SMALL, tolerance: float = 2e-6, gpu: Gpu = TWO, **options: Any
) -> Run:
    arrays = options.pop("arrays", None) or w.make(np.random.default_rng(1), extents)
    cascade = options.pop("cascade", w.cascade)
    r = run(cascade, arrays, extents, gpu, choice, **options)
    assert held(r.kernel)
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        assert error(got, want) < tolerance
    assert not r.flags.any()
    return r


@pytest.mark.parametrize("order", [LAZY, EAGER], ids=["lazy", "eager"])
@pytest.mark.parametrize("k", [1, 255, 256, 257, 1001, 1024])
def test_rows_of_any_length(k: int, order: Schedule) -> None:
    """Sixteen blocks for 35 rows; rows whose starts are aligned or not."""
    check(cascades.softmax(), {"r": 35, "k": k}, order=order)


@pytest.mark.parametrize("which", ["cascade", "plain"])
@pytest.mark.parametrize("group", [1, 16, 32, 64])
def test_several_rows_a_block(which: str, group: int) -> None:
    w = cascades.softmax()
    check(w, {"r": 37, "k": 150}, {**SMALL, "group": group}, order=LAZY, cascade=getattr(w, which))


@pytest.mark.parametrize("name", ["softmax_variance", "softmax", "kl"])
def test_several_passes(name: str) -> None:
    """The written-out formulas go over the row once a pass."""
    w = cascades.WORKLOADS[name]()
    r = check(w, {"r": 21, "k": 517}, cascade=w.plain, order=LAZY)
    assert sum(isinstance(s, ir.Loop) for p in r.kernel.phases for s in p.body) >= len(w.plain.passes)


@pytest.mark.parametrize("k", [160, 163])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: np.dtype(t).name)
def test_dtypes(dtype: Any, k: int) -> None:
    d = np.dtype(dtype)
    w = cascades.softmax(d)
    check(w, {"r": 19, "k": k}, {**SMALL, "threads": 32}, {1: 0.1, 2: 1e-2, 4: 1e-6, 8: 1e-13}[d.itemsize], order=LAZY)


@pytest.mark.parametrize("kind", ["transposed", "reversed", "spread", "offset", "expanded"])
def test_strides(kind: str) -> None:
    w = cascades.softmax()
    extents = {"r": 9, "k": 300}
    (x,) = w.make(np.random.default_rng(3), extents)
    if kind == "transposed":
        x = np.ascontiguousarray(x.T).T
    elif kind == "reversed":
        x = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    elif kind == "expanded":
        x = np.broadcast_to(x[:1], x.shape)
    else:
        room = np.full((19, 608), np.nan, np.float32)
        view = room[1:19:2, 3:603:2] if kind == "spread" else room[1:19:2, 5:305]
        view[...] = x
        x = view
    r = check(w, extents, {**SMALL, "threads": 128}, arrays=[x], order=LAZY)
    assert r.kernel.phases[0].place is not None and (r.kernel.phases[0].place.along == "row") == (kind == "transposed")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_flags(bad: float) -> None:
    w = cascades.softmax()
    (x,) = w.make(np.random.default_rng(6), {"r": 33, "k": 130})
    x[[1, 32], 7] = bad
    r = run(w.cascade, [x], {"r": 33, "k": 130}, TWO, SMALL, LAZY)
    assert np.flatnonzero(r.flags).tolist() == [1, 32]
    clean = r.flags == 0
    assert error(r.outputs[0][clean], w.expected(x.astype(np.float64))[0][clean]) < 2e-6


def test_a_row_too_long_for_registers() -> None:
    r = check(cascades.softmax(), {"r": 2, "k": 17001}, {})
    (place,) = (p.place for p in r.kernel.phases)
    assert place is not None and place.vector == 1 and place.resident and r.program.launches[0].most == place.resident


def test_where_rows_lie() -> None:
    """Registers up to 16384 floats, then shared memory as far as it goes, then memory twice, then segments."""
    w = cascades.softmax()
    for gpu, most in (("h200", 57344), ("a100", 40960)):
        for k, near in ((16384, False), (16388, True), (most, True), (most + 8192, False), (1 << 17, False)):
            assert bool(held(schedule(w.cascade, {"r": 64, "k": k}, {}, GPUS[gpu], {}))) == near, (gpu, k)
    half = cascades.softmax(np.dtype(np.float16))
    assert held(schedule(half.cascade, {"r": 64, "k": 100_000}, {}, GPUS["h200"], {}))


def test_only_what_is_read_again_is_held() -> None:
    """Each row of x once; the vectors that all rows share are read where they are needed."""
    import redfuser_eq as rf

    def norm(x: Any, gain: Any, shift: Any) -> Any:
        mean = np.mean(x, axis=-1, keepdims=True)
        d = x - mean
        return d / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + 1e-5) * gain + shift

    x, g = np.zeros((64, 30000), np.float32), np.zeros(30000, np.float32)
    plan = rf.optimize(norm, target="cuda").explain(x, g, g)
    text = rf.optimize(norm, target="cuda").source("cuda", x, g, g)
    assert text.count("near") and "_of = [&]" in text and text.count("_of = [&]") == 1
    assert "bound by memory" in str(plan)


def test_bytes_are_counted_once() -> None:
    w, extents = cascades.softmax(), {"r": 1 << 14, "k": 50257}
    close, twice = (schedule(w.cascade, extents, {}, GPUS["h200"], c) for c in ({}, {"near": False}))
    once = 4 * (1 << 14) * 50257
    assert model(close, extents, GPUS["h200"])[0].read == once
    assert model(twice, extents, GPUS["h200"])[0].read == 2 * once
    assert model(close, extents, GPUS["h200"])[0].shared == 4 * 7 * 8192


def test_another_length_of_as_many_tiles_is_the_same_source() -> None:
    w = cascades.softmax()
    keys = {schedule(w.cascade, {"r": 8, "k": k}, {}, CHIP, {**SMALL, "threads": 64}).key for k in (516, 600, 768)}
    assert len(keys) == 1


def test_a_row_does_not_depend_on_its_batch() -> None:
    w = cascades.softmax()
    (x,) = w.make(np.random.default_rng(11), {"r": 40, "k": 701})
    whole = run(w.cascade, [x], {"r": 40, "k": 701}, TWO, SMALL).outputs[0]
    alone = run(w.cascade, [x[33:34].copy()], {"r": 1, "k": 701}, TWO, SMALL).outputs[0]
    assert np.array_equal(whole[33:34], alone)


def test_rows_without_a_place_in_shared_memory_are_refused() -> None:
    w = cascades.softmax()
    k = schedule(w.cascade, {"r": 8, "k": 700}, {}, CHIP, SMALL)
    (p,) = k.phases
    assert p.place is not None
    with pytest.raises(IRError, match="cannot be staged here"):
        emit(replace(k, phases=(replace(p, place=replace(p.place, resident=0)),)), CHIP)
