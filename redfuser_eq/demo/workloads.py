"""Every workload, by name."""

from __future__ import annotations

from . import attention, layers, statistics
from .workload import Input, Workload

__all__ = ["WORKLOADS", "Input", "Workload", "named"]

WORKLOADS: tuple[Workload, ...] = (*attention.WORKLOADS, *statistics.WORKLOADS, *layers.WORKLOADS)


def named(name: str) -> Workload:
    """The workload of that name, or of the only name that contains it. Raises ValueError with the names."""
    exact = [w for w in WORKLOADS if w.name == name]
    found = exact or [w for w in WORKLOADS if name.lower() in w.name.lower()]
    if len(found) != 1:
        known = ", ".join(repr(w.name) for w in (found or WORKLOADS))
        raise ValueError(f"workload {name!r}: {'several have' if found else 'none has'} this in its name; {known}")
    return found[0]
