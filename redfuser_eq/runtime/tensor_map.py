"""Tensor maps: what the copy engine of compute capability 9.0 is told of an array, as the driver encodes it.

CuPy has no call for it, so the driver's library is called directly. A map is an array of one record, which CuPy passes by value.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cuda_copies import ALIGNED
from ..errors import BackendError

RECORD = np.dtype({"names": ["opaque"], "formats": [(np.uint64, (16,))]})
_TYPES = {1: 0, 2: 1, 4: 2}  # CU_TENSOR_MAP_DATA_TYPE_UINT8, _UINT16, _UINT32: copies look no further
_TF32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: floats are rounded to tf32, to nearest even
_SWIZZLES = (0, 32, 64, 128)  # CU_TENSOR_MAP_SWIZZLE_NONE, _32B, _64B, _128B
_PROMOTE_128 = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


class NoMap(BackendError):
    """The driver makes no such map; the copy can be done without."""


@functools.cache
def driver() -> Any:
    """The driver's `cuTensorMapEncodeTiled`, or None where the driver has none (before CUDA 12.0) or there is no driver."""
    try:
        encode = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None
    number, address = ctypes.c_uint32, ctypes.c_void_p
    encode.argtypes = [address, number, number, address, address, address, address, address, number, number, number, number]
    encode.restype = ctypes.c_int
    return encode


def tensor_map(
    address: int,
    element: int,
    shape: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int = 128,
    rounded: bool = False,
) -> np.ndarray[Any, Any]:
    """A map of boxes in an array, with zeros past its ends.

    element: bytes of one. shape, strides (in bytes), box: by dimension, the contiguous one first. swizzle: bytes, or 0. rounded:
    float32 elements arrive as the nearest tf32 ones. Raises NoMap where the driver refuses."""
    encode = driver()
    if encode is None:
        raise NoMap("target='cuda': the NVIDIA driver has no cuTensorMapEncodeTiled; install one of CUDA 12 or newer")
    steps = _steps(shape, strides)
    room = np.zeros(24, np.uint64)
    start = -room.ctypes.data % 64 // 8
    record = room[start : start + 16]
    rank, size = len(shape), ctypes.c_uint64 * len(shape)
    count, rest = ctypes.c_uint32 * rank, ctypes.c_uint64 * (rank - 1)
    kind = _TF32 if rounded else _TYPES[element]
    status = encode(
        record.ctypes.data, kind, rank, address, size(*shape), rest(*steps[1:]), count(*box), count(*[1] * rank),
        0, _SWIZZLES.index(swizzle), _PROMOTE_128, 0,
    )  # fmt: skip
    if status:
        raise NoMap(
            f"target='cuda': the driver makes no tensor map (status {status}) for shape {tuple(shape)}, strides {tuple(steps)} and boxes "
            f"of {tuple(box)} at address {address:#x}"
        )
    made: np.ndarray[Any, Any] = record.view(RECORD)
    return made


def _steps(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The strides; where an axis has one element, and its stride means nothing, one that the driver takes."""
    out = [strides[0]]
    for n, s in zip(shape[1:], strides[1:], strict=True):
        out.append(ALIGNED if n == 1 else s)
    return out
