"""Rounding is a barrier: cast(x * h) does not commute with rescaling, unless h is a power of two.

A power of two only shifts the exponent, so that rescaling an already rounded value is exact (barring
overflow, which a growing scale never meets, and subnormals, where the streamed form keeps more bits).
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive, law

_pow2 = partial(derive, theme="rounding", why="closed under product and reciprocal")
_RESCALED = "(Term (mul h (recip (Old k h))) (U f a))"
_WHEN = "(casts f) (dynamic k a) (factor k a g h) (static k g) (!= h one)"

RULES = (
    derive(
        "ask-cast", "(want_factor k c) (= c (U f a)) (casts f) (dep k c)", "(want_factor k a)", theme="rounding", why="asks for the scale"
    ),
    _pow2("pow2-exp2", "(= c (exp2 (U f a))) (integral f)", "(pow2 c)"),
    _pow2("pow2-recip", "(= c (recip a)) (pow2 a)", "(pow2 c)"),
    _pow2("pow2-mul", "(= c (mul a b)) (pow2 a) (pow2 b)", "(pow2 c)"),
    _pow2("pow2-one", "(= c one)", "(pow2 c)"),
    law(
        "rescale-pow2",
        "(Shift k (U f a))",
        _RESCALED,
        when=f"{_WHEN} (pow2 h)",
        theme="rounding",
        why="rescaling by a power of two is exact",
    ),
)

FAST = (
    law(
        "rescale-any",
        "(Shift k (U f a))",
        _RESCALED,
        when=f"{_WHEN} (nonneg h)",
        theme="rescaling",
        why="a running quantisation scale: earlier elements keep the rounding of the scale they met",
    ),
)
