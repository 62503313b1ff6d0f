"""Kernel -> C11 with vector extensions. The text follows `prelude.h`, which defines the vectors; no decision is taken here."""

from __future__ import annotations

import math
import re

from redfuser_eq.errors import IRError

from .c_contract import ContractStatements
from .c_expr import Names, Place, identifier
from .c_tile import HELPERS, state_arrays, wide
from .kernel import SEGMENT, Buffer, Kernel, Loop, Phase, Skip, State, Stmt, Sweep, statements

SMALL = 2048  # elements of a state or buffer that lie on the stack

MORE = """\
RF_INLINE int64_t rf_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }
/* an extremum still at its identity: any finite value is as good in what is added to it, and -inf - -inf is not */
RF_INLINE V v_settle(V x) { return sel(m_eq(v_abs(x), set1(RF_INF)), set1(0), x); }
"""


def emit(kernel: Kernel) -> str:
    """The C text of a kernel, to be placed after the prelude.

    It exports `int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads)`: n holds
    `kernel.args`, out has the row flags last when there are any, and the result is 0, or 1 when memory ran out."""
    return _Printer(kernel).program()


class _PhasePrinter(ContractStatements):
    """One phase: the function that does one item."""

    def __init__(self, names: Names, phase: Phase, number: int):
        super().__init__(names, phase, {}, {})
        self.functions: list[str] = []
        self.name = f"phase_{number}_{identifier(phase.name)}"

    def block(self, body: tuple[Stmt, ...]) -> list[str]:
        out: list[str] = []
        for s in body:
            out += getattr(self, "do_" + type(s).__name__.lower())(s)
        return out

    def do_loop(self, s: Loop) -> list[str]:
        start, n = self.names.start(s.axis), self.names.count(s.axis)
        cut = any(g.axis == SEGMENT for g in self.phase.grid) and s.axis == self.phase.stream
        lo, hi = ("segment_from", "segment_to") if cut else ("0", self.names.extent(s.axis))
        at, counts, test = dict(self.at), dict(self.counts), (self.cut, self.ready)
        if s.axis == self.phase.stream:
            self.first = f"({start} == {lo})"
        self.at[s.axis], self.counts[s.axis] = Place(start), n
        body = self.block(s.body)
        self.at, self.counts, (self.cut, self.ready) = at, counts, test
        head = f"for (int64_t {start} = {lo}; {start} < {hi}; {start} += {s.step}) {{"
        return [head, f"const int64_t {n} = rf_min({s.step}, {hi} - {start});", *body, "}"]

    def do_skip(self, s: Skip) -> list[str]:
        """The corners of the tile: an affine bound is largest and smallest there."""
        none, some = [], []
        for b in s.bounds:
            low, high = [str(b.constant)], [str(b.constant)]
            for axis, factor in b.terms:
                first = self.at[axis].start
                ends = (
                    f"{factor} * {first}",
                    f"{factor} * ({first} + {self.counts[axis]} - 1)" if axis in self.counts else f"{factor} * {first}",
                )
                low.append(ends[factor < 0])
                high.append(ends[factor > 0])
            none.append(f"{' + '.join(high)} < 0")
            some.append(f"{' + '.join(low)} < 0")
        if s.summary:
            none.append(f"{self.summary_cell(s.summary, s.tiles)} == 0")
            some.append(f"{self.summary_cell(s.summary, s.tiles)} != 2")
        self.cut = self.names.fresh("cut")
        ready = "".join(f" && {self.names.get('buf', f)}[0] != 0" for f in s.finite)
        self.ready = f"({self.cut}{ready})"
        return [f"if (({' || '.join(none)}){ready}) continue;", f"const int {self.cut} = {' || '.join(some)};"]

    # ---- one item
    def function(self) -> str:
        body = [*self._places(), *self._states(), *self.block(self.phase.body)]
        if any(isinstance(s, Sweep) and s.past_cache for s in statements(self.phase.body)):
            body.append("rf_past_done();")
        text = "\n".join(body)
        laws = [f"  /* {_comment(x)} */" for x in self.phase.laws]
        head = [f"static void {self.name}(void *ctx_, int64_t item, int worker) {{", *laws]
        head += ["const struct context *ctx = (const struct context *)ctx_;", "(void)item; (void)worker;"]
        return "\n".join([*head, *self._unpack(text), text, "}"])

    def _places(self) -> list[str]:
        """Which tile an item is: the grid axes, the last one fastest."""
        out = ["int64_t rest = item; (void)rest;"] if self.phase.grid else []
        for g in reversed(self.phase.grid):
            if g.axis == SEGMENT:
                index, n = self.names.var(SEGMENT), self.names.extent(self.phase.stream)
                out += [f"const int64_t {index} = rest % {self.names.extent(SEGMENT)}; rest /= {self.names.extent(SEGMENT)};",
                        f"const int64_t segment_from = {index} * {g.step}, segment_to = rf_min({n}, segment_from + {g.step});"]  # fmt: skip
                self.at[SEGMENT] = Place(index)
                continue
            start, n = self.names.start(g.axis), self.names.extent(g.axis)
            blocks = n if g.step == 1 else f"(({n} + {g.step - 1}) / {g.step})"
            out.append(f"const int64_t {start} = rest % {blocks}{'' if g.step == 1 else f' * {g.step}'}; rest /= {blocks};")
            self.at[g.axis] = Place(start)
            if g.step > 1:
                out.append(f"const int64_t {self.names.count(g.axis)} = rf_min({g.step}, {n} - {start});")
                self.counts[g.axis] = self.names.count(g.axis)
        return out

    def _states(self) -> list[str]:
        out = []
        for s in self.phase.states:
            size = state_size(self.names, s, self.phase)
            name = self.names.get("acc", s.name)
            for suffix, start in state_arrays(s):
                if size.isdigit() and int(size) <= SMALL:
                    out.append(f"{'double' if wide(s) else 'rf_real'} {name}{suffix}[{size}] __attribute__((aligned(64)));")
                else:
                    out.append(f"rf_real *{name}{suffix} = work + ctx->{self.names.get('off', s.name)}{suffix};")
                if s.name not in self.unset:
                    out.append(f"for (int64_t t = 0; t < {size}; t++) {name}{suffix}[t] = {start};")
        return out

    def _unpack(self, text: str) -> list[str]:
        """Only the members of the context that the text uses."""
        used = set(re.findall(r"\w+", text))
        out = [f"{t} const {n} = ctx->{n};" for t, n in context_members(self.names, self.names.k) if n in used]
        own = [b for b in self.names.k.buffers if not b.shared and self.names.get("buf", b.name) in used]
        if own or "work" in used:
            out.append("rf_real *const work = ctx->work + worker * ctx->work_size;")
        for b in own:
            t, at = self.names.element(b), f"work + ctx->{self.names.get('off', b.name)}"
            out.append(f"{t} *const {self.names.get('buf', b.name)} = {f'({t} *)({at})' if b.dtype else at};")
        return out

    def context_functions(self) -> list[str]:
        """The functions the statements called for, each with the members of the context it reads."""
        out = []
        for text in self.functions:
            head, rest = text.split("\n", 1)
            used = set(re.findall(r"\w+", rest))
            inner = [f"{t} const {n} = ctx->{n};" for t, n in context_members(self.names, self.names.k) if n in used]
            out.append("\n".join([head, *inner, rest]))
        return out


