"""Places, loops and the sweep: one traversal of a tile that folds lifts and stores element-wise values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Const, Expr, Index, Load, Map
from redfuser_eq.ops import MONOIDS

from .c_expr import Elements, Names, Place, Scope, combine, contiguous, improves, literal, row_step, state_at
from .kernel import Absent, Array, ColumnRebase, Columns, Contract, Fold, Loop, Phase, Rebase, Skip, State, Sweep, statements

HORIZONTAL = {"sum": "h_sum", "prod": "h_prod", "max": "h_max", "min": "h_min", "any": "h_max", "all": "h_min"}

HELPERS = """\
/* fold LANES (value, position) candidates into one: the best, ties by position; the first NaN wins */
#define PAIR_FOLD(NAME, BETTER) \\
  RF_NOINLINE void NAME(rf_real *best, rf_real *at, V v, V p) { \\
    for (int l = 0; l < LANES; l++) { \\
      const rf_real x = lane(v, l), i = lane(p, l), b = *best; \\
      if ((x BETTER b) || (x != x && b == b) || ((x == b || (x != x && b != b)) && i < *at)) { *best = x; *at = i; } \\
    } \\
  }
PAIR_FOLD(pair_fold_max, >)
PAIR_FOLD(pair_fold_min, <)
/* put the lanes of v that are set in `hit` into a list of the k best, best first; ties by position, a NaN stays;
   a place at position -1 is still free and takes anything, -inf too */
