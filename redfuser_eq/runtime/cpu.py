"""The CPU backend: Cascade -> Kernel -> C -> a loaded library -> a call.

A schedule depends on the extents, on which strides are 0 or 1, and on the device; its Kernel's key says what fixes the
code, and kernels of equal key share a build. All that a call needs is kept per signature (shapes, strides, dtypes), so
that a repeated call only collects addresses. Where there is no compiler, or the Kernel has no form for the cascade,
the NumPy program runs instead and `reason` says why.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..cascade import Cascade
from ..codegen.c import emit
from ..codegen.kernel import Kernel
from ..errors import BackendError
from ..schedule import Unsupported, schedule
from . import numpy as fallback
from .compiler import find, load
from .device import Device, cpu
from .memory import address, overlaps
from .numpy import checked_arrays, checked_out
from .pool import get_num_threads, table
from .repair import Repair
from .tune import tuned

Array = np.ndarray[Any, Any]
SIGNATURES = 512  # kept for each executable; beyond, all are dropped
GRAIN = 1 << 15  # points of the iteration domain that a further thread must have: waking it costs as much as some 10,000 exponentials

_builds: dict[tuple[str, Device], Build] = {}


def available() -> bool:
    """Whether a C compiler was found."""
    try:
        find()
    except BackendError:
        return False
    return True


def build(
    cascade: Cascade, plain: Cascade, *, device: Device | None = None, threads: int | None = None, tune: bool = False
) -> CpuExecutable | fallback.NumpyExecutable:
    """An executable of the cascade; it is scheduled and compiled at the first call with given extents and strides.

    threads: None follows `pool.set_num_threads` and the environment at each call. tune: measure a few schedules at the
    first call of each new signature and keep the fastest (remembered on disk). Raises BackendError when no compiler is
    found: choose target="numpy" then."""
    find()
    return CpuExecutable(cascade, plain, device or cpu(), threads, tune)


def source(cascade: Cascade, arrays: Sequence[Any], extents: Mapping[str, int], device: Device | None = None) -> str:
    """The C text for these arrays (viewed, one for each source). Raises schedule.Unsupported where there is none."""
    given = checked_arrays(cascade, arrays, extents)
    outs = checked_out(cascade.outputs, extents, None)
    return text_of(schedule(cascade, extents, _strides(list(given.values()), cascade, outs), device or cpu()))


def text_of(kernel: Kernel) -> str:
    """The whole C file of a kernel."""
    return f'#define RF_REAL {kernel.real}\n#include "prelude.h"\n\n{emit(kernel)}'


@dataclass(frozen=True)
class Build:
    """A loaded kernel. library is kept so that the code stays mapped."""

    text: str
    function: Any
    library: Any = field(repr=False)


def compiled(text: str, device: Device) -> Build:
    """Compile, load and connect to the thread pool. Raises BackendError with the compiler's message."""
    library = load(text, device)
    library.rf_bind.argtypes = (ctypes.c_void_p,)
    library.rf_bind.restype = None
    library.rf_bind(ctypes.addressof(table()))
    function = library.rf_kernel
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    function.restype = ctypes.c_int
    return Build(text, function, library)


def kernel_build(kernel: Kernel, device: Device) -> Build:
    """The build of a kernel, shared by all of equal key."""
    key = (kernel.key, device)
    if key not in _builds:
        _builds[key] = compiled(text_of(kernel), device)
    return _builds[key]


@dataclass(frozen=True)
class _Ready:
    """A signature, prepared: what a call needs beyond the addresses."""

    function: Any
    sizes: Any  # ctypes array: kernel.args
    pointers: Any  # ctypes array types: of the inputs, of the outputs and flags
    out_pointers: Any
    shapes: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    flags: tuple[str, ...] | None
    flag_shape: tuple[int, ...]
    most: int  # threads worth waking
    copied: tuple[int, ...]  # inputs to copy first: strides of part elements, or foreign byte order


