"""Blocked NumPy: runs every Cascade with no compiler, in memory of the size of a tile.

The parallel axes are cut into tiles; for each of them every pass streams its axis tile by tile. Within a
tile each distinct value is computed once and dropped after its last use; what does not vary along the
stream is computed once before the loop; sums of products go to BLAS (`contract`). Floats narrower than 32
bits are converted as they are loaded.

Large calls share the outermost tiles among threads (NumPy releases the interpreter's lock in its loops);
`REDFUSER_NUM_THREADS` or `OMP_NUM_THREADS` bounds their number.

A row whose states are not all finite at the end is computed again by the plain cascade, alone: other
rows keep their results, bit for bit.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..arrays import is_cupy
from ..cascade import Accumulator, Cascade, Pass
from ..errors import ShapeError
from ..expr import Acc, Axes, Cast, Expr, Load, Map, Output, Prev, Reduce, nodes, show
from ..interpret import Array, Frame, Range, Scope, State, Step, apply, check_top, combine, empty, fold_lift, rebase, shown, steps
from .contract import Factors, Product, contract
from .memory import overlaps, pointer
from .tiling import Layout, Root, Terms, held, layout

MANY = 1 << 21  # elements from which threads pay
MOST = 8  # threads, so that memory stays that of a few tiles


def build(cascade: Cascade, plain: Cascade) -> NumpyExecutable:
    """Nothing is compiled: the cascade is planned at the first call with given extents."""
    return NumpyExecutable(cascade, plain)


class NumpyExecutable:
    """A Cascade as blocked NumPy; see `runtime.Executable`."""

    def __init__(self, cascade: Cascade, plain: Cascade) -> None:
        self.cascade, self.plain = cascade, plain
        self.same = cascade.passes == plain.passes and cascade.outputs == plain.outputs
        self.source = describe(cascade)
        self._plans: dict[tuple[bool, tuple[tuple[str, int], ...]], Plan] = {}

    def __call__(self, arrays: Sequence[Any], extents: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        given = checked_arrays(self.cascade, arrays, extents)
        results = checked_out(self.cascade.outputs, extents, out)
        if out is not None and overlaps(list(given.values()), results, pointer):
            for a, fresh in zip(out, self(arrays, extents), strict=True):
                np.copyto(a, fresh)
            return list(out)
        empty_stream = any(extents[p.axis] == 0 for p in self.cascade.passes)
        plan = self._plan(empty_stream, extents)
        frame = Frame(plan.layout.order, extents, given)

        def run(ranges: dict[str, slice]) -> None:
            with np.errstate(all="ignore"):
                whole = plan.passes(frame, ranges)
                plan.write(frame, ranges, whole, results, None)
                if not (self.same or empty_stream):
                    self._repair(frame, plan, ranges, whole, results)

        parts = list(tiles(plan.layout.outer, plan.layout.tiles, extents))
        threads = min(_threads(), len(parts))
        if threads < 2 or plan.layout.work < MANY:
            for ranges in parts:
                run(ranges)
        else:  # a pool a call: it costs 0.1 ms, and none is left behind for a fork to break
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, parts))
        return results

    def _plan(self, plain: bool, extents: Mapping[str, int]) -> Plan:
        key = (plain, tuple(extents.items()))
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) > 64:
                self._plans.clear()
            found = self._plans[key] = Plan(self.plain if plain else self.cascade, extents)
        return found

    def _repair(self, frame: Frame, plan: Plan, ranges: Mapping[str, slice], whole: Mapping[str, State], results: Sequence[Array]) -> None:
        """Compute again, by the plain cascade, the rows of a tile that have a state that is not finite."""
        bad = plan.unusable(frame, whole)
        if bad is None:
            return
        plain = self._plan(True, frame.extents)
        again = Frame(plain.layout.order, frame.extents, frame.arrays)
        outer = [a for a in again.order if a in plan.cut and a in plain.cut]
        joined = bad.any(axis=tuple(frame.dims[a] for a in plan.cut - plain.cut), keepdims=True)
        bad = _by_axes(np.asarray(joined), frame, outer)
        rows: dict[str, Range] = {a: ranges[a] for a in outer}
        if outer:
            hit = [np.asarray(bad.any(axis=tuple(i for i in range(len(outer)) if i != n))) for n in range(len(outer))]
            n = min(range(len(outer)), key=lambda n: hit[n].mean())  # gather along the axis where they are rarest
            places = np.flatnonzero(hit[n])
            rows[outer[n]] = ranges[outer[n]].start + places
            bad = np.take(bad, places, axis=n)
        plain.write(again, rows, plain.passes(again, rows), results, bad[again.place(frozenset(outer))])


class Plan:
    """A Cascade at given extents: the layout, and each pass's groups of accumulators."""

    def __init__(self, c: Cascade, extents: Mapping[str, int]) -> None:
        self.cascade, self.layout = c, layout(c, extents)
        self.groups = [[Group(Pass(p.axis, g), self.layout) for g in _components(p, self.layout.outer)] for p in c.passes]
        self.cut = frozenset(self.layout.outer)

    def passes(self, frame: Frame, ranges: Mapping[str, Range]) -> dict[str, State]:
        """The final states of all accumulators, for ranges of the outer axes."""
        whole: dict[str, State] = {}
        for groups in self.groups:
            done: dict[str, State] = {}
            for group in groups:
                done |= self._group(frame, ranges, whole, group)
            whole |= done
        return whole

    def _group(self, frame: Frame, ranges: Mapping[str, Range], whole: Mapping[str, State], group: Group) -> dict[str, State]:
        """One traversal: as it is, or tile by tile along parallel axes of its own into arrays in memory."""
        if not group.local:
            return group.stream(frame, ranges, whole, self.cut)
        made: dict[str, State] = {}
        full = Scope(frame, ranges)
        for a in group.pass_.accumulators:
            shape, dtype = full.shape(frozenset((*a.axes, *((a.out,) if a.out else ())))), frame.dtype(a.dtype)
            made[a.name] = (np.empty(shape, dtype), *((np.empty(shape, np.int64),) if a.op.startswith(("arg", "top")) else ()))
        for part in tiles(group.local, self.layout.tiles, frame.extents):
            for name, state in group.stream(frame, {**ranges, **part}, whole, self.cut).items():
                index = tuple(part[a] if a in part and made[name][0].shape[i] > 1 else slice(None) for i, a in enumerate(frame.order))
                for target, value in zip(made[name], state, strict=True):
                    target[index] = value
        return made

    def unusable(self, frame: Frame, whole: Mapping[str, State]) -> Array | None:
        """Where, over the outer axes, some float state is NaN or infinite; None if nowhere."""
        bad: Array | None = None
        for state in whole.values():
            value = state[0]
            if value.dtype.kind != "f" or np.isfinite(value).all():
                continue
            others = tuple(i for i, a in enumerate(frame.order) if a not in self.cut)
            here = np.asarray((~np.isfinite(value)).any(axis=others, keepdims=True))
            bad = here if bad is None else bad | here
        return bad

    def write(
        self,
        frame: Frame,
        ranges: Mapping[str, Range],
        whole: Mapping[str, State],
        results: Sequence[Array],
        where: Array | None,
    ) -> None:
        """Store the outputs for ranges of the outer axes (only where a mask over them says so)."""
        for o, result in zip(self.cascade.outputs, results, strict=True):
            swept = tuple(a for a in o.axes if a not in self.cut)
            for part in tiles(swept, self.layout.tiles, frame.extents):
                scope = TileScope(frame, {**ranges, **part}, whole, self.cut, self.layout)
                value = _by_axes(scope.value(o.expr), frame, o.axes)
                index = tuple(scope.range(a) for a in o.axes)
                if where is None:
                    result[index] = value.astype(o.dtype, copy=False)
                    continue
                grid = np.ix_(*(np.arange(i.start, i.stop) if isinstance(i, slice) else i for i in index)) if index else ()
                mask = np.broadcast_to(_by_axes(where, frame, o.axes), result[grid].shape)
                result[grid] = np.where(mask, value.astype(o.dtype, copy=False), result[grid])


