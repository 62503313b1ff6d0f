"""The positional graph that user code builds while it is traced: array operations with shapes and dtypes.

Grammar (args; attrs)
    input       ();     Parameter                    an argument, a symbolic array, or a captured array
    const       ();     value                        a scalar
    iota        ();     serial number                0, 1, 2, ... along one dimension
    map         (x...); operation of `ops.OPS`       broadcast as NumPy does
    cast        (x);    -                            to the node's dtype
    reduce      (x);    (op, axes, keepdims)         a monoid of `ops.MONOIDS` over dimensions
    count       (x);    (axes, stands alone)         the number of elements along dimensions, as a reduction
    contract    (x...); (labels of each, of result)  the sum of products over labels that the result lacks
    relabel     (x);    dimension of x, or None      transpose, insert, drop and broadcast dimensions
    reshape     (x);    groups of dimensions         split and join dimensions, row-major
    index       (x);    an int or a Slice each       basic indexing
    concat      (x...); axis
    top         (x);    (op, axis, k)

Nodes are interned, so writing the same thing twice is the same node. Dimensions have positions here and no
names; `naming` gives each iteration domain its name afterwards, when the whole graph is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from .errors import DTypeError, ShapeError
from .location import Line, at, user_line
from .promotion import BOOL, INT64, DType
from .sizes import Size, Symbol, product, size_groups

Shape = tuple[Size, ...]
_serial = itertools.count()


class Parameter(NamedTuple):
    """An input array. data: the array, where it was captured and is not passed by the caller."""

    name: str
    serial: int
    data: Any = None


class Slice(NamedTuple):
    """A slice of one dimension: as the user wrote it, and normalised (start is None while the size is symbolic)."""

    written: tuple[int | None, int | None, int | None]
    start: int | None
    step: int


class Node:
    """An operation. line: where the user wrote it. loose: a scalar that holds a count over a dimension it
    does not itself have. viewed: another node reads it as a view (so it must not change in place)."""

    __slots__ = ("__weakref__", "args", "attrs", "dtype", "line", "loose", "op", "shape", "viewed")
    loose: bool

    def __init__(self, op: str, args: tuple[Node, ...], attrs: Any, dtype: DType, shape: Shape) -> None:
        self.op, self.args, self.attrs, self.dtype, self.shape = op, args, attrs, dtype, shape
        self.line: Line | None = user_line()
        self.viewed = False
        self.loose = not shape and ((op == "count" and attrs[1]) or any(bool(a.loose) for a in args))

    @property
    def ndim(self) -> int:
        return len(self.shape)


_interned: WeakValueDictionary[Any, Node] = WeakValueDictionary()


def make(op: str, args: tuple[Node, ...], attrs: Any, dtype: DType, shape: Shape, mark: Any = None) -> Node:
    key = (op, args, attrs, dtype, shape, mark)
    node = _interned.get(key)
    if node is None:
        node = _interned[key] = Node(op, args, attrs, dtype, shape)
    return node


def show_shape(shape: Iterable[Any]) -> str:
    sizes = [str(s) for s in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def topological(roots: Iterable[Node]) -> list[Node]:
    """Every node below the roots, operands first."""
    out: dict[Node, None] = {}
    stack = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, done = stack.pop()
        if done:
            out[node] = None
        elif node not in out:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if a not in out)
    return list(out)


def parameter(name: str, shape: Shape, dtype: DType, data: Any = None) -> Node:
    return make("input", (), Parameter(name, next(_serial), _Held(data) if data is not None else None), dtype, shape)


class _Held:
    """A captured array, compared by identity."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


def captured(node: Node) -> Any:
    """The array of a captured input, or None."""
    held = node.attrs.data
    return None if held is None else held.array


def const(value: Any, dtype: DType) -> Node:
    """A scalar of a dtype. Values are Python floats, ints and bools, as the dtype asks."""
    if dtype == BOOL:
        value = bool(value)
    elif dtype.kind in "iu":
        value = int(value)
        if not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise DTypeError(f"{value} is out of bounds for {dtype}" + at(user_line()))
    else:
        value = float(value)
    mark = "nan" if value != value else (type(value), math.copysign(1, value))
    return make("const", (), math.nan if mark == "nan" else value, dtype, (), mark)


def iota(size: Size) -> Node:
    return make("iota", (), next(_serial), INT64, (size,))


def broadcast_shapes(shapes: Sequence[Shape], what: str) -> Shape:
    ndim = max((len(s) for s in shapes), default=0)
    out: list[Size] = [1] * ndim
    for shape in shapes:
        for d, size in enumerate(shape, ndim - len(shape)):
            if out[d] == 1:
                out[d] = size
            elif size not in (1, out[d]):
                hint = ""
                if isinstance(size, Symbol) or isinstance(out[d], Symbol):
                    hint = " (symbolic extents are equal only if they have one name)"
                raise ShapeError(
                    f"{what}: shapes {' and '.join(map(show_shape, shapes))} do not broadcast: {out[d]} and {size}{hint}" + at(user_line())
                )
    return tuple(out)


def elementwise(op: str, args: tuple[Node, ...], dtype: DType) -> Node:
    first = args[0].shape
    shape = first if all(a.shape == first for a in args) else broadcast_shapes([a.shape for a in args], op)
    return make("map", args, op, dtype, shape)


def cast(x: Node, dtype: DType) -> Node:
    if x.dtype == dtype:
        return x
    if x.op == "const" and not (x.dtype.kind == "f" and dtype.kind != "f"):
        return const(x.attrs, dtype)
    return make("cast", (x,), None, dtype, x.shape)


