"""Attention in the spellings that people write."""

from __future__ import annotations

from typing import Any

import numpy as np

from .workload import Input, Workload


def scores(q: Any, k: Any) -> Any:
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def weighted(s: Any, v: Any) -> Any:
    """softmax(s) @ v, written out."""
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return (p / np.sum(p, axis=-1, keepdims=True)) @ v


def attention(q: Any, k: Any, v: Any) -> Any:
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return (p / np.sum(p, axis=-1, keepdims=True)) @ v


def unscaled(q: Any, k: Any, v: Any) -> Any:
    return weighted(q @ np.swapaxes(k, -1, -2), v)


def scaled_query(q: Any, k: Any, v: Any) -> Any:
    return weighted((q / np.sqrt(q.shape[-1])) @ np.swapaxes(k, -1, -2), v)


def divided_after(q: Any, k: Any, v: Any) -> Any:
    s = scores(q, k)
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return (p @ v) / np.sum(p, axis=-1, keepdims=True)


def by_einsum(q: Any, k: Any, v: Any) -> Any:
    s = np.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", p / p.sum(axis=-1, keepdims=True), v)


def causal(q: Any, k: Any, v: Any) -> Any:
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
    return weighted(np.where(j <= i, scores(q, k), -np.inf), v)


def window(q: Any, k: Any, v: Any) -> Any:
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
    return weighted(np.where((j <= i) & (i - j < 16), scores(q, k), -np.inf), v)


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return weighted(scores(q, k) + mask, v)


def alibi(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return weighted(scores(q, k) + bias[None], v)


def soft_cap(q: Any, k: Any, v: Any) -> Any:
    return weighted(30.0 * np.tanh(scores(q, k) / 30.0), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[1] // k.shape[1]
    return attention(q, np.repeat(k, n, axis=1), np.repeat(v, n, axis=1))


def sink(q: Any, k: Any, v: Any, extra: Any) -> Any:
    s = scores(q, k)
    m = np.maximum(np.max(s, axis=-1, keepdims=True), extra[:, None, None])
    p = np.exp(s - m)
    return (p / (np.sum(p, axis=-1, keepdims=True) + np.exp(extra[:, None, None] - m))) @ v


def itself(x: Any) -> Any:
    return weighted(x @ np.swapaxes(x, -1, -2), x)


def latent(q: Any, cache: Any) -> Any:
    """One decoding step over a latent cache: its rows are the keys, and their first 512 columns the values."""
    return weighted(q @ np.swapaxes(cache, -1, -2) / np.sqrt(192.0), cache[:, :512])


def without_max(q: Any, k: Any, v: Any) -> Any:
    p = np.exp(scores(q, k))
    return (p / np.sum(p, axis=-1, keepdims=True)) @ v


_SIZES = {"b": 2, "h": 4, "g": 2, "i": 512, "j": 768, "d": 64, "e": 32}


def _attention(name: str, f: Any, *more: Input, shape: str = "bh", kv: str = "", query: str = "i", **fields: Any) -> Workload:
    """Queries and keys (..., d), values (..., e)."""
    kv = kv or shape
    inputs = (Input("q", (*shape, query, "d")), Input("k", (*kv, "j", "d")), Input("v", (*kv, "j", "e")), *more)
    fields = {"stream": (1, len(kv)), "before": 3, "after": 1, "themes": ("distribute", "prefix"), **fields}
    return Workload(name, f, inputs, _SIZES, fixed="bhg", **fields)


WORKLOADS = (
    _attention("attention", attention),
    _attention("attention, 2-D", attention, shape=""),
    _attention("attention, 3-D", attention, shape="h"),
    _attention("attention, no scale", unscaled),
    _attention("attention, scale on q", scaled_query),
    _attention("attention, divided after @ v", divided_after),
    _attention("attention, einsum", by_einsum),
    _attention("attention, causal", causal, query="j"),
    _attention("attention, sliding window", window, query="j"),
    _attention("attention, additive mask", masked, Input("mask", ("b", 1, "i", "j"), "mask")),
    _attention("attention, ALiBi", alibi, Input("bias", ("h", "i", "j"))),
    _attention("attention, tanh soft-cap", soft_cap),
    _attention("attention, grouped queries", grouped, kv="bg"),
    _attention("attention, sink", sink, Input("extra", ("h",))),
    Workload(
        "self-attention x, x, x",
        itself,
        (Input("x", ("b", "j", "d"), "small"),),
        _SIZES,
        stream=(0, 1),
        before=3,
        after=1,
        themes=("distribute", "prefix"),
        fixed="b",
    ),
    Workload(
        "latent (MLA) decode",
        latent,
        (Input("q", (16, 576)), Input("cache", ("n", 576), "small")),
        {"n": 4096},
        stream=(1, 0),
        before=3,
        after=1,
        themes=("distribute", "prefix"),
    ),
    _attention("attention without the max", without_max, before=2, themes=("prefix",)),
)
