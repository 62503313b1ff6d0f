"""Arithmetic, moves, conversions and control: what each PTX opcode becomes in C++. Memory and warps: see memory.py."""

from __future__ import annotations

import re
from collections.abc import Callable

from .emitter import CTYPES, Emitter, mangle, width
from .memory import MEMORY
from .ptx import Instruction, PtxError, vector

Handler = Callable[[Emitter, Instruction, list[str]], str]
HANDLERS: dict[str, Handler] = dict(MEMORY)

_SMALL = {"f16": "F16", "bf16": "BF16", "e4m3x2": "E4M3", "e5m2x2": "E5M2", "f16x2": "F16", "bf16x2": "BF16"}
_INFIX = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}
_NO_EFFECT = {"griddepcontrol", "setmaxnreg", "prefetch", "prefetchu", "applypriority", "discard", "pragma"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}


def statement(e: Emitter, i: Instruction) -> str:
    """One C++ statement for one instruction."""
    parts = i.opcode.split(".")
    if parts[0] in _NO_EFFECT:
        return ";"
    handler = HANDLERS.get(parts[0])
    if handler is None:
        raise PtxError(f"line {i.line}: unknown instruction {i.opcode} {', '.join(i.operands)}")
    try:
        return handler(e, i, parts[1:])
    except (IndexError, KeyError, StopIteration) as error:
        raise PtxError(f"line {i.line}: no translation of {i.opcode} {', '.join(i.operands)}") from error


def on(*names: str) -> Callable[[Handler], Handler]:
    def register(f: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, f))
        return f

    return register


def _call(e: Emitter, i: Instruction, function: str, kinds: list[str], extra: str = "") -> str:
    arguments = ", ".join(e.read(x, k) for x, k in zip(i.operands[1:], kinds, strict=True))
    return e.write(i.operands[0], f"{function}({arguments}{extra})")


