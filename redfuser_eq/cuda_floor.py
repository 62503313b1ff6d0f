"""What no schedule of a cascade can beat, by the performance model: each array once, each function and product once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from .cascade import Accumulator, Cascade, Pass
from .codegen import kernel as ir
from .expr import Load, Map, Reduce, nodes
from .gpu import Gpu
from .gpu_model import SAMPLES, SPECIAL, START, TENSOR
from .roles import classify

SURE = ("exp", "exp2", "expm1", "log", "log1p", "log2", "sin", "cos", "tanh", "erf")  # functions that every schedule computes as such
SHORT = 0.95  # samples of a mask may miss as much
RATES = {"float16": "f16", "bfloat16": "bf16"}  # others may be multiplied in several formats


def floor(cascade: Cascade, kernel: ir.Kernel, extents: Mapping[str, int], gpu: Gpu) -> float:
    """Seconds. kernel: the scheduler's own, for its masks."""
    roots = [a.lift for a in cascade.accumulators()] + [o.expr for o in cascade.outputs]
    share = _share(kernel, extents)

    def points(axes: Iterable[str]) -> float:
        return share * prod(extents[a] for a in axes)

    special = tensor = 0.0
    tensors = _tensors(cascade, kernel)
    folds = sum(points({*a.lift.axes, p.axis}) for p in cascade.passes for a in p.accumulators if not tensors or not columns(p, a))
    loads: dict[int, float] = {}  # by argument: two views of one may read the same
    arguments = {s.name: s.param for s in cascade.sources}
    for e in nodes(*roots):
        if isinstance(e, Load):
            size = e.dtype.itemsize * points(set(e.dims))
            n = arguments[e.source]
            loads[n] = max(loads.get(n, 0.0), size)
        elif isinstance(e, Map) and e.op in SURE:
            special += points(e.axes)
        elif isinstance(e, Reduce) and not tensors:
            folds += points({*e.axes, e.axis})
        elif isinstance(e, Reduce) and e.op == "sum":
            tensor += 2 * points({*e.axes, e.axis}) / _rate(e, gpu)
    written = sum(o.dtype.itemsize * prod(extents[a] for a in o.axes) for o in cascade.outputs)
    times = (
        (sum(loads.values()) + written) / gpu.bandwidth,
        special / (gpu.mufu * gpu.clock * gpu.multiprocessors),
        2 * (SPECIAL * special + folds) / gpu.fp32,
        tensor,
    )
    return START + max(times)


def _tensors(cascade: Cascade, kernel: ir.Kernel) -> bool:
    """Whether some schedule may use tensor cores: where the scheduler's own does not, for want of space, another with smaller
    tiles may."""
    used = any(p.place is not None and p.place.form in TENSOR for p in kernel.phases)
    return used or cascade.numerics == "fast" or any(s.dtype.itemsize <= 2 for s in cascade.sources)


def columns(p: Pass, a: Accumulator) -> bool:
    """Whether an accumulator has axes beyond the rows, and may be a product."""
    return bool(set(a.axes) - set(classify(p).rows))


def _rate(e: Reduce, gpu: Gpu) -> float:
    """The fastest that a contraction could be: flop/s."""
    tags = {RATES.get(x.dtype.name, "") for x in nodes(e) if isinstance(x, Load)}
    (tag,) = tags if len(tags) == 1 else ("",)
    return max(gpu.fp32, gpu.tensor.get(tag) or max(gpu.tensor.values(), default=0.0))


def _share(kernel: ir.Kernel, extents: Mapping[str, int]) -> float:
    """The least share of elements that the masks of a phase leave."""
    found = 1.0
    for p in kernel.phases:
        share = 1.0
        for s in ir.statements(p.body):
            if isinstance(s, ir.Skip) and s.bounds:
                axes = sorted({a for b in s.bounds for a, _ in b.terms})
                at = [np.linspace(0, extents[a] - 1, SAMPLES).astype(int).tolist() for a in axes]
                places = [dict(zip(axes, x, strict=True)) for x in itertools.product(*at)]
                kept = sum(all(sum(k * x[a] for a, k in b.terms) + b.constant >= 0 for b in s.bounds) for x in places)
                share *= SHORT * kept / len(places)
        found = min(found, share)
    return found
