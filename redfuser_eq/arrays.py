"""Array libraries: NumPy, torch and CuPy arrays in, the same kind out, without copies.

One small adapter a library, chosen by the array's module; none is imported before one of its arrays is met.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from .errors import BackendError, DTypeError


class Library(Protocol):
    """name; device: "cpu" or "cuda"; `take`: the arrays as NumPy (or CuPy) views of the same memory;
    `give`: results back in the library's own kind."""

    name: str
    device: str

    def take(self, array: Any) -> Any: ...
    def give(self, array: Any, like: Any) -> Any: ...


class _NumPy:
    name, device = "numpy", "cpu"

    def take(self, array: Any) -> Any:
        return np.asarray(array)

    def give(self, array: Any, like: Any) -> Any:
        return array


class _CuPy:
    name, device = "cupy", "cuda"

    def take(self, array: Any) -> Any:
        return array

    def give(self, array: Any, like: Any) -> Any:
        return array


_BITS = {"bfloat16": ("int16", ml_dtypes.bfloat16), "float8_e4m3fn": ("int8", ml_dtypes.float8_e4m3fn), "float8_e5m2": ("int8", ml_dtypes.float8_e5m2)}


class _Torch:
    """CPU tensors; dtypes that NumPy lacks travel as integers of their width."""

    name, device = "torch", "cpu"

    def take(self, array: Any) -> Any:
        if array.requires_grad:
            raise DTypeError("optimize: a torch tensor requires grad, but kernels are not differentiable; pass tensor.detach()")
        bits = _BITS.get(str(array.dtype).removeprefix("torch."))
        if bits is None:
            return array.numpy()
        import torch

        return array.view(getattr(torch, bits[0])).numpy().view(bits[1])

    def give(self, array: Any, like: Any) -> Any:
        import torch

        for name, (bits, dtype) in _BITS.items():
            if array.dtype == dtype:
                return torch.from_numpy(array.view(bits)).view(getattr(torch, name))
        return torch.from_numpy(array)


class _TorchCuda:
    name, device = "torch", "cuda"

    def take(self, array: Any) -> Any:
        import cupy

        return cupy.from_dlpack(array.detach())

    def give(self, array: Any, like: Any) -> Any:
        import torch

        return torch.from_dlpack(array)


NUMPY: Library = _NumPy()
_CUPY: Library = _CuPy()
_TORCH: Library = _Torch()
_TORCH_CUDA: Library = _TorchCuda()


def library(arrays: Sequence[Any]) -> Library:
    """The library of a call's arrays; NumPy arrays and scalars may accompany any other."""
    found: dict[str, Library] = {}
    for a in arrays:
        if isinstance(a, np.ndarray):
            continue
        root = type(a).__module__.partition(".")[0]
        if root == "torch" and "torch" in sys.modules:
            lib = _TORCH if a.device.type == "cpu" else _TORCH_CUDA if a.device.type == "cuda" else None
            if lib is None:
                raise BackendError(f"optimize: torch device {a.device} is not supported; move the tensor to cpu or cuda")
        elif root == "cupy":
            lib = _CUPY
        else:
            lib = NUMPY
        found[f"{lib.name}:{lib.device}"] = lib
    kinds = {k: v for k, v in found.items() if v is not NUMPY}
    if len(kinds) > 1:
        raise BackendError(f"optimize: arguments are of several kinds ({sorted(kinds)}); convert them to one")
    return next(iter(kinds.values()), NUMPY)
