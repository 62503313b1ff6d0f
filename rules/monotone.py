"""Monotone maps commute with order: the k best of f(x) are f of the k best of x."""

from __future__ import annotations

from functools import partial

from redfuser_eq.ops import OPS
from redfuser_eq.rules.rule import law

_law = partial(law, theme="monotone")
_UP = tuple(op.name for op in OPS.values() if op.arity == 1 and op.monotone > 0)
_DOWN = tuple(op.name for op in OPS.values() if op.arity == 1 and op.monotone < 0 and op.name not in ("neg", "recip", "rsqrt"))
_STRICT = ("exp", "exp2")  # the index of the best is kept only where no two results tie that did not before
_why = "increasing on floats too; a NaN argument gives a NaN row, which is recomputed"

RULES = (
    *(_law(f"max-{f}", f"(max k ({f} a))", f"({f} (max k a))", when="(dep k a)", why=_why) for f in _UP),
    *(_law(f"min-{f}", f"(min k ({f} a))", f"({f} (min k a))", when="(dep k a)", why=_why) for f in _UP),
    *(_law(f"max-{f}", f"(max k ({f} a))", f"({f} (min k a))", when="(dep k a)", why="decreasing") for f in _DOWN),
    *(
        _law(
            f"select-value-{f}",
            f'(Proj "value" o (R f k ({f} a)))',
            f'({f} (Proj "value" o (R f k a)))',
            when="(selects f) (dep k a)",
            why=_why,
        )
        for f in _STRICT
    ),
    *(
        _law(
            f"select-index-{f}",
            f'(Proj "index" o (R f k ({f} a)))',
            f'(Proj "index" o (R f k a))',
            when="(selects f) (dep k a)",
            why="strictly increasing; where results underflow to a tie, the larger argument is chosen",
        )
        for f in _STRICT
    ),
)
