"""Values of expressions and states of reductions on NumPy arrays: what both interpreters share.

A value is an array with one dimension for each axis of a fixed order, of size 1 where it does not vary,
so that operands align by broadcasting. A state is what a monoid carries: `(value,)`, or
`(value, index)` for argmax, argmin and top-k (whose entries lie along the extra axis `out`, best first).

The rules for states that hold nothing yet (a masked tile, an empty segment) stand here too:

1. a running max or min still at its identity is read as 0 by lifts and rebases (`Scope.running`), so that
   `exp(x - m)` of a masked element is 0, not NaN;
2. where everything a rebase reads is still at its identity and the formula gives NaN, the result is the
   identity (`rebase`);
3. where everything a lift reads is still at its identity and the formula gives NaN (a mean that is 0/0),
   the lift is taken with arbitrary finite parameters instead (`fold_lift`): its true weight is zero, so a
   finite element contributes zero and a non-finite one still shows.

The formula's own value always comes first, so a sum that merely happens to be zero changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cascade import Accumulator, Pass
from .errors import DTypeError, IRError, ShapeError
from .expr import Acc, Axes, Cast, Const, Expr, Index, Load, Map, Prev, Reduce, nodes, show
from .ops import MONOIDS, OPS

Array = np.ndarray[Any, Any]
State = tuple[Array, ...]
Range = slice | Array
CHUNK = 1 << 20  # elements of a body that the plain interpreter holds at once
STAND_IN = 0.7853981  # rule 3: finite, and unlikely to cancel an element exactly


def wide(dtype: np.dtype[Any], real: np.dtype[Any] | None = None) -> np.dtype[Any]:
    """The dtype in which values of `dtype` are computed: floats in at least float32 (in `real` if given),
    integers in 64 bits."""
    if dtype.kind == "b":
        return dtype
    if dtype.kind in "iu":
        return np.dtype(np.uint64 if dtype == np.uint64 else np.int64)
    if dtype.itemsize <= 8 and (dtype.kind == "f" or (dtype.kind == "V" and dtype.type is not np.void)):  # V: ml_dtypes
        return real or np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    raise DTypeError(f"dtype {dtype} has no meaning here: use a boolean, an integer, or a float of at most 64 bits")


# ---- states


def fold(op: str, value: Array, dim: int, start: int, k: int = 0, out: int = 0) -> State:
    """The state of the elements of `value` along dimension `dim`, the first of which has position `start`.

    The result keeps `dim` with size 1; top-k puts its `k` entries along dimension `out`, of size 1 before.
    """
    if MONOIDS[op].state == "pair":
        place = (np.argmax if op == "argmax" else np.argmin)(value, axis=dim, keepdims=True)
        return np.take_along_axis(value, place, axis=dim), place.astype(np.int64) + start
    if MONOIDS[op].state == "top":
        return _fold_top(value, dim, start, k, out)
    return (_REDUCE[op](value, axis=dim, keepdims=True),)


_REDUCE = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
    "any": np.logical_or.reduce,
    "all": np.logical_and.reduce,
}


def combine(op: str, a: State, b: State, out: int = 0, into: State | None = None) -> State:
    """The merge of two states with the same parameters. `into`: a state whose arrays may be overwritten."""
    monoid = MONOIDS[op]
    if monoid.combine is not None:
        if into is not None and a[0].shape == b[0].shape == into[0].shape:
            return (monoid.combine(a[0], b[0], out=into[0]),)
        return (np.asarray(monoid.combine(a[0], b[0])),)
    if monoid.state == "top":
        return _combine_top(a, b, out)
    (u, i), (v, j) = a, b
    better = v > u if monoid.best > 0 else v < u
    same = u == v
    if u.dtype.kind == "f":
        better |= np.isnan(v) & ~np.isnan(u)
        same |= np.isnan(v) & np.isnan(u)
    better |= same & (j < i)
    return np.where(better, v, u), np.where(better, j, i)


def _fold_top(value: Array, dim: int, start: int, k: int, out: int) -> State:
    v = np.moveaxis(value, dim, -1)
    if v.shape[-1] < k:
        pad = [(0, 0)] * (v.ndim - 1) + [(0, k - v.shape[-1])]
        position = np.arange(k)
        position[v.shape[-1] :] = np.iinfo(np.int64).max - start
        v, place = np.pad(v, pad, constant_values=lowest(v.dtype)), np.broadcast_to(position, (*v.shape[:-1], k))
    else:
        place = best(v, k)
        v = np.take_along_axis(v, place, axis=-1)
    order = np.lexsort((place, *_descending(v)))
    v, place = np.take_along_axis(v, order, -1), np.take_along_axis(place, order, -1) + start
    a, b = (np.swapaxes(np.moveaxis(x, -1, dim), dim, out) for x in (v, place))
    return a, b


def _combine_top(a: State, b: State, out: int) -> State:
    k = a[0].shape[out]
    u, i = (np.moveaxis(np.concatenate(np.broadcast_arrays(x, y), axis=out), out, -1) for x, y in zip(a, b, strict=True))
    order = np.lexsort((i, *_descending(u)))[..., :k]
    return np.moveaxis(np.take_along_axis(u, order, -1), -1, out), np.moveaxis(np.take_along_axis(i, order, -1), -1, out)


def _descending(v: Array) -> tuple[Array, ...]:
    """Sort keys that put the largest value first and NaN before it, the last key being the first one looked at."""
    if v.dtype.kind == "f":
        return (-v, ~np.isnan(v))
    return (~v,)


def best(v: Array, k: int) -> Array:
    """Positions of the k best entries along the last axis, in any order: NaN counts as largest, ties go to
    the lowest position. Linear in the length when few entries tie at the boundary."""
    keys = _descending(v)
    if len(keys) == 2 and not keys[1].all():
        return np.lexsort(keys)[..., :k]
    key = keys[0]
    if v.shape[-1] > 8 * k:
        mask = key <= np.partition(key, k - 1, axis=-1)[..., k - 1 : k]
        most = int(np.count_nonzero(mask, axis=-1).max(initial=0))
        if most < 4 * k:
            found = np.argsort(~mask, axis=-1, kind="stable")[..., :most]
            order = np.argsort(np.take_along_axis(key, found, -1), axis=-1, kind="stable")[..., :k]
            return np.take_along_axis(found, order, -1)
    return np.argsort(key, axis=-1, kind="stable")[..., :k]


def lowest(dtype: np.dtype[Any]) -> Any:
    """The value that every other one beats as a maximum."""
    if dtype.kind == "f":
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def identity(op: str, dtype: np.dtype[Any]) -> Any:
    """The identity of a monoid in a dtype."""
    value = MONOIDS[op].identity
    if np.isinf(value) and dtype.kind != "f":
        return lowest(dtype) if value < 0 else ~np.asarray(lowest(dtype))
    return value


def at_identity(op: str, state: State) -> Array:
    """Where a state holds nothing, or nothing that counts."""
    return np.asarray(state[0] == identity(op, state[0].dtype))


def empty(op: str, axis: str, shape: Sequence[int], dtype: np.dtype[Any]) -> State:
    """The state of no elements.

    Raises ShapeError where NumPy raises: a max, min, argmax, argmin or top-k of nothing.
    """
    if not MONOIDS[op].empty_ok and 0 not in shape:
        raise ShapeError(f"{op} over axis {axis!r} of size 0 has no identity: give the axis at least one element")
    value = np.full(shape, identity(op, dtype), dtype)
    return (value,) if MONOIDS[op].state == "value" else (value, np.zeros(shape, np.int64))


def check_top(k: int, axis: str, extent: int) -> None:
    if k > extent:
        raise ShapeError(f"top-k with k={k} over axis {axis!r} of size {extent}: k must not exceed the axis")


# ---- values


@dataclass(frozen=True)
class Frame:
    """What stays the same over a whole run. order: the axes, outermost dimension first; extents: their
    sizes; arrays: by source name; real: the float dtype to compute in (None: see `wide`)."""

    order: tuple[str, ...]
    extents: Mapping[str, int]
    arrays: Mapping[str, Array]
    real: np.dtype[Any] | None = None
    dims: dict[str, int] = field(init=False)
    wider: dict[np.dtype[Any], np.dtype[Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", {a: i for i, a in enumerate(self.order)})

    def dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype in which values of `dtype` are computed."""
        found = self.wider.get(dtype)
        if found is None:
            found = self.wider[dtype] = wide(dtype, self.real)
        return found

    def place(self, axes: Axes) -> tuple[Any, ...]:
        """An index that spreads dimensions in frame order over all dimensions."""
        return tuple(slice(None) if a in axes else None for a in self.order)


