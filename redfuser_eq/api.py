"""The public surface: `optimize` and what it returns."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import runtime
from .arrays import Library, check_kinds, library
from .bound import Bound
from .cascade import Cascade
from .device import Device, device
from .errors import BackendError, DTypeError, TraceError
from .explain import Explanation
from .expr import Program
from .plan import Plan, plan
from .promotion import numpy_dtype
from .report import Report
from .rules import RuleSet, resolve
from .saturate import Budget
from .signature import TracedArgument, signature
from .trace import Traced, bind_extents, program_of, trace
from .tree import is_array

SIGNATURES = 1024  # kept for each Fused; beyond, the oldest is dropped
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

    Arrays that the function closes over are read at each call, so values changed in place are seen (for a CUDA device, arrays
    of the host are copied at each call: close over CuPy's, or use `arange`); rebinding the variable is not, and captured arrays
    without dimensions or that count up by one (`np.arange`) are constants. So are arguments that are no arrays: each new value
    of one is traced anew.

    Raises ValueError for an unknown option; tracing and shape errors come at the call.
    """
    if target is not None and target not in TARGETS:
        raise ValueError(f"optimize: target={target!r} is not one of {TARGETS} or None")
    if verify not in (True, False, "raise"):
        raise ValueError(f"optimize: verify={verify!r} is not True, False or 'raise'")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise ValueError(f"optimize: threads={threads!r} is not a positive integer or None")
    chosen = resolve(rules, numerics)
    options = Options(chosen, target, _device(device, target), verify, budget, threads, tune, numerics)
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
    numerics: str = "default"


@dataclass
class _Planned:
    plan: Plan
    executables: dict[str, runtime.Executable]


