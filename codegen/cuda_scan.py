"""What is found out about operands once a launch, as CUDA: whether one is finite, and what a mask leaves of each tile."""

from __future__ import annotations

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Expr, Load

from .c_expr import Place, Scope
from .cuda_expr import CudaNames, Values
from .kernel import Phase, Scan, Summarise

CHUNKS = {"f16": 8, "bf16": 8, "f32": 4, "e4m3": 16}  # elements in 16 bytes


class ScanPrinter:
    """Prints a phase of one Scan or Summarise: a block does one point of the grid, its threads the elements."""

    shared = 0
    per_block = 1

    def __init__(self, names: CudaNames, phase: Phase):
        if phase.place is None:
            raise IRError(f"phase {phase.name!r} has no place on a GPU")
        self.names, self.phase, self.threads = names, phase, phase.place.threads
        self.at: dict[str, Place] = {}
        self.counts: dict[str, str] = {}

    def body(self) -> list[str]:
        out = ["u32 rest = blockIdx.x; (void)rest;"]
        for g in reversed(self.phase.grid):
            start, n = self.names.start(g.axis), f"(int){self.names.extent(g.axis)}"
            blocks = self.names.fresh("blocks")
            out.append(f"const u32 {blocks} = (u32)({n} + {g.step - 1}) / {g.step};")
            out.append(f"const int {start} = rest % {blocks} * {g.step}; rest /= {blocks};")
            self.at[g.axis] = Place(start)
            if g.step > 1:
                out.append(f"const int {self.names.count(g.axis)} = imin({g.step}, {n} - {start});")
                self.counts[g.axis] = self.names.count(g.axis)
        (s,) = self.phase.body
        if isinstance(s, Scan):
            return out + self._scan(s)
        if isinstance(s, Summarise):
            return out + self._summarise(s)
        raise IRError(f"phase {self.phase.name!r}: {type(s).__name__} is no scan")

    def _free(self, e: Expr) -> list[str]:
        """Axes that the block runs along."""
        return [a for a in sorted(e.axes) if a not in self.at or a in self.counts]

    def _total(self, axis: str) -> str:
        return self.counts.get(axis, f"(int){self.names.extent(axis)}")

    def _split(self, index: str, axes: list[str]) -> list[str]:
        """Where a flat index stands on each of the axes."""
        out = [f"int left = {index}; (void)left;"]
        for a in reversed(axes):
            v = self.names.var(a)
            out.append(f"const int {v} = left % {self._total(a)}; left /= {self._total(a)};")
            self.at[a] = Place(self.at[a].start if a in self.at else "0", v)
        return out

    def _scan(self, s: Scan) -> list[str]:
        """x * 0 is NaN exactly where x is not finite."""
        if not isinstance(s.expr, Load):
            raise IRError(f"phase {self.phase.name!r}: only an operand can be scanned")
        array = self.names.k.array(s.expr.source)
        assert array is not None
        chunk = CHUNKS.get(array.dtype, 1) if array.strides[s.expr.dims.index(s.lane)] == 1 else 1
        outer = [a for a in self._free(s.expr) if a != s.lane]
        rows = " * ".join([self._total(a) for a in outer]) or "1"
        start = self.at[s.lane].start if s.lane in self.at else "0"
        split = self._split("i / chunks", outer)
        self.at[s.lane] = Place(start, "first")
        base, steps, tag, _ = self._values().memory(s.expr)
        at = " + ".join([base, *(f"(i64){self.at[d].whole} * {st}" for d, st in zip(s.expr.dims, steps, strict=True) if st != "0")])
        stride = steps[s.expr.dims.index(s.lane)]
        n = self._total(s.lane)
        out = [f"const int chunks = ({n} + {chunk - 1}) / {chunk}, total = {rows} * chunks; float bad = 0.0f;",
               f"for (int i = threadIdx.x; i < total; i += {self.threads}) {{", *split,
               f"const int first = i % chunks * {chunk}, end = imin({chunk}, {n} - first); const auto *p = {at};"]  # fmt: skip
        one = f"for (int e = 0; e < end; e++) bad += (float)get_{tag}(p + e * {stride}) * 0.0f;"
        if chunk > 1:
            wide = f"float v[{chunk}]; chunk_{tag}<{chunk}>(v, p); UNROLL for (int e = 0; e < {chunk}; e++) bad += v[e] * 0.0f;"
            out += [f"if (end == {chunk} && ((i64)p & 15) == 0) {{ {wide} }} else {one}"]
        else:
            out.append(one)
        return [*out, "}", f"if (bad != 0.0f) {self.names.get('buf', s.flag)}[0] = 0;"]

    def _summarise(self, s: Summarise) -> list[str]:
        b = self.names.k.buffer(s.dst)
        assert b is not None
        cell = [f"{self.at[axis].start} / {step} * {self.names.step(b, d)}" for d, (axis, step) in enumerate(s.tiles)]
        axes = self._free(s.expr)
        total = " * ".join([self._total(a) for a in axes]) or "1"
        split = self._split("i", axes)
        scope = Scope(frozenset(), [])
        holds = self._values(scope).mask_of(s.expr)
        return [f"const int total = {total}; bool some = false, every = true;",
                f"for (int i = threadIdx.x; i < total; i += {self.threads}) {{", *split, *scope.lines,
                f"const bool on = {holds}; some |= on; every &= on;", "}",
                "some = __syncthreads_or(some); every = __syncthreads_and(every);",
                f"if (threadIdx.x == 0) {self.names.get('buf', s.dst)}[{' + '.join(cell) or '0'}] = some + (some && every);"]  # fmt: skip

    def _values(self, scope: Scope | None = None) -> Values:
        scopes = [scope or Scope(frozenset(), [])]
        return Values(self.names, self.phase, self.at, scopes, lambda s, suffix, at: "", lambda s: False)
