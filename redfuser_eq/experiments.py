"""Which laws a workload rests on: every workload under every rule set, as data and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .cascade import passes_of
from .device import Device, device
from .expr import Load, Program, nodes
from .plan import plan
from .report import Report
from .rules import NAMED, RuleSet
from .saturate import Budget
from .trace import trace

if TYPE_CHECKING:
    from .demo.workload import Workload

_NAME, _WRITTEN, _CELL = 20, 9, 9  # widths of the columns


@dataclass(frozen=True)
class Result:
    """One workload under one rule set. passes_before, passes_after: over the streamed axis. rows: size of the
    e-graph at the end. seconds: saturation, extraction and validation. fused: fewer passes than as written."""

    workload: str
    rule_set: str
    passes_before: int
    passes_after: int
    rows: int
    seconds: float
    saturated: bool
    fused: bool
    reason: str | None


def experiment(
    workloads: Iterable[Workload | tuple[str, Any, tuple[Any, ...]]] | None = None,
    rule_sets: Iterable[RuleSet] | None = None,
    *,
    on: Device | str | None = None,
    budget: Budget | None = None,
) -> list[Result]:
    """Plan every workload under every rule set; nothing is run, but every plan is validated.

    workloads: `Workload`s, or (name, function, example arrays); None is all of the demonstration's. rule_sets:
    None is, for each workload, the set of its numerics and that set without each of its themes. on: the device.
    Raises UnsoundRewrite where a rule set rewrites a workload unsoundly.
    """
    if workloads is None:
        from .demo.workloads import WORKLOADS

        workloads = WORKLOADS
    chosen = None if rule_sets is None else list(rule_sets)
    results = []
    for w in workloads:
        name, program, axis, numerics = _program(w)
        for rules in ablations(NAMED[numerics]) if chosen is None else chosen:
            report = plan(program, rules, device(on), verify="raise", budget=budget).report
            results.append(_result(name, rules, report, axis))
    return results


def ablations(full: RuleSet) -> list[RuleSet]:
    """A rule set, and the same without each of its themes, in the order of its rules."""
    return [full, *(full - {theme} for theme in dict.fromkeys(r.theme for r in full))]


def _program(w: Workload | tuple[str, Any, tuple[Any, ...]]) -> tuple[str, Program, str | None, str]:
    if isinstance(w, tuple):
        name, function, arrays = w
        return name, trace(function, arrays, {}).program, None, "default"
    program = trace(w.function, w.shapes(), {}).program
    return w.name, program, stream_axis(program, *w.stream), w.numerics


def stream_axis(program: Program, argument: int, dimension: int) -> str:
    """The name of the axis that a dimension of an argument runs along: of several, the one reduced most often."""
    sources = {s.name for s in program.sources if s.param == argument}
    loads = [e for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Load) and e.source in sources]
    return max((e.dims[dimension] for e in loads), key=lambda axis: passes_of(program.outputs, axis))


def _result(name: str, rules: RuleSet, r: Report, axis: str | None) -> Result:
    before, after = (r.passes_before, r.passes_after) if axis is None else r.passes[axis]
    seconds = sum(s for stage, s in r.seconds.items() if stage != "trace")
    return Result(name, rules.name, before, after, r.rows, seconds, r.saturated, after < before, r.reason)


def tables(results: Sequence[Result], width: int) -> list[Any]:
    """Workloads down, rule sets across, as `rich` tables that fit a width: in each cell passes over the streamed
    axis, rows, and time; `!` where the rules did not saturate."""
    from rich import box
    from rich.table import Table

    columns = list(dict.fromkeys(_column(r) for r in results))
    room = max(1, (width - _NAME - _WRITTEN - 2) // _CELL)
    out = []
    for first in range(0, len(columns), room):
        shown = columns[first : first + room]
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_lines=True)
        table.add_column("workload", width=_NAME)
        table.add_column("written", justify="right", width=_WRITTEN)
        for c in shown:
            table.add_column(c, justify="right", width=_CELL, overflow="fold")
        for name in dict.fromkeys(r.workload for r in results):
            cells = {_column(r): r for r in results if r.workload == name}
            before = next(iter(cells.values())).passes_before
            if cells.keys() & set(shown):
                table.add_row(name, str(before), *(_cell(cells[c]) if c in cells else "" for c in shown))
        out.append(table)
    return out


def _column(r: Result) -> str:
    full, found, theme = r.rule_set.partition("-")
    return theme if found and full in NAMED else "all" if full in NAMED else r.rule_set


def _cell(r: Result) -> str:
    time = f"{1000 * r.seconds:.0f}ms" if r.seconds < 1 else f"{r.seconds:.1f}s"
    return f"{r.passes_after}{'' if r.saturated else ' !'}\n{r.rows}\n{time}"
