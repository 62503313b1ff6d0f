"""The Kernel: how a Cascade is computed, tile by tile. Printers know these statements and nothing else.

Grammar
    Kernel  = arrays (inputs, outputs), buffers, Phase*             phases run one after another, a barrier between them
    Phase   = grid (Grid*), states, Stmt*                           one parallel item a grid point
    Stmt    = Loop(axis, step, Stmt*)                               sequential, over tiles of an axis
            | Skip(Bound*)                                          leave tiles on which an affine mask is false everywhere
            | Sweep | Contract | Dot | Pack                         element-wise and folds; products in register blocks; repacking
            | Remember | Recall                                     parameters of each tile, for values saved in it
            | Rebase | Columns | ColumnRebase                       move state to new parameters; accumulate over extra axes
            | Partial | Merge | Store | Flag                        segments; results; rows that need the plain program
            | Scan | Summarise                                      once a launch: is an operand finite; what a mask leaves of each tile
            | Stage | Fetch | Finish                                CUDA: a tile of an operand close to the threads; one state a row
    Fold    = accumulator, op, lift
    Load    of an array, a buffer or a contraction's raw tile, in `redfuser_eq.expr`'s terms

A tile has a row side (`Phase.row`, may be absent) and a stream side (`Phase.stream`). `lanes` names the side the vector
lanes run along: "stream": one row at a time, state is a scalar; "row": LANES rows at a time, state is a vector and nothing
is folded across lanes. The coordinates of a shared array or buffer are those of the whole axis, a worker's buffer and the
states count from the start of the tile.

The state of an accumulator is its value before the present tile (`Prev`) until the tile's `Rebase` and folds have been
applied to it; `keep` keeps that old value for the statements of later levels. Extents and strides are run-time values:
a Kernel holds only what fixes the code, so shapes with equal decisions share one build (`key`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias

from redfuser_eq.expr import Expr, Load
from redfuser_eq.ops import MONOIDS

from .place import Place as Place

SEGMENT = "@segment"  # the grid axis that cuts the stream
ROW = "@row"  # a row axis of one element, for a stream that one row reads


@dataclass(frozen=True)
class Size:
    """A run-time size: the extent of `axis` (or `value`) in tiles of `divide`, rounded up to `multiple`, plus `pad`."""

    axis: str = ""
    value: int = 1
    multiple: int = 1
    pad: int = 0
    divide: int = 1


@dataclass(frozen=True)
class Array:
    """An argument. dims: one axis a dimension; dtype: a tag of `DTYPES`; strides: for each dimension 0 or 1 when the
    stride is that number, None when it is only known at run time."""

    name: str
    dtype: str
    dims: tuple[str, ...]
    strides: tuple[int | None, ...]


@dataclass(frozen=True)
class Buffer:
    """Scratch, row-major over `dims`. shared: one for the launch, else one a worker. panel > 0: the last dimension is cut into panels
    of that width, each [other dims][panel]. whole: an axis of a worker's buffer that holds all its elements, not a tile's. dtype: a
    tag, "" for the compute type; on a CPU, of operands in pairs: panels are [other dims / 2][panel][2], a last odd one beside 0."""

    name: str
    dims: tuple[str, ...]
    sizes: tuple[Size, ...]
    shared: bool = False
    panel: int = 0
    whole: str = ""
    dtype: str = ""

    def counts_whole(self, axis: str) -> bool:
        """Whether its coordinate along an axis is that of the whole axis, not of the tile."""
        return self.shared or axis == self.whole


@dataclass(frozen=True)
class State:
    """Storage of an accumulator in one item. row: it varies over the phase's row axis; columns: axes beyond the row side; k: entries
    of a top-k list (0: a value); keep: the value before the tile is kept for later levels; whole: a sum of products of bytes."""

    name: str
    op: str
    row: bool
    columns: tuple[str, ...] = ()
    k: int = 0
    out: str = ""
    keep: bool = False
    whole: bool = False

    @property
    def indexed(self) -> bool:
        """The state carries positions along the stream beside its values."""
        return MONOIDS[self.op].state != "value"


@dataclass(frozen=True)
class Grid:
    """A parallel axis in steps. For SEGMENT, step is the length of a segment of the stream."""

    axis: str
    step: int = 1


@dataclass(frozen=True)
class Fold:
    """loose: an extremum may lose a NaN, because another accumulator of the row is NaN then."""

    acc: str
    op: str
    lift: Expr
    loose: bool = False


@dataclass(frozen=True)
class Loop:
    """for the tiles of `axis`: the whole axis, or the present segment of it."""

    axis: str
    step: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Bound:
    """An affine condition sum(coefficient * index(axis)) + constant >= 0 that an element must meet to count."""

    terms: tuple[tuple[str, int], ...]
    constant: int


@dataclass(frozen=True)
class Skip:
    """Tile corners decide: some bound false everywhere, next tile; all true everywhere, `mask` is not tested; else it is
    tested element by element. finite: buffers of one flag each that must be set (operands without NaN or infinity).
    summary: a buffer that says the same of each tile of the other masks ("" for none), see Summarise."""

    bounds: tuple[Bound, ...]
    finite: tuple[str, ...] = ()
    summary: str = ""
    tiles: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Absent:
    """Next tile, where `added`, an addend of every score, is -inf on the whole tile. moderate: loads that the rest of the scores
    is made of, which must be no larger than `limit` there, and so neither infinite nor NaN. With each, the axis to walk fastest."""

    added: tuple[Expr, str]
    moderate: tuple[tuple[Load, str], ...]
    limit: float


@dataclass(frozen=True)
class Sweep:
    """One traversal of the tile: fold lifts, store element-wise values. guard: accumulators; a row on which all of them are still at
    their identity adds nothing. unroll: independent vectors in flight; prefetch: how many elements ahead to fetch the arrays in
    `fetched`. past_cache: the one store goes to memory past the caches."""

    lanes: str
    folds: tuple[Fold, ...]
    stores: tuple[tuple[str, Expr], ...] = ()
    guard: tuple[str, ...] = ()
    unroll: int = 1
    prefetch: int = 0
    fetched: tuple[Load, ...] = ()
    past_cache: bool = False


@dataclass(frozen=True)
class Operand:
    """A contraction's operand: an array or buffer read in place. start: where the axis that is its own begins in a staged tile."""

    source: str
    dims: tuple[str, ...]
    start: int = 0


