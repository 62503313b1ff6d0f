"""Hand-written cascades with matrix products: attention, and linear layers with statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from writing import (
    F32,
    NEG,
    Array,
    Builder,
    Extents,
    T,
    Workload,
    both,
    const,
    eq,
    exp,
    fn,
    index,
    le,
    load,
    log,
    lse64,
    lt,
    normal,
    rsqrt,
    running_mean,
    shifted,
    softmax64,
    square,
    tanh,
    top,
    total,
    where,
    workload,
)

from redfuser_eq.cascade import Cascade
from redfuser_eq.expr import Acc, Load, Map, Source, transform


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


def masked_by_array(axes: str) -> Cascade:
    """attention_causal with a boolean array t over these axes, its last source, in place of the condition on positions."""
    c = attention_causal().cascade
    (p,) = c.passes
    mask = Load("t", tuple(axes), bool)
    accs = tuple(
        replace(a, lift=transform(a.lift, lambda x: mask if isinstance(x, Map) and x.op == "le" else None)) for a in p.accumulators
    )
    return replace(c, passes=(replace(p, accumulators=accs),), sources=(*c.sources, Source("t", 3, np.dtype(bool), len(axes))))


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
    mean, old, n, before = running_mean(b, x)
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
