"""Masks: a selection with a neutral other side is a factor or an addend of its own."""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive, law

_law = partial(law, theme="where")
_ask = partial(derive, theme="where", why="asks for decompositions of reduction bodies only")

RULES = (
    _ask("ask-factor-where", "(want_factor k c) (= c (where p a zero)) (dep k c)", "(want_factor k a)"),
    _ask("ask-addend-where", "(want_addend k c) (= c (where p a -inf)) (dep k c)", "(want_addend k a)"),
    derive(
        "factor-where",
        "(want_factor k c) (dep k c) (= c (where p a zero)) (factor k a g h) (!= h one) (pure h)",
        "(factor k c (where p g zero) h)",
        theme="where",
        why="0 = 0 * h for a finite h; h is made of reductions, so its row is recomputed when it is not",
    ),
    derive(
        "addend-where",
        "(want_addend k c) (dep k c) (= c (where p a -inf)) (addend k a g h) (!= h zero) (pure h)",
        "(addend k c (where p g -inf) h)",
        theme="where",
        why="-inf = -inf + h for a finite h; h is made of reductions, so its row is recomputed when it is not",
    ),
    _law(
        "shift-where",
        "(Shift k (where p a zero))",
        "(LSel p (Shift k a))",
        when="(static k p) (dynamic k a)",
        why="a selection is a 0/1 weight that does not move",
    ),
    _law("select-term", "(LSel p (Term c b))", "(Term c (where p b zero))", phase="tidy", when="(pure c)", why="0 = c * 0 for a finite c"),
    _law("select-add", "(LSel p (LAdd q r))", "(LAdd (LSel p q) (LSel p r))", phase="tidy", why="selection is linear"),
    _law(
        "where-exp", "(where p (U f a) zero)", "(U f (where p a -inf))", phase="tidy", when="(exponential f)", why="exp(-inf) = 0, exactly"
    ),
)
