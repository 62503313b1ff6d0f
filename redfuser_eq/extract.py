"""Rows of a saturated e-graph -> the cheapest sound Cascade.

A class's best node is found bottom-up by (unsafe exponentials, passes, work). An exponential is unsafe
when its argument is not proved bounded above; one that the source wrote itself is tolerated where no
bounded form is equal to it, any other is refused. A previous value (`Prev`) may be used only if its
accumulator can be streamed in the same pass; that is a greatest fixpoint, found by elimination.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from .cascade import Accumulator, Cascade
from .cost import TILE, Sizes, cost
from .device import device
from .encode import Encoded, is_float, real_dtype
from .errors import IRError
from .expr import Acc, Cast, Const, Expr, Map, Prev, Program, Reduce, transform
from .ops import MONOIDS, OPS
from .passes import Item, build, fresh_name, loops_twice
from .saturate import Rows

SAFE = 80.0  # exp of this is finite in float32, and so is a sum of a great many of them
_WRITTEN, _DERIVED = 1, 2  # unsafe exponentials: in the source, introduced by a law
_USABLE = frozenset(("Num", "Leaf", "Add", "Mul", "U", "B", "W", "R", "Proj", "Prev", "Scan"))

Node = tuple[Any, ...]
Key = tuple[str, int, int]  # op, axis bit, body class


@dataclass(frozen=True)
class Best:
    """The chosen node of a class and its cost. levels: passes over each axis bit. previous: axes (bits) along which
    it reads a previous value, which only a rebase along that axis may."""

    unsafe: int
    previous: int
    levels: tuple[tuple[int, int], ...]
    work: float
    node: Node

    @property
    def rank(self) -> tuple[int, int, int, float]:
        return (self.unsafe, self.previous.bit_count(), sum(n for _, n in self.levels), self.work)


def children(node: Node) -> tuple[int, ...]:
    """Child classes of a usable node."""
    match node[0]:
        case "Add" | "Mul":
            return (node[1], node[2])
        case "U":
            return (node[2],)
        case "B":
            return (node[2], node[3])
        case "W":
            return (node[1], node[2], node[3])
        case "R" | "Proj":
            return (node[3],)
        case "Scan":
            return (node[3], node[4])
    return ()


class Extractor:
    """Best nodes of one saturated program. stream: whether incremental forms may be used."""

    def __init__(self, rows: Rows, encoded: Encoded, program: Program, *, stream: bool = True) -> None:
        self.rows, self.encoded, self.program, self.stream = rows, encoded, program, stream
        self.sizes = Sizes(program.extents)
        self.written = {rows.names[n] for n in encoded.written}
        self.verbatim = {rows.names[n]: e for n, e in encoded.verbatim.items()}
        self.rebases: dict[Key, int] = {}
        self.reduces: dict[Key, int] = {}
        self.previous: dict[Key, int] = {}
        for c, found in rows.nodes.items():
            for node in found:
                table = {"Rebase": self.rebases, "R": self.reduces, "Prev": self.previous}.get(node[0])
                if table is not None:
                    table[node[1], node[2], node[3]] = c
        self.points_memo: dict[int, float] = {}
        self.banned: set[Key] = set()
        self.extra: dict[Key, float] = {}
        self.without: set[Key] = set()
        self.apart = 0  # axes (bits) along which a body that holds a reduction of its own is not summed in place
        self.refused: set[str] = set()
        self.best = self._fixpoint()

    # ---- costs
    def points(self, mask: int) -> float:
        if mask not in self.points_memo:
            axes = {a for n, a in enumerate(self.encoded.axes) if mask >> n & 1}
            self.points_memo[mask] = self.sizes.points(axes)
        return self.points_memo[mask]

    def free(self, c: int) -> int:
        return self.rows.free.get(c, 0)

    def _fixpoint(self) -> dict[int, Best]:
        """Best nodes with every previous value available that may be; a second round prices those that
        would need an accumulator which no present value needs."""
        best = self._eliminate()
        if any(self.rows.names[r] not in best for r in self.encoded.roots):
            raise IRError("the rules leave no finite term for an output: one with `subsume` rewrites a term to one that contains it")
        held = self._held(best)
        self.extra = {k: best[c].work for k, c in self.reduces.items() if k not in held and c in best}
        return self._eliminate()

    def _held(self, best: Mapping[int, Best]) -> set[Key]:
        """Accumulators that the outputs' present values refer to."""
        seen: set[int] = set()
        held: set[Key] = set()
        todo = [self.rows.names[r] for r in self.encoded.roots]
        while todo:
            c = todo.pop()
            if c not in seen:
                seen.add(c)
                node = best[c].node
                todo.extend(children(node)[:1] if node[0] == "Scan" else children(node))
                if node[0] in ("R", "Scan"):
                    held.add((node[1], node[2], node[3]))
        return held

    def _eliminate(self) -> dict[int, Best]:
        self.banned = set()
        while True:
            best = self._relax()
            lost = {k for k in self.previous if not self._streams(k, best)} - self.banned
            if not lost:
                return best
            self.banned |= lost

    def _streams(self, key: Key, best: Mapping[int, Best]) -> bool:
        """Whether the reduction can be an accumulator of a single pass over its axis."""
        _, bit, body = key
        if body not in best or dict(best[body].levels).get(bit, 0) > 1:
            return False
        if not self.rows.over.get(body, 0) & bit or not dict(best[body].levels).get(bit, 0):
            return True
        rebased = best.get(self.rebases.get(key, -1))
        return self.stream and rebased is not None and not rebased.previous & ~bit and dict(rebased.levels).get(bit, 0) <= 1

    def _relax(self) -> dict[int, Best]:
        best: dict[int, Best] = {}
        users: dict[int, list[tuple[int, Node]]] = {}
        todo: list[tuple[int, Node]] = []
        for c, found in self.rows.nodes.items():
            if c not in self.rows.free:  # an early stop left it without its axes
                continue
            for node in found:
                if node[0] in _USABLE:
                    kids = children(node)
                    for k in set(kids):
                        users.setdefault(k, []).append((c, node))
                    if not kids:
                        todo.append((c, node))
        while todo:
            following: list[tuple[int, Node]] = []
            for c, node in todo:
                new = self._cost(c, node, best)
                if new is not None and (c not in best or new.rank < best[c].rank):
                    best[c] = new
                    following.extend(users.get(c, ()))
            todo = list(dict.fromkeys(following))
        return best

    def _cost(self, c: int, node: Node, best: Mapping[int, Best]) -> Best | None:
        kids = [best.get(k) for k in children(node)]
        if any(k is None for k in kids) or (node[0] in ("R", "Scan", "Prev") and node[1:4] in self.without):
            return None
        known = [k for k in kids if k is not None]
        unsafe = max((k.unsafe for k in known), default=0)
        previous = reduce(or_, (k.previous for k in known), 0)
        levels: dict[int, int] = {}
        for k in known:
            for bit, n in k.levels:
                levels[bit] = max(levels.get(bit, 0), n)
        work = sum(k.work for k in known)
        here = self.points(self.free(c))
        match node[0]:
            case "U":
                op = node[1]
                if op in ("exp", "exp2") and not self.rows.hi.get(node[2], math.inf) <= SAFE:
                    unsafe = max(unsafe, _WRITTEN if c in self.written else _DERIVED)
                    if unsafe == _DERIVED:
                        self.refused.add(f"a form with {op} of an unbounded argument")
                work += here * (OPS[op].cost if op in OPS else 2.0)
            case "B":
                work += here * OPS[node[1]].cost
            case "Add" | "Mul" | "W":
                work += here
            case "Prev":
                if (node[1], node[2], node[3]) in self.banned:
                    return None
                previous, levels[node[2]] = node[2], 1
                work += here + self.extra.get((node[1], node[2], node[3]), 0.0)
            case "R":
                if previous:
                    return None
                bit = node[2]
                levels[bit] = levels.get(bit, 0) + 1
                work += self.points(self.free(node[3]) | bit) * (1.0 if node[1] in MONOIDS else 8.0)
            case "Scan":
                bit = node[2]
                if not self.stream or levels.get(bit, 0) > 1 or known[0].previous or previous & ~bit:
                    return None
                previous, levels[bit] = 0, 1
                tiles = max(1.0, self.points(bit) / TILE)
                work = known[0].work + known[1].work * tiles + self.points(self.free(node[3]) | bit)
        return Best(unsafe, previous, tuple(sorted(levels.items())), work, node)

    # ---- decoding
    def cascade(self, seconds: float = 0.1) -> Cascade:
        """The Cascade of the chosen nodes, improved by doing without one accumulator at a time where the
        whole program gets cheaper: sharing is a property of the program, not of a node."""
        end = time.perf_counter() + seconds
        decoder = _Decoder(self)
        found = decoder.cascade()
        todo = list(decoder.states)
        unsafe = self._unsafe()
        while todo and time.perf_counter() < end:
            key = todo.pop(0)
            kept = self.best
            self.without.add(key)
            try:
                self.best = self._eliminate()
                trial = _Decoder(self)
                candidate = trial.cascade()
            except (_Cyclic, KeyError):  # nothing equal can do without it
                candidate = found
            if _price(candidate) < _price(found) and self._unsafe() <= unsafe:
                found, unsafe = candidate, self._unsafe()
                todo = [k for k in trial.states if k not in self.without]
            else:
                self.best = kept
                self.without.discard(key)
        return found

    def safer(self) -> bool:
        """Whether the source wrote an exponential of an unbounded argument and the chosen program has none."""
        nodes = (n for c in self.written for n in self.rows.nodes.get(c, ()) if n[0] == "U" and n[1] in ("exp", "exp2"))
        return not self._unsafe() and any(not self.rows.hi.get(n[2], math.inf) <= SAFE for n in nodes)

    def _unsafe(self) -> int:
        """Of the outputs' best nodes: a cheaper program must not be a less safe one."""
        return max(self.best[self.rows.names[r]].unsafe for r in self.encoded.roots)


