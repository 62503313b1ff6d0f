"""Facts about ranges. They decide which exponentials are safe and which factors keep an order.

Interval arithmetic stops at infinities: an interval end is stored only where it is a number, so that a
NaN (which egglog orders above every number) never passes a guard. A running maximum only grows while the
elements themselves do not move.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive

_fact = partial(derive, theme="bounds", why="interval arithmetic over the reals; a NaN makes its row non-finite and recomputed")

RULES = (
    _fact("max-bounds", "(= c (sub a (max k a)))", "(set (hi c) 0.0)"),
    _fact("min-bounds", "(= c (sub a (min k a)))", "(set (lo c) 0.0)"),
    _fact("max-grows", '(= c (sub (Prev "max" k a) (max k a))) (static k a)', "(set (hi c) 0.0)"),
    _fact("max-grew", '(= c (sub (max k a) (Prev "max" k a))) (static k a)', "(set (lo c) 0.0)"),
    _fact("min-falls", '(= c (sub (Prev "min" k a) (min k a))) (static k a)', "(set (lo c) 0.0)"),
    _fact("add-hi", "(= c (add a b)) (= u (hi a)) (= v (hi b)) (< u inf) (< v inf)", "(set (hi c) (+ u v))"),
    _fact(
        "add-lo",
        "(= c (add a b)) (= u (lo a)) (= v (lo b)) (> u (* -1.0 inf)) (> v (* -1.0 inf)) (< u inf) (< v inf)",
        "(set (lo c) (+ u v))",
    ),
    _fact("neg-hi", "(= c (neg a)) (= u (lo a))", "(set (hi c) (* -1.0 u))"),
    _fact("neg-lo", "(= c (neg a)) (= u (hi a))", "(set (lo c) (* -1.0 u))"),
    _fact("mul-nonneg", "(= c (mul a b)) (nonneg a) (nonneg b)", "(set (lo c) 0.0)"),
    _fact("mul-nonpos", "(= c (mul a b)) (nonneg a) (below 0.0 b)", "(set (hi c) 0.0)"),
    _fact("lum-nonpos", "(= c (mul b a)) (nonneg a) (below 0.0 b)", "(set (hi c) 0.0)"),
    _fact("recip-nonneg", "(= c (recip a)) (nonneg a)", "(set (lo c) 0.0)"),
    _fact("sum-nonneg", "(= c (sum k b)) (nonneg b)", "(set (lo c) 0.0)"),
    _fact("prev-nonneg", '(= c (Prev "sum" k b)) (nonneg b)', "(set (lo c) 0.0)"),
    _fact("max-hi", "(= c (max k b)) (= u (hi b))", "(set (hi c) u)"),
    _fact("max-lo", "(= c (max k b)) (= u (lo b))", "(set (lo c) u)"),
    _fact("min-hi", "(= c (min k b)) (= u (hi b))", "(set (hi c) u)"),
    _fact("min-lo", "(= c (min k b)) (= u (lo b))", "(set (lo c) u)"),
    _fact("select-hi", '(= c (Proj "value" o (R f k b))) (= u (hi b))', "(set (hi c) u)"),
    _fact("select-lo", '(= c (Proj "value" o (R f k b))) (= u (lo b))', "(set (lo c) u)"),
    _fact("maximum-lo", "(= c (maximum a b)) (= u (lo b))", "(set (lo c) u)"),
    _fact("maximum-lo-left", "(= c (maximum a b)) (= u (lo a))", "(set (lo c) u)"),
    _fact("minimum-hi", "(= c (minimum a b)) (= u (hi b))", "(set (hi c) u)"),
    _fact("minimum-hi-left", "(= c (minimum a b)) (= u (hi a))", "(set (hi c) u)"),
    _fact("where-hi", "(= c (where p a b)) (= u (hi a)) (= v (hi b))", "(set (hi c) (!max u v))"),
    _fact("where-lo", "(= c (where p a b)) (= u (lo a)) (= v (lo b))", "(set (lo c) (!min u v))"),
    _fact("operation-low", "(= c (U f a)) (at_least f x)", "(set (lo c) x)"),
    _fact("operation-high", "(= c (U f a)) (at_most f x)", "(set (hi c) x)"),
)
