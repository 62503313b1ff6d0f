"""Merge axes that are only ever reduced together into one.

A reduction over several dimensions is nested, Reduce(op, a, Reduce(op, b, body)). Where every array that is
read along a or b has the two as neighbouring dimensions, they are one axis of a joined view: one stream
instead of a stream of contractions.
"""

from __future__ import annotations

from dataclasses import replace

from .expr import Expr, Index, Load, Reduce, Source, View, nodes, with_args

_NESTED = frozenset({"sum", "prod", "max", "min", "any", "all"})


def coalesce(
    exprs: list[Expr], kept: set[str], sources: tuple[Source, ...]
) -> tuple[list[Expr], tuple[Source, ...], dict[str, tuple[str, str]]]:
    """(expressions, sources, merged axis -> the two it joins, row-major). kept: axes of the outputs.

    Reduce(op, a, Reduce(op, b, body)) -> Reduce(op, a, body over a view in which a joins both)
    """
    merged: dict[str, tuple[str, str]] = {}
    taken = kept.union(*(e.axes | _bound(e) for e in nodes(*exprs)))
    while (pair := _pair(exprs, kept)) is not None:
        first, second = pair
        name = f"{first}{second}"
        while name in taken:
            name += "_"
        merged[name] = pair
        taken.add(name)
        exprs, sources = _merge(exprs, sources, first, second, name)
    return exprs, sources, merged


def _bound(e: Expr) -> set[str]:
    return {e.axis, e.out} if isinstance(e, Reduce) else set()


def _pair(exprs: list[Expr], kept: set[str]) -> tuple[str, str] | None:
    """Two axes that can be one, in the order of the dimensions they join."""
    everything = list(nodes(*exprs))
    candidates = {
        (e.axis, e.body.axis): e.op
        for e in everything
        if isinstance(e, Reduce) and isinstance(e.body, Reduce) and e.op == e.body.op in _NESTED
    }
    for a, b in candidates:
        if a in kept or b in kept:
            continue
        order = _order(everything, a, b)
        if order is not None and _only_together(everything, exprs, a, b):
            return order
    return None


def _order(everything: list[Expr], a: str, b: str) -> tuple[str, str] | None:
    """The two in the order of the dimensions they are, if every array read along one has both side by side."""
    orders: set[tuple[str, str]] = set()
    read: dict[str, set[int]] = {}
    for e in everything:
        if isinstance(e, Index) and e.axis in (a, b):
            return None
        if isinstance(e, Load):
            i, j = (e.dims.index(n) if n in e.dims else -1 for n in (a, b))
            if (i < 0) != (j < 0) or (i >= 0 and abs(i - j) != 1):
                return None
            read.setdefault(e.source, set()).add(min(i, j))
            orders |= {(a, b) if i < j else (b, a)} if i >= 0 else set()
    if any(len(where) > 1 for where in read.values()):
        return None
    return orders.pop() if len(orders) == 1 else None


def _only_together(everything: list[Expr], roots: list[Expr], a: str, b: str) -> bool:
    """Whether each reduction over a holds one over b of the same operation, and none over b stands elsewhere."""
    outer = [e for e in everything if isinstance(e, Reduce) and e.axis == a]
    inner = {e for e in everything if isinstance(e, Reduce) and e.axis == b}
    if any(e.k or e.op not in _NESTED or e.body not in inner or e.body.op != e.op for e in outer if isinstance(e, Reduce)):
        return False
    held = {e.args[0] for e in outer}
    others = {x for e in everything if e not in outer for x in e.args} | set(roots)
    return inner <= held and not inner & others


def _merge(exprs: list[Expr], sources: tuple[Source, ...], first: str, second: str, name: str) -> tuple[list[Expr], tuple[Source, ...]]:
    views: dict[str, Source] = {}
    by_name = {s.name: s for s in sources}

    memo: dict[Expr, Expr] = {}

    def go(e: Expr) -> Expr:
        if e not in memo:
            if isinstance(e, Load) and first in e.dims:
                i = e.dims.index(first)
                views[e.source] = joined(by_name[e.source], i)
                memo[e] = Load(e.source, (*e.dims[:i], name, *e.dims[i + 2 :]), e.dtype)
            elif isinstance(e, Reduce) and e.axis in (first, second):
                memo[e] = Reduce(e.op, name, go(e.body.args[0]), dtype=e.dtype)
            else:
                memo[e] = with_args(e, tuple(go(x) for x in e.args))
        return memo[e]

    out = [go(e) for e in exprs]
    return out, tuple(views.get(s.name, s) for s in sources)


def joined(source: Source, dim: int) -> Source:
    """The source with dimensions dim and dim + 1 of its view joined."""
    sizes = list(source.view.merges or (1,) * source.ndim)
    sizes[dim : dim + 2] = [sizes[dim] + sizes[dim + 1]]
    return replace(source, ndim=source.ndim - 1, view=View(source.view.index, source.view.splits, source.view.then, tuple(sizes)))
