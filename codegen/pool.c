/* The thread pool and the scratch memory that all kernels of a process share.

   Threads are made when first wanted and kept. A call publishes its job, wakes the sleeping threads, and takes part itself. Work
   is cut into one contiguous share per thread (each goes through its own share, a quarter of what is left at a time, and then helps
   with the others', so a thread that is slow, or slow to wake, delays little), or handed out item by item. Which thread runs an item
   never changes a result.

   A second caller while the pool is busy, and a call from inside a running body, run serially on their own thread. After fork the
   child starts with an empty pool. Threads wait by spinning for some microseconds, then sleep in the kernel. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define RF_EXPORT __declspec(dllexport)
#else
#define RF_EXPORT __attribute__((visibility("default")))
#endif

typedef void (*rf_body)(void *ctx, int64_t item, int worker);

#if defined(_WIN32)

RF_EXPORT int rf_pool_threads(void) { return 1; }
RF_EXPORT void rf_pool_parallel(rf_body body, void *ctx, int64_t items, int threads, int shared_counter) {
  (void)threads;
  (void)shared_counter;
  for (int64_t item = 0; item < items; item++) body(ctx, item, 0);
}
#define LOCK() ((void)0)
#define UNLOCK() ((void)0)
#include <malloc.h>
static void *aligned_block(size_t bytes) { return _aligned_malloc(bytes, 64); }
static void free_block(void *p) { _aligned_free(p); }

#else

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define MAX_THREADS 1024
#define SPINS 2000 /* of a pause each: about 20 to 60 microseconds, the cost of a sleep and a wake */
#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ volatile("yield")
#else
#define PAUSE() ((void)0)
#endif

/* ---- waiting for a word to change ---- */
#if !defined(__linux__)
static pthread_mutex_t sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t sleep_cond = PTHREAD_COND_INITIALIZER;
#endif
static void word_sleep(atomic_uint *word, unsigned seen) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
  pthread_mutex_lock(&sleep_lock);
  while (atomic_load(word) == seen) pthread_cond_wait(&sleep_cond, &sleep_lock);
  pthread_mutex_unlock(&sleep_lock);
#endif
}
static void word_wake(atomic_uint *word, int how_many) {
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, how_many, NULL, NULL, 0);
#else
  (void)word;
  (void)how_many;
  pthread_mutex_lock(&sleep_lock);
  pthread_cond_broadcast(&sleep_cond);
  pthread_mutex_unlock(&sleep_lock);
#endif
}

/* ---- the one job ---- */
typedef struct {
  _Alignas(64) atomic_llong next; /* the first item that nobody has begun */
} share;
static struct {
  rf_body body;
  void *ctx;
  int64_t items;
  int threads, shared_counter;
} job;
static share shares[MAX_THREADS];
static _Alignas(64) atomic_int open;           /* the job may be joined */
static _Alignas(64) atomic_uint generation;    /* of jobs; idle threads wait for it to move */
static _Alignas(64) atomic_uint inside;        /* threads that look at the job, the caller left out */
static _Alignas(64) atomic_int caller_asleep;
static _Alignas(64) atomic_int sleepers;       /* idle threads that sleep or are about to */
static _Alignas(64) atomic_llong next_item;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static int started;                            /* threads made; guarded by busy */
static _Thread_local int in_body;

static void take_share(int s, int worker) {
  const int64_t end = job.items * (s + 1) / job.threads;
  for (int64_t left; (left = end - atomic_load_explicit(&shares[s].next, memory_order_relaxed)) > 0;) {
    const int64_t some = left < 4 ? 1 : left / 4, lo = atomic_fetch_add_explicit(&shares[s].next, some, memory_order_relaxed);
    const int64_t hi = lo + some < end ? lo + some : end;
    for (int64_t item = lo; item < hi; item++) job.body(job.ctx, item, worker);
  }
}
static void work(int worker) {
  in_body = 1;
  if (job.shared_counter) {
    for (int64_t item; (item = atomic_fetch_add_explicit(&next_item, 1, memory_order_relaxed)) < job.items;) job.body(job.ctx, item, worker);
  } else {
    for (int i = 0; i < job.threads; i++) take_share((worker + i) % job.threads, worker);
  }
  in_body = 0;
}
static void *thread_main(void *arg) {
  int worker = (int)(intptr_t)arg;
  unsigned seen = 0;
  for (;;) {
    for (int i = 0; i < SPINS && atomic_load(&generation) == seen; i++) PAUSE();
    if (atomic_load(&generation) == seen) {
      atomic_fetch_add(&sleepers, 1);
      while (atomic_load(&generation) == seen) word_sleep(&generation, seen);
      atomic_fetch_sub(&sleepers, 1);
    }
    seen = atomic_load(&generation);
    atomic_fetch_add(&inside, 1);
    if (atomic_load(&open) && worker < job.threads) work(worker);
    if (atomic_fetch_sub(&inside, 1) == 1 && atomic_load(&caller_asleep)) word_wake(&inside, 1);
  }
  return NULL;
}

/* ---- threads, and fork ---- */
static void after_fork(void);
static void start_threads(int wanted) {
  static int prepared;
  sigset_t all, old;
  if (!prepared) {
    pthread_atfork(NULL, NULL, after_fork);
    prepared = 1;
  }
  sigfillset(&all); /* signals are for the threads the program made itself */
  pthread_sigmask(SIG_SETMASK, &all, &old);
  while (started < wanted) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_main, (void *)(intptr_t)(started + 1))) break;
    pthread_detach(thread);
    started++;
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

