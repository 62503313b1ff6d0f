"""Rows that a kernel flags, because a running parameter did not end finite, computed again by the plain program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cascade import Cascade
from ..interpret import Array, Frame, Range
from .numpy import Plan, tiles


class Repair:
    """The plain cascade of a program, run on chosen rows only; plans are kept per extents."""

    def __init__(self, plain: Cascade) -> None:
        self.plain = plain
        self._plans: dict[tuple[tuple[str, int], ...], Plan] = {}

    def __call__(
        self, arrays: Sequence[Array], extents: Mapping[str, int], axes: Sequence[str], rows: np.ndarray[Any, Any], results: Sequence[Array]
    ) -> None:
        """Overwrite `results` where `rows` is set.

        arrays: one for each source, viewed. rows: booleans over `axes`. An axis that the plain program does not cut into
        tiles is recomputed whole: the values are the plain program's all the same."""
        plan = self._plan(extents)
        frame = Frame(plan.layout.order, extents, {s.name: a for s, a in zip(self.plain.sources, arrays, strict=True)})
        outer = set(plan.layout.outer)
        whole = tuple(i for i, a in enumerate(axes) if a not in outer)
        bad: np.ndarray[Any, Any] = np.any(rows, axis=whole, keepdims=True)
        order = [a for a in frame.order if a in axes]
        shape = [bad.shape[axes.index(a)] if a in axes else 1 for a in frame.order]
        bad = bad.transpose([axes.index(a) for a in order]).reshape(shape)
        with np.errstate(all="ignore"):
            for ranges in tiles(plan.layout.outer, plan.layout.tiles, extents):
                here = bad[tuple(ranges.get(a, slice(None)) if bad.shape[i] > 1 else slice(None) for i, a in enumerate(frame.order))]
                if here.any():
                    self._tile(plan, frame, ranges, here, results)

    def _plan(self, extents: Mapping[str, int]) -> Plan:
        key = tuple(extents.items())
        if key not in self._plans:
            if len(self._plans) > 64:
                self._plans.clear()
            self._plans[key] = Plan(self.plain, extents)
        return self._plans[key]

    def _tile(self, plan: Plan, frame: Frame, ranges: Mapping[str, slice], bad: np.ndarray[Any, Any], results: Sequence[Array]) -> None:
        """Only the rows along the outer axis where they are rarest, gathered."""
        chosen: dict[str, Range] = dict(ranges)
        along = {a: bad.any(axis=tuple(i for i in range(bad.ndim) if i != d)) for a, d in frame.dims.items() if bad.shape[d] > 1}
        if along:
            axis = min(along, key=lambda a: along[a].mean())
            at = np.flatnonzero(along[axis])
            chosen[axis] = ranges[axis].start + at
            bad = np.take(bad, at, axis=frame.dims[axis])
        plan.write(frame, chosen, plan.passes(frame, chosen), results, bad)
