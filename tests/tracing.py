"""Trace a function and evaluate the program plainly in float64, to compare with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from redfuser_eq import reference
from redfuser_eq.expr import Expr, Program, Reduce, check, nodes
from redfuser_eq.trace import Traced, bind_extents, trace, view_arrays


def values(traced: Traced, arrays: list[Any]) -> Any:
    """The traced function's result, evaluated by the reference interpreter."""
    check(traced.program)
    extents = bind_extents(traced.program, arrays)
    outs = reference.evaluate(traced.program, view_arrays(traced.program, arrays), extents)
    shaped = [
        np.asarray(r).reshape([int(np.prod([extents[a] for a in d])) for d in o.dims])
        for r, o in zip(outs, traced.program.outputs, strict=True)
    ]
    return traced.rebuild(shaped)


def run(f: Any, *args: Any, **kwargs: Any) -> Any:
    traced = trace(f, args, kwargs)
    return values(traced, traced.arrays)


def leaves(x: Any) -> list[Any]:
    if isinstance(x, dict):
        return [v for k in sorted(x) for v in leaves(x[k])]
    return [v for item in x for v in leaves(item)] if isinstance(x, (tuple, list)) else [x]


def same(f: Any, *args: Any, rtol: float = 1e-9, dtypes: bool = True, **kwargs: Any) -> Traced:
    """Check a traced function against NumPy itself, values, shapes and dtypes; returns the trace."""
    traced = trace(f, args, kwargs)
    with np.errstate(all="ignore"):
        expected = leaves(f(*args, **kwargs))
    got = leaves(values(traced, traced.arrays))
    outputs = traced.program.outputs
    assert len(got) == len(expected)
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        b = np.asarray(b)
        assert a.shape == b.shape, f"{f}: shape {a.shape}, NumPy {b.shape}"
        narrow = b.dtype in (np.float32, np.float16)
        np.testing.assert_allclose(
            np.asarray(a, np.float64), b.astype(np.float64), rtol=max(rtol, 2e-3 if narrow else 0), atol=1e-3 if narrow else 1e-9
        )
        if dtypes and not traced.joined:
            assert outputs[i].dtype == b.dtype, f"{f}: dtype {outputs[i].dtype}, NumPy {b.dtype}"
    return traced


def reductions(program: Program) -> list[Reduce]:
    return [e for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Reduce)]


def over(program: Program, op: str) -> set[str]:
    """The axes that reductions of one operation run over."""
    return {e.axis for e in reductions(program) if e.op == op}


def expr(f: Any, *args: Any) -> Expr:
    return trace(f, args).program.outputs[0].expr
