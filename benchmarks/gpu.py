"""`python -m benchmarks gpu`: our CUDA kernels against torch's, on the GPU at hand, within a time limit.

One process and one GPU. For each workload: inputs on the device, our kernel built and compared with float64, then all contenders
timed in turn, with the L2 cache flushed before each call. Results are written after each workload, so that an interrupted run
leaves what it has. `--dry` needs no GPU: it schedules and prints every kernel and shows what the performance model predicts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from redfuser_eq.expr import Load, nodes

from .workloads import Bench, _values

Run = Callable[[], Any]
FLUSH = 256 << 20  # bytes, more than any L2 cache
BLOCK = 1 << 22  # random numbers that are made on the host; larger inputs repeat them
SHARE = 0.25  # seconds of timing for one contender


@dataclass
class Row:
    """One contender at one workload. seconds: median on the device, None when it did not take part (`note` says why). host: seconds
    until a call returns, its work queued on an idle device. error: as in the CPU's table, against float64. traffic: bytes of
    inputs and results. predicted: seconds, by the performance model."""

    workload: str
    contender: str
    seconds: float | None = None
    error: float | None = None
    traffic: float = 0.0
    flops: float = 0.0
    predicted: float | None = None
    bound: str = ""
    goal: float = 0.0
    note: str = ""
    host: float = 0.0


def register(commands: Any) -> None:
    parser = commands.add_parser("gpu", help="CUDA kernels against torch, SDPA's backends and FlexAttention")
    parser.add_argument("--workload", action="append", help="only workloads whose name contains this (may be repeated)")
    parser.add_argument("--contender", action="append", help="only these contenders, and ours")
    parser.add_argument("--seconds", type=float, default=440, help="limit of the whole run (default: 440)")
    parser.add_argument("--small", action="store_true", help="sizes that take microseconds, to try the benchmark itself")
    parser.add_argument("--dry", action="store_true", help="no device: list kernels and predictions")
    parser.add_argument("--gpu", default="h200", help="with --dry: whose limits to predict by (default: h200)")
    parser.add_argument("--sources", type=Path, help="folder to write the CUDA text of every workload to")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for gpu.json and gpu.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    chosen = _chosen(options)
    if options.dry:
        print(_dry(chosen, options))
        return 0
    from redfuser_eq.errors import BackendError
    from redfuser_eq.runtime import cuda_cupy

    try:
        device = cuda_cupy.current()
    except BackendError as error:
        print(f"{error}\nWithout a GPU: python -m benchmarks gpu --dry", file=sys.stderr)
        return 2
    deadline = time.monotonic() + options.seconds
    print(f"{len(chosen)} workloads; compiled in {prebuild(chosen, device):.0f} s", flush=True)
    clock = Clock(device)
    result: dict[str, Any] = {"machine": _machine(device), "copy": clock.copy_bandwidth(1 << 26 if options.small else 1 << 31), "rows": []}
    options.out.mkdir(parents=True, exist_ok=True)
    for n, w in enumerate(chosen):
        left = deadline - time.monotonic()
        rows = measure(w, device, clock, options, time.monotonic() + 1.5 * left / (len(chosen) - n), left < 5)
        result["rows"] += [asdict(r) for r in rows]
        print(f"{deadline - time.monotonic():5.0f} s left  {w.name}: {_line(rows)}", flush=True)
        (options.out / "gpu.json").write_text(json.dumps(result, indent=1))
        (options.out / "gpu.md").write_text(markdown(result))
    print(markdown(result))
    return 0


def _chosen(options: argparse.Namespace) -> list[Bench]:
    from .gpu_workloads import WORKLOADS

    found = [w for w in WORKLOADS if not options.workload or any(part in w.name for part in options.workload)]
    return [w.small() for w in found] if options.small else found


def _machine(device: Any) -> dict[str, str]:
    from importlib import metadata

    found = {"gpu": device.gpu.name, "capability": str(device.gpu.capability), "multiprocessors": str(device.gpu.multiprocessors)}
    for package in ("cupy-cuda12x", "cupy-cuda13x", "torch", "triton", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _line(rows: list[Row]) -> str:
    return ", ".join(f"{r.contender} {1e6 * r.seconds:.1f} us" if r.seconds else f"{r.contender} -" for r in rows)


# ---- programs
def _programs(w: Bench, gpu: Any, name: str) -> tuple[Any, Any, dict[str, int]]:
    """(the cascade, the programs that a call runs, extents), as `optimize` makes them for row-major arrays."""
    from redfuser_eq.device import DEVICES, device
    from redfuser_eq.plan import plan
    from redfuser_eq.rules import NAMED
    from redfuser_eq.runtime import cuda
    from redfuser_eq.schedule import row_major
    from redfuser_eq.trace import trace

    arrays = [np.empty(shape, dtype) for shape, dtype in _specs(w)]
    program = trace(lambda *a: w.function(np, *a), tuple(arrays), {}).program
    made = plan(program, NAMED["default"], device(name if name in DEVICES else "h200"), verify=True, budget=None)
    extents = {a: int(n or 0) for a, n in made.cascade.extents.items()}
    dims = {e.source: e.dims for o in program.outputs for e in nodes(o.expr) if isinstance(e, Load)}
    strides = {s: row_major(d, extents) for s, d in dims.items()}
    return made.cascade, cuda.programs(made.cascade, made.plain, extents, strides, gpu), extents


def prebuild(chosen: list[Bench], device: Any) -> float:
    """Compile what our contender will run, many at a time, into the cache of builds. Returns the seconds it took."""
    from redfuser_eq.errors import BackendError
    from redfuser_eq.runtime import cuda_cupy

    start, waiting = time.monotonic(), []
    with ThreadPoolExecutor() as pool:
        for w in chosen:
            try:
                _, programs, _ = _programs(w, device.gpu, "h200")
            except BackendError:
                continue  # its row will say why
            waiting += [pool.submit(cuda_cupy.build, p.text, device.arch(p)) for p in programs if p is not None]
        for one in waiting:
            one.exception()
    return time.monotonic() - start


# ---- without a device
def _dry(chosen: list[Bench], options: argparse.Namespace) -> str:
    """A table of what would run."""
    from redfuser_eq import gpu_model
    from redfuser_eq.errors import BackendError
    from redfuser_eq.gpu import GPUS

    gpu = GPUS[options.gpu]
    lines = [f"Predicted for {gpu.name}; nothing was measured.", "", "| workload | launches | predicted, us | bound by | GB/s | TFLOP/s |"]
    lines.append("|---" * 6 + "|")
    for w in chosen:
        try:
            cascade, (made, _), extents = _programs(w, gpu, options.gpu)
            models = gpu_model.predict(cascade, extents, gpu)
        except BackendError as error:
            lines.append(f"| {w.name} | - | {str(error).splitlines()[0][:120]} | | | |")
            continue
        if options.sources:
            options.sources.mkdir(parents=True, exist_ok=True)
            (options.sources / f"{w.name.replace(' ', '_').replace('/', '_')}.cu").write_text(made.text)
        seconds = sum(m.seconds for m in models)
        bound = max(models, key=lambda m: m.seconds).bound
        rate = [f"{x / seconds:.3g}" for x in (_traffic(w) / 1e9, w.flops(w.sizes) / 1e12)]
        lines.append(f"| {w.name} | {len(made.launches)} | {1e6 * seconds:.1f} | {bound} | {rate[0]} | {rate[1]} |")
    return "\n".join(lines)


def _specs(w: Bench) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of each input."""
    found = []
    for spec in w.inputs.values():
        shape, kind = spec if isinstance(spec[0], tuple) else (spec, "normal")
        example = _values(kind, (1,), w.sizes, np.random.default_rng(0), w.dtype)
        found.append((tuple(w.sizes[s] if isinstance(s, str) else s for s in shape), example.dtype))
    return found


