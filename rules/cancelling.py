"""Expanded sums and squares: fewer operations, and catastrophic cancellation where a mean is large.

Only `numerics="fast"` loads them: sum x^2 - n mean^2 loses every digit when |mean| >> deviation.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import law

_law = partial(law, theme="cancelling", why="linear over the reals; cancels on floats when the part taken out is large")
_RAW = "(source b) (static k p) (dep k p) (dynamic k q) (indep k q)"

RULES = (
    _law("expand-left", "(sum k b)", "(add (sum k (mul p c)) (mul q (sum k c)))", when=f"(= b (mul (add p q) c)) {_RAW} (static k c)"),
    _law("expand-right", "(sum k b)", "(add (sum k (mul c p)) (mul q (sum k c)))", when=f"(= b (mul c (add p q))) {_RAW} (static k c)"),
    _law(
        "expand-square",
        "(sum k b)",
        "(add (sum k (square p)) (add (mul two (mul q (sum k p))) (mul (square q) (count k))))",
        when=f"(= b (square (add p q))) {_RAW}",
    ),
)
