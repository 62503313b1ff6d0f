"""The measurements of what using the package costs run, and say what they measured. No time is asserted."""

from __future__ import annotations

import json

import pytest

from redfuser_eq.demo.workloads import named

pytest.importorskip("benchmarks")

from benchmarks import cost
from benchmarks.__main__ import main


def test_cost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cost, "_workloads", lambda: (named("rf.logsumexp"),))
    assert main(["cost", "--repeat", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["optimize"]
    assert row["name"] == "rf.logsumexp" and 0 < row["rows"] < cost.ROWS_TARGET
    assert set(row["stages"]) == {"trace", "saturate", "extract", "validate"}
    assert row["seconds"] > sum(row["stages"].values()) * 0.5
    assert found["second_call"] > 0 and found["import"] > 0
    assert main(["cost", "--repeat", "1"]) == 0
    assert "rf.logsumexp" in capsys.readouterr().out
