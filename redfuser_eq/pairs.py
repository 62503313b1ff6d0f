"""Products of 16-bit numbers in pairs: which factors qualify, and how long a sum of theirs stays exact.

A factor qualifies by the dtype of its values, whatever computes them: small integers multiply exactly on integer units, two
products an instruction; bfloat16 does on devices with an instruction for it. Neither changes what the program means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .expr import Cast, Expr, Map, Reduce, nodes
from .tiles import Sizes

BOUNDS = {"bool": 1, "int8": 128, "uint8": 255, "int16": 32768}  # largest magnitudes
SIGNIFICANT = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # bits: integers up to 2 ** bits are exact
WORTH = 16  # a shorter sum is converted too often


@dataclass(frozen=True)
class Pairs:
    """dtype: tag of the packed elements. most: how many products a sum may hold, a multiple of 16."""

    dtype: str
    most: int

    def block(self, n: int) -> int:
        """The inner block nearest to n, which is even."""
        return min(n, self.most)


def pairs_of(a: Expr, b: Expr, product: Expr, real: str, formats: tuple[str, ...]) -> Pairs | None:
    """How sum(a * b) is taken in pairs, or None. product: the lift, whose dtype must not wrap or round."""
    x, y = values(a), values(b)
    integers = product.dtype.name in ("int32", "int64", "float32", "float64")
    if "i16" in formats and x in BOUNDS and y in BOUNDS and integers:
        most = integer_most(BOUNDS[x] * BOUNDS[y], real)
        return Pairs("i16", most) if most >= WORTH else None
    if "bf16" in formats and real == "float" and x == y == "bfloat16" and product.dtype.name in ("float32", "bfloat16"):
        return Pairs("bf16", 1 << 30)
    return None


def integer_most(largest: int, real: str) -> int:
    """How many products of magnitude up to `largest` a sum may hold.

    m of them sum up to m * largest at most. With that below 2^31 int32 is exact, in whatever order. The sum is then converted: to
    double exactly, and to float exactly where m * largest <= 2^24 too, which for 8-bit factors is the case (1,024 products of
    -128 * -128 make 2^24 just so). Where float would allow less than 64, the conversion rounds the exact sum, once a block: a sum
    of floats rounds at every step."""
    most = (2**31 - 1) // largest
    exact = 2**24 // largest
    if real == "float" and exact >= 64:
        most = exact
    return min(most, 1 << 30) // WORTH * WORTH


def long_sums(roots: Iterable[Expr], extents: Mapping[str, int]) -> bool:
    """Whether an integer sum inside an element may pass 2^24, so that float could not hold it."""
    for e in nodes(*roots):
        if isinstance(e, Reduce) and e.op == "sum" and e.dtype.kind in "iu":
            largest = magnitude(e.body)
            if largest is not None and largest * extents[e.axis] > 2**24:
                return True
    return False


def magnitude(e: Expr) -> int | None:
    """The largest magnitude of a product or sum of small integers; None for anything else."""
    if e.dtype.name in BOUNDS:
        return BOUNDS[e.dtype.name]
    if isinstance(e, Cast):
        return magnitude(e.args[0])
    if isinstance(e, Map) and e.op in ("mul", "add", "sub"):
        a, b = (magnitude(x) for x in e.args)
        return None if a is None or b is None else a * b if e.op == "mul" else a + b
    return None


def values(e: Expr) -> str:
    """The dtype of the values of a factor, seen through casts that keep every one of them."""
    while isinstance(e, Cast) and _keeps(e.args[0].dtype, e.dtype):
        e = e.args[0]
    return e.dtype.name


def _keeps(old: np.dtype[np.generic], new: np.dtype[np.generic]) -> bool:
    if old == new:
        return True
    if old.name == "bfloat16":
        return new.name in ("float32", "float64")
    if old.name not in BOUNDS:
        return False
    if new.name in SIGNIFICANT:
        return bool(BOUNDS[old.name] <= 2 ** SIGNIFICANT[new.name])
    return bool(new.kind in "iu" and np.can_cast(old, new, "safe"))


def pair_sizes(s: Sizes) -> Sizes:
    """Sizes of register blocks and operands: sums of 32 bits, elements of 16."""
    return Sizes(s.device, s.lanes * s.element // 4, 2)
