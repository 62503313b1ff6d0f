"""One PTX function as C++: names, scopes, labels and operands. What an instruction does comes from its handler."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .ptx import SIZES, Function, Instruction, Item, Label, PtxError, Registers, Scope, Variable, vector

CTYPES = {f"{k}{n}": f"{'s' if k == 's' else 'u'}{n}" for k in "bus" for n in (8, 16, 32, 64)}
CTYPES |= {
    "pred": "bool",
    "f32": "float",
    "f64": "double",
    "f16": "u16",
    "bf16": "u16",
    "f16x2": "u32",
    "bf16x2": "u32",
    "b128": "unsigned __int128",
}
_SPECIAL = {"%tid": "emu_thread->id", "%ctaid": "emu_block", "%ntid": "emu_block_dim", "%nctaid": "emu_grid_dim"}
_INTEGERS = {f"{s}{n}" for s in "us" for n in (8, 16, 32, 64)}
_PLAIN = {
    "%laneid": "emu_thread->lane",
    "%warpid": "emu_thread->warp",
    "%dynamic_smem_size": "emu_dynamic_bytes",
    "%lanemask_eq": "(1u << emu_thread->lane)",
    "%lanemask_lt": "((1u << emu_thread->lane) - 1)",
    "%lanemask_le": "((2u << emu_thread->lane) - 1)",
    "%lanemask_gt": "~((2u << emu_thread->lane) - 1)",
    "%lanemask_ge": "~((1u << emu_thread->lane) - 1)",
    "%cluster_ctarank": "0",
    "%smid": "0",
    "%clock": "0",
    "%clock64": "0",
    "%globaltimer": "0",
    "WARP_SZ": "32",
}


def mangle(name: str) -> str:
    return name.replace("%", "v_").replace("$", "_S_")


def width(kind: str) -> int:
    """Bits of a PTX type."""
    return 8 * SIZES[kind]


def signature(f: Function) -> str:
    if f.entry:
        return f'extern "C" void kernel_{mangle(f.name)}(void** arguments)'
    return f"static void f_{mangle(f.name)}({', '.join(f'char* p_{mangle(v.name)}' for v in [*f.results, *f.params])})"


@dataclass
class Unit:
    """What the functions of a module share.

    shared: name -> (offset, bytes). proxies: generic and asynchronous accesses to shared memory meet, so stores are recorded.
    lines: emit #line directives. sites: C++ initialisers of the instructions that can fail.
    """

    names: dict[str, Variable]
    shared: dict[str, tuple[int, int]]
    proxies: bool
    lines: bool
    statement: Callable[[Emitter, Instruction], str]
    sites: list[str] = field(default_factory=list)


class Emitter:
    """Translates one function. Instruction handlers use read, write, address, registers and site."""

    def __init__(self, f: Function, unit: Unit):
        self.f, self.shared, self.sites = f, unit.shared, unit.sites
        self.proxies, self.lines, self.statement = unit.proxies, unit.lines, unit.statement
        self.names = unit.names | {v.name: v for v in [*f.results, *f.params]}
        self.names |= {i.name: i for i in f.body or () if isinstance(i, Variable)}
        self.position = 0
        self.targets: tuple[str, ...] = ()
        self._find_labels()

    def _find_labels(self) -> None:
        self.scopes: list[dict[str, tuple[str, int]]] = [{}]
        stack, self.parents = [0], {0: -1}
        for i, item in enumerate(self.f.body or ()):
            if isinstance(item, Scope) and item.opens:
                self.parents[len(self.scopes)] = stack[-1]
                stack.append(len(self.scopes))
                self.scopes.append({})
            elif isinstance(item, Scope):
                stack.pop()
            elif isinstance(item, Label):
                self.scopes[stack[-1]][item.name] = (f"L{stack[-1]}_{mangle(item.name)}", i)

    def run(self) -> list[str]:
        out = [signature(self.f) + " {"]
        if self.f.entry:
            out += [f"char* p_{mangle(v.name)} = (char*)arguments[{i}];" for i, v in enumerate(self.f.params)]
        self.scope, opened = 0, 0
        self.types: list[dict[str, str]] = [{}]  # C++ types of the registers, a scope each
        for position, item in enumerate(self.f.body or ()):
            self.position = position
            if isinstance(item, Scope):
                opened += item.opens
                self.scope = opened if item.opens else self.parents[self.scope]
                if item.opens:
                    self.types.append({})
                else:
                    self.types.pop()
            out.append(self._item(item))
        return [*out, "}"]

    def _item(self, item: Item) -> str:
        if isinstance(item, Scope):
            return "{" if item.opens else "}"
        if isinstance(item, Label):
            return self.scopes[self.scope][item.name][0] + ":;"
        if isinstance(item, Registers):
            self.types[-1].update(dict.fromkeys(item.names, CTYPES[item.type]))
            return f"{CTYPES[item.type]} {', '.join(map(mangle, item.names))};"
        if isinstance(item, Variable):
            if item.space == "shared":
                return ""
            prefix = "l_" if item.space == "local" else "p_"
            name = prefix + mangle(item.name)
            poison = f" __builtin_memset({name}, 0xff, {item.bytes});" if item.space == "local" else ""
            return f"alignas(16) char {name}[{item.bytes}];{poison}"
        if item.opcode == "branchtargets":
            self.targets = item.operands
            return ""
        return self._instruction(item)

    def _instruction(self, i: Instruction) -> str:
        code = self.branch(i, i.operands[0]) if i.opcode.split(".")[0] == "bra" else self.statement(self, i)
        if self.lines:
            code = f'\n#line {i.line or 1} "kernel.cu"\n{code}'
        if not i.guard:
            return code
        condition = self.read(i.guard.lstrip("!"), "pred")
        return f"if ({'!' * i.guard.startswith('!')}{condition}) {{ {code}\n}}"

    # ---- for handlers
    def branch(self, i: Instruction, target: str) -> str:
        scope = self.scope
        while target not in self.scopes[scope]:
            scope = self.parents[scope]
            if scope < 0:
                raise PtxError(f"line {i.line}: no label {target}")
        name, at = self.scopes[scope][target]
        return f"{{ backward({self.site(i)}); goto {name}; }}" if at <= self.position else f"goto {name};"

    def site(self, i: Instruction) -> str:
        self.sites.append(f'{{{i.line}, "{i.opcode}", 0, 0}}')
        return f"&sites[{len(self.sites) - 1}]"

    def read(self, operand: str, kind: str) -> str:
        """The operand as a C++ expression of the PTX type."""
        c = CTYPES[kind]
        negated = operand.startswith("!")
        operand = operand.lstrip("!")
        if m := re.match(r"0[fdFD]([0-9A-Fa-f]{8}|[0-9A-Fa-f]{16})$", operand):
            value = f"__builtin_bit_cast({'float' if len(m[1]) == 8 else 'double'}, (u{len(m[1]) * 4})0x{m[1]}ull)"
            return value if c in ("float", "double") else f"as<{c}>({value})"
        if re.match(r"-?(0x[0-9a-fA-F]+|\d+)U?$", operand):
            if kind in ("f32", "f64"):
                raise PtxError(f"integer {operand} as {kind}")
            return f"({c})({operand.rstrip('U')}ll)" if "-" in operand else f"({c})({operand.rstrip('U')}ull)"
        if (m := re.match(r"(%\w+)\.([xyz])$", operand)) and m[1] in _SPECIAL:
            return f"({c}){_SPECIAL[m[1]]}.{m[2]}"
        if operand in _PLAIN:
            return f"({c}){_PLAIN[operand]}"
        name, _, offset = operand.partition("+")
        if name in self.names or name in self.shared:
            return f"({c})({self._address_of(name)} + {offset or 0})"
        value, declared = mangle(operand), self._type(operand)
        if declared != c:
            value = f"({c}){value}" if {declared, c} <= _INTEGERS else f"as<{c}>({value})"
        return f"!{value}" if negated else value

    def _type(self, register: str) -> str:
        return next((scope[register] for scope in reversed(self.types) if register in scope), "")

    def _address_of(self, name: str) -> str:
        if name in self.shared:
            return f"{self.shared[name][0]}ull"
        space = self.names[name].space
        return f"(u64){'l_' if space == 'local' else 'p_' if space == 'param' else 'g_'}{mangle(name)}"

    def write(self, operand: str, expression: str, kind: str = "") -> str:
        """The expression into a register; kind: its PTX type, if known (plain assignments compile faster)."""
        if operand == "_":
            return f"(void)({expression});"
        declared, given = self._type(operand), CTYPES.get(kind, "")
        if given and (declared == given or {declared, given} <= _INTEGERS):
            return f"{mangle(operand)} = {expression};"
        return f"put({mangle(operand)}, {expression});"

    def address(self, operand: str, kind: str = "u64") -> str:
        """`[register + offset]` or `[variable + offset]` as an integer expression."""
        m = re.match(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]$", operand)
        if not m:
            raise PtxError(f"address not understood: {operand}")
        return f"({self.read(m[1], kind)} + ({m[2] or '0'}))"

    def results(self, operand: str, array: str, kind: str) -> str:
        return " ".join(self.write(x, f"{array}[{i}]", kind) for i, x in enumerate(vector(operand)))

    def array(self, kind: str, name: str, operand: str) -> str:
        """A C++ array that holds the members of a vector operand."""
        members = vector(operand)
        return f"{CTYPES[kind]} {name}[{len(members)}] = {{{', '.join(self.read(x, kind) for x in members)}}};"
