"""Element-wise expressions as CUDA: one number a thread.

Placement is that of `c_expr`: a node is printed once, at the outermost loop in which all of its axes are bound. Values are of
the compute type `real`, truth values are `bool`. Products are never contracted with sums (`times`), so that an expression has
one value wherever it is computed: the score that a maximum saw is the score it is subtracted from, and the factor of a rebase
whose parameters did not move is exactly 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Const, Expr, Index, Load, Map, Prev, Reduce
from redfuser_eq.ops import MONOIDS, OPS

from .c_expr import Elements, Names, Place, Scope, _offsets
from .kernel import ROW, Buffer, Phase, Size, State
from .launch import size_of

TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "u16",
    "bf16": "u16",
    "e4m3": "u8",
    "e5m2": "u8",
    "i8": "signed char",
    "u8": "u8",
    "b8": "u8",
    "i16": "short",
    "u16": "u16",
    "i32": "int",
    "u32": "u32",
    "i64": "i64",
    "u64": "u64",
}  # the element type that each dtype tag has in memory
CALLS = {
    "mul": "times({0}, {1})",
    "square": "times({0}, {0})",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "sign": "sign_of({0})",
    "remainder": "remainder_of({0}, {1})",
    "isfinite": "finite({0})",
    "div": "divide({0}, divisor({1}))",
    "recip": "divide((real)1, divisor({0}))",
    "rsqrt": "divide((real)1, divisor(sqrt({0})))",
    "floor_divide": "floor(divide({0}, divisor({1})))",
    "logical_not": "!{0}",
    "logical_xor": "{0} != {1}",
}  # what the table's C spelling does not say for a vector of one
TRUTH = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}


def literal(x: float) -> str:
    """A number of the compute type."""
    x = float(x)
    if math.isnan(x):
        return "(real)NOT_A_NUMBER"
    if math.isinf(x):
        return "(real)INF" if x > 0 else "(real)-INF"
    return f"(real){x!r}" if x >= 0 and math.copysign(1, x) > 0 else f"(real)({x!r})"


class CudaNames(Names):
    """Identifiers of a kernel, and sizes as CUDA. where: print the program so that it changes flagged rows only, which are those
    of these axes (None: all rows); its accumulators are then read as they are."""

    where: tuple[str, ...] | None = None

    def extent(self, axis: str) -> str:
        return "1" if axis == ROW else super().extent(axis)

    def size(self, s: Size) -> str:
        base = self.extent(s.axis) if s.axis else str(s.value)
        base = f"(({base} + {s.divide - 1}) / {s.divide})" if s.divide > 1 else base
        base = f"(({base} + {s.multiple - 1}) / {s.multiple} * {s.multiple})" if s.multiple > 1 else base
        return f"({base} + {s.pad})" if s.pad else base

    def step(self, b: Buffer, dim: int) -> str:
        """Stride of a buffer's dimension: a number, or the product of the sizes behind it."""
        tail = b.sizes[dim + 1 :]
        if all(not s.axis for s in tail):
            return str(math.prod(size_of(s, {}) for s in tail))
        return self.get("buf", b.name) + f"_s{dim}"

    def lies(self, name: str) -> tuple[tuple[str, ...], str, list[str], str] | None:
        """(axes, text of the address, strides, dtype tag) of an argument or of a launch's buffer."""
        array, b = self.k.array(name), self.k.buffer(name)
        if array is not None:
            return array.dims, self.array(array), [self.stride(array, d) for d in range(len(array.dims))], array.dtype
        if b is None or not b.shared:
            return None
        return b.dims, self.get("buf", name), [self.step(b, d) for d in range(len(b.dims))], b.dtype or "real"

    def steps_of(self, b: Buffer) -> list[tuple[str, str]]:
        """(name, text) of the strides that are not numbers."""
        out = []
        for d in range(len(b.dims)):
            name = self.step(b, d)
            if not name.isdigit():
                out.append((name, " * ".join(self.size(s) for s in b.sizes[d + 1 :])))
        return out


