"""Matrix products, einsum and their relatives: all of them one contraction over labelled dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from . import graph
from .array import Array
from .elementwise import finish, refuse, whole
from .errors import ShapeError, TraceError
from .graph import Node, normal_axis, show_shape
from .location import here
from .promotion import BOOL, DType, numpy_dtype, promoted
from .sizes import Size

Labels = tuple[Any, ...]


def contraction(what: str, nodes: Sequence[Node], labels: Sequence[Labels], out: Labels, dtype: DType | None = None) -> Node:
    """Sum over the labels that `out` lacks of the product of the operands, two operands at a time.

    Labels that only one operand has are summed there first. A dimension of size 1 broadcasts.
    """
    dtype = dtype or promoted(*(n.dtype for n in nodes), what=what)
    terms = [_presum(what, graph.cast(n, dtype), names, labels, out) for n, names in zip(nodes, labels, strict=True)]
    while len(terms) > 1:
        (a, la), (b, lb), *rest = terms
        later = set(out).union(*(names for _, names in rest))
        kept = tuple(dict.fromkeys(n for n in (*la, *lb) if n in later)) if rest else out
        terms = [(_pair(what, (a, b), (la, lb), kept, dtype), kept), *rest]
    (node, names), *_ = terms
    return graph.relabel(node, tuple(names.index(n) for n in out), tuple(node.shape[names.index(n)] for n in out))


def _presum(what: str, x: Node, names: Labels, everyone: Sequence[Labels], out: Labels) -> tuple[Node, Labels]:
    """x with the labels summed away that nobody else has."""
    twice = [n for n, c in Counter(names).items() if c > 1]
    if twice:
        raise TraceError(
            f"{what}: the label {twice[0]!r} occurs twice in one operand (a diagonal), which cannot be traced; "
            "mask with rf.arange: np.where(i[:, None] == i, x, 0)" + here()
        )
    owners = Counter(n for labels in everyone for n in set(labels))
    alone = tuple(d for d, n in enumerate(names) if owners[n] == 1 and n not in out)
    if alone:
        op = "any" if x.dtype == BOOL else "sum"
        x = graph.reduce(op, x, alone, False, x.dtype)
    return x, tuple(n for d, n in enumerate(names) if d not in alone)


def _pair(what: str, nodes: tuple[Node, Node], labels: tuple[Labels, Labels], out: Labels, dtype: DType) -> Node:
    sizes: dict[Any, Size] = {}
    for node, names in zip(nodes, labels, strict=True):
        for n, s in zip(names, node.shape, strict=True):
            if sizes.get(n, 1) == 1:
                sizes[n] = s
            elif s not in (1, sizes[n]):
                raise ShapeError(
                    f"{what}: shapes {' and '.join(show_shape(x.shape) for x in nodes)}: sizes {sizes[n]} and {s} do not match" + here()
                )
    number = {n: i for i, n in enumerate(sizes)}
    used = tuple(
        tuple(None if s == 1 and sizes[n] != 1 else number[n] for n, s in zip(names, node.shape, strict=True))
        for node, names in zip(nodes, labels, strict=True)
    )
    return graph.contract(nodes, used, tuple(number[n] for n in out), dtype)


def matmul(a: Any, b: Any, out: Any = None, *, dtype: Any = None, **options: Any) -> Array:
    """`numpy.matmul`: vectors, matrices, and stacks of matrices that broadcast."""
    refuse("matmul", options)
    x, y = whole(a), whole(b)
    if not x.ndim or not y.ndim:
        raise ShapeError(f"matmul: a scalar operand (shapes {show_shape(x.shape)} and {show_shape(y.shape)}); multiply with *" + here())
    d = max(y.ndim - 2, 0)
    if x.shape[-1] != y.shape[d]:
        raise ShapeError(
            f"matmul: shapes {show_shape(x.shape)} and {show_shape(y.shape)}: the last dimension of the first ({x.shape[-1]}) and "
            f"dimension {d} of the second ({y.shape[d]}) differ; transpose one with np.swapaxes(x, -1, -2)?" + here()
        )
    batch = range(max(x.ndim, y.ndim) - 2, 0, -1)
    left = (*list(batch)[len(batch) - max(x.ndim - 2, 0) :], *(("row",) if x.ndim > 1 else ()), "k")
    right = (*list(batch)[len(batch) - max(y.ndim - 2, 0) :], "k", *(("column",) if y.ndim > 1 else ()))
    result = (*batch, *(("row",) if x.ndim > 1 else ()), *(("column",) if y.ndim > 1 else ()))
    chosen = numpy_dtype(dtype, "matmul") if dtype is not None else None
    return finish(Array(contraction("matmul", (x, y), (left, right), result, chosen)), out, "matmul")


def matvec(a: Any, b: Any) -> Array:
    return _core("matvec", a, b, ("row", "k"), ("k",), ("row",))


def vecmat(a: Any, b: Any) -> Array:
    return _core("vecmat", a, b, ("k",), ("k", "column"), ("column",))


def _core(what: str, a: Any, b: Any, left: Labels, right: Labels, result: Labels) -> Array:
    x, y = whole(a), whole(b)
    if x.ndim < len(left) or y.ndim < len(right):
        raise ShapeError(f"{what}: shapes {show_shape(x.shape)} and {show_shape(y.shape)} have too few dimensions" + here())
    if x.shape[x.ndim - len(left) + left.index("k")] != y.shape[y.ndim - len(right) + right.index("k")]:
        raise ShapeError(f"{what}: shapes {show_shape(x.shape)} and {show_shape(y.shape)}: the summed dimensions differ in size" + here())
    nx, ny = x.ndim - len(left), y.ndim - len(right)
    batch = tuple(range(max(nx, ny), 0, -1))
    labels = ((*batch[len(batch) - nx :], *left), (*batch[len(batch) - ny :], *right))
    return Array(contraction(what, (x, y), labels, (*batch, *result)))


def vecdot(a: Any, b: Any, axis: int = -1, **options: Any) -> Array:
    """Dot products of vectors along an axis, other dimensions broadcasting."""
    refuse("vecdot", options)
    x, y = whole(a), whole(b)
    ends = []
    for node in (x, y):
        d = normal_axis(axis, node.ndim, "vecdot", node.shape)
        order = (*(i for i in range(node.ndim) if i != d), d)
        ends.append(Array(graph.relabel(node, order, tuple(node.shape[i] for i in order))))
    return _core("vecdot", ends[0], ends[1], ("k",), ("k",), ())


def tensordot(a: Any, b: Any, axes: Any = 2) -> Array:
    """`numpy.tensordot`."""
    x, y = whole(a), whole(b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: axes={axes} for shapes {show_shape(x.shape)} and {show_shape(y.shape)}" + here())
        mine, theirs = list(range(x.ndim - axes, x.ndim)), list(range(axes))
    else:
        pair = [list(d) if isinstance(d, (list, tuple)) else [d] for d in axes]
        mine, theirs = ([normal_axis(d, n.ndim, "tensordot", n.shape) for d in ds] for ds, n in zip(pair, (x, y), strict=True))
    if len(mine) != len(theirs) or any(x.shape[i] != y.shape[j] for i, j in zip(mine, theirs, strict=True)):
        raise ShapeError(
            f"tensordot: shapes {show_shape(x.shape)} and {show_shape(y.shape)} do not match over axes {mine} and {theirs}" + here()
        )
    left = [("x", d) for d in range(x.ndim)]
    right = [("x", mine[theirs.index(d)]) if d in theirs else ("y", d) for d in range(y.ndim)]
    result = [n for d, n in enumerate(left) if d not in mine] + [n for d, n in enumerate(right) if d not in theirs]
    return Array(contraction("tensordot", (x, y), (tuple(left), tuple(right)), tuple(result)))


def dot(a: Any, b: Any, out: Any = None) -> Array:
    """`numpy.dot`: the last dimension of a with the second to last of b, without broadcasting."""
    x, y = whole(a), whole(b)
    if not x.ndim or not y.ndim:
        return finish(Array(x) * Array(y), out, "dot")
    return finish(tensordot(a, b, ([x.ndim - 1], [max(y.ndim - 2, 0)])), out, "dot")


def inner(a: Any, b: Any) -> Array:
    x, y = whole(a), whole(b)
    return Array(x) * Array(y) if not x.ndim or not y.ndim else tensordot(a, b, ([x.ndim - 1], [y.ndim - 1]))


def outer(a: Any, b: Any, out: Any = None) -> Array:
    flat = [graph.reshape(n, (graph.element_count(n.shape),)) for n in (whole(a), whole(b))]
    return finish(tensordot(Array(flat[0]), Array(flat[1]), 0), out, "outer")


def einsum(*operands: Any, out: Any = None, dtype: Any = None, optimize: Any = True, **options: Any) -> Array:
    """`numpy.einsum`: subscripts with or without `->`, with `...`, or as lists of integers. No diagonals."""
    refuse("einsum", options)
    spec, arrays = _parsed(operands)
    nodes = [whole(a) for a in arrays]
    inputs, arrow, result = spec.replace(" ", "").partition("->")
    parts = inputs.split(",")
    if len(parts) != len(nodes):
        raise ShapeError(f"einsum {spec!r}: {len(parts)} subscripts for {len(nodes)} operands" + here())
    labels = [_labels(spec, p, n) for p, n in zip(parts, nodes, strict=True)]
    dots = max((tuple(n for n in ls if isinstance(n, int)) for ls in labels), key=len)
    if arrow:
        before, ellipsis, after = result.partition("...")
        target: Labels = (*before, *(dots if ellipsis else ()), *after)
    else:
        letters = Counter(n for ls in labels for n in ls if isinstance(n, str))
        target = (*dots, *sorted(n for n, c in letters.items() if c == 1))
    known = {n for ls in labels for n in ls}
    unknown = [n for n in target if n not in known]
    if unknown or len(set(target)) != len(target):
        raise ShapeError(
            f"einsum {spec!r}: the result's {unknown[0] if unknown else 'label'!r} {'is in no operand' if unknown else 'is repeated'}"
            + here()
        )
    chosen = numpy_dtype(dtype, "einsum") if dtype is not None else None
    return finish(Array(contraction(f"einsum {spec!r}", nodes, labels, target, chosen)), out, "einsum")


def _parsed(operands: tuple[Any, ...]) -> tuple[str, Sequence[Any]]:
    if isinstance(operands[0], str):
        return operands[0], operands[1:]
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def spell(names: Any) -> str:
        return "".join("..." if n is Ellipsis else letters[n] for n in names)

    pairs = list(zip(operands[0::2], operands[1::2], strict=False))
    spec = ",".join(spell(names) for _, names in pairs)
    if len(operands) % 2:
        spec += "->" + spell(operands[-1])
    return spec, [a for a, _ in pairs]


def _labels(spec: str, part: str, node: Node) -> Labels:
    """A label for each dimension; those under the ellipsis are numbered from the right, to broadcast."""
    before, ellipsis, after = part.partition("...")
    if not (before + after).isalpha() and before + after:
        raise ShapeError(f"einsum {spec!r}: subscripts are letters, commas, `->` and `...`" + here())
    rest = node.ndim - len(before) - len(after)
    if rest < 0 or (rest and not ellipsis):
        raise ShapeError(f"einsum {spec!r}: {part!r} does not fit an operand of shape {show_shape(node.shape)}" + here())
    return (*before, *range(rest, 0, -1), *after)
