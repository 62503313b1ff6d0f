"""Options and fixtures that several test files share."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden sources in tests/golden instead of comparing")
    parser.addoption("--thorough", action="store_true", help="run every combination on the CUDA emulator (half an hour more)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One of each kind runs on the emulator; the other combinations of form, GPU, schedule and dtype only when asked for."""
    if not config.getoption("--thorough"):
        skip = pytest.mark.skip(reason="one of many combinations on the emulator; run with --thorough")
        for item in items:
            if "thorough" in item.keywords:
                item.add_marker(skip)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked NumPy with tiles so small that small extents have several along every axis; threads always."""
    from redfuser_eq.runtime import numpy as backend
    from redfuser_eq.runtime import tiling

    for name, value in {"BUDGET": 300, "STREAM": 13, "COLUMNS": 7, "TURNED": 3, "SMALLEST": 3, "ROWS": 16}.items():
        monkeypatch.setattr(tiling, name, value)
    monkeypatch.setattr(backend, "MANY", 0)
    monkeypatch.setenv("REDFUSER_NUM_THREADS", "3")
