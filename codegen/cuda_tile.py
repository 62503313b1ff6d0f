"""Tiles without tensor cores as CUDA: tiles and states in shared memory, every statement done by the whole block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Expr
from redfuser_eq.ops import MONOIDS

from .c_expr import Place, Scope, _offsets
from .cuda_expr import GROUP, CudaNames, Values
from .cuda_state import StateCode
from .kernel import (
    SEGMENT,
    ColumnRebase,
    Columns,
    Flag,
    Loop,
    Merge,
    Partial,
    Phase,
    Rebase,
    Skip,
    State,
    Stmt,
    Store,
    Sweep,
)
from .launch import size_of

BARRIER = "__syncthreads();"
STAGING = "@staging"  # where operands lie in shared memory: after everything else


class TileStatements(StateCode):
    """The body of one phase of form "tile", but for products. shared: bytes of dynamic shared memory, known after `body`."""

    per_block = 1

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        assert phase.place is not None
        self.threads = phase.place.threads
        self.real_bytes = 4 if names.k.real == "float" else 8
        self.steps = {g.axis: g.step for g in phase.grid if g.axis != SEGMENT}
        self.shared = 0
        self.staged = 0

    def body(self) -> list[str]:
        """The statements of the kernel's body."""
        places, states = self._places(), self._states()
        lines = self.block(self.phase.body)
        buffers = self._buffers(set(re.findall(r"\w+", "\n".join(lines))))
        text = [x.replace(STAGING, str(self.shared)) for x in lines]
        self.shared += self.staged
        base = ["extern __shared__ __align__(16) unsigned char dynamic[];"] if self.shared else []
        return [*base, *places, *states, *buffers, BARRIER, *text]

    def block(self, body: tuple[Stmt, ...]) -> list[str]:
        out: list[str] = []
        for s in body:
            method = getattr(self, "do_" + type(s).__name__.lower(), None)
            if method is None:
                raise IRError(f"phase {self.phase.name!r}: {type(s).__name__} has no place in tiles")
            out += method(s)
        return out

    # ---- places
    def _places(self) -> list[str]:
        """Which tile a block does: the grid axes, the last one fastest."""
        n, stream = self.names, self.phase.stream
        out = ["u32 item = blockIdx.x;", "const int thread = threadIdx.x;"]
        for g in reversed(self.phase.grid):
            start = n.start(g.axis)
            size = n.extent(SEGMENT if g.axis == SEGMENT else g.axis)
            blocks = n.fresh("blocks")
            number = f"(u32)(({size} + {g.step - 1}) / {g.step})" if g.step > 1 and g.axis != SEGMENT else f"(u32){size}"
            scale = f" * {g.step}" if g.step > 1 and g.axis != SEGMENT else ""
            out.append(f"const u32 {blocks} = {number};")
            out.append(f"const i64 {start} = (i64)(item % {blocks}){scale}; item /= {blocks};")
            self.at[g.axis] = Place(start)
            if g.axis == SEGMENT:
                out.append(f"const i64 low = {start} * {g.step}, high = min({n.extent(stream)}, low + {g.step});")
            elif g.step > 1:
                count = self.counts[g.axis] = n.count(g.axis)
                out.append(f"const int {count} = (int)min((i64){g.step}, {size} - {start});")
        if stream and not any(g.axis == SEGMENT for g in self.phase.grid):
            out.append(f"const i64 low = 0, high = {n.extent(stream)};")
        return out

    @property
    def rows(self) -> int:
        return self.steps.get(self.phase.row, 1)

    def take(self, size: int, kind: str = "real") -> str:
        """Text of the address of so many elements of shared memory."""
        at = self.shared
        self.shared += -(-size * (8 if kind == "double" else self.real_bytes) // 16) * 16
        return f"({kind} *)(dynamic + {at})"

    def _states(self) -> list[str]:
        out = []
        for s in self.phase.states:
            size = self.row_size(s) * (self.rows if s.row else 1)
            for suffix, kind, first in self.arrays(s):
                name = self.names.get("acc", s.name) + suffix
                out.append(f"{kind} *const {name} = {self.take(size, kind)};")
                out.append(f"for (int t = thread; t < {size}; t += {self.threads}) {name}[t] = {first};")
        return out

    def row_size(self, s: State) -> int:
        """Elements of a state for one row."""
        return s.k or prod(self.steps.get(c, 1) for c in s.columns)

    def _buffers(self, used: set[str]) -> list[str]:
        out = []
        for b in self.names.k.buffers:
            name = self.names.get("buf", b.name)
            if not b.shared and name in used:
                out.append(f"real *const {name} = {self.take(prod(size_of(s, {}) for s in b.sizes))};")
        return out

    def cell(self, s: State, suffix: str = "", at: dict[str, Place] | None = None) -> str:
        at = at if at is not None else self.at
        row, size = self.phase.row, self.row_size(s)
        parts = [(at[row].offset, str(size))] if s.row and row in at and self.rows > 1 else []
        step = size
        for c in s.columns:
            step //= self.steps.get(c, 1)
            if c in at and self.steps.get(c, 1) > 1:
                parts.append((at[c].offset, str(step)))
        index = " + ".join(_offsets(parts)) or "0"
        name = self.names.get("acc", s.name) + suffix
        if not s.k:
            return f"{name}[{index}]"
        return f"{name}[{index} + {at[s.out].whole}]" if s.out in at else f"({name} + {index})"

    # ---- loops over elements
    @contextmanager
    def bind(self, places: dict[str, Place]) -> Iterator[None]:
        saved = self.at
        self.at = {**self.at, **places}
        yield
        self.at = saved

    def _inner(self, axis: str, var: str) -> Place:
        return Place(self.at[axis].start if axis in self.at else "0", var)

    def total(self, axis: str) -> str:
        """How many elements of an axis the tile has."""
        if axis in self.counts:
            return self.counts[axis]
        lists = [s.k for s in self.phase.states if s.k and s.out == axis]
        if lists:
            return str(lists[0])
        return "1" if axis in self.at else self.names.extent(axis)

    @contextmanager
    def each(self, axes: tuple[str, ...], out: list[str]) -> Iterator[None]:
        """A loop over the points of the tile along some axes, shared out among the threads, the last axis fastest."""
        axes = tuple(a for a in axes if a and (a in self.counts or a not in self.at))
        if not axes:
            out.append("if (thread == 0) {")
            yield
            out.append("}")
            return
        sizes = [self.total(a) for a in axes]
        small = all(a in self.counts or n.isdigit() for a, n in zip(axes, sizes, strict=True))
        kind = "int" if small else "i64"
        point = self.names.fresh("p")
        total = " * ".join([f"({kind}){sizes[0]}", *sizes[1:]])
        out.append(f"for ({kind} {point} = thread; {point} < {total}; {point} += {self.threads}) {{")
        rest, places = point, {}
        for n, (a, size) in enumerate(zip(reversed(axes), reversed(sizes), strict=True)):
            var = self.names.var(a)
            out.append(f"const {kind} {var} = {rest if n == len(axes) - 1 else f'{rest} % {size}'};")
            rest = f"{rest} / {size}"
            places[a] = self._inner(a, var)
        with self.bind(places):
            yield
        out.append("}")

    def _state_axes(self, s: State) -> tuple[str, ...]:
        return (*((self.phase.row,) if s.row else ()), *s.columns)

    # ---- statements
    def do_loop(self, s: Loop) -> list[str]:
        start, count = self.names.start(s.axis), self.names.count(s.axis)
        at, counts = dict(self.at), dict(self.counts)
        self.at[s.axis], self.counts[s.axis] = Place(start), count
        body = self.block(s.body)
        self.at, self.counts = at, counts
        return [f"for (i64 {start} = low; {start} < high; {start} += {s.step}) {{",
                f"const int {count} = (int)min((i64){s.step}, high - {start});", *body, "}"]  # fmt: skip

    def do_skip(self, s: Skip) -> list[str]:
        """The corners of the tile, where an affine bound is largest, and the summary of other conditions."""
        none = []
        for b in s.bounds:
            high = [str(b.constant)]
            for axis, factor in b.terms:
                first = self.at[axis].start
                last = f"({first} + {self.counts[axis]} - 1)" if axis in self.counts and factor > 0 else first
                high.append(f"{factor} * {last}")
            none.append(f"{' + '.join(high)} < 0")
        if s.summary:
            summary = next(x for x in self.names.k.buffers if x.name == s.summary)
            cell = [f"{self.at[axis].start} / {step} * {self.names.step(summary, d)}" for d, (axis, step) in enumerate(s.tiles)]
            none.append(f"{self.names.get('buf', s.summary)}[{' + '.join(cell) or '0'}] == 0")
        ready = "".join(f" && {self.names.get('buf', f)}[0] != 0" for f in s.finite)
        return [f"if (({' || '.join(none)}){ready}) continue;"]

    def do_sweep(self, s: Sweep) -> list[str]:
        """Each row by some lanes of a warp, which fold their shares together."""
        row, k = self.phase.row, self.phase.stream
        width = min(32, self.threads // self.rows)
        var, lane = self.names.var(k), self.names.fresh("lane")
        rvar = self.names.var(row) if row else ""
        live = f"{rvar} < {self.total(row)}" if row and self.rows > 1 else f"thread < {width}"
        out = ["{", f"const int {lane} = thread % {width};"]
        places = {k: Place(self.at[k].start, var)}
        if row and self.rows > 1:
            out.append(f"const int {rvar} = thread / {width};")
            places[row] = self._inner(row, rvar)
        regs = [self.names.fresh("a") for _ in s.folds]
        pre, lines = Scope(frozenset(), []), Scope(frozenset((k,)), [])
        with self.bind(places):
            el = self.values([pre, lines])
            for f, reg in zip(s.folds, regs, strict=True):
                out += self._lists(self.states[f.acc], reg) or self.open_fold(f, reg)
                lines.lines += self._fold(f.acc, f.lift, reg, el) or self.fold(f, reg, el)
            lines.lines += [self.put(t, el.value(e), el) for t, e in s.stores]
            test = f" && !({self.at_identity(s.guard, False)})" if s.guard else ""
            out += [f"if ({live}{test}) {{", *pre.lines, f"for (int {var} = {lane}; {var} < {self.counts[k]}; {var} += {width}) {{",
                    *lines.lines, "}", "}"]  # fmt: skip
            out += [x for f, reg in zip(s.folds, regs, strict=True) for x in self._gather(self.states[f.acc], reg, width)]
            closed = [x for f, reg in zip(s.folds, regs, strict=True) for x in self._close(f.acc, reg) or self.close_fold(f, reg)]
        out += [f"if ({live} && {lane} == 0) {{", *closed, "}"] if closed else []
        return [*out, "}", BARRIER]

    def _lists(self, s: State, reg: str) -> list[str]:
        if not s.k:
            return []
        return [f"real {reg}[{s.k}], {reg}_at[{s.k}];",
                f"UNROLL for (int t = 0; t < {s.k}; t++) {reg}[t] = {self.identity(s)}, {reg}_at[t] = -1;"]  # fmt: skip

    def _fold(self, name: str, lift: Expr, reg: str, el: Values) -> list[str]:
        s = self.states[name]
        if not s.k:
            return []
        v, at = el.value(lift), f"(real)({el.at[self.phase.stream].whole})"
        return [f"insert<{s.k}, {MONOIDS[s.op].best}>({reg}, {reg}_at, {v}, {at});"]

    def _gather(self, s: State, reg: str, width: int) -> list[str]:
        if width == 1:
            return []
        best = MONOIDS[s.op].best
        if s.k:
            return [f"group_list<{width}, {s.k}, {best}>({reg}, {reg}_at);"]
        return [f"group_best<{width}, {best}>({reg}, {reg}_at);" if s.indexed else f"{reg} = {GROUP[s.op]}<{width}>({reg});"]

    def _close(self, name: str, reg: str) -> list[str]:
        s = self.states[name]
        if not s.k:
            return []
        cell, at, best = self.cell(s), self.cell(s, "_at"), MONOIDS[s.op].best
        return [f"UNROLL for (int t = 0; t < {s.k}; t++) insert<{s.k}, {best}>({cell}, {at}, {reg}[t], {reg}_at[t]);"]

    def do_rebase(self, s: Rebase) -> list[str]:
        out: list[str] = []
        with self.each((self.phase.row,), out):
            el = self.values([], "rebase")
            out += self.rebase_row(s, lambda b, value: self.put(b, value, el))
        return [*out, BARRIER]

    def do_columns(self, s: Columns) -> list[str]:
        """Each (row, column) by a thread, along the stream."""
        k, state = self.phase.stream, self.states[s.fold.acc]
        out: list[str] = []
        with self.each(self._state_axes(state), out):
            var, reg = self.names.var(k), self.names.fresh("a")
            pre, lines = Scope(frozenset(), []), Scope(frozenset((k,)), [])
            with self.bind({k: Place(self.at[k].start, var)}):
                el = self.values([pre, lines])
                lines.lines += self.fold(s.fold, reg, el)
            test = [f"if (!({self.at_identity(s.guard, False)})) {{"] if s.guard else ["{"]
            out += [*test, *pre.lines, *self.open_fold(s.fold, reg), f"for (int {var} = 0; {var} < {self.counts[k]}; {var}++) {{",
                    *lines.lines, "}", *self.close_fold(s.fold, reg), "}"]  # fmt: skip
        return [*out, BARRIER]

    def do_columnrebase(self, s: ColumnRebase) -> list[str]:
        out: list[str] = []
        for n, e in s.items:
            state = self.states[n]
            with self.each(self._state_axes(state), out):
                scope = Scope(frozenset(), [])
                el = self.values([scope], "rebase")
                el.own = frozenset((n,))
                value = el.value(e)
                out += [f"if ({self.moved(s.params)}) {{" if s.params else "{", *scope.lines, f"{self.cell(state)} = {value};", "}"]
            out.append(BARRIER)
        return out

    # ---- results
    def do_store(self, s: Store) -> list[str]:
        out: list[str] = []
        with self.each((self.phase.row, *s.columns), out):
            scope = Scope(frozenset(), [])
            el = self.values([scope], "final")
            value = el.mask_of(s.expr) if s.expr.dtype.kind == "b" else el.value(s.expr)
            out += [*scope.lines, self.put(s.target, value, el)]
        return out

    def do_flag(self, s: Flag) -> list[str]:
        out: list[str] = []
        for n in s.accs:
            state = self.states[n]
            rows = (self.phase.row,) if self.phase.row else ()
            with self.each((*rows, *state.columns), out):
                out.append(f"if ({self.not_finite(state)}) *({self.flag_at()}) = 1;")
        return out

    def do_partial(self, s: Partial) -> list[str]:
        out: list[str] = []
        for n, values, positions in s.items:
            state = self.states[n]
            with self.each((*self._state_axes(state), *((state.out,) if state.k else ())), out):
                for target, suffix in ((values, ""), (positions, "_at")):
                    if target:
                        el = self.values([Scope(frozenset(), [])], "final")
                        out.append(self.put(target, f"(real){self.cell(state, suffix)}", el))
        return out

    def do_merge(self, s: Merge) -> list[str]:
        out: list[str] = []
        for item in (x for level in s.levels for x in level):
            state = self.states[item[0]]
            with self.each(self._state_axes(state), out):
                out += self.merge(((item,),), self.segments(s.items), f"for (i64 g = 0; g < {self.names.extent(SEGMENT)}; g++)")
            out.append(BARRIER)
        return out
