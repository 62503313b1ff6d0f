"""The ring of stages between the warps that copy and the warpgroups that compute.

The last warps of the block copy the operands of each step into a ring of stages and announce them at a barrier in shared memory;
the computing warps wait for a stage, read it, and give it back. Neither side waits for the other but at those barriers.
"""

from __future__ import annotations

from .cuda_expr import CudaNames
from .cuda_mma import FragmentPhase
from .kernel import Loop, Phase, Stage, statements

PRODUCERS = 128
LEAST = 56  # registers of a producing thread


class RingPhase(FragmentPhase):
    """Prints the copies of one phase with a single loop. The last four warps of the block are the producers."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.consumers = self.place.threads - PRODUCERS

    def do_stage(self, s: Stage) -> list[str]:
        """A tile that stays for the whole block: in the first stage's group of copies."""
        self.where[s.dst] = f"sm + {self.shared}"
        self.shared += self.bytes_of(s.dst)
        self.stays = self.shared
        return []

    def copier(self) -> tuple[int, str]:
        return PRODUCERS, f", threadIdx.x - {self.consumers}"

    def ring(self, s: Loop, stages: list[Stage], blocks: str, at: str) -> list[str]:
        """The barriers, all that the producers do, and what the computing threads do at the ends of a stage. stages, blocks, at:
        as `enter` gives them."""
        depth = self.place.stages
        less, more = self._registers()
        return [f"__shared__ u64 barriers[{2 * depth}];", f"const u32 full = smem(barriers), empty = full + {8 * depth};",
                f"if (threadIdx.x == 0) {{ for (int i = 0; i < {depth}; i++) {{ mbarrier_init(full + 8 * i, {PRODUCERS}); "
                f"mbarrier_init(empty + 8 * i, {self.consumers // 32}); }} fence_mbarrier_init(); }}",
                "__syncthreads();",
                f"if (threadIdx.x >= {self.consumers}) {{", *less, *self._produce(s, stages, blocks, at), "return;", "}",
                *more, "int step = 0, done = 0; u32 stage = sm; (void)stage;",
                "auto advance = [&]() {",
                f"mbarrier_wait(full + step % {depth} * 8, step / {depth} & 1); stage = {at}; step++;", "};",
                "auto release = [&]() {",
                f"__syncwarp(); if (lane == 0) mbarrier_arrive(empty + done % {depth} * 8); done++;", "};"]  # fmt: skip

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
