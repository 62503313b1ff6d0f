"""Rows that are swept more than once and outgrow the registers, held in shared memory between the sweeps.

Every thread copies its own elements there and is the only one to read them, so that nothing is exchanged. Blocks go over the rows
in turn, as many blocks as the GPU holds: while the last sweep of a row writes its results, the elements that it has read make room
for those of the next row, so that memory is never idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from .codegen import kernel as ir
from .expr import Expr, Load, transform
from .gpu import Gpu
from .gpu_model import occupancy
from .tiles import up

ELEMS = 8  # elements a thread holds of a tile
BLOCKS = (256, 512, 1024)  # threads of a block
BUSY = 1024  # threads of a multiprocessor that keep it busy, with 64 registers each


@dataclass(frozen=True)
class Near:
    """How rows are held. place: of the phase. loads: what is held. cells: elements of each, of all rows of a block."""

    place: ir.Place
    loads: tuple[Load, ...]
    cells: int

    def stages(self, number: int, stream: str, tags: Mapping[str, str]) -> tuple[list[ir.Buffer], dict[Expr, Load], list[ir.Stage]]:
        """Buffers, what replaces the loads, and the statements that fill the buffers for the first item of a block. tags: dtypes of
        the arrays."""
        buffers: list[ir.Buffer] = []
        names: dict[Expr, Load] = {}
        stages: list[ir.Stage] = []
        for n, e in enumerate(self.loads):
            name = f"near{number}_{n}"
            sizes = tuple(ir.Size(value=self.cells) if d == stream else ir.Size() for d in e.dims)
            buffers.append(ir.Buffer(name, e.dims, sizes, dtype=tags[e.source]))
            names[e] = Load(name, e.dims, e.dtype)
            stages.append(ir.Stage(name, ir.Operand(e.source, e.dims), dtype=tags[e.source]))
        return buffers, names, stages


def near(
    base: ir.Place, loads: Sequence[Load], width: int, n: int, held: int, gpu: Gpu, choice: Mapping[str, int], even: bool
) -> Near | None:
    """The fewest threads that keep a multiprocessor busy, else the most that fit. None where the rows do not fit.

    base: the place without. loads: what is swept twice; width: bytes of an element of all of them. n: of the stream. held: bytes a
    warp of partial states takes in shared memory when they are merged. even: rows start at multiples of 16 bytes."""
    vector = base.vector if even else 1
    found: Near | None = None
    for threads in (choice["threads"],) if "threads" in choice else BLOCKS:
        group = choice.get("group", threads if base.along == "stream" else threads // 32)
        elems = up(choice.get("elems", ELEMS), vector)
        cells = threads * elems * ceil(n / (group * elems))
        shared = cells * width + threads // 32 * held
        blocks = occupancy(gpu, threads, shared).blocks if shared <= gpu.shared_limit else 0
        if not blocks:
            continue
        resident = max(1, min(blocks, BUSY // threads))
        place = replace(base, warps=threads // 32, group=group, elems=elems, vector=vector, resident=resident)
        found = Near(place, tuple(loads), cells)
        if resident * threads >= BUSY:
            break
    return found


def renamed(e: Expr, names: Mapping[Expr, Load]) -> Expr:
    """The expression with loads replaced."""
    return transform(e, names.get)
