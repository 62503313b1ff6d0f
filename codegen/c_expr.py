"""Element-wise expressions as C on vectors.

A node is printed once, at the outermost loop in which all of its axes are bound, so what does not vary along a loop is
hoisted out of it. Every value is a vector `V` of the compute type, or a mask `M` when it is a truth value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Acc, Cast, Const, Expr, Index, Load, Map, Prev, Reduce, nodes
from redfuser_eq.ops import MONOIDS

from .dtypes import DTYPES
from .kernel import Array, Buffer, Kernel, Phase, Size, State, folds_of, statements

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
LOGIC = {"logical_and": "m_and", "logical_or": "m_or", "logical_xor": "m_xor", "logical_not": "m_not"}
BOOL_ARITHMETIC = {"add": "m_or", "mul": "m_and", "maximum": "m_or", "minimum": "m_and"}
SPELLING = {"round": "v_round"}


def literal(x: float) -> str:
    """A scalar of the compute type."""
    x = float(x)
    if math.isnan(x):
        return "RF_NAN"
    if math.isinf(x):
        return "RF_INF" if x > 0 else "-RF_INF"
    return (
        f"(rf_real){x.hex()}" if x != int(x) or abs(x) > 1e6 else f"(rf_real){int(x)}" if x or math.copysign(1, x) > 0 else "(rf_real)-0.0"
    )


def power_of_two(x: float) -> bool:
    """Whether 1 / x is exact and, like x, a normal number of either compute type."""
    return math.frexp(abs(x))[0] == 0.5 and 2.0**-126 <= abs(x) <= 2.0**126


def identifier(name: str) -> str:
    """The part of a name that C takes; what a user wrote never reaches the source as it is."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:24] or "v"


