"""Parts of a block: groups of warps that take different tiles of the stream, each with states of its own.

With few rows a block has few warps along them, too few to keep memory busy. When the stream ends the states of the parts are
merged, in their order, by the derived merge that segments have too, through the shared memory that held the tiles.
"""

from __future__ import annotations

from redfuser_eq.expr import Const, Expr, Prev, transform

from .c_expr import Place, Scope
from .cuda_expr import CudaNames, Values
from .cuda_fragment_state import FragmentStates
from .kernel import Finish, Phase, State


class PartStates(FragmentStates):
    """Prints the end of the parts. shared: bytes of dynamic shared memory. The first part holds the merged states."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.shared = self.fragments = 0

    def values(self, scopes: list[Scope], mode: str = "lift", at: dict[str, Place] | None = None) -> Values:
        return self.elements(scopes, mode)

    def do_finish(self, s: Finish) -> list[str]:
        return self._unite(s) if s.parts else super().do_finish(s)

    def _unite(self, s: Finish) -> list[str]:
        items = [x for level in s.levels for x in level]
        rows = [(self.states[n], e) for n, e in items if not self.states[n].columns]
        columns = [(self.states[n], e) for n, e in items if self.states[n].columns]
        out = ["__syncthreads();", *self._publish(rows, columns), "__syncthreads();", "if (part == 0) {"]
        levels = (tuple((x.name, e) for x, e in rows),)
        merged = self.merge(levels, self._part, f"for (int g = 0; g < {self.place.parts}; g++)")
        out += self.over_rows(merged) if rows else []
        first = 0
        for x, e in columns:
            out += self._unite_columns(x, e, first)
            first += self._blocks(x)
        self.united = True
        return [*out, "}"]

    def _part(self, s: State, suffix: str) -> str:
        return f"{self._name(s, suffix)}[g][{self.row_at}]"

    def _name(self, s: State, suffix: str) -> str:
        return f"part_{self.names.get('acc', s.name)}{suffix}"

    def _blocks(self, s: State) -> int:
        """Fragments of eight columns that a thread has of a state."""
        return self.place.fragments * self.column_blocks(s.columns[0])

    def _publish(self, rows: list[tuple[State, Expr | None]], columns: list[tuple[State, Expr | None]]) -> list[str]:
        """Every part's row states, and the columns of all but the first part, whose registers take the sum."""
        p, threads = self.place, 32 * self.bands
        out: list[str] = []
        puts: list[str] = []
        for x, _ in rows:
            size, each, k = (f"[{x.k}]", f"UNROLL for (int k = 0; k < {x.k}; k++) ", "[k]") if x.k else ("", "", "")
            for suffix in ("", "_at") if x.indexed else ("",):
                out.append(f"__shared__ float {self._name(x, suffix)}[{p.parts}][{16 * p.fragments * self.bands}]{size};")
                puts.append(f"{each}{self._name(x, suffix)}[part][{self.row_at}]{k} = {self.cell(x, suffix)}{k};")
        out += self.over_rows(["if (lane % 4 == 0) {", *puts, "}"]) if puts else []
        total = sum(self._blocks(x) for x, _ in columns)
        if not total:
            return out
        self.shared = max(self.shared, (p.parts - 1) * total * threads * 16)
        out += ["float4 *const columns = (float4 *)dynamic;", "if (part > 0) {"]
        first = 0
        for x, _ in columns:
            acc, blocks = self.names.get("acc", x.name), self.column_blocks(x.columns[0])
            at = f"((part - 1) * {total} + {first} + m * {blocks} + n) * {threads} + band * 32 + lane"
            out.append(f"UNROLL for (int m = 0; m < {p.fragments}; m++) UNROLL for (int n = 0; n < {blocks}; n++) columns[{at}] = "
                       f"make_float4({', '.join(f'{acc}[m][n][{e}]' for e in range(4))});")  # fmt: skip
            first += self._blocks(x)
        self.fragments = total
        return [*out, "}"]

    def _unite_columns(self, s: State, rebase: Expr | None, first: int) -> list[str]:
        """A sum of the parts' columns, each times the row factor that its rebase is."""
        acc, blocks, m = self.names.get("acc", s.name), self.column_blocks(s.columns[0]), self.place.fragments
        name = self.names.fresh("factor")
        factors = self._factors(s, rebase, name)
        each = f"UNROLL for (int m = 0; m < {m}; m++) UNROLL for (int n = 0; n < {blocks}; n++) {{"
        own = [f"acc[{e}] *= {name}[m * 2 + {e // 2}];" for e in range(4)]
        at = f"((g - 1) * {self.fragments} + {first} + m * {blocks} + n) * {32 * self.bands} + band * 32 + lane"
        times = [f" * {name}[m * 2 + {e // 2}]" if factors else "" for e in range(4)]
        adds = [f"acc[{e}] += v.{'xyzw'[e]}{times[e]};" for e in range(4)]
        head = f"float (&acc)[4] = {acc}[m][n];"
        out = ["{", "const int g = 0;", *factors, each, head, *own, "}", "}"] if factors else []
        return [*out, f"for (int g = 1; g < {self.place.parts}; g++) {{", *factors, each, head, f"const float4 v = columns[{at}];",
                *adds, "}", "}"]  # fmt: skip

    def _factors(self, s: State, rebase: Expr | None, name: str) -> list[str]:
        """What moves part g of a row to the merged parameters: the rebase of 1."""
        if rebase is None:
            return []
        one = transform(rebase, lambda x: Const(1.0, x.dtype) if isinstance(x, Prev) and x.name == s.name else None)
        scope = Scope(frozenset(), [])
        el = self.values([scope], "rebase")
        el.parts = {x.name: self._part(x, "") for x in self.states.values() if not x.columns and not x.indexed}
        value = el.value(one)
        unset = self._unset(s, rebase, self._part)
        put = f"{name}[h] = {f'{unset} ? 0.0f : ' if unset else ''}{value};"
        return [f"float {name}[{self.rows}];", *self.over_rows([*scope.lines, put])]
