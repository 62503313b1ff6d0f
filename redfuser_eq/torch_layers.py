"""torch's attention, losses and norms for traced arrays, as compositions.

Each is written out in operations that are traced already, with torch's defaults; none of them is a node. Entries of
`LAYERS` are looked up by the name of the torch function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import compose
from . import namespace as xp
from .errors import TraceError
from .location import here

Function = Callable[..., Any]


# ---- attention


def attention(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q @ k^T * scale + mask) @ v. A boolean mask keeps where it is True; a row that sees nothing is 0, as torch's is."""
    _no_dropout("scaled_dot_product_attention", dropout_p)
    if enable_gqa:
        k, v = (xp.repeat(x, int(q.shape[-3]) // int(x.shape[-3]), axis=-3) for x in (k, v))
    scores = xp.matmul(q, xp.matrix_transpose(k)) * (1 / math.sqrt(int(q.shape[-1])) if scale is None else scale)
    if is_causal:
        scores = xp.where(xp.expand_dims(xp.arange(q.shape[-2]), 1) >= xp.arange(k.shape[-2]), scores, -math.inf)
    elif attn_mask is None:
        return xp.matmul(compose.softmax(scores, -1), v)
    else:
        mask = xp.asarray(attn_mask)
        scores = xp.where(mask, scores, -math.inf) if mask._node.dtype == np.bool_ else scores + mask
    peak = xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - xp.where(xp.equal(peak, -math.inf), 0, peak))
    total = xp.sum(weights, axis=-1, keepdims=True)
    return xp.divide(xp.matmul(weights, v), xp.where(xp.equal(total, 0), 1, total))


def _no_dropout(name: str, p: float) -> None:
    if p:
        raise TraceError(f"torch's {name} with dropout draws random numbers and cannot be traced; pass a dropout of 0" + here())


# ---- losses


def _reduced(loss: Any, reduction: str, count: Any = None) -> Any:
    if reduction == "none":
        return loss
    total = xp.sum(loss)
    if reduction == "sum":
        return total
    if reduction == "batchmean":
        return total / loss.shape[0]
    if reduction != "mean":
        raise TraceError(f"a loss with reduction={reduction!r}; it is 'none', 'sum' or 'mean'" + here())
    return xp.mean(loss) if count is None else xp.divide(total, count)


def _difference(name: str, of: Function) -> Function:
    """A loss of the difference of two arrays. of(difference, beta or delta)."""

    def loss(
        x: Any,
        y: Any,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        bend: float = 1.0,
        weight: Any = None,
        *,
        beta: float | None = None,
        delta: float | None = None,
    ) -> Any:
        if weight is not None:
            raise TraceError(f"torch's {name} with weights cannot be traced; multiply by them yourself" + here())
        bends = [b for b in (beta, delta) if b is not None]
        return _reduced(of(xp.subtract(x, y), bends[0] if bends else bend), reduction)

    loss.__name__ = name
    return loss


def _squared(d: Any, _: float) -> Any:
    return xp.square(d)


def _absolute(d: Any, _: float) -> Any:
    return xp.abs(d)


def _smooth(d: Any, beta: float) -> Any:
    a = xp.abs(d)
    return a if beta == 0 else xp.where(xp.less(a, beta), xp.square(a) * (0.5 / beta), a - 0.5 * beta)


def _huber(d: Any, delta: float) -> Any:
    a = xp.abs(d)
    return xp.where(xp.less_equal(a, delta), 0.5 * xp.square(a), delta * (a - 0.5 * delta))


def nll_loss(
    x: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None, reduction: str = "mean"
) -> Any:
    """-x at the target's class (dimension 1, or the only one), for log-probabilities x; ignored targets count nothing."""
    if weight is not None:
        raise TraceError("torch's nll_loss and cross_entropy with class weights cannot be traced; multiply by weights yourself" + here())
    axis = 1 if len(x.shape) > 1 else 0
    y = xp.asarray(target)
    kept = xp.not_equal(y, ignore_index)
    index = xp.expand_dims(xp.where(kept, y, 0), axis)
    loss = xp.where(kept, xp.negative(xp.squeeze(xp.take_along_axis(x, index, axis=axis), axis)), 0)
    return _reduced(loss, reduction, xp.sum(xp.astype(kept, x._node.dtype)))


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """The cross-entropy of logits (classes along dimension 1, or the only one) with class indices or probabilities."""
    axis = 1 if len(x.shape) > 1 else 0
    if weight is not None:
        raise TraceError("torch's nll_loss and cross_entropy with class weights cannot be traced; multiply by weights yourself" + here())
    logp = compose.log_softmax(x, axis)
    y = xp.asarray(target)
    if np.dtype(y._node.dtype).kind not in "iu":
        smooth = label_smoothing / x.shape[axis] if label_smoothing else 0.0
        y = y * (1 - label_smoothing) + smooth if label_smoothing else y
        loss = xp.negative(xp.sum(xp.multiply(y, logp), axis=axis))
        rows = math.prod(int(s) for d, s in enumerate(x.shape) if d != axis)
        return loss if reduction == "none" else xp.sum(loss) if reduction == "sum" else xp.sum(loss) / rows
    hard = nll_loss(logp, y, None, None, ignore_index, None, reduction)
    if not label_smoothing:
        return hard
    kept = xp.not_equal(y, ignore_index)
    spread = xp.where(kept, xp.negative(xp.mean(logp, axis=axis)), 0)
    soft = _reduced(spread, reduction, xp.sum(xp.astype(kept, x._node.dtype)))
    return (1 - label_smoothing) * hard + label_smoothing * soft


def kl_div(x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", log_target: bool = False) -> Any:
    """target * (log(target) - x), with x (and with log_target the target) in logarithms."""
    y = xp.asarray(target)
    loss = xp.exp(y) * (y - x) if log_target else xp.subtract(xp.xlogy(y, y), y * x)
    return _reduced(loss, reduction)


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, size_average: Any = None, reduce: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    if pos_weight is not None:
        raise TraceError("torch's binary_cross_entropy_with_logits with pos_weight cannot be traced; write it out" + here())
    loss = xp.maximum(x, 0) - xp.multiply(x, target) + xp.log1p(xp.exp(xp.negative(xp.abs(x))))
    return _reduced(loss if weight is None else loss * weight, reduction)


def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """x . y over the product of their lengths, each at least eps."""
    lengths = [xp.maximum(xp.sqrt(xp.sum(xp.square(a), axis=dim)), eps) for a in (x, y)]
    return xp.divide(xp.sum(xp.multiply(x, y), axis=dim), xp.multiply(*lengths))


# ---- norms


def _moments(spread: Function) -> Function:
    """var_mean and std_mean."""

    def call(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
        off = correction if correction is not None else 1 if unbiased is None else int(unbiased)
        axes = tuple(dim) if isinstance(dim, (list, tuple)) else dim
        return spread(x, axis=axes, keepdims=keepdim, correction=off), xp.mean(x, axis=axes, keepdims=keepdim)

    call.__name__ = f"{spread.__name__}_mean"
    return call


def _normalised(x: Any, axes: tuple[int, ...], weight: Any, bias: Any, eps: float) -> Any:
    """Deviations from the mean over axes, by their spread; weight and bias along dimension 1."""
    shape = (-1, *(1 for _ in x.shape[2:]))
    scale, shift = (None if p is None else xp.reshape(xp.asarray(p), shape) for p in (weight, bias))
    return compose.layer_norm(x, scale, shift, eps, axes)


def batch_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalised by the batch's own statistics (training, without running ones) or by given ones."""
    if training:
        if running_mean is not None or running_var is not None:
            raise TraceError("torch's batch_norm would update running statistics; pass None for them, and update them outside" + here())
        return _normalised(x, (0, *range(2, len(x.shape))), weight, bias, eps)
    shape = (-1, *(1 for _ in x.shape[2:]))
    mean, var = (xp.reshape(xp.asarray(s), shape) for s in (running_mean, running_var))
    out = (x - mean) / xp.sqrt(var + eps)
    out = out if weight is None else out * xp.reshape(xp.asarray(weight), shape)
    return out if bias is None else out + xp.reshape(xp.asarray(bias), shape)


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if running_mean is not None or running_var is not None or not use_input_stats:
        raise TraceError("torch's instance_norm with running statistics cannot be traced; pass None for them" + here())
    return _normalised(x, tuple(range(2, len(x.shape))), weight, bias, eps)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    n, c, *rest = x.shape
    grouped = xp.reshape(x, (n, num_groups, int(c) // num_groups, *rest))
    out = xp.reshape(compose.layer_norm(grouped, None, None, eps, tuple(range(2, len(grouped.shape)))), x.shape)
    shape = (-1, *(1 for _ in rest))
    out = out if weight is None else out * xp.reshape(xp.asarray(weight), shape)
    return out if bias is None else out + xp.reshape(xp.asarray(bias), shape)


# ---- products and activations


def _multiplied_into(name: str) -> Function:
    """addmm, baddbmm, addmv: beta * x + alpha * (a @ b)."""

    def call(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
        product = xp.matmul(a, b)
        product = product if alpha == 1 else product * alpha
        return product + (x if beta == 1 else x * beta)

    call.__name__ = name
    return call


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else x * beta
    soft = xp.log1p(xp.exp(xp.negative(xp.abs(scaled)))) + xp.maximum(scaled, 0)
    return xp.where(xp.greater(scaled, threshold), x, soft if beta == 1 else soft / beta)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    return xp.where(xp.greater(x, 0), x, x * negative_slope)


def elu(x: Any, alpha: float = 1.0) -> Any:
    return xp.where(xp.greater(x, 0), x, alpha * xp.expm1(xp.minimum(x, 0)))


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    return xp.clip(x, min_val, max_val)


LAYERS: dict[str, Function] = {
    "scaled_dot_product_attention": attention,
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "kl_div": kl_div,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "mse_loss": _difference("mse_loss", _squared),
    "l1_loss": _difference("l1_loss", _absolute),
    "smooth_l1_loss": _difference("smooth_l1_loss", _smooth),
    "huber_loss": _difference("huber_loss", _huber),
    "cosine_similarity": cosine_similarity,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "group_norm": group_norm,
    **{name: _multiplied_into(name) for name in ("addmm", "baddbmm", "addmv")},
    "var_mean": _moments(xp.var),
    "std_mean": _moments(xp.std),
    "softplus": softplus,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "hardtanh": hardtanh,
    "relu6": lambda x: xp.clip(x, 0, 6),
    "log_sigmoid": lambda x: xp.negative(softplus(xp.negative(x))),
    "mish": lambda x: x * xp.tanh(softplus(x)),
}
