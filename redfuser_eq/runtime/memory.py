"""Where arrays lie in memory, and whether results may be written into given ones piece by piece."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def _field(a: Any) -> Any:
    """The data field of the array object, which follows the object's head (numpy/ndarraytypes.h)."""
    return ctypes.c_void_p.from_address(id(a) + _HEAD).value


def _attribute(a: Any) -> Any:
    return a.ctypes.data


_HEAD = object.__basicsize__
_probe = np.arange(3)[1:]
# reading the field takes a fifth of the attribute's time, which is most of what a call costs
address = _field if sys.implementation.name == "cpython" and _field(_probe) == _attribute(_probe) else _attribute


def pointer(a: Any) -> int:
    """The address of a NumPy or CuPy array."""
    return int(address(a) or 0) if isinstance(a, np.ndarray) else int(a.data.ptr)


def in_place(a: Any) -> bool:
    """Whether a kernel can write each element where it is: strides of whole elements, one place for each, native bytes."""
    size = a.itemsize
    return a.dtype.isnative and all(s and not s % size for s in a.strides)


def overlaps(given: Sequence[Any], out: Sequence[Any], start: Callable[[Any], int] = address) -> bool:
    """Whether writing into `out` piece by piece could disturb an input, another output or itself, or is not possible. `start`
    gives an array's address; only bounds are compared."""
    spans = [_span(a, start) for a in given]
    for a in out:
        if not in_place(a):
            return True
        first, end = _span(a, start)
        if any(first < e and f < end for f, e in spans):
            return True
        spans.append((first, end))
    return False


def _span(a: Any, start: Callable[[Any], int]) -> tuple[int, int]:
    """The first byte of an array, and the one past its last."""
    first = start(a)
    if a.flags.c_contiguous or not a.size:
        return first, first + a.nbytes
    steps = [s * (n - 1) for n, s in zip(a.shape, a.strides, strict=True)]
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + a.itemsize
