"""The signature of a call: a hashable key of all that tracing depends on, and the arrays in parameter order.

Of an array that is its kind, shape, dtype and device; of any other value, itself. This runs at every call, so the
plain cases come first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .array import Array
from .arrays import is_cupy, is_tensor
from .errors import DTypeError, TraceError
from .tree import is_array

_PLAIN = frozenset((int, bool, str, type(None)))


class TracedArgument(Exception):
    """A call with traced arrays: it belongs to the trace of another function."""


def signature(args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any]) -> Any:
    """The key of call arguments; their arrays are appended to `arrays`, NumPy ones as base-class arrays.

    Raises TracedArgument for traced arrays, DTypeError for kinds of arrays whose arithmetic is not NumPy's, and
    TraceError for a value that cannot be part of a key.
    """
    key: list[Any] = []
    for x in args:
        if type(x) is np.ndarray:
            arrays.append(x)
            key.append(x.shape)
            key.append(x.dtype)
        else:
            key.append(_key(x, arrays))
    if kwargs:
        key.append((dict, *((k, _key(v, arrays)) for k, v in kwargs.items())))
    return tuple(key)


def _key(x: Any, arrays: list[Any]) -> Any:
    kind = type(x)
    if kind in _PLAIN:
        return (kind, x)
    if kind is np.ndarray:
        arrays.append(x)
        return (x.shape, x.dtype)
    if is_cupy(x):
        arrays.append(x)
        return (kind, x.shape, x.dtype, x.data.device_id)
    if is_tensor(x):
        arrays.append(x)
        return (kind, x.shape, x.dtype, x.device)
    if isinstance(x, dict):
        return (kind, *((k, _key(v, arrays)) for k, v in x.items()))
    if isinstance(x, (tuple, list)):
        return (kind, *(_key(v, arrays) for v in x))
    if isinstance(x, Array):
        raise TracedArgument
    if is_array(x):
        return _array_key(x, arrays)
    if isinstance(x, (float, np.floating)):
        return (kind, repr(x))  # tells 0.0 from -0.0, and one NaN is like another
    try:
        hash(x)
    except TypeError:
        raise TraceError(
            f"an argument of type {kind.__name__} is neither an array, a container of arrays nor hashable, so a change in it would "
            "go unnoticed; pass its arrays as arguments, or close over it"
        ) from None
    return (kind, x)


def _array_key(x: Any, arrays: list[Any]) -> Any:
    if isinstance(x, np.ndarray):
        x = base_array(x)
        arrays.append(x)
        return (x.shape, x.dtype)
    arrays.append(x)
    return (type(x), tuple(x.shape), x.dtype, str(getattr(x, "device", "")))


def base_array(x: Any) -> Any:
    """A subclass of ndarray as the base class, where that keeps its meaning."""
    kind = type(x)
    if isinstance(x, np.matrix):
        raise DTypeError("an argument is an np.matrix, whose * is a matrix product; pass np.asarray(x)")
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError("an argument is a masked array, and masks are not followed; pass x.filled(value), or the data and the mask")
    if kind.__array_ufunc__ is not np.ndarray.__array_ufunc__ or kind.__array_function__ is not np.ndarray.__array_function__:
        raise DTypeError(f"an argument is a {kind.__name__}, which has arithmetic of its own; pass np.asarray(x)")
    return np.asarray(x)
