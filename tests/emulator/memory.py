"""Loads, stores, atomics, barriers, warp operations, asynchronous copies and tensor core instructions as calls of the runtime."""

from __future__ import annotations

import re
from collections.abc import Callable

from .emitter import CTYPES, Emitter
from .ptx import Instruction, PtxError, vector

MEMORY: dict[str, Callable[[Emitter, Instruction, list[str]], str]] = {}
_SPACES = {"global": "GLOBAL", "shared": "SHARED", "local": "LOCAL", "const": "CONSTANT", "param": "PARAM"}
_ELEMENTS = {"bf16": "BF16", "f16": "F16", "tf32": "TF32", "e4m3": "E4M3", "e5m2": "E5M2", "s8": "S8"}
_SUMS = {"s8": "s32"}  # the accumulators of an element, where they are not float32


def on(*names: str) -> Callable[[Callable[[Emitter, Instruction, list[str]], str]], Callable[[Emitter, Instruction, list[str]], str]]:
    def register(f: Callable[[Emitter, Instruction, list[str]], str]) -> Callable[[Emitter, Instruction, list[str]], str]:
        MEMORY.update(dict.fromkeys(names, f))
        return f

    return register


def _unknown(i: Instruction) -> PtxError:
    return PtxError(f"line {i.line}: no translation of {i.opcode} {', '.join(i.operands)}")


def _space(mods: list[str]) -> str:
    return next((_SPACES[m.split("::")[0]] for m in mods if m.split("::")[0] in _SPACES), "GENERIC")


def _address(e: Emitter, operand: str, space: str) -> str:
    return f"(u64){e.address(operand, 'u32')}" if space == "SHARED" else e.address(operand)


def _ordering(mods: list[str]) -> str:
    if "acquire" in mods or "release" in mods:
        return "ORDERED"
    return "RELAXED" if "volatile" in mods or "relaxed" in mods else "WEAK_ACCESS"


def _shared(e: Emitter, operand: str) -> str:
    """A shared-space address as 32 bits; generic addresses are translated."""
    return f"(u32){e.address(operand)}"


@on("ld", "ldu")
def load(e: Emitter, i: Instruction, mods: list[str]) -> str:
    c, space, names = CTYPES[mods[-1]], _space(mods), vector(i.operands[0])
    call = f"load<{c}, {len(names)}, {space}, {_ordering(mods)}>({_address(e, i.operands[1], space)}, {e.site(i)})"
    if len(names) == 1:
        return e.write(names[0], f"{call}.at[0]", mods[-1])
    return f"{{ const auto q_ = {call}; {' '.join(e.write(x, f'q_.at[{n}]', mods[-1]) for n, x in enumerate(names))} }}"


@on("st")
def store(e: Emitter, i: Instruction, mods: list[str]) -> str:
    kind, space, values = mods[-1], _space(mods), vector(i.operands[1])
    parameters = f"{CTYPES[kind]}, {len(values)}, {space}, {_ordering(mods)}, {str(e.proxies).lower()}"
    members = ", ".join(e.read(x, kind) for x in values)
    return f"store<{parameters}>({_address(e, i.operands[0], space)}, {{{{{members}}}}}, {e.site(i)});"


