"""Deviations from a mean sum to zero: the middle term of Chan's update vanishes.

Exact over the reals. On floats a mean is rounded, its deviations sum to n times that rounding, and the
middle term is what takes it back; without it the error grows with |mean| / deviation. So only
`numerics="fast"` loads this theme; the default keeps one more accumulator, sum(x - mean).
"""

from __future__ import annotations

from functools import partial
from itertools import product

from redfuser_eq.rules.rule import derive, law

_tidy = partial(law, theme="zero_sum", phase="tidy")
_zero = "deviations from the (weighted) mean of a prefix sum to zero, and so did those of the previous prefix"
_HEADS = (("now", "(sum k {})"), ("before", '(Prev "sum" k {})'))

RULES = (
    *(
        derive(
            f"mean-{n}",
            f"(= m (mul {mean})) (= t (sum k w)) (= s (sum k {weighted}))",
            "(mean_of k m w x)",
            theme="zero_sum",
            why="m is the weighted mean of x on every prefix",
        )
        for n, (mean, weighted) in enumerate(product(("(recip t) s", "s (recip t)"), ("(mul w x)", "(mul x w)")))
    ),
    *(
        derive(
            f"plain-mean-{n}",
            f"(= m (mul {mean})) (= t (count k)) (= s (sum k x))",
            "(mean_of k m one x)",
            theme="zero_sum",
            why="m is the mean of x on every prefix",
        )
        for n, mean in enumerate(("(recip t) s", "s (recip t)"))
    ),
    *(
        _tidy(f"zero-sum-{n}-{kind}", head.format(body), "zero", when=when, subsume=kind == "now", why=_zero)
        for kind, head in _HEADS
        for n, (body, when) in enumerate(
            (
                ("(sub x m)", "(mean_of k m one x)"),
                ("(mul w (sub x m))", "(mean_of k m w x)"),
                ("(mul (sub x m) w)", "(mean_of k m w x)"),
            )
        )
    ),
)
