// One stackful fiber per CUDA thread, one block at a time. A fiber runs until it waits; the schedule picks the next.
// Built without sanitizers: it talks to ThreadSanitizer through weak symbols, so one library serves every kernel build.
#include "fibers.h"

#include <sys/mman.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void emu_switch(void** save, void* to);
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");

Thread* emu_thread;
Dim3 emu_block, emu_block_dim, emu_grid_dim;
char* emu_shared;
u32 emu_shared_bytes, emu_dynamic_bytes;
s64 emu_budget;
std::vector<Fiber> fibers;
const Launch* launch;
int live;

namespace {
struct Barrier {
  int arrived = 0, need = 0, votes = 0, last_votes = 0, last_arrived = 0;
  const Site* site = nullptr;
  unsigned phase = 0;
};
Barrier barriers[16];
u32 ready[32], resting[32], priority[32];
int threads, warps;
u64 random_state;
void *main_stack, *main_tsan;
bool failed;
std::string message;
char at_start[8], at_end[8];

void switch_to(void** save, Fiber* to) {  // null: back to the launcher
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to ? to->tsan : main_tsan, 1);
  emu_thread = to;
  emu_switch(save, to ? to->stack_pointer : main_stack);
}

[[noreturn]] void leave() {
  switch_to(&me().stack_pointer, nullptr);
  abort();
}

std::string deadlock() {
  static const char* waits[] = {"", "", "a warp operation", "a barrier", "an mbarrier", "its warpgroup"};
  std::string s = "deadlock, no thread can run;";
  int shown = 0;
  for (const Fiber& f : fibers)
    if (f.state >= AT_COLLECTIVE && f.state < ENDED && shown++ < 4) {
      char text[200];
      snprintf(text, sizeof text, " thread (%u,%u,%u) waits for %s at line %d, %s;", f.id.x, f.id.y, f.id.z, waits[f.state],
               f.site->line, f.site->text);
      s += text;
    }
  return s;
}

int lowest(u32 bits) { return __builtin_ctz(bits); }
int highest(u32 bits) { return 31 - __builtin_clz(bits); }
int nth(u32 bits, u32 n) {
  while (n--) bits &= bits - 1;
  return lowest(bits);
}

// The next thread by the schedule, or -1. Resting threads (they spin) run only when nothing else can.
int pick() {
  if (preempting() && pick_random() % 8 == 0) land_one();
  for (;;) {
    int best = -1;
    for (int w = 0; w < warps; w++) {
      if (!ready[w]) continue;
      if (best < 0 || launch->order == DESCENDING || (launch->order == RANDOM && priority[w] > priority[best])) best = w;
    }
    if (best >= 0) {
      if (launch->order == RANDOM && pick_random() % (16u << launch->seed % 4 * 2) == 0) priority[pick_random() % warps] = pick_random();
      const u32 bits = ready[best];
      int lane = launch->order == ASCENDING ? lowest(bits) : highest(bits);
      if (launch->order == RANDOM) lane = nth(bits, pick_random() % __builtin_popcount(bits));
      ready[best] &= ~(1u << lane);
      return best * 32 + lane;
    }
    bool landed = land_one(), rested = false;
    for (int w = 0; w < warps; w++) {
      rested |= resting[w] != 0;
      ready[w] |= resting[w];
      resting[w] = 0;
    }
    if (!landed && !rested) return -1;
  }
}

void run_next() {  // the running fiber waits or has ended
  Fiber& from = me();
  int next = pick();
  if (next < 0) {
    if (!failed) message = deadlock();
    failed = true;
    leave();
  }
  if (&fibers[next] != &from) switch_to(&from.stack_pointer, &fibers[next]);
}

void release_barrier(int id) {
  Barrier& b = barriers[id];
  if (!b.arrived || b.arrived < (b.need ? b.need : live)) return;
  b.last_votes = b.votes;
  b.last_arrived = b.arrived;
  b.arrived = b.votes = 0;
  b.phase++;
  for (Fiber& f : fibers)
    if (f.state == AT_BARRIER && f.barrier == id) wake(f.linear);
}

void run_fiber() {
  for (;;) {
    acquire(at_start);
    launch->kernel(launch->arguments);
    Fiber& f = me();
    if (copies_in_flight(f)) fail(nullptr, "the thread ended with asynchronous copies that it never waited for");
    f.state = ENDED;
    live--;
    lane_ended(f);
    for (int i = 0; i < 16; i++)
      if (!barriers[i].need) release_barrier(i);  // ended threads are no longer awaited
    release(at_end);
    if (live) run_next();
    else switch_to(&f.stack_pointer, nullptr);
  }
}

