"""The ring of stages between the warps that copy and the warpgroups that compute.

The last warps of the block bring the operands of each step into a ring of stages; the computing warps wait for a stage, read it,
and give it back. Neither side waits for the other but at barriers in shared memory, two a stage. Tiles that a tensor map describes
are fetched by the copy engine, which one thread asks and which announces them itself; the others by all threads of the copying
warps, with cp.async, which announce them when they have landed. The products take no notice of the low bits of tf32 operands: the
engine rounds them on their way, and the copying warps where they lie.
"""

from __future__ import annotations

from redfuser_eq.errors import IRError
from redfuser_eq.gpu import REGISTERS

from .cuda_expr import CudaNames
from .cuda_mma import FragmentPhase
from .dtypes import WIDTHS
from .kernel import Contract, Loop, Phase, Stage, statements
from .launch import MapArg

LEAST, FEW = 56, 24  # registers of a copying thread where it gives some away, and of one that only asks the engine
PANEL = 128  # bytes of a row of a panel: what the swizzle permutes


class RingPhase(FragmentPhase):
    """Prints the copies of one phase with a single loop. maps: the tensor maps that the kernel is given, by parameter."""

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.producers = 32 * self.place.producers
        self.consumers = self.place.threads - self.producers
        self.maps: dict[str, MapArg] = {}

    def do_stage(self, s: Stage) -> list[str]:
        """A tile that stays for the whole block: it comes with the first stage."""
        self.where[s.dst] = f"sm + {self.shared}"
        self.shared += self.bytes_of(s.dst)
        self.stays = self.shared
        return []

    def copier(self) -> tuple[int, str]:
        return self.producers, f", threadIdx.x - {self.consumers}"

    def ring(self, s: Loop, stages: list[Stage], blocks: str, at: str) -> list[str]:
        """The barriers, all that the producers do, and what the computing threads do at the ends of a stage. stages, blocks, at:
        as `enter` gives them."""
        depth = self.place.stages
        less, more = self._registers()
        every = [x for x in statements(self.phase.body) if isinstance(x, Stage)]
        arrivals = any(x.mapped for x in every) + self.producers * any(not x.mapped for x in every)
        return [f"__shared__ u64 barriers[{2 * depth}];", f"const u32 full = smem(barriers), empty = full + {8 * depth};",
                f"if (threadIdx.x == 0) {{ for (int i = 0; i < {depth}; i++) {{ mbarrier_init(full + 8 * i, {arrivals}); "
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
        held = REGISTERS // self.place.threads // 8 * 8
        if held > 240 or self.producers % 128:
            return [], []
        staged = [x for x in statements(self.phase.body) if isinstance(x, Stage)]
        least = FEW if all(x.mapped for x in staged) else LEAST
        most = (held * self.place.threads - least * self.producers) // self.consumers // 8 * 8
        return [f"registers_less<{least}>();"], [f"registers_more<{min(240, most)}>();"]

    def _produce(self, s: Loop, stages: list[Stage], blocks: str, at: str) -> list[str]:
        """Copies by threads are announced some steps later. Two stages less than the ring has: the computing warps may hold one
        while they wait for the next."""
        depth, lag = self.place.stages, self.place.stages - 2
        stay = [x for x in statements(self.phase.body) if isinstance(x, Stage) and x not in stages]
        asked = [x for x in stages if x.mapped]
        copied = [x for x in stages if not x.mapped]
        kept = [x for x in stay if not x.mapped]
        engine = self._ask(s, asked, [x for x in stay if x.mapped], blocks)
        first = f"if (threadIdx.x == {self.consumers})"
        ready = [f"if (step >= {depth}) mbarrier_wait(empty + step % {depth} * 8, (step / {depth} - 1) & 1);", f"const u32 stage = {at};"]
        if not copied and not kept:
            return [f"{first} for (int step = 0; step < steps; step++) {{", *ready, *engine, "}"]
        fetches = self._fetches(s, copied, blocks) if copied else []
        return [*(line for x in kept for line in self._copies(x, self.where[x.dst], {})),
                f"for (int ahead = 0; ahead < steps + {lag}; ahead++) {{", "if (ahead < steps) {", "const int step = ahead;", *ready,
                *([f"{first} {{", *engine, "}"] if engine else []), *fetches, "}",
                f"cp_async_commit(); const int step = ahead - {lag}; if (step < 0) continue;", f"cp_async_wait<{lag}>();",
                *self._rounded(copied, kept, blocks, at), f"fence_async(); mbarrier_arrive(full + step % {depth} * 8);", "}",
                "cp_async_wait<0>();"]  # fmt: skip

    def _rounded(self, copied: list[Stage], kept: list[Stage], blocks: str, at: str) -> list[str]:
        """Round what has landed of a step, where it is multiplied as tf32."""
        last = f"if (step % {blocks} == {blocks} - 1) " if blocks != "1" else ""
        when = [(x, "if (step == 0) ") for x in kept] + [(x, "" if x.inner else last) for x in copied]
        lines = [f"{test}{self._rounding(x)}" for x, test in when if self._tag(x) == "tf32"]
        if not lines:
            return []
        return [f"const u32 stage = {at}; (void)stage; barrier_sync(3, {self.producers});", *lines]

    def _rounding(self, s: Stage) -> str:
        """Beside a left operand in registers the right one takes the order of these."""
        products = [x for x in statements(self.phase.body) if isinstance(x, Contract)]
        turned = any(x.b.source == s.dst and x.start == "state" for x in products)
        if turned and any(s.dst in (x.a.source, x.b.source) and self.in_memory(x.a.source) for x in products):
            raise IRError(f"{s.dst!r} is multiplied as tf32 by what is in registers and by what is in memory")
        size = f"<{self.producers}, {self.bytes_of(s.dst) // PANEL}>"
        return f"round_{'evens' if turned else 'cells'}{size}({self.where[s.dst]}, threadIdx.x - {self.consumers});"

    # ---- the copy engine
    def _ask(self, s: Loop, asked: list[Stage], stay: list[Stage], blocks: str) -> list[str]:
        """One thread announces the bytes of a step and asks for them: those of its stage and, at first, of what stays."""
        if not asked and not stay:
            return []
        many = blocks != "1"
        always = sum(self.bytes_of(x.dst) for x in asked if x.inner or not many)
        last = sum(self.bytes_of(x.dst) for x in asked if many and not x.inner)
        first = sum(self.bytes_of(x.dst) for x in stay)
        terms = [f"(step == 0 ? {first} : 0)"] * (first > 0) + [f"(step % {blocks} == {blocks} - 1 ? {last} : 0)"] * (last > 0)
        boxes = [line for x in stay for line in self._copies(x, self.where[x.dst], {})]
        return [f"const u32 bar = full + step % {self.place.stages} * 8;",
                f"mbarrier_expect(bar, {' + '.join([str(always), *terms])});",
                *(["if (step == 0) {", *boxes, "}"] if boxes else []), *(self._fetches(s, asked, blocks) if asked else [])]  # fmt: skip

    def _copies(self, s: Stage, to: str, starts: dict[str, str]) -> list[str]:
        return self._box(s, to, starts) if s.mapped else super()._copies(s, to, starts)

    def _box(self, s: Stage, to: str, starts: dict[str, str]) -> list[str]:
        """Ask for a tile, panel by panel. Dimensions of the map: the tile's columns, its rows, and every other axis."""
        array, buffer = self.names.k.array(s.source.source), self.names.k.buffer(s.source.source)
        found = array or buffer
        if found is None:
            raise IRError(f"{s.source.source!r} is nothing that could be staged")
        first, last = self.buffer(s.dst).dims
        (rows, _), size = self.shape(s.dst), WIDTHS[found.dtype]
        places = {a: d for d, a in enumerate(s.source.dims) if array is None or array.strides[d] != 0}
        axes = [last, first, *(a for a in reversed(places) if a not in (first, last))]
        box = (PANEL // size, rows, *(1 for _ in axes[2:]))
        name = f"map_{s.dst}"
        self.maps[name] = (
            "map",
            ("in" if array else "buffer", found.name),
            tuple((a, places[a]) for a in axes),
            box,
            size,
            s.dtype == "tf32",
        )
        at = [starts.get(a, self.at[a].start if a in self.at else "0") for a in axes]
        panels = self.bytes_of(s.dst) // (rows * PANEL)
        return [
            f"tma_load{len(axes)}({to} + {p * rows * PANEL}, &{name}, {', '.join([f'{at[0]} + {p * box[0]}', *at[1:]])}, bar);"
            for p in range(panels)
        ]
