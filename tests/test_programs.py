"""Programs as users write them: statistics, losses and norms over any axes, on every backend of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq import runtime

TARGETS = [t for t in ("numpy", "cpu") if runtime.available(t)]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """f, the shapes of its arguments for a number of rows and a length, and passes over the named axis afterwards."""

    f: Callable[..., Any]
    shapes: Callable[[int, int], list[tuple[int, ...]]]
    passes: dict[str, int] | None = None


def batch_norm(x: Any, g: Any, b: Any) -> Any:
    m, v = np.mean(x, axis=(0, 2, 3)), np.var(x, axis=(0, 2, 3))
    return (x - m[:, None, None]) / np.sqrt(v[:, None, None] + 1e-5) * g[:, None, None] + b[:, None, None], m, v


def group_norm(x: Any, w: Any, b: Any) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, 2, c // 2, h, width)
    y = (y - y.mean((2, 3, 4), keepdims=True)) / np.sqrt(y.var((2, 3, 4), keepdims=True) + 1e-5)
    return y.reshape(n, c, h, width) * w[:, None, None] + b[:, None, None]


def channel_variance(x: Any) -> Any:
    return np.var(x, axis=(0, 2))


def first_of_all(x: Any) -> Any:
    return np.argmax(x), np.argmin(x), np.argmin(x, axis=0), np.max(x)


def entropy_written(x: Any) -> Any:
    p = rf.softmax(x, axis=-1)
    return -np.sum(p * np.log(p), axis=-1)


def logsumexps(x: Any) -> Any:
    return rf.logsumexp(x, 0), rf.logsumexp(x, (0, 1)), rf.logsumexp(x, 1)


def softmax_of_all_by_column(x: Any) -> Any:
    e = np.exp(x - np.max(x))
    return np.sum(e / np.sum(e), axis=0), np.log(np.sum(e))


def differential_attention_rms(q: Any, k: Any, v: Any) -> Any:
    a, b = rf.softmax(q @ k.T, -1), rf.softmax(q @ (k * 0.5).T, -1)
    out = (a - 0.8 * b) @ v
    return out / np.sqrt(np.mean(out * out, -1, keepdims=True) + 1e-6)


CASES = {
    "differential attention and RMSNorm": Case(differential_attention_rms, lambda n, k: [(n, 8), (k, 8), (k, 6)], {"k": 1}),
    "logsumexp over each axis and both": Case(logsumexps, lambda n, k: [(n, k)]),
    "softmax of all, summed by column": Case(softmax_of_all_by_column, lambda n, k: [(n, k)]),
    "batch norm with statistics": Case(batch_norm, lambda n, k: [(n, 6, k, 3), (6,), (6,)], {"i": 2}),
    "group norm": Case(group_norm, lambda n, k: [(n, 6, k, 3), (6,), (6,)], {"m": 2}),
    "variance over the first and the last axis": Case(channel_variance, lambda n, k: [(n, 6, k)], {"k": 1}),
    "positions in the flattened array": Case(first_of_all, lambda n, k: [(n, k)]),
    "entropy of a softmax, written out": Case(entropy_written, lambda n, k: [(n, k)], {"k": 1}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(5, 37), (3, 300), (1, 1), (4, 1), (1, 9)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, sizes: tuple[int, int], target: str) -> None:
    case, rng = CASES[name], np.random.default_rng(sizes)
    arrays = [rng.standard_normal(s, dtype=np.float32) + 1 for s in case.shapes(*sizes)]
    fused = rf.optimize(case.f, target=target, verify="raise")
    got, want = fused(*arrays), case.f(*(a.astype(np.float64) for a in arrays))
    for g, e in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        assert np.shape(g) == np.shape(e)
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)
    if case.passes and min(sizes) > 1:
        passes = fused.report(*arrays).passes
        assert {a: passes[a][1] for a in case.passes} == case.passes


def test_positions_are_integers_throughout() -> None:
    cascade = rf.optimize(first_of_all).cascade(np.ones((5, 7), np.float32))
    assert all(a.dtype.kind == "i" for a in cascade.accumulators() if a.op == "sum")


def clipped(x: Any) -> Any:
    return np.clip(x / np.max(np.abs(x), axis=-1, keepdims=True), -1, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_unfused_program_keeps_what_is_not_finite(value: float, target: str) -> None:
    x = np.ones((3, 5), np.float32)
    x[1, 2] = value
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(rf.optimize(clipped, target=target, verify="raise")(x), clipped(x))
