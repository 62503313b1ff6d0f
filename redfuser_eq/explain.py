"""What was found and why it is right, for a person at a terminal.

An `Explanation` is made of sections of styled lines, laid out for a width; plain text, rich and HTML
print the same lines.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .cascade import Accumulator, Pass
from .cost import cost
from .expr import Expr, Index, Load, Output, Prev, Program, Source, nodes
from .gpu import GPUS
from .notation import condition_text, formula, law_text, number, shared, wrap
from .plan import Plan

WIDTH = 80
_WIDEST = 100
_MARGIN = 12  # of labelled lines
_LAW_MARGIN = 26


@dataclass(frozen=True)
class Line:
    """One printed line: text, and a style of rich ("" is plain)."""

    text: str
    style: str = ""


class Explanation:
    """Why an optimized program is right and what it costs.

    `str()` and `print` give plain text of 80 columns, `text(width)` any width; rich and notebooks show it
    with styles. `summary(width)` leaves out the laws and the costs.
    """

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<redfuser_eq.Explanation of {self.name}; print it>"

    def __rich__(self) -> Any:
        return _Rich(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text(_WIDEST))}</pre>"

    def text(self, width: int = WIDTH) -> str:
        """The whole explanation."""
        return "\n".join(line.text for line in self.lines(width))

    def summary(self, width: int = WIDTH) -> str:
        """The passes and the program."""
        return "\n".join(line.text for line in self._layout(width, _heading(self), _program(self.plan)))

    def lines(self, width: int = WIDTH) -> list[Line]:
        """The whole explanation, line by line."""
        plan = self.plan
        return self._layout(width, _heading(self), _program(plan), _counts(plan), _kernels(plan), _turned_down(plan), _laws(plan))

    def _layout(self, width: int, *sections: Iterable[_Entry]) -> list[Line]:
        out: list[Line] = []
        for section in sections:
            entries = list(section)
            if out and entries:
                out.append(Line(""))
            for entry in entries:
                out.extend(entry.lines(max(40, width)))
        return out


@dataclass(frozen=True)
class _Rich:
    """The lines, as wide as the console allows."""

    explanation: Explanation

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text  # late: only a terminal with rich needs it

        for line in self.explanation.lines(min(options.max_width, _WIDEST)):
            yield Text(line.text, style=line.style)


@dataclass(frozen=True)
class _Entry:
    """A labelled piece of text, wrapped below itself. The label starts at `indent`, the text at the margin after it."""

    label: str
    body: str = ""
    indent: int = 0
    margin: int = 0
    style: str = ""

    def lines(self, width: int) -> Iterator[Line]:
        label, body = printable(self.label), printable(self.body)
        start = " " * self.indent + label
        if not body:
            for n, part in enumerate(wrap(label, width - self.indent)):
                yield Line(" " * (self.indent + 2 * (n > 0)) + part, self.style)
            return
        margin = max(self.margin, self.indent + 2)
        if len(start) >= margin:
            yield Line(start, self.style)
            start = ""
        parts = wrap(body, width - margin)
        yield Line(start.ljust(margin) + parts[0], self.style)
        for part in parts[1:]:
            yield Line(" " * margin + part, self.style)


def printable(text: str) -> str:
    """Text without control characters: names come from users, and a terminal obeys some of them."""
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode("ascii") for ch in text)


def quantity(x: float, unit: str) -> str:
    """A number with a decimal prefix: 1.2 GB, 35 us."""
    if not x or not math.isfinite(x):
        return f"{x:g} {unit}"
    power = min(4, max(-3, math.floor((math.log10(abs(x)) + 1e-4) / 3)))
    return f"{x / 1000**power:.3g} {'num kMGT'[power + 3].strip()}{unit}"


# ---- sections
def _heading(e: Explanation) -> Iterator[_Entry]:
    report = e.plan.report
    before, after = report.passes_before, report.passes_after
    axis = next((a for a, p in report.passes.items() if p == (before, after)), "")
    over = f" over {axis}" if axis else ""
    inner = [a for a, (_, n) in report.passes.items() if not n]
    place = f", {' and '.join(inner)} contracted in place" if inner else ""
    yield _Entry(e.name, style="bold")
    if report.fused:
        passes = f"{before} -> {_count(after, 'pass')}" if after < before else _count(after, "pass")
        yield _Entry(f"fused: {passes}{over}{place}", style="green")
    else:
        how = "as written" if e.plan.cascade is e.plan.plain else "rewritten"
        yield _Entry(f"not fused: {_count(after, 'pass')}{over}, {how}", style="yellow")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}es"


def _program(plan: Plan) -> Iterator[_Entry]:
    c = plan.cascade
    sources = {s.name: s for s in c.sources}
    used = dict.fromkeys(e for e in _loads(plan.program) if e.source in sources)
    if used:
        yield _Entry("inputs", ", ".join(_input(e, sources[e.source], plan.program) for e in used), margin=_MARGIN)
    taken = {*sources, *(a.name for a in c.accumulators())}
    for p in c.passes:
        yield from _pass(p, plan.program, taken)
    yield from _outputs(c.outputs, taken)
    roots = [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]
    seen = list(nodes(*roots))
    if any(isinstance(e, Prev) for e in seen):
        yield _Entry("a' is the value of a before the present tile, or of the other part in a merge", style="dim")
    if any(isinstance(e, Index) for e in seen):
        yield _Entry("#k is the position along k", style="dim")


def _loads(program: Program) -> list[Load]:
    return [e for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Load)]


def _input(e: Load, source: Source, program: Program) -> str:
    param = program.params[source.param]
    return f"{formula(e)} {source.dtype}" + ("" if param == source.name else f" (of {param})")


def _pass(p: Pass, program: Program, taken: set[str]) -> Iterator[_Entry]:
    extent = program.extents.get(p.axis)
    yield _Entry(f"pass over {p.axis}" + (f" (of {extent})" if extent is not None else ""), style="bold")
    names = shared([a.lift for a in p.accumulators], taken)
    taken.update(names.values())
    for e, name in names.items():
        yield _Entry(f"let {name}", f"= {formula(e, names)}", 2, _MARGIN)
    for a in p.accumulators:
        yield from _accumulator(a, names)


def _accumulator(a: Accumulator, names: dict[Expr, str]) -> Iterator[_Entry]:
    axes = f"[{','.join(a.axes)}]" if a.axes else ""
    op = f"the {a.k} best" if a.k else a.op
    identity = "" if a.k else f", from {number(a.identity)}"
    yield _Entry(f"{a.name}{axes}", f"{op}{identity}  ({a.dtype})", 2, _MARGIN, style="cyan")
    yield _Entry("lift", names.get(a.lift) or formula(a.lift, names), 4, _MARGIN)
    if a.rebase is not None:
        yield _Entry("rebase", formula(a.rebase, names), 4, _MARGIN)


def _outputs(outputs: tuple[Output, ...], taken: set[str]) -> Iterator[_Entry]:
    names = shared([o.expr for o in outputs], taken)
    for e, name in names.items():
        yield _Entry(f"let {name}", f"= {formula(e, names)}", 0, _MARGIN)
    for n, o in enumerate(outputs):
        dims = ",".join("*".join(d) or "1" for d in o.dims)
        label = "output" if len(outputs) == 1 else f"output {n}"
        text = f"{names.get(o.expr) or formula(o.expr, names)}  ({o.dtype}[{dims}])"
        yield _Entry(label, text, 0, _MARGIN, style="cyan")


def _counts(plan: Plan) -> Iterator[_Entry]:
    r, d = plan.report, plan.device
    passes = [f"{a}: {before} -> {after}" if after else f"{a}: contracted in place" for a, (before, after) in r.passes.items()]
    if passes:
        yield _Entry("passes", "; ".join(passes), margin=_MARGIN)
    bytes_, flops = (f"{quantity(b, u)} -> {quantity(a, u)}" for (b, a), u in ((r.bytes, "B"), (r.flops, "flop")))
    yield _Entry("estimated", f"traffic {bytes_}; arithmetic {flops}", margin=_MARGIN)
    speed = f"{d.name}, {quantity(d.bandwidth, 'B/s')}, {quantity(d.flops, 'flop/s')}"
    was, now = (quantity(cost(c, d).seconds, "s") for c in (plan.plain, plan.cascade))
    yield _Entry("modelled", f"{was} -> {now} on the device ({speed})", margin=_MARGIN)
    end = "saturated" if r.saturated else f"stopped early at the {r.stopped}"
    spent = ", ".join(f"{stage} {1000 * s:.0f} ms" for stage, s in r.seconds.items())
    yield _Entry("search", f"{end}, {r.rows} rows, rules {r.rule_set!r}; {spent}", margin=_MARGIN)
    if r.target:
        yield _Entry("runs on", r.target, margin=_MARGIN)


def _kernels(plan: Plan) -> Iterator[_Entry]:
    """What each launch on a GPU would cost, where the plan is for one and sizes are known."""
    extents = {a: n for a, n in plan.program.extents.items() if n}
    if plan.device.kind != "cuda" or len(extents) < len(plan.program.extents):
        return
    from . import cuda_choose, gpu_model  # late: only plans for GPUs need the scheduler
    from .schedule import Unsupported

    gpu = GPUS.get(plan.device.name, GPUS["h200"])
    try:
        predictions = gpu_model.predict(plan.cascade, extents, gpu)
    except Unsupported as error:
        yield _Entry("kernels", f"none for CUDA: {error}", margin=_MARGIN, style="yellow")
        return
    yield _Entry(f"kernels, as modelled for an {gpu.name}", style="bold")
    for n, p in enumerate(predictions, 1):
        parts = [quantity(p.read + p.written, "B")]
        parts += [quantity(sum(p.tensor.values()), "flop on tensor cores")] if p.tensor else []
        parts += [f"{p.special:.3g} results of special functions"] if p.special else []
        each = f"{p.threads} threads" + (f" and {quantity(p.shared, 'B')}" if p.shared else "")
        parts.append(f"{p.blocks} blocks of {each}, {p.occupancy.blocks} a multiprocessor")
        if p.barriers:
            parts.append(f"{p.barriers} barrier{'s' * (p.barriers > 1)} a tile")
        yield _Entry(f"{n}. {p.name}", f"{quantity(p.seconds, 's')}, bound by {p.bound}: {'; '.join(parts)}", 2, _LAW_MARGIN)
    found = cuda_choose.candidates(plan.cascade, extents, {}, gpu)
    best = cuda_choose.best(found)
    texts = [f"{c.name} {quantity(c.seconds, 's')} ({c.bound}){' *' if c is best else ''}" for c in found]
    yield _Entry("considered", f"for a batch that fills the GPU, * taken: {'; '.join(texts)}", 2, _LAW_MARGIN)


def _turned_down(plan: Plan) -> Iterator[_Entry]:
    if plan.report.refused:
        yield _Entry("refused", "; ".join(plan.report.refused), margin=_MARGIN)
    if plan.report.reason:
        yield _Entry("reason" if plan.report.fused else "not fused", plan.report.reason, margin=_MARGIN, style="yellow")


def _laws(plan: Plan) -> Iterator[_Entry]:
    fired = plan.report.rules_fired
    rules = [r for r in plan.rules if r.name in fired]
    laws = [r for r in rules if r.phase != "analyse"]
    if not laws:
        return
    asked = len(rules) - len(laws)
    yield _Entry(f"laws that matched ({len(laws)}, and {asked} rules that ask for factors and bounds)", style="bold")
    for theme in dict.fromkeys(r.theme for r in laws):
        yield _Entry(theme, indent=2, style="bold")
        of_theme = [r for r in laws if r.theme == theme]
        for why in dict.fromkeys(r.why for r in of_theme):
            for r in (r for r in of_theme if r.why == why):
                when = f"   if {condition_text(r.when)}" if r.when else ""
                yield _Entry(f"{r.name} x{fired[r.name]}", law_text(r.statement) + when, 4, _LAW_MARGIN)
            yield _Entry("", f"because: {why}", 6, _LAW_MARGIN, style="dim")
