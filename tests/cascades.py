"""Hand-written Cascades with the programs they come from, random inputs, and float64 expectations.

Each function below gives a `Workload`. They are written as a person would derive them on paper, so that
the interpreters and the backends can be tested without the discovery stage. `WORKLOADS` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable

from cascades_products import (
    attention,
    attention_bias,
    attention_causal,
    attention_gqa,
    attention_window,
    cross_entropy,
    decode,
    kmeans,
    kmeans_direct,
    layernorm_linear,
    linear_logsumexp,
    masked_by_array,
    mla,
    quantised_linear,
    rms_linear,
    routing,
)
from cascades_rows import (
    attention_received,
    covariance,
    entropy,
    kl,
    logsumexp,
    logsumexp_axis0,
    plain_monoids,
    several,
    softmax,
    softmax_variance,
    total_variance,
    variance,
    weighted_variance,
)
from writing import Workload, lse64, softmax64

__all__ = ["WORKLOADS", "Workload", "lse64", "masked_by_array", "softmax64"]

WORKLOADS: dict[str, Callable[[], Workload]] = {
    f.__name__: f
    for f in (
        logsumexp,
        logsumexp_axis0,
        softmax,
        entropy,
        kl,
        variance,
        weighted_variance,
        softmax_variance,
        covariance,
        several,
        plain_monoids,
        attention,
        attention_causal,
        attention_window,
        attention_bias,
        attention_gqa,
        decode,
        mla,
        linear_logsumexp,
        cross_entropy,
        rms_linear,
        layernorm_linear,
        kmeans,
        kmeans_direct,
        routing,
        quantised_linear,
        attention_received,
        total_variance,
    )
}
