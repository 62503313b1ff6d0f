"""The command line: what it prints, its exit status, and its answers to mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import redfuser_eq
from redfuser_eq.__main__ import main
from redfuser_eq.demo import run as demo

SOURCE = """
import numpy as np

def variance(x):
    return np.mean((x - np.mean(x, -1, keepdims=True)) ** 2, -1)

def dot(x, w):
    return np.log(x @ w)

def sorts(x):
    return np.sort(x)

def breaks(x):
    return x.no_such_method()

answer = 42
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demonstration of two quick cases on few images."""
    x, labels = demo._strokes(60)
    monkeypatch.setattr(demo, "images", lambda: (x, labels, "strokes"))
    monkeypatch.setattr(demo, "cases", lambda x, labels: [demo.Case("first", np.var, (x[0],)), demo.Case("second", np.var, (x[1],))])


def test_version() -> None:
    done = subprocess.run([sys.executable, "-m", "redfuser_eq", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"redfuser_eq {redfuser_eq.__version__}"


@pytest.mark.usefixtures("few")
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--target", "numpy"]) == 0
    out = capsys.readouterr().out
    assert "2 -> 1 pass" in out and "first" in out and "second" in out and "all right" in out and "ms fused (numpy)" in out


@pytest.mark.usefixtures("few")
def test_demo_fails_on_a_wrong_result(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TOLERANCE", -1.0)
    assert main(["demo", "--target", "numpy"]) == 1
    assert "2 wrong" in capsys.readouterr().out


def test_demo_measures_errors() -> None:
    exact = np.array([1.0, -4.0])
    assert demo._error(np.array([1.0, -4.4]), exact) == pytest.approx(0.1)
    assert demo._error(np.array([1.0, np.nan]), exact) == np.inf
    assert demo._error(np.array([[1.0, -4.0]]), exact) == np.inf
    assert demo._error(np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4])) == 0.25


def test_demo_makes_its_own_data_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    x, labels, origin = demo.images()
    again, _, _ = demo.images()
    np.testing.assert_array_equal(x, again)
    assert x.shape == (600, 64) and labels.shape == (600,) and "scikit-learn" in origin
    assert 0.02 < x.mean() < 0.9 and x.min() >= 0 and x.max() <= 1
    cases = demo.cases(x[:50], labels[:50])
    assert len(cases) == 4
    assert (labels[:50][cases[1].arrays[2]] == labels[:50]).all()


def test_explain(capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert main(["explain", f"{file}:variance", "--shapes", "4x128"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("variance\nfused: 2 -> 1 pass")
    assert max(map(len, out.splitlines())) <= 80


def test_explain_options(capsys: pytest.CaptureFixture[str], file: str) -> None:
    options = ["--without", "prefix", "--rules", "fast", "--dtype", "float64", "--device", "h200"]
    assert main(["explain", f"{file}:variance", "--shapes", "4x128", *options]) == 0
    out = capsys.readouterr().out
    assert "float64" in out and "h200" in out and "fast-prefix" in out
    assert main(["explain", f"{file}:dot", "--shapes", "4x8, 8x3", "--dtype", "float32,float16"]) == 0
    assert "float16" in capsys.readouterr().out


def test_explain_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "redfuser_eq.demo.statistics:softmax", "--shapes", "4x128"]) == 0
    assert "3 -> 2 passes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{file}", "--shapes", "4"], "is not FILE:FUNCTION"),
        (["nowhere.py:f", "--shapes", "4"], "there is no file 'nowhere.py'"),
        (["no_such_module:f", "--shapes", "4"], "neither a file nor a module"),
        (["{file}:nothing", "--shapes", "4"], "no function 'nothing'; it defines variance, dot, sorts, breaks"),
        (["{file}:answer", "--shapes", "4"], "no function 'answer'"),
        (["{file}:variance", "--shapes", "4xy"], "is not a shape"),
        (["{file}:variance", "--shapes", "4x-1"], "negative size"),
        (["{file}:variance", "--shapes", "4", "--dtype", "float31"], "float31"),
        (["{file}:variance", "--shapes", "4", "--dtype", "float32,float32"], "2 dtypes for 1 shapes"),
        (["{file}:variance", "--shapes", "4", "--rules", "best"], "'best' is not a rule set"),
        (["{file}:variance", "--shapes", "4", "--without", "magic"], "no theme or rule"),
        (["{file}:variance", "--shapes", "4", "--device", "abacus"], "abacus"),
        (["{file}:variance", "--shapes", "4,4"], "variance() takes 1 positional argument but 2 were given"),
        (["{file}:dot", "--shapes", "4x8,9x3"], "matmul"),
        (["{file}:sorts", "--shapes", "4x8"], "rf.top_k"),
        (["{file}:breaks", "--shapes", "4x8"], "line 14: return x.no_such_method()"),
    ],
)
def test_mistakes_are_answered(arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *(a.format(file=file) for a in arguments)]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_a_file_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (("x = 1 / 0\n", "line 1: x = 1 / 0"), ("def f(:\n", "line 1"), ("import nothing_like_it\n", "nothing_like_it")):
        path = tmp_path / "broken.py"
        path.write_text(text)
        assert main(["explain", f"{path}:f", "--shapes", "4"]) == 2
        err = capsys.readouterr().err
        assert message in err and "while running the file" in err and "Traceback" not in err


def test_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--workload", "rf.logsumexp"]) == 0
    out = capsys.readouterr().out
    assert "rf.logsumexp" in out and "prefix" in out and " 2 " in out and "ms" in out


def test_experiment_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--workload", "rf.logsumexp", "--json"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert results[0]["workload"] == "rf.logsumexp" and results[0]["passes_after"] == 1
    assert any(r["rule_set"] == "default-prefix" and not r["fused"] for r in results)


def test_experiment_of_an_unknown_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--workload", "quicksort"]) == 2
    assert "none has this in its name" in capsys.readouterr().err


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["dance"])
    assert stop.value.code == 2
    assert "dance" in capsys.readouterr().err
