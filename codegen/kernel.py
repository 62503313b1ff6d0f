"""The Kernel: how a Cascade is computed, tile by tile. Printers know these statements and nothing else.

Grammar
    Kernel  = arrays (inputs, outputs), buffers, Phase*             phases run one after another, a barrier between them
    Phase   = grid (Grid*), states, Stmt*                           one parallel item a grid point
    Stmt    = Loop(axis, step, Stmt*)                               sequential, over tiles of an axis
            | Skip(Bound*)                                          leave tiles on which an affine mask is false everywhere
            | Sweep | Contract | Dot | Pack                         element-wise and folds; products in register blocks; repacking
            | Rebase | Columns | ColumnRebase                       move state to new parameters; accumulate over extra axes
            | Partial | Merge | Store | Flag                        segments; results; rows that need the plain program
            | Scan | Summarise                                      once a launch: is an operand finite; what a mask leaves of each tile
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Expr, Load, Prev, Reduce, nodes
from redfuser_eq.ops import MONOIDS

SEGMENT = "@segment"  # the grid axis that cuts the stream


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
    """Scratch of the compute type, row-major over `dims`. shared: one for the launch, else one a worker.
    panel > 0: the last dimension is cut into panels of that width, each stored as [other dims][panel]."""

    name: str
    dims: tuple[str, ...]
    sizes: tuple[Size, ...]
    shared: bool = False
    panel: int = 0


@dataclass(frozen=True)
class State:
    """Storage of an accumulator in one item. row: it varies over the phase's row axis; columns: axes beyond the row side;
    k: entries of a top-k list (0: a value); keep: the value before the tile is kept for later levels."""

    name: str
    op: str
    row: bool
    columns: tuple[str, ...] = ()
    k: int = 0
    out: str = ""
    keep: bool = False

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
class Sweep:
    """One traversal of the tile: fold lifts, store element-wise values. guard: accumulators; a row on which all of them
    are still at their identity adds nothing. unroll: independent vectors in flight; prefetch: elements ahead."""

    lanes: str
    folds: tuple[Fold, ...]
    stores: tuple[tuple[str, Expr], ...] = ()
    guard: tuple[str, ...] = ()
    unroll: int = 1
    prefetch: int = 0


@dataclass(frozen=True)
class Operand:
    """A contraction's operand: an array or buffer read in place. scale is applied by nobody: it is part of what was packed."""

    source: str
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """dst[i, j] = start + sum_c a[i, c] * b[c, j] in register blocks of mr x nv vectors, j in the lanes.

    start: 0 ("zero"), or dst itself, times `factor` (a row factor) plus `rank` terms coefficient[i] * state[j] ("state").
    raw, score, folds: in the registers of the last block the tile reads as Load(raw): `score` maps it, `folds` fold it,
    and it is stored to dst if keep. rest: rows left over in a full tile, worth a block of their own.
    extra: (state, operand over c) rows without a row axis that share b: folded after the others, panel by panel.
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
    folds: tuple[Fold, ...] = ()
    keep: bool = True
    rest: int = 0
    extra: tuple[tuple[str, Operand], ...] = ()


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
    """dst = expr, element by element over dst's dims: the present tile of `tile` axes, or one grid point's share of it."""

    dst: str
    expr: Expr
    lane: str


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
    """target[...] = expr for each row of the tile and each point of `columns` (lane: the last of them, else the rows)."""

    target: str
    expr: Expr
    columns: tuple[str, ...] = ()


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
class Summarise:
    """dst[tile] = 0 where a condition is false on the whole tile, 2 where it is true, else 1. tiles: (axis, step) of dst's
    dimensions; the item is one tile."""

    dst: str
    expr: Expr
    lane: str
    tiles: tuple[tuple[str, int], ...]


Stmt: TypeAlias = (
    Loop | Skip | Sweep | Contract | Dot | Pack | Rebase | Columns | ColumnRebase | Partial | Merge | Store | Flag | Scan | Summarise
)


@dataclass(frozen=True)
class Phase:
    """name: for the printed source. row, stream: the tile's axes ("" when absent). rows, depth: the largest tile.
    row_loop: the row axis is tiled by a Loop inside the item, and states hold every row. shared_counter: items differ in
    cost. laws: comments, one an accumulator."""

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


@dataclass(frozen=True)
class Kernel:
    """real: "float" or "double", the compute type. lanes: vector width in elements of it. extent_names: the order of the
    run-time extents. flag_axes: axes of the row flags."""

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

    @property
    def flags(self) -> tuple[str, ...] | None:
        """Axes of the row flags, the last output; None when there are none."""
        return self.flag_axes

    def array(self, name: str) -> Array | None:
        return next((a for a in (*self.inputs, *self.outputs) if a.name == name), None)

    def buffer(self, name: str) -> Buffer | None:
        return next((b for b in self.buffers if b.name == name), None)


DTYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "i8",
    "uint8": "u8",
    "int16": "i16",
    "uint16": "u16",
    "int32": "i32",
    "uint32": "u32",
    "int64": "i64",
    "uint64": "u64",
    "bool": "b8",
}


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


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement, outer ones first."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from statements(s.body)


def expressions(s: Stmt) -> list[tuple[Expr, frozenset[str]]]:
    """The expressions of a statement, each with the axes the statement itself binds beyond the tile's."""
    none: frozenset[str] = frozenset()
    if isinstance(s, (Sweep, Contract)):
        out = [(f.lift, none) for f in s.folds]
        if isinstance(s, Sweep):
            return out + [(e, none) for _, e in s.stores]
        return out + [(e, none) for e in (s.score, s.open_score) if e is not None]
    if isinstance(s, Rebase):
        return [(e, none) for _, e in s.items] + [(e, none) for _, e, _ in s.factors]
    if isinstance(s, Store):
        return [(s.expr, frozenset(s.columns))]
    return []


