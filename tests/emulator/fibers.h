// Inside the runtime: fibers, their scheduler, and what waits and wakes them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime.h"

// ThreadSanitizer, when the process was started with its library; null otherwise.
#define WEAK __attribute__((weak))
extern "C" {
WEAK void* __tsan_get_current_fiber();
WEAK void* __tsan_create_fiber(unsigned);
WEAK void __tsan_destroy_fiber(void*);
WEAK void __tsan_switch_to_fiber(void*, unsigned);
WEAK void __tsan_acquire(void*);
WEAK void __tsan_release(void*);
WEAK void __tsan_read_range(void*, unsigned long);
WEAK void __tsan_write_range(void*, unsigned long);
}

enum State : u8 { READY, RESTING, AT_COLLECTIVE, AT_BARRIER, AT_MBARRIER, AT_WARPGROUP, ENDED };

struct Collective {
  const char* name;
  bool whole_warp;
  bool orders_memory;
  void (*run)(const void* const* in, void* const* out, u32 mask);
};

// An asynchronous copy: what remains to be done when it lands.
using Landing = std::function<void()>;

struct AsyncGroups {
  std::vector<Landing> open;
  std::vector<std::vector<Landing>> committed;
};

struct Fiber : Thread {
  void* stack_pointer = nullptr;
  void* tsan = nullptr;
  State state = ENDED;
  const Site* site = nullptr;  // where it waits
  const Collective* collective = nullptr;
  const void* in = nullptr;
  void* out = nullptr;
  u32 mask = 0;
  int barrier = 0;
  bool refused = false;  // the last mbarrier.try_wait returned false
  bool fenced = false;
  u64 atomic = 0;      // the address of the last atomic
  u32 async_fences = 0;  // fence.proxy.async so far
  AsyncGroups copies, bulk;  // cp.async groups; bulk groups
};

extern std::vector<Fiber> fibers;  // of the block, whole warps
extern const Launch* launch;
extern int live;  // threads that have not ended

inline Fiber& me() { return *static_cast<Fiber*>(emu_thread); }
u32 pick_random();
bool preempting();  // the schedule is random
void block(State, const Site*);
void wake(int linear);
void yield_as(State);
[[noreturn]] void fail(const Site*, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline void acquire(void* p) {
  if (__tsan_acquire) __tsan_acquire(p);
}
inline void release(void* p) {
  if (__tsan_release) __tsan_release(p);
}
inline void touch_read(const void* p, size n) {
  if (__tsan_read_range) __tsan_read_range(const_cast<void*>(p), n);
}
inline void touch_write(void* p, size n) {
  if (__tsan_write_range) __tsan_write_range(p, n);
}

void* order_at(int i);  // an address for ThreadSanitizer, fresh in every block: 0 to 31 barriers, 32 to 63 warps

// Checked pointers for accesses that the runtime makes itself.
char* shared_at(u64 offset, u32 bytes, const Site*, u32 align = 1);
char* global_at(u64 address, u32 bytes, const Site*);

// async.cpp: copies without a group (TMA, bulk loads) land through an mbarrier.
bool land_one();  // false when none is in flight
void reset_async();
void reset_wgmma();  // wgmma.cpp
bool copies_in_flight(const Fiber&);
// warp.cpp
void reset_warps(int warps);
void lane_ended(const Fiber&);