def apply(op: str, args: Sequence[Array], dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """An elementwise operation, its operands first converted to the dtype of the result."""
    entry = OPS[op]
    if entry.kind == "where":
        args = [args[0], *(a.astype(dtype, copy=False) for a in args[1:])]
    elif entry.kind != "bool":
        args = [a.astype(dtype, copy=False) for a in args]
    if out is not None and isinstance(entry.numpy, np.ufunc):
        return entry.numpy(*args, out=out)  # type: ignore[no-any-return]
    return np.asarray(entry.numpy(*args))


class Scope:
    """Evaluates expressions for one choice of ranges of the axes, each distinct node once.

    ranges: axis -> slice, or positions; other axes are whole. whole: final states of earlier passes, which
    are already cut along the axes in `cut`. running, previous: states of the present pass.
    """

    def __init__(
        self,
        frame: Frame,
        ranges: Mapping[str, Range],
        whole: Mapping[str, State] | None = None,
        cut: Axes = frozenset(),
        running: dict[str, State] | None = None,
        previous: Mapping[str, State] | None = None,
    ) -> None:
        self.frame, self.ranges, self.cut = frame, ranges, cut
        self.whole = {} if whole is None else whole
        self.running = {} if running is None else running
        self.previous = {} if previous is None else previous
        self.memo: dict[Expr, Array] = {}
        self.shapes: dict[Axes, tuple[int, ...]] = {}

    def range(self, axis: str) -> Range:
        found = self.ranges.get(axis)
        return slice(0, self.frame.extents[axis]) if found is None else found

    def size(self, axis: str) -> int:
        r = self.range(axis)
        return r.stop - r.start if isinstance(r, slice) else len(r)

    def shape(self, axes: Axes) -> tuple[int, ...]:
        found = self.shapes.get(axes)
        if found is None:
            found = self.shapes[axes] = tuple([self.size(a) if a in axes else 1 for a in self.frame.order])
        return found

    def within(self, axis: str, part: slice) -> Scope:
        """The scope of a body over part of an axis that a reduction binds."""
        return _Inner(self, axis, part)

    def again(self, running: dict[str, State]) -> Scope:
        """The same ranges with other running values and nothing remembered."""
        return Scope(self.frame, self.ranges, self.whole, self.cut, running, self.previous)

    def value(self, e: Expr) -> Array:
        found = self.memo.get(e)
        if found is None:
            found = self.memo[e] = self.compute(e)
        return found

    def compute(self, e: Expr) -> Array:
        if isinstance(e, Map):
            return apply(e.op, [self.value(a) for a in e.args], self.frame.dtype(e.dtype))
        if isinstance(e, Cast):
            return self.cast(e, self.value(e.args[0]))
        if isinstance(e, Reduce):
            return self.reduce(e)
        return self.leaf(e)

    def leaf(self, e: Expr) -> Array:
        frame = self.frame
        if isinstance(e, Load):
            return self.load(e)
        if isinstance(e, Const):
            return np.asarray(e.value, frame.dtype(e.dtype))
        if isinstance(e, Index):
            r = self.range(e.axis)
            positions: Array = np.arange(r.start, r.stop) if isinstance(r, slice) else r
            return np.asarray(positions[frame.place(e.axes)])
        if isinstance(e, Acc):
            return self.accumulator(e)
        if isinstance(e, Prev):
            return self.previous[e.name][0]
        raise IRError(f"no meaning for {type(e).__name__}: {show(e)}")

    def accumulator(self, e: Acc) -> Array:
        which = 0 if e.field == "value" else 1
        if e.name in self.running:
            return self.running[e.name][which]
        index = tuple(self.range(a) if a in e.axes and a not in self.cut else slice(None) for a in self.frame.order)
        return self.whole[e.name][which][index]

    def load(self, e: Load) -> Array:
        array: Array = self.frame.arrays[e.source]
        for dim, axis in enumerate(e.dims):
            r = self.range(axis)
            if not isinstance(r, slice):
                array = np.take(array, r, axis=dim)
            elif r.stop - r.start != array.shape[dim]:
                array = array[(slice(None),) * dim + (r,)]
        dims = self.frame.dims
        turned = array.transpose(sorted(range(len(e.dims)), key=lambda d: dims[e.dims[d]]))
        return np.asarray(turned[self.frame.place(e.axes)].astype(self.frame.dtype(e.dtype), copy=False))

    def cast(self, e: Cast, value: Array) -> Array:
        """Rounds when the target is narrower than what the operand's dtype holds."""
        if not np.can_cast(e.args[0].dtype, e.dtype):
            value = value.astype(e.dtype)
        return value.astype(self.frame.dtype(e.dtype), copy=False)

    def reduce(self, e: Reduce) -> Array:
        """A reduction, its body taken in parts that fit in memory."""
        frame, extent = self.frame, self.frame.extents[e.axis]
        check_top(e.k, e.axis, extent)
        dim, out = frame.dims[e.axis], frame.dims.get(e.out, 0)
        others = int(np.prod(self.shape(e.body.axes - {e.axis}), dtype=np.int64))
        step = max(1, CHUNK // max(1, others))
        dtype = frame.dtype(e.dtype if MONOIDS[e.op].state == "value" else e.body.dtype)
        state: State | None = None
        for start in range(0, extent, step):
            part = self.within(e.axis, slice(start, min(start + step, extent)))
            new = fold(e.op, stretched(part, e.body, e.axis, dtype), dim, start, e.k, out)
            state = new if state is None else combine(e.op, state, new, out)
        if state is None:
            state = empty(e.op, e.axis, self.shape(e.axes), dtype)
        picked = state[1] if e.op in ("argmax", "argmin", "top_indices") else state[0]
        return picked.astype(frame.dtype(e.dtype), copy=False)

    def fold(self, acc: Accumulator, axis: str) -> State:
        """The lift of the present tile of the stream axis, folded."""
        r = self.range(axis)
        assert isinstance(r, slice)
        value = stretched(self, acc.lift, axis, self.frame.dtype(acc.dtype))
        return fold(acc.op, value, self.frame.dims[axis], r.start, acc.k, self.frame.dims.get(acc.out, 0))


class _Inner(Scope):
    """A scope in which one more axis has a range; what does not vary over it is the outer scope's."""

    def __init__(self, outer: Scope, axis: str, part: slice) -> None:
        super().__init__(outer.frame, {**outer.ranges, axis: part}, outer.whole, outer.cut, outer.running, outer.previous)
        self.outer, self.axis = outer, axis

    def value(self, e: Expr) -> Array:
        return super().value(e) if self.axis in e.axes else self.outer.value(e)


def stretched(scope: Scope, e: Expr, axis: str, dtype: np.dtype[Any]) -> Array:
    """The value of e with one entry for each position along an axis, even if it does not vary there."""
    value = scope.value(e).astype(dtype, copy=False)
    dim = scope.frame.dims[axis]
    if axis in e.axes:
        return value
    shape = list(value.shape or (1,) * len(scope.frame.order))
    shape[dim] = scope.size(axis)
    return np.broadcast_to(value, shape)


# ---- one step of a pass


@dataclass(frozen=True)
class Step:
    """An accumulator with what its pass needs to know.

    guards: accumulators of the same pass that the lift reads; previous: those whose previous value the
    rebase reads, and its own; those with the fewest axes come first. A max or min (unless its own) is left
    out of both: rule 1 gives it a meaning at the identity. param: whether another accumulator reads it.
    """

    acc: Accumulator
    guards: tuple[str, ...]
    previous: tuple[str, ...]
    param: bool


def steps(p: Pass) -> list[Step]:
    """The steps of a pass, in order."""
    own = {a.name: a for a in p.accumulators}
    sums = {n for n, a in own.items() if a.op not in ("max", "min")}
    params = p.params()

    def ordered(names: Set[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda n: (len(own[n].axes), n)))

    made = []
    for a in p.accumulators:
        read = {e.name for e in nodes(a.lift) if isinstance(e, Acc)}
        made.append(Step(a, ordered(read & sums), ordered((a.previous() & sums) | {a.name}), a.name in params))
    return made


def shown(step: Step, state: State) -> State:
    """A running state as lifts and rebases read it (rule 1)."""
    if step.param and step.acc.op in ("max", "min") and state[0].dtype.kind == "f":
        unset = at_identity(step.acc.op, state)
        if unset.any():
            return (np.where(unset, state[0].dtype.type(0), state[0]),)
    return state


def rebase(scope: Scope, step: Step, ops: Mapping[str, str]) -> State:
    """The previous state of an accumulator moved to the running parameters (rule 2). ops: name -> monoid."""
    acc, before = step.acc, scope.previous[step.acc.name]
    if acc.rebase is None:
        return before
    value = scope.value(acc.rebase).astype(before[0].dtype, copy=False)
    unset = _all_unset(step.previous, scope.previous, ops)
    if unset is not None and value.dtype.kind == "f":
        value = np.where(unset & np.isnan(value), value.dtype.type(identity(acc.op, value.dtype)), value)
    return (value, *before[1:])


def fold_lift(scope: Scope, step: Step, axis: str, ops: Mapping[str, str]) -> State:
    """The fold of the lift over the present tile (rule 3). ops: name -> monoid."""
    state = scope.fold(step.acc, axis)
    if not step.guards or state[0].dtype.kind != "f":
        return state
    unset = _all_unset(step.guards, scope.running, ops)
    if unset is None or not (lost := unset & np.isnan(state[0])).any():
        return state
    finite = dict(scope.running)
    for name in step.guards:
        value = finite[name][0]
        at = at_identity(ops[name], finite[name])
        finite[name] = (np.where(at, value.dtype.type(STAND_IN), value), *finite[name][1:])
    other = scope.again(finite).fold(step.acc, axis)
    return tuple(np.where(lost, o, s) for o, s in zip(other, state, strict=True))


def _all_unset(names: Sequence[str], states: Mapping[str, State], ops: Mapping[str, str]) -> Array | None:
    """Where all of these states are at their identities; None if nowhere."""
    unset: Array | None = None
    for name in names:
        here = at_identity(ops[name], states[name])
        unset = here if unset is None else unset & here
        if not unset.any():
            return None
    return unset
