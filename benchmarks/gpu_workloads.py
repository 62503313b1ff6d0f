"""What is measured on a GPU, as data: `workloads.Bench`es at the sizes of models in use, and torch's best operations for them.

Inputs are bfloat16 where a model's are; array code says where it computes in float32. `named` contenders are asked for by name,
so that what is compared is known: torch's own choice of a backend may be either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from .workloads import (
    XK,
    Bench,
    attention,
    biased_attention,
    causal_attention,
    cross_entropy,
    entropy,
    latent_decode,
    layer_norm_linear,
    logsumexp,
    nearest,
    rms_linear,
    softmax,
    t_attention,
    t_entropy,
    t_rms_linear,
)

BF16, F32 = "bfloat16", "float32"
LARGEST = 448.0  # of float8 e4m3


# ---- array code
def variance(xp: Any, x: Any) -> Any:
    return xp.mean((x - xp.mean(x, axis=-1, keepdims=True)) ** 2, axis=-1)


def layer_norm(xp: Any, x: Any, g: Any, b: Any) -> Any:
    d = x - xp.mean(x, axis=-1, keepdims=True)
    return d / xp.sqrt(xp.mean(d * d, axis=-1, keepdims=True) + 1e-5) * g + b


def soft_capped(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    return softmax(xp, 30.0 * xp.tanh(s / 30.0)) @ v


def decode(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return softmax(xp, q @ xp.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])) @ v


def quantised(xp: Any, x: Any, w: Any) -> Any:
    wide = x.astype(np.float32)
    scale = xp.max(xp.abs(wide), axis=-1, keepdims=True) / LARGEST
    return ((wide / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) @ w.astype(np.float32).T) * scale


def router(k: int) -> Callable[..., Any]:
    def route(xp: Any, x: Any, w: Any) -> Any:
        scores = softmax(xp, x @ w)
        if type(x) is np.ndarray:
            order = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
            return np.take_along_axis(scores, order, -1), order
        import redfuser_eq as rf

        return rf.top_k(scores, k)

    return route


# ---- torch's operations
def _sdpa(backend: str, causal: bool = False) -> Callable[..., Any]:
    def run(torch: Any, q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal)

    return run


@cache
def _flex_attention() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _flex(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return _flex_attention()(q, k, v)


def _flex_causal(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return _flex_attention()(q, k, v, block_mask=_causal_blocks(q.shape[-2], k.shape[-2]))


@cache
def _causal_blocks(i: int, j: int) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, q, k: q >= k, None, None, i, j, device="cuda")


def _flex_capped(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return _flex_attention()(q, k, v, score_mod=_cap)


def _cap(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    import torch

    return 30.0 * torch.tanh(score / 30.0)


def _t_causal(torch: Any, q: Any, k: Any, v: Any) -> Any:
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf), -1) @ v


def _t_capped(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(30.0 * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 30.0), -1) @ v


def _t_layer_norm(torch: Any, x: Any, g: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)


def _t_router(k: int) -> Callable[..., Any]:
    return lambda torch, x, w: torch.topk(torch.softmax(x @ w, -1), k)


def _t_quantised(torch: Any, x: Any, w: Any) -> Any:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST
    return ((wide / scale).to(torch.float8_e4m3fn).to(wide.dtype) @ w.to(wide.dtype).T) * scale


def _scaled_mm(torch: Any, x: Any, w: Any) -> Any:
    """cuBLASLt's float8 product behind a quantisation in separate operations."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST
    q = (wide / scale).to(torch.float8_e4m3fn)
    return torch._scaled_mm(q, w.T, scale, torch.ones(1, w.shape[0], device=x.device), out_dtype=torch.bfloat16)


# ---- workloads
QKV = {"q": ("b", "h", "i", "d"), "k": ("b", "h", "j", "d"), "v": ("b", "h", "j", "d")}
KERNELS = {"SDPA flash": _sdpa("FLASH_ATTENTION"), "SDPA cudnn": _sdpa("CUDNN_ATTENTION"), "FlexAttention": _flex}
CAUSAL = {
    "SDPA flash": _sdpa("FLASH_ATTENTION", True),
    "SDPA cudnn": _sdpa("CUDNN_ATTENTION", True),
    "FlexAttention": _flex_causal,
}


