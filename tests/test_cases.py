"""Inputs that broke other compilers: each row a kind, with NumPy's answer for the written-out formula.

Numbers follow the project's table of cases (docs/cases.md). Every row runs on every target at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq import runtime

INF, NAN = np.inf, np.nan
F32 = np.float32
TARGETS = [t for t in ("numpy", "cpu") if runtime.available(t)]


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def attention(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None) -> Any:
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if bias is not None:
        s = s + bias
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    return softmax(s) @ v


def layernorm(x: Any, eps: float = 1e-5) -> Any:
    d = x - np.mean(x, axis=-1, keepdims=True)
    return d / np.sqrt(np.mean(d * d, axis=-1, keepdims=True) + eps)


def random(*shape: int, seed: int = 0, dtype: Any = F32) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def written_out(f: Callable[..., Any]) -> Callable[..., Any]:
    """The formula itself in float64, as the expected value."""

    def expected(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*(a.astype(np.float64) if a.dtype.kind in "fV" else a for a in args))

    return expected


@dataclass
class Case:
    number: int
    name: str
    f: Callable[..., Any]
    args: tuple[Any, ...]
    want: Any = None  # a value, a function of the arguments, or None: the formula in float64
    rtol: float = 2e-5
    options: dict[str, Any] = field(default_factory=dict)

    def expected(self) -> Any:
        if self.want is None:
            return written_out(self.f)(*self.args)
        return self.want(*self.args) if callable(self.want) else self.want


def a(*rows: Any, dtype: Any = F32) -> Any:
    return np.array(rows, dtype=dtype)


MIXED = a([0, 1, 2, 3], [-INF] * 4, [INF, 0, 1, 2], [NAN, 0, 1, 2], [3, 2, 1, 0])
STEP = [np.array([m + i * 1e-3 for i in range(16)], np.float64) for m in (0.0, 1.0, 100.0, 1e4)]
CAUSAL = np.tril(np.ones((9, 9), bool))


def window(q: Any, k: Any, v: Any) -> Any:
    i, j = rf.arange(q.shape[-2])[:, None], rf.arange(k.shape[-2])[None, :]
    return attention(q, k, v, mask=(j <= i) & (j > i - 32))


def window_numpy(q: Any, k: Any, v: Any) -> Any:
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]
    return attention(*(x.astype(np.float64) for x in (q, k, v)), mask=(j <= i) & (j > i - 32))


def entropy(x: Any) -> Any:
    p = softmax(x)
    return -np.sum(p * np.log(p), axis=-1)


def quantise(x: Any, w: Any) -> Any:
    scale = np.max(np.abs(x), axis=-1, keepdims=True) / 448
    return (np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(F32) @ w) * scale


def quantise_clamped(x: Any, w: Any) -> Any:
    scale = np.maximum(np.max(np.abs(x), axis=-1, keepdims=True) / 448, 1e-12)
    return (np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(F32) @ w) * scale


def grouped(q: Any, k: Any, v: Any) -> Any:
    n = q.shape[0] // k.shape[0]
    return attention(q, np.repeat(k, n, axis=0), np.repeat(v, n, axis=0))


def masked_query(scores: Any, v: Any) -> Any:
    return softmax(scores) @ v


def top3(x: Any) -> Any:
    values, indices = rf.top_k(x, 3)
    return values, indices


def rms(x: Any, w: Any) -> Any:
    return (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)) @ w


def numpy_top(x: Any, k: int) -> Any:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, -1), order


PERMUTED = np.transpose(random(6, 6, 6, 6), (0, 2, 3, 1))
TIES = a([1, 3, 3, 2, 3, 0], [5, 5, 5, 5, 5, 5])
LONE = a([-INF, -INF, 2, -INF, -INF])
Q, KV = random(5, 8, seed=3), random(7, 8, seed=4)
BAD_TAIL = np.full((9, 8), NAN, F32)
BAD_TAIL[:7] = KV

CASES = [
    Case(1, "softmax rows of -inf, +inf, NaN", softmax, (MIXED,)),
    Case(1, "the same through a product", masked_query, (MIXED, random(4, 3))),
    Case(2, "logsumexp of -inf", rf.logsumexp, (a([-INF] * 5),), a(-INF)),
    Case(3, "logsumexp of inf and 0", rf.logsumexp, (a([INF, 0.0]),), a(INF)),
    Case(4, "log-softmax narrower than a vector", rf.log_softmax, (a([0.5, -INF, 1.0, -INF, 2.0]),), lambda x: _log_softmax(x)),
    Case(5, "first key tile masked", masked_query, (np.concatenate([np.full((1, 600), -INF), a([0, 1])], 1).astype(F32), random(602, 2))),
    Case(
        6,
        "a False row in a boolean mask",
        lambda s, m: softmax(np.where(m, s, -np.inf)),
        (random(3, 6), a([1] * 6, [0] * 6, [1, 0] * 3, dtype=bool)),
    ),
    Case(7, "-inf bias on a key whose value is NaN", masked_query, (a([0, -INF, 1]), a([1, 2], [NAN, 1], [0, 1]))),
    Case(
        7,
        "where on a key whose value is NaN",
        lambda m, s, v: softmax(np.where(m, s, -np.inf)) @ v,
        (a([1, 0, 1], dtype=bool), a([0, 5, 1]), a([1, 2], [NAN, 1], [0, 1])),
    ),
    Case(8, "NaN past the tail", attention, (Q, BAD_TAIL[:7], BAD_TAIL[:7])),
    *(Case(9, f"all logits near {x:g}", softmax, (a([x, x + 64, x + 128]) if x > -1e5 else a([x, x, x]),)) for x in (-5e4, -1e6, -1e30)),
    Case(10, "a window of 32", window, (random(200, 8, seed=5), random(200, 8, seed=6), random(200, 4, seed=7)), window_numpy),
    Case(11, "softmax of x/3 at 7e9", lambda x: softmax(x / 3), (a([7e9, 1e9, -3e9]),), a([1, 0, 0])),
    Case(
        12,
        "softmax over axis -2 of a square",
        lambda q, k, v: softmax(q @ k.T, axis=-2) @ v,
        (random(8, 8), random(8, 8, seed=1), random(8, 8, seed=2)),
    ),
    Case(
        12,
        "softmax over axis 0 of a square",
        lambda q, k, v: softmax(q @ k.T, axis=0) @ v,
        (random(8, 8), random(8, 8, seed=1), random(8, 8, seed=2)),
    ),
    Case(13, "permuted operands of equal sizes", lambda x, y: softmax(x @ y), (PERMUTED, random(6, 6, 6, 6, seed=9))),
    Case(14, "softmax over axis 0 of (3,1,1)", lambda x: softmax(x, axis=0), (random(3, 1, 1),)),
    Case(14, "softmax over the middle axis", lambda x: softmax(x, axis=1), (random(16, 64, 76),)),
    Case(15, "softmax of an empty array", rf.softmax, (np.zeros((4, 0, 0), F32),), np.zeros((4, 0, 0), F32)),
    Case(16, "sum over an empty axis", lambda x: np.sum(x, axis=-1), (np.zeros((3, 0), F32),), np.zeros(3, F32)),
    Case(16, "logsumexp over an empty axis", rf.logsumexp, (np.zeros((3, 0), F32),), np.full(3, -INF, F32)),
    Case(16, "mean over an empty axis", lambda x: np.mean(x, axis=-1), (np.zeros((3, 0), F32),), np.full(3, NAN, F32)),
    Case(16, "variance over an empty axis", lambda x: np.var(x, axis=-1), (np.zeros((3, 0), F32),), np.full(3, NAN, F32)),
    Case(17, "4096 float16 zeros", softmax, (np.zeros(4096, np.float16),), np.full(4096, 1 / 4096, np.float16), 1e-3),
    Case(17, "512 equal bfloat16", softmax, (np.full(512, 3.0, ml_dtypes.bfloat16),), np.full(512, 1 / 512, F32), 1e-2),
    Case(18, "layernorm at 40000", lambda x: layernorm(x, 0.0), (a([40000, 40001, 40002, 40003]),)),
    *(Case(19, f"variance at mean {x[0]:g}", lambda x: np.var(x, axis=-1), (x.astype(F32),), rtol=2e-4) for x in STEP),
    Case(20, "layernorm of a constant row", layernorm, (np.full(256, 1234.0, F32),), np.zeros(256, F32)),
    Case(21, "entropy with a -inf logit, written out", entropy, (a([0, 0, -INF]),), a(NAN)),
    Case(21, "entropy by xlogy", rf.entropy, (a([0, 0, -INF]),), a(np.log(2))),
    Case(22, "an all-zero row quantised", quantise, (a([0, 0, 0, 0]), random(4, 2)), np.full((1, 2), NAN)),
    Case(22, "the same with a clamp", quantise_clamped, (a([0, 0, 0, 0]), random(4, 2)), np.zeros((1, 2))),
    Case(
        23,
        "500, inf and NaN to float8",
        lambda x: np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(F32),
        (a([500, INF, NAN, -INF]),),
        a([448, 448, NAN, -448]),
    ),
    Case(24, "max with a NaN", lambda x: np.max(x, axis=-1), (a([1, NAN, 2], [3, 1, 2]),)),
    Case(24, "argmax of NaN and inf", lambda x: np.argmax(x, axis=-1), (a([NAN, INF], [INF, NAN], [0, INF]),), np.array([0, 1, 1])),
    Case(25, "top-k ties", top3, (TIES,), lambda x: numpy_top(x, 3)),
    Case(26, "top-3 with one finite score", top3, (LONE,), (a([2, -INF, -INF]), np.array([[2, 0, 1]]))),
    Case(27, "top-1", lambda x: rf.top_k(x, 1), (random(4, 9),), lambda x: numpy_top(x, 1)),
    Case(28, "RMSNorm of a transposed array", rms, (random(9, 5).T, random(9, 3))),
    Case(28, "RMSNorm of an expanded array", rms, (np.broadcast_to(random(1, 9), (5, 9)), random(9, 3))),
    Case(
        29,
        "a mask whose last size is 1",
        lambda q, k, v, m: attention(q, k, v, mask=m),
        (Q, KV, KV, a([1], [1], [0], [1], [1], dtype=bool)),
    ),
    Case(
        29,
        "a mask broadcast over heads",
        lambda q, k, v, m: attention(q, k, v, mask=m),
        (random(3, 9, 8), random(3, 9, 8, seed=1), random(3, 9, 8, seed=2), CAUSAL[None]),
    ),
    Case(30, "4 query heads on 2 key heads", grouped, (random(4, 5, 8), random(2, 7, 8), random(2, 7, 8, seed=1))),
    *(Case(31, f"decode with {n} keys", attention, (random(1, 8), random(n, 8), random(n, 8, seed=1))) for n in (1, 37, 129)),
    Case(
        32,
        "float64 causal attention",
        lambda q, k, v, m: attention(q, k, v, mask=m),
        (*(random(9, 8, seed=s, dtype=np.float64) for s in range(3)), CAUSAL),
        rtol=1e-13,
    ),
    Case(34, "self-attention with one array", lambda x: softmax(x @ x.T) @ x, (random(8, 8),)),
]


def _log_softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64) - x.max())
    with np.errstate(divide="ignore"):
        return x - x.max() - np.log(e.sum())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.number}-{c.name}")
def test_case(case: Case, target: str) -> None:
    fused = rf.optimize(case.f, target=target, verify="raise", **case.options)
    got, want = fused(*case.args), case.expected()
    if not isinstance(want, tuple):
        got, want = (got,), (want,)
    for g, w in zip(got, want, strict=True):
        assert g.shape == np.shape(w)
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=case.rtol, atol=case.rtol / 10)


@pytest.mark.parametrize("target", TARGETS)
def test_float64_stays(target: str) -> None:
    """Case 32: the dtype of the result."""
    q = random(4, 8, dtype=np.float64)
    assert rf.optimize(attention, target=target)(q, q, q).dtype == np.float64


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reduce", [np.max, np.min, np.argmax], ids=["max", "min", "argmax"])
def test_maximum_of_nothing_is_an_error(reduce: Any, target: str) -> None:
    """Case 16: as NumPy, a maximum over a zero-size axis is an error."""
    with pytest.raises(ValueError, match=r"zero-size|empty|no elements"):
        rf.optimize(lambda x: reduce(x, axis=-1), target=target)(np.zeros((3, 0), F32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "f", [softmax, rf.logsumexp, entropy, lambda x: np.var(x, axis=-1)], ids=["softmax", "logsumexp", "entropy", "variance"]
)
@pytest.mark.parametrize("length", [3, 100, 5000])
def test_a_row_alone_and_in_a_batch(f: Any, target: str, length: int) -> None:
    """Case 33: bit-equal, whatever rows stand around it."""
    x = random(70, length)
    fused = rf.optimize(f, target=target)
    together = fused(x)
    for row in (0, 17, 69):
        np.testing.assert_array_equal(fused(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("target", TARGETS)
def test_a_query_alone_and_in_a_batch(target: str) -> None:
    """Case 33 for products: the same head alone and among others."""
    q, k, v = (random(6, 40, 16, seed=s) for s in range(3))
    fused = rf.optimize(attention, target=target)
    together = fused(q, k, v)
    for head in (0, 5):
        np.testing.assert_array_equal(fused(q[head : head + 1], k[head : head + 1], v[head : head + 1])[0], together[head])
