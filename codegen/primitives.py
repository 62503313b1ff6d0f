"""Named device primitives in CUDA: only those that a kernel uses are pasted into it, so its source needs no #include.

They live in `cuda_primitives/*.cuh`, each under a line `//@ name (least compute capability) : what it does`. Names of the form
`wgmma_ELEMENT_FORM_nN` are made on demand: ELEMENT is bf16, f16, e4m3, i8 (sums in int) or tf32; FORM is ss (both operands in
shared memory), rs (the first in registers), sst or rst (the second operand has its columns contiguous, 16-bit elements only); N a
multiple of 8 to 256.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from redfuser_eq.errors import BackendError

PRELUDE = """\
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
#define DEV static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fc00000)
"""
_FOLDER = Path(__file__).parent / "cuda_primitives"
_HEADER = re.compile(r"^//@ (\w+)(?: \((\d+)\))? : (.+)$", re.M)
_WGMMA = re.compile(r"wgmma_(bf16|f16|e4m3|i8|tf32)_(ss|rs|sst|rst)_n(\d+)")


@dataclass(frozen=True)
class Primitive:
    """A piece of CUDA source. least: the compute capability it needs, 90 for sm_90a."""

    name: str
    least: int
    about: str
    code: str

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+", self.code))


@functools.cache
def primitives() -> dict[str, Primitive]:
    """All named primitives, in the order of their files."""
    found: dict[str, Primitive] = {}
    for name in ("scalar", "convert", "memory", "access", "warp", "fold", "tensor_core", "hopper"):
        text = (_FOLDER / f"{name}.cuh").read_text()
        heads = list(_HEADER.finditer(text))
        for head, end in zip(heads, [*(h.start() for h in heads[1:]), len(text)], strict=True):
            found[head[1]] = Primitive(head[1], int(head[2] or 80), head[3], text[head.end() : end].strip())
    return found


def primitive(name: str) -> Primitive | None:
    """The primitive of a name, or None when the name means nothing here."""
    m = _WGMMA.fullmatch(name)
    return primitives().get(name) if m is None else _wgmma(m[1], m[2], int(m[3]))


def paste(text: str, capability: int = 80) -> str:
    """The prelude and the primitives that the text uses, those that these use too, each before its uses.

    Raises BackendError when one needs a newer device than the compute capability given (80, 89, 90, 100, ...).
    """
    order: dict[str, Primitive] = {}
    _collect(re.findall(r"\w+", text), order)
    for p in order.values():
        if p.least > capability:
            raise BackendError(f"primitive {p.name} needs compute capability {p.least}, the target has {capability}")
    return PRELUDE + "".join(f"{p.code}\n" for p in order.values())


def _collect(words: Iterable[str], order: dict[str, Primitive]) -> None:
    for word in words:
        p = primitive(word)
        if p is not None and word not in order:
            _collect(sorted(p.words - {word}), order)
            order[word] = p


def _wgmma(element: str, form: str, n: int) -> Primitive:
    """d[64, n] (+)= a b over 32 bytes of the inner axis; `keep` false: d starts from zero."""
    transposed, registers, wide = form.endswith("t"), form[0] == "r", element in ("bf16", "f16")
    step = 16 if element == "i8" and n > 32 else 8
    if n % step or not 8 <= n <= 256 or (transposed and not wide):
        raise BackendError(
            f"there is no wgmma_{element}_{form}_n{n}: n is a multiple of 8 up to 256 (of 16 beyond 32 for i8), and only elements of "
            "16 bits are transposed"
        )
    count, k = n // 2, {"bf16": 16, "f16": 16, "tf32": 8}.get(element, 32)
    sums, kind, bits = ("s32", "int", "r") if element == "i8" else ("f32", "float", "f")
    d = ", ".join(f"%{i}" for i in range(count))
    a = "{" + ", ".join(f"%{count + i}" for i in range(4)) + "}" if registers else f"%{count}"
    b = count + (4 if registers else 1)
    signs = "" if element == "i8" else ", 1, 1"
    majors = "" if not wide else f", {int(transposed)}" if registers else f", 0, {int(transposed)}"
    outputs = ", ".join(f'"+{bits}"(d[{i}])' for i in range(count))
    inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) if registers else '"l"(a)'
    name, tag = f"wgmma_{element}_{form}_n{n}", {"i8": "s8"}.get(element, element)
    code = (
        f"DEV void {name}({kind} (&d)[{count}], {'const u32 (&a)[4]' if registers else 'u64 a'}, u64 b, int keep) {{\n"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{b + 1}, 0;\\n"\n'
        f'               "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{tag}.{tag} {{{d}}}, {a}, %{b}, p{signs}{majors};\\n}}"\n'
        f'               : {outputs}\n               : {inputs}, "l"(b), "r"(keep));\n}}'
    )
    return Primitive(name, 90, "d[64, n] += a[64, k] b[k, n] by a warpgroup", code)
