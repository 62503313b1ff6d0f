"""Phases on tensor cores: which cascades have this form, and its tiles, stages and grid.

A tile is held in the accumulator fragments of 16 x 8 matrix instructions: a product inside the elements leaves its result
there, the levels fold and map it there, and it is the operand of the products with columns. Operands come through shared
memory, several tiles ahead of their use.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import TYPE_CHECKING

from . import cuda_copies
from .cascade import Accumulator
from .codegen import kernel as ir
from .codegen.dtypes import BYTES, WIDTHS
from .codegen.kernel import ROW, SEGMENT
from .codegen.kernel_check import expressions
from .codegen.launch import steps_of
from .cuda_layout import PANEL, Layout, starts_at
from .cuda_prologue import NARROW, bare, exact, narrow, scales, separate, signless
from .cuda_tile_sizes import NoForm, tile_of
from .expr import Acc, Cast, Const, Expr, Load, Prev, Reduce, nodes, transform
from .forms import Form, Question, separates
from .masks import masked
from .ops import MONOIDS
from .phase import law
from .products import ProductBuilder
from .roles import Product, Roles, find_product, split_columns, terms
from .schedule import row_major
from .tiles import up

if TYPE_CHECKING:
    from .cuda_schedule import CudaScheduler
    from .schedule import Group

LISTED = 8  # entries of a top-k list that fit in registers
E4M3 = (89, 120, 121)  # compute capabilities with instructions of a warp for e4m3
SCAN_WARPS = 8
FEW_ROWS = 128  # rows that share a stream, up to which it is cut
SEGMENTS = 128  # of a stream that few rows share, at most


def builder(s: CudaScheduler, g: Group, number: int) -> TileBuilder | None:
    """The builder of a group's phases on tensor cores, or None where they have no such form."""
    try:
        return TileBuilder(s, g, number)
    except NoForm:
        return None


