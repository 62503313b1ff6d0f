"""Run one Cascade as C with chosen decisions, on poisoned outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redfuser_eq.cascade import Cascade
from redfuser_eq.codegen.kernel import Kernel
from redfuser_eq.runtime import cpu
from redfuser_eq.runtime.device import Device
from redfuser_eq.runtime.device import cpu as this_cpu
from redfuser_eq.schedule import schedule

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Run:
    outputs: list[Array]
    flags: Array
    kernel: Kernel


def run(
    c: Cascade,
    arrays: Sequence[Array],
    extents: Mapping[str, int],
    device: Device | None = None,
    choice: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> Run:
    """Schedule, print, compile and call; outputs are poisoned before the call."""
    device = device or this_cpu()
    strides = {s.name: tuple(n // a.itemsize for n in a.strides) for s, a in zip(c.sources, arrays, strict=True)}
    kernel = schedule(c, extents, strides, device, threads, choice)
    build = cpu.kernel_build(kernel, device)
    outputs = [np.full([extents[a] for a in o.axes], np.nan if o.dtype.kind == "f" else 77, o.dtype) for o in c.outputs]
    flags = np.full([extents[a] for a in kernel.flag_axes or ()], 9, np.uint8)
    sizes = np.array([_size(arg, extents, strides, outputs) for arg in kernel.args], np.int64)
    ins = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
    outs = (ctypes.c_void_p * (len(outputs) + 1))(*(a.ctypes.data for a in outputs), flags.ctypes.data)
    assert build.function(ctypes.addressof(ins), ctypes.addressof(outs), sizes.ctypes.data, threads) == 0
    return Run(outputs, flags, kernel)


def _size(arg: tuple[Any, ...], extents: Mapping[str, int], strides: Mapping[str, Sequence[int]], outputs: Sequence[Array]) -> int:
    kind, name, *dim = arg
    if kind == "extent":
        return extents[name]
    if kind == "in_stride":
        return strides[name][dim[0]]
    return outputs[name].strides[dim[0]] // outputs[name].itemsize


def error(got: Array, want: Array) -> float:
    """Largest difference, relative to the largest value."""
    want = np.asarray(want, np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.max(np.abs(got.astype(np.float64) - want), initial=0) / (1e-3 + np.max(np.abs(want), initial=0)))
