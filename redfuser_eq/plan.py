"""Program -> Plan: saturate, extract, decide, validate. Everything but running it."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

from .cascade import Cascade, passes_of
from .cascade import check as check_cascade
from .cost import Cost, cost
from .device import Device
from .encode import Encoded, encode
from .errors import IRError, UnsoundRewrite, UnsoundRewriteWarning
from .expr import Expr, Program, Reduce, check, nodes, show
from .extract import Extractor
from .passes import Item, build
from .plain import unfused
from .report import Report
from .rules import RuleSet
from .saturate import Budget, Saturation, saturate
from .validate import mismatch

WORTH = 1.2  # a fused program may be modelled this much slower and still be chosen: the model is no finer than that
_GAIN = 0.95  # another traversal must save this much of the modelled time


@dataclass
class Plan:
    """One optimized program. cascade: what runs; plain: the same, unfused; report: how it came about;
    rules and device: what it was planned with."""

    program: Program
    cascade: Cascade
    plain: Cascade
    report: Report
    rules: RuleSet
    device: Device


def plan(
    program: Program,
    rules: RuleSet,
    device: Device,
    *,
    verify: bool | str,
    budget: Budget | None,
    traced: float = 0.0,
    numerics: str = "default",
) -> Plan:
    """Optimize one program.

    verify: True checks the result and falls back to the unfused program with a warning, "raise" (or the
    environment's REDFUSER_VERIFY=raise) raises UnsoundRewrite instead, False trusts the rules."""
    check(program)
    plain = replace(unfused(program), numerics=numerics)
    seconds = {"trace": traced}
    clock = time.perf_counter()
    encoded = encode(program)
    result = saturate(encoded, rules, budget)
    seconds["saturate"] = time.perf_counter() - clock
    clock = time.perf_counter()
    chosen, reason, refused = _extracted(program, plain, encoded, result, device)
    seconds["extract"] = time.perf_counter() - clock
    clock = time.perf_counter()
    if verify and chosen is not plain:
        problem = mismatch(program, chosen, loose="rescaling" in rules.themes())
        if problem:
            message = f"rule set {rules.name!r} rewrote the program unsoundly ({problem}); the unfused program is used instead"
            if verify == "raise" or os.environ.get("REDFUSER_VERIFY") == "raise":
                raise UnsoundRewrite(message)
            warnings.warn(message, UnsoundRewriteWarning, stacklevel=4)
            chosen, reason = plain, message
    seconds["validate"] = time.perf_counter() - clock
    chosen = plain if chosen is plain else replace(chosen, numerics=numerics)
    report = _report(program, chosen, plain, result, rules, device, seconds, reason, refused)
    return Plan(program, chosen, plain, report, rules, device)


def _extracted(
    program: Program, plain: Cascade, encoded: Encoded, result: Saturation, device: Device
) -> tuple[Cascade, str | None, tuple[str, ...]]:
    """The chosen Cascade, the reason for what is not fused, and forms that were refused."""
    try:
        extractor = Extractor(result.rows, encoded, program)
        best = extractor.cascade()
        check_cascade(best)
    except IRError:
        if result.saturated:
            raise
        return plain, f"saturation stopped early at the {result.stopped}, with no term that can be used", ()
    chosen, reason = _decide(program, best, plain, result, device, safer=extractor.safer())
    return chosen, reason, tuple(sorted(extractor.refused))


def _decide(
    program: Program, best: Cascade, plain: Cascade, result: Saturation, device: Device, *, safer: bool
) -> tuple[Cascade, str | None]:
    before, after = cost(plain, device), cost(best, device)
    if safer and after.passes <= before.passes and _traversals(program, best) <= _traversals(program, plain):
        return best, _left(program, best)
    if after.passes >= before.passes and _traversals(program, best) >= _traversals(program, plain):
        return (best if after.seconds <= before.seconds else plain), _unfused_reason(program, best, result)
    if after.seconds <= WORTH * before.seconds:
        return best, _left(program, best)
    found = _waiting(program, best, device)
    k = cost(found, device)
    if found is not best and k.seconds <= WORTH * before.seconds and _traversals(program, found) < _traversals(program, plain):
        return found, f"{_dear(best, after, found, k)}; {_left(program, found)}"
    return plain, _dear(best, after, plain, before)


def _waiting(program: Program, best: Cascade, device: Device) -> Cascade:
    """The cascade in which accumulators that cost more to move along than another traversal does wait for a later pass,
    where their parameters are final."""
    found = best
    while True:
        options = [wait(found, a.name) for a in found.accumulators() if a.rebase is not None]
        least = min((cost(c, device).seconds for c in options), default=0.0)
        if not options or least > _GAIN * cost(found, device).seconds:
            return found
        found = min((c for c in options if _GAIN * cost(c, device).seconds <= least), key=lambda c: _traversals(program, c))


def wait(c: Cascade, name: str) -> Cascade:
    """A Cascade in which one accumulator (and any that is rebased by its previous value) is not rebased: it moves to a
    pass after the values it reads, and what only its rebase needed is dropped.

    Before: pass k: m, s with rebase exp(m' - m) * s'. After: pass k: m; pass k: s."""
    still = {name}
    while more := {a.name for a in c.accumulators() if a.previous() & still} - still:
        still |= more
    items = {a.name: Item(p.axis, replace(a, rebase=None) if a.name in still else a) for p in c.passes for a in p.accumulators}
    moved = build(c.sources, c.extents, items, c.outputs)
    check_cascade(moved)
    return moved


def _traversals(program: Program, c: Cascade) -> int:
    return sum(c.count(a) for a in program.extents)


def _dear(best: Cascade, dear: Cost, chosen: Cascade, now: Cost) -> str:
    return (
        f"fusing everything costs more than it saves: {len(best.accumulators())} accumulators holding {dear.state:.3g} bytes and "
        f"{dear.flops:.3g} operations, instead of {len(chosen.accumulators())} holding {now.state:.3g} bytes and {now.flops:.3g}"
    )


def dependent(program: Program) -> list[Reduce]:
    """Reductions whose body needs another reduction over the same axis."""
    found = [e for e in nodes(*(o.expr for o in program.outputs)) if isinstance(e, Reduce)]
    return [e for e in found if any(isinstance(n, Reduce) and n.axis == e.axis and e.axis not in n.axes for n in nodes(e.body))]


def _unfused_reason(program: Program, best: Cascade, result: Saturation) -> str | None:
    chain = dependent(program)
    if not chain:
        return "nothing to fuse: no reduction depends on another one over the same axis"
    stop = f"; saturation stopped early at the {result.stopped}" if result.stopped else ""
    waiting = "; ".join(f"{e.op} over {e.axis!r} of {_short(e.body)}" for e in chain[:3])
    return f"no law of the rule set moves an earlier partial result to new parameters for: {waiting}{stop}"


def _left(program: Program, best: Cascade) -> str | None:
    """What still waits for a pass of its own, if anything does."""
    late = [
        (p, a) for n, p in enumerate(best.passes) for a in p.accumulators if any(q.axis == p.axis for q in best.passes[:n]) and a.reads()
    ]
    if not late:
        return None
    return "one more pass is needed for: " + "; ".join(f"{a.op} over {p.axis!r} of {_short(a.lift)}" for p, a in late[:3])


def _short(e: Expr) -> str:
    text = show(e)
    return text if len(text) <= 100 else text[:97] + "..."


def _report(
    program: Program,
    chosen: Cascade,
    plain: Cascade,
    result: Saturation,
    rules: RuleSet,
    device: Device,
    seconds: dict[str, float],
    reason: str | None,
    refused: tuple[str, ...],
) -> Report:
    passes: dict[str, tuple[int, int]] = {}
    for axis in program.extents:
        before, after = passes_of(program.outputs, axis), chosen.count(axis)
        if before or after:
            passes[axis] = (before, after)
    main = max(passes.values(), key=lambda p: (p[1] > 0, p[0] - p[1], p[0]), default=(0, 0))  # contracted in place: 0 passes
    was, now = cost(plain, device), cost(chosen, device)
    fields: dict[str, Any] = {
        "saturated": result.saturated,
        "rows": result.size,
        "seconds": seconds,
        "rules_fired": result.fired,
        "reason": reason,
        "passes": passes,
        "refused": refused,
        "stopped": result.stopped,
        "bytes": (was.bytes, now.bytes),
        "flops": (was.flops, now.flops),
        "rule_set": rules.name,
    }
    return Report(main[0], main[1], len(chosen.accumulators()), fused=any(after < before for before, after in passes.values()), **fields)
