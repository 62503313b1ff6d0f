"""Hand-written Cascades with the programs they come from, random inputs, and float64 expectations.

Each function below gives a `Workload`. They are written as a person would derive them on paper, so that
the interpreters and the backends can be tested without the discovery stage. `WORKLOADS` lists them all.
"""

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


def softmax64(z: Array, axis: int = -1) -> Array:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def lse64(z: Array, axis: int = -1) -> Array:
    m = z.max(axis, keepdims=True)
    return np.log(np.exp(z - m).sum(axis)) + np.squeeze(m, axis)


# ---- rows


def logsumexp(dtype: Any = F32, axes: str = "rk") -> Workload:
    x = load("x", axes, dtype)
    b = Builder("k", "r")
    m, s, _ = shifted(b, x)
    top_ = total("k", x, "max")
    written = top_ + log(total("k", exp(x - top_)))

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        return [(rng.standard_normal([ext[a] for a in axes]) * 3).astype(dtype)]

    return workload(
        "logsumexp" if axes == "rk" else "logsumexp_axis0",
        {"r": 5, "k": 203},
        [b.done()],
        [(m + log(s), "r")],
        [written],
        make,
        lambda x: [lse64(x, axes.index("k"))],
        out_dtype=dtype,
    )


def logsumexp_axis0() -> Workload:
    return logsumexp(axes="kr")


def softmax() -> Workload:
    x = load("x", "rk")
    b = Builder("k", "r")
    m, s, _ = shifted(b, x)
    p = exp(x - total("k", x, "max"))
    return workload(
        "softmax", {"r": 5, "k": 99}, [b.done()], [(exp(x - m) / s, "rk")], [p / total("k", p)], normal(x="rk"), lambda x: [softmax64(x)]
    )


def entropy() -> Workload:
    x = load("x", "rk")
    b = Builder("k", "r")
    m, s, drop = shifted(b, x)
    t = b.add("t", "sum", exp(x - m) * (x - m), b.prev("t", x) * drop + drop * (b.prev("m", x) - m) * b.prev("s", x))
    e = exp(x - total("k", x, "max"))
    p = e / total("k", e)
    return workload(
        "entropy",
        {"r": 4, "k": 117},
        [b.done()],
        [(log(s) - t / s, "r")],
        [-total("k", p * log(p))],
        normal(x="rk"),
        lambda x: [-(softmax64(x) * np.log(softmax64(x))).sum(-1)],
    )


def kl() -> Workload:
    x, y = load("x", "rk"), load("y", "rk")
    b = Builder("k", "r")
    m, s, drop = shifted(b, x)
    n, z, _ = shifted(b, y, "n", "z")
    gap = (x - m) - (y - n)
    moved = (b.prev("m", x) - m) - (b.prev("n", y) - n)
    t = b.add("t", "sum", exp(x - m) * gap, b.prev("t", x) * drop + drop * moved * b.prev("s", x))

    def logp(v: T) -> T:
        sh = v - total("k", v, "max")
        return sh - log(total("k", exp(sh)))

    def expected(x: Array, y: Array) -> list[Array]:
        p, q = softmax64(x), softmax64(y)
        return [(p * (np.log(p) - np.log(q))).sum(-1)]

    return workload(
        "kl",
        {"r": 3, "k": 91},
        [b.done()],
        [(t / s - log(s) + log(z), "r")],
        [total("k", exp(logp(x)) * (logp(x) - logp(y)))],
        normal(x="rk", y="rk"),
        expected,
    )


def _mean(b: Builder, x: T, name: str = "a") -> tuple[T, T, T, T]:
    """(mean, previous mean, count, previous count) of x over the builder's axis."""
    one = const(1.0)
    n = b.add("n", "sum", one)
    a = b.add(name, "sum", x)
    before = b.prev("n", one)
    return a / n, b.prev(name, x) / before, n, before


