"""The public surface: `optimize` and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import runtime
from .arrays import NUMPY, Library, library
from .cascade import Cascade
from .device import Device, device
from .errors import BackendError, ShapeError
from .explain import Explanation
from .expr import Output, Program
from .plan import Plan, plan
from .report import Report
from .rules import RuleSet, resolve
from .saturate import Budget
from .trace import Traced, bind_extents, flatten, program_of, trace, view_arrays

TARGETS = ("numpy", "cpu", "cuda")


def optimize(
    f_or_expr: Any,
    *,
    rules: str | RuleSet | Iterable[str | RuleSet] = "default",
    numerics: str = "default",
    target: str | None = None,
    device: Device | str | None = None,
    verify: bool | str = True,
    budget: Budget | None = None,
    threads: int | None = None,
    tune: bool = False,
) -> Fused:
    """Turn array code with cascaded reductions into a one-pass program.

    f_or_expr: a function over arrays (traced at its first call), or a traced expression, tuple or dict of
    them built from `array(...)`. rules: a rule set's name, a RuleSet, or a list of them. numerics:
    "strict" keeps the written-out formula's roundings, "default" may be safer or more accurate than it,
    "fast" may lose accuracy. target: "numpy", "cpu" or "cuda"; None is the best that the arrays and the
    machine allow. device: a `Device` or its name, for the cost model. verify: check every program against
    its source (True: fall back with a warning; "raise": raise UnsoundRewrite). budget: limits of
    saturation. threads: CPU threads (None: REDFUSER_NUM_THREADS, OMP_NUM_THREADS or all). tune: measure a
    few schedules at the first call.

    Raises ValueError for an unknown option; tracing and shape errors come at the call.
    """
    if target is not None and target not in TARGETS:
        raise ValueError(f"optimize: target={target!r} is not one of {TARGETS} or None")
    if verify not in (True, False, "raise"):
        raise ValueError(f"optimize: verify={verify!r} is not True, False or 'raise'")
    chosen = resolve(rules, numerics)
    options = Options(chosen, target, _device(device, target), verify, budget, threads, tune)
    return Fused(f_or_expr, options)


def _device(named: Device | str | None, target: str | None) -> Device:
    return device(named if named is not None or target != "cuda" else "h200")


@dataclass(frozen=True)
class Options:
    rules: RuleSet
    target: str | None
    device: Device
    verify: bool | str
    budget: Budget | None
    threads: int | None
    tune: bool


@dataclass
class _Planned:
    plan: Plan
    executables: dict[str, runtime.Executable]


@dataclass
class _Bound:
    """A plan at one signature: everything a call needs."""

    planned: _Planned
    traced: Traced
    program: Program
    extents: dict[str, int]
    library: Library
    target: str
    run: runtime.Executable
    shapes: tuple[tuple[int, ...], ...]


class Fused:
    """An optimized program: call it with arrays of any supported kind."""

    def __init__(self, f_or_expr: Any, options: Options) -> None:
        self.options = options
        self._function: Callable[..., Any] | None = None
        self._expression: Traced | None = None
        if callable(f_or_expr) and not hasattr(f_or_expr, "shape"):
            self._function = f_or_expr
            self.__name__ = getattr(f_or_expr, "__name__", "fused")
            self.__doc__ = getattr(f_or_expr, "__doc__", None)
        else:
            self._expression = program_of(f_or_expr)
            self.__name__ = "fused"
        self._bound: dict[Any, _Bound] = {}
        self._plans: dict[Any, _Planned] = {}

    def __repr__(self) -> str:
        return f"<redfuser_eq.Fused {self.__name__} rules={self.options.rules.name!r} target={self.options.target!r}>"

    # ---- calls
    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run on arrays. `out`: an array, or a tuple, list or dict of them shaped like the result."""
        bound = self._bind(args, kwargs)
        given = self._arrays(bound, args, kwargs)
        lib = bound.library
        viewed = view_arrays(bound.program, [lib.take(a) if type(a) is not np.ndarray else a for a in given])
        into = None if out is None else _targets(bound, out)
        results = bound.run(viewed, bound.extents, into)
        if out is not None:
            return out
        shaped = [lib.give(r.reshape(s), None) for r, s in zip(results, bound.shapes, strict=True)]
        return bound.traced.rebuild(shaped)

    def _arrays(self, bound: _Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        given = flatten(args, kwargs) if self._function is not None else self._by_name(args, kwargs)
        return [*given, *bound.traced.arrays[len(given) :]]

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Arguments of an expression: positional, then by the names given to `array`."""
        assert self._expression is not None
        params = [p for p in self._expression.program.params if p not in self._expression.program.constants]
        if len(args) > len(params):
            raise TypeError(f"{self.__name__}: {len(args)} arrays given for inputs {params}")
        values = dict(zip(params, args, strict=False))
        for name, value in kwargs.items():
            if name not in params or name in values:
                raise TypeError(f"{self.__name__}: unexpected or repeated input {name!r}; inputs are {params}")
            values[name] = value
        missing = [p for p in params if p not in values]
        if missing:
            raise TypeError(f"{self.__name__}: missing inputs {missing}; pass them by position or by name")
        return [np.asarray(values[p]) if np.isscalar(values[p]) else values[p] for p in params]

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        key = _signature((args, kwargs)) if kwargs else _signature(args)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = self._specialise(args, kwargs)
        return bound

    def _specialise(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Bound:
        traced, seconds = self._trace(args, kwargs)
        given = flatten(args, kwargs) if self._function is not None else self._by_name(args, kwargs)
        arrays = [*given, *traced.arrays[len(given) :]]
        extents = bind_extents(traced.program, arrays)
        program = replace(traced.program, extents=dict(extents))
        lib = library(given)
        planned = self._plan(program, seconds)
        target = self._target(lib)
        run = self._executable(planned, target)
        return _Bound(planned, traced, program, extents, lib, target, run, tuple(_shape(o, extents) for o in program.outputs))

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Traced, float]:
        if self._expression is not None:
            return self._expression, 0.0
        assert self._function is not None
        start = time.perf_counter()
        return trace(self._function, args, kwargs), time.perf_counter() - start

    def _plan(self, program: Program, traced: float) -> _Planned:
        sizes = tuple(_size_class(n) for n in program.extents.values())
        key = (program.key(), sizes)
        if key not in self._plans:
            o = self.options
            self._plans[key] = _Planned(plan(program, o.rules, o.device, verify=o.verify, budget=o.budget, traced=traced), {})
        return self._plans[key]

    def _target(self, lib: Library) -> str:
        wanted = self.options.target
        if lib.device == "cuda":
            if wanted not in (None, "cuda"):
                raise BackendError(f"optimize: target={wanted!r}, but the arrays are on a CUDA device; move them to the host")
            return "cuda"
        if wanted == "cuda":
            raise BackendError("optimize: target='cuda', but the arrays are on the host; pass CuPy arrays or CUDA tensors")
        return wanted or ("cpu" if runtime.available("cpu") else "numpy")

    def _executable(self, planned: _Planned, target: str) -> runtime.Executable:
        if target not in planned.executables:
            start = time.perf_counter()
            p = planned.plan
            planned.executables[target] = runtime.build(target, p.cascade, p.plain, threads=self.options.threads, tune=self.options.tune)
            seconds = {**p.report.seconds, "build": time.perf_counter() - start}
            p.report = replace(p.report, seconds=seconds, target=target)
        return planned.executables[target]

    # ---- what was found
    def _planned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        if self._expression is not None and not args and not kwargs:
            return self._plan(self._expression.program, 0.0).plan
        return self._bind(args, kwargs).planned.plan

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What optimizing for these example arguments did. An expression needs none."""
        return self._planned(args, kwargs).report

    def cascade(self, *args: Any, **kwargs: Any) -> Cascade:
        """The program that runs for these example arguments."""
        return self._planned(args, kwargs).cascade

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Why it is right and what it costs; prints well in a terminal."""
        return Explanation(self.__name__, self._planned(args, kwargs))

    def source(self, target: str, *args: Any, **kwargs: Any) -> str:
        """The generated source for a target ("cpu", "cuda") at these example arguments."""
        if target not in TARGETS:
            raise ValueError(f"source: target={target!r} is not one of {TARGETS}")
        bound = self._bind(args, kwargs)
        arrays = self._arrays(bound, args, kwargs)
        viewed = view_arrays(bound.program, [bound.library.take(a) for a in arrays])
        return runtime.source(target, bound.planned.plan.cascade, viewed, bound.extents)


def _signature(x: Any) -> Any:
    """A hashable key of what tracing depends on."""
    kind = type(x)
    if kind is np.ndarray:
        return (x.shape, x.dtype)
    if kind is tuple:
        return tuple([_signature(a) for a in x])
    if kind is list:
        return (list, *(_signature(a) for a in x))
    if kind is dict:
        return (dict, *((k, _signature(v)) for k, v in x.items()))
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return (kind, tuple(x.shape), str(x.dtype), str(getattr(x, "device", "")))
    try:
        hash(x)
    except TypeError:
        return (kind, repr(x))
    return (kind, x)


def _size_class(n: int | None) -> int:
    """Sizes of one class share a plan: empty, one, and each doubling."""
    return -1 if n is None else n if n < 2 else 1 + n.bit_length()


def _shape(o: Output, extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(int(np.prod([extents[a] for a in d], dtype=np.int64)) for d in o.dims)


def _targets(bound: _Bound, out: Any) -> list[Any]:
    """Caller's result arrays as views with one dimension an axis; shapes and dtypes must fit exactly."""
    given: Sequence[Any] = flatten((out,), {})
    outputs = bound.program.outputs
    if len(given) != len(outputs):
        raise ShapeError(f"out= holds {len(given)} arrays, but the program has {len(outputs)} results; pass one for each")
    views = []
    for n, (array, o, shape) in enumerate(zip(given, outputs, bound.shapes, strict=True)):
        taken = (bound.library if type(array) is not np.ndarray else NUMPY).take(array)
        if tuple(taken.shape) != shape or taken.dtype != o.dtype:
            raise ShapeError(
                f"out= array {n} has shape {tuple(taken.shape)} and dtype {taken.dtype}; result {n} has shape {shape} and dtype {o.dtype}"
            )
        if not taken.flags.writeable:
            raise ValueError(f"out= array {n} is read-only; pass a writable array")
        views.append(_split(taken, o, bound.extents))
    return views


def _split(array: Any, o: Output, extents: Mapping[str, int]) -> Any:
    shape, strides = [], []
    for d, size, stride in zip(o.dims, array.shape, array.strides, strict=True):
        for axis in d:
            size //= max(1, extents[axis])
            shape.append(extents[axis])
            strides.append(stride * size)
    return np.lib.stride_tricks.as_strided(array, shape, strides)
