"""Backends: what turns a Cascade into something that runs. One interface, one file a target.

Each backend has `build(cascade, plain, ...) -> Executable`. `plain` is the unfused Cascade of the same
program; a backend runs it for rows whose running parameters are not finite, so that NaN and infinity come
out as the written-out formula has them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..cascade import Cascade
from ..errors import BackendError


class Executable(Protocol):
    """A built Cascade, for any extents.

    source: the program that runs, to be read by a person.
    """

    source: str

    def __call__(self, arrays: Sequence[Any], extents: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        """Compute the outputs.

        arrays: one for each of `cascade.sources`, their views applied, with any strides. extents: the size
        of every axis. out: arrays to write into, one for each output, with any strides (None: fresh ones);
        they may share memory with `arrays`, which then are read first.
        Each result has one dimension for each axis of its output, and its dtype.
        Raises ShapeError where shapes, extents or k do not fit, or a max or min has no elements.
        """
        ...


def available(target: str) -> bool:
    """Whether this machine can build for a target ("numpy", "cpu", "cuda")."""
    if target == "numpy":
        return True
    return bool(_backend(target).available())


def build(target: str, cascade: Cascade, plain: Cascade, *, threads: int | None = None, tune: bool = False) -> Executable:
    """An executable of the cascade; `plain` is the unfused program. threads, tune: see `cpu.build`; others ignore them.

    Raises BackendError when the target is not available."""
    if target == "cpu":
        return _backend(target).build(cascade, plain, threads=threads, tune=tune)  # type: ignore[no-any-return]
    return _backend(target).build(cascade, plain)  # type: ignore[no-any-return]


def source(target: str, cascade: Cascade, arrays: Sequence[Any], extents: Mapping[str, int]) -> str:
    """The generated source for these arrays (viewed, one for each source of the cascade)."""
    if target == "numpy":
        return str(_backend(target).describe(cascade))
    return str(_backend(target).source(cascade, arrays, extents))


def _backend(target: str) -> Any:
    """A backend is imported when it is first wanted."""
    if target not in ("numpy", "cpu", "cuda"):
        raise BackendError(f"target {target!r} is not one of numpy, cpu, cuda")
    if importlib.util.find_spec(f"{__name__}.{target}") is None:
        raise BackendError(f"this installation has no backend for target {target!r}; use target='numpy'")
    return importlib.import_module(f"{__name__}.{target}")
