"""What each axis of a pass is for, read off the terms alone.

The row side of a pass: the axes of its parameters (accumulators that others read as running values), and the axes all the
others share. Axes beyond it are an accumulator's columns. A product is a sum over an inner axis of two factors, of which one
knows nothing of the stream and the other nothing of the rows: a matrix product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .cascade import Accumulator, Cascade, Pass
from .expr import Acc, Const, Expr, Index, Load, Map, Prev, Reduce, nodes, transform
from .ops import MONOIDS

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Roles:
    """rows: the row side, in order; columns: for each accumulator its axes beyond the row side; keep: accumulators whose
    value before a tile is read after they moved; params: those whose running value is read."""

    stream: str
    accs: tuple[Accumulator, ...]
    levels: tuple[tuple[Accumulator, ...], ...]
    rows: Axes
    columns: Mapping[str, Axes]
    params: frozenset[str]
    keep: frozenset[str]


def factors(e: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    if isinstance(e, Map) and e.op == "mul" and e.dtype != bool:
        return factors(e.args[0]) + factors(e.args[1])
    if isinstance(e, Map) and e.op == "square":
        return factors(e.args[0]) * 2
    return [e]


def product(fs: Iterable[Expr]) -> Expr | None:
    """The product of some factors, or None for none."""
    out: Expr | None = None
    for f in fs:
        out = f if out is None else Map("mul", (out, f), np.result_type(out.dtype, f.dtype))
    return out


def split_columns(lift: Expr, columns: Iterable[str]) -> tuple[Expr | None, Expr | None]:
    """(factors free of the columns, factors that vary over them) of a lift."""
    cols = set(columns)
    fs = factors(lift)
    return product(f for f in fs if not f.axes & cols), product(f for f in fs if f.axes & cols)


def classify(p: Pass) -> Roles:
    """Roles of the axes of one pass."""
    accs = p.accumulators
    levels = tuple(tuple(x) for x in p.levels())
    depth = {a.name: n for n, level in enumerate(levels) for a in level}
    read = set(p.params())
    keep = {n for a in accs for n in a.previous() if n in depth and depth[n] < depth[a.name]}
    for a in accs:
        if a.rebase is not None:
            keep |= {e.name for e in nodes(a.rebase) if isinstance(e, Acc) and e.name in depth}
    base = {x for a in accs if a.name in read or MONOIDS[a.op].state == "top" for x in a.axes}
    others = [a for a in accs if a.name not in read and MONOIDS[a.op].state != "top"]
    common = set.intersection(*(set(a.axes) for a in others if a.axes)) if any(a.axes for a in others) else set()
    common -= base
    common -= _column_axes(others, common, base, p.axis)
    order = [x for a in accs for x in a.axes]
    rows = tuple(dict.fromkeys(x for x in order if x in base | common))
    columns = {a.name: tuple(x for x in a.axes if x not in rows) for a in accs}
    keep = {n for n in keep if not columns[n]}
    return Roles(p.axis, accs, levels, rows, columns, frozenset(read), frozenset(keep))


def _column_axes(accs: list[Accumulator], common: set[str], base: set[str], stream: str) -> set[str]:
    """Among the axes that all the accumulators share, one that makes a matrix product of a lift: some factor varies over
    the stream and it but over none of the others, and some factor varies over another axis."""
    found: list[tuple[bool, str]] = []
    for a in (a for a in accs if a.op == "sum"):
        fs = factors(a.lift)
        for x in (x for x in reversed(a.axes) if x in common):
            rest = (common | base) - {x}
            with_x = [f for f in fs if x in f.axes]
            others = [f for f in fs if x not in f.axes and f.axes & rest]
            if with_x and others and stream in with_x[-1].axes and not any(f.axes & rest - _batch(fs, rest) for f in with_x):
                found.append((not all(isinstance(f, Load) for f in with_x), x))
    return {min(found, key=lambda v: v[0])[1]} if found else set()


def _batch(fs: list[Expr], rest: set[str]) -> set[str]:
    """Axes that every factor with axes of its own carries."""
    own = [f.axes for f in fs if f.axes]
    return {x for x in rest if all(x in axes for axes in own)}


@dataclass(frozen=True)
class Product:
    """node = sum over `inner` of row * stream (expressions); inner: its axis."""

    node: Reduce
    inner: str
    row: Expr
    stream: Expr


def find_product(lifts: Iterable[Expr], stream: str, row: str) -> Product | None:
    """The matrix product inside the lifts: the one reduction that varies over the stream and whose factors separate."""
    found = {e for e in nodes(*lifts) if isinstance(e, Reduce) and stream in e.axes and (not row or row in e.axes)}
    outer = [e for e in found if not any(e is not o and e in set(nodes(o)) for o in found)]
    for e in sorted(outer, key=repr):
        if e.op != "sum" or any(isinstance(n, (Acc, Prev, Reduce)) for n in nodes(e.body)):
            continue
        fs = factors(e.body)
        along = [f for f in fs if stream in f.axes]
        rest = [f for f in fs if stream not in f.axes]
        a, b = product(rest), product(along)
        if a is None or b is None or (row and (row in b.axes or row not in a.axes)) or e.axis not in a.axes or e.axis not in b.axes:
            continue
        return Product(e, e.axis, a, b)
    return None


COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
EXACT = 1 << 24  # integers up to here are float32 numbers


def compute_type(c: Cascade, extents: Mapping[str, int]) -> str:
    """ "double" when something must be exact beyond 2^24 or is float64, else "float"."""
    largest = max(extents.values(), default=0)
    for a in c.accumulators():
        if a.dtype == np.float64 or (a.dtype.kind in "iu" and MONOIDS[a.op].state == "value"):
            return "double"
    roots = [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]
    if any(e.dtype == np.float64 for e in nodes(*roots)) or _needs_exact(roots, largest):
        return "double"
    pairs = any(MONOIDS[a.op].state != "value" for a in c.accumulators())
    return "double" if largest > EXACT and pairs else "float"


def _needs_exact(roots: Sequence[Expr], largest: int) -> bool:
    """Whether an integer is used for more than a comparison with positions.

    For that alone float32 will do: rounding is monotone, and what is rounded at all lies beyond every position, also after
    a constant was added, as long as the two together stay below 2^24."""
    seen: set[tuple[Expr, bool]] = set()
    todo = [(e, False) for e in roots]
    while todo:
        e, compared = todo.pop()
        if (e, compared) in seen:
            continue
        seen.add((e, compared))
        if isinstance(e, Load):
            if not compared and e.dtype.kind in "iu" and e.dtype.itemsize >= 4:
                return True
        elif isinstance(e, Index):
            if largest > EXACT:
                return True
        elif isinstance(e, Map) and e.op in COMPARISONS:
            a, b = e.args
            todo += [(a, _position(b, largest) and _shifted(a, largest)), (b, _position(a, largest) and _shifted(b, largest))]
        elif isinstance(e, Map) and e.op == "where":
            todo += [(e.args[0], False), (e.args[1], compared), (e.args[2], compared)]
        elif not isinstance(e, Const):
            todo += [(x, compared and isinstance(e, Map) and e.op in ("add", "sub")) for x in e.args]
    return False


def _position(e: Expr, largest: int) -> bool:
    """A sum of positions and constants."""
    if isinstance(e, Const):
        return abs(e.value) + largest <= EXACT
    return isinstance(e, Index) or (isinstance(e, Map) and e.op in ("add", "sub") and all(_position(x, largest) for x in e.args))


def _shifted(e: Expr, largest: int) -> bool:
    """An array's element, perhaps plus a constant, or a choice of such."""
    if isinstance(e, Map) and e.op == "where":
        return all(_shifted(x, largest) for x in e.args[1:])
    if isinstance(e, Map) and e.op in ("add", "sub"):
        return any(isinstance(x, Const) for x in e.args) and all(_shifted(x, largest) for x in e.args)
    return isinstance(e, Load) or _position(e, largest)


def rename_sources(e: Expr, names: Mapping[tuple[str, str], Load]) -> Expr:
    """Accumulators that lie in memory, read as what they are: Acc(name) -> Load."""

    def f(x: Expr) -> Expr | None:
        if isinstance(x, Acc):
            return names.get((x.name, x.field))
        return None

    return transform(e, f)


def additive_inverse(e: Expr) -> Expr:
    """-e."""
    return Map("neg", (e,), e.dtype)


def terms(e: Expr) -> list[Expr]:
    """The addends of a sum, with subtraction and negation written as negated addends."""
    if isinstance(e, Map) and e.op == "add":
        return terms(e.args[0]) + terms(e.args[1])
    if isinstance(e, Map) and e.op == "sub":
        return terms(e.args[0]) + [additive_inverse(x) for x in terms(e.args[1])]
    return [e]
