"""Expanded sums and squares: fewer operations, and catastrophic cancellation where a mean is large.

Only `numerics="fast"` loads them: sum x^2 - n mean^2 loses every digit when |mean| >> deviation.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import law

_law = partial(law, theme="cancelling", why="linear over the reals; may cancel on floats")

RULES = (
    _law("expand-add", "(sum k (add a b))", "(add (sum k a) (sum k b))"),
    _law("expand-left", "(sum k (mul (add a b) c))", "(add (sum k (mul a c)) (sum k (mul b c)))", when="(indep k b)"),
    _law("expand-right", "(sum k (mul c (add a b)))", "(add (sum k (mul c a)) (sum k (mul c b)))", when="(indep k b)"),
    _law(
        "expand-square",
        "(sum k (square (add a b)))",
        "(add (sum k (square a)) (add (mul two (sum k (mul a b))) (sum k (square b))))",
        when="(indep k b)",
    ),
)
