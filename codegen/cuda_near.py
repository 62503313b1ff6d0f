"""Rows held in shared memory between their sweeps, as CUDA: each thread copies its own elements and waits for nobody.

The cells of a tile lie [accesses of up to 16 bytes][threads of the block], so that no access conflicts. A tile is a group of
copies; where the first sweep closes an empty group a tile, as many groups follow a tile's own whenever it is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Load

from .c_expr import _offsets
from .cuda_expr import TYPES, CudaNames
from .cuda_state import StateCode
from .dtypes import WIDTHS
from .kernel import Fetch, Loop, Phase, Stage

ALIGNED = 16  # bytes of the widest access
SPREADS = ("f32", "f16", "bf16", "e4m3", "f64")  # dtypes whose 16 bytes are read as numbers at once


@dataclass(frozen=True)
class Held:
    """What a Stage brings. name: of the printed variables. base: bytes of dynamic shared memory before it. unit: bytes of an access,
    pieces: accesses of `vector` neighbours, tile: bytes of a tile."""

    stage: Stage
    name: str
    tag: str
    step: str
    base: int
    unit: int
    pieces: int
    tile: int

    @property
    def width(self) -> int:
        return WIDTHS[self.tag]

    @property
    def wide(self) -> bool:
        return self.step == "1" and self.unit == ALIGNED


class NearRows(StateCode):
    """Prints the copies. shared: bytes of dynamic shared memory."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        assert phase.place is not None
        self.place = phase.place
        self.shared = 0
        self.held: dict[str, Held] = {}
        self.waits = False
        for s in phase.body:
            if isinstance(s, Stage):
                self._hold(s)
        self.step = next((s.step for s in phase.body if isinstance(s, Loop)), 1)

    def _hold(self, s: Stage) -> None:
        array, buffer, p = self.names.k.array(s.source.source), self.names.k.buffer(s.dst), self.place
        if array is None or buffer is None or not p.resident or self.names.where is not None:
            raise IRError(f"phase {self.phase.name!r}: {s.source.source!r} cannot be staged here")
        width, k = WIDTHS[array.dtype], self.phase.stream
        (cells,) = (z.value for d, z in zip(buffer.dims, buffer.sizes, strict=True) if d == k)
        size = width * p.vector
        unit, pieces = min(size, ALIGNED), max(1, size // ALIGNED)
        tile = p.threads * p.elems * width
        step = self.names.stride(array, s.source.dims.index(k))
        self.held[s.dst] = Held(s, self.names.fresh("near"), array.dtype, step, self.shared, unit, pieces, tile)
        self.shared += cells * width
        self.tiles = cells // (p.threads * p.elems)

    # ---- the items of a block
    def first_copies(self, address: str) -> list[str]:
        """Before the first item: how rows lie, and copies of the first. address: text of the item of the block's part."""
        out = ["extern __shared__ __align__(16) unsigned char dynamic[];", "const u32 sm = smem(dynamic);"]
        for h in self.held.values():
            array = self.names.k.array(h.stage.source.source)
            assert array is not None
            parts = [(self.at[d].whole, self.names.stride(array, i)) for i, d in enumerate(array.dims) if d != self.phase.stream]
            base = " + ".join([self.names.array(array), *_offsets(parts)])
            out += [f"const auto {h.name}_of = [&](i64 item) {{", *self._points(), f"return {base};", "};"]
        head = [f"for (i64 tile = low; tile < high; tile += {self.step}) {{", "const i64 at = tile + offset;"]
        return [*out, "{", *self._next_rows(address), *head, *self.copies(), "}", "}"]

    def _points(self) -> list[str]:
        """An item's place along each axis of the grid."""
        raise NotImplementedError

    def _next_rows(self, item: str) -> list[str]:
        return [f"const {TYPES[h.tag]} *const {h.name}_n = {h.name}_of({item});" for h in self.held.values()]

    def next_rows(self, item: str) -> list[str]:
        """The rows of the item that follows."""
        return self._next_rows(item)

    # ---- copies
    def copies(self, test: str = "") -> list[str]:
        """A tile's elements of the item that follows. test: text of a condition."""
        out = [line for h in self.held.values() for line in self._bring(h)]
        return [*([f"if ({test}) {{", *out, "}"] if test else out), "cp_async_commit();"]

    def _bring(self, h: Held) -> list[str]:
        p, name = self.place, h.name
        chunks = p.elems // p.vector
        each = f"UNROLL for (int c = 0; c < {chunks}; c++) {{"
        first = f"const i64 first = at + c * {p.group * p.vector};"
        to = f"const u32 to = {self._slot(h)};"
        single = "k" if h.step == "1" else f"k * {h.step}"
        element = f"UNROLL for (int e = 0; e < {p.vector}; e++) {{ const i64 k = first + e; if (k < high)"
        if h.width >= 4:
            inner = [f"else {element} cp_async<{h.width}>(sm + to + {self._cell(h)}, {name}_n + {single}); }}"]
        elif h.wide:
            inner = [f"else {element} *({TYPES[h.tag]} *)(dynamic + to + {self._cell(h)}) = {name}_n[{single}]; }}"]
        else:
            return self._plain(h, to, each, first, element, single)
        if not h.wide:
            return ["{", to, each, first, inner[0].removeprefix("else "), "}", "}"]
        whole = " ".join(f"cp_async<16>(sm + to + {self._at(h, 'c', i)}, {name}_n + first + {i * ALIGNED // h.width});"
                         for i in range(h.pieces))  # fmt: skip
        aligned = f"const bool aligned = ((u64){name}_n & 15) == 0;"
        return ["{", to, aligned, each, first, f"if (aligned && first + {p.vector} <= high) {{ {whole} }}", *inner, "}", "}"]

    def _plain(self, h: Held, to: str, each: str, first: str, element: str, single: str) -> list[str]:
        """Narrow elements with any stride: all on their way before the first is stored."""
        p, kind = self.place, TYPES[h.tag]
        value = f"v[c * {p.vector} + e]"
        return ["{", to, f"{kind} v[{p.elems}];", each, first, f"{element} {value} = {h.name}_n[{single}]; }}", "}",
                each, first, f"{element} *({kind} *)(dynamic + to + {self._cell(h)}) = {value}; }}", "}", "}"]  # fmt: skip

    def _slot(self, h: Held) -> str:
        return f"(u32)tile / {self.step} * {h.tile} + threadIdx.x * {h.unit}" + (f" + {h.base}" if h.base else "")

    def _at(self, h: Held, chunk: str, piece: int) -> str:
        """Bytes from a thread's first cell of a tile to an access."""
        return f"({chunk} * {h.pieces} + {piece}) * {self.place.threads * h.unit}"

    def _cell(self, h: Held) -> str:
        """Bytes from a thread's first cell of a tile to element e of chunk c."""
        if h.pieces == 1:
            return f"c * {self.place.threads * h.unit} + e * {h.width}"
        return f"(c * {h.pieces} + e * {h.width} / {ALIGNED}) * {self.place.threads * h.unit} + e * {h.width} % {ALIGNED}"

    # ---- reading
    def near_fetch(self, e: Load, name: str, edge: bool) -> list[str]:
        """A tile's elements of what is held, into registers."""
        h, p = self.held[e.source], self.place
        real = self.names.k.real
        get = f"(real)get_{h.tag}((const {TYPES[h.tag]} *)(from + {self._cell(h)}))"
        to = f"{name}[c * {p.vector} + e]"
        one = f"UNROLL for (int e = 0; e < {p.vector}; e++) " + (
            f"{to} = first + e < high ? {get} : (real)0;" if edge else f"{to} = {get};"
        )
        out = ["{", f"const unsigned char *const from = dynamic + {self._slot(h)};"]
        out += [f"UNROLL for (int c = 0; c < {p.elems // p.vector}; c++) {{", f"const i64 first = at + c * {p.group * p.vector};"]
        if h.unit == ALIGNED and h.tag in SPREADS and (h.tag == "f64") == (real == "double"):
            step = ALIGNED // h.width
            whole = " ".join(self._spread(h, f"{name} + c * {p.vector} + {i * step}", i) for i in range(h.pieces))
            test = f"if (first + {p.vector} <= high) {{ {whole} }} else {one}" if edge else whole
            return [*out, test, "}", "}"]
        return [*out, one, "}", "}"]

    def _spread(self, h: Held, to: str, piece: int) -> str:
        address = f"from + {self._at(h, 'c', piece)}"
        if h.tag in ("f32", "f64"):
            return f"shared16({to}, (const {TYPES[h.tag]} *)({address}));"
        return f"spread_{h.tag}({to}, *(const uint4 *)({address}));"

    def wait(self, loads: tuple[Load, ...]) -> list[str]:
        """At the start of a tile of the first sweep that reads what is held."""
        if self.waits or not any(e.source in self.held for e in loads):
            return []
        return [f"cp_async_wait<{self.tiles - 1}>();", "cp_async_commit();"]

    def waited(self, s: Loop) -> None:
        """A sweep has been printed."""
        self.waits = self.waits or any(e.source in self.held for x in s.body if isinstance(x, Fetch) for e in x.loads)
