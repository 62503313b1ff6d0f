//@ TensorMap (90) : the driver's CUtensorMap, a kernel parameter: `const __grid_constant__ TensorMap m`.
struct __align__(64) TensorMap { u64 opaque[16]; };

//@ mbarrier_init (90) : one thread; the barrier completes a phase after `count` arrivals and all expected bytes.
DEV void mbarrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }

//@ fence_mbarrier_init (90) : after the inits, before the block's barrier.
DEV void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

//@ fence_async (90) : the thread's stores to shared memory become visible to TMA and wgmma; then a barrier.
DEV void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

//@ mbarrier_expect (90) : arrives and announces the bytes of the copies that follow.
DEV void mbarrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

//@ mbarrier_arrive (90) : arrives.
DEV void mbarrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }

//@ mbarrier_wait (90) : until the phase of this parity is complete.
DEV void mbarrier_wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}"
               ::"r"(bar), "r"(parity) : "memory");
}

//@ tma_load2 (90) : starts the copy of a box at column x, row y into shared memory; one thread.
DEV void tma_load2(u32 to, const TensorMap *map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}

//@ tma_load3 (90) : the same in three dimensions.
DEV void tma_load3(u32 to, const TensorMap *map, int x, int y, int z, u32 bar) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}

//@ tma_load4 (90) : the same in four dimensions.
DEV void tma_load4(u32 to, const TensorMap *map, int x, int y, int z, int w, u32 bar) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

//@ tma_load5 (90) : the same in five dimensions.
DEV void tma_load5(u32 to, const TensorMap *map, int x, int y, int z, int w, int v, u32 bar) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(bar) : "memory");
}

//@ tma_store2 (90) : starts the copy of a box from shared memory; after fence_async and a barrier; one thread.
DEV void tma_store2(const TensorMap *map, int x, int y, u32 from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

//@ tma_store_wait (90) : until the thread's stores have ended.
DEV void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

//@ registers_more (90) : the warpgroup gets N registers a thread.
template <int N> DEV void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

//@ registers_less (90) : the warpgroup keeps N registers a thread.
template <int N> DEV void registers_less() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

//@ descriptor (90) : of a tile with 128-byte rows, 128-byte swizzle, groups of 8 rows 1024 bytes apart; `panel` bytes between panels.
DEV u64 descriptor(u32 tile, u32 panel) { return (u64)((tile & 0x3ffff) >> 4) | (u64)(panel >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62; }

//@ wgmma_fence (90) : before the first wgmma, and after registers of its operands changed.
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

//@ wgmma_commit (90) : closes a group of wgmma.
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

//@ wgmma_wait (90) : until at most N groups are in flight.
template <int N> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

//@ flat (90) : a fragment's blocks of eight columns as one array of registers.
template <class T, int N> DEV T (&flat(T (&x)[N][4]))[N * 4] { return reinterpret_cast<T (&)[N * 4]>(x); }