def state_size(names: Names, s: State, phase: Phase) -> str:
    """C text of the number of elements of a state, with room for a vector past its end."""
    lanes = names.k.lanes
    rows: str = "1"
    if s.row:
        rows = (
            f"rf_up({names.extent(phase.row)}, {lanes})"
            if phase.row_loop
            else str(-(-phase.rows // lanes) * lanes if phase.rows > 1 else 1)
        )
    if s.columns:
        return f"{rows} * {names.get('acc', s.name)}_ld + {4 * lanes}"
    if s.k:
        return str(int(rows) * s.k + lanes) if rows.isdigit() else f"{rows} * {s.k} + {lanes}"
    return rows


def context_members(names: Names, k: Kernel) -> list[tuple[str, str]]:
    """(type, name) of everything a phase may read: sizes, strides, arrays, shared buffers."""
    out = [("int64_t", names.extent(a)) for a in (*k.extent_names, SEGMENT)]
    for a in (*k.inputs, *k.outputs):
        out.append((f"{a.dtype}_t *" if a in k.outputs else f"const {a.dtype}_t *", names.array(a)))
        out += [("int64_t", f"{names.array(a)}_s{d}") for d, s in enumerate(a.strides) if s is None]
    for b in k.buffers:
        name = names.get("buf", b.name)
        out += [(f"{names.element(b)} *", name)] if b.shared else []
        out += [("int64_t", f"{name}_s{d}") for d in range(len(b.dims) - 1) if names.step(b, d) == f"{name}_s{d}"]
    for p in k.phases:
        for s in p.states:
            if s.columns:
                acc = names.get("acc", s.name)
                out += [("int64_t", f"{acc}_ld"), *(("int64_t", f"{acc}_s{n}") for n in range(len(s.columns) - 1))]
    if k.flag_axes is not None:
        out.append(("uint8_t *", "flags"))
    return list(dict.fromkeys(out))


class _Printer:
    def __init__(self, kernel: Kernel):
        self.k, self.names = kernel, Names(kernel)
        for a in kernel.extent_names:
            self.names.extent(a)

    def program(self) -> str:
        printers = [_PhasePrinter(self.names, p, n) for n, p in enumerate(self.k.phases)]
        functions = [p.function() for p in printers]
        helpers = [f for p in printers for f in p.context_functions()]
        used = "\n".join([*functions, *helpers])
        element = 4 if self.k.real == "float" else 8
        head = [f"/* {_comment(self.k.name)}", *(f"   {_comment(n)}" for n in self.k.notes), "*/"]
        head += [f'_Static_assert(LANES == {self.k.lanes} && sizeof(rf_real) == {element}, "built for another target");']
        more = HELPERS if "pair_fold_" in used or "top_insert" in used else ""
        return "\n".join([*head, MORE + more, self._context(), indent([*helpers, *functions]), indent([self._main(printers)])]) + "\n"

    def _offsets(self) -> list[tuple[str, str]]:
        """(member, size) of what lies in a worker's scratch."""
        out = [(self.names.get("off", b.name), buffer_size(self.names, b)) for b in self.k.buffers if not b.shared]
        for p in self.k.phases:
            for s in p.states:
                size = state_size(self.names, s, p)
                if not (size.isdigit() and int(size) <= SMALL):
                    out += [(self.names.get("off", s.name) + suffix, size) for suffix, _ in state_arrays(s)]
        return list(dict.fromkeys(out))

    def _context(self) -> str:
        members = [f"  {t} {n};" for t, n in context_members(self.names, self.k)]
        offsets = [f"  int64_t {n};" for n, _ in self._offsets()]
        return "\n".join(["struct context {", *members, *offsets, "  rf_real *work; int64_t work_size;", "};", ""])

    def _main(self, printers: list[_PhasePrinter]) -> str:
        k, n = self.k, self.names
        out = ["RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads) {",
               "struct context c; struct context *ctx = &c; if (threads < 1) threads = 1; (void)in; (void)out; (void)n;"]  # fmt: skip
        for i, (kind, *where) in enumerate(k.args):
            if kind == "extent":
                out.append(f"const int64_t {n.extent(where[0])} = ctx->{n.extent(where[0])} = n[{i}]; (void){n.extent(where[0])};")
            else:
                arrays = {a.name: a for a in k.inputs} if kind == "in_stride" else dict(enumerate(k.outputs))
                a = arrays[where[0]]
                if a.strides[where[1]] is None:
                    out.append(f"ctx->{n.array(a)}_s{where[1]} = n[{i}];")
        out += [f"ctx->{n.array(a)} = ({a.dtype}_t *)in[{i}];" for i, a in enumerate(k.inputs)]
        out += [f"ctx->{n.array(a)} = ({a.dtype}_t *)out[{i}];" for i, a in enumerate(k.outputs)]
        out += self._sizes()
        if k.flag_axes is not None:
            out.append(f"ctx->flags = (uint8_t *)out[{len(k.outputs)}];")
            out.append(f"memset(ctx->flags, 0, (size_t)({' * '.join(n.extent(a) for a in k.flag_axes) or '1'}));")
        for p in printers:
            out.append(f"rf_parallel({p.name}, ctx, {self._items(p.phase)}, threads, {int(p.phase.shared_counter)});")
        return "\n".join([*out, "rf_free(shared); rf_free(ctx->work);", "return 0;", "}"])

    def _sizes(self) -> list[str]:
        """Segments, strides of the buffers, and the two blocks of scratch: the launch's and the workers'."""
        n, out = self.names, []
        segment = n.extent(SEGMENT)
        steps = {(p.stream, g.step) for p in self.k.phases for g in p.grid if g.axis == SEGMENT}
        if len(steps) > 1:
            raise IRError(f"kernel {self.k.name!r}: segments of two kinds: {sorted(steps)}")
        for stream, step in steps:
            out.append(f"const int64_t {segment} = ctx->{segment} = rf_max(1, ({n.extent(stream)} + {step - 1}) / {step});")
        if not steps:
            out.append(f"const int64_t {segment} = ctx->{segment} = 1; (void){segment};")
        for b in self.k.buffers:
            name = n.get("buf", b.name)
            for d in range(len(b.dims) - 1):
                if n.step(b, d) == f"{name}_s{d}":
                    out.append(f"ctx->{name}_s{d} = {' * '.join(f'({n.size(s)})' for s in b.sizes[d + 1 :])};")
        out += dict.fromkeys(line for p in self.k.phases for s in p.states for line in self._state_sizes(s))
        out.append("int64_t size = 0, work = 0; (void)work;")
        shared = [b for b in self.k.buffers if b.shared]
        out += [f"const int64_t at_{n.get('buf', b.name)} = size; size += rf_up({buffer_size(n, b)}, 16) + 16;" for b in shared]
        for member, size in self._offsets():
            out.append(f"ctx->{member} = work; work += rf_up({size}, 16) + 16;")
        out += ["work = rf_up(work, 1024) + 16; ctx->work_size = work;",
                "rf_real *shared = (rf_real *)rf_alloc((size_t)size * sizeof(rf_real) + 64);",
                "ctx->work = (rf_real *)rf_alloc((size_t)(work * threads) * sizeof(rf_real) + 64);",
                "if (!shared || !ctx->work) { rf_free(shared); rf_free(ctx->work); return 1; }"]  # fmt: skip
        for b in shared:
            at = f"shared + at_{n.get('buf', b.name)}"
            out.append(f"ctx->{n.get('buf', b.name)} = {f'({n.element(b)} *)({at})' if b.dtype else at};")
        out += [f"ctx->{n.get('buf', b.name)}[0] = 1;" for b in shared if not b.dims]
        return out

    def _state_sizes(self, s: State) -> list[str]:
        if not s.columns:
            return []
        name, n = self.names.get("acc", s.name), self.names
        last = f"rf_up({n.extent(s.columns[-1])}, {4 * self.k.lanes})"
        out = []
        for d in range(len(s.columns) - 1):
            inner = [n.extent(c) for c in s.columns[d + 1 : -1]]
            out.append(f"ctx->{name}_s{d} = {' * '.join([*inner, last])};")
        total = " * ".join([*(n.extent(c) for c in s.columns[:-1]), last])
        return [*out, f"const int64_t {name}_ld = ctx->{name}_ld = ({total}) + (({total}) % 512 == 0 ? {2 * self.k.lanes} : 0);"]

    def _items(self, p: Phase) -> str:
        parts = []
        for g in p.grid:
            n = self.names.extent(g.axis)
            parts.append(n if g.step == 1 or g.axis == SEGMENT else f"(({n} + {g.step - 1}) / {g.step})")
        return " * ".join(parts) or "1"


def buffer_size(names: Names, b: Buffer) -> str:
    """C text of a buffer's size in numbers of the compute type, with room for a vector past its end."""
    per = (2 if names.k.real == "float" else 4) if b.dtype else 1
    if all(not s.axis for s in b.sizes):
        return str(math.prod(-(-s.value // s.multiple) * s.multiple + s.pad for s in b.sizes) // per + names.k.lanes)
    elements = " * ".join(f"({names.size(s)})" for s in b.sizes)
    return f"{f'({elements}) / {per}' if b.dtype else elements} + {names.k.lanes}"


def _comment(text: str) -> str:
    """Text that cannot end a comment."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def indent(blocks: list[str]) -> str:
    """Two spaces a brace."""
    out, depth = [], 0
    for line in "\n".join(blocks).split("\n"):
        out.append("  " * (depth - line.startswith("}")) + line)
        depth += line.count("{") - line.count("}")
    return "\n".join(out)
