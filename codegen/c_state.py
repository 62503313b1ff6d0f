"""State between tiles: rebases, column accumulators, stores, flags, and the merge of segments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from redfuser_eq.expr import Acc, Const, Expr, Load, Map, Prev, nodes
from redfuser_eq.ops import MONOIDS, OPS

from .c_expr import Elements, Place, Scope, combine, improves, literal, state_at
from .c_tile import TileStatements, wide
from .kernel import SEGMENT, ColumnRebase, Columns, Flag, Merge, Partial, Rebase, Recall, Remember, State, Store


class _Doubles:
    """Prints an expression over a row's states as scalar C in double, each shared node once.

    What is made of parameters alone is computed as the lifts compute it, in the kernel's own type: a mean must be the
    very mean that was subtracted, or its rounding would not cancel.
    """

    def __init__(self, printer: StateStatements, el: Elements, params: tuple[str, ...]) -> None:
        self.printer, self.el, self.params = printer, el, params
        self.lines: list[str] = []
        self.memo: dict[Expr, str] = {}

    def text(self, e: Expr) -> str | None:
        """C text, or None where e holds something that is not a scalar of the row."""
        if any(not self._scalar(n) for n in nodes(e)):
            return None
        return self._text(e)

    def _scalar(self, e: Expr) -> bool:
        if isinstance(e, (Acc, Prev)):
            s = self.printer.states.get(e.name)
            return s is not None and not (s.columns or s.indexed or s.name in self.el.parts)
        return isinstance(e, Const) or (isinstance(e, Map) and e.dtype.kind != "b")

    def _text(self, e: Expr) -> str:
        if e not in self.memo:
            if isinstance(e, Map) and all(n.name in self.params for n in nodes(e) if isinstance(n, (Acc, Prev))):
                self.memo[e] = f"(double)lane0({self.el.value(e)})"
            elif isinstance(e, Map):
                args = [f"({self._text(a)})" for a in e.args]
                name = self.printer.names.fresh("d")
                self.lines.append(f"const double {name} = {OPS[e.op].c.format(*args)};")
                self.memo[e] = name
            else:
                self.memo[e] = self._leaf(e)
        return self.memo[e]

    def _leaf(self, e: Expr) -> str:
        if isinstance(e, Const):
            return repr(float(e.value)) if math.isfinite(float(e.value)) else literal(float(e.value))
        assert isinstance(e, (Acc, Prev))
        s = self.printer.states[e.name]
        now = self.printer.cell(s)
        settled = f"(isinf({now}) ? 0.0 : (double){now})"
        if isinstance(e, Acc):
            return settled if s.op in ("max", "min") else now
        old = self.printer.cell(s, self.el.old_suffix(s))
        if s.op not in ("max", "min") or s.name in self.el.own:
            return old
        return f"({old} == {literal(MONOIDS[s.op].identity)} ? {settled} : (double){old})"


class StateStatements(TileStatements):
    """Prints the statements that move, store and merge accumulators."""

    # ---- rebase
    def do_rebase(self, s: Rebase) -> list[str]:
        return self._rebase_rows(s) if s.lanes == "row" else self._rebase_scalar(s)

    def _keep(self, names: tuple[str, ...], el: Elements) -> list[str]:
        return [self.set_state(self.states[n], el.state(self.states[n]), el, "_old") for n in names if self.states[n].keep]

    def _moved(self, params: tuple[str, ...]) -> str:
        tests = [f"{self.cell(self.states[p])} != {self.cell(self.states[p], '_old')}" for p in params]
        return f"({' || '.join(tests)}) && !({self.at_identity(params, True)})"

    def _rebase_scalar(self, s: Rebase) -> list[str]:
        out: list[str] = []
        with self.rows(out):
            scope = Scope(frozenset(), [])
            el = self.elements("", [scope], mode="rebase")
            el.own = frozenset(n for n, _ in s.items)
            out += self._keep(tuple(n for n, _ in s.items), el)
            doubles = _Doubles(self, el, s.params)
            precise = {n: text for n, e in s.items if wide(self.states[n]) and (text := doubles.text(e))}
            new = [(n, el.value(e)) for n, e in s.items if n not in precise]
            factors = [(b, el.value(e), d) for b, e, d in s.factors]
            held = [(n, self.names.fresh("d"), text) for n, text in precise.items()]
            fixed = [f"const V {self.names.fresh('n')} = {v};" for _, v in new]
            ids = [t.split()[2] for t in fixed]
            body = [*scope.lines, *doubles.lines, *fixed, *(f"const double {i} = {text};" for _, i, text in held)]
            body += [f"{self.cell(self.states[n])} = {i};" for n, i, _ in held]
            body += [*(self.set_state(self.states[n], i, el) for (n, _), i in zip(new, ids, strict=True))]
            body += [self.put(b, v, el, "", "") for b, v, _ in factors]
            rest = [self.put(b, f"set1({literal(d)})", el, "", "") for b, _, d in factors]
            if not s.params:
                out += ["{", *body, "}"]
            else:
                out += [f"if ({self._moved(s.params)}) {{", *body, "}", *(["else {", *rest, "}"] if rest else [])]
        return out

    def _rebase_rows(self, s: Rebase) -> list[str]:
        out: list[str] = []
        row = self.phase.row
        with self.rows(out, "LANES"):
            scope = Scope(frozenset(), [])
            el = self.elements(row, [scope], f"tail({self.row_total()} - {self.at[row].offset})", "rebase")
            el.own = frozenset(n for n, _ in s.items)
            out += self._keep(tuple(n for n, _ in s.items), el)
            moved, unset = [], []
            for p in s.params:
                state = self.states[p]
                moved.append(f"m_ne({el.state(state)}, {el.state(state, '_old')})")
                unset.append(f"m_eq({el.state(state, '_old')}, set1({literal(MONOIDS[state.op].identity)}))")
            ok = self.names.fresh("m")
            if s.params:
                out += [f"const M {ok} = m_and({_join('m_or', moved)}, m_not({_join('m_and', unset)}));"]
                out += [self.put(b, f"set1({literal(d)})", el, row, "") for b, _, d in s.factors] + [f"if (m_any({ok})) {{"]
            else:
                out += [f"const M {ok} = m_all();", "{"]
            new = [(n, self.names.fresh("n"), el.value(e)) for n, e in s.items]
            factors = [(b, el.value(e), d) for b, e, d in s.factors]
            out += scope.lines + [f"const V {i} = {v};" for _, i, v in new]
            out += [self.set_state(self.states[n], f"sel({ok}, {i}, {el.state(self.states[n])})", el) for n, i, _ in new]
            out += [self.put(b, f"sel({ok}, {v}, set1({literal(d)}))", el, row, "") for b, v, d in factors] + ["}"]
        return out

    # ---- columns
    @contextmanager
    def _columns(self, out: list[str], axes: tuple[str, ...]) -> Iterator[None]:
        """Loops over whole axes, outermost first."""
        saved = dict(self.at)
        for a in axes:
            v = self.names.var(a)
            out.append(f"for (int64_t {v} = 0; {v} < {self.names.extent(a)}; {v}++) {{")
            self.at[a] = Place("0", v)
        yield
        out.extend("}" for _ in axes)
        self.at = saved

    def do_columns(self, s: Columns) -> list[str]:
        out: list[str] = []
        state = self.states[s.fold.acc]
        with self.state_rows(out, state):
            if s.guard:
                out.append(f"if (!({self.at_identity(s.guard, False)})) {{")
            if s.lane == self.phase.stream:
                with self._columns(out, state.columns):
                    out += self._column_stream(s, state)
            else:
                with self._columns(out, tuple(c for c in state.columns if c != s.lane)):
                    out += self._column_lane(s, state)
            out += ["}"] if s.guard else []
        return out

    @contextmanager
    def state_rows(self, out: list[str], s: State) -> Iterator[None]:
        if s.row:
            with self.rows(out):
                yield
        else:
            yield

    def _column_stream(self, s: Columns, state: State) -> list[str]:
        k, var, total = self.phase.stream, self.names.var(self.phase.stream), self.counts[self.phase.stream]
        pre, body = Scope(frozenset(), []), Scope(frozenset((k,)), [])
        with self.bind(k, Place(self.at[k].start, var)):
            el = self.elements(k, [pre, body], "m")
            reg = self.names.fresh("a")
            lines = self.fold(s.fold, reg, el, "m")
        return ["{", *pre.lines, *self._open((s.fold,), [[reg]]), f"for (int64_t {var} = 0; {var} < {total}; {var} += LANES) {{",
                f"const M m = tail({total} - {var});", *body.lines, *lines, "}", *self._close(s.fold, [reg]), "}"]  # fmt: skip

    def _column_lane(self, s: Columns, state: State) -> list[str]:
        k, var, total, d = self.phase.stream, self.names.var(self.phase.stream), self.counts[self.phase.stream], s.lane
        dv, nd = self.names.var(d), self.names.extent(d)
        out = ["{", f"int64_t {dv} = 0;"]
        for unroll in (4, 1):
            test = f"{dv} + {unroll} * LANES <= {nd}" if unroll > 1 else f"{dv} < {nd}"
            mask = "" if unroll > 1 else "m"
            begin: list[str] = [f"const M m = tail({nd} - {dv});"] if mask else []
            end: list[str] = []
            pre, shared, body = Scope(frozenset((d,)), []), Scope(frozenset(), []), Scope(frozenset((k,)), [])
            with self.bind(k, Place(self.at[k].start, var)):
                for u in range(unroll):
                    place = Place("0", f"({dv} + {u} * LANES)" if u else dv)
                    own = Scope(frozenset((k,)), body.lines)
                    el = Elements(self.names, self.phase, {**self.at, d: place}, d, [shared, Scope(pre.axes, pre.lines), own], mask)
                    reg = self.names.fresh("a")
                    with self.bind(d, place):
                        begin += self.load_state(s.fold, reg, el)
                        body.lines += self.fold(s.fold, reg, el, "")
                        end += self.save_state(s.fold, reg, el)
            out += [f"for (; {test}; {dv} += {unroll} * LANES) {{", *begin, *shared.lines, *pre.lines]
            out += [f"for (int64_t {var} = 0; {var} < {total}; {var}++) {{", *body.lines, "}", *end, "}"]
        return [*out, "}"]

    def do_columnrebase(self, s: ColumnRebase) -> list[str]:
        out: list[str] = []
        for n, e in s.items:
            state = self.states[n]
            with self.state_rows(out, state):
                out.append(f"if ({self._moved(s.params)}) {{" if s.params else "{")
                *outer, d = state.columns
                with self._columns(out, tuple(outer)):
                    out += self._along(d, partial(self._assign, state, e), "rebase")
                out.append("}")
        return out

    def _assign(self, s: State, e: Expr, el: Elements) -> list[str]:
        el.own = frozenset((s.name,))
        return [self.set_state(s, el.value(e), el)]

    def _along(self, axis: str, lines: Callable[[Elements], list[str]], mode: str, extent: str = "") -> list[str]:
        """A vector loop over a whole axis; `lines(el)` gives what is done with one vector."""
        return self._vectors(axis, "0", extent or self.names.extent(axis), lines, mode)

    def _vectors(self, axis: str, start: str, total: str, lines: Callable[[Elements], list[str]], mode: str) -> list[str]:
        """Masks only in the last step: a masked store costs a dozen plain ones."""
        var = self.names.var(axis)
        out = ["{", f"int64_t {var} = 0;"]
        heads = {"": f"for (; {var} + LANES <= {total}; {var} += LANES) {{",
                 "m": f"if ({var} < {total}) {{ const M m = tail({total} - {var}); (void)m;"}  # fmt: skip
        for mask in ("", "m")[: self.names.k.lanes]:
            pre, scope = Scope(frozenset(), []), Scope(frozenset((axis,)), [])
            with self.bind(axis, Place(start, var)):
                last = lines(self.elements(axis, [pre, scope], mask, mode))
            out += [*pre.lines, heads[mask], *scope.lines, *last, "}"]
        return [*out, "}"]

    # ---- the parameters of each tile
    def do_remember(self, s: Remember) -> list[str]:
        return self._each_tile(s.items, s.step, lambda state, cell: f"{cell} = {self.cell(state)};")

    def do_recall(self, s: Recall) -> list[str]:
        return self._each_tile(s.items, s.step, lambda state, cell: f"{self.cell(state, '_old')} = {cell};")

    def _each_tile(self, items: tuple[tuple[str, str], ...], step: int, line: Callable[[State, str], str]) -> list[str]:
        out: list[str] = []
        with self.rows(out):
            for n, name in items:
                b, place = self.names.k.buffer(name), self.at.get(self.phase.row)
                assert b is not None
                row = place.offset if place and self.states[n].row else "0"
                at = f"{self.at[self.phase.stream].start} / {step} * {self.names.step(b, 0)}"
                out.append(line(self.states[n], f"{self.names.get('buf', name)}[{at} + {row}]"))
        return out

    # ---- results
    def do_store(self, s: Store) -> list[str]:
        out: list[str] = []
        if s.columns:
            *outer, lane = s.columns
            with self.rows(out):
                bad = self.names.fresh("bad") if s.checks else ""
                out += [f"V {bad} = set1(0);"] if bad else []
                with self._columns(out, tuple(outer)):
                    out += self._along(lane, partial(self._stored, s, bad), "final")
                out += self._mark(f"m_any(m_isnan({bad}))") if bad else []
            return out
        row = self.phase.row
        if row and (row not in self.at or row in self.counts):
            start = self.at[row].start if row in self.at else "0"
            return self._vectors(row, start, self.row_total(), lambda el: [self.put(s.target, el.value(s.expr), el, row, el.mask)], "final")
        scope = Scope(frozenset(), [])
        el = self.elements("", [scope], mode="final")
        value = el.value(s.expr)
        return ["{", *scope.lines, self.put(s.target, value, el, "", ""), "}"]

    def _stored(self, s: Store, bad: str, el: Elements) -> list[str]:
        put = self.put(s.target, el.value(s.expr), el, s.columns[-1], el.mask)
        return [put, *(self._spoil(n, bad, el) for n in s.checks)]

    def _spoil(self, name: str, bad: str, el: Elements) -> str:
        """x * 0 is NaN exactly where x is not finite."""
        value = el.value(Acc(name, frozenset(self.states[name].columns)))
        spoilt = f"{value} * set1(0)"
        return f"{bad} = {bad} + {f'keep({el.mask}, {spoilt})' if el.mask else spoilt};"

    def _mark(self, bad: str) -> list[str]:
        at = "0"
        for a in self.names.k.flag_axes or ():
            at = f"({at} * {self.names.extent(a)} + {self.at[a].whole})"
        return [f"if ({bad}) __atomic_store_n(flags + {at}, (uint8_t)1, __ATOMIC_RELAXED);"]

    def do_flag(self, s: Flag) -> list[str]:
        out: list[str] = []
        with self.rows(out):
            bad = self.names.fresh("bad")
            out.append(f"int {bad} = 0;")
            for n in s.accs:
                out += self._not_finite(self.states[n], bad)
            out += self._mark(bad)
        return out

    def _not_finite(self, s: State, bad: str) -> list[str]:
        name, base = self.names.get("acc", s.name), state_at(self.names, State(s.name, s.op, s.row, s.columns, s.k), self.phase, self.at)
        if s.k:
            return [f"for (int64_t t = 0; t < {s.k}; t++) {bad} |= !isfinite({name}[{base} + t]);"]
        if not s.columns:
            return [f"{bad} |= !isfinite({name}[{base}]);"]
        *outer, d = s.columns
        worst = self.names.fresh("bad")
        out = [f"V {worst} = set1(0);"]
        with self._columns(out, tuple(outer)):
            out += self._along(d, lambda el: [self._spoil(s.name, worst, el)], "final")
        return [*out, f"{bad} |= m_any(m_isnan({worst}));"]

    # ---- segments
    def do_partial(self, s: Partial) -> list[str]:
        out: list[str] = []
        for n, values, positions in s.items:
            state = self.states[n]
            for target, suffix in ((values, ""), (positions, "_at")):
                if target:
                    out += self._copy_out(state, target, suffix)
        return out

    def _copy_out(self, s: State, target: str, suffix: str) -> list[str]:
        out: list[str] = []
        with self.state_rows(out, s):
            inner = (*s.columns, s.out) if s.k else s.columns
            if inner:
                *outer, d = inner
                with self._columns(out, tuple(outer)):
                    out += self._along(
                        d, lambda el: [self.put(target, el.state(s, suffix), el, d, el.mask)], "final", str(s.k) if s.k else ""
                    )
            else:
                el = self.elements("", [Scope(frozenset(), [])], mode="final")
                out.append(self.put(target, el.state(s, suffix), el, "", ""))
        return out

    def do_merge(self, s: Merge) -> list[str]:
        parts = {n: (v, p) for n, v, p in s.items}
        out: list[str] = []
        g = self.names.var(SEGMENT)
        with self.rows(out):
            for n, rebase in (x for level in s.levels for x in level):
                state = self.states[n]
                out.append(f"for (int64_t {g} = 0; {g} < {self.names.extent(SEGMENT)}; {g}++) {{")
                with self.bind(SEGMENT, Place("0", g)):
                    unset = self._segment_unset(state, rebase, parts)
                    out += [f"if ({unset}) continue;"] if unset else []
                    out += self._merge_one(state, rebase, parts)
                out.append("}")
        return out

    def _segment_unset(self, s: State, rebase: Expr | None, parts: dict[str, tuple[str, str]]) -> str:
        """C text: the segment has nothing to add, because every parameter it was taken with is at its identity."""
        if rebase is None:
            return ""
        accs = sorted({e.name for e in nodes(rebase) if isinstance(e, Acc)})
        tests = []
        for n in accs:
            if not self.states[n].columns and n in parts:
                tests.append(f"*({self._part(self.states[n], parts[n][0])}) == {literal(MONOIDS[self.states[n].op].identity)}")
        return " && ".join(tests)

    def _part(self, s: State, buffer: str) -> str:
        b = self.names.k.buffer(buffer)
        assert b is not None
        parts = [self.names.get("buf", buffer)]
        for d, axis in enumerate(b.dims):
            if axis in self.at:
                step = self.names.step(b, d)
                parts.append(self.at[axis].whole if step == "1" else f"{self.at[axis].whole} * {step}")
        return " + ".join(p for p in parts if not p.startswith("0 "))

    def _merge_one(self, s: State, rebase: Expr | None, parts: dict[str, tuple[str, str]]) -> list[str]:
        values, positions = parts[s.name]
        if s.k:
            at = state_at(self.names, State(s.name, s.op, s.row, k=s.k), self.phase, self.at)
            name, v, p = self.names.get("acc", s.name), self._part(s, values), self._part(s, positions)
            t = self.names.var(s.out)
            entry = f"{s.k}, set1(({v})[{t}]), set1(({p})[{t}]), tail(1)"
            return [
                f"for (int64_t {t} = 0; {t} < {s.k}; {t}++)",
                f"if (({p})[{t}] >= 0) top_insert({name} + {at}, {name}_at + {at}, {entry});",
            ]
        if s.columns:
            *outer, d = s.columns
            out: list[str] = []
            with self._columns(out, tuple(outer)):
                out += self._along(d, lambda el: self._merge_lines(s, rebase, el, parts), "rebase")
            return out
        scope = Scope(frozenset(), [])
        el = self.elements("", [scope], mode="rebase")
        lines = self._merge_lines(s, rebase, el, parts)
        return [*scope.lines, *lines]

    def _merge_lines(self, s: State, rebase: Expr | None, el: Elements, parts: dict[str, tuple[str, str]]) -> list[str]:
        el.parts = {n: v for n, (v, _) in parts.items()}
        el.own = frozenset((s.name,))
        if s.indexed:
            values, positions = parts[s.name]
            b = self.names.k.buffer(values)
            assert b is not None
            v, p = el.value(Load(values, b.dims)), el.value(Load(positions, b.dims))
            m = self.names.fresh("m")
            el.scopes[-1].lines.append(f"const M {m} = {improves(MONOIDS[s.op].best, v, el.state(s))};")
            return [
                self.set_state(s, f"sel({m}, {p}, {el.state(s, '_at')})", el, "_at"),
                self.set_state(s, f"sel({m}, {v}, {el.state(s)})", el),
            ]
        axes = frozenset(s.columns) | ({self.phase.row} if s.row else set())
        moved = el.value(rebase if rebase is not None else Prev(s.name, axes))
        return [self.set_state(s, combine(s.op, el.state(s), moved), el)]


def _join(name: str, parts: list[str]) -> str:
    text = parts[0]
    for p in parts[1:]:
        text = f"{name}({text}, {p})"
    return text
