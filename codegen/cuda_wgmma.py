"""A phase on the warpgroup instructions of sm_90a: some warps fetch (`cuda_ring`), the others compute.

Neither side waits for the other but at the barriers of the ring, so that one warpgroup's element-wise work falls into the products
of another (as in FlashAttention-3, Shah et al., 2024).
"""

from __future__ import annotations

from .c_expr import Place
from .cuda_expr import CudaNames
from .cuda_mma import BYTES, CONTRACTED, SHORT
from .cuda_ring import RingPhase
from .kernel import WIDTHS, Contract, Loop, Phase, Stmt


class WarpgroupPhase(RingPhase):
    """Prints one phase with a single loop."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.early = False  # the first product of a tile is issued behind the last one of the tile before
        self.turns = False  # two warpgroups take turns at issuing products

    def do_loop(self, s: Loop) -> list[str]:
        start = self.names.start(s.axis)
        stages, body, skips, blocks, at, head = self.enter(s)
        out = [*head, *self.ring(s, stages, blocks, at)]
        self.at[s.axis] = Place(start)
        tests = self._tests(s, skips, blocks)
        products = [x for x in body if isinstance(x, Contract)]
        whole = blocks == "1" and "continue" not in "\n".join(tests)
        self.early = whole and len(products) == 2 and products[0] is self.score and products[1] is body[-1]
        self.early = self.early and not self.promotes(products[0])
        self.turns = self.early and self.consumers == 256
        held, tile = self.tile_registers(body), self.tile(body)
        loop = f"for (int {start} = lo; {start} < hi; {start} += {s.step}) {{"
        if self.early and self.score is not None:
            first, (begin, give, end) = self._issue(self.score), self._turns()
            out += [*held, *begin, "if (lo < hi) {", *first, "wgmma_wait<0>();", "}", loop, *tests, *tile]
            out += [f"if ({start} + {s.step} < hi) {{", *first, *give, "wgmma_wait<1>(); release();", "}", *end, "wgmma_wait<0>();", "}"]
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
    def _slice(self, name: str, rows: str, plain: bool) -> str:
        """The descriptor of 32 bytes (block c) of the contracted axis of a tile, which is its columns (plain) or its rows."""
        height, _ = self.shape(name)
        if plain:
            return f"descriptor({self.where[name]} + c / 4 * {height * 128} + c % 4 * 32{rows}, 16)"
        return f"descriptor({self.where[name]} + c * 2048, {height * 128})"

    def _product(self, s: Contract) -> list[str]:
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
        a, b = self._slice(s.a.source, " + warp / 4 * 8192", True), self._slice(s.b.source, "", plain)
        steps, release = s.c_block * WIDTHS[tag] // CONTRACTED, ["if (c_0 > 0) { wgmma_wait<1>(); release(); }"] if stage.inner else []
        if self.promotes(s):
            most, blocks = SHORT // CONTRACTED, self.step // 8
            return [f"{self._each(blocks)} {name}[0][n][e] = 0.0f;", f"{over} {{", "advance();",
                    f"UNROLL for (int c_1 = 0; c_1 < {steps}; c_1 += {most}) {{ float part[{blocks}][4]; wgmma_fence();",
                    f"UNROLL for (int c = c_1; c < imin(c_1 + {most}, {steps}); c++) {call}(flat(part), {a}, {b}, c > c_1);",
                    f"wgmma_commit(); wgmma_wait<0>(); {self._each(blocks)} {name}[0][n][e] += part[n][e];", "}", *release,
                    "}"]  # fmt: skip
        first = "c_0 + c > 0" if stage.inner else "c > 0"
        to = f"sums_{name}" if tag == "i8" else f"{name}[0]"
        return [f"{over} {{", "advance(); wgmma_fence();",
                f"UNROLL for (int c = 0; c < {steps}; c++) {call}(flat({to}), {a}, {b}, {first});", "wgmma_commit();", *release,
                "}"]  # fmt: skip

    def _columns(self, s: Contract) -> list[str]:
        acc = self.names.get("acc", s.dst)
        tag = self._tag(self.staged(s.b.source))
        plain = self.buffer(s.b.source).dims[0] != self.phase.stream
        near = self.in_memory(s.a.source)
        call = f"wgmma_{tag}_{'s' if near else 'r'}s{'' if plain else 't'}_n{8 * s.nv}"
        n, b = self.step * WIDTHS[tag] // CONTRACTED, self._slice(s.b.source, "", plain)
        a = self._slice(s.a.source, " + warp / 4 * 8192", True) if near else f"a_{acc}[c]"
        out = self.rescaled(s)
        if not near:
            out += [f"u32 a_{acc}[{n}][4];",
                    f"UNROLL for (int c = 0; c < {n}; c++) {self._left(s, f'a_{acc}[c]', tag).replace('[m]', '[0]')}"]  # fmt: skip
        if tag in BYTES:
            kind = "int" if tag == "i8" else "float"
            return [*out, f"{kind} part_{acc}[{s.nv}][4];",
                    f"wgmma_fence(); UNROLL for (int c = 0; c < {n}; c++) {call}(flat(part_{acc}), {a}, {b}, c > 0);",
                    f"wgmma_commit(); wgmma_wait<0>(); {self._each(s.nv)} {acc}[0][n][e] += part_{acc}[n][e];"]  # fmt: skip
        return [*out, f"{'barrier_sync(1 + warp / 4, 256); ' if self.turns else ''}wgmma_fence(); "
                f"UNROLL for (int c = 0; c < {n}; c++) {call}(flat({acc}[0]), {a}, {b}, 1);",
                f"wgmma_commit();{'' if self.early else ' wgmma_wait<0>();'}"]  # fmt: skip
