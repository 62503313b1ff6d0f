"""Which dimensions of a traced graph run over the same domain.

A union-find over (node, dimension). Elementwise operations, kept dimensions of reductions, contraction
labels and transposes unite; broadcasting never does. A class may have parts: a *product* where a reshape
splits or joins it (its parts are then the atoms of every member), a *sum* where a concatenation makes it
of pieces. Two different cuts of one class are refined to their common one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from .errors import ShapeError
from .graph import Node, Slice, topological
from .location import at
from .sizes import Size, Symbol, product

PRODUCT, SUM = "product", "sum"


class Dim:
    """A class of dimensions (its root holds the fields). parts: none for an atom, which then has names."""

    __slots__ = ("kind", "names", "parent", "parts", "size")

    def __init__(self, size: Size) -> None:
        self.size = size
        self.parent: Dim | None = None
        self.kind = ""
        self.parts: list[Dim] = []
        self.names: list[str] = []

    def root(self) -> Dim:
        d = self
        while d.parent is not None:
            if d.parent.parent is not None:
                d.parent = d.parent.parent
            d = d.parent
        return d


def flattened(kind: str, parts: Iterable[Dim]) -> list[Dim]:
    """The roots of parts, with parts of the same kind opened."""
    out: list[Dim] = []
    for p in parts:
        r = p.root()
        out.extend(flattened(kind, r.parts) if r.kind == kind else [r])
    return out


class Dims:
    """The classes of all dimensions of the nodes below the roots."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self.nodes = topological(roots)
        self.of: dict[Node, tuple[Dim, ...]] = {}
        self.changes = 0
        self._cuts: list[tuple[Node, Dim, Dim, Slice]] = []
        self._best: dict[Any, Dim] = {}
        self._pieces: dict[Any, Dim] = {}
        for node in self.nodes:
            self.of[node] = tuple(Dim(s) for s in node.shape)
            rule = _RULES.get(node.op)
            if rule is not None:
                rule(self, node)
        before = -1
        while before != self.changes:
            before = self.changes
            for node, whole, part, cut in self._cuts:
                self._propagate(node, whole, part, cut)

    def unite(self, a: Dim, b: Dim, node: Node) -> None:
        a, b = a.root(), b.root()
        if a is b or a.size == 1 or b.size == 1:
            return
        self.changes += 1
        if isinstance(a.size, Symbol) and isinstance(b.size, int):
            a.size = b.size
        b.parent = a
        if b.parts:
            kind, parts = b.kind, b.parts
            self.refine(a, kind, parts, node)

    def refine(self, dim: Dim, kind: str, parts: Sequence[Dim], node: Node) -> None:
        """Cut a class into parts, or reconcile the parts with those it has."""
        root = dim.root()
        if not root.parts:
            self.changes += 1
            root.kind, root.parts = kind, list(parts)
            return
        if root.kind != kind:
            raise _error(node, "one dimension is both reshaped and concatenated; reshape the pieces before joining them")
        mine, theirs = flattened(kind, root.parts), flattened(kind, parts)
        if [p.size for p in mine] != [p.size for p in theirs]:
            cuts = _common(kind, [p.size for p in mine], [p.size for p in theirs], node)
            for own in (mine, theirs):
                self._cut(kind, own, cuts, node)
            mine, theirs = flattened(kind, mine), flattened(kind, theirs)
        root.parts = mine
        for a, b in zip(mine, theirs, strict=True):
            self.unite(a, b, node)

    def _cut(self, kind: str, parts: list[Dim], sizes: list[int], node: Node) -> None:
        """Refine parts so that they have the sizes."""
        rest = iter(sizes)
        for p in parts:
            got = [next(rest)]
            while (product(got) if kind == PRODUCT else sum(got)) != p.size:
                got.append(next(rest))
            if len(got) > 1:
                self.refine(p, kind, [Dim(s) for s in got], node)

    def _propagate(self, node: Node, whole: Dim, part: Dim, cut: Slice) -> None:
        """What the parts of a sliced dimension say about the slice."""
        root, size = whole.root(), part.root().size
        if not root.parts or cut.step != 1 or cut.start is None or not isinstance(size, int):
            return
        parts = flattened(root.kind, root.parts)
        sizes = [p.size for p in parts if isinstance(p.size, int)]
        if len(sizes) < len(parts):
            return
        if root.kind == PRODUCT:
            inner = product(sizes[1:])
            assert isinstance(inner, int)
            if cut.start % inner == 0 and size % inner == 0:
                outer = [self._piece(part, size // inner)] if size > inner else []
                self._cut_alike(part, PRODUCT, [*outer, *parts[1:]], node)
            return
        first, last = cut.start, cut.start + size
        ends = list(accumulate(sizes))
        spans = [(p, max(e - s, first), min(e, last)) for p, s, e in zip(parts, sizes, ends, strict=True)]
        pieces = [p if b - a == p.size else self._piece(part, a, b) for p, a, b in spans if a < b]
        self._cut_alike(part, SUM, pieces, node)

    def _cut_alike(self, dim: Dim, kind: str, parts: list[Dim], node: Node) -> None:
        if len(parts) > 1:
            self.refine(dim, kind, parts, node)
        elif parts:
            self.unite(dim, parts[0], node)

    def _piece(self, *key: Any) -> Dim:
        """A part that only this slice has; the same one each time, so that repeating changes nothing."""
        size = key[-1] - key[-2] if len(key) == 3 else key[-1]
        return self._pieces.setdefault(key, Dim(size))


def _common(kind: str, a: list[Size], b: list[Size], node: Node) -> list[int]:
    """The coarsest sizes that both lists refine to."""
    if not all(isinstance(s, int) for s in (*a, *b)):
        raise _error(node, f"symbolic sizes {a} and {b} of one dimension do not match; give them as integers")
    ints = [[int(s) for s in sizes] for sizes in (a, b)]  # type: ignore[arg-type]
    if kind == SUM:
        ends = sorted({e for sizes in ints for e in accumulate(sizes)})
        return [e - s for s, e in zip([0, *ends], ends, strict=False)]
    inner = sorted({int(e) for sizes in ints for e in accumulate(reversed(sizes), lambda x, y: x * y)})
    steps = [1, *inner]
    if any(y % x for x, y in pairwise(steps)):
        raise _error(
            node, f"one dimension is split as {tuple(a)} and as {tuple(b)}, which have no common refinement; reshape by whole factors"
        )
    return [y // x for x, y in pairwise(steps)][::-1]


def _error(node: Node, message: str) -> ShapeError:
    return ShapeError(f"{node.op}: {message}" + at(node.line))


def _map(dims: Dims, node: Node) -> None:
    out = dims.of[node]
    for x in node.args:
        for o, d in zip(out[len(out) - x.ndim :], dims.of[x], strict=True):
            dims.unite(o, d, node)


def _reduce(dims: Dims, node: Node) -> None:
    _, axes, keepdims = node.attrs
    kept = [d for i, d in enumerate(dims.of[node.args[0]]) if i not in axes]
    out = [d for i, d in enumerate(dims.of[node]) if not (keepdims and i in axes)]
    for a, b in zip(out, kept, strict=True):
        dims.unite(a, b, node)


def _contract(dims: Dims, node: Node) -> None:
    labels, out = node.attrs
    seen = dict(zip(out, dims.of[node], strict=True))
    for x, names in zip(node.args, labels, strict=True):
        for n, d in zip(names, dims.of[x], strict=True):
            if n is None:
                continue
            if n in seen:
                dims.unite(seen[n], d, node)
            else:
                seen[n] = d


def _relabel(dims: Dims, node: Node) -> None:
    for o, d in zip(dims.of[node], node.attrs, strict=True):
        if d is not None:
            dims.unite(o, dims.of[node.args[0]][d], node)


def _reshape(dims: Dims, node: Node) -> None:
    old, new = dims.of[node.args[0]], dims.of[node]
    for ins, outs in node.attrs:
        if len(ins) == len(outs) == 1:
            dims.unite(new[outs[0]], old[ins[0]], node)
        elif len(ins) == 1:
            dims.refine(old[ins[0]], PRODUCT, [new[d] for d in outs], node)
        elif len(outs) == 1:
            dims.refine(new[outs[0]], PRODUCT, [old[d] for d in ins], node)
        else:
            joined = Dim(product(new[d].size for d in outs))
            dims.refine(joined, PRODUCT, [new[d] for d in outs], node)
            dims.refine(joined, PRODUCT, [old[d] for d in ins], node)


def _index(dims: Dims, node: Node) -> None:
    out = iter(dims.of[node])
    for item, d in zip(node.attrs, dims.of[node.args[0]], strict=True):
        if isinstance(item, Slice):
            o = next(out)
            if item.written == (None, None, None):
                dims.unite(o, d, node)
            else:
                dims._cuts.append((node, d, o, item))


def _concat(dims: Dims, node: Node) -> None:
    out = dims.of[node]
    for x in node.args:
        for i, d in enumerate(dims.of[x]):
            if i != node.attrs:
                dims.unite(out[i], d, node)
    dims.refine(out[node.attrs], SUM, [dims.of[x][node.attrs] for x in node.args], node)


def _top(dims: Dims, node: Node) -> None:
    """Values and indices of one selection have one output dimension."""
    _, axis, k = node.attrs
    for i, d in enumerate(dims.of[node.args[0]]):
        if i != axis:
            dims.unite(dims.of[node][i], d, node)
    mine = dims.of[node][axis]
    dims.unite(dims._best.setdefault((node.args[0], axis, k), mine), mine, node)


_RULES: dict[str, Any] = {
    "map": _map,
    "cast": _map,
    "reduce": _reduce,
    "contract": _contract,
    "relabel": _relabel,
    "reshape": _reshape,
    "index": _index,
    "concat": _concat,
    "top": _top,
}
