"""Sizes of a tile on tensor cores: rows, elements of the stream, columns, stages, and how many warps share it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from .codegen.dtypes import WIDTHS
from .cuda_layout import Layout, divided, element_tiles
from .cuda_prologue import COLUMNS
from .forms import Question
from .gpu import Gpu
from .roles import Product
from .tiles import up

RESIDENT = 512  # bytes of inner elements up to which the row operand stays in shared memory; else 128 at a time
LONGEST = 128  # elements of products of bytes that are summed before they are added to the state or the score
PARTS = 8  # warps of a block, where few rows share a stream: some along the rows, the others along the stream
PART_ROWS = 64  # up to which these are few
SHORT = 2  # block tiles that a stream has at least, to be shared among warps
HELD = 320  # columns and elements of the stream that a thread's rows hold: two each register


class NoForm(Exception):
    """The tensor-core form does not fit; the general form does."""


@dataclass(frozen=True)
class Tile:
    """warps x 16 x fragments rows, `depth` elements of the stream; inner: a block of the inner axis; resident: the row operand
    is staged once. columns: a block of the column axis, 0 without one. stages: tiles in flight. groups: products by warpgroups.
    parts: groups of warps along the stream, which has `depth` elements for each of them in a tile; across: the same of warpgroups that
    divide the columns. score, column: bytes of an element of the operands of the product inside the elements, and of the one with
    columns. within: the column of the former's stream operand at which the latter's starts, -1 where it is another array. tiles:
    arrays of 16 bits with an element for each of the tile's. turned: as in `Layout`."""

    warps: int
    fragments: int
    depth: int
    inner: int
    resident: bool
    columns: int
    stages: int
    groups: bool = False
    score: int = 2
    column: int = 2
    parts: int = 1
    across: int = 1
    within: int = -1
    tiles: int = 0
    turned: frozenset[str] = frozenset()

    @property
    def span(self) -> int:
        """Elements of the stream in a tile of the block."""
        return self.depth * self.parts * self.across

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.fragments

    def bytes(self, product: bool) -> tuple[int, int]:
        """Shared memory of what stays, and of one stage."""
        left = self._operand("row", self.rows, self.inner, self.score) if product else self.rows * panel(self.span, max(2, self.column))
        scores = self._operand("stream", self.span, self.inner, self.score) if product else 0
        right = self._operand("columns", self.span, self.columns, self.column) if self.within < 0 else 0
        stays = left if self.resident and product else 0
        each = right + scores + (0 if stays else left) + self.tiles * max(self.rows * panel(self.span), self.span * panel(self.rows))
        return stays + (self.rows * panel(self.span) if self.across > 1 else 0), each

    def _operand(self, name: str, rows: int, columns: int, width: int) -> int:
        return columns * panel(rows, width) if name in self.turned else rows * panel(columns, width)

    def sharing(self, offset: int, n: int) -> Tile:
        """With n columns at this offset of the stream operand, -1 for none: they are not fetched again where its tile has them all."""
        fits = self.resident and 0 <= offset <= self.inner - self.columns and n <= self.columns
        return replace(self, within=offset if fits else -1)


def tile_of(q: Question, p: Product | None, row: str, gpu: Gpu, groups: bool, one: bool, scored: str, format_: str,
            layout: Layout) -> Tile:  # fmt: skip
    """Sizes, from extents and the registers and shared memory of a block. groups: warpgroups do the products. one: the stream is
    gone through once, so that its tiles can be shared among warps. scored: the format in which the product inside the elements is
    multiplied. format_: that of the products with columns."""
    score, column = WIDTHS.get(scored, 2), WIDTHS.get(format_, 2)
    n_row, n_inner = q.extents[row], q.extents[p.inner] if p else 0
    lists, few = any(a.k for a in q.accs.values()), len(q.accs) <= 2
    most = 2 * COLUMNS if groups and p is not None else COLUMNS
    step = 32 if column == 1 else 16
    cols = max((up(min(q.extents[c], most), 16) for cs in q.columns.values() for c in cs), default=0)
    if groups:
        warps, fragments = 8 if n_row > 64 else 4, 1
        depth = 64 if cols > COLUMNS else 128 if cols or lists or not few else 256
        if 4 in (score, column) and cols:  # a thread's left operand takes as many registers as its tile
            depth = min(depth, 64 if cols <= COLUMNS else 32)
        if scored == "i8" or (scored == "e4m3" and n_inner > LONGEST):  # sums beside the tile
            depth = min(depth, 64 if cols else 128)
    else:
        warps = min(8 if p is None or (not cols and n_row >= 1024) else 4, max(1, ceil(n_row / 16)))
        fragments = 2 if n_row > 16 * warps and not lists and p is not None else 1
        depth = 64 if cols or lists or not few else 128
        if column == 1:  # the sum of a tile is added to the state: long tiles
            warps, fragments, depth = min(8, max(1, ceil(n_row / 16))), 1, 128
        if 4 in (score, column) and cols:
            fragments, depth = 1, 32
        while cols and fragments * (cols + depth) > HELD and depth > 32:
            depth //= 2
    if "rows" in q.choice:
        warps, fragments = max(1, min(4, int(q.choice["rows"]) // 16)), 1
    depth = min(up(int(q.choice.get("depth", depth)), step), up(q.extents[q.stream], step))
    depth = min(depth, LONGEST) if column == 1 else depth
    resident = n_inner * score <= RESIDENT
    tile = Tile(warps, fragments, depth, up(n_inner, 32 // score) if resident else 128 // score, resident, cols, 2, groups, score, column)
    tile = replace(tile, tiles=element_tiles(q, p, row) if p is not None else 0, turned=layout.turned)
    tile = tile.sharing(layout.offset, max((q.extents[c] for cs in q.columns.values() for c in cs), default=0))
    if layout.divisible and p is not None:
        tile = divided(q, p, tile, gpu, layout.offset)
    if one and not groups and score == column == 2 and "rows" not in q.choice and n_row <= min(tile.rows, PART_ROWS):
        tile = along_stream(q, p, tile, gpu)
    stays, each = tile.bytes(p is not None)
    while groups and stays + 2 * each > gpu.shared_limit - 1024 and tile.depth % 32 == 0:
        tile = replace(tile, depth=tile.depth // 2)
        stays, each = tile.bytes(p is not None)
    room = gpu.shared_limit - 1024 if groups or tile.parts > 1 else gpu.shared_limit // 2
    most = min(4, (room - stays) // each)
    if stays + 2 * each > gpu.shared_limit:
        raise NoForm
    return replace(tile, stages=max(2, most))


def along_stream(q: Question, p: Product | None, tile: Tile, gpu: Gpu) -> Tile:
    """The tile with warps along the stream, as many as three tiles in flight leave room for; where rows are few."""
    n, wanted = q.extents[q.stream], q.choice.get("parts")
    for parts in (int(wanted),) if wanted else (8, 4, 2):
        for depth in (min(32, tile.depth), 16) if "depth" not in q.choice else (tile.depth,):
            new = replace(tile, depth=depth, parts=parts)
            stays, each = new.bytes(p is not None)
            if tile.warps * parts <= PARTS and n >= SHORT * new.span and stays + 3 * each <= gpu.shared_limit - 1024:
                return new
    return tile


def panel(columns: int, width: int = 2) -> int:
    """Bytes of a staged row of elements: whole 128-byte panels."""
    return up(columns * width, 128)
