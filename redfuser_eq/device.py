"""Device descriptions: the few figures that the cost model and the scheduler decide by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """kind: "cpu" or "cuda". flops: float32 operations a second over the whole device (a fused
    multiply-add counts two). bandwidth: bytes a second from main memory. cache_bandwidth, cache: bytes
    a second from the last-level cache, and its bytes. units: cores or multiprocessors."""

    name: str
    kind: str
    flops: float
    bandwidth: float
    cache_bandwidth: float
    cache: int
    units: int


DEVICES: dict[str, Device] = {
    d.name: d
    for d in (
        Device("cpu", "cpu", 1.5e11, 2.0e10, 8.0e10, 32 << 20, 2),
        Device("h200", "cuda", 6.7e13, 4.3e12, 1.2e13, 50 << 20, 132),
        Device("a100", "cuda", 1.95e13, 1.6e12, 5.0e12, 40 << 20, 108),
    )
}


def device(d: Device | str | None) -> Device:
    """A description by name, or as given; None is this class of CPU."""
    if isinstance(d, Device):
        return d
    name = d or "cpu"
    if name not in DEVICES:
        raise ValueError(f"optimize: device={name!r} is not known; named devices: {sorted(DEVICES)}, or pass a redfuser_eq.Device")
    return DEVICES[name]
