"""What a group becomes before its form is chosen on tensor cores: passes apart, operands written once, factors in their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from .cascade import Accumulator, Cascade, Pass
from .codegen.dtypes import BYTES, DTYPES
from .expr import Acc, Cast, Expr, Load, Map, Prev, Reduce, nodes, transform
from .roles import Roles, classify, factors, find_product, product, split_columns, terms

if TYPE_CHECKING:
    from .cuda_schedule import CudaScheduler
    from .schedule import Group

NARROW = ("f16", "bf16")  # operands that the instructions take
COLUMNS = 128  # of one block: their accumulators fill half of the registers


def narrow(s: CudaScheduler) -> tuple[str, ...]:
    """Dtypes of arrays that are multiplied in a format of theirs: float32 as tf32 where accuracy may be lost."""
    return (*NARROW, "f32") if s.c.numerics == "fast" else NARROW


def prologue(s: CudaScheduler, g: Group) -> list[Group]:
    """The group, or where the rebase of a product with columns is more than a row factor, its parameters as a group before it.

    The product then multiplies by the final parameters, and needs no rebase: its rows are read twice, its columns once."""
    if s.choice.get("form", "mma") != "mma":
        return [g]
    if len(g.passes) == 2 and not any(g.roles[0].columns.values()) and _many_columns(s, g.roles[1]):
        return _with_written_operands(s, *(type(g)([p], [r]) for p, r in zip(g.passes, g.roles, strict=True)))
    if len(g.passes) != 1:
        return [g]
    (p,), (r,) = g.passes, g.roles
    rows, columns = set(r.rows), [a for a in p.accumulators if r.columns[a.name]]
    products = [a for a in columns if rows & set(a.axes)]
    done = {e.name for o in s.c.outputs for e in nodes(o.expr) if isinstance(e, Acc)}
    alone = [a for a in columns if a not in products and a.name in done]
    params = [a for a in p.accumulators if a not in columns]
    if not products or not params or not all(_product_of_narrow(s, a, r) for a in products):
        return [g]
    if all(a.rebase is None or scales(a.name, a.rebase, set(r.columns[a.name])) for a in columns) and not alone:
        return [g]
    if any(a.rebase is not None for a in alone):
        return [g]
    own = [Pass(p.axis, tuple(replace(a, rebase=None) for a in x)) for x in ([a] for a in alone)]
    passes = [Pass(p.axis, tuple(params)), *own, Pass(p.axis, tuple(replace(a, rebase=None) for a in products))]
    return [type(g)([x], [classify(x)]) for x in passes]


def _with_written_operands(s: CudaScheduler, first: Group, second: Group) -> list[Group]:
    """Left operands of a few bits that several blocks of columns need are written once, by the phase that has their parameters.

    before: second: sum_k narrow(x[r,k] / hi[r]) * w[k,n]; after: first: q[r,k] = narrow(x[r,k] / hi[r]); second: sum_k q[r,k] * w[k,n]"""
    (p,), (r,) = second.passes, second.roles
    accs = []
    for a in p.accumulators:
        w, v = split_columns(a.lift, r.columns[a.name])
        tag = exact(w) if w is not None else ""
        inner = w
        while isinstance(inner, Cast) and DTYPES.get(inner.dtype.name) != tag:
            inner = inner.args[0]
        if tag in BYTES and w is not None and v is not None and isinstance(inner, Cast) and inner.args[0].dtype.kind == "f":
            dims = (*(x for x in r.rows if x in w.axes), p.axis)
            place = s.written(inner.args[0], inner.dtype, dims, first)
            a = replace(a, lift=Map("mul", (Cast(place, w.dtype), v), a.lift.dtype))
        accs.append(a)
    passes = [Pass(p.axis, tuple(accs))]
    return [first, type(second)(passes, [classify(x) for x in passes])]


def _many_columns(s: CudaScheduler, r: Roles) -> bool:
    """Several blocks of columns would each compute the parameters again."""
    return any(s.extents[c] > COLUMNS for cs in r.columns.values() for c in cs)


def _product_of_narrow(s: CudaScheduler, a: Accumulator, r: Roles) -> bool:
    w, v = split_columns(a.lift, r.columns[a.name])
    array = next((x for x in s.inputs if isinstance(v, Load) and x.name == v.source), None)
    return a.op == "sum" and w is not None and array is not None and array.dtype in narrow(s) and r.stream in array.dims


def scales(name: str, e: Expr, cols: set[str]) -> bool:
    """The rebase of an accumulator with columns is a row factor of its own previous value."""
    ts = [signless(t) for t in terms(e)]
    own = [f for f in ts[0] if isinstance(f, Prev) and f.name == name]
    return len(ts) == 1 and len(own) == 1 and not any(f.axes & cols for f in ts[0] if f is not own[0])


def signless(e: Expr) -> list[Expr]:
    """The factors of a term, its sign left out."""
    return signless(e.args[0]) if isinstance(e, Map) and e.op == "neg" else factors(e)


def separate(lift: Expr, stream: str, row: str) -> Expr:
    """Move factors without the inner axis out of a product, and exact widenings off its operands.

    sum_e (a * q[i,e]) * k[j,e] -> a * sum_e q[i,e] * k[j,e]"""
    p = find_product([lift], stream, row)
    if p is None:
        return lift
    fs = [_widened(f) for f in factors(p.node.body)]
    inside = product(f for f in fs if p.inner in f.axes)
    outside = product(f for f in fs if p.inner not in f.axes)
    assert inside is not None
    node: Expr = Reduce("sum", p.inner, inside, dtype=p.node.dtype)
    new = node if outside is None else Map("mul", (outside, node), p.node.dtype)
    return transform(lift, lambda e: new if e is p.node else None) if new is not p.node else lift


def bare(lift: Expr, columns: tuple[str, ...]) -> Expr:
    """Take an exact widening off the factor with columns, where the other factor is as exact."""
    w, v = split_columns(lift, columns) if columns else (None, None)
    load = v.args[0] if isinstance(v, Cast) else None
    if w is None or not isinstance(load, Load) or not exact(load) or not exact(w):
        return lift
    return Map("mul", (w, load), lift.dtype)


def exact(e: Expr) -> str:
    """The tag of the dtype of 8 or 16 bits that e's values have, though they may have been widened, or ""."""
    if isinstance(e, Cast) and e.dtype.kind in "fi" and e.dtype.itemsize >= 4:
        tag = exact(e.args[0])
        return tag if e.dtype.kind == "f" or tag == "i8" else ""
    tag = DTYPES.get(e.dtype.name, "")
    return tag if isinstance(e, (Cast, Load)) and tag in (*NARROW, *BYTES) else ""


