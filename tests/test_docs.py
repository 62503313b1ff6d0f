"""The documents: every Python block runs, every block of output is real, and the table of workloads is true."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from redfuser_eq.demo.workloads import WORKLOADS, Workload
from redfuser_eq.rules import NAMED

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not README.exists(), reason="the documents are in a checkout")


def blocks(path: Path) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in BLOCK.finditer(path.read_text())]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_python_blocks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    scope: dict[str, object] = {"__name__": "__main__"}
    printed = None
    for language, text in blocks(path):
        if language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(path), "exec"), scope)
            printed = out.getvalue()
        elif language == "text":
            assert printed is not None, f"{path.name}: output without a program"
            assert text == printed


def test_the_example_is_short() -> None:
    language, text = next(b for b in blocks(README))
    assert language == "python"
    assert len([line for line in text.splitlines() if line.strip()]) <= 20


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_every_theme_is_described() -> None:
    described = re.findall(r"\*\*(\w+)\*\*", (ROOT / "docs" / "laws.md").read_text())
    for theme in NAMED["fast"].themes():
        assert described.count(theme) == 1, theme
    fast = described.index("zero_sum")
    assert set(described[fast:]) == NAMED["fast"].themes() - NAMED["default"].themes()


def commands() -> list[str]:
    """The two commands of the README, one a line."""
    return re.findall(r"^    (python3\.11 -m venv .*)$", README.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_demo_command() -> None:
    demo, tests = commands()
    *_, last = demo.split(" && ")
    assert last.startswith(".venv/bin/python -m redfuser_eq ") and "pip install -e '.[demo]'" in demo
    arguments = [sys.executable, *shlex.split(last)[1:]]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"REDFUSER_VERIFY": "raise"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("all right")
    assert tests.endswith(".venv/bin/python -m pytest -n 2") and "pip install -e '.[test,demo]'" in tests


def test_test_command_is_the_one_that_ci_runs() -> None:
    _, tests = commands()
    ci = (ROOT / ".ci" / "run").read_text()
    assert tests.split("bin/python ")[-1] in ci
    assert re.search(r"pip install (\S+ \S+) &&", tests)[1] in ci  # type: ignore[index]


def rows() -> list[tuple[str, str]]:
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", README.read_text(), re.MULTILINE)
    return [(left, right) for left, right in found if re.fullmatch(r"\d+ -> \d+", right) or right.isdigit()]


def named_in(cell: str) -> list[Workload]:
    """The workloads of a row: names with semicolons between; of several variants the common start is written once."""
    known = {w.name: w for w in WORKLOADS}
    names = [n.strip() for n in cell.split(";")]
    start = names[0].partition(",")[0]
    return [known[n] if n in known else known[f"{start}, {n}"] for n in names]


def test_table_of_workloads() -> None:
    listed: list[str] = []
    for left, right in rows():
        for w in named_in(left):
            listed.append(w.name)
            assert right == f"{w.before} -> {w.after}", w.name  # what tests/test_workloads.py holds the program to
    assert sorted(listed) == sorted(w.name for w in WORKLOADS)
