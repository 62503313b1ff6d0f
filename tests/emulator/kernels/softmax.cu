// One block per row: maximum, sum of exponentials, quotient. The macros plant faults.
#define L2E 1.4426950408889634f
__device__ float warp_fold(float v, bool sum) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const float w = __shfl_xor_sync(~0u, v, o);
    v = sum ? v + w : fmaxf(v, w);
  }
  return v;
}
extern "C" __global__ void __launch_bounds__(256) softmax(const float* x, float* y, int n) {
  __shared__ float part[8];
  const int t = threadIdx.x, warp = t / 32;
  x += (long long)blockIdx.x * n;
  y += (long long)blockIdx.x * n;
  float m = __int_as_float(0xff800000);
  for (int i = t; i < n; i += 256) m = fmaxf(m, x[i]);
  m = warp_fold(m, false);
  if (t % 32 == 0) part[warp] = m;
#ifndef NO_BARRIER_BEFORE_READ
  __syncthreads();
#endif
  m = part[0];
  for (int i = 1; i < 8; i++) m = fmaxf(m, part[i]);
#ifndef NO_BARRIER_BEFORE_REUSE
  __syncthreads();
#endif
  float s = 0;
  for (int i = t; i < n; i += 256) s += exp2f((x[i] - m) * L2E);
  s = warp_fold(s, true);
#ifdef PAST_THE_ARRAY
  if (t % 32 == 0) part[warp + 1] = s;
#else
  if (t % 32 == 0) part[warp] = s;
#endif
  __syncthreads();
  s = 0;
  for (int i = 0; i < 8; i++) s += part[i];
#ifdef PAST_THE_ROW
  for (int i = t; i <= n; i += 256) y[i] = exp2f((x[i] - m) * L2E) / s;
#else
  for (int i = t; i < n; i += 256) y[i] = exp2f((x[i] - m) * L2E) / s;
#endif
}
