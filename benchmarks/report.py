"""Results as a Markdown table and a plot."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

from .workloads import WORKLOADS

OURS = ("ours", "ours, tuned")
NOT_STOCK = (*OURS, "torch, MKL check lifted")  # quoted, but no one's stock choice
SHORT = {"torch.compile": "compile", "torch, MKL check lifted": "torch, lifted"}


def ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One record a workload and thread count: our time, and how many times slower each contender is."""
    grouped: dict[tuple[str, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in result["rows"]:
        grouped[row["workload"], row["threads"]][row["contender"]] = row
    out = []
    order = {w.name: n for n, w in enumerate(WORKLOADS)}  # not that of the measurements: a part may have been done again
    for (workload, threads), rows in sorted(grouped.items(), key=lambda x: (x[0][1], order.get(x[0][0], len(order)))):
        own = [rows[n] for n in OURS if n in rows and rows[n]["seconds"]]
        if not own:
            continue
        best_own = min(own, key=lambda r: r["seconds"])
        others = {n: r["seconds"] / best_own["seconds"] for n, r in rows.items() if n not in OURS and r["seconds"]}
        stock = {n: x for n, x in others.items() if n not in NOT_STOCK}
        best = min(stock, key=stock.__getitem__) if stock else None
        memory = {n: r["memory"] for n, r in rows.items() if r["memory"] is not None}
        out.append({"workload": workload, "threads": threads, "row": best_own, "others": others, "best": best, "memory": memory})
    return out


def markdown(result: dict[str, Any]) -> str:
    """A table for each thread count: ratios above 1 mean that ours is faster."""
    records = ratios(result)
    lines = ["# CPU benchmarks", "", ", ".join(f"{k} {v}" for k, v in result["machine"].items()), ""]
    for threads in sorted({r["threads"] for r in records}):
        roof = result["roofline"][str(threads)]
        here = [r for r in records if r["threads"] == threads]
        names = list(dict.fromkeys(n for r in here for n in r["others"]))
        lines += [
            f"## {threads} thread{'s' * (threads > 1)}",
            "",
            f"Measured in the same run: {roof['read'] / 1e9:.1f} GB/s read, {roof['copy'] / 1e9:.1f} GB/s copied (read + written), "
            f"{roof['flops'] / 1e9:.0f} GFLOP/s float32. Numbers are time of the contender / ours; the best stock one in bold.",
            "",
            f"| workload | ours, ms | of roofline | goal | {' | '.join(SHORT.get(n, n) for n in names)} | extra MB: ours, best |",
            "|---" * (5 + len(names)) + "|",
        ]
        for r in here:
            cells = [_cell(r, n) for n in names]
            own, best = r["row"], r["best"]
            met = "" if best is None else ("" if r["others"][best] >= own["goal"] else " ✗")
            memory = ", ".join(_megabytes(r["memory"].get(n)) for n in (own["contender"], best or ""))
            first = [r["workload"], f"{1e3 * own['seconds']:.3g}", f"{own['roofline']:.2f}", f"{own['goal']:g}x{met}"]
            lines.append(f"| {' | '.join([*first, *cells, memory])} |")
        means = [f"{SHORT.get(n, n)} {_mean([r['others'][n] for r in here if n in r['others']]):.2f}x" for n in names]
        best = _mean([r["others"][r["best"]] for r in here if r["best"]])
        lines += ["", f"Geometric means: best stock {best:.2f}x, {', '.join(means)}.", ""]
    return "\n".join([*lines, *_notes(result["rows"])])


def _notes(rows: list[dict[str, Any]]) -> list[str]:
    """Who did not take part, and why; workloads for which a contender has no spelling go without saying."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in rows:
        if r["note"] and "no spelling" not in r["note"]:
            found[r["contender"], r["note"]].append(r["workload"])
    if not found:
        return []
    out = [
        f"- {who}: {why} ({', '.join(dict.fromkeys(where[:3]))}{', ...' if len(where) > 3 else ''})" for (who, why), where in found.items()
    ]
    return ["Did not take part:", "", *out, ""]


def _cell(record: dict[str, Any], name: str) -> str:
    if name not in record["others"]:
        return "-"
    text = f"{record['others'][name]:.2f}"
    return f"**{text}**" if name == record["best"] else text


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**20:.0f}"


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def plot(result: dict[str, Any], path: Path) -> str:
    """Speed of ours relative to the best stock contender and to torch.compile and JAX. Returns what it did, in words."""
    try:
        import matplotlib
    except ImportError:
        return "No plot: matplotlib is not installed (the `bench` extra)."
    matplotlib.use("Agg")
    from matplotlib import pyplot

    records = ratios(result)
    counts = sorted({r["threads"] for r in records})
    if not counts:
        return "No plot: nothing was measured."
    names = list(dict.fromkeys(r["workload"] for r in records))[::-1]
    figure, axes = pyplot.subplots(1, len(counts), figsize=(7 * len(counts), 1 + 0.28 * len(names)), sharey=True, squeeze=False)
    for ax, threads in zip(axes[0], counts, strict=True):
        here = [(names.index(r["workload"]), r) for r in records if r["threads"] == threads]
        for name, marker, colour in (("torch.compile", "o", "#888888"), ("JAX", "s", "#bbbbbb")):
            points = [(r["others"][name], y) for y, r in here if name in r["others"]]
            if points:
                ax.scatter(*zip(*points, strict=True), marker=marker, color=colour, label=name, zorder=3, s=18)
        bars = [(y, r["others"][r["best"]]) for y, r in here if r["best"]]
        ax.barh([y for y, _ in bars], [x - 1 for _, x in bars], left=1, color="#3b75af", label="best stock contender")
        goals = [(r["row"]["goal"], y) for y, r in here]
        ax.scatter(*zip(*goals, strict=True), marker="|", color="black", label="goal", zorder=4, s=80)
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_xscale("log")
        ax.set_yticks(range(len(names)), names)
        ax.set_title(f"{threads} thread{'s' * (threads > 1)}")
        ax.set_xlabel("time of the contender / ours")
    axes[0][0].legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return f"Plot: {path}"
