"""Accuracy: float32 results are within twice the error of the best float32 two-pass form, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq import runtime

TARGETS = [t for t in ("numpy", "cpu") if runtime.available(t)]


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def logsumexp(x: Any) -> Any:
    m = np.max(x, axis=-1, keepdims=True)
    return (np.log(np.sum(np.exp(x - m), axis=-1, keepdims=True)) + m)[..., 0]


def entropy(x: Any) -> Any:
    p = softmax(x)
    return -np.sum(p * np.log(p), axis=-1)


def variance(x: Any) -> Any:
    d = x - np.mean(x, axis=-1, keepdims=True)
    return np.mean(d * d, axis=-1)


def weighted_variance(x: Any) -> Any:
    p, v = softmax(x), x * 0.5
    d = v - np.sum(p * v, axis=-1, keepdims=True)
    return np.sum(p * d * d, axis=-1)


def layernorm_linear(x: Any) -> Any:
    d = x - np.mean(x, axis=-1, keepdims=True)
    w = np.ones((x.shape[-1], 1), x.dtype) if isinstance(x, np.ndarray) else rf.cast(rf.arange(x.shape[-1])[:, None] * 0 + 1, x.dtype)
    return (d / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + 1e-5) * np.sin(x)) @ w


INPUTS: dict[str, Callable[[np.random.Generator], Any]] = {
    "random": lambda rng: rng.normal(size=(8, 4096)),
    "large offset": lambda rng: rng.normal(size=(8, 4096)) + 3000.0,
    "wide range": lambda rng: rng.normal(size=(8, 4096)) * 30.0,
    "one spike": lambda rng: rng.normal(size=(8, 4096)) + 12.0 * (np.arange(4096) == 3000),
    "rising": lambda rng: np.sort(rng.normal(size=(8, 4096)), axis=-1) * 20,
    "long": lambda rng: rng.normal(size=(1, 1 << 20)) + 100.0,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("f", [logsumexp, softmax, entropy, variance, weighted_variance, layernorm_linear], ids=lambda f: f.__name__)
def test_error_is_within_twice_the_two_pass_form(f: Callable[..., Any], name: str, target: str) -> None:
    if (f, name, target) == (layernorm_linear, "long", "numpy"):
        pytest.xfail("blocked NumPy adds a product over a million elements tile by tile in float32: 8 times the two-pass error")
    x = INPUTS[name](np.random.default_rng(len(name))).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = f(x.astype(np.float64))
        two_pass = f(x)
    got = rf.optimize(f, target=target, verify="raise")(x)
    scale = np.abs(exact).max()
    theirs = np.nanmax(np.abs(two_pass - exact)) / scale if np.isfinite(two_pass).any() else np.inf
    ours = np.abs(got - exact).max() / scale
    floor = 4 * np.finfo(np.float32).eps  # of the largest result: below this the comparison is of luck
    assert ours <= max(2 * theirs, floor)
