"""Cascade + device + extents -> Kernel: which loops, which lanes, which tiles.

A run of passes with the same row side becomes one phase: a parallel loop over the rows, and inside it sequential loops over
tiles of the stream. What a later phase needs lies in memory between them. Decisions rest on the classes of the axes
(`roles.py`), extents and strides, never on what the workload is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .cascade import Accumulator, Cascade, Pass, check
from .codegen import kernel as ir
from .codegen.dtypes import DTYPES
from .codegen.kernel_check import check as check_kernel
from .errors import RedfuserError
from .expr import Acc, Expr, Load, Map, Reduce, nodes, show
from .ops import MONOIDS
from .pairs import long_sums
from .passes import loops_twice
from .products import ProductBuilder
from .roles import Roles, classify, compute_type, rename_sources
from .tiles import SEGMENT_BYTES, Device, Sizes


class Unsupported(RedfuserError, NotImplementedError):
    """The Kernel has no form for this cascade; the message says why. The caller runs the NumPy program instead."""


def schedule(
    cascade: Cascade,
    extents: Mapping[str, int],
    strides: Mapping[Any, Sequence[int]],
    device: Device,
    threads: int | None = None,
    choice: Mapping[str, Any] | None = None,
) -> ir.Kernel:
    """The Kernel of a cascade.

    extents: size of every axis. strides: for each source name its strides in elements, one a dimension (row-major when
    absent); for output i, key i, one stride for each axis of `Output.axes`. choice: decisions to overrule (see `candidates`); flags: False
    where rows that are not finite need no marks.
    Raises Unsupported where the Kernel has no form for the cascade."""
    check(cascade)
    del threads
    return Scheduler(cascade, dict(extents), strides, device, dict(choice or {})).kernel()


def candidates(
    cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, Sequence[int]], device: Device, threads: int | None = None
) -> list[dict[str, Any]]:
    """A few sets of decisions worth measuring, the analytic one first."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for choice in ({}, {"lanes": "row"}, {"lanes": "stream"}, {"depth": 256}, {"depth": 1024}, {"depth": 128}):
        key = schedule(cascade, extents, strides, device, threads, choice).key
        if key not in seen:
            seen.add(key)
            found.append(choice)
    return found


def row_major(dims: Sequence[str], extents: Mapping[str, int]) -> tuple[int, ...]:
    """Strides of a contiguous array, in elements."""
    out, step = [], 1
    for d in reversed(dims):
        out.append(step)
        step *= extents[d]
    return tuple(reversed(out))


