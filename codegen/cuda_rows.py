"""Streaming rows as CUDA: a thread's elements of a tile in registers, its states in registers, merged when the row ends."""

from __future__ import annotations

import re

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Expr, Load, nodes

from .c_expr import Place, Scope, _offsets
from .cuda_expr import TYPES, CudaNames, Values
from .cuda_near import NearRows
from .dtypes import WIDTHS
from .kernel import SEGMENT, Fetch, Finish, Flag, Loop, Merge, Partial, Phase, Rebase, Scan, Stage, State, Stmt, Store, Sweep

CHUNKS = {"f32": 4, "f64": 4, "f16": 8, "bf16": 8, "e4m3": 16}  # dtypes with 16-byte accesses, and what a vector must be a multiple of
SPILLS = {"f32": 4, "f64": 2, "f16": 8, "bf16": 8, "e4m3": 4, "i8": 4}


class RowsPrinter(NearRows):
    """The body of one phase of form "rows" or "elements"."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.once = False
        self.given: dict[Expr, str] = {}
        self.edge = False
        self.fetched: dict[Load, str] = {}

    def body(self) -> list[str]:
        """The statements of the kernel's body."""
        out = [*self._items(), *self._states()]
        for s in self.phase.body:
            out += self.statement(s)
        if self.held:
            return [*out, "}", "cp_async_wait<0>();"]
        return out if self.names.where is None else [*out, "__syncthreads();", "}"]

    @property
    def per_block(self) -> int:
        """Grid points that a block does at once."""
        return self.place.threads // self.place.group

    # ---- places
    def _items(self) -> list[str]:
        """Which grid point a thread works on, and which of the threads of a row it is. A block does one part of the grid, or part
        after part."""
        p, n = self.place, self.names
        rows = p.threads // p.group
        if p.along == "stream":
            lane, item = f"threadIdx.x % {p.group}", f"threadIdx.x / {p.group}"
        else:
            lane, item = f"threadIdx.x / {rows}", f"threadIdx.x % {rows}"
        sizes = [n.extent(g.axis) for g in self.phase.grid]
        picked = n.where is not None and set(n.where) <= {g.axis for g in self.phase.grid}
        inside = "inside" if picked else "live"
        out = [f"const int lane = {lane};", f"const i64 items = {' * '.join(sizes) or '1'};"]
        part = "(i64)blockIdx.x"
        if self.held:
            out += self._ahead(item)
        if n.where is not None or self.held:  # with flags, few blocks, so that a launch with nothing to do costs little
            part = "part"
            out.append(f"for (i64 part = blockIdx.x; part * {rows} < items; part += gridDim.x) {{")
        out += [f"i64 item = {part} * {rows} + {item};", f"const bool {inside} = item < items;", f"if (!{inside}) item = items - 1;"]
        out += self._points()
        if self.held:
            return [*out, *self.next_rows(f"min((part + gridDim.x) * {rows} + {item}, items - 1)"),
                    f"const bool more = (part + gridDim.x) * {rows} < items;"]  # fmt: skip
        out += self._bounds()
        if picked:
            out.append(f"const bool live = inside && *({self.flag_at('where', n.where or ())});")
            out += ["if (!live) high = low;"] if self.phase.stream else []
            out.append("if (!__syncthreads_or(live)) continue;")
        return [*out, f"const int offset = lane * {p.vector};"] if self.phase.stream else out

    def _points(self) -> list[str]:
        out = []
        for g in reversed(self.phase.grid):
            start = self.names.start(g.axis)
            out.append(f"const i64 {start} = {'item' if g is self.phase.grid[0] else f'split(item, {self.names.extent(g.axis)})'};")
            self.at[g.axis] = Place(start)
        return out

    def _bounds(self) -> list[str]:
        """The part of the stream that an item has."""
        n, stream = self.names, self.phase.stream
        for g in self.phase.grid:
            if g.axis == SEGMENT:
                return [f"const i64 low = {n.start(SEGMENT)} * {g.step}; i64 high = min({n.extent(stream)}, low + {g.step});"]
        return [f"const i64 low = 0; i64 high = {n.extent(stream)};"] if stream else []

    def _ahead(self, item: str) -> list[str]:
        """Before the parts of the grid that a block does one after another: the copies for its first."""
        self._points()
        start = [*self._bounds(), f"const int offset = lane * {self.place.vector};"]
        return [*start, *self.first_copies(f"min((i64)blockIdx.x * {self.per_block} + {item}, items - 1)")]

    def _states(self) -> list[str]:
        out = []
        for s in self.phase.states:
            name = self.names.get("acc", s.name)
            for suffix, kind, first in self.arrays(s):
                if s.k:
                    out.append(f"{kind} {name}{suffix}[{s.k}];")
                    out.append(f"UNROLL for (int t = 0; t < {s.k}; t++) {name}{suffix}[t] = {first};")
                else:
                    out.append(f"{kind} {name}{suffix} = {first};")
        return out

    def statement(self, s: Stmt) -> list[str]:
        method = getattr(self, "do_" + type(s).__name__.lower(), None)
        if method is None:
            raise IRError(f"phase {self.phase.name!r}: {type(s).__name__} has no place in rows")
        return method(s)  # type: ignore[no-any-return]

    # ---- tiles
    def position(self) -> str:
        """Text of the stream position of element e of the tile."""
        p = self.place
        if p.vector == 1:
            return f"at + e * {p.group}"
        return f"at + e / {p.vector} * {p.group * p.vector} + e % {p.vector}"

    def do_fetch(self, s: Fetch) -> list[str]:
        """Declares the registers of a tile, and how the row lies in memory; fetched where the tile begins."""
        self.once = self.once or s.once
        return self._prepare(s.loads) + (["const i64 at = low + offset;", *self._fetch(s.loads, True)] if s.once else [])

    def _prepare(self, loads: tuple[Load, ...]) -> list[str]:
        out: list[str] = []
        for e in loads:
            if e in self.fetched:
                continue
            name = self.fetched[e] = self.names.fresh("x")
            self.given[e] = f"{name}[e]"
            if e.source in self.held:
                out.append(f"real {name}[{self.place.elems}];")
                continue
            base, _, tag = self._row(e)
            out.append(f"const {TYPES[tag]} *const {name}_p = {base};")
            if self._vector(e):
                out.append(f"const bool {name}_v = ((u64)({name}_p + low) & 15) == 0;")
            out.append(f"real {name}[{self.place.elems}];")
        return out

    def _row(self, e: Load) -> tuple[str, str, str]:
        """(address of the row's first element, stride along the stream, dtype tag)."""
        array = self.names.k.array(e.source)
        assert array is not None
        k = self.phase.stream
        parts = [(self.at[d].whole, self.names.stride(array, i)) for i, d in enumerate(e.dims) if d != k]
        step = self.names.stride(array, e.dims.index(k))
        return " + ".join([self.names.array(array), *_offsets(parts)]), step, array.dtype

    def _vector(self, e: Load) -> bool:
        """Whether the tile's elements of a load come in accesses of 16 bytes."""
        _, step, tag = self._row(e)
        v = self.place.vector
        same = (tag == "f64") == (self.names.k.real == "double")
        return step == "1" and v > 1 and tag in CHUNKS and v * WIDTHS[tag] % 16 == 0 and same

    def _fetch(self, loads: tuple[Load, ...], edge: bool) -> list[str]:
        out = []
        p = self.place
        for e in loads:
            name = self.fetched[e]
            if e.source in self.held:
                out += self.near_fetch(e, name, edge)
                continue
            _, step, tag = self._row(e)
            get = f"(real)get_{tag}({name}_p + {'k' if step == '1' else f'k * {step}'})"
            if self._vector(e):
                one = f"{name}[c * {p.vector} + e] = {'k < high ? ' + get + ' : (real)0' if edge else get};"
                out += [*self._chunks(f"{name}_v", f"chunk_{tag}<{p.vector}>({name} + c * {p.vector}, {name}_p + first);", one, edge)]
                continue
            test = "k < high ? " + get + " : (real)0" if edge else get
            out.append(f"UNROLL for (int e = 0; e < {p.elems}; e++) {{ const i64 k = {self.position()}; {name}[e] = {test}; }}")
        return out

    def _chunks(self, aligned: str, whole: str, one: str, edge: bool) -> list[str]:
        """For each 16 bytes: `whole` where they are aligned and inside the row, else `one` for each element k."""
        p = self.place
        inside = f" && first + {p.vector} <= high" if edge else ""
        return [f"UNROLL for (int c = 0; c < {p.elems // p.vector}; c++) {{",
                f"const i64 first = at + c * {p.group * p.vector};", f"if ({aligned}{inside}) {whole}",
                f"else UNROLL for (int e = 0; e < {p.vector}; e++) {{ const i64 k = first + e; {one} }}", "}"]  # fmt: skip

    def do_loop(self, s: Loop) -> list[str]:
        loads = next((x.loads for x in s.body if isinstance(x, Fetch)), ())
        rest = tuple(x for x in s.body if not isinstance(x, Fetch))
        out = self._prepare(loads)
        if not loads and self.once:  # one tile, already in registers
            return ["{", *self._tile(rest, (), True), "}"]
        out += [f"for (i64 tile = low; tile < high; tile += {s.step}) {{", "const i64 at = tile + offset;"]
        out += [f"if (tile + {s.step} <= high) {{", *self._tile(rest, loads, False)]
        out += ["} else {", *self._tile(rest, loads, True), "}", "}"]
        self.waited(s)
        return out

    def _tile(self, body: tuple[Stmt, ...], loads: tuple[Load, ...], edge: bool) -> list[str]:
        self.edge = edge
        out = self.wait(loads) + self._fetch(loads, edge)
        for s in body:
            out += self.statement(s) if not isinstance(s, Stage) else []
        return [*out, *(self.copies("more") if any(isinstance(s, Stage) for s in body) else [])]

    def do_stage(self, s: Stage) -> list[str]:
        """Before everything, see `_ahead`."""
        return []

    def elements(self, pre: list[str], lines: list[str]) -> Values:
        """Expressions at element e of the tile; what does not vary along the stream goes to `pre`."""
        k = self.phase.stream
        at = {**self.at, k: Place("0", self.names.var(k))}
        el = self.values([Scope(frozenset(), pre), Scope(frozenset((k,)), lines)], "lift", at)
        el.given.update(self.given)
        return el

    def do_sweep(self, s: Sweep) -> list[str]:
        pre: list[str] = []
        lines: list[str] = []
        el = self.elements(pre, lines)
        regs = [self.names.fresh("a") for _ in s.folds]
        opened: list[str] = []
        closed: list[str] = []
        for f, reg in zip(s.folds, regs, strict=True):
            opened += self.open_fold(f, reg)
            lines += self.fold(f, reg, el)
            closed += self.close_fold(f, reg)
        for target, e in s.stores:
            before, each, after = self._put_element(target, e, el)
            opened += before
            lines += each
            closed += after
        var = self.names.var(self.phase.stream)
        used = set(re.findall(r"\w+", "\n".join(lines)))
        head = [f"const i64 {var} = {self.position()};"] if self.edge or var in used else []
        test = [f"if ({var} >= high) continue;"] if self.edge else []
        loop = [f"UNROLL for (int e = 0; e < {self.place.elems}; e++) {{", *head, *test, *lines, "}"]
        guard = f"if (!({self.at_identity(s.guard, False)})) {{" if s.guard else "{"
        return [guard, *pre, *opened, *loop, *closed, "}"]

    def _put_element(self, target: str, e: Expr, el: Values) -> tuple[list[str], list[str], list[str]]:
        """Store an element along the stream: (before the elements, for each, after them)."""
        found = self.names.lies(target)
        if found is None:
            raise IRError(f"phase {self.phase.name!r}: {target!r} is no output")
        dims, start, steps, tag = found
        k, p = self.phase.stream, self.place
        value = el.value(e)
        step = steps[dims.index(k)]
        base = " + ".join([start, *_offsets([(self.at[d].whole, s) for d, s in zip(dims, steps, strict=True) if d != k])])
        name = self.names.fresh("y")
        before = [f"{TYPES[tag]} *const {name}_p = {base};"]
        same = (tag == "f64") == (self.names.k.real == "double")
        if step != "1" or p.vector == 1 or p.vector % SPILLS.get(tag, 1 << 30) or not same:
            return before, [f"if (live) put_{tag}({name}_p + {el.at[k].whole}{'' if step == '1' else f' * {step}'}, {value});"], []
        before.append(f"real {name}[{p.elems}];")
        one = f"put_{tag}({name}_p + k, {name}[c * {p.vector} + e]);"
        aligned = f"((u64)({name}_p + low) & 15) == 0"
        spill = f"spill_{tag}<{p.vector}>({name}_p + first, {name} + c * {p.vector});"
        test = "if (k < high) " if self.edge else ""
        return before, [f"{name}[e] = {value};"], ["if (live) {", *self._chunks(aligned, spill, test + one, self.edge), "}"]

    def do_rebase(self, s: Rebase) -> list[str]:
        return self.rebase_row(s)

    # ---- the end of a row
    def do_finish(self, s: Finish) -> list[str]:
        p = self.place
        out: list[str] = []
        width = min(p.group, 32) if p.along == "stream" else 1
        names = [n for level in s.levels for n, _ in level]
        if width > 1:
            own = {n: self.names.fresh("own") for n in names}
            for n in names:
                out += self._copy(self.states[n], own[n])
            out += self.merge(s.levels, lambda x, suffix: own[x.name] + suffix if x.name in own else self.cell(x, suffix), width=width)
        parts = p.group if p.along == "row" else p.group // 32
        return ["{", *out, *(self._across(s, names, parts) if parts > 1 else []), "}"]

    def _copy(self, s: State, name: str) -> list[str]:
        cell, at = self.cell(s), self.cell(s, "_at")
        if s.k:
            return [f"real {name}[{s.k}], {name}_at[{s.k}];",
                    f"UNROLL for (int t = 0; t < {s.k}; t++) {name}[t] = {cell}[t], {name}_at[t] = {at}[t];"]  # fmt: skip
        return [f"const {self.kind(s)} {name} = {cell};", *([f"const real {name}_at = {at};"] if s.indexed else [])]

    def _across(self, s: Finish, names: list[str], parts: int) -> list[str]:
        """Through shared memory: `parts` partial states a row, merged by every thread of the row alike."""
        p = self.place
        rows = p.threads // p.group
        own, first = ("threadIdx.x / 32", "threadIdx.x / 32 / " + str(parts) + f" * {parts}") if p.along == "stream" else (
            "lane * " + str(rows) + f" + threadIdx.x % {rows}", f"threadIdx.x % {rows}")  # fmt: skip
        step = "1" if p.along == "stream" else str(rows)
        total = parts * rows
        out: list[str] = []
        write: list[str] = []
        shared = {n: self.names.fresh("part") for n in names}
        for n in names:
            state = self.states[n]
            for suffix, kind, _ in self.arrays(state):
                if suffix == "_old":
                    continue
                size = f"[{total}][{state.k}]" if state.k else f"[{total}]"
                out.append(f"__shared__ {kind} {shared[n]}{suffix}{size};")
                cell = self.cell(state, suffix)
                write.append(f"UNROLL for (int t = 0; t < {state.k}; t++) {shared[n]}{suffix}[own][t] = {cell}[t];" if state.k else
                             f"{shared[n]}{suffix}[own] = {cell};")  # fmt: skip
        out += [f"const int own = {own}, head = {first};", "__syncthreads();"]
        guard = "if (threadIdx.x % 32 == 0) {" if p.along == "stream" else "{"
        out += [guard, *write, "}", "__syncthreads();"]

        def part(x: State, suffix: str) -> str:
            return f"{shared[x.name]}{suffix}[head + g * {step}]" if x.name in shared else self.cell(x, suffix)

        return [*out, *self.merge(s.levels, part, f"for (int g = 0; g < {parts}; g++)")]

    def do_merge(self, s: Merge) -> list[str]:
        loop = f"for (i64 g = lane; g < {self.names.extent(SEGMENT)}; g += {self.place.group})"
        return self.merge(s.levels, self.segments(s.items), loop, self.place.group)

    def do_partial(self, s: Partial) -> list[str]:
        out = ["if (live && lane == 0) {"]
        for n, values, positions in s.items:
            state = self.states[n]
            for target, suffix in ((values, ""), (positions, "_at")):
                if target:
                    address, cell = self.buffer_at(target, self.at), self.cell(state, suffix)
                    out.append(f"UNROLL for (int t = 0; t < {state.k}; t++) ({address})[t] = {cell}[t];" if state.k else
                               f"*({address}) = (real){cell};")  # fmt: skip
        return [*out, "}"]

    def do_flag(self, s: Flag) -> list[str]:
        bad = " || ".join(self.not_finite(self.states[n]) for n in s.accs)
        return [f"if (live && lane == 0 && ({bad})) *({self.flag_at()}) = 1;"]

    def do_scan(self, s: Scan) -> list[str]:
        scope = Scope(frozenset(), [])
        value = self.values([scope], "final").value(s.expr)
        return [*scope.lines, f"if (live && !finite({value})) {self.names.get('buf', s.flag)}[0] = 0;"]

    # ---- results
    def do_store(self, s: Store) -> list[str]:
        """One value a row, or one for each point of further axes, which the row's threads share."""
        lists = {self.states[n.name].out: self.states[n.name] for n in nodes(s.expr) if isinstance(n, Acc) and self.states[n.name].k}
        out: list[str] = []
        saved = dict(self.at)
        threads = [c for c in s.columns if c not in lists]
        out.append("if (live && lane == 0) {" if lists or not threads else "if (live) {")
        for c in s.columns:
            var = self.names.var(c)
            if c in lists:
                out.append(f"UNROLL for (int {var} = 0; {var} < {lists[c].k}; {var}++) {{")
            else:
                first, step = ("lane", self.place.group) if c == threads[-1] and not lists else ("0", 1)
                out.append(f"for (i64 {var} = {first}; {var} < {self.names.extent(c)}; {var} += {step}) {{")
            self.at[c] = Place("0", var)
        scope = Scope(frozenset(s.columns), [])
        el = self.values([Scope(frozenset(), scope.lines), scope], "final")
        value = el.mask_of(s.expr) if s.expr.dtype.kind == "b" else el.value(s.expr)
        out += [*scope.lines, self.put(s.target, value, el), *("}" for _ in s.columns), "}"]
        self.at = saved
        return out

    # ---- lists
    def cell(self, s: State, suffix: str = "", at: dict[str, Place] | None = None) -> str:
        name = self.names.get("acc", s.name) + suffix
        index = (at or {}).get(s.out) if s.k else None
        return name if index is None else f"{name}[{index.whole}]"
