"""Blocked NumPy: every hand-written cascade, at sizes of one tile and of many, whatever the strides and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cascades
import ml_dtypes
import numpy as np
import pytest
from cascades import WORKLOADS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from writing import (
    Array,
    Builder,
    Source,
    Workload,
    cast,
    close,
    exp,
    expected,
    fn,
    index,
    load,
    log,
    lse64,
    normal,
    shifted,
    total,
    where,
    workload,
)

from redfuser_eq.cascade import Cascade
from redfuser_eq.errors import DTypeError, ShapeError
from redfuser_eq.expr import Acc, Output
from redfuser_eq.runtime import numpy as backend

NAN, INF = np.nan, np.inf
COLUMNS = {"d", "n"}  # axes of the workloads that are columns of a matrix product, not rows


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def run(w: Workload, arrays: list[Any], extents: Mapping[str, int], plain: bool = False, out: list[Array] | None = None) -> list[Array]:
    return backend.build(w.plain if plain else w.cascade, w.plain)(arrays, extents, out)


# ---- values


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
def test_one_tile(name: str, plain: bool, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    got = run(w, arrays, w.extents, plain)
    assert [g.dtype for g in got] == [o.dtype for o in w.cascade.outputs]
    close(got, expected(w, arrays))


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.usefixtures("small_tiles")
def test_many_tiles(name: str, plain: bool, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    close(run(w, arrays, w.extents, plain), expected(w, arrays))


@pytest.mark.parametrize(
    "name", ["kl", "several", "attention_gqa", "attention_bias", "layernorm_linear", "kmeans_direct", "attention_received"]
)
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("small_tiles")
def test_any_extents(name: str, data: st.DataObject) -> None:
    w = WORKLOADS[name]()
    extents = {a: data.draw(st.integers(1, 3 if a in "bghr" else 40), label=a) for a in w.extents}
    arrays = w.make(np.random.default_rng(data.draw(st.integers(0, 99))), extents)
    close(run(w, arrays, extents), expected(w, arrays), 2e-5)


@pytest.mark.parametrize("name", WORKLOADS)
def test_axes_of_size_one(name: str, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    for axis in w.extents:
        if axis != "t":
            extents = {**w.extents, axis: 1 if name != "routing" or axis != "j" else 4}
            arrays = w.make(rng, extents)
            close(run(w, arrays, extents), expected(w, arrays), 2e-5)


@pytest.mark.parametrize("name", WORKLOADS)
def test_empty_parallel_axes(name: str, rng: np.random.Generator) -> None:
    w = WORKLOADS[name]()
    inner = {p.axis for p in w.cascade.passes} | {"e", "f", "h", "t"}
    for axis in set(w.extents) - inner:
        extents = {**w.extents, axis: 0}
        got = run(w, w.make(rng, extents), extents)
        for g, o in zip(got, w.cascade.outputs, strict=True):
            assert g.shape == tuple(extents[a] for a in o.axes)


def test_empty_stream_axes(rng: np.random.Generator) -> None:
    for make in (cascades.logsumexp, cascades.attention, cascades.kmeans, cascades.routing):
        w = make()
        axis = w.cascade.passes[0].axis
        with pytest.raises(ShapeError, match=f"'{axis}'"):
            run(w, w.make(rng, {**w.extents, axis: 0}), {**w.extents, axis: 0})
    w = cascades.variance()
    assert np.isnan(run(w, [np.zeros((4, 0), np.float32)], {"r": 4, "k": 0})[0]).all()
    w = cascades.quantised_linear()  # two passes over nothing: the maximum comes first
    with pytest.raises(ShapeError, match="max over axis 'k' of size 0"):
        run(w, w.make(rng, {**w.extents, "k": 0}), {**w.extents, "k": 0})


def test_an_empty_inner_axis_sums_to_zero(rng: np.random.Generator) -> None:
    w = cascades.attention()
    extents = {**w.extents, "e": 0}
    arrays = w.make(rng, extents)
    (got,) = run(w, arrays, extents)
    close([got], [np.broadcast_to(arrays[2].mean(-2, keepdims=True, dtype=np.float64), got.shape)])


# ---- rows that are not finite


def both(w: Workload, arrays: list[Array], extents: Mapping[str, int]) -> tuple[Array, Array]:
    """The fused result and the written-out formula's in float64."""
    return run(w, arrays, extents)[0], np.asarray(expected(w, arrays)[0])


