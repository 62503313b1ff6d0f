/* Threads and scratch memory. The runtime installs its pool with rf_bind; without it a kernel runs serially and on malloc. */

#if defined(_WIN32)
#define RF_EXPORT __declspec(dllexport)
#else
#define RF_EXPORT __attribute__((visibility("default")))
#endif

typedef struct {
  void (*parallel)(void (*body)(void *ctx, int64_t item, int worker), void *ctx, int64_t items, int threads, int shared_counter);
  void *(*alloc)(size_t bytes);
  void (*free)(void *block);
} rf_pool;

static void rf_serial(void (*body)(void *, int64_t, int), void *ctx, int64_t items, int threads, int shared_counter) {
  (void)threads;
  (void)shared_counter;
  for (int64_t item = 0; item < items; item++) body(ctx, item, 0);
}
#if defined(_WIN32)
#include <malloc.h>
static void *rf_plain_alloc(size_t bytes) { return _aligned_malloc(bytes, 64); }
static void rf_plain_free(void *block) { _aligned_free(block); }
#else
static void *rf_plain_alloc(size_t bytes) {
  void *block;
  return posix_memalign(&block, 64, bytes) ? NULL : block;
}
static void rf_plain_free(void *block) { free(block); }
#endif
static rf_pool rf_bound = {rf_serial, rf_plain_alloc, rf_plain_free};
RF_EXPORT void rf_bind(const rf_pool *pool) { rf_bound = *pool; }

/* body(ctx, item, worker) for every item, on at most `threads` threads, the caller among them; worker is below `threads` and no two
   running bodies share it. Equal contiguous shares, or one item at a time from a shared counter. Returns when all are done. */
RF_INLINE void rf_parallel(void (*body)(void *ctx, int64_t item, int worker), void *ctx, int64_t items, int threads, int shared_counter) {
  rf_bound.parallel(body, ctx, items, threads, shared_counter);
}
RF_INLINE void *rf_alloc(size_t bytes) { return rf_bound.alloc(bytes); } /* 64-byte aligned, not cleared; NULL: out of memory */
RF_INLINE void rf_free(void *block) { rf_bound.free(block); }            /* NULL is fine */