@dataclass(frozen=True)
class Contract:
    """dst[i, j] = start + sum_c a[i, c] * b[c, j] in register blocks of mr x nv vectors, j in the lanes.

    start: 0 ("zero"), or dst itself, times `factor` (a row factor) plus `rank` terms coefficient[i] * state[j] ("state").
    raw, score, folds: in the registers of the last block the tile reads as Load(raw): `score` maps it, `folds` fold it,
    and it is stored to dst if keep. rest: rows left over in a full tile, worth a block of their own.
    mask: where it is false the score is -inf, so that blocks it leaves nothing of are not multiplied, in tiles a Skip cuts.
    trim: in those, c ends and begins with elements of a that are 0, which are left out.
    extra: (state, operand over c) rows without a row axis that share b: folded after the others, panel by panel.
    ahead: a comes from memory and is read once: fetch the rows of the next block meanwhile.
    Operands of a dtype are multiplied in pairs along c, a contiguous along it: integers in int32, bfloat16 in float32, and a
    block's sum is then converted; c_block is even, and short enough that int32 cannot overflow.
    dst names a buffer, or a state when start is "state".
    """

    dst: str
    a: Operand
    b: Operand
    i: str
    j: str
    c: str
    mr: int
    nv: int
    c_block: int
    start: str = "zero"
    factor: str = ""
    rank: tuple[tuple[str, str], ...] = ()
    raw: str = ""
    score: Expr | None = None
    open_score: Expr | None = None
    mask: Expr | None = None
    trim: bool = False
    folds: tuple[Fold, ...] = ()
    keep: bool = True
    rest: int = 0
    extra: tuple[tuple[str, Operand], ...] = ()
    ahead: bool = False


@dataclass(frozen=True)
class Dot:
    """dst[i, k] = sum_c a[i, c] * b[k, c], c in the lanes: for a stream operand that one row uses."""

    dst: str
    a: Operand
    b: Operand
    i: str
    k: str
    c: str
    prefetch: int = 0


@dataclass(frozen=True)
class Pack:
    """dst = expr, element by element over dst's dims: the present tile of `tile` axes, or one grid point's share of it.
    tested: only for tiles that are tested: a Skip cuts them, or they end within a block of so many vectors; 0: for all."""

    dst: str
    expr: Expr
    lane: str
    tested: int = 0


@dataclass(frozen=True)
class Rebase:
    """Move accumulators of one level to the present parameters, once a tile; a row whose parameters did not move, or were
    all at their identity, is left alone. factors: (buffer, expr) row factors and coefficients for a Contract's start."""

    lanes: str
    params: tuple[str, ...]
    items: tuple[tuple[str, Expr], ...]
    factors: tuple[tuple[str, Expr, float], ...] = ()


@dataclass(frozen=True)
class Columns:
    """state[row, columns] op= fold over the stream tile of a lift that varies over the columns. lane: a column axis or
    the stream axis."""

    fold: Fold
    lane: str
    guard: tuple[str, ...] = ()


@dataclass(frozen=True)
class ColumnRebase:
    """Rebase of accumulators with column axes, element by element, with the guards of Rebase."""

    params: tuple[str, ...]
    items: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class Remember:
    """Keep these states' values for the tile at hand: (state, buffer over [tile of the stream][row]). step: of the tiles."""

    items: tuple[tuple[str, str], ...]
    step: int


@dataclass(frozen=True)
class Recall:
    """In a later traversal: what was remembered of the tile becomes the states' previous values."""

    items: tuple[tuple[str, str], ...]
    step: int