def variance(dtype: Any = F32) -> Workload:
    x = cast(load("x", "rk", dtype), F32) if np.dtype(dtype).itemsize < 4 else load("x", "rk", dtype)
    b = Builder("k", "r")
    mean, old, n, before = _mean(b, x)
    q = b.add("q", "sum", square(x - mean), b.prev("q", x) + before * square(old - mean))
    count = total("k", const(1.0))
    mu = total("k", x) / count

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        return [(rng.standard_normal((ext["r"], ext["k"])) + 5).astype(dtype)]

    return workload(
        "variance",
        {"r": 4, "k": 211},
        [b.done()],
        [(q / n, "r")],
        [total("k", square(x - mu)) / count],
        make,
        lambda x: [x.var(-1)],
    )


def weighted_variance() -> Workload:
    x, w = load("x", "rk"), load("w", "rk")
    b = Builder("k", "r")
    s, a = b.add("s", "sum", w), b.add("a", "sum", w * x)
    mean, old = a / s, b.prev("a", x) / b.prev("s", x)
    q = b.add("q", "sum", w * square(x - mean), b.prev("q", x) + b.prev("s", x) * square(old - mean))
    mu = total("k", w * x) / total("k", w)

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        w, x = normal(w="rk", x="rk")(rng, ext)
        return [np.abs(w), x]

    def expected(w: Array, x: Array) -> list[Array]:
        mu = (w * x).sum(-1, keepdims=True) / w.sum(-1, keepdims=True)
        return [(w * (x - mu) ** 2).sum(-1) / w.sum(-1)]

    return workload(
        "weighted_variance",
        {"r": 3, "k": 177},
        [b.done()],
        [(q / s, "r")],
        [total("k", w * square(x - mu)) / total("k", w)],
        make,
        expected,
    )


def softmax_variance() -> Workload:
    """Mean and variance of v under softmax(x): three levels of dependence."""
    x, v = load("x", "rk"), load("v", "rk")
    b = Builder("k", "r")
    m, s, drop = shifted(b, x)
    a = b.add("a", "sum", exp(x - m) * v, b.prev("a", x) * drop)
    mean, old = a / s, b.prev("a", x) / b.prev("s", x)
    again = drop * b.prev("s", x) * square(old - mean)
    q = b.add("q", "sum", exp(x - m) * square(v - mean), b.prev("q", x) * drop + again)
    e = exp(x - total("k", x, "max"))
    p = e / total("k", e)
    mu = total("k", p * v)

    def expected(v: Array, x: Array) -> list[Array]:
        p = softmax64(x)
        mu = (p * v).sum(-1, keepdims=True)
        return [mu[..., 0], (p * (v - mu) ** 2).sum(-1)]

    return workload(
        "softmax_variance",
        {"r": 3, "k": 177},
        [b.done()],
        [(a / s, "r"), (q / s, "r")],
        [mu, total("k", p * square(v - mu))],
        normal(x="rk", v="rk"),
        expected,
    )


def covariance() -> Workload:
    x, y = load("x", "rk"), load("y", "rk")
    b = Builder("k", "r")
    one = const(1.0)
    n, a, c = b.add("n", "sum", one), b.add("a", "sum", x), b.add("c", "sum", y)
    nb = b.prev("n", one)
    mx, my, ox, oy = a / n, c / n, b.prev("a", x) / nb, b.prev("c", y) / nb
    q = b.add("q", "sum", (x - mx) * (y - my), b.prev("q", x) + nb * (ox - mx) * (oy - my))
    count = total("k", one)
    u, w = total("k", x) / count, total("k", y) / count

    def expected(x: Array, y: Array) -> list[Array]:
        return [((x - x.mean(-1, keepdims=True)) * (y - y.mean(-1, keepdims=True))).mean(-1)]

    return workload(
        "covariance",
        {"r": 3, "k": 133},
        [b.done()],
        [(q / n, "r")],
        [total("k", (x - u) * (y - w)) / count],
        normal(x="rk", y="rk"),
        expected,
    )


