"""Measured schedules: a few candidates timed on the caller's own arrays, the winner remembered on disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..cascade import Cascade
from ..codegen.kernel import Kernel
from ..schedule import candidates, schedule
from .compiler import cache_dir
from .device import Device

ROUNDS = 7
SECONDS = 0.2  # for one candidate, at most, after its first rounds


def tuned(
    cascade: Cascade,
    extents: Mapping[str, int],
    strides: Mapping[Any, tuple[int, ...]],
    device: Device,
    threads: int,
    runner: Callable[[Kernel], Callable[[], Any]],
) -> Kernel:
    """The fastest of the schedule's candidates. runner: a kernel -> a function that runs it once.

    The candidates take turns, so that a change of the machine's speed meets all of them alike; the median decides. A winner is
    found again for the same kernel, extents, strides, device and threads."""
    choices = candidates(cascade, extents, strides, device, threads)
    kernels = [schedule(cascade, extents, strides, device, threads, choice) for choice in choices]
    if len(kernels) == 1:
        return kernels[0]
    parts = ([k.key for k in kernels], sorted(extents.items()), sorted(map(repr, strides.items())), repr(device), threads)
    memory = cache_dir() / "tuned" / (hashlib.sha256(repr(parts).encode()).hexdigest()[:32] + ".json")
    best = _recall(memory, len(kernels))
    if best is None:
        times = _measure([runner(k) for k in kernels])
        best = min(range(len(times)), key=times.__getitem__)
        _remember(memory, {"best": best, "choice": repr(choices[best]), "seconds": times})
    return kernels[best]


def _measure(runs: list[Callable[[], Any]]) -> list[float]:
    """Median seconds of each."""
    times: list[list[float]] = [[] for _ in runs]
    columns = (TextColumn("measuring schedules"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=ROUNDS * len(runs))
        for run in runs:
            run()
        for _ in range(ROUNDS):
            for run, seen in zip(runs, times, strict=True):
                progress.advance(task)
                if len(seen) >= 3 and sum(seen) > SECONDS:
                    continue
                start = time.perf_counter()
                run()
                seen.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def _recall(memory: Path, n: int) -> int | None:
    """The remembered winner; None when there is none or the file is broken."""
    try:
        best = json.loads(memory.read_text(encoding="utf-8"))["best"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return best if isinstance(best, int) and 0 <= best < n else None


def _remember(memory: Path, found: Mapping[str, Any]) -> None:
    memory.parent.mkdir(mode=0o700, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=memory.parent)
    with contextlib.closing(os.fdopen(handle, "w", encoding="utf-8")) as f:
        json.dump(found, f)
    os.replace(name, memory)
