"""What using the package costs: importing it, optimizing each workload, and a second call.

Times are the best of a few, in one process; the import is measured in fresh ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

IMPORT_TARGET, OPTIMIZE_TARGET, CALL_TARGET, ROWS_TARGET = 0.5, 0.3, 30e-6, 20_000


def register(commands: Any) -> None:
    parser = commands.add_parser("cost", help="import time, time to optimize each workload, overhead of a second call")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of which the best counts (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    imported = import_seconds(options.repeat)
    rows = [optimize_seconds(w, options.repeat) for w in _workloads()]
    target, call = call_seconds()
    if options.json:
        print(json.dumps({"import": imported, "second_call": call, "target": target, "optimize": rows}))
        return 0
    print(f"import redfuser_eq           {imported:8.3f} s   (target {IMPORT_TARGET} s)")
    print(f"second call, tiny input      {1e6 * call:8.1f} us  (target {1e6 * CALL_TARGET:.0f} us beyond running; {target}, with running)")
    print(f"optimize, warm, with validation (target {1000 * OPTIMIZE_TARGET:.0f} ms, {ROWS_TARGET} rows):")
    for r in rows:
        stages = "  ".join(f"{k} {1000 * v:4.0f}" for k, v in r["stages"].items())
        late = " *" if r["seconds"] > OPTIMIZE_TARGET or r["rows"] > ROWS_TARGET else "  "
        print(f"  {r['name']:42s} {1000 * r['seconds']:6.0f} ms{late} {r['rows']:6d} rows   {stages}")
    return 0


def _workloads() -> Any:
    from redfuser_eq.demo.workloads import WORKLOADS

    return WORKLOADS


def import_seconds(repeat: int) -> float:
    """Importing the package in a fresh interpreter, less starting one."""

    def start(code: str) -> float:
        return best(lambda: subprocess.run([sys.executable, "-c", code], check=True), repeat)

    return start("import redfuser_eq") - start("pass")


def optimize_seconds(w: Any, repeat: int) -> dict[str, Any]:
    """Tracing, saturating, extracting and validating a workload, with its rule set loaded before."""
    from redfuser_eq.device import device
    from redfuser_eq.plan import plan
    from redfuser_eq.rules import NAMED
    from redfuser_eq.trace import trace

    arrays, reports = w.shapes(), []

    def once() -> None:
        clock = time.perf_counter()
        program = trace(w.function, arrays, {}).program
        traced = time.perf_counter() - clock
        reports.append(plan(program, NAMED[w.numerics], device(None), verify="raise", budget=None, traced=traced).report)

    once()  # loads the rules
    seconds = best(once, repeat)
    fastest = min(reports[1:], key=lambda r: sum(r.seconds.values()))
    return {"name": w.name, "seconds": seconds, "rows": fastest.rows, "stages": fastest.seconds}


def call_seconds() -> tuple[str, float]:
    """The target, and a whole second call on a tiny input, where running the program costs next to nothing."""
    import numpy as np

    from redfuser_eq import optimize
    from redfuser_eq.demo.attention import attention

    x = np.ones((2, 4), np.float32)
    fused = optimize(attention)
    fused(x, x, x)
    return fused.report(x, x, x).target, min(timeit.repeat(lambda: fused(x, x, x), number=200, repeat=9)) / 200


def best(call: Callable[[], object], repeat: int) -> float:
    return min(_once(call) for _ in range(repeat))


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
