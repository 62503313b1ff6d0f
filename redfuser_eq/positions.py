"""Where along a dimension an element is read, in axis names: the descriptors that naming hands down.

Place = None                      a dimension of size 1
      | name                      the axis runs through the whole dimension
      | Fixed(i)                  one position
      | Cut(start, step, place)   start + step * place, from a slice
      | Join(places, sizes)       several dimensions, row-major
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

from .errors import ShapeError
from .expr import Const, Expr, Index, Map, View
from .promotion import INT64
from .sizes import Size, Symbol, product


class Fixed(NamedTuple):
    at: int


class Cut(NamedTuple):
    """written: the slice as the user wrote it, where it applies to the dimension as it stands."""

    start: int | None
    step: int
    place: Any
    size: Size
    written: tuple[int | None, int | None, int | None] | None = None


class Join(NamedTuple):
    places: tuple[Any, ...]
    sizes: tuple[Size, ...]


Place = Union[None, str, Fixed, Cut, Join]  # noqa: UP007 (evaluated at run time on strings)
Places = tuple[Place, ...]


def names(places: Iterable[Place]) -> frozenset[str]:
    out: set[str] = set()
    for p in places:
        if isinstance(p, str):
            out.add(p)
        elif isinstance(p, Cut):
            out |= names((p.place,))
        elif isinstance(p, Join):
            out |= names(p.places)
    return frozenset(out)


def join(places: Sequence[Place], sizes: Sequence[Size]) -> Place:
    """Row-major joint position, without dimensions of size 1."""
    live = [(p, s) for p, s in zip(places, sizes, strict=True) if s != 1]
    if not live:
        return None
    return live[0][0] if len(live) == 1 else Join(tuple(p for p, _ in live), tuple(s for _, s in live))


def cut(start: int | None, step: int, place: Place, size: Size, written: Any = None) -> Place:
    """A position inside a slice of `size` elements, as a position in the whole dimension."""
    if place is None or isinstance(place, Fixed):
        inside = 0 if place is None else place.at
        if start is None:
            raise ShapeError("an index into a slice with a negative start of a symbolic extent; give the extent as an integer")
        return Fixed(start + step * inside)
    if isinstance(place, Cut) and start is not None and place.start is not None:
        return Cut(start + step * place.start, step * place.step, place.place, place.size)
    return Cut(start, step, place, size, written)


def flatten(place: Place, size: Size) -> list[tuple[Place, Size]]:
    """The row-major digits of a position, each with its size."""
    if isinstance(place, Join):
        return [d for p, s in zip(place.places, place.sizes, strict=True) for d in flatten(p, s)]
    if isinstance(place, Cut) and isinstance(place.place, Join) and place.step == 1 and place.start is not None:
        inner = product(place.place.sizes[1:])
        if isinstance(inner, int) and isinstance(size, int) and place.start % inner == 0 and size % inner == 0:
            first = place.place.sizes[0]
            return [(cut(place.start // inner, 1, place.place.places[0], first), size // inner), *_tail(place.place)]
    return [(place, size)]


def _tail(j: Join) -> list[tuple[Place, Size]]:
    return [d for p, s in zip(j.places[1:], j.sizes[1:], strict=True) for d in flatten(p, s)]


def regroup(places: Sequence[tuple[Place, Size]], sizes: Sequence[Size]) -> list[Place] | None:
    """Digits of one joint position distributed to dimensions of the given sizes; None where a digit straddles two."""
    digits = [d for p, s in places for d in flatten(p, s)]
    out: list[Place] = []
    for size in sizes:
        got: list[tuple[Place, Size]] = []
        have: Size = 1
        while have != size:
            if not digits:
                return None
            place, s = digits.pop(0)
            if isinstance(s, int) and isinstance(size, int) and isinstance(have, int) and have * s > size:
                outer = size // have
                both = _split(place, s // outer) if size % have == 0 and s % outer == 0 else None
                if both is None:
                    return None
                digits.insert(0, (both[1], s // outer))
                place, s = both[0], outer
            got.append((place, s))
            have = product((have, s))
        out.append(join([p for p, _ in got], [s for _, s in got]))
    return out


def _split(place: Place, inner: int) -> tuple[Place, Place] | None:
    """Quotient and remainder of a position by an inner size, where one of them is constant."""
    if isinstance(place, Fixed):
        return Fixed(place.at // inner), Fixed(place.at % inner)
    if isinstance(place, Cut) and place.step == 1 and place.start is not None and isinstance(place.size, int):
        block, offset = divmod(place.start, inner)
        if offset + place.size <= inner:
            return Fixed(block), place.place if place.size == inner else Cut(offset, 1, place.place, place.size)
    return None


def value(place: Place) -> Expr:
    """The position as an integer expression."""
    if place is None:
        return Const(0, INT64)
    if isinstance(place, str):
        return Index(place)
    if isinstance(place, Fixed):
        return Const(place.at, INT64)
    if isinstance(place, Cut):
        if place.start is None:
            raise ShapeError("positions inside a slice with a negative start of a symbolic extent; give the extent as an integer")
        return affine(value(place.place), place.step, place.start)
    out = value(place.places[0])
    for p, s in zip(place.places[1:], place.sizes[1:], strict=True):
        if isinstance(s, Symbol):
            raise ShapeError(f"positions along a joined dimension need its inner extent {s}; give it as an integer")
        scaled, inner = affine(out, s, 0), value(p)
        out = scaled if isinstance(inner, Const) and inner.value == 0 else Map("add", (scaled, inner), INT64)
    return out


def affine(e: Expr, step: int, start: int) -> Expr:
    if isinstance(e, Const):
        return Const(int(e.value) * step + start, INT64)
    if step != 1:
        e = Map("mul", (e, Const(step, INT64)), INT64)
    return e if start == 0 else Map("add", (e, Const(start, INT64)), INT64)


class _Axis(NamedTuple):
    """One dimension of an input as it is read: basic index, sizes it is split into, index of each part, names."""

    cut: slice | int
    splits: tuple[int, ...]
    then: tuple[slice | int, ...]
    names: tuple[str, ...]


_ALL = slice(None)


def view(places: Places, sizes: Sequence[Size]) -> tuple[View, tuple[str, ...]]:
    """The view of an input and the axis names that read it, for a place in each of its dimensions."""
    read = [_axis(p, s) for p, s in zip(places, sizes, strict=True)]
    live = [a for a in read if isinstance(a.cut, slice)]
    index = tuple(a.cut for a in read)
    splits = tuple(a.splits for a in live)
    then = tuple(t for a in live for t in a.then)
    found = tuple(n for a in live for n in a.names)
    return (
        View(
            () if all(i == _ALL for i in index) else index,
            () if all(s == (-1,) for s in splits) else splits,
            () if all(t == _ALL for t in then) else then,
        ),
        found,
    )


def _axis(place: Place, size: Size) -> _Axis:
    if place is None or isinstance(place, Fixed):
        return _Axis(0 if place is None else place.at, (), (), ())
    if isinstance(place, str):
        return _Axis(_ALL, (-1,), (_ALL,), (place,))
    if isinstance(place, Cut):
        inner = place.place
        if isinstance(inner, str):
            return _Axis(_slice(place), (-1,), (_ALL,), (inner,))
        if isinstance(inner, Join):
            return _axis(inner, product(inner.sizes))._replace(cut=_slice(place))
        raise ShapeError("a slice of a slice of a symbolic dimension; give its extent as an integer")
    digits = flatten(place, size)
    then: list[slice | int] = []
    found: list[str] = []
    for p, _ in digits:
        if isinstance(p, Cut) and isinstance(p.place, str):
            then.append(_slice(p))
            found.append(p.place)
        elif isinstance(p, Fixed):
            then.append(p.at)
        elif isinstance(p, str):
            then.append(_ALL)
            found.append(p)
        else:
            raise ShapeError("an input is reshaped, sliced and reshaped again; reshape it before the call")
    unknown = [i for i, (_, s) in enumerate(digits) if isinstance(s, Symbol)]
    if len(unknown) > 1:
        raise ShapeError("an input dimension is split into two unknown extents; give one of them as an integer")
    return _Axis(_ALL, tuple(s if isinstance(s, int) else -1 for _, s in digits), tuple(then), tuple(found))


def _slice(c: Cut) -> slice:
    """As the user wrote it where that is still true, so that a program's structure does not hold sizes needlessly."""
    if c.written is not None:
        return slice(*c.written)
    assert c.start is not None
    if isinstance(c.size, Symbol):
        raise ShapeError("a slice of a slice of a symbolic dimension; give its extent as an integer")
    stop = c.start + c.step * (c.size - 1) + (1 if c.step > 0 else -1)
    return slice(c.start, stop if stop >= 0 else None, c.step if c.step != 1 else None)
