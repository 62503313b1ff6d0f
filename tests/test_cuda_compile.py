"""What ptxas makes of the kernels at full sizes: no spills, and registers and shared memory as in the table.

`pytest --update-golden` rewrites tests/golden/cuda_compile.json. Another release of NVRTC may move registers by a few."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cascades
import emulator
import ml_dtypes
import numpy as np
import pytest

from redfuser_eq.codegen.cuda import emit
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import GPUS

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulator.report import compile_report

GOLDEN = Path(__file__).parent / "golden" / "cuda_compile.json"
SLACK = 8  # registers
ROWS, LONG = {"r": 1024, "k": 50257}, {"r": 8, "k": 1 << 22}
BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


@dataclass(frozen=True)
class Case:
    """extents: full sizes. dtype: of the workload's inputs, where it takes one. strides: of sources that are not
    row-major. quick: compiled in every run of the tests."""

    workload: str
    extents: dict[str, int]
    choice: dict[str, Any] = field(default_factory=dict)
    dtype: Any = None
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    quick: bool = False


ATTENTION = {"b": 2, "h": 8, "i": 1024, "j": 1024, "e": 64, "d": 64}
TILE = {"form": "tile"}
CASES: dict[str, Case] = {
    "logsumexp": Case("logsumexp", ROWS, quick=True),
    "logsumexp f16": Case("logsumexp", ROWS | {"k": 65536}, dtype=F16),
    "logsumexp short rows": Case("logsumexp", {"r": 1 << 20, "k": 64}),
    "logsumexp long rows": Case("logsumexp", LONG, quick=True),
    "logsumexp over axis 0": Case("logsumexp_axis0", {"r": 4096, "k": 8192}),
    "softmax in registers": Case("softmax", {"r": 4096, "k": 8192}, quick=True),
    "softmax in more registers": Case("softmax", {"r": 4096, "k": 16384}),
    "softmax in shared memory": Case("softmax", ROWS, quick=True),
    "softmax f16 in shared memory": Case("softmax", {"r": 1024, "k": 65536}, dtype=F16),
    "softmax over transposed rows in shared memory": Case("softmax", {"r": 4096, "k": 1000}, {"near": True}, strides={"x": (1, 4096)}),
    "softmax twice": Case("softmax", {"r": 1024, "k": 100_000}),
    "entropy": Case("entropy", ROWS),
    "kl": Case("kl", ROWS),
    "variance bf16": Case("variance", ROWS | {"k": 65536}, dtype=BF16),
    "weighted variance": Case("weighted_variance", ROWS),
    "softmax variance": Case("softmax_variance", ROWS),
    "several": Case("several", ROWS),
    "monoids in float64": Case("plain_monoids", ROWS),
    "attention float32": Case("attention", ATTENTION, TILE, quick=True),
    "attention float64": Case("attention", ATTENTION, TILE, np.dtype(np.float64)),
    "linear logsumexp float32": Case("linear_logsumexp", {"r": 512, "v": 50257, "h": 1024}, TILE),
    "layernorm linear float32": Case("layernorm_linear", {"r": 2048, "k": 4096, "n": 1024}, TILE),
    "routing float32": Case("routing", {"i": 16384, "h": 2048, "j": 256, "t": 4}, TILE),
    "decode float32": Case("decode", {"h": 8, "j": 65536, "e": 128, "d": 128}, TILE),
}


@pytest.mark.parametrize("gpu", [pytest.param("a100", marks=pytest.mark.slow), "h200", pytest.param("b200", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if c.quick else pytest.mark.slow) for n, c in CASES.items()])
def test_the_table(name: str, gpu: str, update_golden: bool) -> None:
    case, device = CASES[name], GPUS[gpu]
    make = getattr(cascades, case.workload)
    w = make() if case.dtype is None else make(case.dtype)
    program = emit(schedule(w.cascade, case.extents, case.strides, device, case.choice), device)
    reports = compile_report(program.text, device.arch)
    found = {}
    for launch in program.launches:
        report, shared = reports[launch.name], reports[launch.name].shared + launch.shared
        assert report.spills == 0 and not report.warnings, f"{launch.name} spills {report.spills} bytes; {report.warnings}"
        assert report.registers * launch.block <= device.registers and shared <= device.shared_limit
        found[launch.name] = {"registers": report.registers, "shared": shared}
    table = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    key = f"{name}, {device.arch}"
    if update_golden:
        table[key] = found
        GOLDEN.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    else:
        known = table[key]
        assert sorted(known) == sorted(found), "other kernels than in the table; run pytest --update-golden and read the difference"
        for n, row in found.items():
            assert row["shared"] == known[n]["shared"] and row["registers"] <= known[n]["registers"] + SLACK, (n, row, known[n])
