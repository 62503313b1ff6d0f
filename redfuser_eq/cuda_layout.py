"""How the operands of a phase on tensor cores lie, what of them is the same, and tiles whose columns warpgroups divide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from .codegen.dtypes import DTYPES
from .cuda_prologue import COLUMNS, NARROW
from .expr import Load, Source, nodes
from .forms import Question
from .gpu import Gpu
from .roles import Product
from .tiles import up

if TYPE_CHECKING:
    from .cuda_tile_sizes import Tile

PANEL = 64  # elements of 16 bits in a row of a panel: where the columns of a warpgroup may start
ACROSS = 2  # warpgroups whose states fill the registers together


@dataclass(frozen=True)
class Layout:
    """How the operands of a phase lie. offset: as `starts_at` gives it, -1 also where no tile can be shared. divisible: warpgroups may
    divide the columns. turned: of "row", "stream" and "columns" (the operands of the product inside the elements, and the one with
    columns) those whose tiles run along the rows or the stream."""

    offset: int = -1
    divisible: bool = False
    turned: frozenset[str] = frozenset()


def element_tiles(q: Question, p: Product, row: str) -> int:
    """Arrays of 16 bits that vary over the rows and the stream."""
    found = {e for e in nodes(*q.lifts.values()) if isinstance(e, Load) and {row, q.stream} <= e.axes and e not in (p.row, p.stream)}
    return sum(DTYPES[e.dtype.name] in NARROW for e in found)


def divided(q: Question, p: Product, tile: Tile, gpu: Gpu, offset: int) -> Tile:
    """The tile with its columns divided among warpgroups, where one of them cannot hold them all: each has all the rows, and the
    scores of its share of the stream, which all of them need. offset: as in `Layout`."""
    n, inner, stream = max(q.extents[c] for cs in q.columns.values() for c in cs), q.extents[p.inner], q.extents[q.stream]
    across = int(q.choice.get("across", ACROSS if n > 2 * COLUMNS else 1))
    if across == 1:
        return tile
    columns = up(min(n, 2 * COLUMNS * across), PANEL * across)
    most = up(int(q.choice.get("depth", tile.depth)), 16)
    for resident in (True, False):
        width = up(inner, 32 // tile.score) if resident else 128 // tile.score
        for depth in (most, *(d for d in (64, 32, 16) if d < most)):
            new = replace(tile, warps=4, fragments=1, depth=min(depth, up(ceil(stream / across), 16)), inner=width, resident=resident,
                          columns=columns, across=across).sharing(offset, n)  # fmt: skip
            stays, each = new.bytes(True)
            if stays + 2 * each <= gpu.shared_limit - 1024:
                return new
    return tile


def starts_at(a: Load, axis: str, b: Load, along: str, sources: Sequence[Source]) -> int:
    """The element of a's axis at which array b starts, if b is a slice of a whose axis is called `along`; else -1."""
    if tuple(along if d == axis else d for d in a.dims) != b.dims or a.dtype != b.dtype:
        return -1
    if a.source == b.source:
        return 0
    one, other = (next((s for s in sources if s.name == x.source), None) for x in (a, b))
    if one is None or other is None or one.param != other.param:
        return -1
    if any(s.view.splits or s.view.then or s.view.merges for s in (one, other)):
        return -1
    n = max(len(s.view.index) for s in (one, other))
    cuts = [(s.view.index or (slice(None),) * n) for s in (one, other)]
    pairs = list(zip(*cuts, strict=True))
    kept = [(x, y) for x, y in pairs if isinstance(x, slice) or isinstance(y, slice)]
    if any(x != y for x, y in pairs if (x, y) not in kept) or len(kept) != len(a.dims):
        return -1
    offset = -1
    for d, (x, y) in zip(a.dims, kept, strict=True):
        if not isinstance(x, slice) or not isinstance(y, slice) or (d != axis and x != y):
            return -1
        if d == axis:
            first, second = x.start or 0, y.start or 0
            plain = x.step in (None, 1) and y.step in (None, 1) and 0 <= first <= second
            offset = second - first if plain else -1
    return offset
