"""Arguments and results of traced functions: names, structures, foreign arrays, captured arrays."""

from __future__ import annotations

from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest
from tracing import run, values

from redfuser_eq.errors import DTypeError
from redfuser_eq.trace import flatten, trace

X, Y = np.arange(6.0).reshape(2, 3), np.ones((2, 3))


class ForeignDType:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"library.{self.name}"


class Foreign:
    """An array of another library: a shape and a dtype, and nothing that NumPy could read."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, ForeignDType(dtype)


def test_only_shape_and_dtype_of_foreign_arrays_are_read() -> None:
    for name, expected in (
        ("float32", np.float32),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        ("bool", bool),
    ):
        x = Foreign((2, 3), name)
        traced = trace(lambda x: x[0], (x,))
        assert traced.program.sources[0].dtype == expected
        assert traced.arrays == [x]
    w = Foreign((3, 4), "float32")
    traced = trace(lambda x: x @ w, (Foreign((2, 3), "float32"),))
    assert list(traced.program.constants.values()) == [w]
    with pytest.raises(DTypeError, match="complex64"):
        trace(lambda x: x, (Foreign((2,), "complex64"),))


def test_parameters_are_named_after_arguments() -> None:
    def f(a, b, *rest, scale=None, **more):
        return a["w"] + b[0] + b[1][0] + rest[0] * scale + more["last one"]

    args = ({"w": X}, (X, [Y]), Y)
    kwargs = {"scale": Y, "last one": X}
    traced = trace(f, args, kwargs)
    assert traced.program.params == ("a_w", "b_0", "b_1_0", "arg2", "scale", "last_one")
    assert all(a is b for a, b in zip(traced.arrays, flatten(args, kwargs), strict=True))
    np.testing.assert_array_equal(values(traced, traced.arrays), f(*args, **kwargs))


def test_names_are_distinct_identifiers() -> None:
    def f(a_0, a, constant):
        return a_0 + a[0] + constant + Y

    traced = trace(f, (X, (X,), X))
    assert traced.program.params == ("a_0", "a_0_2", "constant", "constant_2")
    assert len({s.name for s in traced.program.sources}) == 4


def test_views_of_one_argument_have_their_own_sources() -> None:
    traced = trace(lambda x, x_2: x[0] + x[1] + x[:, 0].sum() + x_2, (X, np.ones(3)))
    names = [s.name for s in traced.program.sources]
    assert len(set(names)) == len(names) == 4
    np.testing.assert_array_equal(values(traced, traced.arrays), X[0] + X[1] + X[:, 0].sum() + 1)


def test_unused_arguments_keep_their_place() -> None:
    traced = trace(lambda a, b, c: c * 2, (X, None, Y))
    assert traced.program.params == ("a", "c")
    assert len(traced.arrays) == 2
    assert [s.param for s in traced.program.sources] == [1]


def test_static_arguments() -> None:
    def f(x, axis, keepdims, *, how="sum", scale=1):
        return getattr(np, how)(x, axis=axis, keepdims=keepdims) * scale

    np.testing.assert_allclose(run(f, X, -1, True, how="max"), f(X, -1, True, how="max"))
    np.testing.assert_allclose(run(f, X, 0, False, scale=np.float32(2)), 2 * X.sum(0))


def test_results_keep_their_structure() -> None:
    point = namedtuple("point", "x y")
    got = run(lambda x: point(x + 1, {"b": [x, None], "a": (x.sum(), 2.5)}), X)
    assert isinstance(got, point)
    assert list(got.y) == ["b", "a"]
    assert got.y["b"][1] is None
    assert got.y["a"] == (15.0, 2.5)


def test_one_captured_array_is_one_parameter() -> None:
    traced = trace(lambda x: (x + Y) * Y - Y.copy(), (X,))
    assert len(traced.program.constants) == 2
    assert trace(lambda x: x + Y, (X,)).program.key() == trace(lambda x: x + 2 * Y, (X,)).program.key()


def test_arguments_are_not_read_when_tracing() -> None:
    x = np.full((2, 3), np.nan)
    x.flags.writeable = False
    first, second = trace(lambda x: np.exp(x), (x,)), trace(lambda x: np.exp(x), (X,))
    assert first.program == second.program


def test_builtins_and_partials_trace() -> None:
    from functools import partial

    np.testing.assert_allclose(run(np.sum, X), 15)
    np.testing.assert_allclose(run(partial(np.max, axis=1), X), X.max(1))
    np.testing.assert_allclose(run(np.exp, X), np.exp(X))
    np.testing.assert_allclose(run(sum, [X, Y]), X + Y)


def test_unknown_attributes_say_so() -> None:
    with pytest.raises(AttributeError, match="no attribute 'flat'"):
        trace(lambda x: x.flat, (X,))
