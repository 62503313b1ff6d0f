"""State as CUDA: folds, rebases, the merge of partial states, flags. What all forms share; a form says where a state lies.

The merge is one text for every kind of partial state (the lanes of a warp, the warps of a row, the segments of a stream): level
by level, each part is moved to the merged parameters by the rebase, and folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Const, Expr, Index, Map, Prev, nodes
from redfuser_eq.ops import MONOIDS, OPS

from .c_expr import Place, Scope, _offsets
from .cuda_expr import CALLS, GROUP, CudaNames, Values, combine, literal
from .kernel import SEGMENT, ColumnRebase, Fold, Phase, Rebase, State, statements

Levels = tuple[tuple[tuple[str, Expr | None], ...], ...]
Part = Callable[[State, str], str]  # text of a state's value (suffix "") or position ("_at") in the part at hand


class StateCode:
    """Prints what is done to states. A form's printer derives from it and says where states lie (`cell`) and how axes are
    bound (`at`: the place of each, `counts`: how many elements of it the tile has)."""

    def __init__(self, names: CudaNames, phase: Phase):
        self.names, self.phase = names, phase
        self.states = {s.name: s for s in phase.states}
        self.at: dict[str, Place] = {}
        self.counts: dict[str, str] = {}
        self.rebased = {n for s in statements(phase.body) if isinstance(s, (Rebase, ColumnRebase)) for n, _ in s.items}

    # ---- to be said by a form
    def cell(self, s: State, suffix: str = "", at: dict[str, Place] | None = None) -> str:
        """Where the state's value ("" ), its value before the tile ("_old") or its position ("_at") lies: an lvalue. For a
        top-k list, the name of an array."""
        del at
        return self.names.get("acc", s.name) + suffix

    def wide(self, s: State) -> bool:
        """A running sum of one row is held in double: a float one would lose a little at every tile, and a mean that moves at
        every tile would lose it again."""
        return s.op == "sum" and not (s.columns or s.k) and self.names.k.real == "float"

    # ---- expressions
    def values(self, scopes: list[Scope], mode: str = "lift", at: dict[str, Place] | None = None) -> Values:
        return Values(self.names, self.phase, dict(at or self.at), scopes, self.cell, self.wide, mode)

    def kind(self, s: State) -> str:
        return "double" if self.wide(s) else "real"

    def identity(self, s: State) -> str:
        return literal(MONOIDS[s.op].identity)

    def arrays(self, s: State) -> list[tuple[str, str, str]]:
        """(suffix, type, first value) of what holds a state."""
        out = [("", self.kind(s), self.identity(s))]
        if s.keep:
            out.append(("_old", self.kind(s), self.identity(s)))
        return [*out, ("_at", "real", "-1")] if s.indexed else out

    def at_identity(self, accs: Iterable[str], old: bool) -> str:
        """Text: every one of these states (before the tile, if old) is at its identity."""
        chosen = [self.states[n] for n in accs]
        return " && ".join(f"{self.cell(s, '_old' if old and s.keep else '', self.at)} == {self.identity(s)}" for s in chosen)

    # ---- folds
    def open_fold(self, f: Fold, reg: str) -> list[str]:
        """Registers in which lifts are folded before they meet the state; a list is folded in place."""
        s = self.states[f.acc]
        if s.k:
            return []
        return [f"real {reg} = {self.identity(s)};", *([f"real {reg}_at = -1;"] if s.indexed else [])]

    def fold(self, f: Fold, reg: str, el: Values) -> list[str]:
        """Fold the lift of the element at el's place into the register."""
        s = self.states[f.acc]
        best = MONOIDS[f.op].best
        if not s.indexed:
            product = el.product(f.lift) if f.op == "sum" else None
            if product:
                return [f"{reg} = fma({product[0]}, {product[1]}, {reg});"]
            return [f"{reg} = {combine(f.op, reg, el.value(f.lift))};"]
        v, at = el.value(f.lift), el.value(Index(self.phase.stream))
        if s.k:
            return [f"insert<{s.k}, {best}>({self.cell(s, '', el.at)}, {self.cell(s, '_at', el.at)}, {v}, {at});"]
        return [f"if (ahead<{best}>({v}, {at}, {reg}, {reg}_at)) {reg} = {v}, {reg}_at = {at};"]

    def close_fold(self, f: Fold, reg: str) -> list[str]:
        """The register into the state; the value before is kept where later levels read it."""
        s = self.states[f.acc]
        cell = self.cell(s, "", self.at)
        out = [f"{self.cell(s, '_old', self.at)} = {cell};"] if s.keep and s.name not in self.rebased else []
        if s.k:
            return out
        if s.indexed:
            at, best = self.cell(s, "_at", self.at), MONOIDS[f.op].best
            return [*out, f"if (ahead<{best}>({reg}, {reg}_at, {cell}, {at})) {cell} = {reg}, {at} = {reg}_at;"]
        return [*out, f"{cell} = {combine(f.op, cell, reg)};"]

    # ---- rebase
    def moved(self, params: Sequence[str]) -> str:
        """Text: some parameter moved in this tile, and not from the identity."""
        tests = [f"{self.cell(self.states[p], '', self.at)} != {self.cell(self.states[p], '_old', self.at)}" for p in params]
        return f"({' || '.join(tests)}) && !({self.at_identity(params, True)})"

    def rebase_row(self, s: Rebase, put_factor: Callable[[str, str], str] | None = None) -> list[str]:
        """Move one row's states to the present parameters. put_factor(buffer, value): how a factor is stored."""
        out = [f"{self.cell(x, '_old', self.at)} = {self.cell(x, '', self.at)};" for n, _ in s.items if (x := self.states[n]).keep]
        scope = Scope(frozenset(), [])
        el = self.values([scope], "rebase")
        el.own = frozenset(n for n, _ in s.items)
        new = []
        for n, e in s.items:
            state, name = self.states[n], self.names.fresh("n")
            text = self.precise(e, el, s.params) if self.wide(state) else el.value(e)
            scope.lines.append(f"const {self.kind(state)} {name} = {text};")
            new.append(f"{self.cell(state, '', self.at)} = {name};")
        rest: list[str] = []
        if s.factors:
            assert put_factor is not None
            new += [put_factor(b, el.value(e)) for b, e, _ in s.factors]
            rest = [put_factor(b, literal(d)) for b, _, d in s.factors]
        if not s.params:
            return [*out, "{", *scope.lines, *new, "}"]
        return [*out, f"if ({self.moved(s.params)}) {{", *scope.lines, *new, "}", *(["else {", *rest, "}"] if rest else [])]

    def precise(self, e: Expr, el: Values, params: Iterable[str]) -> str:
        """Text of an expression in double. What is made of parameters alone is computed as the lifts compute it, in the
        kernel's own type: a mean must be the very mean that was subtracted, or its rounding would not cancel."""
        known = set(params)

        def go(x: Expr) -> str:
            read = {n.name for n in nodes(x) if isinstance(n, (Acc, Prev))}
            if isinstance(x, Const):
                return f"(double){literal(x.value)}"
            if isinstance(x, (Acc, Prev)):
                s = self.states[x.name]
                if not self.wide(s):
                    return f"(double)({el.value(x)})"
                part = el.parts.get(s.name) if isinstance(x, Prev) else None
                return part or self.cell(s, el.old_suffix(s) if isinstance(x, Prev) else "", el.at)
            if isinstance(x, Map) and x.dtype.kind != "b" and x.op != "where" and not read <= known:
                name = self.names.fresh("d")
                text = (OPS[x.op].c if x.op in ("mul", "square") else CALLS.get(x.op, OPS[x.op].c)).format(*(f"({go(a)})" for a in x.args))
                el.scopes[-1].lines.append(f"const double {name} = {text};")
                return name
            return f"(double)({el.value(x)})"

        return go(e)

    # ---- memory
    def buffer_at(self, name: str, at: dict[str, Place]) -> str:
        """Text of the address in a buffer; axes without a place are at their start."""
        b = self.names.k.buffer(name)
        if b is None:
            raise IRError(f"nothing in the kernel is called {name!r}")
        offsets = [(at[d].whole if b.shared else at[d].offset, self.names.step(b, i)) for i, d in enumerate(b.dims) if d in at]
        return " + ".join([self.names.get("buf", b.name), *_offsets(offsets)])

    def put(self, target: str, value: str, el: Values) -> str:
        """Store a number into an array or a buffer at el's place."""
        a = self.names.k.array(target)
        if a is None:
            return f"*({self.buffer_at(target, el.at)}) = (real)({value});"
        offsets = [(el.at[d].whole, self.names.stride(a, i)) for i, d in enumerate(a.dims)]
        return f"put_{a.dtype}({' + '.join([self.names.array(a), *_offsets(offsets)])}, {value});"

    def segments(self, items: Iterable[tuple[str, str, str]]) -> Part:
        """The states of segment g of the stream, in the buffers that hold values and positions."""
        parts = {n: (v, a) for n, v, a in items}

        def part(x: State, suffix: str) -> str:
            address = self.buffer_at(parts[x.name][1 if suffix else 0], {**self.at, SEGMENT: Place("0", "g")})
            return f"({address})" if x.k else f"*({address})"

        return part

    # ---- merge
    def merge(self, levels: Levels, part: Part, loop: str = "", width: int = 1) -> list[str]:
        """The states as the merge of parts: `part` gives the text of the present part's values, `loop` is the head of a loop
        over them ("": there is one), and lanes in groups of `width` have each merged some of them."""
        out: list[str] = []
        for n, rebase in (x for level in levels for x in level):
            s = self.states[n]
            reg = self.names.fresh("u")
            lines = self._merge_part(s, rebase, part, reg)
            unset = self._unset(s, rebase, part)
            lines = [f"if (!({unset})) {{", *lines, "}"] if unset else lines
            lines = [f"{loop} {{", *lines, "}"] if loop else ["{", *lines, "}"]
            out += [*self._merge_open(s, reg), *lines, *self._merge_close(s, reg, width)]
        return out

    def _merge_open(self, s: State, reg: str) -> list[str]:
        if s.k:
            each = f"UNROLL for (int t = 0; t < {s.k}; t++) {reg}[t] = {self.identity(s)}, {reg}_at[t] = -1;"
            return [f"real {reg}[{s.k}], {reg}_at[{s.k}];", each]
        return [f"{self.kind(s)} {reg} = {self.identity(s)};", *([f"real {reg}_at = -1;"] if s.indexed else [])]

    def _merge_part(self, s: State, rebase: Expr | None, part: Part, reg: str) -> list[str]:
        best = MONOIDS[s.op].best
        if s.k:
            entry = f"({part(s, '')})[t], ({part(s, '_at')})[t]"
            return [f"UNROLL for (int t = 0; t < {s.k}; t++) insert<{s.k}, {best}>({reg}, {reg}_at, {entry});"]
        if s.indexed:
            v, at = part(s, ""), part(s, "_at")
            return [f"if (ahead<{best}>({v}, {at}, {reg}, {reg}_at)) {reg} = {v}, {reg}_at = {at};"]
        if rebase is None:
            return [f"{reg} = {combine(s.op, reg, part(s, ''))};"]
        scope = Scope(frozenset(), [])
        el = self.values([scope], "rebase")
        el.parts = {x.name: part(x, "") for x in self.states.values() if not x.indexed and not set(x.columns) - set(self.at)}
        el.own = frozenset((s.name,))
        params = {e.name for e in nodes(rebase) if isinstance(e, Acc)}
        text = self.precise(rebase, el, params) if self.wide(s) else el.value(rebase)
        return [*scope.lines, f"{reg} = {combine(s.op, reg, text)};"]

    def _unset(self, s: State, rebase: Expr | None, part: Part) -> str:
        """Text: the part has nothing to add, because every parameter it was taken with is at its identity."""
        if rebase is None:
            return ""
        read = sorted({e.name for e in nodes(rebase) if isinstance(e, Acc)})
        return " && ".join(f"{part(x, '')} == {self.identity(x)}" for n in read if not (x := self.states[n]).columns and not x.indexed)

    def _merge_close(self, s: State, reg: str, width: int) -> list[str]:
        cell, best = self.cell(s, "", self.at), MONOIDS[s.op].best
        if s.k:
            folded = [f"group_list<{width}, {s.k}, {best}>({reg}, {reg}_at);"] if width > 1 else []
            place = self.cell(s, "_at", self.at)
            return [*folded, f"UNROLL for (int t = 0; t < {s.k}; t++) ({cell})[t] = {reg}[t], ({place})[t] = {reg}_at[t];"]
        if s.indexed:
            folded = [f"group_best<{width}, {best}>({reg}, {reg}_at);"] if width > 1 else []
            return [*folded, f"{cell} = {reg}, {self.cell(s, '_at', self.at)} = {reg}_at;"]
        return [f"{cell} = {f'{GROUP[s.op]}<{width}>({reg})' if width > 1 else reg};"]

    # ---- flags
    def not_finite(self, s: State) -> str:
        """Text: the row's state holds NaN or infinity."""
        cell = self.cell(s, "", self.at)
        if s.k:
            return " || ".join(f"!finite(({cell})[{t}])" for t in range(s.k))
        return f"!finite({cell})"

    def flag_at(self, flags: str = "flags", axes: tuple[str, ...] | None = None) -> str:
        """Text of the address of the row's flag."""
        at = "0"
        for a in axes if axes is not None else self.names.k.flag_axes or ():
            at = f"({at} * {self.names.extent(a)} + {self.at[a].whole})" if at != "0" else self.at[a].whole
        return f"{flags} + {at}"
