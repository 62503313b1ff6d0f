"""torch's names, keywords and conventions for traced arrays, so that code written for tensors traces.

A tensor argument is traced as a `TorchArray`. Its operators, its methods and every torch function that meets it look
their name up in one table, whose entries say it in the namespace's functions: `dim` for `axis`, torch's promotion,
its corrected variance, its pairs of values and positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import compose, dispatch
from . import namespace as xp
from .array import Array
from .errors import TraceError
from .location import here
from .promotion import is_float, numpy_dtype
from .torch_layers import LAYERS

Function = Callable[..., Any]


class TorchArray(Array):
    """A traced array with the attributes, methods and operators of a torch tensor."""

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        return getattr(torch, self._node.dtype.name)

    @property
    def device(self) -> Any:
        return torch.device("cpu")

    @property
    def T(self) -> Any:
        return wrapped(xp.transpose(self))

    @property
    def mT(self) -> Any:
        return wrapped(xp.matrix_transpose(self))

    @property
    def requires_grad(self) -> bool:
        return False

    def __getattribute__(self, name: str) -> Any:
        if name in TABLE:  # before NumPy's methods of the same name
            return _method(name)(self)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(f"a traced tensor has no attribute {name!r} that can be traced" + here())

    def __getitem__(self, key: Any) -> Any:
        return wrapped(xp.getitem(self, key))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return wrapped(dispatch.ufunc(ufunc, method, inputs, kwargs))

    def __array_function__(self, func: Function, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrapped(dispatch.function(func, args, kwargs))


def wrapped(value: Any) -> Any:
    """Traced arrays in a result as TorchArrays."""
    if isinstance(value, Array):
        return value if isinstance(value, TorchArray) else TorchArray(value._node)
    if isinstance(value, (tuple, list)):
        return type(value)([wrapped(v) for v in value])
    return value


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function (or a method of a real tensor) on traced arrays: `__torch_function__`."""
    name = func.__name__.removeprefix("linalg_").strip("_")
    swapped = func.__name__.startswith("__r") and name[1:] in TABLE
    entry = TABLE.get(name[1:] if swapped else name)
    if entry is None or (func.__name__.endswith("_") and not func.__name__.startswith("__")):
        raise xp.refuse_operation(f"torch's {func.__name__}")
    return _called(entry, args[::-1] if swapped else args, kwargs)


