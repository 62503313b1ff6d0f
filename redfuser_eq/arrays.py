"""Array libraries: NumPy, torch and CuPy arrays in, the same kind out, without copies.

One small adapter a library, chosen by the array's module; none is imported before one of its arrays is met.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from .errors import BackendError, DTypeError


class Library(Protocol):
    """name; device: "cpu" or "cuda"; `take`: an array as a NumPy (or CuPy) view of the same memory;
    `give`: a result back in the library's own kind."""

    name: str
    device: str

    def take(self, array: Any) -> Any: ...
    def give(self, array: Any) -> Any: ...


class _NumPy:
    name, device = "numpy", "cpu"

    def take(self, array: Any) -> Any:
        return np.asarray(array)

    def give(self, array: Any) -> Any:
        return array


def uploaded(array: Any) -> Any:
    """A host array's copy on the current CUDA device."""
    return sys.modules["cupy"].asarray(array)


class _CuPy:
    name, device = "cupy", "cuda"

    def take(self, array: Any) -> Any:
        return array

    def give(self, array: Any) -> Any:
        return array


# floating formats that NumPy lacks: torch and ml_dtypes give them the same names
_SMALL = tuple(np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"))


def _detached(tensor: Any) -> Any:
    """A tensor that requires grad, without its history. Raises DTypeError where gradients would silently stop."""
    import torch

    if torch.is_grad_enabled():
        raise DTypeError(
            "optimize: a torch tensor requires grad, but the kernels are not differentiable; "
            "pass tensor.detach(), or call inside torch.no_grad()"
        )
    return tensor.detach()


class _Torch:
    """CPU tensors; floats that NumPy lacks travel as integers of their width."""

    name, device = "torch", "cpu"

    def __init__(self) -> None:
        self._to: dict[Any, tuple[Any, Any]] = {}
        self._from: dict[Any, tuple[Any, Any]] = {}

    def _tables(self) -> None:
        """Small floats by torch dtype and by NumPy dtype: the integer to travel as, and the dtype on the other side."""
        import torch

        for small in _SMALL:
            tensor, wide = getattr(torch, small.name), small.itemsize == 2
            self._to[tensor] = (torch.int16 if wide else torch.int8, small)
            self._from[small] = (np.int16 if wide else np.int8, tensor)

    def take(self, array: Any) -> Any:
        if array.requires_grad:
            array = _detached(array)
        if not self._to:
            self._tables()
        small = self._to.get(array.dtype)
        return self._view(array) if small is None else self._view(array.view(small[0])).view(small[1])

    def give(self, array: Any) -> Any:
        if not self._from:
            self._tables()
        small = self._from.get(array.dtype)
        return self._tensor(array) if small is None else self._tensor(array.view(small[0])).view(small[1])

    def _view(self, tensor: Any) -> Any:
        return tensor.numpy()

    def _tensor(self, array: Any) -> Any:
        return sys.modules["torch"].from_numpy(array)


class _Stream:
    """A CUDA stream by number, in the protocol that libraries exchange streams by."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


class _TorchCuda(_Torch):
    """CUDA tensors as CuPy arrays, by DLPack."""

    device = "cuda"

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Torch's current stream as CuPy's, so that a call's work joins the queue of the caller's."""
        import cupy
        import torch

        number = torch.cuda.current_stream().cuda_stream
        streams = cupy.cuda
        known = hasattr(streams.Stream, "from_external")
        with streams.Stream.from_external(_Stream(number)) if known else streams.ExternalStream(number):
            yield

    def _view(self, tensor: Any) -> Any:
        import cupy

        return cupy.from_dlpack(tensor)

    def _tensor(self, array: Any) -> Any:
        return sys.modules["torch"].from_dlpack(array)


NUMPY: Library = _NumPy()
_CUPY: Library = _CuPy()
_TORCH: Library = _Torch()
TORCH_CUDA: Library = _TorchCuda()


def library_of(array: Any) -> Library:
    """The library of one array. Other kinds with a shape and a dtype are known by those alone: `check_kinds` refuses
    them where values are needed."""
    if isinstance(array, np.ndarray):
        return NUMPY
    if is_cupy(array):
        return _CUPY
    if is_tensor(array):
        if array.device.type not in ("cpu", "cuda"):
            raise BackendError(f"optimize: torch device {array.device} is not supported; move the tensor to cpu or cuda")
        return _TORCH if array.device.type == "cpu" else TORCH_CUDA
    return NUMPY


def is_cupy(array: Any) -> bool:
    """Whether an array is CuPy's, without importing CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def is_tensor(array: Any) -> bool:
    """Whether an array is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def library(arrays: Sequence[Any], captured: Sequence[Any] = ()) -> Library:
    """The library of a call's arrays; NumPy arrays may accompany CPU tensors, and captured ones any arrays.

    Raises BackendError for arrays of several kinds or devices."""
    found = {f"{lib.name} on {lib.device}": lib for lib in map(library_of, arrays)}
    found |= {f"{lib.name} on {lib.device}": lib for lib in map(library_of, captured) if lib is not NUMPY or not arrays}
    others = [lib for lib in found.values() if lib is not NUMPY]
    if len(others) > 1 or (others and others[0].device != "cpu" and len(found) > 1):
        raise BackendError(f"optimize: arguments are of several kinds ({', '.join(sorted(found))}); convert them to one")
    return others[0] if others else NUMPY


def check_kinds(arrays: Sequence[Any]) -> None:
    """Raises BackendError for arrays of a library without an adapter."""
    for a in arrays:
        if library_of(a) is NUMPY and not isinstance(a, np.ndarray):
            kind = f"{type(a).__module__}.{type(a).__qualname__}"
            raise BackendError(f"optimize: an argument is a {kind}; pass NumPy or CuPy arrays or torch tensors, as in np.asarray(x)")
