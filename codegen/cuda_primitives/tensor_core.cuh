//@ smem : the 32-bit address of shared memory.
DEV u32 smem(const void *p) { return (u32)__cvta_generic_to_shared(p); }

//@ cp_async16 : starts a copy of `bytes` (0 to 16) bytes to 16 bytes of shared memory; the rest becomes zero.
DEV void cp_async16(u32 to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

//@ cp_async : starts a copy of N (4, 8 or 16) bytes to shared memory, both at multiples of N.
template <int N> DEV void cp_async(u32 to, const void *from) {
  if (N == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(N) : "memory");
}

//@ cp_async_commit : closes a group of copies.
DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

//@ cp_async_wait : waits until at most N groups are in flight; a barrier must follow before other threads read.
template <int N> DEV void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

//@ cell : 16 bytes of a shared tile: panels of 128-byte rows, chunks swizzled by the row, so that no access conflicts.
DEV u32 cell(u32 tile, int rows, int row, int chunk) { return tile + (chunk / 8 * rows + row) * 128 + ((chunk ^ row) & 7) * 16; }

//@ stage_async : a tile of ROWS rows of CHUNKS * 16 bytes into cells; rows and bytes past the end become zero. 16-byte aligned rows.
template <int THREADS, int ROWS, int CHUNKS>
DEV void stage_async(u32 tile, const void *from, i64 row_bytes, int rows, int bytes, int thread = threadIdx.x) {
  constexpr int EIGHTHS = (THREADS / 8) & -(THREADS / 8), EVEN = CHUNKS & -CHUNKS, WIDE = EVEN < EIGHTHS ? EVEN : EIGHTHS;
  constexpr int STEP = THREADS / WIDE;  // rows: a multiple of 8, so that a thread keeps its place in the swizzle
  const int r0 = thread / WIDE;
  UNROLL for (int c0 = 0; c0 < CHUNKS; c0 += WIDE) {
    const int c = c0 + thread % WIDE, n = imin(imax(bytes - c * 16, 0), 16);
    const u32 to = cell(tile, ROWS, r0, c);
    const char *p = (const char *)from + (n ? r0 * row_bytes + c * 16 : 0);
    UNROLL for (int r = 0; r < ROWS; r += STEP, p += STEP * row_bytes) {
      const bool in = r0 + r < rows;
      if (r + STEP <= ROWS || r0 + r < ROWS) cp_async16(to + r * 128, in && n ? p : from, in ? n : 0);
    }
  }
}

//@ stage_plain : the same by plain loads of elements of 1, 2 or 4 bytes, for any alignment and strides (in elements).
template <int THREADS, int ROWS, int CHUNKS, class E>
DEV void stage_plain(u32 tile, const E *from, i64 row_stride, i64 col_stride, int rows, int cols, int thread = threadIdx.x) {
  constexpr int N = 4 / sizeof(E);  // elements of a register
  for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS * 4 * N;
    u32 w[4] = {};
    UNROLL for (int e = 0; e < 4 * N; e++)
      if (r < rows && c + e < cols) w[e / N] |= (u32)from[r * row_stride + (c + e) * col_stride] << e % N * (32 / N);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(cell(tile, ROWS, r, i % CHUNKS)), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3]) : "memory");
  }
}

//@ stage_wider : the same from elements of one byte, each turned into a number by `get`, two of them into a register by `pack`.
template <int THREADS, int ROWS, int CHUNKS, class Get, class Pack>
DEV void stage_wider(u32 tile, const void *from, i64 row_stride, i64 col_stride, int rows, int cols, Get get, Pack pack,
                     int thread = threadIdx.x) {
  const bool whole = col_stride == 1 && (((i64)from | row_stride) & 7) == 0;
  _Pragma("unroll 4") for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS * 8;
    const u8 *p = (const u8 *)from + r * row_stride + c * col_stride;
    u64 v = 0;
    if (whole && r < rows && c + 8 <= cols) v = *(const u64 *)p;
    else for (int e = 0; e < 8; e++) v |= r < rows && c + e < cols ? (u64)p[e * col_stride] << 8 * e : 0;
    u32 w[4];
    UNROLL for (int e = 0; e < 4; e++) w[e] = pack(get((u8)(v >> 16 * e)), get((u8)(v >> (16 * e + 8))));
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(cell(tile, ROWS, r, c / 8)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  }
}

