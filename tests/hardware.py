"""Kernels of test sources on a real device, called as the emulator's are, so that one test can hold both to one expectation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from redfuser_eq.runtime import cuda_cupy, tensor_map

_SCALARS = {"int": np.int32, "unsigned": np.uint32, "u32": np.uint32, "float": np.float32, "double": np.float64}
_SCALARS |= {"i64": np.int64, "long": np.int64, "u64": np.uint64}


class Buffer:
    """What `emulator.Buffer` is: memory of the device, with its bytes on the host before and after a launch."""

    def __init__(self, nbytes: int, name: str = ""):
        self.nbytes, self.bytes = nbytes, np.full(nbytes, 0xFF, np.uint8)
        self.array = cuda_cupy.current().empty((nbytes,), np.dtype(np.uint8))
        self.address = int(self.array.data.ptr)

    def view(self, dtype: Any, shape: Any = -1) -> Any:
        return self.bytes.view(dtype).reshape(shape)


def mapped(
    buffer: Buffer, shape: Sequence[int], element: int, box: Sequence[int], swizzle: int = 0, strides: Any = None, rounded: bool = False
) -> Any:
    """What `emulator.device.tensor_map` is: the slowest dimension first."""
    steps = strides or [element * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tensor_map.tensor_map(buffer.address, element, shape[::-1], steps[::-1], box[::-1], swizzle, rounded)


class Module:
    """What `emulator.Module` is, through CuPy. The source is compiled for the device at hand, whatever architecture is named."""

    def __init__(self, source: str, arch: str = ""):
        device = cuda_cupy.current()
        self.source, self.device = source, device
        self.raw = device.cupy.RawModule(path=str(cuda_cupy.build(source, device.gpu.arch)))

    def kernel(self, name: str) -> Kernel:
        return Kernel(self, name)

    get_function = kernel


class Kernel:
    """A kernel that takes arrays (copied in and out), numbers of its parameters' types, and tensor maps of buffers."""

    def __init__(self, module: Module, name: str):
        self.device, self.function = module.device, module.raw.get_function(name)
        head = re.search(rf"\b{name}\s*\((.*?)\)\s*\{{", module.source, re.S)
        assert head is not None
        self.parameters = [re.findall(r"\w+", p)[-2] if "*" not in p else "*" for p in head[1].split(",")]

    def launch(
        self, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[Any], schedule: Any = None, buffers: Any = ()
    ) -> None:
        """schedule is the hardware's own. buffers: what the maps describe."""
        given, arrays = [], [(b.bytes, b.array) for b in buffers]
        for b in buffers:
            self.device.write(b.array, b.bytes)
        for kind, a in zip(self.parameters, args, strict=True):
            if kind == "TensorMap":
                given.append(a)
            elif isinstance(a, np.ndarray):
                copy = self.device.empty((a.nbytes,), np.dtype(np.uint8))
                self.device.write(copy, a.reshape(-1).view(np.uint8))
                arrays.append((a, copy))
                given.append(copy)
            else:
                given.append(_SCALARS[kind](a))
        if shared > cuda_cupy.UNASKED:
            self.function.max_dynamic_shared_size_bytes = shared
        self.device.launch(self.function, tuple(grid), tuple(block), shared, tuple(given))
        for a, copy in arrays:
            if a.flags.writeable:
                a.reshape(-1).view(np.uint8)[:] = self.device.to_host(copy)


def stand_in(monkeypatch: Any, tests: Any) -> None:
    """Put the device in the emulator's place in a module of tests."""
    monkeypatch.setattr(tests, "Module", Module)
    monkeypatch.setattr(tests, "Buffer", Buffer)
    monkeypatch.setattr(tests, "tensor_map", mapped)
    monkeypatch.setattr(tests, "_assemble", lambda *_: None)