def _traffic(w: Bench) -> float:
    return float(sum(math.prod(shape) * dtype.itemsize for shape, dtype in _specs(w)))


# ---- on the device
class Clock:
    """Times calls by events on the stream, each after a flush of the L2 cache, which also keeps the queue full, so that the
    host's time for a call does not show."""

    def __init__(self, device: Any) -> None:
        self.cupy, self.device = device.cupy, device
        self.flush = device.alloc(FLUSH)

    def seconds(self, run: Run, least: int = 5, most: int = 60) -> float:
        """Median of as many calls as fit into SHARE."""
        run()
        first = self._time(run, 1)[0]
        return statistics.median(self._time(run, max(least, min(most, int(SHARE / max(first, 1e-7))))))

    def host(self, run: Run) -> float:
        """Median of the host's time for a call: what launching costs."""
        found = []
        for _ in range(9):
            idle = self.cupy.cuda.Event()
            idle.record()
            idle.synchronize()
            start = time.perf_counter()
            run()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    def _time(self, run: Run, times: int) -> list[float]:
        events = []
        for _ in range(times):
            self.device.fill(self.flush, 0, FLUSH)
            start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record()
            run()
            end.record()
            events.append((start, end))
        events[-1][1].synchronize()
        return [1e-3 * self.cupy.cuda.get_elapsed_time(a, b) for a, b in events]

    def copy_bandwidth(self, nbytes: int) -> float:
        """Bytes a second, read plus written."""
        a, b = (self.device.empty((nbytes,), np.dtype(np.uint8)) for _ in range(2))
        a.data.memset_async(0, nbytes)
        return 2 * nbytes / self.seconds(lambda: b.data.copy_from_device_async(a.data, nbytes))