//@ ldmatrix : four 8 x 8 matrices of 16-bit elements; lanes 0-7, 8-15, 16-23, 24-31 give their row addresses.
DEV void ldmatrix(u32 (&r)[4], u32 p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}

//@ ldmatrix_t : the same, each matrix transposed.
DEV void ldmatrix_t(u32 (&r)[4], u32 p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}

//@ stmatrix (90) : stores four 8 x 8 matrices of 16-bit elements.
DEV void stmatrix(u32 p, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(p), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

//@ mma_bf16 : d[16, 8] += a[16, 16] b[16, 8], bfloat16 operands, float32 sums, fragments as the PTX manual has them.
DEV void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MMA("m16n8k16", "bf16") }

//@ mma_f16 : d[16, 8] += a[16, 16] b[16, 8], float16 operands.
DEV void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MMA("m16n8k16", "f16") }

//@ shared_pairs : four elements of 16 bits from shared memory, at a multiple of 8 bytes.
DEV void shared_pairs(u32 (&r)[2], u32 p) { asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(p) : "memory"); }

//@ shared_word : an element of 32 bits from shared memory.
DEV u32 shared_word(u32 p) {
  u32 r;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(p) : "memory");
  return r;
}

//@ shared_one : an element of 16 bits from shared memory.
DEV u16 shared_one(u32 p) {
  u16 r;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(r) : "r"(p) : "memory");
  return r;
}

//@ mma_tf32 : d[16, 8] += a[16, 8] b[8, 8], operands as tf32 (float bits, see to_tf32).
DEV void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MMA("m16n8k8", "tf32") }

//@ mma_e4m3 (89) : d[16, 8] += a[16, 32] b[32, 8], e4m3 operands.
DEV void mma_e4m3(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { MMA("m16n8k32", "e4m3") }

//@ mma_i8 : d[16, 8] += a[16, 32] b[32, 8], signed bytes, exact in 32 bits.
DEV void mma_i8(int (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

//@ to_tf32 : float rounded to tf32, half away from zero.
DEV u32 to_tf32(float x) {
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

//@ all_tf32 : four floats rounded to tf32.
DEV void all_tf32(u32 (&r)[4]) { UNROLL for (int i = 0; i < 4; i++) r[i] = to_tf32(__uint_as_float(r[i])); }

//@ shared_quad : 16 bytes of shared memory as four registers.
DEV void shared_quad(u32 (&r)[4], u32 p) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}

//@ put_quad : four registers to 16 bytes of shared memory.
DEV void put_quad(u32 p, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

//@ round_cells : floats in ROWS rows of 128 bytes become tf32, where they lie.
template <int THREADS, int ROWS> DEV void round_cells(u32 tile, int thread) {
  _Pragma("unroll 4") for (int i = thread; i < ROWS * 8; i += THREADS) {
    u32 r[4];
    shared_quad(r, tile + i * 16);
    all_tf32(r);
    put_quad(tile + i * 16, r[0], r[1], r[2], r[3]);
  }
}

//@ round_evens : the same, and of eight neighbours of a row the even ones come first: the order in which accumulators hold a left operand.
template <int THREADS, int ROWS> DEV void round_evens(u32 tile, int thread) {
  _Pragma("unroll 4") for (int i = thread; i < ROWS * 4; i += THREADS) {
    const u32 first = tile + i / 4 * 128 + (i % 4 * 2 ^ (i / 4 & 7)) * 16, second = first ^ 16;  // the cells' swizzle
    u32 a[4], b[4];
    shared_quad(a, first);
    shared_quad(b, second);
    all_tf32(a);
    all_tf32(b);
    put_quad(first, a[0], a[2], b[0], b[2]);
    put_quad(second, a[1], a[3], b[1], b[3]);
  }
}

//@ MMA : the instruction behind the mma functions.
#define MMA(shape, type)                                                                                         \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 "                                   \
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