def several() -> Workload:
    """Mean, variance, max, log-sum-exp of the same rows, and the maximum's place."""
    x = load("x", "rk")
    b = Builder("k", "r")
    m, s, _ = shifted(b, x)
    mean, old, n, before = _mean(b, x)
    q = b.add("q", "sum", square(x - mean), b.prev("q", x) + before * square(old - mean))
    b.add("where", "argmax", x)
    place = T(Acc("where", frozenset("r"), np.int64, "index"))
    count, hi = total("k", const(1.0)), total("k", x, "max")
    mu = total("k", x) / count
    return workload(
        "several",
        {"r": 5, "k": 123},
        [b.done()],
        [(mean, "r"), (q / n, "r"), (m, "r"), (m + log(s), "r"), (place, "r")],
        [mu, total("k", square(x - mu)) / count, hi, hi + log(total("k", exp(x - hi))), total("k", x, "argmax")],
        normal(x="rk"),
        lambda x: [x.mean(-1), x.var(-1), x.max(-1), lse64(x), x.argmax(-1)],
    )


def plain_monoids() -> Workload:
    """min, prod, any, all and an integer sum: reductions that depend on nothing."""
    x, i = load("x", "rk"), load("i", "rk", np.int32)
    b = Builder("k", "r")
    made = [
        b.add("lo", "min", x),
        b.add("p", "prod", x),
        b.add("some", "any", gt(x, 2.0)),
        b.add("every", "all", gt(x, 0.5)),
        b.add("n", "sum", i),
        b.add("hi", "max", i),
    ]
    written = [
        total("k", x, "min"),
        total("k", x, "prod"),
        total("k", gt(x, 2.0), "any"),
        total("k", gt(x, 0.5), "all"),
        T(Reduce("sum", "k", i.e, dtype=np.int64)),
        total("k", i, "max"),
    ]

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        shape = (ext["r"], ext["k"])
        return [rng.integers(-(2**31), 2**31, shape).astype(np.int32), np.exp2(rng.uniform(-1, 1.1, shape)).astype(np.float32)]

    def expected(i: Array, x: Array) -> list[Array]:
        n = i.astype(np.int64)
        return [x.min(-1), x.prod(-1), (x > 2).any(-1), (x > 0.5).all(-1), n.sum(-1), n.max(-1)]

    return workload("plain_monoids", {"r": 5, "k": 77}, [b.done()], [(t, "r") for t in made], written, make, expected)


# ---- attention


def _attention(
    name: str,
    extents: Extents,
    q: str,
    k: str,
    v: str,
    out: str,
    expected: Callable[..., list[Array]],
    dtype: Any = F32,
    score: Callable[[T], T] = lambda s: s,
    **more: str,
) -> Workload:
    """softmax(score(q . k)) . v over the stream axis j, the inner axis e and the column axis d."""
    raw = total("e", load("q", q, dtype) * load("k", k, dtype))
    s = score(raw)
    value = load("v", v, dtype)
    b = Builder("j", out)
    m, z, drop = shifted(b, s)
    o = b.add("o", "sum", exp(s - m) * value, b.prev("o", exp(s) * value) * drop)
    p = exp(s - total("j", s, "max"))
    shapes = {"q": q, "k": k, "v": v} | more

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        return [a.astype(dtype) for a in normal(**shapes)(rng, ext)]

    return workload(name, extents, [b.done()], [(o / z, out)], [total("j", p / total("j", p) * value)], make, expected, out_dtype=dtype)


def _attend(z: Array, v: Array) -> list[Array]:
    return [softmax64(z) @ v]


def attention(dtype: Any = F32) -> Workload:
    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return _attend(q @ k.swapaxes(-1, -2) * 0.25, v)

    ext = {"b": 2, "h": 2, "i": 37, "j": 75, "e": 16, "d": 20}
    return _attention("attention", ext, "bhie", "bhje", "bhjd", "bhid", expected, dtype, lambda s: s * 0.25)


