"""Values of elements that several sweeps need: computed once, kept in scratch.

A level's sweep runs when the parameters it reads are up to date. What a later level needs of the same parameters is the same
value; where it is dear (an exponential), storing and loading it is cheaper than computing it again. An output along the stream
needs it in the final parameters: then the value is moved to them, by the law that moves the sum of such values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .cascade import Accumulator
from .expr import Acc, Const, Expr, Map, Prev, Reduce, nodes
from .ops import OPS
from .roles import factors, product, terms

HEAVY = 8.0  # operations from which a value is worth a store and a load


def shared(
    levels: Sequence[Sequence[str]], lifts: Mapping[str, Expr], later: Sequence[Expr], stream: str, barred: frozenset[str]
) -> Iterator[tuple[int, Expr]]:
    """(level, value): the largest heavy values along the stream that the lifts of a level hold and those of a later level, or
    `later`, hold too, and that read no accumulator of this level or a later one. barred: axes that a tile does not have."""
    taken: set[Expr] = set()
    for n, level in enumerate(levels):
        known = {x for names in levels[:n] for x in names}
        mine = _values([lifts[x] for x in level], known, stream, barred)
        rest = set(nodes(*(lifts[x] for names in levels[n + 1 :] for x in names), *later))
        found = [e for e in mine if e in rest and e not in taken]
        inside = {x for e in found for x in nodes(e) if x is not e}
        for e in found:
            if e not in inside:
                taken.add(e)
                yield n, e


def _values(lifts: Sequence[Expr], known: set[str], stream: str, barred: frozenset[str]) -> list[Expr]:
    """Heavy floating-point values along the stream that need no accumulator but the known ones."""
    out: list[Expr] = []
    for e in nodes(*lifts):
        if not isinstance(e, Map) or stream not in e.axes or e.axes & barred or e.dtype.kind != "f":
            continue
        inner = list(nodes(e))
        if any(isinstance(x, (Prev, Reduce)) or (isinstance(x, Acc) and x.name not in known) for x in inner):
            continue
        if sum(OPS[x.op].cost for x in inner if isinstance(x, Map) and stream in x.axes) >= HEAVY:
            out.append(e)
    return out


def movable(value: Expr, accs: Sequence[Accumulator], lifts: Mapping[str, Expr], rebases: Mapping[str, Expr]) -> Expr | None:
    """The factor that takes a saved value from the parameters of its tile (`Prev`) to the final ones (`Acc`): 1 when it reads
    none; else that of a sum of such values, whose rebase is factor * previous sum: what holds for every sum holds for one
    element. None when there is no such law."""
    if not any(isinstance(x, Acc) for x in nodes(value)):
        return Const(1.0, value.dtype)
    for a in accs:
        if a.op != "sum" or lifts[a.name] is not value or a.name not in rebases or len(terms(rebases[a.name])) != 1:
            continue
        parts = factors(rebases[a.name])
        own = [f for f in parts if isinstance(f, Prev) and f.name == a.name]
        rest = product([f for f in parts if f not in own])
        if len(own) == 1 and rest is not None:
            return rest
    return None
