"""Writing Cascades by hand: formulas with operators, accumulators of a pass, and what a test needs beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redfuser_eq.cascade import Accumulator, Cascade, Pass
from redfuser_eq.cascade import check as check_cascade
from redfuser_eq.expr import Acc, Cast, Const, Expr, Index, Load, Map, Output, Prev, Program, Reduce, Source, nodes, transform
from redfuser_eq.expr import check as check_program

Array = np.ndarray[Any, Any]
Extents = dict[str, int]
F32 = np.dtype(np.float32)
NEG = float("-inf")


@dataclass(frozen=True)
class Workload:
    """cascade: fused, by hand. program: as written out. plain: one pass for each reduction of `program`.
    extents: small sizes to try first. make(rng, extents): arrays aligned with `cascade.sources`.
    expected(*float64 arrays): the outputs, one dimension per axis of each output."""

    name: str
    cascade: Cascade
    program: Program
    plain: Cascade
    extents: Extents
    make: Callable[[np.random.Generator, Mapping[str, int]], list[Array]]
    expected: Callable[..., list[Array]]


class T:
    """Operators over `Expr`, for writing formulas."""

    def __init__(self, e: Expr) -> None:
        self.e = e

    def __add__(self, o: Any) -> T:
        return _map("add", self, o)

    def __sub__(self, o: Any) -> T:
        return _map("sub", self, o)

    def __mul__(self, o: Any) -> T:
        return _map("mul", self, o)

    def __truediv__(self, o: Any) -> T:
        return _map("div", self, o)

    def __neg__(self) -> T:
        return _map("neg", self)


def _map(op: str, *args: Any) -> T:
    dtype = next(a.e.dtype for a in reversed(args) if isinstance(a, T))
    return T(Map(op, tuple(a.e if isinstance(a, T) else Const(a, dtype) for a in args)))


def fn(op: str) -> Callable[..., T]:
    return lambda *args: _map(op, *args)


exp, log, square, rsqrt, where = fn("exp"), fn("log"), fn("square"), fn("rsqrt"), fn("where")
le, lt, gt, eq, both, tanh = fn("le"), fn("lt"), fn("gt"), fn("eq"), fn("logical_and"), fn("tanh")


def load(name: str, axes: Sequence[str], dtype: Any = F32) -> T:
    return T(Load(name, tuple(axes), dtype))


def index(axis: str) -> T:
    return T(Index(axis))


def const(value: float, dtype: Any = F32) -> T:
    return T(Const(value, dtype))


def cast(x: T, dtype: Any) -> T:
    return T(Cast(x.e, dtype))


def total(axis: str, x: T, op: str = "sum") -> T:
    return T(Reduce(op, axis, x.e))


def top(axis: str, x: T, k: int, out: str, what: str = "values") -> T:
    return T(Reduce(f"top_{what}", axis, x.e, k, out))


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of a running value."""
    if dtype.kind in "iub":
        return np.dtype(bool) if dtype.kind == "b" else np.dtype(np.int64)
    return dtype if dtype.itemsize >= 4 and dtype.kind == "f" else F32


class Builder:
    """Accumulators of one pass over `axis`, in order; `order` fixes the order of their axes."""

    def __init__(self, axis: str, order: Sequence[str]) -> None:
        self.axis, self.order = axis, tuple(order)
        self.accs: list[Accumulator] = []

    def add(self, name: str, op: str, lift: T, rebase: T | None = None, k: int = 0, out: str = "") -> T:
        axes = tuple(a for a in self.order if a in lift.e.axes - {self.axis})
        made = Accumulator(name, op, axes, wide(lift.e.dtype), lift.e, None if rebase is None else rebase.e, k, out)
        self.accs.append(made)
        return T(Acc(name, frozenset(axes) | ({out} if out else set()), made.dtype))

    def prev(self, name: str, x: T) -> T:
        """The previous value of an accumulator that lifts `x` (so that it can be named in its own rebase)."""
        return T(Prev(name, frozenset(x.e.axes - {self.axis}), wide(x.e.dtype)))

    def done(self) -> Pass:
        return Pass(self.axis, tuple(self.accs))


