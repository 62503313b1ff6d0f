"""What a Kernel costs on a GPU, from counting: bytes, operations, special functions, barriers, against the GPU's rates.

The roofline model (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009), one roof for each
resource that a multiprocessor has, with the grid's fill of the chip. It counts what the statements of a phase do for one point of
the grid and multiplies; masks count by the share of tiles that they leave. It tells what bounds a kernel and how two schedules
compare; it knows nothing of stalls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cascade import Cascade
from .codegen import kernel as ir
from .codegen.dtypes import WIDTHS
from .codegen.launch import Launch, grid_of
from .expr import Const, Expr, Load, Map, Reduce, nodes
from .gpu import Gpu
from .ops import OPS

START = 2e-6  # seconds: a launch that does nothing, behind another one
BARRIER = 40  # cycles of a barrier of one block
SPECIAL = 4.0  # `Op.cost` from which an operation uses the special function unit, and this many plain instructions around it
RESERVED = 1 << 10  # bytes of shared memory that the system takes from each block (CUDA C++ Programming Guide, since 8.0)
BLOCKS = 32  # resident blocks of a multiprocessor
L2_BYTES = 64  # a clock and multiprocessor, from the L2 cache
SHARED_BYTES = 128  # a clock and multiprocessor, from shared memory
TENSOR = ("mma", "wgmma")  # forms of `Place` that use tensor cores
SYNC = 0.629  # of the peak rate, one warp's instructions reach where warpgroups have their own: the average over formats that is
# reported of an H800 PCIe (Luo et al., arXiv:2501.12084, 2025, section 6.2: taken from a quotation of it, never measured here)
SAMPLES = 32  # tiles of an axis that are looked at for a mask's share


@dataclass(frozen=True)
class Occupancy:
    """blocks: that a multiprocessor holds at once. warps: share of its warps. limit: what allows no more of them."""

    blocks: int
    warps: float
    limit: str


@dataclass(frozen=True)
class Prediction:
    """One launch. read, written: bytes of memory, each once. near: bytes that blocks read, from L2 or memory. flops: float32
    instructions. tensor: flop by dtype tag of the operands. special: results of special functions. tiles: trips through the
    inner loop of one block, with `barriers` each. staged: bytes that tensor cores and rows get from shared memory. waves: rounds of
    resident blocks. times: seconds by resource; bound: the largest; seconds: it and the start of the launch."""

    name: str
    blocks: int
    threads: int
    shared: int
    occupancy: Occupancy
    waves: int
    read: float
    written: float
    near: float
    flops: float
    tensor: Mapping[str, float]
    special: float
    tiles: int
    barriers: int
    staged: float
    times: Mapping[str, float]

    @property
    def bound(self) -> str:
        return max(self.times, key=lambda r: self.times[r])

    @property
    def seconds(self) -> float:
        return START + max(self.times.values())


def occupancy(gpu: Gpu, threads: int, shared: int = 0, registers: int = 0) -> Occupancy:
    """Resident blocks of one multiprocessor. shared: bytes of a block. registers: of a thread, 0 when not known."""
    warps = -(-threads // 32)
    limits = {"threads": gpu.threads_per_unit // (32 * warps), "blocks": BLOCKS}
    if shared:
        limits["shared memory"] = (gpu.shared_limit + RESERVED) // (shared + RESERVED)
    if registers:
        limits["registers"] = gpu.registers // (warps * (-(-registers * 32 // 256) * 256))
    limit = min(limits, key=lambda k: limits[k])
    return Occupancy(limits[limit], limits[limit] * 32 * warps / gpu.threads_per_unit, limit)


def predict(cascade: Cascade, extents: Mapping[str, int], gpu: Gpu) -> tuple[Prediction, ...]:
    """What row-major arrays of these sizes would cost. Raises schedule.Unsupported where there is no kernel."""
    from .codegen.cuda import emit
    from .cuda_schedule import schedule  # late: the scheduler may ask the model

    kernel = schedule(cascade, extents, {}, gpu)
    return model(kernel, extents, gpu, emit(kernel, gpu).launches)


def model(kernel: ir.Kernel, extents: Mapping[str, int], gpu: Gpu, launches: Sequence[Launch] = ()) -> tuple[Prediction, ...]:
    """A prediction for each phase. launches: of the printed program, one a phase, for the exact grid and shared memory."""
    known: Sequence[Launch | None] = launches if len(launches) == len(kernel.phases) else [None] * len(kernel.phases)
    return tuple(_Count(kernel, p, extents, gpu).prediction(launch) for p, launch in zip(kernel.phases, known, strict=True))


@dataclass
class _Totals:
    """Of one grid point. read, written: bytes by array."""

    flops: float = 0.0
    special: float = 0.0
    tensor: dict[str, float] = field(default_factory=dict)
    read: dict[str, float] = field(default_factory=dict)
    written: dict[str, float] = field(default_factory=dict)
    trips: int = 1
    barriers: int = 0
    staged: float = 0.0


class _Count:
    """Counting one phase."""

    def __init__(self, kernel: ir.Kernel, phase: ir.Phase, extents: Mapping[str, int], gpu: Gpu) -> None:
        self.kernel, self.phase, self.extents, self.gpu = kernel, phase, extents, gpu
        self.place = phase.place or ir.Place("rows", 4)
        steps = {g.axis: g.step for g in phase.grid}
        self.own = {a: min(steps.get(a, n), n) for a, n in extents.items()}
        if ir.SEGMENT in steps and phase.stream:
            self.own[phase.stream] = min(steps[ir.SEGMENT], extents[phase.stream])
        self.tags = {a.name: a.dtype for a in (*kernel.inputs, *kernel.outputs)}
        self.tags |= {b.name: b.dtype or kernel.real for b in kernel.buffers}
        self.far = {a.name for a in (*kernel.inputs, *kernel.outputs)} | {b.name for b in kernel.buffers if b.shared}
        self.origin = {s.dst: s.source.source for s in ir.statements(phase.body) if isinstance(s, ir.Stage)}
        self.staged = {s.dst: s.dtype or self.tags.get(s.source.source, "") for s in ir.statements(phase.body) if isinstance(s, ir.Stage)}
        self.totals = _Totals()

    def prediction(self, launch: Launch | None) -> Prediction:
        self._body(self.phase.body, 1.0, 1)
        t, gpu = self.totals, self.gpu
        grid = [self._steps(g) for g in self.phase.grid]
        items = math.prod(grid)
        threads, shared = (launch.block, launch.shared) if launch else (self.place.threads, self._shared())
        blocks = math.prod(grid_of(launch, self.extents)) if launch else self._blocks(grid)
        held = occupancy(gpu, threads, shared)
        room = max(1, held.blocks) * gpu.multiprocessors
        waves = max(1, -(-blocks // room))
        fill = blocks / (waves * room) if waves > 1 else min(1.0, blocks / gpu.multiprocessors)
        read, near = self._read(items, min(blocks, room) * items / max(1, blocks))
        written = sum(min(n * items, self._whole(a)) for a, n in t.written.items())
        clocks = gpu.clock * gpu.multiprocessors * fill
        times = {
            "memory": (read + written) / (gpu.bandwidth * min(1.0, 2 * fill)),
            "L2": near / (L2_BYTES * clocks),
            "arithmetic": 2 * items * t.flops / (gpu.fp32 * fill),
            "special functions": items * t.special / (gpu.mufu * clocks),
            "tensor cores": sum(items * n / gpu.tensor[tag] for tag, n in t.tensor.items()) / (fill * self._rate()),
            "shared memory": items * t.staged / (SHARED_BYTES * clocks),
            "barriers": waves * t.trips * t.barriers * BARRIER / gpu.clock,
        }
        tensor = {tag: items * n for tag, n in t.tensor.items()}
        return Prediction(
            self.phase.name, blocks, threads, shared, held, waves, read, written, near, items * t.flops, tensor, items * t.special,
            t.trips, t.barriers, items * t.staged, times,
        )  # fmt: skip

    def _rate(self) -> float:
        return SYNC if self.place.form == "mma" and self.gpu.capability >= 90 else 1.0

    # ---- the grid
    def _steps(self, g: ir.Grid) -> int:
        return -(-self.extents.get(self.phase.stream if g.axis == ir.SEGMENT else g.axis, 1) // g.step)

    def _blocks(self, grid: list[int]) -> int:
        if self.place.form == "elements":
            return -(-math.prod(grid) // self.place.threads)
        if self.place.form != "rows" or not grid:
            return math.prod(grid)
        return math.prod(grid[:-1]) * -(-grid[-1] // max(1, self.place.threads // self.place.group))

    def _shared(self) -> int:
        """Bytes of the block's own buffers that are staged into, as many times as there are stages, or used by tiles."""
        total = 0
        for b in self.kernel.buffers:
            used = any(b.name in _names(s) for s in ir.statements(self.phase.body))
            close = self.place.form in (*TENSOR, "rows")
            if b.shared or not used or (close and b.name not in self.origin):
                continue
            width = _size(self.staged[b.name]) if close and b.name in self.origin else self._real
            stages = self.place.stages if b.name in self.origin and self.place.form != "rows" else 1
            total += stages * width * math.prod(self._length(s) for s in b.sizes)
        return min(total, self.gpu.shared_limit)

    def _length(self, s: ir.Size) -> int:
        n = -(-(self.extents[s.axis] if s.axis else s.value) // s.divide)
        return -(-n // s.multiple) * s.multiple + s.pad

    @property
    def _real(self) -> int:
        return 4 if self.kernel.real == "float" else 8

    # ---- memory
    def _width(self, name: str) -> int:
        return self._real if self.tags[name] == self.kernel.real else _size(self.tags[name])

    def _dims(self, name: str) -> tuple[str, ...]:
        found = self.kernel.array(name) or self.kernel.buffer(name)
        assert found is not None
        return found.dims

    def _whole(self, name: str) -> float:
        """Bytes of an array."""
        segments = [self._steps(g) for g in self.phase.grid if g.axis == ir.SEGMENT]
        sizes = [segments[0] if a == ir.SEGMENT and segments else self.extents.get(a, 1) for a in self._dims(name)]
        return float(self._width(name) * math.prod(sizes))

    def _read(self, items: float, resident: float) -> tuple[float, float]:
        """Bytes from memory and bytes into blocks. What a block reads again comes from L2 if that holds it for all resident
        blocks; what blocks share is taken to be there."""
        far = near = 0.0
        for a, n in self.totals.read.items():
            once = min(self._whole(a), items * n)
            footprint = min(n, self._footprint(self._dims(a)) * self._width(a))
            again = n / footprint if footprint else 1.0
            far += once * (again if footprint * resident > self.gpu.l2 else 1.0)
            near += items * n
        return far, near

    def _footprint(self, dims: Iterable[str]) -> float:
        return math.prod(self.own.get(a, 1) for a in dims)

    # ---- statements
    def _body(self, body: Sequence[ir.Stmt], share: float, trips: int) -> None:
        """share: of the elements, that masks leave. trips: how often the body runs for a grid point."""
        reads: set[str] = set()
        for s in body:
            if isinstance(s, ir.Skip):
                share *= self._share(s)
            elif isinstance(s, ir.Loop):
                inside = trips * -(-self.own[s.axis] // s.step)
                self.totals.trips = max(self.totals.trips, inside)
                self._body(s.body, share, inside)
            else:
                self._statement(s, share, trips)
                reads |= self._reads(s)
        for name in reads:
            self.totals.read[name] = self.totals.read.get(name, 0.0) + share * self._footprint(self._dims(name)) * self._width(name)
        if trips > 1:
            self.totals.barriers = max(self.totals.barriers, self._barriers(body))

    def _statement(self, s: ir.Stmt, share: float, trips: int) -> None:
        if isinstance(s, ir.Contract):
            self._product(s, share)
        elif isinstance(s, ir.Stage) and s.dtype == "tf32" and self.place.form == "wgmma" and not s.mapped:  # rounded where it lies
            self.totals.staged += share * 2 * WIDTHS["tf32"] * self._footprint(s.source.dims)
        elif isinstance(s, ir.Dot):
            self.totals.flops += share * self._points({s.i, s.k, s.c})
        elif isinstance(s, ir.Fetch):
            held = [e for e in s.loads if e.source in self.origin]
            self.totals.staged += share * sum(self._footprint(e.dims) * _size(self.staged[e.source]) for e in held)
        if isinstance(s, (ir.Rebase, ir.ColumnRebase)):
            self._operations([e for _, e in s.items], share * trips)
            self._operations([f[1] for f in getattr(s, "factors", ())], share * trips)
        else:
            self._operations(_expressions(s), share)
        folds = [*getattr(s, "folds", ()), *([s.fold] if isinstance(s, ir.Columns) else [])]
        for f in folds:
            self.totals.flops += share * self._points(f.lift.axes | {self.phase.stream})
        for name in _stores(s):
            if name in self.far:
                size = self._footprint(self._dims(name)) * self._width(name)
                self.totals.written[name] = self.totals.written.get(name, 0.0) + size

    def _product(self, s: ir.Contract, share: float) -> None:
        """Multiply-adds: on tensor cores two flop each, with rows that the tile pads; else one instruction."""
        mma = self.place.form in TENSOR
        rows = self.own.get(s.i, 1)
        block = {"mma": 16, "wgmma": 64}.get(self.place.form, 1)
        padded = -(-rows // block) * block
        n = share * padded * self._points({s.j, s.c})
        if mma:
            tag = next((self.staged[o.source] for o in (s.b, s.a) if o.source in self.staged), "")
            tag = tag if tag in self.gpu.tensor else "tf32"
            self.totals.tensor[tag] = self.totals.tensor.get(tag, 0.0) + 2 * n
            self.totals.staged += share * self._staged(s, padded, block) * WIDTHS[tag]
        else:
            self.totals.flops += n

    def _staged(self, s: ir.Contract, rows: int, block: int) -> float:
        """Elements from shared memory: the right operand once for each block of rows that an instruction sequence does, the left one
        at each tile, unless it is a tile in registers that nobody else needs."""
        height = block * (self.place.fragments if block == 16 else 1)
        right = self._points({s.j, s.c}) * math.ceil(rows / height)
        tiles = self.own.get(s.j, 1) / max(1, self._step(s.j))
        left = tiles if s.start == "zero" else self.place.across if self.place.across > 1 else 0
        return right + rows * self._points({s.c}) * left

    def _step(self, axis: str) -> int:
        """Elements of an axis in a tile of one part."""
        steps = [s.step for s in ir.statements(self.phase.body) if isinstance(s, ir.Loop) and s.axis == axis]
        return steps[0] // (self.place.parts * self.place.across) if steps else self.own.get(axis, 1)

    def _operations(self, roots: Sequence[Expr], times: float) -> None:
        """Each distinct value once for each point of its axes."""
        for e in nodes(*roots):
            points = times * self._points(e.axes | ({e.axis} if isinstance(e, Reduce) else set()))
            if isinstance(e, Map):
                special = OPS[e.op].cost >= SPECIAL and not (e.op == "div" and isinstance(e.args[1], Const))
                self.totals.special += points * special
                self.totals.flops += points * (SPECIAL if special else 1.0)
            elif isinstance(e, Reduce):
                self.totals.flops += points

    def _points(self, axes: Iterable[str]) -> float:
        return math.prod(self.own.get(a, 1) for a in axes)

    def _reads(self, s: ir.Stmt) -> set[str]:
        """Arrays in memory that a statement reads."""
        if isinstance(s, ir.Stage) and s.ahead:  # of another item
            return set()
        names = {e.source for e in nodes(*_expressions(s)) if isinstance(e, Load)}
        names |= {o.source for o in _operands(s)}
        names |= {e.source for e in getattr(s, "loads", ())}
        return {n for n in names if n in self.far}

    def _barriers(self, body: Sequence[ir.Stmt]) -> int:
        """Of one trip: tiles in shared memory wait after each statement that writes one; a pipeline waits once a step."""
        if self.place.form == "tile":
            writers = (ir.Stage, ir.Pack, ir.Contract, ir.Dot, ir.Sweep, ir.Rebase, ir.Columns, ir.ColumnRebase)
            return sum(isinstance(s, writers) for s in body)
        return int(any(isinstance(s, ir.Stage) for s in body)) * (1 if self.place.stages > 2 else 2)

    def _share(self, s: ir.Skip) -> float:
        """Tiles on which no bound is false everywhere, from a sample of them."""
        if not s.bounds:
            return 1.0
        axes = sorted({a for b in s.bounds for a, _ in b.terms})
        steps = {a: self._tile(a) for a in axes}
        starts = [_sample(self.extents[a], steps[a]) for a in axes]
        kept = total = 0
        for at in itertools.product(*starts):
            low = dict(zip(axes, at, strict=True))
            high = {a: min(self.extents[a], low[a] + steps[a]) - 1 for a in axes}
            kept += all(sum(k * (high if k > 0 else low)[a] for a, k in b.terms) + b.constant >= 0 for b in s.bounds)
            total += 1
        return kept / max(1, total)

    def _tile(self, axis: str) -> int:
        loops = {s.axis: s.step for s in ir.statements(self.phase.body) if isinstance(s, ir.Loop)}
        return min(loops.get(axis, self.own[axis]), self.extents[axis])


def _sample(extent: int, step: int) -> list[int]:
    tiles = -(-extent // step)
    chosen = range(tiles) if tiles <= SAMPLES else np.linspace(0, tiles - 1, SAMPLES).astype(int).tolist()
    return [step * t for t in chosen]


def _size(tag: str) -> int:
    return {"float": 4, "double": 8}.get(tag) or WIDTHS.get(tag, 1)


def _expressions(s: ir.Stmt) -> list[Expr]:
    """The expressions of a statement that are computed for the elements of a tile or a row."""
    found: list[Expr] = [f.lift for f in getattr(s, "folds", ())]
    if isinstance(s, ir.Sweep):
        found += [e for _, e in s.stores]
    elif isinstance(s, ir.Contract):
        found += [s.score] if s.score is not None else []
    elif isinstance(s, ir.Columns):
        found.append(s.fold.lift)
    elif isinstance(s, (ir.Pack, ir.Store, ir.Scan, ir.Summarise)):
        found.append(s.expr)
    return found


def _operands(s: ir.Stmt) -> Iterator[ir.Operand]:
    if isinstance(s, (ir.Contract, ir.Dot)):
        yield from (s.a, s.b)
    elif isinstance(s, ir.Stage):
        yield s.source


def _stores(s: ir.Stmt) -> Iterator[str]:
    """What a statement writes."""
    if isinstance(s, ir.Store):
        yield s.target
    elif isinstance(s, ir.Sweep):
        yield from (name for name, _ in s.stores)
    elif isinstance(s, ir.Partial):
        yield from (b for _, *both in s.items for b in both if b)
    elif isinstance(s, (ir.Pack, ir.Summarise)):
        yield s.dst


def _names(s: ir.Stmt) -> set[str]:
    """Buffers that a statement names."""
    found: set[Any] = {getattr(s, "dst", ""), getattr(s, "factor", "")}
    found |= {o.source for o in _operands(s)} | {e.source for e in nodes(*_expressions(s)) if isinstance(e, Load)}
    found |= {f[0] for f in getattr(s, "factors", ())} | set(_stores(s))
    return found
