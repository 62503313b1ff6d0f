"""A phase on tensor cores as the body of a CUDA kernel: tiles in fragments, operands through shared memory, one flat pipeline.

The steps of a loop are (tile of the stream, block of the inner axis). Each step waits for its operands at one barrier, starts the
copies for a step a few ahead into the buffer that the barrier has just freed, and computes.
"""

from __future__ import annotations

from redfuser_eq.errors import IRError
from redfuser_eq.expr import Expr, Load, nodes

from .c_expr import Place, Scope
from .cuda_expr import CudaNames
from .cuda_fragment import falls_away, multiplied
from .cuda_parts import PartStates
from .dtypes import BYTES, WIDTHS
from .kernel import ROW, SEGMENT, Bound, Buffer, Contract, Loop, Operand, Phase, Skip, Stage, Stmt, Sweep, statements

CONTRACTED = 32  # bytes of a row of an operand that a matrix instruction takes
SHORT = 128  # elements of e4m3 that tensor cores may add up by themselves, in 14 bits, before the sum goes to a float32 one


class FragmentPhase(PartStates):
    """Prints one phase. shared: bytes of dynamic shared memory, known after `body`. per_block: grid points of a block."""

    per_block = 1

    def __init__(self, names: CudaNames, phase: Phase):
        super().__init__(names, phase)
        self.stays = 0
        self.where: dict[str, str] = {}  # text of the address of a staged tile
        self.loops = 0
        self.blank = ""  # text of a score past the end, where it is read without a test

    # ---- sizes
    def buffer(self, name: str) -> Buffer:
        b = self.names.k.buffer(name)
        if b is None:
            raise IRError(f"nothing in the kernel is called {name!r}")
        return b

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a staged tile."""
        rows, columns = (s.value for s in self.buffer(name).sizes)
        return rows, columns

    def bytes_of(self, name: str) -> int:
        rows, columns = self.shape(name)
        return rows * 128 * -(-columns * self.width(name) // 128)

    def width(self, name: str) -> int:
        """Bytes of an element of a staged tile."""
        return WIDTHS[self._tag(self.staged(name))]

    def column_blocks(self, d: str) -> int:
        return next(s.nv for s in statements(self.phase.body) if isinstance(s, Contract) and s.j == d)

    # ---- the whole
    def body(self) -> list[str]:
        """The body of the kernel, in which extents, strides and arrays have their names."""
        head = ["const int lane = threadIdx.x % 32, warp = threadIdx.x / 32; (void)lane; (void)warp;", *self._grid()]
        if self.pieces > 1:
            head.append(f"const int part = warp / {self.bands}, band = warp % {self.bands}; (void)band;")
        fragments = [f"float {self.names.get('reg', b.name)}[{self.rows}];" for b in self._row_buffers()]
        body = [*self.declared(), *fragments, *self.block(self.phase.body)]
        text = "\n".join(body)
        staged = ["extern __shared__ __align__(1024) unsigned char dynamic[];", "const u32 sm = smem(dynamic);"] if self.shared else []
        return [*head, *staged, *[x for x in self._alignments() if x.split()[2] in text], *body]

    def _row_buffers(self) -> list[Buffer]:
        used = {b for s in statements(self.phase.body) for b, _, _ in getattr(s, "factors", ())}
        return [self.buffer(n) for n in sorted(used)]

    def _grid(self) -> list[str]:
        """Which tile a block is: the grid axes, the last one fastest; where tiles differ in cost, the later ones first."""
        out = ["u32 rest = blockIdx.x; (void)rest;"]
        for g in reversed(self.phase.grid):
            if g.axis == SEGMENT:
                index, n, stream = self.names.var(SEGMENT), self.names.extent(SEGMENT), self.names.extent(self.phase.stream)
                out += [f"const int {index} = rest % (u32){n}; rest /= (u32){n};", f"const int segment_from = {index} * {g.step};",
                        f"const int segment_to = imin((int){stream}, segment_from + {g.step});"]  # fmt: skip
                self.at[SEGMENT] = Place(index)
                continue
            if g.axis == ROW:
                out.append(f"const int {self.names.start(ROW)} = 0, {self.row_count} = 1; (void){self.names.start(ROW)};")
                self.at[ROW] = Place(self.names.start(ROW))
                continue
            start, n = self.names.start(g.axis), f"(u32){self.names.extent(g.axis)}"
            blocks = self.names.fresh("blocks")
            out.append(f"const u32 {blocks} = ({n} + {g.step - 1}) / {g.step};")
            index = f"rest % {blocks}"
            if g.axis == self.phase.row and self.phase.shared_counter:
                index = f"({blocks} - 1 - rest % {blocks})"
            out.append(f"const int {start} = {index} * {g.step}; rest /= {blocks};")
            self.at[g.axis] = Place(start)
            if g.axis == self.phase.row:
                out.append(f"const int {self.row_count} = imin({g.step}, (int){self.names.extent(g.axis)} - {start});")
        return out

    def _alignments(self) -> list[str]:
        """Whether every row of an operand starts at a multiple of 16 bytes."""
        out = []
        for s in statements(self.phase.body):
            if isinstance(s, Stage):
                _, name, steps, tag = self.source(s)
                odd = " | ".join([f"(i64){name}", *(f"{x} * {WIDTHS[tag]}" for x in steps if x not in ("0", "1"))])
                out.append(f"const bool aligned_{name} = (({odd}) & 15) == 0;")
        return list(dict.fromkeys(out))

    def source(self, s: Stage) -> tuple[tuple[str, ...], str, list[str], str]:
        """(axes, text of the address, strides, dtype tag) of what is staged."""
        found = self.names.lies(s.source.source)
        if found is None:
            raise IRError(f"{s.source.source!r} is nothing that could be staged")
        return found

    def block(self, body: tuple[Stmt, ...]) -> list[str]:
        out: list[str] = []
        for s in body:
            out += getattr(self, "do_" + type(s).__name__.lower())(s)
        return out

    # ---- staging
    def do_stage(self, s: Stage) -> list[str]:
        """A tile that stays for the whole block; its copies are in the first group of the loop that follows."""
        self.where[s.dst] = f"sm + {self.shared}"
        self.shared += self.bytes_of(s.dst)
        self.stays = self.shared
        return self._copies(s, self.where[s.dst], {})

    def _copies(self, s: Stage, to: str, starts: dict[str, str]) -> list[str]:
        """Start the copies of a tile. starts: where axes begin that the step moves along."""
        _, name, strides, own = self.source(s)
        first, last = self.buffer(s.dst).dims
        rows, columns = self.shape(s.dst)
        offsets, steps = [], {ROW: "0", **dict(zip(s.source.dims, strides, strict=True))}
        for axis, step in steps.items():
            start = starts.get(axis, self.at[axis].start if axis in self.at else "0")
            if start != "0" and step != "0":
                offsets.append(start if step == "1" else f"{start} * {step}")
        at = " + ".join([name, *offsets])
        left = [self._rest(axis, starts) for axis in (first, last)]
        threads, thread = self.copier()
        each = WIDTHS[self._tag(s)]
        size = f"<{threads}, {rows}, {columns * each // 16}>"
        if s.dtype not in ("", own, "tf32"):
            get = {"e4m3": "from_e4m3(x)", "i8": "(float)(signed char)x"}[own]
            turns = f"[](u8 x) {{ return {get}; }}, [](float a, float b) {{ return pack_{s.dtype}(a, b); }}"
            return [f"stage_wider{size}({to}, {at}, {steps[first]}, {steps[last]}, {left[0]}, {left[1]}, {turns}{thread});"]
        at = at if each == 2 else f"(const u{8 * each} *)({at})"
        plain = f"stage_plain{size}({to}, {at}, {steps[first]}, {steps[last]}, {left[0]}, {left[1]}{thread});"
        if steps[last] != "1":
            return [plain]
        whole = f"stage_async{size}({to}, {at}, {steps[first]} * {each}, {left[0]}, ({left[1]}) * {each}{thread});"
        return [f"if (aligned_{name}) {whole}", f"else {plain}"]

    def copier(self) -> tuple[int, str]:
        """The threads that copy, and the last argument that says which one this is."""
        return self.place.threads, ""

    def _rest(self, axis: str, starts: dict[str, str]) -> str:
        """Elements from the start of the tile to the end of the axis."""
        start = starts.get(axis, self.at[axis].start if axis in self.at else "0")
        n = f"(int){self.names.extent(axis)}"
        return n if start == "0" else f"{n} - {start}"

    # ---- loops
    def do_loop(self, s: Loop) -> list[str]:
        self.loops += 1
        start, depth = self.names.start(s.axis), self.place.stages
        stages, body, skips, blocks, at, head = self.enter(s)
        parts = self.place.parts
        wait = f"barrier_sync(1, {self.place.threads});" if parts > 1 else "__syncthreads();"  # by parts, wherever each of them is
        out = ["__syncthreads();"] if self.loops > 1 else []
        out += ["{", *head, f"auto fetch = [&](int step) {{ const u32 stage = {at}; (void)stage;",
                *self._fetches(s, stages, blocks), "};"]  # fmt: skip
        out += [x for n in range(depth - 1) for x in (f"if ({n} < steps) fetch({n});", "cp_async_commit();")]
        out += ["int step = 0; u32 stage = sm; (void)stage;",
                f"auto advance = [&]() {{ cp_async_wait<{depth - 2}>(); {wait}",
                f"if (step + {depth - 1} < steps) fetch(step + {depth - 1});",
                f"cp_async_commit(); stage = {at}; step++; }};"]  # fmt: skip
        self.at[s.axis] = Place(start)
        tile = f"tile_{start}" if parts > 1 else start
        out.append(f"for (int {tile} = lo; {tile} < hi; {tile} += {s.step}) {{")
        out += [f"const int {start} = {tile} + part * {self.step};"] if parts > 1 else []
        out += self._tests(s, skips, blocks)
        out += [*self.tile_registers(body), *self.tile(body)]
        del self.at[s.axis]
        self.step = 0
        return [*out, "}", "cp_async_wait<0>();", "}"]

    def enter(self, s: Loop) -> tuple[list[Stage], tuple[Stmt, ...], list[Skip], str, str, list[str]]:
        """Give the tiles of a loop their places in shared memory: what is copied, the other statements, the masks, how many blocks
        the inner axis has, where the tiles of a step lie, and the lines that count the steps."""
        self.step = s.step // self.pieces
        stages = [x for x in s.body if isinstance(x, Stage)]
        body = tuple(x for x in s.body if not isinstance(x, (Stage, Skip)))
        skips = [x for x in s.body if isinstance(x, Skip)]
        self.score = next((x for x in body if isinstance(x, Contract) and x.start == "zero"), None)
        blocks, depth, size = self.inner_blocks(stages), self.place.stages, 0
        for x in stages:
            self.where[x.dst] = f"stage + {size}"
            size += self.bytes_of(x.dst)
        self.shared = max(self.shared, self.stays + depth * size)
        lo, hi, limits = self._limits(s, skips)
        count = f"const int lo = {lo}, hi = {hi}, steps = imax(0, (hi - lo + {s.step - 1}) / {s.step}) * {blocks};"
        return stages, body, skips, blocks, f"sm + {self.stays} + step % {depth} * {size}", [*limits, count]

    def inner_blocks(self, stages: list[Stage]) -> str:
        """Text of the number of blocks of the inner axis."""
        if self.score is None or not any(x.inner for x in stages):
            return "1"
        return f"(((int){self.names.extent(self.score.c)} + {self.score.c_block - 1}) / {self.score.c_block})"

    def _fetches(self, s: Loop, stages: list[Stage], blocks: str) -> list[str]:
        out: list[str] = []
        starts = {s.axis: "tile_0"}
        inner = next((x.inner for x in stages if x.inner), "")
        many = blocks != "1"
        out.append(f"const int tile_0 = lo + step{f' / {blocks}' if many else ''} * {s.step}; (void)tile_0;")
        if many and self.score is not None:
            out.append(f"const int inner_0 = step % {blocks} * {self.score.c_block}; (void)inner_0;")
            starts[inner] = "inner_0"
        for x in stages:
            lines = self._copies(x, self.where[x.dst], starts if x.inner else {s.axis: "tile_0"})
            out += lines if x.inner or not many else [f"if (step % {blocks} == {blocks} - 1) {{", *lines, "}"]
        return out

    def _limits(self, s: Loop, skips: list[Skip]) -> tuple[str, str, list[str]]:
        """The first and last element of the stream that an affine mask leaves to some row of the tile."""
        cut = any(g.axis == SEGMENT for g in self.phase.grid) and s.axis == self.phase.stream
        lo, hi = ("segment_from", "segment_to") if cut else ("0", f"(int){self.names.extent(s.axis)}")
        out: list[str] = []
        for n, x in enumerate(skips):
            ready = " && ".join(f"{self.names.get('buf', f)}[0] != 0" for f in x.finite) or "true"
            out.append(f"const bool ready{n} = {ready}; (void)ready{n};")
            for b in x.bounds:
                terms = dict(b.terms)
                factor = terms.pop(s.axis, 0)
                most = self._corner(Bound(tuple(terms.items()), b.constant), True)
                if factor == -1:
                    hi = f"imin({hi}, ready{n} ? {most} + 1 : {hi})"
                elif factor == 1:
                    lo = f"imax({lo}, ready{n} ? -({most}) / {s.step} * {s.step} : {lo})"
        return lo, hi, out

    def _corner(self, b: Bound, high: bool, whole: bool = False) -> str:
        """The largest or smallest value of an affine expression on the tile; whole: that of all warpgroups that share rows."""
        out = [str(b.constant)]
        for axis, factor in b.terms:
            whole = whole and axis == self.phase.stream
            start = self.tile_start() if whole else self.at[axis].start
            step = self.step * self.place.across if whole else self.step
            count = self.row_count if axis == self.phase.row else str(step) if axis == self.phase.stream else ""
            last = f"({start} + {count} - 1)" if count else start
            out.append(f"{factor} * {last if (factor > 0) == high else start}")
        return " + ".join(out)

    def _tests(self, s: Loop, skips: list[Skip], blocks: str) -> list[str]:
        """Leave tiles on which a mask is false everywhere; `cut`: the others must be tested element by element."""
        start = self.names.start(s.axis)
        some, none = [f"{start} + {self.step} > {self.names.extent(s.axis)}"], [f"{start} >= hi"] if self.place.parts > 1 else []
        for n, x in enumerate(skips):
            some += [f"{self._corner(b, False)} < 0" for b in x.bounds]
            empty = [f"{self._corner(b, True, True)} < 0" for b in x.bounds if abs(dict(b.terms).get(s.axis, 0)) != 1]
            if x.summary:
                cell = self._summary(x)
                empty.append(f"{cell} == 0")
                some.append(f"{cell} != 2")
            none += [f"(ready{n} && ({' || '.join(empty)}))"] if empty else []
        out = [f"if ({' || '.join(none)}) {{ {self.skipped(blocks)} }}"] if none else []
        return [*out, f"const bool cut = {' || '.join(some)}; (void)cut;"]

    def skipped(self, blocks: str) -> str:
        """What a tile takes part in that is left out."""
        return f"for (int c = 0; c < {blocks}; c++) advance(); continue;"

    def _summary(self, s: Skip) -> str:
        b = self.buffer(s.summary)
        at = [f"{self.at[axis].start} / {step} * {self.names.step(b, d)}" for d, (axis, step) in enumerate(s.tiles)]
        return f"{self.names.get('buf', s.summary)}[{' + '.join(at) or '0'}]"

    # ---- a tile
    def tile_registers(self, body: tuple[Stmt, ...]) -> list[str]:
        """Declarations of what a tile holds in fragments: buffers over its elements, and staged operands that are read by element."""
        own, shape = (self.phase.row, self.phase.stream), f"[{self.place.fragments}][{self.step // 8}][4]"
        staged = {x.dst for x in statements(self.phase.body) if isinstance(x, Stage)}
        tiles = [b.name for b in self.names.k.buffers if not b.shared and b.dims == own and self._touches(body, b.name)]
        tiles += [x for x in sorted(staged) if x not in tiles and self._reads(body, x)]
        self.cells = {x: f"{self.names.get('reg', x)}[h / 2][u / 2][h % 2 * 2 + u % 2]" for x in tiles}
        self.held = [x for x in tiles if x in staged]
        self.total = self.score is not None and falls_away(body, self.score)
        self.blank = "-INF" if self.total else "0.0f" if self.score is not None and multiplied(body, self.score.dst) else ""
        for x in body:
            if isinstance(x, Contract) and x.start == "state" and not self._reads(body, x.a.source):
                tag = self._tag(self.staged(x.b.source))
                self.rounding[x.a.source] = tag if self.rounding.get(x.a.source, tag) == tag else ""
        return [f"float {self.names.get('reg', x)}{shape};" for x in tiles]

    def tile(self, body: tuple[Stmt, ...]) -> list[str]:
        """What is done with a tile."""
        out = [] if self.score is not None else ["advance();"]
        for name in self.held:
            out += self._unpack(name, self.staged(name))
        return [*out, *self.block(body)]

    def _reads(self, body: tuple[Stmt, ...], name: str) -> bool:
        exprs = [e for s in body if isinstance(s, Sweep) for e in (*(f.lift for f in s.folds), *(e for _, e in s.stores))]
        exprs += [e for s in body if isinstance(s, Contract) for e in (s.score, *(f.lift for f in s.folds)) if e is not None]
        return any(isinstance(e, Load) and e.source == name for e in nodes(*exprs))

    def _touches(self, body: tuple[Stmt, ...], name: str) -> bool:
        stored = {t for s in body if isinstance(s, Sweep) for t, _ in s.stores} | {s.dst for s in body if isinstance(s, Contract)}
        return name in stored or self._reads(body, name)

    def _unpack(self, name: str, s: Stage) -> list[str]:
        """A staged tile of 16-bit elements as numbers, each where its row and its element of the stream are held."""
        tag, f = self._tag(s), self.names.get("reg", name)
        if self.place.run == 4:
            return self._unpack_runs(name, tag, f)
        return [f"UNROLL for (int c = 0; c < {self.step // 16}; c++) UNROLL for (int m = 0; m < {self.place.fragments}; m++) {{",
                f"u32 a[4]; {self._left_fragment(name, self.phase.row, self._own('c'))}",
                "UNROLL for (int i = 0; i < 4; i++) {",
                f"{f}[m][2 * c + i / 2][i % 2 * 2] = from_{tag}((u16)a[i]);",
                f"{f}[m][2 * c + i / 2][i % 2 * 2 + 1] = from_{tag}((u16)(a[i] >> 16));", "}", "}"]  # fmt: skip

    def _unpack_runs(self, name: str, tag: str, f: str) -> list[str]:
        """The same where a thread holds four neighbours."""
        rows, _ = self.shape(name)
        row = f"warp * {16 * self.place.fragments} + h / 2 * 16 + h % 2 * 8 + lane / 4"
        out = [f"UNROLL for (int h = 0; h < {self.rows}; h++) UNROLL for (int u = 0; u < {self.step // 4}; u += 4) {{"]
        if self.buffer(name).dims[0] == self.phase.row:
            at = f"cell({self.where[name]}, {rows}, {row}, u / 2 + lane % 4 / 2) + lane % 2 * 8"
            out += [f"u32 r[2]; shared_pairs(r, {at});",
                    f"UNROLL for (int e = 0; e < 4; e++) {f}[h / 2][u / 2 + e / 2][h % 2 * 2 + e % 2] = "
                    f"from_{tag}((u16)(r[e / 2] >> e % 2 * 16));"]  # fmt: skip
        else:
            at = f"cell({self.where[name]}, {rows}, u * 4 + lane % 4 * 4 + e, ({row}) / 8) + ({row}) % 8 * 2"
            out.append(f"UNROLL for (int e = 0; e < 4; e++) {f}[h / 2][u / 2 + e / 2][h % 2 * 2 + e % 2] = from_{tag}(shared_one({at}));")
        return [*out, "}"]

    def staged(self, name: str) -> Stage:
        return next(x for x in statements(self.phase.body) if isinstance(x, Stage) and x.dst == name)

    def _tag(self, s: Stage) -> str:
        return s.dtype or self.source(s)[3]

    # ---- products
    def _own(self, block: str) -> str:
        """Text of a block of 16 elements of the stream, counted from the start of the block's whole tile."""
        return f"({block} + part * {self.step // 16})" if self.pieces > 1 else block

    def _left_fragment(self, name: str, i: str, c: str = "c") -> str:
        """a = 16 rows of block m x 32 bytes of block c, of a tile with either axis contiguous (of 16-bit elements)."""
        rows, _ = self.shape(name)
        first = f"{self.band} * {16 * self.place.fragments} + m * 16"
        if self.buffer(name).dims[0] == i:
            return f"ldmatrix(a, cell({self.where[name]}, {rows}, {first} + lane % 16, {c} * 2 + lane / 16));"
        return f"ldmatrix_t(a, cell({self.where[name]}, {rows}, {c} * 16 + lane / 16 * 8 + lane % 8, ({first}) / 8 + lane / 8 % 2));"

    def _right_fragment(self, b: Operand, c: str) -> str:
        """b = 32 bytes of block c x 16 columns of block n, as two fragments of eight columns."""
        name = b.source
        rows, _ = self.shape(name)
        at, n = (self._own("c"), "n") if c == self.phase.stream else ("c", self._own("n"))
        if self.buffer(name).dims[0] == c:
            first = f"{b.start // 8} + " if b.start else ""
            return f"ldmatrix_t(b, cell({self.where[name]}, {rows}, {at} * 16 + lane % 16, {first}{n} * 2 + lane / 16));"
        first = f"{b.start} + " if b.start else ""
        return f"ldmatrix(b, cell({self.where[name]}, {rows}, {first}{n} * 16 + lane % 8 + lane / 16 * 8, {at} * 2 + lane / 8 % 2));"

    def _right_words(self, name: str, c: str) -> str:
        """The same of 32-bit elements, in the order in which accumulators hold the left operand: a lane's two elements of eight are
        neighbours there, and four apart in a fragment."""
        rows, _ = self.shape(name)
        k, column = "c * 8 + lane % 4 * 2 + i % 2", "n * 16 + i / 2 * 8 + lane / 4"
        r, e = (k, column) if self.buffer(name).dims[0] == c else (column, k)
        return f"UNROLL for (int i = 0; i < 4; i++) b[i] = shared_word(cell({self.where[name]}, {rows}, {r}, ({e}) / 4) + ({e}) % 4 * 4);"

    def do_contract(self, s: Contract) -> list[str]:
        return self._product(s) if s.start == "zero" else self._columns(s)

    def _multiply(self, to: str, tag: str, b: Operand, c: str, blocks: int) -> list[str]:
        m = self.place.fragments
        right = self._right_words(b.source, c) if tag == "tf32" and c == self.phase.stream else self._right_fragment(b, c)
        right += " all_tf32(b);" if tag == "tf32" else ""
        return [f"UNROLL for (int n = 0; n < {blocks}; n++) {{ u32 b[4]; {right}",
                f"UNROLL for (int m = 0; m < {m}; m++) {{ mma_{tag}({to}[m][2 * n], a{'[m]'}, b[0], b[1]); "
                f"mma_{tag}({to}[m][2 * n + 1], a[m], b[2], b[3]); }}", "}"]  # fmt: skip

    def _product(self, s: Contract) -> list[str]:
        """The tile = rows x stream over the inner axis, block by block, and the score of it."""
        name, m, n8 = self.names.get("reg", s.dst), self.place.fragments, self.step // 8
        stage = self.staged(s.b.source)
        tag = self._tag(stage)
        over = f"for (int c_0 = 0; c_0 < (int){self.names.extent(s.c)}; c_0 += {s.c_block})" if stage.inner else ""
        cells = f"UNROLL for (int m = 0; m < {m}; m++) UNROLL for (int n = 0; n < {n8}; n++) UNROLL for (int e = 0; e < 4; e++)"
        steps, most = s.c_block * WIDTHS[tag] // CONTRACTED, SHORT // CONTRACTED
        short = self.promotes(s)
        kind, to = ("int" if tag == "i8" else "float"), "part" if short or tag == "i8" else name
        part = [f"{kind} part[{m}][{n8}][4]; {cells} part[m][n][e] = 0;"]
        out = [f"{cells} {name}[m][n][e] = 0.0f;", *(part if tag == "i8" else []), f"{over} {{", "advance();"]
        out += [f"UNROLL for (int c_1 = 0; c_1 < {steps}; c_1 += {most}) {{", *part] if short else []
        out += [f"UNROLL for (int c = {'c_1' if short else 0}; c < {f'imin(c_1 + {most}, {steps})' if short else steps}; c++) {{",
                f"u32 a[{m}][4]; UNROLL for (int m = 0; m < {m}; m++) {{ "
                f"{self._left_fragment(s.a.source, s.i).replace('(a,', '(a[m],')}{' all_tf32(a[m]);' if tag == 'tf32' else ''} }}",
                *self._multiply(to, tag, s.b, s.c, n8 // 2), "}"]  # fmt: skip
        out += [f"{cells} {name}[m][n][e] += part[m][n][e];", "}"] if short else []
        out += ["}", *([f"{cells} {name}[m][n][e] = (float)part[m][n][e];"] if tag == "i8" else [])]
        return out + self._scores(s)

    def promotes(self, s: Contract) -> bool:
        """Whether the sum of a product is longer than tensor cores should add up by themselves."""
        stage = self.staged(s.b.source)
        return self._tag(stage) == "e4m3" and (bool(stage.inner) or s.c_block > SHORT)

    def _scores(self, s: Contract) -> list[str]:
        self.cells[s.raw] = self.cells[s.dst]
        score = s.score if s.score is not None else Load(s.raw, (s.i, s.j))
        opened = s.open_score if s.open_score is not None else score
        plain = self._mapped(s, opened, False) if not self._is_raw(s, opened) else []
        tested = self._mapped(s, score, True) if self.total or not self._is_raw(s, score) else []
        return self.over_rows(self.variants(plain, tested)) if plain or tested else []

    def _is_raw(self, s: Contract, e: Expr) -> bool:
        return isinstance(e, Load) and e.source == s.raw

    def _mapped(self, s: Contract, score: Expr, tested: bool) -> list[str]:
        row, element = Scope(frozenset((self.phase.row,)), []), Scope(frozenset((self.phase.stream,)), [])
        el = self.elements([row, element], inside="inside" if tested else "")
        value = el.value(score)
        test = [f"const bool inside = {self.inside()};"] if tested else []
        value = f"inside ? {value} : {self.blank}" if tested and self.blank else value
        return ["{", *row.lines, *self.over_elements([*test, *element.lines, f"{self.cells[s.dst]} = {value};"]), "}"]

    def rescaled(self, s: Contract) -> list[str]:
        """The state times its row factors, where one of the warp's is not 1."""
        if not s.factor:
            return []
        acc, m, factor = self.names.get("acc", s.dst), self.place.fragments, self.names.get("reg", s.factor)
        moved = " || ".join(f"{factor}[{h}] != 1.0f" for h in range(self.rows))
        return [f"if (__any_sync(~0u, {moved})) UNROLL for (int m = 0; m < {m}; m++) UNROLL for (int n = 0; n < {s.nv}; n++) "
                f"UNROLL for (int e = 0; e < 4; e++) {acc}[m][n][e] *= {factor}[m * 2 + e / 2];"]  # fmt: skip

    def _columns(self, s: Contract) -> list[str]:
        """State += tile x columns; the tile's own registers are the left operand."""
        acc, m = self.names.get("acc", s.dst), self.place.fragments
        tag = self._tag(self.staged(s.b.source))
        if tag in BYTES:
            return [*self.rescaled(s), *self._columns_of_bytes(s, tag)]
        out = self.rescaled(s)
        out += [f"UNROLL for (int c = 0; c < {self.step * WIDTHS[tag] // CONTRACTED}; c++) {{", f"u32 a[{m}][4];",
                f"UNROLL for (int m = 0; m < {m}; m++) {self._left(s, 'a[m]', tag)}",
                *self._multiply(acc, tag, s.b, self.phase.stream, s.nv // 2), "}"]  # fmt: skip
        return out

    def _columns_of_bytes(self, s: Contract, tag: str) -> list[str]:
        """A tile's sum by itself, then to the state: of integers it is exact, of e4m3 it is short."""
        acc, m, steps = self.names.get("acc", s.dst), self.place.fragments, self.step // 32
        kind = "int" if tag == "i8" else "float"
        sums = f"UNROLL for (int m = 0; m < {m}; m++) UNROLL for (int h = 0; h < 2; h++) UNROLL for (int e = 0; e < 4; e++)"
        return [f"u32 a_{acc}[{steps}][{m}][4];",
                f"UNROLL for (int c = 0; c < {steps}; c++) UNROLL for (int m = 0; m < {m}; m++) {self._left(s, f'a_{acc}[c][m]', tag)}",
                f"UNROLL for (int n = 0; n < {s.nv // 2}; n++) {{", f"{kind} part[{m}][2][4]; {sums} part[m][h][e] = 0;",
                f"UNROLL for (int c = 0; c < {steps}; c++) {{ u32 b[4]; {self._right_fragment(s.b, self.phase.stream)}",
                f"UNROLL for (int m = 0; m < {m}; m++) {{ mma_{tag}(part[m][0], a_{acc}[c][m], b[0], b[1]); "
                f"mma_{tag}(part[m][1], a_{acc}[c][m], b[2], b[3]); }}", "}",
                f"{sums} {acc}[m][2 * n + h][e] += part[m][h][e];", "}"]  # fmt: skip

    def in_memory(self, name: str) -> bool:
        """Whether a tile is staged, and nowhere in registers."""
        return any(isinstance(x, Stage) and x.dst == name for x in statements(self.phase.body))

    def _left(self, s: Contract, to: str, tag: str) -> str:
        """A statement that makes the left fragment (m, c) of a product with columns."""
        if self.in_memory(s.a.source):
            return self._left_fragment(s.a.source, s.i, self._own("c")).replace("(a,", f"({to},", 1)
        return f"UNROLL for (int i = 0; i < 4; i++) {to}[i] = {self._packed(s.a.source, tag)};"

    def _packed(self, tile: str, tag: str) -> str:
        """Register i of the left fragment (m, c) of a tile that is in registers."""
        t = self.names.get("reg", tile)
        if tag in BYTES:
            return f"pack_{tag}({', '.join(f'{t}[m][4 * c + i / 2 * 2 + {e // 2}][i % 2 * 2 + {e % 2}]' for e in range(4))})"
        if tag == "tf32":
            return f"to_tf32({t}[m][c][i % 2 * 2 + i / 2])"
        return f"pack_{tag}({t}[m][2 * c + i / 2][i % 2 * 2], {t}[m][2 * c + i / 2][i % 2 * 2 + 1])"
