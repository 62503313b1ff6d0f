// Warp operations: a rendezvous of the lanes in the mask, then one of them computes for all.
#include <cstring>

#include "fibers.h"

namespace {
u32 arrived[32], gone[32];

void collective(const Collective* c, u32 mask, const void* in, void* out, const Site* site) {
  Fiber& f = me();
  Fiber* warp = &fibers[f.warp * 32];
  if (!(mask >> f.lane & 1)) fail(site, "%s: lane %d is not in its own mask %08x", c->name, f.lane, mask);
  if (mask & gone[f.warp]) fail(site, "%s: mask %08x names lanes %08x that have ended", c->name, mask, mask & gone[f.warp]);
  if (c->whole_warp && mask != ~0u) fail(site, "%s needs the whole warp, not mask %08x", c->name, mask);
  f.collective = c, f.mask = mask, f.in = in, f.out = out, f.site = site;
  arrived[f.warp] |= 1u << f.lane;
  if (c->orders_memory) release(order_at(32 + f.warp));
  if ((arrived[f.warp] & mask) != mask) {
    block(AT_COLLECTIVE, site);
  } else {
    const void* ins[32];
    void* outs[32];
    for (int l = 0; l < 32; l++) {
      ins[l] = warp[l].in, outs[l] = warp[l].out;
      if ((mask >> l & 1) && (warp[l].site != site || warp[l].mask != mask))
        fail(site, "the warp diverges: lane %d is here with mask %08x, lane %d at line %d, %s, with mask %08x", f.lane, mask, l,
             warp[l].site->line, warp[l].site->text, warp[l].mask);
    }
    if (c->run) c->run(ins, outs, mask);
    arrived[f.warp] &= ~mask;
    for (int l = 0; l < 32; l++)
      if ((mask >> l & 1) && l != f.lane) wake(f.warp * 32 + l);
    if (preempting()) yield_as(READY);
  }
  if (c->orders_memory) acquire(order_at(32 + f.warp));
}

template <class T>
const T& as(const void* p) {
  return *static_cast<const T*>(p);
}

struct ShuffleIn {
  u32 value;
  int source;
};
void run_shuffle(const void* const* in, void* const* out, u32 mask) {
  for (int l = 0; l < 32; l++) {
    if (!(mask >> l & 1)) continue;
    const int s = as<ShuffleIn>(in[l]).source;
    *(u32*)out[l] = mask >> s & 1 ? as<ShuffleIn>(in[s]).value : ~0u;  // a lane outside the mask gives an undefined value
  }
}
void run_ballot(const void* const* in, void* const* out, u32 mask) {
  u32 bits = 0;
  for (int l = 0; l < 32; l++)
    if ((mask >> l & 1) && as<bool>(in[l])) bits |= 1u << l;
  for (int l = 0; l < 32; l++)
    if (mask >> l & 1) *(u32*)out[l] = bits;
}
struct ReduceIn {
  int operation;
  u32 value;
};
u32 reduce(int operation, u32 a, u32 b) {
  switch (operation) {
    case ADD: return a + b;
    case MIN: return s32(a) < s32(b) ? a : b;
    case MAX: return s32(a) > s32(b) ? a : b;
    case UMIN: return a < b ? a : b;
    case UMAX: return a > b ? a : b;
    case AND: return a & b;
    case OR: return a | b;
    default: return a ^ b;
  }
}
void run_reduce(const void* const* in, void* const* out, u32 mask) {
  const int first = __builtin_ctz(mask);
  u32 r = as<ReduceIn>(in[first]).value;
  for (int l = first + 1; l < 32; l++)
    if (mask >> l & 1) r = reduce(as<ReduceIn>(in[l]).operation, r, as<ReduceIn>(in[l]).value);
  for (int l = 0; l < 32; l++)
    if (mask >> l & 1) *(u32*)out[l] = r;
}

// ---- 8x8 matrices of 16-bit elements: lane l holds the elements (l / 4, 2 * (l % 4)) and its right neighbour.
struct MatrixIn {
  char* row;  // the row that this lane addresses
  u32 registers[4];
  int count;
  bool transpose;
};
u16 element(const char* row, int i) {
  u16 v;
  memcpy(&v, row + 2 * i, 2);
  return v;
}
void run_ldmatrix(const void* const* in, void* const* out, u32) {
  const auto& shape = as<MatrixIn>(in[0]);
  for (int m = 0; m < shape.count; m++)
    for (int l = 0; l < 32; l++) {
      auto at = [&](int r, int c) { return u32(element(as<MatrixIn>(in[m * 8 + r]).row, c)); };
      const int i = l / 4, j = l % 4 * 2;
      ((u32*)out[l])[m] = shape.transpose ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
    }
}
void run_stmatrix(const void* const* in, void* const*, u32) {
  const auto& shape = as<MatrixIn>(in[0]);
  for (int m = 0; m < shape.count; m++)
    for (int l = 0; l < 32; l++)
      for (int h = 0; h < 2; h++) {
        const u16 v = as<MatrixIn>(in[l]).registers[m] >> 16 * h;
        const int i = l / 4, j = l % 4 * 2 + h;
        memcpy(as<MatrixIn>(in[m * 8 + (shape.transpose ? j : i)]).row + 2 * (shape.transpose ? i : j), &v, 2);
      }
}
void run_movmatrix(const void* const* in, void* const* out, u32) {
  auto at = [&](int r, int c) { return as<u32>(in[r * 4 + c / 2]) >> c % 2 * 16 & 0xffff; };
  for (int l = 0; l < 32; l++) *(u32*)out[l] = at(l % 4 * 2, l / 4) | at(l % 4 * 2 + 1, l / 4) << 16;
}

// ---- mma.sync m16n8kK with accumulators of 32 bits. Products and sums in double, rounded once, but for bytes: tensor cores round
// more often.
struct MmaIn {
  int type, k;
  const u32 *a, *b, *c;
};
void run_mma(const void* const* in, void* const* out, u32) {
  const auto& shape = as<MmaIn>(in[0]);
  const int each = shape.type <= F16 ? 2 : shape.type == TF32 ? 1 : 4, bits = 32 / each, steps = shape.k / (4 * each);
  static double a[16][32], b[32][8];
  for (int l = 0; l < 32; l++)
    for (int s = 0; s < steps; s++)
      for (int e = 0; e < each; e++) {
        const int k = l % 4 * each + e + s * 4 * each;
        auto value = [&](u32 r) { return double(emu_small_to_float(shape.type, each == 1 ? r : r >> bits * e & ((1u << bits) - 1))); };
        a[l / 4][k] = value(as<MmaIn>(in[l]).a[2 * s]);
        a[l / 4 + 8][k] = value(as<MmaIn>(in[l]).a[2 * s + 1]);
        b[k][l / 4] = value(as<MmaIn>(in[l]).b[s]);
      }
  for (int l = 0; l < 32; l++)
    for (int e = 0; e < 4; e++) {
      const int i = l / 4 + e / 2 * 8, j = l % 4 * 2 + e % 2;
      double terms[32], d = emu_accumulator(shape.type, as<MmaIn>(in[l]).c[e]);
      for (int k = 0; k < shape.k; k++) terms[k] = a[i][k] * b[k][j];
      if (each == 4) d = emu_sum_of_bytes(shape.type, d, terms, shape.k);
      else for (int k = 0; k < shape.k; k++) d += terms[k];
      ((u32*)out[l])[e] = emu_accumulated(shape.type, d);
    }
}

const Collective kBarrier{"bar.warp.sync", false, true, nullptr}, kShuffle{"shfl.sync", false, false, run_shuffle},
    kBallot{"vote.sync", false, false, run_ballot}, kReduce{"redux.sync", false, false, run_reduce},
    kLdmatrix{"ldmatrix", true, false, run_ldmatrix}, kStmatrix{"stmatrix", true, false, run_stmatrix},
    kMovmatrix{"movmatrix", true, false, run_movmatrix}, kMma{"mma.sync", true, false, run_mma};
}  // namespace