@on("add", "sub", "min", "max", "div", "rem", "neg", "abs", "rcp", "sqrt", "rsqrt", "copysign", "and", "or", "xor", "not", "cnot")
def arithmetic(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, name = mods[-1], i.opcode.split(".")[0]
    if kind in _SMALL:
        return _small(e, i, name, kind)
    if i.opcode.startswith("add.") and kind == "f32" and (directed := {"rz", "rm", "rp"} & set(mods)):
        a, b = (e.read(x, kind) for x in i.operands[1:])
        return e.write(i.operands[0], f"emu_fma_directed({a}, 1.0f, {b}, {['rz', 'rm', 'rp'].index(directed.pop())})", kind)
    _reject_directed(i, mods, kind)
    if "NaN" in mods:
        name += "_nan"
    operands = [e.read(x, kind) for x in i.operands[1:]]
    value = f"({f' {_INFIX[name]} '.join(operands)})" if name in _INFIX else f"op_{name}<{CTYPES[kind]}>({', '.join(operands)})"
    if "ftz" in mods and "approx" in mods:
        value = f"flushed({value})"
    if "sat" in mods:
        value = f"op_saturate<{CTYPES[kind]}>({value})" if kind[0] == "f" else _no(i)
    return e.write(i.operands[0], value, kind)


def _reject_directed(i: Instruction, mods: list[str], kind: str) -> None:
    if kind[0] == "f" and {"rz", "rm", "rp"} & set(mods):
        raise PtxError(f"line {i.line}: directed rounding of {i.opcode}")


def _no(i: Instruction) -> str:
    raise PtxError(f"line {i.line}: no translation of {i.opcode}")


def _small(e: Emitter, i: Instruction, name: str, kind: str) -> str:
    count = len(i.operands) - 1
    body = f"op_{name}<float>" if name != "fma" else "op_fma"
    xs = ", ".join(f"x{n}" for n in range(count))
    function = f"[]({', '.join(f'float x{n}' for n in range(count))}) {{ return {body}({xs}); }}"
    helper = f"small{'_pair' if kind.endswith('x2') else ''}<{_SMALL[kind]}>"
    return e.write(i.operands[0], f"{helper}({function}, {', '.join(e.read(x, kind) for x in i.operands[1:])})")


@on("mul", "mad", "fma")
def multiply(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, name = mods[-1], i.opcode.split(".")[0]
    if kind in _SMALL:
        return _small(e, i, name, kind)
    kinds = [kind] * (len(i.operands) - 1)
    if kind[0] == "f":
        directed = {"rz", "rm", "rp"} & set(mods)
        if name == "mul":
            _reject_directed(i, mods, kind)
            value = f"({e.read(i.operands[1], kind)} * {e.read(i.operands[2], kind)})"
        elif directed:
            mode = ["rz", "rm", "rp"].index(directed.pop())
            value = f"emu_fma_directed({', '.join(e.read(x, 'f32') for x in i.operands[1:])}, {mode})" if kind == "f32" else _no(i)
        else:
            value = f"__builtin_fma{'f' * (kind == 'f32')}({', '.join(e.read(x, kind) for x in i.operands[1:])})"
        return e.write(i.operands[0], f"op_saturate<{CTYPES[kind]}>({value})" if "sat" in mods else value, kind)
    suffix = next((f"_{m}" for m in mods if m in ("hi", "wide")), "")
    wide = kind[0] + str(2 * width(kind))
    if suffix == "_wide":
        a, b, *c = (f"({CTYPES[wide]}){e.read(x, k)}" for x, k in zip(i.operands[1:], [kind, kind, wide], strict=False))
        return e.write(i.operands[0], f"({a} * {b}{''.join(f' + {x}' for x in c)})", wide)
    if not suffix:
        a, b, *c = (e.read(x, kind) for x in i.operands[1:])
        return e.write(i.operands[0], f"({a} * {b}{''.join(f' + {x}' for x in c)})", kind)
    return _call(e, i, f"op_{name}{suffix}<{CTYPES[kind]}>", kinds)


@on("ex2", "lg2", "sin", "cos", "tanh")
def transcendental(e: Emitter, i: Instruction, mods: list[str]) -> str:
    name, kind = i.opcode.split(".")[0].upper(), mods[-1]
    if kind in _SMALL:
        helper = f"small{'_pair' if kind.endswith('x2') else ''}<{_SMALL[kind]}>"
        return e.write(i.operands[0], f"{helper}([](float x) {{ return emu_unary({name}, x); }}, {e.read(i.operands[1], kind)})")
    x = e.read(i.operands[1], "f32")
    return e.write(i.operands[0], f"flushed(emu_unary({name}, flushed({x})))" if "ftz" in mods else f"emu_unary({name}, {x})", "f32")


@on("shl", "shr")
def shift(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, count = mods[-1], i.operands[2]
    if count.isdigit() and int(count) < width(kind):
        return e.write(i.operands[0], f"({e.read(i.operands[1], kind)} {'<<' if i.opcode[2] == 'l' else '>>'} {count})", kind)
    return _call(e, i, f"op_{i.opcode[:3]}<{CTYPES[kind]}>", [kind, "u32"])


@on("shf")
def funnel_shift(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return _call(e, i, f"op_shf_{mods[0]}", ["b32"] * 3, f", {str(mods[1] == 'wrap').lower()}")


@on("popc", "clz", "brev", "bfind", "bfe", "bfi")
def bits(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, name = mods[-1], i.opcode.split(".")[0]
    kinds = {"bfe": [kind, "u32", "u32"], "bfi": [kind, kind, "u32", "u32"]}.get(name, [kind])
    value = f"op_{name}<{CTYPES[kind]}>({', '.join(e.read(x, k) for x, k in zip(i.operands[1:], kinds, strict=True))})"
    return e.write(i.operands[0], value if "shiftamt" not in mods else f"({width(kind) - 1} - {value})")


@on("lop3")
def lop3(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return _call(e, i, "op_lop3", ["b32"] * 3 + ["u32"])


@on("prmt")
def prmt(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return _call(e, i, "op_prmt", ["b32"] * 3) if mods == ["b32"] else _no(i)


@on("dp4a")
def dot(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return _call(e, i, f"op_dot<{CTYPES[mods[0]]}, {CTYPES[mods[1]]}>", [mods[0], mods[1], "s32"])


@on("selp")
def select(e: Emitter, i: Instruction, mods: list[str]) -> str:
    a, b, p = (e.read(x, k) for x, k in zip(i.operands[1:], (mods[-1], mods[-1], "pred"), strict=True))
    return e.write(i.operands[0], f"({p} ? {a} : {b})", mods[-1])


@on("setp", "set")
def compare(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, comparison = mods[-1], mods[0]
    small = _SMALL.get(kind)
    a, b = (f"to_float({small}, {e.read(x, kind)})" if small else e.read(x, kind) for x in i.operands[1:3])
    floating = small or kind[0] == "f"
    if comparison in ("num", "nan"):
        value = f"{'!' * (comparison == 'num')}unordered({a}, {b})"
    elif floating and comparison.endswith("u") and comparison != "lu":
        value = f"({a} {_COMPARE[comparison[:-1]]} {b} || unordered({a}, {b}))"
    elif floating and comparison == "ne":
        value = f"({a} != {b} && !unordered({a}, {b}))"
    else:
        value = f"({a} {_COMPARE[comparison]} {b})"
    if i.opcode.startswith("set."):
        ones = "1.0f" if mods[-2] == "f32" else "~0u"
        return e.write(i.operands[0], f"({value} ? {ones} : 0)")
    p, *q = i.operands[0].split("|")
    combine = next((m for m in mods if m in ("and", "or", "xor")), None)
    if combine:
        other = e.read(i.operands[3], "pred")
        symbol = {"and": "&", "or": "|", "xor": "^"}[combine]
        second = e.write(q[0], f"bool(!c_ {symbol} o_)") if q else ""
        return f"{{ bool c_ = {value}, o_ = {other}; {e.write(p, f'bool(c_ {symbol} o_)')} {second} }}"
    if not q:
        return e.write(p, value, "pred")
    return f"{{ bool c_ = {value}; {e.write(p, 'c_', 'pred')} {e.write(q[0], '!c_', 'pred')} }}"


@on("testp")
def test(e: Emitter, i: Instruction, mods: list[str]) -> str:
    x = e.read(i.operands[1], mods[-1])
    tests = {"finite": "__builtin_isfinite", "infinite": "__builtin_isinf", "number": "!__builtin_isnan", "notanumber": "__builtin_isnan"}
    return e.write(i.operands[0], f"bool({tests[mods[0]]}({x}))")


@on("mov")
def move(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, (to, source) = mods[-1], i.operands
    if source.startswith("{"):
        parts = vector(source)
        n = width(kind) // len(parts)
        unsigned = f"u{width(kind)}"
        joined = " | ".join(f"({unsigned}){e.read(x, f'b{n}')} << {n * k}" for k, x in enumerate(parts))
        return e.write(to, f"({unsigned})({joined})", f"b{width(kind)}")
    if to.startswith("{"):
        parts = vector(to)
        n = width(kind) // len(parts)
        moves = " ".join(e.write(x, f"(u{n})(m_ >> {n * k})") for k, x in enumerate(parts))
        return f"{{ u{width(kind)} m_ = {e.read(source, f'b{width(kind)}')}; {moves} }}"
    return e.write(to, e.read(source, kind), kind)


@on("cvta")
def convert_address(e: Emitter, i: Instruction, mods: list[str]) -> str:
    a = e.read(i.operands[1], "u64")
    if "shared" in mods or "shared::cta" in mods:
        a = f"({a} - (u64)emu_shared)" if "to" in mods else f"({a} + (u64)emu_shared)"
    return e.write(i.operands[0], a)


@on("mapa")
def map_address(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return e.write(i.operands[0], e.read(i.operands[1], mods[-1]))  # a cluster is one block here


@on("cvt")
def convert(e: Emitter, i: Instruction, mods: list[str]) -> str:
    to, source = mods[-2], mods[-1]
    x = i.operands[1:]
    if len(x) == 2:  # two floats to a pair, the first operand high
        return e.write(
            i.operands[0], f"({'u16' if to[0] == 'e' else 'u32'})to_pair({_SMALL[to]}, {_relu(e, x[0], mods)}, {_relu(e, x[1], mods)})"
        )
    if source in ("e4m3x2", "e5m2x2"):
        return e.write(i.operands[0], f"small_pair_to_half_pair({_SMALL[source]}, {e.read(x[0], 'u16')})")
    if to in ("e4m3x2", "e5m2x2"):
        return e.write(i.operands[0], f"half_pair_to_small_pair({_SMALL[to]}, {e.read(x[0], 'u32')})") if source == "f16x2" else _no(i)
    if to == "tf32":
        return e.write(i.operands[0], f"to_tf32({e.read(x[0], 'f32')})")
    if source in ("f16", "bf16"):
        value, source = f"to_float({_SMALL[source]}, {e.read(x[0], 'u16')})", "f32"
    else:
        value = e.read(x[0], source)
    if to in ("f16", "bf16"):
        if "rn" not in mods and source[0] == "f" and source != to and not {"rni", "rzi", "rmi", "rpi"} & set(mods):
            _no(i)
        if source != "f32":
            value = f"(float)({value})"
        value = _rounded(value, "f32", mods)
        value = f"op_max<float>({value}, 0.0f)" if "relu" in mods else value
        return e.write(i.operands[0], f"to_small({_SMALL[to]}, {value})")
    return e.write(i.operands[0], _plain_conversion(i, value, to, source, mods), to)


def _relu(e: Emitter, operand: str, mods: list[str]) -> str:
    x = e.read(operand, "f32")
    return f"op_max<float>({x}, 0.0f)" if "relu" in mods else x


def _rounded(value: str, kind: str, mods: list[str]) -> str:
    modes = {"rni": "round_even", "rzi": "round_zero", "rmi": "round_down", "rpi": "round_up"}
    mode = next((modes[m] for m in mods if m in modes), None)
    return f"{mode}<{CTYPES[kind]}>({value})" if mode else value


def _plain_conversion(i: Instruction, value: str, to: str, source: str, mods: list[str]) -> str:
    """Between integers, float32 and float64."""
    if source[0] == "f":
        value = _rounded(value, source, mods)
        if to[0] != "f":
            return f"to_integer<{CTYPES[to]}>({value})"
    if to[0] == "f" and {"rz", "rm", "rp"} & set(mods):
        _no(i)
    if "sat" in mods:
        return f"op_saturate<{CTYPES[to]}>(({CTYPES[to]}){value})" if to[0] == "f" else f"clamp_integer<{CTYPES[to]}>({value})"
    return f"({CTYPES[to]})({value})"


@on("ret", "exit")
def leave(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if i.opcode == "exit" and not e.f.entry:
        _no(i)
    return "return;"


@on("trap", "brkpt")
def trap(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return f'emu_fail({e.site(i)}, "the kernel traps");'


@on("call")
def call(e: Emitter, i: Instruction, mods: list[str]) -> str:
    operands = list(i.operands)
    groups = [re.findall(r"[\w$%]+", o) for o in operands if o.startswith("(")]
    name = next(o for o in operands if not o.startswith("("))
    if name in ("vprintf", "malloc", "free") or name.startswith("%"):
        _no(i)
    return f"f_{mangle(name)}({', '.join(f'p_{mangle(a)}' for g in groups for a in g)});"


@on("brx")
def branch_indexed(e: Emitter, i: Instruction, mods: list[str]) -> str:
    cases = " ".join(f"case {n}: {e.branch(i, t)}" for n, t in enumerate(e.targets))
    return f'switch ({e.read(i.operands[0], "u32")}) {{ {cases} default: emu_fail({e.site(i)}, "branch index out of range"); }}'


@on("nanosleep")
def sleep(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return "emu_yield();"