@pytest.mark.parametrize("make", [cascades.softmax, cascades.logsumexp, cascades.entropy, cascades.variance])
@pytest.mark.parametrize("tiles", ["one", "small_tiles"])
def test_rows_of_infinities_and_nan(make: Callable[..., Workload], tiles: str, request: pytest.FixtureRequest) -> None:
    """As NumPy's written-out formula has them, and nothing else is touched."""
    if tiles != "one":
        request.getfixturevalue(tiles)
    w, rng = make(), np.random.default_rng(3)
    extents = {"r": 9, "k": 70}
    (x,) = w.make(rng, extents)
    clean = run(w, [x.copy()], extents)[0]
    x[1], x[2, 5], x[3, 69], x[4, :40], x[6, 60], x[7] = -INF, INF, NAN, -INF, -INF, INF
    got, want = both(w, [x], extents)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    close([got], [want])
    for r in (0, 5, 8):
        np.testing.assert_array_equal(got[r], clean[r])


def test_logsumexp_of_infinity_beside_numbers() -> None:
    w = cascades.logsumexp()
    x = np.array([[INF, 0], [-INF, 0], [-INF, -INF], [1e38, 3e38]], np.float32)
    got, _ = both(w, [x], {"r": 4, "k": 2})
    np.testing.assert_array_equal(got, np.array([NAN, 0, NAN, 3e38], np.float32))


@pytest.mark.usefixtures("small_tiles")
def test_a_fully_masked_first_tile() -> None:
    w = cascades.softmax()
    x = np.full((3, 60), -INF, np.float32)
    x[0, 40:42] = 0, 1
    x[1, 0] = -1e30
    x[2] = -1e30 - np.arange(60) * 1e29
    got, want = both(w, [x], {"r": 3, "k": 60})
    close([got], [want])
    assert np.isfinite(got).all() and (got[0, :40] == 0).all()


@pytest.mark.usefixtures("small_tiles")
def test_masked_keys_still_count_their_values(rng: np.random.Generator) -> None:
    """0 * NaN is NaN: a value behind an additive -inf mask, in the first tile and in the last."""
    for at in (0, 74):
        w = cascades.attention_bias()
        b, k, q, v = w.make(rng, w.extents)
        b[0, 3:5, :30] = -INF
        b[0, 3:5, 60:] = -INF
        clean = run(w, [b, k, q, v], w.extents)[0]
        v = v.copy()
        v[0, at, 7] = NAN
        got, want = both(w, [b, k, q, v], w.extents)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        assert np.isnan(got[0, :, 7]).all() and not np.isnan(got[0, :, :7]).any()
        np.testing.assert_array_equal(got[1], clean[1])


def test_rows_masked_by_position(rng: np.random.Generator) -> None:
    """A row of `where` that keeps nothing is NaN; the positions of rows computed again are their own."""
    x = load("x", "rk")
    s = where(fn("gt")(index("r"), index("k")), x, -INF)
    b = Builder("k", "r")
    m, z, _ = shifted(b, s)
    hi = total("k", s, "max")
    w = workload(
        "lower",
        {"r": 6, "k": 6},
        [b.done()],
        [(m + log(z), "r")],
        [hi + log(total("k", exp(s - hi)))],
        normal(x="rk"),
        lambda x: [lse64(np.where(np.tri(*x.shape, -1, dtype=bool), x, -INF))],
    )
    arrays = w.make(rng, w.extents)
    arrays[0][4, 1] = INF
    got, want = both(w, arrays, w.extents)
    np.testing.assert_array_equal(np.isnan(got), [True, False, False, False, True, False])
    close([got], [want])


def test_overflowing_parameters_follow_the_formula() -> None:
    """sum(x**2) is infinite, so the written-out rows are x * 0 = 0 and not sum(x * w) * 0."""
    w = cascades.rms_linear()
    extents = {"r": 2, "k": 4, "n": 2}
    x = np.array([[1e30, 1, 1, 1], [1, 2, 3, 4]], np.float32)
    weights = np.full((4, 2), 1e30, np.float32)
    (got,) = run(w, [np.ones(4, np.float32), weights, x], extents)
    np.testing.assert_array_equal(got[0], [0, 0])
    close([got[1:]], [expected(w, [np.ones(4), weights, x])[0][1:]])


