"""A printed CUDA program as data: its kernels in order, their grids and arguments, and the memory they share.

A runtime compiles `CudaProgram.text`, allocates `buffers`, fills those that ask for it, zeroes the row flags, and makes the
launches one after another on one stream. Sizes stay symbolic, so that one build serves every extent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from .kernel import Size

Sizes: TypeAlias = tuple[Size, ...]
# ("map", what, ((axis, dimension of it), ...), elements of a box along each, bytes of an element, rounded): a tensor map that
# describes an argument, as ("in", source) or ("buffer", name), by these axes, the contiguous one first, with 128-byte swizzle and
# zeros past the ends. rounded: floats are rounded to tf32 on their way
MapArg: TypeAlias = tuple[str, tuple[str, str], tuple[tuple[str, int], ...], tuple[int, ...], int, bool]


@dataclass(frozen=True)
class Launch:
    """name: the `extern "C" __global__` function. grid: each of its three sizes as a product of sizes, the first of which counts
    points: a block does `per_block` of them at once. A size of 0 means that there is nothing to launch. block: threads. shared:
    bytes of dynamic shared memory. most: blocks along the first, which then go over all points (0: as many as it takes).

    args, in the order of the kernel's parameters: ("in", source), ("out", position), ("flags",), ("buffer", name) and, in a program
    of flagged rows, ("where",) and ("guard",) are device pointers; ("extent", axis), ("in_stride", source, dimension) and
    ("out_stride", position, dimension) are `long long`, strides in elements. A `MapArg` is the driver's structure for the copy
    engine, 128 bytes by value."""

    name: str
    grid: tuple[Sizes, Sizes, Sizes]
    block: int
    shared: int
    args: tuple[tuple[Any, ...], ...]
    per_block: int = 1
    most: int = 0


@dataclass(frozen=True)
class Scratch:
    """Device memory that lives through the launches. element: bytes of one; sizes: their product counts them.
    fill: a byte that all of it holds before the first launch, None for any."""

    name: str
    element: int
    sizes: Sizes
    fill: int | None = None


@dataclass(frozen=True)
class CudaProgram:
    """text: one source without includes. capability: what it is compiled for (90 means sm_90a). key: equal for programs with
    equal text. flag_axes: axes of the row flags, one byte each, zeroed before the first launch (None: there are none)."""

    text: str
    launches: tuple[Launch, ...]
    buffers: tuple[Scratch, ...]
    capability: int
    key: str
    flag_axes: tuple[str, ...] | None = None


def size_of(size: Size, extents: Mapping[str, int]) -> int:
    """The number that a size stands for."""
    n = extents[size.axis] if size.axis else size.value
    n = -(-n // size.divide)
    return -(-n // size.multiple) * size.multiple + size.pad


def grid_of(launch: Launch, extents: Mapping[str, int]) -> tuple[int, int, int]:
    """Blocks in x, y and z. Some are 0 when there is nothing to do."""
    x, y, z = (prod(size_of(s, extents) for s in sizes) for sizes in launch.grid)
    x = -(-x // launch.per_block)
    return min(x, launch.most) if launch.most else x, y, z


def steps_of(sizes: Sizes, extents: Mapping[str, int]) -> tuple[int, ...]:
    """The strides of a buffer of these sizes, in elements."""
    return tuple(prod(size_of(s, extents) for s in sizes[d + 1 :]) for d in range(len(sizes)))


def bytes_of(scratch: Scratch, extents: Mapping[str, int]) -> int:
    """Bytes of a buffer; never 0, so that it has an address."""
    return max(1, scratch.element * prod(size_of(s, extents) for s in scratch.sizes))
