"""Softmax, moments and divergences in the spellings that people write."""

from __future__ import annotations

from typing import Any

import numpy as np

from .workload import Input, Workload


def logsumexp(x: Any) -> Any:
    m = np.max(x, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(x - m), axis=-1)) + m[..., 0]


def named_logsumexp(x: Any) -> Any:
    import redfuser_eq as rf

    return rf.logsumexp(x, axis=-1)


def naive_logsumexp(x: Any) -> Any:
    return np.log(np.sum(np.exp(x), axis=-1))


def softmax(x: Any) -> Any:
    p = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return p / np.sum(p, axis=-1, keepdims=True)


def log_softmax(x: Any) -> Any:
    x = x - np.max(x, axis=-1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def naive_weighted(x: Any, v: Any) -> Any:
    p = np.exp(x)
    return np.sum(p / np.sum(p, axis=-1, keepdims=True) * v, axis=-1)


def variance(x: Any) -> Any:
    mean = np.sum(x, axis=-1, keepdims=True) / x.shape[-1]
    return np.sum((x - mean) ** 2, axis=-1) / x.shape[-1]


def deviation(x: Any) -> Any:
    return np.std(x, axis=-1)


def covariance(x: Any, y: Any) -> Any:
    return np.mean((x - x.mean()) * (y - y.mean()))


def third_moment(x: Any) -> Any:
    return np.mean((x - np.mean(x, axis=-1, keepdims=True)) ** 3, axis=-1)


def weighted_moments(x: Any, y: Any) -> Any:
    p = softmax(x)
    mean = np.sum(p * y, axis=-1, keepdims=True)
    return mean[..., 0], np.sum(p * (y - mean) ** 2, axis=-1)


def entropy(x: Any) -> Any:
    p = softmax(x)
    return -np.sum(p * np.log(p), axis=-1)


def divergence(a: Any, b: Any) -> Any:
    log_p, log_q = log_softmax(a), log_softmax(b)
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)


def cosine(x: Any, y: Any) -> Any:
    return np.sum(x * y, axis=-1) / (np.sqrt(np.sum(x * x, axis=-1)) * np.sqrt(np.sum(y * y, axis=-1)))


def inertia(mass: Any, position: Any) -> Any:
    centre = np.sum(mass[:, None] * position, axis=0) / np.sum(mass)
    return np.sum(mass * np.sum((position - centre) ** 2, axis=-1))


def peak_above_mean(x: Any) -> Any:
    return np.max(x - np.mean(x, axis=-1, keepdims=True), axis=-1)


def several(x: Any) -> Any:
    return {"mean": np.mean(x, axis=-1), "var": np.var(x, axis=-1), "max": np.max(x, axis=-1), "logsumexp": logsumexp(x)}


_ROWS = {"r": 256, "n": 4096}
_X, _Y = Input("x", ("r", "n")), Input("y", ("r", "n"))
_CHAIN = ("distribute", "prefix")


def _rows(name: str, f: Any, before: int, after: int, *inputs: Input, **fields: Any) -> Workload:
    return Workload(name, f, inputs or (_X,), _ROWS, (0, 1), before, after, **fields)


WORKLOADS = (
    _rows("logsumexp", logsumexp, 2, 1, themes=_CHAIN),
    _rows("rf.logsumexp", named_logsumexp, 2, 1, themes=_CHAIN, reference=logsumexp),
    _rows("logsumexp without the max", naive_logsumexp, 1, 1, themes=()),
    _rows("softmax, written", softmax, 3, 2, themes=_CHAIN),
    _rows("softmax without the max, weighted sum", naive_weighted, 2, 1, _X, _Y, themes=("prefix",)),
    _rows("variance", variance, 2, 1, themes=_CHAIN),
    _rows("standard deviation", deviation, 2, 1, themes=_CHAIN),
    Workload("covariance of two columns", covariance, (Input("x", ("n",)), Input("y", ("n",))), {"n": 65536}, (0, 0), 3, 1, themes=_CHAIN),
    _rows("third central moment", third_moment, 2, 1, themes=_CHAIN),
    _rows("softmax-weighted mean and variance", weighted_moments, 4, 1, _X, _Y, themes=(*_CHAIN, "bounds")),
    _rows("entropy of softmax", entropy, 3, 1, themes=(*_CHAIN, "bounds", "inverse")),
    _rows("KL of two softmaxes", divergence, 5, 1, _X, _Y, themes=(*_CHAIN, "bounds")),
    _rows("cosine similarity", cosine, 3, 1, _X, _Y, themes=()),
    Workload(
        "moment of inertia",
        inertia,
        (Input("mass", ("n",), "positive"), Input("position", ("n", 3))),
        {"n": 65536},
        (0, 0),
        3,
        1,
        themes=_CHAIN,
    ),
    _rows("max of x - mean", peak_above_mean, 2, 1, themes=("distribute",)),
    _rows("mean, var, max, logsumexp", several, 4, 1, themes=_CHAIN),
)
