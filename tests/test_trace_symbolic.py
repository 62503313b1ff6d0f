"""Symbolic arrays: expressions built without a function, bound to sizes at the call."""

from __future__ import annotations

import numpy as np
import pytest
from tracing import over, reductions, values

from redfuser_eq import compose
from redfuser_eq.array import array
from redfuser_eq.expr import Const, nodes
from redfuser_eq.trace import program_of, trace

rng = np.random.default_rng(11)


def attention(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return (p / np.sum(p, axis=-1, keepdims=True)) @ v


def test_an_expression_runs_at_any_size() -> None:
    x = array("x", shape=("m", "n"), dtype="float64")
    traced = program_of(np.log(np.sum(np.exp(x - np.max(x, -1, keepdims=True)), -1)))
    assert traced.program.params == ("x",)
    assert set(traced.program.extents) == {"m", "n"}
    assert set(traced.program.extents.values()) == {None}
    for shape in ((3, 5), (1, 1), (4, 2)):
        a = rng.standard_normal(shape)
        np.testing.assert_allclose(values(traced, [a]), np.log(np.exp(a - a.max(-1, keepdims=True)).sum(-1)))


def test_symbolic_and_concrete_programs_have_one_structure() -> None:
    q, k, v = array("q", ("i", "e")), array("k", ("j", "e")), array("v", ("j", "d"))
    symbolic = program_of(attention(q, k, v) * 1.0).program
    assert len(symbolic.extents) == 4
    assert len(over(symbolic, "max")) == 1
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (5, 4), (5, 6))]
    np.testing.assert_allclose(values(program_of(attention(q, k, v)), arrays), attention(*arrays), rtol=1e-5)
    x = array("x", ("m", "n"))
    concrete = trace(lambda x: np.var(x, -1), (np.ones((3, 4), np.float32),)).program
    assert len(reductions(program_of(np.var(x, -1)).program)) == len(reductions(concrete))


def test_arguments_are_ordered_as_they_were_made() -> None:
    a, b = array("a", ("n",)), array("b", ("n",))
    traced = program_of({"second": b * 2, "first": (a + b, a)})
    assert traced.program.params == ("a", "b")
    got = values(traced, [np.ones(3), np.full(3, 5.0)])
    np.testing.assert_array_equal(got["second"], np.full(3, 10.0))
    np.testing.assert_array_equal(got["first"][0], np.full(3, 6.0))


def test_sizes_in_arithmetic() -> None:
    x = array("x", ("m", "n"), "float64")
    n = x.shape[-1]
    traced = program_of((np.sum(x, -1) / n, np.sum(x**2) / (n * x.shape[0] - 1), x * n**0.5, x / np.sqrt(n), x.sum() / x.size))
    a = rng.standard_normal((3, 5))
    expected = a.mean(-1), (a**2).sum() / 14, a * 5**0.5, a / np.sqrt(5), a.mean()
    for got, want in zip(values(traced, [a]), expected, strict=True):
        np.testing.assert_allclose(got, want)
    assert not [e for o in traced.program.outputs for e in nodes(o.expr) if isinstance(e, Const) and e.value == 5]


def test_reshapes_of_symbolic_sizes() -> None:
    x = array("x", ("b", "s", "D"), "float64")
    b, s, d = x.shape
    heads = x.reshape(b, s, 4, -1)
    again = np.exp(heads).reshape(b, s, d)
    flat = x.reshape(b * s, d)
    traced = program_of((np.sum(heads, -1), again, np.max(flat, 0), x.reshape(b, s, 4, d // 4).sum(2)))
    a = rng.standard_normal((2, 3, 8))
    h = a.reshape(2, 3, 4, 2)
    for got, want in zip(values(traced, [a]), (h.sum(-1), np.exp(a), a.reshape(6, 8).max(0), h.sum(2)), strict=True):
        np.testing.assert_allclose(got, want)


def test_slices_of_symbolic_sizes() -> None:
    x = array("x", ("m", "n"), "float64")
    traced = program_of((np.sum(x[:, 1:] * x[:, 1:], 1), x[0], x[:, -1], x[::2], x[:, ::-1].sum(0), x[:, : x.shape[1]]))
    for shape in ((3, 5), (4, 2)):
        a = rng.standard_normal(shape)
        expected = (a[:, 1:] ** 2).sum(1), a[0], a[:, -1], a[::2], a[:, ::-1].sum(0), a
        for got, want in zip(values(traced, [a]), expected, strict=True):
            np.testing.assert_allclose(got, want)


def test_positions_and_masks() -> None:
    s = array("s", ("n", "n"), "float64")
    mask = compose.causal_mask(s.shape[0], s.shape[1])
    traced = program_of(np.sum(np.where(mask, s, 0), -1) + compose.arange(s.shape[0]))
    a = rng.standard_normal((5, 5))
    np.testing.assert_allclose(values(traced, [a]), np.tril(a).sum(-1) + np.arange(5))


def test_integer_extents_are_kept_and_checked() -> None:
    x = array("x", ("m", 4), "float64")
    traced = program_of(x.sum(-1))
    assert sorted(traced.program.extents.values(), key=str) == [4, None]
    with pytest.raises(ValueError, match="made for 4"):
        values(traced, [np.ones((3, 5))])


def test_constants_of_an_expression() -> None:
    x = array("x", ("m", 4), "float64")
    w = rng.standard_normal((4, 2))
    traced = program_of(x @ w)
    assert len(traced.arrays) == 1
    a = rng.standard_normal((3, 4))
    np.testing.assert_allclose(values(traced, [a, *traced.arrays]), a @ w)