def workload(
    name: str,
    extents: Extents,
    passes: Sequence[Pass],
    outputs: Sequence[tuple[T, Sequence[str]]],
    written: Sequence[T],
    make: Callable[..., list[Array]],
    expected: Callable[..., list[Array]],
    streams: Sequence[str] | None = None,
    out_dtype: Any = None,
) -> Workload:
    """Assemble and check a workload: `outputs` over accumulators, `written` the same without."""
    loads = {e.source: e for e in nodes(*(w.e for w in written)) if isinstance(e, Load)}
    sources = tuple(Source(n, i, loads[n].dtype, len(loads[n].dims)) for i, n in enumerate(sorted(loads)))
    symbolic: dict[str, int | None] = dict.fromkeys(extents)

    def outs(exprs: Sequence[T]) -> tuple[Output, ...]:
        return tuple(
            Output(x.e, tuple((a,) for a in axes), np.dtype(out_dtype or y.e.dtype)) for x, (y, axes) in zip(exprs, outputs, strict=True)
        )

    program = Program(tuple(s.name for s in sources), sources, symbolic, outs(written))
    check_program(program)
    cascade = Cascade(sources, tuple(passes), outs([x for x, _ in outputs]), symbolic)
    check_cascade(cascade)
    plain = unfused(program, streams or [p.axis for p in passes])
    check_cascade(plain)
    return Workload(name, cascade, program, plain, extents, make, expected)


def unfused(program: Program, streams: Sequence[str]) -> Cascade:
    """One pass for each reduction over a stream axis, in order of dependence; other reductions stay inside."""
    passes: list[Pass] = []
    accs: dict[tuple[Any, ...], Accumulator] = {}

    def f(e: Expr) -> Expr | None:
        if not (isinstance(e, Reduce) and e.axis in streams):
            return None
        body = transform(e.body, f)
        op = "top_values" if e.op == "top_indices" else e.op
        key = (op, e.axis, body, e.k, e.out)
        if key not in accs:
            axes = tuple(sorted(body.axes - {e.axis}))
            accs[key] = Accumulator(f"t{len(accs)}", op, axes, wide(body.dtype), body, None, e.k, e.out)
            passes.append(Pass(e.axis, (accs[key],)))
        a = accs[key]
        if e.op in ("argmax", "argmin", "top_indices"):
            return Acc(a.name, e.axes, np.int64, "index")
        return Acc(a.name, e.axes, a.dtype)

    outputs = tuple(Output(transform(o.expr, f), o.dims, o.dtype) for o in program.outputs)
    return Cascade(program.sources, tuple(passes), outputs, program.extents)


def normal(**shapes: Sequence[str]) -> Callable[..., list[Array]]:
    """A maker of standard normal float32 arrays, sources in name order."""

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        return [rng.standard_normal([ext[a] for a in axes], dtype=np.float32) for _, axes in sorted(shapes.items())]

    return make


def shifted(b: Builder, x: T, m: str = "m", s: str = "s") -> tuple[T, T, T]:
    """The running max and the sum of exponentials shifted by it: (max, sum, the factor of old sums)."""
    mx = b.add(m, "max", x)
    drop = exp(b.prev(m, x) - mx)
    sm = b.add(s, "sum", exp(x - mx), b.prev(s, x) * drop)
    return mx, sm, drop


def running_mean(b: Builder, x: T, name: str = "a") -> tuple[T, T, T, T]:
    """(mean, previous mean, count, previous count) of x over the builder's axis."""
    one = const(1.0)
    n = b.add("n", "sum", one)
    a = b.add(name, "sum", x)
    before = b.prev("n", one)
    return a / n, b.prev(name, x) / before, n, before


def softmax64(z: Array, axis: int = -1) -> Array:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def lse64(z: Array, axis: int = -1) -> Array:
    m = z.max(axis, keepdims=True)
    return np.log(np.exp(z - m).sum(axis)) + np.squeeze(m, axis)


def expected(w: Workload, arrays: Sequence[Array]) -> list[Array]:
    """What a workload should give, in float64."""
    with np.errstate(all="ignore"):
        return w.expected(*(a.astype(np.float64) for a in arrays))


def close(got: Sequence[Array], want: Sequence[Array], tolerance: float = 3e-6) -> None:
    """Shapes are equal, values too up to a tolerance relative to themselves and to the largest one."""
    for g, e in zip(got, want, strict=True):
        assert g.shape == np.shape(e)
        scale = np.max(np.abs(e), initial=0, where=np.isfinite(e))
        np.testing.assert_allclose(g.astype(np.float64), e, rtol=tolerance, atol=tolerance * max(1e-3, scale))
