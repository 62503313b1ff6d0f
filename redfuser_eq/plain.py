"""The unfused program: every reduction in a pass of its own dependence level, as written.

It is the meaning of the source, run as NumPy would run it: the fallback where nothing fuses, and what
rows with non-finite values are recomputed by.
"""

from __future__ import annotations

from dataclasses import replace

from .cascade import Accumulator, Cascade
from .encode import is_float, real_dtype
from .expr import Acc, Expr, Program, Reduce, nodes, transform
from .ops import MONOIDS
from .passes import Item, build, fresh_name


def unfused(program: Program) -> Cascade:
    """Cascade in which each distinct reduction of the program is an accumulator without a rebase."""
    real = real_dtype(program)
    items: dict[str, Item] = {}
    reserved = {*program.extents, *(s.name for s in program.sources)}
    states: dict[tuple[object, ...], str] = {}
    swaps: dict[Expr, Expr] = {}
    for e in nodes(*(o.expr for o in program.outputs)):
        if isinstance(e, Reduce):
            body = transform(e.body, swaps.get)
            op = "top_values" if e.k else e.op
            key = (op, e.axis, body, e.k, e.out)
            if key not in states:
                name = states[key] = fresh_name(op, {*items, *reserved})
                dtype = real if is_float(e.body.dtype) or is_float(e.dtype) else e.dtype
                if MONOIDS[op].state != "value":
                    dtype = real if is_float(e.body.dtype) else e.body.dtype
                axes = tuple(a for a in program.extents if a in e.axes - {e.out})
                items[name] = Item(e.axis, Accumulator(name, op, axes, dtype, body, None, e.k, e.out))
            index = e.op in ("argmax", "argmin", "top_indices")
            swaps[e] = Acc(states[key], e.axes, e.dtype if index else items[states[key]].acc.dtype, "index" if index else "value")
    outputs = [replace(o, expr=transform(o.expr, swaps.get)) for o in program.outputs]
    return build(program.sources, program.extents, items, outputs)
