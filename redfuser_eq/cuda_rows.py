"""Streaming rows on a GPU: threads side by side along a row (or a thread a row), states in registers.

Each thread runs the levels on its own elements of a tile and keeps its own parameters, so nothing is exchanged until the row
ends; then the states of the row's threads are merged by the derived merge. How a row is cut (threads, elements, segments)
depends on its own extent alone: a row gives the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

from .codegen import kernel as ir
from .codegen.dtypes import WIDTHS
from .codegen.kernel import SEGMENT
from .cuda_near import Near, near, renamed
from .expr import Acc, Expr, Load, Reduce, nodes
from .forms import Form, Question
from .ops import MONOIDS
from .phase import PhaseBuilder, law
from .roles import Roles, rename_sources
from .schedule import row_major
from .tiles import up

if TYPE_CHECKING:
    from .cuda_schedule import CudaScheduler
    from .schedule import Group

THREADS = 256
ELEMS = 16  # elements a thread holds of a tile
KEPT = 32  # and at most, when it holds all that the row has for it
VECTOR_TAGS = {"f32": 4, "f64": 2, "f16": 8, "bf16": 8, "e4m3": 16}  # elements in 16 bytes
SEGMENT_ELEMENTS = 1 << 16  # of a segment, at least
LONG = 2 * SEGMENT_ELEMENTS  # rows are cut into segments from this length on
SEGMENTS = 512  # of a row, at most
MERGE_GROUP = 32
LONG_THREADS = 1024


def apart(s: CudaScheduler, g: Group) -> list[Group]:
    """The passes of a group as groups of their own, where the stream is so long that each is cut into segments: a pass needs the
    merged states of those before it, and a row of that length is read from memory again anyway."""
    n = s.extents[g.passes[0].axis]
    cut = n >= LONG if "segment" not in s.choice else 0 < int(s.choice["segment"]) < n
    inside = [e for p in g.passes for a in p.accumulators for e in nodes(a.lift) if isinstance(e, Reduce)]
    if len(g.passes) == 1 or not cut or inside or any(any(r.columns.values()) for r in g.roles):
        return [g]
    return [type(g)([p], [r]) for p, r in zip(g.passes, g.roles, strict=True)]


class RowsBuilder(PhaseBuilder):
    """Lowers a group of passes to streaming rows. Column axes count as rows: their items compute the parameters again."""

    s: CudaScheduler

    # ---- what the shared logic asks
    def _choose_form(self, question: Question) -> Form:
        more = dict.fromkeys(x for q in self.g.roles for cs in q.columns.values() for x in cs)
        self.spread = tuple(x for x in more if x not in self.rows)
        self.rows = (*self.rows, *self.spread)
        self.columns = dict.fromkeys(self.columns, ())
        return Form("plain", "", "stream", 1, 1, 1)

    def _materialise(self) -> None:
        """Reductions inside elements are computed in place."""

    def _plan_weights(self) -> dict[str, Load]:
        return {}

    def _plan_saved(self) -> None:
        self.saved: dict[int, list[tuple[str, Expr]]] = {}
        self.remembered: dict[str, str] = {}

    # ---- decisions
    def _loads(self, exprs: Sequence[Expr] | None = None) -> list[Load]:
        """Loads of arrays along the stream, outside reductions in elements."""
        exprs = self.exprs() if exprs is None else exprs
        inner = {x for e in nodes(*exprs) if e.axes - {self.stream} - set(self.rows) for x in nodes(e)}
        found = [e for e in nodes(*exprs) if isinstance(e, Load) and self.stream in e.axes and e.dtype.kind != "b"]
        return [e for e in found if e not in inner and e.axes <= {self.stream, *self.rows} and not self.s.is_buffer(e.source)]

    def _step(self, e: Load) -> int | None:
        array = next((a for a in self.s.inputs if a.name == e.source), None)
        return None if array is None else array.strides[e.dims.index(self.stream)]

    @property
    def place(self) -> ir.Place:
        return self.own_place if self.near is None else self.near.place

    @cached_property
    def own_place(self) -> ir.Place:
        """Neighbour threads along the stream where loads are contiguous there, else along the rows."""
        loads, choice = self._loads(), self.s.choice
        n = max(1, self.s.extents[self.stream])
        top = max((a.k for a in self.accs.values()), default=0)
        threads = int(choice.get("threads", THREADS))
        if self._closed_reductions():  # long enough by themselves
            return ir.Place("rows", threads // 32, group=int(choice.get("group", min(32, 1 << (n - 1).bit_length()))))
        contiguous = [e for e in loads if self._step(e) == 1]
        across = [e for e in loads if self._row_step(e) == 1 and self._step(e) != 1]
        if len(across) > len(contiguous) and not top:
            group = min(threads // 32, 1 << max(0, (n // 64).bit_length() - 1))
            return ir.Place("rows", threads // 32, group=int(choice.get("group", group)), elems=8, along="row")
        tags = [a.dtype for e in contiguous for a in self.s.inputs if a.name == e.source]
        vector = max((VECTOR_TAGS.get(t, 1) for t in tags), default=1)
        most = max(ELEMS if len(loads) <= 2 and not top else ELEMS // 2, vector)
        group = 1 << (ceil(n / vector) - 1).bit_length()  # a short row: few elements a thread
        if group > 32:
            group = max(32, min(threads, 1 << (ceil(n / most) - 1).bit_length()))
        room = max(KEPT // max(1, len(loads)), most)
        if self._returns() and n > room * threads and "threads" not in choice:
            threads = group = 2 * THREADS
            if n > room * threads:
                threads = group = LONG_THREADS  # few rows at once, so that a second sweep finds them in L2
                room = most = max(ELEMS // 2, vector)
        group = int(choice.get("group", group))
        elems = min(most, up(ceil(n / group), vector))
        kept = up(ceil(n / group), vector)
        if self._returns() and kept <= room:
            elems = kept
        return ir.Place("rows", threads // 32, group=group, elems=up(int(choice.get("elems", elems)), vector), vector=vector)

    @cached_property
    def near(self) -> Near | None:
        """Rows in shared memory between the sweeps, where registers do not hold them."""
        n, base, wanted = self.s.extents[self.stream], self.own_place, self.s.choice.get("near")
        twice = self._twice()
        fits = n <= base.group * base.elems
        if not twice or wanted is False or (fits and not wanted) or self._is_cut() or self._closed_reductions():
            return None
        arrays = {a.name: a for a in self.s.inputs}
        given = {k: int(v) for k, v in self.s.choice.items() if k in ("threads", "group", "elems")}
        each = sum(8 * max(1, a.k) * (1 if MONOIDS[a.op].state == "value" else 2) for a in self.accs.values())
        held = each * (32 if base.along == "row" else 1)
        width = sum(WIDTHS[arrays[e.source].dtype] for e in twice)
        return near(base, twice, width, n, held, self.s.gpu, given, all(self._even(e) for e in twice))

    def _twice(self) -> list[Load]:
        """Loads of the rows that more than one sweep reads."""
        swept = [set(self._loads(exprs)) for exprs in self._sweeps()]
        found = {e for e in self._loads() if e.axes & set(self.rows) and sum(e in x for x in swept) > 1}
        return sorted(found, key=repr)

    def _sweeps(self) -> list[list[Expr]]:
        """What each sweep evaluates: those of the passes and, where results lie along the stream, the one that writes them."""
        passes = [[self.lifts[a.name] for a in r.accs] for r in self.g.roles]
        return [*passes, [e for _, e in self.along]] if self.along else passes

    def _even(self, e: Load) -> bool:
        """Whether rows start at multiples of 16 bytes, if the array does."""
        array = next(a for a in self.s.inputs if a.name == e.source)
        strides = self.s.strides.get(e.source, row_major(e.dims, self.s.extents))
        return all(s * WIDTHS[array.dtype] % 16 == 0 for d, s in zip(e.dims, strides, strict=True) if d != self.stream)

    def _returns(self) -> bool:
        """The row is swept again."""
        return bool(self.along) or len(self.g.roles) > 1

    def _row_step(self, e: Load) -> int | None:
        """The stride of the load along the innermost row axis."""
        array = next((a for a in self.s.inputs if a.name == e.source), None)
        if array is None:
            return None
        found = [s for d, s in zip(e.dims, array.strides, strict=True) if d in self.rows and s == 1]
        return found[0] if found else None

    def _choose_segment(self) -> int:
        """The length of a segment of the stream, or 0: from the row's own extent. What is written along a row that is cut needs
        the merged states: it is left to a phase of its own."""
        s = self.s
        self.deferred: list[tuple[int, Expr]] = []
        n, wanted = s.extents[self.stream], s.choice.get("segment")
        if not self._is_cut():
            return 0
        if wanted is None:
            wanted = max(SEGMENT_ELEMENTS, ceil(n / SEGMENTS))
        place = self.place
        self._defer()
        length = up(int(wanted), place.group * place.elems)
        return length if ceil(n / length) > 1 or self.deferred else 0

    def _is_cut(self) -> bool:
        n, wanted = self.s.extents[self.stream], self.s.choice.get("segment")
        return len(self.g.roles) == 1 and (n >= LONG if wanted is None else 0 < int(wanted) < n)

    def _defer(self) -> None:
        """Outputs along the stream read the states from memory."""
        read = {x.name for _, e in self.along for x in nodes(e) if isinstance(x, Acc)}
        for n in sorted(read - set(self.g.exported)):
            self.s._export(self.accs[n])
            self.g.exported.append(n)
        self.deferred, self.along = [(i, rename_sources(e, self.s.memory)) for i, e in self.along], []

    # ---- statements
    def levels(self) -> tuple[tuple[tuple[str, Expr | None], ...], ...]:
        """The states of the passes, level by level, each with its rebase."""
        return tuple(tuple((a.name, self.rebases.get(a.name)) for a in level) for r in self.g.roles for level in r.levels)

    def _finish(self, r: Roles) -> ir.Finish:
        return ir.Finish(tuple(tuple((a.name, self.rebases.get(a.name)) for a in level) for level in r.levels))

    def phases(self) -> list[ir.Phase]:
        place = self.place
        body = self._sweep_statements()
        grid = tuple(ir.Grid(x) for x in self._order())
        name, laws = f"over_{self.stream}", tuple(law(a) for a in self.accs.values())
        if not self.segment:
            own = ir.Phase(name, grid, (*body, *self.results()), "", self.stream, states=self.states(), laws=laws, place=place)
            return [*self.before, own]
        parts = self._parts()
        cut = (ir.Grid(SEGMENT, self.segment), *grid)
        own = ir.Phase(name, cut, (*body, ir.Partial(parts)), "", self.stream, states=self.states(), laws=laws, place=place)
        whole = ir.Place("rows", place.warps, group=MERGE_GROUP)
        merge = ir.Phase("merge", grid, (ir.Merge(self.levels(), parts), *self.results()), "", self.stream, states=self.states(False),
                         place=whole)  # fmt: skip
        return [*self.before, own, merge, *self._late(cut)]

    def _sweep_statements(self) -> list[ir.Stmt]:
        """The sweeps. A row comes from memory before them, where registers or shared memory hold it, else in each."""
        tile = self.place.group * self.place.elems
        loads = tuple(sorted(self._loads(), key=repr))
        body: list[ir.Stmt] = []
        swept = [tuple(sorted(self._loads(exprs), key=repr)) for exprs in self._sweeps()]
        if self.near is not None:
            names = self._stage(self.near, body)
            swept = [tuple(names.get(e, e) for e in x) for x in swept]
        elif self.s.extents[self.stream] <= tile and self._returns() and loads:
            body.append(ir.Fetch(loads, True))
            swept = [() for _ in swept]
        ahead = tuple(replace(s, ahead=True) for s in body if isinstance(s, ir.Stage))
        last = max((n for n, x in enumerate(swept) if any(self.s.is_buffer(e.source) for e in x)), default=0)
        fetches = [(ir.Fetch(x),) if x else () for x in swept]
        after = [ahead if n == last else () for n in range(len(swept))]
        for n, r in enumerate(self.g.roles):
            body += [ir.Loop(self.stream, tile, (*fetches[n], *self.pass_statements(r), *after[n])), self._finish(r)]
        if self.along:
            stores = tuple((self.s.outputs[i].name, e) for i, e in self.along)
            body.append(ir.Loop(self.stream, tile, (*fetches[-1], ir.Sweep("stream", (), stores), *after[-1])))
        return body

    def _stage(self, near: Near, body: list[ir.Stmt]) -> dict[Expr, Load]:
        """Start the copies of rows, and let the sweeps read these: what replaces each load."""
        buffers, names, stages = near.stages(self.number, self.stream, {a.name: a.dtype for a in self.s.inputs})
        self.s.buffers += buffers
        body += stages
        self.lifts = {n: renamed(e, names) for n, e in self.lifts.items()}
        self.along = [(i, renamed(e, names)) for i, e in self.along]
        return names

    def _late(self, grid: tuple[ir.Grid, ...]) -> list[ir.Phase]:
        """The sweep that writes along the rows, by segments."""
        if not self.deferred:
            return []
        stores = tuple((self.s.outputs[i].name, e) for i, e in self.deferred)
        loads = tuple(sorted(self._loads([e for _, e in self.deferred]), key=repr))
        body = (*((ir.Fetch(loads),) if loads else ()), ir.Sweep("stream", (), stores))
        loop = ir.Loop(self.stream, self.place.group * self.place.elems, body)
        return [ir.Phase(f"along_{self.stream}", grid, (loop,), "", self.stream, place=self.place)]

    def _order(self) -> tuple[str, ...]:
        """The row axes; the one that loads run along last, so that neighbour items are neighbours in memory."""
        if self.place.along == "stream":
            return self.rows
        counts = dict.fromkeys(self.rows, 0)
        for e in self._loads():
            array = next((a for a in self.s.inputs if a.name == e.source), None)
            for d, s in zip(e.dims, array.strides if array else (), strict=False):
                if d in counts and s == 1:
                    counts[d] += 1
        return tuple(sorted(self.rows, key=lambda x: counts[x]))

    def states(self, keep: bool = True) -> tuple[ir.State, ...]:
        kept = frozenset().union(*(r.keep for r in self.g.roles)) if keep else frozenset()
        kept |= {e.name for r in self.rebases.values() for e in nodes(r) if isinstance(e, Acc)} & set(self.accs) if keep else set()
        return tuple(ir.State(a.name, a.op, False, (), a.k, a.out, a.name in kept) for a in self.accs.values())

    def _parts(self) -> tuple[tuple[str, str, str], ...]:
        """Buffers for the segments' states, over the rows and the segments."""
        out = []
        for st in self.states(False):
            dims = (SEGMENT, *self.rows, *([st.out] if st.k else []))
            sizes = tuple(ir.Size(self.stream, divide=self.segment) if d == SEGMENT else ir.Size(d) for d in dims)
            names = [f"part{self.number}_{st.name}", f"part{self.number}_{st.name}_at" if MONOIDS[st.op].state != "value" else ""]
            for n in filter(None, names):
                self.s.buffers.append(ir.Buffer(n, dims, sizes, shared=True))
            out.append((st.name, names[0], names[1]))
        return tuple(out)
