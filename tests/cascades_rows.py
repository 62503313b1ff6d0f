"""Hand-written cascades over rows: softmaxes, moments, several results, several passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from writing import (
    F32,
    Array,
    Builder,
    T,
    Workload,
    cast,
    const,
    exp,
    gt,
    load,
    log,
    lse64,
    normal,
    running_mean,
    shifted,
    softmax64,
    square,
    total,
    workload,
)

from redfuser_eq.expr import Acc, Reduce


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


def softmax(dtype: Any = F32) -> Workload:
    x = load("x", "rk", dtype)
    b = Builder("k", "r")
    m, s, _ = shifted(b, x)
    p = exp(x - total("k", x, "max"))

    def make(rng: np.random.Generator, ext: Mapping[str, int]) -> list[Array]:
        return [a.astype(dtype) for a in normal(x="rk")(rng, ext)]

    return workload(
        "softmax", {"r": 5, "k": 99}, [b.done()], [(exp(x - m) / s, "rk")], [p / total("k", p)], make, lambda x: [softmax64(x)]
    )  # fmt: skip


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


def variance(dtype: Any = F32) -> Workload:
    x = cast(load("x", "rk", dtype), F32) if np.dtype(dtype).itemsize < 4 else load("x", "rk", dtype)
    b = Builder("k", "r")
    mean, old, n, before = running_mean(b, x)
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
    mean, old, n, before = running_mean(b, x)
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
    mean, old, n, before = running_mean(b, x)
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
