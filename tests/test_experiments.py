"""Ablations as data and as a table."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import redfuser_eq as rf
from redfuser_eq.demo.statistics import logsumexp
from redfuser_eq.demo.workloads import named
from redfuser_eq.experiments import ablations, tables


def test_ablations_cover_every_theme() -> None:
    sets = ablations(rf.rules.default)
    assert sets[0] is rf.rules.default
    assert [rf.rules.default.themes() - s.themes() for s in sets[1:]] == [{t} for t in dict.fromkeys(r.theme for r in rf.rules.default)]


def test_experiment_of_one_workload() -> None:
    full, *without = rf.experiment([named("rf.logsumexp")])
    assert (full.passes_before, full.passes_after) == (2, 1)
    assert full.fused and full.saturated and full.reason is None and full.rows > 0 and full.seconds > 0
    lost = {r.rule_set.removeprefix("default-") for r in without if not r.fused}
    assert {"prefix", "distribute"} <= lost
    assert all(r.reason for r in without if not r.fused)


def test_experiment_of_a_function_and_rule_sets() -> None:
    example = (np.ones((4, 64), np.float32),)
    sets = [rf.rules.strict, rf.rules.strict - {"prefix"}]
    results = rf.experiment([("mine", logsumexp, example)], sets)
    assert [(r.workload, r.rule_set, r.passes_after) for r in results] == [("mine", "strict", 1), ("mine", "strict-prefix", 2)]


MINE = [("mine", logsumexp, (np.ones((4, 64), np.float32),))]


def test_a_wrong_law_is_reported() -> None:
    wrong = rf.RuleSet("wrong", [rf.law("no-log", "(log a)", "(mul two a)", why="it is not", phase="tidy", subsume=True)])
    with pytest.raises(rf.UnsoundRewrite, match="wrong"):
        rf.experiment(MINE, [rf.rules.default + wrong])


def test_a_law_that_leaves_nothing_is_reported() -> None:
    double = rf.law("double", "(sum k b)", "(mul two (sum k b))", why="it is not", phase="tidy", subsume=True)
    with pytest.raises(rf.IRError, match="no finite term"):
        rf.experiment(MINE, [rf.RuleSet("loop", [double])])


@pytest.mark.parametrize(("width", "count"), [(120, 1), (80, 1), (45, 2)])
def test_tables_fit(width: int, count: int) -> None:
    example = (np.ones((4, 64), np.float32),)
    results = rf.experiment([("mine", logsumexp, example)], [rf.rules.default, rf.rules.default - {"prefix"}])
    console = Console(file=io.StringIO(), width=1000)
    shown = tables(results, width)
    assert len(shown) == count
    for table in shown:
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    cells = text.split()
    assert "prefix" in cells and cells.count("mine") == count
    assert {str(r.rows) for r in results} | {"2", "1"} <= set(cells)