void reset_warps(int warps) {
  for (int w = 0; w < warps; w++) arrived[w] = gone[w] = 0;
}
void lane_ended(const Fiber& f) { gone[f.warp] |= 1u << f.lane; }

extern "C" {
void emu_warp_barrier(u32 mask, const Site* site) { collective(&kBarrier, mask, nullptr, nullptr, site); }
u32 emu_shuffle(u32 value, int source, u32 mask, const Site* site) {
  ShuffleIn in{value, source};
  u32 out;
  collective(&kShuffle, mask, &in, &out, site);
  return out;
}
u32 emu_ballot(bool predicate, u32 mask, const Site* site) {
  u32 out;
  collective(&kBallot, mask, &predicate, &out, site);
  return out;
}
u32 emu_reduce(int operation, u32 value, u32 mask, const Site* site) {
  ReduceIn in{operation, value};
  u32 out;
  collective(&kReduce, mask, &in, &out, site);
  return out;
}
u32 emu_active() { return ~gone[me().warp]; }

void emu_ldmatrix(u32* out, int count, bool transpose, u32 offset, const Site* site) {
  const bool addresses = me().lane < 8 * count;  // of the other lanes the address is ignored
  MatrixIn in{addresses ? shared_at(offset, 16, site, 16) : nullptr, {}, count, transpose};
  collective(&kLdmatrix, ~0u, &in, out, site);
}
void emu_stmatrix(const u32* values, int count, bool transpose, u32 offset, const Site* site) {
  const bool addresses = me().lane < 8 * count;
  MatrixIn in{addresses ? shared_at(offset, 16, site, 16) : nullptr, {}, count, transpose};
  memcpy(in.registers, values, 4 * count);
  if (addresses) emu_generic_write(offset, 16);
  collective(&kStmatrix, ~0u, &in, nullptr, site);
}
u32 emu_movmatrix(u32 value, const Site* site) {
  u32 out;
  collective(&kMovmatrix, ~0u, &value, &out, site);
  return out;
}
void emu_mma(int type, int k, u32* d, const u32* a, const u32* b, const u32* c, const Site* site) {
  MmaIn in{type, k, a, b, c};
  collective(&kMma, ~0u, &in, d, site);
}
}
