"""Naive exponential sums become safe ones: the maximum is introduced, and cancels where it must.

sum(exp(x) * r) = exp(M) * sum(exp(x - M) * r) with M = max(x). The factor exp(M) is tracked outwards
(`outer(c, f, r)`: c = f * r) through the
terms of the source, until a quotient or a logarithm removes it; what keeps it is refused by the
extractor, since exp(M) is not bounded. Results are finite where the written-out formula overflows.
"""

from __future__ import annotations

from functools import partial

from redfuser_eq.rules.rule import derive, law

_law = partial(law, theme="stabilise")
_outer = partial(derive, theme="stabilise", why="the common factor of a product, over the reals")

_SAFE = "(sum k (mul (U f (sub x (max k x))) r))"

RULES = (
    derive(
        "expo-exp",
        "(want_factor k c) (= c (U f a)) (exponential f) (dep k a) (static k a)",
        "(expo f k c a one)",
        theme="stabilise",
        why="c = exp(a) * 1",
    ),
    derive(
        "expo-mul", "(want_factor k c) (= c (mul a b)) (expo f k a x r)", "(expo f k c x (mul r b))", theme="stabilise", why="a product"
    ),
    derive(
        "expo-lum", "(want_factor k c) (= c (mul b a)) (expo f k a x r)", "(expo f k c x (mul b r))", theme="stabilise", why="a product"
    ),
    derive(
        "stabilise",
        "(= c (sum k b)) (expo f k b x r) (= u (hi x)) (> u 80.0)",
        f"(union c (mul (U f (max k x)) {_SAFE})) (outer c (U f (max k x)) {_SAFE})",
        theme="stabilise",
        phase="expand",
        why="exp(x) = exp(M) * exp(x - M); every element is at most M on every prefix",
    ),
    _outer("outer-mul", "(outer a f r) (= c (mul a b)) (source c)", "(outer c f (mul r b))"),
    _outer("outer-lum", "(outer a f r) (= c (mul b a)) (source c)", "(outer c f (mul b r))"),
    _outer("outer-neg", "(outer a f r) (= c (neg a)) (source c)", "(outer c f (neg r))"),
    _outer("outer-add", "(outer a f r) (outer b f s) (= c (add a b)) (source c)", "(outer c f (add r s))"),
    _outer("outer-recip", "(outer a f r) (= c (recip a)) (source c)", "(outer c (recip f) (recip r))"),
    _outer("cancel-div", "(= c (mul a b)) (outer a f r) (outer b (recip f) s)", "(union c (mul r s))", phase="tidy"),
    _outer("cancel-vid", "(= c (mul b a)) (outer a f r) (outer b (recip f) s)", "(union c (mul s r))", phase="tidy"),
    _law(
        "cancel-quotient",
        "(mul (recip s) n)",
        "(mul (recip b) c)",
        when="(= s (mul f b)) (= n (mul f c)) (outer s f b) (outer n f c)",
        phase="tidy",
        why="a common factor of numerator and denominator",
    ),
    *(
        _law(f"cancel-{log}", f"({log} a)", f"(add x ({log} r))", when=f"(outer a ({exp} x) r) (nonneg r)", phase="tidy", why="r >= 0")
        for log, exp in (("log", "exp"), ("log2", "exp2"))
    ),
    *(
        _law(
            f"cancel-elementwise-{exp}-{n}",
            body,
            f"(mul ({exp} (sub x m)) r)",
            when=f"(outer b (recip ({exp} m)) r)",
            phase="tidy",
            why="one exponential of a difference instead of a quotient of two",
        )
        for exp in ("exp", "exp2")
        for n, body in enumerate((f"(mul ({exp} x) b)", f"(mul b ({exp} x))"))
    ),
)
