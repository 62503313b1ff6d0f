//@ shfl : the value of the lane whose index differs by the mask.
DEV float shfl(float v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEV int shfl(int v, int mask) { return __shfl_xor_sync(~0u, v, mask); }

//@ lanes_sum : the sum over groups of W lanes, the same in every lane of a group.
template <int W> DEV float lanes_sum(float v) {
  UNROLL for (int m = W / 2; m; m /= 2) v += shfl(v, m);
  return v;
}

//@ lanes_max : the maximum over groups of W lanes; NaN is passed on.
template <int W> DEV float lanes_max(float v) {
  UNROLL for (int m = W / 2; m; m /= 2) v = fmax_nan(v, shfl(v, m));
  return v;
}

//@ lanes_min : the minimum over groups of W lanes; NaN is passed on.
template <int W> DEV float lanes_min(float v) {
  UNROLL for (int m = W / 2; m; m /= 2) v = fmin_nan(v, shfl(v, m));
  return v;
}

//@ barrier_sync : waits for `threads` threads at a named barrier, 1 to 15.
DEV void barrier_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

//@ barrier_arrive : counts at a named barrier without waiting.
DEV void barrier_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
