"""Reductions of traced arrays, with NumPy's arguments, dtypes and conventions.

mean is sum / count and var the two-pass sum((x - mean)**2) / (count - ddof): what fusing makes of them is
the business of the laws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import graph
from .array import Array
from .elementwise import abs_, apply_array, finish, lift, refuse, sqrt, square, truth, where, whole
from .errors import ShapeError, TraceError
from .graph import Node, normal_axes, show_shape
from .location import here
from .ops import MONOIDS
from .promotion import BOOL, FLOAT32, FLOAT64, INT64, DType, accumulated, is_float, numpy_dtype

_NAMES = {"max": "maximum", "min": "minimum"}
_ON_BOOLS = {"max": "any", "min": "all"}
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def _reduction(op: str) -> Callable[..., Array]:
    def f(
        x: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
        **options: Any,
    ) -> Array:
        refuse(op, options)
        node = whole(x)
        if where is not True:
            node = _masked(op, node, where, initial)
        node = graph.cast(node, numpy_dtype(dtype, op) if dtype is not None else accumulated(op, node.dtype))
        result = Array(_reduced(op, node, normal_axes(axis, node, op), keepdims, initial))
        if initial is not None and not _is_identity(op, initial):
            result = apply_array(_COMBINE[op], result, initial)
        return finish(result, out, op)

    f.__name__ = op
    f.__doc__ = f"`numpy.{op}`."
    return f


def _reduced(op: str, x: Node, axes: tuple[int, ...], keepdims: bool, initial: Any = None) -> Node:
    empty = any(x.shape[a] == 0 for a in axes)
    if empty and not MONOIDS[op].empty_ok:
        if initial is None:
            raise ShapeError(
                f"{op}: zero-size array to reduction operation {_NAMES.get(op, op)} which has no identity "
                f"(shape {show_shape(x.shape)}, axis {axes}); give initial=" + here()
            )
        return graph.broadcast(graph.const(initial, x.dtype), graph.without(x.shape, axes, keepdims))
    if not axes:
        return x
    op = _ON_BOOLS.get(op, op) if x.dtype == BOOL else op
    return graph.reduce(op, x, axes, keepdims, x.dtype)


def _is_identity(op: str, initial: Any) -> bool:
    return bool(MONOIDS[op].identity == initial)


def _masked(op: str, x: Node, mask: Any, initial: Any) -> Node:
    """NumPy's where=: elements outside the mask count as the identity."""
    if op in ("max", "min") and initial is None:
        raise TraceError(f"{op}: where= needs initial=, as in NumPy" + here())
    neutral = initial if op in ("max", "min") else MONOIDS[op].identity
    return where(mask, Array(x), neutral)._node if is_float(x.dtype) else where(mask, Array(x), int(neutral))._node


sum_, prod, max_, min_ = _reduction("sum"), _reduction("prod"), _reduction("max"), _reduction("min")


def _logical(op: str) -> Callable[..., Array]:
    def f(x: Any, axis: Any = None, out: Any = None, keepdims: bool = False, **options: Any) -> Array:
        refuse(op, options)
        node = truth(lift(x))
        axes = normal_axes(axis, node, op)
        return finish(Array(graph.reduce(op, node, axes, keepdims, BOOL) if axes else node), out, op)

    f.__name__ = op
    f.__doc__ = f"`numpy.{op}`."
    return f


any_, all_ = _logical("any"), _logical("all")


def _position(op: str) -> Callable[..., Array]:
    def f(x: Any, axis: Any = None, out: Any = None, *, keepdims: bool = False) -> Array:
        node = whole(x)
        kept: tuple[Any, ...] = tuple(1 for _ in node.shape) if axis is None else ()
        if axis is None:
            node = graph.reshape(node, (graph.element_count(node.shape),))
        axes = normal_axes(0 if axis is None else axis, node, op)
        if len(axes) != 1:
            raise TraceError(f"{op} takes one axis or None, not {axis!r}" + here())
        if node.shape[axes[0]] == 0:
            raise ShapeError(f"{op}: attempt to get {op} of an empty sequence (shape {show_shape(node.shape)})" + here())
        out_node = graph.reduce(op, node, axes, keepdims and not kept, INT64)
        if keepdims and kept:
            out_node = graph.relabel(out_node, tuple(None for _ in kept), kept)
        return finish(Array(out_node), out, op)

    f.__name__ = op
    f.__doc__ = f"`numpy.{op}`: the first position of the best value; NaN wins."
    return f


argmax, argmin = _position("argmax"), _position("argmin")


def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    return sum_(Array(truth(lift(x))), axis, keepdims=keepdims)


