"""`python -m benchmarks cpu`: our CPU kernels against what a user could pick instead.

For each thread count one process, restricted to that many CPUs, measures the machine's roofline and then every workload, its
contenders in turn. On Linux a further process holds torch with MKL's vendor check lifted (MKL runs at half speed on AMD by
default): its times are scaled by ours, which is measured in both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

LIFTED = "torch, MKL check lifted"
SHIM = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"


@dataclass
class Row:
    """One contender at one workload. seconds: median, None when it did not take part (`note` says why). error: largest
    difference from NumPy's float32 result, relative to the largest value (share of unequal entries for integers). memory:
    extra bytes at the peak of a call. roofline: least possible time for the traffic and flops / seconds."""

    workload: str
    threads: int
    contender: str
    seconds: float | None = None
    error: float | None = None
    memory: int | None = None
    roofline: float | None = None
    goal: float = 0.0
    note: str = ""


def register(commands: Any) -> None:
    parser = commands.add_parser("cpu", help="CPU kernels against NumPy, torch, JAX and ONNX Runtime")
    parser.add_argument("--workload", action="append", help="only workloads whose name contains this (may be repeated)")
    parser.add_argument("--contender", action="append", help="only these contenders, and ours")
    parser.add_argument("--threads", default="1,2", help="thread counts, one process each (default: 1,2)")
    parser.add_argument("--small", action="store_true", help="sizes that take milliseconds, to try the benchmark itself")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tune", action="store_true", help="measure our tuned schedules as well")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for cpu.json, cpu.md and cpu.png")
    parser.add_argument("--child", choices=["stock", "lifted"], help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.child:
        for part in _child(options):
            print(json.dumps(part), flush=True)
        return 0
    from . import report

    result = _earlier(options)
    for threads in (int(t) for t in options.threads.split(",")):
        for part in _spawn(options, threads, "stock", {}):
            _record(options, result, threads, part)
        if sys.platform == "linux" and find_spec("torch") is not None and (not options.contender or LIFTED in options.contender):
            for rows in _lifted(options, threads, result["rows"]):
                _record(options, result, threads, {"rows": rows})
    table = report.markdown(result)
    (options.out / "cpu.md").write_text(table)
    print(table)
    print(report.plot(result, options.out / "cpu.png"))
    return 0


def _earlier(options: argparse.Namespace) -> dict[str, Any]:
    """What the folder holds of the same machine and versions: a workload that is not measured again keeps its rows, all of
    which come from one run."""
    result: dict[str, Any] = {"machine": _machine(), "roofline": {}, "rows": []}
    path = options.out / "cpu.json"
    if path.exists():
        found = json.loads(path.read_text())
        if found["machine"] == result["machine"]:
            return dict(found)
    return result


def _record(options: argparse.Namespace, result: dict[str, Any], threads: int, part: dict[str, Any]) -> None:
    """Put a part of the results in place and on disk at once: a run that is stopped loses one workload."""
    if "roofline" in part:
        result["roofline"][str(threads)] = part["roofline"]
    new = {(r["workload"], r["threads"], r["contender"]) for r in part.get("rows", ())}
    fresh = {w for w, _, c in new if c == "ours"}  # a workload's contenders are compared within one run only
    result["rows"] = [
        r
        for r in result["rows"]
        if (r["workload"], r["threads"], r["contender"]) not in new and not (r["workload"] in fresh and r["threads"] == threads)
    ]
    result["rows"] += part.get("rows", ())
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cpu.json").write_text(json.dumps(result, indent=1))


def _machine() -> dict[str, str]:
    from redfuser_eq.runtime import compiler
    from redfuser_eq.runtime.device import cpu

    name = compiler.find().identity.split("/")[-1].split()[0]
    found = {"cpu": cpu().name, "isa": cpu().isa, "python": platform.python_version(), "compiler": name}
    for package in ("numpy", "torch", "jax", "onnxruntime"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _spawn(options: argparse.Namespace, threads: int, kind: str, env: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The results of a process of its own with this many CPUs, as they come."""
    command = [sys.executable, "-m", "benchmarks", "cpu", "--child", kind, "--threads", str(threads), "--rounds", str(options.rounds)]
    command += [x for w in options.workload or () for x in ("--workload", w)] + [
        x for c in options.contender or () for x in ("--contender", c)
    ]
    command += ["--small"] * options.small + ["--tune"] * options.tune
    numbers = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "REDFUSER_NUM_THREADS")}
    with subprocess.Popen(command, env={**os.environ, **numbers, **env}, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):  # libraries print too
                yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"the benchmark's process for {threads} threads failed with status {child.returncode}")


