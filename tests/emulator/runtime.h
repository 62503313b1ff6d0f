// The interface between translated kernels and the runtime (fibers.cpp, warp.cpp, async.cpp).
#pragma once
typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
typedef unsigned long size;

struct Dim3 {
  u32 x, y, z;
};

// One CUDA thread of the block that runs.
struct Thread {
  Dim3 id;
  int linear, lane, warp;
  char* stack;
};

// An instruction: where an error message points, and the memory range that it touched last.
struct Site {
  int line;
  const char* text;
  u64 low, high;
};

struct Range {
  u64 low, high;
  const char* name;
};

enum Order { ASCENDING, DESCENDING, RANDOM };

struct Launch {
  void (*kernel)(void**);
  void** arguments;
  const char* name;
  Dim3 grid, block;
  u32 shared_bytes, dynamic_bytes;  // of the whole window; of the dynamic part at its end
  const Range* shared;              // the shared variables, offsets in the window
  int shared_count;
  const Range* global;  // the registered buffers, ascending
  int global_count;
  Site* sites;
  int site_count;
  int order, lazy, flush;  // lazy: asynchronous copies land as late as they may; flush: subnormals are zero
  u64 seed;
  s64 budget;  // backward branches before a launch counts as hanging
  char* error;
  int error_bytes;
};

constexpr size kStackBytes = 256 << 10;
constexpr u32 kSharedLimit = 232448;  // 227 KiB, the most of any device so far

extern "C" {
extern Thread* emu_thread;
extern Dim3 emu_block, emu_block_dim, emu_grid_dim;
extern char* emu_shared;
extern u32 emu_shared_bytes, emu_dynamic_bytes;
extern s64 emu_budget;

int emu_launch(const Launch*);
[[noreturn]] void emu_fail(const Site*, const char* what);
[[noreturn]] void emu_hang(const Site*);
void emu_find_global(u64 address, u32 bytes, Site*);  // sets the site's range or fails
void emu_find_shared(u64 offset, u32 bytes, Site*);

void emu_yield();
void emu_fence();
void emu_atomic(u64 address, bool acquire, bool release);
void emu_barrier(int id, int count, bool wait, const Site*);
u32 emu_barrier_reduce(int id, int count, bool predicate, const Site*, u32* arrived);

void emu_warp_barrier(u32 mask, const Site*);
u32 emu_shuffle(u32 value, int source, u32 mask, const Site*);
u32 emu_ballot(bool predicate, u32 mask, const Site*);
u32 emu_reduce(int operation, u32 value, u32 mask, const Site*);
u32 emu_active(void);
void emu_ldmatrix(u32* out, int count, bool transpose, u32 offset, const Site*);
void emu_stmatrix(const u32* in, int count, bool transpose, u32 offset, const Site*);
u32 emu_movmatrix(u32 value, const Site*);
void emu_mma(int type, int k, u32* d, const u32* a, const u32* b, const u32* c, const Site*);

void emu_cp_async(u32 shared, u64 global, int bytes, int valid, const Site*);
void emu_cp_async_commit(bool bulk);
void emu_cp_async_wait(int groups, bool bulk, const Site*);
void emu_cp_async_arrive(u32 barrier, bool count, const Site*);
void emu_mbarrier_init(u32 barrier, u32 count, const Site*);
void emu_mbarrier_invalidate(u32 barrier, const Site*);
u64 emu_mbarrier_arrive(u32 barrier, u32 count, u32 expect, const Site*);
void emu_mbarrier_expect(u32 barrier, u32 bytes, const Site*);
bool emu_mbarrier_wait(u32 barrier, u32 parity, bool block, const Site*);
void emu_bulk_load(u32 shared, u64 global, u32 bytes, u32 barrier, const Site*);
void emu_bulk_store(u64 global, u32 shared, u32 bytes, const Site*);
void emu_tensor_load(u32 shared, u64 map, int rank, const s32* at, u32 barrier, const Site*);
void emu_tensor_store(u64 map, u32 shared, int rank, const s32* at, const Site*);
void emu_async_fence(void);  // fence.proxy.async
void emu_generic_write(u32 shared, u32 bytes);
void emu_wgmma(int type, int n, u32* d, const u32* a, u64 a_descriptor, u64 b_descriptor, int flags, const Site*);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int groups, const Site*);

float emu_fma_directed(float a, float b, float c, int mode);
float emu_unary(int function, float x);
u16 emu_float_to_small(int type, float x);
float emu_small_to_float(int type, u32 bits);
double emu_accumulator(int type, u32 bits);  // the registers of sums: float32, of integers int32
u32 emu_accumulated(int type, double sum);
double emu_sum_of_bytes(int type, double start, const double* terms, int count);
}

enum Element { BF16, F16, TF32, E4M3, E5M2, S8 };
enum Reduction { ADD, MIN, MAX, UMIN, UMAX, AND, OR, XOR };
enum Unary { EX2, LG2, SIN, COS, TANH };
enum WgmmaFlags { KEEP_D = 1, NEGATE_A = 2, NEGATE_B = 4, TRANSPOSE_A = 8, TRANSPOSE_B = 16 };
