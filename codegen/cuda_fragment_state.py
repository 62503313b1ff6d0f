"""State of a tile's rows in registers: folds, rebases, one state a row, results."""

from __future__ import annotations

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Cast, Const, Expr, Index, Load
from redfuser_eq.ops import MONOIDS

from .c_expr import Place, Scope, _offsets
from .cuda_expr import GROUP, CudaNames, combine, literal
from .cuda_fragment import FragmentValues
from .cuda_state import StateCode
from .dtypes import DTYPES
from .kernel import Finish, Flag, Fold, Partial, Phase, Rebase, State, Store, Sweep, statements

NARROW = ("f16", "bf16")


class FragmentStates(StateCode):
    """Prints the statements that fold, move and store row states. `at` holds the places of the axes bound so far, `cells`
    what lies in registers. split: states that stay split over the lanes of a row until Finish. total: elements past the end
    are in the tile, and add nothing. united: the states of the block's parts are in the first one."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        if phase.place is None:
            raise IRError(f"phase {phase.name!r} has no place on a GPU")
        self.place = phase.place
        self.cells: dict[str, str] = {}
        self.rows = 2 * phase.place.fragments
        self.pieces = phase.place.parts * phase.place.across  # of each tile of the stream
        self.bands = (phase.place.warps - phase.place.producers) // self.pieces  # of rows, one a warp
        self.band = "band" if self.pieces > 1 else "warp"
        self.united = False
        self.crossed = False  # a barrier of all warpgroups has been passed since the tile's first product
        self.split = {n for s in statements(phase.body) if isinstance(s, Finish) and not s.parts for level in s.levels for n, _ in level}
        self.total = False
        self.step = 0
        self.rounding: dict[str, str] = {}  # tiles that products alone read, and the tag of their operands

    def cell(self, s: State, suffix: str = "", at: dict[str, Place] | None = None) -> str:
        return self.names.get("acc", s.name) + suffix + ("[h / 2][n][h % 2 * 2 + e]" if s.columns else "[h]")

    def wide(self, s: State) -> bool:
        return s.whole

    # ---- places
    @property
    def row_count(self) -> str:
        return self.names.count(self.phase.row)

    @property
    def row_at(self) -> str:
        """Text of the place of the thread's row h in the block's tile."""
        return f"{self.band} * {8 * self.rows} + h / 2 * 16 + h % 2 * 8 + lane / 4"

    def over_rows(self, body: list[str]) -> list[str]:
        """A loop over the thread's rows. Rows past the end read the last one and store nothing."""
        words = "\n".join(body)
        live = f"{self.row_at} < {self.row_count}{' && part == 0' if self.united else ''}"
        out = [f"const bool live = {live};"] if "live" in words else []
        out += [f"const int row = imin({self.row_at}, {self.row_count} - 1);"] if "row" in words else []
        return [f"UNROLL for (int h = 0; h < {self.rows}; h++) {{", *out, *body, "}"]

    def over_elements(self, body: list[str]) -> list[str]:
        run = self.place.run
        pos = f"const int pos = u / {run} * {4 * run} + lane % 4 * {run} + u % {run};"
        return [f"UNROLL for (int u = 0; u < {self.step // 4}; u++) {{", *([pos] if "pos" in "\n".join(body) else []), *body, "}"]

    def elements(self, scopes: list[Scope], mode: str = "lift", inside: str = "", column: str = "", near: bool = False) -> FragmentValues:
        places = {self.phase.row: Place(self.names.start(self.phase.row), "row")} if self.phase.row else {}
        if self.step:
            places[self.phase.stream] = Place(self.names.start(self.phase.stream), "pos")
        return FragmentValues(self.names, self.phase, {**self.at, **places}, scopes, self.cells, mode, inside, column, near)

    def variants(self, lines: list[str], tested: list[str]) -> list[str]:
        """Whole tiles test nothing."""
        return lines if lines == tested else ["if (!cut) {", *lines, "} else {", *tested, "}"]

    def inside(self) -> str:
        """Text that is false past the end of the stream."""
        return f"{self.names.start(self.phase.stream)} + pos < {self.names.extent(self.phase.stream)}"

    # ---- sweeps
    def do_sweep(self, s: Sweep) -> list[str]:
        counts = [(f, f.lift) for f in s.folds if f.op == "sum" and isinstance(f.lift, Const)]
        folds = tuple(f for f in s.folds if all(f is not c for c, _ in counts))
        whole = tuple(f for f in folds if f.acc not in self.split)
        names = [self.names.fresh("f") for _ in whole]
        declared = [f"float {x}[{self.rows}];" for x in names if self.place.across > 1]
        held = {f.acc: f"{x}[h]" if declared else x for f, x in zip(whole, names, strict=True)}
        body = [f"{'' if declared else 'float '}{held[f.acc]} = {literal(MONOIDS[f.op].identity)};" for f in whole]
        listed = any(self.states[f.acc].k for f in folds)  # long code: one variant
        lines = self._swept(s, folds, held, listed)
        lines = lines if self.total or listed else self.variants(lines, self._swept(s, folds, held, True))
        if folds or s.stores:
            body += [f"if (!({self.at_identity(s.guard, False)})) {{", *lines, "}"] if s.guard else lines
        ends: list[str] = []
        for f in whole:
            ends += self._close(f, held[f.acc])
        for f, c in counts:
            n, end = self.step * self.place.across, self.names.extent(self.phase.stream)
            add = f"{literal(float(c.value))} * (float)imin({n}, (int){end} - {self.tile_start()})"
            ends += [*self._save_old(self.states[f.acc]), f"{self.cell(self.states[f.acc])} += {add};"]
        return [*declared, *self.across_lanes(body, [(held[f.acc], f.op, f.loose) for f in whole], ends)]

    def tile_start(self) -> str:
        """Where the tile begins that the warps of a row divide."""
        start = self.names.start(self.phase.stream)
        return f"tile_{start}" if self.place.across > 1 else start

    def across_lanes(self, body: list[str], values: list[tuple[str, str, bool]], ends: list[str]) -> list[str]:
        """For each row: body, then these values (text, monoid, loose) folded over all threads that share the row, then ends.

        Warpgroups that divide the columns fold in one order, so that all get the same bits. Another barrier comes before the next
        values in the same place: the one behind the elements of the tile that they exchange."""
        lanes = [f"{x} = {GROUP[op]}<4>({x});" for x, op, _ in values]
        if self.place.across == 1 or not values:
            return self.over_rows([*body, *lanes, *ends])
        places = [self.names.fresh("shared") for _ in values]
        out = [f"__shared__ float {x}[{self.place.across}][{8 * self.rows * self.bands}];" for x in places]
        puts = [f"{p}[part][{self.row_at}] = {x};" for p, (x, _, _) in zip(places, values, strict=True)]
        gets = []
        for p, (x, op, loose) in zip(places, values, strict=True):
            gets.append(f"{x} = {p}[0][{self.row_at}];")
            gets += [f"{x} = {fold(op, x, f'{p}[{g}][{self.row_at}]', loose)};" for g in range(1, self.place.across)]
        self.crossed = True
        return [*out, *self.over_rows([*body, *lanes, "if (lane % 4 == 0) {", *puts, "}"]), self.barrier(), *self.over_rows([*gets, *ends])]

    def barrier(self) -> str:
        """Waits for all computing threads of the block."""
        return f"barrier_sync(1, {32 * self.bands * self.pieces});"

    def _swept(self, s: Sweep, folds: tuple[Fold, ...], held: dict[str, str], tested: bool) -> list[str]:
        row, element = Scope(frozenset((self.phase.row,)), []), Scope(frozenset((self.phase.stream,)), [])
        el = self.elements([row, element], inside="inside" if tested else "")
        lines: list[str] = []
        for f in folds:
            lines += self._fold(f, held.get(f.acc, ""), el)
        for target, e in s.stores:
            lines += self._put_element(target, e, el)
        test = [f"const bool inside = {self.inside()};"] if tested else []
        return ["{", *row.lines, *self.over_elements([*test, *element.lines, *lines]), "}"]

    def _fold(self, f: Fold, held: str, el: FragmentValues) -> list[str]:
        """Fold an element's lift into a register of the row."""
        s = self.states[f.acc]
        if s.indexed:
            return self._fold_indexed(f, s, el)
        reg = held or self.cell(s)
        product = el.product(f.lift) if f.op == "sum" and not el.inside else None
        if product:
            return [f"{reg} = fmaf({product[0]}, {product[1]}, {reg});"]
        v = el.value(f.lift)
        v = f"({el.inside} ? {v} : {literal(MONOIDS[f.op].identity)})" if el.inside else v
        return [f"{reg} = {fold(f.op, reg, v, f.loose)};"]

    def _fold_indexed(self, f: Fold, s: State, el: FragmentValues) -> list[str]:
        """Elements of a lane come in order, so that only a better one, or the first NaN, can take the place."""
        v, index, sign = el.value(f.lift), el.value(Index(self.phase.stream)), MONOIDS[f.op].best
        reg, at = self.cell(s), self.cell(s, "_at")
        test = f"{el.inside} && " if el.inside else ""
        if s.k:
            return [f"if ({test}ahead<{sign}>({v}, {index}, {reg}[{s.k - 1}], {at}[{s.k - 1}])) "
                    f"insert<{s.k}, {sign}>({reg}, {at}, {v}, {index});"]  # fmt: skip
        better = f"!({v} {'<=' if sign > 0 else '>='} {reg})"
        return [f"if ({test}{better} && ahead<{sign}>({v}, {index}, {reg}, {at})) {reg} = {v}, {at} = {index};"]

    def _close(self, f: Fold, held: str) -> list[str]:
        """Fold what the lanes have folded into the row's state."""
        s = self.states[f.acc]
        return [*self._save_old(s), f"{self.cell(s)} = {fold(f.op, self.cell(s), held, f.loose)};"]

    def _save_old(self, s: State) -> list[str]:
        return [f"{self.cell(s, '_old')} = {self.cell(s)};"] if s.keep and s.name not in self.rebased else []

    def _put_element(self, target: str, e: Expr, el: FragmentValues) -> list[str]:
        if target in self.cells:
            v = self._unrounded(target, e, el)
            return [f"{self.cells[target]} = {f'{el.inside} ? {v} : 0.0f' if el.inside else v};"]
        return [f"if (live{f' && {el.inside}' if el.inside else ''}) {self._put(target, e, el)}"]

    def _unrounded(self, target: str, e: Expr, el: FragmentValues) -> str:
        """Text of the value of a tile's element. Where only a product reads the tile, whose operands are of the format that the
        element was cast to, it is rounded there."""
        inner = e
        while isinstance(inner, Cast) and inner.dtype.kind == "f" and inner.dtype.itemsize >= 4:
            inner = inner.args[0]
        if not isinstance(inner, Cast) or DTYPES[inner.dtype.name] != self.rounding.get(target) or inner.args[0].dtype.kind != "f":
            return el.value(e)
        v = el.value(inner.args[0])
        return f"in_e4m3({v})" if self.rounding[target] == "e4m3" else v

    def address(self, target: str, el: FragmentValues) -> tuple[str, str]:
        """(text of the address, dtype tag) of an element of an array or a buffer in memory."""
        array, b = self.names.k.array(target), self.names.k.buffer(target)
        dims = array.dims if array is not None else b.dims if b is not None else ()
        base, steps, tag, _ = el.memory(Load(target, dims))
        return " + ".join([base, *_offsets([(el.at[d].whole, s) for d, s in zip(dims, steps, strict=True)])]), tag

    def _put(self, target: str, e: Expr, el: FragmentValues) -> str:
        at, tag = self.address(target, el)
        state = self.states[e.name] if isinstance(e, Acc) else None
        v = el.cell(state, "", el.at) if state is not None and state.whole else el.value(e)
        return f"*({at}) = {v};" if tag == "real" else f"put_{tag}({at}, {v});"

    # ---- rebases
    def do_rebase(self, s: Rebase) -> list[str]:
        scope = Scope(frozenset((self.phase.row,)), [])
        el = self.elements([scope], "rebase")
        el.own = frozenset(n for n, _ in s.items)
        keep = [f"{self.cell(self.states[n], '_old')} = {self.cell(self.states[n])};" for n, _ in s.items if self.states[n].keep]
        new = [(self.cell(self.states[n]), self.names.fresh("n"), el.value(e)) for n, e in s.items]
        factors = [(f"{self.names.get('reg', b)}[h]", el.value(e), d) for b, e, d in s.factors]
        body = [*scope.lines, *(f"const float {i} = {v};" for _, i, v in new), *(f"{cell} = {i};" for cell, i, _ in new)]
        body += [f"{cell} = {v};" for cell, v, _ in factors]
        if not s.params or all(self.states[p].op in ("max", "min") for p in s.params):
            return self.over_rows([*keep, *body])  # exactly 1 where nothing moved, and a step from the identity counts as none
        start = [f"{cell} = {literal(d)};" for cell, _, d in factors]
        return self.over_rows([*keep, *start, f"if ({self.moved(s.params)}) {{", *body, "}"])

    # ---- one state a row
    def do_finish(self, s: Finish) -> list[str]:
        body: list[str] = []
        values: list[tuple[str, str, bool]] = []
        for n, _ in (x for level in s.levels for x in level):
            state, sign = self.states[n], MONOIDS[self.states[n].op].best
            reg, at = self.cell(state), self.cell(state, "_at")
            if not state.indexed:
                values.append((reg, state.op, False))
            elif state.k:
                body.append(f"group_list<4, {state.k}, {sign}>({reg}, {at});")
            else:
                body.append(f"group_best<4, {sign}>({reg}, {at}); if ({at} < 0.0f) {at} = 0.0f;")
        return self.across_lanes([], values, body) if body or values else []

    # ---- results
    def one(self) -> str:
        """Text: true in one thread of a row that exists."""
        return f"live && lane % 4 == 0{' && part == 0' if self.place.across > 1 else ''}"

    def do_store(self, s: Store) -> list[str]:
        row = Scope(frozenset((self.phase.row,)), [])
        if not s.columns:
            put = self._put(s.target, s.expr, self.elements([row], "final"))
            return self.over_rows([*row.lines, f"if ({self.one()}) {put}"])
        (d,) = s.columns
        listed = next((x for x in self.phase.states if x.out == d), None)
        inner = Scope(frozenset((d,)), [])
        if listed is not None:
            self.at[d] = Place("0", "entry")
            put = self._put(s.target, s.expr, self.elements([row, inner], "final"))
            entries = [f"UNROLL for (int entry = 0; entry < {listed.k}; entry++) {{", *inner.lines, put, "}"]
            return self.over_rows([*row.lines, f"if ({self.one()})", *entries])
        array = self.names.k.array(s.target)
        if array is not None and array.dtype in NARROW and array.strides[array.dims.index(d)] == 1:
            body = self._store_pairs(s, d, row, inner)
        else:
            put = self._put(s.target, s.expr, self._column_elements([row, inner], d))
            body = self._over_columns(d, [*inner.lines, f"if (live && within) {put}"])
        return self.over_rows([*row.lines, *body])

    def _column_elements(self, scopes: list[Scope], d: str, near: bool = False) -> FragmentValues:
        self.at[d] = Place(self.at[d].start if d in self.at else "0", "column")
        return self.elements(scopes, "final", column="[h / 2][n][h % 2 * 2 + e]", near=near)

    def _columns_left(self, d: str) -> str:
        """Text of the number of columns from the start of the block on."""
        return f"((int){self.names.extent(d)} - {self.at[d].start})"

    def _column(self, d: str) -> str:
        """Text of the first of a thread's two columns of block n."""
        own = f"part * {8 * self.column_blocks(d)} + " if self.place.across > 1 else ""
        return f"{own}n * 8 + lane % 4 * 2"

    def _over_columns(self, d: str, body: list[str]) -> list[str]:
        """A loop over the thread's columns; those past the end read the last one, and `within` is false."""
        left = self._columns_left(d)
        return [f"UNROLL for (int n = 0; n < {self.column_blocks(d)}; n++) UNROLL for (int e = 0; e < 2; e++) {{",
                f"const int column = imin({self._column(d)} + e, {left} - 1);",
                f"const bool within = {self._column(d)} + e < {left};", *body, "}"]  # fmt: skip

    def column_blocks(self, d: str) -> int:
        """Blocks of eight columns that a fragment holds."""
        raise NotImplementedError

    def _store_pairs(self, s: Store, d: str, row: Scope, inner: Scope) -> list[str]:
        """Two neighbours at once where they lie in one aligned word."""
        array = self.names.k.array(s.target)
        assert array is not None
        el = self._column_elements([row, inner], d, near=True)
        value, (at, tag) = el.value(s.expr), self.address(s.target, el)
        name, left = self.names.array(array), self._columns_left(d)
        odd = " | ".join([f"(i64){name} / 2", *(f"{name}_s{i}" for i, st in enumerate(array.strides) if st is None)])
        return [f"const bool paired = (({odd}) & 1) == 0;", f"UNROLL for (int n = 0; n < {self.column_blocks(d)}; n++) {{", "float v[2];",
                "UNROLL for (int e = 0; e < 2; e++) {",
                f"const int column = imin({self._column(d)} + e, {left} - 1); (void)column;", *inner.lines,
                f"v[e] = {value};", "}", f"const int first = {self._column(d)};",
                f"if (live && paired && first + 1 < {left}) {{ const int column = first; "
                f"*(u32 *)({at}) = pack_{tag}(v[0], v[1]); }}",
                "else if (live) UNROLL for (int e = 0; e < 2; e++) {", "const int column = first + e;",
                f"if (column < {left}) put_{tag}({at}, v[e]);", "}", "}"]  # fmt: skip

    def do_flag(self, s: Flag) -> list[str]:
        """A row with an accumulator that is not finite: a NaN or an infinity times 0 is a NaN."""
        body: list[str] = ["float bad = 0.0f;"]
        for n in s.accs:
            state = self.states[n]
            name = self.names.get("acc", n)
            if state.columns:
                body.append(f"UNROLL for (int n = 0; n < {self.column_blocks(state.columns[0])}; n++) "
                            f"UNROLL for (int e = 0; e < 2; e++) bad += 0.0f * {name}[h / 2][n][h % 2 * 2 + e];")  # fmt: skip
            elif state.k:
                body.append(f"UNROLL for (int k = 0; k < {state.k}; k++) bad += 0.0f * {name}[h][k];")
            else:
                body.append(f"bad += 0.0f * {name}[h];")
        at = "0"
        el = self.elements([Scope(frozenset(), [])])
        for a in self.names.k.flag_axes or ():
            at = f"({at} * {self.names.extent(a)} + {el.at[a].whole})"
        return self.over_rows([*body, f"if (live && bad != 0.0f) flags[{at}] = 1;"])

    def do_partial(self, s: Partial) -> list[str]:
        out: list[str] = []
        for n, values, positions in s.items:
            for target, suffix in ((values, ""), (positions, "_at")):
                if target:
                    out += self._copy_out(self.states[n], target, suffix)
        return out

    def _copy_out(self, s: State, target: str, suffix: str) -> list[str]:
        if s.columns:
            (d,) = s.columns
            el = self._column_elements([Scope(frozenset(), [])], d)
            put = f"*({self.address(target, el)[0]}) = {el.state(s)};"
            return self.over_rows(self._over_columns(d, [f"if (live && within) {put}"]))
        each = ""
        if s.k:
            self.at[s.out] = Place("0", "entry")
            each = f"UNROLL for (int entry = 0; entry < {s.k}; entry++) "
        el = self.elements([Scope(frozenset(), [])])
        return self.over_rows([f"if ({self.one()}) {each}*({self.address(target, el)[0]}) = {el.state(s, suffix)};"])

    # ---- declarations
    def declared(self) -> list[str]:
        """The states, at their identities."""
        out = []
        for s in self.phase.states:
            name, identity = self.names.get("acc", s.name), literal(MONOIDS[s.op].identity)
            if s.columns:
                n8, m = self.column_blocks(s.columns[0]), self.place.fragments
                out.append(f"{'int' if s.whole else 'float'} {name}[{m}][{n8}][4];")
                out.append(f"UNROLL for (int m = 0; m < {m}; m++) UNROLL for (int n = 0; n < {n8}; n++) "
                           f"UNROLL for (int e = 0; e < 4; e++) {name}[m][n][e] = {identity};")  # fmt: skip
                continue
            each = f"[{s.k}]" if s.k else ""
            fill, k = (f"UNROLL for (int k = 0; k < {s.k}; k++) ", "[k]") if s.k else ("", "")
            arrays = [("", identity)] + ([("_old", identity)] if s.keep else []) + ([("_at", "-1.0f")] if s.indexed else [])
            out += [f"float {name}{suffix}[{self.rows}]{each};" for suffix, _ in arrays]
            sets = " ".join(f"{name}{suffix}[h]{k} = {start};" for suffix, start in arrays)
            out.append(f"UNROLL for (int h = 0; h < {self.rows}; h++) {fill}{{ {sets} }}")
        return out


def fold(op: str, a: str, b: str, loose: bool) -> str:
    """Text of the monoid on two floats; loose: NaN may be lost."""
    return f"f{op}f({a}, {b})" if loose and op in ("max", "min") else combine(op, a, b)
