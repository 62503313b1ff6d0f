"""Sizes of dimensions: integers, or monomials in names while they are unknown.

User code sees a size as an `Extent` (an int), or as an `Unknown` while it is symbolic. Both remember the
dimension they came from through the first few steps of arithmetic, so that `np.sum(x, -1) / x.shape[-1]`
divides by a *count* over that dimension and not by a constant: a reduction's prefix then has its own count.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .errors import ShapeError, TraceError
from .location import here


@dataclass(frozen=True, slots=True)
class Symbol:
    """coefficient * product of name**power: the size of a dimension that is not known yet."""

    coefficient: Fraction
    powers: tuple[tuple[str, int], ...]

    @classmethod
    def named(cls, name: str) -> Symbol:
        return cls(Fraction(1), ((name, 1),))

    @property
    def name(self) -> str | None:
        """The name, where the size is just that name."""
        return self.powers[0][0] if self.coefficient == 1 and len(self.powers) == 1 and self.powers[0][1] == 1 else None

    def __str__(self) -> str:
        up = [str(self.coefficient.numerator)] if self.coefficient.numerator != 1 else []
        up += [n if p == 1 else f"{n}**{p}" for n, p in self.powers if p > 0]
        down = [str(self.coefficient.denominator)] if self.coefficient.denominator != 1 else []
        down += [n if p == -1 else f"{n}**{-p}" for n, p in self.powers if p < 0]
        return "*".join(up or ["1"]) + "".join(f"/{d}" for d in down)

    __repr__ = __str__


Size = int | Symbol


def _monomial(size: Size) -> tuple[Fraction, dict[str, int]]:
    return (size.coefficient, dict(size.powers)) if isinstance(size, Symbol) else (Fraction(size), {})


def _combine(a: Size, b: Size, sign: int) -> Size:
    (ca, pa), (cb, pb) = _monomial(a), _monomial(b)
    c = ca * cb if sign > 0 else ca / cb
    for n, p in pb.items():
        pa[n] = pa.get(n, 0) + sign * p
    powers = tuple(sorted((n, p) for n, p in pa.items() if p))
    return Symbol(c, powers) if powers or c.denominator != 1 else int(c)


def times(a: Size, b: Size) -> Size:
    return a * b if isinstance(a, int) and isinstance(b, int) else _combine(a, b, 1)


def product(sizes: Any) -> Size:
    out: Size = 1
    for s in sizes:
        out = times(out, s)
    return out


def quotient(a: Size, b: Size) -> Size | None:
    """a / b, or None where it is known not to be whole."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    out = _combine(a, b, -1)
    return None if isinstance(out, Symbol) and not out.powers else out


def _rank(size: Size) -> tuple[int, Fraction]:
    """Orders sizes: by the number of unknown factors, then by the known one."""
    c, powers = _monomial(size)
    return sum(powers.values()), c


def size_groups(old: tuple[Size, ...], new: tuple[Size, ...]) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """The smallest runs of dimensions of equal product, row-major; dimensions of size 1 belong to none.
    None where the products do not meet."""
    ins, outs = ([d for d, s in enumerate(shape) if s != 1] for shape in (old, new))
    groups = []
    i = j = 0
    while i < len(ins) and j < len(outs):
        a, b = [ins[i]], [outs[j]]
        pa, pb = old[ins[i]], new[outs[j]]
        i, j = i + 1, j + 1
        while pa != pb:
            grow_old = _rank(pa) < _rank(pb)  # grow the smaller product
            if grow_old and i < len(ins):
                pa, i = times(pa, old[ins[i]]), i + 1
                a.append(ins[i - 1])
            elif not grow_old and j < len(outs):
                pb, j = times(pb, new[outs[j]]), j + 1
                b.append(outs[j - 1])
            else:
                return None
        groups.append((tuple(a), tuple(b)))
    return groups if i == len(ins) and j == len(outs) else None


# A term says how a number was made from sizes: ("dim", node, dimension) | (operation, term, term) | a number.
Term = Any
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def term_of(value: Any) -> Term:
    return value.term if isinstance(value, (Extent, Ratio, Unknown)) else value


def is_plain(value: Any) -> bool:
    """A Python number whose arithmetic with sizes is remembered (NumPy's scalars are not)."""
    return isinstance(value, (int, float, Unknown)) and not isinstance(value, np.generic)


