// C[m, n] = sum_k A[m, k] B[k, n] with 16-bit operands in tiles of 32 x 32 x 32, float32 result: two stages of cp.async,
// swizzled tiles, ldmatrix (B transposed), mma.sync. M, N, K are multiples of 32. The macros plant faults.
#ifndef ELEMENT
#define ELEMENT "bf16"
#endif
typedef unsigned short u16;
typedef unsigned u32;
__device__ u32 cell(u32 tile, int r, int c8) { return tile + r * 64 + ((c8 ^ (r >> 1)) & 3) * 16; }
__device__ void stage(u32 tile, const u16* g, int ld) {
  const int r = threadIdx.x / 4, c = threadIdx.x % 4;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(cell(tile, r, c)), "l"(g + r * ld + c * 8) : "memory");
}
__device__ void ldmatrix(u32 (&r)[4], u32 p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}
__device__ void ldmatrix_t(u32 (&r)[4], u32 p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
}
__device__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
extern "C" __global__ void __launch_bounds__(128) gemm(const u16* A, const u16* B, float* C, int N, int K) {
  extern __shared__ __align__(128) unsigned char memory[];
  const u32 base = (u32)__cvta_generic_to_shared(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, m0 = blockIdx.y * 32, n0 = blockIdx.x * 32;
  const int row = warp / 2 * 16, col = warp % 2 * 16;
  float d[2][4] = {};
  stage(base, A + m0 * K, K);
  stage(base + 2048, B + n0, N);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int k = 0; k < K / 32; k++) {
    const u32 tile = base + k % 2 * 4096, next = base + (k + 1) % 2 * 4096;
    if (k + 1 < K / 32) {
      stage(next, A + m0 * K + (k + 1) * 32, K);
      stage(next + 2048, B + (k + 1) * 32 * N + n0, N);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#ifdef WAIT_TOO_WEAK
    asm volatile("cp.async.wait_group 2;" ::: "memory");
#else
    asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
#ifndef NO_BARRIER_AFTER_WAIT
    __syncthreads();
#endif
#pragma unroll
    for (int s = 0; s < 2; s++) {
      u32 a[4], b[4];
      ldmatrix(a, cell(tile, row + lane % 16, s * 2 + lane / 16));
      ldmatrix_t(b, cell(tile + 2048, s * 16 + lane % 16, col / 8 + lane / 16));
      mma(d[0], a, b[0], b[1]);
      mma(d[1], a, b[2], b[3]);
    }
#ifndef NO_BARRIER_BEFORE_REUSE
    __syncthreads();
#endif
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
  for (int j = 0; j < 2; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) C[(m0 + row + lane / 4 + e / 2 * 8) * N + n0 + col + j * 8 + lane % 4 * 2 + e % 2] = d[j][e];
}
