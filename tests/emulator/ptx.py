"""PTX text to statements: the grammar that NVRTC prints, with the scopes of inline assembly kept.

module    = { variable | function }
function  = [".func" results | ".entry"] name params "{" { item } "}"
item      = registers | variable | label | instruction | "{" | "}"
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SIZES = {"pred": 1, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4} | {f"{k}{n}": n // 8 for k in "busf" for n in (8, 16, 32, 64)}


class PtxError(NotImplementedError):
    """The PTX holds something that the emulator does not know."""


@dataclass(frozen=True)
class Variable:
    """An array in a state space (shared, global, const, local, param). count None: dynamic shared memory."""

    space: str
    type: str
    name: str
    count: int | None
    align: int
    values: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return SIZES[self.type] * (self.count or 0)


@dataclass(frozen=True)
class Registers:
    """`.reg .type %r<n>` (names %r0 to %r(n-1)) or `.reg .type a, b`."""

    type: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Scope:
    """A brace of an inner scope."""

    opens: bool


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode operands;` at a line of the CUDA source (0: unknown)."""

    guard: str
    opcode: str
    operands: tuple[str, ...]
    line: int


Item = Registers | Variable | Label | Scope | Instruction


@dataclass
class Function:
    name: str
    entry: bool
    results: list[Variable]
    params: list[Variable]
    max_threads: int = 0  # of a block, by __launch_bounds__; 0: not given
    body: list[Item] | None = None  # None: only declared


@dataclass
class Module:
    variables: list[Variable] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)


_DECLARATION = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(shared|global|const|local|param)\s+(?:\.align\s+(\d+)\s+)?(?:\.ptr\b[^%]*?)?"
    r"(?:\.v\d\s+)?\.(\w+)\s+([\w$%]+)\s*((?:\[\d*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_INSTRUCTION = re.compile(r"(?:@(!?%?[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)


def parse(text: str) -> Module:
    """The module that PTX text declares. Raises PtxError for text outside the grammar."""
    module = Module()
    lines = _Lines(text)
    for chunk in lines.statements():
        head = chunk.strip()
        if head.startswith((".version", ".target", ".address_size", ".file", ".pragma")) or not head:
            continue
        if ".entry" in head or ".func" in head:
            module.functions.append(_function(head, lines))
        else:
            module.variables.append(_variable(head))
    return module


class _Lines:
    """Characters of the text without comments and debug sections; `.loc` becomes the current source line."""

    def __init__(self, text: str):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        text = re.sub(r"^\s*\.section\s+\.debug.*", "", text, flags=re.S | re.M)
        text = re.sub(r"^\s*(\.version|\.target|\.address_size|\.file)\b.*$", "", text, flags=re.M)
        self.text, self.at, self.line = text, 0, 0

    def statements(self) -> Iterator[str]:
        """Module-level statements: up to `;`, or up to the `{` that opens a function."""
        while self.at < len(self.text):
            m = re.compile(r"[^;{]*").match(self.text, self.at)
            assert m is not None
            chunk, end = m[0], m.end()
            while end < len(self.text) and self.text[end] == "{" and "=" in chunk:  # an initialiser's braces
                close = self.text.index(";", end)
                chunk, end = self.text[self.at : close], close
            self.at = end + 1
            yield chunk

    def items(self) -> Iterator[tuple[str, int]]:
        """Statements of the function body that has just been opened, braces and labels apart, with their lines."""
        depth = 1
        while depth:
            self._skip_locations()
            c = self.text[self.at]
            if c in "{}":
                depth += 1 if c == "{" else -1
                self.at += 1
                if depth:
                    yield c, self.line
            elif m := _LABEL.match(self.text, self.at):
                self.at = m.end()
                yield m[1] + ":", self.line
            else:
                end = self.text.index(";", self.at)
                statement, self.at = self.text[self.at : end].strip(), end + 1
                if statement:
                    yield statement, self.line

    def _skip_locations(self) -> None:
        while True:
            while self.text[self.at].isspace():
                self.at += 1
            if not (m := _LOC.match(self.text, self.at)):
                return
            self.line = int(m[2])
            self.at = self.text.index("\n", self.at)


def _variable(text: str) -> Variable:
    m = _DECLARATION.match(text.strip())
    if not m:
        raise PtxError(f"declaration not understood: {text.strip()!r}")
    space, align, kind, name, dims, values = m.groups()
    count: int | None = 1
    for d in re.findall(r"\[(\d*)\]", dims):
        count = None if d == "" or count is None else count * int(d)
    inside = tuple(v.strip() for v in (values or "").strip("{} \n\t").split(",") if v.strip())
    return Variable(space, kind, name, count, int(align or SIZES[kind]), inside)


def _variables(text: str) -> list[Variable]:
    return [_variable(p) for p in text.split(",") if p.strip()]


def _function(head: str, lines: _Lines) -> Function:
    m = re.match(r"(?:\.(?:visible|extern|weak)\s+)*\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?", head)
    if not m:
        raise PtxError(f"function not understood: {head!r}")
    f = Function(m[3], m[1] == "entry", _variables(m[2] or ""), _variables(m[4] or ""))
    if bound := re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head):
        f.max_threads = math.prod(int(n or 1) for n in bound.groups())
    if lines.text[lines.at - 1] == "{":
        f.body = [item for text, line in lines.items() for item in _items(text, line)]
    return f


def _items(text: str, line: int) -> list[Item]:
    if text in "{}":
        return [Scope(text == "{")]
    if text.endswith(":"):
        return [Label(text[:-1])]
    if m := re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text, re.S):
        names: list[str] = []
        for name in (n.strip() for n in m[2].split(",")):
            if k := re.match(r"(.+)<(\d+)>$", name):
                names += [f"{k[1]}{i}" for i in range(int(k[2]))]
            else:
                names.append(name)
        return [Registers(m[1], tuple(names))]
    if text.startswith(".pragma"):
        return []
    if text.startswith(".branchtargets"):
        return [Instruction("", "branchtargets", tuple(t.strip() for t in text[14:].split(",")), line)]
    if text.startswith("."):
        return [_variable(text)]
    m = _INSTRUCTION.match(text)
    if not m:
        raise PtxError(f"line {line}: statement not understood: {text!r}")
    return [Instruction(m[1] or "", m[2], tuple(_operands(m[3])), line)]


def _operands(text: str) -> list[str]:
    """Split at the commas outside braces, brackets and parentheses."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*out, last] if last else out


def vector(operand: str) -> list[str]:
    """The members of `{a, b}`; a plain operand is its own only member."""
    return [x.strip() for x in operand[1:-1].split(",")] if operand.startswith("{") else [operand]