class Fused:
    """An optimized program: call it with arrays of any supported kind. It may be called from several threads at once,
    and pickled where its function can be."""

    def __init__(self, f_or_expr: Any, options: Options) -> None:
        self.options = options
        self._function: Callable[..., Any] | None = None
        self._expression: Traced | None = None
        if callable(f_or_expr) and not hasattr(f_or_expr, "shape"):
            self._function = f_or_expr
            self.__name__ = getattr(f_or_expr, "__name__", "fused")
            self.__qualname__ = getattr(f_or_expr, "__qualname__", self.__name__)
            self.__module__ = getattr(f_or_expr, "__module__", __name__)
            self.__doc__ = getattr(f_or_expr, "__doc__", None)
            self.__wrapped__ = f_or_expr
        else:
            self._expression = program_of(f_or_expr)
            self.__name__ = self.__qualname__ = "fused"
        self._prepare()

    def _prepare(self) -> None:
        self._names = self._inputs() if self._expression is not None else _positional(self._function)
        self._bound: dict[Any, Bound] = {}
        self._plans: dict[Any, _Planned] = {}
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<redfuser_eq.Fused {self.__name__} rules={self.options.rules.name!r} target={self.options.target!r}>"

    def __reduce__(self) -> Any:
        """By name where it is a module's function (as a decorated one is), else by what it was made of."""
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        return self.__qualname__ if found is self else (_restored, (self._function, self._expression, self.options))

    # ---- calls
    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run on arrays. Results are arrays of the same kind (without dimensions: arrays of shape ()), in the tuples,
        lists and dicts that the function returns. `out`: an array, or a structure of them like the result, that the
        results are written to and that is returned; it may share memory with arguments.

        Raises TraceError, ShapeError or DTypeError where the code or the arguments have no meaning, and TypeError,
        ValueError, ShapeError or DTypeError where `out` does not fit."""
        if kwargs or self._expression is not None:
            args = self._ordered(args, kwargs)
        arrays: list[Any] = []
        try:
            key = signature(args, kwargs, arrays)
        except TracedArgument:
            return self._inlined(args, kwargs)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._new(key, args, kwargs, arrays)
        return bound(arrays, out)

    def _inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._function is None:
            raise TraceError(f"{self.__name__}: an optimized expression cannot be called with traced arrays; optimize a function instead")
        return self._function(*args, **kwargs)

    def _ordered(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments with keywords made positional where they can be (and taken out of `kwargs`), so that both
        spellings are one signature."""
        if self._expression is not None:
            return self._by_name(args, kwargs)
        for name in self._names[len(args) :]:
            if name not in kwargs:
                break
            args = (*args, kwargs.pop(name))
        return args

    def _inputs(self) -> tuple[str, ...]:
        assert self._expression is not None
        p = self._expression.program
        return tuple(n for n in p.params if n not in p.constants)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments of an expression: positional, then by the names given to `array`. Takes them out of `kwargs`."""
        params = self._names
        if len(args) > len(params):
            raise TypeError(f"{self.__name__}: {len(args)} arrays given for inputs {list(params)}")
        values = dict(zip(params, args, strict=False))
        for name in list(kwargs):
            if name not in params or name in values:
                raise TypeError(f"{self.__name__}: unexpected or repeated input {name!r}; inputs are {list(params)}")
            values[name] = kwargs.pop(name)
        missing = [p for p in params if p not in values]
        if missing:
            raise TypeError(f"{self.__name__}: missing inputs {missing}; pass them by position or by name")
        return tuple([v if type(v := values[n]) is np.ndarray else self._input(n, v) for n in params])

    def _input(self, name: str, value: Any) -> Any:
        """An input as an array; numbers and nested sequences take the declared dtype."""
        if is_array(value):
            return value
        assert self._expression is not None
        program = self._expression.program
        source = next((s for s in program.sources if program.params[s.param] == name), None)
        try:
            return np.asarray(value, source.dtype if source is not None else None)
        except (TypeError, ValueError) as error:
            raise DTypeError(f"{self.__name__}: input {name!r} is no array: {error}") from error

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound:
        """Everything about one signature, found or made."""
        return self._bound_arrays(args, dict(kwargs))[0]

    def _bound_arrays(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, list[Any]]:
        args = self._ordered(args, kwargs)
        arrays: list[Any] = []
        key = signature(args, kwargs, arrays)
        bound = self._bound.get(key)
        if bound is None and self.options.target == "cuda" and library(arrays).device != "cuda":
            return self._specialise(args, kwargs, arrays, build=False), arrays  # host arrays as examples, to look at what would run
        return bound or self._new(key, args, kwargs, arrays, run=False), arrays

    def _new(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any], *, run: bool = True) -> Bound:
        if run:
            check_kinds(arrays)
        with self._lock:
            bound = self._bound.get(key)
            if bound is None:
                bound = self._specialise(args, kwargs, arrays)
                if len(self._bound) >= SIGNATURES:
                    del self._bound[next(iter(self._bound))]
                self._bound[key] = bound
            return bound

    def _specialise(self, args: tuple[Any, ...], kwargs: dict[str, Any], arrays: list[Any], *, build: bool = True) -> Bound:
        start = time.perf_counter()
        traced = self._expression or trace(self._function, args, kwargs)  # type: ignore[arg-type]
        seconds = time.perf_counter() - start
        if self._expression is not None:
            self._check_dtypes(traced.program, arrays)
        captured = list(traced.program.constants.values())
        extents = bind_extents(traced.program, [*arrays, *captured])
        program = replace(traced.program, extents=dict(extents))
        lib = library(arrays, captured)
        planned = self._plan(program, seconds, self._modelled(lib))
        run: runtime.Executable = _NothingBuilt()
        if build:
            run = self._executable(planned, self._target(lib))
        return Bound(planned.plan, replace(traced, arrays=[]), program, extents, arrays, run)

    def _check_dtypes(self, program: Program, arrays: list[Any]) -> None:
        for s in program.sources:
            if s.param < len(arrays):
                given = numpy_dtype(arrays[s.param].dtype, f"input {program.params[s.param]!r}")
                if given != s.dtype:
                    raise DTypeError(
                        f"{self.__name__}: input {program.params[s.param]!r} has dtype {given}, but was declared as {s.dtype}; "
                        f"pass x.astype({str(s.dtype)!r})"
                    )

    def _modelled(self, lib: Library) -> Device:
        """The device that costs are modelled on: the one asked for, else one of the kind that the arrays are on."""
        o = self.options
        return device("h200") if lib.device == "cuda" and o.target is None and o.device == device(None) else o.device

    def _plan(self, program: Program, traced: float, on: Device | None = None) -> _Planned:
        on = on or self.options.device
        key = (program.key(), tuple(_size_class(n) for n in program.extents.values()), on)
        with self._lock:
            if key not in self._plans:
                o = self.options
                found = plan(program, o.rules, on, verify=o.verify, budget=o.budget, traced=traced, numerics=o.numerics)
                self._plans[key] = _Planned(found, {})
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
    def _found(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        if not args and not kwargs:
            if self._expression is not None:
                return self._plan(self._expression.program, 0.0).plan
            needed = ", ".join(self._required())
            if needed:
                raise TypeError(f"{self.__name__}.{what}: give example arguments, {what}({needed}); only shapes and dtypes matter")
        try:
            return self._bind(args, kwargs).plan
        except TracedArgument:
            return self._plan(program_of(self._inlined(args, kwargs)).program, 0.0).plan

    def _required(self) -> list[str]:
        """Parameters that a call must give."""
        try:
            parameters = inspect.signature(self._function or (lambda: None)).parameters.values()
        except (TypeError, ValueError):  # some built-in callables have no signature
            return []
        return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What optimizing for these example arguments did. They may be arrays of `array` with symbolic extents, or
        anything with a shape and a dtype; an expression needs none."""
        return self._found("report", args, kwargs).report

    def cascade(self, *args: Any, **kwargs: Any) -> Cascade:
        """The program that runs for these example arguments; see `report`."""
        return self._found("cascade", args, kwargs).cascade

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Why it is right and what it costs; prints well in a terminal. Example arguments as for `report`."""
        return Explanation(self.__name__, self._found("explain", args, kwargs))

    def source(self, target: str, *args: Any, **kwargs: Any) -> str:
        """The generated source for a target ("numpy", "cpu", "cuda") at these example arguments, which must be arrays."""
        if target not in TARGETS:
            raise ValueError(f"source: target={target!r} is not one of {TARGETS}; it comes first, then example arguments")
        try:
            bound, arrays = self._bound_arrays(args, kwargs)
        except TracedArgument:
            raise TypeError(f"{self.__name__}.source: code depends on sizes and strides; give arrays instead of traced ones") from None
        return runtime.source(target, bound.plan.cascade, bound.inputs(arrays), bound.extents)


class _NothingBuilt:
    """Stands for the executable of a program that was made to be looked at, from arrays that its target cannot run on."""

    source = ""

    def __call__(self, arrays: Any, extents: Any, out: Any = None) -> list[Any]:
        raise BackendError("optimize: nothing was built from arrays on the host for target='cuda'")


def _restored(function: Any, expression: Traced | None, options: Options) -> Fused:
    """A Fused from its pickled parts."""
    if function is not None:
        return Fused(function, options)
    fused = Fused.__new__(Fused)
    fused.options, fused._function, fused._expression = options, None, expression
    fused.__name__ = fused.__qualname__ = "fused"
    fused._prepare()
    return fused


def _positional(f: Any) -> tuple[str, ...]:
    """Names of the parameters that may be passed by position or by keyword."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some built-in callables have no signature
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def _size_class(n: int | None) -> int:
    """Sizes of one class share a plan: empty, one, and each quadrupling."""
    return -1 if n is None else n if n < 2 else 2 + n.bit_length() // 2
