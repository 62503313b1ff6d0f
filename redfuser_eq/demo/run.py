"""The demonstration: four workloads on real data, explained, checked against float64 NumPy, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import attention, layers, statistics

TOLERANCE = 1e-4  # of the largest value


@dataclass(frozen=True)
class Case:
    """title: what it does to the data. function: array code. arrays: float32 or integer inputs."""

    title: str
    function: Callable[..., Any]
    arrays: tuple[Any, ...]


def images() -> tuple[Any, Any, str]:
    """1797 images of handwritten digits as rows of 64 grey values in 0 ... 1, their labels, and where they are
    from: scikit-learn's digits where it is installed, else blurred strokes of our own, the same at every run."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        return *_strokes(), "strokes of our own making (install scikit-learn for its digits)"
    digits = load_digits()
    return (digits.data / 16).astype(np.float32), digits.target.astype(np.int64), "scikit-learn's digits"


def _strokes(count: int = 600) -> tuple[Any, Any]:
    """Ten kinds of bent strokes on an 8 x 8 grid, each drawn with noise."""
    rng = np.random.default_rng(7)
    labels = np.arange(count, dtype=np.int64) % 10
    t = np.linspace(0, 1, 24)
    angle = labels[:, None] * (np.pi / 5) + rng.normal(scale=0.1, size=(count, 1))
    bend = np.where(labels % 2 == 0, 1.5, -1.5)[:, None] * (t - 0.5) ** 2
    x = 3.5 + 6 * (t - 0.5) * np.cos(angle) - 3 * bend * np.sin(angle)
    y = 3.5 + 6 * (t - 0.5) * np.sin(angle) + 3 * bend * np.cos(angle)
    grid = np.arange(8)
    ink = np.exp(-((x[:, :, None] - grid) ** 2))[:, :, None, :] * np.exp(-((y[:, :, None] - grid) ** 2))[:, :, :, None]
    drawn = ink.max(axis=1).reshape(count, 64) + rng.normal(scale=0.05, size=(count, 64))
    return drawn.clip(0, 1).astype(np.float32), labels


def cases(x: Any, labels: Any) -> list[Case]:
    """What is computed of the images."""
    square = np.sum(x.astype(np.float64) ** 2, axis=1)
    closeness = (2.0 * (x @ x.T) - square[:, None] - square[None, :]).astype(np.float32)
    next_like = np.array([np.flatnonzero(np.roll(labels, -i - 1) == labels[i])[0] + i + 1 for i in range(len(x))]) % len(x)
    digit = np.broadcast_to(labels.astype(np.float32), closeness.shape)
    return [
        Case("attention of every image to all images", attention.attention, (x, x, x)),
        Case("cross-entropy of finding the next image of the same digit", layers.cross_entropy, (x, x, next_like)),
        Case("mean and variance of the label, weighted by a softmax of closeness", statistics.weighted_moments, (closeness, digit)),
        Case("k-means assignment to 100 of the images", layers.nearest, (x, x[:100])),
    ]


@dataclass(frozen=True)
class Outcome:
    """error: largest difference from float64, of the largest value. seconds, numpy_seconds: best of a few calls."""

    case: Case
    fused: Any
    error: float
    seconds: float
    numpy_seconds: float

    @property
    def right(self) -> bool:
        return self.error <= TOLERANCE


def measure(case: Case, target: str | None = None) -> Outcome:
    """Fuse, check and time one case."""
    from redfuser_eq import optimize

    fused = optimize(case.function, target=target)
    got = fused(*case.arrays)
    exact = case.function(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in case.arrays))
    error = max(_error(np.asarray(g), np.asarray(e)) for g, e in zip(_tuple(got), _tuple(exact), strict=True))
    return Outcome(case, fused, error, _time(lambda: fused(*case.arrays)), _time(lambda: case.function(*case.arrays)))


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _error(got: Any, exact: Any) -> float:
    if got.shape != exact.shape or not np.isfinite(got).all():
        return float("inf")
    if got.dtype.kind in "iu":
        return float(np.mean(got != exact))
    return float(np.max(np.abs(got - exact)) / max(1e-30, np.max(np.abs(exact))))


def _time(call: Callable[[], Any], repeat: int = 5) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
