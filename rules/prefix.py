"""The streaming laws: a reduction over a prefix from the reduction over the previous one.

Every expression is read on the prefix k < t. `Prev` is the value at the previous t; `Old(k, e)` is e with
its reductions over k at the previous t; `Rebase(op, k, b)` reduces the previous elements with the present
parameters. `Shift(k, b)` writes a body as a sum of (coefficient free of k) x (basis at the old parameters),
so that a rebased sum is linear in previous sums. The multiplicative form of the RedFuser paper (section 4)
is the one-term case; sums of terms give Chan's and the pairwise moment updates.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive, law

_law = partial(law, theme="prefix")
_tidy = partial(law, theme="prefix", phase="tidy")
_split = "associativity: the previous elements under the present parameters, then the new one"
_linear = "a sum is linear in its body; coefficients do not vary along k"
_exact = "by the meaning of Shift"
_hom = "an elementwise operation commutes with reading at an earlier prefix"

_FORMS = {
    "sum": (("mul", "factor", "one", ""),),
    "max": (("add", "addend", "zero", ""), ("mul", "factor", "one", " (nonneg h)")),
    "min": (("add", "addend", "zero", ""), ("mul", "factor", "one", " (nonneg h)")),
}

RULES = (
    _law("split", "(R f k b)", "(Scan f k b (Rebase f k b))", when="(streams f) (dynamic k b) (dep k b)", why=_split),
    # rebase
    _law(
        "rebase-order",
        "(Rebase f k b)",
        "(add (Prev f k b) (Delta k h))",
        when="(ordered f) (addend k b g h) (static k g) (!= h zero)",
        why="every old element moved by the same amount",
    ),
    _law("rebase-sum", '(Rebase "sum" k b)', "(SumPrev k (Shift k b))", when="(dynamic k b)", why=_linear),
    # shift: one term
    _law("shift-static", "(Shift k b)", "(Term one b)", when="(static k b)", why=_exact),
    _law("shift-free", "(Shift k b)", "(Term b one)", when="(dynamic k b) (indep k b)", why=_exact),
    _law(
        "shift-addend",
        "(Shift k b)",
        "(LAdd (Term one b) (Term (Delta k h) one))",
        when="(dynamic k b) (dep k b) (addend k b g h) (static k g) (!= h zero)",
        why="g + h = (g + old h) + (h - old h)",
    ),
    _law(
        "shift-exp",
        "(Shift k (U f a))",
        "(Term (U f (Delta k h)) (U f a))",
        when="(exponential f) (addend k a g h) (static k g) (!= h zero)",
        why="exp(g + h) = exp(h - old h) * exp(g + old h)",
    ),
    # shift: compounds
    _law("shift-add", "(Shift k (add a c))", "(LAdd (Shift k a) (Shift k c))", when="(dynamic k a) (dep k a)", why=_exact),
    _law("shift-dda", "(Shift k (add c a))", "(LAdd (Shift k c) (Shift k a))", when="(dynamic k a) (dep k a)", why=_exact),
    _law("shift-neg", "(Shift k (neg a))", "(LMul (Term -one one) (Shift k a))", when="(dynamic k a) (dep k a)", why=_exact),
    _law("shift-mul", "(Shift k b)", "(LMul (Shift k a) (Shift k c))", when="(= b (mul a c)) (dynamic k b) (dep k b)", why=_exact),
    _law("shift-square", "(Shift k (square a))", "(LMul (Shift k a) (Shift k a))", when="(dynamic k a) (dep k a)", why=_exact),
    _law(
        "shift-inner",
        "(Shift k (sum e b))",
        "(LSum e (Shift k b))",
        when="(!= e k) (dynamic k b) (dep k b)",
        why="the inner sum is linear too",
    ),
    _tidy("inner-term", "(LSum e (Term c b))", "(Term c (sum e b))", when="(indep e c)", why="a coefficient free of e moves out"),
    _tidy("inner-add", "(LSum e (LAdd p q))", "(LAdd (LSum e p) (LSum e q))", why=_linear),
    # linear forms
    _tidy("term-mul", "(LMul (Term c b) (Term d q))", "(Term (mul c d) (mul b q))", why=_linear),
    _tidy("linear-left", "(LMul (LAdd p q) r)", "(LAdd (LMul p r) (LMul q r))", why=_linear),
    _tidy("linear-right", "(LMul r (LAdd p q))", "(LAdd (LMul r p) (LMul r q))", why=_linear),
    _tidy("linear-assoc", "(LAdd (LAdd p q) r)", "(LAdd p (LAdd q r))", why=_linear),
    _tidy("term-collect", "(LAdd (Term c b) (Term d b))", "(Term (add c d) b)", why=_linear),
    _tidy("term-collect-next", "(LAdd (Term c b) (LAdd (Term d b) r))", "(LAdd (Term (add c d) b) r)", why=_linear),
    _tidy("prev-add", "(SumPrev k (LAdd p q))", "(add (SumPrev k p) (SumPrev k q))", why=_linear),
    _tidy("prev-term", "(SumPrev k (Term c b))", '(mul c (Prev "sum" k b))', why=_linear),
    derive(
        "prev-accumulator",
        "(SumPrev k (Term c b))",
        "(sum k b)",
        theme="prefix",
        phase="tidy",
        why="a previous sum is kept by an accumulator of its own",
    ),
    # reading at the previous prefix
    _tidy("delta-static", "(Delta k a)", "zero", when="(static k a)", why="nothing moved"),
    _tidy("delta-add", "(Delta k (add a b))", "(add (Delta k a) (Delta k b))", why="linear"),
    _tidy("delta-neg", "(Delta k (neg a))", "(neg (Delta k a))", why="linear"),
    _tidy("delta-mul", "(Delta k (mul a b))", "(mul (Delta k a) b)", when="(static k b)", why="linear"),
    _tidy("delta-lum", "(Delta k (mul b a))", "(mul b (Delta k a))", when="(static k b)", why="linear"),
    _tidy("delta", "(Delta k a)", "(sub a (Old k a))", when="(dynamic k a)", why="the definition"),
    _tidy("old-static", "(Old k a)", "a", when="(static k a)", why="holds no reduction over k"),
    _tidy("old-reduce", "(Old k (R f k b))", "(Prev f k b)", why="the definition of Prev"),
    _tidy("old-add", "(Old k (add a b))", "(add (Old k a) (Old k b))", why=_hom),
    _tidy("old-mul", "(Old k (mul a b))", "(mul (Old k a) (Old k b))", why=_hom),
    _tidy("old-unary", "(Old k (U f a))", "(U f (Old k a))", why=_hom),
    _tidy("old-binary", "(Old k (B f a b))", "(B f (Old k a) (Old k b))", why=_hom),
    _tidy("old-where", "(Old k (W p a b))", "(W (Old k p) (Old k a) (Old k b))", why=_hom),
    _tidy("old-inner", "(Old k (R f e b))", "(R f e (Old k b))", when="(!= e k) (dynamic k b)", why="another axis"),
    *(
        _law(
            f"prev-{f}-hoist-{n}",
            f'(Prev "{f}" k b)',
            f'({combine} (Old k h) (Prev "{f}" k g))',
            when=f"(dynamic k b) ({split} k b g h) (!= h {unit}){guard}",
            why="a reduction's other form, at the previous prefix",
        )
        for f, forms in _FORMS.items()
        for n, (combine, split, unit, guard) in enumerate(forms)
    ),
)
