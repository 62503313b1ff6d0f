"""Dtypes: which are known, and NumPy's promotion rules (NumPy 2: Python scalars are weak).

NumPy's own resolvers decide. They know nothing of the small float formats of ml_dtypes beside a Python
scalar (bfloat16 + 1.0 would be float32), so there the weak scalar simply takes the other operands' dtype.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from .errors import DTypeError
from .location import here

DType = np.dtype[Any]
Operand = DType | type  # a type (bool, int, float) is a weak Python scalar

BOOL, INT64, FLOAT32, FLOAT64 = np.dtype(bool), np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.float64)
_LIKE_SQRT = frozenset({"recip", "rsqrt", "erf"})


def numpy_dtype(dtype: Any, what: str = "dtype") -> DType:
    """The NumPy (or ml_dtypes) dtype of any library's dtype, by name where NumPy does not know the object."""
    try:
        out: DType = np.dtype(dtype)
    except TypeError:
        name = str(dtype).rpartition(".")[2]
        try:
            out = np.dtype(getattr(ml_dtypes, name, name))
        except TypeError:
            raise DTypeError(f"{what}: {dtype!r} is no dtype that NumPy or ml_dtypes knows" + here()) from None
    if out.kind == "c":
        raise DTypeError(f"{what}: {out} has no meaning here; pass x.real and x.imag as arrays of their own" + here())
    if out.itemsize > 8 or not (out.kind in "biuf" or is_small_float(out)):
        raise DTypeError(f"{what}: {out} has no meaning here; use a boolean, integer or real floating dtype" + here())
    return out.newbyteorder("=")


@cache
def is_small_float(dtype: DType) -> bool:
    """One of ml_dtypes' floating formats."""
    return dtype.kind == "V" and dtype.type.__module__ == "ml_dtypes" and "float" in dtype.name


def is_float(dtype: DType) -> bool:
    return dtype.kind == "f" or is_small_float(dtype)


def promoted(*operands: Operand, what: str = "the operands") -> DType:
    """`np.result_type` of dtypes and weak scalars."""
    strong = [d for d in operands if isinstance(d, np.dtype)]
    weak: list[Any] = [t(0) for t in operands if isinstance(t, type)]
    if any(is_small_float(d) for d in strong):
        weak = []
    try:
        return np.dtype(np.result_type(*strong, *weak))
    except TypeError:
        names = " and ".join(dict.fromkeys(str(d) for d in strong))
        raise DTypeError(f"{what}: {names} have no common dtype; cast one of them with astype" + here()) from None


@lru_cache(maxsize=4096)
def loop(op: str, operands: tuple[Operand, ...]) -> tuple[DType, DType]:
    """(dtype the operands are converted to, dtype of the result) of an elementwise operation of `ops.OPS`."""
    ufunc = np.sqrt if op in _LIKE_SQRT else getattr(np, _UFUNC.get(op, op))
    operands = tuple(BOOL if t is bool else t for t in operands)  # Python's booleans are not weak
    strong = [d for d in operands if isinstance(d, np.dtype)]
    if any(is_small_float(d) for d in strong):
        one = promoted(*strong, what=op)
        operands = (one,) * len(operands)
    elif not strong:
        operands = tuple(np.dtype(t) for t in operands)
    try:
        *inputs, out = ufunc.resolve_dtypes((*operands, None))
    except TypeError:
        names = ", ".join(t.__name__ if isinstance(t, type) else str(t) for t in operands)
        raise DTypeError(f"{op} is not defined for {names}; cast with astype" + here()) from None
    return inputs[0], out


_UFUNC = {
    "sub": "subtract",
    "mul": "multiply",
    "div": "true_divide",
    "neg": "negative",
    "round": "rint",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
}


def accumulated(op: str, dtype: DType) -> DType:
    """The dtype of NumPy's sum and prod."""
    if op in ("sum", "prod") and dtype.kind in "biu":
        return np.dtype(np.uint64) if dtype.kind == "u" else INT64
    return dtype
