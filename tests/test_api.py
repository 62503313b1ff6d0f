"""Calling optimized programs: arguments, results, `out`, caches, threads."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import redfuser_eq as rf

F32 = np.float32
rng = np.random.default_rng(20)


def normal(*shape: int, dtype: Any = F32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def logsumexp(x: Any) -> Any:
    m = np.max(x, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(x - m), axis=-1)) + m[..., 0]


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def moments(x: Any) -> Any:
    return {"mean": np.mean(x, axis=-1), "rest": (np.var(x, axis=-1), [np.max(x, axis=-1), None])}


def exact(f: Any, *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return f(*(a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a for a in args))


def optimize(f: Any, **options: Any) -> Any:
    return rf.optimize(f, **{"target": "numpy", "verify": "raise", **options})


def close(got: Any, want: Any, rtol: float = 1e-5) -> None:
    assert np.shape(got) == np.shape(want)
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=1e-6)


@rf.optimize
def decorated(x: Any) -> Any:
    """Doubled."""
    return x + x


# ---- arguments


def test_positional_and_keyword_arguments_share_a_signature() -> None:
    f = optimize(lambda x, w, scale=2.0: softmax(x * scale) @ w)
    x, w = normal(3, 5), normal(5, 2)
    want = exact(lambda x, w: softmax(x * 2.0) @ w, x, w)
    for got in (f(x, w), f(x, w=w), f(w=w, x=x), f(x=x, w=w)):
        close(got, want)
    assert len(f._bound) == len(f._plans) == 1
    close(f(x, w, 0.5), exact(lambda x, w: softmax(x * 0.5) @ w, x, w))
    close(f(x, scale=0.5, w=w), exact(lambda x, w: softmax(x * 0.5) @ w, x, w))


def test_keyword_only_and_variable_arguments() -> None:
    f = optimize(lambda *xs, scale, **named: logsumexp(sum(xs) * scale + named["bias"]))
    x, y, b = normal(4, 6), normal(4, 6), normal(6)
    close(f(x, y, scale=2, bias=b), exact(lambda x, y, b: logsumexp((x + y) * 2 + b), x, y, b))


def test_static_arguments() -> None:
    def f(x: Any, mode: str, power: int, then: Any, other: Any = None) -> Any:
        y = x**power if mode == "power" else x
        return then(y if other is None else y + other)

    fused = optimize(f)
    x = np.abs(normal(3, 7)) + F32(0.5)
    for power in (1, 2, 3):
        close(fused(x, "power", power, logsumexp), exact(lambda x, p=power: logsumexp(x**p), x))
    close(fused(x, "none", 2, softmax), exact(softmax, x))
    close(fused(x, "none", 2, softmax, x), exact(lambda x: softmax(x + x), x))
    assert len(fused._bound) == 5


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, True), (1, 1.0), (F32(2), np.float64(2))])
def test_static_values_that_compare_equal_are_told_apart(a: Any, b: Any) -> None:
    fused = optimize(lambda x, s: np.sum(x / s, axis=-1))
    x = np.abs(normal(2, 3)) + F32(1)
    with np.errstate(all="ignore"):
        for s in (a, b, a):
            got, want = fused(x, s), np.sum(x / s, axis=-1)
            np.testing.assert_allclose(got, want, rtol=1e-6)
            assert got.dtype == want.dtype
    assert len(fused._bound) == 2


def test_nan_as_a_static_argument_is_one_signature() -> None:
    fused = optimize(lambda x, fill: np.sum(np.where(np.isnan(x), fill, x), axis=-1))
    for _ in range(3):
        assert np.isnan(fused(np.full((2, 3), np.nan, F32), float("nan"))).all()
    assert len(fused._bound) == 1


def test_unhashable_static_arguments_are_refused() -> None:
    with pytest.raises(rf.TraceError, match="set is neither an array, a container of arrays nor hashable"):
        optimize(lambda x, s: np.sum(x))(normal(3), {1, 2})


def test_containers_of_arrays() -> None:
    Pair = namedtuple("Pair", "q k")
    fused = optimize(lambda p, more: logsumexp(p.q @ p.k.T) * more["scale"][0])
    q, k, s = normal(3, 4), normal(5, 4), normal(3)
    want = exact(lambda q, k, s: logsumexp(q @ k.T) * s, q, k, s)
    close(fused(Pair(q, k), {"scale": [s]}), want)
    close(fused(p=Pair(q, k), more={"scale": [s]}), want)
    assert len(fused._bound) == 1


def test_captured_arrays_are_read_at_each_call() -> None:
    w = normal(6, 2)
    fused = optimize(lambda x: softmax(x) @ w)
    x = normal(3, 6)
    close(fused(x), exact(lambda x, w: softmax(x) @ w, x, w))
    w[...] = normal(6, 2)
    close(fused(x), exact(lambda x, w: softmax(x) @ w, x, w))


def test_a_constant_function_is_refused() -> None:
    w = normal(6, 2)
    with pytest.raises(rf.TraceError, match="returns no array computed from its arguments"):
        optimize(lambda: np.sum(w, axis=0))()


def test_arguments_are_not_kept_alive() -> None:
    fused = optimize(logsumexp)
    x = normal(64, 8192)
    fused(x)
    tracemalloc.start()
    fused(normal(64, 8192))
    fused(normal(65, 8192))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < x.nbytes / 2


def test_old_signatures_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redfuser_eq.api.SIGNATURES", 3)
    fused = optimize(lambda x, s: np.sum(x * s, axis=-1))
    x = normal(2, 3)
    for s in (*range(6), 0):
        close(fused(x, s), exact(lambda x, s=s: np.sum(x * s, axis=-1), x))
    assert len(fused._bound) == 3


# ---- kinds, dtypes, sizes


def test_sizes_share_a_plan() -> None:
    fused = optimize(softmax)
    for n in (130, 170, 255):
        x = normal(20, n)
        close(fused(x), exact(softmax, x))
    assert len(fused._bound) == 3 and len(fused._plans) == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
def test_dtypes(dtype: Any) -> None:
    fused = optimize(softmax)
    x = normal(3, 9).astype(dtype)
    got = fused(x)
    assert got.dtype == np.dtype(dtype)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3}.get(np.dtype(dtype).name, 1e-2)
    close(got, softmax(x.astype(np.float64)), tolerance)


def test_each_dtype_is_a_plan() -> None:
    fused = optimize(logsumexp)
    x = normal(3, 9)
    for dtype in (F32, np.float64, np.float16, F32):
        assert fused(x.astype(dtype)).dtype == dtype
    assert len(fused._plans) == 3


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::-1, ::-1],
        lambda x: x[::2, 1::3],
        lambda x: x[:, :1] + np.zeros((), F32),
        lambda x: np.broadcast_to(x[:1], (5, x.shape[1])),
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f4"),
        lambda x: np.lib.stride_tricks.as_strided(x, (4, 6), (4, 8)),
    ],
)
def test_strides(view: Any) -> None:
    x = view(normal(9, 12))
    x.flags.writeable = False
    close(optimize(softmax)(x), exact(softmax, np.ascontiguousarray(x, F32)))


def test_extents_of_one_and_zero() -> None:
    fused = optimize(lambda q, k, v: softmax(q @ k.T) @ v)
    for t, s, d, e in ((1, 1, 1, 1), (1, 5, 3, 2), (4, 1, 3, 2), (4, 5, 1, 1)):
        q, k, v = normal(t, d), normal(s, d), normal(s, e)
        close(fused(q, k, v), exact(lambda q, k, v: softmax(q @ k.T) @ v, q, k, v))
    assert fused(normal(0, 3), normal(5, 3), normal(5, 2)).shape == (0, 2)
    assert fused(normal(4, 3), normal(5, 3), normal(5, 0)).shape == (4, 0)
    with pytest.raises(rf.ShapeError, match="no identity"):
        fused(normal(4, 3), normal(0, 3), normal(0, 2))


def test_results_without_dimensions() -> None:
    x = normal(50)
    got = optimize(logsumexp)(x)
    assert isinstance(got, np.ndarray) and got.shape == () and f"{got:.3f}"
    close(got, exact(logsumexp, x))


def test_subclasses_of_ndarray(tmp_path: Path) -> None:
    fused = optimize(logsumexp)
    x = normal(3, 4)
    stored = np.memmap(tmp_path / "x", F32, "w+", shape=x.shape)
    stored[...] = x
    close(fused(stored), exact(logsumexp, x))
    with pytest.raises(rf.DTypeError, match=r"np\.matrix.*np\.asarray"):
        fused(np.asmatrix(x))
    with pytest.raises(rf.DTypeError, match=r"masked array.*filled"):
        fused(np.ma.masked_less(x, 0))

    class Units(np.ndarray):
        def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError

    with pytest.raises(rf.DTypeError, match="Units, which has arithmetic of its own"):
        fused(x.view(Units))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (object, "object has no meaning"),
        (complex, r"complex128.*\.real and .*\.imag"),
        ([("a", "f4")], "no meaning"),
        ("M8[s]", "no meaning"),
        ("U3", "no meaning"),
        (np.longdouble, "no meaning"),
    ],
)
def test_dtypes_without_a_meaning(dtype: Any, message: str) -> None:
    with pytest.raises(rf.DTypeError, match=message):
        optimize(lambda x: np.sum(x, axis=-1))(np.zeros((2, 3), dtype))


def test_arrays_of_unknown_libraries() -> None:
    class Foreign:
        shape, dtype = (2, 3), np.dtype(F32)

    fused = optimize(logsumexp)
    with pytest.raises(rf.BackendError, match=r"Foreign; pass NumPy or CuPy arrays or torch tensors"):
        fused(Foreign())
    assert fused.report(Foreign()).fused


# ---- results and out=


def test_structures_of_results() -> None:
    x = normal(4, 33)
    got, want = optimize(moments)(x), exact(moments, x)
    assert list(got) == ["mean", "rest"] and isinstance(got["rest"], tuple) and got["rest"][1][1] is None
    close(got["mean"], want["mean"])
    close(got["rest"][0], want["rest"][0])
    close(got["rest"][1][0], want["rest"][1][0])


def empty(*shape: int, dtype: Any = F32) -> Any:
    return np.full(shape, np.nan, dtype)


def test_out_array() -> None:
    x, fused = normal(4, 33), optimize(softmax)
    out = empty(4, 33)
    assert fused(x, out=out) is out
    close(out, exact(softmax, x))
    wide = empty(4, 66)
    fused(x, out=wide[:, ::-2])
    close(wide[:, ::-2], exact(softmax, x))
    assert np.isnan(wide[:, ::2]).all()
    turned = empty(33, 4)
    fused(x, out=(turned.T,))
    close(turned.T, exact(softmax, x))


def test_out_without_dimensions() -> None:
    x, out = normal(33), empty()
    optimize(logsumexp)(x, out=out)
    close(out, exact(logsumexp, x))


def test_out_structures() -> None:
    x, fused = normal(4, 33), optimize(moments)
    want = exact(moments, x)
    out = {"rest": [empty(4), (empty(4), "ignored")], "mean": empty(4), "further": 1}
    assert fused(x, out=out) is out
    close(out["mean"], want["mean"])
    close(out["rest"][0], want["rest"][0])
    close(out["rest"][1][0], want["rest"][1][0])
    pair = optimize(lambda x: (np.sum(x, axis=-1), np.max(x, axis=-1)))
    a, b = empty(4), empty(4)
    pair(x, out=(a, b))
    close(a, exact(np.sum, x[0]) * 0 + x.sum(-1, dtype=np.float64))
    close(b, x.max(-1))


@pytest.mark.parametrize("target", ["numpy", "cpu"])
def test_out_that_shares_memory_with_an_argument(target: str) -> None:
    if not rf.runtime.available(target):
        pytest.skip("no compiler")
    fused = optimize(lambda x, b: softmax(x) + b, target=target)
    for make in (lambda x: x, lambda x: x[::-1], lambda x: x[:, ::-1]):
        x, b = normal(40, 33), normal(33)
        want = exact(lambda x, b: softmax(x) + b, x, b)
        close(fused(x, b, out=make(x)), want)
    square = normal(8, 8)
    want = exact(softmax, square)
    close(fused(square, np.zeros(8, F32), out=square.T), want)
    both = optimize(lambda x: (np.cumsum if False else np.square(x), x + 1), target=target)
    x = normal(5, 6)
    want = np.square(x), x + 1
    got = empty(5, 6)
    both(x, out=(got, x))
    close(got, want[0])
    close(x, want[1])


def test_out_of_joined_results() -> None:
    fused = optimize(lambda x, y: np.concatenate([softmax(x), softmax(y)], axis=-1))
    x, y = normal(3, 4), normal(3, 6)
    out = empty(3, 10)
    assert fused(x, y, out=out) is out
    close(out, np.concatenate([exact(softmax, x), exact(softmax, y)], axis=-1))
    with pytest.raises(rf.ShapeError, match=r"out= array 0 has shape \(3, 9\), but result 0 has shape \(3, 10\)"):
        fused(x, y, out=empty(3, 9))


def test_out_of_merged_axes() -> None:
    def f(x: Any) -> Any:
        return softmax(x.reshape(x.shape[0], 3, 4)).reshape(x.shape)

    x, out = normal(5, 12), empty(5, 24)
    optimize(f)(x, out=out[:, ::2])
    close(out[:, ::2], exact(f, x))


def test_out_that_does_not_fit() -> None:
    x, fused = normal(4, 33), optimize(softmax)
    with pytest.raises(rf.ShapeError, match=r"out= array 0 has shape \(33, 4\), but result 0 has shape \(4, 33\)"):
        fused(x, out=empty(33, 4))
    with pytest.raises(rf.DTypeError, match="out= array 0 has dtype float64, but result 0 has dtype float32"):
        fused(x, out=empty(4, 33, dtype=np.float64))
    frozen = empty(4, 33)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fused(x, out=frozen)
    with pytest.raises(ValueError, match="stride of 0"):
        fused(x, out=np.lib.stride_tricks.as_strided(empty(33), (4, 33), (0, 4)))
    with pytest.raises(TypeError, match="out= array 0 is a float"):
        fused(x, out=1.0)
    with pytest.raises(TypeError, match="out= array 0 is a tuple"):
        fused(x, out=(empty(4, 33), empty(4, 33)))
    several = optimize(moments)
    with pytest.raises(TypeError, match=r"dict with the keys of the result, \['mean', 'rest'\], not one with the keys \['mean'\]"):
        several(x, out={"mean": empty(4)})
    with pytest.raises(TypeError, match="out= must be a tuple of 2, as the result is, not a ndarray"):
        several(x, out={"mean": empty(4), "rest": empty(4)})


# ---- expressions


def expression() -> Any:
    x, w = rf.array("x", ("m", "n"), "float32"), rf.array("w", ("n", "k"), "float32")
    return softmax(x) @ w


def test_expression_by_position_and_name() -> None:
    fused = optimize(expression())
    x, w = normal(3, 5), normal(5, 2)
    want = exact(lambda x, w: softmax(x) @ w, x, w)
    for got in (fused(x, w), fused(x, w=w), fused(w=w, x=x)):
        close(got, want)
    assert len(fused._bound) == 1
    for args, named, message in (
        ((x,), {}, r"missing inputs \['w'\]"),
        ((x, w, x), {}, r"3 arrays given for inputs \['x', 'w'\]"),
        ((x, w), {"w": w}, "unexpected or repeated input 'w'"),
        ((x,), {"v": w}, "unexpected or repeated input 'v'"),
    ):
        with pytest.raises(TypeError, match=message):
            fused(*args, **named)


def test_expression_checks_shapes_and_dtypes() -> None:
    fused = optimize(expression())
    with pytest.raises(rf.ShapeError, match=r"argument 'x' dimension 1 is 5, but argument 'w' dimension 0 is 4"):
        fused(normal(3, 5), normal(4, 2))
    with pytest.raises(rf.ShapeError, match=r"another number of dimensions|expects 2 dimensions"):
        fused(normal(5), normal(5, 2))
    with pytest.raises(rf.DTypeError, match=r"input 'w' has dtype float64, but was declared as float32; pass x.astype\('float32'\)"):
        fused(normal(3, 5), normal(5, 2, dtype=np.float64))
    with pytest.raises(rf.TraceError, match="optimize a function"):
        fused(rf.array("x", ("m", "n")), normal(5, 2))


def test_numbers_for_inputs_without_dimensions() -> None:
    x, s = rf.array("x", ("n",), "float32"), rf.array("s", (), "float32")
    fused = optimize(np.sum(x * s))
    data = normal(7)
    for value in (2, 2.5, F32(3), np.float64(0.5), np.array(4, F32)):
        got = fused(data, np.asarray(value, F32) if isinstance(value, np.float64) else value)
        close(got, float(value) * data.sum(dtype=np.float64))
    assert len(fused._bound) == 1
    with pytest.raises(rf.DTypeError, match="input 's' is no array"):
        fused(data, "two")


def test_findings_of_an_expression_need_no_arguments() -> None:
    fused = optimize(expression())
    r = fused.report()
    assert (r.passes_before, r.passes_after, r.fused, r.saturated) == (3, 1, True, True)
    assert {"trace", "saturate", "extract", "validate"} <= set(r.seconds)
    assert all(n is None for n in fused.cascade().extents.values())
    assert "rebase" in str(fused.explain())
    assert "output" in fused.source("numpy", normal(3, 5), normal(5, 2))
    with pytest.raises(TypeError, match="missing inputs"):
        fused.source("numpy")


def test_findings_of_a_function() -> None:
    fused = optimize(lambda q, k, v: softmax(q @ k.T) @ v)
    with pytest.raises(TypeError, match=r"report: give example arguments, report\(q, k, v\)"):
        fused.report()
    q, k, v = (rf.array(n, ("t" if n == "q" else "s", 8), "float32") for n in "qkv")
    assert (fused.report(q, k, v).passes_before, fused.report(q, k, v=v).passes_after) == (3, 1)
    shapes = [np.broadcast_to(F32(0), (n, 8)) for n in (100, 200, 200)]
    assert fused.report(*shapes).fused and fused.cascade(*shapes).passes
    with pytest.raises(ValueError, match="source: target='c' is not one of"):
        fused.source("c", *shapes)
    with pytest.raises(TypeError, match="give arrays"):
        fused.source("numpy", q, k, v)


# ---- composition, threads, pickling, options


def test_an_optimized_function_inside_another() -> None:
    inner = optimize(softmax)
    outer = optimize(lambda x, v: inner(x) @ v)
    x, v = normal(3, 5), normal(5, 2)
    close(outer(x, v), exact(lambda x, v: softmax(x) @ v, x, v))
    assert outer.report(x, v).passes_after == 1


def test_calls_from_several_threads() -> None:
    fused = optimize(lambda x: softmax(x)[..., ::-1], target=None)
    inputs = [normal(n, 17) for n in (3, 5, 3, 8, 5, 3, 13, 8)] * 4
    with ThreadPoolExecutor(8) as pool:
        for x, got in zip(inputs, pool.map(fused, inputs), strict=True):
            close(got, exact(softmax, x)[..., ::-1])
    assert len(fused._bound) == 4


def test_first_calls_of_several_programs_at_once() -> None:
    def make(p: int) -> Any:
        return optimize(lambda x: logsumexp(x * p))

    x = normal(3, 9)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda p: make(p)(x), range(1, 5)))
    for p, got in enumerate(results, 1):
        close(got, exact(lambda x, p=p: logsumexp(x * p), x))


def test_pickle() -> None:
    x = normal(3, 5)
    again = pickle.loads(pickle.dumps(optimize(softmax, numerics="strict")))
    assert again.options.rules == rf.rules.strict and again.__name__ == "softmax"
    close(again(x), exact(softmax, x))
    e = pickle.loads(pickle.dumps(optimize(expression())))
    w = normal(5, 2)
    close(e(x, w=w), exact(lambda x, w: softmax(x) @ w, x, w))
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    close(copy.deepcopy(e)(x, w), exact(lambda x, w: softmax(x) @ w, x, w))
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(optimize(lambda x: x))


def test_options_are_checked() -> None:
    for options, message in (
        ({"target": "gpu"}, "target='gpu' is not one of"),
        ({"verify": "loud"}, "verify='loud'"),
        ({"rules": "nonsense"}, "not a rule set"),
        ({"numerics": "sloppy"}, "numerics"),
        ({"device": "abacus"}, "device='abacus' is not known"),
        ({"threads": 0}, "threads=0 is not a positive integer"),
    ):
        with pytest.raises(ValueError, match=message):
            rf.optimize(softmax, **options)
    with pytest.raises(rf.BackendError, match="on the host"):
        rf.optimize(softmax, target="cuda")(normal(3, 4))
    with pytest.raises(rf.TraceError, match="returns no array"):
        rf.optimize(3.0)


def test_a_failed_call_leaves_nothing_behind() -> None:
    fused = optimize(lambda x: softmax(x) if x.ndim == 2 else x.nonsense())
    with pytest.raises(AttributeError, match="nonsense"):
        fused(normal(3))
    x = normal(3, 4)
    close(fused(x), exact(softmax, x))
    assert len(fused._bound) == 1


def test_repr_and_names() -> None:
    assert repr(decorated) == "<redfuser_eq.Fused decorated rules='default' target=None>"
    assert decorated.__doc__ == "Doubled." and decorated.__module__ == __name__
    assert decorated.__wrapped__(2) == 4
