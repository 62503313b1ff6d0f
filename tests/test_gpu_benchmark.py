"""The GPU benchmark: its workloads in every spelling, and a whole run over the emulator."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated_cupy
import emulator
import numpy as np
import pytest

import redfuser_eq as rf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import contenders, cpu, gpu
from benchmarks.gpu_workloads import WORKLOADS
from benchmarks.workloads import Bench

BY_NAME = {w.name: w for w in WORKLOADS}
needs_emulator = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")


def tiny(w: Bench) -> tuple[Bench, list[Any]]:
    w = replace(w, sizes={a: min(n, 24) if a in ("n", "k") else min(n, 8) for a, n in w.sizes.items()})
    return w, w.arrays(np.random.default_rng(0))


def exact(w: Bench, arrays: list[Any]) -> list[Any]:
    return contenders.as_arrays(w.function(np, *[a if a.dtype.kind in "iu" else a.astype(np.float64) for a in arrays]))


def error(got: list[Any], want: list[Any]) -> float:
    return cpu._error([g if g.dtype.kind in "iu" else g.astype(np.float64) for g in got], want)


@pytest.mark.parametrize("name", BY_NAME)
def test_our_spelling(name: str) -> None:
    w, arrays = tiny(BY_NAME[name])
    got = rf.optimize(lambda *a: w.function(np, *a), target="numpy")(*arrays)
    assert error(contenders.as_arrays(got), exact(w, arrays)) < max(w.tolerance, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_torchs_spelling(name: str) -> None:
    torch = pytest.importorskip("torch")
    w, arrays = tiny(BY_NAME[name])
    assert w.torch is not None
    wide = [t if t.dtype == torch.int64 else t.double() for t in _tensors(torch, arrays)]
    assert error([a for r in _leaves(w.torch(torch, *wide)) for a in [r.numpy()]], exact(w, arrays)) < 0.05


def _tensors(torch: Any, arrays: list[Any]) -> list[Any]:
    return [torch.from_numpy(a.astype(np.float32) if a.dtype.kind == "V" else a) for a in arrays]


def _leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def test_dry_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu.run(options(dry=True, workload=["BERT", "4 GB"], sources=tmp_path)) == 0
    out = capsys.readouterr().out
    assert "nothing was measured" in out and out.count("\n| attention, BERT-base") == 1
    assert len(list(tmp_path.glob("*.cu"))) == 2


def options(**given: Any) -> argparse.Namespace:
    defaults = {"workload": None, "contender": None, "seconds": 300.0, "small": False, "dry": False, "gpu": "h200", "sources": None}
    return argparse.Namespace(**{**defaults, **given})


def test_without_a_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    emulated_cupy.forget()
    assert gpu.run(options()) == 2
    assert "--dry" in capsys.readouterr().err


@needs_emulator
def test_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("REDFUSER_CACHE", str(tmp_path / "builds"))
    emulated_cupy.install(monkeypatch)
    monkeypatch.setattr(gpu, "FLUSH", 1 << 10)
    monkeypatch.setattr(gpu, "SHARE", 1e-3)
    monkeypatch.setattr(gpu, "_has_torch", lambda: False)
    chosen = [tiny(BY_NAME[n])[0] for n in ("variance, 2 GB", "softmax, 1 GB bfloat16")]
    monkeypatch.setattr(gpu, "_chosen", lambda _: chosen)
    assert gpu.run(options(small=True, contender=["none"], out=tmp_path)) == 0
    result = json.loads((tmp_path / "gpu.json").read_text())
    rows = {r["workload"]: r for r in result["rows"]}
    assert list(rows) == [w.name for w in chosen] and result["copy"] > 0
    for w in chosen:
        r = rows[w.name]
        assert r["note"] == "" and r["seconds"] > 0 and r["host"] > 0 and r["error"] < w.tolerance and r["predicted"] > 0
    table = (tmp_path / "gpu.md").read_text()
    assert "| variance, 2 GB | " in table and "s left" in capsys.readouterr().out
    emulated_cupy.forget()


def test_the_table_says_who_was_best() -> None:
    def row(contender: str, seconds: float | None, **more: Any) -> dict[str, Any]:
        return {**vars(gpu.Row("w", contender, seconds, 1e-5, 2e9, 1e12, 4e-4, "memory", 1.5, host=3e-5)), **more}

    rows = [row("ours", 5e-4), row("torch", 1e-3), row("torch.compile", 6e-4), row("SDPA flash", None, note="ImportError: no")]
    text = gpu.markdown({"machine": {"gpu": "chip"}, "copy": 5e12, "rows": rows})
    assert "| w | 500.0 | 400.0, memory | 4000 | 0.80 | 2000 | 30 | 1.0e-05 | 1.5x ✗ | 2.00 | **1.20** | - |" in text
    assert "- w, SDPA flash: ImportError: no" in text


def test_inputs_cover_the_whole_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BLOCK", 12)

    class Device:
        def empty(self, shape: Any, dtype: Any) -> Any:
            return np.full(shape, -1, dtype)

        def write(self, array: Any, values: Any) -> None:
            array[...] = values

    w = Bench("w", np.add, {"x": ("r", "k"), "y": (("r",), "label:k")}, {"r": 7, "k": 9})
    x, y = gpu.inputs(w, Device())
    assert x.shape == (7, 9) and not (x == -1).any() and math.isclose(x[0, 0], x[1, 2])
    assert y.dtype.kind == "i" and y.max() < 9
