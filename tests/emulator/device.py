"""CUDA modules, kernels and a device whose launches run on the CPU."""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .build import build, runtime
from .translate import SHARED_START

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")  # what CuPy's RawModule adds
GUARD = 1 << 16  # unregistered bytes on both sides of a buffer
DEFAULT_DYNAMIC_LIMIT = 48 << 10
BUDGET = 1 << 32  # backward branches of a launch
_SHARED_LIMITS = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}  # KiB a block
_ORDERS = ("asc", "desc", "pct")


class EmulatorError(RuntimeError):
    """A launch did what no correct kernel does; the message names kernel, block, thread, source line and the fault."""


@dataclass(frozen=True)
class Schedule:
    """The order in which blocks and threads run, and when asynchronous copies land.

    order: "asc", "desc" (strict by index) or "pct" (random priorities of warps that change at random points, after
    Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs", 2010).
    lazy: copies land only when their wait demands it, and mbarrier.try_wait fails once; otherwise they land at once.
    """

    order: str = "asc"
    lazy: bool = True
    seed: int = 0


SCHEDULES = (
    *(Schedule(order, lazy) for order in ("asc", "desc") for lazy in (True, False)),
    *(Schedule("pct", seed % 2 == 0, seed) for seed in range(4)),
)


class Buffer:
    """Device memory: guarded on both sides, full of NaN until it is written. address: as a kernel sees it."""

    def __init__(self, nbytes: int, name: str = "a buffer"):
        self.nbytes, self.name = nbytes, name
        self._memory = np.empty(nbytes + 2 * GUARD, np.uint8)
        base = self._memory.ctypes.data
        start = -(-(base + GUARD // 2) // 256) * 256 - base
        self.bytes = self._memory[start : start + nbytes]
        self.bytes[:] = 0xFF
        self.address: int = base + start

    def view(self, dtype: Any, shape: tuple[int, ...] | int = -1) -> np.ndarray:
        """The memory as an array that shares it."""
        typed: np.ndarray = self.bytes.view(dtype)
        return typed.reshape(shape)


def tensor_map(
    buffer: Buffer,
    shape: Sequence[int],
    element: int,
    box: Sequence[int],
    swizzle: int = 0,
    strides: Sequence[int] | None = None,
    rounded: bool = False,
) -> bytes:
    """The argument that stands for a CUtensorMap: a tiled view of a row-major tensor (slowest dimension first).

    element: bytes of an element. box: elements a copy moves in each dimension. swizzle: 0, 32, 64 or 128 bytes. strides: bytes
    per dimension. rounded: floats become tf32. Raises ValueError where cuTensorMapEncodeTiled would fail.
    """
    steps = list(reversed(strides or [element * math.prod(shape[i + 1 :]) for i in range(len(shape))]))
    return encode_map(buffer.address, element, shape[::-1], steps, box[::-1], swizzle, rounded)


def encode_map(
    address: int, element: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int = 128, rounded: bool = False
) -> bytes:
    """The same at an address, the contiguous dimension first, all strides in bytes."""
    rank, inner = len(shape), box[0] * element
    sizes = (not rounded or element == 4) and all(1 <= n <= 1 << 32 for n in shape) and all(1 <= b <= 256 for b in box) and 1 <= rank <= 5
    steps = strides[0] == element and all(s % 16 == 0 and 0 <= s < 1 << 40 for s in strides[1:])
    if not sizes or not steps or inner % 16 or (swizzle and inner > swizzle) or address % 16 or not rank == len(strides) == len(box):
        raise ValueError(f"no tensor map for shape {shape}, strides {strides}, box {box}, swizzle {swizzle} at {address:#x}")
    ones = [1] * (5 - rank)
    numbers = (*shape, *ones, *strides, *ones, *box, *ones, (0, 32, 64, 128).index(swizzle))
    return struct.pack("<QQII5Q5Q5II", 0x70616D726F736E65, address, rank | rounded << 16, element, *numbers)


class _Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class _Range(ctypes.Structure):
    _fields_ = [("low", ctypes.c_ulonglong), ("high", ctypes.c_ulonglong), ("name", ctypes.c_char_p)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared_bytes", ctypes.c_uint),
        ("dynamic_bytes", ctypes.c_uint),
        ("shared", ctypes.POINTER(_Range)),
        ("shared_count", ctypes.c_int),
        ("globals", ctypes.POINTER(_Range)),
        ("global_count", ctypes.c_int),
        ("sites", ctypes.c_void_p),
        ("site_count", ctypes.c_int),
        ("order", ctypes.c_int),
        ("lazy", ctypes.c_int),
        ("flush", ctypes.c_int),
        ("seed", ctypes.c_ulonglong),
        ("budget", ctypes.c_longlong),
        ("error", ctypes.c_char_p),
        ("error_bytes", ctypes.c_int),
    ]


class Module:
    """A CUDA source compiled for an architecture, its kernels ready to run on the CPU.

    sanitize: build for ThreadSanitizer; the process must have been started for it (see sanitize.py), by default if it was.
    Raises CompileError (NVRTC rejects the source) and PtxError (an instruction is unknown to the emulator).
    """

    def __init__(self, source: str, arch: str = "sm_80", options: Sequence[str] = CUPY_OPTIONS, sanitize: bool | None = None):
        wanted = "EMULATOR_SANITIZE" in os.environ if sanitize is None else sanitize
        runtime()
        library, about = build(source, arch, tuple(options), wanted)
        self.arch, self.about = arch, about
        self.flush = "-ftz=true" in options or "--use_fast_math" in options
        self.library = ctypes.CDLL(str(library))

    def get_function(self, name: str) -> Kernel:
        """The kernel of a name, as CuPy's RawModule has it."""
        kernels: Any = self.about["kernels"]
        if name not in kernels:
            raise KeyError(f"no kernel {name!r}; there are {sorted(kernels)}")
        return Kernel(self, name)

    kernel = get_function

    def variables(self) -> list[tuple[int, int, str]]:
        """Address, size and name of the module's own global and constant arrays."""
        sizes: Any = self.about["globals"]
        return [(ctypes.c_void_p.in_dll(self.library, f"global_{n}").value or 0, size, n) for n, size in sizes.items()]


class Kernel:
    """A kernel of a module. max_dynamic_shared_size_bytes: must be raised for more than 48 KiB, as with CuPy."""

    def __init__(self, module: Module, name: str):
        kernels: Any = module.about["kernels"]
        self.module, self.name = module, name
        self.sizes, self.max_threads = kernels[name]
        self.max_dynamic_shared_size_bytes = DEFAULT_DYNAMIC_LIMIT

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        args: Sequence[Any],
        schedule: Schedule = Schedule(),
        buffers: Sequence[Buffer] = (),
    ) -> None:
        """Runs the grid. Arrays are device pointers, copied in and out; ints and floats take their parameter's type.

        args may also hold Buffers, NumPy scalars (of exactly the parameter's size) and bytes (structures by value).
        buffers: further memory that the kernel may reach through pointers. Raises EmulatorError for any fault.
        """
        copies = [(a, Buffer(a.nbytes, f"argument {i}")) for i, a in enumerate(args) if isinstance(a, np.ndarray)]
        for array, buffer in copies:
            if not array.flags.c_contiguous:
                raise ValueError("kernel arguments must be C-contiguous arrays")
            buffer.bytes[:] = array.reshape(-1).view(np.uint8)
        known = iter(copies)
        given = [next(known)[1] if isinstance(a, np.ndarray) else a for a in args]
        run(self, grid, block, shared_bytes, given, schedule, [*buffers, *(b for _, b in copies)])
        for array, buffer in copies:
            if array.flags.writeable:
                array.reshape(-1).view(np.uint8)[:] = buffer.bytes


def run(
    kernel: Kernel,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    args: Sequence[Any],
    schedule: Schedule,
    buffers: Sequence[Buffer],
) -> None:
    """One launch over buffers. Raises EmulatorError for any fault, ValueError for arguments that do not fit."""
    _check_shape(kernel, grid, block, shared_bytes)
    if len(args) != len(kernel.sizes):
        raise ValueError(f"kernel {kernel.name} takes {len(kernel.sizes)} arguments, {len(args)} given")
    packed = [ctypes.create_string_buffer(_pack(a, n, i), n) for i, (a, n) in enumerate(zip(args, kernel.sizes, strict=True))]
    pointers = (ctypes.c_void_p * max(len(packed), 1))(*map(ctypes.addressof, packed))
    module = kernel.module
    layout: Any = module.about["shared"]
    shared = [(at, at + (size or shared_bytes), name) for name, (at, size) in layout.items()]
    everything = {b.address: b for b in [*buffers, *(a for a in args if isinstance(a, Buffer))]}.values()
    memory = [(b.address, b.address + b.nbytes, b.name) for b in everything]
    memory += [(at, at + size, f"variable {name}") for at, size, name in module.variables()]
    error = ctypes.create_string_buffer(2048)
    sites: Any = module.about["sites"]
    launch = _Launch(
        kernel=ctypes.cast(getattr(module.library, f"kernel_{kernel.name.replace('$', '_S_')}"), ctypes.c_void_p),
        arguments=ctypes.addressof(pointers),
        name=kernel.name.encode(),
        grid=_Dim3(*_three(grid)),
        block=_Dim3(*_three(block)),
        shared_bytes=max((high for _, high, _ in shared), default=SHARED_START),
        dynamic_bytes=shared_bytes,
        shared=_ranges(shared),
        shared_count=len(shared),
        globals=_ranges(memory),
        global_count=len(memory),
        sites=ctypes.c_void_p.in_dll(module.library, "module_sites").value,
        site_count=sites,
        order=_ORDERS.index(schedule.order),
        lazy=schedule.lazy,
        flush=module.flush,
        seed=schedule.seed,
        budget=BUDGET,
        error=ctypes.cast(error, ctypes.c_char_p),
        error_bytes=len(error),
    )
    if runtime().emu_launch(ctypes.byref(launch)):
        raise EmulatorError(f"{error.value.decode()} [{schedule}]")


def _check_shape(kernel: Kernel, grid: Sequence[int], block: Sequence[int], shared_bytes: int) -> None:
    threads = math.prod(block)
    if not 1 <= threads <= 1024:
        raise EmulatorError(f"kernel {kernel.name}: a block of {threads} threads; 1 to 1024 are possible")
    if kernel.max_threads and threads > kernel.max_threads:
        raise EmulatorError(f"kernel {kernel.name}: a block of {threads} threads, but __launch_bounds__ says {kernel.max_threads}")
    if min(grid) < 1 or _three(grid)[0] >= 1 << 31 or max(_three(grid)[1:]) > 65535:
        raise EmulatorError(f"kernel {kernel.name}: grid {tuple(grid)} is out of range")
    layout: Any = kernel.module.about["shared"]
    total = sum(size for _, size in layout.values()) + shared_bytes
    number = int("".join(c for c in kernel.module.arch if c.isdigit()))
    limit = _SHARED_LIMITS.get(number, 99) << 10
    if total > limit:
        raise EmulatorError(f"kernel {kernel.name}: {total} bytes of shared memory, a block of {kernel.module.arch} has {limit}")


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*values, 1, 1)[:3]
    return int(x), int(y), int(z)


