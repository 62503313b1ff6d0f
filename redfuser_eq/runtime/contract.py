"""Sums of products as matrix products.

`sum_k a[i,k] * g[k] * w[k,n]` never takes the memory of its body: its factors are gathered into two
operands and multiplied by BLAS. `plan_sum` decides this from the axes alone; a sum of terms is taken term
by term; a body that some value fills anyway (`exp(x - m)`) is left to a plain fold.

A row's result must not depend on the rows beside it, but a BLAS kernel may compute an element by different
instructions in different places of the result, and in other ways in results of other sizes: OpenBLAS's
single-precision kernel for AVX2 gave two different sums for the same row within one product of 12 or 24
rows, and its threads split differently with the size. Products of exactly 8 rows gave one sum in every
place, for every size, layout, precision and thread count measured. So the row operand is taken in blocks
of 8 rows, the last one padded with zeros, and each product is kept below the size from which OpenBLAS
shares it among threads (threads that wait for each other in small products cost more than they bring;
tiles are shared among threads instead). The price is about half of the speed of one large product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..expr import Axes, Expr, Map
from ..interpret import Array

LANES = 8
SINGLE = 1 << 18  # multiplications of a matrix product that stays on one thread
INNER = 256  # terms of a sum that one product takes, at least
VECTOR = 1 << 13  # the same for a vector times a matrix
ROWS = 256  # how many rows there are, as far as a plan is concerned: it must not depend on the number


@dataclass(frozen=True)
class Factor:
    expr: Expr
    inverse: bool = False


Factors = tuple[Factor, ...]


@dataclass(frozen=True)
class Product:
    """The sum over an axis of left * right. left: the operand that varies over rows."""

    left: Factors
    right: Factors

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        return tuple(f.expr for f in self.left + self.right)

    @cached_property
    def axes(self) -> tuple[Axes, Axes]:
        return axes_of(self.left), axes_of(self.right)


@dataclass(frozen=True)
class Term:
    """One term of a sum; body: a product, or an expression to fold."""

    body: Product | Expr
    negative: bool = False


@dataclass(frozen=True)
class Roles:
    """What a plan knows about axes. rows: the parallel axes, outermost first; columns: those of them that
    are no rows, because the parameters they meet do not have them (`d` in attention); extents: sizes."""

    rows: Mapping[str, int]
    columns: Axes
    extents: Mapping[str, int]


def plan_sum(body: Expr, axis: str, roles: Roles) -> tuple[Term, ...] | None:
    """How to sum `body` over `axis` without holding it; None if a plain fold is as good."""
    if axis not in body.axes:
        return None
    terms = tuple(_terms(body, axis, False, roles))
    return None if any(t.body is body for t in terms) else terms


def axes_of(factors: Factors) -> Axes:
    return frozenset().union(*(f.expr.axes for f in factors))


def _filled(e: Expr, axes: Axes) -> bool:
    """Whether some value that has to be computed for e already varies over all of `axes`."""
    if e.axes != axes:
        return False
    if isinstance(e, Map) and e.op in ("mul", "add", "sub", "neg"):
        return any(_filled(a, axes) for a in e.args)
    if isinstance(e, Map) and e.op == "div":
        return _filled(e.args[0], axes) or e.args[1].axes == axes
    return True


def _terms(e: Expr, axis: str, negative: bool, roles: Roles) -> Iterable[Term]:
    if isinstance(e, Map) and e.op in ("add", "sub") and not _filled(e, e.axes):
        yield from _terms(e.args[0], axis, negative, roles)
        yield from _terms(e.args[1], axis, negative != (e.op == "sub"), roles)
        return
    if isinstance(e, Map) and e.op == "neg":
        yield from _terms(e.args[0], axis, not negative, roles)
        return
    factors, minus = _factors(e, False)
    full = tuple(f for f in factors if f.expr.axes == e.axes)
    if not full:
        yield Term(_sides(factors, axis, roles), negative != minus)
        return
    rest = tuple(f for f in factors if f.expr.axes != e.axes)
    own = e.axes - axes_of(rest)
    if axis in own or not own or any(a in roles.rows and a not in roles.columns for a in own):
        yield Term(e, negative)
    else:  # a vector times a matrix
        yield Term(Product(rest, full), negative != minus)


def _factors(e: Expr, inverse: bool) -> tuple[list[Factor], bool]:
    """The factors of a product, and whether it is negated."""
    if isinstance(e, Map) and e.op == "neg":
        found, minus = _factors(e.args[0], inverse)
        return found, not minus
    if isinstance(e, Map) and e.op in ("mul", "div"):
        a, m = _factors(e.args[0], inverse)
        b, n = _factors(e.args[1], inverse) if e.op == "mul" else ([Factor(e.args[1], not inverse)], False)
        return a + b, m != n
    return [Factor(e, inverse)], False


def _sides(factors: Sequence[Factor], axis: str, roles: Roles) -> Product:
    """Gather factors into two operands: first those with axes of their own, then the rest into whichever
    operand that holds their axes is smaller."""
    hosts: list[Axes] = []
    for f in sorted(factors, key=lambda f: -len(f.expr.axes)):
        if not any(f.expr.axes <= h for h in hosts):
            hosts.append(f.expr.axes)
    while len(hosts) > 2:
        a, b = min(_pairs(hosts), key=lambda p: (math.prod(min(roles.extents[x], ROWS) for x in p[0] | p[1]), sorted(p[0] | p[1])))
        hosts = [h for h in hosts if h not in (a, b)] + [a | b]
    first = min(hosts, key=lambda h: _lane_rank(h, [g for g in hosts if g != h], axis, roles.rows))
    second = next(h for h in hosts if h != first)
    sides: dict[Axes, list[Factor]] = {first: [], second: []}
    rows = first - second
    for f in factors:
        fits = [h for h in (first, second) if f.expr.axes <= h]
        sides[min(fits, key=lambda h: _volume(h, rows, roles.extents))].append(f)
    left, right = (tuple(sorted(sides[h], key=lambda f: (f.inverse, -len(f.expr.axes)))) for h in (first, second))
    return Product(left, right)


def _lane_rank(host: Axes, others: Iterable[Axes], axis: str, rank: Mapping[str, int]) -> int:
    own = host - {axis} - frozenset().union(*others)
    return min((rank.get(a, len(rank)) for a in own), default=len(rank) + 1)


def _pairs(hosts: Sequence[Axes]) -> Iterable[tuple[Axes, Axes]]:
    return ((a, b) for i, a in enumerate(hosts) for b in hosts[i + 1 :])


def _volume(host: Axes, rows: Axes, extents: Mapping[str, int]) -> int:
    shared = math.prod(min(extents[a], 2 * ROWS) for a in host - rows)
    return shared * (ROWS if host & rows else 1)


# ---- execution


@lru_cache(maxsize=4096)
def _places(left: Axes, right: Axes, axis: str, order: tuple[str, ...]) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Dimensions shared by both operands, of the left alone, of the right alone, all of these and the rest;
    and how to bring a result with its dimensions in that order back to `order`."""
    batch = [i for i, x in enumerate(order) if x in left and x in right and x != axis]
    rows = [i for i, x in enumerate(order) if x in left and x not in right]
    cols = [i for i, x in enumerate(order) if x in right and x not in left]
    given = batch + rows + cols
    given += [i for i in range(len(order)) if i not in given]
    return batch, rows, cols, given, [given.index(i) for i in range(len(order))]


