"""The performance model: counts by hand on small kernels, occupancy by the programming guide's rules, and what explain prints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from redfuser_eq import gpu_model
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.expr import Acc, Const, Expr, Load, Map
from redfuser_eq.gpu import GPUS, Gpu

F32 = np.dtype(np.float32)
CHIP = Gpu("chip", 90, 10, 64 << 10, 1e12, 1 << 20, 2e13, {"bf16": 1e15}, mufu=8, clock=1e9)


def load(name: str, axes: str) -> Expr:
    return Load(name, tuple(axes), F32)


def rows_kernel(group: int = 32, warps: int = 4) -> ir.Kernel:
    """s[r] = sum_k exp(x[r, k])."""
    lift = Map("exp", (load("x", "rk"),))
    place = ir.Place("rows", warps, group=group, elems=4, vector=4)
    body = (
        ir.Loop("k", 128, (ir.Fetch((load("x", "rk"),)), ir.Sweep("stream", (ir.Fold("s", "sum", lift),)))),
        ir.Finish(((("s", None),),)),
        ir.Store("out0", Acc("s", frozenset("r"), F32)),
    )
    phase = ir.Phase("rows", (ir.Grid("r"),), body, row="r", stream="k", states=(ir.State("s", "sum", True),), place=place)
    arrays = (ir.Array("x", "f32", ("r", "k"), (None, 1)),), (ir.Array("out0", "f32", ("r",), (1,)),)
    return ir.Kernel("rows", "float", 1, ("r", "k"), *arrays, (), (phase,))


def product_kernel(mask: tuple[ir.Bound, ...] = (), form: str = "mma") -> ir.Kernel:
    """out[i, d] = sum_j p(sum_e q[i, e] k[j, e]) v[j, d], with tiles of 64 rows and 32 stream elements."""

    def buffer(name: str, dims: str, *sizes: int) -> ir.Buffer:
        return ir.Buffer(name, tuple(dims), tuple(ir.Size(value=n) for n in sizes))

    def array(name: str, dims: str) -> ir.Array:
        return ir.Array(name, "bf16", tuple(dims), (None, 1))

    score = Map("exp2", (load("raw", "ij"),))
    scores = ir.Contract("p", ir.Operand("qs", ("i", "e")), ir.Operand("ks", ("e", "j")), "i", "j", "e", 1, 1, 16, raw="raw", score=score)
    columns = ir.Contract("o", ir.Operand("p", ("i", "j")), ir.Operand("vs", ("j", "d")), "i", "d", "j", 1, 1, 16, start="state")
    stages = (ir.Stage("ks", ir.Operand("k", ("j", "e"))), ir.Stage("vs", ir.Operand("v", ("j", "d"))))
    loop = ir.Loop("j", 32, (*((ir.Skip(mask),) if mask else ()), *stages, scores, columns))
    body = (ir.Stage("qs", ir.Operand("q", ("i", "e"))), loop, ir.Store("out0", Acc("o", frozenset("id"), F32), ("d",)))
    phase = ir.Phase("tiles", (ir.Grid("i", 64),), body, "i", "j", 64, place=ir.Place(form, 4, stages=3))
    buffers = (buffer("qs", "ie", 64, 16), buffer("ks", "je", 32, 16), buffer("vs", "jd", 32, 16), buffer("p", "ij", 64, 32))
    inputs = array("q", "ie"), array("k", "je"), array("v", "jd")
    return ir.Kernel("tiles", "float", 1, ("i", "j", "e", "d"), inputs, (array("out0", "id"),), buffers, (phase,))


ROWS = {"r": 1000, "k": 512}
TILES = {"i": 640, "j": 320, "e": 16, "d": 16}


def test_streaming_rows_by_hand() -> None:
    (p,) = gpu_model.model(rows_kernel(), ROWS, CHIP)
    n = 1000 * 512
    assert (p.read, p.written) == (4 * n, 4 * 1000)
    assert p.near == 4 * n
    assert p.special == n  # one exponential an element
    assert p.flops == n * (gpu_model.SPECIAL + 1)  # what goes with it, and the addition
    assert p.blocks == 250 and p.threads == 128  # four rows a block
    assert (p.tiles, p.barriers, p.tensor, p.shared) == (4, 0, {}, 0)
    assert p.occupancy == gpu_model.Occupancy(16, 1.0, "threads")
    assert p.waves == 2 and p.bound == "special functions"
    fill = 250 / 320
    assert p.times["special functions"] == pytest.approx(n / (8 * 10 * 1e9 * fill))
    assert p.times["memory"] == pytest.approx((4 * n + 4000) / 1e12)
    assert p.times["arithmetic"] == pytest.approx(2 * 5 * n / (2e13 * fill))
    assert p.seconds == pytest.approx(gpu_model.START + p.times["special functions"])


def test_tiles_by_hand() -> None:
    (p,) = gpu_model.model(product_kernel(), TILES, CHIP)
    points = 640 * 320
    assert p.tensor == {"bf16": 2 * points * (16 + 16)}
    assert p.special == points
    assert p.read == 2 * 16 * (640 + 320 + 320) and p.written == 2 * 16 * 640
    assert p.near == 2 * 16 * (640 + 10 * (320 + 320))  # each of ten blocks reads all of k and v
    assert (p.blocks, p.tiles, p.barriers) == (10, 10, 1)
    assert p.shared == 3 * 2 * (64 * 16 + 2 * 32 * 16)  # the tile is in registers
    each = 2 * 320 * 16 * (64 // 16)  # a right operand, for each 16 rows
    assert p.staged == 10 * (each + 2 * 64 * 16 * 10 + each)
    assert p.times["tensor cores"] == pytest.approx(p.tensor["bf16"] / 1e15 / gpu_model.SYNC)
    assert p.times["barriers"] == pytest.approx(10 * gpu_model.BARRIER / 1e9)


def test_without_tensor_cores() -> None:
    (p,) = gpu_model.model(product_kernel(form="tile"), TILES, CHIP)
    points = 640 * 320
    assert p.tensor == {}
    assert p.flops == points * (32 + gpu_model.SPECIAL)
    assert p.barriers == 4  # two stages, two products


def test_a_mask_counts_by_what_it_leaves() -> None:
    whole = gpu_model.model(product_kernel(), {**TILES, "j": 640}, CHIP)[0]
    causal = ir.Bound((("i", 1), ("j", -1)), 0)  # i >= j
    half = gpu_model.model(product_kernel((causal,)), {**TILES, "j": 640}, CHIP)[0]
    # of 10 x 20 tiles of 64 x 32, row tile n has elements of the stream tiles 0 ... 2 n + 1
    share = sum(2 * n + 2 for n in range(10)) / 200
    assert half.tensor["bf16"] == pytest.approx(share * whole.tensor["bf16"])


def test_segments_fill_the_chip() -> None:
    k = rows_kernel(group=128)
    one = gpu_model.model(k, {"r": 1, "k": 1 << 20}, CHIP)[0]
    cut = replace(k.phases[0], grid=(ir.Grid(ir.SEGMENT, 1 << 16), ir.Grid("r")))
    parts = gpu_model.model(replace(k, phases=(cut,)), {"r": 1, "k": 1 << 20}, CHIP)[0]
    assert (one.blocks, parts.blocks) == (1, 16)
    assert parts.special == one.special and parts.read == one.read
    assert parts.tiles == one.tiles / 16
    assert one.times["special functions"] == pytest.approx(10 * parts.times["special functions"])


def test_a_second_sweep_hits_the_cache_or_not() -> None:
    k = rows_kernel()
    loop = k.phases[0].body[0]
    twice = replace(k, phases=(replace(k.phases[0], body=(loop, loop)),))
    small, large = ({"r": 1000, "k": n} for n in (64, 1 << 16))
    assert gpu_model.model(twice, small, CHIP)[0].read == 4 * 1000 * 64
    (p,) = gpu_model.model(twice, large, CHIP)
    assert p.read == p.near == 2 * 4 * 1000 << 16


def test_launches_tell_grid_and_shared_memory() -> None:
    from redfuser_eq.codegen.launch import Launch

    launch = Launch("k", ((ir.Size("r", divide=2),), (), ()), 64, 1000, ())
    (p,) = gpu_model.model(rows_kernel(), ROWS, CHIP, (launch,))
    assert (p.blocks, p.threads, p.shared) == (500, 64, 1000)


@pytest.mark.parametrize(
    ("threads", "shared", "registers", "expected"),
    [
        (128, 0, 0, (16, 1.0, "threads")),
        (32, 0, 0, (32, 0.5, "blocks")),
        (128, 100 << 10, 0, (2, 0.125, "shared memory")),  # of 228 KB, each block 1 KB more
        (128, 0, 128, (4, 0.25, "registers")),  # 65536 / (4 warps * 4096)
        (256, 0, 65, (3, 0.375, "registers")),  # 65 are given out as 72
        (384, 220 << 10, 168, (1, 0.1875, "shared memory")),
    ],
)
def test_occupancy_of_an_h200(threads: int, shared: int, registers: int, expected: tuple[int, float, str]) -> None:
    assert gpu_model.occupancy(GPUS["h200"], threads, shared, registers) == gpu_model.Occupancy(*expected)


def test_constants_cost_nothing() -> None:
    k = rows_kernel()
    store = ir.Store("out0", Const(1.0))
    (p,) = gpu_model.model(replace(k, phases=(replace(k.phases[0], body=(store,)),)), ROWS, CHIP)
    assert (p.flops, p.special, p.read) == (0, 0, 0) and p.written == 4000
