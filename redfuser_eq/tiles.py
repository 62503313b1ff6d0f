"""Sizes: register blocks, tiles, segments, from a processor's registers and caches."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol


class Device(Protocol):
    """What a schedule needs to know of a processor: its instruction set, sizes in bytes, and the formats ("i16", "bf16") that it
    multiplies in pairs."""

    @property
    def isa(self) -> str: ...
    @property
    def vector_bytes(self) -> int: ...
    @property
    def cores(self) -> int: ...
    @property
    def l1(self) -> int: ...
    @property
    def l2(self) -> int: ...
    @property
    def l3(self) -> int: ...
    @property
    def pairs(self) -> tuple[str, ...]: ...


PAGE = 4096
SEGMENT_BYTES = 4 << 20


def up(n: int, m: int) -> int:
    """n rounded up to a multiple of m."""
    return -(-n // m) * m


def size_class(n: int, unit: int, most: int) -> int:
    """The smallest unit * 2^i that holds n, or `most`: extents of a class share a build."""
    size = unit
    while size < n:
        size *= 2
    return min(size, most)


@dataclass(frozen=True)
class Sizes:
    """lanes: vector width in elements; element: bytes of one."""

    device: Device
    lanes: int
    element: int

    @property
    def registers(self) -> int:
        """Vector registers."""
        return 32 if self.device.isa in ("avx512", "neon") else 16

    @property
    def block(self) -> tuple[int, int]:
        """Rows and vectors of the full register block: 6 x 4 with 32 registers, 6 x 2 with 16."""
        return (6, 4) if self.registers == 32 else (6, 2)

    def register_block(self, n_i: int, n_j: int) -> tuple[int, int]:
        """Rows x vectors of a register block for n_i rows and n_j columns; few of one leave room for more of the other."""
        mr, nv = self.block
        held = mr * nv
        vectors = ceil(max(n_j, 1) / self.lanes)
        if vectors < nv:
            nv = vectors
            mr = min(12, held // nv)
        if n_i < mr:
            mr = max(1, n_i)
            nv = min(vectors, {1: held // 2, 2: held // 3, 3: held // 4}.get(mr, nv))
        return mr, max(1, nv)

    def inner_block(self, n_c: int, width: int) -> int:
        """Elements of the inner axis at a time, so that a panel of the packed operand stays in the first cache."""
        fit = max(16, self.device.l1 * 3 // 4 // (self.element * width))
        blocks = ceil(max(n_c, 1) / fit)
        return up(ceil(max(n_c, 1) / blocks), 16)

    def stream_fit(self, n_c: int) -> int:
        """Elements of the stream whose operand of n_c each fills a quarter of the second cache."""
        return max(1, self.device.l2 // 4 // (self.element * max(n_c, 1)))

    def segment(self, per_element: int, step: int) -> int:
        """Length of a segment of the stream that reads about four megabytes, in whole tiles."""
        return up(max(1024, SEGMENT_BYTES // max(per_element, 1)), step)

    def product_rows(self, n_row: int, packed: int, depth: int) -> int:
        """Rows of a tile of a product with columns: each tile reads the packed operand again, so as many as leave their own
        operand in half of the second cache when the packed one outgrows it; but some tiles for every core."""
        rows = 96 if packed <= self.device.l2 else max(96, min(256, self.device.l2 // 2 // (self.element * depth)))
        return self.share(n_row, min(rows, max(48, up(ceil(n_row / (2 * self.device.cores)), 4 * self.block[0]))))

    def share(self, n: int, tile: int) -> int:
        """A tile near `tile` that cuts n into about a multiple of four equal parts, so that workers share them evenly."""
        return tile if n <= 4 * tile else up(ceil(n / up(ceil(n / tile), 4)), 4 * self.block[0])