@dataclass
class Group:
    """Passes that become one phase."""

    passes: list[Pass]
    roles: list[Roles]
    exported: list[str] = field(default_factory=list)
    outputs: list[tuple[int, Expr]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {a.name for p in self.passes for a in p.accumulators}


class Scheduler:
    marks_in_stores = True  # a store that reads an accumulator also looks whether it is finite

    def __init__(self, c: Cascade, extents: dict[str, int], strides: Mapping[Any, Sequence[int]], device: Device, choice: dict[str, Any]):
        self.c, self.extents, self.strides, self.device, self.choice = c, extents, strides, device, choice
        self.real = self._compute_type()
        self.lanes = max(1, device.vector_bytes // (4 if self.real == "float" else 8))
        self.buffers: list[ir.Buffer] = []
        self.memory: dict[tuple[str, str], Load] = {}
        self.segmented = False
        self.sizes = Sizes(device, self.lanes, 4 if self.real == "float" else 8)
        self.real_dtype = np.dtype(np.float32 if self.real == "float" else np.float64)
        self.inputs = self._inputs()
        self.outputs = tuple(
            self._array(f"out{i}", o.dtype, o.axes, strides.get(i, row_major(o.axes, extents))) for i, o in enumerate(c.outputs)
        )
        self._refuse()

    def _compute_type(self) -> str:
        """ "double" also where an integer sum inside an element outgrows float."""
        return "double" if long_sums(self._roots(), self.extents) else compute_type(self.c, self.extents)

    def _roots(self) -> list[Expr]:
        """Every expression of the cascade."""
        return [e for a in self.c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in self.c.outputs]

    def _array(self, name: str, dtype: np.dtype[Any], dims: Sequence[str], strides: Sequence[int]) -> ir.Array:
        if dtype.name not in DTYPES:
            raise Unsupported(f"{name!r} has dtype {dtype}, which the kernels cannot read or write; convert it first")
        return ir.Array(name, DTYPES[dtype.name], tuple(dims), tuple(s if s in (0, 1) else None for s in strides))

    def _inputs(self) -> tuple[ir.Array, ...]:
        """Sources by name. A source loaded with several orders of axes is several arrays over one pointer."""
        out = []
        roots = self._roots()
        dims: dict[str, tuple[str, ...]] = {}
        for e in nodes(*roots):
            if isinstance(e, Load):
                dims.setdefault(e.source, e.dims)
        for s in self.c.sources:
            own = dims.get(s.name)
            if own is None:
                out.append(self._array(s.name, s.dtype, (), ()))
                continue
            out.append(self._array(s.name, s.dtype, own, self.strides.get(s.name, row_major(own, self.extents))))
        return tuple(out)

    def _refuse(self) -> None:
        """Arithmetic that wraps, top-k inside an element, and one axis in two loops at once, are left to NumPy."""
        if twice := loops_twice(self.c):
            raise Unsupported(f"one pass reduces {sorted(twice)} in place, in running values, and has running values along them")
        for e in nodes(*self._roots()):
            if isinstance(e, Reduce) and MONOIDS[e.op].state == "top":
                raise Unsupported(f"{show(e)} is a top-k inside an element")
            wraps = e.dtype.kind == "u" or (e.dtype.kind == "i" and e.dtype.itemsize < 4)
            if isinstance(e, Map) and e.op in ("add", "sub", "mul", "neg", "square", "power") and wraps:
                raise Unsupported(f"{show(e)} is {e.dtype} arithmetic, which wraps; convert to int64 or a float first")
            if e.dtype.kind not in "fiubV" and e.dtype.name not in DTYPES:
                raise Unsupported(f"{show(e)} is of dtype {e.dtype}")

    # ---- groups
    def groups(self) -> list[Group]:
        """Consecutive passes over one axis with the same row side share a phase, unless one reads another's columns."""
        out: list[Group] = []
        for p in self.c.passes:
            r = classify(p)
            if out and self._joins(out[-1], p, r):
                out[-1].passes.append(p)
                out[-1].roles.append(r)
            else:
                out.append(Group([p], [r]))
        return out

    def _joins(self, g: Group, p: Pass, r: Roles) -> bool:
        if g.passes[0].axis != p.axis:
            return False
        known = {a.name: (a, q.columns[a.name]) for q, o in zip(g.roles, g.passes, strict=True) for a in o.accumulators}
        read = {n for a in p.accumulators for n in a.reads() if n in known}
        rows = set(g.roles[-1].rows)
        if any(known[n][1] or p.axis in known[n][0].axes for n in read):
            return False
        if set(r.rows) == rows:
            return True
        # a pass may also see the other's rows as its own when its accumulators vary over all of them
        return bool(read) and all(rows <= set(a.axes) for a in p.accumulators)

    def kernel(self) -> ir.Kernel:
        groups = self.groups()
        self._place_outputs(groups)
        phases: list[ir.Phase] = []
        notes: list[str] = []
        for n, g in enumerate(groups):
            b = ProductBuilder(self, g, n)
            phases += b.phases()
        phases += [self._map_phase(i, e) for i, e in self.late]
        kernel = ir.Kernel(
            "redfuser_kernel", self.real, self.lanes, tuple(self.extents), self.inputs, self.outputs, tuple(self.buffers), tuple(phases),
            self.flag_axes, tuple(notes),
        )  # fmt: skip
        check_kernel(kernel)
        return kernel

    def _place_outputs(self, groups: list[Group]) -> None:
        """Each output is stored by the phase that knows everything it needs, else by a phase of its own at the end."""
        sides = [set(self.row_side(g)) for g in groups]
        common = set.intersection(*sides) if sides else set()
        first = self.row_side(groups[0]) if groups else ()
        self.flag_axes = tuple(x for x in first if x in common) if self.choice.get("flags", True) else None
        self.late: list[tuple[int, Expr]] = []
        owner = {n: i for i, g in enumerate(groups) for n in g.names}
        late: list[int] = []
        for i, o in enumerate(self.c.outputs):
            used = sorted({owner[e.name] for e in nodes(o.expr) if isinstance(e, Acc)})
            if used and self._fits(groups[used[-1]], o.axes):
                groups[used[-1]].outputs.append((i, o.expr))
                late += used[:-1]
            else:
                late += used
                self.late.append((i, o.expr))
        for i, g in enumerate(groups):
            later = [e for h in groups[i + 1 :] for p in h.passes for a in p.accumulators for e in (a.lift, a.rebase) if e is not None]
            later += [e for h in groups[i + 1 :] for _, e in h.outputs] + [e for _, e in self.late]
            read = {e.name for e in nodes(*later) if isinstance(e, Acc)}
            g.exported = [a.name for p in g.passes for a in p.accumulators if a.name in read]
            for a in (a for p in g.passes for a in p.accumulators if a.name in g.exported):
                self._export(a)
        self.late = [(i, rename_sources(e, self.memory)) for i, e in self.late]

    def _fits(self, g: Group, axes: Sequence[str]) -> bool:
        """The output varies over every row of the group, and beyond them over the stream alone or over columns. A stream so
        long that it is cut into segments leaves such an output to a phase of its own, which is as parallel."""
        rest = set(axes) - set(self.row_side(g))
        stream = g.passes[-1].axis
        if not set(self.row_side(g)) <= set(axes):
            return False
        if stream not in rest:
            return True
        return rest == {stream} and self.extents[stream] * self.sizes.element <= SEGMENT_BYTES

    def _export(self, a: Accumulator) -> None:
        """A place in memory for an accumulator that a later phase reads."""
        dims = (*a.axes, *((a.out,) if a.out else ()))
        sizes = tuple(ir.Size(d) for d in dims)
        for suffix, name in (("", (a.name, "value")), ("_at", (a.name, "index"))):
            if suffix and MONOIDS[a.op].state == "value":
                continue
            buffer = f"{a.name}{suffix}@memory"
            self.buffers.append(ir.Buffer(buffer, dims, sizes, shared=True))
            dtype = np.dtype(np.int64) if suffix else a.dtype
            self.memory[name] = Load(buffer, dims, dtype)

    def is_buffer(self, name: str) -> bool:
        return any(b.name == name for b in self.buffers)

    def is_local(self, name: str) -> bool:
        """Whether this is no array: scratch, or a raw tile in registers."""
        return not any(a.name == name for a in self.inputs)

    def row_side(self, g: Group) -> tuple[str, ...]:
        return tuple(dict.fromkeys(x for r in g.roles for x in r.rows))

    def _map_phase(self, i: int, e: Expr) -> ir.Phase:
        """An output of its own: element by element, from memory."""
        return self.element_phase(f"output {i}", self.outputs[i].name, e, self.outputs[i].dims)

    def element_phase(self, name: str, target: str, e: Expr, dims: Sequence[str]) -> ir.Phase:
        """target[dims] = e, in parallel over all but the last axis and tiles of that one."""
        if not dims:
            return ir.Phase(name, (), (ir.Store(target, e),))
        *outer, last = dims
        step = 64 * self.lanes
        grid = (*(ir.Grid(a) for a in outer), ir.Grid(last, step))
        return ir.Phase(name, grid, (ir.Store(target, e),), row=last, rows=step)