void prepare(Fiber& f) {
  if (!f.stack) {
    char* p = (char*)mmap(nullptr, kStackBytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(p, 4096, PROT_NONE);
    f.stack = p + 4096;
    if (__tsan_create_fiber) f.tsan = __tsan_create_fiber(0);
  }
  // Tops differ by thread, or every hot frame falls into the same cache sets.
  auto top = (u64)(f.stack + kStackBytes - 64 - f.linear * 832 % 16384) & ~u64(63);
  void** sp = (void**)top;
  *--sp = nullptr;
  *--sp = (void*)run_fiber;
  sp -= 6;
  memset(sp, 0, 48);
  f.stack_pointer = sp;
}

// ThreadSanitizer takes a fiber for one thread: kept from block to block, it would order blocks that nothing orders.
void renew_fibers() {
  for (int i = 0; i < warps * 32; i++) {
    Fiber& f = fibers[i];
    munmap(f.stack - 4096, kStackBytes + 4096);
    __tsan_destroy_fiber(f.tsan);
    f.stack = nullptr;
    prepare(f);
  }
}

void start_block(u64 index) {
  const Dim3 g = launch->grid, b = launch->block;
  emu_block = {u32(index % g.x), u32(index / g.x % g.y), u32(index / g.x / g.y)};
  live = threads;
  for (Barrier& x : barriers) x.arrived = x.need = x.votes = 0;
  reset_async();
  reset_wgmma();
  reset_warps(warps);
  for (int w = 0; w < 32; w++) ready[w] = resting[w] = 0, priority[w] = pick_random();
  for (int i = 0; i < (int)fibers.size(); i++) {
    Fiber& f = fibers[i];
    f.id = {u32(i % b.x), u32(i / b.x % b.y), u32(i / b.x / b.y)};
    f.state = i < threads ? READY : ENDED;
    f.refused = f.fenced = false;
    f.atomic = f.async_fences = 0;
    f.copies = f.bulk = AsyncGroups();
    if (i < threads) ready[i / 32] |= 1u << i % 32;
    else lane_ended(f);
  }
  release(at_start);
  switch_to(&main_stack, &fibers[pick()]);
}

std::vector<u64> block_order(u64 count) {
  std::vector<u64> order(count);
  for (u64 i = 0; i < count; i++) order[i] = launch->order == DESCENDING ? count - 1 - i : i;
  if (launch->order == RANDOM)
    for (u64 i = count; i > 1; i--) std::swap(order[i - 1], order[pick_random() % i]);
  return order;
}

size window_bytes() { return launch->shared_bytes + 4095 & ~size(4095); }

void run_blocks() {
  // ThreadSanitizer must see fresh memory in every block (its shadow cannot be cleared); otherwise one window is reused.
  const u64 blocks = u64(launch->grid.x) * launch->grid.y * launch->grid.z;
  const size window = window_bytes() + 4096, bytes = window * (__tsan_create_fiber ? blocks : 1);
  char* arena = (char*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  emu_shared = arena;
  for (u64 index : block_order(blocks)) {
    memset(emu_shared, 0xff, launch->shared_bytes);  // NaN in every float type
    start_block(index);
    if (failed) break;
    if (!__tsan_create_fiber) continue;
    emu_shared += window;
    renew_fibers();
  }
  acquire(at_end);
  munmap(arena, bytes);
}

const Range* find(const Range* ranges, int count, u64 address) {  // the last range that starts at or before the address
  const Range* end = ranges + count;
  const Range* r = std::upper_bound(ranges, end, address, [](u64 a, const Range& x) { return a < x.low; });
  return r == ranges ? nullptr : r - 1;
}
}  // namespace

void* order_at(int i) { return emu_shared + window_bytes() + i * 8; }

u32 pick_random() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return u32(random_state >> 20);
}

bool preempting() { return launch->order == RANDOM; }

void block(State state, const Site* site) {
  me().state = state;
  me().site = site;
  run_next();
}

void wake(int linear) {
  fibers[linear].state = READY;
  ready[linear / 32] |= 1u << linear % 32;
}

void yield_as(State state) {
  Fiber& f = me();
  f.state = state;
  (state == READY ? ready : resting)[f.warp] |= 1u << f.lane;
  run_next();
  f.state = READY;
}

void fail(const Site* site, const char* format, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  if (!failed) {
    char where[200];
    const Dim3 t = emu_thread->id;
    snprintf(where, sizeof where, "thread (%u,%u,%u): ", t.x, t.y, t.z);
    message = where;
    if (site) message += "line " + std::to_string(site->line) + ": " + site->text + ": ";
    message += text;
  }
  failed = true;
  leave();
}

char* shared_at(u64 offset, u32 bytes, const Site* site, u32 align) {
  if (offset % align) fail(site, "shared address %llu is not %u-byte aligned", offset, align);
  Site scratch = *site;
  emu_find_shared(offset, bytes, &scratch);
  return emu_shared + offset;
}

