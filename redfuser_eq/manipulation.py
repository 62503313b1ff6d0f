"""Shapes: reshape, transpose, broadcast, join, repeat, and basic indexing of traced arrays."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from . import graph
from .array import Array
from .elementwise import whole
from .errors import ShapeError, TraceError
from .graph import Node, Shape, Slice, normal_axes, normal_axis, show_shape
from .location import here
from .promotion import promoted
from .sizes import Size, Symbol, Unknown, product, quotient, size_of


def _view(node: Node, of: Node) -> Array:
    """A result that in NumPy shares memory with an operand, so that neither may change in place."""
    if node is not of:
        of.viewed = True
    return Array(node)


def _shape_of(shape: Any, what: str) -> list[Size]:
    return [size_of(s, what) for s in (shape if isinstance(shape, (tuple, list)) else (shape,))]


def reshape(x: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Array:
    """`numpy.reshape` in row-major order, where it splits or joins whole dimensions. One size may be -1."""
    if order not in ("C", "A", "K"):
        raise TraceError(f"reshape: order={order!r} cannot be traced; transpose first" + here())
    node = whole(x)
    sizes = _shape_of(shape, "reshape")
    total = product(node.shape)
    if sizes.count(-1) == 1:
        known = product(s for s in sizes if s != -1)
        rest = quotient(total, known)
        if rest is None:
            raise ShapeError(f"reshape: {show_shape(node.shape)} does not divide into {show_shape(sizes)}" + here())
        sizes[sizes.index(-1)] = rest
    if product(sizes) != total or any(isinstance(s, int) and s < 0 for s in sizes):
        raise ShapeError(f"reshape: {show_shape(node.shape)} has {total} elements, {show_shape(sizes)} does not" + here())
    return _view(graph.reshape(node, tuple(sizes)), node)


def ravel(x: Any, order: str = "C") -> Array:
    return reshape(x, -1, order)


def expand_dims(x: Any, axis: Any) -> Array:
    node = whole(x)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    ndim = node.ndim + len(axes)
    new = {normal_axis(a, ndim, "expand_dims", node.shape) for a in axes}
    rest = iter(range(node.ndim))
    dims = tuple(None if d in new else next(rest) for d in range(ndim))
    return _view(graph.relabel(node, dims, tuple(1 if d is None else node.shape[d] for d in dims)), node)


def squeeze(x: Any, axis: Any = None) -> Array:
    node = whole(x)
    axes = tuple(d for d, s in enumerate(node.shape) if s == 1) if axis is None else normal_axes(axis, node, "squeeze")
    if any(node.shape[d] != 1 for d in axes):
        raise ShapeError(f"squeeze: dimension {axis} of shape {show_shape(node.shape)} is not of size 1" + here())
    return _view(_permuted(node, tuple(d for d in range(node.ndim) if d not in axes)), node)


def _permuted(node: Node, dims: tuple[int, ...]) -> Node:
    return graph.relabel(node, dims, tuple(node.shape[d] for d in dims))


def transpose(x: Any, axes: Any = None) -> Array:
    node = whole(x)
    if axes is None:
        return _view(_permuted(node, tuple(reversed(range(node.ndim)))), node)
    order = tuple(normal_axis(a, node.ndim, "transpose", node.shape) for a in axes)
    if sorted(order) != list(range(node.ndim)):
        raise ShapeError(f"transpose: axes {tuple(axes)} are no permutation of the dimensions of {show_shape(node.shape)}" + here())
    return _view(_permuted(node, order), node)


def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    node = whole(x)
    a, b = (normal_axis(i, node.ndim, "swapaxes", node.shape) for i in (axis1, axis2))
    order = list(range(node.ndim))
    order[a], order[b] = b, a
    return _view(_permuted(node, tuple(order)), node)


def matrix_transpose(x: Any) -> Array:
    if whole(x).ndim < 2:
        raise ShapeError(f"matrix_transpose: shape {show_shape(whole(x).shape)} has fewer than two dimensions" + here())
    return swapaxes(x, -1, -2)


def moveaxis(x: Any, source: Any, destination: Any) -> Array:
    node = whole(x)
    pair = [
        [normal_axis(a, node.ndim, "moveaxis", node.shape) for a in (v if isinstance(v, (tuple, list)) else (v,))]
        for v in (source, destination)
    ]
    if len(pair[0]) != len(pair[1]):
        raise ShapeError(f"moveaxis: {source} and {destination} differ in length" + here())
    order = [d for d in range(node.ndim) if d not in pair[0]]
    for to, of in sorted(zip(pair[1], pair[0], strict=True)):
        order.insert(to, of)
    return _view(_permuted(node, tuple(order)), node)


def broadcast_to(x: Any, shape: Any, **_: Any) -> Array:
    node = whole(x)
    return _view(graph.broadcast(node, tuple(_shape_of(shape, "broadcast_to"))), node)


def broadcast_arrays(*arrays: Any, **_: Any) -> tuple[Array, ...]:
    nodes = [whole(a) for a in arrays]
    shape = graph.broadcast_shapes([n.shape for n in nodes], "broadcast_arrays")
    return tuple(_view(graph.broadcast(n, shape), n) for n in nodes)


def at_least(n: int) -> Any:
    def f(*arrays: Any) -> Any:
        out = [reshape(a, (1,) * (n - whole(a).ndim) + whole(a).shape) if whole(a).ndim < n else Array(whole(a)) for a in arrays]
        return out[0] if len(out) == 1 else tuple(out)

    f.__doc__ = f"Arrays with leading dimensions of size 1 up to {n}."
    return f


atleast_1d, atleast_2d = at_least(1), at_least(2)


def repeat(x: Any, repeats: Any, axis: int | None = None, **_: Any) -> Array:
    """Each element `repeats` times in a row (one number for all): the shared heads of grouped attention."""
    try:
        times = size_of(repeats, "repeat")
    except TraceError:
        raise TraceError("repeat: only one number of repeats for all elements can be traced" + here()) from None
    node = whole(x) if axis is not None else whole(ravel(x))
    d = normal_axis(0 if axis is None else axis, node.ndim, "repeat", node.shape)
    wide = (*node.shape[: d + 1], times, *node.shape[d + 1 :])
    grown = graph.relabel(node, (*range(d + 1), None, *range(d + 1, node.ndim)), wide)
    return Array(graph.reshape(grown, (*node.shape[:d], product((node.shape[d], times)), *node.shape[d + 1 :])))


def tile(x: Any, repetitions: Any) -> Array:
    """The whole array repeated along each dimension."""
    node = whole(x)
    reps = _shape_of(repetitions, "tile")
    ndim = max(node.ndim, len(reps))
    reps = [*[1] * (ndim - len(reps)), *reps]
    shape = (1,) * (ndim - node.ndim) + node.shape
    node = graph.reshape(node, shape)
    dims: list[int | None] = []
    wide: list[Size] = []
    for d, (s, r) in enumerate(zip(shape, reps, strict=True)):
        dims += [None, d]
        wide += [r, s]
    grown = graph.relabel(node, tuple(dims), tuple(wide))
    return Array(graph.reshape(grown, tuple(product(p) for p in zip(reps, shape, strict=True))))


def concatenate(arrays: Sequence[Any], axis: int | None = 0, **_: Any) -> Array:
    """Arrays joined along a dimension. Reductions over it combine those of the pieces."""
    nodes = [whole(a) for a in (arrays if axis is not None else [ravel(a) for a in arrays])]
    if not nodes:
        raise ShapeError("concatenate: no arrays" + here())
    dtype = promoted(*(n.dtype for n in nodes), what="concatenate")
    first = nodes[0]
    d = normal_axis(0 if axis is None else axis, first.ndim, "concatenate", first.shape)
    for n in nodes:
        if n.ndim != first.ndim or any(a != b for i, (a, b) in enumerate(zip(n.shape, first.shape, strict=True)) if i != d):
            shapes = ", ".join(show_shape(m.shape) for m in nodes)
            raise ShapeError(f"concatenate: shapes {shapes} differ beside axis {axis}" + here())
        if isinstance(n.shape[d], Symbol):
            raise ShapeError(f"concatenate along the symbolic extent {n.shape[d]}; give that extent as an integer" + here())
    nodes = [graph.cast(n, dtype) for n in nodes if n.shape[d] != 0] or nodes[:1]
    return Array(nodes[0] if len(nodes) == 1 else graph.concat(tuple(nodes), d))


def stack(arrays: Sequence[Any], axis: int = 0, **_: Any) -> Array:
    shapes = {whole(a).shape for a in arrays}
    if len(shapes) > 1:
        raise ShapeError(f"stack: shapes {', '.join(map(show_shape, sorted(shapes, key=str)))} differ" + here())
    return concatenate([expand_dims(a, axis) for a in arrays], normal_axis(axis, whole(arrays[0]).ndim + 1, "stack"))


def vstack(arrays: Sequence[Any], **_: Any) -> Array:
    return concatenate([atleast_2d(a) for a in arrays], 0)


def hstack(arrays: Sequence[Any], **_: Any) -> Array:
    parts = [atleast_1d(a) for a in arrays]
    return concatenate(parts, 0 if parts[0].ndim == 1 else 1)


def split(x: Any, sections: Any, axis: int = 0) -> list[Array]:
    """`numpy.split`: equal sections, or at the given positions."""
    node = whole(x)
    d = normal_axis(axis, node.ndim, "split", node.shape)
    size = node.shape[d]
    if isinstance(size, Symbol):
        raise ShapeError(f"split along the symbolic extent {size}; give that extent as an integer" + here())
    if isinstance(sections, (list, tuple)):
        cuts = [int(c) for c in sections]
    elif size % int(sections) == 0:
        cuts = [size // int(sections) * i for i in range(1, int(sections))]
    else:
        raise ShapeError(f"split: {size} elements do not divide into {sections} equal sections" + here())
    ends = [0, *cuts, size]
    return [getitem(x, (*(slice(None),) * d, slice(a, b))) for a, b in pairwise(ends)]


def unstack(x: Any, axis: int = 0) -> tuple[Array, ...]:
    node = whole(x)
    d = normal_axis(axis, node.ndim, "unstack", node.shape)
    return tuple(getitem(x, (*(slice(None),) * d, i)) for i in range(size_as_int(node.shape[d], "unstack")))


def size_as_int(size: Size, what: str) -> int:
    if isinstance(size, Symbol):
        raise ShapeError(f"{what} along the symbolic extent {size}; give that extent as an integer" + here())
    return size


def flip(x: Any, axis: Any = None) -> Array:
    node = whole(x)
    axes = normal_axes(axis, node, "flip")
    return getitem(x, tuple(slice(None, None, -1) if d in axes else slice(None) for d in range(node.ndim)))


def diff(x: Any, n: int = 1, axis: int = -1) -> Array:
    """x[1:] - x[:-1] along an axis, n times."""
    a = Array(whole(x))
    for _ in range(n):
        before = (slice(None),) * normal_axis(axis, a.ndim, "diff", a._node.shape)
        a = getitem(a, (*before, slice(1, None))) - getitem(a, (*before, slice(None, -1)))
    return a


def getitem(x: Any, key: Any) -> Array:
    """Basic indexing with constants: integers, slices, None and `...`; and one index per row, x[np.arange(n), labels]."""
    node = whole(x)
    items = list(key) if isinstance(key, tuple) else [key]
    if any(_is_array_index(i) for i in items):
        from .gather import pick_rows  # late: it is written in terms of this module

        return pick_rows(Array(node), items)
    consuming = sum(i is not None and i is not Ellipsis for i in items)
    if consuming > node.ndim or sum(i is Ellipsis for i in items) > 1:
        raise ShapeError(f"index: too many indices for shape {show_shape(node.shape)}" + here())
    where = next((p for p, i in enumerate(items) if i is Ellipsis), None)
    if where is None:
        items.append(Ellipsis)
        where = len(items) - 1
    items[where : where + 1] = [slice(None)] * (node.ndim - consuming)
    steps: list[int | Slice] = []
    dims: list[int | None] = []  # of the indexed array, before None inserts dimensions
    sizes: list[Size] = []
    for item in items:
        if item is None:
            dims.append(None)
            continue
        size = node.shape[len(steps)]
        step, new = _item(item, size, len(steps), node.shape)
        steps.append(step)
        if new is not None:
            dims.append(len(sizes))
            sizes.append(new)
    plain = all(isinstance(s, Slice) and s.written == (None, None, None) for s in steps)
    cut = node if plain else graph.index(node, tuple(steps), tuple(sizes))
    return _view(graph.relabel(cut, tuple(dims), tuple(1 if d is None else sizes[d] for d in dims)), node)


def _is_array_index(item: Any) -> bool:
    return isinstance(item, (Array, list)) or (hasattr(item, "shape") and hasattr(item, "dtype") and getattr(item, "ndim", 0) > 0)


def _item(item: Any, size: Size, d: int, shape: Shape) -> tuple[int | Slice, Size | None]:
    if isinstance(item, slice):
        ends = [
            None if isinstance(e, Unknown) and e.size == size and i == 1 else e for i, e in enumerate((item.start, item.stop, item.step))
        ]
        start, stop, step = (None if e is None else _constant(e) for e in ends)
        if isinstance(size, int) and step in (None, 1) and (start or 0) == 0 and (stop is None or stop >= size):
            start = stop = step = None
        new, cut = graph.sliced_size(size, slice(start, stop, None if step == 1 else step))
        return cut, new
    if isinstance(item, (bool, np.bool_)):
        raise TraceError("index by a boolean: the result's shape would depend on values; use np.where" + here())
    i = _constant(item)
    if isinstance(size, int):
        if not -size <= i < size:
            raise ShapeError(f"index {i} is out of range for dimension {d} of shape {show_shape(shape)}" + here())
        i %= size
    return i, None


def _constant(value: Any) -> int:
    try:
        return int(value.__index__())
    except AttributeError:
        raise TraceError(f"index: only constant integers and slices can be traced, not {type(value).__name__}" + here()) from None
