"""Kernel -> CUDA: one self-contained source, a `__global__` function a phase, launched one after another. No decision is taken here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

from redfuser_eq.errors import IRError
from redfuser_eq.gpu import Gpu

from .c import _comment, indent
from .c_expr import identifier
from .cuda_contract import TilePrinter
from .cuda_expr import TYPES, CudaNames
from .cuda_mma import FragmentPhase
from .cuda_rows import RowsPrinter
from .cuda_scan import ScanPrinter
from .cuda_wgmma import WarpgroupPhase
from .dtypes import WIDTHS
from .kernel import ROW, SEGMENT, Buffer, Kernel, Merge, Partial, Phase, Place, Size, statements
from .launch import CudaProgram, Launch, Scratch
from .primitives import paste


def emit(kernel: Kernel, gpu: Gpu, *, where: tuple[str, ...] | None = None) -> CudaProgram:
    """The CUDA program of a kernel whose phases have places.

    where: the program changes only rows that are flagged in ("where",), bytes over these axes, and does nothing while the byte at
    ("guard",) is 0; phases must be streaming rows then. Raises IRError where a statement has none in its form, and BackendError
    where a primitive needs a newer GPU."""
    names = CudaNames(kernel)
    names.where = where
    for a in kernel.extent_names:
        names.extent(a)
    texts, launches = [], []
    for n, p in enumerate(kernel.phases):
        text, launch = _phase(names, p, n, gpu)
        texts.append(text)
        launches.append(launch)
    code = indent(texts)
    head = f"/* {_comment(kernel.name)}\n{''.join(f'   {_comment(x)}' + chr(10) for x in kernel.notes)}*/\n"
    text = f"{head}{paste(code, gpu.capability)}typedef {kernel.real} real;\n{code}\n"
    used = {a[1] for x in launches for a in x.args if a[0] == "buffer"}
    buffers = tuple(_scratch(kernel, b) for b in kernel.buffers if b.name in used)
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    return CudaProgram(text, tuple(launches), buffers, gpu.capability, key, kernel.flag_axes)


def _scratch(k: Kernel, b: Buffer) -> Scratch:
    """A buffer's place in memory; a flag, the only buffer without dimensions, starts at something other than 0."""
    cut = next((c for p in k.phases if (c := _cut(k, p)) and b.name in _partial(p)), None)
    sizes = tuple(replace(s, axis=cut[1], divide=cut[0]) if cut and s.axis == SEGMENT else s for s in b.sizes)
    each = WIDTHS[b.dtype] if b.dtype else 4 if k.real == "float" else 8
    return Scratch(b.name, each, sizes, None if b.dims else 1)


def _partial(p: Phase) -> set[str]:
    """Buffers that hold the states of a phase's segments, or that it merges."""
    return {b for s in statements(p.body) if isinstance(s, (Partial, Merge)) for _, *both in s.items for b in both if b}


def _cut(k: Kernel, p: Phase) -> tuple[int, str] | None:
    """(length, stream) of the segments that a phase computes or merges."""
    own = next(((g.step, p.stream) for g in p.grid if g.axis == SEGMENT), None)
    if own or not any(isinstance(s, Merge) for s in p.body):
        return own
    return next(c for q in k.phases if _partial(q) & _partial(p) and q is not p and (c := _cut(k, q)))


def printer(names: CudaNames, phase: Phase) -> Any:
    """What prints a phase of its form: `body()` gives its lines."""
    if phase.place is None:
        raise IRError(f"phase {phase.name!r} has no place on a GPU")
    if phase.place.form in ("rows", "elements"):
        return RowsPrinter(names, phase)
    if phase.place.form == "scan":
        return ScanPrinter(names, phase)
    if phase.place.form == "wgmma":
        return WarpgroupPhase(names, phase)
    if phase.place.form == "mma":
        return FragmentPhase(names, phase)
    if phase.place.form == "tile":
        return TilePrinter(names, phase)
    raise IRError(f"phase {phase.name!r}: no printer for the form {phase.place.form!r}")


