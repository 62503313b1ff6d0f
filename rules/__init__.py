"""Rule sets: the laws as named, tested data, one theme a file.

A `Rule` is one law. A `RuleSet` is an ordered collection that can be joined (`a + b`) and thinned
(`a - {"prefix"}` drops a theme or a single rule by name). A user's own law needs no fork:

    mine = RuleSet("mine", [law("half", "(mul a (Num 0.5))", "(div a two)", why="...")])
    optimize(f, rules=redfuser_eq.rules.default + mine)

Rules are written in egglog's own language with the shorthand of `redfuser_eq.terms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redfuser_eq.rules import algebra, bounds, cancelling, distribute, inverse, monotone, prefix, rounding, stabilise, where, zero_sum
from redfuser_eq.rules.rule import Rule, derive, law

__all__ = ["NAMED", "Rule", "RuleSet", "default", "derive", "fast", "law", "resolve", "strict"]


class RuleSet:
    """An ordered set of rules. Two rules of one name cannot be in it."""

    def __init__(self, name: str, rules: Iterable[Rule]) -> None:
        self.name = name
        self.rules = tuple(rules)
        names = [r.name for r in self.rules]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"RuleSet {name!r}: rule names must be unique, found twice: {twice}; rename one or drop it with `-`")

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __add__(self, other: RuleSet) -> RuleSet:
        have = set(self.rules)
        return RuleSet(f"{self.name}+{other.name}", (*self.rules, *(r for r in other.rules if r not in have)))

    def __sub__(self, names: Iterable[str]) -> RuleSet:
        drop = {names} if isinstance(names, str) else set(names)
        unknown = drop - self.themes() - {r.name for r in self.rules}
        if unknown:
            raise ValueError(f"RuleSet {self.name!r} has no theme or rule {sorted(unknown)}; themes: {sorted(self.themes())}")
        return RuleSet(f"{self.name}-{'-'.join(sorted(drop))}", (r for r in self.rules if not {r.name, r.theme} & drop))

    def themes(self) -> set[str]:
        return {r.theme for r in self.rules}

    def __repr__(self) -> str:
        return f"RuleSet({self.name!r}, {len(self.rules)} rules, themes {sorted(self.themes())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuleSet) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)


_EXACT = (*algebra.RULES, *distribute.RULES, *prefix.RULES, *bounds.RULES, *monotone.RULES, *where.RULES)

#: Laws that keep every rounding and every non-finite value of the written-out formula's two-pass form.
strict = RuleSet("strict", _EXACT)
#: strict, and laws that make a result safer or more accurate than the written-out formula.
default = RuleSet("default", (*_EXACT, *inverse.RULES, *stabilise.RULES, *rounding.RULES))
#: default, and laws that may lose accuracy: vanishing middle terms, expanded squares, running quantisation scales.
fast = RuleSet("fast", (*default.rules, *zero_sum.RULES, *cancelling.RULES, *rounding.FAST))

NAMED: dict[str, RuleSet] = {"strict": strict, "default": default, "fast": fast}


def resolve(rules: str | RuleSet | Iterable[str | RuleSet], numerics: str) -> RuleSet:
    """The rule set of `optimize(rules=..., numerics=...)`: a name, a RuleSet, or a list of them.
    The name "default" means the set that `numerics` ("strict", "default", "fast") loads."""
    if numerics not in NAMED:
        raise ValueError(f"optimize: numerics={numerics!r} is not one of {sorted(NAMED)}")
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, str):
        if rules == "default":
            return NAMED[numerics]
        if rules not in NAMED:
            raise ValueError(f"optimize: rules={rules!r} is not a rule set; named sets: {sorted(NAMED)}, or pass a RuleSet")
        return NAMED[rules]
    parts = [resolve(r, numerics) for r in rules]
    if not parts:
        return RuleSet("empty", ())
    total = parts[0]
    for p in parts[1:]:
        total = total + p
    return total
