"""As much of CuPy as the package uses, over the emulator: `install` puts it in CuPy's place.

Arrays lie in emulated device memory, kernels run on the CPU under the emulator's checks, and everything on the device's side of
the interface refuses what CuPy refuses: host arrays, wrong grids, shared memory that was not asked for. A "cubin" is the source
with the name of its architecture.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from emulator import EmulatedDevice, Schedule
from emulator.device import Buffer, EmulatorError, encode_map

from redfuser_eq.runtime import cuda_cupy, tensor_map


class CUDARuntimeError(RuntimeError):
    pass


class NVRTCError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Memory:
    """A pool's allocation, given back when nothing refers to it."""

    def __init__(self, device: EmulatedDevice, nbytes: int):
        self.device, self.buffer = device, device.alloc(nbytes)

    def __del__(self) -> None:
        self.device.free(self.buffer)


class MemoryPointer:
    def __init__(self, mem: Memory, offset: int):
        self.mem, self.offset, self.ptr, self.device_id = mem, offset, mem.buffer.address + offset, 0

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        self.mem.buffer.bytes[self.offset : self.offset + size] = value

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        source = src.mem.buffer.bytes[src.offset : src.offset + size]
        self.mem.buffer.bytes[self.offset : self.offset + size] = source


class Event:
    """Time is the host's, as all work is done when a call returns."""

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        return None


