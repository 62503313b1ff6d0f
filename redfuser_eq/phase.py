"""One phase of a Kernel: the passes of a group lowered to statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cascade import Accumulator
from .codegen import kernel as ir
from .codegen.kernel import SEGMENT
from .expr import Acc, Expr, Load, Prev, nodes, show
from .ops import MONOIDS
from .roles import Roles, rename_sources

if TYPE_CHECKING:
    from .schedule import Group, _Scheduler


class PhaseBuilder:
    """Lowers a group. Lanes run along the stream, one row at a time, or along a row axis where that is the contiguous one."""

    def __init__(self, s: _Scheduler, g: Group, number: int):
        self.s, self.g, self.number = s, g, number
        self.rows = s.row_side(g)
        self.stream = g.passes[0].axis
        self.accs = {a.name: a for p in g.passes for a in p.accumulators}
        self.columns: dict[str, tuple[str, ...]] = {}
        for r in g.roles:
            self.columns |= {n: tuple(x for x in self.accs[n].axes if x not in self.rows) for n in r.columns}
        self.lifts = {a.name: rename_sources(a.lift, s.memory) for a in self.accs.values()}
        self.rebases = {a.name: None if a.rebase is None else rename_sources(a.rebase, s.memory) for a in self.accs.values()}
        self.outputs = [(i, rename_sources(e, {n: v for n, v in s.memory.items() if n.split(".")[0] not in self.accs})) for i, e in g.outputs]
        self.notes: list[str] = []
        self.choose()

    # ---- decisions
    def choose(self) -> None:
        """Lanes by the loads they make contiguous; the row tile; the stream tile."""
        lanes, extents = self.s.lanes, self.s.extents
        self.row, self.lanes, self.row_step = "", "stream", 1
        wanted = self.s.choice.get("lanes")
        costs = {"": self._gathers(self.stream)} | {r: self._gathers(r) for r in self.rows}
        best = min(costs, key=lambda x: (costs[x], x != ""))
        tops = any(a.k for a in self.accs.values())
        if wanted == "row" and self.rows:
            best = min((r for r in self.rows), key=lambda r: costs[r])
        if best and not tops and wanted != "stream":
            self.row, self.lanes, self.row_step = best, "row", 16 * lanes
        elif self.rows:
            self.row = max(reversed(self.rows), key=lambda r: extents[r])
            self.row_step = 16 if extents[self.stream] <= 2048 else 1
            if self.row_step == 1:
                self.row = ""
        self.depth = int(self.s.choice.get("depth", 512 if self.lanes == "stream" else 64))

    def _gathers(self, axis: str) -> int:
        """Elements that lanes along this axis would have to gather, for one step of everything."""
        cost = 0
        for e in self._loads():
            array = next((a for a in self.s.inputs if a.name == e.source), None)
            if array is None or axis not in e.axes:
                continue
            if array.strides[e.dims.index(axis)] not in (0, 1):
                cost += 1
        return cost

    def _loads(self) -> list[Load]:
        return [e for e in nodes(*self.lifts.values()) if isinstance(e, Load)]

    # ---- states
    def states(self) -> tuple[ir.State, ...]:
        keep = frozenset().union(*(r.keep for r in self.g.roles))
        out = []
        for a in self.accs.values():
            out.append(ir.State(a.name, a.op, bool(self.row) and (self.row in a.axes or not self.columns[a.name]), self.columns[a.name], a.k, a.out, a.name in keep))
        return tuple(out)

    # ---- statements
    def level_statements(self, r: Roles, level: tuple[Accumulator, ...], n: int) -> list[ir.Stmt]:
        """Rebase and sweep of the accumulators of one level that have no columns."""
        own = [a for a in level if not self.columns[a.name]]
        out: list[ir.Stmt] = []
        moved = [a for a in own if self.rebases[a.name] is not None]
        if moved:
            params = sorted({x for a in moved for x in self._params_read(r, self.rebases[a.name])})
            out.append(ir.Rebase(self.lanes, tuple(params), tuple((a.name, self._rebase(a)) for a in moved)))
        if own:
            folds = tuple(ir.Fold(a.name, a.op, self.lifts[a.name]) for a in own)
            out.append(ir.Sweep(self.lanes, folds, (), self._guard(r, [self.lifts[a.name] for a in own]), self._unroll(folds)))
        return out

    def _unroll(self, folds: tuple[ir.Fold, ...]) -> int:
        if self.lanes == "row":
            return 4 if len(folds) <= 2 else 2
        return 4 if len(folds) <= 3 else 2

    def _rebase(self, a: Accumulator) -> Expr:
        e = self.rebases[a.name]
        assert e is not None
        return e

    def _params_read(self, r: Roles, e: Expr | None) -> set[str]:
        """Accumulators of this pass whose running value an expression reads."""
        own = {a.name for a in r.accs}
        return set() if e is None else {x.name for x in nodes(e) if isinstance(x, Acc) and x.name in own}

    def _guard(self, r: Roles, lifts: list[Expr]) -> tuple[str, ...]:
        """Parameters to watch: needed when one of them is no extremum, because 0 / 0 may come of its identity."""
        read = sorted({x for e in lifts for x in self._params_read(r, e)})
        return tuple(read) if any(self.accs[n].op not in ("max", "min") for n in read) else ()

    def pass_statements(self, r: Roles) -> list[ir.Stmt]:
        """Everything one tile of the stream does: levels, then column accumulators."""
        out: list[ir.Stmt] = []
        for n, level in enumerate(r.levels):
            out += self.level_statements(r, level, n)
        return out + self.column_statements(r)

    def column_statements(self, r: Roles) -> list[ir.Stmt]:
        cols = self._column_order([a for level in r.levels for a in level if self.columns[a.name]])
        out: list[ir.Stmt] = []
        for a in cols:
            e = self.rebases[a.name]
            if e is not None:
                out.append(ir.ColumnRebase(tuple(sorted(self._params_read(r, e))), ((a.name, e),)))
        for a in cols:
            fold = ir.Fold(a.name, a.op, self.lifts[a.name])
            out.append(ir.Columns(fold, self._column_lane(a), self._guard(r, [self.lifts[a.name]])))
        return out

    def _column_order(self, accs: list[Accumulator]) -> list[Accumulator]:
        """Those whose previous value others read come last, so that it is still there."""
        read = {n for a in accs if self.rebases[a.name] is not None for n in a.previous() if n != a.name}
        return sorted(accs, key=lambda a: a.name in read)

    def _column_lane(self, a: Accumulator) -> str:
        """The last column where that is contiguous (or the stream is not), else the stream."""
        last = self.columns[a.name][-1]
        loads = [e for e in nodes(self.lifts[a.name]) if isinstance(e, Load)]
        bad = {last: 0, self.stream: 0}
        for e in loads:
            array = next((x for x in self.s.inputs if x.name == e.source), None)
            for axis in bad:
                if array is not None and axis in e.axes and array.strides[e.dims.index(axis)] not in (0, 1):
                    bad[axis] += 1
        return last if bad[last] <= bad[self.stream] or MONOIDS[a.op].state != "value" else self.stream

    # ---- results
    def results(self) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        for n in self.g.exported:
            out += self._export(self.accs[n])
        for i, e in self.outputs:
            array = self.s.outputs[i]
            if self.stream in array.dims:
                continue
            columns = tuple(d for d in array.dims if d not in self.rows)
            out.append(ir.Store(array.name, e, columns))
        if self.s.flag_axes is not None:
            accs = tuple(a.name for a in self.accs.values() if self._floating(a))
            if accs:
                out.append(ir.Flag(accs))
        return out

    def _floating(self, a: Accumulator) -> bool:
        return self.lifts[a.name].dtype.kind not in "iub"

    def _export(self, a: Accumulator) -> list[ir.Stmt]:
        columns = (*self.columns[a.name], *((a.out,) if a.out else ()))
        axes = frozenset(a.axes) | ({a.out} if a.out else set())
        out: list[ir.Stmt] = []
        for name, field in ((a.name, "value"), (f"{a.name}.index", "index")):
            if name in self.s.memory:
                out.append(ir.Store(self.s.memory[name].source, Acc(a.name, axes, a.dtype, field), columns))
        return out

    def along_stream(self) -> list[ir.Stmt]:
        """Outputs that vary along the stream: one more sweep."""
        stores = tuple((self.s.outputs[i].name, e) for i, e in self.outputs if self.stream in self.s.outputs[i].dims)
        return [ir.Loop(self.stream, self.depth, (ir.Sweep(self.lanes, (), stores, (), 4 if self.lanes == "stream" else 1),))] if stores else []

    # ---- the whole
    def phases(self) -> list[ir.Phase]:
        body: list[ir.Stmt] = [ir.Loop(self.stream, self.depth, tuple(self.pass_statements(r))) for r in self.g.roles]
        body += self.along_stream() + self.results()
        batch = tuple(ir.Grid(x) for x in self.rows if x != self.row)
        grid = (*batch, *((ir.Grid(self.row, self.row_step),) if self.row else ()))
        laws = tuple(law(a) for a in self.accs.values())
        name = "_".join(p.axis for p in self.g.passes[:1])
        return [ir.Phase(name, grid, tuple(body), self.row, self.stream, self.row_step, False, self.states(), False, laws)]


def law(a: Accumulator) -> str:
    """One line of mathematics for the printed source."""
    text = f"{a.name}: {a.op}{a.k or ''} of {show(a.lift)}"
    return text if a.rebase is None else f"{text}; rebase {show(a.rebase)}"


__all__ = ["SEGMENT", "PhaseBuilder", "Prev", "law"]
