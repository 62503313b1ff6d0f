"""Masks in scores: which part of a tile an affine condition leaves, and when a masked tile may be left out.

A tile on which the condition is false everywhere may be skipped when every lift adds nothing there: its score is -inf, so
that maxima keep their value and exp gives 0; and 0 times what it is multiplied by is 0, provided that is finite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from .codegen.kernel import Bound
from .expr import Acc, Cast, Const, Expr, Index, Load, Map, nodes, transform
from .ops import MONOIDS
from .roles import terms

NEG = float("-inf")
COMPARISONS = {"le": (1, 0), "lt": (1, -1), "ge": (-1, 0), "gt": (-1, -1)}


def affine(e: Expr) -> tuple[dict[str, int], int] | None:
    """({axis: coefficient}, constant) of an integer index expression, or None."""
    if isinstance(e, Index):
        return {e.axis: 1}, 0
    if isinstance(e, Const) and float(e.value) == int(e.value):
        return {}, int(e.value)
    if isinstance(e, Map) and e.op in ("add", "sub"):
        a, b = affine(e.args[0]), affine(e.args[1])
        if a is None or b is None:
            return None
        s = 1 if e.op == "add" else -1
        return {x: a[0].get(x, 0) + s * b[0].get(x, 0) for x in {**a[0], **b[0]}}, a[1] + s * b[1]
    if isinstance(e, Map) and e.op == "neg":
        a = affine(e.args[0])
        return None if a is None else ({x: -c for x, c in a[0].items()}, -a[1])
    return None


def bounds(condition: Expr) -> tuple[list[Bound], bool]:
    """The affine bounds among the conjuncts of a condition, and whether they are all of it."""
    if isinstance(condition, Map) and condition.op == "logical_and":
        first, second = bounds(condition.args[0]), bounds(condition.args[1])
        return first[0] + second[0], first[1] and second[1]
    if isinstance(condition, Map) and condition.op in COMPARISONS:
        a, b = affine(condition.args[0]), affine(condition.args[1])
        if a is not None and b is not None:
            sign, strict = COMPARISONS[condition.op]
            terms = {x: sign * (b[0].get(x, 0) - a[0].get(x, 0)) for x in sorted({**a[0], **b[0]})}
            return [Bound(tuple((x, c) for x, c in terms.items() if c), sign * (b[1] - a[1]) + strict)], True
    return [], False


@dataclass
class Masked:
    """open: the score where every condition holds; bounds: the affine conditions; others: the rest of them; all: every one."""

    open: Expr
    bounds: list[Bound] = field(default_factory=list)
    others: list[Expr] = field(default_factory=list)
    all: list[Expr] = field(default_factory=list)


def masked(score: Expr) -> Masked:
    """Peel `where(condition, x, -inf)` off a score, however deep they nest at its top."""
    if isinstance(score, Map) and score.op == "where" and isinstance(score.args[2], Const) and score.args[2].value == NEG:
        inner = masked(score.args[1])
        parts = conjuncts(score.args[0])
        found = [b for c in parts for b in bounds(c)[0]]
        others = [c for c in parts if not bounds(c)[0]]
        return Masked(inner.open, found + inner.bounds, others + inner.others, parts + inner.all)
    return Masked(score)


def added(score: Expr, raw: Expr, row: str, stream: str) -> tuple[Expr, set[Load]] | None:
    """(what is added to every score, the loads that the rest of the score is made of), where an array over rows and stream is
    added, or None. Where the first is -inf and the loads are no larger than `MODERATE`, the score is -inf."""
    addends = terms(masked(score).open)
    for b in addends:
        rest, loads = [t for t in addends if t is not b], set[Load]()
        if _array(b) and raw not in nodes(b) and {row, stream} <= b.axes and rest and all(_moderate(t, raw, loads) for t in rest):
            return b, loads
    return None


MODERATE = 2.0**50  # two factors up to here, summed over a million, and times FACTOR, do not overflow float32
FACTOR = 16.0


def _array(e: Expr) -> bool:
    """An element of an array, perhaps converted or with another sign."""
    turned = isinstance(e, Cast) or (isinstance(e, Map) and e.op == "neg")
    return isinstance(e, Load) or (turned and _array(e.args[0]))


def _moderate(e: Expr, raw: Expr, loads: set[Load]) -> bool:
    """A product inside the elements (`raw`), an array or a position, with constant factors: finite if its loads are moderate."""
    if isinstance(e, Const):
        return abs(e.value) <= FACTOR
    if e is raw or isinstance(e, Index):
        return True
    if _array(e):
        loads |= {x for x in nodes(e) if isinstance(x, Load)}
        return True
    if isinstance(e, Map) and e.op in ("neg", "mul", "tanh"):
        return sum(not isinstance(a, Const) for a in e.args) <= 1 and all(_moderate(a, raw, loads) for a in e.args)
    by = e.args[1] if isinstance(e, Map) and e.op == "div" else None
    return isinstance(by, Const) and abs(by.value) * FACTOR >= 1 and _moderate(e.args[0], raw, loads)


def conjunction(conditions: list[Expr]) -> Expr:
    """One condition of several."""
    return reduce(lambda a, b: Map("logical_and", (a, b)), conditions)


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that a conjunction joins."""
    if isinstance(condition, Map) and condition.op == "logical_and":
        return conjuncts(condition.args[0]) + conjuncts(condition.args[1])
    return [condition]


def finite_needed(op: str, lift: Expr, tile: Expr) -> set[Load] | None:
    """What must be finite for the lift to add nothing where `tile` is -inf; None when it would add something."""
    needed: set[Load] = set()
    low = transform(lift, lambda e: Const(NEG, e.dtype) if e is tile else None)
    kind = _limit(low, needed)
    if op == "sum":
        return needed if kind == "zero" else None
    if MONOIDS[op].best > 0 and MONOIDS[op].identity == NEG:
        return needed if kind == "low" else None
    return None


def _limit(e: Expr, needed: set[Load]) -> str:
    """ "low" (-inf), "zero", or "" (anything)."""
    if isinstance(e, Const):
        return "low" if e.value == NEG else "zero" if e.value == 0 else ""
    if not isinstance(e, Map):
        return ""
    kinds = [_limit(a, needed) for a in e.args]
    if e.op in ("exp", "exp2") and kinds == ["low"]:
        return "zero"
    if e.op in ("add", "sub") and kinds[0] == "low" and _finite(e.args[1], needed):
        return "low"
    if e.op == "add" and kinds[1] == "low" and _finite(e.args[0], needed):
        return "low"
    if e.op == "mul":
        for k, other in ((kinds[0], e.args[1]), (kinds[1], e.args[0])):
            if k == "low" and isinstance(other, Const) and 0 < other.value < float("inf"):
                return "low"
            if k == "zero" and _finite(other, needed):
                return "zero"
    return ""


def _finite(e: Expr, needed: set[Load]) -> bool:
    """Finite if these loads are. Accumulators that are not finite have their rows computed anew anyway."""
    if isinstance(e, Const):
        return abs(e.value) < float("inf")
    if isinstance(e, (Acc, Index)):
        return True
    if isinstance(e, Load):
        if e.dtype.kind not in "iub":
            needed.add(e)
        return True
    return False


KEEPS_NAN = frozenset(("add", "sub", "mul", "div", "neg", "square", "exp", "exp2", "expm1", "log", "sqrt", "tanh", "abs"))


def keeps_nan(e: Expr, source: Expr) -> bool:
    """e is NaN wherever source is."""
    return e is source or (isinstance(e, Map) and e.op in KEEPS_NAN and any(keeps_nan(a, source) for a in e.args))
