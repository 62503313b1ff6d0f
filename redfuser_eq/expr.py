"""The named-axis expression: what the array code means.

Grammar
    Expr   = Load(source, axes)          an element of an input view, one axis name per dimension
           | Const(value, dtype)
           | Index(axis)                 the position along an axis (int64)
           | Map(op, args)               an elementwise operation of `ops.OPS`
           | Cast(dtype, arg)            a conversion that may round
           | Reduce(op, axis, body)      a reduction of `ops.MONOIDS` over one axis; binds the axis
           | Reduce(top_*, axis, body, k, out)   the k best, varying over the extra axis `out`
           | Acc(name, field) | Prev(name)       a running value and its previous value (Cascade only)
    Program = sources, extents, outputs

An expression denotes a number for each point of its free axes. Two reductions over the same iteration
domain use one axis name; distinct indices of equal extent have distinct names. Expressions are interned:
equal expressions are the same object, so identity is equality and sharing is visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from .errors import IRError
from .ops import MONOIDS, OPS

Axes = frozenset[str]
NONE: Axes = frozenset()


class Expr:
    """A node. `axes`: free axes; `dtype`: NumPy dtype of the value; `args`: child expressions."""

    __slots__ = ("__weakref__", "args", "axes", "dtype", "key")
    _table: ClassVar[WeakValueDictionary[tuple[Any, ...], Expr]] = WeakValueDictionary()

    args: tuple[Expr, ...]
    axes: Axes
    dtype: np.dtype[Any]
    key: tuple[Any, ...]

    def __repr__(self) -> str:
        return show(self)

    def __reduce__(self) -> Any:
        return (_rebuild, self.key)


def _rebuild(cls: type[Expr], *fields: Any) -> Expr:
    return _intern(cls, fields)  # type: ignore[no-any-return]


def _intern(cls: type[Expr], fields: tuple[Any, ...]) -> Any:
    key = (cls, *fields)
    found = Expr._table.get(key)
    if found is None:
        found = object.__new__(cls)
        found.key = key
        found._set(*fields)  # type: ignore[attr-defined]
        Expr._table[key] = found
    return found


class Load(Expr):
    """`source[axes]`: one axis name per dimension of the source's view."""

    __slots__ = ("dims", "source")
    source: str
    dims: tuple[str, ...]

    def __new__(cls, source: str, dims: tuple[str, ...], dtype: Any = np.float32) -> Load:
        return _intern(cls, (source, tuple(dims), np.dtype(dtype)))  # type: ignore[no-any-return]

    def _set(self, source: str, dims: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        self.source, self.dims, self.dtype = source, dims, dtype
        self.args, self.axes = (), frozenset(dims)


class Const(Expr):
    """A scalar. Value is a Python float, int or bool."""

    __slots__ = ("value",)
    value: float

    def __new__(cls, value: float, dtype: Any = np.float32) -> Const:
        if isinstance(value, float) and math.isnan(value):
            value = math.nan  # one object, so that interning finds it
        return _intern(cls, (value, math.copysign(1, value), type(value), np.dtype(dtype)))  # type: ignore[no-any-return]

    def _set(self, value: float, _sign: float, _type: type, dtype: np.dtype[Any]) -> None:
        self.value, self.dtype, self.args, self.axes = value, dtype, (), NONE


class Index(Expr):
    """The position along an axis, counted from 0."""

    __slots__ = ("axis",)
    axis: str

    def __new__(cls, axis: str) -> Index:
        return _intern(cls, (axis,))  # type: ignore[no-any-return]

    def _set(self, axis: str) -> None:
        self.axis, self.dtype, self.args, self.axes = axis, np.dtype(np.int64), (), frozenset((axis,))


class Map(Expr):
    """An elementwise operation. `dtype` is NumPy's, decided by whoever builds the node."""

    __slots__ = ("op",)
    op: str

    def __new__(cls, op: str, args: tuple[Expr, ...], dtype: Any = None) -> Map:
        return _intern(cls, (op, tuple(args), np.dtype(dtype or map_dtype(op, args))))  # type: ignore[no-any-return]

    def _set(self, op: str, args: tuple[Expr, ...], dtype: np.dtype[Any]) -> None:
        if op not in OPS or OPS[op].arity != len(args):
            raise IRError(f"{op!r} with {len(args)} operands is not an elementwise operation of ops.OPS")
        self.op, self.args, self.dtype = op, args, dtype
        self.axes = NONE.union(*(a.axes for a in args))


class Cast(Expr):
    """Conversion to a dtype. A narrowing one rounds and is a barrier to the laws."""

    __slots__ = ()

    def __new__(cls, arg: Expr, dtype: Any) -> Cast:
        return _intern(cls, (arg, np.dtype(dtype)))  # type: ignore[no-any-return]

    def _set(self, arg: Expr, dtype: np.dtype[Any]) -> None:
        self.args, self.dtype, self.axes = (arg,), dtype, arg.axes


class Reduce(Expr):
    """A reduction of `body` over `axis`; `k` and `out` only for top-k."""

    __slots__ = ("axis", "k", "op", "out")
    op: str
    axis: str
    k: int
    out: str

    def __new__(cls, op: str, axis: str, body: Expr, k: int = 0, out: str = "", dtype: Any = None) -> Reduce:
        if op in ("argmax", "argmin", "top_indices"):
            dtype = np.int64
        return _intern(cls, (op, axis, body, k, out, np.dtype(dtype or body.dtype)))  # type: ignore[no-any-return]

    def _set(self, op: str, axis: str, body: Expr, k: int, out: str, dtype: np.dtype[Any]) -> None:
        if op not in MONOIDS:
            raise IRError(f"{op!r} is not a reduction of ops.MONOIDS")
        self.op, self.axis, self.args, self.k, self.out, self.dtype = op, axis, (body,), k, out, dtype
        self.axes = (body.axes - {axis}) | ({out} if out else set())

    @property
    def body(self) -> Expr:
        return self.args[0]


class Acc(Expr):
    """The running (or final) value of an accumulator. field: "value", or "index" of a pair or top state."""

    __slots__ = ("field", "name")
    name: str
    field: str

    def __new__(cls, name: str, axes: Axes, dtype: Any = np.float32, field: str = "value") -> Acc:
        return _intern(cls, (name, frozenset(axes), np.dtype(dtype), field))  # type: ignore[no-any-return]

    def _set(self, name: str, axes: Axes, dtype: np.dtype[Any], field: str) -> None:
        self.name, self.axes, self.dtype, self.field, self.args = name, axes, dtype, field, ()


class Prev(Expr):
    """The value of an accumulator before the present tile (or of the other segment, in a merge)."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, axes: Axes, dtype: Any = np.float32) -> Prev:
        return _intern(cls, (name, frozenset(axes), np.dtype(dtype)))  # type: ignore[no-any-return]

    def _set(self, name: str, axes: Axes, dtype: np.dtype[Any]) -> None:
        self.name, self.axes, self.dtype, self.args = name, axes, dtype, ()


def map_dtype(op: str, args: tuple[Expr, ...]) -> np.dtype[Any]:
    """The dtype of an elementwise operation by its kind; the tracer applies NumPy's finer rules itself."""
    kind = OPS[op].kind
    if kind == "bool":
        return np.dtype(bool)
    used = args[1:] if kind == "where" else args
    out = np.result_type(*(a.dtype for a in used))
    if kind == "float" and out.kind in "iub":
        return np.dtype(np.float64)
    return out


def nodes(*roots: Expr) -> Iterator[Expr]:
    """Every distinct node below the roots, children before parents."""
    seen: set[Expr] = set()
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        e, done = stack.pop()
        if done:
            yield e
        elif e not in seen:
            seen.add(e)
            stack.append((e, True))
            stack.extend((a, False) for a in reversed(e.args))


def with_args(e: Expr, args: tuple[Expr, ...]) -> Expr:
    """The same node over other children."""
    if args == e.args:
        return e
    if isinstance(e, Map):
        return Map(e.op, args, e.dtype)
    if isinstance(e, Cast):
        return Cast(args[0], e.dtype)
    if isinstance(e, Reduce):
        return Reduce(e.op, e.axis, args[0], e.k, e.out, e.dtype)
    raise IRError(f"{type(e).__name__} has no children")


def transform(root: Expr, f: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild top-down: where f gives an expression it replaces the node (and its children are not visited)."""
    memo: dict[Expr, Expr] = {}

    def go(e: Expr) -> Expr:
        if e not in memo:
            new = f(e)
            memo[e] = new if new is not None else with_args(e, tuple(go(a) for a in e.args))
        return memo[e]

    return go(root)


def rename(root: Expr, names: Mapping[str, str]) -> Expr:
    """Rename axes, free and bound alike."""

    def f(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            return Load(e.source, tuple(names.get(d, d) for d in e.dims), e.dtype)
        if isinstance(e, Index):
            return Index(names.get(e.axis, e.axis))
        if isinstance(e, Reduce):
            body = rename(e.body, names)
            return Reduce(e.op, names.get(e.axis, e.axis), body, e.k, names.get(e.out, e.out), e.dtype)
        return None

    return transform(root, f)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


def show(e: Expr) -> str:
    """One-line mathematics, for errors, tests and explanations."""
    if isinstance(e, Load):
        return f"{e.source}[{','.join(e.dims)}]"
    if isinstance(e, Const):
        return f"{e.value:g}" if isinstance(e.value, float) else str(e.value)
    if isinstance(e, Index):
        return f"#{e.axis}"
    if isinstance(e, Acc):
        return e.name if e.field == "value" else f"{e.name}.{e.field}"
    if isinstance(e, Prev):
        return f"{e.name}'"
    if isinstance(e, Cast):
        return f"{e.dtype}({show(e.args[0])})"
    if isinstance(e, Reduce):
        return f"{e.op}{e.k or ''}_{e.axis}({show(e.body)})"
    assert isinstance(e, Map)
    a = [show(x) for x in e.args]
    if e.op in _INFIX:
        return f"({a[0]} {_INFIX[e.op]} {a[1]})"
    if e.op == "neg":
        return f"-{a[0]}"
    if e.op == "square":
        return f"{a[0]}**2"
    return f"{e.op}({', '.join(a)})"


@dataclass(frozen=True)
class View:
    """How a source is cut from an input array, step by step:

    index: NumPy basic indexing, slices and integers, one per dimension (empty: none).
    splits: for each remaining dimension the extents it is split into, row-major; one of them may be -1.
    then: basic indexing of the split dimensions.
    merges: how many consecutive dimensions each final one joins, row-major.

    Indexing and splitting are views of any strided array; only a merge may copy, where strides force it.
    """

    index: tuple[slice | int, ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    then: tuple[slice | int, ...] = ()
    merges: tuple[int, ...] = ()

    def __hash__(self) -> int:  # slices are not hashable before Python 3.12
        return hash((repr(self.index), self.splits, repr(self.then), self.merges))


@dataclass(frozen=True)
class Source:
    """An input as the expression loads it. name: unique in the program; param: position among the
    program's parameters; shape: after the view."""

    name: str
    param: int
    dtype: np.dtype[Any]
    ndim: int
    view: View = View()


@dataclass(frozen=True)
class Output:
    """A result. dims: for each dimension of the result array the axes it joins, row-major (an empty
    tuple is a dimension of size 1); expr: its value at those axes."""

    expr: Expr
    dims: tuple[tuple[str, ...], ...]
    dtype: np.dtype[Any]

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(a for d in self.dims for a in d)


@dataclass(frozen=True)
class Program:
    """Traced array code: sources (views of parameters), the extent of each axis, and outputs.

    params: names of the parameters, in call order. constants: arrays captured by closure, for the
    parameters beyond those the caller passes, by name. extents: axis -> size, or None while symbolic.
    """

    params: tuple[str, ...]
    sources: tuple[Source, ...]
    extents: dict[str, int | None]
    outputs: tuple[Output, ...]
    constants: dict[str, Any] = field(default_factory=dict)

    def source(self, name: str) -> Source:
        return next(s for s in self.sources if s.name == name)

    def key(self) -> tuple[Any, ...]:
        """Structure without extents or the values of captured arrays."""
        return (self.params, self.sources, tuple((o.expr, o.dims, o.dtype) for o in self.outputs), tuple(self.constants))


def check(program: Program) -> None:
    """Enforce scoping and typing: every free axis of an output is one of its dims, every source exists
    with the right number of dimensions, every axis has an extent, and nothing refers to accumulators."""
    sources = {s.name: s for s in program.sources}
    for o in program.outputs:
        loose = o.expr.axes - set(o.axes)
        if loose:
            raise IRError(f"output has unbound axes {sorted(loose)}: {show(o.expr)}")
        check_expr(o.expr, sources, program.extents)
        if any(isinstance(e, (Acc, Prev)) for e in nodes(o.expr)):
            raise IRError("an expression outside a Cascade refers to an accumulator")


def check_expr(root: Expr, sources: Mapping[str, Source], extents: Mapping[str, Any]) -> None:
    """Checks of one expression that Program and Cascade share."""
    for e in nodes(root):
        for axis in e.axes:
            if axis not in extents:
                raise IRError(f"axis {axis!r} has no extent: {show(e)}")
        if isinstance(e, Load):
            if e.source not in sources:
                raise IRError(f"unknown source {e.source!r}")
            if len(e.dims) != sources[e.source].ndim or len(set(e.dims)) != len(e.dims):
                raise IRError(f"{show(e)} does not fit {sources[e.source]}")
        if isinstance(e, Reduce) and (MONOIDS[e.op].state == "top") != bool(e.k and e.out):
            raise IRError(f"top-k needs k and an output axis, others none: {show(e)}")
