"""exp and log undo each other: log-probabilities without a rounding through probabilities.

Sound over the reals for positive arguments; on floats the right side stays finite where the left side
underflows (log of a probability below the smallest float), so it is never less accurate.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import law

_law = partial(law, theme="inverse", phase="tidy")

RULES = (
    _law("log-exp", "(log (exp a))", "a", subsume=True, why="no overflow or underflow on the way"),
    _law("log2-exp2", "(log2 (exp2 a))", "a", subsume=True, why="no overflow or underflow on the way"),
    _law("log-mul", "(log (mul a b))", "(add (log a) (log b))", when="(nonneg a) (nonneg b)", why="both factors are >= 0"),
    _law("log-recip", "(log (recip a))", "(neg (log a))", when="(nonneg a)", why="a >= 0"),
    _law("exp-log", "(exp (log a))", "a", when="(nonneg a)", why="a >= 0"),
    _law("exp-neg-log", "(exp (neg (log a)))", "(recip a)", when="(nonneg a)", why="a >= 0"),
    _law("exp-sub-log", "(exp (sub a (log b)))", "(div (exp a) b)", when="(nonneg b)", why="b >= 0"),
    _law("exp-add-log", "(exp (add a (log b)))", "(mul (exp a) b)", when="(nonneg b)", why="b >= 0"),
)