def normal_axis(axis: Any, ndim: int, what: str, shape: Iterable[Any] = ()) -> int:
    try:
        a = axis.__index__()
    except AttributeError:
        raise ShapeError(f"{what}: an axis must be an integer, not {axis!r}" + at(user_line())) from None
    if not -ndim <= a < ndim:
        raise ShapeError(f"{what}: axis {a} is out of range for shape {show_shape(shape)} with {ndim} dimensions" + at(user_line()))
    return int(a % ndim)


def normal_axes(axis: Any, x: Node, what: str) -> tuple[int, ...]:
    """Axes as NumPy takes them (None, an int, a tuple), sorted and without repetition."""
    if axis is None:
        return tuple(range(x.ndim))
    axes = [normal_axis(a, x.ndim, what, x.shape) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{what}: axis {axis} names a dimension twice" + at(user_line()))
    return tuple(sorted(axes))


def without(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if d in axes else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in axes)


def reduce(op: str, x: Node, axes: tuple[int, ...], keepdims: bool, dtype: DType) -> Node:
    return make("reduce", (x,), (op, axes, keepdims), dtype, without(x.shape, axes, keepdims))


def count(x: Node, axes: tuple[int, ...], dtype: DType, shape: Shape | None = None) -> Node:
    """The number of elements along axes. shape: of the reduction it accompanies, which decides its names;
    None: it stands alone, a size used as a number."""
    return make("count", (x,), (axes, shape is None), dtype, shape or ())


def contract(args: tuple[Node, ...], labels: tuple[tuple[int | None, ...], ...], out: tuple[int, ...], dtype: DType) -> Node:
    """Sum of products. A label names a dimension of every operand that has it; None: a dimension of size 1
    that broadcasts."""
    sizes = {n: s for x, names in zip(args, labels, strict=True) for n, s in zip(names, x.shape, strict=True) if n is not None}
    return make("contract", args, (labels, out), dtype, tuple(sizes.get(n, 1) for n in out))


def relabel(x: Node, dims: tuple[int | None, ...], shape: Shape) -> Node:
    """Dimension d of the result is dimension dims[d] of x, or a new one that x does not vary along."""
    if dims == tuple(range(x.ndim)) and shape == x.shape:
        return x
    if x.op == "relabel":
        dims = tuple(None if d is None else x.attrs[d] for d in dims)
        x = x.args[0]
        if dims == tuple(range(x.ndim)) and shape == x.shape:
            return x
    return make("relabel", (x,), dims, x.dtype, shape)


def broadcast(x: Node, shape: Shape) -> Node:
    """x as if it had the shape, which must be one it broadcasts to."""
    first = len(shape) - x.ndim
    if first < 0 or broadcast_shapes([x.shape, shape], "broadcast_to") != shape:
        raise ShapeError(f"broadcast_to: {show_shape(x.shape)} does not broadcast to {show_shape(shape)}" + at(user_line()))
    dims = tuple(None if d < first or (x.shape[d - first] == 1 and s != 1) else d - first for d, s in enumerate(shape))
    return relabel(x, dims, shape)


def reshape(x: Node, shape: Shape) -> Node:
    """Split and join dimensions; inserting and dropping dimensions of size 1 only relabels."""
    if shape == x.shape:
        return x
    groups = size_groups(x.shape, shape)
    if groups is None and 0 in shape:
        return broadcast(const(0, x.dtype), shape)  # no elements, whatever the dimensions
    if groups is None:
        raise ShapeError(
            f"reshape: {show_shape(x.shape)} to {show_shape(shape)}: the sizes do not split and join whole dimensions" + at(user_line())
        )
    if all(len(a) == len(b) == 1 for a, b in groups):
        dims: list[int | None] = [None] * len(shape)
        for (a,), (b,) in groups:
            dims[b] = a
        return relabel(x, tuple(dims), shape)
    return make("reshape", (x,), tuple(groups), x.dtype, shape)


def sliced_size(size: Size, s: slice) -> tuple[Size, Slice]:
    """The size after a slice, and the slice normalised."""
    written = (s.start, s.stop, s.step)
    step = 1 if s.step is None else s.step
    if isinstance(size, int):
        r = range(*s.indices(size))
        return len(r), Slice(written, r.start, step)
    if written[:2] == (None, None) and step in (1, -1):
        return size, Slice(written, 0 if step == 1 else None, step)
    start = s.start if step > 0 else None
    start = 0 if step > 0 and start is None else start if start is not None and start >= 0 else None
    spelt = ":".join("" if w is None else str(w) for w in written)
    return Symbol.named(f"({size})[{spelt}]"), Slice(written, start, step)


def index(x: Node, items: tuple[int | Slice, ...], shape: Shape) -> Node:
    return make("index", (x,), items, x.dtype, shape)


def concat(args: tuple[Node, ...], axis: int) -> Node:
    total = sum(a.shape[axis] for a in args)  # type: ignore[misc]
    shape = tuple(total if d == axis else s for d, s in enumerate(args[0].shape))
    return make("concat", args, axis, args[0].dtype, shape)


def top(op: str, x: Node, axis: int, k: int) -> Node:
    shape = tuple(k if d == axis else s for d, s in enumerate(x.shape))
    return make("top", (x,), (op, axis, k), INT64 if op == "top_indices" else x.dtype, shape)


def element_count(shape: Shape) -> Size:
    return product(shape)