def _heads(s: Any) -> float:
    return 4.0 * s["b"] * s["h"] * s["i"] * s["j"] * s["d"]


def _linear(s: Any) -> float:
    return 2.0 * s["r"] * s["k"] * s["n"]


def _mha(name: str, b: int, h: int, i: int, d: int, **fields: Any) -> Bench:
    own = {"function": attention, "torch": t_attention, "named": KERNELS, "flops": _heads, "goal": 1.0, "tolerance": 2e-2, "dtype": BF16}
    return Bench(name, inputs=QKV, sizes={"b": b, "h": h, "i": i, "j": i, "d": d}, **{**own, **fields})


def _mla(length: int) -> Bench:
    return Bench(
        f"MLA decode, DeepSeek-R1, KV {length}",
        latent_decode,
        {"q": ("b", "h", 576), "cache": ("b", "j", 576)},
        {"b": 32, "h": 128, "j": length},
        lambda s: 2.0 * s["b"] * s["h"] * s["j"] * (576 + 512),
        lambda t, q, c: t.softmax(q @ c.mT / 24.0, -1) @ c[..., :512],
        dtype=BF16,
        tolerance=2e-2,
    )


def _route(model: str, experts: int, top: int, hidden: int) -> Bench:
    name = f"routing, {model}: top {top} of {experts}"
    sizes = {"r": 8192, "k": hidden, "n": experts}
    spec = {"x": ("r", "k"), "w": (("k", "n"), "small")}
    return Bench(name, router(top), spec, sizes, _linear, _t_router(top), dtype=BF16, goal=1.7, tolerance=2e-2)


def _quantised(name: str, r: int, k: int, n: int) -> Bench:
    spec = {"x": ("r", "k"), "w": (("n", "k"), "e4m3")}
    sizes = {"r": r, "k": k, "n": n}
    named = {"_scaled_mm": _scaled_mm}
    return Bench(f"quantise + GEMM, {name}", quantised, spec, sizes, _linear, _t_quantised, named, dtype=BF16, goal=3, tolerance=2e-2)


def _rows(name: str, function: Any, torch: Any, r: int, k: int, **fields: Any) -> Bench:
    return Bench(name, function, {"x": XK}, {"r": r, "k": k}, torch=torch, **{"goal": 1.0, **fields})


_NORM = {"x": XK, "g": ("k",), "b": ("k",)}

