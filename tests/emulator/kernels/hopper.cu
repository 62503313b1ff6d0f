// C[128, N] = A[128, K] B[N, K]^T on sm_90a: a producer warp keeps two stages of TMA tiles in flight, one consumer warpgroup
// multiplies with wgmma m64n64k16, mbarriers "full" and "empty" hand the stages over. bf16, K-major, 128-byte swizzle.
// A block makes 64 x 64 of C. The macros plant faults.
typedef unsigned u32;
typedef unsigned long long u64;
struct __align__(64) TensorMap { u64 opaque[16]; };
__device__ u32 smem(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ u64 descriptor(u32 a) { return (u64)((a & 0x3ffff) >> 4) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62; }
__device__ void wait(u32 bar, u32 parity) {
#ifdef WAIT_ONCE
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; }" ::"r"(bar), "r"(parity) : "memory");
#else
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra L; }" ::"r"(bar), "r"(parity) : "memory");
#endif
}
__device__ void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ void load(u32 to, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
extern "C" __global__ void __launch_bounds__(160)
    gemm(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, float* C, int N, int K) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(8) u64 full[2], empty[2];
  const u32 tiles = smem(memory);
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem(&full[s])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(smem(&empty[s])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128)
      for (int k = 0; k < K / 64; k++) {
        const int s = k % 2;
        if (k >= 2) wait(smem(&empty[s]), (k / 2 - 1) & 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(&full[s])), "r"(16384) : "memory");
        load(tiles + s * 16384, &A, k * 64, blockIdx.y * 64, smem(&full[s]));
        load(tiles + s * 16384 + 8192, &B, k * 64, blockIdx.x * 64, smem(&full[s]));
      }
    return;
  }
  float c[32];
#pragma unroll
  for (int i = 0; i < 32; i++) c[i] = 0;
  for (int k = 0; k < K / 64; k++) {
    const int s = k % 2;
    wait(smem(&full[s]), k / 2 & 1);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
      const u64 a = descriptor(tiles + s * 16384 + kk * 32), b = descriptor(tiles + s * 16384 + 8192 + kk * 32);
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,"
          "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
            "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
            "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
            "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
          : "l"(a), "l"(b));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef RELEASE_TOO_EARLY
    arrive(smem(&empty[s]));
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#else
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    arrive(smem(&empty[s]));
#endif
  }
  const int row = blockIdx.y * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = blockIdx.x * 64 + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; i++) C[(row + i / 2 % 2 * 8) * N + col + i / 4 * 8 + i % 2] = c[i];
}
