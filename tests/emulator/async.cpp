// Asynchronous copies: cp.async groups, mbarriers, bulk and tensor copies (TMA). Until a copy lands its destination holds NaN.
// Eager copies land at once, lazy ones when the wait demands it; with a random schedule, somewhere between.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "fibers.h"

namespace {
struct Mbarrier {
  u64 pending : 14, count : 14, phase : 1, magic : 13;
  s64 expected : 22;  // bytes that have yet to land
};
static_assert(sizeof(Mbarrier) == 8);
constexpr u64 kMagic = 0x1234;

// A tensor map as EmulatedDevice packs it, in the place of the driver's opaque 128 bytes. Dimension 0 is contiguous.
struct TensorMap {
  u64 magic, base;
  u32 rank : 16, rounded : 16, element;  // rounded: floats become tf32
  u64 dims[5], strides[5];
  u32 box[5], swizzle;  // swizzle: 0 none, 1, 2, 3: 32, 64, 128 bytes
};
static_assert(sizeof(TensorMap) == 128);
constexpr u64 kMapMagic = 0x70616d726f736e65;

struct Write {
  int thread = -1;
  u32 fences = 0;
};
std::vector<Landing> in_flight;
std::vector<Write> generic_writes;  // the last generic store to every 16 bytes of shared memory
void* landing_tsan;

Mbarrier* barrier_at(u32 offset, const Site* site) {
  auto* b = (Mbarrier*)shared_at(offset, 8, site, 8);
  if (b->magic != kMagic) fail(site, "there is no initialised mbarrier at shared address %u", offset);
  return b;
}

void complete(Mbarrier* b) {
  if (b->pending || b->expected) return;
  b->phase ^= 1;
  b->pending = b->count;
  for (const Fiber& f : fibers)
    if (f.state == AT_MBARRIER) wake(f.linear);
}

// Starts a copy outside any group. For ThreadSanitizer it runs in a thread of its own, ordered after its issue.
void start(Landing landing) {
  auto order = std::make_shared<char>();
  release(order.get());
  in_flight.push_back([order, landing = std::move(landing)] {
    void* running = __tsan_get_current_fiber ? __tsan_get_current_fiber() : nullptr;
    if (running) {
      if (!landing_tsan) landing_tsan = __tsan_create_fiber(0);
      __tsan_switch_to_fiber(landing_tsan, 1);
      acquire(order.get());
    }
    landing();
    if (running) __tsan_switch_to_fiber(running, 1);
  });
  if (!launch->lazy) land_one();
}

void poison(char* p, u32 bytes) {
  memset(p, 0xff, bytes);
  touch_write(p, bytes);
}

void land_all(AsyncGroups& groups, size keep) {
  while (groups.committed.size() > keep) {
    auto group = std::move(groups.committed.front());
    groups.committed.erase(groups.committed.begin());
    for (Landing& l : group) l();
  }
}

void forget_writes(u32 offset, u32 bytes) {
  for (u32 i = offset / 16; i < (offset + bytes + 15) / 16 && i < generic_writes.size(); i++) generic_writes[i] = Write();
}

const TensorMap& map_at(u64 address, const Site* site) {
  const auto& m = *(const TensorMap*)address;
  if (m.magic != kMapMagic) fail(site, "the operand is not a tensor map (pass it by value as a __grid_constant__ parameter)");
  return m;
}

// To nearest even; infinities and NaN stay.
void round_to_tf32(void* p) {
  u32 bits;
  memcpy(&bits, p, 4);
  if ((bits >> 23 & 0xff) != 0xff) bits += 0xfff + (bits >> 13 & 1), bits &= ~0x1fffu;
  memcpy(p, &bits, 4);
}

u32 swizzled(u32 address, u32 kind) {
  const u32 mask = (1u << kind) - 1;
  return address ^ (address >> 7 & mask) << 4;
}

// Calls f(shared offset, global address or 0 outside the tensor, bytes) for every 16 bytes of the box at `at`.
template <class F>
void walk(const TensorMap& m, u32 shared, const s32* at, F f) {
  const u32 row = m.box[0] * m.element;
  u32 rows = 1;
  for (u32 d = 1; d < m.rank; d++) rows *= m.box[d];
  for (u32 r = 0; r < rows; r++) {
    u64 address = m.base;
    bool inside = true;
    u32 rest = r;
    for (u32 d = 1; d < m.rank; d++) {
      const s64 i = at[d] + s64(rest % m.box[d]);
      rest /= m.box[d];
      inside &= i >= 0 && u64(i) < m.dims[d];
      address += u64(i) * m.strides[d];
    }
    for (u32 c = 0; c < row; c += m.element) {
      const s64 i = at[0] + s64(c / m.element);
      const bool in = inside && i >= 0 && u64(i) < m.dims[0];
      f(swizzled(shared + r * row + c, m.swizzle), in ? address + u64(i) * m.element : 0, m.element);
    }
  }
}

u32 box_bytes(const TensorMap& m) {
  u32 bytes = m.element;
  for (u32 d = 0; d < m.rank; d++) bytes *= m.box[d];
  return bytes;
}

const TensorMap& checked_map(u64 address, int rank, u32 shared, const Site* site) {
  const TensorMap& m = map_at(address, site);
  if (int(m.rank) != rank) fail(site, "the tensor map has %u dimensions, the instruction %d", u32(m.rank), rank);
  const u32 align = m.swizzle == 3 ? 1024 : m.swizzle == 2 ? 512 : m.swizzle == 1 ? 256 : 128;
  shared_at(shared, box_bytes(m), site, align);
  return m;
}

void landed(u32 barrier, u32 bytes) {
  auto* b = (Mbarrier*)(emu_shared + barrier);
  release(b);
  b->expected -= bytes;
  complete(b);
}
}  // namespace