def _widened(e: Expr) -> Expr:
    wide = isinstance(e, Cast) and isinstance(e.args[0], Load) and e.dtype.kind in "fi" and e.dtype.itemsize > e.args[0].dtype.itemsize
    return e.args[0] if wide and exact(e) else e


def whole_sums(c: Cascade, extents: Mapping[str, int]) -> frozenset[str]:
    """Integer accumulators that are sums of products of int8, short enough for 32 bits, and that only outputs read: as they are, or
    converted to a float. Matrix instructions make them exactly."""
    found = set()
    for p in c.passes:
        r = classify(p)
        for a in p.accumulators:
            w, v = split_columns(a.lift, r.columns[a.name]) if r.columns[a.name] else (None, None)
            bytes_ = w is not None and v is not None and exact(w) == exact(v) == "i8"
            if bytes_ and a.op == "sum" and a.dtype.kind == "i" and a.rebase is None and extents[p.axis] << 14 < 1 << 31:
                found.add(a.name)
    inner = [x for a in c.accumulators() for x in nodes(*(e for e in (a.lift, a.rebase) if e is not None))]
    inner += [x for o in c.outputs for e in nodes(o.expr) if not _to_float(e) for x in e.args]
    return frozenset(found - {x.name for x in inner if isinstance(x, (Acc, Prev))})


def _to_float(e: Expr) -> bool:
    return isinstance(e, Cast) and e.dtype.kind == "f" and e.dtype.itemsize >= 4
