"""PTX modules to C++ for the fiber runtime: registers become locals, branches gotos, an instruction one statement."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .emitter import CTYPES, Emitter, Unit, mangle, signature
from .instructions import statement
from .ptx import Variable, parse

SHARED_START = 1024  # what the driver keeps for itself on current devices; so no variable is at address 0
GAP = 64  # between shared variables, so that running over one is seen


@dataclass(frozen=True)
class Translation:
    """cpp: the C++ source. kernels: name -> (parameter sizes, most threads of a block or 0). shared: name -> (offset, bytes),
    dynamic memory last with 0 bytes. globals: name -> bytes. sites: how many instructions can fail."""

    cpp: str
    kernels: dict[str, tuple[tuple[int, ...], int]]
    shared: dict[str, tuple[int, int]]
    globals: dict[str, int]
    sites: int

    def description(self) -> dict[str, object]:
        return {"kernels": self.kernels, "shared": self.shared, "globals": self.globals, "sites": self.sites}


def translate(text: str, lines: bool = False) -> Translation:
    """The C++ of a PTX module; lines: with #line directives that name the CUDA source.

    Raises PtxError for instructions that the emulator does not know.
    """
    module = parse(text)
    defined = [f for f in module.functions if f.body is not None]
    arrays = [i for f in defined for i in f.body or () if isinstance(i, Variable)]
    fixed = [v for v in module.variables if v.space in ("global", "const")]
    shared = _layout([v for v in [*module.variables, *arrays] if v.space == "shared"])
    proxies = "wgmma" in text or "cp.async.bulk" in text
    unit = Unit({v.name: v for v in fixed}, shared, proxies, lines, statement)
    parts = ['#include "ptx.h"', *(_static(v) for v in fixed), "extern Site sites[];"]
    parts += [signature(f) + ";" for f in defined]
    parts += ["\n".join(Emitter(f, unit).run()) for f in defined]
    parts.append("Site sites[] = {" + ", ".join(unit.sites or ["{}"]) + "};")
    parts.append('extern "C" { Site* module_sites = sites; }')
    parts += [f'extern "C" {{ void* global_{mangle(v.name)} = g_{mangle(v.name)}; }}' for v in fixed]
    kernels = {f.name: (tuple(v.bytes for v in f.params), f.max_threads) for f in defined if f.entry}
    return Translation("\n".join(parts) + "\n", kernels, shared, {mangle(v.name): v.bytes for v in fixed}, len(unit.sites))


def _layout(variables: list[Variable]) -> dict[str, tuple[int, int]]:
    at, out = SHARED_START, {}
    for v in sorted({v.name: v for v in variables}.values(), key=lambda v: v.count is None):
        at = -(-at // v.align) * v.align
        out[v.name] = (at, v.bytes)
        at += v.bytes + (GAP if v.count is not None else 0)
    return out


def _static(v: Variable) -> str:
    values = ", ".join(_initial(x, v.type) for x in v.values)
    return f"alignas({max(v.align, 16)}) static {CTYPES[v.type]} g_{mangle(v.name)}[{v.count or 1}] = {{{values}}};"


def _initial(text: str, kind: str) -> str:
    if m := re.match(r"0[fd]([0-9A-Fa-f]+)$", text):
        return f"__builtin_bit_cast({CTYPES[kind]}, (u{len(m[1]) * 4})0x{m[1]}ull)"
    return f"({CTYPES[kind]}){text}"
