"""Phases with matrix products: operands packed or read in place, contractions in register blocks, tiles a mask leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .cascade import Accumulator
from .codegen import kernel as ir
from .expr import Acc, Cast, Const, Expr, Load, Map, Prev, Reduce, nodes, transform
from .forms import Form, Question, choose
from .masks import MODERATE, added, conjunction, finite_needed, masked
from .pairs import Pairs, pair_sizes, pairs_of
from .phase import PhaseBuilder, swapped
from .roles import Roles, split_columns
from .tiles import PAGE

if TYPE_CHECKING:
    from .schedule import Group, Scheduler


class ProductBuilder(PhaseBuilder):
    """Adds to a phase what its form asks for: the inner contraction (`tile`, its mapped result) and column contractions."""

    def __init__(self, s: Scheduler, g: Group, number: int):
        self.tile: Load | None = None
        self.score: Expr | None = None
        self.added: tuple[Expr, set[Load]] | None = None
        self.scale: tuple[str, Const] | None = None
        self.turned: list[ir.Pack] = []
        self.turned_masks: dict[Expr, Expr] = {}
        self.early: set[str] = set()
        self.pairs: Pairs | None = None
        self.column_pairs: dict[str, Pairs] = {}
        super().__init__(s, g, number)

    # ---- pairs of small numbers
    @property
    def formats(self) -> tuple[str, ...]:
        """What is multiplied in pairs on this device."""
        return self.s.device.pairs if self.s.choice.get("pairs", True) else ()

    def _choose_form(self, question: Question) -> Form:
        """Sums in pairs have 32 bits: of a wider compute type a register block holds twice as many."""
        form = choose(question)
        p = form.product
        if p is None or form.kind != "blocked":
            return form
        self.pairs = pairs_of(p.row, p.stream, p.node.body, self.s.real, self.formats)
        if self.pairs is None or self.s.real == "float":
            return form
        form = choose(replace(question, sizes=replace(pair_sizes(question.sizes), element=question.sizes.element)))
        return replace(form, nv=2 * form.nv)

    def _weight_tile(self, a: Accumulator, w: Expr) -> Load:
        """A weight of small numbers, whose columns are small too, is kept as 16-bit numbers."""
        lift = self.lifts[a.name]
        _, v = split_columns(lift, self.columns[a.name])
        if a.name in self.separable and self.lanes == "stream" and self.form.depth % 2 == 0 and v is not None:
            pairs = pairs_of(w, v, lift, self.s.real, self.formats)
            if pairs is not None:
                tile = self.tile_buffer(f"weight{self.number}_{len(self.s.buffers)}")
                self.s.buffers[-1] = replace(self.s.buffers[-1], dtype=pairs.dtype)
                self.column_pairs[a.name] = pairs
                self.stored[a.name] = (tile.source, w)
                return tile
        return super()._weight_tile(a, w)

    # ---- the score
    def _materialise(self) -> None:
        super()._materialise()
        p = self.form.product
        if p is None:
            return
        self._order()
        self.tile = self.tile_buffer(f"tile{self.number}")
        self.raw = Load(f"raw{self.number}", self.tile_dims(), self.s.real_dtype) if self.form.kind == "blocked" else self.tile
        score = self._largest_score(p.node)
        self._replace(score, self.tile)
        self.score = transform(score, lambda e: self.raw if e is p.node else None)
        self.added = added(self.score, self.raw, self.form.row, self.stream)
        self._fold_scale()
        self._turn_loads()
        self.plain_score = self.score is self.raw

    def _fold_scale(self) -> None:
        """A constant factor of the product goes into the operand that is packed anyway: one that cannot make it overflow, where
        the product does not, nor vanish."""
        if self.form.kind != "blocked" or self.score is None or self.pairs is not None:
            return
        over = [e for e in nodes(self.score) if isinstance(e, Map) and any(a is self.raw for a in e.args)]
        if len(over) == 1 and over[0].op in ("mul", "div"):
            others = [a for a in over[0].args if a is not self.raw]
            under = over[0].op == "div" and over[0].args[0] is not self.raw
            if len(others) == 1 and isinstance(others[0], Const) and not under and _shrinks(over[0].op, others[0].value):
                self.scale = (over[0].op, others[0])
                self.score = swapped(self.score, over[0], self.raw)

    def _turn_loads(self) -> None:
        """Lanes along the rows, but an array that the score reads runs along the stream: its tile is transposed first, that of a
        mask only where a test is needed: most tiles are left out or need none."""
        if self.form.kind != "blocked" or self.lanes != "row" or self.score is None or self.form.stream_outer:
            return
        tested = set(nodes(*(e.args[0] for e in nodes(self.score) if isinstance(e, Map) and e.op == "where")))
        for n, e in enumerate(sorted((x for x in nodes(self.score) if isinstance(x, Load)), key=repr)):
            array = next((a for a in self.s.inputs if a.name == e.source), None)
            whole = ("b8",) if e in tested else ("f32", "f64", "f16", "bf16")
            if array is None or not {self.row, self.stream} <= e.axes or array.dtype not in whole:
                continue
            if array.strides[e.dims.index(self.stream)] == 1 and array.strides[e.dims.index(self.row)] is None:
                tile = self.tile_buffer(f"turned{self.number}_{n}")
                self.turned.append(ir.Pack(tile.source, e, self.stream, self.form.nv if e in tested else 0))
                if e in tested:
                    self.turned_masks[e] = tile
                else:
                    self.score = swapped(self.score, e, tile)

    def _scaled(self, e: Expr) -> Expr:
        """The operand that is packed."""
        return e if self.scale is None else Map(self.scale[0], (e, self.scale[1]), self.s.real_dtype)

    def _largest_score(self, node: Expr) -> Expr:
        """The largest expression around the product that every use of it goes through."""
        cols = {c for cs in self.columns.values() for c in cs}
        uses = self.exprs()
        around = [e for e in nodes(*uses) if node in set(nodes(e)) and not e.axes & cols and e.dtype == node.dtype]
        around = [e for e in around if not any(isinstance(x, (Acc, Prev)) for x in nodes(e))]
        for e in sorted(around, key=lambda e: -len(list(nodes(e)))):
            left = [transform(u, lambda x, e=e: self.tile if x is e else None) for u in uses]  # type: ignore[misc]
            if not any(x is node for x in nodes(*left)):
                return e
        return node

    def _order(self) -> None:
        """The stream outside the rows, when its operand outgrows the last cache and several row tiles read it."""
        f, s = self.form, self.s
        if (
            f.kind != "blocked"
            or any(x != self.row for x in self.rows)
            or any(self.columns.values())
            or self.along
            or len(self.g.roles) > 1
        ):
            return
        outer = s.extents[self.row] > f.rows and self.per_element * s.extents[self.stream] > s.device.l3 and not s.segmented
        self.form = replace(f, stream_outer=bool(s.choice.get("stream_outer", outer)))

    def _reusable_tile(self, weights: dict[str, Expr]) -> Load | None:
        if self.tile is None or len(weights) != 1 or len(self.g.roles) > 1:
            return None
        (name,) = weights
        levels = [{a.name for a in level} for level in self.g.roles[0].levels]
        own = next(n for n, level in enumerate(levels) if name in level)
        reads = {n for n, e in self.lifts.items() if any(x is self.tile for x in nodes(e))}
        if any(n in level for level in levels[own + 1 :] for n in reads) or any(self.columns[n] and n != name for n in reads):
            return None
        return self.tile

    # ---- operands
    def _straight(self, e: Expr, lane: str, *, unit: bool) -> ir.Operand | None:
        """An operand that can be read where it lies: of the compute type, and contiguous along `lane` if asked."""
        if not isinstance(e, Load):
            return None
        array = next((a for a in self.s.inputs if a.name == e.source), None)
        real = "f32" if self.s.real == "float" else "f64"
        if array is None or array.dtype != real or (unit and array.strides[e.dims.index(lane)] != 1):
            return None
        return ir.Operand(e.source, e.dims)

    def _contiguous(self, e: Expr, a: str, b: str) -> str:
        """Which of two axes the expression's loads run along."""
        for x in nodes(e):
            array = next((v for v in self.s.inputs if isinstance(x, Load) and v.name == x.source), None)
            if array is not None and isinstance(x, Load):
                for axis in (a, b):
                    if axis in x.axes and array.strides[x.dims.index(axis)] == 1:
                        return axis
        return a

    def _pack(
        self, name: str, e: Expr, c: str, j: str, panel: int, sizes: dict[str, ir.Size], lane: str, shared: int, pairs: Pairs | None
    ) -> tuple[ir.Operand, ir.Stmt]:
        """Repack e[c, j]; shared > 0: once a launch, in shares of so many of j, over the batch axes it carries."""
        if pairs is not None and panel:
            sizes = {**sizes, c: replace(sizes[c], multiple=2)}
        batch = tuple(x for x in self.rows if x in e.axes and x not in (c, j)) if shared else ()
        dims = (*batch, c, j)
        all_sizes = (*(ir.Size(x) for x in batch), sizes[c], sizes[j])
        self.s.buffers.append(ir.Buffer(name, dims, all_sizes, bool(shared), panel, dtype=pairs.dtype if pairs else ""))
        stmt = ir.Pack(name, e, lane)
        if shared:
            grid = (*(ir.Grid(x) for x in batch), ir.Grid(j, shared))
            self.before.append(ir.Phase(f"pack {name}", grid, (stmt,), "", "", 1))
        return ir.Operand(name, dims), stmt

    def _row_operand(self) -> None:
        """Where the row side of the inner contraction is read from, and what packs it."""
        f, s, p = self.form, self.s, self.form.product
        assert p is not None
        at_row: list[ir.Stmt] = []
        at_stream: list[ir.Stmt] = []
        width = f.nv * s.lanes
        lane = self._contiguous(p.row, p.inner, self.row)
        inner = ir.Size(p.inner)
        if self.lanes == "row":
            size = ir.Size(self.row, multiple=width) if f.stream_outer else ir.Size(value=f.held, multiple=width)
            packed, sizes = self._scaled(p.row), {p.inner: inner, self.row: size}
            share = 4 * width if f.stream_outer else 0
            self.b, stmt = self._pack(f"rows{self.number}", packed, p.inner, self.row, width, sizes, lane, share, self.pairs)
            at_row += [] if f.stream_outer else [stmt]
            straight = self._straight(p.stream, p.inner, unit=False)
            if straight is None:
                where = self._contiguous(p.stream, p.inner, self.stream)
                straight, stmt = self._pack(f"stream{self.number}", p.stream, self.stream, p.inner, 0,
                                            {self.stream: ir.Size(value=f.depth), p.inner: ir.Size(p.inner, multiple=s.lanes, pad=s.lanes)},
                                            where if where == p.inner else p.inner, 0, self.pairs)  # fmt: skip
                at_stream.append(stmt)
            self.a = straight
        else:
            self._stream_panels(at_row, at_stream, width)
        self.at_row, self.at_stream = at_row, at_stream

    def _stream_panels(self, at_row: list[ir.Stmt], at_stream: list[ir.Stmt], width: int) -> None:
        """Lanes along the stream: its operand in panels, once a launch where several row tiles use it."""
        f, s, p = self.form, self.s, self.form.product
        assert p is not None
        once = s.extents[self.row] > f.rows and not f.stream_outer
        size = ir.Size(self.stream, multiple=width) if once else ir.Size(value=f.depth, multiple=width)
        where = self._contiguous(p.stream, p.inner, self.stream)
        sizes = {p.inner: ir.Size(p.inner), self.stream: size}
        share = 4 * width if once else 0
        self.b, stmt = self._pack(
            f"stream{self.number}", self._scaled(p.stream), p.inner, self.stream, width, sizes, where, share, self.pairs
        )
        at_stream += [] if once else [stmt]
        straight = self._straight(p.row, p.inner, unit=True)
        if straight is None:
            straight, stmt = self._pack(f"rows{self.number}", p.row, self.row, p.inner, 0,
                                        {self.row: ir.Size(self.row) if f.stream_outer else ir.Size(value=f.held),
                                         p.inner: ir.Size(p.inner, multiple=s.lanes, pad=s.lanes)}, p.inner,
                                        0, self.pairs)  # fmt: skip
            if f.stream_outer:
                self.form = replace(f, stream_outer=False)
            at_row.append(stmt)
        self.a = straight

    # ---- statements
    def row_statements(self) -> list[ir.Stmt]:
        return list(self.at_row)

    def mask_statements(self) -> list[ir.Stmt]:
        """Skip, when the score is masked and nothing is added where it is -inf: by affine conditions on the corners of a
        tile, by other conditions on a summary of theirs that is made once a launch."""
        if self.tile is None or self.score is None:
            return []
        m = masked(self.score)
        if not m.bounds and not m.others:
            return []
        if any(isinstance(e, (Acc, Reduce)) or (isinstance(e, Load) and self.s.is_local(e.source)) for e in nodes(*m.others)):
            return []
        needed = self._needed()
        if needed is None:
            return []
        names = [self._scan(e) for e in sorted(needed, key=repr) if not self.s.is_buffer(e.source)]
        return [ir.Skip(tuple(m.bounds), tuple(names), *self._summary(m.others))]

    def _needed(self) -> set[Load] | None:
        """What must be finite for no lift to add anything where the score is -inf, or None where one does."""
        assert self.tile is not None
        found = [finite_needed(a.op, self.lifts_by_tile[n], self.tile) for n, a in self.accs.items()]
        return None if None in found else set().union(*(x for x in found if x is not None))

    def absent_statements(self) -> list[ir.Stmt]:
        """Where an array is added to the score, it may be -inf on a whole tile (a mask written as a sum)."""
        p = self.form.product
        if self.tile is None or p is None or self.added is None or not self.row:
            return []
        e, loads = self.added
        product = [x for x in nodes(p.node) if isinstance(x, Load)]
        needed = self._needed()
        plain = all(isinstance(x, (Load, Cast, Const, Reduce)) or (isinstance(x, Map) and x.op == "mul") for x in nodes(p.node))
        if needed is None or len(product) > 2 or not plain:
            return []
        tested = [x for x in sorted({*product, *loads, *needed}, key=repr) if not self.s.is_buffer(x.source)]
        if any(self.s.is_local(x.source) for x in tested):
            return []
        inside = (self.row, self.stream, p.inner, *(c for cs in self.columns.values() for c in cs))
        lanes = [self._lane_of(x, inside) for x in tested]
        moderate = tuple((x, lane) for x, lane in zip(tested, lanes, strict=True) if lane)
        return [ir.Absent((e, self._contiguous(e, self.stream, self.row)), moderate, MODERATE)] if all(lanes) else []

    def _lane_of(self, e: Load, inside: tuple[str, ...]) -> str:
        """The axis of an array to walk fastest, among those that the tile has many elements of."""
        array = next(a for a in self.s.inputs if a.name == e.source)
        found = sorted((d for d in e.dims if d in inside), key=lambda d: array.strides[e.dims.index(d)] != 1)
        return found[0] if found else ""

    def mask_depth(self) -> int:
        """Elements of the stream that are left out together."""
        return self.form.depth

    def _summary(self, conditions: list[Expr]) -> tuple[str, tuple[tuple[str, int], ...]]:
        """What the conditions leave of each tile, found once a launch."""
        if not conditions:
            return "", ()
        f, name, both = self.form, f"summary{self.number}", conjunction(conditions)
        step = {self.row: f.rows, self.stream: self.mask_depth()}
        tiles = tuple((x, step.get(x, 1)) for x in (*self.rows, self.stream) if x in both.axes)
        if not self.s.is_buffer(name):
            sizes = tuple(ir.Size(x, divide=n) for x, n in tiles)
            self.s.buffers.append(ir.Buffer(name, tuple(x for x, _ in tiles), sizes, shared=True))
            lane = self._contiguous(both, self.stream, self.row) if self.row in both.axes else self.stream
            grid = tuple(ir.Grid(x, n) for x, n in tiles)
            self.before.append(ir.Phase("summarise masks", grid, (ir.Summarise(name, both, lane, tiles),), "", "", 1))
        return name, tiles

    def _scan(self, e: Load) -> str:
        """A flag that an operand is finite, found once a launch."""
        name = f"finite{self.number}_{e.source}"
        if not self.s.is_buffer(name):
            self.s.buffers.append(ir.Buffer(name, (), (), shared=True))
            array = next(a for a in self.s.inputs if a.name == e.source)
            lane = next((d for d, st in zip(e.dims, array.strides, strict=True) if st == 1), e.dims[-1])
            grid = tuple(ir.Grid(x) for x in e.dims if x in self.rows and x != lane)
            grid += (ir.Grid(self.stream, 256),) if self.stream != lane else ()
            self.before.append(ir.Phase(f"scan {e.source}", grid, (ir.Scan(name, e, lane),), "", "", 1))
        return name

    def tile_statements(self, again: bool = False) -> list[ir.Stmt]:
        out = super().tile_statements(again)
        f, p = self.form, self.form.product
        if self.tile is None or p is None:
            return out
        if f.kind == "dot":
            a, b = p.row, p.stream
            assert isinstance(a, Load) and isinstance(b, Load)
            dot = ir.Dot(self.tile.source, ir.Operand(a.source, a.dims), ir.Operand(b.source, b.dims), self.row, self.stream, p.inner)
            extra = [ir.Sweep(self.lanes, (), ((self.tile.source, self.score),))] if again and not self.plain_score and self.score else []
            return [*out, dot, *extra]
        i, j = (self.stream, self.row) if self.lanes == "row" else (self.row, self.stream)
        folds = () if again else tuple(self.fold(self.accs[n]) for n in sorted(self.early))
        m = masked(self.score) if self.score is not None and self.mask_statements() else None
        score = self.score
        turned = [x for x in self.turned if m is not None or not x.tested]
        if m is not None and score is not None:
            score = transform(score, self.turned_masks.get)
            m = replace(m, all=[transform(c, self.turned_masks.get) for c in m.all])
        read = [e for n, e in self.lifts.items() if n not in self.early and n not in self.stored]
        keep = again or any(self.tile in set(nodes(e)) for e in read) or self._tile_is_weight()
        sizes = self.s.sizes if self.pairs is None else pair_sizes(self.s.sizes)
        block = sizes.inner_block(self.s.extents[p.inner], f.nv * self.s.lanes)
        block = block if self.pairs is None else self.pairs.block(block)
        ahead = not self.at_stream and self.lanes == "row" and self.s.extents[self.row] <= f.rows
        contract = ir.Contract(self.tile.source, self.a, self.b, i, j, p.inner, f.mr, f.nv, block, raw=self.raw.source, score=score,
                               open_score=m.open if m else None, mask=conjunction(m.all) if m else None, folds=folds, keep=keep,
                               rest=(f.depth if self.lanes == "row" else f.rows) % f.mr, ahead=ahead)  # fmt: skip
        return [*out, *self.at_stream, *turned, contract]

    def _tile_is_weight(self) -> bool:
        stored = any(self.tile in set(nodes(e)) for _, e in self.stored.values())
        return stored or any(w is self.tile and n not in self.stored for n, w in self.weights.items())

    def folded_early(self) -> set[str]:
        return self.early

    def first_sweep(
        self, r: Roles, n: int, folds: tuple[ir.Fold, ...], stores: list[tuple[str, Expr]]
    ) -> tuple[tuple[ir.Fold, ...], list[tuple[str, Expr]]]:
        """After dot products the score is mapped in the first sweep, which leaves it in the tile for the later ones."""
        if self.form.kind != "dot" or n != 0 or r is not self.g.roles[0] or self.plain_score or self.tile is None or self.score is None:
            return folds, stores
        mapped = self.score
        folds = tuple(replace(x, lift=transform(x.lift, lambda e: mapped if e is self.tile else None)) for x in folds)
        stores = [(t, transform(e, lambda x: mapped if x is self.tile else None)) for t, e in stores]
        return folds, [(self.tile.source, mapped), *stores]

    # ---- column contractions
    def riders(self, cols: list[Accumulator]) -> dict[str, tuple[str, ...]]:
        host = next((a for a in cols if a.name in self.separable and a.name in self.weights), None)
        if host is None or host.name in self.column_pairs:
            return {}
        _, v = split_columns(self.lifts[host.name], self.columns[host.name])
        out = []
        for a in cols:
            if (
                a is host
                or a.op != "sum"
                or a.name in self.rebases
                or self.row in a.axes
                or self.columns[a.name] != self.columns[host.name]
            ):
                continue
            w, own = split_columns(self.lifts[a.name], self.columns[a.name])
            if own is v and w is not None and w.axes == {self.stream} and self._straight(w, self.stream, unit=False) is not None:
                out.append(a.name)
        return {host.name: tuple(out)}

    def column_fold(
        self, r: Roles, a: Accumulator, factor: str, rank: tuple[tuple[str, str], ...], riders: tuple[str, ...]
    ) -> list[ir.Stmt]:
        if a.name not in self.separable or a.name not in self.weights:
            return super().column_fold(r, a, factor, rank, riders)
        f, s = self.form, self.s
        (d,) = self.columns[a.name]
        n_row, n_d = s.extents[self.row], s.extents[d]
        pairs = self.column_pairs.get(a.name)
        wide = 1 if pairs is None or s.real == "float" else 2
        mr, nv = (s.sizes if pairs is None else pair_sizes(s.sizes)).register_block(min(n_row, f.rows), n_d)
        nv = wide * {3: 2}.get(nv, min(nv, 4 // wide))
        _, v = split_columns(self.lifts[a.name], self.columns[a.name])
        assert v is not None
        tiles = n_row > f.rows  # that read all columns; in place, panels of rows whose stride is a power of two share cache sets
        many = n_row >= 4 * mr and (tiles or (f.kind == "columns" and s.sizes.element * n_d >= PAGE // 2))
        b = None if many else self._straight(v, d, unit=True)
        if b is None:
            b = self._column_panels(a, v, d, nv * s.lanes, pairs)
        w = self.weights[a.name]
        block = f.depth if pairs is None else pairs.block(f.depth)
        trim = self.lanes == "row" and pairs is None and bool(self.mask_statements())
        return [ir.Contract(a.name, ir.Operand(w.source, w.dims), b, self.row, d, self.stream, mr, nv, block, "state", factor, rank,
                            trim=trim, rest=f.rows % mr, extra=tuple(self._rider(n) for n in riders))]  # fmt: skip

    def _rider(self, name: str) -> tuple[str, ir.Operand]:
        w, _ = split_columns(self.lifts[name], self.columns[name])
        assert w is not None
        operand = self._straight(w, self.stream, unit=False)
        assert operand is not None
        return name, operand

    def _column_panels(self, a: Accumulator, v: Expr, d: str, width: int, pairs: Pairs | None) -> ir.Operand:
        name = f"columns{self.number}_{a.name}"
        sizes = {self.stream: ir.Size(self.stream), d: ir.Size(d, multiple=width)}
        return self._pack(name, v, self.stream, d, width, sizes, self._contiguous(v, d, self.stream), 16 * width, pairs)[0]

    def phases(self) -> list[ir.Phase]:
        self.at_row, self.at_stream = [], []
        self.lifts_by_tile = dict(self.lifts)
        for n, (_, w) in self.stored.items():
            self.lifts_by_tile[n] = swapped(self.lifts[n], self.weights[n], w)
        f = self.form
        if f.kind == "blocked":
            self._row_operand()
            if self.lanes == "row":
                self.early = self._early()
        if not self.form.stream_outer:
            return super().phases()
        whole = self.tile_statements()
        at_stream = [x for x in whole if x in self.at_stream]
        inner = [*self.mask_statements(), *(x for x in whole if x not in at_stream), *self.pass_statements(self.g.roles[0])]
        rows = ir.Loop(self.row, self.form.rows, tuple(inner))
        return self._assemble([ir.Loop(self.stream, self.form.depth, (*at_stream, rows))])

    def _early(self) -> set[str]:
        """Accumulators of the first level that the contraction's registers can fold: their lifts read the tile, and what
        else they read is contiguous along the rows or does not vary along them."""
        out = set()
        level = self.g.roles[0].levels[0]
        for a in level:
            if self.columns[a.name] or a.k or a.name in self.rebases or len(self.g.roles) > 1:
                continue
            if any(e is self.tile for e in nodes(self.lifts[a.name])):
                out.add(a.name)
        return out


def _shrinks(op: str, value: float) -> bool:
    """Whether a factor (or divisor) makes numbers smaller, and not by much."""
    return 2.0**-16 <= abs(value) <= 1 if op == "mul" else 1 <= abs(value) <= 2.0**16
