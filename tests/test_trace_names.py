"""Iteration domains that are one have one name, and those that are two have two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tracing import expr, over, reductions, same

from redfuser_eq import compose
from redfuser_eq.expr import Cast, Const, Index, Load, Map, Program, nodes
from redfuser_eq.trace import bind_extents, trace, view_arrays

rng = np.random.default_rng(3)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def program(f: Any, *args: Any) -> Program:
    return trace(f, args).program


def softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def attention(q, k, v):
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def kinds(p: Program, kind: type) -> list[Any]:
    return [e for e in nodes(*(o.expr for o in p.outputs)) if isinstance(e, kind)]


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_attention_has_one_key_axis(batch: tuple[int, ...]) -> None:
    p = program(attention, ones(*batch, 3, 4), ones(*batch, 5, 4), ones(*batch, 5, 6))
    (key,) = over(p, "max")
    assert len([e for e in reductions(p) if e.axis == key]) == 3
    assert len(over(p, "sum")) == 2
    assert len(p.extents) == len(batch) + 4
    assert p.extents[key] == 5


@pytest.mark.parametrize(
    "spelling",
    [
        lambda q, k, v: attention(q, k, v),
        lambda q, k, v: np.einsum("...ij,...jd->...id", softmax(np.einsum("...id,...jd->...ij", q, k) / 2), v),
        lambda q, k, v: np.sum(softmax(np.sum(q[:, None] * k[None], -1) / 2)[..., None] * v[None], 1),
        lambda q, k, v: (softmax(np.inner(q, k) / 2)[:, None, :] @ v)[:, 0],
        lambda q, k, v: np.tensordot(softmax((k @ q.T).T / 2), v, 1),
        lambda q, k, v: (v.T @ softmax(k @ q.T / 2, 0)).T,
    ],
)
def test_spellings_of_attention_are_one_program(spelling: Any) -> None:
    args = ones(3, 4), ones(5, 4), ones(5, 6)
    p, reference = program(spelling, *args), program(attention, *args)
    assert len(reductions(p)) == len(reductions(reference)) == 4
    assert len(over(p, "max") | over(p, "sum")) == 2
    (key,) = over(p, "max")
    assert len([e for e in reductions(p) if e.axis == key]) == 3


def test_self_attention_shares_the_key_axis_and_tells_it_from_the_query() -> None:
    p = program(lambda x: (attention(x, x, x), softmax(x @ x.T / 2)), ones(4, 4))
    (key,) = over(p, "max")
    out, weights = p.outputs
    assert key not in out.axes
    assert weights.axes == (out.axes[0], key)
    assert {e.axis for e in reductions(p)} == {key} | (over(p, "sum") - {key})
    assert len([e for e in reductions(p) if e.axis == key]) == 3
    assert len(reductions(p)) == 4


def test_a_statistic_shares_the_axis_of_the_contraction_beside_a_residual() -> None:
    def f(x, w):
        h = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6)
        return x + h @ w, h

    p = program(f, ones(4, 4), ones(4, 4))
    assert len(over(p, "sum")) == 1
    assert len(reductions(p)) == 3  # squares, count, contraction
    assert not over(p, "sum") & set(p.outputs[0].axes)


def test_kl_has_one_stream_axis() -> None:
    def kl(a, b):
        p, q = softmax(a), softmax(b)
        return np.sum(p * (np.log(p) - np.log(q)), -1)

    p = program(kl, ones(3, 5), ones(3, 5))
    assert over(p, "max") == over(p, "sum")
    assert len(over(p, "sum")) == 1
    assert len(reductions(p)) == 5


def test_variance_counts_its_axis_and_shares_it() -> None:
    for f in (
        lambda x: np.var(x, -1),
        lambda x: np.sum((x - np.sum(x, -1, keepdims=True) / x.shape[-1]) ** 2, -1) / x.shape[-1],
        lambda x: np.mean(np.square(x - x.mean(-1)[:, None]), axis=1),
        lambda x: np.sum((x - (1 / x.shape[1]) * np.sum(x, 1, keepdims=True)) ** 2, 1) / x.T.shape[0],
    ):
        p = program(f, ones(3, 5))
        assert len(over(p, "sum")) == 1
        assert len(reductions(p)) == 3
        assert sum(isinstance(e.body, Const) and e.body.value == 1 for e in reductions(p)) == 1
        assert not [c for c in kinds(p, Const) if c.value == 5]


def test_several_outputs_share_their_axis() -> None:
    p = program(lambda x: (np.mean(x, -1), np.var(x, -1), np.max(x, -1), compose.logsumexp(x, -1)), ones(3, 5))
    assert len({e.axis for e in reductions(p)}) == 1
    assert len(reductions(p)) == 5  # sum, count, squares, max, exponentials


def test_sums_of_one_expression_are_one_reduction() -> None:
    def f(x, y):
        return np.sum(x * y, 1) / (np.sqrt(np.sum(x * x, 1)) * np.sqrt(np.sum(np.square(x), -1)))

    p = program(f, ones(3, 5), ones(3, 5))
    assert len(reductions(p)) == 2
    assert {e.op for e in kinds(p, Map)} == {"mul", "square", "sqrt", "div"}


def test_masks_of_positions_become_indices() -> None:
    def symbolic(s):
        i, j = compose.arange(s.shape[0]), compose.arange(s.shape[1])
        return softmax(np.where(j <= i[:, None], s, -np.inf))

    def constant(s):
        return softmax(np.where(np.arange(s.shape[1]) <= np.arange(s.shape[0])[:, None] + 0, s, -np.inf))

    def columns(s):
        return softmax(np.where(compose.causal_mask(s.shape[0], s.shape[1]), s, -np.inf))

    p = program(symbolic, ones(5, 5))
    assert {e.axis for e in kinds(p, Index)} == {p.outputs[0].axes[0], *over(p, "max")}
    assert not p.constants
    assert p.key() == program(columns, ones(5, 5)).key()
    same(constant, rng.standard_normal((5, 5)))
    # Constant positions used with traced ones are recognised as well; a constant mask stays an array.
    p = program(lambda s: np.where(np.arange(s.shape[1]) <= compose.arange(s.shape[0])[:, None], s, 0), ones(5, 6))
    assert len(kinds(p, Index)) == 2
    assert not p.constants
    assert len(program(constant, ones(5, 6)).constants) == 1
    same(lambda s: np.where(np.arange(3, 9) < 3.5 * s, np.arange(3, 9), np.arange(6) * 2), rng.standard_normal((5, 6)))


def test_structure_does_not_depend_on_sizes() -> None:
    def gqa(q, k, v):
        return attention(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))

    def causal(s):
        return softmax(np.where(compose.arange(s.shape[1]) <= compose.arange(s.shape[0])[:, None], s, -np.inf))

    def sliced(x):
        return np.mean(x[:, 1:-1] * x[:, 2:], -1) + np.std(x[:, ::-1][:, :-2], -1)

    for f, small, large in (
        (lambda q, k, v: softmax(q @ k.T) @ v, (ones(4, 4), ones(4, 4), ones(4, 4)), (ones(7, 4), ones(5, 4), ones(5, 9))),
        (causal, (ones(4, 4),), (ones(5, 9),)),
        (lambda x: np.var(x), (ones(3, 3, 3),), (ones(4, 5, 6),)),
        (sliced, (ones(3, 8),), (ones(5, 8),)),
        (gqa, (ones(2, 4, 4, 4), ones(2, 2, 4, 4), ones(2, 2, 4, 4)), (ones(5, 4, 7, 4), ones(5, 2, 9, 4), ones(5, 2, 9, 4))),
        (lambda x, w: compose.layer_norm(x) @ w + x, (ones(3, 3), ones(3, 3)), (ones(4, 7), ones(7, 7))),
    ):
        assert program(f, *small).key() == program(f, *large).key()


def test_reductions_over_several_axes_become_one_stream() -> None:
    p = program(lambda x: (np.var(x), np.max(x)), ones(3, 4, 5))
    assert len({e.axis for e in reductions(p)}) == 1
    (source,) = p.sources
    assert source.ndim == 1
    assert list(p.extents.values()) == [60]
    p = program(lambda x, w: np.einsum("bhw,hw->b", x, w) + np.mean(x, (1, 2)), ones(3, 4, 5), ones(4, 5))
    assert len({e.axis for e in reductions(p)}) == 1
    assert sorted(p.extents.values()) == [3, 20]
    # Not where one of the two is used alone, or written.
    p = program(lambda x: x - np.mean(x, (0, 1)), ones(3, 4))
    assert sorted(p.extents.values()) == [3, 4]
    p = program(lambda x: np.sum(x * np.sum(x, 1, keepdims=True)), ones(3, 4))
    assert sorted(p.extents.values()) == [3, 4]
    p = program(lambda x: np.sum(x * x.T), ones(4, 4))
    assert len(p.extents) == 2
    p = program(lambda x, y: np.sum(x[:, :, 0]) + np.sum(y), ones(3, 4, 2), ones(3, 4))
    assert list(p.extents.values()) == [12, 12]


def test_merged_views_are_not_copied_where_memory_allows() -> None:
    x = rng.standard_normal((3, 4, 5))
    traced = trace(np.sum, (x,))
    (view,) = view_arrays(traced.program, [x])
    assert view.shape == (60,)
    assert np.shares_memory(view, x)
    same(lambda x: np.sum(x) + np.max(x, (0, 1, 2)), x.transpose(2, 0, 1))


def test_views_never_copy() -> None:
    x = rng.standard_normal((6, 12)).T[::-1, ::2]

    def f(x):
        y = x.reshape(3, 4, 3)
        return np.sum(y[1, ::2], 0) + np.sum(x[:5, -1]) + x[::-3][0]

    traced = same(f, x)
    assert all(np.shares_memory(v, x) for v in view_arrays(traced.program, [x]))
    assert len(traced.program.sources) == 3


def test_size_one_dimensions_are_dropped() -> None:
    p = program(attention, ones(1, 2, 1, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 6))
    assert p.outputs[0].dims[0] == p.outputs[0].dims[2] == ()
    assert sorted(p.extents.values()) == [2, 4, 5, 6]
    p = program(lambda x: np.sum(x, 1) + np.mean(x, 1), ones(3, 1))
    assert not reductions(p)


def test_repeated_heads_are_read_once() -> None:
    q, k, v = ones(2, 8, 3, 4), ones(2, 2, 5, 4), ones(2, 2, 5, 6)
    p = program(lambda q, k, v: attention(q, np.repeat(k, 4, 1), np.repeat(v, 4, 1)), q, k, v)
    outer, inner = p.outputs[0].dims[1]
    assert (p.extents[outer], p.extents[inner]) == (2, 4)
    loads = {e.source: e.dims for e in kinds(p, Load)}
    assert outer in loads["k"]
    assert inner not in loads["k"]
    assert {outer, inner} <= set(loads["q"])


def test_labels_are_a_pick() -> None:
    from redfuser_eq.cascade import is_pick, passes_of

    p = program(compose.cross_entropy, ones(3, 7), np.zeros(3, np.int64))
    picks = [e for e in reductions(p) if is_pick(e)]
    assert len(picks) == 1
    assert over(p, "max") == over(p, "sum")
    assert passes_of(p.outputs, picks[0].axis) == 2


def test_top_k_values_and_indices_share_both_axes() -> None:
    p = program(lambda x, w: compose.top_k(softmax(x @ w), 3), ones(4, 5), ones(5, 8))
    values, indices = (o.expr for o in p.outputs)
    assert values.axis == indices.axis
    assert values.out == indices.out
    assert {values.axis} == over(p, "max")


def test_casts_and_dtypes() -> None:
    x16 = np.ones((3, 4), ml_dtypes.bfloat16)
    assert expr(lambda x: x * 2.0 + 1, x16).dtype == ml_dtypes.bfloat16
    assert expr(lambda x: softmax(x), x16).dtype == ml_dtypes.bfloat16
    assert expr(lambda x: x @ x.T, x16).dtype == ml_dtypes.bfloat16
    assert expr(lambda x: x + np.float32(1), x16).dtype == np.float32
    assert expr(lambda x: x.astype("float8_e4m3fn"), x16).dtype == ml_dtypes.float8_e4m3fn
    quantised = expr(
        lambda x: compose.cast(x / np.max(np.abs(x), -1, keepdims=True), ml_dtypes.float8_e4m3fn).astype(np.float32) * 2, ones(3, 4)
    )
    assert [str(c.dtype) for c in nodes(quantised) if isinstance(c, Cast)] == ["float8_e4m3fn", "float32"]
    # Sizes do not widen: np.sqrt(x.shape[-1]) is a Python float.
    assert expr(attention, *(ones(3, 4) for _ in "qkv")).dtype == np.float32
    assert expr(lambda x: x * np.float64(2), ones(3)).dtype == np.float64


def test_every_operand_of_an_operation_has_the_same_dtype() -> None:
    def f(x, i, b, h):
        return x * i + np.where(b, i, 1) / 3 + b * x + h + np.exp(i) + (i < x) + np.maximum(i, 2) + np.mean(b) + np.mean(i)

    p = program(f, ones(3), np.ones(3, np.int32), np.ones(3, bool), np.ones(3, np.float16))
    for e in kinds(p, Map):
        used = e.args[1:] if e.op == "where" else e.args
        assert len({a.dtype for a in used}) == 1, e
    for e in reductions(p):
        assert e.dtype == e.body.dtype or e.dtype == np.int64


def test_symbolic_count_of_half_precision_is_wide() -> None:
    p = program(lambda x: np.mean(x, -1), np.ones((3, 4), np.float16))
    count = next(e for e in reductions(p) if isinstance(e.body, Const))
    assert count.dtype == np.float32
    assert p.outputs[0].dtype == np.float16


def test_bind_extents_follows_the_views() -> None:
    traced = trace(lambda q, k: np.sum(q[:, 1:] @ k[:, 1:].T, 1), (ones(3, 5), ones(4, 5)))
    extents = bind_extents(traced.program, traced.arrays)
    assert sorted(extents.values()) == [3, 4, 4]
