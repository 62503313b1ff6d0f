"""Cascaded reductions to one-pass kernels, discovered by equality saturation.

>>> import numpy as np, redfuser_eq as rf
>>> fused = rf.optimize(lambda x: np.log(np.sum(np.exp(x), axis=-1)))
>>> fused(np.array([[1000.0, 1000.0]]))
array([1000.69314718])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .array import array  # here and now: the submodule of the same name must not take this place later

if TYPE_CHECKING:
    from . import rules
    from .api import Fused, optimize
    from .cascade import Cascade
    from .compose import (
        arange,
        cast,
        causal_mask,
        cross_entropy,
        entropy,
        erf,
        gelu,
        layer_norm,
        log_softmax,
        logsumexp,
        rms_norm,
        rsqrt,
        sigmoid,
        silu,
        softmax,
        top_k,
        window_mask,
        xlogy,
    )
    from .device import DEVICES, Device
    from .errors import (
        BackendError,
        DTypeError,
        IRError,
        RedfuserError,
        ShapeError,
        TraceError,
        UnsoundRewrite,
        UnsoundRewriteWarning,
    )
    from .experiments import Result, experiment
    from .explain import Explanation
    from .report import Report
    from .rules import Rule, RuleSet, derive, law
    from .saturate import Budget

__version__ = "0.1.0"

# Imported at first use, so that importing the package costs little.
_PLACES = {
    "api": ("Fused", "optimize"),
    "cascade": ("Cascade",),
    "compose": (
        "arange",
        "cast",
        "causal_mask",
        "cross_entropy",
        "entropy",
        "erf",
        "gelu",
        "layer_norm",
        "log_softmax",
        "logsumexp",
        "rms_norm",
        "rsqrt",
        "sigmoid",
        "silu",
        "softmax",
        "top_k",
        "window_mask",
        "xlogy",
    ),
    "device": ("DEVICES", "Device"),
    "errors": (
        "BackendError",
        "DTypeError",
        "IRError",
        "RedfuserError",
        "ShapeError",
        "TraceError",
        "UnsoundRewrite",
        "UnsoundRewriteWarning",
    ),
    "experiments": ("Result", "experiment"),
    "explain": ("Explanation",),
    "report": ("Report",),
    "rules": ("Rule", "RuleSet", "derive", "law"),
    "saturate": ("Budget",),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "DEVICES",
    "BackendError",
    "Budget",
    "Cascade",
    "DTypeError",
    "Device",
    "Explanation",
    "Fused",
    "IRError",
    "RedfuserError",
    "Report",
    "Result",
    "Rule",
    "RuleSet",
    "ShapeError",
    "TraceError",
    "UnsoundRewrite",
    "UnsoundRewriteWarning",
    "arange",
    "array",
    "cast",
    "causal_mask",
    "cross_entropy",
    "derive",
    "entropy",
    "erf",
    "experiment",
    "gelu",
    "law",
    "layer_norm",
    "log_softmax",
    "logsumexp",
    "optimize",
    "rms_norm",
    "rsqrt",
    "rules",
    "sigmoid",
    "silu",
    "softmax",
    "top_k",
    "window_mask",
    "xlogy",
]


def __getattr__(name: str) -> Any:
    if name == "rules":
        return import_module(".rules", __name__)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
