"""A phase on the warpgroup instructions of sm_90a: four warps fetch, the others compute.

The last four warps copy the operands of each step into a ring of stages and announce them at a barrier in shared memory; the
computing warps wait for a stage, read it by `wgmma`, and give it back. Neither side waits for the other but at those barriers,
so that one warpgroup's element-wise work falls into the products of another (as in FlashAttention-3, Shah et al., 2024).
"""

from __future__ import annotations

from .c_expr import Place
from .cuda_expr import CudaNames
from .cuda_mma import FragmentPhase
from .kernel import Contract, Loop, Phase, Stage, statements

PRODUCERS = 128
LEAST = 56  # registers of a producing thread


class WarpgroupPhase(FragmentPhase):
    """Prints one phase with a single loop. The last four warps of the block are the producers."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.consumers = self.place.threads - PRODUCERS
        self.early = False  # the first product of a tile is issued behind the last one of the tile before

    # ---- the ring
    def do_stage(self, s: Stage) -> list[str]:
        """A tile that stays for the whole block: in the first stage's group of copies."""
        self.where[s.dst] = f"sm + {self.shared}"
        self.shared += self.bytes_of(s.dst)
        self.stays = self.shared
        return []

    def copier(self) -> tuple[int, str]:
        return PRODUCERS, f", threadIdx.x - {self.consumers}"

    def do_loop(self, s: Loop) -> list[str]:
        start, depth = self.names.start(s.axis), self.place.stages
        stages, body, skips, blocks, at, head = self.enter(s)
        out = [f"__shared__ u64 barriers[{2 * depth}];", f"const u32 full = smem(barriers), empty = full + {8 * depth};",
               f"if (threadIdx.x == 0) {{ for (int i = 0; i < {depth}; i++) {{ mbarrier_init(full + 8 * i, {PRODUCERS}); "
               f"mbarrier_init(empty + 8 * i, {self.consumers // 32}); }} fence_mbarrier_init(); }}",
               "__syncthreads();", *head]  # fmt: skip
        less, more = self._registers()
        out += [f"if (threadIdx.x >= {self.consumers}) {{", *less, *self._produce(s, stages, blocks, at), "return;", "}"]
        out += [*more, "int step = 0, done = 0; u32 stage = sm; (void)stage;",
                "auto advance = [&]() {",
                f"mbarrier_wait(full + step % {depth} * 8, step / {depth} & 1); stage = {at}; step++;", "};",
                "auto release = [&]() {",
                f"__syncwarp(); if (lane == 0) mbarrier_arrive(empty + done % {depth} * 8); done++;", "};"]  # fmt: skip
        self.at[s.axis] = Place(start)
        tests = self._tests(s, skips, blocks)
        products = [x for x in body if isinstance(x, Contract)]
        whole = blocks == "1" and "continue" not in "\n".join(tests)
        self.early = whole and len(products) == 2 and products[0] is self.score and products[1] is body[-1]
        held, tile = self.tile_registers(body), self.tile(body)
        loop = f"for (int {start} = lo; {start} < hi; {start} += {s.step}) {{"
        if self.early and self.score is not None:
            first = self._issue(self.score)
            out += [*held, "if (lo < hi) {", *first, "wgmma_wait<0>();", "}", loop, *tests, *tile]
            out += [f"if ({start} + {s.step} < hi) {{", *first, "wgmma_wait<1>(); release();", "}", "wgmma_wait<0>();", "}"]
        else:
            out += [loop, *tests, *held, *tile, "release();", "}"]
        del self.at[s.axis]
        self.step = 0
        return out

    def skipped(self, blocks: str) -> str:
        return f"for (int c = 0; c < {blocks}; c++) {{ advance(); release(); }} continue;"

    def _registers(self) -> tuple[list[str], list[str]]:
        """Registers go from the producers to the computing threads, where a block has fewer than these can use."""
        held = 65536 // self.place.threads // 8 * 8
        if held > 240:
            return [], []
        most = (held * self.place.threads - LEAST * PRODUCERS) // self.consumers // 8 * 8
        return [f"registers_less<{LEAST}>();"], [f"registers_more<{min(240, most)}>();"]

    def _produce(self, s: Loop, stages: list[Stage], blocks: str, at: str) -> list[str]:
        """Copies are announced some steps later, when they have landed. Two stages less than the ring has: the computing warps
        may hold one while they wait for the next."""
        depth, lag = self.place.stages, self.place.stages - 2
        stay = [x for x in statements(self.phase.body) if isinstance(x, Stage) and x not in stages]
        announce = f"fence_async(); mbarrier_arrive(full + told % {depth} * 8); told++;"
        return [*(line for x in stay for line in self._copies(x, self.where[x.dst], {})), "int told = 0;",
                "for (int step = 0; step < steps; step++) {",
                f"if (step >= {depth}) mbarrier_wait(empty + step % {depth} * 8, (step / {depth} - 1) & 1);",
                f"const u32 stage = {at};", *self._fetches(s, stages, blocks), "cp_async_commit();",
                f"if (step >= {lag}) {{ cp_async_wait<{lag}>(); {announce} }}", "}",
                f"cp_async_wait<0>(); while (told < steps) {{ {announce} }}"]  # fmt: skip

    # ---- products
    def _slice(self, name: str, rows: str, plain: bool) -> str:
        """The descriptor of 16 elements (block c) of the contracted axis of a tile, which is its columns (plain) or its rows."""
        height, _ = self.shape(name)
        if plain:
            return f"descriptor({self.where[name]} + c / 4 * {height * 128} + c % 4 * 32{rows}, 16)"
        return f"descriptor({self.where[name]} + c * 2048, {height * 128})"

    def _product(self, s: Contract) -> list[str]:
        return self._scores(s) if self.early else [*self._issue(s), "wgmma_wait<0>();", *self._scores(s)]

    def _issue(self, s: Contract) -> list[str]:
        """Start the product, block by block of the inner axis."""
        name, stage = self.names.get("reg", s.dst), self.staged(s.b.source)
        plain = self.buffer(s.b.source).dims[0] != s.c
        call = f"wgmma_{self._tag(stage)}_{'ss' if plain else 'sst'}_n{self.step}"
        over = f"for (int c_0 = 0; c_0 < (int){self.names.extent(s.c)}; c_0 += {s.c_block})" if stage.inner else ""
        first = "c_0 + c > 0" if stage.inner else "c > 0"
        a = self._slice(s.a.source, " + warp / 4 * 8192", True)
        return [f"{over} {{", "advance(); wgmma_fence();",
                f"UNROLL for (int c = 0; c < {s.c_block // 16}; c++) "
                f"{call}(flat({name}[0]), {a}, {self._slice(s.b.source, '', plain)}, {first});", "wgmma_commit();",
                *(["if (c_0 > 0) { wgmma_wait<1>(); release(); }"] if stage.inner else []), "}"]  # fmt: skip

    def _columns(self, s: Contract) -> list[str]:
        acc, tile = self.names.get("acc", s.dst), self.names.get("reg", s.a.source)
        tag = self._tag(self.staged(s.b.source))
        plain = self.buffer(s.b.source).dims[0] != self.phase.stream
        call = f"wgmma_{tag}_{'rs' if plain else 'rst'}_n{8 * s.nv}"
        n = self.step // 16
        return [*self.rescaled(s), f"u32 a_{acc}[{n}][4];",
                f"UNROLL for (int c = 0; c < {n}; c++) UNROLL for (int i = 0; i < 4; i++) a_{acc}[c][i] = "
                f"pack_{tag}({tile}[0][2 * c + i / 2][i % 2 * 2], {tile}[0][2 * c + i / 2][i % 2 * 2 + 1]);",
                f"wgmma_fence(); UNROLL for (int c = 0; c < {n}; c++) "
                f"{call}(flat({acc}[0]), a_{acc}[c], {self._slice(s.b.source, '', plain)}, 1);",
                f"wgmma_commit();{'' if self.early else ' wgmma_wait<0>();'}"]  # fmt: skip
