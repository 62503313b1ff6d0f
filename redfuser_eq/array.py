"""The traced array: what user code holds while it is traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np

from . import graph
from .errors import ShapeError, TraceError
from .graph import Node, show_shape
from .location import here
from .promotion import DType, numpy_dtype
from .sizes import Extent, Size, Symbol, Unknown

tracing: ContextVar[bool] = ContextVar("tracing", default=False)
"""Whether a function is being traced, so that positions (`arange`) are to be symbolic."""


def _namespace() -> ModuleType:
    from . import namespace  # late: the namespace is written in terms of Array

    return namespace


def _binary(name: str, swapped: bool = False) -> Callable[[Array, Any], Array]:
    def method(self: Array, other: Any) -> Array:
        f: Callable[[Any, Any], Array] = getattr(_namespace(), name)
        return f(other, self) if swapped else f(self, other)

    method.__name__ = name
    return method


def _unary(name: str) -> Callable[[Array], Array]:
    def method(self: Array) -> Array:
        f: Callable[[Any], Array] = getattr(_namespace(), name)
        return f(self)

    return method


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Array, *args: Any, **kwargs: Any) -> Any:
        return getattr(_namespace(), name)(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"As `numpy.{name}` with this array first."
    return method


def _in_place(name: str) -> Callable[[Array, Any], Array]:
    def method(self: Array, other: Any) -> Array:
        return self._become(getattr(_namespace(), name)(self, other), f"in-place {name}")

    return method


def _needs_value(what: str, remedy: str) -> Callable[..., Any]:
    def method(self: Array, *_: Any, **__: Any) -> Any:
        raise TraceError(f"{what} needs the values of a traced array of shape {show_shape(self._node.shape)}; {remedy}" + here())

    return method


_BRANCH = "choose with np.where instead of `if`, `and`, `or`, `while` or `assert`"
_NUMBER = "keep it an array: NumPy's functions work on it as they are"


class Array:
    """A traced array: a shape, a dtype, and the operation that makes it. It has no values.

    It follows NumPy's protocols (`__array_ufunc__`, `__array_function__`) and the array API standard
    (`__array_namespace__`), so ordinary array code runs on it. Sizes in `shape` are ints (or `Unknown`
    where symbolic) that remember the dimension they came from.
    """

    __slots__ = ("__weakref__", "_node")
    __array_priority__ = 1000

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def shape(self) -> tuple[Any, ...]:
        node = self._node
        return tuple(as_extent(s, ("dim", node, d)) for d, s in enumerate(node.shape))

    @property
    def dtype(self) -> DType:
        return self._node.dtype

    @property
    def ndim(self) -> int:
        return len(self._node.shape)

    @property
    def size(self) -> Any:
        out: Any = 1
        for s in self.shape:
            out = s * out
        return out

    @property
    def T(self) -> Array:
        return _namespace().transpose(self)  # type: ignore[no-any-return]

    @property
    def mT(self) -> Array:
        return _namespace().matrix_transpose(self)  # type: ignore[no-any-return]

    @property
    def real(self) -> Array:
        return self

    @property
    def device(self) -> str:
        return "trace"

    def __repr__(self) -> str:
        return f"Array(shape={show_shape(self._node.shape)}, dtype={self._node.dtype})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a protocol that somebody probes for
            raise AttributeError(name)
        raise AttributeError(f"a traced array has no attribute {name!r}; use NumPy's functions, as in np.sum(x)" + here())

    def __len__(self) -> int:
        if not self._node.shape:
            raise TypeError("len() of a traced array without dimensions")
        return int(self.shape[0])

    def __array_namespace__(self, api_version: str | None = None) -> ModuleType:
        return _namespace()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        from . import dispatch  # late, as above

        return dispatch.ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from . import dispatch  # late, as above

        return dispatch.function(func, args, kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        from . import torch_functions  # late, as above; torch has called this, so it is there

        return torch_functions.call(func, args, kwargs or {})

    def __getitem__(self, key: Any) -> Array:
        return _namespace().getitem(self, key)  # type: ignore[no-any-return]

    def astype(self, dtype: Any, *_: Any, copy: bool = True, **__: Any) -> Array:
        return _namespace().astype(self, dtype)  # type: ignore[no-any-return]

    def reshape(self, *shape: Any, order: str = "C", copy: bool | None = None) -> Array:
        return _namespace().reshape(self, shape[0] if len(shape) == 1 else shape, order=order)  # type: ignore[no-any-return]

    def transpose(self, *axes: Any) -> Array:
        chosen = None if not axes else axes[0] if len(axes) == 1 else axes
        return _namespace().transpose(self, chosen)  # type: ignore[no-any-return]

    def copy(self, order: str = "C") -> Array:
        return Array(self._node)

    __add__, __radd__, __iadd__ = _binary("add"), _binary("add", True), _in_place("add")
    __sub__, __rsub__, __isub__ = _binary("subtract"), _binary("subtract", True), _in_place("subtract")
    __mul__, __rmul__, __imul__ = _binary("multiply"), _binary("multiply", True), _in_place("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _binary("divide"), _binary("divide", True), _in_place("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floor_divide"), _binary("floor_divide", True), _in_place("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder"), _binary("remainder", True), _in_place("remainder")
    __pow__, __rpow__, __ipow__ = _binary("pow"), _binary("pow", True), _in_place("pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul"), _binary("matmul", True), _in_place("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and"), _binary("bitwise_and", True), _in_place("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or"), _binary("bitwise_or", True), _in_place("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor"), _binary("bitwise_xor", True), _in_place("bitwise_xor")
    __lt__, __le__, __gt__, __ge__ = _binary("less"), _binary("less_equal"), _binary("greater"), _binary("greater_equal")
    __eq__, __ne__ = _binary("equal"), _binary("not_equal")  # type: ignore[assignment]
    __hash__ = object.__hash__
    __neg__, __pos__, __abs__, __invert__ = _unary("negative"), _unary("positive"), _unary("abs"), _unary("bitwise_invert")

    sum, prod, max, min = _forward("sum"), _forward("prod"), _forward("max"), _forward("min")
    mean, var, std, ptp = _forward("mean"), _forward("var"), _forward("std"), _forward("ptp")
    any, all, argmax, argmin = _forward("any"), _forward("all"), _forward("argmax"), _forward("argmin")
    dot, clip, round, conj = _forward("dot"), _forward("clip"), _forward("round"), _forward("conj")
    swapaxes, squeeze, ravel, flatten = _forward("swapaxes"), _forward("squeeze"), _forward("ravel"), _forward("ravel")
    repeat, take = _forward("repeat"), _forward("take")
    sort, argsort, partition, argpartition = _forward("sort"), _forward("argsort"), _forward("partition"), _forward("argpartition")
    cumsum, cumprod, nonzero, diagonal = _forward("cumsum"), _forward("cumprod"), _forward("nonzero"), _forward("diagonal")
    trace, searchsorted = _forward("trace"), _forward("searchsorted")

    __bool__ = _needs_value("a truth value", _BRANCH)
    __float__ = _needs_value("float()", _NUMBER)
    __int__ = _needs_value("int()", _NUMBER)
    __complex__ = _needs_value("complex()", _NUMBER)
    __index__ = _needs_value("an index or a range()", "use constants, or np.take_along_axis for one index per row")
    __iter__ = _needs_value("iteration or unpacking", "index it, x[0], x[1], or reduce along the axis")
    __contains__ = _needs_value("`in`", "compare and reduce: np.any(x == value)")
    __array__ = _needs_value(
        "a conversion to a NumPy array (np.asarray, or a function that NumPy does not dispatch)",
        "call the NumPy or array API function on the traced array itself, or compute this outside the traced function",
    )
    __dlpack__ = _needs_value("__dlpack__", "hand arrays to other libraries outside the traced function")
    item = _needs_value("item()", _NUMBER)
    tolist = _needs_value("tolist()", _NUMBER)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TraceError("assignment to elements of a traced array; build the result with np.where or np.concatenate" + here())

    def _become(self, new: Array, what: str) -> Array:
        """In-place arithmetic: this object now stands for the new value, at its own dtype and shape."""
        old, node = self._node, new._node
        if old.op in ("input", "index", "relabel", "reshape") or old.viewed:
            whose = "an argument" if old.op == "input" else "an array that shares memory with another"
            raise TraceError(f"{what} would change {whose}; write x = x + y instead of x += y" + here())
        if node.shape != old.shape:
            raise ShapeError(f"{what}: the result has shape {show_shape(node.shape)}, the array {show_shape(old.shape)}" + here())
        if node.dtype != old.dtype and not np.can_cast(node.dtype, old.dtype, "same_kind"):
            raise TraceError(f"{what}: cannot put {node.dtype} into an array of {old.dtype}; write x = x + y" + here())
        self._node = graph.cast(node, old.dtype)
        return self


def as_extent(size: Size, term: Any) -> Extent | Unknown:
    return Unknown(size, term) if isinstance(size, Symbol) else Extent(size, term)


def array(name: str, shape: Sequence[int | str] = ("m", 128), dtype: Any = "float32") -> Array:
    """A symbolic input array, for `optimize(expression)`.

    name: how the argument is passed by keyword, an identifier. shape: for each dimension its size, or a
    name while it is not known; equal names are equal sizes. dtype: any NumPy or ml_dtypes dtype, or its name.
    Raises ShapeError for a size that is neither, DTypeError for a dtype without a meaning.

    >>> x = array("x", shape=("m", 128))
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TraceError(f"array: the name must be an identifier, not {name!r}" + here())
    sizes: list[Size] = []
    for s in shape:
        if isinstance(s, str) and re.fullmatch(r"[A-Za-z_]\w*", s):
            sizes.append(Symbol.named(s))
        elif isinstance(s, (int, np.integer)) and not isinstance(s, bool) and s >= 0:
            sizes.append(int(s))
        else:
            raise ShapeError(f"array {name!r}: a size is a non-negative integer or an identifier, not {s!r}" + here())
    return Array(graph.parameter(name, tuple(sizes), numpy_dtype(dtype, f"array {name!r}")))


def is_traced(value: Any) -> bool:
    """Whether a value is a traced array (and so has no numbers)."""
    return isinstance(value, Array)