char* global_at(u64 address, u32 bytes, const Site* site) {
  Site scratch = *site;
  emu_find_global(address, bytes, &scratch);
  return (char*)address;
}

extern "C" {
void emu_fail(const Site* site, const char* what) { fail(site, "%s", what); }
void emu_hang(const Site* site) { fail(site, "the launch does not end: too many backward branches"); }

void emu_find_global(u64 address, u32 bytes, Site* site) {
  const Range* r = find(launch->global, launch->global_count, address);
  if (r && address + bytes <= r->high) {
    site->low = r->low;
    site->high = r->high;
    return;
  }
  const Range* next = r ? r + 1 : launch->global;
  if (next < launch->global + launch->global_count && (!r || next->low - address < address - r->high)) r = next;
  if (!r) fail(site, "global address 0x%llx (%u bytes): no buffer is registered", address, bytes);
  const s64 offset = s64(address - r->low);
  fail(site, "out of bounds: %u bytes at byte %lld of %s, which has %llu bytes (address 0x%llx)", bytes, offset, r->name,
       r->high - r->low, address);
}

void emu_find_shared(u64 offset, u32 bytes, Site* site) {
  const Range* r = find(launch->shared, launch->shared_count, offset);
  if (r && offset + bytes <= r->high) {
    site->low = r->low;
    site->high = r->high;
    return;
  }
  if (!r) fail(site, "shared address %llu (%u bytes) is before every shared variable", offset, bytes);
  fail(site, "out of bounds: %u bytes at byte %llu of shared %s, which has %llu bytes", bytes, offset - r->low, r->name, r->high - r->low);
}

void emu_yield() { yield_as(RESTING); }

// A fence makes later atomics release, and acquires what the last atomic read (PTX memory model, release and acquire patterns).
void emu_fence() {
  Fiber& f = me();
  if (f.atomic) acquire((void*)f.atomic);
  f.fenced = true;
}

void emu_atomic(u64 address, bool acquires, bool releases) {
  Fiber& f = me();
  if (f.fenced || releases) release((void*)address);
  if (acquires) acquire((void*)address);
  f.atomic = address;
  if (preempting() && pick_random() % 4 == 0) yield_as(READY);
}

void emu_barrier(int id, int count, bool wait, const Site* site) {
  Fiber& f = me();
  Barrier& b = barriers[id];
  if (b.arrived && b.need != count) fail(site, "barrier %d: %d threads expected here, %d by those who came before", id, count, b.need);
  if (b.arrived && !count && b.site != site)
    fail(site, "barrier %d: others wait for it at line %d, so this block diverges", id, b.site->line);
  void* order = order_at(id * 2 + (b.phase & 1));
  release(order);
  b.need = count;
  b.site = site;
  b.arrived++;
  f.barrier = id;
  if (wait) {
    f.state = AT_BARRIER;
    f.site = site;
  }
  release_barrier(id);
  if (!wait) return;
  run_next();
  acquire(order);
}

u32 emu_barrier_reduce(int id, int count, bool predicate, const Site* site, u32* arrived) {
  barriers[id].votes += predicate;
  emu_barrier(id, count, true, site);
  *arrived = barriers[id].last_arrived;
  return barriers[id].last_votes;
}

int emu_launch(const Launch* l) {
  launch = l;
  emu_grid_dim = l->grid;
  emu_block_dim = l->block;
  emu_shared_bytes = l->shared_bytes;
  emu_dynamic_bytes = l->dynamic_bytes;
  emu_budget = l->budget;
  random_state = (l->seed + 1) * 0x9E3779B97F4A7C15ull;
  failed = false;
  threads = int(l->block.x * l->block.y * l->block.z);
  warps = (threads + 31) / 32;
  fibers.resize(std::max<size>(fibers.size(), 1024));
  for (int i = 0; i < (int)fibers.size(); i++) {
    Fiber& f = fibers[i];
    f.linear = i, f.lane = i % 32, f.warp = i / 32, f.state = ENDED;
    if (i < warps * 32 && !f.stack) prepare(f);
  }
  for (int i = 0; i < l->site_count; i++) l->sites[i].low = l->sites[i].high = 0;
  if (__tsan_get_current_fiber) main_tsan = __tsan_get_current_fiber();
  const unsigned control = _mm_getcsr();
  if (l->flush) _mm_setcsr(control | 0x8040);  // flush to zero, denormals are zero
  run_blocks();
  _mm_setcsr(control);
  if (!failed) return 0;
  snprintf(l->error, l->error_bytes, "kernel %s, block (%u,%u,%u), %s", l->name, emu_block.x, emu_block.y, emu_block.z, message.c_str());
  for (int i = 0; i < warps * 32; i++) prepare(fibers[i]);
  return 1;
}
}
