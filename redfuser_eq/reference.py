"""The oracle: what an expression and a Cascade mean, evaluated plainly in float64.

`evaluate` follows the written-out expression. `stream` follows a Cascade's own formulas over any tiling
and segmentation of each stream axis, merging partial states by the rebase formula; the two agree for a
sound Cascade. Neither chooses what is fast; both take memory for whole parallel axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .cascade import Cascade, Pass
from .errors import ShapeError
from .expr import Expr, Output, Program, Reduce, Source, nodes
from .interpret import Array, Frame, Scope, State, Step, check_top, combine, empty, fold_lift, rebase, shown, steps


def evaluate(program: Program, arrays: Sequence[Any], extents: Mapping[str, int], dtype: Any = np.float64) -> list[Array]:
    """The value of each output, one dimension for each axis of `output.axes`.

    arrays: aligned with `program.sources`, views already applied. dtype: the float dtype everything is
    computed in (integers stay exact, conversions to narrower dtypes round as written). Raises ShapeError
    where a max, min, argmax, argmin or top-k has no elements, or k exceeds the axis.
    """
    frame = _frame(program.sources, arrays, extents, (o.expr for o in program.outputs), program.outputs, dtype)
    with np.errstate(all="ignore"):
        scope = Scope(frame, {})
        return [_result(scope, o) for o in program.outputs]


def stream(
    cascade: Cascade,
    arrays: Sequence[Any],
    extents: Mapping[str, int],
    *,
    tiles: Sequence[int] | None = None,
    segments: int | None = None,
    rng: np.random.Generator | None = None,
) -> list[Array]:
    """Run a Cascade in float64 as `evaluate` runs a program.

    tiles: lengths of the tiles of a stream axis, repeated as needed (None: random with `rng`, else one
    tile). segments: into how many parts each stream axis is cut; each is streamed from its own beginning
    and their states are merged pairwise in random order (None: random with `rng`, else one).
    Raises ShapeError as `evaluate` does. Rows whose parameters end up infinite or NaN are not repaired.
    """
    exprs = [e for a in cascade.accumulators() for e in (a.lift, a.rebase) if e is not None]
    frame = _frame(cascade.sources, arrays, extents, (*exprs, *(o.expr for o in cascade.outputs)), cascade.outputs, np.float64, cascade)
    whole: dict[str, State] = {}
    with np.errstate(all="ignore"):
        for p in cascade.passes:
            parts = _cut(extents[p.axis], segments, rng)
            states = [_segment(frame, p, whole, _tiles(part, tiles, rng)) for part in parts]
            whole |= _merge(frame, p, whole, states, rng)
        scope = Scope(frame, {}, whole)
        return [_result(scope, o) for o in cascade.outputs]


def _segment(frame: Frame, p: Pass, whole: Mapping[str, State], tiles: Sequence[slice]) -> dict[str, State]:
    """The states of one segment, streamed tile by tile."""
    states: dict[str, State] = {}
    plan, ops = steps(p), {a.name: a.op for a in p.accumulators}
    for tile in tiles:
        scope = Scope(frame, {p.axis: tile}, whole, previous=states)
        now: dict[str, State] = {}
        for step in plan:
            new = fold_lift(scope, step, p.axis, ops)
            if states:
                new = combine(step.acc.op, rebase(scope, step, ops), new, _out(frame, step))
            now[step.acc.name] = new
            scope.running[step.acc.name] = shown(step, new)
        states = now
    return states


def _merge(
    frame: Frame, p: Pass, whole: Mapping[str, State], states: list[dict[str, State]], rng: np.random.Generator | None
) -> dict[str, State]:
    """One state from those of all segments, in random order and by a random tree."""
    states = [s for s in states if s]
    while len(states) > 1:
        i, j = rng.permutation(len(states))[:2] if rng is not None else (0, 1)
        both = _merge_two(frame, p, whole, states[i], states[j])
        states = [s for n, s in enumerate(states) if n not in (i, j)] + [both]
    if states:
        return states[0]
    plain = Scope(frame, {})
    return {
        a.name: empty(a.op, p.axis, plain.shape(frozenset(a.axes) | ({a.out} if a.out else set())), frame.dtype(a.dtype))
        for a in p.accumulators
    }


def _merge_two(frame: Frame, p: Pass, whole: Mapping[str, State], a: dict[str, State], b: dict[str, State]) -> dict[str, State]:
    """merged = op(rebase(a), rebase(b)), accumulator by accumulator, at the merged parameters."""
    ops = {acc.name: acc.op for acc in p.accumulators}
    merged: dict[str, State] = {}
    running: dict[str, State] = {}
    left, right = (Scope(frame, {}, whole, running=running, previous=side) for side in (a, b))
    for step in steps(p):
        new = combine(step.acc.op, rebase(left, step, ops), rebase(right, step, ops), _out(frame, step))
        merged[step.acc.name] = new
        running[step.acc.name] = shown(step, new)
    return merged


def _out(frame: Frame, step: Step) -> int:
    return frame.dims.get(step.acc.out, 0)


def _result(scope: Scope, o: Output) -> Array:
    """An output's value with one dimension for each of its axes, in their order."""
    order = scope.frame.order
    value = np.broadcast_to(scope.value(o.expr), scope.shape(frozenset(o.axes)))
    value = value.transpose([order.index(a) for a in o.axes] + [i for i, a in enumerate(order) if a not in o.axes])
    return np.array(value.reshape([scope.size(a) for a in o.axes]))


def _frame(
    sources: Sequence[Source],
    arrays: Sequence[Any],
    extents: Mapping[str, int],
    exprs: Iterable[Expr],
    outputs: Sequence[Output],
    dtype: Any,
    cascade: Cascade | None = None,
) -> Frame:
    """The axes that occur, in the order of `extents`, and the arrays by name."""
    if len(arrays) != len(sources):
        raise ShapeError(f"{len(sources)} arrays are needed ({', '.join(s.name for s in sources)}), {len(arrays)} were given")
    used = {a for o in outputs for a in o.axes}
    for e in nodes(*exprs):
        used |= e.axes | ({e.axis} if isinstance(e, Reduce) else set())  # a body need not vary along its axis
    if cascade is not None:
        used |= {p.axis for p in cascade.passes} | {a for acc in cascade.accumulators() for a in (*acc.axes, acc.out) if a}
        for p in cascade.passes:
            for acc in p.accumulators:
                check_top(acc.k, p.axis, extents[p.axis])
    order = tuple(a for a in extents if a in used)
    return Frame(order, extents, {s.name: np.asarray(x) for s, x in zip(sources, arrays, strict=True)}, np.dtype(dtype))


def _cut(extent: int, segments: int | None, rng: np.random.Generator | None) -> list[slice]:
    """Consecutive segments that cover an axis; some may be empty."""
    if segments is None:
        segments = 1 if rng is None else int(rng.integers(1, 5))
    if rng is None:
        ends = [extent * n // segments for n in range(segments + 1)]
    else:
        ends = [0, *sorted(rng.integers(0, extent + 1, segments - 1).tolist()), extent]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def _tiles(part: slice, tiles: Sequence[int] | None, rng: np.random.Generator | None) -> list[slice]:
    """Consecutive tiles that cover a segment."""
    made: list[slice] = []
    start = part.start
    while start < part.stop:
        if tiles:
            length = tiles[len(made) % len(tiles)]
        else:
            length = part.stop - part.start if rng is None else int(rng.integers(1, part.stop - part.start + 1))
        made.append(slice(start, min(start + max(1, length), part.stop)))
        start = made[-1].stop
    return made
