"""Sums of products as matrix products.

`sum_k a[i,k] * g[k] * w[k,n]` never takes the memory of its body: its factors are gathered into two
operands and multiplied by BLAS. `plan_sum` decides this from the axes alone; a sum of terms is taken term
by term; a body that some value fills anyway (`exp(x - m)`) is left to a plain fold.

A row's result must not depend on the rows beside it, but a BLAS kernel may compute an element by different
instructions in different places of the result: with OpenBLAS's single-precision kernel for AVX2, the same
row gave two different sums within one product of 24 rows. Where rows fill exactly the 16 entries of the
fastest dimension of a product, they fill whole vector registers and all go through the same instructions;
this held for every size, layout and thread count measured, at 0.65 to 0.8 of the speed of one large
product. So the row operand is cut into blocks of 16 rows, the last one padded with zeros (`multiply_rows`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..expr import Axes, Expr, Map
from ..interpret import Array

LANES = 16
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


@dataclass(frozen=True)
class Term:
    """One term of a sum; body: a product, or an expression to fold."""

    body: Product | Expr
    negative: bool = False


def plan_sum(body: Expr, axis: str, rank: Mapping[str, int], extents: Mapping[str, int]) -> tuple[Term, ...] | None:
    """How to sum `body` over `axis` without holding it; None if a plain fold is as good.

    rank: the axes of rows, outermost first, before all others.
    """
    if axis not in body.axes or _filled(body, body.axes):
        return None
    terms = tuple(_terms(body, axis, False, rank, extents))
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


def _terms(e: Expr, axis: str, negative: bool, rank: Mapping[str, int], extents: Mapping[str, int]) -> Iterable[Term]:
    if isinstance(e, Map) and e.op in ("add", "sub") and not _filled(e, e.axes):
        yield from _terms(e.args[0], axis, negative, rank, extents)
        yield from _terms(e.args[1], axis, negative != (e.op == "sub"), rank, extents)
        return
    if isinstance(e, Map) and e.op == "neg":
        yield from _terms(e.args[0], axis, not negative, rank, extents)
        return
    factors, minus = _factors(e, False)
    if any(f.expr.axes == e.axes for f in factors):
        yield Term(e, negative)
        return
    yield Term(_sides(factors, axis, rank, extents), negative != minus)


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


def _sides(factors: Sequence[Factor], axis: str, rank: Mapping[str, int], extents: Mapping[str, int]) -> Product:
    """Gather factors into two operands: first those with axes of their own, then the rest into whichever
    operand that holds their axes is smaller."""
    hosts: list[Axes] = []
    for f in sorted(factors, key=lambda f: -len(f.expr.axes)):
        if not any(f.expr.axes <= h for h in hosts):
            hosts.append(f.expr.axes)
    while len(hosts) > 2:
        a, b = min(_pairs(hosts), key=lambda p: (math.prod(min(extents[x], ROWS) for x in p[0] | p[1]), sorted(p[0] | p[1])))
        hosts = [h for h in hosts if h not in (a, b)] + [a | b]
    first = min(hosts, key=lambda h: _lane_rank(h, [g for g in hosts if g != h], axis, rank))
    second = next(h for h in hosts if h != first)
    sides: dict[Axes, list[Factor]] = {first: [], second: []}
    rows = first - second
    for f in factors:
        fits = [h for h in (first, second) if f.expr.axes <= h]
        sides[min(fits, key=lambda h: _volume(h, rows, extents))].append(f)
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


def contract(a: Array, b: Array, left: Axes, right: Axes, axis: str, order: Sequence[str]) -> Array:
    """sum over `axis` of a * b. a, b: one dimension for each axis of `order`; they vary over `left`, `right`."""
    dims = {x: i for i, x in enumerate(order)}
    if axis not in left or axis not in right:
        if axis in left:
            a = a.sum(axis=dims[axis], keepdims=True)
        else:
            b = b.sum(axis=dims[axis], keepdims=True)
        return np.asarray(a * b)
    batch = [x for x in order if x in left and x in right and x != axis]
    rows = [x for x in order if x in left and x not in right]
    cols = [x for x in order if x in right and x not in left]
    a2 = _matrix(a, [dims[x] for x in batch], [dims[x] for x in rows], dims[axis])
    b2 = _matrix(b, [dims[x] for x in batch], [dims[x] for x in cols], dims[axis])
    c = multiply_rows(a2, b2) if rows else np.matmul(a2, b2.swapaxes(-1, -2))
    sizes = [a.shape[dims[x]] for x in batch + rows] + [b.shape[dims[x]] for x in cols]
    c = c.reshape(sizes + [1] * (len(order) - len(sizes)))
    given = batch + rows + cols
    place = {x: i for i, x in enumerate(given + [x for x in order if x not in given])}
    return c.transpose([place[x] for x in order])


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
    if rows % LANES:
        padded = np.zeros((*a.shape[:-2], -(-rows // LANES) * LANES, k), a.dtype)
        padded[..., :rows, :] = a
        a = padded
    blocks = a.reshape(*a.shape[:-2], -1, LANES, k).swapaxes(-1, -2)
    c: Array = np.matmul(b[..., None, :, :], blocks).swapaxes(-1, -2)
    return c.reshape(*c.shape[:-3], -1, c.shape[-1])[..., :rows, :]
