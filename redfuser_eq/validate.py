"""Translation validation: every optimized program is checked before it is returned.

The expression and the streamed program are evaluated in float64 on tiny random extents, the latter with
random tiles and a random segmentation plus merge (laws.md, section 5). It takes milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cascade import Cascade
from .encode import is_float
from .expr import Cast, Expr, Load, Program, Reduce, nodes
from .reference import evaluate, stream


def mismatch(program: Program, cascade: Cascade, *, seed: int = 0, trials: int = 2, loose: bool = False) -> str | None:
    """None when the cascade computes the program on random inputs, else what differs.

    loose: a rule set that re-rounds quantised values was used; they may differ by a rounding step."""
    rng = np.random.default_rng(seed)
    rounds = any(isinstance(e, Cast) and is_float(e.dtype) and e.dtype.itemsize < 4 for o in program.outputs for e in nodes(o.expr))
    tolerance = 0.25 if rounds and loose else 0.05 if rounds else 1e-8
    for _ in range(trials):
        extents = small_extents(program, rng)
        arrays = random_arrays(program, extents, rng)
        with np.errstate(all="ignore"):
            want = evaluate(program, arrays, extents)
            got = stream(cascade, arrays, extents, rng=rng)
        for n, (w, g) in enumerate(zip(want, got, strict=True)):
            problem = _differ(np.asarray(w), np.asarray(g), tolerance)
            if problem:
                return f"output {n} at extents {extents}: {problem}"
    return None


def _differ(want: Any, got: Any, tolerance: float) -> str | None:
    if want.shape != got.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind in "iub":
        wrong = int((want != got).sum())
        return f"{wrong} of {want.size} integers differ" if wrong else None
    finite = np.isfinite(want)
    if not finite.any():
        return None
    scale = max(1.0, float(np.abs(want[finite]).max()))
    error = np.abs(want[finite] - got[finite]) / scale
    worst = float(np.nanmax(error)) if error.size else 0.0
    if np.isnan(got[finite]).any() or worst > tolerance:
        return f"largest error {worst:.2e} of the largest value"
    return None


def small_extents(program: Program, rng: np.random.Generator) -> dict[str, int]:
    """Tiny sizes, distinct where possible so that a mixed-up axis shows; top-k axes keep their k."""
    fixed: dict[str, int] = {}
    at_least: dict[str, int] = {}
    for e in nodes(*(o.expr for o in program.outputs)):
        if isinstance(e, Reduce) and e.k:
            fixed[e.out] = e.k
            at_least[e.axis] = max(at_least.get(e.axis, 0), e.k)
    reduced = {e.axis for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Reduce)}
    out: dict[str, int] = {}
    for group in _equal_axes(program):
        low, high = (5, 10) if reduced.intersection(group) else (1, 4)
        size = max(at_least.get(a, 0) for a in group) + int(rng.integers(low, high))
        out |= dict.fromkeys(group, next((fixed[a] for a in group if a in fixed), size))
    return {a: out[a] for a in program.extents}


def _equal_axes(program: Program) -> list[list[str]]:
    """Axes that run along the same dimension of a source, and so are equally long."""
    groups = {a: [a] for a in program.extents}
    first: dict[tuple[str, int], str] = {}
    loads = [e for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Load)]
    for e in loads:
        for d, axis in enumerate(e.dims):
            other = first.setdefault((e.source, d), axis)
            if groups[axis] is not groups[other]:
                groups[other].extend(groups[axis])
                for a in groups[axis]:
                    groups[a] = groups[other]
    return list({id(g): g for g in groups.values()}.values())


def random_arrays(program: Program, extents: dict[str, int], rng: np.random.Generator) -> list[Any]:
    """Random values for each source, of moderate size and (for floats) never zero."""
    dims: dict[str, tuple[str, ...]] = {}
    for e in nodes(*(o.expr for o in program.outputs)):
        if isinstance(e, Load):
            dims.setdefault(e.source, e.dims)
    out: list[Any] = []
    for s in program.sources:
        shape = [extents[a] for a in dims.get(s.name, ())]
        if s.dtype.kind == "b":
            out.append(rng.random(shape) < 0.7)
        elif s.dtype.kind in "iu":
            out.append(rng.integers(0, 5, shape).astype(s.dtype))
        else:
            sign = np.where(rng.random(shape) < _negative_share(program, s.name), -1.0, 1.0)
            out.append(sign * (0.1 + np.abs(rng.normal(size=shape))))
    return out


def _negative_share(program: Program, source: str) -> float:
    """Logarithms and roots of raw inputs want positive ones; everything else gets both signs."""
    for e in nodes(*(o.expr for o in program.outputs)):
        if getattr(e, "op", "") in ("log", "log2", "sqrt", "rsqrt", "power") and _holds_raw(e.args[0], source):
            return 0.0
    return 0.5


def _holds_raw(e: Expr, source: str) -> bool:
    """Whether a source occurs in e outside every reduction and bounded operation."""
    if isinstance(e, Load):
        return e.source == source
    if isinstance(e, Reduce) or getattr(e, "op", "") in ("exp", "square", "abs"):
        return False
    return any(_holds_raw(a, source) for a in e.args)
