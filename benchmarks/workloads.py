"""What is measured, as data: array code, inputs, the best spelling each contender offers, and the work it must do.

A workload's `function` takes the namespace first, so that one text is NumPy's, JAX's and, traced, ours. `torch` is what a
torch user would write, eager and compiled; `named` is an operation of torch or ONNX Runtime made for just this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

Shape = tuple[str | int, ...]


@dataclass(frozen=True)
class Bench:
    """function: (namespace, *arrays) -> result. inputs: name -> shape in letters of `sizes`, or (shape, kind): "normal",
    "positive", "small", "e4m3" (small, in float8), "int8", "label:v" (integers below v). flops: of multiply-adds (each counts two), in
    terms of `sizes`. torch: (torch, *tensors). named: contender's name -> (torch, *tensors). onnx: (operator, domain, attributes,
    inputs laid out for it). reuse: write into one output array again and again, where a contender can. goal: wanted speed relative
    to the best stock contender. numpy: a better NumPy spelling than `function`. check_rows: compare only this many leading rows
    with float64."""

    name: str
    function: Callable[..., Any]
    inputs: Mapping[str, Any]
    sizes: Mapping[str, int]
    flops: Callable[[Mapping[str, int]], float] = lambda s: 0.0
    torch: Callable[..., Any] | None = None
    named: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    onnx: Callable[..., tuple[str, str, dict[str, Any], list[Any]]] | None = None
    numpy: Callable[..., Any] | None = None
    reuse: bool = False
    dtype: str = "float32"
    goal: float = 1.2
    tolerance: float = 2e-4

    def arrays(self, rng: np.random.Generator) -> list[Any]:
        made = []
        for spec in self.inputs.values():
            shape, kind = spec if isinstance(spec[0], tuple) else (spec, "normal")
            sizes = tuple(self.sizes[s] if isinstance(s, str) else s for s in shape)
            made.append(_values(kind, sizes, self.sizes, rng, self.dtype))
        return made

    def small(self) -> Bench:
        """The same workload at sizes that take milliseconds on one core."""
        sizes = dict(self.sizes)
        while math.prod(sizes.values()) > 3e6 and max(sizes.values()) > 64:
            largest = max(sizes, key=lambda a: sizes[a])
            sizes[largest] = max(64, sizes[largest] // 2)
        return replace(self, sizes=sizes)


def _values(kind: str, shape: tuple[int, ...], sizes: Mapping[str, int], rng: np.random.Generator, dtype: str) -> Any:
    if kind == "int8":
        return rng.integers(-127, 128, shape, np.int8)
    if kind.startswith("label:"):
        return rng.integers(0, sizes[kind[6:]], shape)
    wide = np.float64 if dtype == "float64" else np.float32
    if kind in ("small", "e4m3"):
        values = rng.standard_normal(shape, dtype=wide) * wide(0.05)
        return values.astype(ml_dtypes.float8_e4m3fn if kind == "e4m3" else ml_dtypes.bfloat16 if dtype == "bfloat16" else wide)
    if kind == "causal":  # 0, and -inf above the diagonal
        return np.triu(np.full(shape, -np.inf, wide), 1)
    values = rng.standard_normal(shape, dtype=wide) if kind == "normal" else rng.random(shape, dtype=wide) + wide(0.1)
    return values.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else values


# ---- array code
def logsumexp(xp: Any, x: Any) -> Any:
    m = xp.max(x, axis=-1, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - m), axis=-1)) + m[..., 0]


def column_logsumexp(xp: Any, x: Any) -> Any:
    m = xp.max(x, axis=0, keepdims=True)
    return xp.log(xp.sum(xp.exp(x - m), axis=0)) + m[0]


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def entropy(xp: Any, x: Any) -> Any:
    s = x - xp.max(x, axis=-1, keepdims=True)
    e = xp.exp(s)
    z = xp.sum(e, axis=-1, keepdims=True)
    return -xp.sum(e / z * (s - xp.log(z)), axis=-1)


def divergence(xp: Any, a: Any, b: Any) -> Any:
    sa, sb = a - xp.max(a, axis=-1, keepdims=True), b - xp.max(b, axis=-1, keepdims=True)
    la, lb = xp.log(xp.sum(xp.exp(sa), axis=-1, keepdims=True)), xp.log(xp.sum(xp.exp(sb), axis=-1, keepdims=True))
    return xp.sum(xp.exp(sa - la) * ((sa - la) - (sb - lb)), axis=-1)


def weighted_variance(xp: Any, x: Any, w: Any) -> Any:
    total = xp.sum(w, axis=-1, keepdims=True)
    mean = xp.sum(w * x, axis=-1, keepdims=True) / total
    return xp.sum(w * (x - mean) ** 2, axis=-1) / total[..., 0]


def softmax_variance(xp: Any, x: Any, v: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    p = e / xp.sum(e, axis=-1, keepdims=True)
    mean = xp.sum(p * v, axis=-1, keepdims=True)
    return xp.sum(p * (v - mean) ** 2, axis=-1)


def cosine(xp: Any, x: Any, y: Any) -> Any:
    return xp.sum(x * y, axis=-1) / (xp.sqrt(xp.sum(x * x, axis=-1)) * xp.sqrt(xp.sum(y * y, axis=-1)))


def covariance(xp: Any, x: Any, y: Any) -> Any:
    return xp.mean((x - xp.mean(x, axis=-1, keepdims=True)) * (y - xp.mean(y, axis=-1, keepdims=True)), axis=-1)


def inertia(xp: Any, mass: Any, position: Any) -> Any:
    total = xp.sum(mass, axis=-1, keepdims=True)
    centre = xp.sum(mass * position, axis=-1, keepdims=True) / total
    return xp.sum(mass * (position - centre) ** 2, axis=-1)


def several(xp: Any, x: Any) -> Any:
    m = xp.max(x, axis=-1, keepdims=True)
    mean = xp.mean(x, axis=-1, keepdims=True)
    return mean[..., 0], xp.mean((x - mean) ** 2, axis=-1), m[..., 0], xp.log(xp.sum(xp.exp(x - m), axis=-1)) + m[..., 0]


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return softmax(xp, q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])) @ v


def causal_attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    keep = xp.arange(q.shape[-2])[:, None] >= xp.arange(k.shape[-2])[None, :]
    return softmax(xp, xp.where(keep, s, -math.inf)) @ v


def biased_attention(xp: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    return softmax(xp, q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + bias) @ v


def latent_decode(xp: Any, q: Any, cache: Any) -> Any:
    return softmax(xp, q @ xp.swapaxes(cache, -1, -2) / 24.0) @ cache[..., :512]


def decode(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return softmax(xp, xp.einsum("he,hje->hj", q, k) / math.sqrt(q.shape[-1]))[:, None, :] @ v


def cross_entropy(xp: Any, x: Any, w: Any, labels: Any) -> Any:
    s = x @ w.T
    return logsumexp(xp, s) - xp.take_along_axis(s, labels[:, None], axis=-1)[:, 0]


def rms_linear(xp: Any, x: Any, g: Any, w: Any) -> Any:
    return (x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * g) @ w


def layer_norm_linear(xp: Any, x: Any, g: Any, b: Any, w: Any) -> Any:
    mean = xp.mean(x, axis=-1, keepdims=True)
    var = xp.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return ((x - mean) / xp.sqrt(var + 1e-5) * g + b) @ w


def quantised_linear(xp: Any, x: Any, w: Any) -> Any:
    s = xp.max(xp.abs(x), axis=-1, keepdims=True) / 127
    q = xp.round(x / s).astype(xp.int8)
    return (q.astype(xp.float32) @ w.astype(xp.float32)) * s


def nearest(xp: Any, x: Any, c: Any) -> Any:
    return xp.argmin(xp.sum(c * c, axis=-1) - 2 * (x @ c.T), axis=-1)


def route(xp: Any, x: Any) -> Any:
    if xp is np:
        import redfuser_eq as rf

        if not isinstance(x, np.ndarray):
            return rf.top_k(rf.softmax(x), 8)
        p = softmax(np, x)
        order = np.argsort(-p, axis=-1, kind="stable")[..., :8]
        return np.take_along_axis(p, order, -1), order
    import jax

    return jax.lax.top_k(jax.nn.softmax(x), 8)


# ---- what a torch user writes
def t_entropy(torch: Any, x: Any) -> Any:
    p = torch.log_softmax(x, -1)
    return -(p.exp() * p).sum(-1)


def t_divergence(torch: Any, a: Any, b: Any) -> Any:
    p, q = torch.log_softmax(a, -1), torch.log_softmax(b, -1)
    return (p.exp() * (p - q)).sum(-1)


def t_weighted_variance(torch: Any, x: Any, w: Any) -> Any:
    total = w.sum(-1, keepdim=True)
    mean = (w * x).sum(-1, keepdim=True) / total
    return (w * (x - mean) ** 2).sum(-1) / total[..., 0]


def t_softmax_variance(torch: Any, x: Any, v: Any) -> Any:
    p = torch.softmax(x, -1)
    mean = (p * v).sum(-1, keepdim=True)
    return (p * (v - mean) ** 2).sum(-1)


def t_inertia(torch: Any, mass: Any, position: Any) -> Any:
    centre = (mass * position).sum(-1, keepdim=True) / mass.sum(-1, keepdim=True)
    return (mass * (position - centre) ** 2).sum(-1)


def t_several(torch: Any, x: Any) -> Any:
    return x.mean(-1), x.var(-1, correction=0), x.amax(-1), torch.logsumexp(x, -1)


def t_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def t_causal(torch: Any, q: Any, k: Any, v: Any) -> Any:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf), -1) @ v


def sdpa(torch: Any, q: Any, k: Any, v: Any, bias: Any = None, *, causal: bool = False, scale: float | None = None) -> Any:
    f = torch.nn.functional.scaled_dot_product_attention
    lead = (1,) * (4 - q.dim())
    q, k, v = (t.reshape(*lead, *t.shape) for t in (q, k, v))
    return f(q, k, v, attn_mask=None if bias is None else bias.reshape(*lead, *bias.shape), is_causal=causal, scale=scale)


def t_rms_linear(torch: Any, x: Any, g: Any, w: Any) -> Any:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g) @ w


def t_quantised_linear(torch: Any, x: Any, w: Any) -> Any:
    s = x.abs().amax(-1, keepdim=True) / 127
    return ((x / s).round() @ w.float()) * s


def t_int_mm(torch: Any, x: Any, w: Any) -> Any:
    s = x.abs().amax(-1, keepdim=True) / 127
    return torch._int_mm((x / s).round().to(torch.int8), w).float() * s


def ort_attention(q: Any, k: Any, v: Any) -> tuple[str, str, dict[str, Any], list[Any]]:
    """MultiHeadAttention wants (batch, sequence, heads * width)."""
    q, k, v = (t if t.ndim == 4 else t[None] for t in (q, k, v))
    flat = [np.ascontiguousarray(t.transpose(0, 2, 1, 3).reshape(t.shape[0], t.shape[2], -1)) for t in (q, k, v)]
    return "MultiHeadAttention", "com.microsoft", {"num_heads": q.shape[1]}, flat


def numpy_cross_entropy(x: Any, w: Any, labels: Any) -> Any:
    s = x @ w.T
    label = np.take_along_axis(s, labels[:, None], -1)[:, 0].copy()
    m = s.max(-1, keepdims=True)
    np.subtract(s, m, out=s)
    np.exp(s, out=s)
    return np.log(s.sum(-1)) + m[:, 0] - label


def numpy_attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ np.swapaxes(k, -1, -2)
    s *= s.dtype.type(1 / math.sqrt(q.shape[-1]))
    s -= s.max(-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(-1, keepdims=True)
    return s @ v


ROWS = {"r": 1024, "k": 50257}
QKV = {"q": ("h", "i", "d"), "k": ("h", "j", "d"), "v": ("h", "j", "d")}
XK = ("r", "k")


def _heads(s: Mapping[str, int]) -> float:
    return 4.0 * s["h"] * s.get("b", 1) * s["i"] * s["j"] * s["d"]


def _linear(s: Mapping[str, int]) -> float:
    return 2.0 * s["r"] * s["k"] * s["n"]


def _logsumexp(name: str, sizes: Mapping[str, int], **fields: Any) -> Bench:
    shape = tuple(sizes)
    return Bench(name, logsumexp, {"x": shape}, sizes, torch=lambda t, x: t.logsumexp(x, -1), **fields)


def _attention(name: str, h: int, i: int, d: int, **fields: Any) -> Bench:
    fields = {"goal": 1.12, "onnx": ort_attention, "numpy": numpy_attention, **fields}
    sizes = {"h": h, "i": i, "j": i, "d": d}
    return Bench(name, attention, QKV, sizes, _heads, t_attention, {"torch SDPA": sdpa}, **fields)


WORKLOADS: tuple[Bench, ...] = (
    _logsumexp("logsumexp", ROWS, goal=2.7),
    Bench("entropy of softmax", entropy, {"x": XK}, ROWS, torch=t_entropy, goal=4),
    Bench("KL divergence", divergence, {"a": XK, "b": XK}, ROWS, torch=t_divergence, goal=3),
    Bench("weighted variance", weighted_variance, {"x": XK, "w": (XK, "positive")}, ROWS, torch=t_weighted_variance, goal=1.9),
    Bench("softmax-weighted variance", softmax_variance, {"x": XK, "v": XK}, ROWS, torch=t_softmax_variance, goal=2.4),
    Bench(
        "softmax, output reused",
        softmax,
        {"x": XK},
        ROWS,
        torch=lambda t, x: t.softmax(x, -1),
        onnx=lambda x: ("Softmax", "", {"axis": -1}, [x]),
        reuse=True,
        goal=1.1,
    ),
    _attention("attention 16x1024 d64", 16, 1024, 64),
    _attention("attention 16x1024 d128", 16, 1024, 128),
    _attention("attention 16x4096 d64", 16, 4096, 64),
    _attention("attention 12x128 d64", 12, 128, 64, goal=0.9),
    Bench(
        "causal attention",
        causal_attention,
        QKV,
        {"h": 16, "i": 1024, "j": 1024, "d": 64},
        lambda s: _heads(s) / 2,
        t_causal,
        {"torch SDPA": lambda t, q, k, v: sdpa(t, q, k, v, causal=True)},
        goal=3,
    ),
    Bench(
        "attention + bias",
        biased_attention,
        {**QKV, "bias": ("h", "i", "j")},
        {"h": 16, "i": 1024, "j": 1024, "d": 64},
        _heads,
        lambda t, q, k, v, b: t.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + b, -1) @ v,
        {"torch SDPA": sdpa},
        goal=1.8,
    ),
    Bench(
        "attention + causal mask of -inf",
        biased_attention,
        {**QKV, "bias": (("i", "j"), "causal")},
        {"h": 16, "i": 1024, "j": 1024, "d": 64},
        lambda s: _heads(s) / 2,
        lambda t, q, k, v, b: t.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + b, -1) @ v,
        {"torch SDPA": sdpa},
    ),
    Bench(
        "linear + cross-entropy",
        cross_entropy,
        {"x": ("r", "k"), "w": ("n", "k"), "labels": (("r",), "label:n")},
        {"r": 512, "k": 1024, "n": 50257},
        _linear,
        lambda t, x, w, y: t.nn.functional.cross_entropy(x @ w.T, y, reduction="none"),
        numpy=numpy_cross_entropy,
    ),
    Bench(
        "k-means assignment",
        nearest,
        {"x": ("r", "k"), "c": ("n", "k")},
        {"r": 200_000, "k": 64, "n": 1024},
        _linear,
        lambda t, x, c: ((c * c).sum(-1) - 2 * (x @ c.T)).argmin(-1),
        goal=3.5,
    ),
    Bench(
        "RMSNorm + linear",
        rms_linear,
        {"x": ("r", "k"), "g": ("k",), "w": ("k", "n")},
        {"r": 2048, "k": 4096, "n": 1024},
        _linear,
        t_rms_linear,
        goal=1.15,
    ),
    Bench(
        "LayerNorm + linear",
        layer_norm_linear,
        {"x": ("r", "k"), "g": ("k",), "b": ("k",), "w": ("k", "n")},
        {"r": 2048, "k": 4096, "n": 1024},
        _linear,
        lambda t, x, g, b, w: t.nn.functional.layer_norm(x, x.shape[-1:], g, b) @ w,
        goal=1.15,
    ),
    Bench(
        "int8 quantise + GEMM",
        quantised_linear,
        {"x": ("r", "k"), "w": (("k", "n"), "int8")},
        {"r": 2048, "k": 4096, "n": 1024},
        _linear,
        t_quantised_linear,
        {"torch _int_mm": t_int_mm},
        tolerance=1e-3,
    ),
    Bench(
        "MLA decode",
        latent_decode,
        {"q": ("b", "h", 576), "cache": ("b", "j", 576)},
        {"b": 8, "h": 16, "j": 8192},
        lambda s: 2.0 * s["b"] * s["h"] * s["j"] * (576 + 512),
        lambda t, q, c: t.softmax(q @ c.mT / 24.0, -1) @ c[..., :512],
        goal=3.3,
    ),
    Bench(
        "decode 8x65536 d128",
        decode,
        {"q": ("h", "d"), "k": ("h", "j", "d"), "v": ("h", "j", "d")},
        {"h": 8, "j": 65536, "d": 128},
        lambda s: 4.0 * s["h"] * s["j"] * s["d"],
        lambda t, q, k, v: t_attention(t, q[:, None], k, v),
        {"torch SDPA": lambda t, q, k, v: sdpa(t, q[:, None], k, v)},
    ),
    Bench(
        "decode 12x2048 d64",
        decode,
        {"q": ("h", "d"), "k": ("h", "j", "d"), "v": ("h", "j", "d")},
        {"h": 12, "j": 2048, "d": 64},
        lambda s: 4.0 * s["h"] * s["j"] * s["d"],
        lambda t, q, k, v: t_attention(t, q[:, None], k, v),
        {"torch SDPA": lambda t, q, k, v: sdpa(t, q[:, None], k, v)},
        goal=0.9,
    ),
    Bench("MoE routing, top 8 of 256", route, {"x": XK}, {"r": 16384, "k": 256}, torch=lambda t, x: t.topk(t.softmax(x, -1), 8), goal=5),
    Bench("cosine similarity", cosine, {"x": XK, "y": XK}, ROWS, torch=lambda t, x, y: t.nn.functional.cosine_similarity(x, y, -1)),
    Bench(
        "covariance",
        covariance,
        {"x": XK, "y": XK},
        ROWS,
        torch=lambda t, x, y: ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean(-1),
    ),
    Bench("moment of inertia", inertia, {"mass": (XK, "positive"), "position": XK}, ROWS, torch=t_inertia),
    Bench("mean, var, max, logsumexp", several, {"x": XK}, ROWS, torch=t_several),
    _logsumexp("logsumexp, rows of 64", {"r": 400_000, "k": 64}, goal=0.9),
    _logsumexp("logsumexp, rows of 256", {"r": 200_000, "k": 256}, goal=0.9),
    _logsumexp("logsumexp, rows of 1024", {"r": 100_000, "k": 1024}, goal=0.9),
    _logsumexp("logsumexp, one row of 10M", {"r": 1, "k": 10_000_000}, goal=0.9),
    Bench(
        "logsumexp over axis 0",
        column_logsumexp,
        {"x": ("k", "r")},
        {"k": 200_000, "r": 256},
        torch=lambda t, x: t.logsumexp(x, 0),
        goal=0.9,
    ),
    _logsumexp("logsumexp, float64", ROWS, dtype="float64", goal=0.9),
    _logsumexp("logsumexp, bfloat16", ROWS, dtype="bfloat16", goal=0.9, tolerance=2e-2),
    _attention("attention, float64", 16, 512, 64, dtype="float64", goal=0.9, onnx=None),
    _attention("attention, bfloat16", 16, 512, 64, dtype="bfloat16", goal=0.9, onnx=None, tolerance=2e-2),
)