def _called(entry: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = {_ALIASES.get(k, k): v for k, v in kwargs.items() if k != "_stacklevel" and not (k in _IGNORED and not v)}
    if "input" in named:
        args = (named.pop("input"), *args)
    try:
        return wrapped(entry(*args, **named))
    except TypeError as error:
        if isinstance(error, TraceError) or "argument" not in str(error):
            raise
        raise TraceError(f"torch's {entry.__name__.strip('_')} with these arguments cannot be traced: {error}" + here()) from error


_ALIASES = {"axis": "dim", "keepdims": "keepdim", "self": "input", "axis0": "dim0", "axis1": "dim1"}
_IGNORED = frozenset({"out", "inplace", "memory_format", "non_blocking", "copy", "layout", "pin_memory", "requires_grad"})


def _method(name: str) -> Function:
    def bound(x: Any) -> Function:
        return lambda *args, **kwargs: _called(TABLE[name], (x, *args), kwargs)

    return bound


# ---- promotion


def _dtype(x: Any) -> Any:
    return x._node.dtype if isinstance(x, Array) else numpy_dtype(x.dtype)


def _proxy(x: Any) -> Any:
    """A tensor (or number) that stands for x in torch's rules of promotion."""
    if not hasattr(x, "shape"):
        return x
    return torch.empty((1,) if len(x.shape) else (), dtype=getattr(torch, _dtype(x).name), device="meta")


def _common(a: Any, b: Any, floating: bool = False) -> tuple[Any, Any]:
    """Two operands at the dtype that torch gives them; Python numbers stay as they are."""
    to = torch.result_type(_proxy(a), _proxy(b))
    if floating and not to.is_floating_point:
        to = torch.get_default_dtype()
    return (xp.astype(a, to) if hasattr(a, "shape") else a), (xp.astype(b, to) if hasattr(b, "shape") else b)


def _binary(f: Function, floating: bool = False) -> Function:
    def call(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        return f(*_common(a, b if alpha == 1 else b * alpha, floating))

    call.__name__ = f.__name__
    return call


def _floating(x: Any) -> Any:
    return x if is_float(_dtype(x)) else xp.astype(x, torch.get_default_dtype())


def _unary(f: Function) -> Function:
    def call(x: Any) -> Any:
        return f(_floating(x))

    call.__name__ = f.__name__
    return call


def _divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return xp.divide(*_common(a, b, True))
    if rounding_mode == "floor":
        return xp.floor_divide(*_common(a, b))
    return xp.trunc(xp.divide(*_common(a, b, True)))


def _where(condition: Any, a: Any, b: Any) -> Any:
    return xp.where(condition, *_common(a, b))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    return xp.clip(x, min, max)


# ---- reductions


def _dims(dim: Any, *more: Any) -> Any:
    return tuple(dim) if isinstance(dim, (list, tuple)) else dim


def _total(f: Function) -> Function:
    def call(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        given = _dtype(x) if dtype is None else numpy_dtype(dtype)
        return f(x, axis=_dims(dim), keepdims=keepdim, dtype=given if is_float(given) else np.int64)

    call.__name__ = f.__name__
    return call


def _reduction(f: Function) -> Function:
    def call(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return f(x, axis=_dims(dim), keepdims=keepdim)

    call.__name__ = f.__name__
    return call


def _best(f: Function, position: Function, other: Function, pair: Any) -> Function:
    """torch's max and min: of all, along a dimension with positions, or of two arrays."""

    def call(x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
        dim = named.pop("other", dim)
        if dim is None:
            return f(x)
        if hasattr(dim, "shape"):
            return other(*_common(x, dim))
        return pair((f(x, axis=dim, keepdims=keepdim), position(x, axis=dim, keepdims=keepdim)))

    call.__name__ = f.__name__
    return call


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return xp.mean(x if dtype is None else xp.astype(x, dtype), axis=_dims(dim), keepdims=keepdim)


def _spread(f: Function) -> Function:
    def call(x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        off = correction if correction is not None else 1 if unbiased is None else int(unbiased)
        return f(x, axis=_dims(dim), keepdims=keepdim, correction=off)

    call.__name__ = f.__name__
    return call


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, *, ord: Any = None) -> Any:
    p = 2 if p in (None, "fro") else p
    dims = _dims(dim)
    if (p if ord is None else ord) == 2:
        return xp.sqrt(xp.sum(xp.square(x), axis=dims, keepdims=keepdim))
    return xp.norm(xp.ravel(x) if dim is None else x, p if ord is None else ord, dims, keepdim)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    values, indices = xp.top_k(x if largest else xp.negative(x), k, dim)
    return torch.return_types.topk((values if largest else xp.negative(values), indices))


# ---- contractions and layers


def _einsum(equation: str, *operands: Any) -> Any:
    arrays = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    return xp.einsum(equation, *arrays)


def _tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    return xp.tensordot(a, b, axes=dims)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    out = xp.matmul(x, xp.matrix_transpose(xp.asarray(weight)))
    return out if bias is None else out + bias


def _softmax(f: Function) -> Function:
    def call(x: Any, dim: Any = None, dtype: Any = None) -> Any:
        if dim is None:
            raise TraceError(f"torch's {f.__name__} needs dim=" + here())
        return f(_floating(x if dtype is None else xp.astype(x, dtype)), dim)

    call.__name__ = f.__name__
    return call


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return compose.logsumexp(_floating(x), _dims(dim), keepdim)


def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return compose.layer_norm(x, weight, bias, eps, tuple(range(-len(normalized_shape), 0)))


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    eps = torch.finfo(getattr(torch, _dtype(x).name)).eps if eps is None else eps
    return compose.rms_norm(x, weight, eps, tuple(range(-len(normalized_shape), 0)))


def _normalize(x: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    return xp.divide(x, xp.maximum(_norm(x, p, dim, True), eps))


def _gelu(x: Any, approximate: str = "none") -> Any:
    return compose.gelu(x, approximate)


def _relu(x: Any) -> Any:
    return xp.maximum(x, 0)


# ---- shapes and dtypes


def _sizes(given: Any) -> Any:
    return given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _size(x: Any, dim: int | None = None) -> Any:
    return x.shape if dim is None else x.shape[dim]


def _permute(x: Any, *dims: Any) -> Any:
    return xp.transpose(x, _sizes(dims))


def _reshape(x: Any, *shape: Any) -> Any:
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        raise TraceError("a view of a tensor's bytes as another dtype cannot be traced" + here())
    return xp.reshape(x, _sizes(shape))


def _expand(x: Any, *shape: Any) -> Any:
    sizes = _sizes(shape)
    first = len(sizes) - len(x.shape)
    return xp.broadcast_to(x, tuple(x.shape[d - first] if isinstance(s, int) and s == -1 else s for d, s in enumerate(sizes)))


def _squeeze(x: Any, dim: Any = None) -> Any:
    """Unlike NumPy's, it leaves dimensions of another size than 1 alone."""
    dims = range(len(x.shape)) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    return xp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = start_dim % max(1, len(x.shape)), end_dim % max(1, len(x.shape))
    return xp.reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def _pieces(x: Any, size: Any, dim: int = 0) -> Any:
    n = x.shape[dim]
    ends = list(range(size, n, size)) if isinstance(size, int) else [int(s) for s in np.cumsum(size)[:-1]]
    return tuple(xp.split(x, ends, axis=dim))


def _chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    return _pieces(x, -(-x.shape[dim] // chunks), dim)


def _joined(f: Function) -> Function:
    def call(tensors: Any, dim: int = 0) -> Any:
        return f(tensors, axis=dim)

    call.__name__ = f.__name__
    return call


def _repeat_interleave(x: Any, repeats: Any, dim: int | None = None) -> Any:
    return xp.repeat(x, repeats, axis=dim)


def _repeat(x: Any, *sizes: Any) -> Any:
    return xp.tile(x, tuple(_sizes(sizes)))


def _gather(x: Any, dim: Any, index: Any) -> Any:
    return xp.take_along_axis(x, index, axis=dim)


def _take_along_dim(x: Any, indices: Any, dim: Any = None) -> Any:
    return xp.take_along_axis(x, indices, axis=dim)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return xp.where(mask, xp.astype(xp.asarray(value), _dtype(x)), x)


def _triangle(f: Function) -> Function:
    def call(x: Any, diagonal: int = 0) -> Any:
        return f(x, diagonal)

    call.__name__ = f.__name__
    return call


def _filled(value: Any) -> Function:
    def call(x: Any, *, dtype: Any = None, device: Any = None) -> Any:
        return xp.full_like(x, value, dtype=dtype)

    call.__name__ = "full_like"
    return call


def _to(x: Any, *args: Any, dtype: Any = None, device: Any = None) -> Any:
    for a in args:
        dtype = a if isinstance(a, torch.dtype) else a.dtype if hasattr(a, "shape") else dtype
    return x if dtype is None else xp.astype(x, dtype)


def _cast(dtype: Any) -> Function:
    return lambda x: xp.astype(x, dtype)


def _same(x: Any, *_: Any) -> Any:
    return x


_FLOATING = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "sigmoid", "reciprocal",
)  # fmt: skip
_PLAIN = {
    "abs": "abs", "absolute": "abs", "square": "square", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "round",
    "trunc": "trunc", "neg": "negative", "negative": "negative", "positive": "positive", "isfinite": "isfinite", "isnan": "isnan",
    "isinf": "isinf", "logical_not": "logical_not", "bitwise_not": "bitwise_invert", "invert": "bitwise_invert", "matmul": "matmul",
    "mm": "matmul", "bmm": "matmul", "mv": "matmul", "dot": "dot", "vdot": "dot", "outer": "outer", "vecdot": "vecdot", "t": "transpose",
    "transpose": "swapaxes", "swapaxes": "swapaxes", "swapdims": "swapaxes", "adjoint": "matrix_transpose", "movedim": "moveaxis",
    "moveaxis": "moveaxis", "unsqueeze": "expand_dims", "broadcast_to": "broadcast_to", "flip": "flip", "ravel": "ravel", "tile": "tile",
    "unbind": "unstack", "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor", "nan_to_num": "nan_to_num",
}  # fmt: skip
_BINARY = {
    "add": "add", "sub": "subtract", "subtract": "subtract", "mul": "multiply", "multiply": "multiply", "pow": "pow",
    "maximum": "maximum", "minimum": "minimum", "fmax": "fmax", "fmin": "fmin", "remainder": "remainder", "mod": "remainder",
    "floor_divide": "floor_divide", "floordiv": "floor_divide", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal", "less": "less", "greater": "greater", "logaddexp": "logaddexp", "xlogy": "xlogy",
}  # fmt: skip

TABLE: dict[str, Function] = {
    **LAYERS,
    **{name: _unary(getattr(xp, name)) for name in _FLOATING},
    **{name: getattr(xp, target) for name, target in _PLAIN.items()},
    **{name: _binary(getattr(xp, target)) for name, target in _BINARY.items()},
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), _divide),
    **dict.fromkeys(("clamp", "clip"), _clamp),
    **dict.fromkeys(("where",), _where),
    **dict.fromkeys(("permute", "permute_dims"), _permute),
    **dict.fromkeys(("reshape", "view"), _reshape),
    **dict.fromkeys(("cat", "concat", "concatenate"), _joined(xp.concatenate)),
    **dict.fromkeys(("contiguous", "clone", "detach", "cpu"), _same),
    **dict.fromkeys(("norm", "vector_norm"), _norm),
    "sum": _total(xp.sum), "prod": _total(xp.prod), "mean": _mean, "var": _spread(xp.var), "std": _spread(xp.std),
    "amax": _reduction(xp.max), "amin": _reduction(xp.min), "any": _reduction(xp.any), "all": _reduction(xp.all),
    "argmax": _reduction(xp.argmax), "argmin": _reduction(xp.argmin), "count_nonzero": _reduction(xp.count_nonzero),
    "max": _best(xp.max, xp.argmax, xp.maximum, torch.return_types.max),
    "min": _best(xp.min, xp.argmin, xp.minimum, torch.return_types.min),
    "topk": _topk, "logsumexp": _logsumexp, "softmax": _softmax(compose.softmax), "log_softmax": _softmax(compose.log_softmax),
    "einsum": _einsum, "tensordot": _tensordot, "linear": _linear, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "normalize": _normalize, "gelu": _gelu, "silu": compose.silu, "relu": _relu,
    "size": _size, "dim": lambda x: len(x.shape), "numel": lambda x: math.prod(x.shape),
    "expand": _expand, "expand_as": lambda x, y: xp.broadcast_to(x, y.shape), "squeeze": _squeeze, "flatten": _flatten,
    "split": _pieces, "chunk": _chunk, "stack": _joined(xp.stack), "repeat_interleave": _repeat_interleave, "repeat": _repeat,
    "gather": _gather, "take_along_dim": _take_along_dim, "masked_fill": _masked_fill,
    "tril": _triangle(xp.tril), "triu": _triangle(xp.triu), "zeros_like": _filled(0), "ones_like": _filled(1),
    "to": _to, "type_as": _to, "float": _cast(torch.float32), "double": _cast(torch.float64), "half": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16), "int": _cast(torch.int32), "long": _cast(torch.int64), "bool": _cast(torch.bool),
}  # fmt: skip


def _operator(name: str, swapped: bool = False) -> Function:
    def method(self: Any, other: Any = None) -> Any:
        if other is None:
            return _called(TABLE[name], (self,), {})
        return _called(TABLE[name], (other, self) if swapped else (self, other), {})

    method.__name__ = name
    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(TorchArray, f"__{_name}__", _operator(_name))
    setattr(TorchArray, f"__r{_name}__", _operator(_name, True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "abs", "invert"):
    setattr(TorchArray, f"__{_name}__", _operator(_name))
TorchArray.__hash__ = Array.__hash__  # type: ignore[method-assign]
