// wgmma.mma_async: the product of a warpgroup (128 threads), operands described by shared memory descriptors.
// The layouts are the canonical ones of the PTX manual, "Asynchronous warpgroup level matrix shared memory layout".
// Computed when all four warps have issued; the operands must then stay unchanged until the group is waited for.
#include <cstring>

#include "fibers.h"

void check_async_read(u32 offset, u32 bytes, const Site* site);

namespace {
struct Operand {
  u64 descriptor;
  int rows, k, type;
  bool transposed;  // rows are contiguous instead of k
};

struct Issue {
  u32* d;
  u32 a[4];
  bool a_in_registers;
  u64 a_descriptor, b_descriptor;
  int flags;
};

struct Pending {
  Operand operand;
  std::vector<float> values;
  const Site* site;
};

struct Warpgroup {
  int arrived = 0;
  Issue issues[128];
  std::vector<Pending> open;
  std::vector<std::vector<Pending>> committed;
};
Warpgroup groups[8];

int bytes_of(int type) { return type <= F16 ? 2 : type == TF32 ? 4 : 1; }

u32 address(const Operand& o, int row, int k) {
  const u64 d = o.descriptor;
  const u32 start = (d & 0x3fff) << 4, leading = (d >> 16 & 0x3fff) << 4, stride = (d >> 32 & 0x3fff) << 4, kind = d >> 62;
  const u32 bytes = bytes_of(o.type), width = kind == 1 ? 128 : kind == 2 ? 64 : kind == 3 ? 32 : 16;
  u32 a;
  if (o.transposed) {
    const u32 contiguous = row * bytes % width, outer = row * bytes / width;
    a = start + contiguous + k % 8 * width + outer * (kind ? leading : stride) + k / 8 * (kind ? stride : leading);
  } else {
    a = start + row / 8 * stride + row % 8 * width + (kind ? k * bytes : k * bytes / 16 * leading + k * bytes % 16);
  }
  const u32 mask = width / 16 - 1;
  return a ^ (a >> 7 & mask) << 4;
}

std::vector<float> load(const Operand& o, const Site* site, bool first) {
  std::vector<float> values(size(o.rows) * o.k);
  const u32 bytes = bytes_of(o.type);
  for (int r = 0; r < o.rows; r++)
    for (int k = 0; k < o.k; k++) {
      const u32 at = address(o, r, k);
      if (first && at % 16 == 0) {
        const char* p = shared_at(at, 16, site);
        check_async_read(at, 16, site);
        touch_read(p, 16);
      }
      u32 bits = 0;
      memcpy(&bits, emu_shared + at, bytes);
      values[size(r) * o.k + k] = emu_small_to_float(o.type, bits);
    }
  return values;
}

void load_registers(const Warpgroup& g, int type, int each, std::vector<float>& a, int k) {
  for (int t = 0; t < 128; t++)
    for (int r = 0; r < 4; r++)
      for (int e = 0; e < each; e++) {
        const int row = t / 32 * 16 + t % 32 / 4 + r % 2 * 8, col = t % 4 * each + e + r / 2 * 4 * each, bits = 32 / each;
        const u32 v = each == 1 ? g.issues[t].a[r] : g.issues[t].a[r] >> bits * e & ((1u << bits) - 1);
        a[row * k + col] = emu_small_to_float(type, v);
      }
}

void run(Warpgroup& g, int type, int n, const Site* site) {
  const Issue& i = g.issues[0];
  const int each = 4 / bytes_of(type), k = 32 / bytes_of(type);
  std::vector<float> a(64 * k);
  if (i.a_in_registers) {
    load_registers(g, type, each, a, k);
  } else {
    const Operand o{i.a_descriptor, 64, k, type, bool(i.flags & TRANSPOSE_A)};
    a = load(o, site, true);
    g.open.push_back({o, a, site});
  }
  const Operand o{i.b_descriptor, n, k, type, bool(i.flags & TRANSPOSE_B)};
  const std::vector<float> b = load(o, site, true);
  g.open.push_back({o, b, site});
  const double sign = (i.flags & NEGATE_A) / NEGATE_A == (i.flags & NEGATE_B) / NEGATE_B ? 1 : -1;
  std::vector<double> right(size(k) * n), d(n);
  for (int c = 0; c < n; c++)
    for (int x = 0; x < k; x++) right[size(x) * n + c] = b[size(c) * k + x];
  for (int row = 0; row < 64; row++) {
    auto cell = [&](int c) -> u32& { return g.issues[row / 16 * 32 + row % 8 * 4 + c % 8 / 2].d[c / 8 * 4 + row / 8 % 2 * 2 + c % 2]; };
    for (int c = 0; c < n; c++) d[c] = i.flags & KEEP_D ? emu_accumulator(type, cell(c)) : 0.0;
    for (int c = 0; c < n && each == 4; c++) {
      double terms[32];
      for (int x = 0; x < k; x++) terms[x] = sign * a[row * k + x] * right[size(x) * n + c];
      d[c] = emu_sum_of_bytes(type, d[c], terms, k);
    }
    for (int x = 0; x < k && each != 4; x++) {
      const double v = sign * a[row * k + x];
      for (int c = 0; c < n; c++) d[c] += v * right[size(x) * n + c];
    }
    for (int c = 0; c < n; c++) cell(c) = emu_accumulated(type, d[c]);
  }
}

void verify(const std::vector<Pending>& group, const Site* site) {
  for (const Pending& p : group) {
    const std::vector<float> now = load(p.operand, p.site, false);
    if (memcmp(now.data(), p.values.data(), now.size() * sizeof(float)))
      fail(site, "an operand of the wgmma at line %d was overwritten before this wait", p.site->line);
  }
}
}  // namespace

void reset_wgmma() {
  for (Warpgroup& g : groups) g.arrived = 0, g.open.clear(), g.committed.clear();
}

extern "C" {
void emu_wgmma(int type, int n, u32* d, const u32* a, u64 a_descriptor, u64 b_descriptor, int flags, const Site* site) {
  Fiber& f = me();
  Warpgroup& g = groups[f.linear / 128];
  Issue& mine = g.issues[f.linear % 128];
  mine = {d, {}, a != nullptr, a_descriptor, b_descriptor, flags};
  if (a) memcpy(mine.a, a, sizeof mine.a);
  f.site = site;
  if (++g.arrived < 128) {
    block(AT_WARPGROUP, site);
    return;
  }
  g.arrived = 0;
  const int first = f.linear / 128 * 128;
  for (int t = 0; t < 128; t++) {
    const Issue& x = g.issues[t];
    if (fibers[first + t].site != site || x.b_descriptor != b_descriptor || x.flags != flags || (!a && x.a_descriptor != a_descriptor))
      fail(site, "the warpgroup disagrees on the instruction or its descriptors (threads %d and %d)", f.linear, first + t);
  }
  run(g, type, n, site);
  for (int t = 0; t < 128; t++)
    if (fibers[first + t].state == AT_WARPGROUP) wake(first + t);
}

void emu_wgmma_commit() {
  Warpgroup& g = groups[me().linear / 128];
  if (me().linear % 128) return;
  g.committed.push_back(std::move(g.open));
  g.open.clear();
}

void emu_wgmma_wait(int keep, const Site* site) {
  if (launch->lazy) yield_as(RESTING);  // whoever may overwrite the operands too early does it now
  Warpgroup& g = groups[me().linear / 128];
  if (me().linear % 128) return;
  while (int(g.committed.size()) > keep) {
    verify(g.committed.front(), site);
    g.committed.erase(g.committed.begin());
  }
}
}
