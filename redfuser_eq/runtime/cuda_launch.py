"""A printed CUDA program made ready for calls of one signature: grids, argument lists, scratch memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from ..codegen.launch import CudaProgram, Scratch, bytes_of, grid_of, steps_of
from ..gpu import Gpu

Arg = tuple[Any, ...]  # see `codegen.launch.Launch.args`
MAPS = 64  # tensor maps kept of one operand, by address; beyond, all are dropped


class Device(Protocol):
    """What a call needs of a device; see `cuda_cupy.CupyDevice`. Arrays are CuPy's."""

    index: int
    gpu: Gpu
    maps: bool

    def active(self) -> AbstractContextManager[None]: ...
    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any: ...
    def alloc(self, nbytes: int) -> Any: ...
    def fill(self, memory: Any, value: int, nbytes: int) -> None: ...
    def array(self, memory: Any, shape: Sequence[int], dtype: Any) -> Any: ...
    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...
    def write(self, array: Any, values: np.ndarray[Any, Any]) -> None: ...
    def copy(self, to: Any, source: Any) -> None: ...
    def tensor_map(
        self, address: int, element: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], rounded: bool
    ) -> Any: ...
    def compile(self, programs: Sequence[CudaProgram]) -> None: ...
    def functions(self, program: CudaProgram) -> tuple[Any, ...]: ...
    def launch(
        self, function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, args: tuple[Any, ...]
    ) -> None: ...


@dataclass(frozen=True)
class _Kernel:
    """One launch. pick: the pool of a call -> the kernel's arguments."""

    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class _Map:
    """A tensor map of an array that calls bring, or of scratch. place: in the pool. nbytes: of scratch, 0 for an array. made: by
    address."""

    place: int
    element: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    rounded: bool
    nbytes: int = 0
    made: dict[int, Any] = field(default_factory=dict, compare=False)

    def of(self, device: Device, address: int) -> Any:
        found = self.made.get(address)
        if found is None:
            if len(self.made) >= MAPS:
                self.made.clear()
            found = self.made[address] = device.tensor_map(address, self.element, self.shape, self.strides, self.box, self.rounded)
        return found


@dataclass(frozen=True)
class Ready:
    """A program for one signature. The pool of a call holds what the caller gives, in the order of `prepare`'s `given`, then the
    addresses of scratch, then tensor maps, then sizes. scratch: bytes and fill of each piece."""

    kernels: tuple[_Kernel, ...]
    scratch: tuple[tuple[int, int | None], ...]
    maps: tuple[_Map, ...]
    sizes: tuple[Any, ...]

    def encode(self, device: Device, given: Sequence[Any]) -> None:
        """Make the tensor maps of a call with these arrays. Raises BackendError where the driver makes none."""
        for m in self.maps:
            m.of(device, device.alloc(m.nbytes).ptr if m.nbytes else given[m.place].data.ptr)

    def run(self, device: Device, given: list[Any]) -> None:
        """Queue the launches. given: arrays, and addresses as NumPy scalars."""
        pool, held = given.copy(), []
        for nbytes, fill in self.scratch:
            memory = device.alloc(nbytes)
            held.append(memory)
            pool.append(np.uint64(memory.ptr))
            if fill is not None:
                device.fill(memory, fill, nbytes)
        pool += [m.of(device, int(pool[m.place]) if m.nbytes else pool[m.place].data.ptr) for m in self.maps]
        pool += self.sizes
        for k in self.kernels:
            device.launch(k.function, k.grid, k.block, k.shared, k.pick(pool))


def prepare(
    made: CudaProgram,
    device: Device,
    given: Sequence[Arg],
    extents: Mapping[str, int],
    size: Callable[[Arg], int],
    most: int = 0,
) -> Ready:
    """Build a program and find every argument's place.

    given: the arguments that a call brings itself. size: other arguments that are numbers. Row flags that a call does not bring
    are scratch. most: blocks of a launch (0: any number). Raises BackendError where the build fails."""
    places: dict[Arg, int] = {arg: i for i, arg in enumerate(given)}
    scratch: list[tuple[int, int | None]] = []
    if made.flag_axes is not None and ("flags",) not in places:
        places["flags",] = len(places)
        scratch.append((flag_bytes(made, extents), 0))
    for b in made.buffers:
        places["buffer", b.name] = len(places)
        scratch.append((bytes_of(b, extents), b.fill))
    others = list(dict.fromkeys(a for launch in made.launches for a in launch.args if a not in places))
    maps, numbers = [a for a in others if a[0] == "map"], [a for a in others if a[0] != "map"]
    places |= {arg: len(places) + i for i, arg in enumerate([*maps, *numbers])}
    kernels = []
    for launch, function in zip(made.launches, device.functions(made), strict=True):
        x, y, z = grid_of(launch, extents)
        grid = (min(x, most) if most else x, y, z)
        if all(grid):
            kernels.append(_Kernel(function, grid, (launch.block, 1, 1), launch.shared, _picker([places[a] for a in launch.args])))
    buffers = {b.name: b for b in made.buffers}
    found = tuple(_map(a, places[a[1]], size, buffers.get(a[1][1]) if a[1][0] == "buffer" else None, extents) for a in maps)
    return Ready(tuple(kernels), tuple(scratch), found, tuple(np.int64(size(a)) for a in numbers))


def _map(arg: Any, place: int, size: Callable[[Arg], int], buffer: Scratch | None, extents: Mapping[str, int]) -> _Map:
    _, (_, name), axes, box, element, rounded = arg
    steps = steps_of(buffer.sizes, extents) if buffer else {d: size(("in_stride", name, d)) for _, d in axes}
    shape, strides = tuple(size(("extent", a)) for a, _ in axes), tuple(steps[d] * element for _, d in axes)
    return _Map(place, element, shape, strides, box, rounded, bytes_of(buffer, extents) if buffer else 0)


def flag_bytes(made: CudaProgram, extents: Mapping[str, int]) -> int:
    return max(1, prod(extents[a] for a in made.flag_axes or ()))


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return itemgetter(*places) if len(places) > 1 else lambda pool: tuple(pool[i] for i in places)
