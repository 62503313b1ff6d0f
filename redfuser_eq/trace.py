"""Array code to a `Program`: run it once on traced arrays, then name the axes of what it built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from math import prod
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from . import graph
from .array import Array, array, is_traced, tracing
from .arrays import is_tensor
from .coalesce import coalesce
from .errors import ShapeError, TraceError
from .expr import Load, Program, Reduce, Source, View, check, nodes
from .graph import Node, captured
from .location import here
from .naming import Namer, Piece
from .promotion import numpy_dtype
from .tree import Tree, flatten_tree, identifiers, is_array

__all__ = ["Traced", "array", "bind_extents", "flatten", "flatten_arguments", "is_traced", "program_of", "trace", "view_arrays"]


@dataclass(frozen=True)
class Traced:
    """What tracing gives.

    program: the expressions. arrays: the concrete parameters in the order of `program.params`, captured
    arrays last (empty for a symbolic expression, but for captured ones). tree: the structure of the result.
    """

    program: Program
    arrays: list[Any]
    tree: Tree
    _leaves: tuple[tuple[tuple[int, ...], list[Piece]], ...] = field(repr=False, default=())

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """The user's structure from the arrays of the program's outputs, in order."""
        return self.tree.build(_assembled(pieces, [outputs[i] for i in at]) for at, pieces in self._leaves)

    @property
    def single(self) -> bool:
        """Whether the result is one array, and that one output of the program."""
        return self.tree.kind == "leaf" and len(self.program.outputs) == 1

    @property
    def joined(self) -> bool:
        """Whether some result is assembled from several outputs (a concatenation that is returned)."""
        return any(len(pieces) > 1 for _, pieces in self._leaves)


def trace(f: Callable[..., Any], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Traced:
    """Trace a function on example arguments, of which only shapes and dtypes are read.

    Arguments are arrays (NumPy, or anything with shape and dtype), nested tuples, lists and dicts of them, and
    static values. Arrays that the body uses without being arguments become further parameters, listed in
    `program.constants`. Raises TraceError, ShapeError or DTypeError, with the user's line, for code that
    cannot be traced.
    """
    leaves, tree = flatten_arguments(args, kwargs or {}, _parameter_names(f))
    names = identifiers([n for n, _ in leaves])
    inputs = [
        graph.parameter(n, tuple(int(s) for s in a.shape), numpy_dtype(a.dtype, f"argument {n!r}"))
        for n, (_, a) in zip(names, leaves, strict=True)
    ]
    traced_args, traced_kwargs = tree.build(_like(n, a) for n, (_, a) in zip(inputs, leaves, strict=True))
    token = tracing.set(True)
    try:
        result = f(*traced_args, **traced_kwargs)
    finally:
        tracing.reset(token)
    return _assemble(result, inputs, [a for _, a in leaves], getattr(f, "__name__", "the function"))


def _like(node: Node, array: Any) -> Array:
    """A traced array with the manners of the library that the array is of."""
    if not is_tensor(array):
        return Array(node)
    from .torch_functions import TorchArray  # late: it imports torch

    return TorchArray(node)


def program_of(result: Any) -> Traced:
    """The program of a symbolic expression, or of a structure of them; parameters in the order they were made."""
    outputs, _ = flatten_tree(result, is_traced)
    used = [n for n in graph.topological([a._node for _, a in outputs]) if n.op == "input" and captured(n) is None]
    used.sort(key=lambda n: n.attrs.serial)
    names = [n.attrs.name for n in used]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise TraceError(f"two different arrays are named {twice[0]!r}; give each its own name" + here())
    return _assemble(result, used, [], "the expression")


def flatten_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str] = ()) -> tuple[list[tuple[str, Any]], Tree]:
    """(name, array) of each array among call arguments in order, and the structure of (args, kwargs)."""

    def leaf(v: Any) -> bool:
        return is_array(v) and not is_traced(v)

    parts = [flatten_tree(a, leaf, names[i] if i < len(names) else f"arg{i}") for i, a in enumerate(args)]
    named = [flatten_tree(v, leaf, k) for k, v in kwargs.items()]
    found = [item for items, _ in (*parts, *named) for item in items]
    positional = Tree(tuple, tuple(t for _, t in parts))
    return found, Tree(tuple, (positional, Tree(dict, tuple(t for _, t in named), tuple(kwargs))))


def flatten(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arrays among call arguments, in the order of a program's parameters."""
    return [a for _, a in flatten_arguments(args, kwargs)[0]]


