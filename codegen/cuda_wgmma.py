"""A phase on the warpgroup instructions of sm_90a: some warps fetch (`cuda_ring`), the others compute.

Neither side waits for the other but at the barriers of the ring, so that one warpgroup's element-wise work falls into the products
of another (as in FlashAttention-3, Shah et al., 2024).
"""

from __future__ import annotations

from redfuser_eq.errors import IRError
from redfuser_eq.tiles import up

from .c_expr import Place
from .cuda_expr import CudaNames
from .cuda_mma import CONTRACTED, SHORT
from .cuda_ring import PANEL, RingPhase
from .dtypes import BYTES, WIDTHS
from .kernel import Contract, Loop, Operand, Phase, Stmt

ELEMENTS = 64  # of 16 bits in a row of a panel


class WarpgroupPhase(RingPhase):
    """Prints one phase with a single loop."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.early = False  # the first product of a tile is issued behind the last one of the tile before
        self.turns = False  # two warpgroups take turns at issuing products
        self.exchanged = ""  # text of the address of a tile's elements, where warpgroups divide the columns

    def do_loop(self, s: Loop) -> list[str]:
        start, whole_tile = self.names.start(s.axis), self.tile_start()
        if self.place.across > 1:
            self.exchanged, self.stays = f"sm + {self.stays}", self.stays + 16 * self.bands * up(2 * s.step, PANEL)
        stages, body, skips, blocks, at, head = self.enter(s)
        out = [*head, *self.ring(s, stages, blocks, at)]
        self.at[s.axis] = Place(start)
        tests = self._tests(s, skips, blocks)
        products = [x for x in body if isinstance(x, Contract)]
        whole = blocks == "1" and "continue" not in "\n".join(tests)
        self.early = whole and len(products) == 2 and products[0] is self.score and products[1] is body[-1]
        self.early = self.early and not self.promotes(products[0])
        self.turns = self.early and self.consumers == 256 and self.place.across == 1
        held, tile = self.tile_registers(body), self.tile(body)
        loop = f"for (int {whole_tile} = lo; {whole_tile} < hi; {whole_tile} += {s.step}) {{"
        tests = [f"const int {start} = {whole_tile} + part * {self.step};", *tests] if self.place.across > 1 else tests
        if self.early and self.score is not None:
            first, (begin, give, end) = self._issue(self.score), self._turns()
            out += [*held, *begin, "if (lo < hi) {", *first, "wgmma_wait<0>();", "}", loop, *tests, *tile]
            out += [f"if ({whole_tile} + {s.step} < hi) {{", *first, *give, "wgmma_wait<1>(); release();", "}", *end]
            out += ["wgmma_wait<0>();", "}"]
        else:
            out += [loop, *tests, *held, *tile, "release();", "}"]
        del self.at[s.axis]
        self.step = 0
        return out

    def _turns(self) -> tuple[list[str], list[str], list[str]]:
        """The second warpgroup lets the first one begin; each passes the turn on when it has issued a tile's products, and computes
        element by element while the other's run. At the last tile the second keeps it: nobody waits."""
        if not self.turns:
            return [], [], []
        return (["if (warp >= 4 && lo < hi) barrier_arrive(1, 256);"], ["barrier_arrive(2 - warp / 4, 256);"],
                ["else if (warp < 4) barrier_arrive(2, 256);"])  # fmt: skip

    # ---- products
    def _slice(self, name: str, at: str, plain: bool) -> str:
        """The descriptor of 32 bytes (block c) of the contracted axis of a tile, which is its columns (plain) or its rows. at: text
        of where the other axis begins."""
        height, _ = self.shape(name)
        if plain:
            return f"descriptor({self.where[name]} + c / 4 * {height * PANEL} + c % 4 * 32{at}, 16)"
        return f"descriptor({self.where[name]} + c * 2048{at}, {height * PANEL})"

    def _rows(self) -> str:
        """Text of where the warpgroup's rows begin in a tile of rows."""
        return " + warp / 4 * 8192" if self.place.across == 1 else ""

    def _share(self, b: Operand, each: int, plain: bool) -> str:
        """Text of where the warpgroup's `each` elements of an operand's own axis begin: those of a tile with rows along it (plain) or
        in whole panels."""
        step = PANEL if plain else self.shape(b.source)[0] * PANEL / ELEMENTS
        if not plain and (each if self.place.across > 1 else 0) % ELEMENTS + b.start % ELEMENTS:
            raise IRError(f"{b.source!r}: {each} elements from {b.start} on are no whole panels")
        share = f" + part * {each * step:.0f}" if self.place.across > 1 else ""
        return f"{share} + {b.start * step:.0f}" if b.start else share

    def _product(self, s: Contract) -> list[str]:
        self.crossed = False
        name, whole = self.names.get("reg", s.dst), self._tag(self.staged(s.b.source)) == "i8"
        turned = [f"{self._each(self.step // 8)} {name}[0][n][e] = (float)sums_{name}[n][e];"] if whole else []
        return [*([] if self.early else [*self._issue(s), "wgmma_wait<0>();"]), *turned, *self._scores(s)]

    def _each(self, blocks: int) -> str:
        return f"UNROLL for (int n = 0; n < {blocks}; n++) UNROLL for (int e = 0; e < 4; e++)"

    def tile_registers(self, body: tuple[Stmt, ...]) -> list[str]:
        """With the sums of a product of integers."""
        out = super().tile_registers(body)
        if self.score is None or self._tag(self.staged(self.score.b.source)) != "i8":
            return out
        return [*out, f"int sums_{self.names.get('reg', self.score.dst)}[{self.step // 8}][4];"]

    def _issue(self, s: Contract) -> list[str]:
        """Start the product, block by block of the inner axis."""
        name, stage = self.names.get("reg", s.dst), self.staged(s.b.source)
        plain, tag = self.buffer(s.b.source).dims[0] != s.c, self._tag(stage)
        call = f"wgmma_{tag}_{'ss' if plain else 'sst'}_n{self.step}"
        over = f"for (int c_0 = 0; c_0 < (int){self.names.extent(s.c)}; c_0 += {s.c_block})" if stage.inner else ""
        a, b = self._slice(s.a.source, self._rows(), True), self._slice(s.b.source, self._share(s.b, self.step, plain), plain)
        steps, release = s.c_block * WIDTHS[tag] // CONTRACTED, ["if (c_0 > 0) { wgmma_wait<1>(); release(); }"] if stage.inner else []
        if self.promotes(s):
            most, blocks = SHORT // CONTRACTED, self.step // 8
            return [f"{self._each(blocks)} {name}[0][n][e] = 0.0f;", f"{over} {{", "advance();",
                    f"UNROLL for (int c_1 = 0; c_1 < {steps}; c_1 += {most}) {{ float few[{blocks}][4]; wgmma_fence();",
                    f"UNROLL for (int c = c_1; c < imin(c_1 + {most}, {steps}); c++) {call}(flat(few), {a}, {b}, c > c_1);",
                    f"wgmma_commit(); wgmma_wait<0>(); {self._each(blocks)} {name}[0][n][e] += few[n][e];", "}", *release,
                    "}"]  # fmt: skip
        first = "c_0 + c > 0" if stage.inner else "c > 0"
        to = f"sums_{name}" if tag == "i8" else f"{name}[0]"
        return [f"{over} {{", "advance(); wgmma_fence();",
                f"UNROLL for (int c = 0; c < {steps}; c++) {call}(flat({to}), {a}, {b}, {first});", "wgmma_commit();", *release,
                "}"]  # fmt: skip

    def _columns(self, s: Contract) -> list[str]:
        acc, tag = self.names.get("acc", s.dst), self._tag(self.staged(s.b.source))
        plain = self.buffer(s.b.source).dims[0] != self.phase.stream
        n, b = self.step * WIDTHS[tag] // CONTRACTED, self._slice(s.b.source, self._share(s.b, 8 * s.nv, plain), plain)
        out = self.rescaled(s)
        near = self.in_memory(s.a.source)
        a = self._slice(s.a.source, self._rows(), True) if near else f"a_{acc}[c]"
        if not near:
            out += [f"u32 a_{acc}[{n}][4];",
                    f"UNROLL for (int c = 0; c < {n}; c++) {self._left(s, f'a_{acc}[c]', tag).replace('[m]', '[0]')}"]  # fmt: skip
        if self.place.across > 1:
            near, n = True, n * self.place.across
            a = a if self.in_memory(s.a.source) else f"descriptor({self.exchanged} + c / 4 * {16 * self.bands * PANEL} + c % 4 * 32, 16)"
            out += [] if self.in_memory(s.a.source) else self._exchange(f"a_{acc}", n // self.place.across)
        call = f"wgmma_{tag}_{'s' if near else 'r'}s{'' if plain else 't'}_n{8 * s.nv}"
        if tag in BYTES:
            kind = "int" if tag == "i8" else "float"
            return [*out, f"{kind} part_{acc}[{s.nv}][4];",
                    f"wgmma_fence(); UNROLL for (int c = 0; c < {n}; c++) {call}(flat(part_{acc}), {a}, {b}, c > 0);",
                    f"wgmma_commit(); wgmma_wait<0>(); {self._each(s.nv)} {acc}[0][n][e] += part_{acc}[n][e];"]  # fmt: skip
        return [*out, f"{'barrier_sync(1 + warp / 4, 256); ' if self.turns else ''}wgmma_fence(); "
                f"UNROLL for (int c = 0; c < {n}; c++) {call}(flat({acc}[0]), {a}, {b}, 1);",
                f"wgmma_commit();{'' if self.early else ' wgmma_wait<0>();'}"]  # fmt: skip

    def _exchange(self, left: str, blocks: int) -> list[str]:
        """The warpgroup's elements of the tile, as left fragments, to where all warpgroups read them: when all have read those of the
        tile before."""
        rows = 16 * self.bands
        at = f"cell({self.exchanged}, {rows}, band * 16 + lane % 16, (c + part * {blocks}) * 2 + lane / 16)"
        return [*([] if self.crossed else [self.barrier()]), f"UNROLL for (int c = 0; c < {blocks}; c++) stmatrix({at}, {left}[c]);",
                "fence_async();", self.barrier()]  # fmt: skip
