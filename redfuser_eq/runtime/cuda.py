"""The CUDA backend: Cascade -> Kernel -> CUDA text -> a loaded module -> launches on the caller's stream.

All that a call needs is kept per signature (shapes, strides, dtypes, device), so that a repeated call allocates the results,
collects addresses and launches. Nothing waits for the device, with two exceptions: a program with row flags (its one-pass
form may lose a NaN or an infinity that the written-out formula has) reads them back, one byte a row, and has flagged rows
computed again by the plain program on the host; and a call in which an axis has no elements runs on the host.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from ..cascade import Cascade
from ..codegen.cuda import emit
from ..codegen.kernel import Kernel
from ..codegen.launch import CudaProgram, bytes_of, grid_of
from ..cuda_schedule import schedule
from ..errors import BackendError
from ..gpu import GPUS, Gpu
from ..schedule import Unsupported
from . import cuda_cupy
from . import numpy as host
from .numpy import checked_arrays, checked_out
from .repair import Repair

SIGNATURES = 512  # kept for each executable; beyond, all are dropped
PROGRAMS = 1024  # kept by the process


class Device(Protocol):
    """What a call needs of a device; see `cuda_cupy.CupyDevice`. Arrays are CuPy's."""

    index: int
    gpu: Gpu

    def active(self) -> contextlib.AbstractContextManager[None]: ...
    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any: ...
    def alloc(self, nbytes: int) -> Any: ...
    def fill(self, memory: Any, value: int, nbytes: int) -> None: ...
    def array(self, memory: Any, shape: Sequence[int], dtype: Any) -> Any: ...
    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...
    def write(self, array: Any, values: np.ndarray[Any, Any]) -> None: ...
    def functions(self, program: CudaProgram) -> tuple[Any, ...]: ...
    def launch(
        self, function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, args: tuple[Any, ...]
    ) -> None: ...


def available() -> bool:
    """Whether CuPy is installed and a device that the kernels run on is visible."""
    try:
        cuda_cupy.current()
    except BackendError:
        return False
    return True


def build(cascade: Cascade, plain: Cascade, *, device: Device | None = None) -> CudaExecutable:
    """An executable of the cascade; it is scheduled and compiled at the first call with given extents and strides.

    device: None is the device that the arrays of a call are on. Raises BackendError without CuPy, a driver or a device, or
    with one that is too old."""
    if device is None:
        cuda_cupy.current()
    return CudaExecutable(cascade, plain, device)


def source(cascade: Cascade, arrays: Sequence[Any], extents: Mapping[str, int], gpu: Gpu | None = None) -> str:
    """The CUDA text for arrays of these shapes and strides (viewed, one for each source; of any library).

    gpu: what it is made for; None is the current device, or an H200 where there is none. Raises BackendError where a cascade
    has no CUDA form."""
    if gpu is None:
        gpu = cuda_cupy.current().gpu if available() else GPUS["h200"]
    checked_arrays(cascade, arrays, extents)
    return program(cascade, extents, _strides(arrays, cascade, None), gpu).text


def program(cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, tuple[int, ...]], gpu: Gpu) -> CudaProgram:
    """Schedule and print. strides: in elements, by source name and by position for outputs (row-major when absent).

    Raises BackendError where a cascade has no CUDA form."""
    try:
        return _printed(schedule(cascade, extents, strides, gpu), gpu)
    except Unsupported as error:
        raise BackendError(
            f"target='cuda': there is no kernel for this program: {error}; move the arrays to the host and use target='cpu' or 'numpy'"
        ) from error


@functools.lru_cache(maxsize=PROGRAMS)
def _printed(kernel: Kernel, gpu: Gpu) -> CudaProgram:
    return emit(kernel, gpu)


