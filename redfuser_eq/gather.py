"""One index per row, and triangles: positions compared with `arange`, never data-dependent addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import graph
from .array import Array
from .elementwise import add, equal, less, less_equal, positions, where, whole
from .errors import ShapeError, TraceError
from .graph import Node, normal_axis, show_shape
from .location import here
from .manipulation import expand_dims, getitem, size_as_int, squeeze, transpose
from .promotion import INT64, numpy_dtype
from .reductions import sum_
from .sizes import Size, Unknown, size_of

_REMEDY = (
    "only one index per row can be traced (np.take_along_axis with an index of size 1 along the axis, or x[np.arange(n), labels]); "
    "gather before the call, or pass the gathered array"
)


def arange(start: Any, stop: Any = None, step: int = 1, dtype: Any = None) -> Array:
    """Positions start, start + step, ... below stop, as a traced array of int64."""
    if stop is None:
        start, stop = 0, start
    if isinstance(stop, Unknown):
        if start != 0 or step != 1:
            raise ShapeError("arange to a symbolic extent starts at 0 and counts by 1" + here())
        size: Size = size_of(stop, "arange")
    else:
        if not all(isinstance(v, (int, np.integer)) for v in (start, stop, step)):
            raise TraceError("arange: start, stop and step must be integers" + here())
        size = len(range(int(start), int(stop), int(step)))
    return Array(positions(size, int(start), int(step), INT64 if dtype is None else numpy_dtype(dtype, "arange")))


def along(size: Size, axis: int, ndim: int) -> Array:
    """The positions along one dimension of an array with ndim dimensions."""
    return Array(
        graph.relabel(
            graph.iota(size), tuple(0 if d == axis else None for d in range(ndim)), tuple(size if d == axis else 1 for d in range(ndim))
        )
    )


def pick(x: Array, index: Array, axis: int) -> Array:
    """x at one index per row along an axis: sum_k where(k == index, x, 0). index has size 1 there; negative ones count from the end."""
    node = x._node
    if index.dtype.kind not in "iu":
        raise TraceError(f"an index must be of integers, not {index.dtype}" + here())
    if index.dtype.kind == "i":
        size = size_as_int(node.shape[axis], "indexing with signed labels")
        index = where(less(index, 0), add(index, size), index)
    zero = graph.const(0, node.dtype)
    chosen = where(equal(along(node.shape[axis], axis, node.ndim), index), x, Array(zero))
    return sum_(chosen, axis, dtype=node.dtype, keepdims=True)


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Array:
    """`numpy.take_along_axis` with one index per row: `indices` has size 1 along the axis."""
    node, index = whole(x), whole(indices)
    if axis is None:
        node, axis = graph.reshape(node, (graph.element_count(node.shape),)), 0
    d = normal_axis(axis, node.ndim, "take_along_axis", node.shape)
    if index.ndim != node.ndim:
        raise ShapeError(f"take_along_axis: shapes {show_shape(node.shape)} and {show_shape(index.shape)} differ in dimensions" + here())
    if index.shape[d] != 1:
        raise TraceError(f"take_along_axis with {index.shape[d]} indices per row: {_REMEDY}" + here())
    return pick(Array(node), Array(index), d)


def take(x: Any, indices: Any, axis: int | None = None, **_: Any) -> Array:
    """`numpy.take` with a constant integer."""
    if isinstance(indices, (int, np.integer)):
        node = whole(x) if axis is not None else graph.reshape(whole(x), (graph.element_count(whole(x).shape),))
        return getitem(Array(node), (*(slice(None),) * normal_axis(axis or 0, node.ndim, "take", node.shape), indices))
    raise TraceError(f"take: {_REMEDY}" + here())


def pick_rows(x: Array, items: Sequence[Any]) -> Array:
    """x[rows, labels] where every index but one runs through its whole dimension."""
    node = x._node
    if any(i is None or i is Ellipsis or isinstance(i, slice) for i in items) or len(items) != node.ndim:
        raise TraceError(f"index by an array: {_REMEDY}" + here())
    arrays = [whole(i) for i in items]
    if any(a.dtype.kind not in "iu" for a in arrays):
        raise TraceError("index by a boolean array: the result's shape would depend on values; use np.where" + here())
    shape = graph.broadcast_shapes([a.shape for a in arrays], "index")
    runs = [_runs_along(a, len(shape), size) for a, size in zip(arrays, node.shape, strict=True)]
    free = [d for d in range(len(shape)) if d not in runs and shape[d] == 1]
    for p, size in enumerate(node.shape):
        if runs[p] is None and size == 1 and free and runs.count(None) > 1:
            runs[p] = free.pop(0)
    labels = [p for p, d in enumerate(runs) if d is None]
    if len(labels) != 1 or sorted(d for d in runs if d is not None) != list(range(len(shape))):
        raise TraceError(f"index by arrays: {_REMEDY}" + here())
    (p,) = labels
    order = [runs.index(d) for d in range(len(shape))]
    rows = transpose(x, (*order, p))
    index = expand_dims(Array(graph.broadcast(arrays[p], shape)), -1)
    return squeeze(pick(rows, index, len(shape)), -1)


def _runs_along(index: Node, ndim: int, size: Size) -> int | None:
    """The dimension of the broadcast shape that an index array counts through from 0, if it does."""
    shift = ndim - index.ndim
    if index.op == "relabel" and index.args[0].op == "iota":
        (d,) = [d for d, of in enumerate(index.attrs) if of == 0]
        return shift + d if index.shape[d] == size else None
    return shift if index.op == "iota" and index.shape[0] == size else None


def triangle(x: Any, k: int, lower: bool) -> Array:
    """tril and triu: where(column <= row + k, x, 0), or its complement."""
    node = whole(x)
    if node.ndim < 2:
        raise ShapeError(f"tril, triu: shape {show_shape(node.shape)} has fewer than two dimensions" + here())
    row, column = (along(node.shape[d], d, node.ndim) for d in (node.ndim - 2, node.ndim - 1))
    inside = less_equal(column, row + k if k else row) if lower else less_equal(row + k if k else row, column)
    return where(inside, Array(node), Array(graph.const(0, node.dtype)))


def tril(x: Any, k: int = 0) -> Array:
    """`numpy.tril`."""
    return triangle(x, k, True)


def triu(x: Any, k: int = 0) -> Array:
    """`numpy.triu`."""
    return triangle(x, k, False)
