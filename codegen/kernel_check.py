"""The Kernel's grammar, enforced."""

from __future__ import annotations

from collections.abc import Mapping

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Expr, Load, Prev, Reduce, nodes
from redfuser_eq.ops import MONOIDS

from .dtypes import DTYPES
from .kernel import (
    ROW,
    SEGMENT,
    Absent,
    Array,
    Buffer,
    ColumnRebase,
    Columns,
    Contract,
    Finish,
    Flag,
    Kernel,
    Loop,
    Merge,
    Partial,
    Phase,
    Place,
    Rebase,
    Stage,
    State,
    Stmt,
    Store,
    Sweep,
    statements,
)

FORMS = ("rows", "elements", "scan", "tile", "mma", "wgmma")


def expressions(s: Stmt) -> list[tuple[Expr, frozenset[str]]]:
    """The expressions of a statement, each with the axes the statement itself binds beyond the tile's."""
    none: frozenset[str] = frozenset()
    if isinstance(s, (Sweep, Contract)):
        out = [(f.lift, none) for f in s.folds]
        if isinstance(s, Sweep):
            return out + [(e, none) for _, e in s.stores]
        return out + [(e, none) for e in (s.score, s.open_score, s.mask) if e is not None]
    if isinstance(s, Rebase):
        return [(e, none) for _, e in s.items] + [(e, none) for _, e, _ in s.factors]
    if isinstance(s, Store):
        return [(s.expr, frozenset(s.columns))]
    if isinstance(s, Finish):
        return [(e, e.axes if s.parts else none) for level in s.levels for _, e in level if e is not None]
    if isinstance(s, Absent):
        return [(s.added[0], none)]
    return []


def check(k: Kernel) -> None:
    """Enforce the grammar: every name is declared once, every axis is bound where an expression uses it, accumulators
    belong to their phase, register blocks are not empty, and both sides of a contraction share its inner axis.

    Raises IRError."""
    arrays: tuple[Array | Buffer, ...] = (*k.inputs, *k.outputs, *k.buffers)
    names = [x.name for x in arrays]
    if len(names) != len(set(names)):
        raise IRError(f"kernel {k.name!r}: two arrays or buffers share a name: {sorted(names)}")
    known = {*k.extent_names, SEGMENT, ROW}
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
    if p.place is not None:
        _check_place(p, p.place)
    arrays: tuple[Array | Buffer, ...] = (*k.inputs, *k.outputs, *k.buffers)
    sources = {x.name: x.dims for x in arrays}
    raws = {s.raw: (s.i, s.j) for s in statements(p.body) if isinstance(s, Contract) and s.raw}
    _check_body(k, p, p.body, {g.axis for g in p.grid}, sources | raws, states)


def _check_place(p: Phase, place: Place) -> None:
    known = place.form in FORMS and place.along in ("stream", "row") and place.run in (2, 4)
    uneven = place.threads % place.group or place.elems % place.vector or place.warps % place.parts
    uneven = uneven or (place.across > 1 and (place.warps - place.producers) % (4 * place.across))
    if not known or not 1 <= place.group <= place.threads <= 1024 or uneven:
        raise IRError(f"phase {p.name!r}: no block has the place {place}")
    if (place.form == "wgmma") != (place.producers > 0) or not 0 <= place.producers < place.warps:
        raise IRError(f"phase {p.name!r}: {place.producers} warps cannot do the copies of the form {place.form!r}")
    if place.form != "wgmma" and any(isinstance(s, Stage) and s.mapped for s in statements(p.body)):
        raise IRError(f"phase {p.name!r}: nobody copies by tensor maps in the form {place.form!r}")


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
            _check_contract(k, s, sources, states, where)
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


def _check_contract(k: Kernel, s: Contract, sources: Mapping[str, tuple[str, ...]], states: Mapping[str, State], where: str) -> None:
    if s.mr < 1 or s.nv < 1 or s.c_block < 1:
        raise IRError(f"{where}: register block {s.mr} x {s.nv}, inner block {s.c_block}")
    for op, axes in ((s.a, {s.i, s.c}), (s.b, {s.c, s.j})):
        if op.source not in sources:
            raise IRError(f"{where}: nothing is called {op.source!r}")
        if s.c not in op.dims or (axes - {""}) - set(op.dims) - {s.i}:
            raise IRError(f"{where}: operand {op.source}[{','.join(op.dims)}] lacks one of {sorted(axes)}")
    a, b = (k.buffer(op.source) for op in (s.a, s.b))
    dtypes = {x.dtype if x is not None else "" for x in (a, b)}
    if len(dtypes) > 1 or (dtypes != {""} and (s.c_block % 2 or a is None or b is None or a.dims[-1] != s.c or not b.panel or s.extra)):
        raise IRError(f"{where}: {s.a.source!r} and {s.b.source!r} cannot be multiplied in pairs, in blocks of {s.c_block}")
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
    if isinstance(s, Finish):
        return tuple(n for level in s.levels for n, _ in level)
    return s.accs if isinstance(s, Flag) else ()