def attention_causal() -> Workload:
    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        z = q @ k.swapaxes(-1, -2) * 0.25
        return _attend(np.where(np.tri(*z.shape[-2:], dtype=bool), z, NEG), v)

    ext = {"h": 2, "i": 67, "j": 67, "e": 16, "d": 20}
    mask = le(index("j"), index("i"))
    return _attention("attention_causal", ext, "hie", "hje", "hjd", "hid", expected, score=lambda s: where(mask, s * 0.25, NEG))


def attention_window() -> Workload:
    """Causal with a left window of 5: whole tiles are masked on both sides."""

    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        z = q @ k.swapaxes(-1, -2) * 0.25
        i, j = np.ogrid[: z.shape[-2], : z.shape[-1]]
        return _attend(np.where((j <= i) & (i - j < 5), z, NEG), v)

    ext = {"h": 2, "i": 67, "j": 67, "e": 16, "d": 20}
    i, j = index("i"), index("j")
    mask = both(le(j, i), lt(i - j, 5))
    return _attention("attention_window", ext, "hie", "hje", "hjd", "hid", expected, score=lambda s: where(mask, s * 0.25, NEG))


def attention_bias() -> Workload:
    """A full bias and a tanh soft cap."""

    def expected(b: Array, k: Array, q: Array, v: Array) -> list[Array]:
        return _attend(np.tanh(q @ k.swapaxes(-1, -2) * 0.25 / 3) * 3 + b, v)

    def score(s: T) -> T:
        return tanh(s * 0.25 / 3.0) * 3.0 + load("b", "hij")

    ext = {"h": 2, "i": 37, "j": 75, "e": 16, "d": 20}
    return _attention("attention_bias", ext, "hie", "hje", "hjd", "hid", expected, score=score, b="hij")


def attention_gqa() -> Workload:
    """Grouped queries: g key heads, r query heads for each."""

    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return [softmax64(np.einsum("bgrie,bgje->bgrij", q, k)) @ v[:, :, None]]

    ext = {"b": 2, "g": 2, "r": 3, "i": 13, "j": 75, "e": 16, "d": 20}
    return _attention("attention_gqa", ext, "bgrie", "bgje", "bgjd", "bgrid", expected)


def decode() -> Workload:
    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return [np.einsum("hj,hjd->hd", softmax64(np.einsum("he,hje->hj", q, k) * 0.2), v)]

    return _attention("decode", {"h": 3, "j": 307, "e": 24, "d": 40}, "he", "hje", "hjd", "hd", expected, score=lambda s: s * 0.2)


def mla() -> Workload:
    """Query heads that share keys and values."""

    def expected(k: Array, q: Array, v: Array) -> list[Array]:
        return [softmax64(np.einsum("bhe,bje->bhj", q, k) * 0.2) @ v]

    ext = {"b": 2, "h": 11, "j": 231, "e": 24, "d": 18}
    return _attention("mla", ext, "bhe", "bje", "bjd", "bhd", expected, score=lambda s: s * 0.2)


# ---- matrix products with statistics


def linear_logsumexp() -> Workload:
    z = total("h", load("x", "rh") * load("w", "vh"))
    b = Builder("v", "r")
    m, s, _ = shifted(b, z)
    hi = total("v", z, "max")
    return workload(
        "linear_logsumexp",
        {"r": 19, "v": 133, "h": 30},
        [b.done()],
        [(m + log(s), "r")],
        [hi + log(total("v", exp(z - hi)))],
        normal(x="rh", w="vh"),
        lambda w, x: [lse64(x @ w.T)],
    )


def cross_entropy() -> Workload:
    """From hidden states and labels; the label's logit is picked in the same pass."""
    z = total("h", load("x", "rh") * load("w", "vh"))
    label = load("t", "r", np.int64)
    b = Builder("v", "r")
    m, s, _ = shifted(b, z)
    picked = where(eq(index("v"), label), z, 0.0)
    y = b.add("y", "sum", picked)
    hi = total("v", z, "max")

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        w, x = normal(x="rh", w="vh")(rng, ext)
        return [rng.integers(0, max(ext["v"], 1), ext["r"]), w, x]

    def expected(t: Array, w: Array, x: Array) -> list[Array]:
        z = x @ w.T
        return [lse64(z) - np.take_along_axis(z, t[:, None].astype(int), -1)[:, 0]]

    return workload(
        "cross_entropy",
        {"r": 19, "v": 133, "h": 30},
        [b.done()],
        [(m + log(s) - y, "r")],
        [hi + log(total("v", exp(z - hi))) - total("v", picked)],
        make,
        expected,
    )


