"""The form of a phase: which axis is the row, which way the lanes run, how large the tiles are.

plain    one row at a time along the stream, or a vector of rows where a row axis is the contiguous one
blocked  a product of the rows and the stream in register blocks, lanes along either
dot      a product whose stream operand one row uses once: its inner axis in the lanes
columns  no product inside the elements, but accumulators with columns that are one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .cascade import Accumulator
from .codegen.kernel import ROW, Array
from .expr import Acc, Expr, Load, nodes
from .roles import Product, find_product, split_columns
from .tiles import Sizes, size_class, up


@dataclass(frozen=True)
class Form:
    """rows, depth: the largest tile; held: rows of its buffers; mr, nv: the inner contraction's register block."""

    kind: str
    row: str
    lanes: str
    rows: int
    depth: int
    held: int
    product: Product | None = None
    mr: int = 1
    nv: int = 1
    stream_outer: bool = False


@dataclass(frozen=True)
class Question:
    """All that the choice of a form rests on."""

    lifts: Mapping[str, Expr]
    accs: Mapping[str, Accumulator]
    columns: Mapping[str, tuple[str, ...]]
    rows: tuple[str, ...]
    stream: str
    extents: Mapping[str, int]
    inputs: Sequence[Array]
    sizes: Sizes
    choice: Mapping[str, Any]
    masked: bool

    @property
    def tops(self) -> bool:
        return any(a.k for a in self.accs.values())

    def gathers(self, axis: str, exprs: Sequence[Expr]) -> int:
        """Loads that lanes along this axis would have to gather."""
        cost = 0
        for e in nodes(*exprs):
            array = next((a for a in self.inputs if isinstance(e, Load) and a.name == e.source), None)
            if array is not None and isinstance(e, Load) and axis in e.axes and array.strides[e.dims.index(axis)] not in (0, 1):
                cost += 1
        return cost


def choose(q: Question) -> Form:
    """The cheapest legal form."""
    by_extent = sorted(q.rows, key=lambda r: -q.extents[r])
    for row in by_extent:
        p = find_product(q.lifts.values(), q.stream, row)
        if p is not None and _clean(q, p):
            return _product_form(q, row, p)
    p = find_product(q.lifts.values(), q.stream, "")
    if p is not None and _clean(q, p) and isinstance(p.stream, Load) and isinstance(p.row, Load) and not q.gathers(p.inner, [p.stream]):
        return Form("dot", "", "stream", 1, _dot_depth(q, p), 1, p)
    for row in by_extent:
        if any(separates(q, a, row) for a in q.accs.values()):
            return _column_form(q, row)
    return _plain_form(q)


def _clean(q: Question, p: Product) -> bool:
    """The product has no column axes."""
    return not p.node.axes & {c for cs in q.columns.values() for c in cs}


def separates(q: Question, a: Accumulator, row: str) -> bool:
    """The accumulator is a matrix product of row factors and column factors over the stream."""
    if a.op != "sum" or len(q.columns[a.name]) != 1 or row not in (ROW, *a.axes):
        return False
    w, v = split_columns(q.lifts[a.name], q.columns[a.name])
    if w is None or v is None or row in v.axes or q.stream not in v.axes:
        return False
    return not any(isinstance(e, Acc) for e in nodes(v))


def _plain_form(q: Question) -> Form:
    lanes, lifts = q.sizes.lanes, list(q.lifts.values())
    costs = {"": q.gathers(q.stream, lifts)} | {r: q.gathers(r, lifts) for r in q.rows}
    best = min(costs, key=lambda x: (costs[x], x != ""))
    wanted = q.choice.get("lanes")
    if wanted == "row" and q.rows:
        best = min(q.rows, key=lambda r: costs[r])
    if best and not q.tops and wanted != "stream":
        rows = 16 * lanes
        return Form("plain", best, "row", rows, int(q.choice.get("depth", 64)), rows)
    depth = int(q.choice.get("depth", 512))
    if q.rows and q.extents[q.stream] <= 2048:
        row = max(reversed(q.rows), key=lambda r: q.extents[r])
        return Form("plain", row, "stream", 16, depth, 16)
    return Form("plain", "", "stream", 1, depth, 1)


def _dot_depth(q: Question, p: Product) -> int:
    return max(32, min(128, up(q.sizes.stream_fit(q.extents[p.inner]), q.sizes.lanes)))


def _column_form(q: Question, row: str) -> Form:
    s, n_row = q.sizes, q.extents[row]
    columns = max((q.extents[c] for cs in q.columns.values() for c in cs), default=1)
    packed = s.element * q.extents[q.stream] * columns
    depth = int(q.choice.get("depth", 256))
    rows = s.product_rows(n_row, packed, depth)
    mr, _ = s.register_block(min(n_row, rows), columns)
    rows = size_class(n_row, mr, up(rows, mr))
    return Form("columns", row, "stream", rows, depth, up(rows, s.lanes))


def _product_form(q: Question, row: str, p: Product) -> Form:
    s, n_row, n_k, n_c = q.sizes, q.extents[row], q.extents[q.stream], q.extents[p.inner]
    lanes = _product_lanes(q, row, p)
    if lanes == "dot":
        return Form("dot", row, "stream", min(n_row, 64), _dot_depth(q, p), min(n_row, 64), p)
    if lanes == "row":
        mr, nv = s.register_block(n_k, n_row)
        w = nv * s.lanes
        rows = size_class(n_row, w, up(96 if q.masked else 128, w))
        depth = up(min(96 if q.masked else 128, s.stream_fit(n_c)), mr)
        form = Form("blocked", row, "row", rows, depth, rows, p, mr, nv)
    else:
        mr, nv = s.register_block(n_row, n_k)
        w = nv * s.lanes
        rows = size_class(n_row, mr, up(48 if q.masked else 96, mr))
        depth = up(min(64 if q.masked else 128, s.stream_fit(n_c)), w)
        form = Form("blocked", row, "stream", rows, depth, rows, p, mr, nv)
    if "depth" in q.choice:
        form = replace(form, depth=up(int(q.choice["depth"]), w if lanes == "stream" else mr))
    if "rows" in q.choice:
        rows = up(int(q.choice["rows"]), w if lanes == "row" else mr)
        form = replace(form, rows=rows, held=rows)
    return form


def _product_lanes(q: Question, row: str, p: Product) -> str:
    """Cost of one element of the stream for every row, in vector operations of one inner element."""
    lanes, n_row, n_c = q.sizes.lanes, q.extents[row], q.extents[p.inner]
    outside = _outside(q.lifts.values(), p.node)
    heavy = 4.0 * n_row / max(n_c, 1)
    cost = {
        "row": up(n_row, lanes) / (2 * lanes) + heavy * q.gathers(row, outside),
        "stream": n_row / (2 * lanes) + 1 / 8 + heavy * q.gathers(q.stream, outside),
    }
    if isinstance(p.stream, Load) and isinstance(p.row, Load) and not q.gathers(p.inner, [p.stream, p.row]):
        cost["dot"] = n_row * (1 / (2 * lanes) + 8 / max(n_c, 1)) + heavy * q.gathers(q.stream, outside)
    if q.tops:
        del cost["row"]
    wanted = q.choice.get("lanes")
    return str(wanted) if wanted in cost else min(cost, key=lambda x: cost[x])


def _outside(lifts: Any, node: Expr) -> list[Expr]:
    """The loads of the lifts that are not inside the product."""
    inside = set(nodes(node))
    return [e for e in nodes(*lifts) if isinstance(e, Load) and e not in inside]
