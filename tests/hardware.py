"""Kernels of test sources on a real device, called as the emulator's are, so that one test can hold both to one expectation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from redfuser_eq.runtime import cuda_cupy

_SCALARS = {"int": np.int32, "unsigned": np.uint32, "u32": np.uint32, "float": np.float32, "double": np.float64}
_SCALARS |= {"i64": np.int64, "long": np.int64, "u64": np.uint64}


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
    """A kernel that takes arrays (copied in and out) and numbers of its parameters' types."""

    def __init__(self, module: Module, name: str):
        self.device, self.function = module.device, module.raw.get_function(name)
        head = re.search(rf"\b{name}\s*\((.*?)\)\s*\{{", module.source, re.S)
        assert head is not None
        self.parameters = [re.findall(r"\w+", p)[-2] if "*" not in p else "*" for p in head[1].split(",")]

    def launch(self, grid: Sequence[int], block: Sequence[int], shared: int, args: Sequence[Any], schedule: Any = None) -> None:
        """schedule is the hardware's own."""
        given, arrays = [], []
        for kind, a in zip(self.parameters, args, strict=True):
            if isinstance(a, np.ndarray):
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