class TileBuilder(ProductBuilder):
    """Lowers a group whose products are of 16-bit floats."""

    s: CudaScheduler

    def __init__(self, s: CudaScheduler, g: Group, number: int):
        self.staged: dict[tuple[Load, str], ir.Stage] = {}
        super().__init__(s, g, number)

    # ---- the form
    def _choose_form(self, q: Question) -> Form:
        for row in (*sorted(q.rows, key=lambda r: -q.extents[r]), ROW):
            known = row if row != ROW else ""
            lifts = {n: bare(separate(e, q.stream, known), q.columns[n]) for n, e in q.lifts.items()}
            p = find_product(lifts.values(), q.stream, known)
            columns = [a for a in q.accs.values() if q.columns[a.name]]
            q = replace(q, lifts=lifts)
            if p is None and (row == ROW or not any(separates(q, a, row) for a in columns)):
                continue
            self._refuse(q, p, row)
            self.lifts = lifts
            self.outputs = [(i, separate(e, q.stream, known)) for i, e in self.outputs]
            groups = self._by_groups(q, p, row) and q.extents[row] > 16 and "rows" not in q.choice
            self.scored, self.bytes = self._score_format(p, groups) if p else "", self._bytes(q, p, groups)
            self.whole = self.g.names & self.s.whole
            if self.whole and self.bytes != "i8":
                raise NoForm
            layout = Layout(self._offset(q, p), groups and self._is_divisible(q, p), self._turned(q, p, row, groups))
            format_ = self.bytes or self._widest(q)
            t = self.shape = tile_of(q, p, row, self.s.gpu, groups, self._once(), self.scored, format_, layout)
            return Form("mma", row, "stream", t.rows, t.depth, t.rows, p, t.fragments, t.depth // 8)
        raise NoForm

    def _once(self) -> bool:
        """There is one loop over the stream."""
        return len(self.g.roles) == 1 and not any(self.g.passes[0].axis in self.s.outputs[i].dims for i, _ in self.outputs)

    def _by_groups(self, q: Question, p: Product | None, row: str) -> bool:
        """Whether warpgroup instructions can do the products: their left operand lies along the inner axis, and the ring of
        stages serves one loop."""
        along = p is None or self._contiguous(p.row, p.inner, row) == p.inner
        return self.s.gpu.capability == 90 and self._once() and along and self._summed(q, p) and self.s.choice.get("groups", True)

    def _summed(self, q: Question, p: Product | None) -> bool:
        """Right operands of float32 lie along the axis that is summed, as warpgroup instructions for tf32 have them."""
        split = [split_columns(q.lifts[n], cs)[1] for n, cs in q.columns.items() if cs]
        right = [(v, q.stream) for v in split if v is not None] + ([(p.stream, p.inner)] if p else [])
        return all(self._runs(e, axis) for e, axis in right if self._tag(e) == "f32")

    def _offset(self, q: Question, p: Product | None) -> int:
        """Where the operand of the one product with columns starts in the rows of the other's stream operand, a whole number of
        panels, or -1."""
        found = [split_columns(q.lifts[n], cs)[1] for n, cs in q.columns.items() if cs]
        (d,) = {c for cs in q.columns.values() for c in cs} if len(found) == 1 else ("",)
        if p is None or not d or self.scored not in NARROW or self._tag(p.stream) != self.scored:
            return -1
        both = [x for x in (p.stream, found[0]) if isinstance(x, Load)]
        at = starts_at(both[0], p.inner, both[1], d, self.s.c.sources) if len(both) == 2 else -1
        return at if at % PANEL == 0 else -1

    def _turned(self, q: Question, p: Product | None, row: str, groups: bool) -> frozenset[str]:
        """As `stage` lays the operands."""
        found = [("columns", split_columns(q.lifts[n], cs)[1], cs[0], q.stream) for n, cs in q.columns.items() if cs]
        if p is not None and WIDTHS[self.scored] == 2:
            found += [("row", p.row, p.inner, row), ("stream", p.stream, p.inner, q.stream)]
        turned = {name for name, e, own, other in found if isinstance(e, Load) and self._contiguous(e, own, other) != own}
        return frozenset(turned | {"columns"} if self.bytes or (groups and self._widest(q)) else turned)

    def _is_divisible(self, q: Question, p: Product | None) -> bool:
        """Whether warpgroups can divide the columns of the one state that has any: its weights are 16-bit numbers that come from the
        tile, and no state is a place along the stream."""
        found = [split_columns(q.lifts[n], cs)[0] for n, cs in q.columns.items() if cs]
        simple = all(MONOIDS[a.op].state == "value" for a in q.accs.values())
        if p is None or len(found) != 1 or found[0] is None or not simple or self._widest(q):
            return False
        return not self._tag(found[0]) and self._contiguous(p.stream, p.inner, q.stream) == p.inner

    def _refuse(self, q: Question, p: Product | None, row: str) -> None:
        """Raises NoForm where a statement of the phase would have no tensor-core form."""
        cols = {c for cs in q.columns.values() for c in cs}
        sizes = {row, q.stream, *cols, *((p.inner,) if p else ())}
        if any(q.extents[a] < 1 for a in sizes):
            raise NoForm
        if self.s.real != "float" or (p is not None and (p.node.axes & cols or not self._score_format(p) or len(cols) > 1)):
            raise NoForm
        for a in q.accs.values():
            listed = MONOIDS[a.op].state == "top"
            if (listed and a.k > LISTED) or (q.columns[a.name] and not self._multiplies(q, a, row)):
                raise NoForm
        elements = [*q.lifts.values(), *(e for i, e in self.outputs if q.stream in self.s.outputs[i].dims)]
        for e in nodes(*elements):
            inside = isinstance(e, Reduce) and (p is None or e is not p.node) and row in e.axes and q.stream in e.axes
            if inside or (isinstance(e, Reduce) and any(isinstance(x, Acc) for x in nodes(e))):
                raise NoForm
            if isinstance(e, Load) and e.dtype.name == "float8_e5m2":
                raise NoForm
        for name, e in self.rebases.items():
            if q.columns[name] and not scales(name, e, cols):
                raise NoForm
        for i, _ in self.outputs:
            beyond = set(self.s.outputs[i].dims) - set(self.rows) - {q.stream}
            lists = {a.out for a in q.accs.values() if a.k}
            if not (beyond <= cols or beyond <= lists) or (q.stream in self.s.outputs[i].dims and beyond):
                raise NoForm

    def _tag(self, e: Expr) -> str:
        """The dtype tag of an array that is read as it is, or ""."""
        array = next((a for a in self.s.inputs if isinstance(e, Load) and a.name == e.source), None)
        return array.dtype if array is not None else ""

    def _narrow(self, e: Expr) -> bool:
        return self._tag(e) in NARROW

    def _score_format(self, p: Product, groups: bool = False) -> str:
        """The format in which the operands of the product inside the elements are multiplied, or "": their own, or of 16 bits
        where one has 8."""
        a, b = self._tag(p.row), self._tag(p.stream)
        if a == b == "f32" and "f32" in narrow(self.s):
            return "tf32"
        if not {a, b} <= {*NARROW, *BYTES} or (a != b and a in NARROW and b in NARROW):
            return ""
        if a in BYTES and b in BYTES:
            return a if a == b and self._runs(p.row, p.inner) and self._runs(p.stream, p.inner) and self._has(a, groups) else "bf16"
        return a if a in NARROW else b

    def _runs(self, e: Expr, axis: str) -> bool:
        """An array's elements are contiguous along an axis."""
        array = next((a for a in self.s.inputs if isinstance(e, Load) and a.name == e.source), None)
        return array is not None and isinstance(e, Load) and array.strides[e.dims.index(axis)] == 1

    def _has(self, tag: str, groups: bool) -> bool:
        """Whether products are to use the matrix instructions of a format of 8 bits. Those of e4m3 keep few bits of their
        sums. Where only warpgroups have them, ptxas makes float16 ones of a warp's, behind conversions."""
        if tag == "e4m3":
            return (groups or self.s.gpu.capability in E4M3) and self.s.c.numerics != "strict"
        return True

    def _bytes(self, q: Question, p: Product | None, groups: bool) -> str:
        """The format of 8 bits in which all the products with columns are multiplied, or "". A thread holds other elements of the
        tile then than a product inside the elements leaves it."""
        kinds = set()
        for a in q.accs.values():
            w, v = split_columns(q.lifts[a.name], q.columns[a.name]) if q.columns[a.name] else (None, None)
            if w is not None and v is not None:
                tag = self._tag(v)
                kinds.add(tag if tag in BYTES and tag == exact(w) and self._runs(v, q.stream) and self._has(tag, groups) else "")
        return kinds.pop() if p is None and len(kinds) == 1 else ""

    def _widest(self, q: Question) -> str:
        """tf32 where some product with columns is of float32 arrays, or ""."""
        split = [split_columns(q.lifts[n], cs) for n, cs in q.columns.items() if cs]
        return "tf32" if any(v is not None and self._tag(v) == "f32" for _, v in split) else ""

    def _multiplies(self, q: Question, a: Accumulator, row: str) -> bool:
        """The accumulator is a product that tensor cores do exactly as the program says, but for the order of its sum: the
        operand with columns is of 16 bits, or both operands are numbers of 8 or 16 bits that have one 16-bit format."""
        if not separates(q, a, row) or a.op != "sum":
            return False
        w, v = split_columns(q.lifts[a.name], q.columns[a.name])
        return w is not None and v is not None and bool(self._format(w, v))

    def _format(self, w: Expr, v: Expr) -> str:
        """The format of 16 bits, or tf32, in which w * v is multiplied, or ""."""
        array = next((a for a in self.s.inputs if isinstance(v, Load) and a.name == v.source), None)
        if array is None or array.dtype in narrow(self.s):
            return {"f32": "tf32"}.get(array.dtype, array.dtype) if array else ""
        kind = exact(w)
        return {"e4m3": "bf16", "i8": "bf16", "bf16": "bf16", "f16": "f16"}.get(kind, "") if array.dtype in BYTES else ""

    def _weight_tile(self, a: Accumulator, w: Expr) -> Load:
        """A left operand that is an array of bytes is read through shared memory as it is."""
        load = w
        while isinstance(load, Cast) and load.dtype.kind == "f":
            load = load.args[0]
        along = self.bytes or self.shape.groups
        if isinstance(load, Load) and self._tag(load) in BYTES and exact(w) and (not along or self._runs(load, self.stream)):
            return load
        return super()._weight_tile(a, w)

    def _materialise(self) -> None:
        super()._materialise()
        if self.tile is not None and self.score is not None:
            tile, raw = self.tile, Load(f"raw{self.number}", self.tile_dims(), self.s.real_dtype)
            self.score = transform(self.score, lambda e: raw if e is tile else None)
            self.raw, self.plain_score = raw, self.score is raw
        for e in [x for x in nodes(*self.exprs()) if isinstance(x, Load) and {self.row, self.stream} <= x.axes and self._narrow(x)]:
            held = self.stage(e, self.row, self.stream, {self.row: self.form.rows, self.stream: self.shape.span})
            self._replace(e, Load(held.source, held.dims, e.dtype))

    def tile_dims(self) -> tuple[str, ...]:
        return (self.row, self.stream)

    # ---- operands
    def stage(
        self, e: Expr, a: str, b: str, sizes: dict[str, int], inner: str = "", dtype: str = "", along: str = "", engine: bool = True
    ) -> ir.Operand:
        """A tile of an operand over two axes, the contiguous one (or `along`) last. engine: the copy engine may bring it."""
        assert isinstance(e, Load)
        last = along or self._contiguous(e, b, a)
        first = a if last == b else b
        key = (e, first)
        if key not in self.staged:
            name = f"staged{self.number}_{len(self.staged)}"
            self.s.buffers.append(ir.Buffer(name, (first, last), (ir.Size(value=sizes[first]), ir.Size(value=sizes[last]))))
            mapped = engine and self.shape.groups and self._mapped(e, first, {a: sizes[a] for a in (first, last)}, dtype)
            self.staged[key] = ir.Stage(name, ir.Operand(e.source, e.dims), inner, dtype, mapped)
        return ir.Operand(self.staged[key].dst, (first, last))

    def _mapped(self, e: Load, first: str, sizes: dict[str, int], dtype: str) -> bool:
        """The copy engine can bring the tile."""
        s = self.s
        array = next((a for a in s.inputs if a.name == e.source), None)
        own = array is not None and dtype in ("", {"f32": "tf32"}.get(array.dtype, array.dtype))
        buffer = next((b for b in s.buffers if b.name == e.source), None)
        if array is None or not own or (e.source if buffer is None else cuda_copies.SCRATCH) in s.choice.get("unmapped", ()):
            return False
        strides = steps_of(buffer.sizes, s.extents) if buffer else s.strides.get(e.source, row_major(e.dims, s.extents))
        return cuda_copies.mapped(array, e.dims, first, sizes, s.extents, strides)

    def _product_operands(self) -> tuple[ir.Operand, ir.Operand]:
        f, t, p = self.form, self.shape, self.form.product
        assert p is not None
        inner = "" if t.resident else p.inner
        tag = self.scored
        along = p.inner if WIDTHS[tag] != 2 else ""
        a = self.stage(p.row, self.row, p.inner, {self.row: f.rows, p.inner: t.inner}, inner, tag, along)
        b = self.stage(p.stream, self.stream, p.inner, {self.stream: t.span, p.inner: t.inner}, inner, tag, along)
        return a, b

    # ---- statements
    def mask_depth(self) -> int:
        return self.shape.depth * self.shape.across

    def row_statements(self) -> list[ir.Stmt]:
        """The row operand, where it stays."""
        return [s for s in self.staged.values() if self._stays(s)]

    def _stays(self, s: ir.Stage) -> bool:
        return self.shape.resident and self.stream not in s.source.dims

    def tile_statements(self, again: bool = False) -> list[ir.Stmt]:
        f, p = self.form, self.form.product
        if p is None or self.tile is None or self.score is None:
            return []
        a, b = self._product_operands()
        m = masked(self.score) if self.mask_statements() else None
        return [ir.Contract(self.tile.source, a, b, self.row, self.stream, p.inner, f.mr, f.nv, self.shape.inner, raw=self.raw.source,
                            score=self.score, open_score=m.open if m else None)]  # fmt: skip

    def column_fold(
        self, r: Roles, a: Accumulator, factor: str, rank: tuple[tuple[str, str], ...], riders: tuple[str, ...]
    ) -> list[ir.Stmt]:
        f, w = self.form, self.weights[a.name]
        (d,) = self.columns[a.name]
        _, v = split_columns(self.lifts[a.name], self.columns[a.name])
        assert v is not None
        old = self.stored[a.name][1] if a.name in self.stored else w
        sizes = {self.stream: self.shape.span, d: self.shape.columns}
        tag = self.bytes or self._format(old, v)
        turned = self.shape.groups and tag == "tf32"
        along = self.stream if self.bytes or turned else ""
        if self.shape.within < 0:
            b = self.stage(v, self.stream, d, sizes, dtype=tag, along=along, engine=not turned)
        else:
            b = self._product_operands()[1]
            b = replace(b, dims=tuple(x if x == self.stream else d for x in b.dims), start=self.shape.within)
        left = ir.Operand(w.source, w.dims)
        if self._tag(w):
            along = self.stream if self.bytes or self.shape.groups else ""
            left = self.stage(w, self.row, self.stream, {self.row: f.rows, self.stream: self.shape.span}, dtype=tag, along=along)
        return [ir.Contract(a.name, left, b, self.row, d, self.stream, f.mr, self.shape.columns // (8 * self.shape.across), f.depth,
                            "state", factor)]  # fmt: skip

    def riders(self, cols: list[Accumulator]) -> dict[str, tuple[str, ...]]:
        return {}

    # ---- segments
    def _choose_segment(self) -> int:
        """The length of a segment of the stream, or 0: from the row's own extent, so that a row gives the same bits in any batch.
        How many rows share a stream counts as few or many: with many, and columns, their tiles are blocks enough. A segment of few
        reads at least twice the bytes of its states."""
        s, t = self.s, self.shape
        if len(self.g.roles) > 1 or self.along or self.whole:
            return 0
        n, columns = s.extents[self.stream], self._column_axes()
        few = s.extents[self.row] <= FEW_ROWS
        if columns and not few and "segment" not in s.choice:
            return 0
        width = prod(s.extents[c] for c in columns)
        inner = s.extents[self.form.product.inner] if self.form.product else 0
        state = 8 * s.extents[self.row] * width // (inner + width) if columns else 0
        least, most = (max(4 * t.depth, 2 * t.span, state), SEGMENTS) if few else (16 * t.depth, 16)
        length = up(int(s.choice.get("segment", max(least, ceil(n / most)))), t.span)
        return length if 0 < length < n else 0

    def states(self, keep: bool = True) -> tuple[ir.State, ...]:
        return tuple(replace(x, whole=True) if x.name in self.whole else x for x in super().states(keep))

    def _column_axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c for cs in self.columns.values() for c in cs))

    # ---- the whole
    def phases(self) -> list[ir.Phase]:
        self.at_row, self.at_stream = [], []
        self.lifts_by_tile = dict(self.lifts)
        for name, (_, w) in self.stored.items():
            old = self.weights[name]
            self.lifts_by_tile[name] = transform(self.lifts[name], lambda x, old=old, w=w: w if x is old else None)  # type: ignore[misc]
        loops: list[ir.Stmt] = []
        for n, r in enumerate(self.g.roles):
            loops.append(self._loop([*self.mask_statements(), *self.tile_statements(n > 0), *self.pass_statements(r)]))
        body = [*self.row_statements(), *loops, *self._finish(), *self.along_stream()]
        if self.shape.parts > 1:
            body.append(ir.Finish(self._levels(), parts=True))
        batch = tuple(ir.Grid(x) for x in self.rows if x != self.row)
        columns = tuple(ir.Grid(c, self.shape.columns) for c in self._column_axes() if self.s.extents[c] > self.shape.columns)
        segment = (ir.Grid(SEGMENT, self.segment),) if self.segment else ()
        grid = (*batch, *segment, *columns, ir.Grid(self.row, self.form.rows))
        t = self.shape
        warps = t.warps * t.parts * t.across
        copying = cuda_copies.producers(self.staged.values(), warps) if t.groups else 0
        place = ir.Place("wgmma" if t.groups else "mma", warps + copying, t.fragments, t.stages, copying, parts=t.parts,
                         run=4 if self.bytes else 2, across=t.across)  # fmt: skip
        uneven = any(isinstance(x, ir.Skip) for x in ir.statements(tuple(body)))
        parts = self._parts() if self.segment else ()
        body += [ir.Partial(parts)] if self.segment else self.results()
        own = ir.Phase(f"over_{self.stream}", grid, tuple(body), self.row, self.stream, self.form.rows, False, self.states(), uneven,
                       tuple(law(a) for a in self.accs.values()), place)  # fmt: skip
        before = [p if p.place is not None else replace(p, place=ir.Place("scan", SCAN_WARPS)) for p in self.before]
        return [*before, own, *([self._merge(parts)] if self.segment else [])]

    def _loop(self, body: list[ir.Stmt]) -> ir.Loop:
        """A loop over tiles of the stream; what it reads through shared memory is staged first."""
        used = {o.source for s in body if isinstance(s, ir.Contract) for o in (s.a, s.b)}
        used |= {e.source for s in body for x, _ in expressions(s) for e in nodes(x) if isinstance(e, Load)}
        stages = [s for s in self.staged.values() if s.dst in used and not self._stays(s)]
        return ir.Loop(self.stream, self.shape.span, (*stages, *body))

    def along_stream(self) -> list[ir.Stmt]:
        if not self.along:
            return []
        sweep = ir.Sweep(self.lanes, (), tuple((self.s.outputs[i].name, e) for i, e in self.along))
        return [self._loop([*self.tile_statements(True), sweep])]

    def _finish(self) -> list[ir.Stmt]:
        """Accumulators that stay split over the lanes of a row until it ends: nobody reads them before, and what moves them is
        linear in values that are split too."""
        elements = [*self.exprs(), *(w for _, w in self.stored.values())]
        read = {e.name for x in elements for e in nodes(x) if isinstance(e, Acc)}
        read |= {e.name for x in self.rebases.values() for e in nodes(x) if isinstance(e, Acc)}
        split = {a.name for a in self.accs.values() if not self.columns[a.name] and a.name not in read and not isinstance(a.lift, Const)}
        while True:
            kept = {n for n in split if n not in self.rebases or self._is_linear(n, split)}
            if kept == split:
                return [ir.Finish((tuple((n, None) for n in self.accs if n in split),))] if split else []
            split = kept

    def _is_linear(self, name: str, split: set[str]) -> bool:
        for t in terms(self.rebases[name]):
            old = [f for f in signless(t) if isinstance(f, Prev) and f.name in split]
            if len(old) != 1 or sum(isinstance(e, Prev) and e.name in split for e in nodes(t)) != 1:
                return False
        return self.accs[name].op == "sum"

    def _levels(self) -> tuple[tuple[tuple[str, Expr | None], ...], ...]:
        """The states, level by level, each with its rebase."""
        return tuple(tuple((a.name, self.rebases.get(a.name)) for a in level) for level in self.g.roles[0].levels)

    def _parts(self) -> tuple[tuple[str, str, str], ...]:
        out = []
        for st in self.states(False):
            rows = [x for x in self.rows if x in self.accs[st.name].axes or not st.columns]
            dims = (SEGMENT, *rows, *st.columns, *([st.out] if st.k else []))
            sizes = tuple(ir.Size(self.stream, divide=self.segment) if d == SEGMENT else ir.Size(d) for d in dims)
            names = [f"part{self.number}_{st.name}", f"part{self.number}_{st.name}_at" if st.indexed else ""]
            self.s.buffers += [ir.Buffer(n, dims, sizes, shared=True) for n in names if n]
            out.append((st.name, names[0], names[1]))
        return tuple(out)

    def _merge(self, parts: tuple[tuple[str, str, str], ...]) -> ir.Phase:
        """The states of the segments, a row and a column a thread."""
        columns = self._column_axes()
        results = [
            replace(x, columns=tuple(d for d in x.columns if d not in columns)) if isinstance(x, ir.Store) else x for x in self.results()
        ]
        states = tuple(replace(x, row=False, columns=()) for x in self.states(False))
        place = ir.Place("rows", 4, along="row")
        grid = tuple(ir.Grid(x) for x in (*self.rows, *columns))
        return ir.Phase("merge", grid, (ir.Merge(self._levels(), parts), *results), "", self.stream, states=states, place=place)
