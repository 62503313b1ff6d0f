"""One phase of a Kernel: the passes of a group lowered to statements, level by level."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import TYPE_CHECKING

from .cascade import Accumulator
from .codegen import kernel as ir
from .codegen.dtypes import DTYPES
from .expr import Acc, Const, Expr, Load, Map, Prev, Reduce, nodes, show, transform
from .forms import Form, Question, choose, separates
from .masks import keeps_nan
from .ops import MONOIDS, OPS
from .reuse import movable, shared
from .roles import Roles, factors, product, rename_sources, split_columns, terms

if TYPE_CHECKING:
    from .schedule import Group, Scheduler


class PhaseBuilder:
    """Lowers a group of passes. The public result is `phases()`: phases that prepare operands, the phase itself, and a
    phase that merges segments where the stream is cut."""

    def __init__(self, s: Scheduler, g: Group, number: int):
        self.s, self.g, self.number = s, g, number
        self.rows, self.stream = s.row_side(g), g.passes[0].axis
        self.accs = {a.name: a for p in g.passes for a in p.accumulators}
        self.columns = {n: tuple(x for x in a.axes if x not in self.rows) for n, a in self.accs.items()}
        outside = {k: v for k, v in s.memory.items() if k[0] not in self.accs}
        self.lifts = {a.name: rename_sources(a.lift, outside) for a in self.accs.values()}
        self.rebases = {a.name: rename_sources(a.rebase, outside) for a in self.accs.values() if a.rebase is not None}
        self.outputs = [(i, rename_sources(e, outside)) for i, e in g.outputs]
        self.before: list[ir.Phase] = []
        question = Question(
            self.lifts, self.accs, self.columns, self.rows, self.stream, s.extents, s.inputs, s.sizes, s.choice, self._is_masked()
        )
        self.form: Form = self._choose_form(question)
        self.separable = {n for n, a in self.accs.items() if self.form.row and separates(question, a, self.form.row)}
        self.along = [(i, e) for i, e in self.outputs if self.stream in s.outputs[i].dims]
        self.per_element = s.sizes.element * self._read_per_element()
        self._hoist()
        self.inner: list[tuple[Load, Expr]] = []
        self._materialise()
        self.segment = self._choose_segment()
        self.stored: dict[str, tuple[str, Expr]] = {}
        self.weights = self._plan_weights()
        self._plan_saved()

    @property
    def row(self) -> str:
        return self.form.row

    @property
    def lanes(self) -> str:
        return self.form.lanes

    def _choose_form(self, question: Question) -> Form:
        return choose(question)

    def _is_masked(self) -> bool:
        """Whether a condition that no accumulator decides, on positions or an array, leaves out elements."""
        found = [e.args[0] for e in nodes(*self.lifts.values()) if isinstance(e, Map) and e.op == "where"]
        return any(self.stream in c.axes and not any(isinstance(x, (Acc, Prev)) for x in nodes(c)) for c in found)

    def exprs(self) -> list[Expr]:
        """Every expression evaluated on elements of the stream."""
        return [*self.lifts.values(), *(e for _, e in self.along)]

    def _replace(self, old: Expr, new: Expr) -> None:
        self.lifts = {n: swapped(e, old, new) for n, e in self.lifts.items()}
        self.along = [(i, swapped(e, old, new)) for i, e in self.along]

    # ---- reductions inside elements
    def _closed_reductions(self) -> list[Expr]:
        """The outermost reductions in elements that read no accumulator and know no column."""
        cols = {c for cs in self.columns.values() for c in cs}
        found = [e for e in nodes(*self.exprs()) if isinstance(e, Reduce) and not e.axes & cols]
        found = [e for e in found if not any(isinstance(x, (Acc, Prev)) for x in nodes(e))]
        inside = {x for e in found for x in nodes(e) if x is not e}
        return sorted((e for e in found if e not in inside), key=show)

    def _hoist(self) -> None:
        """A reduction that does not vary over the rows, or not over the stream, is computed once, before."""
        p = self.form.product
        for n, e in enumerate(self._closed_reductions()):
            if p is not None and e is p.node:
                continue
            shared = (self.row and self.row not in e.axes) or self.stream not in e.axes
            if not shared or not e.axes:
                continue
            dims = tuple(a for a in (*self.rows, self.stream) if a in e.axes)
            name = f"once{self.number}_{n}"
            self.s.buffers.append(ir.Buffer(name, dims, tuple(ir.Size(d) for d in dims), shared=True))
            self.before.append(self.s.element_phase(f"once {n}", name, e, dims))
            self._replace(e, Load(name, dims, e.dtype))

    def _materialise(self) -> None:
        """A reduction inside an element becomes a tile in scratch, so that its value is computed once."""
        p = self.form.product
        for n, e in enumerate(self._closed_reductions()):
            if (p is not None and e is p.node) or e.dtype == bool:
                continue
            tile = self.tile_buffer(f"inner{self.number}_{n}")
            self.inner.append((tile, e))
            self._replace(e, tile)

    def tile_dims(self) -> tuple[str, ...]:
        if not self.row:
            return (self.stream,)
        return (self.row, self.stream) if self.lanes == "stream" else (self.stream, self.row)

    def tile_buffer(self, name: str, whole: bool = False) -> Load:
        """Scratch for one value an element of the tile, or of the tile's whole rows; lanes are contiguous."""
        f, lanes = self.form, self.s.lanes
        size = {self.row: ir.Size(value=f.held, multiple=lanes), self.stream: ir.Size(value=f.depth, multiple=lanes, pad=2 * lanes)}
        if self.lanes == "row":
            size[self.stream] = ir.Size(value=f.depth)
            size[self.row] = ir.Size(value=f.held, multiple=lanes, pad=2 * lanes if f.kind == "blocked" else 0)
        if whole:
            size[self.stream] = ir.Size(self.stream, multiple=lanes, pad=lanes)
        dims = self.tile_dims()
        self.s.buffers.append(ir.Buffer(name, dims, tuple(size[d] for d in dims), whole=self.stream if whole else ""))
        return Load(name, dims, self.s.real_dtype)

    def tile_statements(self, again: bool = False) -> list[ir.Stmt]:
        """What fills the tile's scratch before the levels. again: in a second traversal, for outputs along the stream."""
        stores = tuple((t.source, e) for t, e in self.inner)
        return [ir.Sweep(self.lanes, (), stores)] if stores else []

    # ---- weights of column accumulators
    def _plan_weights(self) -> dict[str, Load]:
        """The factor of a column accumulator's lift that knows no column, in scratch: computed once for all columns."""
        out: dict[str, Load] = {}
        split = {}
        for a in self.accs.values():
            if not self.columns[a.name] or a.op != "sum":
                continue
            w, v = split_columns(self.lifts[a.name], self.columns[a.name])
            if w is None or v is None or self.stream not in w.axes:
                continue
            simple = isinstance(w, Load) and a.name not in self.separable
            if simple or (self.row not in w.axes and self.row and a.name not in self.separable):
                continue
            split[a.name] = (w, v)
        self.reused = self._reusable_tile({n: w for n, (w, _) in split.items()})
        for n, (w, v) in split.items():
            a = self.accs[n]
            tile = w if isinstance(w, Load) and self.s.is_buffer(w.source) and w.dims == self.tile_dims() else self._weight_tile(a, w)
            out[a.name] = tile
            both = product([tile, v])
            assert both is not None
            self.lifts[a.name] = both
        return out

    def _weight_tile(self, a: Accumulator, w: Expr) -> Load:
        tile = self.reused or self.tile_buffer(f"weight{self.number}_{len(self.s.buffers)}")
        self.stored[a.name] = (tile.source, w)
        return tile

    def _reusable_tile(self, weights: dict[str, Expr]) -> Load | None:
        """A tile that the only weight may overwrite, since nobody reads it after the sweep that computes the weight."""
        return None

    # ---- values that several sweeps need
    def _plan_saved(self) -> None:
        """Heavy values that a later level, or an output along the stream, needs again go to scratch: of a tile, or of whole
        rows."""
        f, s = self.form, self.s
        self.saved: dict[int, list[tuple[str, Expr]]] = {}
        self.remembered: dict[str, str] = {}
        if f.kind != "plain" or len(self.g.roles) > 1:
            return
        levels = [[a.name for a in level if not self.columns[a.name]] for level in self.g.roles[0].levels]
        barred = frozenset(c for cs in self.columns.values() for c in cs)
        lifts, count = dict(self.lifts), 0
        fit = f.held * s.extents[self.stream] * s.sizes.element <= s.device.l2 // 2
        for n, e in shared(levels, lifts, [x for _, x in self.along], self.stream, barred):
            again = set(nodes(*(lifts[x] for names in levels[n + 1 :] for x in names)))
            moved = movable(e, list(self.accs.values()), lifts, self.rebases) if fit else None
            whole = moved is not None and e in set(nodes(*(x for _, x in self.along)))
            small = f.held * f.depth * s.sizes.element <= s.device.l1 // 2
            if self._guard(self.g.roles[0], [self.lifts[x] for x in levels[n]]) or not (whole or (e in again and small)):
                continue
            place = self.tile_buffer(f"saved{self.number}_{count}", whole)
            count += 1
            self.saved.setdefault(n, []).append((place.source, e))
            self.lifts.update({x: swapped(self.lifts[x], e, place) for names in levels[n + 1 :] for x in names})
            if whole and moved is not None:
                self._remember(moved)
                final = place if isinstance(moved, Const) else Map("mul", (place, moved), e.dtype)
                self.along = [(o, swapped(x, e, final)) for o, x in self.along]

    def _remember(self, moved: Expr) -> None:
        """Scratch for the parameters of each tile that a factor reads."""
        for x in nodes(moved):
            if isinstance(x, Prev) and x.name not in self.remembered:
                name = self.remembered[x.name] = f"tiles{self.number}_{x.name}"
                tiles, rows = ir.Size(self.stream, divide=self.form.depth), ir.Size(value=self.form.held, multiple=self.s.lanes)
                dims, sizes = ((self.stream, self.row), (tiles, rows)) if self.row else ((self.stream,), (tiles,))
                self.s.buffers.append(ir.Buffer(name, dims, sizes))

    # ---- levels
    def level_statements(self, r: Roles, n: int) -> list[ir.Stmt]:
        """Rebase and sweep of one level; then factors for column accumulators that move with it."""
        level = r.levels[n]
        own = [a for a in level if not self.columns[a.name]]
        out: list[ir.Stmt] = []
        moved = [a for a in own if a.name in self.rebases]
        if moved:
            params = sorted({x for a in moved for x in self._reads(r, self.rebases[a.name])})
            out.append(ir.Rebase(self.lanes, tuple(params), tuple((a.name, self.rebases[a.name]) for a in moved)))
        swept = [a for a in own if a.name not in self.folded_early()]
        stores = [self.stored[a.name] for a in level if a.name in self.stored] + self.saved.get(n, [])
        folds = tuple(self.fold(a) for a in swept)
        folds, stores = self.first_sweep(r, n, folds, stores)
        if folds or stores:
            guard = self._guard(r, [f.lift for f in folds] + [e for _, e in stores])
            if guard and stores and self.lanes == "stream":
                out.append(ir.Sweep(self.lanes, (), tuple(stores), (), 1))
                stores = []
            ahead = self._prefetch(r, n)
            out.append(ir.Sweep(self.lanes, folds, tuple(stores), guard, self._unroll(folds), ahead, self._read() if ahead else ()))
        return out

    def fold(self, a: Accumulator) -> ir.Fold:
        """The fold of an accumulator's lift. An extremum need not watch for NaN where a sum of the same pass does: one whose
        lift computes with the extremum's own, through operations that keep a NaN."""
        lift = self.lifts[a.name]
        sums = [self.lifts[b.name] for r in self.g.roles if a in r.accs for b in r.accs if b.op == "sum" and not self.columns[b.name]]
        loose = a.op in ("max", "min") and any(keeps_nan(e, lift) for e in sums)
        return ir.Fold(a.name, a.op, lift, loose)

    def folded_early(self) -> set[str]:
        """Accumulators that are folded where the tile is made."""
        return set()

    def first_sweep(
        self, r: Roles, n: int, folds: tuple[ir.Fold, ...], stores: list[tuple[str, Expr]]
    ) -> tuple[tuple[ir.Fold, ...], list[tuple[str, Expr]]]:
        return folds, stores

    def _prefetch(self, r: Roles, n: int) -> int:
        last = n == len(r.levels) - 1 and self.form.kind == "plain" and self.lanes == "stream" and not self.row
        return 4 * self.form.depth if last else 0

    def _read(self) -> tuple[Load, ...]:
        """The arrays that the lifts read along the stream."""
        found = [*self.lifts.values(), *(e for stores in self.saved.values() for _, e in stores)]
        return tuple(e for e in nodes(*found) if isinstance(e, Load) and self.stream in e.axes and not self.s.is_buffer(e.source))

    def _unroll(self, folds: tuple[ir.Fold, ...]) -> int:
        """Independent vectors in flight: fewer where polynomials fill the registers."""
        if "unroll" in self.s.choice:
            return int(self.s.choice["unroll"])
        heavy = any(isinstance(e, Map) and OPS[e.op].cost >= 8 for e in nodes(*(f.lift for f in folds)))
        if self.lanes == "row":
            return (2 if heavy or self.form.kind != "plain" else 4) if 0 < len(folds) <= 2 else 1
        if heavy:
            return 4 if self.s.sizes.registers >= 32 and len(folds) <= 2 else 2
        return 4 if len(folds) <= 3 else 2

    def _reads(self, r: Roles, e: Expr) -> set[str]:
        """Accumulators of this pass whose running value an expression reads."""
        own = {a.name for a in r.accs}
        return {x.name for x in nodes(e) if isinstance(x, Acc) and x.name in own}

    def _guard(self, r: Roles, lifts: list[Expr]) -> tuple[str, ...]:
        """Parameters to watch: needed when one of them is no extremum, because 0 / 0 may come of its identity."""
        read = sorted({x for e in lifts for x in self._reads(r, e)})
        return tuple(read) if any(self.accs[n].op not in ("max", "min") for n in read) else ()

    def pass_statements(self, r: Roles) -> list[ir.Stmt]:
        """Everything one tile of the stream does: levels, then column accumulators."""
        out: list[ir.Stmt] = []
        for n in range(len(r.levels)):
            out += self.level_statements(r, n)
        remember: list[ir.Stmt] = [ir.Remember(tuple(self.remembered.items()), self.form.depth)] if self.remembered else []
        return [*out, *self.column_statements(r), *remember]

    # ---- columns
    def column_statements(self, r: Roles) -> list[ir.Stmt]:
        cols = self._column_order([a for level in r.levels for a in level if self.columns[a.name]])
        out: list[ir.Stmt] = []
        starts: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
        for a in cols:
            if a.name not in self.rebases:
                continue
            start = self._start_terms(r, a) if a.name in self.separable else None
            if start is not None:
                out.append(start[0])
                starts[a.name] = start[1]
            else:
                e = self.rebases[a.name]
                out.append(ir.ColumnRebase(tuple(sorted(self._reads(r, e))), ((a.name, e),)))
        riders = self.riders(cols)
        for a in cols:
            if not any(a.name in names for names in riders.values()):
                out += self.column_fold(r, a, *starts.get(a.name, ("", ())), riders.get(a.name, ()))
        return out

    def riders(self, cols: list[Accumulator]) -> dict[str, tuple[str, ...]]:
        """Accumulators without a row axis that can share another's column operand, by that other's name."""
        return {}

    def column_fold(
        self, r: Roles, a: Accumulator, factor: str, rank: tuple[tuple[str, str], ...], riders: tuple[str, ...]
    ) -> list[ir.Stmt]:
        fold = ir.Fold(a.name, a.op, self.lifts[a.name])
        return [ir.Columns(fold, self._column_lane(a), self._guard(r, [self.lifts[a.name]]))]

    def _start_terms(self, r: Roles, a: Accumulator) -> tuple[ir.Stmt, tuple[str, tuple[tuple[str, str], ...]]] | None:
        """A rebase that is factor * own previous value + coefficients * rows of other columns: what a contraction can start
        from. Gives the Rebase that computes them, and their buffers."""
        e = self.rebases[a.name]
        factor: Expr | None = None
        rank: list[tuple[Expr, str]] = []
        for t in terms(e):
            sign, fs = self._signed_factors(t)
            old: list[Prev] = [f for f in fs if isinstance(f, Prev) and self.columns.get(f.name)]
            rest = product([f for f in fs if f not in old] + ([Const(-1.0, e.dtype)] if sign < 0 else []))
            if len(old) != 1 or (rest is not None and rest.axes & set(self.columns[a.name])):
                return None
            name = old[0].name
            if name == a.name and factor is None:
                factor = rest if rest is not None else Const(1.0, e.dtype)
            elif name != a.name and self.row not in self.accs[name].axes and self.columns[name] == self.columns[a.name]:
                rank.append((rest if rest is not None else Const(1.0, e.dtype), name))
            else:
                return None
        if factor is None:
            return None
        items: list[tuple[str, Expr, float]] = []
        own = ""
        if not isinstance(factor, Const) or factor.value != 1:
            own = self._row_buffer(f"factor{self.number}_{len(self.s.buffers)}")
            items.append((own, factor, 1.0))
        pairs = []
        for x, name in rank:
            b = self._row_buffer(f"coefficient{self.number}_{len(self.s.buffers)}")
            items.append((b, x, 0.0))
            pairs.append((b, name))
        return ir.Rebase(self.lanes, tuple(sorted(self._reads(r, e))), (), tuple(items)), (own, tuple(pairs))

    def _signed_factors(self, e: Expr) -> tuple[int, list[Expr]]:
        if isinstance(e, Map) and e.op == "neg":
            sign, fs = self._signed_factors(e.args[0])
            return -sign, fs
        return 1, factors(e)

    def _row_buffer(self, name: str) -> str:
        self.s.buffers.append(ir.Buffer(name, (self.row,), (ir.Size(value=self.form.held, multiple=self.s.lanes),)))
        return name

    def _column_order(self, accs: list[Accumulator]) -> list[Accumulator]:
        """Those whose previous value others read come last, so that it is still there."""
        read = {n for a in accs for n in a.previous() if n != a.name}
        return sorted(accs, key=lambda a: a.name in read)

    def _column_lane(self, a: Accumulator) -> str:
        """The last column where that is contiguous (or the stream is not), else the stream."""
        last = self.columns[a.name][-1]
        bad = {last: 0, self.stream: 0}
        for e in nodes(self.lifts[a.name]):
            array = next((x for x in self.s.inputs if isinstance(e, Load) and x.name == e.source), None)
            for axis in bad:
                if array is not None and isinstance(e, Load) and axis in e.axes and array.strides[e.dims.index(axis)] not in (0, 1):
                    bad[axis] += 1
        return last if bad[last] <= bad[self.stream] or MONOIDS[a.op].state != "value" else self.stream

    # ---- segments
    def _choose_segment(self) -> int:
        """The length of a segment of the stream, or 0. Plain rows are always cut alike; products only where one row tile
        covers all the rows, since else their tiles are parallel enough."""
        s, f = self.s, self.form
        if len(self.g.roles) > 1 or self.along or s.segmented:
            return 0
        if f.kind != "plain" and not f.stream_outer and self.row and s.extents[self.row] > f.rows:
            return 0
        length = s.choice.get("segment") or s.sizes.segment(self.per_element, f.depth)
        length = ceil(length / f.depth) * f.depth
        return length if ceil(s.extents[self.stream] / length) > 1 else 0

    def _read_per_element(self) -> int:
        """Elements read for one step of the stream by one item."""
        total = 0
        for e in nodes(*self.lifts.values()):
            if isinstance(e, Load) and self.stream in e.axes and not self.s.is_buffer(e.source):
                own = [a for a in e.dims if a != self.stream and a not in self.rows]
                rows = min(self.form.rows, self.s.extents[self.row]) if self.row in e.axes else 1
                total += rows * prod(self.s.extents[a] for a in own)
        return max(1, total)

    def _parts(self) -> tuple[tuple[str, str, str], ...]:
        """Buffers for the segments' states."""
        out = []
        batch = [x for x in self.rows if x != self.row]
        for st in self.states(False):
            dims = [*batch, ir.SEGMENT, *([self.row] if st.row else []), *st.columns, *([st.out] if st.k else [])]
            sizes = tuple(ir.Size(d) for d in dims)
            names = [f"part{self.number}_{st.name}", f"part{self.number}_{st.name}_at" if st.indexed else ""]
            for n in filter(None, names):
                self.s.buffers.append(ir.Buffer(n, tuple(dims), sizes, shared=True))
            out.append((st.name, names[0], names[1]))
        return tuple(out)

    # ---- states and results
    def states(self, keep: bool = True) -> tuple[ir.State, ...]:
        kept = frozenset().union(*(r.keep for r in self.g.roles)) if keep else frozenset()
        out = []
        for a in self.accs.values():
            by_row = bool(self.row) and (self.row in a.axes or not self.columns[a.name])
            out.append(ir.State(a.name, a.op, by_row, self.columns[a.name], a.k, a.out, a.name in kept))
        return tuple(out)

    def results(self) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        for n in self.g.exported:
            out += self._export(self.accs[n])
        for i, e in self.outputs:
            array = self.s.outputs[i]
            if self.stream not in array.dims:
                out.append(ir.Store(array.name, e, tuple(d for d in array.dims if d not in self.rows)))
        floating = tuple(a.name for a in self.accs.values() if self.lifts[a.name].dtype.kind not in "iub")
        return self._marked(out, floating) if self.s.choice.get("flags", True) else out

    def _marked(self, stores: list[ir.Stmt], floating: tuple[str, ...]) -> list[ir.Stmt]:
        """With the marks of rows that are not finite: made while a store reads the accumulator anyway, else by themselves."""
        out: list[ir.Stmt] = []
        for x in stores:
            if self.s.marks_in_stores and isinstance(x, ir.Store) and x.columns:
                read = {e.name for e in nodes(x.expr) if isinstance(e, Acc)}
                x = replace(x, checks=tuple(n for n in floating if n in read and self.columns[n] == x.columns and not self.accs[n].k))
                floating = tuple(n for n in floating if n not in x.checks)
            out.append(x)
        return [*out, ir.Flag(floating)] if floating else out

    def _export(self, a: Accumulator) -> list[ir.Stmt]:
        columns = (*self.columns[a.name], *((a.out,) if a.out else ()))
        axes = frozenset(a.axes) | ({a.out} if a.out else set())
        fields = [f for f in ("value", "index") if (a.name, f) in self.s.memory]
        return [ir.Store(self.s.memory[a.name, f].source, Acc(a.name, axes, a.dtype, f), columns) for f in fields]

    def along_stream(self) -> list[ir.Stmt]:
        """Outputs that vary along the stream: one more sweep."""
        if not self.along:
            return []
        stores = tuple((self.s.outputs[i].name, e) for i, e in self.along)
        plain = self.form.kind == "plain" and self.lanes == "stream" and not self.inner
        past = plain and len(stores) == 1 and self._streams_out(self.s.outputs[self.along[0][0]])
        sweep = ir.Sweep(self.lanes, (), stores, (), 4 if self.lanes == "stream" else 1, past_cache=past)
        depth = WHOLE if past and not self.remembered else self.form.depth
        recall: list[ir.Stmt] = [ir.Recall(tuple(self.remembered.items()), depth)] if self.remembered else []
        return [ir.Loop(self.stream, depth, (*recall, *self.tile_statements(True), sweep))]

    def _streams_out(self, array: ir.Array) -> bool:
        """Whether an output is better written past the caches: of the compute type, contiguous, and larger than they are."""
        size = prod(self.s.extents[d] for d in array.dims) * self.s.sizes.element
        real = array.dtype == DTYPES[self.s.real_dtype.name]
        return real and array.dims[-1] == self.stream and array.strides[-1] == 1 and size > self.s.device.l3

    # ---- the whole
    def row_statements(self) -> list[ir.Stmt]:
        """Once a row tile, before the stream."""
        return []

    def mask_statements(self) -> list[ir.Stmt]:
        """Once a tile, before anything else."""
        return []

    def absent_statements(self) -> list[ir.Stmt]:
        """Then, tests of the tile's own elements that leave it out."""
        return []

    def phases(self) -> list[ir.Phase]:
        f = self.form
        loops: list[ir.Stmt] = []
        for n, r in enumerate(self.g.roles):
            tile = [*self.mask_statements(), *self.absent_statements(), *self.tile_statements(n > 0), *self.pass_statements(r)]
            loops.append(ir.Loop(self.stream, f.depth, tuple(tile)))
        return self._assemble(loops)

    def _assemble(self, loops: list[ir.Stmt]) -> list[ir.Phase]:
        f, batch = self.form, tuple(ir.Grid(x) for x in self.rows if x != self.row)
        rows = (ir.Grid(self.row, f.rows),) if self.row and not f.stream_outer else ()
        segment = (ir.Grid(ir.SEGMENT, self.segment),) if self.segment else ()
        laws = tuple(law(a) for a in self.accs.values())
        name = f"over_{self.stream}"
        body = [*self.row_statements(), *loops, *self.along_stream()]
        uneven = any(isinstance(x, (ir.Skip, ir.Absent)) for x in ir.statements(tuple(body)))
        if not self.segment:
            body += self.results()
            own = ir.Phase(name, (*batch, *rows), tuple(body), self.row, self.stream, f.held, f.stream_outer, self.states(), uneven, laws)
            return [*self.before, own]
        self.s.segmented = True
        parts = self._parts()
        grid = (*batch, *segment, *rows)
        body = [*body, ir.Partial(parts)]
        own = ir.Phase(name, grid, tuple(body), self.row, self.stream, f.held, f.stream_outer, self.states(), uneven, laws)
        levels = tuple(tuple((a.name, self.rebases.get(a.name)) for a in level) for level in self.g.roles[0].levels)
        step = (ir.Grid(self.row, f.rows),) if self.row else ()
        merge = ir.Phase("merge", (*batch, *step), (ir.Merge(levels, parts), *self.results()), self.row, self.stream, f.held, False,
                         self.states(False))  # fmt: skip
        return [*self.before, own, merge]


WHOLE = 1 << 40  # a step that makes one tile of any axis


def swapped(e: Expr, old: Expr, new: Expr) -> Expr:
    """e with every occurrence of a node replaced."""
    return transform(e, lambda x: new if x is old else None)


def law(a: Accumulator) -> str:
    """One line of mathematics for the printed source."""
    text = f"{a.name}: {a.op}{a.k or ''} of {show(a.lift)}"
    return text if a.rebase is None else f"{text}; rebase {show(a.rebase)}"