@lru_cache(maxsize=1024)
def _parameter_names(f: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def _assemble(result: Any, inputs: list[Node], arrays: list[Any], what: str) -> Traced:
    outputs, tree = flatten_tree(result, is_traced)
    roots: list[Node] = [a._node for _, a in outputs]
    if not roots:
        raise TraceError(f"{what} returns no array computed from its arguments" + here())
    constants = [n for n in graph.topological(roots) if n.op == "input" and captured(n) is not None]
    names = identifiers([n.attrs.name for n in (*inputs, *constants)])
    params = {n: (name, i) for i, (n, name) in enumerate(zip((*inputs, *constants), names, strict=True))}
    lost = [n for n in graph.topological(roots) if n.op == "input" and n not in params]
    if lost:
        raise TraceError(f"{what} uses the traced array {lost[0].attrs.name!r} of another trace; pass it as an argument" + here())
    namer = Namer(roots, params)
    pieces = namer.run()
    program = _program(namer, pieces, tuple(names), {n: captured(c) for n, c in zip(names[len(inputs) :], constants, strict=True)})
    check(program)
    position = iter(range(len(program.outputs)))
    leaves = tuple((tuple(next(position) for _ in leaf), leaf) for leaf in pieces)
    return Traced(program, [*arrays, *program.constants.values()], tree, leaves)


def _program(namer: Namer, pieces: list[list[Piece]], names: tuple[str, ...], constants: dict[str, Any]) -> Program:
    outputs = [p.output for leaf in pieces for p in leaf]
    kept = {a for o in outputs for a in o.axes}
    exprs, sources, merged = coalesce([o.expr for o in outputs], kept, namer.sources)
    extents: dict[str, int | None] = {n: s if isinstance(s, int) else None for n, s in namer.sizes.items()}
    for n, (a, b) in merged.items():
        x, y = extents[a], extents[b]
        extents[n] = None if x is None or y is None else x * y
    outputs = [replace(o, expr=e) for o, e in zip(outputs, exprs, strict=True)]
    used = kept.union(*({e.axis, e.out} if isinstance(e, Reduce) else e.axes for e in nodes(*exprs)))
    return Program(names, sources, {n: s for n, s in extents.items() if n in used}, tuple(outputs), constants)


def _assembled(pieces: list[Piece], arrays: list[Any]) -> Any:
    """A result from its pieces: joined along each dimension, then dimensions joined among themselves."""
    if len(arrays) == 1:
        return arrays[0]
    parts = {p.offsets: a for p, a in zip(pieces, arrays, strict=True)}
    for d in reversed(range(len(pieces[0].offsets))):
        rows: dict[tuple[int, ...], list[tuple[int, Any]]] = {}
        for offsets, a in parts.items():
            rows.setdefault((*offsets[:d], 0, *offsets[d + 1 :]), []).append((offsets[d], a))
        parts = {key: _concatenate([a for _, a in sorted(row, key=lambda item: item[0])], d) for key, row in rows.items()}
    (whole,) = parts.values()
    return whole.reshape(tuple(prod(whole.shape[b:e]) for b, e in _ends(pieces[0].joins)))


def _concatenate(arrays: list[Any], axis: int) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    if type(arrays[0]).__module__.partition(".")[0] == "torch":
        import torch

        return torch.cat(arrays, dim=axis)
    return np.concatenate(arrays, axis=axis)


def view_arrays(program: Program, arrays: Sequence[Any]) -> list[Any]:
    """Each source of a program as a view of its parameter. Never a copy, except where merging dimensions of a
    strided array needs one."""
    found = []
    for s in program.sources:
        view = viewer(s, arrays[s.param].shape)
        found.append(arrays[s.param] if view is None else view(arrays[s.param]))
    return found


def viewer(source: Source, shape: Sequence[int]) -> Callable[[Any], Any] | None:
    """What cuts a source from an array of the shape, prepared once; None where it is the array itself."""
    view, steps = source.view, list[Callable[[Any], Any]]()
    seen: Any = np.broadcast_to(np.False_, tuple(shape))  # shapes without memory

    def step(f: Callable[[Any], Any]) -> None:
        nonlocal seen
        steps.append(f)
        seen = f(seen)

    if view.index and any(i != slice(None) for i in view.index):
        step(itemgetter(view.index))
    if view.splits:
        split = tuple(s for size, into in zip(seen.shape, view.splits, strict=True) for s in _resolved(into, size, source.name))
        if split != seen.shape:
            step(methodcaller("reshape", split))
    if view.then and any(i != slice(None) for i in view.then):
        step(itemgetter(view.then))
    if view.merges and any(n != 1 for n in view.merges):
        step(methodcaller("reshape", tuple(prod(seen.shape[b:e]) for b, e in _ends(view.merges))))
    if len(steps) < 2:
        return steps[0] if steps else None
    return lambda a: reduce(lambda x, f: f(x), steps, a)


def _ends(merges: Iterable[int]) -> list[tuple[int, int]]:
    ends, first = [], 0
    for n in merges:
        ends.append((first, first + n))
        first += n
    return ends


def _resolved(splits: tuple[int, ...], size: int, what: str) -> tuple[int, ...]:
    known = prod(s for s in splits if s != -1)
    if -1 in splits:
        if known == 0 or size % known:
            raise ShapeError(f"{what}: {size} elements do not split by {known}")
        return tuple(size // known if s == -1 else s for s in splits)
    if known != size:
        raise ShapeError(f"{what}: {size} elements do not split into {splits}")
    return splits


def bind_extents(program: Program, arrays: Sequence[Any]) -> dict[str, int]:
    """The size of every axis, from arrays in the order of `program.params`.

    Raises ShapeError, naming arguments, dimensions and sizes, where two arrays disagree about an axis or one
    does not fit the program.
    """
    found: dict[str, tuple[int, str]] = {}
    sizes: dict[str, list[tuple[int, str]]] = {}
    for s in program.sources:
        sizes[s.name] = _source_sizes(s, program.params[s.param], tuple(arrays[s.param].shape))
    for e in nodes(*(o.expr for o in program.outputs)):
        if not isinstance(e, Load):
            continue
        for axis, (size, where) in zip(e.dims, sizes[e.source], strict=True):
            first = found.setdefault(axis, (size, where))
            if first[0] != size:
                raise ShapeError(f"axis {axis!r}: {first[1]} is {first[0]}, but {where} is {size}; they must be equal")
    for axis, extent in program.extents.items():
        if extent is not None and found.setdefault(axis, (extent, ""))[0] != extent:
            raise ShapeError(f"axis {axis!r}: {found[axis][1]} is {found[axis][0]}, but the program was made for {extent}")
        if axis not in found:
            raise ShapeError(f"axis {axis!r} has no size: no array runs along it; give its extent as an integer")
    return {axis: found[axis][0] for axis in program.extents}


def _source_sizes(source: Source, name: str, shape: tuple[int, ...]) -> list[tuple[int, str]]:
    """The size of each dimension of a view, and where in the argument it comes from."""
    view: View = source.view
    dims = [(int(s), f"argument {name!r} dimension {d}") for d, s in enumerate(shape)]
    if view.index:
        dims = _indexed(dims, view.index, name, shape)
    if view.splits:
        if len(dims) != len(view.splits):
            raise ShapeError(f"argument {name!r} has shape {graph.show_shape(shape)}, the program expects another number of dimensions")
        dims = [(s, where) for (size, where), splits in zip(dims, view.splits, strict=True) for s in _resolved(splits, size, where)]
    if view.then:
        dims = _indexed(dims, view.then, name, shape)
    if view.merges:
        dims = [(prod(s for s, _ in dims[b:e]), dims[b][1]) for b, e in _ends(view.merges)]
    if len(dims) != source.ndim:
        raise ShapeError(f"argument {name!r} has shape {graph.show_shape(shape)}, the program expects another number of dimensions")
    return dims


def _indexed(dims: list[tuple[int, str]], index: tuple[slice | int, ...], name: str, shape: tuple[int, ...]) -> list[tuple[int, str]]:
    if len(dims) != len(index):
        raise ShapeError(f"argument {name!r} has shape {graph.show_shape(shape)}, the program expects {len(index)} dimensions")
    out = []
    for (size, where), i in zip(dims, index, strict=True):
        if isinstance(i, slice):
            out.append((len(range(*i.indices(size))), where))
        elif not -size <= i < size:
            raise ShapeError(f"{where} is {size}: position {i} is out of range")
    return out