class CpuExecutable:
    """A Cascade as C; see `runtime.Executable`. reason: why the NumPy program ran at the latest signature, or None."""

    def __init__(self, cascade: Cascade, plain: Cascade, device: Device, threads: int | None, tune: bool) -> None:
        self.cascade, self.plain, self.device, self.threads, self.tune = cascade, plain, device, threads, tune
        self.reason: str | None = None
        self._same = cascade.passes == plain.passes and cascade.outputs == plain.outputs
        self._numpy = fallback.build(cascade, plain)
        self._repair = Repair(plain)
        self._signatures: dict[Any, _Ready | str] = {}
        self._text = ""
        self._tuning = threading.Lock()

    @property
    def source(self) -> str:
        """The C text of the latest signature; before any call, or where NumPy runs, the cascade as text."""
        return self._text or self._numpy.source

    def __call__(self, arrays: Sequence[Any], extents: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        """See `runtime.Executable`. Raises MemoryError when scratch memory runs out, BackendError when a build fails."""
        given = [a if type(a) is np.ndarray else np.asarray(a) for a in arrays]
        if out is not None and overlaps(given, out):
            checked_out(self.cascade.outputs, extents, out)
            for a, result in zip(out, self(given, extents), strict=True):
                np.copyto(a, result)
            return list(out)
        key = (
            tuple([(a.shape, a.strides, a.dtype) for a in given]),
            tuple(extents.values()),
            None if out is None else tuple([(a.shape, a.strides, a.dtype) for a in out]),
        )
        ready = self._signatures.get(key)
        if ready is None:
            ready = self._prepare(given, extents, out)
            if len(self._signatures) >= SIGNATURES:
                self._signatures.clear()
            self._signatures[key] = ready
        if type(ready) is str:
            return self._numpy(given, extents, out)
        assert isinstance(ready, _Ready)
        for i in ready.copied:
            given[i] = _native(given[i])
        results = [np.empty(shape, dtype) for shape, dtype in ready.shapes] if out is None else list(out)
        self._run(ready, given, results, extents)
        return results

    def _run(self, ready: _Ready, given: Sequence[Array], results: Sequence[Array], extents: Mapping[str, int]) -> None:
        places = [address(a) for a in results]
        rows = None
        if ready.flags is not None:
            rows = np.empty(ready.flag_shape, np.bool_)
            places.append(address(rows))
        inputs, outputs = ready.pointers(*map(address, given)), ready.out_pointers(*places)
        threads = 1 if ready.most == 1 else min(ready.most, self.threads or get_num_threads())
        status = ready.function(inputs, outputs, ready.sizes, threads)
        if status == 1:
            raise MemoryError("the kernel's scratch memory could not be allocated; use fewer threads or smaller inputs")
        if status:
            raise BackendError(f"the kernel failed with status {status}; run with target='numpy' and report the program")
        if rows is not None and np.count_nonzero(rows):
            assert ready.flags is not None
            self._repair(given, extents, ready.flags, rows, results)

    # ---- at a new signature
    def _prepare(self, given: list[Array], extents: Mapping[str, int], out: Sequence[Any] | None) -> _Ready | str:
        """Check everything, schedule and build; or the reason why NumPy runs."""
        checked_arrays(self.cascade, given, extents)
        outs = checked_out(self.cascade.outputs, extents, out)
        if any(n == 0 for n in extents.values()):
            return self._because("an axis has no elements")
        copied = tuple(i for i, a in enumerate(given) if not _usable(a))
        seen = [_native(a) if i in copied else a for i, a in enumerate(given)]
        strides = _strides(seen, self.cascade, outs)
        try:
            kernel = self._kernel(seen, extents, strides, outs)
        except Unsupported as error:
            return self._because(str(error))
        build = kernel_build(kernel, self.device)
        self.reason, self._text = None, build.text
        sizes = [_size(arg, extents, strides) for arg in kernel.args]
        flags = kernel.flag_axes
        return _Ready(
            build.function,
            (ctypes.c_int64 * max(1, len(sizes)))(*sizes),
            ctypes.c_void_p * len(given),
            ctypes.c_void_p * (len(outs) + (flags is not None)),
            tuple((a.shape, a.dtype) for a in outs),
            flags,
            tuple(extents[a] for a in flags or ()),
            max(1, math.prod(extents.values()) // GRAIN),
            copied,
        )

    def _because(self, reason: str) -> str:
        self.reason, self._text = reason, ""
        return reason

    def _kernel(self, given: list[Array], extents: Mapping[str, int], strides: dict[Any, tuple[int, ...]], outs: list[Array]) -> Kernel:
        threads = self.threads or get_num_threads()
        if not self.tune:
            return schedule(self.cascade, extents, strides, self.device, threads, {"flags": False} if self._same else None)
        inputs = (ctypes.c_void_p * len(given))(*[a.ctypes.data for a in given])

        def runner(kernel: Kernel) -> Any:
            build = kernel_build(kernel, self.device)
            sizes = [_size(arg, extents, strides) for arg in kernel.args]
            spare = [np.empty_like(a) for a in outs] + [np.empty([extents[a] for a in kernel.flag_axes or ()], np.uint8)]
            where = (ctypes.c_void_p * len(spare))(*[a.ctypes.data for a in spare])
            n = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
            return lambda: (build.function(inputs, where, n, threads), spare)[0]

        with self._tuning:
            return tuned(self.cascade, extents, strides, self.device, threads, runner)


def _usable(a: Array) -> bool:
    """Whether a kernel can read it in place: aligned, native bytes, strides of whole elements."""
    return a.dtype.isnative and all(s % a.itemsize == 0 for s in a.strides)


def _native(a: Array) -> Array:
    return np.array(a, dtype=a.dtype.newbyteorder("="), order="C")


def _strides(given: Sequence[Array], cascade: Cascade, outs: Sequence[Array]) -> dict[Any, tuple[int, ...]]:
    """In elements: by source name, and by position for outputs."""
    found: dict[Any, tuple[int, ...]] = {}
    for s, a in zip(cascade.sources, given, strict=True):
        found[s.name] = tuple(x // a.itemsize for x in a.strides)
    for i, a in enumerate(outs):
        found[i] = tuple(x // a.itemsize for x in a.strides)
    return found


def _size(arg: tuple[Any, ...], extents: Mapping[str, int], strides: Mapping[Any, tuple[int, ...]]) -> int:
    """One entry of the sizes a kernel takes; see `Kernel.args`."""
    if arg[0] == "extent":
        return extents[arg[1]]
    _, array, dim = arg
    return int(strides[array][dim])
