"""Expr -> terms of the e-graph.

Normal order: `a - (b + c)` becomes `(a - b) - c`; a quotient is a product with a reciprocal. A cast to a
wider float is exact and vanishes (the whole program is computed in the widest float it mentions).
Where a small change of an argument makes a jump in the result (rounding casts, floor, comparisons), the
argument is computed as the source wrote it: `Encoded.verbatim` keeps the original expression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from .errors import IRError
from .expr import Acc, Cast, Const, Expr, Index, Load, Map, Prev, Program, Reduce, nodes
from .ops import OPS
from .terms import axis_bit

JUMPS = frozenset(("sign", "floor", "ceil", "round", "floor_divide", "remainder", "isfinite", "isnan", "lt", "le", "gt", "ge", "eq", "ne"))


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is a real floating one, NumPy's or ml_dtypes'."""
    return dtype.kind == "f" or (dtype.kind == "V" and _is_ml_float(dtype))


def _is_ml_float(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.finfo(dtype)
    except ValueError:
        return False
    return True


def real_dtype(program: Program) -> np.dtype[Any]:
    """The float that a program is computed in: float64 where the source mentions it, else float32."""
    found = any(e.dtype == np.float64 for o in program.outputs for e in nodes(o.expr))
    return np.dtype(np.float64 if found else np.float32)


@dataclass
class Encoded:
    """leaves: what each Leaf id stands for. axes: axis of each bit. names: let variable of each
    expression. roots: let variables of the outputs. commands: egglog text."""

    axes: tuple[str, ...]
    leaves: list[Expr] = field(default_factory=list)
    names: dict[Expr, str] = field(default_factory=dict)
    roots: list[str] = field(default_factory=list)
    verbatim: dict[str, Expr] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def encode(program: Program) -> Encoded:
    """Terms of a program, one `let` a node, so that shared terms are registered once."""
    encoder = _Encoder(Encoded(tuple(program.extents)))
    for o in program.outputs:
        encoder.out.roots.append(encoder.term(o.expr))
    return encoder.out


class _Encoder:
    def __init__(self, out: Encoded) -> None:
        self.out = out
        self.bits = {a: axis_bit(n) for n, a in enumerate(out.axes)}
        self.lets: dict[str, str] = {}
        self.facts: set[str] = set()

    def let(self, text: str) -> str:
        if text not in self.lets:
            name = f"$n{len(self.lets)}"
            self.lets[text] = name
            self.out.commands.append(f"(let {name} {text}) (source {name})")
        return self.lets[text]

    def fact(self, text: str) -> None:
        if text not in self.facts:
            self.facts.add(text)
            self.out.commands.append(text)

    def term(self, e: Expr) -> str:
        for node in nodes(e):  # children first, so that recursion stays shallow
            if node not in self.out.names:
                self.out.names[node] = self._term(node)
        return self.out.names[e]

    def _term(self, e: Expr) -> str:
        if isinstance(e, Const):
            return self.const(e)
        if isinstance(e, (Load, Index)):
            return self.leaf(e)
        if isinstance(e, Reduce):
            return self.reduce(e)
        if isinstance(e, Cast):
            return self.cast(e)
        if isinstance(e, Map):
            return self.map(e)
        assert isinstance(e, (Acc, Prev))
        raise IRError(f"{e} belongs to a Cascade and cannot be encoded")

    def leaf(self, e: Expr) -> str:
        self.out.leaves.append(e)
        mask = sum(self.bits[a] for a in e.axes)
        return self.let(f"(Leaf {len(self.out.leaves) - 1} {mask})")

    def const(self, e: Const) -> str:
        value = float(e.value)
        if math.isnan(value) or value != e.value or (value == 0 and math.copysign(1, value) < 0):
            return self.leaf(e)  # to the e-graph -0.0 would be 0.0
        name = self.num(value)
        if value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5:
            self.fact(f"(pow2 {name})")
        return name

    def num(self, value: float) -> str:
        return self.let(f"(Num {_float(value)})")

    def reduce(self, e: Reduce) -> str:
        body = self.out.names[e.body]
        bit = self.bits[e.axis]
        if e.op in ("argmax", "argmin"):
            self.fact(f'(selects "{e.op}")')
            return self.let(f'(Proj "index" 0 {self.let(f"""(R "{e.op}" {bit} {body})""")})')
        if e.k:
            self.fact(f'(selects "top{e.k}")')
            field = "value" if e.op == "top_values" else "index"
            return self.let(f'(Proj "{field}" {self.bits[e.out]} {self.let(f"""(R "top{e.k}" {bit} {body})""")})')
        return self.let(f'(R "{e.op}" {bit} {body})')

    def cast(self, e: Cast) -> str:
        (arg,) = e.args
        source, target = arg.dtype, e.dtype
        if source == target or (is_float(source) and is_float(target) and np.can_cast(source, target)):
            return self.out.names[arg]
        name = self.let(f'(U "cast:{target.name}" {self.out.names[arg]})')
        if is_float(source) and is_float(target):
            self.fact(f'(casts "cast:{target.name}")')
        if not isinstance(arg, (Load, Index)):
            self.out.verbatim[name] = e
        return name

    def map(self, e: Map) -> str:
        a = [self.out.names[x] for x in e.args]
        match e.op:
            case "add":
                return self.let(f"(Add {a[0]} {a[1]})")
            case "mul":
                return self.let(f'(U "square" {a[0]})' if a[0] == a[1] else f"(Mul {a[0]} {a[1]})")
            case "sub":
                return self.sub(a[0], e.args[1])
            case "neg" if isinstance(e.args[0], Const):
                return self.num(-float(e.args[0].value))
            case "div":
                return self.let(f"(Mul {a[0]} {self.recip(a[1], e.args[1])})")
            case "recip":
                return self.recip(a[0], e.args[0])
            case "where":
                return self.let(f"(W {a[0]} {a[1]} {a[2]})")
        name = self.let(f'({"UB"[len(a) - 1]} "{e.op}" {" ".join(a)})')
        if e.op in JUMPS and any(isinstance(n, Reduce) for n in nodes(e)):
            self.out.verbatim[name] = e
        if e.op in ("exp", "exp2"):
            self.out.written.append(name)
        return name

    def sub(self, left: str, right: Expr) -> str:
        """left - right."""
        if isinstance(right, Const) and not math.isnan(float(right.value)):
            return self.let(f"(Add {left} {self.num(-float(right.value))})")
        return self.let(f'(Add {left} {self.let(f"""(U "neg" {self.out.names[right]})""")})')

    def recip(self, name: str, e: Expr) -> str:
        text = self.let(f'(U "recip" {name})')
        if isinstance(e, Const) and e.value > 0:
            self.fact(f"(set (lo {text}) 0.0)")
        return text


def _float(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = repr(float(value))
    return text if "e" not in text else f"{value:.340f}".rstrip("0") + "0"


assert all(j in OPS for j in JUMPS)
