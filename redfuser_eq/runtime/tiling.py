"""Which axes are looped over, and how long their tiles are.

A tile's largest value should fit the cache (`BUDGET` elements). The sizes of stream tiles are fixed
first, without looking at how many rows there are, so that a row's result does not depend on the batch
around it; then tiles grow along rows until the budget is used. One size an axis serves every pass and
every output, so that a score that is computed twice is cut, and therefore rounded, the same way twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..cascade import Cascade
from ..expr import NONE, Axes, Cast, Expr, Load, Map, Reduce, nodes
from .contract import LANES, ROWS, Product, Roles, Term, plan_sum

BUDGET = 1 << 17  # elements of the largest value of a tile
STREAM = 512  # stream tile beside a matrix product, at least
PARTS = 64  # partial sums of a long stream that are added up one after the other
OPERAND = 1 << 20  # elements of a stream tile of a matrix operand, when it is lengthened for the sake of PARTS
COLUMNS = 1024  # columns of a matrix product held at once
TURNED = 64  # rows at a time where rows are contiguous in memory and the stream is not
SMALLEST = 16

Terms = tuple[Term, ...]
Root = Expr | tuple[Expr, str]  # an expression, or a lift with the stream axis it is folded along


@dataclass(frozen=True)
class Layout:
    """How a Cascade is run at given extents.

    order: all axes, outermost dimension first: parallel, stream, inner, top-k's own. outer: axes of the
    outermost loops, which every output has. tiles: length of a tile. sums: how the sums are taken that are
    not plain folds, by `Reduce` node, or by (lift, stream axis). folded: the loads that are read element
    by element. work: elements of the largest value.
    """

    order: tuple[str, ...]
    outer: tuple[str, ...]
    tiles: dict[str, int]
    sums: dict[Root, Terms]
    folded: frozenset[Expr]
    work: int


def layout(c: Cascade, extents: Mapping[str, int]) -> Layout:
    """Classify the axes of a Cascade and choose tiles."""
    roots: list[Root] = [(a.lift, p.axis) for p in c.passes for a in p.accumulators]
    roots += [a.rebase for a in c.accumulators() if a.rebase is not None] + [o.expr for o in c.outputs]
    every = list(nodes(*(r[0] if isinstance(r, tuple) else r for r in roots)))
    streams = c.stream_axes()
    tops = {a.out for a in c.accumulators() if a.out} | {e.out for e in every if isinstance(e, Reduce) and e.out}
    inner = {e.axis for e in every if isinstance(e, Reduce)}
    seen = dict.fromkeys([a for o in c.outputs for a in o.axes] + [a for acc in c.accumulators() for a in acc.axes])
    parallel = [a for a in seen if a not in inner and a not in tops and a not in streams]
    used = set(seen) | inner | tops | set(streams) | {a for e in every for a in e.axes}
    rest = [a for a in extents if a in used and a not in parallel and a not in streams]
    order = (*parallel, *streams, *[a for a in rest if a not in tops], *[a for a in rest if a in tops])
    outer = tuple(a for a in parallel if all(a in o.axes for o in c.outputs))
    sums = _sums(c, every, Roles({a: i for i, a in enumerate(parallel)}, _columns(c), extents))
    values = list(held(roots, sums))
    tiles = _tiles(c, values, sums, order, parallel, extents)
    work = max((math.prod(extents[a] for a in e.axes) for e in values), default=0)
    return Layout(order, outer, tiles, sums, _folded(roots, values, sums), work)


def _columns(c: Cascade) -> Axes:
    """Axes that some accumulator has and none of the accumulators it reads."""
    axes = {a.name: frozenset(a.axes) for a in c.accumulators()}
    found: set[str] = set()
    for a in c.accumulators():
        read = frozenset().union(*(axes[n] for n in a.reads()))
        if read:
            found |= axes[a.name] - read
    return frozenset(found)


def _folded(roots: Iterable[Root], values: Iterable[Expr], sums: Mapping[Root, Terms]) -> frozenset[Expr]:
    """The loads that elementwise operations or plain folds read, not only matrix products."""
    found: set[Any] = {r[0] for r in roots if isinstance(r, tuple) and r not in sums} | {t.body for terms in sums.values() for t in terms}
    for e in values:
        if e not in sums:
            found.update(e.args)
    return frozenset(e for e in found if isinstance(e, Load))


def _sums(c: Cascade, every: Iterable[Expr], roles: Roles) -> dict[Root, Terms]:
    found: dict[Root, Terms] = {}
    for e in every:
        if isinstance(e, Reduce) and e.op == "sum" and (terms := plan_sum(e.body, e.axis, roles)):
            found[e] = terms
    for p in c.passes:
        for a in p.accumulators:
            if a.op == "sum" and (terms := plan_sum(a.lift, p.axis, roles)):
                found[a.lift, p.axis] = terms
    return found


def held(roots: Iterable[Root], sums: Mapping[Root, Terms]) -> Iterable[Expr]:
    """The values that computing the roots holds as arrays: not the bodies of sums of products."""
    stack, seen = list(roots), set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e in sums:
            for t in sums[e]:
                stack.extend(t.body.exprs if isinstance(t.body, Product) else [t.body])
        elif isinstance(e, tuple):
            stack.append(e[0])
        else:
            stack.extend(e.args)
        if isinstance(e, Expr):
            yield e


def _tiles(
    c: Cascade,
    values: Sequence[Expr],
    sums: Mapping[Root, Terms],
    order: tuple[str, ...],
    parallel: list[str],
    extents: Mapping[str, int],
) -> dict[str, int]:
    streams = c.stream_axes()
    lanes, columns = _roles(sums, parallel)
    looped = [a for a in order if a in parallel or a in streams or any(a in o.axes for o in c.outputs)]
    loads = [e for e in values if isinstance(e, Load)]
    products = bool(lanes or columns)
    size = {a: 1 if a in parallel else min(extents[a], STREAM if products else BUDGET) for a in looped}
    for a in columns:
        size[a] = min(extents[a], COLUMNS)
    for e in loads:
        if e.dims and e.dims[-1] in parallel and e.axes & set(streams):
            size[e.dims[-1]] = max(size[e.dims[-1]], TURNED)
    if products:
        for a in streams:
            size[a] = _depth(a, loads, columns, size, extents)
    if lanes:
        fits = BUDGET // max(1, max(size[a] for a in streams)) // LANES * LANES
        size[max(lanes, key=order.index)] = max(LANES, min(ROWS, fits))
    arrays = {e.axes for e in values if isinstance(e, (Map, Cast, Reduce))} | {frozenset(a.axes) for a in c.accumulators()}
    arrays |= {e.axes for e in loads if e.dtype.itemsize < 4}
    arrays.discard(NONE)
    _shrink(size, arrays, streams, extents)
    for a in looped:
        if a not in parallel and extents[a] > size[a] > 0:  # equal tiles
            size[a] = -(-extents[a] // -(-extents[a] // size[a]))
    rows = [a for a in parallel if a not in columns]
    _grow(size, arrays, sorted(rows, key=lambda a: (a not in lanes, -order.index(a))), lanes, extents)
    return {a: max(1, n) for a, n in size.items()}


def _depth(axis: str, loads: Sequence[Load], columns: Axes, size: Mapping[str, int], extents: Mapping[str, int]) -> int:
    """A stream tile beside matrix products: longer on long axes, so that few partial sums are added up."""
    beside = [
        math.prod(size[a] if a in columns else extents[a] for a in e.axes if a in columns or a not in size) for e in loads if axis in e.axes
    ]
    wanted = min(-(-extents[axis] // PARTS), OPERAND // max([1, *beside]))
    return min(extents[axis], max(STREAM, wanted))


def _volume(axes: Axes, size: Mapping[str, int], extents: Mapping[str, int]) -> int:
    return math.prod(size[a] if a in size else extents[a] for a in axes)


def _shrink(size: dict[str, int], arrays: set[Axes], streams: Sequence[str], extents: Mapping[str, int]) -> None:
    """Halve tiles, stream axes first, until every array fits the budget."""
    while arrays:
        most = max(arrays, key=lambda v: (_volume(v, size, extents), sorted(v)))
        loop = [a for a in most if size.get(a, 0) > SMALLEST]
        candidates = [a for a in loop if a in streams] or loop
        if _volume(most, size, extents) <= BUDGET or not candidates:
            return
        a = max(candidates, key=lambda a: (size[a], a))
        size[a] = max(SMALLEST, size[a] // 2)


def _grow(size: dict[str, int], arrays: set[Axes], rows: Sequence[str], lanes: Axes, extents: Mapping[str, int]) -> None:
    """Lengthen tiles of rows, in the order given, until the budget is used."""
    for a in rows:
        for b in rows:
            size[b] = min(size[b], max(1, extents[b]))
        most = max((_volume(v, size, extents) for v in arrays if a in v), default=1)
        size[a] = min(extents[a], max(size[a], size[a] * BUDGET // max(1, most)))
        if a in lanes and size[a] > LANES:
            size[a] = size[a] // LANES * LANES if size[a] < extents[a] else size[a]


def _roles(sums: Mapping[Root, Terms], parallel: list[str]) -> tuple[Axes, Axes]:
    """Parallel axes that only the row operands of matrix products have, and that only the others have."""
    lanes: set[str] = set()
    columns: set[str] = set()
    for terms in sums.values():
        for t in terms:
            if isinstance(t.body, Product):
                left, right = t.body.axes
                lanes |= (left - right) & set(parallel)
                columns |= (right - left) & set(parallel)
    return frozenset(lanes), frozenset(columns - lanes)
