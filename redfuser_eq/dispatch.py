"""NumPy's dispatch protocols: which traced function each ufunc and function of NumPy stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import namespace
from .array import Array
from .errors import TraceError
from .location import here

_UFUNC_NAMES = {
    "true_divide": "divide",
    "absolute": "abs",
    "fabs": "abs",
    "rint": "round",
    "mod": "remainder",
    "invert": "bitwise_invert",
    "conjugate": "conj",
    "expit": "sigmoid",
    "float_power": "pow",
}
_UFUNC_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
# Functions that read an array's shape or dtype only, or that the namespace has under another name.
_FUNCTION_NAMES = {
    "amax": "max",
    "amin": "min",
    "around": "round",
    "round_": "round",
    "fix": "trunc",
    "row_stack": "vstack",
    "array_split": "split",
    "vdot": "vecdot",
    "copy": "positive",
    "empty_like": "zeros_like",
}
_KNOWN = frozenset(namespace.__all__) | {"abs", "sum", "max", "min", "any", "all", "round"}


def ufunc(f: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A NumPy (or SciPy) ufunc on traced arrays."""
    name = _UFUNC_NAMES.get(f.__name__, f.__name__)
    if method == "__call__":
        if name not in _KNOWN:
            raise namespace.refuse_operation(f.__name__)
        return getattr(namespace, name)(*inputs, **kwargs)
    if method == "reduce" and name in _UFUNC_REDUCTIONS:
        kwargs.setdefault("axis", 0)
        return getattr(namespace, _UFUNC_REDUCTIONS[name])(*inputs, **{k: v for k, v in kwargs.items() if v is not np._NoValue})
    if method == "outer" and len(inputs) == 2:
        a, b = (namespace.asarray(i) for i in inputs)
        wide = namespace.reshape(a, a._node.shape + (1,) * b.ndim)
        return getattr(namespace, name)(wide, b, **kwargs)
    raise TraceError(f"{f.__name__}.{method} cannot be traced" + here())


def function(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A NumPy function on traced arrays."""
    name = f.__name__
    if (f.__module__ or "").endswith("linalg"):
        found = namespace.linear_algebra(name)
        if found is None:
            raise namespace.refuse_operation(f"linalg.{name}")
        return found(*args, **kwargs)
    if name in _SHAPES:
        return _SHAPES[name](*args, **kwargs)
    name = _FUNCTION_NAMES.get(name, name)
    if name not in _KNOWN:
        raise namespace.refuse_operation(f.__name__)
    return getattr(namespace, name)(*args, **{k: v for k, v in kwargs.items() if v is not np._NoValue})


def _size(x: Array, axis: int | None = None) -> Any:
    return x.size if axis is None else x.shape[axis]


_SHAPES: dict[str, Callable[..., Any]] = {
    "shape": lambda x: x.shape,
    "ndim": lambda x: x.ndim,
    "size": _size,
    "iscomplexobj": lambda x: False,
    "isrealobj": lambda x: True,
}
