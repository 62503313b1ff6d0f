"""The free functions: their values and conventions, traced and on plain NumPy arrays."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from tracing import run, same

import redfuser_eq.compose as rf
from redfuser_eq.errors import ShapeError
from redfuser_eq.expr import Cast, nodes
from redfuser_eq.trace import trace

rng = np.random.default_rng(5)
X = rng.standard_normal((4, 6)) * 3
INF = math.inf


def plain_softmax(x):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def both(f, *args):
    """The value of a function on NumPy arrays, checked to be that of its traced form."""
    with np.errstate(all="ignore"):
        expected = f(*args)
    got = run(f, *args)
    np.testing.assert_allclose(got, np.asarray(expected, np.float64), rtol=1e-9, atol=1e-12)
    return got


FUNCTIONS = {
    "softmax": (lambda x: rf.softmax(x), plain_softmax),
    "softmax over rows": (lambda x: rf.softmax(x, 0), lambda x: plain_softmax(x.T).T),
    "softmax of all": (lambda x: rf.softmax(x, (0, 1)), lambda x: plain_softmax(x.reshape(1, -1)).reshape(x.shape)),
    "log_softmax": (lambda x: rf.log_softmax(x), lambda x: np.log(plain_softmax(x))),
    "logsumexp": (lambda x: rf.logsumexp(x), lambda x: np.log(np.exp(x).sum(-1))),
    "logsumexp keepdims": (lambda x: rf.logsumexp(x, 0, keepdims=True), lambda x: np.log(np.exp(x).sum(0, keepdims=True))),
    "logsumexp of all": (lambda x: rf.logsumexp(x, None), lambda x: np.log(np.exp(x).sum())),
    "entropy": (lambda x: rf.entropy(x), lambda x: -(plain_softmax(x) * np.log(plain_softmax(x))).sum(-1)),
    "layer_norm": (lambda x: rf.layer_norm(x), lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    "rms_norm": (
        lambda x: rf.rms_norm(x, np.arange(6.0), 1e-3),
        lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * np.arange(6.0),
    ),
    "rsqrt": (lambda x: rf.rsqrt(x * x + 1), lambda x: 1 / np.sqrt(x * x + 1)),
    "sigmoid": (lambda x: rf.sigmoid(x), lambda x: 1 / (1 + np.exp(-x))),
    "silu": (lambda x: rf.silu(x), lambda x: x / (1 + np.exp(-x))),
    "gelu": (lambda x: rf.gelu(x), lambda x: x * np.vectorize(lambda t: 0.5 * math.erfc(-t / math.sqrt(2)))(x)),
    "erf": (lambda x: rf.erf(x), np.vectorize(math.erf)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    f, expected = FUNCTIONS[name]
    np.testing.assert_allclose(both(f, X), expected(X), rtol=1e-9, atol=1e-12)


def test_gelu_approximation() -> None:
    got = both(lambda x: rf.gelu(x, "tanh"), X)
    np.testing.assert_allclose(got, run(rf.gelu, X), atol=2e-3)
    with pytest.raises(ValueError, match="approximate"):
        rf.gelu(X, "fast")


def test_layer_norm_parameters_broadcast() -> None:
    w, b = rng.standard_normal(6), rng.standard_normal(6)
    got = both(lambda x, w, b: rf.layer_norm(x, w, b, eps=1e-3), X, w, b)
    np.testing.assert_allclose(got, (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-3) * w + b)
    x = np.array([[40000, 40001, 40002, 40003]], np.float32)
    np.testing.assert_allclose(both(rf.layer_norm, x.astype(float)), [[-1.3416, -0.4472, 0.4472, 1.3416]], atol=1e-4)
    assert not both(rf.layer_norm, np.full((1, 256), 1234.0)).any()


def test_softmax_conventions() -> None:
    x = np.array([[-INF] * 3, [0, INF, 1], [np.nan, 0, 1], [-INF, 0, 1]])
    got = both(rf.softmax, x)
    assert np.isnan(got[0]).all()
    assert np.isnan(got[2]).all()
    assert np.isnan(got[1, 1])
    np.testing.assert_allclose(got[3], [0, 0.26894142, 0.73105858], rtol=1e-6)
    x = np.ones((3, 1, 1))
    np.testing.assert_allclose(both(lambda x: rf.softmax(x, 0), x), np.full((3, 1, 1), 1 / 3))
    assert both(rf.softmax, np.zeros((4, 0, 3))).shape == (4, 0, 3)


def test_logsumexp_conventions() -> None:
    x = np.array([[-INF] * 3, [0, INF, 1], [np.nan, 0, 1], [-INF, 0, 1], [1000, 1000, 1000]])
    np.testing.assert_allclose(both(rf.logsumexp, x), [-INF, INF, np.nan, math.log(1 + math.e), 1000 + math.log(3)])
    np.testing.assert_allclose(both(rf.logsumexp, np.zeros((2, 0))), [-INF, -INF])


def test_log_softmax_of_rows_with_infinities() -> None:
    got = both(rf.log_softmax, np.array([[0.0, -INF, 1.0]]))
    np.testing.assert_allclose(got, [[-1.31326169, -INF, -0.31326169]])


def test_entropy_of_impossible_classes_is_finite() -> None:
    x = np.array([[0.0, 0.0, -INF]])
    np.testing.assert_allclose(both(rf.entropy, x), [math.log(2)])
    with np.errstate(all="ignore"):
        p = plain_softmax(x)
        assert np.isnan(-(p * np.log(p)).sum(-1)).all()  # the written-out formula
    np.testing.assert_allclose(both(rf.entropy, X + 1e6), run(rf.entropy, X), rtol=1e-6)


def test_xlogy() -> None:
    x, y = np.array([0.0, 0.0, 2.0, np.nan, 0.0]), np.array([0.0, np.nan, 3.0, 1.0, INF])
    np.testing.assert_allclose(both(rf.xlogy, x, y), [0, np.nan, 2 * math.log(3), np.nan, 0])


def test_cross_entropy() -> None:
    labels = np.array([0, 5, -1, 3])
    got = both(rf.cross_entropy, X, labels)
    np.testing.assert_allclose(got, -np.log(plain_softmax(X))[np.arange(4), labels])
    x = rng.standard_normal((2, 5, 3))
    got = both(lambda x, i: rf.cross_entropy(x, i, axis=1), x, rng.integers(0, 5, (2, 3)))
    assert got.shape == (2, 3)


def test_cross_entropy_from_hidden_states() -> None:
    h, w, labels = rng.standard_normal((4, 3)), rng.standard_normal((7, 3)), np.array([0, 6, 2, 2])
    same(lambda h, w, i: rf.cross_entropy(h @ w.T, i), h, w, labels)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_top_k(k: int) -> None:
    x = np.round(X)
    x[0] = [1, 3, 3, 3, 0, 1]
    x[1] = [-INF, 2, -INF, -INF, -INF, -INF]
    values, indices = rf.top_k(x, k)
    for row, v, i in zip(x, values, indices, strict=True):
        best = sorted(range(6), key=lambda j, row=row: (-row[j], j))[:k]
        assert list(i) == best
        np.testing.assert_array_equal(v, row[best])
    traced = run(lambda x: rf.top_k(x, k), x)
    np.testing.assert_array_equal(traced[0], values)
    np.testing.assert_array_equal(traced[1], indices)
    assert traced[1].dtype == np.int64
    first = run(lambda x: rf.top_k(x, k, axis=0), x.T)
    np.testing.assert_array_equal(first[1], indices.T)


def test_top_k_of_nan_and_its_parts() -> None:
    x = np.array([[1.0, np.nan, 3.0, np.nan], [0, INF, -INF, 2]])
    values, indices = rf.top_k(x, 3)
    np.testing.assert_array_equal(indices, [[1, 3, 2], [1, 3, 0]])
    np.testing.assert_array_equal(values, [[np.nan, np.nan, 3], [INF, 2, 0]])
    y = rng.standard_normal((3, 6))
    f = lambda x: (rf.top_k(x, 4)[0][:, :2], rf.top_k(x, 4)[1][:, 1], rf.top_k(x, 3)[0] / np.sum(rf.top_k(x, 3)[0], -1, keepdims=True))  # noqa: E731
    same(f, y)
    for bad in (0, 5):
        with pytest.raises(ShapeError, match="top_k"):
            rf.top_k(x, bad)


def test_casts() -> None:
    x = np.array([500.0, 1.3, np.nan, -0.7])
    got = run(lambda x: rf.cast(np.clip(x, -448, 448), "float8_e4m3fn").astype(np.float32), x)
    np.testing.assert_array_equal(got, np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32))
    assert rf.cast(x, "bfloat16").dtype == ml_dtypes.bfloat16
    program = trace(lambda x: rf.cast(rf.cast(x, np.float64), np.float64), (np.ones(3, np.float32),)).program
    assert sum(isinstance(e, Cast) for e in nodes(program.outputs[0].expr)) == 1


def test_masks() -> None:
    s = rng.standard_normal((4, 6))
    np.testing.assert_array_equal(rf.causal_mask(4, 6), np.tri(4, 6, 2, dtype=bool))
    np.testing.assert_array_equal(rf.causal_mask(5), np.tri(5, dtype=bool))
    np.testing.assert_array_equal(rf.causal_mask(6, 4), np.tri(6, 4, -2, dtype=bool))
    near = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 2
    np.testing.assert_array_equal(rf.window_mask(5, left=2, right=2), near)
    np.testing.assert_array_equal(rf.window_mask(5, left=1), np.tri(5, dtype=bool) & (np.arange(5) >= np.arange(5)[:, None] - 1))
    traced = same(lambda s: rf.softmax(np.where(rf.causal_mask(s.shape[0], s.shape[1]), s, -np.inf)), s)
    assert not traced.program.constants
    traced = same(lambda s: rf.softmax(np.where(rf.window_mask(s.shape[0], s.shape[1], 2, 1), s, -np.inf)), s)
    assert not traced.program.constants


def test_arange() -> None:
    np.testing.assert_array_equal(rf.arange(5), np.arange(5))
    np.testing.assert_array_equal(rf.arange(2, 9, 3), np.arange(2, 9, 3))
    same(lambda x: x + rf.arange(2, 8) + rf.arange(10, -2, -2) * rf.arange(x.shape[1]), X)
    same(lambda x: x * rf.arange(6, dtype=np.int32), X)
    assert isinstance(rf.arange(3), np.ndarray)
