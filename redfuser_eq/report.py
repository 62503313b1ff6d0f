"""What one optimization did, as data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Report:
    """The outcome of optimizing one program.

    passes_before, passes_after: traversals of the axis where fusion saved most. passes: the same for
    every reduced axis. accumulators: running values of the chosen program. saturated: whether the rules
    reached a fixpoint; rows: tuples in the e-graph then; stopped: why it stopped early. seconds: wall
    clock by stage (trace, saturate, extract, validate, build). rules_fired: matches by rule. fused:
    whether fewer passes are made than as written. reason: why not, or what stayed unfused. refused: forms
    that were found and turned down. bytes, flops: estimated (before, after), with the extents of the
    first call. target: what runs it.
    """

    passes_before: int
    passes_after: int
    accumulators: int
    saturated: bool
    rows: int
    seconds: dict[str, float]
    rules_fired: dict[str, int]
    fused: bool
    reason: str | None
    passes: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    stopped: str = ""
    bytes: tuple[float, float] = (0.0, 0.0)
    flops: tuple[float, float] = (0.0, 0.0)
    target: str = ""
    rule_set: str = ""
