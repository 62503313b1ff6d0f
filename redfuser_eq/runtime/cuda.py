"""The CUDA backend: Cascade -> Kernel -> CUDA text -> a loaded module -> launches on the caller's stream.

All that a call needs is kept per signature (shapes, strides, dtypes, device), so that a repeated call allocates the results,
collects addresses and launches. Rows whose running parameters do not end finite are computed again by the plain program, on the
device (`cuda_repair`). Nothing waits for the device, with two exceptions: where the plain program has no kernel, the row flags
are read back, one byte a row, and flagged rows computed on the host; and a call in which an axis has no elements runs there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cascade import Cascade
from ..codegen.cuda import emit
from ..codegen.kernel import Kernel
from ..codegen.launch import CudaProgram
from ..cuda_copies import ALIGNED, SCRATCH
from ..cuda_schedule import schedule
from ..errors import BackendError
from ..expr import Acc, nodes
from ..gpu import GPUS, Gpu
from ..schedule import Unsupported, row_major
from . import cuda_cupy
from . import numpy as host
from .cuda_launch import Arg, Device, Ready, flag_bytes, prepare
from .cuda_repair import DeviceRepair, in_place, prepare_repair, search
from .memory import overlaps, pointer
from .numpy import checked_arrays, checked_out
from .repair import Repair
from .tensor_map import NoMap

SIGNATURES = 512  # kept for each executable; beyond, all are dropped
PROGRAMS = 1024  # kept by the process


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


def program(
    cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, tuple[int, ...]], gpu: Gpu, unmapped: tuple[str, ...] = ()
) -> CudaProgram:
    """Schedule and print. strides: in elements, by source name and by position for outputs (row-major when absent). unmapped:
    sources that no tensor map may describe, `cuda_copies.SCRATCH` for buffers.

    Raises BackendError where a cascade has no CUDA form."""
    try:
        return _printed(schedule(cascade, extents, strides, gpu, None, unmapped), gpu)
    except Unsupported as error:
        raise BackendError(
            f"target='cuda': there is no kernel for this program: {error}; move the arrays to the host and use target='cpu' or 'numpy'"
        ) from error


def programs(
    cascade: Cascade, plain: Cascade, extents: Mapping[str, int], strides: Mapping[Any, tuple[int, ...]], gpu: Gpu,
    unmapped: tuple[str, ...] = (),
) -> tuple[CudaProgram, CudaProgram | None]:  # fmt: skip
    """What a call runs: the cascade's program, and the plain one's for the rows that it flags (None where it flags none, or the
    plain one has no kernel). unmapped: see `program`. Raises BackendError where a cascade has no CUDA form."""
    made = program(cascade, extents, strides, gpu, unmapped)
    if made.flag_axes is None or _same(cascade, plain):
        return made, None
    try:
        kernel = schedule(in_place(plain, extents), extents, strides, gpu, {"form": "rows", "near": False})
    except Unsupported:
        return made, None
    return made, _printed(kernel, gpu, made.flag_axes)


def _same(cascade: Cascade, plain: Cascade) -> bool:
    """Whether a kernel gives the plain program's values as it is, non-finite ones too: not where it reads a running maximum or
    minimum, which it takes for 0 while infinite."""
    ordered = {a.name for a in cascade.accumulators() if a.op in ("max", "min")}
    along = [o.expr for o in cascade.outputs if set(o.axes) & set(cascade.stream_axes())]
    read = {e.name for e in nodes(*(a.lift for a in cascade.accumulators()), *along) if isinstance(e, Acc)}
    return cascade.passes == plain.passes and cascade.outputs == plain.outputs and not ordered & read


@functools.lru_cache(maxsize=PROGRAMS)
def _printed(kernel: Kernel, gpu: Gpu, where: tuple[str, ...] | None = None) -> CudaProgram:
    return emit(kernel, gpu, where=where)


@dataclass(frozen=True)
class _Signature:
    """A signature, prepared: what a call needs beyond its arrays.

    main: the cascade's program, None where the host computes. flags: axes and bytes of its row flags. repair: of flagged rows, on
    the device; None where it is not needed, or, with `reread`, where the plain program has no kernel. copied: inputs to copy
    first, whose strides are of part elements."""

    main: Ready | None
    shapes: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    flags: tuple[tuple[str, ...], int] | None = None
    repair: DeviceRepair | None = None
    reread: bool = False
    copied: tuple[int, ...] = ()


class CudaExecutable:
    """A Cascade as CUDA; see `runtime.Executable`. It may be called from several threads."""

    def __init__(self, cascade: Cascade, plain: Cascade, device: Device | None) -> None:
        self.cascade, self.plain, self.device = cascade, plain, device
        self._same = _same(cascade, plain)
        self._host = host.build(cascade, plain)
        self._repair = Repair(plain)
        self._signatures: dict[Any, _Signature] = {}
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
        if out is not None and overlaps(given, out, pointer):
            checked_out(self.cascade.outputs, extents, out)
            for a, result in zip(out, self._call(device, given, extents, None), strict=True):
                device.copy(a, result)
            return list(out)
        odd = tuple([i for i, a in enumerate(given) if a.data.ptr % ALIGNED]) if device.maps else None
        key = (
            device.index,
            odd,
            tuple([(a.shape, a.strides, a.dtype, a.data.device_id) for a in given]),
            tuple(extents.values()),
            None if out is None else tuple([(a.shape, a.strides, a.dtype, a.data.device_id) for a in out]),
        )
        ready = self._signatures.get(key)
        if ready is None:
            ready = self._new(key, device, given, extents, out, odd)
        for i in ready.copied:
            given[i] = given[i].copy()
        results = [device.empty(shape, dtype) for shape, dtype in ready.shapes] if out is None else list(out)
        if ready.main is not None:
            self._run(device, ready, given, results, extents)
        else:
            self._on_host(device, given, results, extents)
        return results

    def _run(self, device: Device, ready: _Signature, given: list[Any], results: list[Any], extents: Mapping[str, int]) -> None:
        assert ready.main is not None
        if ready.flags is None:
            ready.main.run(device, given + results)
            return
        axes, nbytes = ready.flags
        memory = device.alloc(nbytes + 1)  # the flags, and the guard of their repair
        device.fill(memory, 0, nbytes + 1)
        flags = np.uint64(memory.ptr)
        ready.main.run(device, [*given, *results, flags])
        if ready.repair is not None:
            ready.repair.run(device, given + results, flags, np.uint64(memory.ptr + nbytes))
        elif ready.reread:
            rows = device.to_host(device.array(memory, [extents[a] for a in axes], np.bool_))
            if rows.any():
                self._repaired(device, given, extents, axes, rows, results)

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
    def _new(
        self, key: Any, device: Device, given: list[Any], extents: Mapping[str, int], out: Sequence[Any] | None, odd: Any
    ) -> _Signature:
        with self._lock:  # a build takes a second: others wait for it instead of making it too
            ready = self._signatures.get(key)
            if ready is None:
                ready = self._prepare(device, given, extents, out, odd)
                if len(self._signatures) >= SIGNATURES:
                    self._signatures.clear()
                self._signatures[key] = ready
            return ready

    def _prepare(
        self, device: Device, given: list[Any], extents: Mapping[str, int], out: Sequence[Any] | None, odd: tuple[int, ...] | None
    ) -> _Signature:
        """odd: inputs that start at no multiple of 16 bytes, None where the device has no tensor maps."""
        checked_arrays(self.cascade, given, extents)
        if out is not None:
            checked_out(self.cascade.outputs, extents, out)
        others = {a.data.device_id for a in (*given, *(out or ()))} - {device.index}
        if others:
            raise BackendError(f"target='cuda': arrays are on device {device.index} and on {sorted(others)}; move them to one device")
        shapes = tuple((tuple(extents[a] for a in o.axes), o.dtype) for o in self.cascade.outputs)
        if any(n == 0 for n in extents.values()):
            return _Signature(None, shapes)
        copied = tuple(i for i, a in enumerate(given) if any(s % a.itemsize for s in a.strides))
        seen = [a.copy() if i in copied else a for i, a in enumerate(given)]
        strides = _strides(seen, self.cascade, out)
        every = (*(s.name for s in self.cascade.sources), SCRATCH)
        try:
            unmapped = every if odd is None else tuple(every[i] for i in odd)
            return self._prepared(device, seen, extents, strides, shapes, copied, unmapped)
        except NoMap:
            return self._prepared(device, seen, extents, strides, shapes, copied, every)

    def _prepared(
        self, device: Device, seen: list[Any], extents: Mapping[str, int], strides: dict[Any, tuple[int, ...]], shapes: Any,
        copied: tuple[int, ...], unmapped: tuple[str, ...],
    ) -> _Signature:  # fmt: skip
        """Raises NoMap where the driver makes no map of what is not among the unmapped."""
        made, fixing = programs(self.cascade, self.plain, extents, strides, device.gpu, unmapped)
        strides = {i: row_major(o.axes, extents) for i, o in enumerate(self.cascade.outputs)} | strides
        size = _size_in(extents, strides)
        brought: list[Arg] = [("in", s.name) for s in self.cascade.sources] + [("out", i) for i in range(len(shapes))]
        self._text = made.text
        if made.flag_axes is not None:
            brought.append(("flags",))
        device.compile([made] if fixing is None else [made, fixing, search(device.gpu.capability)])
        main = prepare(made, device, brought, extents, size)
        main.encode(device, seen)
        if made.flag_axes is None:
            return _Signature(main, shapes, copied=copied)
        repair = None if fixing is None else prepare_repair(fixing, self.plain, device, made.flag_axes, extents, size)
        flags = made.flag_axes, flag_bytes(made, extents)
        return _Signature(main, shapes, flags, repair, not self._same and repair is None, copied)


def _size_in(extents: Mapping[str, int], strides: Mapping[Any, tuple[int, ...]]) -> Callable[[Arg], int]:
    """Extents and strides as arguments name them."""
    return lambda arg: extents[arg[1]] if arg[0] == "extent" else strides[arg[1]][arg[2]]


def _strides(given: Sequence[Any], cascade: Cascade, out: Sequence[Any] | None) -> dict[Any, tuple[int, ...]]:
    """In elements: by source name, and by position for the arrays of `out`."""
    found: dict[Any, tuple[int, ...]] = {s.name: _elements(a) for s, a in zip(cascade.sources, given, strict=True)}
    return found | {i: _elements(a) for i, a in enumerate(out or ())}


def _elements(a: Any) -> tuple[int, ...]:
    return tuple(s // a.itemsize for s in a.strides)
