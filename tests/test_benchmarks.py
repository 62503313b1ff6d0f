"""The benchmark's own parts: workloads compute the same in every spelling, reports say what was measured."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import redfuser_eq as rf

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import contenders, cpu, report, timing
from benchmarks.workloads import WORKLOADS, Bench

BY_NAME = {w.name: w for w in WORKLOADS}


def tiny(w: Bench) -> tuple[Bench, list[np.ndarray]]:
    """The workload at sizes of at most 50, odd where they are free."""
    w = replace(w, sizes={a: min(n, 50) | 1 for a, n in w.sizes.items()})
    return w, w.arrays(np.random.default_rng(0))


def exact(w: Bench, arrays: list[np.ndarray]) -> list[np.ndarray]:
    wide = [a.astype(np.float64) if a.dtype.kind not in "iu" else a for a in arrays]
    return contenders.as_arrays(w.function(np, *wide))


@pytest.mark.parametrize("name", BY_NAME)
def test_our_result(name: str) -> None:
    w, arrays = tiny(BY_NAME[name])
    got = contenders.as_arrays(rf.optimize(lambda *a: w.function(np, *a), target="cpu")(*arrays))
    assert cpu._error([g.astype(np.float64) if g.dtype.kind not in "iu" else g for g in got], exact(w, arrays)) < w.tolerance


@pytest.mark.parametrize("name", [n for n, w in BY_NAME.items() if w.numpy is not None])
def test_numpys_better_spelling(name: str) -> None:
    w, arrays = tiny(BY_NAME[name])
    copies = [a.copy() for a in arrays]
    assert w.numpy is not None
    assert cpu._error(contenders.as_arrays(w.numpy(*arrays)), exact(w, arrays)) < w.tolerance
    assert all((a == b).all() for a, b in zip(arrays, copies, strict=True)), "a contender must leave its inputs alone"


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_torchs_spellings(name: str) -> None:
    torch = pytest.importorskip("torch")
    w, arrays = tiny(BY_NAME[name])
    for f in (w.torch, *w.named.values()):
        assert f is not None
        got = contenders.as_arrays(f(torch, *contenders.tensors(torch, arrays)))
        assert cpu._error(got, exact(w, arrays)) < w.tolerance


def test_small_sizes_are_small() -> None:
    for w in WORKLOADS:
        s = w.small()
        assert set(s.sizes) == set(w.sizes) and all(s.sizes[a] <= n for a, n in w.sizes.items())
        assert max(a.nbytes for a in s.arrays(np.random.default_rng(0))) < 200 << 20


def test_contenders_take_turns() -> None:
    order: list[str] = []
    runs = {n: (lambda n=n: order.append(n)) for n in "ab"}
    medians = timing.interleaved(runs, rounds=2, slice_seconds=0.001)
    assert set(medians) == {"a", "b"} and all(t > 0 for t in medians.values())
    turns = [n for i, n in enumerate(order[4:]) if i == 0 or order[4:][i - 1] != n]
    assert turns == ["a", "b", "a", "b"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark")
def test_peak_memory_sees_a_temporary_array() -> None:
    size = 64 << 20
    used = timing.peak_memory(lambda: float(np.ones(size, np.uint8).sum()))
    if used is None:
        pytest.skip("the high-water mark cannot be reset here")
    assert 0.9 * size < used < 1.5 * size
    assert timing.peak_memory(lambda: None) < size // 4


def rows(**seconds: float) -> list[dict]:
    made = [cpu.Row("logsumexp", 1, n.replace("_", "."), s, 1e-7, 1 << 20, 0.5, 2.0) for n, s in seconds.items()]
    return [r.__dict__ for r in made]


def test_what_was_measured_again_keeps_its_place() -> None:
    names = ["attention + bias", "logsumexp", "KL divergence"]
    measured = [cpu.Row(n, t, "ours", 0.01, 1e-7, 0, 0.5, 2.0).__dict__ for t in (2, 1) for n in names[:: 3 - 2 * t]]
    found = [(r["threads"], r["workload"]) for r in report.ratios({"rows": measured})]
    assert found == [(t, n) for t in (1, 2) for n in ("logsumexp", "KL divergence", "attention + bias")]


def test_the_report(tmp_path: Path) -> None:
    result = {"machine": {"cpu": "x"}, "roofline": {"1": {"read": 1e10, "copy": 1e10, "flops": 1e11}}}
    result["rows"] = rows(ours=0.010, NumPy=0.080, torch_compile=0.015, JAX=0.030)
    result["rows"].append(cpu.Row("logsumexp", 1, "ONNX Runtime", note="not installed").__dict__)
    text = report.markdown(result)
    line = next(x for x in text.splitlines() if x.startswith("| logsumexp"))
    assert "2x ✗" in line and "**1.50**" in line and "| 8.00 |" in line and "| 3.00 |" in line
    assert "best stock 1.50x" in text and "ONNX Runtime: not installed (logsumexp)" in text
    assert json.loads(json.dumps(result)) == result
    pytest.importorskip("matplotlib")
    assert report.plot(result, tmp_path / "p.png").startswith("Plot") and (tmp_path / "p.png").stat().st_size > 1000


def test_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    cpu.register(parser.add_subparsers())
    options = parser.parse_args(["cpu", "--workload", "soft", "--threads", "1", "--small"])
    assert options.run is cpu.run and options.workload == ["soft"] and options.small
