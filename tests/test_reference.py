"""The float64 interpreters: every hand-written cascade under any tiling and segmentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cascades
import numpy as np
import pytest
from cascades import WORKLOADS
from hypothesis import given, settings
from hypothesis import strategies as st
from writing import Array, Builder, T, Workload, close, const, expected, load, square, total, workload

from redfuser_eq import reference
from redfuser_eq.cascade import Cascade
from redfuser_eq.errors import ShapeError
from redfuser_eq.expr import Acc, Cast, Const, Expr, Load, Output, Program, Reduce, Source

NAN, INF = np.nan, np.inf


def exact(got: list[Array], want: list[Array], tolerance: float = 1e-11) -> None:
    close(got, want, tolerance)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("name", WORKLOADS)
def test_expression_and_cascade_agree(name: str, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    want = expected(w, arrays)
    tolerance = 1e-6 if name == "quantised_linear" else 1e-11  # whose expectation scales in float32
    exact(reference.evaluate(w.program, arrays, w.extents), want, tolerance)
    for c in (w.cascade, w.plain):
        exact(reference.stream(c, arrays, w.extents), want, tolerance)
        for _ in range(3):
            exact(reference.stream(c, arrays, w.extents, rng=rng), want, tolerance)


@pytest.mark.parametrize("name", ["logsumexp", "kl", "softmax_variance", "several", "routing", "attention_window", "kmeans"])
@pytest.mark.parametrize(("tiles", "segments"), [([1], 1), ([1, 5, 2], 3), ([7], 200), (None, 4)])
def test_given_tiles_and_segments(name: str, tiles: list[int] | None, segments: int, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    exact(reference.stream(w.cascade, arrays, w.extents, tiles=tiles, segments=segments), expected(w, arrays))


@pytest.mark.parametrize("name", ["entropy", "covariance", "layernorm_linear", "attention_bias", "cross_entropy"])
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_extents(name: str, data: st.DataObject) -> None:
    w = WORKLOADS[name]()
    extents = {a: data.draw(st.integers(1, 12), label=a) for a in w.extents}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = w.make(rng, extents)
    exact(reference.evaluate(w.program, arrays, extents), expected(w, arrays), 1e-9)
    exact(reference.stream(w.cascade, arrays, extents, rng=rng), expected(w, arrays), 1e-9)


@pytest.mark.parametrize("name", ["logsumexp", "variance", "attention", "layernorm_linear"])
def test_a_wrong_rebase_is_seen(name: str, rng: np.random.Generator) -> None:
    """Every rebase matters: without any one of them the streamed result is wrong."""
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    want = expected(w, arrays)
    (p,) = w.cascade.passes
    broken = [i for i, a in enumerate(p.accumulators) if a.rebase is not None]
    assert broken
    for i in broken:
        accs = tuple(replace(a, rebase=None) if n == i else a for n, a in enumerate(p.accumulators))
        c = Cascade(w.cascade.sources, (replace(p, accumulators=accs),), w.cascade.outputs, w.cascade.extents)
        (got, *_) = reference.stream(c, arrays, w.extents, tiles=[10])
        assert np.abs(got - want[0]).max() > 1e-6


def test_masked_tiles_and_segments_are_neutral(rng: np.random.Generator) -> None:
    """Runs of -inf anywhere, whole tiles and segments of them, leave a finite result."""
    w = cascades.softmax_variance()
    extents = {"r": 6, "k": 60}
    v, x = w.make(rng, extents)
    for r in range(5):
        x[r, 10 * r : 10 * r + 35] = -INF
    x[5, :59] = -INF
    want = expected(w, [v, x])
    assert np.isfinite(want).all()
    for tiles, segments in (([10], 1), ([5], 6), ([1], 60), ([60], 1), ([20], 3)):
        exact(reference.stream(w.cascade, [v, x], extents, tiles=tiles, segments=segments, rng=rng), want)


def test_zero_weights_are_neutral(rng: np.random.Generator) -> None:
    """A mean that is still 0/0 contributes nothing."""
    w = cascades.weighted_variance()
    extents = {"r": 3, "k": 40}
    weight, x = w.make(rng, extents)
    weight[0, :20] = 0
    weight[1, 20:] = 0
    weight[2, 1:] = 0
    for tiles, segments in (([10], 1), ([10], 4), ([1], 40)):
        exact(reference.stream(w.cascade, [weight, x], extents, tiles=tiles, segments=segments, rng=rng), expected(w, [weight, x]))


def test_a_sum_that_happens_to_be_zero_is_not_empty() -> None:
    """sum((x - sum(x))**2) of 1, -1, 1, -1: the running sum is 0 after each pair."""
    x = load("x", "rk")
    b = Builder("k", "r")
    n, s = b.add("n", "sum", const(1.0)), b.add("s", "sum", x)
    old, count = b.prev("s", x), b.prev("n", const(1.0))
    cross = (old - s) * (old - count * old)
    b.add("q", "sum", square(x - s), b.prev("q", x) + cross + cross + count * square(old - s))
    q = T(Acc("q", frozenset("r")))
    w = workload(
        "shifted",
        {"r": 2, "k": 8},
        [b.done()],
        [(q, "r")],
        [total("k", square(x - total("k", x)))],
        lambda *_: [],
        lambda x: [((x - x.sum(-1, keepdims=True)) ** 2).sum(-1)],
    )
    assert n.e.axes == frozenset()
    data = np.array([[1, -1] * 4, [2, -2, 1, -1, 3, 0, 0, 5]], np.float32)
    for tiles in ([1], [2], [4], [8]):
        exact(reference.stream(w.cascade, [data], w.extents, tiles=tiles), expected(w, [data]))


def _rows(op: str, x: Array, k: int = 0, **how: object) -> list[Array]:
    """One reduction of the rows of x, streamed: values, or (for pairs and top-k) indices too."""
    extents = {"r": x.shape[0], "k": x.shape[1]} | ({"t": k} if k else {})
    b = Builder("k", "r")
    a = b.add("a", op, load("x", "rk", x.dtype), k=k, out="t" if k else "")
    axes = ("r", "t") if k else ("r",)
    outs = [Output(a.e, tuple((d,) for d in axes), a.e.dtype)]
    if op.startswith(("arg", "top")):
        outs.append(Output(Acc("a", frozenset(axes), np.int64, "index"), tuple((d,) for d in axes), np.dtype(np.int64)))
    c = Cascade((Source("x", 0, x.dtype, 2),), (b.done(),), tuple(outs), dict(extents))
    return reference.stream(c, [x], extents, **how)  # type: ignore[arg-type]


def test_argmax_and_argmin_take_the_first(rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, (20, 30)).astype(np.float32)
    x[3, [5, 20]] = NAN
    x[4] = -INF
    for op, numpy in (("argmax", np.argmax), ("argmin", np.argmin)):
        for _ in range(5):
            value, index = _rows(op, x, rng=rng)
            np.testing.assert_array_equal(index, numpy(x, axis=1))
            np.testing.assert_array_equal(value, np.take_along_axis(x, index[:, None], 1)[:, 0])


def _top(x: Array, k: int) -> Array:
    """Indices of the k best: NaN first, then by value, then by index."""
    return np.array([sorted(range(len(row)), key=lambda i: (not np.isnan(row[i]), -row[i] if row[i] == row[i] else 0, i))[:k] for row in x])


@pytest.mark.parametrize("k", [1, 3, 8, 30])
def test_top_k_ties_and_nonfinite(k: int, rng: np.random.Generator) -> None:
    x = rng.integers(0, 4, (8, 30)).astype(np.float32)
    x[1, [9, 25]] = NAN
    x[2] = -INF
    x[2, 17] = 1
    x[3, ::2] = -INF
    x[4, [3, 4]] = INF, NAN
    want = _top(x, k)
    for _ in range(5):
        value, index = _rows("top_values", x, k, rng=rng)
        np.testing.assert_array_equal(index, want)
        np.testing.assert_array_equal(value, np.take_along_axis(x, want, 1))


def test_top_k_of_long_rows(rng: np.random.Generator) -> None:
    """Long enough that candidates are selected before they are sorted, with few and with many ties."""
    for x in (rng.standard_normal((4, 3000)), rng.integers(0, 5, (4, 3000)).astype(float), rng.integers(0, 900, (4, 3000))):
        value, index = _rows("top_values", x, 5, tiles=[700, 1])
        want = np.argsort(-x, axis=1, kind="stable")[:, :5]
        np.testing.assert_array_equal(index, want)
        np.testing.assert_array_equal(value, np.take_along_axis(x, want, 1))


def test_maximum_keeps_nan(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 9))
    x[1, 4] = NAN
    np.testing.assert_array_equal(_rows("max", x, rng=rng)[0], x.max(1))


def test_integers_are_exact() -> None:
    """Beyond what float64 holds."""
    x = np.array([[2**62, 1, -(2**62), 5]], np.int64)
    assert _rows("sum", x, tiles=[1])[0].item() == 6
    assert _rows("max", np.array([[2**60, 2**60 + 1, 0]]), tiles=[2])[0].item() == 2**60 + 1
    program = _program(Reduce("sum", "k", Load("x", ("r", "k"), np.int32), dtype=np.int64))
    big = np.full((1, 3), 2**31 - 1, np.int32)
    assert reference.evaluate(program, [big], {"r": 1, "k": 3})[0].item() == 3 * (2**31 - 1)


def _program(e: Expr, dtype: object = np.int32) -> Program:
    return Program(("x",), (Source("x", 0, np.dtype(dtype), 2),), {"r": None, "k": None}, (Output(e, (("r",),), e.dtype),))  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize(
    ("op", "value"), [("sum", 0.0), ("prod", 1.0), ("max", None), ("min", None), ("argmax", None), ("argmin", None), ("top_values", None)]
)
def test_empty_axes(op: str, value: float | None) -> None:
    """As NumPy: a sum or product of nothing has a value, an extreme of nothing is an error, no rows are fine."""
    x = np.zeros((2, 0), np.float32)
    if value is None:
        with pytest.raises(ShapeError, match="'k'"):
            _rows(op, x, k=1 if op == "top_values" else 0)
    else:
        assert (_rows(op, x, segments=3)[0] == value).all()
    if op != "top_values":
        assert _rows(op, np.zeros((0, 0), np.float32))[0].shape == (0,)


def test_reductions_of_nothing_in_an_expression() -> None:
    x = Load("x", ("r", "k"), np.float32)
    x0 = np.zeros((2, 0), np.float32)
    assert (reference.evaluate(_program(Reduce("sum", "k", x)), [x0], {"r": 2, "k": 0})[0] == 0).all()
    with pytest.raises(ShapeError, match=r"max over axis 'k' of size 0"):
        reference.evaluate(_program(Reduce("max", "k", x)), [x0], {"r": 2, "k": 0})


def test_k_beyond_the_axis_is_an_error() -> None:
    with pytest.raises(ShapeError, match="k=5 over axis 'k' of size 3"):
        _rows("top_values", np.zeros((1, 3)), 5)


def test_wrong_number_of_arrays() -> None:
    w = cascades.kl()
    with pytest.raises(ShapeError, match=r"2 arrays are needed \(x, y\), 1 were given"):
        reference.evaluate(w.program, [np.zeros((1, 1))], w.extents)


def test_casts_round() -> None:
    x = np.array([[1.0, 1.0 + 2**-12, 3.7]], np.float32)
    half = Cast(Load("x", ("r", "k"), np.float32), np.float16)
    got = reference.evaluate(_program(Reduce("sum", "k", Cast(half, np.float32)), np.float32), [x], {"r": 1, "k": 3})[0]
    assert got.item() == float(x.astype(np.float16).astype(np.float64).sum())
    whole = Cast(Load("x", ("r", "k"), np.float32), np.int32)
    assert reference.evaluate(_program(Reduce("sum", "k", whole), np.float32), [x], {"r": 1, "k": 3})[0].item() == 5


def test_a_body_that_does_not_vary() -> None:
    """sum_k 2 = 2 K, and a maximum of a constant."""
    x = load("x", "rk")
    for e, want in ((Reduce("sum", "k", Const(2.0)), 14.0), (Reduce("max", "k", Const(2.0)), 2.0), (Reduce("argmax", "k", Const(2.0)), 0)):
        p = _program((T(e) + total("k", x) * 0.0).e, np.float32)
        assert reference.evaluate(p, [np.zeros((1, 7), np.float32)], {"r": 1, "k": 7})[0].item() == want


def test_large_bodies_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The same values, however little is held at once."""
    from redfuser_eq import interpret

    monkeypatch.setattr(interpret, "CHUNK", 50)
    for make in (cascades.attention, cascades.routing, cascades.several):
        w = make()
        arrays = w.make(rng, w.extents)
        exact(reference.evaluate(w.program, arrays, w.extents), expected(w, arrays))


@pytest.mark.parametrize("make", [cascades.logsumexp, cascades.attention])
def test_narrow_inputs(make: Callable[..., Workload], rng: np.random.Generator) -> None:
    import ml_dtypes

    for dtype in (np.float16, ml_dtypes.bfloat16, np.float64):
        w = make(dtype=dtype)
        arrays = w.make(rng, w.extents)
        exact(reference.evaluate(w.program, arrays, w.extents), expected(w, arrays))
        exact(reference.stream(w.cascade, arrays, w.extents, rng=rng), expected(w, arrays))


def test_float32_can_be_asked_for(rng: np.random.Generator) -> None:
    w = cascades.logsumexp()
    arrays = w.make(rng, w.extents)
    (got,) = reference.evaluate(w.program, arrays, w.extents, dtype=np.float32)
    assert got.dtype == np.float32
    close([got], expected(w, arrays), 1e-5)