def _arithmetic(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not is_plain(other):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        term = (name, term_of(a), term_of(b))
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            x: Any = a.size if isinstance(a, Unknown) else a
            y: Any = b.size if isinstance(b, Unknown) else b
            whole = name == "mul" and isinstance(x, (int, Symbol)) and isinstance(y, (int, Symbol))
            return Unknown(times(x, y) if whole else None, term)
        base = [float(v) if isinstance(v, float) else int(v) for v in (a, b)]
        value = _OPERATIONS[name](*base)
        return Extent(value, term) if isinstance(value, int) else Ratio(value, term)

    return method


class Extent(int):
    """The size of a dimension of a traced array. An int in every respect."""

    term: Term

    def __new__(cls, value: int, term: Term) -> Extent:
        self = super().__new__(cls, value)
        self.term = term
        return self

    __add__, __radd__ = _arithmetic("add", False), _arithmetic("add", True)
    __sub__, __rsub__ = _arithmetic("sub", False), _arithmetic("sub", True)
    __mul__, __rmul__ = _arithmetic("mul", False), _arithmetic("mul", True)
    __truediv__, __rtruediv__ = _arithmetic("div", False), _arithmetic("div", True)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`np.sqrt(x.shape[-1])` is a Python float, as `math.sqrt` gives: it does not widen float32 arrays."""
        out = getattr(ufunc, method)(*(int(a) if isinstance(a, Extent) else a for a in inputs), **kwargs)
        numbers = all(type(a) in (int, float, Extent, Ratio) for a in inputs)
        return out.item() if numbers and isinstance(out, np.generic) else out


class Ratio(float):
    """A float made from sizes, such as 1 / x.shape[-1]."""

    term: Term

    def __new__(cls, value: float, term: Term) -> Ratio:
        self = super().__new__(cls, value)
        self.term = term
        return self

    __add__, __radd__ = _arithmetic("add", False), _arithmetic("add", True)
    __sub__, __rsub__ = _arithmetic("sub", False), _arithmetic("sub", True)
    __mul__, __rmul__ = _arithmetic("mul", False), _arithmetic("mul", True)
    __truediv__, __rtruediv__ = _arithmetic("div", False), _arithmetic("div", True)


class Unknown:
    """The size of a symbolic dimension, or arithmetic on such sizes. `size` is None where it is no monomial."""

    __slots__ = ("size", "term")

    def __init__(self, size: Symbol | int | None, term: Term) -> None:
        self.size, self.term = size, term

    __add__, __radd__ = _arithmetic("add", False), _arithmetic("add", True)
    __sub__, __rsub__ = _arithmetic("sub", False), _arithmetic("sub", True)
    __mul__, __rmul__ = _arithmetic("mul", False), _arithmetic("mul", True)
    __truediv__, __rtruediv__ = _arithmetic("div", False), _arithmetic("div", True)

    def __floordiv__(self, other: Any) -> Unknown:
        return self._divided(self.size, other.size if isinstance(other, Unknown) else other, ("div", self.term, term_of(other)))

    def __rfloordiv__(self, other: Any) -> Unknown:
        return self._divided(other, self.size, ("div", other, self.term))

    def __pow__(self, power: float) -> Unknown:
        return Unknown(None, ("power", self.term, power))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and self.size is not None and self.size == other.size

    def __hash__(self) -> int:
        return hash(self.size)

    def __repr__(self) -> str:
        return str(self.size) if self.size is not None else "?"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from . import dispatch  # late: it is written in terms of this module

        return dispatch.ufunc(ufunc, method, inputs, kwargs)

    @staticmethod
    def _divided(a: Any, b: Any, term: Term) -> Unknown:
        if not isinstance(a, (int, Symbol)) or not isinstance(b, (int, Symbol)):
            raise ShapeError("this quotient of symbolic extents is not a size; give the extents as integers" + here())
        q = quotient(a, b)
        if q is None:
            raise ShapeError(f"{a} // {b} is not whole" + here())
        return Unknown(q, term)

    def _refuse(self, *_: Any) -> Any:
        raise TraceError(
            f"the extent {self!r} is symbolic, and this code needs its value (int, float, range, a comparison). "
            "Declare the dimension with an integer, as in rf.array('x', shape=(128, 64)), or trace a function on example arrays" + here()
        )

    __index__ = __int__ = __float__ = __bool__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


def size_of(value: Any, what: str) -> Size:
    """A size as user code writes it."""
    if isinstance(value, Unknown):
        if value.size is None:
            raise ShapeError(f"{what}: {value!r} is not a size; products and quotients of symbolic extents are" + here())
        return value.size
    if isinstance(value, Symbol):
        return value
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise TraceError(f"{what}: a size must be an integer, not {type(value).__name__}" + here()) from error