def measure(w: Bench, device: Any, clock: Clock, options: argparse.Namespace, until: float, late: bool) -> list[Row]:
    """All contenders of a workload; those that are not built at the time `until` are left out."""
    if late:
        return [Row(w.name, "ours", note="no time left")]
    arrays = inputs(w, device)
    traffic = float(sum(a.nbytes for a in arrays))
    rows, runs = {}, {}
    want: list[Any] | None = None
    for name, make in makers(w, device, arrays).items():
        if name != "ours" and options.contender and name not in options.contender:
            continue
        row = rows[name] = Row(w.name, name, traffic=traffic, flops=w.flops(w.sizes))
        if name != "ours" and time.monotonic() > until:
            row.note = "no time left"
            continue
        try:
            runs[name] = make()
            got = runs[name]()
            if name == "ours":
                row.goal = w.goal
                row.predicted, row.bound = _predicted(w, device.gpu)
                row.traffic = traffic = traffic + float(sum(a.nbytes for a in _leaves(got)))
                want = exact(w, arrays)
            row.error = _error([on_host(device, a) for a in _leaves(got)], want) if want is not None else None
            if row.error is not None and name == "ours" and row.error > w.tolerance:
                row.note = f"error above {w.tolerance:g}"
            del got
            row.seconds = clock.seconds(runs[name])
            row.host = clock.host(runs[name])
        except Exception as error:  # a contender that fails is reported, whatever it raises
            row.note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return list(rows.values())


def inputs(w: Bench, device: Any) -> list[Any]:
    """On the device; large ones repeat a block of random numbers, row by row shifted by its odd length."""
    rng = np.random.default_rng(0)
    made = []
    for (shape, dtype), spec in zip(_specs(w), w.inputs.values(), strict=True):
        kind = spec[1] if isinstance(spec[0], tuple) else "normal"
        total = math.prod(shape)
        block = _values(kind, (min(total, BLOCK - 1),), w.sizes, rng, w.dtype).astype(dtype)
        array = device.empty((total,), dtype)
        for start in range(0, total, block.size):
            device.write(array[start : start + block.size], block[: total - start])
        made.append(array.reshape(shape))
    return made


def makers(w: Bench, device: Any, arrays: list[Any]) -> dict[str, Callable[[], Run]]:
    """How each contender makes its function of no arguments."""
    found: dict[str, Callable[[], Run]] = {"ours": lambda: ours(w, arrays)}
    if w.torch is not None:
        found |= {"torch": lambda: _torch(w.torch, arrays), "torch.compile": lambda: _compiled(w.torch, arrays)}
    return found | {name: (lambda f=f: _torch(f, arrays)) for name, f in w.named.items()}


def ours(w: Bench, arrays: list[Any]) -> Run:
    import redfuser_eq as rf

    fused = rf.optimize(lambda *a: w.function(np, *a), target="cuda")
    if not w.reuse:
        return lambda: fused(*arrays)
    out = fused(*arrays)
    return lambda: fused(*arrays, out=out)


def tensors(arrays: list[Any]) -> tuple[Any, list[Any]]:
    """torch, and the arrays as its tensors, over the same memory."""
    import torch

    from redfuser_eq.arrays import TORCH_CUDA

    torch.set_grad_enabled(False)
    return torch, [TORCH_CUDA.give(a) for a in arrays]


def _torch(f: Any, arrays: list[Any]) -> Run:
    torch, given = tensors(arrays)
    return lambda: f(torch, *given)


def _compiled(f: Any, arrays: list[Any]) -> Run:
    torch, given = tensors(arrays)
    torch._dynamo.reset()
    made = torch.compile(lambda *t: f(torch, *t), dynamic=False)
    return lambda: made(*given)