@dataclass(frozen=True)
class Partial:
    """Write the item's states to its segment's buffers: (state, buffer of values, buffer of positions or "")."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Merge:
    """Combine the segments' states, level by level: the rebase with `Prev` read as the segment's value."""

    levels: tuple[tuple[tuple[str, Expr | None], ...], ...]
    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Store:
    """target[...] = expr for each row of the tile and each point of `columns` (lane: the last of them, else the rows).
    checks: accumulators over these columns; a row on which one is not finite is marked, as by Flag."""

    target: str
    expr: Expr
    columns: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """Mark each row on which one of these accumulators is not finite."""

    accs: tuple[str, ...]


@dataclass(frozen=True)
class Scan:
    """flag buffer = 0 where an array's share of the item holds NaN or infinity (the buffer starts at 1)."""

    flag: str
    expr: Expr
    lane: str


@dataclass(frozen=True)
class Stage:
    """Bring a tile of an operand close, on devices with explicit memory: into dst, a worker's buffer over (row, column) axes, padded
    with zeros where the axes end. The column axis is the contiguous one where the source has any. inner: an axis of dst is the inner
    axis of a contraction and comes in blocks. dtype: tag of dst's elements, "" for the source's own. mapped: by the copy engine. In
    rows, a thread brings its own elements of the item's row; ahead: of the block's next item, to where the tile at hand was."""

    dst: str
    source: Operand
    inner: str = ""
    dtype: str = ""
    mapped: bool = False
    ahead: bool = False


@dataclass(frozen=True)
class Summarise:
    """dst[tile] = 0 where a condition is false on the whole tile, 2 where it is true, else 1. tiles: (axis, step) of dst's
    dimensions; the item is one tile."""

    dst: str
    expr: Expr
    lane: str
    tiles: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Fetch:
    """The tile's elements of loads along the stream, of arrays or of what was staged, into the threads' registers, `Place.vector` of
    them in accesses of 16 bytes where the address allows. once: before the loops, because one tile covers the stream."""

    loads: tuple[Load, ...]
    once: bool = False


@dataclass(frozen=True)
class Finish:
    """Combine the states of the threads that share a row, level by level: a fold, and between groups the rebase with `Prev`
    read as the thread's own value. Afterwards every thread of the row holds the row's states. parts: of the `Place.parts`
    instead; afterwards the first part holds them."""

    levels: tuple[tuple[tuple[str, Expr | None], ...], ...]
    parts: bool = False


Stmt: TypeAlias = (
    Loop | Skip | Sweep | Contract | Dot | Pack | Stage | Fetch | Rebase | Columns | ColumnRebase | Remember | Recall
    | Finish | Partial | Merge | Store | Flag | Scan | Summarise | Absent
)  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """name: for the printed source. row, stream: the tile's axes ("" when absent). rows, depth: the largest tile.
    row_loop: the row axis is tiled by a Loop inside the item, and states hold every row. shared_counter: items differ in
    cost. laws: comments, one an accumulator. place: on CUDA."""

    name: str
    grid: tuple[Grid, ...]
    body: tuple[Stmt, ...]
    row: str = ""
    stream: str = ""
    rows: int = 1
    row_loop: bool = False
    states: tuple[State, ...] = ()
    shared_counter: bool = False
    laws: tuple[str, ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class Kernel:
    """real: "float" or "double", the compute type. lanes: vector width in elements of it. extent_names: the order of the
    run-time extents. flag_axes: axes of the row flags, the last output; None when there are none."""

    name: str
    real: str
    lanes: int
    extent_names: tuple[str, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    buffers: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    flag_axes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def vector_bytes(self) -> int:
        return self.lanes * (4 if self.real == "float" else 8)

    @property
    def key(self) -> str:
        """A digest of everything that shapes the code: equal for shapes that share a build."""
        return hashlib.sha256(_text(self).encode()).hexdigest()[:32]

    @property
    def args(self) -> tuple[tuple[Any, ...], ...]:
        """What the flat argument of sizes holds: ("extent", axis), ("in_stride", source, dimension) and
        ("out_stride", position, dimension)."""
        out: list[tuple[Any, ...]] = [("extent", a) for a in self.extent_names]
        out += [("in_stride", a.name, d) for a in self.inputs for d in range(len(a.dims))]
        return tuple(out + [("out_stride", i, d) for i, a in enumerate(self.outputs) for d in range(len(a.dims))])

    def array(self, name: str) -> Array | None:
        return next((a for a in (*self.inputs, *self.outputs) if a.name == name), None)

    def buffer(self, name: str) -> Buffer | None:
        return next((b for b in self.buffers if b.name == name), None)


def _text(x: Any) -> str:
    if isinstance(x, Expr):
        return f"{type(x).__name__}({','.join(_text(f) for f in x.key[1:])})"
    if is_dataclass(x) and not isinstance(x, type):
        return f"{type(x).__name__}({','.join(_text(getattr(x, f.name)) for f in fields(x) if f.compare)})"
    if isinstance(x, (tuple, list)):
        return f"({','.join(_text(a) for a in x)})"
    if isinstance(x, (set, frozenset)):
        return "{" + ",".join(sorted(map(str, x))) + "}"
    return repr(x)


def folds_of(s: Stmt) -> tuple[Fold, ...]:
    """The folds of lifts that a statement does."""
    return s.folds if isinstance(s, (Sweep, Contract)) else (s.fold,) if isinstance(s, Columns) else ()


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from statements(s.body)