def rms_linear() -> Workload:
    x, g, w = load("x", "rk"), load("g", "k"), load("w", "kn")
    b = Builder("k", "rn")
    n, ss, y = b.add("n", "sum", const(1.0)), b.add("ss", "sum", square(x)), b.add("y", "sum", x * g * w)
    scale = rsqrt(total("k", square(x)) / total("k", const(1.0)) + 1e-6)

    def expected(g: Array, w: Array, x: Array) -> list[Array]:
        return [(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g) @ w]

    return workload(
        "rms_linear",
        {"r": 35, "k": 100, "n": 30},
        [b.done()],
        [(y * rsqrt(ss / n + 1e-6), "rn")],
        [total("k", x * scale * g * w)],
        normal(x="rk", g="k", w="kn"),
        expected,
    )


def layernorm_linear() -> Workload:
    x, g, h, w = load("x", "rk"), load("g", "k"), load("h", "k"), load("w", "kn")
    b = Builder("k", "rn")
    mean, old, n, before = _mean(b, x)
    q = b.add("q", "sum", square(x - mean), b.prev("q", x) + before * square(old - mean))
    gw = b.add("gw", "sum", g * w)
    y = b.add("y", "sum", (x - mean) * g * w, b.prev("y", x * w) + (old - mean) * b.prev("gw", g * w))
    hw = b.add("hw", "sum", h * w)
    count = total("k", const(1.0))
    mu = total("k", x) / count
    scale = rsqrt(total("k", square(x - mu)) / count + 1e-5)

    def expected(g: Array, h: Array, w: Array, x: Array) -> list[Array]:
        return [((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + h) @ w]

    assert gw.e.axes == frozenset("n")
    return workload(
        "layernorm_linear",
        {"r": 35, "k": 100, "n": 30},
        [b.done()],
        [(y * rsqrt(q / n + 1e-5) + hw, "rn")],
        [total("k", ((x - mu) * scale * g + h) * w)],
        normal(x="rk", g="k", h="k", w="kn"),
        expected,
    )


def kmeans() -> Workload:
    """argmin_j of |c_j|^2 - 2 x_i.c_j."""
    x, c = load("x", "if"), load("c", "jf")
    far = total("f", c * c) + total("f", x * c) * -2.0
    b = Builder("j", "i")
    b.add("best", "argmin", far)
    place = T(Acc("best", frozenset("i"), np.int64, "index"))
    return workload(
        "kmeans",
        {"i": 77, "f": 19, "j": 45},
        [b.done()],
        [(place, "i")],
        [total("j", far, "argmin")],
        normal(x="if", c="jf"),
        lambda c, x: [((c**2).sum(-1) - 2 * x @ c.T).argmin(-1)],
    )


def kmeans_direct() -> Workload:
    """argmin_j and min_j of sum_f (x_if - c_jf)^2, written without expanding the square."""
    x, c = load("x", "if"), load("c", "jf")
    far = total("f", square(x - c))
    b = Builder("j", "i")
    b.add("best", "argmin", far)
    place, value = T(Acc("best", frozenset("i"), np.int64, "index")), T(Acc("best", frozenset("i"), F32))

    def expected(c: Array, x: Array) -> list[Array]:
        d = ((x[:, None] - c) ** 2).sum(-1)
        return [d.argmin(-1), d.min(-1)]

    return workload(
        "kmeans_direct",
        {"i": 77, "f": 19, "j": 45},
        [b.done()],
        [(place, "i"), (value, "i")],
        [total("j", far, "argmin"), total("j", far, "min")],
        normal(x="if", c="jf"),
        expected,
    )


def routing() -> Workload:
    """x @ w -> softmax -> the 4 best experts' weights and indices."""
    z = total("h", load("x", "ih") * load("w", "hj"))
    b = Builder("j", "i")
    m, s, _ = shifted(b, z)
    best = b.add("best", "top_values", z, k=4, out="t")
    place = T(Acc("best", frozenset("it"), np.int64, "index"))
    e = exp(z - total("j", z, "max"))
    p = e / total("j", e)

    def expected(w: Array, x: Array) -> list[Array]:
        p = softmax64(x @ w)
        i = np.argsort(-p, -1, kind="stable")[:, :4]
        return [np.take_along_axis(p, i, -1), i]

    return workload(
        "routing",
        {"i": 33, "h": 24, "j": 61, "t": 4},
        [b.done()],
        [(exp(best - m) / s, "it"), (place, "it")],
        [top("j", p, 4, "t"), top("j", p, 4, "t", "indices")],
        normal(x="ih", w="hj"),
        expected,
    )


# ---- more than one pass


def quantised_linear() -> Workload:
    """Per-row abs-max scaling, rounded to integers, then a product: the rounding keeps it in two passes."""
    x, w = load("x", "rk"), load("w", "kn")
    b = Builder("k", "rn")
    hi = b.add("hi", "max", fn("abs")(x))
    c = Builder("k", "rn")
    y = c.add("y", "sum", fn("round")(x / (hi / 127.0)) * w)
    top_ = total("k", fn("abs")(x), "max") / 127.0

    def expected(w: Array, x: Array) -> list[Array]:
        s = np.abs(x).astype(np.float32).max(-1, keepdims=True) / np.float32(127)
        return [(np.rint(x.astype(np.float32) / s).astype(np.float64) @ w) * s]

    return workload(
        "quantised_linear",
        {"r": 35, "k": 100, "n": 30},
        [b.done(), c.done()],
        [(y * (hi / 127.0), "rn")],
        [total("k", fn("round")(x / top_) * w) * top_],
        normal(x="rk", w="kn"),
        expected,
    )


def attention_received() -> Workload:
    """How much attention each key gets, summed over queries: softmax statistics along j, then a sum along i.
    The first pass's accumulators vary over the second pass's stream axis."""
    z = total("e", load("q", "ie") * load("k", "je")) * 0.25
    b = Builder("j", "i")
    m, s, _ = shifted(b, z)
    c = Builder("i", "j")
    y = c.add("y", "sum", exp(z - m) / s)
    e = exp(z - total("j", z, "max"))
    return workload(
        "attention_received",
        {"i": 45, "j": 61, "e": 16},
        [b.done(), c.done()],
        [(y, "j")],
        [total("i", e / total("j", e))],
        normal(q="ie", k="je"),
        lambda k, q: [softmax64(q @ k.T * 0.25).sum(0)],
    )


def total_variance() -> Workload:
    """The variance of everything and each deviation: a result without axes beside one along the stream."""
    x = load("x", "k")
    b = Builder("k", "")
    mean, old, n, before = _mean(b, x)
    q = b.add("q", "sum", square(x - mean), b.prev("q", x) + before * square(old - mean))
    count = total("k", const(1.0))
    mu = total("k", x) / count
    return workload(
        "total_variance",
        {"k": 500},
        [b.done()],
        [(q / n, ""), (x - mean, "k")],
        [total("k", square(x - mu)) / count, x - mu],
        normal(x="k"),
        lambda x: [x.var(), x - x.mean()],
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    f.__name__: f
    for f in (
        logsumexp,
        logsumexp_axis0,
        softmax,
        entropy,
        kl,
        variance,
        weighted_variance,
        softmax_variance,
        covariance,
        several,
        plain_monoids,
        attention,
        attention_causal,
        attention_window,
        attention_bias,
        attention_gqa,
        decode,
        mla,
        linear_logsumexp,
        cross_entropy,
        rms_linear,
        layernorm_linear,
        kmeans,
        kmeans_direct,
        routing,
        quantised_linear,
        attention_received,
        total_variance,
    )
}