class Group:
    """Accumulators of one pass that are streamed together. local: parallel axes of theirs that are not
    looped over outside."""

    def __init__(self, p: Pass, plan: Layout) -> None:
        self.pass_, self.layout, self.steps = p, plan, steps(p)
        self.ops = {a.name: a.op for a in p.accumulators}
        self.local = _local(p.accumulators, plan.outer)
        self.moving = _moving(p)
        self.uses = _uses(self.steps, p.axis, plan.sums)

    def stream(self, frame: Frame, ranges: Mapping[str, Range], whole: Mapping[str, State], cut: Axes) -> dict[str, State]:
        """One traversal of the stream axis for ranges of the parallel axes."""
        axis, extent, length = self.pass_.axis, frame.extents[self.pass_.axis], self.layout.tiles[self.pass_.axis]
        for a in self.pass_.accumulators:
            check_top(a.k, axis, extent)
        fixed = TileScope(frame, ranges, whole, cut, self.layout)
        states: dict[str, State] = {}
        for start in range(0, extent, length):
            tile = {**ranges, axis: slice(start, min(start + length, extent))}
            scope = TileScope(frame, tile, whole, cut, self.layout, {}, states, fixed, self.moving, self.uses)
            now: dict[str, State] = {}
            for step in self.steps:
                new = fold_lift(scope, step, axis, self.ops)
                if states:
                    new = combine(step.acc.op, rebase(scope, step, self.ops), new, frame.dims.get(step.acc.out, 0), into=new)
                now[step.acc.name] = new
                scope.running[step.acc.name] = shown(step, new)
            states = now
        return states or {a.name: self._empty(frame, fixed, a) for a in self.pass_.accumulators}

    def _empty(self, frame: Frame, scope: Scope, a: Accumulator) -> State:
        shape = scope.shape(frozenset((*a.axes, *((a.out,) if a.out else ()))))
        return empty(a.op, self.pass_.axis, shape, frame.dtype(a.dtype))