def test_maximum_argmax_and_top_k_of_odd_rows(rng: np.random.Generator) -> None:
    w = cascades.several()
    extents = {"r": 3, "k": 50}
    x = rng.standard_normal((3, 50)).astype(np.float32)
    x[0, 30:32] = NAN, INF
    x[1, [7, 9]] = 9
    *_, hi, _, place = run(w, [x], extents)
    np.testing.assert_array_equal(hi, x.max(1))
    np.testing.assert_array_equal(place, x.argmax(1))


@pytest.mark.parametrize("tiles", ["one", "small_tiles"])
def test_top_k_with_ties_and_one_finite_score(tiles: str, request: pytest.FixtureRequest) -> None:
    if tiles != "one":
        request.getfixturevalue(tiles)
    w = cascades.routing()
    extents = {"i": 3, "h": 1, "j": 61, "t": 4}
    weights = np.full((1, 61), -INF, np.float32)
    weights[0, 20] = 1
    _, index = run(w, [weights, np.ones((3, 1), np.float32)], extents)
    np.testing.assert_array_equal(index, [[20, 0, 1, 2]] * 3)
    weights[:] = 1
    weights[0, [5, 60]] = 2
    _, index = run(w, [weights, np.ones((3, 1), np.float32)], extents)
    np.testing.assert_array_equal(index, [[5, 60, 0, 1]] * 3)


# ---- strides, outputs, dtypes


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.usefixtures("small_tiles")
def test_any_strides(name: str, rng: np.random.Generator) -> None:
    """Transposed, reversed and gapped copies of the inputs; outputs into gapped arrays full of NaN."""
    w = WORKLOADS[name]()
    arrays = w.make(rng, w.extents)
    plain = run(w, arrays, w.extents)
    odd = []
    for a in arrays:
        room = np.full([2 * n + 3 for n in reversed(a.shape)], 99, a.dtype).T
        view = room[(..., *(slice(2 * n, 0, -2) for n in a.shape))]
        view[...] = a
        odd.append(view)
    rooms = [np.full([3 * n for n in p.shape], NAN if p.dtype.kind == "f" else 1, p.dtype) for p in plain]
    out = [room[(..., *(slice(1, None, 3) for _ in p.shape))] for room, p in zip(rooms, plain, strict=True)]
    got = run(w, odd, w.extents, out=out)
    assert all(g is o for g, o in zip(got, out, strict=True))
    close(got, expected(w, arrays))
    for g, p in zip(got, plain, strict=True):
        np.testing.assert_allclose(g, p, rtol=1e-5, atol=1e-5)


def test_broadcast_inputs(rng: np.random.Generator) -> None:
    """Strides of 0 read one element many times."""
    w = cascades.attention_bias()
    b, k, q, v = w.make(rng, w.extents)
    shared = [np.broadcast_to(b[:1, :1], b.shape), np.broadcast_to(k[:1], k.shape), np.broadcast_to(q[:, :1], q.shape), v]
    close(run(w, shared, w.extents), expected(w, shared))
    w = cascades.rms_linear()
    g, weights, x = w.make(rng, w.extents)
    shared = [np.broadcast_to(g[:1], g.shape), np.broadcast_to(weights[:, :1], weights.shape), np.broadcast_to(x[:, :1], x.shape)]
    close(run(w, shared, w.extents), expected(w, shared))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("make", [cascades.logsumexp, cascades.attention, cascades.variance])
def test_float_dtypes(make: Callable[..., Workload], dtype: Any, rng: np.random.Generator) -> None:
    """Narrow floats are accumulated in float32; float64 stays float64."""
    w = make(dtype=dtype)
    arrays = w.make(rng, w.extents)
    got = run(w, arrays, w.extents)
    tolerance = {np.float16: 1e-3, ml_dtypes.bfloat16: 8e-3, np.float64: 1e-13}[dtype] if make is not cascades.variance else 1e-6
    close(got, expected(w, arrays), 1e-13 if dtype == np.float64 else tolerance)


def test_equal_narrow_floats() -> None:
    """4096 float16 zeros have the log-sum-exp log(4096): counted in float32."""
    w = cascades.logsumexp(dtype=np.float16)
    got = run(w, [np.zeros((1, 4096), np.float16)], {"r": 1, "k": 4096})[0]
    assert got.item() == np.float16(np.log(4096))


