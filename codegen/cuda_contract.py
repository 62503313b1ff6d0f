"""Products of tiles without tensor cores as CUDA: register blocks of multiply-adds, and dot products of a warp."""

from __future__ import annotations

from dataclasses import dataclass

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Load

from .c_expr import Place, Scope
from .cuda_tile import BARRIER, STAGING, TileStatements
from .kernel import Buffer, Contract, Dot, Loop, Operand


@dataclass(frozen=True)
class Block:
    """How threads share a product of rows x columns: high x wide threads, each m x n sums, neighbours in memory where 16 bytes
    hold `vector` of them. i, j: names of a thread's place; sums: of its registers."""

    rows: int
    columns: int
    high: int
    wide: int
    vector: int
    i: str
    j: str
    sums: str

    @property
    def m(self) -> int:
        return self.rows // self.high

    @property
    def n(self) -> int:
        return -(-self.columns // self.wide)

    @property
    def active(self) -> int:
        return self.high * self.wide

    @property
    def row_vectors(self) -> bool:
        return self.m % self.vector == 0

    @property
    def column_vectors(self) -> bool:
        return self.columns % (self.wide * self.vector) == 0

    @property
    def row_width(self) -> int:
        """Elements from one inner element to the next in shared memory, padded against conflicts."""
        return self.rows + (self.vector if self.row_vectors else 1)

    @property
    def column_width(self) -> int:
        return self.columns + (self.vector if self.column_vectors else 1)

    @property
    def row(self) -> str:
        """Text of the row of sum m."""
        return f"{self.i} * {self.m} + m" if self.row_vectors else f"{self.i} + m * {self.high}"

    @property
    def column(self) -> str:
        """Text of the column of sum n."""
        v = self.vector
        return f"(n / {v} * {self.wide} + {self.j}) * {v} + n % {v}" if self.column_vectors else f"{self.j} + n * {self.wide}"

    @property
    def over_m(self) -> str:
        return f"UNROLL for (int m = 0; m < {self.m}; m++)"

    @property
    def over_n(self) -> str:
        return f"UNROLL for (int n = 0; n < {self.n}; n++)"

    def load_rows(self, element: str, staged: str) -> list[str]:
        """x[m] of one inner element: by `element` where it lies, else from the staged block at `staged`."""
        if element:
            return [f"{self.over_m} x[m] = {element};"]
        if self.row_vectors:
            return [f"UNROLL for (int m = 0; m < {self.m}; m += {self.vector}) shared16(x + m, {staged} + {self.row});"]
        return [f"{self.over_m} x[m] = ({staged})[{self.row}];"]

    def load_columns(self, element: str, staged: str) -> list[str]:
        """y[n] of one inner element."""
        if not element and self.column_vectors:
            return [f"UNROLL for (int n = 0; n < {self.n}; n += {self.vector}) shared16(y + n, {staged} + {self.column});"]
        value = element or f"({staged})[{self.column}]"
        test = f"{self.column} < {self.columns} ? {value} : (real)0" if self.columns % self.wide else value
        return [f"{self.over_n} y[n] = {test};"]


class TilePrinter(TileStatements):
    """The body of one phase of form "tile"."""

    def do_contract(self, s: Contract) -> list[str]:
        """Register blocks; operands in shared memory, a block of the inner axis at a time, unless they lie there already."""
        b = self._block(s)
        c0, total = self.names.fresh("c"), self.total(s.c)
        here = self._local(s.a), self._local(s.b)
        sizes = [0 if lies else s.c_block * width for lies, width in zip(here, (b.row_width, b.column_width), strict=True)]
        at = self.names.fresh("sa"), self.names.fresh("sb")
        self.staged = max(self.staged, -(-sum(sizes) * self.real_bytes // 16) * 16)
        out = ["{", f"const int {b.i} = thread / {b.wide}, {b.j} = thread % {b.wide};"]
        for lies, name, before in zip(here, at, (0, sizes[0]), strict=True):
            out += [] if lies else [f"real *const {name} = (real *)(dynamic + {STAGING}) + {before};"]
        out += [f"real {b.sums}[{b.m}][{b.n}] = {{}};", f"for (i64 {c0} = 0; {c0} < {total}; {c0} += {s.c_block}) {{"]
        out += [] if here[0] else self._stage(s.a, at[0], s.i, b.rows, b.row_width, s, c0)
        out += [] if here[1] else self._stage(s.b, at[1], s.j, b.columns, b.column_width, s, c0)
        out += [] if all(here) else [BARRIER]
        end = f"(int)min((i64){s.c_block}, {total} - {c0})" if any(here) else str(s.c_block)
        left = self._element(s.a, s.i, s.c, f"({b.row})", f"({c0} + c)") if here[0] else ""
        right = self._element(s.b, s.j, s.c, f"({b.column})", f"({c0} + c)") if here[1] else ""
        out += [f"if (thread < {b.active})", f'_Pragma("unroll 4") for (int c = 0; c < {end}; c++) {{', f"real x[{b.m}], y[{b.n}];",
                *b.load_rows(left, f"{at[0]} + c * {b.row_width}"), *b.load_columns(right, f"{at[1]} + c * {b.column_width}"),
                f"{b.over_m} {b.over_n} {b.sums}[m][n] = fma(x[m], y[n], {b.sums}[m][n]);", "}"]  # fmt: skip
        out += ["}"] if all(here) else [BARRIER, "}"]
        return [*out, *self._epilogue(s, b), "}", BARRIER, *self._score(s)]

    def _score(self, s: Contract) -> list[str]:
        """The tile mapped in place, element by element."""
        out: list[str] = []
        if s.score is None or (isinstance(s.score, Load) and s.score.source == s.raw):
            return out
        with self.each((s.i, s.j), out):
            scope = Scope(frozenset(), [])
            el = self.values([scope])
            el.given_sources[s.raw] = el.element(Load(s.dst, self._dims(s.dst)))
            value = el.value(s.score)
            out += [*scope.lines, self.put(s.dst, value, el)]
        return [*out, BARRIER]

    def _block(self, s: Contract) -> Block:
        rows = self.rows if s.i else 1
        columns = self.steps.get(s.j, 1) if s.j in self.steps else self._depth(s.j)
        high = min(rows, 16)
        fresh = self.names.fresh
        return Block(rows, columns, high, min(self.threads // high, columns), 16 // self.real_bytes, fresh("i"), fresh("j"), fresh("a"))

    def _depth(self, axis: str) -> int:
        return next(x.step for x in self.phase.body if isinstance(x, Loop) and x.axis == axis)

    def _local(self, op: Operand) -> bool:
        b = self.names.k.buffer(op.source)
        return b is not None and not b.shared

    def _element(self, op: Operand, side: str, inner: str, side_at: str, inner_at: str) -> str:
        """Text of an operand's element."""
        places = {inner: self._inner(inner, inner_at)}
        if side:
            places[side] = self._inner(side, side_at)
        with self.bind(places):
            return self.values([Scope(frozenset(), [])]).element(Load(op.source, op.dims))

    def _stage(self, op: Operand, to: str, side: str, size: int, width: int, s: Contract, c0: str) -> list[str]:
        """A block of the operand into shared memory, zeros past its ends; neighbour threads along its contiguous axis."""
        array = self.names.k.array(op.source)
        along_inner = array is None or array.strides[op.dims.index(s.c)] == 1
        point = self.names.fresh("p")
        fast, slow, n = ("c", "s", s.c_block) if along_inner else ("s", "c", size)
        value = self._element(op, side, s.c, "s", f"({c0} + c)")
        inside = f"{c0} + c < {self.total(s.c)}"
        inside += f" && s < {self.total(side)}" if side and (side in self.counts or side not in self.at) else ""
        return [f'_Pragma("unroll 2") for (int {point} = thread; {point} < {size * s.c_block}; {point} += {self.threads}) {{',
                f"const int {fast} = {point} % {n}, {slow} = {point} / {n};",
                f"{to}[c * {width} + s] = {inside} ? {value} : (real)0;", "}"]  # fmt: skip

    def _epilogue(self, s: Contract, b: Block) -> list[str]:
        """The finished sums, stored or added to a state that is moved to the new parameters."""
        ivar, jvar = self.names.var(s.i) if s.i else "", self.names.var(s.j)
        places = {s.j: self._inner(s.j, jvar)}
        tests, heads = [f"{jvar} < {self.total(s.j)}"], [f"const int {jvar} = {b.column};"]
        if s.i and self.rows > 1:
            places[s.i] = self._inner(s.i, ivar)
            tests.append(f"{ivar} < {self.total(s.i)}")
            heads.append(f"const int {ivar} = {b.row};")
        with self.bind(places):
            scope = Scope(frozenset(), [])
            el = self.values([scope])
            result = f"{b.sums}[m][n]"
            if s.start == "state":
                state = self.states[s.dst]
                first = self.cell(state)
                if s.factor:
                    first = f"times({el.value(Load(s.factor, self._dims(s.factor)))}, {first})"
                for coefficient, column in s.rank:
                    first = f"fma({el.value(Load(coefficient, self._dims(coefficient)))}, {self.cell(self.states[column])}, {first})"
                lines = [*scope.lines, f"{self.cell(state)} = {first} + {result};"]
            else:
                lines = [self.put(s.dst, result, el)]
        return [f"if (thread < {b.active}) {b.over_m} {b.over_n} {{", *heads, f"if ({' && '.join(tests)}) {{", *lines, "}", "}"]

    def _dims(self, name: str) -> tuple[str, ...]:
        b: Buffer | None = self.names.k.buffer(name)
        if b is None:
            raise IRError(f"nothing in the kernel is called {name!r}")
        return b.dims

    def do_dot(self, s: Dot) -> list[str]:
        """A warp for each (row, stream) element, its lanes along the inner axis."""
        point, c, total = self.names.fresh("p"), self.names.var(s.c), self.names.extent(s.c)
        ivar, kvar = self.names.var(s.i) if s.i else "", self.names.var(s.k)
        rows = self.total(s.i) if s.i and self.rows > 1 else "1"
        count = self.counts[s.k]
        out = [f"for (int {point} = thread / 32; {point} < {rows} * {count}; {point} += {self.threads // 32}) {{",
               f"const int {kvar} = {point} % {count};"]  # fmt: skip
        places = {s.k: self._inner(s.k, kvar), s.c: Place("0", c)}
        if s.i and self.rows > 1:
            out.append(f"const int {ivar} = {point} / {count};")
            places[s.i] = self._inner(s.i, ivar)
        reg = self.names.fresh("a")
        with self.bind(places):
            el = self.values([Scope(frozenset(), [])])
            a, b = el.element(Load(s.a.source, s.a.dims)), el.element(Load(s.b.source, s.b.dims))
            out += [f"real {reg} = 0;", f"for (i64 {c} = thread % 32; {c} < {total}; {c} += 32) {reg} = fma({a}, {b}, {reg});",
                    f"{reg} = group_sum<32>({reg});", f"if (thread % 32 == 0) {self.put(s.dst, reg, el)}", "}"]  # fmt: skip
        return [*out, BARRIER]