@on("atom", "red")
def atomic(e: Emitter, i: Instruction, mods: list[str]) -> str:
    operands = list(i.operands) if i.opcode.startswith("atom") else ["_", *i.operands]
    kind, space = mods[-1], _space(mods)
    if kind in ("f16x2", "bf16x2", "f16", "bf16") or operands[0].startswith("{"):
        raise _unknown(i)
    c = CTYPES[kind]
    flags = f"{c}, {space}, {str('acquire' in mods or 'acq_rel' in mods).lower()}, {str('release' in mods or 'acq_rel' in mods).lower()}"
    address, site = _address(e, operands[1], space), e.site(i)
    if "cas" in mods:
        return e.write(
            operands[0], f"compare_and_swap<{flags}>({address}, {e.read(operands[2], kind)}, {e.read(operands[3], kind)}, {site})"
        )
    operation = next(m for m in mods if m in ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec"))
    return e.write(operands[0], f"atomic<{flags}>(at_{operation}<{c}>, {address}, {e.read(operands[2], kind)}, {site})")


@on("membar", "fence")
def fence(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if mods[0].startswith("proxy"):
        return "emu_async_fence();" if mods[0] == "proxy" and mods[1].startswith("async") else ";"
    return "emu_fence();"


@on("bar", "barrier")
def barrier(e: Emitter, i: Instruction, mods: list[str]) -> str:
    site = e.site(i)
    if mods[0] == "warp":
        return f"emu_warp_barrier({e.read(i.operands[0], 'u32')}, {site});"
    if mods[0] == "cluster":
        return f"emu_barrier(15, 0, true, {site});" if mods[1] == "wait" else ";"
    if mods[0] == "cta":
        mods = mods[1:]
    if mods[0] == "red":
        to, number, *rest = i.operands
        count = e.read(rest[0], "u32") if len(rest) > 1 else "0"
        call = f"u32 n_, v_ = emu_barrier_reduce({e.read(number, 'u32')}, {count}, {e.read(rest[-1], 'pred')}, {site}, &n_);"
        result = {"popc": "v_", "and": "bool(v_ == n_)", "or": "bool(v_ != 0)"}[mods[1]]
        return f"{{ {call} {e.write(to, result)} }}"
    number = e.read(i.operands[0], "u32") if i.operands else "0"
    count = e.read(i.operands[1], "u32") if len(i.operands) > 1 else "0"
    return f"emu_barrier({number}, {count}, {str(mods[0] != 'arrive').lower()}, {site});"


@on("shfl")
def shuffle(e: Emitter, i: Instruction, mods: list[str]) -> str:
    to, *p = i.operands[0].split("|")
    values = ", ".join(e.read(x, "u32") for x in i.operands[1:5])
    found = e.write(p[0], "p_") if p else ""
    return f"{{ u32 o_; bool p_ = shuffle('{mods[1][0]}', {values}, o_, {e.site(i)}); {e.write(to, 'o_', 'u32')} {found} }}"


@on("vote")
def vote(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if mods[0] != "sync":
        raise _unknown(i)
    to, p, mask = i.operands
    members = e.read(mask, "u32")
    call = f"u32 m_ = {members}, b_ = emu_ballot({e.read(p, 'pred')}, m_, {e.site(i)});"
    result = {"ballot": "b_", "any": "bool(b_ != 0)", "all": "bool(b_ == m_)", "uni": "bool(b_ == 0 || b_ == m_)"}[mods[1]]
    return f"{{ {call} {e.write(to, result)} }}"


@on("redux")
def reduce(e: Emitter, i: Instruction, mods: list[str]) -> str:
    operation, kind = mods[1], mods[-1]
    if kind == "f32":
        raise _unknown(i)
    name = f"U{operation.upper()}" if kind == "u32" and operation in ("min", "max") else operation.upper()
    return e.write(i.operands[0], f"emu_reduce({name}, {e.read(i.operands[1], 'u32')}, {e.read(i.operands[2], 'u32')}, {e.site(i)})")


@on("activemask")
def active(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return e.write(i.operands[0], "emu_active()")


@on("elect")
def elect(e: Emitter, i: Instruction, mods: list[str]) -> str:
    to, p = i.operands[0].split("|")
    call = f"u32 m_ = {e.read(i.operands[1], 'u32')}, l_ = __builtin_ctz(m_); emu_ballot(true, m_, {e.site(i)});"
    return f"{{ {call} {e.write(to, 'l_')} {e.write(p, 'bool(emu_thread->lane == (int)l_)')} }}"


@on("ldmatrix", "stmatrix")
def matrix(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if "m8n8" not in mods or "b16" not in mods:
        raise _unknown(i)
    transpose, loads = str("trans" in mods).lower(), i.opcode.startswith("ld")
    registers, address = i.operands if loads else reversed(i.operands)
    count = len(vector(registers))
    touch = f"if (emu_thread->lane < {8 * count}) touch({_shared(e, address)}, 16, {str(not loads).lower()});"
    call = f"(q_, {count}, {transpose}, {_shared(e, address)}, {e.site(i)});"
    if loads:
        return f"{{ {touch} u32 q_[4]; emu_ldmatrix{call} {e.results(registers, 'q_', 'b32')} }}"
    return f"{{ {touch} {e.array('b32', 'q_', registers)} emu_stmatrix{call} }}"


@on("movmatrix")
def move_matrix(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return e.write(i.operands[0], f"emu_movmatrix({e.read(i.operands[1], 'b32')}, {e.site(i)})")


@on("mma")
def mma(e: Emitter, i: Instruction, mods: list[str]) -> str:
    shape = next((m for m in mods if re.match(r"m16n8k\d+$", m)), None)
    if not shape or mods[-2] != mods[-3] or mods[-2] not in _ELEMENTS or mods[-1] != _SUMS.get(mods[-2], "f32"):
        raise _unknown(i)
    d, a, b, c = i.operands
    arrays = f"{e.array('b32', 'a_', a)} {e.array('b32', 'b_', b)} {_sums(e, mods[-1], 'c_', c)} u32 d_[4];"
    call = f"emu_mma({_ELEMENTS[mods[-2]]}, {shape.rpartition('k')[2]}, d_, a_, b_, c_, {e.site(i)});"
    return f"{{ {arrays} {call} {_summed(e, mods[-1], 'd_', d)} }}"


def _sums(e: Emitter, kind: str, name: str, operand: str) -> str:
    """A C++ array of the bits of accumulators."""
    cells = ", ".join(f"__builtin_bit_cast(u32, {e.read(x, kind)})" for x in vector(operand))
    return f"u32 {name}[] = {{{cells}}};"


def _summed(e: Emitter, kind: str, name: str, operand: str) -> str:
    """Accumulators from an array of their bits."""
    values = [f"__builtin_bit_cast({CTYPES[kind]}, {name}[{n}])" for n in range(len(vector(operand)))]
    return " ".join(e.write(x, v, kind) for x, v in zip(vector(operand), values, strict=True))


@on("cp")
def copy(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if mods[0] != "async":
        raise _unknown(i)
    if "bulk" in mods:
        return _bulk(e, i, mods)
    site = e.site(i)
    if mods[1] == "commit_group":
        return "emu_cp_async_commit(false);"
    if mods[1] == "wait_group":
        return f"emu_cp_async_wait({i.operands[0]}, false, {site});"
    if mods[1] == "wait_all":
        return f"emu_cp_async_commit(false); emu_cp_async_wait(0, false, {site});"
    if mods[1] == "mbarrier":
        return f"emu_cp_async_arrive({_shared(e, i.operands[0])}, {str('noinc' not in mods).lower()}, {site});"
    to, source, size, *valid = i.operands
    hinted = "L2::cache_hint" in mods
    valid = valid[:-1] if hinted else valid
    if valid and "ignore-src" in i.opcode:
        raise _unknown(i)
    count = f"(int){e.read(valid[0], 'u32')}" if valid else size
    return f"touch({_shared(e, to)}, {size}, true); emu_cp_async({_shared(e, to)}, {e.address(source)}, {size}, {count}, {site});"


def _bulk(e: Emitter, i: Instruction, mods: list[str]) -> str:
    site = e.site(i)
    if "commit_group" in mods:
        return "emu_cp_async_commit(true);"
    if "wait_group" in mods:
        return f"emu_cp_async_wait({i.operands[0]}, true, {site});"
    if "multicast::cluster" in mods or "reduce" in i.opcode or "im2col" in mods:
        raise _unknown(i)
    if "tensor" not in mods:
        to, source, size = i.operands[:3]
        if mods[2] == "global":
            return f"emu_bulk_store({e.address(to)}, {_shared(e, source)}, {e.read(size, 'u32')}, {site});"
        return f"emu_bulk_load({_shared(e, to)}, {e.address(source)}, {e.read(size, 'u32')}, {_shared(e, i.operands[3])}, {site});"
    stores = mods[mods.index("tensor") + 2] == "global"
    box, shared = (i.operands[0], i.operands[1]) if stores else (i.operands[1], i.operands[0])
    m = re.match(r"\[\s*([%\w$+]+)\s*,\s*(\{[^}]*\})\s*\]", box)
    if not m:
        raise _unknown(i)
    rank, at = len(vector(m[2])), e.array("s32", "at_", m[2])
    if stores:
        return f"{{ {at} emu_tensor_store({e.read(m[1], 'u64')}, {_shared(e, shared)}, {rank}, at_, {site}); }}"
    return f"{{ {at} emu_tensor_load({_shared(e, shared)}, {e.read(m[1], 'u64')}, {rank}, at_, {_shared(e, i.operands[2])}, {site}); }}"


@on("mbarrier")
def mbarrier(e: Emitter, i: Instruction, mods: list[str]) -> str:
    action, site = mods[0], e.site(i)
    if action == "init":
        return f"emu_mbarrier_init({_shared(e, i.operands[0])}, {e.read(i.operands[1], 'u32')}, {site});"
    if action == "inval":
        return f"emu_mbarrier_invalidate({_shared(e, i.operands[0])}, {site});"
    if action == "expect_tx":
        return f"emu_mbarrier_expect({_shared(e, i.operands[0])}, {e.read(i.operands[1], 'u32')}, {site});"
    if action == "arrive":
        to, address, *rest = i.operands if not i.operands[0].startswith("[") else ("_", *i.operands)
        expects = "expect_tx" in mods
        count = e.read(rest[0], "u32") if rest and not expects else "1"
        expected = e.read(rest[0], "u32") if expects else "0"
        return e.write(to, f"emu_mbarrier_arrive({_shared(e, address)}, {count}, {expected}, {site})")
    if action in ("try_wait", "test_wait"):
        blocks = str(action == "try_wait").lower()
        kind = "u32" if "parity" in mods else "u64"
        return e.write(
            i.operands[0], f"emu_mbarrier_wait({_shared(e, i.operands[1])}, (u32){e.read(i.operands[2], kind)}, {blocks}, {site})"
        )
    raise _unknown(i)


@on("wgmma")
def wgmma(e: Emitter, i: Instruction, mods: list[str]) -> str:
    if mods[0] == "fence":
        return ";"
    if mods[0] == "commit_group":
        return "emu_wgmma_commit();"
    site = e.site(i)
    if mods[0] == "wait_group":
        return f"emu_wgmma_wait({i.operands[0]}, {site});"
    shape = next(m for m in mods if m.startswith("m64n"))
    n = int(shape[4:].split("k")[0])
    if mods[-1] != mods[-2] or mods[-1] not in _ELEMENTS or mods[-3] != _SUMS.get(mods[-1], "f32"):
        raise _unknown(i)
    d, a, b, keep, *scales = i.operands
    negate_a, negate_b, *transposes = scales or ["1", "1"]
    registers = a.startswith("{")
    order = ["TRANSPOSE_B"] if registers else ["TRANSPOSE_A", "TRANSPOSE_B"]
    flags = [f"({e.read(keep, 'pred')} ? KEEP_D : 0)"]
    flags += [name for name, s in (("NEGATE_A", negate_a), ("NEGATE_B", negate_b)) if s == "-1"]
    flags += [name for name, t in zip(order, transposes, strict=False) if t == "1"]
    source = f"{e.array('b32', 'a_', a)}" if registers else f"const u32* a_ = nullptr; u64 x_ = {e.read(a, 'u64')};"
    call = f"emu_wgmma({_ELEMENTS[mods[-1]]}, {n}, d_, a_, {'0' if registers else 'x_'}, {e.read(b, 'u64')}, {' | '.join(flags)}, {site});"
    return f"{{ {_sums(e, mods[-3], 'd_', d)} {source} {call} {_summed(e, mods[-3], 'd_', d)} }}"


@on("createpolicy")
def policy(e: Emitter, i: Instruction, mods: list[str]) -> str:
    return e.write(i.operands[0], "0ull")
