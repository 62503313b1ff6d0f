"""Layers of models: normalise -> linear, quantise -> linear, routing, losses, nearest centres."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .workload import Input, Workload

LARGEST = 448.0  # of float8 e4m3


def rms_norm_linear(x: Any, g: Any, w: Any) -> Any:
    return (x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * g) @ w


def l2_normalise_linear(x: Any, w: Any) -> Any:
    return (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))) @ w


def layer_norm_linear(x: Any, g: Any, b: Any, w: Any) -> Any:
    mean = np.mean(x, axis=-1, keepdims=True)
    var = np.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return ((x - mean) / np.sqrt(var + 1e-5) * g + b) @ w


def quantise_linear(x: Any, w: Any) -> Any:
    scale = np.max(np.abs(x), axis=-1, keepdims=True) / LARGEST
    q = (x / scale).astype(ml_dtypes.float8_e4m3fn)
    return (q.astype(np.float32) @ w) * scale


def quantise_pow2_linear(x: Any, w: Any) -> Any:
    scale = np.exp2(np.ceil(np.log2(np.max(np.abs(x), axis=-1, keepdims=True) / LARGEST)))
    q = (x / scale).astype(ml_dtypes.float8_e4m3fn)
    return (q.astype(np.float32) @ w) * scale


def route(x: Any, w: Any) -> Any:
    import redfuser_eq as rf

    s = x @ w
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return rf.top_k(p / np.sum(p, axis=-1, keepdims=True), 8)


def _route(x: Any, w: Any) -> Any:
    s = x @ w
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    p = p / np.sum(p, axis=-1, keepdims=True)
    index = np.argsort(-p, axis=-1, kind="stable")[..., :8]
    return np.take_along_axis(p, index, axis=-1), index


def cross_entropy(x: Any, w: Any, labels: Any) -> Any:
    logits = x @ w.T
    m = np.max(logits, axis=-1, keepdims=True)
    lse = np.log(np.sum(np.exp(logits - m), axis=-1)) + m[:, 0]
    return lse - np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]


def nearest(x: Any, centres: Any) -> Any:
    return np.argmin(np.sum((x[:, None, :] - centres[None, :, :]) ** 2, axis=-1), axis=-1)


_LINEAR = {"t": 512, "k": 1024, "n": 128}
_X, _W = Input("x", ("t", "k")), Input("w", ("k", "n"), "small")
_G, _B = Input("g", ("k",)), Input("b", ("k",))
_CHAIN = ("distribute", "prefix")


def _linear(name: str, f: Any, before: int, after: int, *inputs: Input, **fields: Any) -> Workload:
    return Workload(name, f, inputs, _LINEAR, (0, 1), before, after, **fields)


WORKLOADS = (
    _linear("RMSNorm -> linear", rms_norm_linear, 2, 1, _X, _G, _W, themes=("distribute",)),
    _linear("L2-normalise -> linear", l2_normalise_linear, 2, 1, _X, _W, themes=("distribute",)),
    _linear("LayerNorm -> linear", layer_norm_linear, 3, 1, _X, _G, _B, _W, themes=_CHAIN),
    _linear("fp8 quantise -> linear", quantise_linear, 2, 2, _X, _W, themes=()),
    _linear("fp8 quantise -> linear, fast", quantise_linear, 2, 1, _X, _W, themes=(*_CHAIN, "bounds", "rescaling"), numerics="fast"),
    _linear("fp8 quantise -> linear, power of two", quantise_pow2_linear, 2, 1, _X, _W, themes=(*_CHAIN, "rounding")),
    Workload(
        "MoE routing: softmax, top-8",
        route,
        (Input("x", ("t", "k")), Input("w", ("k", "n"), "small")),
        {"t": 512, "k": 256, "n": 128},
        (1, 1),
        3,
        1,
        themes=(*_CHAIN, "bounds", "monotone"),
        reference=_route,
    ),
    Workload(
        "cross-entropy from hidden states",
        cross_entropy,
        (Input("x", ("t", "k")), Input("w", ("v", "k"), "small"), Input("labels", ("t",), "label:v")),
        {"t": 256, "k": 64, "v": 8192},
        (1, 0),
        2,
        1,
        themes=_CHAIN,
    ),
    Workload(
        "k-means assignment",
        nearest,
        (Input("x", ("t", "k")), Input("c", ("n", "k"))),
        {"t": 2048, "k": 16, "n": 256},
        (1, 0),
        1,
        1,
        themes=(),
    ),
)
