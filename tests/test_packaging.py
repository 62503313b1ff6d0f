"""The package as it is installed: folders, names, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redfuser_eq as rf

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
checkout = pytest.mark.skipif(not (ROOT / "redfuser_eq" / "__init__.py").exists(), reason="runs in a checkout")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_importing_loads_nothing_heavy() -> None:
    heavy = run("import sys, redfuser_eq; print([m for m in ('egglog', 'rich', 'torch', 'cupy', 'sklearn') if m in sys.modules])")
    assert heavy.strip() == "[]"


def test_public_names() -> None:
    for name in rf.__all__:
        assert getattr(rf, name) is not None
        assert name in dir(rf)
    assert callable(rf.array) and callable(rf.experiment) and isinstance(rf.rules.default, rf.RuleSet)
    with pytest.raises(AttributeError, match="no_such_name"):
        rf.no_such_name  # noqa: B018


def test_array_stays_a_function_whatever_is_imported() -> None:
    code = (
        "import redfuser_eq.array, redfuser_eq.trace, redfuser_eq.rules.rule, redfuser_eq as rf; rf.optimize; print(rf.array('x').shape[1])"
    )
    assert run(code).strip() == "128"


def test_lazy_names_are_those_that_type_checkers_see() -> None:
    tree = ast.parse(Path(rf.__file__).read_text())
    checking = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {(n.module, a.name) for n in checking.body if isinstance(n, ast.ImportFrom) and n.module for a in n.names}
    assert seen == {(module, name) for module, names in rf._PLACES.items() for name in names}
    public = {name for _, name in seen} | {"array", "rules"}
    assert public - set(rf.__all__) <= {"entropy"}  # a workload of tests too, and a common name
    assert set(rf.__all__) <= public


@checkout
def test_every_package_is_listed() -> None:
    project = tomllib.loads(PROJECT.read_text())
    setuptools = project["tool"]["setuptools"]
    roots = {name: ROOT / place for name, place in setuptools["package-dir"].items()}
    found = set()
    for name, root in roots.items():
        for init in root.rglob("__init__.py"):
            found.add(".".join((name, *init.parent.relative_to(root).parts)))
    assert set(setuptools["packages"]) == found
    for package in setuptools["packages"]:
        importlib.import_module(package)


@checkout
def test_metadata() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    assert project["version"] == rf.__version__
    assert {"cpu", "cuda12x", "cuda13x", "torch", "dask", "demo", "test", "bench", "docs"} <= set(project["optional-dependencies"])
    assert (ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert (ROOT / "redfuser_eq" / "py.typed").exists()


@checkout
def test_files_and_functions_stay_small() -> None:
    for folder in ("redfuser_eq", "rules", "codegen", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            lines = path.read_text().splitlines()
            assert len(lines) <= 520, path