def _count(x: Node, axes: tuple[int, ...], dtype: DType, result: Node) -> Array:
    """Elements along axes, as a reduction named like the one it divides."""
    live = tuple(a for a in axes if x.shape[a] != 1)
    wide = FLOAT32 if is_float(dtype) and dtype.itemsize < 4 else dtype
    return Array(graph.count(x, live, wide, result.shape) if live else graph.const(1, wide))


def _mean_dtype(node: Node, dtype: Any, what: str) -> DType:
    if dtype is not None:
        return numpy_dtype(dtype, what)
    return node.dtype if is_float(node.dtype) else FLOAT64


def _divided(total: Array, count: Array) -> Array:
    return Array(graph.elementwise("div", (total._node, count._node), total.dtype))


def mean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, **options: Any) -> Array:
    """`numpy.mean`: sum / count."""
    refuse("mean", options)
    node = whole(x)
    node = graph.cast(node, _mean_dtype(node, dtype, "mean"))
    axes = normal_axes(axis, node, "mean")
    total = _reduced("sum", node, axes, keepdims)
    return finish(_divided(Array(total), _count(node, axes, node.dtype, total)), out, "mean")


def var(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    mean: Any = None,
    **options: Any,
) -> Array:
    """`numpy.var`, by its definition: the mean of squared distances from the mean. ddof (correction) is subtracted from the count."""
    refuse("var", options)
    node = whole(x)
    node = graph.cast(node, _mean_dtype(node, dtype, "var"))
    axes = normal_axes(axis, node, "var")
    centre = _average(node, axes) if mean is None else mean
    total = _reduced("sum", square(Array(node) - centre)._node, axes, keepdims)
    count = _count(node, axes, node.dtype, total)
    off = ddof if correction is None else correction
    return finish(_divided(Array(total), count - off if off else count), out, "var")


def _average(node: Node, axes: tuple[int, ...]) -> Array:
    total = _reduced("sum", node, axes, True)
    return _divided(Array(total), _count(node, axes, node.dtype, total))


def std(
    x: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
    mean: Any = None,
    **options: Any,
) -> Array:
    """`numpy.std`: the square root of `var`."""
    return finish(sqrt(var(x, axis, dtype, None, ddof, keepdims, correction=correction, mean=mean, **options)), out, "std")


def ptp(x: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Array:
    return finish(max_(x, axis, keepdims=keepdims) - min_(x, axis, keepdims=keepdims), out, "ptp")


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """`numpy.average`: the weighted mean sum(w * x) / sum(w). weights: of x's shape, or along one axis."""
    if weights is None:
        if returned:
            raise TraceError("average: returned=True needs weights" + here())
        return mean(x, axis, keepdims=keepdims)
    node, w = whole(x), whole(weights)
    if w.ndim == 1 and node.ndim != 1 and axis is not None:
        (d,) = normal_axes(axis, node, "average")
        w = graph.relabel(
            w, tuple(0 if i == d else None for i in range(node.ndim)), tuple(w.shape[0] if i == d else 1 for i in range(node.ndim))
        )
    weight = Array(graph.broadcast(w, node.shape))
    scale = sum_(weight, axis, keepdims=keepdims)
    result = sum_(Array(node) * weight, axis, keepdims=keepdims) / scale
    return (result, scale) if returned else result


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """`numpy.linalg.norm` of vectors (ord None, 2, 1, inf, -inf) and the Frobenius norm."""
    a = Array(whole(x))
    vector = (axis is not None and not isinstance(axis, (tuple, list))) or a.ndim == 1
    if ord is None or (ord == 2 and vector) or (ord == "fro" and not vector):
        return sqrt(sum_(square(a), axis, keepdims=keepdims))
    if vector and ord in (1, math.inf, -math.inf):
        f = {1: sum_, math.inf: max_, -math.inf: min_}[ord]
        return f(abs_(a), axis, keepdims=keepdims)
    raise TraceError(f"norm: ord={ord!r} over axis {axis!r} cannot be traced; write it out with sum and abs" + here())


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Array, Array]:
    """The k largest values along an axis, best first, and their positions. Ties go to the lowest position."""
    node = whole(x)
    a = graph.normal_axis(axis, node.ndim, "top_k", node.shape)
    size = node.shape[a]
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or k < 1:
        raise ShapeError(f"top_k: k must be a positive integer, not {k!r}" + here())
    if isinstance(size, int) and k > size:
        raise ShapeError(f"top_k: k = {k} is more than the {size} elements along axis {axis} of shape {show_shape(node.shape)}" + here())
    return Array(graph.top("top_values", node, a, int(k))), Array(graph.top("top_indices", node, a, int(k)))
