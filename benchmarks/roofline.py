"""What the machine can do, measured in the same run: reading, copying, and fused multiply-adds."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TEXT = """#define RF_REAL float
#include "prelude.h"
#define BLOCK (1 << 16) /* elements of an item */
struct context { const float *from; float *to; float sums[256]; int64_t rounds; };
static void read(void *c, int64_t item, int worker) {
  struct context *x = c;
  const float *p = x->from + item * BLOCK;
  V s[8];
  for (int i = 0; i < 8; i++) s[i] = set1(0);
  for (int64_t j = 0; j < BLOCK; j += 8 * LANES) {
    PREFETCH(p + j + 1024);
    RF_UNROLL(8) for (int i = 0; i < 8; i++) s[i] = s[i] + ld_f32(p + j + i * LANES);
  }
  for (int i = 1; i < 8; i++) s[0] = s[0] + s[i];
  x->sums[worker & 255] += h_sum(s[0]);
}
static void copy(void *c, int64_t item, int worker) {
  struct context *x = c;
  (void)worker;
  for (int64_t j = item * BLOCK; j < (item + 1) * BLOCK; j += LANES) st_stream_real(x->to + j, ld_f32(x->from + j));
  rf_fence();
}
static void multiply(void *c, int64_t item, int worker) {
  struct context *x = c;
  (void)item;
  V a[12], y = set1(0.999f), z = set1(1e-3f);
  for (int i = 0; i < 12; i++) a[i] = set1((float)i);
  for (int64_t r = 0; r < x->rounds; r++) {
    RF_UNROLL(12) for (int i = 0; i < 12; i++) a[i] = v_fma(a[i], y, z);
    IN_REGISTER(y);
  }
  for (int i = 0; i < 12; i++) x->sums[worker & 255] += h_sum(a[i]);
}
RF_EXPORT double run(int what, const float *from, float *to, int64_t items, int64_t rounds, int threads) {
  struct context c = {from, to, {0}, rounds};
  rf_parallel(what == 0 ? read : what == 1 ? copy : multiply, &c, items, threads, 0);
  double s = 0;
  for (int i = 0; i < 256; i++) s += c.sums[i];
  return s;
}
"""
BLOCK = 1 << 16
ROUNDS = 1 << 20


@dataclass(frozen=True)
class Roofline:
    """read: bytes a second of reading. copy: bytes a second, read plus written, with non-temporal stores. flops: float32
    operations a second, a fused multiply-add counting two."""

    read: float
    copy: float
    flops: float

    def seconds(self, traffic: float, flops: float, itemsize: int = 4) -> float:
        """The least time for this traffic and these operations."""
        return max(traffic / self.read, flops / (self.flops * 4 / max(4, itemsize)))


def measure(threads: int, megabytes: int = 256) -> Roofline:
    """Medians of seven; arrays of `megabytes`, so that no cache holds them."""
    from redfuser_eq.runtime import compiler, pool
    from redfuser_eq.runtime.device import cpu

    lib = compiler.load(TEXT)
    lib.rf_bind(ctypes.byref(pool.table()))
    lib.run.restype = ctypes.c_double
    items = (megabytes << 20) // (4 * BLOCK)
    source = np.ones(items * BLOCK, np.float32)
    room = np.zeros(items * BLOCK + 16, np.float32)
    target = room[(-room.ctypes.data % 64) // 4 :][: items * BLOCK]
    source_at, target_at = ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(target.ctypes.data)

    def seconds(what: int, n: int) -> float:
        return _median(lambda: lib.run(what, source_at, target_at, ctypes.c_int64(n), ctypes.c_int64(ROUNDS), threads))

    flops = 2.0 * 12 * cpu().lanes(4) * ROUNDS * threads
    return Roofline(source.nbytes / seconds(0, items), 2 * source.nbytes / seconds(1, items), flops / seconds(2, threads))


def _median(run: Callable[[], object], times: int = 7) -> float:
    run()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
