"""What ptxas makes of the tensor-core kernels at full sizes: no spills, no serialised products, instructions as in the table.

`pytest --update-golden` rewrites tests/golden/cuda_mma_compile.json. Another release of NVRTC may move registers by a few."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cascades
import emulator
import pytest

from redfuser_eq.codegen.cuda import emit
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import GPUS

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulator.report import KernelReport, compile_report, disassembler
from test_cuda_across import latent
from test_cuda_bytes import I8, in_bytes
from test_cuda_mma import BF16, E4M3, narrowed, quantised, workload
from test_cuda_tf32 import fast

GOLDEN = Path(__file__).parent / "golden" / "cuda_mma_compile.json"
SLACK = 8  # registers
COUNTED = ("HMMA", "HGMMA", "LDSM", "LDGSTS", "UTMALDG")
OF_BYTES = ("QMMA", "QGMMA", "IMMA", "IGMMA")  # in the table where there are any
HEADS = {"b": 4, "h": 16, "i": 4096, "j": 4096}
CASES: dict[str, tuple[str, dict[str, int]]] = {
    "attention 64": ("attention", HEADS | {"e": 64, "d": 64}),
    "attention 128": ("attention", HEADS | {"e": 128, "d": 128}),
    "attention 256": ("attention", HEADS | {"e": 256, "d": 256}),
    "causal 128": ("attention_causal", {"h": 16, "i": 4096, "j": 4096, "e": 128, "d": 128}),
    "bias 64": ("attention_bias", {"h": 16, "i": 4096, "j": 4096, "e": 64, "d": 64}),
    "grouped decode": ("attention_gqa", {"b": 8, "g": 8, "r": 4, "i": 1, "j": 8192, "e": 128, "d": 128}),
    "decode": ("decode", {"h": 256, "j": 8192, "e": 128, "d": 128}),
    "few tokens, linear logsumexp": ("linear_logsumexp", {"r": 8, "v": 50257, "h": 4096}),
    "mla": ("mla", {"b": 16, "h": 128, "j": 4096, "e": 576, "d": 512}),
    "linear logsumexp": ("linear_logsumexp", {"r": 4096, "v": 50257, "h": 4096}),
    "cross entropy": ("cross_entropy", {"r": 4096, "v": 50257, "h": 4096}),
    "rms linear": ("rms_linear", {"r": 4096, "k": 4096, "n": 4096}),
    "layernorm linear": ("layernorm_linear", {"r": 4096, "k": 4096, "n": 4096}),
    "quantised linear": ("quantised_linear", {"r": 4096, "k": 4096, "n": 4096}),
    "k-means": ("kmeans", {"i": 100000, "f": 128, "j": 1024}),
    "routing": ("routing", {"i": 16384, "h": 2048, "j": 128, "t": 4}),
}
LINEAR, SCORES = {"r": 4096, "k": 4096, "n": 4096}, {"r": 4096, "v": 50257, "h": 4096}
BYTES: dict[str, tuple[Callable[[], cascades.Workload], dict[str, int]]] = {
    "e4m3 linear": (lambda: quantised(E4M3, BF16, 448.0), LINEAR),
    "e4m3 linear of few columns": (lambda: quantised(E4M3, BF16, 448.0), LINEAR | {"n": 128}),
    "int8 linear": (lambda: quantised(I8, BF16, 127.0), LINEAR),
    "int8 linear of few columns": (lambda: quantised(I8, BF16, 127.0), LINEAR | {"n": 128}),
    "e4m3 scores": (lambda: in_bytes(cascades.linear_logsumexp(), {"x": E4M3, "w": E4M3}), SCORES),
    "e4m3 scores of a short axis": (lambda: in_bytes(cascades.linear_logsumexp(), {"x": E4M3, "w": E4M3}), SCORES | {"h": 128}),
    "int8 scores": (lambda: in_bytes(cascades.linear_logsumexp(), {"x": I8, "w": I8}), SCORES),
}  # weights with the contracted axis contiguous
TURNED = {"v": lambda n: (16 * 4096 * n["d"], 4096 * n["d"], 1, 4096), "w": lambda n: (1, n["k"])}
TF32: dict[str, tuple[str, dict[str, int], str]] = {
    "tf32 attention 64": ("attention", HEADS | {"e": 64, "d": 64}, "v"),
    "tf32 attention 128": ("attention", HEADS | {"e": 128, "d": 128}, "v"),
    "tf32 attention 256": ("attention", HEADS | {"e": 256, "d": 256}, "v"),
    "tf32 attention 128, values row by row": ("attention", HEADS | {"e": 128, "d": 128}, ""),
    "tf32 scores": ("linear_logsumexp", SCORES, ""),
    "tf32 scores of odd rows": ("linear_logsumexp", SCORES | {"h": 4095}, ""),
    "tf32 rms linear": ("rms_linear", LINEAR, "w"),
    "tf32 k-means": ("kmeans", {"i": 100000, "f": 128, "j": 1024}, ""),
}  # the operand that is named with its summed axis contiguous
SHARED: dict[str, tuple[Callable[[], cascades.Workload], dict[str, int]]] = {
    "mla, values in the keys": (lambda: narrowed(latent(), out=BF16), CASES["mla"][1]),
    "decode, values in the keys": (lambda: narrowed(latent(), out=BF16), CASES["mla"][1] | {"h": 16}),
}
QUICK = ("attention 128", "linear logsumexp", "e4m3 linear", "tf32 scores", "tf32 attention 64")


def row(report: KernelReport, shared: int) -> dict[str, int]:
    counts = {n: report.count(n) for n in COUNTED} if disassembler() else {}
    counts |= {n: report.count(n) for n in OF_BYTES if counts and report.count(n)}
    return {"registers": report.registers, "shared": report.shared + shared} | counts


@pytest.mark.parametrize("gpu", [pytest.param("a100", marks=pytest.mark.slow), "h200", pytest.param("b200", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in (*CASES, *BYTES, *TF32, *SHARED)])
def test_the_table(name: str, gpu: str, update_golden: bool) -> None:
    device, strides = GPUS[gpu], dict[Any, Any]()
    if name in CASES:
        kind, extents = CASES[name]
        w = workload(kind, BF16, BF16)
    elif name in TF32:
        kind, extents, turned = TF32[name]
        w = fast(kind)
        strides |= {turned: TURNED[turned](extents)} if turned else {}
    else:
        make, extents = (BYTES | SHARED)[name]
        w = make()
        strides |= {"w": (1, extents["k"])} if "k" in extents else {}
    program = emit(schedule(w.cascade, extents, strides, device), device)
    reports = compile_report(program.text, device.arch)
    found = {}
    for launch in program.launches:
        report, shared = reports[launch.name], reports[launch.name].shared + launch.shared
        assert report.spills == 0 and not report.warnings, f"{launch.name} spills {report.spills} bytes; {report.warnings}"
        assert report.registers * launch.block <= device.registers and shared <= device.shared_limit
        found[launch.name] = row(report, launch.shared)
    table = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    key = f"{name}, {device.arch}"
    if update_golden:
        table[key] = found
        GOLDEN.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
        return
    known = table[key]
    assert sorted(known) == sorted(found), "other kernels than in the table; run pytest --update-golden and read the difference"
    for n, new in found.items():
        assert new["registers"] <= known[n]["registers"] + SLACK, (n, new, known[n])
        counted = ("shared", *COUNTED, *OF_BYTES) if "LDSM" in new else ("shared",)
        assert all(new.get(c) == known[n].get(c) for c in counted), (n, new, known[n])
