"""One law as data, and the two ways to write one."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser_eq.terms import expand

PHASES = ("analyse", "tidy", "expand")


@dataclass(frozen=True)
class Rule:
    """A law.

    name: unique. theme: the file it lives in. statement: before -> after, in the shorthand of
    `redfuser_eq.terms`. when: side conditions. why: why it is sound on prefixes and on floats.
    phase: "analyse" and "tidy" run to a fixpoint in each round, "expand" once a round.
    text: the egglog command, without its ruleset.
    """

    name: str
    theme: str
    statement: str
    when: str
    why: str
    phase: str
    text: str

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"rule {self.name!r}: phase {self.phase!r} is not one of {PHASES}")

    @property
    def command(self) -> str:
        return f'{self.text[:-1]} :ruleset {self.phase} :name "{self.name}")'


def law(
    name: str, before: str, after: str, *, why: str, when: str = "", phase: str = "expand", theme: str = "user", subsume: bool = False
) -> Rule:
    """An equality, used left to right: `before = after` when the conditions hold. `subsume` hides the
    left side from further matching (for rules that make a term simpler or drop an axis)."""
    left, right = expand(before), expand(after)
    hide = f" (subsume {left})" if subsume else ""
    text = f"(rule ((= root_ {left}) {expand(when)}) ((union root_ {right}){hide}))"
    return Rule(name, theme, f"{before} -> {after}", when, why, phase, text)


def derive(name: str, facts: str, actions: str, *, why: str, phase: str = "analyse", theme: str = "user") -> Rule:
    """A Datalog rule: from facts, further facts (relations and bounds that laws ask for)."""
    return Rule(name, theme, f"{facts} => {actions}", "", why, phase, f"(rule ({expand(facts)}) ({expand(actions)}))")