RF_EXPORT int rf_pool_threads(void) { return started + 1; }
RF_EXPORT void rf_pool_parallel(rf_body body, void *ctx, int64_t items, int threads, int shared_counter) {
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  if (threads > items) threads = (int)items;
  if (threads <= 1 || in_body || atomic_flag_test_and_set(&busy)) {
    for (int64_t item = 0; item < items; item++) body(ctx, item, 0);
    return;
  }
  if (started < threads - 1) start_threads(threads - 1);
  job.body = body, job.ctx = ctx, job.items = items, job.threads = threads, job.shared_counter = shared_counter;
  atomic_store(&next_item, 0);
  for (int s = 0; s < threads; s++) atomic_store_explicit(&shares[s].next, items * s / threads, memory_order_relaxed);
  atomic_store(&open, 1);
  atomic_fetch_add(&generation, 1);
  if (atomic_load(&sleepers)) word_wake(&generation, MAX_THREADS);
  work(0);
  atomic_store(&open, 0);
  unsigned left;
  for (int i = 0; i < SPINS && atomic_load(&inside); i++) PAUSE();
  if (atomic_load(&inside)) {
    atomic_store(&caller_asleep, 1);
    while ((left = atomic_load(&inside))) word_sleep(&inside, left);
    atomic_store(&caller_asleep, 0);
  }
  atomic_flag_clear(&busy);
}

/* ---- a lock for the blocks below ---- */
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCK() pthread_mutex_lock(&blocks_lock)
#define UNLOCK() pthread_mutex_unlock(&blocks_lock)
static void *aligned_block(size_t bytes) {
  void *p;
  return posix_memalign(&p, 64, bytes) ? NULL : p;
}
static void free_block(void *p) { free(p); }

static void after_fork(void) { /* in the child: only the forking thread is left; locks may be held by threads that are gone */
  started = 0;
  in_body = 0;
  atomic_store(&open, 0);
  atomic_store(&inside, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&caller_asleep, 0);
  atomic_flag_clear(&busy);
  pthread_mutex_init(&blocks_lock, NULL);
#if !defined(__linux__)
  pthread_mutex_init(&sleep_lock, NULL);
  pthread_cond_init(&sleep_cond, NULL);
#endif
}
#endif

/* ---- blocks: freed ones are kept, since fresh pages cost more than a small kernel. Sizes are rounded up to four steps per power
   of two; at most KEPT bytes wait in the lists. Sanitizer builds keep nothing, so that misuse is seen. ---- */
#define KEPT ((size_t)256 << 20)
#define CLASSES 192
typedef struct block {
  struct block *next;
  size_t size;
  int class;
} block;
static block *kept[CLASSES];
static size_t kept_bytes;

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RF_KEEP 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define RF_KEEP 0
#endif
#ifndef RF_KEEP
#define RF_KEEP 1
#endif

static int size_class(size_t bytes, size_t *rounded) {
  int power = 8;
  while (power < 48 && ((size_t)1 << (power + 1)) <= bytes) power++;
  size_t quarter = (size_t)1 << (power - 2), steps = bytes <= ((size_t)1 << power) ? 0 : (bytes - ((size_t)1 << power) + quarter - 1) / quarter;
  *rounded = ((size_t)1 << power) + steps * quarter;
  return (power - 8) * 4 + (int)steps;
}
RF_EXPORT void *rf_pool_alloc(size_t bytes) {
  size_t size;
  if (bytes > (size_t)1 << 47) return NULL;
  int class = size_class(bytes, &size);
  LOCK();
  block *b = kept[class];
  if (b) {
    kept[class] = b->next;
    kept_bytes -= b->size;
  }
  UNLOCK();
  if (b) return (char *)b + 64;
  if (!RF_KEEP) size = bytes;
  b = (block *)aligned_block(size + 64);
  if (!b) return NULL;
  b->size = size, b->class = class;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (size >= (size_t)8 << 20) {
    uintptr_t lo = ((uintptr_t)b + 4095) & ~(uintptr_t)4095, hi = ((uintptr_t)b + size) & ~(uintptr_t)4095;
    madvise((void *)lo, hi - lo, MADV_HUGEPAGE); /* advice only */
  }
#endif
  return (char *)b + 64;
}
RF_EXPORT void rf_pool_free(void *p) {
  if (!p) return;
  block *b = (block *)((char *)p - 64);
  int keep = 0;
  if (RF_KEEP) {
    LOCK();
    keep = kept_bytes + b->size <= KEPT;
    if (keep) {
      b->next = kept[b->class];
      kept[b->class] = b;
      kept_bytes += b->size;
    }
    UNLOCK();
  }
  if (!keep) free_block(b);
}
RF_EXPORT size_t rf_pool_trim(void) { /* gives the waiting blocks back; their bytes */
  LOCK();
  size_t bytes = kept_bytes;
  block *all = NULL;
  for (int c = 0; c < CLASSES; c++) {
    while (kept[c]) {
      block *b = kept[c];
      kept[c] = b->next;
      b->next = all;
      all = b;
    }
  }
  kept_bytes = 0;
  UNLOCK();
  while (all) {
    block *b = all;
    all = b->next;
    free_block(b);
  }
  return bytes;
}
