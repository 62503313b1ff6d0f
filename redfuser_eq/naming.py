"""Names for iteration domains: from the positional graph to expressions with named axes.

Demand-driven from the outputs. `name(node, places)` is the expression of a node's element at a place in
each of its dimensions. A reduction binds an axis: it takes the first name of its dimension's class
(`dims`) that is not free in its own result, so reductions over one domain share one name and two indices
of one domain have two.

Two choices need the whole program, so naming repeats until they hold (twice, at most a few times):
  - inside an operand of a contraction, names of the other operands and of the sum are avoided, so that
    a statistic of x and the contraction that uses it run over the same axis even if x @ w is added to x;
  - a size used as a number (`total / x.shape[-1]`) counts along the axis that reductions bind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from .dims import PRODUCT, SUM, Dim, Dims, flattened
from .errors import RedfuserError, ShapeError, TraceError
from .expr import Cast, Const, Expr, Index, Load, Map, Output, Reduce, Source, View
from .graph import Node, Slice, show_shape, topological
from .location import at
from .positions import Cut, Fixed, Join, Place, Places, affine, cut, join, names, regroup, value, view
from .promotion import BOOL, INT64, is_float
from .sizes import Size, Symbol, product

_COMBINE = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "logical_or",
    "all": "logical_and",
}
_ROUNDS = 6


@dataclass(frozen=True)
class Piece:
    """One output of the program: a result, or a part of one, at offsets along its dimensions.
    joins: how many of these dimensions each one of the result joins."""

    output: Output
    offsets: tuple[int, ...]
    joins: tuple[int, ...]


class Namer:
    """Names a graph. After `run`: `sources` in order of use, and `sizes` of the axes."""

    def __init__(self, outputs: Sequence[Node], params: dict[Node, tuple[str, int]]) -> None:
        self.outputs, self.params = outputs, params
        self.dims = Dims(outputs)
        self.sizes: dict[str, Size] = {}
        self._avoid: dict[Node, set[str]] = {}
        self._letters = (_letters("ijmnpqrs"), _letters("kldetuvw"))

    def run(self) -> list[list[Piece]]:
        bound: dict[Dim, list[str]] = {}
        found: list[list[Piece]] = []
        for _ in range(_ROUNDS):
            self._memo: dict[Any, Expr] = {}
            self._sources: dict[tuple[Node, View], Source] = {}
            self._chosen: dict[Node, set[str]] = {}
            self._foreign: list[tuple[Node, frozenset[str]]] = []
            self._counted: dict[tuple[Dim, frozenset[str]], str] = {}
            self._before = bound
            self._bound: dict[Dim, list[str]] = {}
            found = [self._output(node) for node in self.outputs]
            bound = self._bound
            if not self._conflicts():
                break
        return found

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    def _conflicts(self) -> bool:
        """Whether a reduction took a name that is foreign to it, or a count another axis than reductions do."""
        all_bound = {n for names in self._chosen.values() for n in names}
        dirty = False
        for operand, foreign in self._foreign:
            if not foreign & all_bound:
                continue
            for node in topological([operand]):
                if node.op in ("reduce", "contract", "count", "top"):
                    self._avoid.setdefault(node, set()).update(foreign)
                    dirty |= bool(self._chosen.get(node, set()) & foreign)
        return dirty or any(self._counting(dim, context, self._bound) != n for (dim, context), n in self._counted.items())

    # ---- names

    def pick(self, dim: Dim, avoid: frozenset[str] | set[str], bound: bool) -> str:
        """The first name of a class that is not to be avoided."""
        for n in dim.names:
            if n not in avoid:
                return n
        hint = dim.size.name if isinstance(dim.size, Symbol) else None
        if hint is not None and hint.isidentifier():
            fresh: Iterator[str] = chain((hint,), (f"{hint}{i}" for i in count(2)))
        else:
            fresh = self._letters[bound]
        n = next(n for n in fresh if n not in self.sizes)
        dim.names.append(n)
        self.sizes[n] = dim.size
        return n

    def spread(self, dim: Dim, avoid: frozenset[str], node: Node | None) -> list[tuple[Place, tuple[str, ...]]]:
        """Places that together run through a dimension: one, or one for each piece of a joined dimension.
        node: the reduction that binds the names, or None."""
        root = dim.root()
        if root.size == 1:
            return [(None, ())]
        if root.kind == SUM:
            out, offset = [], 0
            for part in flattened(SUM, root.parts):
                assert isinstance(part.size, int)
                out += [(cut(offset, 1, p, part.size), ns) for p, ns in self.spread(part, avoid, node)]
                offset += part.size
            return out
        if root.kind == PRODUCT:
            parts = flattened(PRODUCT, root.parts)
            return [(join(ps, [p.size for p in parts]), ns) for ps, ns in self.spread_all(parts, avoid, node)]
        n = self.pick(root, avoid, node is not None)
        if node is not None:
            self._chosen.setdefault(node, set()).add(n)
            if n not in self._bound.setdefault(root, []):
                self._bound[root].append(n)
        return [(n, (n,))]

    def spread_all(self, dims: Sequence[Dim], avoid: frozenset[str], node: Node | None) -> list[tuple[tuple[Place, ...], tuple[str, ...]]]:
        """The same for several dimensions at once, all names distinct."""
        out: list[tuple[tuple[Place, ...], tuple[str, ...]]] = [((), ())]
        for d in dims:
            out = [((*ps, p), (*ns, *n)) for ps, ns in out for p, n in self.spread(d, avoid | set(ns), node)]
        return out

    def avoided(self, node: Node, places: Places) -> frozenset[str]:
        return names(places) | self._avoid.get(node, set())

    def _output(self, node: Node) -> list[Piece]:
        everything = self.spread_all(self.dims.of[node], frozenset(), None)
        pieces = []
        for places, _ in everything:
            # Pieces are joined along their own dimensions, which are joined among themselves afterwards.
            digits = [p.places if isinstance(p, Join) and len(everything) > 1 else (p,) for p in places]
            read = [_block(p) for ds in digits for p in ds]
            output = Output(self.name(node, places, frozenset()), tuple(axes for _, axes in read), node.dtype)
            pieces.append(Piece(output, tuple(start for start, _ in read), tuple(len(ds) for ds in digits)))
        return pieces

    # ---- expressions

    def name(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        """The expression of a node at a place in each dimension. context: names free in what surrounds it."""
        if node.shape:
            context = names(places)
        key = (node, places, context if node.loose else None)
        found = self._memo.get(key)
        if found is None:
            try:
                found = _EXPRESSIONS[node.op](self, node, places, context)
            except RedfuserError as error:
                if "\n  at " in str(error) or node.line is None:
                    raise
                raise type(error)(f"{error}{at(node.line)}") from None
            self._memo[key] = found
        return found

    def _input(self, node: Node, places: Places, _: frozenset[str]) -> Expr:
        how, axes = view(places, node.shape)
        source = self._sources.get((node, how))
        if source is None:
            base, param = self.params[node]
            taken = {s.name for s in self._sources.values()} | ({n for n, _ in self.params.values()} - {base})
            name = next(n for n in chain((base,), (f"{base}_{i}" for i in count(2))) if n not in taken)
            source = self._sources[node, how] = Source(name, param, node.dtype, len(axes), how)
        return Load(source.name, axes, node.dtype)

    def _const(self, node: Node, *_: Any) -> Expr:
        return Const(node.attrs, node.dtype)

    def _iota(self, node: Node, places: Places, _: frozenset[str]) -> Expr:
        return value(places[0])

    def _map(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        args = tuple(self.name(x, _aligned(x, node, places), context) for x in node.args)
        if node.attrs == "mul" and args[0] is args[1]:
            return Map("square", args[:1], node.dtype)
        return Map(node.attrs, args, node.dtype)

    def _cast(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        return Cast(self.name(node.args[0], places, context), node.dtype)

    def _relabel(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        x = node.args[0]
        inner: list[Place] = [None] * x.ndim
        for d, p in zip(node.attrs, places, strict=True):
            if d is not None and x.shape[d] != 1:
                inner[d] = p
        return self.name(x, tuple(inner), context)

    def _reshape(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        x = node.args[0]
        inner: list[Place] = [None] * x.ndim
        for ins, outs in node.attrs:
            if len(ins) == 1:
                inner[ins[0]] = join([places[d] for d in outs], [node.shape[d] for d in outs])
                continue
            found = regroup([(places[d], node.shape[d]) for d in outs], [x.shape[d] for d in ins])
            if found is None:
                raise ShapeError(
                    f"reshape: {show_shape(x.shape)} to {show_shape(node.shape)}: what reads the result cuts across "
                    "the joined dimensions; slice before joining them" + at(node.line)
                )
            for d, p in zip(ins, found, strict=True):
                inner[d] = p
        return self.name(x, tuple(inner), context)

    def _index(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        x, rest, sizes = node.args[0], iter(places), iter(node.shape)
        inner: list[Place] = []
        for d, item in enumerate(node.attrs):
            if not isinstance(item, Slice):
                inner.append(None if x.shape[d] == 1 else Fixed(item))
                continue
            p, size = next(rest), next(sizes)
            whole = item.written == (None, None, None) or (x.shape[d] == 1 and size == 1)
            inner.append(p if whole else cut(item.start, item.step, p, size, item.written))
        return self.name(x, tuple(inner), context)

    def _concat(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        axis, start = node.attrs, 0
        place = places[axis]
        first, last = _span(place, node.shape[axis])
        for x in node.args:
            size = x.shape[axis]
            assert isinstance(size, int)
            if start <= first and last < start + size:
                moved = place if size == node.shape[axis] else _moved(place, -start, size)
                return self.name(x, (*places[:axis], moved, *places[axis + 1 :]), context)
            start += size
        raise ShapeError(
            f"concatenate: what reads the joined dimension (axis {axis} of {show_shape(node.shape)}) crosses from piece to piece; "
            "reduce over it, or slice along the pieces' bounds" + at(node.line)
        )

    def _count(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        axes_of, alone = node.attrs
        dims = [self.dims.of[node.args[0]][a] for a in axes_of]
        total: Expr | None = None
        named = [] if alone else self.spread_all(dims, self.avoided(node, places), node)
        for axes in self._loose(dims[0], context) if alone else [list(ns) for _, ns in named]:
            body: Expr = Const(1.0 if is_float(node.dtype) else 1, node.dtype)
            for n in reversed(axes):
                body = Reduce("sum", n, body)
            total = body if total is None else Map("add", (total, body), node.dtype)
        assert total is not None
        return total

    def _loose(self, dim: Dim, context: frozenset[str]) -> list[list[str]]:
        """The axes that a size used as a number counts along, for each piece."""
        root = dim.root()
        if root.size == 1:
            return [[]]
        if root.kind == SUM:
            return [ns for p in flattened(SUM, root.parts) for ns in self._loose(p, context)]
        if root.kind == PRODUCT:
            out: list[list[str]] = [[]]
            for p in flattened(PRODUCT, root.parts):
                out = [[*a, *b] for a in out for b in self._loose(p, context)]
            return out
        n = self._counting(root, context, self._before)
        self._counted[root, context] = n
        return [[n]]

    def _counting(self, dim: Dim, context: frozenset[str], bound: dict[Dim, list[str]]) -> str:
        known = bound.get(dim, [])
        return next((n for n in known if n not in context), known[0] if known else self.pick(dim, frozenset(), True))

    def _reduce(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        op, axes, keepdims = node.attrs
        x = node.args[0]
        dims = [self.dims.of[x][a] for a in axes]

        def body(inner: Sequence[Place]) -> Expr:
            reduced, kept = iter(inner), iter(p for d, p in enumerate(places) if not (keepdims and d in axes))
            return self.name(x, tuple(next(reduced) if d in axes else next(kept) for d in range(x.ndim)), context)

        if op in ("argmax", "argmin"):
            return self._position(op, dims[0], lambda p: body([p]), node, self.avoided(node, places))[1]
        total: Expr | None = None
        for inner, bound in self.spread_all(dims, self.avoided(node, places), node):
            part = body(inner)
            for n in reversed(bound):
                part = Reduce(op, n, part)
            total = part if total is None else Map(_COMBINE[op], (total, part), part.dtype)
        assert total is not None
        return total

    def _position(self, op: str, dim: Dim, body: Callable[[Place], Expr], node: Node, avoid: frozenset[str]) -> tuple[Expr, Expr]:
        """(best value, its first position) along a dimension, which may be joined of several or of pieces."""
        root, best = dim.root(), op[3:]
        if root.size == 1:
            return body(None), Const(0, INT64)
        if root.kind == SUM:
            return self._position_of_pieces(op, root, body, node, avoid)
        parts = flattened(PRODUCT, root.parts) if root.kind == PRODUCT else [root]
        if parts[0].kind == SUM:
            raise TraceError(f"{op} over concatenated dimensions that are then joined; take it over one of them" + at(node.line))
        outer, rest = parts[0], parts[1:]
        ((_, (n,)),) = self.spread(outer, avoid, node)
        if not rest:
            inside = body(n)
            if inside.dtype == BOOL:
                inside = Cast(inside, INT64)
            return Reduce(best, n, inside), Reduce(op, n, inside)
        inner = Dim(product(p.size for p in rest))
        inner.kind, inner.parts = (PRODUCT, rest) if len(rest) > 1 else (rest[0].kind, rest[0].parts)
        tail = inner if len(rest) > 1 else rest[0]
        if isinstance(tail.size, Symbol):
            raise ShapeError(f"{op} over joined dimensions needs the inner extent {tail.size}; give it as an integer" + at(node.line))
        sizes = (outer.size, tail.size)
        val, index = self._position(op, tail, lambda p: body(Join((n, p), sizes)), node, avoid | {n})
        row = Reduce(op, n, val)
        column = Reduce("sum", n, Map("where", (Map("eq", (Index(n), row)), index, Const(0, INT64)), INT64))
        return Reduce(best, n, val), Map("add", (affine(row, tail.size, 0), column), INT64)

    def _position_of_pieces(
        self, op: str, root: Dim, body: Callable[[Place], Expr], node: Node, avoid: frozenset[str]
    ) -> tuple[Expr, Expr]:
        best, offset = op[3:], 0
        found: tuple[Expr, Expr] | None = None
        for part in flattened(SUM, root.parts):
            assert isinstance(part.size, int)
            val, index = self._position(op, part, _within(body, offset, part.size), node, avoid)
            index = affine(index, 1, offset)
            offset += part.size
            if found is None:
                found = (val, index)
                continue
            better = Map("gt" if best == "max" else "lt", (val, found[0]))
            if is_float(val.dtype):
                better = Map("logical_or", (better, Map("isnan", (val,))))
                better = Map("logical_and", (better, Map("logical_not", (Map("isnan", (found[0],)),))))
            found = Map(_COMBINE[best], (found[0], val), val.dtype), Map("where", (better, index, found[1]), INT64)
        assert found is not None
        return found

    def _contract(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        labels, out = node.attrs
        where = dict(zip(out, places, strict=True))
        summed: dict[int, Dim] = {}
        for x, ls in zip(node.args, labels, strict=True):
            summed |= {n: d for n, d in zip(ls, self.dims.of[x], strict=True) if n is not None and n not in where}
        total: Expr | None = None
        for inner, bound in self.spread_all(list(summed.values()), self.avoided(node, places), node):
            here = where | dict(zip(summed, inner, strict=True))
            everything = names(here.values())
            factors = []
            for x, ls in zip(node.args, labels, strict=True):
                own = tuple(None if n is None else here[n] for n in ls)
                self._foreign.append((x, everything - names(own)))
                factors.append(self.name(x, own, context))
            part = _product(factors, node.dtype)
            for n in reversed(bound):
                part = Reduce("any" if node.dtype == BOOL else "sum", n, part)
            total = part if total is None else Map("logical_or" if node.dtype == BOOL else "add", (total, part), node.dtype)
        assert total is not None
        return total

    def _top(self, node: Node, places: Places, context: frozenset[str]) -> Expr:
        op, axis, k = node.attrs
        x, place = node.args[0], places[axis]
        root = self.dims.of[x][axis].root()
        if root.parts:
            raise TraceError("top_k along a dimension that is reshaped or concatenated; take it before joining" + at(node.line))

        def body(p: Place) -> Expr:
            return self.name(x, (*places[:axis], p, *places[axis + 1 :]), context)

        if root.size == 1:
            return body(None) if op == "top_values" else Const(0, INT64)
        avoid = self.avoided(node, places)
        if k == 1:
            ((_, (n,)),) = self.spread(root, avoid, node)
            return Reduce("max" if op == "top_values" else "argmax", n, body(n))
        out = place.place if isinstance(place, Cut) else place
        if isinstance(place, Cut) and isinstance(place.size, int) and (place.start, place.step) == (0, 1):
            k = place.size  # the first few of the k best
        elif not isinstance(place, (str, Fixed)):
            raise TraceError("a slice of top_k that does not start at its first element; slice the result outside" + at(node.line))
        if isinstance(out, Fixed):
            ((_, (o,)),) = self.spread(self.dims.of[node][axis], avoid, node)
            ((_, (n,)),) = self.spread(root, avoid | {o}, node)
            chosen = Reduce(op, n, body(n), k, o)
            return Reduce(
                "sum",
                o,
                Map(
                    "where",
                    (Map("eq", (Index(o), Const(out.at, INT64))), chosen, Const(0.0 if is_float(chosen.dtype) else 0, chosen.dtype)),
                    chosen.dtype,
                ),
            )
        assert isinstance(out, str)
        ((_, (n,)),) = self.spread(root, avoid, node)
        return Reduce(op, n, body(n), k, out)


_EXPRESSIONS: dict[str, Callable[..., Expr]] = {
    "input": Namer._input,
    "const": Namer._const,
    "iota": Namer._iota,
    "map": Namer._map,
    "cast": Namer._cast,
    "relabel": Namer._relabel,
    "reshape": Namer._reshape,
    "index": Namer._index,
    "concat": Namer._concat,
    "count": Namer._count,
    "reduce": Namer._reduce,
    "contract": Namer._contract,
    "top": Namer._top,
}


def _letters(first: str) -> Iterator[str]:
    return chain(first, (f"{c}{i}" for i in count(2) for c in first))


def _block(place: Place) -> tuple[int, tuple[str, ...]]:
    """Where a piece of a result begins along a dimension, and the axes that run through it."""
    start = 0
    if isinstance(place, Cut):
        start, place = place.start or 0, place.place
    if isinstance(place, Fixed):
        return start + place.at, ()
    if place is None or isinstance(place, str):
        return start, () if place is None else (place,)
    names = place.places if isinstance(place, Join) else (place,)
    if not all(isinstance(n, str) for n in names):
        raise TraceError("a result joins concatenated dimensions with others in a way that has no layout; return the pieces instead")
    return start, names


def _aligned(x: Node, node: Node, places: Places) -> Places:
    """The places of an elementwise operand: aligned at the last dimension, dropped where it broadcasts."""
    if x.shape == node.shape:
        return places
    first = node.ndim - x.ndim
    return tuple(None if s == 1 else places[first + d] for d, s in enumerate(x.shape))


def _span(place: Place, size: Size) -> tuple[int, int]:
    """First and last position that a place can reach."""
    if isinstance(place, Fixed):
        return place.at, place.at
    if isinstance(place, Cut) and place.start is not None and isinstance(place.size, int):
        end = place.start + place.step * (place.size - 1)
        return min(place.start, end), max(place.start, end)
    return 0, (size if isinstance(size, int) else 2) - 1


def _moved(place: Place, by: int, size: int) -> Place:
    """The same place counted from another origin, in a dimension of a size."""
    if size == 1:
        return None
    if isinstance(place, Fixed):
        return Fixed(place.at + by)
    assert isinstance(place, Cut) and place.start is not None
    if place.start + by == 0 and place.step == 1 and place.size == size:
        return place.place  # type: ignore[no-any-return]
    return Cut(place.start + by, place.step, place.place, place.size)


def _within(body: Callable[[Place], Expr], offset: int, size: int) -> Callable[[Place], Expr]:
    return lambda p: body(cut(offset, 1, p, size))


def _product(factors: Sequence[Expr], dtype: Any) -> Expr:
    a, *rest = factors
    for b in rest:
        same = a is b and dtype != BOOL
        a = Map("square", (a,), dtype) if same else Map("logical_and" if dtype == BOOL else "mul", (a, b), dtype)
    return a
