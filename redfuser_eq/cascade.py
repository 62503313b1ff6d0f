"""The Cascade: what is computed, pass by pass.

Grammar
    Cascade     = sources, extents, Pass*, Output*
    Pass        = axis, Accumulator*          one traversal of `axis`; accumulators in dependence order
    Accumulator = name, op, axes, lift, rebase

A pass reads its stream axis once, in tiles. For each accumulator, in order:

    acc <- op( rebase(prev, acc...), fold(op, lift(acc...) over the tile) )

`lift` is the contribution of one element in the running values (`Acc`) of accumulators earlier in the
same pass and in the final values of earlier passes. `rebase` is the accumulator's previous value moved
to the present parameters, in `Prev` and `Acc`; None: the previous value itself. Merging two partial
states is the same formula: each side's state is read as `Prev`, the merged parameters as `Acc`.

A reduction inside a lift (over another axis, with the stream axis free) is evaluated in place for each
element: a contraction. An accumulator of an earlier pass that varies over the stream axis is an array in
memory, read like an input. `Output.expr` is over `Acc`; an output along a stream axis is one more sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import IRError
from .expr import Acc, Expr, Load, Output, Prev, Reduce, Source, check_expr, nodes, show
from .ops import MONOIDS


@dataclass(frozen=True)
class Accumulator:
    """op: a monoid of `ops.MONOIDS` (top-k: "top_values", whose state also holds the indices).
    axes: free axes in a fixed order (top-k: without `out`). dtype: of the running value, at least
    float32. k, out: top-k only."""

    name: str
    op: str
    axes: tuple[str, ...]
    dtype: np.dtype[Any]
    lift: Expr
    rebase: Expr | None = None
    k: int = 0
    out: str = ""

    @property
    def identity(self) -> float:
        return MONOIDS[self.op].identity

    def reads(self) -> frozenset[str]:
        """Accumulators whose running value the lift or the rebase reads."""
        roots = [self.lift] + ([self.rebase] if self.rebase is not None else [])
        return frozenset(e.name for e in nodes(*roots) if isinstance(e, Acc))

    def previous(self) -> frozenset[str]:
        """Accumulators whose previous value the rebase reads."""
        return frozenset() if self.rebase is None else frozenset(e.name for e in nodes(self.rebase) if isinstance(e, Prev))


@dataclass(frozen=True)
class Pass:
    axis: str
    accumulators: tuple[Accumulator, ...]

    def params(self) -> frozenset[str]:
        """Accumulators of this pass whose running value another one of this pass reads."""
        own = {a.name for a in self.accumulators}
        return frozenset(n for a in self.accumulators for n in a.reads() if n in own)

    def levels(self) -> list[list[Accumulator]]:
        """The accumulators by depth of dependence on running values of this pass."""
        depth: dict[str, int] = {}
        for a in self.accumulators:
            depth[a.name] = 1 + max((depth[n] for n in a.reads() if n in depth), default=-1)
        return [[a for a in self.accumulators if depth[a.name] == d] for d in range(1 + max(depth.values(), default=-1))]


@dataclass(frozen=True)
class Cascade:
    """A program of passes. extents: axis -> size, or None while symbolic. numerics: of `optimize`: "fast" and "strict" decide in
    which formats matrix instructions may multiply."""

    sources: tuple[Source, ...]
    passes: tuple[Pass, ...]
    outputs: tuple[Output, ...]
    extents: dict[str, int | None] = field(default_factory=dict)
    numerics: str = "default"

    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(a for p in self.passes for a in p.accumulators)

    def accumulator(self, name: str) -> Accumulator:
        return next(a for a in self.accumulators() if a.name == name)

    def stream_axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p.axis for p in self.passes))

    def count(self, axis: str) -> int:
        """Passes over an axis: traversals by accumulators (counting elements is none), and one for outputs that carry
        the axis and need a value reduced over it."""
        swept = sum(p.axis == axis and any(axis in a.lift.axes for a in p.accumulators) for p in self.passes)
        own = {a.name for p in self.passes if p.axis == axis for a in p.accumulators}
        writes = any(axis in o.axes and own & {e.name for e in nodes(o.expr) if isinstance(e, Acc)} for o in self.outputs)
        return swept + writes


def check(c: Cascade) -> None:
    """Enforce the grammar: scoping of axes and of accumulators, order of dependence, known monoids."""
    sources = {s.name: s for s in c.sources}
    done: dict[str, Accumulator] = {}
    for p in c.passes:
        own: set[str] = set()
        names = {a.name for a in p.accumulators}
        for a in p.accumulators:
            if a.name in done or a.name in own:
                raise IRError(f"accumulator {a.name!r} is defined twice")
            if a.op not in MONOIDS:
                raise IRError(f"accumulator {a.name!r}: unknown monoid {a.op!r}")
            _scope(a.lift, {*a.axes, p.axis}, f"lift of {a.name!r}")
            known = own | set(done)
            _known(a.lift, known, names if a.rebase is not None else set(), a.name, lift=True)
            check_expr(a.lift, sources, c.extents)
            if a.rebase is not None:
                _scope(a.rebase, set(a.axes), f"rebase of {a.name!r}")
                _known(a.rebase, known, names, a.name, lift=False)
                if any(isinstance(e, Load) and p.axis in e.axes for e in nodes(a.rebase)):
                    raise IRError(f"rebase of {a.name!r} loads along the stream axis {p.axis!r}")
            own.add(a.name)
        done |= {a.name: a for a in p.accumulators}
    for o in c.outputs:
        _scope(o.expr, set(o.axes), "output")
        _known(o.expr, set(done), set(), "output", lift=True)
        check_expr(o.expr, sources, c.extents)


def _scope(e: Expr, allowed: Iterable[str], where: str) -> None:
    loose = e.axes - set(allowed)
    if loose:
        raise IRError(f"{where}: axes {sorted(loose)} are not bound: {show(e)}")


def _known(root: Expr, accs: set[str], prevs: set[str], where: str, *, lift: bool) -> None:
    for e in nodes(root):
        if isinstance(e, Acc) and e.name not in accs:
            raise IRError(f"{where}: reads {e.name!r} before it is computed")
        if isinstance(e, Prev) and (lift or e.name not in prevs):
            raise IRError(f"{where}: previous value of {e.name!r} is not available here")


def passes_of(outputs: Iterable[Output], axis: str) -> int:
    """Traversals of an axis that the unfused program makes: one for each distinct reduction over it, and
    one for outputs along it that need a reduced value. A pick (a one-hot selection, see `is_pick`)
    touches one element a row and is no traversal."""
    outputs = tuple(outputs)
    reductions = [e for e in nodes(*(o.expr for o in outputs)) if isinstance(e, Reduce) and e.axis == axis]
    counted = {(e.op.replace("indices", "values"), e.body) for e in reductions if not is_pick(e) and axis in e.body.axes}
    writes = any(axis in o.axes and any(isinstance(e, Reduce) and e.axis == axis for e in nodes(o.expr)) for o in outputs)
    return len(counted) + writes


def is_pick(e: Reduce) -> bool:
    """sum_k where(k == i, x, 0) with i free of k: the one-index-per-row gather."""
    from .expr import Const, Index, Map

    w = e.body
    if not (e.op == "sum" and isinstance(w, Map) and w.op == "where"):
        return False
    c, _, other = w.args
    return (
        isinstance(c, Map)
        and c.op == "eq"
        and isinstance(other, Const)
        and other.value == 0
        and any(isinstance(a, Index) and a.axis == e.axis for a in c.args)
        and any(e.axis not in a.axes for a in c.args)
    )
