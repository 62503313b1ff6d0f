"""What a Cascade costs on a device: passes first, then time from traffic and arithmetic.

Costs are global: a shared subexpression counts once, an input is read once a pass however many
accumulators use it, and an accumulator that varies over a later stream axis is an array in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cascade import Accumulator, Cascade, Pass
from .device import Device
from .expr import Acc, Cast, Expr, Load, Map, Reduce, nodes
from .ops import OPS

DEFAULT_EXTENT = 1024  # of a symbolic axis
TILE = 128  # stream elements between two rebases


@dataclass(frozen=True)
class Cost:
    """passes: traversals beyond the first of each axis, summed over the axes.
    bytes: memory traffic. flops: operations. state: bytes of running values. seconds: modelled."""

    passes: int
    bytes: float
    flops: float
    state: float
    seconds: float


class Sizes:
    """Numbers of points, with a default for symbolic axes."""

    def __init__(self, extents: Mapping[str, int | None]) -> None:
        self.extents = {a: DEFAULT_EXTENT if n is None else n for a, n in extents.items()}

    def points(self, axes: frozenset[str] | set[str] | tuple[str, ...]) -> float:
        out = 1.0
        for a in axes:
            out *= self.extents[a]
        return out


def operations(e: Expr) -> float:
    """Flops of one node at one point."""
    if isinstance(e, Map):
        return OPS[e.op].cost
    if isinstance(e, Reduce):
        return _folding(e.op, e.k)
    return 2.0 if isinstance(e, Cast) else 0.0


def _folding(op: str, k: int) -> float:
    """Flops of folding one element, the same in an accumulator and in place."""
    return 1.0 if op == "sum" else 1.0 + k


def flops(roots: list[Expr], sizes: Sizes) -> float:
    """Flops of a set of expressions, each distinct node once."""
    total = 0.0
    for e in nodes(*roots):
        axes = e.axes | ({e.axis} if isinstance(e, Reduce) else set())
        total += operations(e) * sizes.points(frozenset(axes))
    return total


def _fold(p: Pass, a: Accumulator, sizes: Sizes) -> float:
    """Flops of folding a lift and of rebasing once for each tile after the first: a product with a column factor is
    one multiply-add."""
    axes = frozenset({*a.axes, p.axis})
    fold = sizes.points(axes) * _folding(a.op, a.k)
    moved = 0.0 if a.rebase is None else flops([a.rebase], sizes) * max(0.0, sizes.extents[p.axis] / TILE - 1)
    return fold + moved


def cost(c: Cascade, device: Device) -> Cost:
    """The modelled cost of a cascade."""
    sizes = Sizes(c.extents)
    width = {s.name: s.dtype.itemsize for s in c.sources}
    stored = {a.name: a for a in c.accumulators()}
    traffic = arithmetic = 0.0
    groups: list[tuple[str | None, list[Expr]]] = [(p.axis, [a.lift for a in p.accumulators]) for p in c.passes]
    groups.append((None, [o.expr for o in c.outputs]))
    for axis, roots in groups:
        reads: dict[object, float] = {}
        for e in nodes(*roots):
            if isinstance(e, Load):
                reads[e.source, e.dims] = sizes.points(e.dims) * width[e.source]
            elif isinstance(e, Acc) and axis is not None and axis in e.axes:
                reads[e.name] = sizes.points(e.axes) * stored[e.name].dtype.itemsize
        traffic += sum(reads.values())
        arithmetic += flops(roots, sizes)
    state = 0.0
    for p in c.passes:
        for a in p.accumulators:
            arithmetic += _fold(p, a, sizes)
            held = sizes.points(a.axes) * a.dtype.itemsize * max(1, a.k)
            state += held
            if any(q.axis in a.axes for q in c.passes):
                traffic += held
    traffic += sum(sizes.points(o.axes) * o.dtype.itemsize for o in c.outputs)
    speed = device.cache_bandwidth if traffic < device.cache else device.bandwidth
    seconds = max(traffic / speed, arithmetic / device.flops) + 0.1 * min(traffic / speed, arithmetic / device.flops)
    passes = sum(max(0, c.count(a) - 1) for a in c.stream_axes())
    return Cost(passes, traffic, arithmetic, state, seconds)