RF_NOINLINE void top_insert(rf_real *best, rf_real *at, int64_t k, V v, V p, M hit) {
  const V on = m_to_v(hit);
  for (int l = 0; l < LANES; l++) {
    const rf_real x = lane(v, l);
    if (lane(on, l) == 0 || (x == x && !(x > best[k - 1]) && at[k - 1] >= 0)) continue;
    int64_t t = k - 1;
    for (; t > 0 && (best[t - 1] < x || at[t - 1] < 0 || (x != x && best[t - 1] == best[t - 1])); t--) {
      best[t] = best[t - 1]; at[t] = at[t - 1];
    }
    best[t] = x; at[t] = lane(p, l);
  }
}
/* the same for k <= LANES, the list in a register: what goes before x stays, x follows it, the rest moves up a lane */
RF_INLINE M top_before(V b, V at, V x) { return m_and(m_not(m_lt(at, set1(0))), m_and(m_not(m_lt(b, x)), m_or(m_eq(x, x), m_isnan(b)))); }
RF_NOINLINE void top_insert_lanes(rf_real *best, rf_real *at, int64_t k, const rf_real *values, const rf_real *positions, int64_t n) {
  const M own = tail(k), first = tail(1);
  V b = sel(own, ldm_real(own, best), set1(-RF_INF)), a = sel(own, ldm_real(own, at), set1(-1));
  for (int64_t c = 0; c < n; c++) {
    const V x = set1(values[c]), i = set1(positions[c]);
    const V below = sel(first, set1(RF_NAN), v_up(b)), below_at = sel(first, set1(0), v_up(a));
    const M stays = top_before(b, a, x), follows = top_before(below, below_at, x);
    b = sel(stays, b, sel(follows, x, below)); a = sel(stays, a, sel(follows, i, below_at));
  }
  stm_real(own, best, b); stm_real(own, at, a);
}
/* candidates for the list, gathered without a branch: which lanes have one cannot be foreseen */
#define TOP_FOUND 64
RF_INLINE int64_t top_found(rf_real *values, rf_real *positions, int64_t n, V v, V p, M hit) {
  const uint32_t bits = m_bits(hit);
  st_front(values + n, v, bits); st_front(positions + n, p, bits);
  return n + __builtin_popcount(bits);
}
"""


class TileStatements:
    """Prints a phase's statements; `do_*` is one method a statement. `at` holds the places of the axes bound so far."""

    def __init__(self, names: Names, phase: Phase, at: dict[str, Place], counts: dict[str, str]):
        self.names, self.phase, self.at, self.counts = names, phase, dict(at), dict(counts)
        self.states = {s.name: s for s in phase.states}
        self.rebased = {n for s in statements(phase.body) if isinstance(s, (Rebase, ColumnRebase)) for n, _ in s.items}
        self.cut = self.ready = "0"  # C text: a mask cuts the present tile; and what it leaves out adds nothing
        self.unset = unset_states(phase)
        self.first = "0"  # C text: the present tile is the first of its loop
        self.floors: dict[str, str] = {}

    # ---- places and loops
    @contextmanager
    def bind(self, axis: str, place: Place) -> Iterator[None]:
        saved = self.at.get(axis)
        self.at[axis] = place
        yield
        if saved is None:
            del self.at[axis]
        else:
            self.at[axis] = saved

    @contextmanager
    def rows(self, out: list[str], step: str = "1") -> Iterator[None]:
        """A loop over the tile's rows (over every row, for states that hold them all); nothing without a row axis."""
        row = self.phase.row
        if not row or (row in self.at and row not in self.counts):
            yield
            return
        start = self.at[row].start if row in self.at else "0"
        total = self.counts.get(row, self.names.extent(row))
        var = self.names.var(row)
        out.append(f"for (int64_t {var} = 0; {var} < {total}; {var} += {step}) {{")
        with self.bind(row, Place(start, var)):
            yield
        out.append("}")

    def row_total(self) -> str:
        row = self.phase.row
        return self.counts.get(row, self.names.extent(row)) if row else "1"

    def elements(self, lane: str, scopes: list[Scope], mask: str = "", mode: str = "lift", **places: Place) -> Elements:
        return Elements(self.names, self.phase, {**self.at, **places}, lane, scopes, mask, mode)

    def cell(self, s: State, suffix: str = "") -> str:
        return f"{self.names.get('acc', s.name)}{suffix}[{state_at(self.names, s, self.phase, self.at)}]"

    def at_identity(self, accs: tuple[str, ...], old: bool) -> str:
        """C text: every one of these states (before the tile, if old) is at its identity."""
        tests = []
        for n in accs:
            s = self.states[n]
            tests.append(f"{self.cell(s, '_old' if old and s.keep else '')} == {literal(MONOIDS[s.op].identity)}")
        return " && ".join(tests)

    # ---- sweeps
    def do_sweep(self, s: Sweep) -> list[str]:
        return self._sweep_rows(s) if s.lanes == "row" else self._sweep_stream(s)

    def _sweep_stream(self, s: Sweep) -> list[str]:
        out: list[str] = []
        var, total = self.names.var(self.phase.stream), self.counts[self.phase.stream]
        counts = tuple(f for f in s.folds if f.op == "sum" and isinstance(f.lift, Const))
        s = replace(s, folds=tuple(f for f in s.folds if f not in counts))
        self.floors = {f.acc: self.names.fresh("floor") for f in s.folds if self._has_floor(f)}
        with self.rows(out):
            pre = Scope(frozenset(), [])
            unroll = 1 if any(self.states[f.acc].k for f in s.folds) else s.unroll
            regs = [[self.names.fresh("a") for _ in range(unroll)] for _ in s.folds]
            body: list[str] = self._up_to_line(s, pre, regs) if s.past_cache else []
            self._stream_step(s, pre, body, regs, unroll, f"for (; {var} + {unroll} * LANES <= {total}; {var} += {unroll} * LANES)", "")
            s = replace(s, past_cache=False)  # only whole lines
            if unroll > 1:
                self._stream_step(s, pre, body, regs, 1, f"for (; {var} + LANES <= {total}; {var} += LANES)", "")
            self._stream_step(s, pre, body, regs, 1, f"if ({var} < {total})", "m")
            guard = f"if (!({self.at_identity(s.guard, False)})) {{" if s.guard else "{"
            out += [guard, f"int64_t {var} = 0;", *pre.lines, *self._floor_lines(s), *self._open(s.folds, regs), *body]
            for f, r in zip(s.folds, regs, strict=True):
                out += self._close(f, r)
            for f in counts:  # as many times a constant as the tile has elements
                out += [*self._save_old(self.states[f.acc]), f"{self.cell(self.states[f.acc])} += {self._times(f.lift, total)};"]
            out.append("}")
        return out

    def _has_floor(self, f: Fold) -> bool:
        return self._in_register(self.states[f.acc]) and isinstance(f.lift, Load)

    def _in_register(self, s: State) -> bool:
        """A list of the best that one register holds."""
        return 0 < s.k <= self.names.k.lanes > 1

    def _list(self, s: State) -> tuple[str, str]:
        """Addresses of the list of a row: the values, the positions."""
        name, at = self.names.get("acc", s.name), state_at(self.names, State(s.name, s.op, s.row, k=s.k), self.phase, self.at)
        return f"{name} + {at}", f"{name}_at + {at}"

    def _floor_lines(self, s: Sweep) -> list[str]:
        """The first tile of a list of the k <= LANES best: each lane has an element at its maximum, so the least of these maxima
        has as many elements above or at it as there are lanes, and what lies below it is on no list."""
        var, total, out = self.names.var(self.phase.stream), self.counts[self.phase.stream], []
        for f in (f for f in s.folds if f.acc in self.floors):
            scope, name = Scope(frozenset(), []), self.floors[f.acc]
            with self.bind(self.phase.stream, Place(self.at[self.phase.stream].start, var)):
                value = self.elements(self.phase.stream, [scope]).value(f.lift)
            out += [f"V {name} = set1(-RF_INF);", f"if ({self.first}) {{",
                    f"for (; {var} + LANES <= {total}; {var} += LANES) {{", *scope.lines, f"{name} = v_max_raw({name}, {value});", "}",
                    f"{var} = 0; {name} = set1(h_min({name}));", "}"]  # fmt: skip
        return out

    def _times(self, e: Expr, count: str) -> str:
        assert isinstance(e, Const)
        return f"(rf_real){count}" if e.value == 1 else f"{literal(float(e.value))} * (rf_real){count}"

    def _save_old(self, s: State) -> list[str]:
        return [f"{self.cell(s, '_old')} = {self.cell(s)};"] if s.keep and s.name not in self.rebased else []

    def _up_to_line(self, s: Sweep, pre: Scope, regs: list[list[str]]) -> list[str]:
        """The elements before the first whole cache line of the output, with a store of their own."""
        k, ((target, _),) = self.phase.stream, s.stores
        array = self.names.k.array(target)
        assert array is not None
        first, var = self.names.fresh("first"), self.names.var(k)
        at = self.address(array, array.dims, {**self.at, k: Place(self.at[k].start)})
        out = [f"const int64_t {first} = rf_min(rf_to_line({at}), {self.counts[k]});"]
        self._stream_step(replace(s, past_cache=False), pre, out, regs, 1, f"for (; {var} < {first}; {var} += LANES)", "m", first)
        return [*out, f"{var} = {first};"]

    def _stream_step(
        self, s: Sweep, pre: Scope, out: list[str], regs: list[list[str]], unroll: int, loop: str, mask: str, end: str = ""
    ) -> None:
        k, var = self.phase.stream, self.names.var(self.phase.stream)
        lines: list[str] = []
        for u in range(unroll):
            place = Place(self.at[k].start, f"({var} + {u} * LANES)" if u else var)
            el = Elements(self.names, self.phase, {**self.at, k: place}, k, [pre, Scope(frozenset((k,)), lines)], mask)
            for f, r in zip(s.folds, regs, strict=True):
                lines += self.fold(f, r[u], el, mask)
            for target, e in s.stores:
                lines.append(self.put(target, el.value(e), el, k, mask, s.past_cache))
            if s.prefetch and not mask and (unroll == 1 or u * self.names.k.vector_bytes % 64 == 0):
                lines[:0] = self._prefetch(s, el)
        out += [loop + " {", *([f"const M {mask} = tail({end or self.counts[k]} - {var});"] if mask else []), *lines, "}"]

    def _prefetch(self, s: Sweep, el: Elements) -> list[str]:
        """Touch lines ahead in arrays that run along the stream."""
        k, out = self.phase.stream, []
        for e in s.fetched:
            array = self.names.k.array(e.source)
            if array and k in e.axes and array.strides[e.dims.index(k)] == 1:
                at = self.address(array, e.dims, el.at)
                out.append(f"PREFETCH({at} + {s.prefetch});")
        return out

    def _sweep_rows(self, s: Sweep) -> list[str]:
        row, k = self.phase.row, self.phase.stream
        out: list[str] = []
        var, kv, total = self.names.var(row), self.names.var(k), self.counts[k]
        start, rows = self.at[row].start, self.row_total()
        out.append(f"int64_t {var} = 0;")
        for unroll in (s.unroll, 1) if s.unroll > 1 else (1,):
            masked = unroll == 1
            test = f"{var} < {rows}" if masked else f"{var} + {unroll} * LANES <= {rows}"
            pre, lines = Scope(frozenset((row,)), []), Scope(frozenset((k,)), [])
            begin: list[str] = [f"const M m = tail({rows} - {var});"] if masked else []
            end: list[str] = []
            for u in range(unroll):
                place = Place(start, f"({var} + {u} * LANES)" if u else var)
                own = {row: place, k: Place(self.at[k].start, kv)}
                pre_u = Scope(pre.axes, pre.lines)
                el = Elements(
                    self.names, self.phase, {**self.at, **own}, row, [pre_u, Scope(frozenset((k,)), lines.lines)], "m" if masked else ""
                )
                guard = self._row_guard(s.guard, el, begin)
                with self.bind(row, place):
                    for f in s.folds:
                        r = self.names.fresh("a")
                        begin += self.load_state(f, r, el)
                        lines.lines += self.fold(f, r, el, guard)
                        end += self.save_state(f, r, el)
                    for target, e in s.stores:
                        value = f"keep({guard}, {el.value(e)})" if guard else el.value(e)
                        lines.lines.append(self.put(target, value, el, row, "m" if masked else ""))
            out.append(f"for (; {test}; {var} += {unroll} * LANES) {{")
            out += [*begin, *pre.lines, f"for (int64_t {kv} = 0; {kv} < {total}; {kv}++) {{", *lines.lines, "}", *end, "}"]
        return ["{", *out, "}"]

    def _row_guard(self, guard: tuple[str, ...], el: Elements, begin: list[str]) -> str:
        if not guard:
            return ""
        tests = [f"m_eq({el.state(self.states[n])}, set1({literal(MONOIDS[self.states[n].op].identity)}))" for n in guard]
        text = tests[0]
        for t in tests[1:]:
            text = f"m_and({text}, {t})"
        name = self.names.fresh("g")
        begin.append(f"const M {name} = m_not({text});")
        return name

    # ---- folds
    def fold(self, f: Fold, reg: str, el: Elements, mask: str) -> list[str]:
        """Lines that fold the lift, where `mask` is set, into the register `reg` (and its position into reg_at)."""
        state = self.states[f.acc]
        kind = MONOIDS[f.op].state
        v = el.value(f.lift)
        if kind == "value":
            if f.op == "sum":
                product = self._product(f.lift, el) if not mask else None
                return [
                    f"{reg} = v_fma({product[0]}, {product[1]}, {reg});"
                    if product
                    else f"{reg} = {reg} + {f'keep({mask}, {v})' if mask else v};"
                ]
            new = combine(f.op, reg, v, f.loose)
            return [f"{reg} = sel({mask}, {new}, {reg});" if mask else f"{reg} = {new};"]
        index = el.value(Index(self.phase.stream))
        best = MONOIDS[f.op].best
        m = self.names.fresh("m")
        if kind == "top":
            best_at, at = self._list(state)
            if not self._in_register(state):
                hit = f"(({at})[{state.k - 1}] < 0 ? m_all() : m_not(m_le({v}, set1(({best_at})[{state.k - 1}]))))"
                hit = f"m_and({mask}, {hit})" if mask else hit
                return [f"const M {m} = {hit};", f"if (m_any({m})) top_insert({best_at}, {at}, {state.k}, {v}, {index}, {m});"]
            hit = f"m_not(m_le({v}, {reg}_last))"
            hit = f"m_and({hit}, m_not(m_lt({v}, {self.floors[f.acc]})))" if f.acc in self.floors else hit
            hit = f"m_and({mask}, {hit})" if mask else hit
            return [f"const M {m} = {hit};",
                    f"if ({self.first} || m_any({m})) {reg}_n = top_found({reg}, {reg}_at, {reg}_n, {v}, {index}, {m});",
                    f"if ({reg}_n >= TOP_FOUND) {{ {self._insert_found(state, reg)} }}"]  # fmt: skip
        better = improves(best, v, reg)
        better = f"m_and({mask}, {better})" if mask else better
        return [f"const M {m} = {better};", f"{reg} = sel({m}, {v}, {reg}); {reg}_at = sel({m}, {index}, {reg}_at);"]

    def _product(self, e: Expr, el: Elements) -> tuple[str, str] | None:
        if isinstance(e, Map) and e.op == "mul" and e.dtype != bool:
            return el.value(e.args[0]), el.value(e.args[1])
        if isinstance(e, Map) and e.op == "square":
            x = el.value(e.args[0])
            return x, x
        return None

    def _insert_found(self, s: State, reg: str) -> str:
        """The candidates into the list."""
        best, at = self._list(s)
        return f"top_insert_lanes({best}, {at}, {s.k}, {reg}, {reg}_at, {reg}_n); {reg}_n = 0;"

    def _open(self, folds: tuple[Fold, ...], regs: list[list[str]]) -> list[str]:
        out = []
        for f, rs in zip(folds, regs, strict=True):
            s = self.states[f.acc]
            if self._in_register(s):
                best, at = self._list(s)
                size = "TOP_FOUND + 2 * LANES"
                out += [f"rf_real {rs[0]}[{size}], {rs[0]}_at[{size}]; int64_t {rs[0]}_n = 0;",
                        f"const V {rs[0]}_last = set1(({at})[{s.k - 1}] < 0 ? RF_NAN : ({best})[{s.k - 1}]);"]  # fmt: skip
            if s.k:
                continue
            for r in rs:
                out.append(
                    f"V {r} = set1({literal(MONOIDS[f.op].identity)});" + (f" V {r}_at = set1(0);" if self.states[f.acc].indexed else "")
                )
        return out

    def _close(self, f: Fold, regs: list[str]) -> list[str]:
        """Fold the lanes into the row's state."""
        s = self.states[f.acc]
        out = self._save_old(s)
        if s.k:
            return [*out, self._insert_found(s, regs[0])] if self._in_register(s) else out
        if s.indexed:
            which = "max" if MONOIDS[f.op].best > 0 else "min"
            return out + [f"pair_fold_{which}(&{self.cell(s)}, &{self.cell(s, '_at')}, {r}, {r}_at);" for r in regs]
        while len(regs) > 1:
            pairs = [combine(f.op, a, b) for a, b in zip(regs[::2], regs[1::2], strict=False)]
            regs = [f"({p})" for p in pairs] + ([regs[-1]] if len(regs) % 2 else [])
        total = f"{HORIZONTAL[f.op]}({regs[0]})"
        if f.op in ("sum", "prod"):
            return [*out, f"{self.cell(s)} {'+' if f.op == 'sum' else '*'}= {total};"]
        return [*out, f"{self.cell(s)} = lane0({combine(f.op, f'set1({self.cell(s)})', f'set1({total})')});"]

    def load_state(self, f: Fold, reg: str, el: Elements, keep: bool = True) -> list[str]:
        s = self.states[f.acc]
        if s.k:
            raise IRError(f"{f.acc!r}: a list of the {s.k} best needs lanes along the stream")
        out = [f"V {reg} = {el.state(s)};"]
        if keep and s.keep and s.name not in self.rebased:
            out.append(f"st_real(&{self.cell(s, '_old')}, {reg});")
        return out + ([f"V {reg}_at = {el.state(s, '_at')};"] if s.indexed else [])

    def save_state(self, f: Fold, reg: str, el: Elements) -> list[str]:
        s = self.states[f.acc]
        return [self.set_state(s, reg, el), *([self.set_state(s, f"{reg}_at", el, "_at")] if s.indexed else [])]

    def set_state(self, s: State, value: str, el: Elements, suffix: str = "") -> str:
        """Assign a vector to the state's element at el's place."""
        at = f"{self.names.get('acc', s.name)}{suffix} + {state_at(self.names, s, self.phase, el.at)}"
        along = el.lane and ((s.row and el.lane == self.phase.row) or el.lane in s.columns)
        if not along:
            return f"*({at}) = lane0({value});"
        if contiguous(s, self.phase, el.lane):
            return f"st_real({at}, {value});"
        return f"sts_real({at}, {row_step(self.names, s)}, {el.mask or 'm_all()'}, {value});"

    # ---- memory
    def address(self, a: Array, dims: tuple[str, ...], at: dict[str, Place]) -> str:
        """C text of an element's address in an argument that is read over these axes."""
        parts = [self.names.array(a)]
        for d, axis in enumerate(dims):
            step = self.names.stride(a, d)
            if step != "0" and at[axis].whole != "0":
                parts.append(at[axis].whole if step == "1" else f"{at[axis].whole} * {step}")
        return " + ".join(parts)

    def put(self, target: str, value: str, el: Elements, lane: str, mask: str, past_cache: bool = False) -> str:
        """Store a vector along `lane` into an array or a buffer (a single element when lane is "")."""
        array = self.names.k.array(target)
        if array is not None:
            at, tag = self.address(array, array.dims, el.at), array.dtype
            step = self.names.stride(array, array.dims.index(lane)) if lane in array.dims else ""
        else:
            b = self.names.k.buffer(target)
            if b is None:
                raise IRError(f"nothing in the kernel is called {target!r}")
            tag, parts = b.dtype or "real", [self.names.get("buf", b.name)]
            for d, axis in enumerate(b.dims):
                where = el.at[axis].whole if b.counts_whole(axis) else el.at[axis].offset
                step = self.names.step(b, d)
                if where != "0":
                    parts.append(where if step == "1" else f"{where} * {step}")
            at = " + ".join(parts)
            step = self.names.step(b, b.dims.index(lane)) if lane in b.dims else ""
            mask = mask if b.shared else ""
        if not step:
            return f"put_{tag}({at}, lane0({value}));"
        if step == "1":
            if past_cache and not mask:
                return f"st_past({at}, {value});"
            return f"stm_{tag}({mask}, {at}, {value});" if mask else f"st_{tag}({at}, {value});"
        return f"sts_{tag}({at}, {step}, {mask or 'm_all()'}, {value});"


