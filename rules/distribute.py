"""Distributivity: what does not vary along an axis moves out of the reduction over it.

No rule here is associativity-commutativity. A law asks for what it needs through relations:
`factor(k, body, g, h)` says body = g * h with k not free in h; `addend(k, body, g, h)` the same for a sum.
They are derived bottom-up, only for bodies that a reduction asks about (`want_factor`, `want_addend`), and never inside
a class in which k is not free: such a class is a leaf, or a cycle would make it grow for ever.
Each k-free leaf may go to either side, so that 1/s can move out while another factor stays.
`part(k, body, r, h)` is a sum body = r + h from which a moving parameter h leaves while r stays a deviation.
A maximum of a body that holds no reduction over its axis stays as it is: the value that is subtracted
must be the very value that was compared, rounded once. An exponential is never split: exp(-m) * sum(exp(x)) is equal, cheaper and fatal.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive, law

_law = partial(law, theme="distribute")
_ask = partial(derive, theme="distribute", why="asks for decompositions of reduction bodies only")
_factor = partial(derive, theme="distribute", why="body = g * h, by the meaning of the operation; holds on every prefix")
_addend = partial(derive, theme="distribute", why="body = g + h, by the meaning of the operation; holds on every prefix")
_part = partial(derive, theme="distribute", why="body = r + h, the rest r still holding a reduction; associativity")

RULES = (
    _ask("ask-sum", "(sum k b)", "(want_factor k b)"),
    _ask("ask-prod", "(prod k b)", "(want_factor k b)"),
    _ask("ask-order", "(R f k b) (ordered f)", "(want_addend k b) (want_factor k b)"),
    _ask("ask-select", "(R f k b) (selects f)", "(want_addend k b) (want_factor k b)"),
    _ask("ask-shift", "(Shift k b) (dynamic k b) (dep k b)", "(want_addend k b) (want_factor k b)"),
    _ask("ask-factor-mul", "(want_factor k c) (= c (mul a b)) (dep k c)", "(want_factor k a) (want_factor k b)"),
    _ask("ask-factor-unary", "(want_factor k c) (= c (U f a)) (multiplicative f) (dep k c)", "(want_factor k a)"),
    _ask("ask-factor-exp", "(want_factor k c) (= c (U f a)) (exponential f) (dep k c)", "(want_addend k a)"),
    _ask("ask-addend-add", "(want_addend k c) (= c (add a b)) (dep k c)", "(want_addend k a) (want_addend k b)"),
    _ask("ask-addend-neg", "(want_addend k c) (= c (neg a)) (dep k c)", "(want_addend k a)"),
    _ask("ask-addend-mul", "(want_addend k c) (= c (mul a b)) (dep k a) (indep k b)", "(want_addend k a)"),
    _ask("ask-addend-lum", "(want_addend k c) (= c (mul b a)) (dep k a) (indep k b)", "(want_addend k a)"),
    _factor("factor-free", "(want_factor k c) (indep k c)", "(factor k c one c) (factor k c c one)"),
    _factor("factor-whole", "(want_factor k c) (dep k c)", "(factor k c c one)"),
    _factor(
        "factor-mul",
        "(want_factor k c) (dep k c) (= c (mul a b)) (factor k a ga ha) (factor k b gb hb)",
        "(factor k c (mul ga gb) (mul ha hb))",
    ),
    _factor(
        "factor-unary",
        "(want_factor k c) (dep k c) (= c (U f a)) (multiplicative f) (factor k a g h) (!= h one)",
        "(factor k c (U f g) (U f h))",
    ),
    _factor("factor-neg", "(want_factor k c) (dep k c) (= c (neg a)) (factor k a g h) (!= h one)", "(factor k c (neg g) h)"),
    _addend("addend-free", "(want_addend k c) (indep k c)", "(addend k c zero c)"),
    _addend("addend-whole", "(want_addend k c) (dep k c)", "(addend k c c zero)"),
    _addend(
        "addend-add",
        "(want_addend k c) (dep k c) (= c (add a b)) (addend k a ga ha) (addend k b gb hb)",
        "(addend k c (add ga gb) (add ha hb))",
    ),
    _addend("addend-neg", "(want_addend k c) (dep k c) (= c (neg a)) (addend k a g h) (!= h zero)", "(addend k c (neg g) (neg h))"),
    _addend(
        "addend-mul",
        "(want_addend k c) (dep k a) (= c (mul a b)) (indep k b) (addend k a g h) (!= h zero)",
        "(addend k c (mul g b) (mul h b))",
    ),
    _addend(
        "addend-lum",
        "(want_addend k c) (dep k a) (= c (mul b a)) (indep k b) (addend k a g h) (!= h zero)",
        "(addend k c (mul b g) (mul b h))",
    ),
    *(
        _ask(f"ask-part-{side}", f"(sum k {body}) (dynamic k a) (dep k a) (dep k w)", "(want_part k a)")
        for side, body in (("left", "(mul a w)"), ("right", "(mul w a)"))
    ),
    _ask("ask-part-add", "(want_part k c) (= c (add a b)) (dynamic k a) (dep k a) (dep k b)", "(want_part k a)"),
    _ask("ask-part-dda", "(want_part k c) (= c (add b a)) (dynamic k a) (dep k a) (dep k b)", "(want_part k a)"),
    _ask("ask-part-neg", "(want_part k c) (= c (neg a)) (dynamic k a) (dep k a)", "(want_part k a)"),
    *(
        _part(f"part-{side}", f"(want_part k c) (= c {body}) (dynamic k a) (dep k a) (dynamic k h) (indep k h)", "(part k c a h)")
        for side, body in (("right", "(add a h)"), ("left", "(add h a)"))
    ),
    _part("part-add", "(want_part k c) (= c (add a b)) (part k a r h) (dep k b)", "(part k c (add r b) h)"),
    _part("part-dda", "(want_part k c) (= c (add b a)) (part k a r h) (dep k b)", "(part k c (add b r) h)"),
    _part("part-neg", "(want_part k c) (= c (neg a)) (part k a r h)", "(part k c (neg r) (neg h))"),
    _law("sum-hoist", "(sum k b)", "(mul h (sum k g))", when="(factor k b g h) (!= h one)", why="sum is linear"),
    _law("sum-neg", "(sum k (neg a))", "(neg (sum k a))", why="sum is linear"),
    *(
        _law(
            f"sum-split-{side}",
            f"(sum k {body})",
            f"(add (sum k {first}) (sum k {second}))",
            when="(dynamic k a) (static k b) (dep k a) (dep k b) (factor k a g h) (!= h one) (dynamic k h)",
            why="sum is linear; only where the first part's moving factor then leaves the sum, so that no deviation is taken apart",
        )
        for side, body, first, second in (
            ("plain", "(add a b)", "a", "b"),
            ("left", "(mul (add a b) w)", "(mul a w)", "(mul b w)"),
            ("right", "(mul w (add a b))", "(mul w a)", "(mul w b)"),
        )
    ),
    *(
        _law(
            f"sum-part-{side}",
            f"(sum k {body})",
            "(add (sum k (mul w r)) (mul h (sum k w)))",
            when="(part k a r h) (dep k w)",
            phase="tidy",
            subsume=True,
            why="sum is linear; only where the rest is already a deviation, so that no raw value is summed",
        )
        for side, body in (("left", "(mul a w)"), ("right", "(mul w a)"))
    ),
    *(
        _law(
            f"sum-interchange-{n}",
            f"(sum k {body})",
            f"(sum e (sum k {inner}))",
            when=f"(!= e k) (dynamic k b) (dep k b){guard}",
            why="finite sums commute; only where the body then streams by itself along k",
        )
        for n, (body, inner, guard) in enumerate(
            (
                ("(sum e b)", "b", ""),
                ("(mul w (sum e b))", "(mul w b)", " (indep e w)"),
                ("(mul (sum e b) w)", "(mul b w)", " (indep e w)"),
            )
        )
    ),
    _law(
        "prod-hoist",
        "(prod k b)",
        "(mul (power h (count k)) (prod k g))",
        when="(factor k b g h) (!= h one)",
        why="a constant factor occurs once an element; on a prefix, as often as it has elements",
    ),
    _law(
        "max-shift",
        "(max k b)",
        "(add h (max k g))",
        when="(dynamic k b) (addend k b g h) (!= h zero)",
        why="adding a constant keeps the order",
    ),
    _law(
        "min-shift",
        "(min k b)",
        "(add h (min k g))",
        when="(dynamic k b) (addend k b g h) (!= h zero)",
        why="adding a constant keeps the order",
    ),
    _law(
        "max-scale",
        "(max k b)",
        "(mul h (max k g))",
        when="(dynamic k b) (factor k b g h) (!= h one) (nonneg h)",
        why="a factor >= 0 keeps the order",
    ),
    _law(
        "min-scale",
        "(min k b)",
        "(mul h (min k g))",
        when="(dynamic k b) (factor k b g h) (!= h one) (nonneg h)",
        why="a factor >= 0 keeps the order",
    ),
    _law("max-neg", "(max k (neg a))", "(neg (min k a))", when="(dynamic k a)", why="negation reverses the order"),
    _law("min-neg", "(min k (neg a))", "(neg (max k a))", when="(dynamic k a)", why="negation reverses the order"),
    _law(
        "select-value-shift",
        '(Proj "value" o (R f k b))',
        '(add h (Proj "value" o (R f k g)))',
        when="(selects f) (dynamic k b) (addend k b g h) (!= h zero)",
        why="adding a constant keeps the order",
    ),
    _law(
        "select-index-shift",
        '(Proj "index" o (R f k b))',
        '(Proj "index" o (R f k g))',
        when="(selects f) (dynamic k b) (addend k b g h) (!= h zero)",
        why="adding a constant keeps the order; ties may differ by rounding",
    ),
    _law(
        "select-value-scale",
        '(Proj "value" o (R f k b))',
        '(mul h (Proj "value" o (R f k g)))',
        when="(selects f) (dynamic k b) (factor k b g h) (!= h one) (nonneg h)",
        why="a factor >= 0 keeps the order",
    ),
    _law(
        "select-index-scale",
        '(Proj "index" o (R f k b))',
        '(Proj "index" o (R f k g))',
        when="(selects f) (dynamic k b) (factor k b g h) (!= h one) (nonneg h)",
        why="a factor > 0 keeps the order; at 0 every element ties and the row is not finite or meaningless",
    ),
)
