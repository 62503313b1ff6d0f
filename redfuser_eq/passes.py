"""Accumulators -> passes: which reductions share a traversal of their axis.

Each accumulator gets the earliest time its dependences allow. One that streams (has a rebase) may run in
the same pass as the running values it reads; any other waits for the next. Times of one axis become its
passes, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .cascade import Accumulator, Cascade, Pass
from .expr import Acc, Expr, Output, Prev, Reduce, Source, nodes, transform
from .ops import MONOIDS


@dataclass(frozen=True)
class Item:
    """An accumulator with the axis it streams over."""

    axis: str
    acc: Accumulator


def build(sources: tuple[Source, ...], extents: Mapping[str, int | None], items: Mapping[str, Item], outputs: Iterable[Output]) -> Cascade:
    """The Cascade of a set of accumulators (name -> Item) and outputs over them; what no output needs is dropped."""
    outputs = tuple(outputs)
    items = dict(items)
    while True:
        times = _times(items)
        items = {n: _settle(n, i, items, times) for n, i in items.items()}
        items = _needed(items, outputs)
        times = {n: t for n, t in times.items() if n in items}
        shared = _shared_contractions(items, times, outputs)
        if not shared:
            break
        items, outputs = _materialise(shared, items, outputs, {*extents, *(s.name for s in sources)})
    return Cascade(sources, _passes(items, times), outputs, dict(extents))


def _times(items: Mapping[str, Item]) -> dict[str, int]:
    times = dict.fromkeys(items, 0)
    for _ in range(len(items) * len(items) + 2):
        changed = False
        for n, item in items.items():
            t = max((_after(items, n, d, times) for d in item.acc.reads()), default=0)
            together = [p for p in item.acc.previous() if p in items and p != n]
            if any(times[d] == t and items[d].axis == item.axis for d in item.acc.reads()):
                t = max([t, *(times[p] for p in together)])
                for p in together:
                    if times[p] < t:
                        times[p], changed = t, True
            if t > times[n]:
                times[n], changed = t, True
        if not changed:
            return times
    raise AssertionError("accumulators depend on each other in a cycle")


def _after(items: Mapping[str, Item], name: str, dep: str, times: Mapping[str, int]) -> int:
    item = items[name]
    streams = items[dep].axis == item.axis and item.acc.rebase is not None
    return times[dep] + (0 if streams else 1)


def _settle(name: str, item: Item, items: Mapping[str, Item], times: Mapping[str, int]) -> Item:
    """Without a parameter that moves in the same pass there is nothing to rebase."""
    moves = any(items[d].axis == item.axis and times[d] == times[name] for d in item.acc.reads())
    return item if moves or item.acc.rebase is None else Item(item.axis, replace(item.acc, rebase=None))


def _needed(items: Mapping[str, Item], outputs: tuple[Output, ...]) -> dict[str, Item]:
    todo = [e.name for o in outputs for e in nodes(o.expr) if isinstance(e, Acc)]
    seen: set[str] = set()
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo.extend(items[n].acc.reads() | items[n].acc.previous())
    return {n: i for n, i in items.items() if n in seen}


def _passes(items: Mapping[str, Item], times: Mapping[str, int]) -> tuple[Pass, ...]:
    groups: dict[tuple[int, str], list[str]] = {}
    for n, item in items.items():
        groups.setdefault((times[n], item.axis), []).append(n)
    return tuple(Pass(axis, tuple(items[n].acc for n in _ordered(groups[t, axis], items))) for t, axis in sorted(groups))


def _ordered(names: list[str], items: Mapping[str, Item]) -> list[str]:
    out: list[str] = []
    left = list(names)
    while left:
        ready = next(n for n in left if not (items[n].acc.reads() - {n}) & (set(left) - {n}))
        left.remove(ready)
        out.append(ready)
    return out


def _users(items: Mapping[str, Item], times: Mapping[str, int], outputs: tuple[Output, ...]) -> dict[Reduce, set[Any]]:
    """Which traversals evaluate each in-place reduction."""
    users: dict[Reduce, set[Any]] = {}
    roots: list[tuple[Any, Expr]] = [((times[n], i.axis), i.acc.lift) for n, i in items.items()]
    roots += [("output", o.expr) for o in outputs]
    for where, root in roots:
        for e in nodes(root):
            if isinstance(e, Reduce):
                users.setdefault(e, set()).add(where)
    return users


def _shared_contractions(items: Mapping[str, Item], times: Mapping[str, int], outputs: tuple[Output, ...]) -> list[Reduce]:
    """In-place reductions that more than one traversal would compute again: innermost first, one at a time."""
    users = _users(items, times, outputs)
    return [e for e, where in users.items() if len(where) > 1 and not any(isinstance(n, Prev) for n in nodes(e))][:1]


def _materialise(
    shared: list[Reduce], items: Mapping[str, Item], outputs: tuple[Output, ...], reserved: set[str]
) -> tuple[dict[str, Item], tuple[Output, ...]]:
    """Give each reduction an accumulator of its own, an array that later passes read."""
    swaps: dict[Expr, Expr] = {}
    added: dict[str, Item] = {}
    for e in shared:
        name = fresh_name(e.op, {*items, *added, *reserved})
        op = "top_values" if e.k else e.op
        axes = tuple(sorted(e.axes - {e.out}))
        added[name] = Item(e.axis, Accumulator(name, op, axes, e.dtype, e.body, None, e.k, e.out))
        swaps[e] = Acc(name, e.axes, e.dtype, "index" if MONOIDS[e.op].state != "value" and e.op != "top_values" else "value")

    def swap(e: Expr) -> Expr:
        return transform(e, swaps.get)

    def moved(item: Item) -> Item:
        a = item.acc
        return Item(item.axis, replace(a, lift=swap(a.lift), rebase=None if a.rebase is None else swap(a.rebase)))

    return added | {n: moved(i) for n, i in items.items()}, tuple(replace(o, expr=swap(o.expr)) for o in outputs)


def loops_twice(c: Cascade) -> set[str]:
    """Axes that a pass reduces in place, in running values, while other accumulators of it vary along them: each would
    need a loop of its own."""
    found: set[str] = set()
    for p in c.passes:
        inside = [e for a in p.accumulators for e in nodes(a.lift) if isinstance(e, Reduce)]
        varied, running = {x for a in p.accumulators for x in a.axes}, {a.name for a in p.accumulators}
        found |= {e.axis for e in inside if e.axis in varied and any(isinstance(n, Acc) and n.name in running for n in nodes(e))}
    return found


_LETTERS = {"sum": "s", "max": "m", "min": "l", "prod": "p", "argmax": "a", "argmin": "a", "any": "b", "all": "b"}


def fresh_name(op: str, taken: Iterable[str]) -> str:
    """A short accumulator name by operation: m, m2, s, s2, ..."""
    letter = _LETTERS.get(op, "t")
    taken = set(taken)
    if letter not in taken:
        return letter
    return next(f"{letter}{n}" for n in range(2, len(taken) + 3) if f"{letter}{n}" not in taken)