class TileScope(Scope):
    """A scope that contracts sums of products, keeps what does not move with the stream in `fixed`, and
    reuses the memory of values after their last use."""

    def __init__(
        self,
        frame: Frame,
        ranges: Mapping[str, Range],
        whole: Mapping[str, State],
        cut: Axes,
        plan: Layout,
        running: dict[str, State] | None = None,
        previous: Mapping[str, State] | None = None,
        fixed: Scope | None = None,
        moving: frozenset[Expr] = frozenset(),
        uses: Mapping[Expr, int] | None = None,
    ) -> None:
        super().__init__(frame, ranges, whole, cut, running, previous)
        self.plan, self.sums, self.folded, self.fixed, self.moving = plan, plan.sums, plan.folded, fixed, moving
        self.left = dict(uses) if uses else {}
        self.owned: set[Expr] = set()

    def again(self, running: dict[str, State]) -> Scope:
        return TileScope(self.frame, self.ranges, self.whole, self.cut, self.plan, running, self.previous, self.fixed, self.moving)

    def value(self, e: Expr) -> Array:
        if self.fixed is not None and e not in self.moving:
            return self.fixed.value(e)
        return super().value(e)

    def take(self, roots: Sequence[Expr]) -> tuple[list[Array], list[bool]]:
        """Values for one counted use of each, and which of them are free to be overwritten: those after
        their last use. All are computed before any is given up."""
        return [self.value(e) for e in roots], [self.release(e) for e in roots]

    def release(self, e: Expr) -> bool:
        self.left[e] = left = self.left.get(e, 0) - 1
        if left == 0 and e in self.owned:
            del self.memo[e]
            return True
        return False

    def compute(self, e: Expr) -> Array:
        if isinstance(e, Map):
            value = self._map(e)
        elif isinstance(e, Load):
            value = self.load(e)
            if e in self.folded and not _row_major(value):
                value = np.ascontiguousarray(value)
            return value
        elif isinstance(e, (Reduce, Cast)):
            value = super().compute(e)
            if isinstance(e, Cast):
                return value
        else:
            return super().compute(e)
        self.owned.add(e)
        return value

    def _map(self, e: Map) -> Array:
        dtype = self.frame.dtype(e.dtype)
        args, free = self.take(e.args)
        if any(free):
            shape = self.shape(e.axes)
            for i, a in enumerate(args):
                if free[i] and a.shape == shape and a.dtype == dtype:
                    return _where(e, args, i) if e.op == "where" else apply(e.op, args, dtype, a)
        return apply(e.op, args, dtype)

    def reduce(self, e: Reduce) -> Array:
        terms = self.sums.get(e)
        if terms is None or self.size(e.axis) != self.frame.extents[e.axis]:
            return super().reduce(e)
        return self.sum(terms, e.axis, self.frame.dtype(e.dtype))

    def fold(self, acc: Accumulator, axis: str) -> State:
        terms = self.sums.get((acc.lift, axis)) if acc.op == "sum" else None
        if terms is None:
            state = super().fold(acc, axis)
            self.release(acc.lift)
            return state
        return (self.sum(terms, axis, self.frame.dtype(acc.dtype)),)

    def sum(self, terms: Terms, axis: str, dtype: np.dtype[Any]) -> Array:
        """A sum along the range of an axis, term by term."""
        total: Array | None = None
        for t in terms:
            if isinstance(t.body, Product):
                n = len(t.body.left)
                values, free = self.take(t.body.exprs)
                rows, columns = t.body.axes
                left = self._product(t.body.left, rows, values[:n], free[:n], dtype)
                right = self._product(t.body.right, columns, values[n:], free[n:], dtype)
                value = contract(left, right, rows, columns, axis, self.frame.order)
            elif axis in t.body.axes:
                value = np.add.reduce(self.take([t.body])[0][0], axis=self.frame.dims[axis], keepdims=True, dtype=dtype)
            else:
                value = np.multiply(self.take([t.body])[0][0], self.size(axis), dtype=dtype)
            value = np.negative(value) if t.negative else value
            total = value if total is None else total + value
        assert total is not None
        return total

    def _product(self, factors: Factors, axes: Axes, values: Sequence[Array], free: Sequence[bool], dtype: np.dtype[Any]) -> Array:
        """The product of factors, over the first one's memory where it is free."""
        value, mine = values[0].astype(dtype, copy=False), free[0]
        if factors[0].inverse:
            value, mine = np.asarray(1 / value), True
        shape = self.shape(axes)
        for f, other in zip(factors[1:], values[1:], strict=True):
            value, mine = (
                apply("div" if f.inverse else "mul", (value, other), dtype, value if mine and value.shape == shape else None),
                True,
            )
        return value if value.ndim else value.reshape((1,) * len(self.frame.order))