class ndarray:
    """host: the array's memory as NumPy sees it."""

    def __init__(self, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None, strides: Any = None):
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.data = memptr or MemoryPointer(Memory(CURRENT.device, max(1, nbytes)), 0)
        self.host = np.ndarray(shape, dtype, self.data.mem.buffer.bytes, self.data.offset, strides)
        self.shape, self.strides, self.dtype = self.host.shape, self.host.strides, self.host.dtype
        self.size, self.itemsize, self.ndim, self.nbytes = self.host.size, self.host.itemsize, self.host.ndim, self.host.nbytes
        self.flags, self.device = self.host.flags, types.SimpleNamespace(id=0)

    def _view(self, host: np.ndarray) -> ndarray:
        offset = host.ctypes.data - self.data.mem.buffer.address if host.size else 0
        return ndarray(host.shape, host.dtype, MemoryPointer(self.data.mem, offset), host.strides)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, index: Any) -> ndarray:
        found = self.host[index] if isinstance(index, tuple) and Ellipsis in index else self.host[(*_tuple(index), ...)]
        assert np.shares_memory(found, self.host) or not found.size
        return self._view(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        assert not isinstance(value, np.ndarray), "CuPy refuses host arrays"
        self.host[index] = value.host if isinstance(value, ndarray) else value

    def reshape(self, *shape: Any) -> ndarray:
        made = self.host.reshape(*shape)
        return self._view(made) if np.shares_memory(made, self.host) or not made.size else asarray(made)

    def transpose(self, *axes: int) -> ndarray:
        return self._view(self.host.transpose(*axes))

    def view(self, dtype: Any) -> ndarray:
        return self._view(self.host.view(dtype))

    def copy(self) -> ndarray:
        return asarray(self.host)

    def get(self) -> np.ndarray:
        return self.host.copy()

    def set(self, values: np.ndarray) -> None:
        assert values.shape == self.shape and values.dtype == self.dtype
        self.host[...] = values


ndarray.__module__ = "cupy"


def _tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def asarray(values: Any) -> ndarray:
    """A row-major copy on the device."""
    values = np.asarray(values)
    made = ndarray(values.shape, values.dtype)
    made.host[...] = values
    return made


def like(values: np.ndarray) -> ndarray:
    """A copy on the device with the same strides."""
    ends = [s * (n - 1) for n, s in zip(values.shape, values.strides, strict=True)] if values.size else []
    low, high = sum(min(0, e) for e in ends), sum(max(0, e) for e in ends) + values.itemsize
    memory = Memory(CURRENT.device, max(1, high - low))
    made = ndarray(values.shape, values.dtype, MemoryPointer(memory, -low), values.strides)
    made.host[...] = values
    return made


def _by_value(a: Any) -> Any:
    """CuPy passes the bytes of host arrays of size one, as records of a custom dtype are."""
    return a.tobytes() if isinstance(a, np.ndarray) and a.size == 1 else a


def encode_tiled(
    room: int, kind: int, rank: int, address: int, shape: Any, strides: Any, box: Any, steps: Any, interleave: int, swizzle: int,
    promote: int, fill: int,
) -> int:  # fmt: skip
    """The driver's cuTensorMapEncodeTiled, with the emulator's maps."""
    if room % 64 or not CURRENT.maps or interleave or fill or list(steps) != [1] * rank:
        return 1  # CUDA_ERROR_INVALID_VALUE
    element = {0: 1, 1: 2, 2: 4, 11: 4}[kind]
    try:
        made = encode_map(address, element, list(shape), [element, *strides], list(box), (0, 32, 64, 128)[swizzle], kind == 11)
    except ValueError:
        return 1
    ctypes.memmove(room, made, len(made))
    CURRENT.encoded += 1
    return 0


class Kernel:
    """A RawKernel: arrays and NumPy scalars as arguments, blocks of at most what the device has."""

    def __init__(self, function: Any):
        self._function = function

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_dynamic_shared_size_bytes":
            self._function.max_dynamic_shared_size_bytes = value
        object.__setattr__(self, name, value)

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
        if not CURRENT.running:
            return
        given = [np.uint64(a.data.ptr) if isinstance(a, ndarray) else _by_value(a) for a in args]
        with CURRENT.lock:  # the emulator runs one launch at a time
            CURRENT.log.append((self._function.name, grid, block, shared_mem))
            CURRENT.device.launch(self._function, grid, block, shared_mem, given)


class RawModule:
    def __init__(self, *, path: str):
        with open(path, encoding="utf-8") as f:
            arch, _, text = f.read().partition("\n")
        self.module = CURRENT.modules.get((arch, text))
        if self.module is None:
            assert arch == CURRENT.device.arch, "a cubin of another architecture does not load"
            self.module = CURRENT.modules[arch, text] = CURRENT.device.compile(text)

    def get_function(self, name: str) -> Kernel:
        return Kernel(self.module.get_function(name))


class Current:
    """The emulated device, what was launched, and failures that a test wants. running: false, and launches do nothing. maps: false,
    and the driver encodes no tensor maps. encoded: how many it did."""

    def __init__(self) -> None:
        self.device = EmulatedDevice()
        self.modules: dict[Any, Any] = {}
        self.lock = threading.Lock()
        self.reset()

    def reset(self, arch: str = "sm_80", schedule: Schedule | None = None, multiprocessors: int = 4) -> None:
        self.device = EmulatedDevice(arch, schedule or Schedule(), multiprocessors)
        self.log: list[tuple[Any, ...]] = []
        self.running = self.maps = True
        self.encoded = 0
        self.devices: Any = 1
        self.room = 1 << 40
        self.properties = {
            "name": b"Emulated",
            "major": int(self.device.arch[3:].rstrip("a")) // 10,
            "minor": int(self.device.arch[3:].rstrip("a")) % 10,
            "multiProcessorCount": multiprocessors,
            "sharedMemPerBlockOptin": (163 if arch == "sm_80" else 227) << 10,
            "l2CacheSize": 1 << 20,
        }

    def count(self) -> int:
        if isinstance(self.devices, Exception):
            raise self.devices
        return int(self.devices)

    def alloc(self, nbytes: int) -> MemoryPointer:
        if nbytes > self.room:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        return MemoryPointer(Memory(self.device, nbytes), 0)


CURRENT = Current()


class _Nvrtc:
    """createProgram and what follows it."""

    NVRTCError = NVRTCError

    def __init__(self) -> None:
        self.programs: dict[int, list[Any]] = {}
        self.numbers = itertools.count()

    def getVersion(self) -> tuple[int, int]:
        return 13, 0

    def createProgram(self, src: str, name: str, headers: Sequence[str], include_names: Sequence[str]) -> int:
        number = next(self.numbers)
        self.programs[number] = [src, ""]
        return number

    def compileProgram(self, prog: int, options: Sequence[str]) -> None:
        from emulator.nvrtc import CompileError, compile_source

        arch = options[0].partition("=")[2]
        source = self.programs[prog][0]
        try:
            compile_source(source, arch, tuple(o for o in options[1:] if "--std" not in o))
        except CompileError as error:
            self.programs[prog][1] = str(error)
            raise NVRTCError("NVRTC_ERROR_COMPILATION") from error
        self.programs[prog] = [f"{arch}\n{source}", ""]

    def getCUBIN(self, prog: int) -> bytes:
        return str(self.programs[prog][0]).encode()

    def getProgramLog(self, prog: int) -> str:
        return str(self.programs[prog][1])

    def destroyProgram(self, prog: int) -> None:
        self.programs[prog] = ["", ""]


class _Device:
    def __init__(self, index: int):
        assert index == 0

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def module() -> Any:
    """The module that stands for CuPy."""
    cupy = types.ModuleType("cupy")
    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDevice=lambda: CURRENT.count() * 0,
        getDeviceCount=lambda: CURRENT.count(),
        getDeviceProperties=lambda index: CURRENT.properties,
    )
    memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda = types.SimpleNamespace(runtime=runtime, nvrtc=_Nvrtc(), memory=memory, alloc=lambda n: CURRENT.alloc(n), Device=_Device)
    vars(cuda).update(Event=Event, get_elapsed_time=lambda a, b: 1e3 * (b.time - a.time))
    vars(cupy).update(ndarray=ndarray, RawModule=RawModule, cuda=cuda, ascontiguousarray=lambda a: asarray(a.host), asarray=asarray)
    return cupy


def forget() -> None:
    """Drop what the package knows about devices."""
    cuda_cupy._devices.clear()
    cuda_cupy.build.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Current:
    """Put it in CuPy's place for a test. options: see `Current.reset`."""
    CURRENT.reset(**options)
    forget()
    monkeypatch.setitem(sys.modules, "cupy", module())
    monkeypatch.setattr(tensor_map, "driver", lambda: encode_tiled)
    return CURRENT


__all__ = ["Buffer", "EmulatorError", "asarray", "forget", "install", "like", "ndarray"]
