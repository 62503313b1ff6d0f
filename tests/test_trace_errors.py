"""Errors name the operation, the shapes, the user's line and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redfuser_eq import compose
from redfuser_eq.array import array
from redfuser_eq.errors import DTypeError, ShapeError, TraceError
from redfuser_eq.trace import bind_extents, program_of, trace

X = np.ones((3, 4))
Y = np.ones((5, 4))
I = np.zeros(3, np.int64)  # noqa: E741


def assign(x):
    y = x * 2
    y[0] = 1
    return y


def branch(x):
    if x.sum() > 0:
        return x
    return -x


def change(x):
    x += 1
    return x


def change_view(x):
    y = x * 2
    z = y.T
    y += 1
    return y, z


TRACE_ERRORS = {
    "asarray": (lambda x: np.asarray(x) + 1, "conversion to a NumPy array", "on the traced array itself"),
    "float": (lambda x: float(x.sum()) * x, "float()", "keep it an array"),
    "int": (lambda x: int(x.sum()) * x, "int()", "keep it an array"),
    "if": (branch, "truth value", "np.where"),
    "unpack": (lambda x: tuple(x), "iteration or unpacking", "x[0]"),
    "range": (lambda x: range(x.sum()), "index or a range", "constants"),
    "contains": (lambda x: 1 in x, "`in`", "np.any"),
    "item": (lambda x: x.sum().item(), "item()", "keep it an array"),
    "assignment": (assign, "assignment to elements", "np.where"),
    "in place on an argument": (change, "would change an argument", "x = x + y"),
    "in place under a view": (change_view, "shares memory", "x = x + y"),
    "out": (lambda x: np.exp(x, out=np.empty((3, 4))), "out=", "traced array"),
    "sort": (lambda x: np.sort(x), "sort cannot be traced", "top_k"),
    "argsort": (lambda x: x.argsort(), "argsort cannot be traced", "top_k"),
    "cumsum": (lambda x: np.cumsum(x, 1), "cumsum cannot be traced", "reduce over the whole axis"),
    "median": (lambda x: np.median(x), "median cannot be traced", "top_k"),
    "unknown function": (lambda x: np.fft.fft(x), "fft cannot be traced", "outside"),
    "unknown linalg": (lambda x: np.linalg.inv(x), "linalg.inv cannot be traced", "outside"),
    "unknown ufunc": (lambda x: np.arctan2(x, x), "arctan2 cannot be traced", "outside"),
    "accumulate": (lambda x: np.add.accumulate(x), "add.accumulate cannot be traced", ""),
    "boolean index": (lambda x: x[x > 0], "index", "per row"),
    "gather": (lambda x: x[I], "index by an array", "one index per row"),
    "take": (lambda x: np.take(x, I, axis=0), "take", "gather before the call"),
    "many per row": (lambda x: np.take_along_axis(x, np.zeros((3, 2), int), 1), "2 indices per row", "one index per row"),
    "diagonal": (lambda x: np.einsum("ii->i", x[:, :3]), "occurs twice", "np.where"),
    "where": (lambda x: np.where(x > 0), "one argument", "np.where(c, x, y)"),
    "integer bits": (lambda x: x.astype(int) & 1, "bitwise_and of integers", "booleans"),
    "decimals": (lambda x: np.round(x, 2), "decimals", "scale"),
    "nothing traced": (lambda x: 3, "returns no array", ""),
    "order": (lambda x: x.reshape(4, 3, order="F"), "order='F'", "transpose"),
    "masked max": (lambda x: np.max(x, where=x > 0), "where= needs initial=", ""),
}


@pytest.mark.parametrize("name", TRACE_ERRORS)
def test_trace_errors(name: str) -> None:
    f, what, remedy = TRACE_ERRORS[name]
    with pytest.raises(TraceError) as error:
        trace(f, (X,))
    message = str(error.value)
    assert what in message
    assert remedy in message
    assert isinstance(error.value, TypeError)


SHAPE_ERRORS = {
    "matmul": (lambda x, y: x @ y, ["matmul", "(3, 4)", "(5, 4)", "swapaxes"]),
    "broadcast": (lambda x, y: x + y, ["add", "(3, 4)", "(5, 4)", "3 and 5"]),
    "axis": (lambda x, y: np.sum(x, axis=2), ["sum", "axis 2", "(3, 4)"]),
    "axis twice": (lambda x, y: np.max(x, axis=(0, -2)), ["max", "twice"]),
    "axis kind": (lambda x, y: np.max(x, axis=1.5), ["max", "integer"]),
    "reshape": (lambda x, y: x.reshape(5, 2), ["reshape", "(3, 4)", "12", "(5, 2)"]),
    "reshape -1": (lambda x, y: x.reshape(5, -1), ["reshape", "(3, 4)"]),
    "cut across": (lambda x, y: np.sum(x.reshape(12)[1:7]), ["reshape", "(3, 4)", "(12,)", "slice before"]),
    "two splits": (lambda x, y: x.reshape(2, 6).sum(1), ["reshape", "no common refinement"]),
    "einsum": (lambda x, y: np.einsum("ij,jk->ik", x, y), ["einsum 'ij,jk->ik'", "(3, 4)", "4 and 5"]),
    "einsum subscripts": (lambda x, y: np.einsum("ijk,jk->ik", x, y), ["einsum", "'ijk'", "(3, 4)"]),
    "einsum result": (lambda x, y: np.einsum("ij,kj->iz", x, y), ["einsum", "'z'"]),
    "concatenate": (lambda x, y: np.concatenate([x, y], 1), ["concatenate", "(3, 4)", "(5, 4)"]),
    "index": (lambda x, y: x[3], ["index 3", "dimension 0", "(3, 4)"]),
    "too many": (lambda x, y: x[0, 0, 0], ["too many", "(3, 4)"]),
    "squeeze": (lambda x, y: np.squeeze(x, 0), ["squeeze", "(3, 4)"]),
    "transpose": (lambda x, y: np.transpose(x, (0, 0)), ["transpose", "(0, 0)"]),
    "top_k": (lambda x, y: compose.top_k(x, 5), ["top_k", "5", "4"]),
    "broadcast_to": (lambda x, y: np.broadcast_to(x, (2, 3)), ["broadcast_to", "(3, 4)", "(2, 3)"]),
    "tensordot": (lambda x, y: np.tensordot(x, y, 1), ["tensordot", "(3, 4)", "(5, 4)"]),
    "split": (lambda x, y: np.split(x, 3, axis=1), ["split", "4", "3"]),
    "piecewise": (lambda x, y: np.concatenate([x, y])[1:4] * np.ones((3, 4)) @ np.concatenate([x, y])[::2].T, ["concatenate", "piece"]),
}


@pytest.mark.parametrize("name", SHAPE_ERRORS)
def test_shape_errors(name: str) -> None:
    f, parts = SHAPE_ERRORS[name]
    with pytest.raises(ShapeError) as error:
        trace(f, (X, Y))
    for part in parts:
        assert part in str(error.value)
    assert isinstance(error.value, ValueError)


def test_errors_quote_the_line() -> None:
    with pytest.raises(TraceError) as error:
        trace(assign, (X,))
    assert f"{__file__}:" in str(error.value)
    assert "y[0] = 1" in str(error.value)
    with pytest.raises(ShapeError, match=r"np\.softmax|compose\.softmax\(x, axis=3\)"):
        trace(lambda x: compose.softmax(x, axis=3), (X,))


def test_late_errors_quote_the_line_that_reshaped() -> None:
    def f(x):
        y = x.reshape(12)
        return np.sum(y[1:7])

    with pytest.raises(ShapeError, match=r"y = x\.reshape\(12\)"):
        trace(f, (X,))


def test_dtype_errors() -> None:
    for bad in (np.ones(3, complex), np.ones(3, object), np.array(["a"]), np.array(["2020-01-01"], "M8[D]")):
        with pytest.raises(DTypeError, match=r"argument 'x'.*no meaning"):
            trace(lambda x: x, (bad,))
    with pytest.raises(DTypeError, match=r"subtract|sub"):
        trace(lambda x: (x > 0) - (x < 1), (X,))
    with pytest.raises(DTypeError, match="reciprocal"):
        trace(lambda x: np.reciprocal(x), (I,))
    with pytest.raises(DTypeError, match="no dtype"):
        trace(lambda x: compose.cast(x, "float7"), (X,))
    with pytest.raises(DTypeError, match="out of bounds"):
        trace(lambda x: x + 300, (np.ones(3, np.uint8),))
    with pytest.raises(TraceError, match="integers"):
        trace(lambda x, i: np.take_along_axis(x, i[:, None], 1), (X, np.zeros(3)))


def test_empty_reductions_fail_as_numpy() -> None:
    for f in (np.max, np.min, np.argmax, lambda x: x.min(1), lambda x: np.argmin(x, axis=1)):
        with pytest.raises(ValueError, match=r"zero-size|empty"):
            trace(f, (np.ones((3, 0)),))


def test_bind_extents_names_arguments_dimensions_and_sizes() -> None:
    program = trace(lambda x, y: x @ y.T, (X, Y)).program
    with pytest.raises(ShapeError) as error:
        bind_extents(program, [np.ones((3, 4)), np.ones((5, 6))])
    for part in ("'x' dimension 1 is 4", "'y' dimension 1 is 6"):
        assert part in str(error.value)
    with pytest.raises(ShapeError, match="'x' has shape"):
        bind_extents(program, [np.ones(3), np.ones((5, 4))])
    with pytest.raises(ShapeError, match="made for 3"):
        bind_extents(program, [np.ones((2, 4)), np.ones((5, 4))])
    split = trace(lambda x: x.reshape(3, 2, 2).sum(2), (X,)).program
    with pytest.raises(ShapeError, match="'x' dimension 1: 6 elements do not split"):
        bind_extents(split, [np.ones((3, 6))])


def test_arrays_of_another_trace_are_refused() -> None:
    kept: list[Any] = []
    trace(lambda x: kept.append(x) or x * 2, (X,))
    with pytest.raises(TraceError, match="another trace"):
        trace(lambda y: y + kept[0], (X,))


def test_symbolic_errors() -> None:
    with pytest.raises(ShapeError, match="one name"):
        array("x", ("m", "n")) + array("y", ("m", "p"))
    with pytest.raises(ShapeError, match="identifier"):
        array("x", ("a b",))
    with pytest.raises(ShapeError, match="non-negative"):
        array("x", (-1,))
    with pytest.raises(TraceError, match="identifier"):
        array("1x", (2,))
    x = array("x", ("m", "n"))
    for use in (lambda: range(x.shape[0]), lambda: float(x.shape[0]), lambda: x.shape[0] > 3, lambda: bool(x.shape[1])):
        with pytest.raises(TraceError, match="symbolic"):
            use()
    with pytest.raises(TraceError, match="named 'x'"):
        program_of(x + array("x", ("m", "n")))
    with pytest.raises(ShapeError, match="symbolic"):
        np.concatenate([x, x], 1)
    with pytest.raises(ShapeError, match="no size"):
        bind_extents(program_of(np.broadcast_to(array("z", (3,)), (array("y", ("m",)).shape[0], 3))).program, [np.ones(3)])
