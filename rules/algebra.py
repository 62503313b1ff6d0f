"""Simplification: every rule leaves a smaller or more canonical term, so the set always saturates.

Rules that drop a value (`x - x`, `x * 0`) are false for inf and NaN. They fire only on `pure` terms,
values made of reductions alone: when such a value is not finite, some accumulator is not finite
either, and that row is recomputed by the written-out formula.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import law

_law = partial(law, theme="algebra", phase="tidy")
_EXACT = "exact on floats"

RULES = (
    _law("add-zero", "(add a zero)", "a", subsume=True, why="exact but for the sign of zero"),
    _law("zero-add", "(add zero a)", "a", subsume=True, why="exact but for the sign of zero"),
    _law("mul-one", "(mul a one)", "a", subsume=True, why=_EXACT),
    _law("one-mul", "(mul one a)", "a", subsume=True, why=_EXACT),
    _law("mul-zero", "(mul a zero)", "zero", when="(pure a)", subsume=True, why="a is finite or its row is recomputed"),
    _law("zero-mul", "(mul zero a)", "zero", when="(pure a)", subsume=True, why="a is finite or its row is recomputed"),
    _law("sub-self", "(sub a a)", "zero", when="(pure a)", subsume=True, why="a is finite or its row is recomputed"),
    _law("div-self", "(div a a)", "one", when="(pure a)", subsume=True, why="a is finite and not 0, or its row is recomputed"),
    _law("self-div", "(mul (recip a) a)", "one", when="(pure a)", subsume=True, why="a is finite and not 0, or its row is recomputed"),
    _law("add-const", "(add (Num x) (Num y))", "(Num (+ x y))", why="constants, in float64"),
    _law("mul-const", "(mul (Num x) (Num y))", "(Num (* x y))", why="constants, in float64"),
    _law("neg-const", "(neg (Num x))", "(Num (* -1.0 x))", why=_EXACT),
    _law("recip-one", "(recip one)", "one", why=_EXACT),
    _law("exp-zero", "(exp zero)", "one", why=_EXACT),
    _law("exp2-zero", "(exp2 zero)", "one", why=_EXACT),
    _law("log-one", "(log one)", "zero", why=_EXACT),
    _law("square-zero", "(square zero)", "zero", why=_EXACT),
    _law("square-one", "(square one)", "one", why=_EXACT),
    _law("abs-one", "(abs one)", "one", why=_EXACT),
    _law("add-self", "(add a a)", "(mul two a)", why=_EXACT),
    _law("neg-neg", "(neg (neg a))", "a", why=_EXACT),
    _law("recip-recip", "(recip (recip a))", "a", why="one rounding less"),
    _law("mul-neg-neg", "(mul (neg a) (neg b))", "(mul a b)", why=_EXACT),
    _law("neg-mul", "(mul (neg a) b)", "(neg (mul a b))", why=_EXACT),
    _law("mul-neg", "(mul a (neg b))", "(neg (mul a b))", why=_EXACT),
    _law("square-neg", "(square (neg a))", "(square a)", why=_EXACT),
    _law("mul-self", "(mul a a)", "(square a)", why=_EXACT),
    _law("neg-add", "(add (neg a) b)", "(sub b a)", why="commutes, so that a difference has one spelling"),
    _law("neg-sub", "(neg (sub a b))", "(sub b a)", why=_EXACT),
)
