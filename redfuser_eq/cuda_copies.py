"""Which operands of a warp-specialised phase the copy engine can fetch, and how many warps then copy.

The engine (compute capability 9.0) takes a tile out of an array of up to five dimensions that a tensor map describes: the first
contiguous, the other strides multiples of 16 bytes, and the array's start too, which only the runtime knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .codegen import kernel as ir
from .codegen.dtypes import WIDTHS
from .gpu import REGISTERS
from .tiles import up

RANK = 5  # dimensions of a tensor map
ALIGNED = 16  # bytes
SCRATCH = "@scratch"  # stands for all buffers of a launch, where sources are named
BOX = 256  # most elements of a tile along an axis
FARTHEST = 1 << 40  # bytes of a stride
WIDEST = 4  # bytes of an element
SHARE = 216  # registers of a thread from which the computing warps need none of the copying ones'


def mapped(
    array: ir.Array, axes: Sequence[str], rows: str, sizes: Mapping[str, int], extents: Mapping[str, int], strides: Sequence[int]
) -> bool:
    """Whether a tile of the array, indexed by these axes, can come by a tensor map. rows: the tile's axis that is not contiguous.
    sizes: the tile's. strides: in elements. The start of the array is taken to be aligned."""
    size = WIDTHS[array.dtype]
    if size > WIDEST or len(set(axes)) < len(axes):
        return False
    (columns,) = set(sizes) - {rows}
    steps = {a: s * size for a, s, known in zip(axes, strides, array.strides, strict=True) if known != 0}
    if not {rows, columns} <= set(steps) or steps.pop(columns) != size or not 1 <= len(steps) < RANK or sizes[rows] > BOX:
        return False
    return all(extents[a] == 1 or (0 < s < FARTHEST and s % ALIGNED == 0) for a, s in steps.items())


def producers(stages: Iterable[ir.Stage], warps: int) -> int:
    """Warps that copy for so many that compute: one where the engine does it all and registers suffice, else a warpgroup, which
    can give registers away."""
    whole = all(s.mapped for s in stages)
    return 1 if whole and REGISTERS // (32 * up(warps + 1, 4)) >= SHARE else 4
