"""Products and accumulators with columns on a GPU without tensor cores: tiles and states in shared memory, register blocks.

The general form: any dtype, any strides, float64 too. A block holds a tile of rows and goes through the stream; every statement
is done by all threads of the block, with a barrier after it. Column axes are cut over the grid, each block computing the
parameters of its rows again, so that states always fit.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from .cascade import Accumulator
from .codegen import kernel as ir
from .expr import Expr, Load
from .forms import Form, Question, separates
from .products import ProductBuilder
from .roles import Product, Roles, find_product, split_columns

if TYPE_CHECKING:
    from .cuda_schedule import CudaScheduler
    from .schedule import Group

THREADS = 256
ROWS = 64
DEPTH = 64
COLUMNS = 128  # of a block
INNER = 16  # elements of an inner axis in shared memory at a time
SEGMENT_ELEMENTS = 4096  # streams are cut from twice this length on
SEGMENTS = 128


def builder(s: CudaScheduler, g: Group, number: int) -> GeneralBuilder | None:
    """The builder of a group with products or columns; None for plain rows, which have a better form."""
    made = GeneralBuilder(s, g, number)
    return made if made.form.kind != "plain" or made.cut or made.inner else None


class GeneralBuilder(ProductBuilder):
    """Lowers a group of passes to tiles in shared memory."""

    s: CudaScheduler

    # ---- what the shared logic asks
    def _fold_scale(self) -> None:
        """Nothing is packed, so a factor of the product stays in the score."""

    def _turn_loads(self) -> None:
        """No lanes run along the rows."""

    def _choose_form(self, question: Question) -> Form:
        self.cut = self._cut_columns()
        n, depth = self.s.extents, int(self.s.choice.get("depth", DEPTH))
        found: Product | None = None
        row, kind = "", "plain"
        for x in sorted(self.rows, key=lambda r: -n[r]):
            p = find_product(self.lifts.values(), self.stream, x)
            if p is not None and not p.node.axes & set(self.cut):
                row, found, kind = x, p, "blocked"
                break
        if found is None:
            p = find_product(self.lifts.values(), self.stream, "")
            if p is not None and not p.node.axes & set(self.cut) and isinstance(p.row, Load) and isinstance(p.stream, Load):
                found, kind = p, "dot"
            else:
                row = next((x for x in sorted(self.rows, key=lambda r: -n[r]) if self._multiplies(question, x)), "")
                kind = "columns" if row else "plain"
        rows = 1
        most = ROWS if self.s.real == "float" else ROWS // 2  # for the sums in a thread's registers
        while row and rows < min(n[row], int(self.s.choice.get("rows", most))):
            rows *= 2
        return Form(kind, row, "stream", rows, depth, rows, found, 1, 1)

    def _multiplies(self, q: Question, row: str) -> bool:
        return any(separates(q, a, row) for a in q.accs.values())

    def _cut_columns(self) -> dict[str, int]:
        """Column axes, and how many elements of each a block has: COLUMNS in all, for the last axis first."""
        out: dict[str, int] = {}
        for cs in self.columns.values():
            room = COLUMNS
            for c in reversed(cs):
                size = 1
                while size < min(room, self.s.extents[c]):
                    size *= 2
                out[c] = min(out.get(c, size), size)
                room = max(1, room // size)
        return out

    def _plan_saved(self) -> None:
        self.saved: dict[int, list[tuple[str, Expr]]] = {}
        self.remembered: dict[str, str] = {}

    def _order(self) -> None:
        """Rows are always outside the stream."""

    def _early(self) -> set[str]:
        return set()

    def riders(self, cols: list[Accumulator]) -> dict[str, tuple[str, ...]]:
        return {}

    def _prefetch(self, r: Roles, n: int) -> int:
        return 0

    def _unroll(self, folds: tuple[ir.Fold, ...]) -> int:
        return 1

    def _choose_segment(self) -> int:
        """The length of a segment of the stream, or 0; only where one tile covers the rows, from the stream's extent alone."""
        s, f = self.s, self.form
        if len(self.g.roles) > 1 or self.along or (self.row and s.extents[self.row] > f.rows):
            return 0
        n, wanted = s.extents[self.stream], s.choice.get("segment")
        if wanted is None:
            wanted = max(SEGMENT_ELEMENTS, ceil(n / SEGMENTS)) if n >= 2 * SEGMENT_ELEMENTS else 0
        length = ceil(int(wanted) / f.depth) * f.depth
        return length if length and ceil(n / length) > 1 else 0

    # ---- operands
    def _operand(self, name: str, e: Expr) -> ir.Operand:
        """An operand of a contraction: an array or buffer as it lies, anything else computed once, before."""
        if isinstance(e, Load):
            return ir.Operand(e.source, e.dims)
        dims = tuple(x for x in (*self.rows, self.stream, *sorted(e.axes)) if x in e.axes)
        dims = tuple(dict.fromkeys(dims))
        self.s.buffers.append(ir.Buffer(name, dims, tuple(ir.Size(d) for d in dims), shared=True))
        self.before.append(self.s.element_phase(name, name, e, dims))
        return ir.Operand(name, dims)

    def _row_operand(self) -> None:
        p = self.form.product
        assert p is not None
        self.a = self._operand(f"rows{self.number}", p.row)
        self.b = self._operand(f"stream{self.number}", p.stream)
        self.at_row: list[ir.Stmt] = []
        self.at_stream: list[ir.Stmt] = []

    # ---- statements
    def mask_statements(self) -> list[ir.Stmt]:
        """Skip, where a tile on which the mask is false everywhere adds nothing."""
        if self.tile is None or self.score is None:
            return []
        return [x for x in super().mask_statements() if isinstance(x, ir.Skip) and (x.bounds or x.summary)]

    def absent_statements(self) -> list[ir.Stmt]:
        return []

    def _scan(self, e: Load) -> str:
        """A flag that an operand is finite, found once a launch, by all of its elements."""
        name = f"finite{self.number}_{e.source}"
        if not self.s.is_buffer(name):
            self.s.buffers.append(ir.Buffer(name, (), (), shared=True))
            grid = tuple(ir.Grid(x) for x in e.dims)
            place = ir.Place("elements", THREADS // 32)
            self.before.append(ir.Phase(f"scan {e.source}", grid, (ir.Scan(name, e, e.dims[-1]),), place=place))
        return name

    def tile_statements(self, again: bool = False) -> list[ir.Stmt]:
        found = super().tile_statements(again)
        return [replace(x, c_block=INNER) if isinstance(x, ir.Contract) else x for x in found]

    def column_fold(
        self, r: Roles, a: Accumulator, factor: str, rank: tuple[tuple[str, str], ...], riders: tuple[str, ...]
    ) -> list[ir.Stmt]:
        if a.name not in self.separable or a.name not in self.weights:
            return [ir.Columns(ir.Fold(a.name, a.op, self.lifts[a.name]), self.columns[a.name][-1], self._guard(r, [self.lifts[a.name]]))]
        (d,) = self.columns[a.name]
        _, v = split_columns(self.lifts[a.name], self.columns[a.name])
        assert v is not None
        w = self.weights[a.name]
        b = self._operand(f"columns{self.number}_{a.name}", v)
        return [ir.Contract(a.name, ir.Operand(w.source, w.dims), b, self.row, d, self.stream, 1, 1, INNER, "state", factor, rank)]

    def along_stream(self) -> list[ir.Stmt]:
        if not self.along:
            return []
        stores = tuple((self.s.outputs[i].name, e) for i, e in self.along)
        return [ir.Loop(self.stream, self.form.depth, (*self.tile_statements(True), ir.Sweep("stream", (), stores)))]

    def phases(self) -> list[ir.Phase]:
        place = ir.Place("tile", int(self.s.choice.get("threads", THREADS)) // 32)
        columns = tuple(ir.Grid(c, n) for c, n in self.cut.items())
        out = []
        for p in super().phases():
            if p.place is None and isinstance(p.body[0], ir.Summarise):
                p = replace(p, place=ir.Place("scan", THREADS // 32))
            elif p.place is None:
                p = replace(p, grid=(*p.grid, *columns), place=place, shared_counter=False)
            out.append(p)
        return out