@dataclass(frozen=True)
class _Launch:
    """A kernel of one signature. pick: the pool of a call's arrays, addresses and sizes -> the kernel's arguments."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class _Ready:
    """A signature, prepared: what a call needs beyond its arrays.

    flags: axes of the row flags that are to be looked at, None for none. scratch: bytes and fill of each piece of memory, in
    the order of the pool, which is inputs, results, scratch, sizes. copied: inputs to copy first, whose strides are of part
    elements."""

    text: str
    launches: tuple[_Launch, ...]
    scratch: tuple[tuple[int, int | None], ...]
    sizes: tuple[Any, ...]
    shapes: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    flags: tuple[str, ...] | None
    copied: tuple[int, ...]


class CudaExecutable:
    """A Cascade as CUDA; see `runtime.Executable`. It may be called from several threads."""

    def __init__(self, cascade: Cascade, plain: Cascade, device: Device | None) -> None:
        self.cascade, self.plain, self.device = cascade, plain, device
        self._same = cascade.passes == plain.passes and cascade.outputs == plain.outputs
        self._host = host.build(cascade, plain)
        self._repair = Repair(plain)
        self._signatures: dict[Any, _Ready] = {}
        self._text = ""
        self._lock = threading.Lock()

    @property
    def source(self) -> str:
        """The CUDA text of the latest signature; before any call the cascade as text."""
        return self._text or self._host.source

    def __call__(self, arrays: Sequence[Any], extents: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        """See `runtime.Executable`: arrays and `out` are CuPy arrays of one device.

        Raises MemoryError when the device's memory runs out, and BackendError where the arrays are on several devices, where
        there is no kernel for the program, or when a build fails."""
        current = cuda_cupy.current()
        device = self.device or (cuda_cupy.device(arrays[0].data.device_id) if arrays else current)
        if device.index == current.index:
            return self._call(device, list(arrays), extents, out)
        with device.active():
            return self._call(device, list(arrays), extents, out)

    def _call(self, device: Device, given: list[Any], extents: Mapping[str, int], out: Sequence[Any] | None) -> list[Any]:
        if out is not None and _overlaps(given, out):
            checked_out(self.cascade.outputs, extents, out)
            for a, result in zip(out, self._call(device, given, extents, None), strict=True):
                a[...] = result
            return list(out)
        key = (
            device.index,
            tuple([(a.shape, a.strides, a.dtype, a.data.device_id) for a in given]),
            tuple(extents.values()),
            None if out is None else tuple([(a.shape, a.strides, a.dtype, a.data.device_id) for a in out]),
        )
        ready = self._signatures.get(key)
        if ready is None:
            ready = self._new(key, device, given, extents, out)
        for i in ready.copied:
            given[i] = given[i].copy()
        results = [device.empty(shape, dtype) for shape, dtype in ready.shapes] if out is None else list(out)
        if ready.launches:
            self._run(device, ready, given, results, extents)
        else:
            self._on_host(device, given, results, extents)
        return results

    def _run(self, device: Device, ready: _Ready, given: list[Any], results: list[Any], extents: Mapping[str, int]) -> None:
        pool = given + results
        memory = []
        for nbytes, fill in ready.scratch:
            memory.append(piece := device.alloc(nbytes))
            pool.append(np.uint64(piece.ptr))
            if fill is not None:
                device.fill(piece, fill, nbytes)
        pool += ready.sizes
        for x in ready.launches:
            device.launch(x.function, x.grid, x.block, x.shared, x.pick(pool))
        if ready.flags is not None:
            rows = device.to_host(device.array(memory[0], [extents[a] for a in ready.flags], np.bool_))
            if rows.any():
                self._repaired(device, given, extents, ready.flags, rows, results)

    def _repaired(
        self, device: Device, given: list[Any], extents: Mapping[str, int], axes: tuple[str, ...], rows: Any, results: list[Any]
    ) -> None:
        """Rows that were flagged, by the plain program on the host."""
        values = [device.to_host(r) for r in results]
        self._repair([device.to_host(a) for a in given], extents, axes, rows, values)
        for r, value in zip(results, values, strict=True):
            device.write(r, value)

    def _on_host(self, device: Device, given: list[Any], results: list[Any], extents: Mapping[str, int]) -> None:
        """A call without elements along some axis: there is nothing to launch, but results and errors are to be right."""
        for r, value in zip(results, self._host([device.to_host(a) for a in given], extents), strict=True):
            device.write(r, value)

    # ---- at a new signature
    def _new(self, key: Any, device: Device, given: list[Any], extents: Mapping[str, int], out: Sequence[Any] | None) -> _Ready:
        with self._lock:  # a build takes a second: others wait for it instead of making it too
            ready = self._signatures.get(key)
            if ready is None:
                ready = self._prepare(device, given, extents, out)
                if len(self._signatures) >= SIGNATURES:
                    self._signatures.clear()
                self._signatures[key] = ready
            return ready

    def _prepare(self, device: Device, given: list[Any], extents: Mapping[str, int], out: Sequence[Any] | None) -> _Ready:
        checked_arrays(self.cascade, given, extents)
        if out is not None:
            checked_out(self.cascade.outputs, extents, out)
        others = {a.data.device_id for a in (*given, *(out or ()))} - {device.index}
        if others:
            raise BackendError(f"target='cuda': arrays are on device {device.index} and on {sorted(others)}; move them to one device")
        shapes = tuple((tuple(extents[a] for a in o.axes), o.dtype) for o in self.cascade.outputs)
        if any(n == 0 for n in extents.values()):
            return _Ready("", (), (), (), shapes, None, ())
        copied = tuple(i for i, a in enumerate(given) if any(s % a.itemsize for s in a.strides))
        seen = [a.copy() if i in copied else a for i, a in enumerate(given)]
        strides = _strides(seen, self.cascade, out)
        made = program(self.cascade, extents, strides, device.gpu)
        self._text = made.text
        flags = None if self._same else made.flag_axes
        return _ready(made, device, self.cascade, extents, strides, shapes, flags, copied)


def _ready(
    made: CudaProgram,
    device: Device,
    cascade: Cascade,
    extents: Mapping[str, int],
    strides: Mapping[Any, tuple[int, ...]],
    shapes: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...],
    flags: tuple[str, ...] | None,
    copied: tuple[int, ...],
) -> _Ready:
    """Every argument of every launch as a place in the pool."""
    places: dict[tuple[Any, ...], int] = {("in", s.name): i for i, s in enumerate(cascade.sources)}
    places |= {("out", i): len(places) + i for i in range(len(shapes))}
    scratch: list[tuple[int, int | None]] = []
    if made.flag_axes is not None:
        places["flags",] = len(places)
        scratch.append((max(1, math.prod(extents[a] for a in made.flag_axes)), 0))
    for b in made.buffers:
        places["buffer", b.name] = len(places)
        scratch.append((bytes_of(b, extents), b.fill))
    sizes: list[Any] = []
    for arg in dict.fromkeys(a for launch in made.launches for a in launch.args if a not in places):
        places[arg] = len(places)
        sizes.append(np.int64(extents[arg[1]] if arg[0] == "extent" else _stride(strides, arg[1], arg[2], shapes)))
    launches = []
    for launch, function in zip(made.launches, device.functions(made), strict=True):
        grid = grid_of(launch, extents)
        if all(grid):
            launches.append(_Launch(function, grid, (launch.block, 1, 1), launch.shared, _picker([places[a] for a in launch.args])))
    return _Ready(made.text, tuple(launches), tuple(scratch), tuple(sizes), shapes, flags, copied)


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return itemgetter(*places) if len(places) > 1 else lambda pool: tuple(pool[i] for i in places)


def _stride(strides: Mapping[Any, tuple[int, ...]], array: Any, dim: int, shapes: Sequence[tuple[tuple[int, ...], Any]]) -> int:
    """In elements; results made by this module are row-major."""
    return strides[array][dim] if array in strides else math.prod(shapes[array][0][dim + 1 :])


def _strides(given: Sequence[Any], cascade: Cascade, out: Sequence[Any] | None) -> dict[Any, tuple[int, ...]]:
    """In elements: by source name, and by position for the arrays of `out`."""
    found: dict[Any, tuple[int, ...]] = {s.name: _elements(a) for s, a in zip(cascade.sources, given, strict=True)}
    return found | {i: _elements(a) for i, a in enumerate(out or ())}


def _elements(a: Any) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)


def _overlaps(given: Sequence[Any], out: Sequence[Any]) -> bool:
    """Whether writing into `out` piece by piece could disturb an input, another output or itself, or is not possible."""
    if any(0 in a.strides or any(s % a.itemsize for s in a.strides) for a in out):
        return True
    spans = [_span(a) for a in (*given, *out)]
    return any(s[0] < t[1] and t[0] < s[1] for n, s in enumerate(spans[len(given) :], len(given)) for t in spans[:n])


def _span(a: Any) -> tuple[int, int]:
    """The first byte of an array, and the one past its last."""
    if not a.size:
        return 0, 0
    low = a.data.ptr + sum(min(0, s * (n - 1)) for n, s in zip(a.shape, a.strides, strict=True))
    return low, a.data.ptr + sum(max(0, s * (n - 1)) for n, s in zip(a.shape, a.strides, strict=True)) + a.itemsize
