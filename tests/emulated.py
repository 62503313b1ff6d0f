"""Run one Cascade as CUDA on the emulator with chosen decisions, on poisoned outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from emulator import CUPY_OPTIONS, Buffer, Module, Schedule
from emulator.device import encode_map
from emulator.device import run as launch_kernel

from redfuser_eq.cascade import Cascade
from redfuser_eq.codegen.cuda import emit
from redfuser_eq.codegen.kernel import Kernel
from redfuser_eq.codegen.launch import CudaProgram, bytes_of, grid_of, steps_of
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import GPUS, Gpu

Array = np.ndarray[Any, Any]
FIRST = Schedule()


@dataclass(frozen=True)
class Run:
    outputs: list[Array]
    flags: Array
    kernel: Kernel
    program: CudaProgram


def strides_of(a: Array) -> tuple[int, ...]:
    return tuple(n // a.itemsize for n in a.strides)


def run(
    c: Cascade,
    arrays: Sequence[Array],
    extents: Mapping[str, int],
    gpu: Gpu = GPUS["a100"],
    choice: Mapping[str, Any] | None = None,
    order: Schedule = FIRST,
    out: Sequence[Array] | None = None,
) -> Run:
    """Schedule, print, compile and launch. Arrays lie in device memory with the strides they have here, nothing around them."""
    outputs = list(out) if out is not None else [np.empty([extents[a] for a in o.axes], o.dtype) for o in c.outputs]
    strides: dict[Any, tuple[int, ...]] = {s.name: strides_of(a) for s, a in zip(c.sources, arrays, strict=True)}
    strides |= {i: strides_of(a) for i, a in enumerate(outputs)}
    ins = {s.name: _Placed(a) for s, a in zip(c.sources, arrays, strict=True)}
    odd = tuple(n for n, x in ins.items() if int(x.pointer) % 16)
    kernel = schedule(c, extents, strides, gpu, choice or {}, odd)
    program = emit(kernel, gpu)
    strides |= {b.name: steps_of(b.sizes, extents) for b in program.buffers}
    module = Module(program.text, gpu.arch, CUPY_OPTIONS)
    outs = [_Placed(a, poison=True) for a in outputs]
    flags = Buffer(max(1, int(np.prod([extents[a] for a in program.flag_axes or ()]))), "flags")
    flags.bytes[:] = 0
    scratch = {b.name: Buffer(bytes_of(b, extents), b.name) for b in program.buffers}
    for b in program.buffers:
        if b.fill is not None:
            scratch[b.name].bytes[:] = b.fill
    everything = [flags, *scratch.values(), *(x.buffer for x in (*ins.values(), *outs))]
    for x in program.launches:
        grid = grid_of(x, extents)
        if 0 in grid:
            continue
        args = [_argument(a, ins, outs, flags, scratch, extents, strides) for a in x.args]
        function = module.kernel(x.name)
        launch_kernel(function, grid, (x.block,), x.shared, args, order, everything)
    for placed in outs:
        placed.read_back()
    shape = [extents[a] for a in program.flag_axes or ()]
    return Run(outputs, flags.bytes[: int(np.prod(shape))].reshape(shape).copy(), kernel, program)


class _Placed:
    """An array in device memory: the bytes that its elements span, with whatever lies between them."""

    def __init__(self, a: Array, poison: bool = False):
        self.array = a
        low = sum(min(0, (n - 1) * s) for n, s in zip(a.shape, a.strides, strict=True))
        high = sum(max(0, (n - 1) * s) for n, s in zip(a.shape, a.strides, strict=True)) + a.itemsize
        self.offset = -low
        shift = (a.ctypes.data + low) % 16 if not poison else 0
        self.buffer = Buffer(shift + max(high - low, 1), "an output" if poison else "an input")
        self.start = shift
        self.view = np.ndarray(a.shape, a.dtype, self.buffer.bytes[shift:].data, self.offset, a.strides) if a.size else a
        if not poison and a.size:
            self.view[...] = a
        elif a.size and a.dtype.kind not in "fV":
            self.view[...] = 77 if a.dtype.kind != "b" else False

    @property
    def pointer(self) -> np.uint64:
        return np.uint64(self.buffer.address + self.start + self.offset)

    def read_back(self) -> None:
        self.array[...] = self.view


def _argument(
    arg: tuple[Any, ...],
    ins: Mapping[str, _Placed],
    outs: Sequence[_Placed],
    flags: Buffer,
    scratch: Mapping[str, Buffer],
    extents: Mapping[str, int],
    strides: Mapping[Any, Sequence[int]],
) -> Any:
    kind, *where = arg
    if kind == "in":
        return ins[where[0]].pointer
    if kind == "out":
        return outs[where[0]].pointer
    if kind == "flags":
        return flags
    if kind == "buffer":
        return scratch[where[0]]
    if kind == "extent":
        return np.int64(extents[where[0]])
    if kind == "map":
        (kind, source), axes, box, element, rounded = where
        address = int(ins[source].pointer) if kind == "in" else scratch[source].address
        shape = [extents[a] for a, _ in axes]
        steps = [strides[source][d] * element if n > 1 or not k else 16 for k, ((_, d), n) in enumerate(zip(axes, shape, strict=True))]
        return encode_map(address, element, shape, steps, box, rounded=rounded)
    return np.int64(strides[where[0]][where[1]])


def error(got: Array, want: Array) -> float:
    """Largest difference, relative to the largest value."""
    want = np.asarray(want, np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(got.astype(np.float64) - want), initial=0) / (1e-3 + np.max(np.abs(want), initial=0)))
