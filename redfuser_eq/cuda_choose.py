"""Which of a few schedules a GPU should run: the one that the performance model predicts to be fastest.

The scheduler's own decisions come first and win ties; the others overrule one decision each. Where no schedule could be faster than
one at hand, because arrays must be read and functions computed once (`cuda_floor.py`), the rest are not made.

Times are predicted for a batch that fills the GPU many times, whatever the batch at hand is, and for few or many rows that share a
stream, so that a row gives the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import cuda_schedule
from .cascade import Cascade
from .codegen import kernel as ir
from .cuda_floor import floor
from .cuda_tiles import FEW_ROWS
from .errors import IRError
from .gpu import Gpu
from .gpu_model import TENSOR, Prediction, model
from .roles import classify
from .schedule import Unsupported

FULL = 64  # blocks for each multiprocessor
TALLEST = 256  # rows of a tile
MARGIN = 0.1  # what the model cannot tell apart
LEAST = 16  # rows or elements of a tile


@dataclass(frozen=True)
class Candidate:
    """A schedule: what it overrules (nothing for the scheduler's own decisions), its kernel, and what it would cost."""

    choice: Mapping[str, Any]
    kernel: ir.Kernel
    predictions: tuple[Prediction, ...]

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.predictions)

    @property
    def bound(self) -> str:
        """What limits the longest of its launches."""
        return max(self.predictions, key=lambda p: p.seconds).bound if self.predictions else "nothing"

    @property
    def name(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in self.choice.items()) or "its own"


def candidates(cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, Sequence[int]], gpu: Gpu) -> tuple[Candidate, ...]:
    """The schedules that are considered, the scheduler's own first, no kernel twice. Raises Unsupported where it has none."""
    return tuple(_considered(cascade, extents, strides, gpu))


def choose(cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, Sequence[int]], gpu: Gpu) -> Candidate:
    """The best of the candidates; those after one that none can beat are not made."""
    found: list[Candidate] = []
    least = 0.0
    for c in _considered(cascade, extents, strides, gpu):
        least = least or floor(cascade, c.kernel, reference(cascade, c.kernel, extents, gpu), gpu)
        found.append(c)
        chosen = best(found)
        if chosen.seconds <= (1 + MARGIN) * least:
            break
    return chosen


def _considered(cascade: Cascade, extents: Mapping[str, int], strides: Mapping[Any, Sequence[int]], gpu: Gpu) -> Iterator[Candidate]:
    first = cuda_schedule.schedule(cascade, extents, strides, gpu, {})
    if not all(extents.values()):  # nothing to do takes no time in any
        yield Candidate({}, first, ())
        return
    sizes = reference(cascade, first, extents, gpu)
    yield Candidate({}, first, model(first, sizes, gpu))
    seen = {first}
    for choice in _others(first):
        try:
            kernel = cuda_schedule.schedule(cascade, extents, strides, gpu, choice)
        except (Unsupported, IRError):
            continue
        if kernel not in seen:
            seen.add(kernel)
            yield Candidate(choice, kernel, model(kernel, sizes, gpu))


def best(found: Sequence[Candidate]) -> Candidate:
    """The first that is as fast as any, as far as the model can tell."""
    least = min(c.seconds for c in found)
    return next(c for c in found if c.seconds <= (1 + MARGIN) * least)


def reference(cascade: Cascade, kernel: ir.Kernel, extents: Mapping[str, int], gpu: Gpu) -> dict[str, int]:
    """The extents with a batch that fills the GPU, many times, so that no last round of blocks counts: axes of the rows that no tile
    goes along count together; as many tiles of the rows, where they are not few."""
    tiled, streams = {p.row for p in kernel.phases}, {p.stream for p in kernel.phases}
    rows = dict.fromkeys(x for p in cascade.passes for x in classify(p).rows)
    batch = [x for x in rows if x not in tiled | streams]
    blocks = FULL * gpu.multiprocessors
    long = {x: blocks * TALLEST for x in rows if x in tiled and x not in streams and extents[x] > FEW_ROWS}
    return {**extents, **dict.fromkeys(batch, 1), **dict.fromkeys(batch[:1], blocks), **long}


def _others(kernel: ir.Kernel) -> Iterator[dict[str, Any]]:
    """What could overrule a decision: no more registers or shared memory than the kernel has now."""
    phases = [p for p in kernel.phases if p.stream and p.place is not None and p.name != "merge"]
    forms = {p.place.form for p in phases if p.place is not None}
    if "wgmma" in forms:
        yield {"groups": False}
    if any(p.place is not None and p.place.across > 1 for p in phases):
        yield {"across": 1}
    known = ["mma" if f in TENSOR else f for f in forms if f in (*TENSOR, *cuda_schedule.FORMS)]
    last = max((cuda_schedule.FORMS.index(f) for f in known), default=len(cuda_schedule.FORMS))
    yield from ({"form": f} for f in cuda_schedule.FORMS[last + 1 :])
    tiles = [p for p in phases if p.place is not None and p.place.form in (*TENSOR, "tile")]
    rows = max((p.rows for p in tiles), default=0)
    depth = max((_depth(p) for p in tiles), default=0)
    yield from ({"rows": n} for n in _halves(rows) if n <= 64)
    yield from ({"depth": n} for n in _halves(depth))
    parts = max((p.place.parts for p in tiles if p.place is not None), default=1)
    yield from ({"parts": n} for n in _halves(parts, 2))
    if any(isinstance(s, ir.Stage) for p in phases if p.place is not None and p.place.form == "rows" for s in p.body):
        yield {"near": False}
    group = max((p.place.group for p in phases if p.place is not None and p.place.form == "rows"), default=0)
    yield from ({"group": n} for n in (group // 2, group // 4) if n >= 32)


def _depth(p: ir.Phase) -> int:
    assert p.place is not None
    return max((s.step for s in ir.statements(p.body) if isinstance(s, ir.Loop)), default=0) // (p.place.parts * p.place.across)


def _halves(n: int, least: int = LEAST) -> Iterator[int]:
    while n % 2 == 0 and n // 2 >= least:
        n //= 2
        yield n