def _where(e: Map, args: Sequence[Array], i: int) -> Array:
    """where(c, a, b) written over a (i == 1) or b (i == 2)."""
    condition = args[0] if i == 2 else np.logical_not(args[0])
    np.copyto(args[i], args[3 - i], where=condition, casting="unsafe")
    return args[i]


def _row_major(a: Array) -> bool:
    """Whether no dimension has a smaller stride than a later one (broadcast ones aside)."""
    last = None
    for size, stride in zip(a.shape, a.strides, strict=True):
        if size > 1 and stride:
            if last is not None and abs(stride) > last:
                return False
            last = abs(stride)
    return True


def _threads() -> int:
    """How many threads to use: what the environment says, else the processors this process may use."""
    for name in ("REDFUSER_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return min(MOST, max(1, int(os.environ[name])))
    return min(MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


# ---- planning


def _local(accumulators: Sequence[Accumulator], outer: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(x for a in accumulators for x in a.axes if x not in outer))


def _components(p: Pass, outer: Sequence[str]) -> list[tuple[Accumulator, ...]]:
    """Split a pass so that accumulators over different parallel axes, independent of each other, do not
    loop over each other's axes; those over the same axes stay together and share loads."""
    group = {a.name: {a.name} for a in p.accumulators}
    for a in p.accumulators:
        for n in (a.reads() | a.previous()) & set(group):
            merged = group[a.name] | group[n]
            for m in merged:
                group[m] = merged
    by_axes: dict[tuple[str, ...], set[str]] = {}
    for names in group.values():
        key = tuple(sorted(_local([a for a in p.accumulators if a.name in names], outer)))
        by_axes.setdefault(key, set()).update(names)
    return [tuple(a for a in p.accumulators if a.name in names) for names in by_axes.values()]


def _moving(p: Pass) -> frozenset[Expr]:
    """The values that change from tile to tile."""
    own = {a.name for a in p.accumulators}
    moving: set[Expr] = set()
    for e in nodes(*(x for a in p.accumulators for x in (a.lift, a.rebase) if x is not None)):
        if p.axis in e.axes or isinstance(e, Prev) or (isinstance(e, Acc) and e.name in own) or any(a in moving for a in e.args):
            moving.add(e)
    return frozenset(moving)


def _uses(plan: Sequence[Step], axis: str, sums: Mapping[Root, Terms]) -> Counter[Expr]:
    """How often a tile takes each value; values read in other ways count one more, so that they stay."""
    uses: Counter[Expr] = Counter()
    roots: list[Root] = [(s.acc.lift, axis) for s in plan] + [s.acc.rebase for s in plan if s.acc.rebase is not None]
    for s in plan:
        if (s.acc.lift, axis) not in sums:
            uses[s.acc.lift] += 1
        if s.acc.rebase is not None:
            uses[s.acc.rebase] += 1
    every: list[Root] = [*held(roots, sums), *(r for r in roots if isinstance(r, tuple))]
    for e in every:
        if e in sums:
            for t in sums[e]:
                uses.update(t.body.exprs if isinstance(t.body, Product) else [t.body])
        elif isinstance(e, Map):
            uses.update(e.args)
        elif isinstance(e, (Cast, Reduce)):
            uses.update(n for n in nodes(*e.args) for _ in range(2))
    return uses


def tiles(axes: Sequence[str], sizes: Mapping[str, int], extents: Mapping[str, int]) -> Iterator[dict[str, slice]]:
    """All combinations of tiles of some axes, the last axis fastest."""
    cuts = [
        [slice(s, min(s + sizes.get(a, extents[a]), extents[a])) for s in range(0, extents[a], sizes.get(a, extents[a]) or 1)] for a in axes
    ]
    for combination in itertools.product(*cuts):
        yield dict(zip(axes, combination, strict=True))


# ---- arrays in and out


def checked_arrays(c: Cascade, arrays: Sequence[Any], extents: Mapping[str, int]) -> dict[str, Array]:
    """The arrays by source name, their shapes compared with the axes they are loaded by."""
    if len(arrays) != len(c.sources):
        raise ShapeError(f"{len(c.sources)} arrays are needed ({', '.join(s.name for s in c.sources)}), {len(arrays)} were given")
    given = {s.name: x if is_cupy(x) else np.asarray(x) for s, x in zip(c.sources, arrays, strict=True)}
    roots = [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]
    for e in nodes(*roots):
        if isinstance(e, Load) and given[e.source].shape != (shape := tuple(extents[d] for d in e.dims)):
            raise ShapeError(f"{show(e)}: the array has shape {given[e.source].shape}, the axes have sizes {shape}")
    return given


def checked_out(outputs: Sequence[Output], extents: Mapping[str, int], out: Sequence[Any] | None) -> list[Array]:
    shapes = [tuple(extents[a] for a in o.axes) for o in outputs]
    if out is None:
        return [np.empty(shape, o.dtype) for shape, o in zip(shapes, outputs, strict=True)]
    if len(out) != len(outputs):
        raise ShapeError(f"out: {len(outputs)} arrays are needed, {len(out)} were given")
    for n, (array, shape, o) in enumerate(zip(out, shapes, outputs, strict=True)):
        if array.shape != shape or array.dtype != o.dtype:
            raise ShapeError(f"out[{n}] has shape {array.shape} and dtype {array.dtype}: it must have {shape} and {o.dtype}")
    return list(out)


def _by_axes(value: Array, frame: Frame, axes: Sequence[str]) -> Array:
    """A value with one dimension for each of `axes`, in that order (of size 1 where it does not vary)."""
    value = value if value.ndim else value.reshape((1,) * len(frame.order))
    turned = value.transpose([frame.dims[a] for a in axes] + [i for i, a in enumerate(frame.order) if a not in axes])
    return turned.reshape(turned.shape[: len(axes)])


def describe(c: Cascade) -> str:
    """The loop that runs, in mathematics."""
    lines: list[str] = []
    for p in c.passes:
        lines.append(f"for each tile of {p.axis}:")
        for a in p.accumulators:
            kept = a.name if a.rebase is None else show(a.rebase)
            top = f"{a.k}" if a.k else ""
            lines.append(f"    {a.name}[{','.join(a.axes)}] = {a.op}{top}({kept}, {a.op}{top}_{p.axis} {show(a.lift)})")
    lines += [f"output[{','.join(o.axes)}] = {show(o.expr)}" for o in c.outputs]
    return "\n".join(lines)