class Names:
    """Identifiers of a kernel: readable where the names are, always distinct, never a word of C (they carry a prefix)."""

    def __init__(self, kernel: Kernel):
        self.k = kernel
        self._ids: dict[tuple[str, str], str] = {}
        self._used: set[str] = set()
        self._count = 0

    def get(self, kind: str, name: str) -> str:
        """kind: "n" extent, "x" axis variable, "in", "out", "buf", "acc", "raw", "off" (place in a worker's scratch)."""
        key = (kind, name)
        if key not in self._ids:
            base = text = f"{kind}_{identifier(name)}"
            while text in self._used:
                self._count += 1
                text = f"{base}_{self._count}"
            self._used.add(text)
            self._ids[key] = text
        return self._ids[key]

    def fresh(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def extent(self, axis: str) -> str:
        return self.get("n", axis)

    def start(self, axis: str) -> str:
        return self.get("x", axis) + "_0"

    def count(self, axis: str) -> str:
        return self.get("x", axis) + "_c"

    def var(self, axis: str) -> str:
        return self.get("x", axis)

    def array(self, a: Array) -> str:
        return self.get("out" if a in self.k.outputs else "in", a.name)

    def stride(self, a: Array, dim: int) -> str:
        """C text of an argument's stride: a literal where the code depends on it."""
        known = a.strides[dim]
        return str(known) if known is not None else f"{self.array(a)}_s{dim}"

    def element(self, b: Buffer) -> str:
        """The C type of a buffer's elements."""
        return f"{b.dtype}_t" if b.dtype else "rf_real"

    def size(self, s: Size) -> str:
        base = self.extent(s.axis) if s.axis else str(s.value)
        if s.divide > 1:
            base = f"(({base} + {s.divide - 1}) / {s.divide})"
        if s.multiple > 1:
            base = f"rf_up({base}, {s.multiple})" if s.axis else str(-(-s.value // s.multiple) * s.multiple)
        return f"{base} + {s.pad}" if s.pad else base

    def step(self, b: Buffer, dim: int) -> str:
        """C text of a buffer's stride along a dimension."""
        if dim == len(b.dims) - 1:
            return "1"
        tail = b.sizes[dim + 1 :]
        if all(not s.axis for s in tail):
            return str(math.prod(-(-s.value // s.multiple) * s.multiple + s.pad for s in tail))
        return f"{self.get('buf', b.name)}_s{dim}"


@dataclass
class Place:
    """Where an axis stands: the element is at start + offset; worker buffers and states count from offset."""

    start: str
    offset: str = "0"

    @property
    def whole(self) -> str:
        return self.start if self.offset == "0" else self.offset if self.start == "0" else f"({self.start} + {self.offset})"


@dataclass
class Scope:
    """A loop being printed: its axes, the lines of its body, and the names given in it."""

    axes: frozenset[str]
    lines: list[str]
    names: dict[Expr, str] = field(default_factory=dict)


class Elements:
    """Prints expressions in one place of a loop nest.

    at: the place of each bound axis. lane: the axis that runs along the vector, or "". mask: C text of the lanes that may
    be loaded, or "" for all. mode: "lift" (an extremum still at its identity reads as 0), "rebase" (and so does the step
    from it), "final". given: C text of nodes that are already in registers. own: accumulators being moved, whose previous value
    is meant as it is. parts: the segment's states, in a merge.
    """

    kinds = ("V", "M")  # types of a value and of a truth value

    def __init__(
        self, names: Names, phase: Phase, at: dict[str, Place], lane: str, scopes: list[Scope], mask: str = "", mode: str = "lift"
    ):
        self.names, self.phase, self.at, self.lane, self.scopes, self.mask, self.mode = names, phase, at, lane, scopes, mask, mode
        self.states = {s.name: s for s in phase.states}
        self.given: dict[Expr, str] = {}
        self.given_sources: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.own: frozenset[str] = frozenset()

    # ---- public
    def value(self, e: Expr) -> str:
        """C text of e as a vector."""
        text = self._name(e)
        return f"m_to_v({text})" if _truth(e) else text

    def mask_of(self, e: Expr) -> str:
        """C text of e as a mask."""
        text = self._name(e)
        return text if _truth(e) else f"v_to_m({text})"

    # ---- placement
    def _find(self, e: Expr) -> str | None:
        if e in self.given:
            return self.given[e]
        for s in reversed(self.scopes):
            if e in s.names:
                return s.names[e]
        return None

    def _name(self, e: Expr) -> str:
        if isinstance(e, Const):
            return self._const(e)
        found = self._find(e)
        if found is not None:
            return found
        text = self._text(e)
        if text.isidentifier():
            return text
        scope = self._scope(e)
        name = self.names.fresh()
        scope.lines.append(f"const {self.kinds[_truth(e)]} {name} = {text};")
        scope.names[e] = name
        return name

    def _scope(self, e: Expr) -> Scope:
        axes = varying(e, self.states, self.phase.row)
        for s in reversed(self.scopes):
            if axes & s.axes:
                return s
        return self.scopes[0]

    @contextmanager
    def _inner(self, axis: str, place: Place) -> Iterator[Scope]:
        scope = Scope(frozenset((axis,)), [])
        self.scopes.append(scope)
        saved = self.at.get(axis)
        self.at = {**self.at, axis: place}
        yield scope
        self.scopes.pop()
        if saved is None:
            del self.at[axis]
        else:
            self.at[axis] = saved

    # ---- nodes
    def _const(self, e: Const) -> str:
        if _truth(e):
            return "m_all()" if e.value else "m_none()"
        return f"set1({literal(e.value)})"

    def _text(self, e: Expr) -> str:
        if isinstance(e, Load):
            return self._load(e)
        if isinstance(e, Index):
            at = f"set1((rf_real){self.at[e.axis].whole})"
            return f"{at} + iota()" if e.axis == self.lane else at
        if isinstance(e, Acc):
            return self._acc(e)
        if isinstance(e, Prev):
            return self._prev(e)
        if isinstance(e, Cast):
            return self._cast(e)
        if isinstance(e, Reduce):
            return self._reduce(e)
        assert isinstance(e, Map)
        return self._map(e)

    def _map(self, e: Map) -> str:
        if e.op in COMPARE:
            return f"m_{e.op}({self.value(e.args[0])}, {self.value(e.args[1])})"
        if e.op in ("isfinite", "isnan"):
            return f"m_{e.op}({self.value(e.args[0])})"
        if e.op in LOGIC:
            return f"{LOGIC[e.op]}({', '.join(self.mask_of(a) for a in e.args)})"
        if _truth(e) and e.op in BOOL_ARITHMETIC:
            return f"{BOOL_ARITHMETIC[e.op]}({', '.join(self.mask_of(a) for a in e.args)})"
        if e.op == "where":
            c, a, b = e.args
            if _truth(e):
                m, x, y = (self.mask_of(v) for v in (c, a, b))
                return f"m_or(m_and({m}, {x}), m_and(m_not({m}), {y}))"
            return f"sel({self.mask_of(c)}, {self.value(a)}, {self.value(b)})"
        if e.op in ("exp", "exp2") and self._below_maximum(e.args[0]):
            return f"v_{e.op}z({self.value(e.args[0])})"
        values = [self.value(a) for a in e.args]
        if e.op == "div" and isinstance(e.args[1], Const) and power_of_two(e.args[1].value):
            return f"{values[0]} * set1({literal(1 / e.args[1].value)})"  # the same number
        if e.op in INFIX:
            text = f"{values[0]} {INFIX[e.op]} {values[1]}"
        elif e.op == "neg":
            text = f"-{values[0]}"
        elif e.op == "recip":
            text = f"set1((rf_real)1) / {values[0]}"
        elif e.op == "square":
            text = f"{values[0]} * {values[0]}"
        else:
            text = f"{SPELLING.get(e.op, 'v_' + e.op)}({', '.join(values)})"
        return f"v_to_m({text})" if _truth(e) else text

    def _below_maximum(self, e: Expr) -> bool:
        """The difference of what a maximum is taken of and that maximum: never positive, and an exponential far below the
        smallest normal number is as good as 0."""
        if self.mode != "lift" or not (isinstance(e, Map) and e.op == "sub" and isinstance(e.args[1], Acc)):
            return False
        of, largest = e.args[0], e.args[1].name
        return any(f.op == "max" and f.acc == largest and f.lift is of for s in statements(self.phase.body) for f in folds_of(s))

    def _cast(self, e: Cast) -> str:
        to, arg = e.dtype, e.args[0]
        if to.kind == "b":
            return self.mask_of(arg)
        x = self.value(arg)
        exact = {"float": ("float32", "float16", "bfloat16"), "double": ("float64", "float32")}
        wide = to.name == {"float": "float32", "double": "float64"}[self.names.k.real] or to.name == "float64"
        if wide or (arg.dtype.kind == "b" and to.kind in "iuf") or (to.kind in "iu" and arg.dtype.kind in "iu" and to.itemsize >= 4):
            return x
        if arg.dtype == to and to.name in exact[self.names.k.real]:
            return x
        return f"round_{DTYPES[to.name]}({x})"

    def _load(self, e: Load) -> str:
        if e.source in self.given_sources:
            return self.given_sources[e.source]
        array = self.names.k.array(e.source)
        if array is not None:
            base, tag = self.names.array(array), array.dtype
            steps = [self.names.stride(array, d) for d in range(len(e.dims))]
            local, offsets = False, [self.at[d].whole for d in e.dims]
        else:
            b = self.names.k.buffer(e.source)
            if b is None:
                raise IRError(f"nothing in the kernel is called {e.source!r}")
            base, tag, local = self.names.get("buf", b.name), b.dtype or "real", not b.shared
            offsets = [self.at[d].whole if b.counts_whole(d) else self.at[d].offset for d in e.dims]
            steps = [self.names.step(b, d) for d in range(len(e.dims))]
        at = " + ".join([base, *_offsets(list(zip(offsets, steps, strict=True)))])
        lane = next((s for d, s in zip(e.dims, steps, strict=True) if d == self.lane), "0") if self.lane else "0"
        if lane == "0":
            text = f"set1(get_{tag}({at}))"
        elif lane == "1":
            text = f"ldm_{tag}({self.mask}, {at})" if self.mask and not local else f"ld_{tag}({at})"
        else:
            text = f"lds_{tag}({at}, {lane}, {self.mask or 'm_all()'})"
        return f"v_to_m({text})" if _truth(e) else text

    def _reduce(self, e: Reduce) -> str:
        """A reduction inside an element: a loop in place."""
        scope, op = self._scope(e), MONOIDS[e.op]
        var, total = self.names.var(e.axis), self.names.fresh("r")
        with self._inner(e.axis, Place("0", var)) as inner:
            body = self.value(e.body)
            if op.state == "pair":
                better, index = self.names.fresh("m"), f"{total}_at"
                inner.lines.append(f"const M {better} = {improves(op.best, body, total)};")
                inner.lines.append(f"{total} = sel({better}, {body}, {total}); {index} = sel({better}, set1((rf_real){var}), {index});")
            else:
                inner.lines.append(f"{total} = {combine(e.op, total, body)};")
        scope.lines.append(
            f"V {total} = set1({literal(op.identity)});" + (f" V {total}_at = set1((rf_real)0);" if op.state == "pair" else "")
        )
        scope.lines += [f"for (int64_t {var} = 0; {var} < {self.names.extent(e.axis)}; {var}++) {{", *inner.lines, "}"]
        result = f"{total}_at" if op.state == "pair" else total
        return f"v_to_m({result})" if _truth(e) else result

    # ---- accumulators
    def state(self, s: State, suffix: str = "") -> str:
        """The state's element here, as a vector; the lane axis is the row, a column, or neither."""
        at = state_at(self.names, s, self.phase, self.at)
        name = self.names.get("acc", s.name) + suffix
        along = (s.row and self.lane == self.phase.row) or self.lane in s.columns or (self.lane == s.out and s.k > 0)
        if self.lane and along:
            return (
                f"ld_real({name} + {at})"
                if contiguous(s, self.phase, self.lane)
                else f"lds_real({name} + {at}, {row_step(self.names, s)}, m_all())"
            )
        return f"set1({name}[{at}])"

    def _acc(self, e: Acc) -> str:
        s = self.states[e.name]
        text = self.state(s, "_at" if e.field == "index" else "")
        # Without flags the program is the plain one, whose values are the written-out ones as they are.
        flagged = self.names.k.flag_axes is not None
        if flagged and self.mode != "final" and s.op in ("max", "min") and e.field == "value":
            text = f"v_settle({text})"
        return f"v_to_m({text})" if _truth(e) else text

    def _prev(self, e: Prev) -> str:
        s = self.states[e.name]
        part = self.names.k.buffer(self.parts[s.name]) if s.name in self.parts else None
        old = self._load(Load(part.name, part.dims)) if part else self.state(s, self.old_suffix(s))
        if s.op not in ("max", "min") or s.name in self.own:
            return f"v_to_m({old})" if _truth(e) else old
        return f"sel(m_eq({old}, set1({literal(MONOIDS[s.op].identity)})), v_settle({self.state(s)}), {old})"

    def old_suffix(self, s: State) -> str:
        """States that keep their old value hold it apart; the others have not been moved yet when it is read."""
        return "_old" if s.keep else ""


def _truth(e: Expr) -> bool:
    return e.dtype.kind == "b"


def _offsets(parts: list[tuple[str, str]]) -> list[str]:
    out = []
    for at, step in parts:
        if at == "0" or step == "0":
            continue
        out.append(at if step == "1" else f"{at} * {step}")
    return out


def varying(e: Expr, states: dict[str, State], row: str) -> frozenset[str]:
    """Axes that the printed text of e depends on: its own, and those of the storage it reads."""
    read = [states[n.name] for n in nodes(e) if isinstance(n, (Acc, Prev)) and n.name in states]
    return e.axes.union(*(s.columns for s in read), *((row,) for s in read if s.row))


def contiguous(s: State, phase: Phase, lane: str) -> bool:
    inner = s.out if s.k else s.columns[-1] if s.columns else phase.row
    return lane == inner


def row_step(names: Names, s: State) -> str:
    """Elements from one row of a state to the next."""
    if s.k:
        return str(s.k)
    return f"{names.get('acc', s.name)}_ld" if s.columns else "1"


def state_at(names: Names, s: State, phase: Phase, at: dict[str, Place]) -> str:
    """C text of the element's index in a state: rows outside, columns (or the list) inside."""
    parts = []
    if s.row and phase.row in at:  # a value that every row holds alike may be read outside the rows
        place = at[phase.row]
        parts.append((place.whole if phase.row_loop else place.offset, row_step(names, s)))
    if s.k and s.out in at:
        parts.append((at[s.out].whole, "1"))
    for n, c in enumerate(s.columns):
        if c in at:
            step = "1" if n == len(s.columns) - 1 else f"{names.get('acc', s.name)}_s{n}"
            parts.append((at[c].whole, step))
    return " + ".join(_offsets(parts)) or "0"


def combine(op: str, a: str, b: str, loose: bool = False) -> str:
    """C text of the monoid on two vectors; loose: NaN may be lost."""
    if loose and op in ("max", "min"):
        return f"v_{op}_raw({a}, {b})"
    if op in ("sum", "prod"):
        return f"{a} {'+' if op == 'sum' else '*'} {b}"
    if op in ("any", "max"):
        return f"v_maximum({a}, {b})"
    if op in ("all", "min"):
        return f"v_minimum({a}, {b})"
    raise IRError(f"{op!r} does not combine two values")


def improves(best: int, new: str, old: str) -> str:
    """C text of the mask where `new` takes the place of `old`: strictly better, or the first NaN."""
    worse = "m_le" if best > 0 else "m_ge"
    return f"m_and(m_not({worse}({new}, {old})), m_eq({old}, {old}))"
