"""Elementwise operations on traced arrays, with NumPy's promotion and broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from . import graph
from .array import Array
from .errors import DTypeError, TraceError
from .graph import Node
from .location import here
from .promotion import BOOL, FLOAT32, FLOAT64, INT64, DType, is_float, loop, numpy_dtype, promoted
from .sizes import Extent, Ratio, Size, Unknown

_WEAK = (bool, int, float, Extent, Ratio, Unknown)
_ON_BOOLS = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and", "eq": "eq", "ne": "ne"}
_LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor", "logical_not"})


def lift(value: Any) -> Any:
    """A node for anything that is an array, and Python numbers (weak in promotion) as they are."""
    if isinstance(value, Array):
        return value._node
    if type(value) in _WEAK:
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return graph.const(value.item(), numpy_dtype(value.dtype))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _capture(value)
    if isinstance(value, (list, tuple)):
        try:
            return _capture(np.asarray(value))
        except ValueError as error:
            raise TraceError(f"a nested sequence that is no array: {error}" + here()) from None
    raise TraceError(f"{type(value).__name__} is not an array or a number" + here())


def _capture(array: Any) -> Node:
    """An array of the surrounding code becomes an input, or a position where it just counts up by one."""
    shape = tuple(int(s) for s in array.shape)
    dtype = numpy_dtype(array.dtype, "a captured array")
    long = [d for d, s in enumerate(shape) if s != 1]
    if isinstance(array, np.ndarray) and dtype.kind in "iu" and len(long) == 1 and shape[long[0]] > 1:
        flat = array.reshape(-1)
        if flat[1] == flat[0] + 1 and np.array_equal(flat, np.arange(flat[0], int(flat[0]) + len(flat), dtype=dtype)):
            dims = tuple(0 if d == long[0] else None for d in range(len(shape)))
            return graph.relabel(positions(len(flat), int(flat[0]), 1, dtype), dims, shape)
    node = _captures.get(id(array))
    if node is None or graph.captured(node) is not array:
        node = _captures[id(array)] = graph.parameter("constant", shape, dtype, array)
    return node


_captures: WeakValueDictionary[int, Node] = WeakValueDictionary()


def positions(size: Size, start: int = 0, step: int = 1, dtype: DType = INT64) -> Node:
    """start, start + step, ... along one dimension."""
    node = graph.iota(size)
    if step != 1:
        node = graph.elementwise("mul", (node, graph.const(step, INT64)), INT64)
    if start != 0:
        node = graph.elementwise("add", (node, graph.const(start, INT64)), INT64)
    return graph.cast(node, dtype)


def _operand_type(value: Any) -> DType | type:
    if isinstance(value, Node):
        return value.dtype
    if isinstance(value, bool):
        return bool
    if isinstance(value, Unknown):
        return int if value.size is not None else float
    return int if isinstance(value, int) else float


def as_node(value: Any, dtype: DType, counted: bool = False) -> Node:
    """A lifted value at a dtype. counted: sizes become counts rather than constants."""
    if isinstance(value, Node):
        return graph.cast(value, dtype)
    if isinstance(value, Unknown) or (counted and isinstance(value, (Extent, Ratio))):
        return count_term(value.term, dtype)
    return graph.const(value, dtype)


def count_term(term: Any, dtype: DType) -> Node:
    """A number made from sizes, as counts over the dimensions. A count in a float expression is at least
    float32, so that it is exact."""
    wide = FLOAT32 if is_float(dtype) and dtype.itemsize < 4 else dtype

    def build(t: Any) -> Node:
        if not isinstance(t, tuple):
            return graph.const(t, wide)
        if t[0] == "dim":
            _, node, d = t
            return graph.const(1, wide) if node.shape[d] == 1 else graph.count(node, (d,), wide)
        if t[0] in ("div", "power") and not is_float(wide):
            raise DTypeError("a quotient of symbolic extents among integers; give the extents as integers" + here())
        return graph.elementwise(t[0], (build(t[1]), build(t[2])), wide)

    return build(term)


def apply(op: str, *operands: Any) -> Node:
    """An elementwise operation of `ops.OPS` on arrays and numbers: promote, convert, broadcast."""
    values = [lift(v) for v in operands]
    if op == "where":
        return _where(*values)
    types = tuple(_operand_type(v) for v in values)
    if op in _LOGICAL:
        return graph.elementwise(op, tuple(truth(v) for v in values), BOOL)
    if op in _ON_BOOLS and all(t in (BOOL, bool) for t in types):
        return graph.elementwise(_ON_BOOLS[op], tuple(as_node(v, BOOL) for v in values), BOOL)
    inside, out = loop(op, types)
    if op == "recip" and isinstance(types[0], np.dtype) and not is_float(types[0]):
        raise DTypeError(f"reciprocal of {types[0]} is an integer in NumPy; cast to a floating dtype, or divide" + here())
    if op in ("floor", "ceil", "round") and not is_float(inside):
        return as_node(values[0], inside)
    # A size beside integers is a constant (positions, masks); beside floats, or as a divisor, a count.
    counted = is_float(inside)
    nodes = tuple(as_node(v, inside, counted) for v in values)
    return _peephole(op, nodes, out) or graph.elementwise(op, nodes, out)


def truth(value: Any) -> Node:
    """value != 0, as a boolean node."""
    node = value if isinstance(value, Node) else as_node(value, FLOAT64)
    return node if node.dtype == BOOL else graph.elementwise("ne", (node, graph.const(0, node.dtype)), BOOL)


def _where(condition: Any, x: Any, y: Any) -> Node:
    dtype = promoted(_operand_type(x), _operand_type(y), what="where")
    counted = is_float(dtype)
    return graph.elementwise("where", (truth(condition), as_node(x, dtype, counted), as_node(y, dtype, counted)), dtype)


def _peephole(op: str, nodes: tuple[Node, ...], dtype: DType) -> Node | None:
    """x**2 -> square(x), x**0.5 -> sqrt(x), x**-0.5, 1/sqrt(x) -> rsqrt(x), x**-1 -> recip(x), x*x -> square(x)."""
    if op == "mul" and nodes[0] is nodes[1]:
        return graph.elementwise("square", nodes[:1], dtype)
    if op == "div" and nodes[0].op == "const" and nodes[0].attrs == 1 and nodes[1].op == "map" and nodes[1].attrs == "sqrt":
        return graph.elementwise("rsqrt", nodes[1].args, dtype)
    if op == "power" and nodes[1].op == "const":
        x, p = nodes[0], nodes[1].attrs
        if p == 1:
            return x
        if p == 2:
            return graph.elementwise("square", (x,), dtype)
        if p == 3:
            return graph.elementwise("mul", (x, graph.elementwise("square", (x,), dtype)), dtype)
        if p == 4:
            return graph.elementwise("square", (graph.elementwise("square", (x,), dtype),), dtype)
        named = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "recip"}
        if is_float(dtype) and p in named:
            return graph.elementwise(named[p], (x,), dtype)
    return None


def _function(op: str, name: str = "") -> Callable[..., Array]:
    def f(*operands: Any, out: Any = None, where: Any = True, dtype: Any = None, **options: Any) -> Array:
        refuse(name or op, options, where=where is not True)
        result = Array(apply(op, *operands))
        return finish(result if dtype is None else astype(result, dtype), out, name or op)

    f.__name__ = name or op
    f.__doc__ = f"Elementwise {name or op}, as NumPy."
    return f


def refuse(name: str, options: dict[str, Any], **others: bool) -> None:
    """Refuse keywords without a meaning here (NumPy's casting and order say nothing about values)."""
    bad = sorted([k for k in options if k not in ("casting", "order", "subok", "copy", "device")] + [k for k, on in others.items() if on])
    if bad:
        raise TraceError(f"{name}: the keyword {', '.join(bad)} cannot be traced; write it out with np.where" + here())


def finish(result: Array, out: Any, name: str) -> Array:
    """NumPy's `out=`: a traced array may take the new value, a real one may not."""
    if isinstance(out, tuple):
        out = out[0] if len(out) == 1 else out
    if out is None:
        return result
    if not isinstance(out, Array):
        raise TraceError(f"{name}: out= must be a traced array that the function made itself" + here())
    return out._become(result, f"{name} with out=")


add, subtract, multiply, divide = _function("add"), _function("sub", "subtract"), _function("mul", "multiply"), _function("div", "divide")
negative, abs_, square, sqrt = _function("neg", "negative"), _function("abs"), _function("square"), _function("sqrt")
reciprocal, rsqrt = _function("recip", "reciprocal"), _function("rsqrt")
exp, exp2, expm1 = _function("exp"), _function("exp2"), _function("expm1")
log, log1p, log2 = _function("log"), _function("log1p"), _function("log2")
sin, cos, tanh, erf = _function("sin"), _function("cos"), _function("tanh"), _function("erf")
sign, floor, ceil = _function("sign"), _function("floor"), _function("ceil")
isfinite, isnan = _function("isfinite"), _function("isnan")
maximum, minimum = _function("maximum"), _function("minimum")
power, floor_divide, remainder = _function("power"), _function("floor_divide"), _function("remainder")
less, less_equal, greater, greater_equal = (
    _function("lt", "less"),
    _function("le", "less_equal"),
    _function("gt", "greater"),
    _function("ge", "greater_equal"),
)
equal, not_equal = _function("eq", "equal"), _function("ne", "not_equal")
logical_and, logical_or = _function("logical_and"), _function("logical_or")
logical_xor, logical_not = _function("logical_xor"), _function("logical_not")


def where(condition: Any, *branches: Any) -> Array:
    """`np.where` with three arguments."""
    if len(branches) != 2:
        raise TraceError("where with one argument gives positions, whose number depends on values; use np.where(c, x, y)" + here())
    return Array(apply("where", condition, *branches))


def positive(x: Any, out: Any = None, **options: Any) -> Array:
    refuse("positive", options)
    return finish(Array(whole(x)), out, "positive")


conj = real = positive


def whole(x: Any) -> Node:
    """A node for an array or a number (of NumPy's default dtype)."""
    value: Any = lift(x)
    return value if isinstance(value, Node) else as_node(value, np.dtype(float if isinstance(value, float) else int))


def round_(x: Any, decimals: int = 0, out: Any = None) -> Array:
    """Half to even. decimals: only 0."""
    if decimals != 0:
        raise TraceError("round with decimals cannot be traced; scale, round and scale back" + here())
    return finish(Array(apply("round", x)), out, "round")


def trunc(x: Any) -> Array:
    return Array(apply("where", apply_array("lt", x, 0), apply_array("ceil", x), apply_array("floor", x)))


def apply_array(op: str, *operands: Any) -> Array:
    return Array(apply(op, *operands))


def _bitwise(op: str, name: str) -> Callable[..., Array]:
    def f(*operands: Any, out: Any = None, **options: Any) -> Array:
        refuse(name, options)
        if any(_operand_type(lift(v)) not in (BOOL, bool) for v in operands):
            raise TraceError(f"{name} of integers cannot be traced; only of booleans" + here())
        return finish(Array(apply(op, *operands)), out, name)

    f.__name__ = name
    f.__doc__ = f"{name} of booleans."
    return f


bitwise_and, bitwise_or = _bitwise("logical_and", "bitwise_and"), _bitwise("logical_or", "bitwise_or")
bitwise_xor, bitwise_invert = _bitwise("logical_xor", "bitwise_xor"), _bitwise("logical_not", "bitwise_invert")


def clip(x: Any, min: Any = None, max: Any = None, out: Any = None, *, a_min: Any = None, a_max: Any = None) -> Array:
    """minimum(maximum(x, low), high); either bound may be None."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    result = Array(whole(x))
    if low is not None:
        result = maximum(result, low)
    if high is not None:
        result = minimum(result, high)
    return finish(result, out, "clip")


def isinf(x: Any) -> Array:
    node = whole(x)
    if not is_float(node.dtype):
        return not_equal(Array(node), Array(node))
    return equal(abs_(Array(node)), math.inf)


def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """NaN -> nan, infinities -> the largest finite values unless given."""
    a = Array(whole(x))
    if not is_float(a.dtype):
        return a
    limits = np.finfo(a.dtype) if a.dtype.kind == "f" else _ml_finfo(a.dtype)
    high, low = (float(limits.max) if posinf is None else posinf), (float(limits.min) if neginf is None else neginf)
    out = where(equal(a, math.inf), high, where(equal(a, -math.inf), low, a))
    return where(isnan(a), nan, out)


def _ml_finfo(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype)


def logaddexp(x: Any, y: Any) -> Array:
    """log(exp(x) + exp(y)) without overflow; of two equal infinities as NumPy."""
    a, b = Array(whole(x)), Array(whole(y))
    apart = maximum(a, b) + log1p(exp(negative(abs_(a - b))))
    return where(equal(a, b), a + math.log(2), apart)


def fmax(x: Any, y: Any) -> Array:
    return where(isnan(x), y, where(isnan(y), x, maximum(x, y)))


def fmin(x: Any, y: Any) -> Array:
    return where(isnan(x), y, where(isnan(y), x, minimum(x, y)))


def log10(x: Any) -> Array:
    return log2(x) * math.log10(2)


def sigmoid(x: Any) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + exp(negative(x)))


def xlogy(x: Any, y: Any) -> Array:
    """x * log(y), and 0 where x is 0 and y is not NaN."""
    return where(logical_and(equal(x, 0), logical_not(isnan(y))), 0.0, multiply(x, log(y)))


def astype(x: Any, dtype: Any, *, copy: bool = True, device: Any = None) -> Array:
    """Convert; a narrowing conversion rounds, as NumPy's and ml_dtypes' do."""
    return Array(graph.cast(whole(x), numpy_dtype(dtype, "astype")))