bool land_one() {
  if (in_flight.empty()) return false;
  const size n = in_flight.size(), i = preempting() ? pick_random() % n : launch->order == DESCENDING ? n - 1 : 0;
  Landing l = std::move(in_flight[i]);
  in_flight.erase(in_flight.begin() + long(i));
  l();
  return true;
}

void reset_async() {
  in_flight.clear();
  generic_writes.assign(emu_shared_bytes / 16 + 1, Write());
}

bool copies_in_flight(const Fiber& f) {
  return !f.copies.open.empty() || !f.copies.committed.empty() || !f.bulk.open.empty() || !f.bulk.committed.empty();
}

// Fails when the asynchronous proxy (TMA, wgmma) reads what a thread stored without a fence.proxy.async after it.
void check_async_read(u32 offset, u32 bytes, const Site* site) {
  for (u32 i = offset / 16; i < (offset + bytes + 15) / 16; i++) {
    const Write& w = generic_writes[i];
    if (w.thread >= 0 && fibers[w.thread].async_fences == w.fences)
      fail(site, "reads shared byte %u, which thread %d stored without a fence.proxy.async after it", i * 16, w.thread);
  }
}

extern "C" {
void emu_generic_write(u32 shared, u32 bytes) {
  for (u32 i = shared / 16; i < (shared + bytes + 15) / 16; i++) generic_writes[i] = {me().linear, me().async_fences};
}
void emu_async_fence() { me().async_fences++; }

void emu_cp_async(u32 shared, u64 global, int bytes, int valid, const Site* site) {
  if (valid > bytes) fail(site, "source size %d of a copy of %d bytes", valid, bytes);
  char* to = shared_at(shared, bytes, site, bytes);
  if (global % bytes) fail(site, "global address 0x%llx is not %d-byte aligned", global, bytes);
  const char* from = valid ? global_at(global, valid, site) : nullptr;
  auto copy = [=] {
    if (valid) memcpy(to, from, valid), touch_read(from, valid);
    memset(to + valid, 0, bytes - valid);
    touch_write(to, bytes);
  };
  emu_generic_write(shared, bytes);
  if (launch->lazy) {
    poison(to, bytes);
    me().copies.open.push_back(copy);
  } else {
    copy();
    me().copies.open.push_back([=] { touch_write(to, bytes); });
  }
}

void emu_cp_async_commit(bool bulk) {
  AsyncGroups& g = bulk ? me().bulk : me().copies;
  g.committed.push_back(std::move(g.open));
  g.open.clear();
}

void emu_cp_async_wait(int groups, bool bulk, const Site*) { land_all(bulk ? me().bulk : me().copies, groups); }

void emu_cp_async_arrive(u32 barrier, bool count, const Site* site) {
  Mbarrier* b = barrier_at(barrier, site);
  if (count) b->pending++;
  emu_cp_async_commit(false);
  auto copies = std::make_shared<AsyncGroups>(std::move(me().copies));
  me().copies = AsyncGroups();
  start([copies, b] {
    land_all(*copies, 0);
    release(b);
    b->pending--;
    complete(b);
  });
}

void emu_mbarrier_init(u32 barrier, u32 count, const Site* site) {
  auto* b = (Mbarrier*)shared_at(barrier, 8, site, 8);
  if (!count || count >= 1 << 14) fail(site, "an mbarrier of %u arrivals", count);
  b->pending = b->count = count;
  b->phase = b->expected = 0;
  b->magic = kMagic;
  touch_write(b, 8);
}
void emu_mbarrier_invalidate(u32 barrier, const Site* site) { barrier_at(barrier, site)->magic = 0; }

u64 emu_mbarrier_arrive(u32 barrier, u32 count, u32 expect, const Site* site) {
  Mbarrier* b = barrier_at(barrier, site);
  release(b);
  if (b->pending < count) fail(site, "more arrivals than the mbarrier at shared address %u expects", barrier);
  const u64 phase = b->phase;
  b->expected += expect;
  b->pending -= count;
  complete(b);
  return phase;
}
void emu_mbarrier_expect(u32 barrier, u32 bytes, const Site* site) { barrier_at(barrier, site)->expected += bytes; }

// test_wait reports; try_wait may report false too early, which lazy launches do once, and otherwise blocks.
bool emu_mbarrier_wait(u32 barrier, u32 parity, bool blocks, const Site* site) {
  Mbarrier* b = barrier_at(barrier, site);
  Fiber& f = me();
  if (b->phase == parity && (!blocks || (launch->lazy && !f.refused))) {
    f.refused = true;
    yield_as(RESTING);
    if (b->phase == parity) return false;
  }
  while (b->phase == parity) block(AT_MBARRIER, site);
  f.refused = false;
  acquire(b);
  return true;
}

void emu_bulk_load(u32 shared, u64 global, u32 bytes, u32 barrier, const Site* site) {
  if (bytes % 16) fail(site, "a bulk copy of %u bytes, not a multiple of 16", bytes);
  char* to = shared_at(shared, bytes, site, 16);
  if (global % 16) fail(site, "global address 0x%llx is not 16-byte aligned", global);
  const char* from = global_at(global, bytes, site);
  barrier_at(barrier, site);
  forget_writes(shared, bytes);
  poison(to, bytes);
  start([=] {
    memcpy(to, from, bytes);
    touch_read(from, bytes);
    touch_write(to, bytes);
    landed(barrier, bytes);
  });
}

void emu_bulk_store(u64 global, u32 shared, u32 bytes, const Site* site) {
  const char* from = shared_at(shared, bytes, site, 16);
  char* to = global_at(global, bytes, site);
  check_async_read(shared, bytes, site);
  auto copy = [=] {
    memcpy(to, from, bytes);
    touch_read(from, bytes);
    touch_write(to, bytes);
  };
  if (!launch->lazy) copy();
  me().bulk.open.push_back(launch->lazy ? Landing(copy) : Landing([] {}));
}

void emu_tensor_load(u32 shared, u64 map, int rank, const s32* at, u32 barrier, const Site* site) {
  const TensorMap m = checked_map(map, rank, shared, site);
  const u32 bytes = box_bytes(m);
  barrier_at(barrier, site);
  forget_writes(shared, bytes);
  poison(emu_shared + shared, bytes);
  std::array<s32, 5> corner{};
  std::copy(at, at + rank, corner.begin());
  start([=] {
    walk(m, shared, corner.data(), [&](u32 to, u64 from, u32 n) {
      if (from) memcpy(emu_shared + to, global_at(from, n, site), n), touch_read((void*)from, n);
      else memset(emu_shared + to, 0, n);
      if (m.rounded) round_to_tf32(emu_shared + to);
    });
    touch_write(emu_shared + shared, bytes);
    landed(barrier, bytes);
  });
}

void emu_tensor_store(u64 map, u32 shared, int rank, const s32* at, const Site* site) {
  const TensorMap m = checked_map(map, rank, shared, site);
  check_async_read(shared, box_bytes(m), site);
  std::array<s32, 5> corner{};
  std::copy(at, at + rank, corner.begin());
  auto copy = [=] {
    walk(m, shared, corner.data(), [&](u32 from, u64 to, u32 n) {
      if (to) memcpy(global_at(to, n, site), emu_shared + from, n), touch_write((void*)to, n);
    });
    touch_read(emu_shared + shared, box_bytes(m));
  };
  if (!launch->lazy) copy();
  me().bulk.open.push_back(launch->lazy ? Landing(copy) : Landing([] {}));
}
}
