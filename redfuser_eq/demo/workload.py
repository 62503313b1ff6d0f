"""A workload as data: array code, example inputs, and what should come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[str | int, ...]


@dataclass(frozen=True)
class Input:
    """An example array. shape: sizes, or letters of the workload's `sizes`. kind: "normal"; "small" (normal
    with a deviation of 0.1, for weights); "positive" (uniform in 0.1 ... 1.1); "mask" (0 or -inf, at least one 0 a
    row); "label:v" (integers below the size of letter v). dtype: a float dtype also sets that of the reference."""

    name: str
    shape: Shape
    kind: str = "normal"
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)  # each is itself
class Workload:
    """Array code and what fusing it should give.

    function: over the inputs, in order. stream: (input, dimension) that runs along the streamed axis.
    before, after: passes over it. themes: rule sets' themes without which it stays unfused (each alone).
    reference: plain NumPy code of the same meaning, where `function` itself is none. sizes: of the letters;
    the fixed ones keep their size in `example(small=True)`.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    sizes: Mapping[str, int]
    stream: tuple[int, int]
    before: int
    after: int
    themes: tuple[str, ...] = ("prefix",)
    numerics: str = "default"
    reference: Callable[..., Any] | None = None
    fixed: str = ""

    def example(self, rng: np.random.Generator, *, small: bool = False) -> tuple[Any, ...]:
        """Random inputs. small: of sizes that a test can afford."""
        sizes = {a: n if a in self.fixed or not small else _shrunk(n) for a, n in self.sizes.items()}
        return tuple(_values(i, tuple(sizes[s] if isinstance(s, str) else s for s in i.shape), sizes, rng) for i in self.inputs)

    def shapes(self) -> tuple[Any, ...]:
        """Arrays of the right shapes and dtypes that hold no memory, for tracing."""
        return tuple(
            np.broadcast_to(np.zeros((), _dtype(i)), tuple(self.sizes[s] if isinstance(s, str) else s for s in i.shape))
            for i in self.inputs
        )

    def exact(self, arrays: tuple[Any, ...]) -> Any:
        """The result of plain NumPy in float64."""
        wide = tuple(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays)
        with np.errstate(all="ignore"):
            return (self.reference or self.function)(*wide)


def _shrunk(n: int) -> int:
    """A size of at most 45, odd where it was cut so that no tile fits it."""
    return n if n <= 8 else min(n, 29 + n % 16) | 1


def _dtype(i: Input) -> Any:
    return np.dtype(np.int64) if i.kind.startswith("label") else np.dtype(i.dtype)


def _values(i: Input, shape: tuple[int, ...], sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    if i.kind.startswith("label:"):
        return rng.integers(0, sizes[i.kind[6:]], shape)
    if i.kind == "mask":
        keep = rng.random(shape) < 0.7
        keep[..., 0] = True
        return np.where(keep, 0.0, -np.inf).astype(i.dtype)
    if i.kind == "positive":
        return (0.1 + rng.random(shape)).astype(i.dtype)
    return (rng.standard_normal(shape) * (0.1 if i.kind == "small" else 1.0)).astype(i.dtype)