class _Cyclic(Exception):
    """A choice of nodes in which a term contains itself."""


def _price(c: Cascade) -> tuple[int, float, int]:
    """Repeated passes, then operations with each shared term counted once, then accumulators."""
    k = cost(c, device(None))
    return (k.passes, k.flops, len(c.accumulators()))


class _Decoder:
    def __init__(self, x: Extractor) -> None:
        self.x = x
        self.real = real_dtype(x.program)
        self.axis = {1 << n: a for n, a in enumerate(x.encoded.axes)}
        self.items: dict[str, Item] = {}
        self.states: dict[Key, str] = {}
        self.memo: dict[tuple[int, int], Expr] = {}
        self.reserved = {*x.program.extents, *(s.name for s in x.program.sources)}
        self.waiting: list[Key] = []
        self.open: set[tuple[int, int]] = set()

    def cascade(self) -> Cascade:
        p = self.x.program
        outputs = []
        for o, root in zip(p.outputs, self.x.encoded.roots, strict=True):
            expr = self.expr(self.x.rows.names[root], 0)
            outputs.append(type(o)(expr, o.dims, o.dtype))
        self.settle()
        found = build(p.sources, p.extents, self.items, outputs)
        clash = sum(bit for bit, axis in self.axis.items() if axis in loops_twice(found) and not self.x.apart & bit)
        if not clash:
            return found
        self.x.apart |= clash
        return _Decoder(self.x).cascade()

    def axes(self, mask: int) -> tuple[str, ...]:
        return tuple(a for bit, a in self.axis.items() if mask & bit)

    def expr(self, c: int, inside: int) -> Expr:
        """The expression of a class. inside: axes being streamed or contracted around it; a contraction
        that varies over one of them (and holds no chain of its own) is computed in place."""
        key = (c, inside)
        if key not in self.memo:
            if key in self.open:
                raise _Cyclic
            self.open.add(key)
            self.memo[key] = self._verbatim(c, inside) if c in self.x.verbatim else self._expr(c, inside)
            self.open.discard(key)
        return self.memo[key]

    def _expr(self, c: int, inside: int) -> Expr:
        node = self.x.best[c].node
        match node[0]:
            case "Num":
                return Const(node[1], self.real)
            case "Leaf":
                return self.x.encoded.leaves[node[1]]
            case "Add":
                return self._add(node, inside)
            case "Mul":
                return self._mul(node, inside)
            case "U":
                arg = self.expr(node[2], inside)
                if node[1].startswith("cast:"):
                    return Cast(arg, np.dtype(_dtype(node[1][5:])))
                return self.map(node[1], arg)
            case "B":
                return self.map(node[1], self.expr(node[2], inside), self.expr(node[3], inside))
            case "W":
                return self.map("where", *(self.expr(k, inside) for k in node[1:]))
            case "Prev":
                key = (node[1], node[2], node[3])
                name = self.accumulator(key)
                return Prev(name, frozenset(self.axes(self.x.free(c))), self.items[name].acc.dtype)
            case "R" | "Scan":
                return self.reduction(c, (node[1], node[2], node[3]), inside)
            case "Proj":
                return self.selection(c, node)
        raise IRError(f"cannot decode {node}")

    def _best(self, c: int) -> Node:
        return self.x.best[c].node

    def _add(self, node: Node, inside: int) -> Expr:
        a, b = node[1], node[2]
        na, nb = self._best(a), self._best(b)
        if nb[0] == "U" and nb[1] == "neg":
            return self.map("sub", self.expr(a, inside), self.expr(nb[2], inside))
        if na[0] == "U" and na[1] == "neg":
            return self.map("sub", self.expr(b, inside), self.expr(na[2], inside))
        if nb[0] == "Num" and nb[1] < 0:
            return self.map("sub", self.expr(a, inside), Const(-nb[1], self.real))
        return self.map("add", self.expr(a, inside), self.expr(b, inside))

    def _mul(self, node: Node, inside: int) -> Expr:
        """A product; with a reciprocal a quotient, unless a reciprocal fixed along the loop saves divisions."""
        sides = (node[1], node[2])
        for a, b in (sides, sides[::-1]):
            nb = self._best(b)
            if nb[0] == "U" and nb[1] == "recip":
                constant = self._best(nb[2])[0] == "Num"
                if constant or self.x.free(b) & inside or not self.x.free(a) & inside:
                    return self.map("div", self.expr(a, inside), self.expr(nb[2], inside))
        return self.map("mul", *(self.expr(k, inside) for k in sides))

    def map(self, op: str, *args: Expr) -> Expr:
        args = tuple(_whole(a) if _counts(op, args) else a for a in args)
        kind = OPS[op].kind
        if kind == "bool":
            return Map(op, args, np.dtype(bool))
        used = args[1:] if kind == "where" else args
        plain = [a.dtype for a in used if not isinstance(a, Const)] or [a.dtype for a in used]
        if kind == "float" or any(is_float(d) for d in plain) or any(is_float(a.dtype) for a in used):
            return Map(op, args, self.real)
        return Map(op, args, np.result_type(*(a.dtype for a in used)))

    def _verbatim(self, c: int, inside: int) -> Expr:
        """An expression as the source wrote it, with only its reductions replaced."""
        names, rows = self.x.encoded.names, self.x.rows.names

        def swap(e: Expr) -> Expr | None:
            return self.expr(rows[names[e]], inside) if isinstance(e, Reduce) else None

        return transform(self.x.verbatim[c], swap)

    # ---- reductions
    def reduction(self, c: int, key: Key, inside: int) -> Expr:
        op, bit, body = key
        if self.x.free(c) & inside and not bit & inside and not self._chained(body, bit, inside):
            return Reduce(op, self.axis[bit], self.expr(body, inside | bit), dtype=self.dtype(op, self.expr(body, inside | bit)))
        name = self.accumulator(key)
        return Acc(name, frozenset(self.axes(self.x.free(c))), self.items[name].acc.dtype)

    def _chained(self, body: int, bit: int, inside: int) -> bool:
        """Whether a body's chain of reductions over an axis is better kept by accumulators: always, but where all of
        the chain is reduced over an axis around it too, so that it moves as that one is streamed (a mean over both)."""
        over = self.x.rows.over.get(body, 0)
        if self.x.apart & bit or not over & bit or not over & inside:
            return bool(over & bit)
        seen: set[int] = set()
        todo = [body]
        while todo:
            c = todo.pop()
            if c not in seen and self.x.rows.over.get(c, 0) & bit:
                seen.add(c)
                node = self._best(c)
                if node[0] not in ("R", "Scan"):
                    todo.extend(children(node))
                elif self.x.free(c) & inside:  # any other becomes an accumulator
                    if node[2] == bit:
                        return True
                    todo.append(node[3])
        return False

    def selection(self, c: int, node: Node) -> Expr:
        field_, out, state = node[1], node[2], node[3]
        _, op, bit, body = self._best(state)
        name = self.accumulator((op, bit, body), out)
        dtype = np.dtype(np.int64) if field_ == "index" else self.items[name].acc.dtype
        return Acc(name, frozenset(self.axes(self.x.free(c))), dtype, field_)

    def accumulator(self, key: Key, out: int = 0) -> str:
        if key in self.states:
            return self.states[key]
        op, bit, body = key
        monoid = op if op in MONOIDS else "top_values"
        name = self.states[key] = fresh_name(monoid, {*self.states.values(), *self.reserved})
        lift = self.expr(body, bit)
        axes = self.axes(self.x.free(body) & ~bit)
        k = int(op[3:]) if monoid == "top_values" else 0
        acc = Accumulator(name, monoid, axes, self.dtype(op, lift), lift, None, k, self.axis[out] if out else "")
        self.items[name] = Item(self.axis[bit], acc)
        self.waiting.append(key)
        return name

    def settle(self) -> None:
        """Rebases, after all values: accumulators may read each other's previous values both ways."""
        while self.waiting:
            key = self.waiting.pop()
            name = self.states[key]
            rebase = self.rebase(key)
            item = self.items[name]
            if rebase is not None and rebase is not Prev(name, frozenset(item.acc.axes), item.acc.dtype):
                self.items[name] = Item(item.axis, replace(item.acc, rebase=rebase))

    def rebase(self, key: Key) -> Expr | None:
        _, bit, body = key
        c = self.x.rebases.get(key)
        if not self.x.stream or c not in self.x.best or not self.x.rows.over.get(body, 0) & bit or not self.x._streams(key, self.x.best):
            return None
        return self.expr(c, 0)

    def dtype(self, op: str, lift: Expr) -> np.dtype[Any]:
        if op in ("any", "all"):
            return np.dtype(bool)
        if isinstance(lift, Const) or is_float(lift.dtype):
            return self.real
        return np.dtype(np.int64) if op in ("sum", "prod") else lift.dtype


def _counts(op: str, args: tuple[Expr, ...]) -> bool:
    """Whether the operands other than constants are all integers."""
    others = [a for a in (args[1:] if op == "where" else args) if not isinstance(a, Const)]
    return OPS[op].kind != "float" and bool(others) and all(a.dtype.kind in "iu" for a in others)


def _whole(e: Expr) -> Expr:
    if isinstance(e, Const) and isinstance(e.value, float) and e.value.is_integer():
        return Const(int(e.value), np.int64)
    return e


def _dtype(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name, name)
