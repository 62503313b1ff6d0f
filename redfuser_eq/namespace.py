"""The array API namespace (2023.12) of traced arrays, under NumPy's names as well."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from . import graph
from .array import Array
from .contractions import dot, einsum, inner, matmul, matvec, outer, tensordot, vecdot, vecmat
from .elementwise import (
    abs_,
    add,
    astype,
    bitwise_and,
    bitwise_invert,
    bitwise_or,
    bitwise_xor,
    ceil,
    clip,
    conj,
    cos,
    divide,
    equal,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fmax,
    fmin,
    greater,
    greater_equal,
    isfinite,
    isinf,
    isnan,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    multiply,
    nan_to_num,
    negative,
    not_equal,
    positive,
    power,
    real,
    reciprocal,
    remainder,
    round_,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
    trunc,
    where,
    whole,
    xlogy,
)
from .errors import TraceError
from .gather import arange, take, take_along_axis, tril, triu
from .location import here
from .manipulation import (
    atleast_1d,
    atleast_2d,
    broadcast_arrays,
    broadcast_to,
    concatenate,
    diff,
    expand_dims,
    flip,
    getitem,
    hstack,
    matrix_transpose,
    moveaxis,
    ravel,
    repeat,
    reshape,
    split,
    squeeze,
    stack,
    swapaxes,
    tile,
    transpose,
    unstack,
    vstack,
)
from .promotion import numpy_dtype, promoted
from .reductions import all_, any_, argmax, argmin, average, count_nonzero, max_, mean, min_, norm, prod, ptp, std, sum_, top_k, var
from .sizes import size_of

__all__ = [
    "add", "arange",
    "argmax",
    "argmin",
    "asarray",
    "astype",
    "atleast_1d",
    "atleast_2d",
    "average",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_arrays",
    "broadcast_to",
    "ceil",
    "clip",
    "concat",
    "concatenate",
    "conj",
    "cos",
    "count_nonzero",
    "diff",
    "divide",
    "dot",
    "einsum",
    "equal",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "flip",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "full",
    "full_like",
    "getitem",
    "greater",
    "greater_equal",
    "hstack",
    "inner",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "matvec",
    "maximum",
    "mean",
    "minimum",
    "moveaxis",
    "multiply",
    "nan_to_num",
    "negative",
    "norm",
    "not_equal",
    "ones",
    "ones_like",
    "outer",
    "permute_dims",
    "positive",
    "pow",
    "power",
    "prod",
    "ptp",
    "ravel",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "swapaxes",
    "take",
    "take_along_axis",
    "tanh",
    "tensordot",
    "tile",
    "top_k",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unstack",
    "var",
    "vecdot",
    "vecmat",
    "vstack",
    "where",
    "xlogy",
    "zeros",
    "zeros_like",
]  # fmt: skip

e, pi, inf, nan, newaxis = math.e, math.pi, math.inf, math.nan, None
bool, int8, int16, int32, int64 = np.bool_, np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64 = np.float16, np.float32, np.float64
finfo, iinfo, isdtype, can_cast = np.finfo, np.iinfo, np.isdtype, np.can_cast

abs, pow, round = abs_, power, round_
sum, max, min, any, all = sum_, max_, min_, any_, all_
concat, permute_dims = concatenate, transpose

_INSTEAD = {
    "sort": "use rf.top_k for the best k",
    "argsort": "use rf.top_k for the best k and their positions",
    "partition": "use rf.top_k",
    "argpartition": "use rf.top_k",
    "median": "it needs sorted data; use rf.top_k for order statistics",
    "quantile": "it needs sorted data; use rf.top_k for order statistics",
    "percentile": "it needs sorted data; use rf.top_k for order statistics",
    "cumsum": "a running value is no reduction; reduce over the whole axis, or compute it outside the traced function",
    "cumprod": "a running value is no reduction; reduce over the whole axis, or compute it outside the traced function",
    "cumulative_sum": "a running value is no reduction; reduce over the whole axis, or compute it outside the traced function",
    "nonzero": "the number of results would depend on values; use np.where(c, x, y)",
    "unique": "the number of results would depend on values",
    "diagonal": "mask with rf.arange: np.where(i[:, None] == i, x, 0)",
    "trace": "mask with rf.arange: np.sum(np.where(i[:, None] == i, x, 0))",
    "array_equal": "compare the results outside the traced function",
    "allclose": "compare the results outside the traced function",
    "isclose": "compare the results outside the traced function",
    "roll": "join two slices with np.concatenate",
    "pad": "join with np.concatenate, or mask with np.where",
    "array": "use the traced array itself, or np.stack of traced arrays",
}


def refuse_operation(name: str) -> TraceError:
    """The error for an operation that cannot be traced, with what to do instead where that is known."""
    remedy = _INSTEAD.get(name, "write it with the operations of redfuser_eq.namespace, or compute it outside the traced function")
    return TraceError(f"{name} cannot be traced: {remedy}" + here())


def _refused(name: str) -> Any:
    def f(*args: Any, **kwargs: Any) -> Any:
        raise refuse_operation(name)

    return f


sort, argsort, partition, argpartition = _refused("sort"), _refused("argsort"), _refused("partition"), _refused("argpartition")
cumsum, cumprod, nonzero, diagonal = _refused("cumsum"), _refused("cumprod"), _refused("nonzero"), _refused("diagonal")
trace, searchsorted = _refused("trace"), _refused("searchsorted")


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _refused(name)


def asarray(x: Any, dtype: Any = None, *, device: Any = None, copy: Any = None) -> Array:
    """A traced array of anything that is an array or a number."""
    a = Array(whole(x))
    return a if dtype is None else astype(a, dtype)


def full(shape: Any, value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    sizes = tuple(size_of(s, "full") for s in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    a = asarray(value, dtype)
    return Array(graph.broadcast(a._node, sizes))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    return full(shape, 0, dtype=dtype or np.float64)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    return full(shape, 1, dtype=dtype or np.float64)


def full_like(x: Any, value: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Array:
    node = whole(x)
    return full(node.shape if shape is None else shape, value, dtype=dtype or node.dtype)


def zeros_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Array:
    return full_like(x, 0, dtype, shape)


def ones_like(x: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Array:
    return full_like(x, 1, dtype, shape)


def result_type(*operands: Any) -> np.dtype[Any]:
    """`np.result_type` of traced arrays, dtypes and numbers."""
    kinds = [
        o.dtype if hasattr(o, "dtype") else type(o) if isinstance(o, (builtins.bool, int, float)) else numpy_dtype(o) for o in operands
    ]
    return promoted(*kinds)


def linear_algebra(name: str) -> Any:
    """The function of `numpy.linalg` or the array API's `linalg` of this name, or None."""
    return {
        "norm": norm,
        "vector_norm": _vector_norm,
        "matmul": matmul,
        "outer": outer,
        "tensordot": tensordot,
        "vecdot": vecdot,
        "matrix_transpose": matrix_transpose,
    }.get(name)


def _vector_norm(x: Any, axis: Any = None, keepdims: builtins.bool = False, ord: float = 2) -> Array:
    return norm(ravel(x) if axis is None else x, ord, axis, keepdims)


class _Linalg:
    """`xp.linalg`."""

    def __getattr__(self, name: str) -> Any:
        return linear_algebra(name) or _refused(f"linalg.{name}")


linalg = _Linalg()