def wide(s: State) -> bool:
    """A running sum of one row at a time is held in double: a float32 one would lose a little at every tile, and a mean
    that moves at every tile would lose it again."""
    return s.op == "sum" and not (s.row or s.columns or s.k)


def unset_states(p: Phase) -> frozenset[str]:
    """Sums over columns that need no start value: a product is all that is ever added to them, once in each tile of one loop,
    so that the first tile can store where the others add."""
    if p.row_loop:
        return frozenset()
    found: dict[str, int] = {}
    for loop in (s for s in p.body if isinstance(s, Loop) and s.axis == p.stream):
        if not any(isinstance(s, (Skip, Absent)) for s in loop.body):
            found |= {s.dst: id(s) for s in loop.body if isinstance(s, Contract) and s.start == "state"}
    for s in statements(p.body):
        written = {s.dst} if isinstance(s, Contract) and found.get(s.dst) != id(s) else set[str]()
        written |= {s.fold.acc} if isinstance(s, Columns) else set()
        written |= {n for n, _ in s.items} if isinstance(s, (Rebase, ColumnRebase)) else set()
        written |= {n for n, _ in s.extra} if isinstance(s, Contract) else set()
        for n in written:
            found.pop(n, None)
    return frozenset(found)


def state_arrays(s: State) -> Iterator[tuple[str, str]]:
    """(suffix, initial value) of the arrays that hold a state."""
    identity = literal(MONOIDS[s.op].identity)
    yield "", identity
    if s.keep:
        yield "_old", identity
    if s.indexed:
        yield "_at", "-1" if s.k else "0"