def check(k: Kernel) -> None:
    """Enforce the grammar: every name is declared once, every axis is bound where an expression uses it, accumulators
    belong to their phase, register blocks are not empty, and both sides of a contraction share its inner axis.

    Raises IRError."""
    arrays: tuple[Array | Buffer, ...] = (*k.inputs, *k.outputs, *k.buffers)
    names = [x.name for x in arrays]
    if len(names) != len(set(names)):
        raise IRError(f"kernel {k.name!r}: two arrays or buffers share a name: {sorted(names)}")
    known = {*k.extent_names, SEGMENT}
    for x in arrays:
        if not set(x.dims) <= known:
            raise IRError(f"{x.name!r} varies over {sorted(set(x.dims) - known)}, which have no extent")
    for a in (*k.inputs, *k.outputs):
        if a.dtype not in DTYPES.values() or len(a.strides) != len(a.dims):
            raise IRError(f"array {a.name!r}: dtype {a.dtype!r} is unknown, or dims and strides differ in number")
    if k.real not in ("float", "double") or k.lanes < 1:
        raise IRError(f"kernel {k.name!r}: compute type {k.real!r} with {k.lanes} lanes")
    for p in k.phases:
        _check_phase(k, p, known)


def _check_phase(k: Kernel, p: Phase, known: set[str]) -> None:
    states = {s.name: s for s in p.states}
    if len(states) != len(p.states):
        raise IRError(f"phase {p.name!r}: two states share a name")
    for g in p.grid:
        if g.axis not in known or g.step < 1:
            raise IRError(f"phase {p.name!r}: grid axis {g.axis!r} in steps of {g.step}")
    arrays: tuple[Array | Buffer, ...] = (*k.inputs, *k.outputs, *k.buffers)
    sources = {x.name: x.dims for x in arrays}
    raws = {s.raw: (s.i, s.j) for s in statements(p.body) if isinstance(s, Contract) and s.raw}
    _check_body(k, p, p.body, {g.axis for g in p.grid}, sources | raws, states)


def _check_body(
    k: Kernel, p: Phase, body: tuple[Stmt, ...], bound: set[str], sources: Mapping[str, tuple[str, ...]], states: Mapping[str, State]
) -> None:
    for s in body:
        if isinstance(s, Loop):
            if s.step < 1 or s.axis not in k.extent_names:
                raise IRError(f"phase {p.name!r}: loop over {s.axis!r} in steps of {s.step}")
            _check_body(k, p, s.body, bound | {s.axis}, sources, states)
            continue
        where = f"phase {p.name!r}, {type(s).__name__}"
        for e, extra in expressions(s):
            extra |= {p.row} if p.row_loop and isinstance(s, Store) else set()
            if loose := e.axes - bound - extra:
                raise IRError(f"{where}: axes {sorted(loose)} are not bound: {e}")
            _check_names(e, sources, states, where)
        if isinstance(s, Contract):
            _check_contract(s, sources, states, where)
        for name in _accumulators(s):
            if name not in states:
                raise IRError(f"{where}: {name!r} is not a state of the phase")


def _check_names(e: Expr, sources: Mapping[str, tuple[str, ...]], states: Mapping[str, State], where: str) -> None:
    for n in nodes(e):
        if isinstance(n, Load) and n.source not in sources:
            raise IRError(f"{where}: nothing is called {n.source!r}")
        if isinstance(n, (Acc, Prev)) and n.name not in states:
            raise IRError(f"{where}: {n.name!r} is not a state of the phase")
        if isinstance(n, Reduce) and MONOIDS[n.op].state == "top":
            raise IRError(f"{where}: a top-k inside an element has no place in a kernel")


def _check_contract(s: Contract, sources: Mapping[str, tuple[str, ...]], states: Mapping[str, State], where: str) -> None:
    if s.mr < 1 or s.nv < 1 or s.c_block < 1:
        raise IRError(f"{where}: register block {s.mr} x {s.nv}, inner block {s.c_block}")
    for op, axes in ((s.a, {s.i, s.c}), (s.b, {s.c, s.j})):
        if op.source not in sources:
            raise IRError(f"{where}: nothing is called {op.source!r}")
        if s.c not in op.dims or (axes - {""}) - set(op.dims) - {s.i}:
            raise IRError(f"{where}: operand {op.source}[{','.join(op.dims)}] lacks one of {sorted(axes)}")
    if (s.start == "state") != (s.dst in states):
        raise IRError(f"{where}: {s.dst!r} must be a state to start from it, and a buffer otherwise")


def _accumulators(s: Stmt) -> tuple[str, ...]:
    if isinstance(s, (Sweep, Contract)):
        return (*(f.acc for f in s.folds), *(s.guard if isinstance(s, Sweep) else ()))
    if isinstance(s, Rebase):
        return (*s.params, *(n for n, _ in s.items))
    if isinstance(s, Columns):
        return (s.fold.acc, *s.guard)
    if isinstance(s, ColumnRebase):
        return (*s.params, *(n for n, _ in s.items))
    if isinstance(s, (Partial, Merge)):
        return tuple(n for n, _, _ in s.items)
    return s.accs if isinstance(s, Flag) else ()
