"""A plan bound to one signature: everything that a call needs, prepared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from . import runtime
from .arrays import NUMPY, Library, library_of, uploaded
from .errors import DTypeError, ShapeError
from .expr import Output, Program
from .plan import Plan
from .trace import Traced, viewer
from .tree import Tree


class Bound:
    """A program with an executable, for arguments of one signature.

    given: example arrays in parameter order, of which only kinds and shapes are kept. Captured arrays are held, and
    read at each call.
    """

    def __init__(
        self, plan: Plan, traced: Traced, program: Program, extents: dict[str, int], given: Sequence[Any], run: runtime.Executable
    ) -> None:
        self.plan, self.traced, self.program, self.extents, self.run = plan, traced, program, extents, run
        captured = list(program.constants.values())
        kinds = [library_of(a) for a in given]
        self.library = next((k for k in (*kinds, *map(library_of, captured)) if k is not NUMPY), NUMPY)
        self._takes = None if all(k is NUMPY for k in kinds) else tuple(k.take for k in kinds)
        self._captured = [library_of(a).take(a) for a in captured]
        self._uploads = self.library.device == "cuda" and any(isinstance(a, np.ndarray) for a in self._captured)
        shapes = [tuple(int(s) for s in a.shape) for a in (*given, *captured)]
        views = [(s.param, viewer(s, shapes[s.param])) for s in program.sources]
        straight = [p for p, _ in views] == list(range(len(shapes))) and all(v is None for _, v in views)
        self._views: list[tuple[int, Callable[[Any], Any] | None]] | None = None if straight else views
        self.shapes = [_shape(o, extents) for o in program.outputs]
        self._split = [any(len(d) != 1 for d in o.dims) for o in program.outputs]
        self._single = traced.single and not self._split[0]
        self._give = None if self.library is NUMPY else self.library.give
        self._within = getattr(self.library, "within", None)

    def inputs(self, arrays: list[Any]) -> list[Any]:
        """The views that the executable reads, of a call's arrays."""
        if self._takes is not None:
            arrays = [take(a) for take, a in zip(self._takes, arrays, strict=True)]
        if self._uploads:
            arrays = [*arrays, *(uploaded(a) if isinstance(a, np.ndarray) else a for a in self._captured)]
        elif self._captured:
            arrays = [*arrays, *self._captured]
        if self._views is None:
            return arrays
        return [arrays[p] if view is None else view(arrays[p]) for p, view in self._views]

    def __call__(self, arrays: list[Any], out: Any = None) -> Any:
        if self._within is not None:
            with self._within():
                return self._call(arrays, out)
        return self._call(arrays, out)

    def _call(self, arrays: list[Any], out: Any) -> Any:
        inputs = self.inputs(arrays)
        if out is not None:
            self._into(inputs, out)
            return out
        results = self.run(inputs, self.extents)
        if not self._single:
            return self._rebuilt(results, self.library)
        return results[0] if self._give is None else self._give(results[0])

    def _rebuilt(self, results: Sequence[Any], lib: Library) -> Any:
        shaped = [r.reshape(s) if split else r for r, s, split in zip(results, self.shapes, self._split, strict=True)]
        return self.traced.rebuild([lib.give(r) for r in shaped])

    # ---- out=
    def _into(self, inputs: list[Any], out: Any) -> None:
        """Write the results into the caller's arrays; those that are joined of several, by way of fresh ones."""
        targets = [_target(n, a) for n, a in enumerate(matched(self.traced.tree, out))]
        if not self.traced.joined:
            for n, (t, o, shape) in enumerate(zip(targets, self.program.outputs, self.shapes, strict=True)):
                _fits(n, t, shape, o.dtype)
            views = [_axes_of(t, o, self.extents) if s else t for t, o, s in zip(targets, self.program.outputs, self._split, strict=True)]
            self.run(inputs, self.extents, views)
            return
        fresh = list(matched(self.traced.tree, self._rebuilt(self.run(inputs, self.extents), NUMPY)))
        for n, (t, value) in enumerate(zip(targets, fresh, strict=True)):
            _fits(n, t, value.shape, value.dtype)
        for t, value in zip(targets, fresh, strict=True):
            t[...] = value


def matched(tree: Tree, out: Any) -> list[Any]:
    """The leaves of `out` in the order of the results, whose structure it must have.

    Raises TypeError where the structures differ. Values that are no arrays may be anything in `out`.
    """
    if tree.kind == "leaf":
        if isinstance(out, (tuple, list)) and len(out) == 1:  # as NumPy's ufuncs take it
            return list(out)
        return [out]
    if tree.kind == "static":
        return []
    if issubclass(tree.kind, dict):
        if not isinstance(out, dict) or not set(out) >= {k for k, c in zip(tree.keys, tree.children, strict=True) if c.kind != "static"}:
            raise TypeError(f"out= must be a dict with the keys of the result, {list(tree.keys)}, not {_described(out)}")
        return [leaf for k, c in zip(tree.keys, tree.children, strict=True) for leaf in matched(c, out.get(k))]
    if not isinstance(out, (tuple, list)) or len(out) != len(tree.children):
        raise TypeError(f"out= must be a {tree.kind.__name__} of {len(tree.children)}, as the result is, not {_described(out)}")
    return [leaf for c, o in zip(tree.children, out, strict=True) for leaf in matched(c, o)]


def _described(out: Any) -> str:
    if isinstance(out, dict):
        return f"one with the keys {list(out)}"
    kind = type(out).__name__
    return f"a {kind} of {len(out)}" if isinstance(out, (tuple, list)) else f"a {kind}"


def _target(n: int, array: Any) -> Any:
    taken = array
    if type(array) is not np.ndarray:
        if not hasattr(array, "shape") or not hasattr(array, "dtype") or isinstance(array, np.generic):
            raise TypeError(f"out= array {n} is a {type(array).__name__}; pass an array of the result's shape and dtype")
        taken = library_of(array).take(array)
    if isinstance(taken, np.ndarray):
        if not taken.flags.writeable:
            raise ValueError(f"out= array {n} is read-only; pass a writable array")
        if 0 in taken.strides and any(s == 0 and size > 1 for s, size in zip(taken.strides, taken.shape, strict=True)):
            raise ValueError(f"out= array {n} holds one element in several places (a stride of 0); pass an array of its own")
    return taken


def _fits(n: int, target: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if tuple(target.shape) != shape:
        raise ShapeError(f"out= array {n} has shape {tuple(target.shape)}, but result {n} has shape {tuple(shape)}")
    if target.dtype != dtype:
        raise DTypeError(f"out= array {n} has dtype {target.dtype}, but result {n} has dtype {dtype}; it must be the same")


def _shape(o: Output, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(prod(extents[a] for a in d) for d in o.dims)


def _axes_of(array: Any, o: Output, extents: Mapping[str, int]) -> Any:
    """A result array as a view with one dimension for each axis."""
    if array.flags.c_contiguous:
        return array.reshape([extents[a] for a in o.axes])
    shape: list[int] = []
    strides: list[int] = []
    for d, stride in zip(o.dims, array.strides, strict=True):
        inner = [prod(extents[a] for a in d[i + 1 :]) for i in range(len(d))]
        shape.extend(extents[a] for a in d)
        strides.extend(stride * n for n in inner)
    if isinstance(array, np.ndarray):
        return np.lib.stride_tricks.as_strided(array, shape, strides)
    return type(array)(shape, array.dtype, array.data, strides)  # CuPy's constructor takes memory and strides
