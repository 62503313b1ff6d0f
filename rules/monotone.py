"""Monotone maps commute with order: the k best of f(x) are f of the k best of x.

Only for bodies that hold a reduction over the axis: others stream as they are, and what is compared
stays what was computed.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import law

_law = partial(law, theme="monotone")
_why = "increasing on floats too; a NaN argument gives a NaN row, which is recomputed"

RULES = (
    _law("max-increasing", "(max k (U f a))", "(U f (max k a))", when="(increasing f) (dep k a) (dynamic k a)", why=_why),
    _law("min-increasing", "(min k (U f a))", "(U f (min k a))", when="(increasing f) (dep k a) (dynamic k a)", why=_why),
    _law("max-decreasing", "(max k (U f a))", "(U f (min k a))", when="(decreasing f) (dep k a) (dynamic k a)", why="order reversed"),
    _law("min-decreasing", "(min k (U f a))", "(U f (max k a))", when="(decreasing f) (dep k a) (dynamic k a)", why="order reversed"),
    _law(
        "select-value-exp",
        '(Proj "value" o (R s k (U f a)))',
        '(U f (Proj "value" o (R s k a)))',
        when="(selects s) (exponential f) (dep k a) (dynamic k a)",
        why=_why,
    ),
    _law(
        "select-index-exp",
        '(Proj "index" o (R s k (U f a)))',
        '(Proj "index" o (R s k a))',
        when="(selects s) (exponential f) (dep k a) (dynamic k a)",
        why="strictly increasing; where results underflow to a tie, the larger argument is chosen",
    ),
)
