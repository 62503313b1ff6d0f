"""Random compositions of array operations mean the same traced and in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tracing import values

from redfuser_eq.errors import ShapeError, TraceError
from redfuser_eq.trace import trace

# What the front end says it cannot express; everything else must work.
_LIMITS = (
    "cuts across",
    "no common refinement",
    "both reshaped and concatenated",
    "crosses from piece to piece",
    "reshaped, sliced and reshaped again",
    "split and join whole dimensions",
    "joins concatenated dimensions",
)

Step = tuple[str, int, int, int]
OPS = (
    "add", "sub", "mul", "div", "where", "tanh", "exp", "square",
    "sum", "max", "min", "mean", "var", "sum keep", "max keep", "mean keep", "any", "all axes",
    "transpose", "swap", "matmul", "gram", "outer", "softmax", "slice", "flip", "step", "pick", "expand",
    "split", "join", "repeat", "concat", "stack", "broadcast", "centre", "scale", "argmax", "iota",
)  # fmt: skip


def _axis(x: Any, n: int) -> int:
    return n % x.ndim if x.ndim else 0


def _binary(op: str, a: Any, b: Any) -> Any:
    try:
        np.broadcast_shapes(tuple(map(int, a.shape)), tuple(map(int, b.shape)))
    except ValueError:
        b = np.mean(b)
    if op == "add":
        return a + b
    if op == "sub":
        return a - b
    if op == "mul":
        return a * b
    if op == "div":
        return a / (1 + b * b)
    return np.where(a > b, a, b * 0.5)


def _reduce(op: str, a: Any, n: int) -> Any:
    axis = _axis(a, n)
    name, _, keep = op.partition(" ")
    if not a.ndim:
        return a * 1.0
    if name == "any":
        return np.any(a > 0.5, axis) * 1.0
    if op == "all axes":
        return np.sum(a, tuple(range(a.ndim))[: 1 + n % a.ndim])
    return getattr(np, name)(a, axis=axis, keepdims=bool(keep))


def _shape(op: str, a: Any, n: int, m: int) -> Any:
    d = _axis(a, n)
    if not a.ndim:
        return a
    size = int(a.shape[d])
    before = (slice(None),) * d
    if op == "transpose":
        return np.transpose(a, np.roll(range(a.ndim), n).tolist())
    if op == "swap":
        return np.swapaxes(a, d, _axis(a, m))
    if op == "slice":
        return a[(*before, slice(min(m % 3, size - 1), None))]
    if op == "flip":
        return np.flip(a, d)
    if op == "step":
        return a[(*before, slice(None, None, 2))]
    if op == "pick":
        return a[(*before, m % size)]
    if op == "expand":
        return np.expand_dims(a, d) if a.ndim < 4 else a
    if op == "split":
        return a.reshape(*a.shape[:d], 2, size // 2, *a.shape[d + 1 :]) if size % 2 == 0 and a.ndim < 4 else a
    if op == "join":
        return a.reshape(*a.shape[:d], -1, *a.shape[d + 2 :]) if d + 1 < a.ndim else a
    if op == "repeat":
        return np.repeat(a, 2, axis=d) if a.size < 64 else a
    if op == "broadcast":
        return np.broadcast_to(a, (2, *a.shape)) if a.ndim < 3 else a
    return a + np.arange(size).reshape(-1, *[1] * (a.ndim - 1 - d)) / 4


def _joined(op: str, a: Any, b: Any, n: int) -> Any:
    if not a.ndim or a.size > 64 or a.ndim > 3:
        return a
    if op == "stack":
        return np.stack([a, a * 2], n % (a.ndim + 1))
    d = _axis(a, n)
    fits = b.ndim == a.ndim and all(int(x) == int(y) for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if i != d)
    return np.concatenate([a, b if fits else a * 0.5], d)


def _step(op: str, a: Any, b: Any, n: int) -> Any:
    if op in ("add", "sub", "mul", "div", "where"):
        return _binary(op, a, b)
    if op in ("concat", "stack"):
        return _joined(op, a, b, n)
    if op in ("tanh", "exp", "square"):
        return getattr(np, op)(np.tanh(a))
    if op in ("sum", "max", "min", "mean", "var", "sum keep", "max keep", "mean keep", "any", "all axes"):
        return _reduce(op, a, n)
    if not a.ndim:
        return a
    if op == "matmul":
        return a @ b if a.ndim == b.ndim == 2 and int(a.shape[1]) == int(b.shape[0]) else a
    if op == "gram":
        return a @ np.swapaxes(a, -1, -2) if a.ndim >= 2 else a @ a
    if op == "outer":
        return np.einsum("i,j->ij", a, b) if a.ndim == b.ndim == 1 else a
    if op == "softmax":
        e = np.exp(np.tanh(a) - np.max(np.tanh(a), _axis(a, n), keepdims=True))
        return e / np.sum(e, _axis(a, n), keepdims=True)
    if op == "centre":
        return a - np.sum(a, _axis(a, n), keepdims=True) / a.shape[_axis(a, n)]
    if op == "scale":
        return a / np.sqrt(np.mean(np.square(a), _axis(a, n), keepdims=True) + 1)
    if op == "argmax":
        return np.argmax(a, _axis(a, n)) / 2
    return _shape(op, a, n, n // 5)


def play(steps: list[Step], results: int, *arrays: Any) -> Any:
    stack = list(arrays)
    for op, i, j, n in steps:
        stack.append(_step(op, stack[-1 - i % len(stack)], stack[-1 - j % len(stack)], n))
    return tuple(stack[-results:])


steps = st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 2), st.integers(0, 5), st.integers(0, 29)), min_size=1, max_size=9)
shapes = st.lists(st.lists(st.sampled_from([1, 2, 2, 3, 4, 4, 6]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)


def _compare(steps: list[Step], shapes: list[tuple[int, ...]], results: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(s) for s in shapes]
    with np.errstate(all="ignore"):
        expected = play(steps, results, *arrays)
    assume(all(np.size(e) < 5000 for e in expected))
    try:
        traced = trace(lambda *xs: play(steps, results, *xs), tuple(arrays))
    except (ShapeError, TraceError) as error:
        assume(not any(text in str(error) for text in _LIMITS))
        raise
    for got, want in zip(values(traced, traced.arrays), expected, strict=True):
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-7)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, shapes, st.integers(1, 3), st.integers(0, 1000))
def test_random_compositions(steps: list[Step], shapes: list[tuple[int, ...]], results: int, seed: int) -> None:
    _compare(steps, shapes, results, seed)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, shapes, st.integers(1, 3), st.integers(0, 1000))
def test_many_random_compositions(steps: list[Step], shapes: list[tuple[int, ...]], results: int, seed: int) -> None:
    _compare(steps, shapes, results, seed)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps, st.integers(0, 1000))
def test_structure_depends_on_ranks_alone(steps: list[Step], seed: int) -> None:
    """Square and oblong sizes give one structure (without steps whose meaning depends on sizes)."""
    fixed = {"split", "join", "slice", "step", "pick", "repeat", "concat", "stack", "matmul", "outer", "broadcast", "iota", "flip"}
    kept = [
        (op, i, 0 if op in ("add", "sub", "mul", "div", "where") else j, n) for op, i, j, n in steps if op not in fixed and op != "swap"
    ]
    assume(kept)
    unary = [(op, i, i if op in ("add", "sub", "mul", "div", "where") else j, n) for op, i, j, n in kept]
    keys = {trace(lambda *xs: play(unary, 1, *xs), (np.ones(s),)).program.key() for s in ((4, 4, 4), (2, 3, 5), (6, 2, 2))}
    assert len(keys) == 1
