"""Element-wise code over the fragments of a tile: the expressions of one thread.

A thread holds `2 * fragments` rows of a tile and, of each, two neighbouring elements in every eight along the stream. Four
neighbouring lanes share a row. Names of the printed code: h, the thread's row; u, its element of the row; m, n, e, a fragment,
its block of eight columns, and one of two neighbours in it; row, pos and column, where they are in the tile.
"""

from __future__ import annotations

from redfuser_eq.expr import Acc, Cast, Const, Expr, Index, Load, Map, nodes
from redfuser_eq.ops import MONOIDS

from .c_expr import COMPARE, Place, Scope, varying
from .cuda_expr import CudaNames, Values
from .kernel import Contract, Phase, State, Stmt, Sweep

LOG2E = 1.4426950408889634
SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
INFIX = {"add": "+", "sub": "-", "mul": "*"}


class FragmentValues(Values):
    """Prints expressions of an element, of a row, or of a column of a fragment.

    cells: text of what lies in registers, by the name of its buffer. inside: text that is false past the end of the stream, or
    "". column: text behind the name of an accumulator with columns. near: a product with a reciprocal will do for a quotient."""

    def __init__(self, names: CudaNames, phase: Phase, at: dict[str, Place], scopes: list[Scope], cells: dict[str, str],
                 mode: str = "lift", inside: str = "", column: str = "", near: bool = False):  # fmt: skip
        super().__init__(names, phase, at, scopes, self._register, lambda s: s.whole, mode)
        self.given_sources = cells
        self.inside, self.column, self.near = inside, column, near
        self._integers: dict[Expr, str] = {}

    def _register(self, s: State, suffix: str, at: dict[str, Place]) -> str:
        base = self.names.get("acc", s.name) + suffix
        if s.columns:
            return base + self.column
        return f"{base}[h]" + (f"[{at[s.out].whole}]" if s.k else "")

    def _inner_axes(self) -> frozenset[str]:
        return self.scopes[-1].axes

    def _varies(self, e: Expr) -> bool:
        """Along the innermost loop."""
        return bool(varying(e, self.states, self.phase.row) & self._inner_axes())

    def _map(self, e: Map) -> str:
        if e.op in COMPARE and all(self._is_whole(a) for a in e.args):
            return f"{self._whole(e.args[0])} {SIGNS[e.op]} {self._whole(e.args[1])}"
        if e.op == "exp":
            return self._exp(e.args[0])
        if e.op == "div" and self.near and not self._varies(e.args[1]):
            return f"{self.value(e.args[0])} * {self.value(Map('recip', (e.args[1],), e.dtype))}"
        return super()._map(e)

    def _exp(self, x: Expr) -> str:
        """One FMA for a difference to something of the row, but never in the factor of a rebase: that must be 1 when nothing
        moved."""
        if self.mode == "lift" and isinstance(x, Map) and x.op == "sub" and self._varies(x.args[0]) and not self._varies(x.args[1]):
            scaled = Map("mul", (x.args[1], Const(LOG2E, x.dtype)), x.dtype)
            return f"ex2(fmaf({self.value(x.args[0])}, {LOG2E}f, -{self.value(scaled)}))"
        return f"ex2(({self.value(x)}) * {LOG2E}f)" if self.mode == "rebase" else f"expf({self.value(x)})"

    def _is_whole(self, e: Expr) -> bool:
        """An integer made of positions, constants and loads."""
        if isinstance(e, Cast):
            return e.dtype.kind == "i" and self._is_whole(e.args[0])
        if isinstance(e, Map):
            return e.op in INFIX and e.dtype.kind == "i" and all(self._is_whole(a) for a in e.args)
        return e.dtype.kind in "iu" and isinstance(e, (Index, Const, Load))

    def _whole(self, e: Expr) -> str:
        """Text of such an integer in 32 bits. One that does not fit is out of every axis, and stays so."""
        if isinstance(e, Index):
            return f"(int)({self.at[e.axis].whole})"
        if isinstance(e, Const):
            return str(int(e.value))
        if isinstance(e, Cast):
            return self._whole(e.args[0])
        if isinstance(e, Map):
            return f"({self._whole(e.args[0])} {INFIX[e.op]} {self._whole(e.args[1])})"
        assert isinstance(e, Load)
        base, steps, *_ = self.memory(e)
        at = " + ".join([base, *(f"{self.at[d].whole} * {s}" for d, s in zip(e.dims, steps, strict=True) if s != "0")])
        scope, name = self._scope(e), self.names.fresh("i")
        if e not in self._integers:
            self._integers[e] = name
            scope.lines.append(f"const int {name} = {self._guarded(e, f'in_32_bits(*({at}))')};")
        return self._integers[e]

    def _load(self, e: Load) -> str:
        return super()._load(e) if e.source in self.given_sources else self._guarded(e, super()._load(e))

    def _guarded(self, e: Load, text: str) -> str:
        """Nothing is read past the end of the stream."""
        return f"{self.inside} ? {text} : 0" if self.inside and self.phase.stream in e.axes else text


def falls_away(body: tuple[Stmt, ...], score: Contract) -> bool:
    """Whether elements whose score is -inf add nothing anywhere: then those past the end need no test after the score."""
    sweeps = [s for s in body if isinstance(s, Sweep)]
    tile = score.dst

    def neutral(op: str, lift: Expr) -> bool:
        itself = isinstance(lift, Load) and lift.source == tile
        return (itself and MONOIDS[op].best > 0 and MONOIDS[op].state != "top") or (op == "sum" and vanishes(lift, tile))

    folds = [f for s in sweeps for f in s.folds]
    if multiplied(body, tile):
        return False
    ok = all(neutral(f.op, f.lift) for f in folds if not isinstance(f.lift, Const))
    return ok and not score.folds and all(vanishes(e, tile) for s in sweeps for _, e in s.stores)


def multiplied(body: tuple[Stmt, ...], tile: str) -> bool:
    """A product reads the tile as it is, and not what a sweep has put in its place."""
    replaced = any(t == tile for s in body if isinstance(s, Sweep) for t, _ in s.stores)
    return not replaced and any(isinstance(s, Contract) and s.start == "state" and s.a.source == tile for s in body)


def vanishes(e: Expr, tile: str) -> bool:
    """e is 0 where the tile is -inf: a product of exp(tile - something of the row) and factors that read nothing of the element.
    What lies past the end may be a NaN, and 0 * NaN is one."""
    if isinstance(e, Map) and e.op == "mul":
        a, b = e.args
        return (vanishes(a, tile) and _still(b)) or (vanishes(b, tile) and _still(a)) or (vanishes(a, tile) and vanishes(b, tile))
    x = e.args[0] if isinstance(e, Map) and e.op == "exp" else None
    return isinstance(x, Map) and x.op == "sub" and isinstance(x.args[0], Load) and x.args[0].source == tile and _still(x.args[1])


def _still(e: Expr) -> bool:
    """Made of constants and accumulators: nothing is loaded."""
    return all(isinstance(x, (Acc, Const, Map)) for x in nodes(e))
