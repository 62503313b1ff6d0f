"""torch's attention, losses and norms in torch's spelling: fused results against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import redfuser_eq as rf

torch = pytest.importorskip("torch")
F = torch.nn.functional

CODE: dict[str, tuple[str, Callable[..., Any]]] = {
    "attention": ("q k v", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3)),
    "attention, causal": ("q k v", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "attention, keys kept": ("q k v keep", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m)),
    "attention, bias": ("q k v bias", lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, attn_mask=b)),
    "attention, grouped": ("q kg vg", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)),
    "cross_entropy": ("x y", lambda x, y: (F.cross_entropy(x, y), F.cross_entropy(x, y, reduction="none"))),
    "cross_entropy, smoothed": ("x y", lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum")),
    "cross_entropy, probabilities": ("x p", lambda x, p: F.cross_entropy(x, p, label_smoothing=0.1)),
    "nll_loss": ("x y", lambda x, y: F.nll_loss(F.log_softmax(x, -1), y, reduction="sum")),
    "kl_div": ("x p", lambda x, p: F.kl_div(x.log_softmax(-1), p, reduction="batchmean")),
    "kl_div of logarithms": ("x p", lambda x, p: F.kl_div(x.log_softmax(-1), p.log(), log_target=True, reduction="sum")),
    "cosine_similarity": ("x p", lambda x, p: F.cosine_similarity(x, p, dim=-1)),
    "of differences": ("x p", lambda x, p: (F.mse_loss(x, p), F.l1_loss(x, p, reduction="sum"), F.smooth_l1_loss(x, p, beta=0.5))),
    "huber_loss": ("x p", lambda x, p: F.huber_loss(x, p, delta=0.7)),
    "binary_cross_entropy_with_logits": ("x p", lambda x, p: F.binary_cross_entropy_with_logits(x, p)),
    "group_norm": ("image c c", lambda x, w, b: F.group_norm(x, 2, w, b)),
    "instance_norm": ("image", lambda x: F.instance_norm(x)),
    "batch_norm": ("image c c", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
    "batch_norm, given statistics": ("image c positive c c", lambda x, m, s, w, b: F.batch_norm(x, m, s, w, b)),
    "products": ("x t", lambda x, t: torch.addmm(x[:, :4], x, t, beta=0.5, alpha=2)),
    "moments": ("x", lambda x: (*torch.var_mean(x, dim=1), *torch.std_mean(x, dim=0, correction=0))),
    "activations": ("x", lambda x: F.softplus(x).sum(-1) + F.leaky_relu(x).sum(-1) + F.elu(x).sum(-1) + F.mish(x).sum(-1)),
    "clamped": ("x", lambda x: F.logsigmoid(x).sum(-1) + F.hardtanh(x).sum(-1) + F.relu6(x).sum(-1)),
}


def arguments(names: str) -> list[Any]:
    generator = torch.Generator().manual_seed(len(names))

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    keep = torch.rand((2, 1, 9, 33), generator=generator) > 0.3
    keep[1, 0, 4] = False  # sees nothing
    bias = normal(9, 33)
    bias[3] = -torch.inf
    made = {
        "q": normal(2, 4, 9, 16), "k": normal(2, 4, 33, 16), "v": normal(2, 4, 33, 16), "kg": normal(2, 2, 33, 16),
        "vg": normal(2, 2, 33, 16), "keep": keep, "bias": bias, "x": normal(5, 33), "y": torch.tensor([0, -100, 2, 32, 7]),
        "p": normal(5, 33).softmax(-1), "t": normal(33, 4),
        "image": normal(3, 6, 5, 7) + 2, "c": normal(6), "positive": normal(6).abs() + 1,
    }  # fmt: skip
    return [made[n] for n in names.split()]


@pytest.mark.parametrize("name", CODE)
def test_against_torch(name: str) -> None:
    names, f = CODE[name]
    given = arguments(names)
    got = rf.optimize(f, verify="raise")(*given)
    want = f(*(a.double() if a.is_floating_point() else a for a in given))
    for g, e in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
        assert g.dtype == torch.float32 and g.shape == e.shape
        torch.testing.assert_close(g.double(), e, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("name", ["attention", "attention, causal", "attention, keys kept", "attention, bias", "attention, grouped"])
def test_attention_is_one_pass(name: str) -> None:
    names, f = CODE[name]
    assert rf.optimize(f).report(*arguments(names)).passes["k"] == (3, 1)


def test_what_has_no_meaning_here() -> None:
    q, x, y = *arguments("q x"), torch.tensor([0, 1, 2, 3, 4])
    with pytest.raises(rf.TraceError, match="dropout"):
        rf.optimize(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1))(q)
    with pytest.raises(rf.TraceError, match="weights"):
        rf.optimize(lambda x, y, w: F.cross_entropy(x, y, weight=w))(x, y, x[0])
    with pytest.raises(rf.TraceError, match="running statistics"):
        rf.optimize(lambda x, m: F.batch_norm(x, m, m, training=True))(x, x[0])
