"""ThreadSanitizer over emulated kernels: finds missing barriers and fences by happens-before, whatever the schedule.

Every CUDA thread is a ThreadSanitizer fiber; barriers, __syncwarp, mbarriers and fenced atomics order them, shuffles do not.
It needs its library from the start of the process, so launches run in a child process.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .build import cache


@dataclass(frozen=True)
class Race:
    """Two unordered accesses. lines: of the CUDA source, as far as ThreadSanitizer names them."""

    lines: tuple[int, ...]
    report: str


def unavailable() -> str:
    """Why ThreadSanitizer cannot run here; empty when it can."""
    return "" if _library() else "ThreadSanitizer needs g++'s libtsan"


def _library() -> str:
    try:
        found = subprocess.run(["g++", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return os.path.realpath(found) if os.path.isabs(found) else ""


def races(target: str, *args: object) -> list[Race]:
    """Calls `module:function` with JSON arguments in a child process, its kernels built for ThreadSanitizer.

    Returns the races seen. Raises RuntimeError when the child fails otherwise.
    """
    suppressions = cache() / "suppressions"
    suppressions.write_text("race:operator new\nrace:operator delete\n")  # the runtime's own memory passes between fibers
    path = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)])
    environment = os.environ | {
        "LD_PRELOAD": _library(),
        "TSAN_OPTIONS": f"exitcode=0 report_thread_leaks=0 history_size=4 suppressions={suppressions}",
        "EMULATOR_SANITIZE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-m", "emulator.sanitize", target, json.dumps(args)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if "sanitized launches ended" not in done.stdout:
        raise RuntimeError(f"the sanitized process failed ({done.returncode}):\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    reports = re.findall(r"WARNING: ThreadSanitizer: data race.*?(?=\n={10})", done.stderr, re.S)
    return [Race(tuple(int(n) for n in re.findall(r"kernel\.cu:(\d+)", r)), r) for r in reports]


def main() -> None:
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), function)(*json.loads(sys.argv[2]))
    print("sanitized launches ended")


if __name__ == "__main__":
    main()
