"""What a schedule needs to know of a GPU: sizes that bound a block, and rates that bound a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REGISTERS = 65536  # of 32 bits, of a multiprocessor of any GPU from 8.0 on, in four parts between which a block's warps are dealt


@dataclass(frozen=True)
class Gpu:
    """A GPU. capability: 80, 90, 100, ...; from 90 on the architecture-specific features are used (sm_90a).

    multiprocessors: units that run blocks. shared_limit: bytes of shared memory that one block may ask for. registers: 32-bit
    ones a multiprocessor; threads_per_unit: resident threads a multiprocessor. bandwidth: bytes/s of a copy, reads and writes
    together. l2: bytes. fp32: flop/s without tensor cores. tensor: flop/s by dtype tag of the operands. mufu: approximate
    function results per clock and multiprocessor. clock: Hz."""

    name: str
    capability: int
    multiprocessors: int
    shared_limit: int
    bandwidth: float
    l2: int
    fp32: float
    tensor: Mapping[str, float] = field(default_factory=dict, hash=False)
    mufu: int = 16
    clock: float = 1.7e9
    registers: int = REGISTERS
    threads_per_unit: int = 2048

    @property
    def arch(self) -> str:
        """The name that compilers give the architecture."""
        return f"sm_{self.capability}{'a' if self.capability >= 90 else ''}"


def _tensor(f16: float, e4m3: float, i8: float, tf32: float) -> dict[str, float]:
    return {"f16": f16, "bf16": f16, "e4m3": e4m3, "i8": i8, "tf32": tf32}


# Multiprocessors, memory bandwidth, L2 and peak rates (dense): NVIDIA's data sheets of A100 SXM 80 GB, H100 SXM, H200 SXM and
# B200. Shared memory a block, registers, threads and special function units: CUDA C++ Programming Guide, "Technical
# Specifications per Compute Capability" and "Throughput of Native Arithmetic Instructions". bandwidth is 0.92 of the data
# sheet's, which is what large copies commonly reach.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        Gpu("a100", 80, 108, 163 << 10, 0.92 * 2.039e12, 40 << 20, 19.5e12, _tensor(312e12, 0.0, 624e12, 156e12), clock=1.41e9),
        Gpu("h100", 90, 132, 227 << 10, 0.92 * 3.35e12, 50 << 20, 67e12, _tensor(989e12, 1979e12, 1979e12, 494e12), clock=1.83e9),
        Gpu("h200", 90, 132, 227 << 10, 0.92 * 4.8e12, 50 << 20, 67e12, _tensor(989e12, 1979e12, 1979e12, 494e12), clock=1.83e9),
        Gpu("b200", 100, 148, 227 << 10, 0.92 * 8.0e12, 126 << 20, 75e12, _tensor(2250e12, 4500e12, 4500e12, 1125e12), clock=1.85e9),
    )
}


def by_capability(capability: int) -> Gpu:
    """The table's GPU whose code runs on a compute capability: the last one that is no newer, else the oldest."""
    known = sorted(GPUS.values(), key=lambda g: g.capability)
    return next((g for g in reversed(known) if g.capability <= capability), known[0])