def test_float8_and_integer_loads(rng: np.random.Generator) -> None:
    """sum_k a * b of float8 and int8, exactly, and an unsigned maximum."""
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8):
        a, b = load("a", "rk", dtype), load("b", "kn", dtype)
        running = np.int32 if dtype is np.int8 else np.float32
        builder = Builder("k", "rn")
        y = builder.add("y", "sum", cast(a, running) * cast(b, running))
        w = workload(
            "gemm",
            {"r": 9, "k": 40, "n": 5},
            [builder.done()],
            [(y, "rn")],
            [total("k", cast(a, running) * cast(b, running))],
            lambda *_: [],
            lambda a, b: [a @ b],
        )
        arrays = [rng.integers(-8, 8, s).astype(dtype) for s in ((9, 40), (40, 5))]
        np.testing.assert_array_equal(run(w, arrays, w.extents)[0], expected(w, arrays)[0])
    builder = Builder("k", "r")
    m = builder.add("m", "max", load("u", "rk", np.uint8))
    w = workload(
        "umax",
        {"r": 2, "k": 3},
        [builder.done()],
        [(m, "r")],
        [total("k", load("u", "rk", np.uint8), "max")],
        lambda *_: [],
        lambda u: [u.max(-1)],
        out_dtype=np.uint8,
    )
    got = run(w, [np.array([[1, 255, 3], [0, 0, 0]], np.uint8)], w.extents)[0]
    assert got.dtype == np.uint8 and got.tolist() == [255, 0]


def test_casts_round_in_place() -> None:
    """cast(x, float16) inside a lift rounds each element."""
    x = np.array([[1 + 2**-12, 3.0002]], np.float32)
    b = Builder("k", "r")
    lift = cast(cast(load("x", "rk"), np.float16), np.float32)
    s = b.add("s", "sum", lift)
    w = workload("rounded", {"r": 1, "k": 2}, [b.done()], [(s, "r")], [total("k", lift)], lambda *_: [], lambda x: [x.sum(-1)])
    assert run(w, [x], w.extents)[0].item() == float(x.astype(np.float16).astype(np.float32).sum())


def test_complex_numbers_are_refused() -> None:
    b = Builder("k", "r")
    x = load("x", "rk", np.complex64)
    b.add("s", "sum", x)
    c = Cascade(
        (Source("x", 0, np.dtype(np.complex64), 2),),
        (b.done(),),
        (Output(Acc("s", frozenset("r")), (("r",),), np.dtype("f4")),),
        {"r": None, "k": None},
    )
    with pytest.raises(DTypeError, match="complex64"):
        backend.build(c, c)([np.zeros((1, 1), np.complex64)], {"r": 1, "k": 1})


# ---- errors and text


def test_shapes_are_checked(rng: np.random.Generator) -> None:
    w = cascades.rms_linear()
    f = backend.build(w.cascade, w.plain)
    g, weights, x = w.make(rng, w.extents)
    with pytest.raises(ShapeError, match=r"x\[r,k\]: the array has shape \(35, 99\), the axes have sizes \(35, 100\)"):
        f([g, weights, x[:, 1:]], w.extents)
    with pytest.raises(ShapeError, match="3 arrays are needed"):
        f([g, weights], w.extents)
    with pytest.raises(ShapeError, match="out: 1 arrays are needed, 2 were given"):
        f([g, weights, x], w.extents, out=[x, x])
    with pytest.raises(ShapeError, match=r"out\[0\] has shape \(35, 30\) and dtype float64"):
        f([g, weights, x], w.extents, out=[np.empty((35, 30))])


def test_k_beyond_the_axis_is_an_error(rng: np.random.Generator) -> None:
    w = cascades.routing()
    extents = {**w.extents, "j": 3}
    with pytest.raises(ShapeError, match="k=4 over axis 'j' of size 3"):
        run(w, w.make(rng, extents), extents)


def test_source_reads_as_mathematics() -> None:
    w = cascades.logsumexp()
    text = backend.build(w.cascade, w.plain).source
    assert "for each tile of k:" in text
    assert "s[r] = sum((s' * exp((m' - m))), sum_k exp((x[r,k] - m)))" in text
    assert "output[r] = (m + log(s))" in text
