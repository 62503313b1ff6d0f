"""Timing contenders in turn, and the memory each needs beyond what it is given."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Run = Callable[[], object]
PAUSE = 0.03  # seconds between contenders, for the other's threads to go to sleep


def interleaved(runs: Mapping[str, Run], rounds: int = 7, slice_seconds: float = 0.12, budget: float = 3.0) -> dict[str, float]:
    """Median seconds of each. Contenders take turns, so that a change of the machine's speed meets all of them; each is called
    for about `slice_seconds` a round (untimed first, where that is not most of the slice), and left out once it has used
    `budget` seconds and three rounds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            seen = times[name]
            if len(seen) >= 3 and sum(seen) > budget:
                continue
            time.sleep(PAUSE)
            if not seen or seen[-1] < slice_seconds:
                run()
            spent = 0.0
            while spent < slice_seconds:
                start = time.perf_counter()
                run()
                seen.append(time.perf_counter() - start)
                spent += seen[-1]
    return {name: statistics.median(seen) for name, seen in times.items()}


def peak_memory(run: Run) -> int | None:
    """Bytes that a call adds to the process's resident memory at its highest, its result included; None where the system
    does not say. Blocks that an allocator kept from earlier calls are given back first, as far as it can be told to."""
    if sys.platform != "linux":
        return None
    from redfuser_eq.runtime import pool

    gc.collect()
    pool.trim()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    except OSError:
        return None
    before = _status("VmRSS")
    result = run()
    peak = _status("VmHWM")
    del result
    return max(0, peak - before)


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found.group(1)) << 10 if found else 0
