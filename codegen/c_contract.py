"""Products in C: register-blocked contractions with an epilogue in registers, dot products, repacking, finiteness scans."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Load, nodes

from .c_expr import Elements, Place, Scope, literal, row_step
from .c_pairs import pack_pairs, pair_steps
from .c_state import StateStatements
from .kernel import Absent, Array, Buffer, Contract, Dot, Operand, Pack, Scan, Summarise


@dataclass(frozen=True)
class Memory:
    """Where an operand lies: its base address, and the stride of each of its axes, as C text. panel: width, or 0."""

    base: str
    steps: dict[str, str]
    tag: str
    panel: int = 0
    depth: str = ""


@dataclass(frozen=True)
class Argument:
    """Of a column panel's function: its declaration, what it is given ("": nothing, it is the blocks' alone), and what its blocks
    are passed, in terms of their row i."""

    declared: str
    given: str
    passed: str


COMMON = "const struct context *ctx, const {0} *a, const {0} *b, int64_t n, rf_real *d, int zero, int last, int test, int64_t nj"


class ContractStatements(StateStatements):
    """Prints Contract, Dot, Pack and Scan. `functions` collects the functions they call."""

    functions: list[str]

    def memory(self, op: Operand, free: tuple[str, ...]) -> Memory:
        """The operand at the start of the tile; `free` are the axes the caller walks."""
        array = self.names.k.array(op.source)
        if array is not None:
            return self._array_memory(array, op, free)
        b = self.names.k.buffer(op.source)
        if b is None:
            raise IRError(f"nothing in the kernel is called {op.source!r}")
        parts, steps = [self.names.get("buf", b.name)], {}
        for d, (own, axis) in enumerate(zip(b.dims, op.dims, strict=True)):
            step = self.names.step(b, d)
            last = d == len(b.dims) - 1
            steps[axis] = str(b.panel) if b.panel and d == len(b.dims) - 2 else step
            where = self._start(own, axis in free, b.shared)
            if where == "0":
                continue
            if b.panel and last:
                parts.append(f"{where} * ({self.names.size(b.sizes[-2])})")
            else:
                parts.append(f"{where} * {steps[axis]}" if steps[axis] != "1" else where)
        depth = f"({self.names.size(b.sizes[-2])})" if b.panel else ""
        return Memory(" + ".join(parts), steps, b.dtype or "real", b.panel, depth)

    def _array_memory(self, array: Array, op: Operand, free: tuple[str, ...]) -> Memory:
        parts, steps = [self.names.array(array)], {}
        for d, axis in enumerate(op.dims):
            step = self.names.stride(array, d)
            steps[axis] = step
            where = self._start(axis, axis in free, True)
            if where != "0" and step != "0":
                parts.append(f"{where} * {step}" if step != "1" else where)
        return Memory(" + ".join(parts), steps, array.dtype)

    def _start(self, axis: str, free: bool, shared: bool) -> str:
        if axis not in self.at:
            return "0"
        if free:
            return self.at[axis].start if shared else "0"
        return self.at[axis].whole if shared else self.at[axis].offset

    def _total(self, axis: str) -> str:
        """How many elements of an axis the tile has."""
        if not axis:
            return "1"
        return self.counts.get(axis, self.names.extent(axis))

    # ---- contractions
    def do_contract(self, s: Contract) -> list[str]:
        a, b = self.memory(s.a, (s.i, s.c)), self.memory(s.b, (s.c, s.j))
        w = f"({s.nv} * LANES)"
        n_i, n_j, n_c = self._total(s.i), self._total(s.j), self._total(s.c)
        dst, d_i = self._destination(s)
        straight = int(not b.panel)
        some = (-(-s.mr // 2), 1) if s.folds or s.score is not None else (s.mr // 2 if s.mr > 8 else 0, 4, 2, 1)  # long epilogues: few
        heights = sorted({h for h in (s.mr, s.rest, *some) if 0 < h <= s.mr} if s.i else {1}, reverse=True)
        names = [self.names.fresh("contract_") for _ in range(1 + straight)]
        arguments = self._arguments(s)
        for name, masked in zip(names, (False, True), strict=False):
            self._panel(s, name, heights, masked, (a, b, d_i), arguments)
        b_at = f"p * {b.depth} + c0 * {b.panel}" if b.panel else f"p + c0 * {b.steps[s.c]}"
        first = f"(c0 == 0) * (1 + {self.first})" if s.dst in self.unset else "c0 == 0"
        call = (
            f"(ctx, {a.base} + c0 * {a.steps[s.c]}, {b.base} + {b_at}, rf_min({s.c_block}, {n_c} - c0), {dst} + p, "
            f"{first}, c0 + {s.c_block} >= {n_c}, test, {n_j} - p{''.join(f', {x.given}' for x in arguments if x.given)}, {n_i});"
        )
        test = self.ready if s.trim else f"({self.cut} || !whole)" + (f" + 2 * {self.ready}" if s.mask is not None else "")
        body = f"if (whole) {names[0]}{call} else {names[1]}{call}" if straight else f"{names[0]}{call}"
        blocks = f"for (int64_t c0 = 0; c0 < {n_c} || c0 == 0; c0 += {s.c_block})"
        return [*self._keep_folded(s), f"{blocks} for (int64_t p = 0; p < {n_j}; p += {w}) {{",
                f"const int whole = p + {w} <= {n_j}; const int test = {test}; (void)whole; (void)test;",
                body, *self._extra_rows(s, b, b_at, n_c, n_j), "}"]  # fmt: skip

    def _panel(
        self, s: Contract, name: str, heights: list[int], masked: bool, where: tuple[Memory, Memory, str], arguments: list[Argument]
    ) -> None:
        """A function for all rows of a column panel: blocks of the greatest height, then of smaller ones."""
        a, b, d_i = where
        common = COMMON.format(f"{b.tag}_t" if b.panel and b.tag != "real" else "rf_real")
        inner = "".join(f", {x.declared}" for x in arguments)
        outer = "".join(f", {x.declared}" for x in arguments if x.given)
        passed = "".join(f", {x.passed}" for x in arguments)
        loops = []
        for h in heights:
            head = f"RF_INLINE void {name}_{h}({common}{inner})"
            self.functions.append(self._micro(s, head, h, masked, a, b, d_i))
            block = f"{name}_{h}(ctx, a + i * {a.steps.get(s.i, '0')}, b, n, d + i * {d_i}, zero, last, test, nj{passed});"
            loops.append(f"for (; i + {h} <= rows; i += {h}) {block}")
        self.functions.append("\n".join([f"RF_NOINLINE void {name}({common}{outer}, int64_t rows) {{", "int64_t i = 0;", *loops, "}"]))

    def _extra_rows(self, s: Contract, b: Memory, b_at: str, n_c: str, n_j: str) -> list[str]:
        """One row each on the panel that is in the cache."""
        out = []
        for state, operand in s.extra:
            a = self.memory(operand, (s.c,))
            length, to = f"rf_min({s.c_block}, {n_c} - c0)", self.names.get("acc", state)
            call = f"(ctx, {a.base} + c0 * {a.steps[s.c]}, {b.base} + {b_at}, {length}, {to} + p"
            if b.panel and b.tag == "real":
                out.append(f"{self._lone_row(s, a.steps[s.c], b)}{call});")
                continue
            names = [self.names.fresh("contract_") for _ in (0, 1)]
            alone = replace(s, factor="", rank=(), i="")
            for name, masked in zip(names, (False, True), strict=True):
                self.functions.append(self._micro(alone, f"RF_NOINLINE void {name}({COMMON.format('rf_real')})", 1, masked, a, b, "0"))
            out.append(f"if (whole) {names[0]}{call}, c0 == 0, 0, 0, {n_j} - p); else {names[1]}{call}, c0 == 0, 0, 0, {n_j} - p);")
        return out

    def _lone_row(self, s: Contract, a_c: str, b: Memory) -> str:
        """A function for one row: four sums of every fourth element each, since a single sum would wait for itself."""
        name, over_j = self.names.fresh("contract_"), f"RF_UNROLL({s.nv}) for (int j = 0; j < {s.nv}; j++)"
        self.functions.append("\n".join([
            f"RF_NOINLINE void {name}(const struct context *ctx, const rf_real *a, const rf_real *b, int64_t n, rf_real *d) {{",
            f"(void)ctx; V x[4][{s.nv}]; int64_t c = 0;", f"RF_UNROLL(4) for (int u = 0; u < 4; u++) {over_j} x[u][j] = set1(0);",
            f"for (; c + 4 <= n; c += 4, a += 4 * {a_c}, b += {4 * b.panel}) RF_UNROLL(4) for (int u = 0; u < 4; u++) {{",
            f"const V y = set1(a[u * {a_c}]); {over_j} x[u][j] = v_fma(y, ld_real(b + u * {b.panel} + j * LANES), x[u][j]);", "}",
            f"for (; c < n; c++, a += {a_c}, b += {b.panel}) {over_j} x[0][j] = v_fma(set1(a[0]), ld_real(b + j * LANES), x[0][j]);",
            f"{over_j} st_real(d + j * LANES, ld_real(d + j * LANES) + ((x[0][j] + x[1][j]) + (x[2][j] + x[3][j])));", "}"]))  # fmt: skip
        return name

    def _keep_folded(self, s: Contract) -> list[str]:
        """Copies of the states it folds into, for later levels; before, since a state is visited once a block."""
        out: list[str] = []
        for f in s.folds:
            state = self.states[f.acc]
            if state.keep and f.acc not in self.rebased:
                with self.rows(out):
                    out.append(f"{self.cell(state, '_old')} = {self.cell(state)};")
        return out

    def _destination(self, s: Contract) -> tuple[str, str]:
        """(base address at the tile's first row, stride between rows)."""
        state = self.states.get(s.dst)
        if state is not None:
            row = f" + {self.at[s.i].start} * {row_step(self.names, state)}" if self.phase.row_loop and s.i else ""
            return self.names.get("acc", s.dst) + row, row_step(self.names, state)
        m = self.memory(Operand(s.dst, self._dims(s.dst)), (s.i, s.j))
        return m.base, m.steps.get(s.i, "0")

    def _dims(self, name: str) -> tuple[str, ...]:
        b: Buffer | None = self.names.k.buffer(name)
        if b is None:
            raise IRError(f"nothing in the kernel is called {name!r}")
        return b.dims

    def _arguments(self, s: Contract) -> list[Argument]:
        """Beyond the common ones: places of the bound axes, buffers, the states it folds into, factors."""
        out: list[Argument] = []
        if s.score is not None or s.folds:
            starts = [self.at[axis].start for axis in sorted(self.at)]
            out += [Argument(f"int64_t {x}", x, x) for x in starts if x != "0"]
            if s.i:
                out.append(Argument(f"int64_t {self.names.var(s.i)}", "", "i"))
            if s.j:
                out.append(Argument(f"int64_t {self.names.var(s.j)}", "p", self.names.var(s.j)))
            read = nodes(*(x for x in (s.score, s.open_score, s.mask) if x is not None))
            for name in sorted({e.source for e in read if isinstance(e, Load)}):
                b, own = self.names.k.buffer(name), self.names.get("buf", name)
                if b is not None and not b.shared:
                    out.append(Argument(f"const {self.names.element(b)} *{own}", own, own))
            for f in s.folds:
                for suffix in ("", "_at") if self.states[f.acc].indexed else ("",):
                    acc = self.names.get("acc", f.acc) + suffix
                    out.append(Argument(f"rf_real *{acc}", acc, acc))
        if s.factor:
            out.append(Argument("const rf_real *factor", self.names.get("buf", s.factor), "factor + i"))
        for n, (coefficient, column) in enumerate(s.rank):
            out.append(Argument(f"const rf_real *coefficient{n}", self.names.get("buf", coefficient), f"coefficient{n} + i"))
            out.append(Argument(f"const rf_real *column{n}", f"{self.names.get('acc', column)} + p", f"column{n}"))
        return out

    def _micro(self, s: Contract, head: str, mr: int, masked: bool, a: Memory, b: Memory, d_i: str) -> str:
        """A function with this head, of a register block: multiply-add over c, then what it starts from; after the last block of
        c, map, fold and store."""
        over_i, over_j = f"RF_UNROLL({mr}) for (int i = 0; i < {mr}; i++)", f"RF_UNROLL({s.nv}) for (int j = 0; j < {s.nv}; j++)"
        b_c, cell = str(b.panel) if b.panel else b.steps[s.c], f"d + i * {d_i} + j * LANES"
        a_i, a_c = a.steps.get(s.i, "0"), a.steps[s.c]
        pairs = bool(b.panel) and b.tag != "real"
        out = [head + " {", "(void)ctx; (void)last; (void)test; (void)nj; (void)zero;", f"V x[{mr}][{s.nv}];"]
        if masked:
            out += [f"M ok[{s.nv}]; {over_j} ok[j] = tail(nj - j * LANES);"]
        if s.trim and a_i == "1":
            out += [f"if (test) {{ n = rf_used(a, {a_c}, {mr}, n); const int64_t from = rf_unused(a, {a_c}, {mr}, n);",
                    f"a += from * {a_c}; b += from * {b_c}; n -= from; }}"]  # fmt: skip
        main = mr == s.mr and not masked
        if s.mask is not None and main:
            out += self._left_out(s, over_i, over_j, cell)
        lines = range(-(-s.nv * self.names.k.vector_bytes // 64) if s.keep else 0)
        touch = " ".join(f"PREFETCH_WRITE(d + i * {d_i} + {n} * RF_LINE);" for n in lines)
        out += [f"RF_UNROLL({mr}) for (int i = 0; i < {mr}; i++) {{ {touch} }}"] if touch else []
        out += [] if pairs else [f"{over_i} {over_j} x[i][j] = set1(0);"]
        load = [f"ldm_real(ok[{j}], b + {j} * LANES)" if masked else f"ld_real(b + {j} * LANES)" for j in range(s.nv)]
        if s.ahead and a_c == "1" and not pairs:
            fetch = f"RF_UNROLL({mr}) for (int i = 0; i < {mr}; i++) PREFETCH(a + ({mr} + i) * {a_i});"
            out.append(f"for (int64_t c1 = RF_LINE; c1 < n; c1 += RF_LINE) {{ {fetch}")
            out += [*self._steps(s.nv, load, over_i, a_i, a_c, b_c, "RF_LINE", True), "}", "n = (n - 1) % RF_LINE + 1;"]
        if pairs:
            out += pair_steps(self.names, s.nv, mr, b.tag, a_i, b.panel)
        else:
            out += self._steps(s.nv, load, over_i, a_i, a_c, b_c, "n", main)
        out += self._start_lines(s, over_i, over_j, cell)
        store = f"{over_i} {over_j} st_real({cell}, x[i][j]);"
        if s.score is None and not s.folds:
            return "\n".join([*out, store, "}"])
        out += [f"if (!last) {{ {store} return; }}"]
        out += [
            "if (!test) {",
            *self._epilogue(s, over_i, over_j, cell, False),
            "} else {",
            *self._epilogue(s, over_i, over_j, cell, True),
            "}",
        ]
        return "\n".join([*out, "}"])

    def _steps(self, nv: int, load: list[str], over_i: str, a_i: str, a_c: str, b_c: str, n: str, main: bool) -> list[str]:
        """The innermost loop; unrolled in the function that most blocks go through."""
        return [f"{'RF_UNROLL(4) ' if main else ''}for (int64_t c = 0; c < {n}; c++, a += {a_c}, b += {b_c}) {{",
                " ".join(f"V b{j} = {load[j]}; IN_REGISTER(b{j});" for j in range(nv)),
                f"{over_i} {{ const V y = set1(a[i * {a_i}]);",
                *(f"x[i][{j}] = v_fma(y, b{j}, x[i][{j}]);" for j in range(nv)), "}", "}"]  # fmt: skip

    def _start_lines(self, s: Contract, over_i: str, over_j: str, cell: str) -> list[str]:
        """What the block starts from, added at its end: by then the destination has come from memory. zero: 1 for the first
        block of c in a tile, 2 for the first block of all on a state that nothing was stored to."""
        x = f"ld_real({cell})"
        add, unset = f"{over_i} {over_j} x[i][j] = x[i][j] +", ["if (zero != 2)"] if s.dst in self.unset else []
        if s.start == "zero" or not (s.factor or s.rank):
            return [*(["if (!zero)"] if s.start == "zero" else unset), f"{{ {add} {x}; }}"]
        first = f"{x} * set1(factor[i])" if s.factor else x
        for n in range(len(s.rank)):
            first = f"v_fma(set1(coefficient{n}[i]), ld_real(column{n} + j * LANES), {first})"
        return [*unset, f"if (zero) {{ {add} {first}; }} else {{ {add} {x}; }}"]

    def _left_out(self, s: Contract, over_i: str, over_j: str, cell: str) -> list[str]:
        """Nothing to multiply where the mask is false on the whole block."""
        assert s.mask is not None
        scope = Scope(frozenset(), [])
        holds = Elements(self.names, self.phase, self._block_places(s), s.j, [scope], "m").mask_of(s.mask)
        fill = f"if (last) {over_i} {over_j} st_real({cell}, set1(-RF_INF));" if s.keep else ""
        return ["if (test & 2) {", "M some = m_none();", f"{over_j} {{ const M m = tail(nj - j * LANES);", f"{over_i} {{",
                *scope.lines, f"some = m_or(some, m_and(m, {holds}));", "}", "}",
                f"if (!m_any(some)) {{ {fill} return; }}", "}"]  # fmt: skip

    def _block_places(self, s: Contract) -> dict[str, Place]:
        """Where the elements of a register block lie."""
        at = dict(self.at)
        vi, vj = (self.names.var(x) if x else "0" for x in (s.i, s.j))
        if s.i:
            at[s.i] = Place(self.at[s.i].start, f"({vi} + i)")
        at[s.j] = Place(self.at[s.j].start, f"({vj} + j * LANES)")
        return at

    def _epilogue(self, s: Contract, over_i: str, over_j: str, cell: str, tested: bool) -> list[str]:
        rows_in_lanes = s.j == self.phase.row and bool(s.j)
        outer, inner = (over_j, over_i) if rows_in_lanes else (over_i, over_j)
        at = self._block_places(s)
        scope = Scope(frozenset(), [])
        el = Elements(self.names, self.phase, at, s.j, [scope], "m" if tested else "")
        el.given_sources[s.raw] = "x[i][j]"
        score = s.score if tested or s.open_score is None else s.open_score
        begin: list[str] = []
        lines: list[str] = []
        end: list[str] = []
        if score is not None:
            el.given_sources[s.dst] = el.value(score)
        saved = self.at
        self.at = at
        for f in s.folds:
            if not rows_in_lanes:
                raise IRError(f"{f.acc!r}: a fold in a contraction's registers needs the rows in the lanes")
            reg = self.names.fresh("a")
            begin += self.load_state(f, reg, el, False)
            lines += self.fold(f, reg, el, "")
            end += self.save_state(f, reg, el)
        self.at = saved
        if s.keep:
            lines.append(f"st_real({cell}, {el.given_sources.get(s.dst, 'x[i][j]')});")
        m = "const M m = tail(nj - j * LANES); (void)m;" if tested else ""
        return [f"{outer} {{", *([m] if rows_in_lanes else []), *begin, f"{inner} {{", *([] if rows_in_lanes else [m]),
                *scope.lines, *lines, "}", *end, "}"]  # fmt: skip

    # ---- dot products
    def do_dot(self, s: Dot) -> list[str]:
        a, b = self.memory(s.a, (s.i, s.c)), self.memory(s.b, (s.k, s.c))
        name, b_c, b_k = self.names.fresh("dot_"), b.steps[s.c], b.steps.get(s.k, "0")
        d = self.memory(Operand(s.dst, self._dims(s.dst)), (s.i, s.k))
        d_k = d.steps[s.k]

        def at(m: Memory, step: str, mask: str) -> str:
            p = "a" if m is a else "b"
            where = f"{p} + (c{step})" if m.steps[s.c] == "1" else f"{p} + (c{step}) * {m.steps[s.c]}"
            if m.steps[s.c] == "1":
                return f"ldm_{m.tag}({mask}, {where})" if mask else f"ld_{m.tag}({where})"
            return f"lds_{m.tag}({where}, {m.steps[s.c]}, {mask or 'm_all()'})"

        fetch = f"PREFETCH(b + c * {b_c} + {s.prefetch}); " if s.prefetch else ""
        self.functions.append("\n".join([
            f"RF_NOINLINE void {name}(const struct context *ctx, rf_real *d, const {a.tag}_t *a, const {b.tag}_t *b, int64_t n, "
            "int64_t nc) {", "(void)ctx;",
            f"for (int64_t k = 0; k < n; k++, b += {b_k}) {{ V x = set1(0), y = set1(0); int64_t c = 0;",
            f"for (; c + 2 * LANES <= nc; c += 2 * LANES) {{ {fetch}x = v_fma({at(a, '', '')}, {at(b, '', '')}, x); "
            f"y = v_fma({at(a, ' + LANES', '')}, {at(b, ' + LANES', '')}, y); }}",
            f"for (; c < nc; c += LANES) {{ const M m = tail(nc - c); x = v_fma({at(a, '', 'm')}, {at(b, '', 'm')}, x); }}",
            f"d[k * {d_k}] = h_sum(x + y); }}", "}"]))  # fmt: skip
        i_a, i_d = a.steps.get(s.i, "0"), d.steps.get(s.i, "0")
        return [f"for (int64_t i = 0; i < {self._total(s.i)}; i++)",
                f"{name}(ctx, {d.base} + i * {i_d}, {a.base} + i * {i_a}, {b.base}, {self._total(s.k)}, {self._total(s.c)});"]  # fmt: skip

    # ---- repacking
    def do_pack(self, s: Pack) -> list[str]:
        b = self.names.k.buffer(s.dst)
        if b is None:
            raise IRError(f"nothing in the kernel is called {s.dst!r}")
        *outer, c, j = b.dims
        loops = [a for a in outer if a not in self.at]
        out = [f"if ({self.cut} || {self._total(j)} % ({s.tested} * LANES))"] if s.tested else []
        with self._columns(out, tuple(loops)):
            base = self.memory(Operand(s.dst, b.dims), (c, j))
            extra = [f"{self.at[a].whole} * {self.names.step(b, d)}" for d, a in enumerate(b.dims) if a in loops]
            at = " + ".join([base.base, *extra])
            if b.dtype:
                out += pack_pairs(self, s, b, at)
                return out
            out += self._pack_panels(s, b, at, c, j) if b.panel else self._pack_rows(s, b, at, c, j)
        return out

    def _pack_panels(self, s: Pack, b: Buffer, base: str, c: str, j: str) -> list[str]:
        """dst[panel][c][width], zeros past the last lane: straight where the source runs along the panel, transposed in
        registers where it runs along c."""
        w, depth = b.panel, f"({self.names.size(b.sizes[-2])})"
        n_j, n_c = self._total(j), self._total(c)
        cv = self.names.var(c)
        if s.lane != c:
            return self._pack_straight(s, base, w, depth, c, j)
        c_start, j_start = (self.at[x].start if x in self.at else "0" for x in (c, j))
        scope = Scope(frozenset(), [])
        el = Elements(self.names, self.phase, {**self.at, c: Place(c_start, cv), j: Place(j_start, "(p + l + q)")}, c, [scope], "m")
        value = el.value(s.expr)
        return [f"for (int64_t p = 0; p < {n_j}; p += {w}) for (int64_t l = 0; l < {w}; l += LANES) {{",
                f"rf_real *to = {base} + p * {depth} + l; const int64_t left = {n_j} - p - l; (void)left;",
                *self._turned(scope.lines, value, "left", n_c, cv, "to", str(w)), "}"]  # fmt: skip

    def _pack_straight(self, s: Pack, base: str, w: int, depth: str, c: str, j: str) -> list[str]:
        """A whole panel row at a time; masks only in the last panel."""
        n_j, n_c, cv = self._total(j), self._total(c), self.names.var(c)
        c_start, j_start = (self.at[x].start if x in self.at else "0" for x in (c, j))
        rows = f"for (int64_t {cv} = c0; {cv} < rf_min(c0 + 32, {n_c}); {cv}++) for (int64_t l = 0; l < {w}; l += LANES) {{"
        out = [f"for (int64_t c0 = 0; c0 < {n_c}; c0 += 32) for (int64_t p = 0; p < {n_j}; p += {w}) {{",
               f"rf_real *const to = {base} + p * {depth}; const int64_t left = {n_j} - p;"]  # fmt: skip
        for test, mask in ((f"if (left >= {w})", ""), ("else", "m")):
            scope = Scope(frozenset(), [])
            el = Elements(self.names, self.phase, {**self.at, c: Place(c_start, cv), j: Place(j_start, "(p + l)")}, j, [scope], mask)
            value = el.value(s.expr)
            out += [f"{test} {rows}", *(["const M m = tail(left - l);"] if mask else []), *scope.lines,
                    f"st_real(to + {cv} * {w} + l, {f'keep(m, {value})' if mask else value});", "}"]  # fmt: skip
        return [*out, "}"]

    def _turned(self, lines: list[str], value: str, left: str, n_c: str, cv: str, to: str, step: str) -> list[str]:
        """LANES vectors along c (q counts them, up to `left`), transposed: to[c * step], LANES wide."""
        return [f"for (int64_t {cv} = 0; {cv} < {n_c}; {cv} += LANES) {{", f"V r[LANES]; const M m = tail({n_c} - {cv});",
                "for (int q = 0; q < LANES; q++) {", f"r[q] = set1(0); if (q < {left}) {{", *lines, f"r[q] = {value};", "}", "}",
                "v_transpose(r);", f"for (int q = 0; q < LANES && {cv} + q < {n_c}; q++)",
                f"st_real({to} + ({cv} + q) * {step}, r[q]);", "}"]  # fmt: skip

    def _pack_rows(self, s: Pack, b: Buffer, base: str, c: str, j: str) -> list[str]:
        """dst[c][j], the vector along j: straight, or transposed in registers where the source runs along c."""
        cv, jv = self.names.var(c), self.names.var(j)
        n_c, n_j = self._total(c), self._total(j)
        step = self.names.step(b, len(b.dims) - 2)
        scope = Scope(frozenset(), [])
        c_start = self.at[c].start if c in self.at else "0"
        j_start = self.at[j].start if j in self.at else "0"
        if s.lane == c:
            el = Elements(self.names, self.phase, {**self.at, c: Place(c_start, cv), j: Place(j_start, f"({jv} + q)")}, c, [scope], "m")
            value = el.value(s.expr)
            turned = self._turned(scope.lines, value, f"{n_j} - {jv}", n_c, cv, f"{base} + {jv}", step)
            return [f"for (int64_t {jv} = 0; {jv} < {n_j}; {jv} += LANES) {{", *turned, "}"]
        to = f"{base} + {cv} * {step} + {jv}"

        def put(el: Elements) -> list[str]:
            value = el.value(s.expr)
            return [f"stm_real({el.mask}, {to}, {value});" if el.mask else f"st_real({to}, {value});"]

        with self.bind(c, Place(c_start, cv)):
            row = self._vectors(j, j_start, n_j, put, "lift")
        return [f"for (int64_t {cv} = 0; {cv} < {n_c}; {cv}++) {{", *row, "}"]

    def summary_cell(self, buffer: str, tiles: tuple[tuple[str, int], ...]) -> str:
        """C text of a tile's entry."""
        b = self.names.k.buffer(buffer)
        if b is None:
            raise IRError(f"nothing in the kernel is called {buffer!r}")
        at = [f"{self.at[axis].start} / {step} * {self.names.step(b, d)}" for d, (axis, step) in enumerate(tiles)]
        return f"{self.names.get('buf', buffer)}[{' + '.join(at) or '0'}]"

    @contextmanager
    def _walk(self, out: list[str], axes: Set[str], lane: str, when: str = "") -> Iterator[str]:
        """Loops over what the tile (or, beyond it, the whole) has of these axes, the lane innermost with its mask `m`; `when`
        is asked before each step. Yields C text of the innermost loop's head."""
        saved = dict(self.at)
        for a in sorted(axes - {lane} - (set(saved) - set(self.counts))):
            v = self.names.var(a)
            out.append(f"for (int64_t {v} = 0; {when}{v} < {self._total(a)}; {v}++)")
            self.at[a] = Place(saved[a].start if a in saved else "0", v)
        v, total = self.names.var(lane), self._total(lane)
        self.at[lane] = Place(saved[lane].start if lane in saved else "0", v)
        yield f"for (int64_t {v} = 0; {when}{v} < {total}; {v} += LANES) {{ const M m = tail({total} - {v});"
        self.at = saved

    def do_summarise(self, s: Summarise) -> list[str]:
        out: list[str] = ["int some = 0, every = 1;"]
        with self._walk(out, s.expr.axes, s.lane) as head:
            scope = Scope(frozenset(), [])
            holds = self.elements(s.lane, [scope], "m").mask_of(s.expr)
        out += [head, *scope.lines, f"const M on = {holds}; some |= m_any(m_and(m, on)); every &= m_every(m_or(on, m_not(m)));", "}"]
        return [*out, f"{self.summary_cell(s.dst, s.tiles)} = some + (some && every);"]

    def do_scan(self, s: Scan) -> list[str]:
        """x * 0 is NaN exactly where x is not finite."""
        out: list[str] = ["{", "V bad = set1(0);"]
        with self._walk(out, s.expr.axes, s.lane) as head:
            scope = Scope(frozenset(), [])
            value = self.elements(s.lane, [scope], "m").value(s.expr)
        flag = self.names.get("buf", s.flag)
        return [*out, head, *scope.lines, f"bad = bad + keep(m, {value} * set1(0));", "}",
                f"if (m_any(m_isnan(bad))) {{ const rf_real no = 0; __atomic_store({flag}, &no, __ATOMIC_RELAXED); }}", "}"]  # fmt: skip

    def do_absent(self, s: Absent) -> list[str]:
        absent = self.names.fresh("absent")
        out = [f"int {absent} = 1;"]
        limit = literal(s.limit)
        tests = [(*s.added, "m_eq({}, set1(-RF_INF))"), *((e, lane, f"m_le(v_abs({{}}), set1({limit}))") for e, lane in s.moderate)]
        for e, lane, test in tests:
            with self._walk(out, e.axes, lane, f"{absent} && ") as head:
                scope = Scope(frozenset(), [])
                holds = test.format(self.elements(lane, [scope], "m").value(e))
            out += [head, *scope.lines, f"{absent} = m_every(m_or({holds}, m_not(m)));", "}"]
        return [*out, f"if ({absent}) continue;"]
