"""Backends: what turns a Cascade into something that runs. One interface, one file a target.

Each backend has `build(cascade, plain, ...) -> Executable`. `plain` is the unfused Cascade of the same
program; a backend runs it for rows whose running parameters are not finite, so that NaN and infinity come
out as the written-out formula has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Executable(Protocol):
    """A built Cascade, for any extents.

    source: the program that runs, to be read by a person.
    """

    source: str

    def __call__(self, arrays: Sequence[Any], extents: Mapping[str, int], out: Sequence[Any] | None = None) -> list[Any]:
        """Compute the outputs.

        arrays: one for each of `cascade.sources`, their views applied, with any strides. extents: the size
        of every axis. out: arrays to write into, one for each output, with any strides (None: fresh ones).
        Each result has one dimension for each axis of its output, and its dtype.
        Raises ShapeError where shapes, extents or k do not fit, or a max or min has no elements.
        """
        ...