def _phase(names: CudaNames, p: Phase, number: int, gpu: Gpu) -> tuple[str, Launch]:
    made = printer(names, p)
    lines: list[str] = made.body()
    name = f"phase_{number}_{identifier(p.name)}"
    sizes = _sizes(names, p, "\n".join(lines))
    used = set(re.findall(r"\w+", "\n".join([*sizes, *lines])))
    chosen = [(kind, text, arg) for kind, text, arg in _parameters(names, names.k) if text in used]
    chosen += [("const __grid_constant__ TensorMap ", text, arg) for text, arg in getattr(made, "maps", {}).items()]
    if names.where is not None:
        chosen.append(("const u8 *__restrict__ ", "guard", ("guard",)))
        lines = ["if (*guard == 0) return;", *lines]
    laws = [f"  /* {_comment(x)} */" for x in p.laws]
    assert p.place is not None
    params = ", ".join(f"{kind}{text}" for kind, text, _ in chosen)
    head = f'extern "C" __global__ void __launch_bounds__({_bounds(p.place)}) {name}({params}) {{'
    text = "\n".join([head, *laws, *sizes, *lines, "}"])
    axes = [(p.stream if g.axis == SEGMENT else g.axis, g.step) for g in p.grid if g.axis != ROW]
    grid = tuple(Size(axis, divide=step) for axis, step in axes)
    args = tuple(arg for _, _, arg in chosen)
    return text, Launch(name, (grid, (), ()), p.place.threads, getattr(made, "shared", 0), args, made.per_block,
                        p.place.resident * gpu.multiprocessors)  # fmt: skip


def _bounds(place: Place) -> str:
    """Threads of a block and, where ptxas would spill for one more, or must know what registers there are because some warps give
    theirs to others, the blocks a multiprocessor should hold. Shared memory has no room for a second block of parts."""
    if place.resident:
        return f"{place.threads}, {place.resident}"
    if place.parts > 1 or (place.form == "mma" and place.run == 4) or place.producers > 1:
        return f"{place.threads}, 1"
    return f"{place.threads}, 2" if place.form == "tile" and place.threads <= 256 else str(place.threads)


def _parameters(names: CudaNames, k: Kernel) -> list[tuple[str, str, tuple[Any, ...]]]:
    """(type, name, argument) of everything a phase may be given."""
    out: list[tuple[str, str, tuple[Any, ...]]] = []
    for a in k.inputs:
        out.append((f"const {TYPES[a.dtype]} *__restrict__ ", names.array(a), ("in", a.name)))
    for i, a in enumerate(k.outputs):
        out.append((f"{TYPES[a.dtype]} *__restrict__ ", names.array(a), ("out", i)))
    if k.flag_axes is not None:
        out.append(("u8 *__restrict__ ", "flags", ("flags",)))
    out.append(("const u8 *__restrict__ ", "where", ("where",)))
    out += [(f"{TYPES.get(b.dtype, 'real')} *__restrict__ ", names.get("buf", b.name), ("buffer", b.name)) for b in k.buffers if b.shared]
    out += [("const i64 ", names.extent(a), ("extent", a)) for a in k.extent_names]
    for a in k.inputs:
        out += [("const i64 ", f"{names.array(a)}_s{d}", ("in_stride", a.name, d)) for d, s in enumerate(a.strides) if s is None]
    for i, a in enumerate(k.outputs):
        out += [("const i64 ", f"{names.array(a)}_s{d}", ("out_stride", i, d)) for d, s in enumerate(a.strides) if s is None]
    return out


def _sizes(names: CudaNames, p: Phase, text: str) -> list[str]:
    """Segments and strides of buffers, where the text uses them."""
    used = set(re.findall(r"\w+", text))
    out = []
    strides = [(name, value) for b in names.k.buffers for name, value in names.steps_of(b) if name in used]
    segment = names.extent(SEGMENT)
    cut = _cut(names.k, p)
    if cut and (segment in used or any(segment in re.findall(r"\w+", v) for _, v in strides)):
        out.append(f"const i64 {segment} = ({names.extent(cut[1])} + {cut[0] - 1}) / {cut[0]};")
    return out + [f"const i64 {name} = {value};" for name, value in strides]
