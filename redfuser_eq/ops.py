"""The table of elementwise operations: one entry is all that an operation needs.

Every part reads this table: the tracer (which NumPy calls map to it), the e-graph (arity, range,
monotonicity), the interpreters (`numpy`), the cost model (`cost`) and the printers (`c`, a C expression
over `{0}`, `{1}`, `{2}`; `vector`, the name of a vector primitive when the plain expression will not do).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

INF = math.inf


def _erf(x: Any) -> Any:
    """Error function in float64: SciPy's where it is installed, else the standard library's, one number at a time."""
    x = np.asarray(x)
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    return _double_erf()(x.astype(np.float64)).astype(dtype)


@cache
def _double_erf() -> Any:
    return import_module("scipy.special").erf if find_spec("scipy") else np.vectorize(math.erf, otypes=[np.float64])


def _rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _recip(x: Any) -> Any:
    return 1 / x


@dataclass(frozen=True)
class Op:
    """An elementwise operation.

    name: as written in rules and printed programs. arity: number of operands.
    numpy: its meaning on arrays. kind: result dtype rule, "same" (promoted operands), "float"
    (promoted, at least a float), "bool" or "where" (the promoted second and third operand).
    low, high: bounds of the result over all real arguments. monotone: +1 increasing, -1 decreasing,
    0 neither. cost: flops per element, roughly. c: a C spelling.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    kind: str = "same"
    low: float = -INF
    high: float = INF
    monotone: int = 0
    cost: float = 1.0
    c: str = ""


def _table(*ops: Op) -> dict[str, Op]:
    return {op.name: op for op in ops}


OPS: dict[str, Op] = _table(
    Op("add", 2, np.add, c="{0} + {1}"),
    Op("sub", 2, np.subtract, c="{0} - {1}"),
    Op("mul", 2, np.multiply, c="{0} * {1}"),
    Op("div", 2, np.true_divide, "float", cost=4, c="{0} / {1}"),
    Op("neg", 1, np.negative, monotone=-1, c="-{0}"),
    Op("recip", 1, _recip, "float", cost=4, c="1 / {0}"),
    Op("abs", 1, np.abs, low=0, c="fabs({0})"),
    Op("square", 1, np.square, low=0, c="{0} * {0}"),
    Op("sqrt", 1, np.sqrt, "float", low=0, monotone=1, cost=6, c="sqrt({0})"),
    Op("rsqrt", 1, _rsqrt, "float", low=0, monotone=-1, cost=8, c="1 / sqrt({0})"),
    Op("exp", 1, np.exp, "float", low=0, monotone=1, cost=8, c="exp({0})"),
    Op("exp2", 1, np.exp2, "float", low=0, monotone=1, cost=8, c="exp2({0})"),
    Op("expm1", 1, np.expm1, "float", low=-1, monotone=1, cost=10, c="expm1({0})"),
    Op("log", 1, np.log, "float", monotone=1, cost=8, c="log({0})"),
    Op("log1p", 1, np.log1p, "float", monotone=1, cost=10, c="log1p({0})"),
    Op("log2", 1, np.log2, "float", monotone=1, cost=8, c="log2({0})"),
    Op("sin", 1, np.sin, "float", low=-1, high=1, cost=12, c="sin({0})"),
    Op("cos", 1, np.cos, "float", low=-1, high=1, cost=12, c="cos({0})"),
    Op("tanh", 1, np.tanh, "float", low=-1, high=1, monotone=1, cost=12, c="tanh({0})"),
    Op("erf", 1, _erf, "float", low=-1, high=1, monotone=1, cost=12, c="erf({0})"),
    Op("sign", 1, np.sign, low=-1, high=1, c="({0} > 0) - ({0} < 0)"),
    Op("floor", 1, np.floor, monotone=1, c="floor({0})"),
    Op("ceil", 1, np.ceil, monotone=1, c="ceil({0})"),
    Op("round", 1, np.rint, monotone=1, c="rint({0})"),
    Op("isfinite", 1, np.isfinite, "bool", c="isfinite({0})"),
    Op("isnan", 1, np.isnan, "bool", c="{0} != {0}"),
    Op("maximum", 2, np.maximum, c="fmax({0}, {1})"),
    Op("minimum", 2, np.minimum, c="fmin({0}, {1})"),
    Op("power", 2, np.power, cost=20, c="pow({0}, {1})"),
    Op("floor_divide", 2, np.floor_divide, cost=6, c="floor({0} / {1})"),
    Op("remainder", 2, np.remainder, cost=6, c="{0} - {1} * floor({0} / {1})"),
    Op("lt", 2, np.less, "bool", c="{0} < {1}"),
    Op("le", 2, np.less_equal, "bool", c="{0} <= {1}"),
    Op("gt", 2, np.greater, "bool", c="{0} > {1}"),
    Op("ge", 2, np.greater_equal, "bool", c="{0} >= {1}"),
    Op("eq", 2, np.equal, "bool", c="{0} == {1}"),
    Op("ne", 2, np.not_equal, "bool", c="{0} != {1}"),
    Op("logical_and", 2, np.logical_and, "bool", c="{0} && {1}"),
    Op("logical_or", 2, np.logical_or, "bool", c="{0} || {1}"),
    Op("logical_xor", 2, np.logical_xor, "bool", c="!{0} != !{1}"),
    Op("logical_not", 1, np.logical_not, "bool", c="!{0}"),
    Op("where", 3, np.where, "where", c="{0} ? {1} : {2}"),
)


@dataclass(frozen=True)
class Monoid:
    """A reduction's operation.

    identity: value of the empty reduction (as a float; None: the empty reduction is an error).
    combine: on two values; None for pair states, whose merge the interpreters own.
    state: "value", "pair" (value and index) or "top" (k values and k indices, best first).
    """

    name: str
    identity: float
    combine: Callable[..., Any] | None = None
    state: str = "value"
    empty_ok: bool = True
    best: int = 0  # +1: larger wins, -1: smaller wins (pair and top states, max, min)


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", 0.0, np.add),
        Monoid("prod", 1.0, np.multiply),
        Monoid("max", -INF, np.maximum, empty_ok=False, best=1),
        Monoid("min", INF, np.minimum, empty_ok=False, best=-1),
        Monoid("any", 0.0, np.logical_or),
        Monoid("all", 1.0, np.logical_and),
        Monoid("argmax", -INF, None, "pair", False, 1),
        Monoid("argmin", INF, None, "pair", False, -1),
        Monoid("top_values", -INF, None, "top", False, 1),
        Monoid("top_indices", -INF, None, "top", False, 1),
    )
}