class Values(Elements):
    """Prints expressions in one place of a loop nest, see `c_expr.Elements`.

    cell(state, suffix, at): CUDA text of where a state's value lies, given the places of the axes. wide: states held in double.
    given: text of nodes that are already in registers. parts: text of the values of another partial state, read as `Prev`."""

    kinds = ("real", "bool")

    def __init__(
        self,
        names: CudaNames,
        phase: Phase,
        at: dict[str, Place],
        scopes: list[Scope],
        cell: Callable[[State, str, dict[str, Place]], str],
        wide: Callable[[State], bool],
        mode: str = "lift",
    ):
        super().__init__(names, phase, at, "", scopes, "", mode)
        self.cell, self.wide = cell, wide
        self.plain = names.where is not None
        self.divisors: dict[tuple[int, Expr], str] = {}

    def value(self, e: Expr) -> str:
        """Text of e as a number."""
        text = self._name(e)
        return f"(real){text}" if e.dtype.kind == "b" else text

    def mask_of(self, e: Expr) -> str:
        """Text of e as a truth value."""
        text = self._name(e)
        return text if e.dtype.kind == "b" else f"({text} != 0)"

    # ---- nodes
    def _const(self, e: Const) -> str:
        if e.dtype.kind == "b":
            return "true" if e.value else "false"
        return literal(e.value)

    def _text(self, e: Expr) -> str:
        if isinstance(e, Index):
            return f"(real)({self.at[e.axis].whole})"
        return super()._text(e)

    def _map(self, e: Map) -> str:
        truth = e.dtype.kind == "b"
        if truth and (e.op in TRUTH or e.op.startswith("logical")):
            op = TRUTH.get(e.op, e.op)
            return CALLS.get(op, OPS[op].c).format(*(self.mask_of(a) for a in e.args))
        if e.op == "where":
            c, a, b = e.args
            read = self.mask_of if truth else self.value
            return f"{self.mask_of(c)} ? {read(a)} : {read(b)}"
        if e.op == "div" and (hoisted := self._divisor(e.args[1], self._scope(e))):
            return f"divide({self.value(e.args[0])}, {hoisted})"
        text = CALLS.get(e.op, OPS[e.op].c).format(*(self.value(a) for a in e.args))
        return f"({text}) != 0" if truth and OPS[e.op].kind != "bool" else text

    def _divisor(self, e: Expr, here: Scope) -> str:
        """The name of a divisor that does not vary where it divides, prepared outside; else ""."""
        scope = self.scopes[0] if isinstance(e, Const) else self._scope(e)
        if scope is here:
            return ""
        key = id(scope), e
        if key not in self.divisors:
            value = self.value(e)
            self.divisors[key] = self.names.fresh("by")
            scope.lines.append(f"const auto {self.divisors[key]} = divisor({value});")
        return self.divisors[key]

    def element(self, e: Load) -> str:
        """Text of a load's element, not named."""
        return self._load(e)

    def _load(self, e: Load) -> str:
        if e.source in self.given_sources:
            return self.given_sources[e.source]
        base, steps, tag, local = self.memory(e)
        whole = [self.at[d].offset if local else self.at[d].whole for d in e.dims]
        at = " + ".join([base, *_offsets(list(zip(whole, steps, strict=True)))])
        text = f"*({at})" if tag == "real" else f"get_{tag}({at})"
        if e.dtype.kind == "b":
            return text if tag == "b8" else f"{text} != 0"
        return text if tag == "real" or (tag == "f32" and self.names.k.real == "float") else f"(real){text}"

    def memory(self, e: Load) -> tuple[str, list[str], str, bool]:
        """(base, stride of each dimension, dtype tag, whether coordinates count from the tile's start) of what a load reads."""
        array = self.names.k.array(e.source)
        if array is not None:
            return self.names.array(array), [self.names.stride(array, d) for d in range(len(e.dims))], array.dtype, False
        b = self.names.k.buffer(e.source)
        if b is None:
            raise IRError(f"nothing in the kernel is called {e.source!r}")
        return self.names.get("buf", b.name), [self.names.step(b, d) for d in range(len(e.dims))], b.dtype or "real", not b.shared

    def _reduce(self, e: Reduce) -> str:
        """A reduction inside an element: a loop in place."""
        scope, op = self._scope(e), MONOIDS[e.op]
        var, total = self.names.var(e.axis), self.names.fresh("r")
        pair = op.state == "pair"
        with self._inner(e.axis, Place("0", var)) as inner:
            body = self.value(e.body)
            if pair:
                at = f"(real){var}"
                inner.lines.append(f"if (ahead<{op.best}>({body}, {at}, {total}, {total}_at)) {total} = {body}, {total}_at = {at};")
            else:
                product = self.product(e.body) if e.op == "sum" else None
                inner.lines.append(f"{total} = fma({product[0]}, {product[1]}, {total});" if product else
                                   f"{total} = {combine(e.op, total, body)};")  # fmt: skip
        start = f"real {total} = {literal(op.identity)};"
        scope.lines.append(f"{start} real {total}_at = -1;" if pair else start)
        scope.lines += [f"for (i64 {var} = 0; {var} < {self.names.extent(e.axis)}; {var}++) {{", *inner.lines, "}"]
        result = f"{total}_at" if pair else total
        return f"{result} != 0" if e.dtype.kind == "b" else result

    def product(self, e: Expr) -> tuple[str, str] | None:
        """The two factors of a product that goes into a sum: one multiply-add."""
        if isinstance(e, Map) and e.op == "mul" and e.dtype.kind != "b":
            return self.value(e.args[0]), self.value(e.args[1])
        if isinstance(e, Map) and e.op == "square":
            x = self.value(e.args[0])
            return x, x
        return None

    # ---- accumulators
    def state(self, s: State, suffix: str = "") -> str:
        text = self.cell(s, suffix, self.at)
        return f"(real){text}" if self.wide(s) and suffix != "_at" else text

    def _acc(self, e: Acc) -> str:
        s = self.states[e.name]
        text = self.state(s, "_at" if e.field == "index" else "")
        if self.mode != "final" and s.op in ("max", "min") and e.field == "value" and not self.plain:
            text = f"settle({text})"
        return f"{text} != 0" if e.dtype.kind == "b" else text

    def _prev(self, e: Prev) -> str:
        s = self.states[e.name]
        part = self.parts.get(s.name)
        old = self.state(s, self.old_suffix(s)) if part is None else f"(real){part}" if self.wide(s) else part
        if s.op not in ("max", "min") or s.name in self.own:
            return f"{old} != 0" if e.dtype.kind == "b" else old
        return f"({old} == {literal(MONOIDS[s.op].identity)} ? settle({self.state(s)}) : {old})"


def combine(op: str, a: str, b: str) -> str:
    """Text of the monoid on two numbers."""
    if op == "sum":
        return f"{a} + {b}"
    if op == "prod":
        return f"times({a}, {b})"
    if op in ("any", "max"):
        return f"maximum({a}, {b})"
    if op in ("all", "min"):
        return f"minimum({a}, {b})"
    raise IRError(f"{op!r} does not combine two values")


GROUP = {"sum": "group_sum", "prod": "group_prod", "max": "group_max", "min": "group_min", "any": "group_max", "all": "group_min"}
