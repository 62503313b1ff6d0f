"""Saturation: run a rule set on a program's terms to a fixpoint, under a budget, and read the rows back.

One base e-graph a rule set holds the schema and the rules; a program's terms live between a push and a
pop, so that loading rules is paid once. A run cannot be interrupted, so the budget is checked between
a few iterations. What differs between egglog 13 and 14 would stand here; nothing has to so far.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .encode import Encoded
from .terms import ANALYSIS, FACTS, SCHEMA, parse, unparse

if TYPE_CHECKING:
    from .rules import Rule, RuleSet


@dataclass(frozen=True)
class Budget:
    """Limits of one saturation. rows: tuples in the e-graph; seconds: wall clock; rounds: outer rounds."""

    rows: int = 20_000
    seconds: float = 5.0
    rounds: int = 60


@dataclass
class Rows:
    """The e-graph at the end. nodes: class -> its nodes, each (constructor, fields) with class ids as ints
    and literals as Python values; free, hi, lo: analyses; names: let variable -> class."""

    nodes: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)
    over: dict[int, int] = field(default_factory=dict)
    hi: dict[int, float] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)


@dataclass
class Saturation:
    rows: Rows
    saturated: bool
    stopped: str
    size: int
    seconds: float
    fired: dict[str, int]


class _Engine:
    """The base e-graph of one rule set."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        from egglog import bindings  # imported late: it costs half a second

        self.graph = bindings.EGraph()
        self.run(SCHEMA)
        for ruleset in ("analyse", "structure"):
            self.run("\n".join(f"{unparse(rule)[:-1]} :ruleset {ruleset})" for rule in parse(ANALYSIS)))
        self.run(FACTS)
        for rule in rules:
            try:
                self.run(rule.command)
            except Exception as error:
                raise ValueError(f"rule {rule.name!r} ({rule.statement}) is not valid egglog: {error}\n  {rule.command}") from error

    def run(self, text: str) -> list[Any]:
        return self.graph.run_program(*self.graph.parse_program(text))

    def step(self, ruleset: str, limit: int, fired: Counter[str]) -> bool:
        """Up to `limit` iterations of a ruleset, fewer at its fixpoint; whether anything changed."""
        (output,) = self.run(f"(run {ruleset} {limit})")
        report = output.report
        fired.update(report.num_matches_per_rule)
        return bool(report.updated)

    def size(self) -> int:
        (output,) = self.run("(print-size)")
        return sum(n for _, n in output.sizes)


_local = threading.local()


def _engine(rules: RuleSet) -> _Engine:
    """This thread's engine of a rule set: an e-graph of egglog's may be used only in the thread that made it."""
    engines: dict[RuleSet, _Engine] = _local.__dict__.setdefault("engines", {})
    if rules not in engines:
        engines[rules] = _Engine(rules)
    return engines[rules]


def saturate(encoded: Encoded, rules: RuleSet, budget: Budget | None = None) -> Saturation:
    """Run `rules` on a program's terms until nothing changes or the budget is spent."""
    budget = budget or Budget()
    engine = _engine(rules)
    start = time.perf_counter()
    engine.run("(push)")
    try:
        engine.run("\n".join(encoded.commands))
        fired: Counter[str] = Counter()
        stopped = _rounds(engine, budget, fired, start)
        if stopped:  # the newest terms need their axes, and nothing else that grows
            engine.step("structure", 8, fired)
        size = engine.size()
        rows = read(engine.graph)
    finally:
        engine.run("(pop)")
    names = {r.name for r in rules}
    return Saturation(
        rows,
        not stopped,
        stopped,
        size,
        time.perf_counter() - start,
        {n: c for n, c in sorted(fired.items()) if c and n in names},
    )


_LARGE = 3_000  # rows from which a run is made of single iterations, so that the budget is checked in time


def _rounds(engine: _Engine, budget: Budget, fired: Counter[str], start: float) -> str:
    """Rounds of analyse*, tidy*, expand; the reason for stopping early, or "" at the fixpoint."""
    size = engine.size()
    for _ in range(budget.rounds):
        changed = False
        for ruleset, limit in (("analyse", 3), ("tidy", 3), ("expand", 1)):
            changed |= engine.step(ruleset, limit if size < _LARGE else 1, fired)
            size = engine.size()
            if time.perf_counter() - start > budget.seconds:
                return f"time budget of {budget.seconds} s"
            if size > budget.rows:
                return f"row budget of {budget.rows}"
        if not changed:
            return ""
    return f"{budget.rounds} rounds"


_LITERAL = {"i64": "value_to_i64", "f64": "value_to_f64", "String": "value_to_string"}


def read(graph: Any) -> Rows:
    """The rows of an e-graph as plain Python data. Subsumed rows are left out."""
    rows = Rows()
    ids: dict[Any, int] = {}
    decode = {sort: getattr(graph, name) for sort, name in _LITERAL.items()}

    def plain(sort: str, value: Any) -> Any:
        convert = decode.get(sort)
        if convert is not None:
            return convert(value)
        key = (sort, value)
        if key not in ids:
            ids[key] = len(ids)
        return ids[key]

    for name, function in graph.freeze().functions.items():
        output = function.output_sort
        if function.is_let_binding or name.startswith("$"):
            for row in function.rows:
                rows.names[name] = plain(output, row.output)
        elif name in ("free", "over", "hi"):
            table = getattr(rows, name)
            for row in function.rows:
                table[plain("E", row.inputs[0])] = plain(output, row.output)
        elif output == "E":
            sorts = function.input_sorts
            for row in function.rows:
                if not row.subsumed:
                    node = (name, *(plain(s, v) for s, v in zip(sorts, row.inputs, strict=True)))
                    rows.nodes.setdefault(plain(output, row.output), []).append(node)
    return rows
