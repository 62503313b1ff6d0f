"""Cascade + GPU + extents -> Kernel for CUDA: which form each phase takes, and who computes what in it.

Groups of passes, roles of axes, levels, rebases and results are those of `schedule.py`. Forms, in the order they are tried:

mma    products on tensor cores (`cuda_tiles.py`)
tile   products and accumulators with columns, tiles in shared memory (`cuda_general.py`)
rows   everything else: threads side by side along a row, states in registers (`cuda_rows.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import cuda_general, cuda_rows, cuda_tiles
from .cascade import Cascade, check
from .codegen import kernel as ir
from .codegen.kernel_check import check as check_kernel
from .cuda_prologue import prologue, whole_sums
from .expr import Expr, Load
from .gpu import Gpu
from .phase import PhaseBuilder
from .roles import compute_type
from .schedule import Group, Scheduler

ELEMENT_THREADS = 256


@dataclass(frozen=True)
class _Sizes:
    """What the shared scheduling logic asks of a processor; a GPU thread works on one number at a time."""

    isa: str = "cuda"
    vector_bytes: int = 4
    cores: int = 1
    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 1 << 30
    pairs: tuple[str, ...] = ()


def schedule(
    cascade: Cascade,
    extents: Mapping[str, int],
    strides: Mapping[Any, Sequence[int]],
    gpu: Gpu,
    choice: Mapping[str, Any] | None = None,
    unmapped: Sequence[str] = (),
) -> ir.Kernel:
    """The Kernel of a cascade on a GPU.

    extents, strides: as in `schedule.schedule`. choice: decisions to overrule: form ("mma", "tile", "rows": the first to try),
    segment (elements of the stream, 0 for none), near (rows that are swept again in shared memory: False never, True even where
    registers hold them), threads, group, elems, rows, depth, parts, groups (False: no warpgroups), across (warpgroups that divide
    columns); None to take the fastest of a few by the performance model. unmapped: sources that no tensor map may describe, as those
    that start at no multiple of 16 bytes, and `cuda_copies.SCRATCH` for buffers. Raises Unsupported where the Kernel has no form."""
    check(cascade)
    if choice is None:
        from .cuda_choose import choose  # late: it asks for the schedules that it compares

        found = choose(cascade, extents, strides, gpu)
        if not unmapped:
            return found.kernel
        choice = found.choice
    made = {"unmapped": unmapped, **choice}
    try:
        return CudaScheduler(cascade, dict(extents), strides, gpu, made).kernel()
    except NotWhole:
        return CudaScheduler(cascade, dict(extents), strides, gpu, made, whole=False).kernel()


class NotWhole(Exception):
    """An integer sum cannot be left to matrix instructions."""


class CudaScheduler(Scheduler):
    """Scheduler for a GPU. whole: integer sums may be held in 32 bits by phases on tensor cores."""

    marks_in_stores = False

    def __init__(
        self,
        c: Cascade,
        extents: dict[str, int],
        strides: Mapping[Any, Sequence[int]],
        gpu: Gpu,
        choice: dict[str, Any],
        whole: bool = True,
    ):
        self.gpu = gpu
        self.whole = whole_sums(c, extents) if whole and choice.get("form", FORMS[0]) == "mma" else frozenset()
        super().__init__(c, extents | {ir.ROW: 1}, strides, _Sizes(), choice)

    def _compute_type(self) -> str:
        """Without the sums that are held in integers."""
        passes = [
            replace(p, accumulators=tuple(replace(a, dtype=np.dtype(np.float32)) if a.name in self.whole else a for a in p.accumulators))
            for p in self.c.passes
        ]
        return compute_type(replace(self.c, passes=tuple(passes)), self.extents)

    def written(self, e: Expr, dtype: np.dtype[Any], dims: tuple[str, ...], g: Group) -> Load:
        """A place in memory that a group's phase fills, along its stream, and later ones read like an argument."""
        name = f"written{len(self.outputs) - len(self.c.outputs)}"
        array = self._array(name, dtype, dims, (*(2 for _ in dims[1:]), 1))
        g.outputs.append((len(self.outputs), e))
        self.outputs += (array,)
        self.inputs += (array,)
        sizes = (*(ir.Size(x) for x in dims[:-1]), ir.Size(dims[-1], multiple=16))
        self.buffers.append(ir.Buffer(name, dims, sizes, shared=True, dtype=array.dtype))
        return Load(name, dims, dtype)

    def kernel(self) -> ir.Kernel:
        arguments = self.inputs
        groups = [y for g in self.groups() for x in prologue(self, g) for y in cuda_rows.apart(self, x)]
        self._place_outputs(groups)
        if any(n in self.whole for g in groups for n in g.exported):
            raise NotWhole
        phases: list[ir.Phase] = []
        for n, g in enumerate(groups):
            phases += self.builder(g, n).phases()
        phases += [self._map_phase(i, e) for i, e in self.late]
        names = tuple(a for a in self.extents if a != ir.ROW)
        kernel = ir.Kernel(
            "redfuser_kernel", self.real, 1, names, arguments, self.outputs[: len(self.c.outputs)], tuple(self.buffers), tuple(phases),
            self.flag_axes,
        )  # fmt: skip
        check_kernel(kernel)
        return kernel

    def builder(self, g: Group, number: int) -> PhaseBuilder:
        """What lowers a group of passes: the first form that fits."""
        buffers = list(self.buffers)
        for form in FORMS[FORMS.index(self.choice.get("form", FORMS[0])) :]:
            made = _BUILDERS[form](self, g, number)
            if made is not None:
                return made
            if g.names & self.whole:
                raise NotWhole
            self.buffers = list(buffers)
        raise AssertionError("rows is a form for every group")

    def element_phase(self, name: str, target: str, e: Expr, dims: Sequence[str]) -> ir.Phase:
        """target[dims] = e, an element a thread."""
        place = ir.Place("elements", ELEMENT_THREADS // 32)
        return ir.Phase(name, tuple(ir.Grid(a) for a in dims), (ir.Store(target, e),), place=place)


def _rows(s: CudaScheduler, g: Group, number: int) -> PhaseBuilder | None:
    return cuda_rows.RowsBuilder(s, g, number)


def _tile(s: CudaScheduler, g: Group, number: int) -> PhaseBuilder | None:
    return cuda_general.builder(s, g, number)


def _mma(s: CudaScheduler, g: Group, number: int) -> PhaseBuilder | None:
    return cuda_tiles.builder(s, g, number)


_BUILDERS = {"mma": _mma, "tile": _tile, "rows": _rows}
FORMS = tuple(_BUILDERS)
