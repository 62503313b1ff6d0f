"""Rows that a kernel flags, because a running parameter did not end finite, computed again on the device by the plain program.

Nothing waits for the device: the launches are always queued, and end at once unless some row is flagged. The plain program is
printed as streaming rows whatever it is, because that form computes flagged rows alone and needs next to no memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ..cascade import Cascade, Pass
from ..codegen.kernel import Size
from ..codegen.launch import CudaProgram, Launch
from ..expr import Acc, Expr, Load, Reduce, nodes, transform
from ..ops import MONOIDS
from .cuda_launch import Arg, Device, Ready, prepare

_ANY = """extern "C" __global__ void __launch_bounds__(256) any_flag(const unsigned char *flags, long long count, unsigned char *guard) {
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
    if (flags[i]) *guard = 1; /* all who write, write the same */
}
"""


def in_place(plain: Cascade, extents: Mapping[str, int]) -> Cascade:
    """Accumulators that vary over a later stream axis and outgrow every input, computed where they are read instead of held in
    memory.

    Before: pass l: z[i,k] = sum q[i,l] * k[k,l]; pass k: m[i] = max z. After: pass k: m[i] = max(sum_l q[i,l] * k[k,l])."""
    roots = [a.lift for a in plain.accumulators()] + [o.expr for o in plain.outputs]
    largest = max((prod(extents[x] for x in e.dims) for e in nodes(*roots) if isinstance(e, Load)), default=0)
    inlined: dict[tuple[str, str], Expr] = {}

    def swap(e: Expr) -> Expr | None:
        return inlined.get((e.name, e.field)) if isinstance(e, Acc) else None

    passes: list[Pass] = []
    for n, p in enumerate(plain.passes):
        later = {q.axis for q in plain.passes[n + 1 :]}
        kept = []
        for a in p.accumulators:
            lift = transform(a.lift, swap)
            if later & set(a.axes) and not a.k and a.rebase is None and prod(extents[x] for x in a.axes) > largest:
                inlined[a.name, "value"] = Reduce(a.op, p.axis, lift, dtype=a.dtype)
                if MONOIDS[a.op].state != "value":
                    values = a.op.replace("arg", "")
                    inlined |= {
                        (a.name, "index"): Reduce(a.op, p.axis, lift),
                        (a.name, "value"): Reduce(values, p.axis, lift, dtype=a.dtype),
                    }
            else:
                kept.append(replace(a, lift=lift))
        passes += [replace(p, accumulators=tuple(kept))] if kept else []
    outputs = tuple(replace(o, expr=transform(o.expr, swap)) for o in plain.outputs)
    return replace(plain, passes=tuple(passes), outputs=outputs)


@dataclass(frozen=True)
class DeviceRepair:
    """A repair for one signature."""

    any: Ready
    plain: Ready
    count: Any

    def run(self, device: Device, given: list[Any], flags: Any, guard: Any) -> None:
        """Queue it. given: inputs and results. flags: the address of the row flags. guard: that of a byte, which is 0."""
        self.any.run(device, [flags, self.count, guard])
        self.plain.run(device, [*given, flags, guard])


def search(capability: int, count: int = 0) -> CudaProgram:
    """What looks for a flag among `count`."""
    key = hashlib.sha256(_ANY.encode()).hexdigest()[:32]
    launch = Launch("any_flag", ((Size(value=-(-count // 256)),), (), ()), 256, 0, (("flags",), ("count",), ("guard",)))
    return CudaProgram(_ANY, (launch,), (), capability, key)


def prepare_repair(
    made: CudaProgram, plain: Cascade, device: Device, axes: tuple[str, ...], extents: Mapping[str, int], size: Callable[[Arg], int]
) -> DeviceRepair:
    """made: the plain program, printed for flagged rows of these axes. size: its extents and strides."""
    count = prod(extents[a] for a in axes)
    most = 8 * device.gpu.multiprocessors
    found = search(device.gpu.capability, count)
    given: list[Arg] = [("in", s.name) for s in plain.sources] + [("out", i) for i in range(len(plain.outputs))]
    return DeviceRepair(
        prepare(found, device, found.launches[0].args, extents, size, most),
        prepare(made, device, [*given, ("where",), ("guard",)], extents, size, most),
        np.int64(count),
    )
