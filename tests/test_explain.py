"""Explanations: readable at a terminal's width, complete, and safe to print."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import redfuser_eq as rf
from redfuser_eq.demo import attention, statistics
from redfuser_eq.demo.workloads import WORKLOADS, Workload
from redfuser_eq.device import device
from redfuser_eq.explain import Explanation, printable, quantity
from redfuser_eq.expr import Acc, Const, Load, Map, Reduce
from redfuser_eq.notation import condition_text, formula, law_text, shared, wrap
from redfuser_eq.plan import plan
from redfuser_eq.rules import NAMED, RuleSet
from redfuser_eq.trace import trace

X = Load("x", ("i", "k"))
M = Acc("m", frozenset("i"))


def m(op: str, *args: object) -> Map:
    return Map(op, tuple(args))  # type: ignore[arg-type]


def explained(
    f: object, *shapes: tuple[int, ...], rules: RuleSet = rf.rules.default, name: str = "f", on: str | None = None
) -> Explanation:
    arrays = tuple(np.broadcast_to(np.float32(0), s) for s in shapes)
    program = trace(f, arrays, {}).program  # type: ignore[arg-type]
    return Explanation(name, plan(program, rules, device(on), verify="raise", budget=None))


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (m("sub", X, m("sub", M, Const(1.0))), "x[i,k] - (m - 1)"),
        (m("add", m("add", X, M), M), "x[i,k] + m + m"),
        (m("add", X, m("add", M, M)), "x[i,k] + (m + m)"),
        (m("mul", m("add", X, M), M), "(x[i,k] + m) * m"),
        (m("div", X, m("mul", M, M)), "x[i,k] / (m * m)"),
        (m("mul", m("neg", X), Const(-2.0)), "-x[i,k] * (-2)"),
        (m("square", m("sub", X, M)), "(x[i,k] - m)^2"),
        (m("square", m("exp", X)), "exp(x[i,k])^2"),
        (m("logical_and", m("lt", X, M), m("ge", X, M)), "x[i,k] < m and x[i,k] >= m"),
        (Reduce("sum", "k", m("neg", X)), "sum_k(-x[i,k])"),
    ],
)
def test_formula(e: Map, text: str) -> None:
    assert formula(e) == text


def test_shared_terms_get_names_that_nothing_else_has() -> None:
    s = Reduce("sum", "k", m("mul", X, X))
    roots = [s, m("exp", m("sub", s, M))]
    (name,) = shared(roots, {"x1", "x2"}).values()
    assert name == "x3"
    assert formula(roots[1], {s: name}) == "exp(x3 - m)"
    assert shared([m("sub", X, M), m("sub", X, M)], ()) == {}  # too short to be worth a name


def test_wrap_breaks_outside_parentheses() -> None:
    lines = wrap("first(a + b) + second(c + d) + third(e + f)", 31)
    assert lines == ["first(a + b) + second(c + d) +", "third(e + f)"]
    assert [len(line) for line in wrap("x" * 100, 40)] == [40, 40, 20]


def test_laws_in_notation() -> None:
    assert law_text("(sum k b) -> (mul h (sum k g))") == "sum_k(b) -> h * sum_k(g)"
    assert condition_text("(factor k b g h) (!= h one)") == "b = g * h with h free of k; h != 1"
    for rule in NAMED["fast"]:
        text = law_text(rule.statement) + condition_text(rule.when)
        assert text.count("(") == text.count(")") and "  " not in text, rule.name


def test_quantities() -> None:
    shown = [quantity(x, "B") for x in (0, 0.5, 999, 999.9, 1500, 2.5e9, 1e18)] + [quantity(3.2e-5, "s"), quantity(1e-12, "s")]
    assert shown == ["0 B", "500 mB", "999 B", "1 kB", "1.5 kB", "2.5 GB", "1e+06 TB", "32 us", "0.001 ns"]


def test_attention_says_all_there_is_to_say() -> None:
    shapes = ((256, 64), (1024, 64), (1024, 32))
    e = explained(attention.attention, *shapes, name="attention", on="h200")
    text = str(e)
    axis = next(a for a, p in e.plan.report.passes.items() if p == (3, 1))
    for part in (
        "attention\n",
        f"fused: 3 -> 1 pass over {axis}",
        "q[",
        "from -inf",
        "exp(m' - m) * s'",
        "contracted in place",
        "h200",
        "saturated",
        "rules 'default'",
        "prefix\n",
        "distribute\n",
        "because:",
    ):
        assert part in text, part
    for rule in rf.rules.default:
        assert (f"\n    {rule.name} x" in text) == (rule.name in e.plan.report.rules_fired and rule.phase != "analyse")
    for a in e.plan.cascade.accumulators():
        assert f"\n  {a.name}[" in text
    assert e.summary() == "\n".join(text.splitlines()[: len(e.summary().splitlines())])
    assert "because:" not in e.summary()


def test_unfused_says_why() -> None:
    e = explained(statistics.variance, (8, 4096), rules=rf.rules.default - {"prefix"})
    assert "\nnot fused: 2 passes over k" in str(e)
    assert e.plan.report.reason
    assert "no law of the rule set" in str(e)


def test_refused_forms_are_named() -> None:
    e = explained(statistics.naive_logsumexp, (8, 4096))
    assert e.plan.report.refused
    assert "\nrefused" in str(e)


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.name)
def test_widths(w: Workload) -> None:
    program = trace(w.function, w.shapes(), {}).program
    e = Explanation(w.name, plan(program, NAMED[w.numerics], device(None), verify=False, budget=None))
    for width in (60, 80, 100):
        assert max(map(len, e.text(width).splitlines())) <= width
    assert all(line == line.rstrip() for line in str(e).splitlines())
    compact = "".join(str(e).split())
    for o in program.outputs:
        assert str(o.dtype) in compact


def test_rich_prints_the_same_text() -> None:
    e = explained(statistics.logsumexp, (8, 4096))
    console = Console(file=io.StringIO(), width=80)
    console.print(e)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert [line.rstrip() for line in printed.splitlines()] == str(e).splitlines()


def test_names_of_users_cannot_command_the_terminal() -> None:
    name = "[bold red]x[/] \x1b[31m \x07 <b>"
    e = explained(statistics.logsumexp, (8, 64), name=name)
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    console.print(e)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold red]x[/] \\x1b[31m \\x07 <b>" in printed
    assert printed.count("\x1b[31m") == 0 and "\x07" not in printed
    assert "\x1b" not in str(e)
    assert "&lt;b&gt;" in e._repr_html_() and "<b>" not in e._repr_html_()
    assert printable("a\nb") == "a\\nb"


def test_symbolic_sizes() -> None:
    x = rf.array("x", shape=("m", "n"), dtype="float32")
    fused = rf.optimize(np.log(np.sum(np.exp(x - np.max(x, -1, keepdims=True)), -1)))
    text = str(fused.explain())
    assert "2 -> 1 pass" in text and "(of None)" not in text