def _lifted(options: argparse.Namespace, threads: int, stock: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """torch again in a process whose MKL believes in its CPU; seconds scaled by the ratio of our own in both processes."""
    from redfuser_eq.errors import BackendError
    from redfuser_eq.runtime import compiler

    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "shim.c", Path(folder) / "shim.so"
        source.write_text(SHIM)
        try:
            command = [*compiler.find().command, "-shared", "-fPIC", str(source), "-o", str(library)]
        except BackendError as error:
            yield [asdict(Row("", threads, LIFTED, note=str(error)))]
            return
        subprocess.run(command, check=True)
        ours = {r["workload"]: r["seconds"] for r in stock if r["contender"] == "ours" and r["threads"] == threads}
        for part in _spawn(options, threads, "lifted", {"LD_PRELOAD": str(library)}):
            rows = {r["contender"]: r for r in part.get("rows", ())}
            if "torch" in rows:
                r, here, there = rows["torch"], ours.get(rows["torch"]["workload"]), rows["ours"]["seconds"]
                r["seconds"] = r["seconds"] * here / there if r["seconds"] and here and there else None
                yield [{**r, "contender": LIFTED}]


# ---- inside the process of one thread count
def _child(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import Progress

    from . import roofline
    from .workloads import WORKLOADS

    threads = int(options.threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    machine = roofline.measure(threads, 16 if options.small else 256)
    chosen = [w for w in WORKLOADS if not options.workload or any(part in w.name for part in options.workload)]
    yield {"roofline": asdict(machine)}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{threads} thread{'s' * (threads > 1)}", total=len(chosen))
        for w in chosen:
            progress.update(task, description=f"{threads} thread{'s' * (threads > 1)}: {w.name}")
            yield {"rows": [asdict(r) for r in _measure(w.small() if options.small else w, threads, options, machine)]}
            progress.advance(task)


def _measure(w: Any, threads: int, options: argparse.Namespace, machine: Any) -> list[Row]:
    """All contenders of a workload."""
    from . import timing
    from .contenders import CONTENDERS, OURS, as_arrays, named

    arrays = w.arrays(np.random.default_rng(0))
    makers = {n: (lambda f=f: f(w, arrays, threads)) for n, f in CONTENDERS.items()} | dict(named(w, arrays, threads))
    if options.child == "lifted":
        makers = {n: makers[n] for n in ("ours", "torch")}
    elif options.contender:
        makers = {n: m for n, m in makers.items() if n == "ours" or n in options.contender}
    if not options.tune:
        makers.pop("ours, tuned", None)
    rows = {n: Row(w.name, threads, n, goal=w.goal if n in OURS else 0.0) for n in makers}
    runs = {}
    for name, make in makers.items():
        try:
            runs[name] = make()
            first = runs[name]()
            if name == "ours":
                reference = [np.array(a) for a in as_arrays(first)]
            rows[name].error = _error(as_arrays(first), reference)
            del first
        except Exception as error:  # a contender that fails is reported, whatever it raises
            rows[name].note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            runs.pop(name, None)
    traffic = sum(a.nbytes for a in arrays) + sum(a.nbytes for a in reference)
    for name, seconds in timing.interleaved(runs, options.rounds).items():
        rows[name].seconds = seconds
        rows[name].memory = timing.peak_memory(runs[name])
        rows[name].roofline = machine.seconds(traffic, w.flops(w.sizes), np.dtype(arrays[0].dtype).itemsize) / seconds
    return list(rows.values())


def _error(got: list[Any], want: list[Any]) -> float:
    """Largest difference relative to the largest value; for integers the share that differs."""
    worst = 0.0
    for g, x in zip(got, want, strict=True):
        g = g.reshape(x.shape) if g.size == x.size else g
        if x.dtype.kind in "iu":
            worst = max(worst, float((g != x).mean()))
        elif g.shape == x.shape:
            difference = np.abs(g.astype(np.float64) - x.astype(np.float64)).max(initial=0)
            worst = max(worst, float(difference / np.abs(x.astype(np.float64)).max(initial=1e-30)))
    return worst
