"""Which axes are looped over, and how long their tiles are.

A tile's largest value should fit the cache (`BUDGET` elements). The sizes of stream tiles are fixed
first, without looking at how many rows there are, so that a row's result does not depend on the batch
around it; then tiles grow along rows until the budget is used. One size an axis serves every pass and
every output, so that a score that is computed twice is cut, and therefore rounded, the same way twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..cascade import Cascade
from ..expr import Acc, Axes, Cast, Const, Expr, Index, Load, Map, Prev, Reduce, nodes
from .contract import ROWS, Product, Term, axes_of, plan_sum

BUDGET = 1 << 17  # elements of the largest value of a tile
STREAM = 512  # stream tile beside a matrix product
COLUMNS = 1024  # columns of a matrix product held at once
TURNED = 64  # rows at a time where rows are contiguous in memory and the stream is not
SMALLEST = 16

Terms = tuple[Term, ...]


@dataclass(frozen=True)
class Layout:
    """How a Cascade is run at given extents.

    order: all axes, outermost dimension first: parallel, stream, inner, top-k's own. outer: axes of the
    outermost loops, which every output has. tiles: length of a tile. sums: how the sums are taken that are
    not plain folds, by `Reduce` node, or by (lift, stream axis).
    """

    order: tuple[str, ...]
    outer: tuple[str, ...]
    tiles: dict[str, int]
    sums: dict[Expr | tuple[Expr, str], Terms]


def layout(c: Cascade, extents: Mapping[str, int]) -> Layout:
    """Classify the axes of a Cascade and choose tiles."""
    roots = [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]
    every = list(nodes(*roots))
    streams = c.stream_axes()
    tops = {a.out for a in c.accumulators() if a.out} | {e.out for e in every if isinstance(e, Reduce) and e.out}
    inner = {e.axis for e in every if isinstance(e, Reduce)}
    seen = dict.fromkeys([a for o in c.outputs for a in o.axes] + [a for acc in c.accumulators() for a in acc.axes])
    parallel = [a for a in seen if a not in inner and a not in tops and a not in streams]
    used = set(seen) | inner | tops | set(streams) | {a for e in every for a in e.axes}
    rest = [a for a in extents if a in used and a not in parallel and a not in streams]
    order = (*parallel, *streams, *[a for a in rest if a not in tops], *[a for a in rest if a in tops])
    outer = tuple(a for a in parallel if all(a in o.axes for o in c.outputs))
    rank = {a: i for i, a in enumerate(parallel)}
    sums = _sums(c, every, rank, extents)
    tiles = _tiles(c, every, sums, order, parallel, extents)
    return Layout(order, outer, tiles, sums)


def _sums(c: Cascade, every: Iterable[Expr], rank: Mapping[str, int], extents: Mapping[str, int]) -> dict[Expr | tuple[Expr, str], Terms]:
    found: dict[Expr | tuple[Expr, str], Terms] = {}
    for e in every:
        if isinstance(e, Reduce) and e.op == "sum" and (terms := plan_sum(e.body, e.axis, rank, extents)):
            found[e] = terms
    for p in c.passes:
        for a in p.accumulators:
            if a.op == "sum" and (terms := plan_sum(a.lift, p.axis, rank, extents)):
                found[a.lift, p.axis] = terms
    return found


def held(roots: Iterable[Expr | tuple[Expr, str]], sums: Mapping[Expr | tuple[Expr, str], Terms]) -> Iterable[Expr]:
    """The values that computing the roots holds as arrays: not the bodies of sums of products."""
    stack, seen = list(roots), set()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if e in sums:
            for t in sums[e]:
                stack.extend([f.expr for f in (*t.body.left, *t.body.right)] if isinstance(t.body, Product) else [t.body])
        elif isinstance(e, tuple):
            stack.append(e[0])
        else:
            stack.extend(e.args)
        if isinstance(e, Expr):
            yield e


def _tiles(
    c: Cascade,
    every: Iterable[Expr],
    sums: Mapping[Expr | tuple[Expr, str], Terms],
    order: tuple[str, ...],
    parallel: list[str],
    extents: Mapping[str, int],
) -> dict[str, int]:
    streams = c.stream_axes()
    lanes, columns = _roles(sums, parallel)
    turned = {e.dims[-1] for e in every if isinstance(e, Load) and e.dims[-1:] and e.dims[-1] in parallel and e.axes & set(streams)}
    looped = [a for a in order if a in parallel or a in streams or any(a in o.axes for o in c.outputs)]
    size = {a: 1 for a in looped}
    for a in looped:
        if a not in parallel:
            size[a] = min(extents[a], STREAM if lanes or columns else BUDGET)
        elif a in lanes:
            size[a] = ROWS if a == max(lanes, key=order.index) else 1
        elif a in columns:
            size[a] = min(extents[a], COLUMNS)
        elif a in turned:
            size[a] = TURNED
    roots: list[Expr | tuple[Expr, str]] = [(a.lift, p.axis) for p in c.passes for a in p.accumulators]
    roots += [a.rebase for a in c.accumulators() if a.rebase is not None] + [o.expr for o in c.outputs]
    values = {e.axes for e in held(roots, sums) if isinstance(e, (Map, Cast, Reduce))} | {frozenset(a.axes) for a in c.accumulators()}
    values |= {e.axes for e in held(roots, sums) if isinstance(e, Load) and e.dtype.itemsize < 4}
    values.discard(frozenset())

    def volume(axes: Axes) -> int:
        return math.prod(size[a] if a in size else extents[a] for a in axes)

    def shrinkable(axes: Axes) -> list[str]:
        loop = [a for a in axes if a in size]
        return [a for a in loop if a in streams and size[a] > SMALLEST] or [a for a in loop if size[a] > SMALLEST]

    while values and (most := max(values, key=lambda v: (volume(v), sorted(v)))) and volume(most) > BUDGET:
        candidates = shrinkable(most)
        if not candidates:
            break
        a = max(candidates, key=lambda a: (size[a], a))
        size[a] = max(SMALLEST, size[a] // 2)
    for a in looped:
        if a not in parallel and extents[a] > size[a] > 0:
            size[a] = -(-extents[a] // -(-extents[a] // size[a]))
    for a in sorted((a for a in parallel if a not in columns), key=lambda a: (a not in lanes, -order.index(a))):
        for b in parallel:
            size[b] = min(size[b], max(1, extents[b]))
        most_volume = max((volume(v) for v in values if a in v), default=1)
        size[a] = max(1, min(extents[a], max(size[a], size[a] * BUDGET // max(1, most_volume))))
    return size


def _roles(sums: Mapping[Expr | tuple[Expr, str], Terms], parallel: list[str]) -> tuple[set[str], set[str]]:
    """Parallel axes that only the row operands of matrix products have, and that only the others have."""
    lanes: set[str] = set()
    columns: set[str] = set()
    for terms in sums.values():
        for t in terms:
            if isinstance(t.body, Product):
                left, right = axes_of(t.body.left), axes_of(t.body.right)
                lanes |= (left - right) & set(parallel)
                columns |= (right - left) & set(parallel)
    return lanes, columns - lanes
