"""The functions people expect and NumPy lacks, as thin compositions of array code.

None of them is a node of its own: the laws see the maximum, the exponentials and the sums. They work on
traced arrays and on NumPy arrays (or arrays that follow NumPy's protocols) alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import elementwise, gather, reductions
from .array import is_traced, tracing
from .errors import ShapeError
from .location import here
from .ops import OPS
from .promotion import numpy_dtype
from .sizes import Extent, Unknown

__all__ = [
    "arange",
    "cast",
    "causal_mask",
    "cross_entropy",
    "entropy",
    "erf",
    "gelu",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "silu",
    "softmax",
    "top_k",
    "window_mask",
    "xlogy",
]


def softmax(x: Any, axis: Any = -1) -> Any:
    """exp(x - max) / sum(exp(x - max)) along an axis (or a tuple of axes). Shape and dtype of x.

    A row of -inf, or one that holds +inf or NaN, gives NaN, as the written-out formula does.
    """
    e = np.exp(x - _peak(x, axis))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: Any = -1) -> Any:
    """log(softmax(x)) without taking the logarithm of a small number. Shape and dtype of x."""
    shifted = x - _peak(x, axis)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: Any, axis: Any = -1, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) along an axis (or a tuple of axes), without overflow.

    Unlike the written-out formula it gives -inf for a row of -inf (and for an empty one) and +inf for a row
    that holds +inf. NaN stays NaN.
    """
    peak = _peak(x, axis)
    total = np.sum(np.exp(x - peak), axis=axis, keepdims=True)
    out = np.where(np.isfinite(peak), np.log(total) + peak, peak)
    return out if keepdims else np.squeeze(out, axis=axis)


def _peak(x: Any, axis: Any) -> Any:
    """The maximum with its dimensions kept; -inf where there are no elements."""
    start: dict[str, Any] = {"initial": -math.inf} if _empty(x, axis) else {}
    return np.max(x, axis=axis, keepdims=True, **start)


def _empty(x: Any, axis: Any) -> bool:
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    # an axis out of range is left to the maximum, whose error says what and where
    return any(x.shape[a] == 0 for a in axes if -x.ndim <= a < x.ndim)


def entropy(x: Any, axis: int = -1) -> Any:
    """-sum(p * log(p)) of p = softmax(x) along an axis, in nats. x = -inf, of probability 0, contributes 0
    (written out it would be NaN). The result lacks the axis."""
    peak = _peak(x, axis)
    e = np.exp(x - peak)
    total = np.sum(e, axis=axis)
    finite = np.where(x == -math.inf, 0, x)  # exp(-inf) * -inf would be NaN
    return np.log(total) - np.sum(e * (finite - peak), axis=axis) / total


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, axis: Any = -1) -> Any:
    """(x - mean) / sqrt(var + eps) * weight + bias along an axis; weight and bias broadcast, or are None."""
    centred = x - np.mean(x, axis=axis, keepdims=True)
    out = centred / np.sqrt(np.mean(np.square(centred), axis=axis, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6, axis: Any = -1) -> Any:
    """x / sqrt(mean(x**2) + eps) * weight along an axis; weight broadcasts, or is None."""
    out = x / np.sqrt(np.mean(np.square(x), axis=axis, keepdims=True) + eps)
    return out if weight is None else out * weight


def cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    """logsumexp(logits) - logits[label] along an axis: one loss for each row, in nats.

    labels: integers of the shape of logits without the axis; negative ones count from the end, as in NumPy.
    """
    picked = np.take_along_axis(logits, np.expand_dims(labels, axis), axis=axis)
    return logsumexp(logits, axis) - np.squeeze(picked, axis=axis)


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Any, Any]:
    """The k largest elements along an axis, best first, and their positions (int64).

    Equal elements come lowest position first; NaN counts as the largest. Raises ShapeError unless
    1 <= k <= the size of the axis.
    """
    if is_traced(x):
        return reductions.top_k(x, k, axis)
    x = np.asarray(x)
    if not 1 <= k <= x.shape[axis]:
        raise ShapeError(f"top_k: k = {k} does not lie in 1 ... {x.shape[axis]}, the size of axis {axis} of shape {x.shape}" + here())
    # Ascending and stable over the reversed row, read backwards: descending, lowest position first.
    order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    best = np.take(order, np.arange(k), axis=axis)
    return np.take_along_axis(x, best, axis=axis), best.astype(np.int64)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return elementwise.rsqrt(x) if is_traced(x) else 1 / np.sqrt(x)


def erf(x: Any) -> Any:
    """The error function."""
    return elementwise.erf(x) if is_traced(x) else OPS["erf"].numpy(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):  # exp(-x) = inf is the right way to 0
        return 1 / (1 + np.exp(-x))


def silu(x: Any) -> Any:
    """x * sigmoid(x), also called swish."""
    return x * sigmoid(x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x * (1 + erf(x / sqrt(2))) / 2, or with approximate="tanh" its usual approximation."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + np.tanh(inner))
    if approximate != "none":
        raise ValueError(f'gelu: approximate is "none" or "tanh", not {approximate!r}')
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def xlogy(x: Any, y: Any) -> Any:
    """x * log(y), and 0 where x is 0 and y is not NaN."""
    if is_traced(x) or is_traced(y):
        return elementwise.xlogy(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((np.asarray(x) == 0) & ~np.isnan(y), 0, x * np.log(y))


def cast(x: Any, dtype: Any) -> Any:
    """x converted to a dtype, given as a NumPy or ml_dtypes dtype or by its name ("bfloat16", "float8_e4m3fn")."""
    return x.astype(numpy_dtype(dtype, "cast"))


def arange(start: Any, stop: Any = None, step: int = 1, dtype: Any = None) -> Any:
    """Positions, as `np.arange` of integers: symbolic while a function is traced or from a traced array's
    shape, so that masks made of them are recognised; a NumPy array otherwise."""
    bounds = (start, stop, step)
    if tracing.get() or any(isinstance(b, (Extent, Unknown)) for b in bounds):
        return gather.arange(start, stop, step, dtype)
    return np.arange(*((0, start, step) if stop is None else bounds), dtype=dtype or np.int64)


def causal_mask(rows: Any, columns: Any = None) -> Any:
    """(rows, columns) booleans: True where a query may see a key, the last query seeing every key.

    Use it as `np.where(causal_mask(s.shape[-2], s.shape[-1]), s, -np.inf)`. columns: rows unless given.
    """
    queries, keys = _positions(rows, rows if columns is None else columns)
    return keys <= queries


def window_mask(rows: Any, columns: Any = None, left: int = 0, right: int = 0) -> Any:
    """(rows, columns) booleans: True where a key is at most `left` before and `right` after its query."""
    queries, keys = _positions(rows, rows if columns is None else columns)
    return np.logical_and(keys >= queries - left, keys <= queries + right)


def _positions(rows: Any, columns: Any) -> tuple[Any, Any]:
    """Positions of queries as a column and of keys as a row, aligned at their ends."""
    if isinstance(rows, Unknown) or isinstance(columns, Unknown):
        if rows != columns:
            raise ShapeError(f"a mask of symbolic sizes {rows} and {columns} that may differ; give them as integers" + here())
        shift = 0
    else:
        shift = int(columns) - int(rows)
    queries = arange(rows)[:, None]
    return (queries + shift if shift else queries), arange(columns)[None, :]