def exact(w: Bench, arrays: list[Any]) -> list[np.ndarray[Any, Any]] | None:
    """The result in float64, by torch on the device where it is installed and has the memory, else by NumPy when small."""
    if w.torch is not None and _has_torch():
        torch, given = tensors(arrays)
        try:
            wide = [t if t.dtype in (torch.int32, torch.int64) else t.double() for t in given]
            return [a.cpu().numpy() for a in _leaves(w.torch(torch, *wide))]
        except torch.OutOfMemoryError:
            return None
    if sum(a.size for a in arrays) > 1 << 24:
        return None
    values = [a.get() for a in arrays]
    with np.errstate(all="ignore"):
        return [np.asarray(a) for a in _leaves(w.function(np, *[v if v.dtype.kind in "iu" else v.astype(np.float64) for v in values]))]


def _has_torch() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def on_host(device: Any, array: Any) -> np.ndarray[Any, Any]:
    """A contender's result, widened where NumPy lacks the dtype."""
    if hasattr(array, "detach"):
        return (array.float() if array.dtype.itemsize < 4 else array).cpu().numpy()  # type: ignore[no-any-return]
    return device.to_host(array)  # type: ignore[no-any-return]


def _leaves(result: Any) -> list[Any]:
    return [a for r in result for a in _leaves(r)] if isinstance(result, (tuple, list)) else [result]


def _error(got: list[Any], want: list[Any]) -> float:
    from .cpu import _error as largest

    return largest([g if g.dtype.kind in "iu" else g.astype(np.float64) for g in got], want)


def _predicted(w: Bench, gpu: Any) -> tuple[float, str]:
    from redfuser_eq import gpu_model

    cascade, _, extents = _programs(w, gpu, "h200")
    models = gpu_model.predict(cascade, extents, gpu)
    return sum(m.seconds for m in models), max(models, key=lambda m: m.seconds).bound


# ---- the table
def markdown(result: Mapping[str, Any]) -> str:
    """Our time, what it reaches, and how many times longer the others take; the best of them in bold."""
    grouped: dict[str, dict[str, dict[str, Any]]] = {}
    for row in result["rows"]:
        grouped.setdefault(row["workload"], {})[row["contender"]] = row
    names = list(dict.fromkeys(r["contender"] for r in result["rows"] if r["contender"] != "ours"))
    lines = ["# GPU benchmarks", "", ", ".join(f"{k} {v}" for k, v in result["machine"].items()), ""]
    lines += [f"Copying (read + written): {result['copy'] / 1e9:.0f} GB/s, in the same run. Others: their time / ours.", ""]
    lines.append(f"| workload | ours, us | predicted | GB/s | of copy | TFLOP/s | host, us | error | goal | {' | '.join(names)} |")
    lines.append("|---" * (9 + len(names)) + "|")
    for workload, rows in grouped.items():
        lines.append(f"| {workload} | {' | '.join(_cells(rows, names, result['copy']))} |")
    notes = [f"- {r['workload']}, {r['contender']}: {r['note']}" for r in result["rows"] if r["note"]]
    return "\n".join([*lines, "", *(["Notes:", "", *notes, ""] if notes else [])])


def _cells(rows: Mapping[str, Mapping[str, Any]], names: list[str], copy: float) -> list[str]:
    own = rows.get("ours", {})
    seconds = own.get("seconds")
    if not seconds:
        return ["-"] * (8 + len(names))
    ratios = {n: rows[n]["seconds"] / seconds for n in names if n in rows and rows[n]["seconds"]}
    best = min(ratios, key=ratios.__getitem__, default=None)
    met = "" if best is None or ratios[best] >= own["goal"] else " ✗"
    rate = own["traffic"] / seconds
    predicted = "" if own["predicted"] is None else f"{1e6 * own['predicted']:.1f}, {own['bound']}"
    error = "?" if own["error"] is None else f"{own['error']:.1e}"
    first = [f"{1e6 * seconds:.1f}", predicted, f"{rate / 1e9:.0f}", f"{rate / copy:.2f}", f"{own['flops'] / seconds / 1e12:.0f}"]
    first += [f"{1e6 * own['host']:.0f}", error]
    others = [f"**{ratios[n]:.2f}**" if n == best else f"{ratios[n]:.2f}" if n in ratios else "-" for n in names]
    return [*first, f"{own['goal']:g}x{met}", *others]