def _ranges(items: list[tuple[int, int, str]]) -> Any:
    return (_Range * max(len(items), 1))(*(_Range(low, high, name.encode()) for low, high, name in sorted(items)))


def _pack(value: Any, size: int, position: int) -> bytes:
    """The parameter's bytes for an argument."""
    if isinstance(value, Buffer):
        value = np.uint64(value.address)
    if isinstance(value, (np.generic, bytes)):
        data = value if isinstance(value, bytes) else value.tobytes()
        if len(data) != size:
            raise ValueError(f"argument {position}: {len(data)} bytes for a parameter of {size}")
        return data
    if isinstance(value, float):
        return struct.pack({4: "<f", 8: "<d"}[size], value)
    if isinstance(value, int):
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    raise ValueError(f"argument {position}: {type(value).__name__} is not a kernel argument")


class EmulatedDevice:
    """What a runtime needs of a device: compile, allocate, launch. Host code (grids, workspaces, merges) runs on it unchanged.

    strict launches, as with CuPy: scalars must be NumPy scalars of the parameter's size, more than 48 KiB of dynamic shared
    memory must be asked for, and only memory from alloc may be touched.
    """

    def __init__(self, arch: str = "sm_80", schedule: Schedule = Schedule(), multiprocessors: int = 4):
        self.arch, self.schedule, self.multiprocessors = arch, schedule, multiprocessors
        self.buffers: dict[int, Buffer] = {}
        self.launches = 0

    def compile(self, source: str, options: Sequence[str] = ()) -> Module:
        return Module(source, self.arch, (*CUPY_OPTIONS, *options))

    def alloc(self, nbytes: int, name: str = "") -> Buffer:
        """Uninitialised memory (NaN everywhere), 256-byte aligned; it stays until freed."""
        buffer = Buffer(nbytes, name or f"buffer {len(self.buffers)} ({nbytes} bytes)")
        self.buffers[buffer.address] = buffer
        return buffer

    def free(self, buffer: Buffer) -> None:
        del self.buffers[buffer.address]

    def to_device(self, array: np.ndarray, name: str = "") -> Buffer:
        buffer = self.alloc(array.nbytes, name)
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def launch(self, function: Kernel, grid: Sequence[int], block: Sequence[int], shared_bytes: int, args: Sequence[Any]) -> None:
        """Raises EmulatorError for a fault of the kernel or of the launch."""
        if shared_bytes > function.max_dynamic_shared_size_bytes:
            raise EmulatorError(
                f"kernel {function.name}: {shared_bytes} bytes of dynamic shared memory, but max_dynamic_shared_size_bytes "
                f"is {function.max_dynamic_shared_size_bytes}"
            )
        for i, a in enumerate(args):
            if not isinstance(a, (Buffer, np.generic, bytes)):
                raise EmulatorError(f"kernel {function.name}: argument {i} is a {type(a).__name__}, not a buffer, NumPy scalar or bytes")
        self.launches += 1
        run(function, grid, block, shared_bytes, args, self.schedule, list(self.buffers.values()))