def contract(a: Array, b: Array, left: Axes, right: Axes, axis: str, order: tuple[str, ...]) -> Array:
    """sum over `axis` of a * b. a, b: one dimension for each axis of `order`; they vary over `left`, `right`."""
    k = order.index(axis)
    if axis not in left or axis not in right:
        if axis in left:
            a = a.sum(axis=k, keepdims=True)
        else:
            b = b.sum(axis=k, keepdims=True)
        return np.asarray(a * b)
    batch, rows, cols, given, back = _places(left, right, axis, order)
    a2, b2 = _matrix(a, batch, rows, k), _matrix(b, batch, cols, k)
    c = multiply_rows(a2, b2) if rows else _multiply(a2, b2, VECTOR)
    n = len(batch) + len(rows)
    sizes = [a.shape[i] for i in given[:n]] + [b.shape[i] for i in cols]
    return c.reshape(sizes + [1] * (len(order) - len(sizes))).transpose(back)


def _matrix(a: Array, batch: list[int], rows: list[int], k: int) -> Array:
    """The operand as (batch..., rows, k), in a layout that BLAS takes."""
    used = [*batch, *rows, k]
    turned = a.transpose(used + [i for i in range(a.ndim) if i not in used])
    shape = [a.shape[i] for i in batch]
    m = turned.reshape([*shape, math.prod(a.shape[i] for i in rows), a.shape[k]])
    return m if _blas_layout(m) else np.ascontiguousarray(m)


def _blas_layout(m: Array) -> bool:
    """Whether the last two dimensions have one unit stride and one that is at least a row long."""
    item = m.itemsize
    (rows, k), (s, t) = m.shape[-2:], m.strides[-2:]
    return (t == item and s >= k * item and s % item == 0) or (s == item and t >= rows * item and t % item == 0)


def multiply_rows(a: Array, b: Array) -> Array:
    """a @ b.T for a (..., rows, k) and b (..., n, k), such that each row's result is the same whatever the
    other rows are."""
    rows, k = a.shape[-2:]
    blocks = -(-rows // LANES)
    if rows % LANES:
        padded = np.zeros((*a.shape[:-2], blocks * LANES, k), a.dtype)
        padded[..., :rows, :] = a
        a = padded
    a = np.ascontiguousarray(a).reshape(*a.shape[:-2], blocks, LANES, k)
    c = _multiply(a, b[..., None, :, :], SINGLE // LANES, pack=blocks > 8)
    return c.reshape(*c.shape[:-3], blocks * LANES, c.shape[-1])[..., :rows, :]


def _multiply(a: Array, b: Array, area: int, pack: bool = False) -> Array:
    """a @ b.T, in parts of b of at most `area` elements, each copied before many uses if `pack`."""
    (rows, k), n = a.shape[-2:], b.shape[-2]
    if a.dtype.kind != "f" or 0 in (n, k):
        return np.asarray(np.matmul(a, b.swapaxes(-1, -2)))
    deep = rows == 1 and b.strides[-1] == b.itemsize  # a vector goes along what is contiguous in b
    depth = min(k, area if deep else max(INNER if rows > 1 else 1, area // n))
    width = max(1, min(n, area // max(1, depth)))
    c = np.empty((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), rows, n), a.dtype)
    for start in range(0, k, depth):
        left = a[..., start : start + depth]
        for at in range(0, n, width):
            right = b[..., at : at + width, start : start + depth].swapaxes(-1, -2)
            right = np.ascontiguousarray(right) if pack else right
            part = c[..., at : at + width]
            if start == 0:
                np.matmul(left, right, out=part)
            else:
                part += np.matmul(left, right)
    return c