WORKLOADS: tuple[Bench, ...] = (
    _rows("logsumexp, 4 GB", logsumexp, lambda t, x: t.logsumexp(x, -1), 8192, 131072),
    _rows("logsumexp, 1 GB, rows of 512", logsumexp, lambda t, x: t.logsumexp(x, -1), 524288, 512),
    _rows("logsumexp, one row of 1 GB", logsumexp, lambda t, x: t.logsumexp(x, -1), 1, 1 << 28),
    _rows("entropy of softmax, 2 GB", entropy, t_entropy, 16384, 32768),
    _rows("variance, 2 GB", variance, lambda t, x: t.var(x, -1, correction=0), 16384, 32768),
    _rows("softmax, 1 GB bfloat16", softmax, lambda t, x: t.softmax(x, -1), 65536, 8192, dtype=BF16, tolerance=2e-2, reuse=True),
    Bench(
        "LayerNorm, 1 GB bfloat16",
        layer_norm,
        _NORM,
        {"r": 65536, "k": 8192},
        torch=_t_layer_norm,
        dtype=BF16,
        goal=1.0,
        tolerance=2e-2,
        reuse=True,
    ),
    _mha("attention, BERT-base 32x12x512 d64", 32, 12, 512, 64),
    _mha("attention, ViT-L 32x16x577 d64", 32, 16, 577, 64),
    _mha("attention, LLaMA-65B 1x64x4096 d128", 1, 64, 4096, 128),
    _mha(
        "causal attention, LLaMA-65B 1x64x4096 d128",
        1,
        64,
        4096,
        128,
        function=causal_attention,
        torch=_t_causal,
        named=CAUSAL,
        flops=lambda s: _heads(s) / 2,
    ),
    _mha(
        "attention + tanh soft-cap, 4x32x2048 d128",
        4,
        32,
        2048,
        128,
        function=soft_capped,
        torch=_t_capped,
        named={"FlexAttention": _flex_capped},
        goal=2.0,
    ),
    Bench(
        "attention + bias, 4x16x1024 d64",
        biased_attention,
        {**QKV, "bias": ("h", "i", "j")},
        {"b": 4, "h": 16, "i": 1024, "j": 1024, "d": 64},
        _heads,
        lambda t, q, k, v, b: t.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + b, -1) @ v,
        {"SDPA efficient": _sdpa("EFFICIENT_ATTENTION")},
        dtype=BF16,
        tolerance=2e-2,
    ),
    Bench(
        "decode 64x8 heads, KV 8192 d128",
        decode,
        {"q": ("b", "h", 1, "d"), "k": ("b", "h", "j", "d"), "v": ("b", "h", "j", "d")},
        {"b": 64, "h": 8, "j": 8192, "d": 128},
        lambda s: 4.0 * s["b"] * s["h"] * s["j"] * s["d"],
        t_attention,
        {k: v for k, v in KERNELS.items() if k != "FlexAttention"},
        dtype=BF16,
        goal=1.0,
        tolerance=2e-2,
    ),
    *(_mla(n) for n in (1024, 4096, 16384)),
    _route("Mixtral", 8, 2, 4096),
    _route("Switch-base", 128, 1, 768),
    _route("ERNIE-4.5", 64, 6, 2560),
    _route("DeepSeek-V2-Lite", 64, 6, 2048),
    _route("Qwen3-30B", 128, 8, 2048),
    _route("DeepSeek-V3", 256, 8, 7168),
    _quantised("4096^3", 4096, 4096, 4096),
    _quantised("DeepSeek-R1 q_a", 4096, 7168, 1536),
    _quantised("DeepSeek-R1 o", 4096, 16384, 7168),
    _quantised("Qwen3-8B up", 4096, 4096, 12288),
    Bench(
        "linear + cross-entropy, 8192x4096, 128k words",
        cross_entropy,
        {"x": ("r", "k"), "w": (("n", "k"), "small"), "labels": (("r",), "label:n")},
        {"r": 8192, "k": 4096, "n": 128256},
        _linear,
        lambda t, x, w, y: t.nn.functional.cross_entropy(x @ w.T, y, reduction="none"),
        dtype=BF16,
        tolerance=2e-2,
    ),
    Bench(
        "RMSNorm + linear, 8192x4096x4096",
        rms_linear,
        {"x": ("r", "k"), "g": ("k",), "w": (("k", "n"), "small")},
        {"r": 8192, "k": 4096, "n": 4096},
        _linear,
        t_rms_linear,
        dtype=BF16,
        tolerance=2e-2,
        goal=1.0,
    ),
    Bench(
        "LayerNorm + linear, 8192x4096x4096",
        layer_norm_linear,
        {"x": ("r", "k"), "g": ("k",), "b": ("k",), "w": (("k", "n"), "small")},
        {"r": 8192, "k": 4096, "n": 4096},
        _linear,
        lambda t, x, g, b, w: t.nn.functional.layer_norm(x, x.shape[-1:], g, b) @ w,
        dtype=BF16,
        tolerance=2e-2,
        goal=1.0,
    ),
    Bench(
        "k-means assignment, 1M x 128, 1024 centres",
        nearest,
        {"x": ("r", "k"), "c": ("n", "k")},
        {"r": 1 << 20, "k": 128, "n": 1024},
        _linear,
        lambda t, x, c: ((c * c).sum(-1) - 2 * (x @ c.T)).argmin(-1),
        dtype=BF16,
        tolerance=2e-2,
    ),
)
