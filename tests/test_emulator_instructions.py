"""What single instructions compute on the emulator, against NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import emulator
import ml_dtypes
import numpy as np
import pytest
from emulator import SCHEDULES, Buffer, EmulatorError, Module, Schedule
from emulator.device import tensor_map

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
Array = np.ndarray
U32, F32, I32 = np.uint32, np.float32, np.int32
RNG = np.random.default_rng(7)
WORDS = np.concatenate([RNG.integers(0, 1 << 32, 240, dtype=np.uint64), [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32, 33] * 2]).astype(
    U32
)
OTHER = np.roll(WORDS, 5)
FLOATS = np.concatenate(
    [RNG.standard_normal(240) * np.exp(RNG.uniform(-20, 20, 240)), [0, -0.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30] * 2]
)
FLOATS = FLOATS[:256].astype(F32)


def asm(text: str, out: str, *inputs: str) -> str:
    """A CUDA expression statement that sets r by one instruction over the named inputs."""
    letters = ", ".join(f'"{c}"({v})' for c, v in (i.split(":") for i in inputs))
    return f'asm volatile("{text}" : "={out}"(r) : {letters});'


def popcount(x: Array) -> Array:
    return np.array([bin(v).count("1") for v in x.astype(np.uint64)])


def signed(x: Array) -> Array:
    return x.view(I32).astype(np.int64)


def mod32(x: Array) -> Array:
    return (x & 0xFFFFFFFF).astype(U32)


def wide(x: Array) -> Array:
    return x.astype(np.uint64)


# name -> (statement over u32 a, b that sets u32 r, its meaning)
INTEGER: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "add": ("r = a + b;", lambda a, b: mod32(wide(a) + wide(b))),
    "mul": ("r = a * b;", lambda a, b: mod32(wide(a) * wide(b))),
    "mulhi": ("r = __umulhi(a, b);", lambda a, b: (wide(a) * wide(b) >> np.uint64(32)).astype(U32)),
    "mulhi_s": ("r = __mulhi((int)a, (int)b);", lambda a, b: mod32(signed(a) * signed(b) >> 32)),
    "div": ("r = b ? a / b : 7;", lambda a, b: np.where(b, a // np.maximum(b, 1), 7).astype(U32)),
    "rem_s": ("r = (int)a % 1000;", lambda a, b: np.fmod(signed(a), 1000).astype(I32).view(U32)),
    "min_s": ("r = min((int)a, (int)b);", lambda a, b: mod32(np.minimum(signed(a), signed(b)))),
    "max_u": ("r = max(a, b);", np.maximum),
    "abs": ("r = abs((int)a);", lambda a, b: mod32(np.abs(signed(a)))),
    "shl": (asm("shl.b32 %0, %1, %2;", "r", "r:a", "r:b & 63"), lambda a, b: mod32(np.where(b & 63 > 31, 0, wide(a) << wide(b & 31)))),
    "shr_s": (asm("shr.s32 %0, %1, %2;", "r", "r:a", "r:b & 63"), lambda a, b: mod32(signed(a) >> np.minimum(b & 63, 31).astype(np.int64))),
    "shf": ("r = __funnelshift_l(a, b, 7);", lambda a, b: mod32((wide(b) << np.uint64(7)) | (wide(a) >> np.uint64(25)))),
    "popc": ("r = __popc(a);", lambda a, b: popcount(a)),
    "clz": ("r = __clz(a);", lambda a, b: np.array([32 - int(v).bit_length() for v in a])),
    "brev": ("r = __brev(a);", lambda a, b: np.array([int(f"{v:032b}"[::-1], 2) for v in a])),
    "prmt": ("r = __byte_perm(a, b, 0x5410);", lambda a, b: mod32((wide(b) & 0xFFFF) << np.uint64(16) | wide(a) & 0xFFFF)),
    "bfe_s": (asm("bfe.s32 %0, %1, 4, 8;", "r", "r:a"), lambda a, b: mod32((a >> 4 & 255).astype(np.int8).astype(np.int64))),
    "bfi": (asm("bfi.b32 %0, %1, %2, 4, 8;", "r", "r:a", "r:b"), lambda a, b: (b & ~U32(0xFF0)) | (a & 255) << 4),
    "lop3": (asm("lop3.b32 %0, %1, %2, 85, 0xca;", "r", "r:a", "r:b"), lambda a, b: (a & b) | (~a & U32(85))),
    "dp4a": (
        "r = __dp4a((int)a, (int)b, 3);",
        lambda a, b: mod32((a.view(np.int8).astype(np.int64) * b.view(np.int8)).reshape(-1, 4).sum(1) + 3),
    ),
    "cvt_s8": ("r = (signed char)a;", lambda a, b: mod32(a.astype(np.uint8).view(np.int8).astype(np.int64))),
    "wide": ("r = (u32)((u64)a * b >> 13);", lambda a, b: mod32(wide(a) * wide(b) >> np.uint64(13))),
    "setp": ("r = ((int)a < (int)b) + 2 * (a < b);", lambda a, b: (signed(a) < signed(b)) + 2 * (a < b)),
}
# name -> (statement over float a, b that sets float r, its meaning in float64, relative tolerance)
FLOATING: dict[str, tuple[str, Callable[[Array, Array], Array], float]] = {
    "fadd": ("r = a + b;", np.add, 6e-8),
    "fma": ("r = fmaf(a, b, 1.5f);", lambda a, b: a * b + 1.5, 6e-8),
    "fdiv": ("r = a / b;", np.divide, 2e-7),
    "fsqrt": ("r = sqrtf(a);", np.sqrt, 1e-7),
    "frsqrt": ("r = rsqrtf(a);", lambda a, b: 1 / np.sqrt(a), 3e-7),
    "fmin": ("r = fminf(a, b);", np.fmin, 0),
    "fmax": ("r = fmaxf(a, b);", np.fmax, 0),
    "fabs": ("r = fabsf(a);", lambda a, b: np.abs(a), 0),
    "rint": ("r = rintf(a);", lambda a, b: np.rint(a), 0),
    "floor": ("r = floorf(a);", lambda a, b: np.floor(a), 0),
    "trunc": ("r = truncf(a);", lambda a, b: np.trunc(a), 0),
    "exp": ("r = expf(a);", lambda a, b: np.exp(a), 3e-7),
    "log": ("r = logf(fabsf(a));", lambda a, b: np.log(np.abs(a)), 3e-7),
    "tanh": ("r = tanhf(a);", lambda a, b: np.tanh(a), 4e-7),
    "sin": ("r = sinf(fmodf(a, 100.f));", lambda a, b: np.sin(np.fmod(a, 100)), 1e-6),
    "pow": ("r = powf(fabsf(a), 0.3f);", lambda a, b: np.abs(a) ** np.float64(F32(0.3)), 1e-6),
    "ex2": (asm("ex2.approx.ftz.f32 %0, %1;", "f", "f:a"), lambda a, b: np.exp2(a), 3e-7),
    "tanh_approx": (asm("tanh.approx.f32 %0, %1;", "f", "f:a"), lambda a, b: np.tanh(a), 5e-4),
    "saturate": ("r = __saturatef(a);", lambda a, b: np.where(np.isnan(a), 0, np.clip(a, 0, 1)), 0),
    "to_int": ("r = (float)(int)a;", lambda a, b: np.where(np.isnan(a), 0, np.clip(np.trunc(a), -(2.0**31), 2.0**31 - 1)), 1e-7),
    "copysign": ("r = copysignf(a, b);", np.copysign, 0),
    "double": ("r = (float)sqrt((double)fabsf(a) * 3.0);", lambda a, b: np.sqrt(np.abs(a) * 3), 6e-8),
    "isnan": ("r = isnan(a) ? 1.f : isinf(a) ? 2.f : 0.f;", lambda a, b: np.where(np.isnan(a), 1, np.where(np.isinf(a), 2, 0)), 0),
}


@functools.cache
def elementwise() -> Module:
    kernel = """extern "C" __global__ void {}(const {t}* x, const {t}* y, {t}* z) {{
      const {t} a = x[threadIdx.x], b = y[threadIdx.x]; {t} r; {} z[threadIdx.x] = r; }}\n"""
    source = "typedef unsigned u32; typedef unsigned long long u64;\n"
    source += "".join(kernel.format(f"i_{name}", statement, t="u32") for name, (statement, _) in INTEGER.items())
    source += "".join(kernel.format(f"f_{name}", statement, t="float") for name, (statement, _, _) in FLOATING.items())
    return Module(source, options=("--device-as-default-execution-space",))


@pytest.mark.parametrize("name", INTEGER)
def test_integer(name: str) -> None:
    got = np.zeros(256, U32)
    elementwise().kernel(f"i_{name}").launch((1,), (256,), 0, [WORDS, OTHER, got])
    np.testing.assert_array_equal(got, INTEGER[name][1](WORDS, OTHER).astype(U32))


@pytest.mark.parametrize("name", FLOATING)
@np.errstate(all="ignore")
def test_float(name: str) -> None:
    other, got = np.roll(FLOATS, 3), np.zeros(256, F32)
    elementwise().kernel(f"f_{name}").launch((1,), (256,), 0, [FLOATS, other, got])
    _, meaning, tolerance = FLOATING[name]
    want = meaning(FLOATS.astype(np.float64), other.astype(np.float64)).astype(F32)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-37)


def test_flush_to_zero_follows_the_option() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[0] *= 0.5f; }'
    for option, want in (("-ftz=true", 0), ("-ftz=false", 5e-39)):
        x = np.array([1e-38], F32)
        Module(source, options=(option,)).kernel("k").launch((1,), (1,), 0, [x])
        assert x[0] == F32(want)


@functools.cache
def conversions() -> Module:
    source = "typedef unsigned short u16; typedef unsigned u32;\n"
    for name in ("bf16", "f16"):
        down, up = asm(f"cvt.rn.{name}.f32 %0, %1;", "h", "f:x[threadIdx.x]"), asm(f"cvt.f32.{name} %0, %1;", "f", "h:y[threadIdx.x]")
        source += f'extern "C" __global__ void {name}(const float* x, u16* y, float* z) {{'
        source += f"{{ u16 r; {down} y[threadIdx.x] = r; }} float r; {up} z[threadIdx.x] = r; }}\n"
    for name in ("e4m3", "e5m2"):
        pair = asm(f"cvt.rn.satfinite.{name}x2.f32 %0, %1, %2;", "h", "f:x[2 * threadIdx.x + 1]", "f:x[2 * threadIdx.x]")
        back = asm(f"cvt.rn.f16x2.{name}x2 %0, %1;", "r", "h:y[threadIdx.x]")
        source += f'extern "C" __global__ void {name}(const float* x, u16* y, u32* z) {{'
        source += f"{{ u16 r; {pair} y[threadIdx.x] = r; }} u32 r; {back} z[threadIdx.x] = r; }}\n"
    return Module(source, "sm_90a")


@pytest.mark.parametrize("name, dtype", [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
@np.errstate(all="ignore")
def test_sixteen_bit_conversions(name: str, dtype: Any) -> None:
    bits, back = np.zeros(256, np.uint16), np.zeros(256, F32)
    conversions().kernel(name).launch((1,), (256,), 0, [FLOATS, bits, back])
    want = FLOATS.astype(dtype)
    np.testing.assert_array_equal(bits.view(dtype).astype(F32), want.astype(F32))
    np.testing.assert_array_equal(back, want.astype(F32))


@pytest.mark.parametrize("name, dtype, largest", [("e4m3", ml_dtypes.float8_e4m3fn, 448), ("e5m2", ml_dtypes.float8_e5m2, 57344)])
def test_eight_bit_conversions_saturate(name: str, dtype: Any, largest: float) -> None:
    exact = np.arange(256, dtype=np.uint8).view(dtype).astype(F32)
    exact = exact[np.isfinite(exact)]
    x = np.concatenate([FLOATS, exact, RNG.standard_normal(254) * 1e-2, (exact[:-1] + exact[1:]) / 2])[:1024].astype(F32)
    x = x[: len(x) // 2 * 2]
    bits, halves = np.zeros(len(x), np.uint8), np.zeros(len(x), np.float16)
    conversions().kernel(name).launch((1,), (len(x) // 2,), 0, [x, bits.view(np.uint16), halves.view(U32)])
    want = np.clip(x, -largest, largest).astype(dtype).astype(F32)
    np.testing.assert_array_equal(bits.view(dtype).astype(F32), want)
    np.testing.assert_array_equal(halves.astype(F32), want)


# ---- functions, local arrays, constants, switches
STRUCTURE = """
__constant__ float table[4] = {1.f, 2.f, 3.f, 4.f};
struct Pair { float a; int b; };
__device__ __noinline__ float helper(float x, Pair p) { return x * p.a + p.b; }
extern "C" __global__ void k(const float* x, float* y, int n, Pair p) {
  float stack[32];
  for (int i = 0; i < 32; i++) stack[i] = x[i];
  const int t = threadIdx.x;
  float s = 0;
  for (int i = 0; i < n; i++) { stack[(i * 7 + t) % 32] += s; s += stack[(t * 5 + i) % 32]; }
  switch (t % 7) {
    case 0: s += 1; break; case 1: s *= 2; break; case 2: s -= 3; break;
    case 3: s = -s; break; case 4: s = 5; break; case 5: s *= s;
  }
  y[t] = helper(s, p) + table[t % 4];
}
"""


def test_calls_local_arrays_constants_and_structures() -> None:
    x, y = RNG.standard_normal(32).astype(F32), np.full(64, np.nan, F32)
    pair = np.array([(0.5, 3)], [("a", F32), ("b", I32)]).tobytes()
    Module(STRUCTURE).kernel("k").launch((1,), (64,), 0, [x, y, 9, pair])
    for t in range(64):
        stack, s = x.astype(np.float64), 0.0
        for i in range(9):
            stack[(i * 7 + t) % 32] += s
            s += stack[(t * 5 + i) % 32]
        s = [s + 1, s * 2, s - 3, -s, 5, s * s, s][t % 7]
        assert abs(y[t] - (s * 0.5 + 3 + t % 4 + 1)) < 1e-4 * max(1, abs(s))


# ---- warps and atomics
WARP = """
extern "C" __global__ void k(const int* x, int* o) {
  const int t = threadIdx.x, v = x[t];
  int* r = o + t;
  r[0] = __shfl_up_sync(~0u, v, 3); r[64] = __shfl_down_sync(~0u, v, 5); r[128] = __shfl_sync(~0u, v, t * 3, 8);
  r[192] = __shfl_xor_sync(~0u, v, 9); r[256] = __ballot_sync(~0u, v > 0); r[320] = __any_sync(~0u, v == x[0]);
  r[384] = __all_sync(~0u, v > -1000000); r[448] = __reduce_max_sync(~0u, v); r[512] = __reduce_add_sync(~0u, v);
  r[576] = __syncthreads_count(v > 0); r[640] = __syncthreads_or(v == x[63]);
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES[::3], ids=str)
def test_warp_operations(schedule: Schedule) -> None:
    x, o = RNG.integers(-100, 100, 64).astype(I32), np.zeros((11, 64), I32)
    Module(WARP).kernel("k").launch((1,), (64,), 0, [x, o], schedule)
    w, lane = x.reshape(2, 32), np.arange(32)
    bits = np.array([sum(1 << i for i in range(32) if row[i] > 0) for row in w], np.int64).astype(U32).view(I32)
    want = [
        np.where(lane >= 3, w[:, lane - 3], w),
        np.where(lane < 27, w[:, (lane + 5) % 32], w),
        np.stack([row[lane // 8 * 8 + (lane + 32 * i) * 3 % 8] for i, row in enumerate(w)]),
        w[:, lane ^ 9],
        np.repeat(bits, 32),
        np.repeat((w == x[0]).any(1), 32),
        np.ones(64),
        np.repeat(w.max(1), 32),
        np.repeat(w.sum(1), 32),
        np.full(64, (x > 0).sum()),
        np.ones(64),
    ]
    for row, reference in zip(o, want, strict=True):
        np.testing.assert_array_equal(row, reference.reshape(-1))


def test_atomics_in_global_and_shared_memory() -> None:
    source = """extern "C" __global__ void k(float* f, int* i, unsigned* u) {
      __shared__ int s; if (threadIdx.x == 0) s = 0; __syncthreads();
      atomicAdd(f, 0.5f); atomicAdd(i, 3); atomicMax(i + 1, (int)threadIdx.x - 50); atomicMin(i + 2, -(int)threadIdx.x);
      atomicInc(u, 9); atomicOr(u + 1, 1u << threadIdx.x % 32); atomicExch(u + 2, 77u); atomicCAS(u + 3, 5u, 6u); atomicAdd(&s, 2);
      __syncthreads(); if (threadIdx.x == 0) atomicAdd(i + 3, s); }"""
    f, i, u = np.zeros(1, F32), np.array([0, -99, 0, 0], I32), np.array([0, 0, 0, 5], U32)
    Module(source).kernel("k").launch((3,), (64,), 0, [f, i, u], Schedule("pct", seed=5))
    assert f[0] == 96 and list(i) == [576, 13, -63, 384] and list(u) == [192 % 10, 0xFFFFFFFF, 77, 6]


def test_a_spinning_thread_lets_the_others_run() -> None:
    source = """extern "C" __global__ void k(int* o) { volatile __shared__ int flag; if (threadIdx.x == 63) flag = 5;
      else if (threadIdx.x == 0) { while (flag != 5) __nanosleep(20); o[0] = 1; } }"""
    o = np.zeros(1, I32)
    Module(source).kernel("k").launch((1,), (64,), 0, [o])
    assert o[0] == 1


def test_named_barriers_let_producers_run_ahead() -> None:
    source = """extern "C" __global__ void k(int* o) { __shared__ int s[32]; const int t = threadIdx.x % 32;
      if (threadIdx.x < 32) { asm volatile("bar.sync 1, 64;" ::: "memory"); o[t] = s[31 - t]; }
      else { s[t] = t; asm volatile("bar.arrive 1, 64;" ::: "memory"); } }"""
    for schedule in SCHEDULES:
        o = np.zeros(32, I32)
        Module(source).kernel("k").launch((1,), (64,), 0, [o], schedule)
        assert list(o) == list(range(31, -1, -1))


# ---- tensor cores
TENSOR_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
ELEMENTS: dict[str, tuple[Any, int]] = {
    "bf16": (ml_dtypes.bfloat16, 16),
    "f16": (np.float16, 16),
    "e4m3": (ml_dtypes.float8_e4m3fn, 32),
    "e5m2": (ml_dtypes.float8_e5m2, 32),
    "tf32": (F32, 8),
}


def mma_source(element: str, k: int) -> str:
    return f"""typedef unsigned u32; extern "C" __global__ void k(const u32* A, const u32* B, float* C) {{
      const int g = threadIdx.x / 4, t = threadIdx.x % 4; float* c = C + g * 8 + t * 2;
      const u32 *a = A + g * 8 + t, *b = B + g * 8 + t;
      asm volatile("mma.sync.aligned.m16n8k{k}.row.col.f32.{element}.{element}.f32 "
                   "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[64]), "+f"(c[65]) : "r"(a[0]), "r"(a[64]), "r"(a[4]), "r"(a[68]), "r"(b[0]), "r"(b[4])); }}"""


def tolerance(element: str, a: Any, b: Any, c: Any = 0) -> float:
    """Sums of 8-bit floats keep 14 bits of each term, aligned to the largest."""
    if element not in ("e4m3", "e5m2"):
        return 1e-5
    largest = max(float(np.abs(x).max()) for x in (a.astype(F32)[:, None] * b.astype(F32)[None], np.asarray(c)))
    return (a.shape[1] + 1) * 2.0**-13 * largest


@pytest.mark.parametrize("element", ELEMENTS)
def test_mma(element: str) -> None:
    dtype, k = ELEMENTS[element]
    a, b = (RNG.standard_normal((n, k)).astype(dtype) for n in (16, 8))
    if element == "tf32":
        a, b = ((x.view(U32) & U32(0xFFFFE000)).view(F32) for x in (a, b))
    c = RNG.standard_normal((16, 8)).astype(F32)
    want, limit = c + a.astype(np.float64) @ b.astype(np.float64).T, tolerance(element, a, b, c)
    Module(mma_source(element, k), "sm_89").kernel("k").launch((1,), (32,), 0, [a.view(U32), b.view(U32), c])
    np.testing.assert_allclose(c, want, rtol=1e-6, atol=limit)


def wgmma_source(element: str, n: int, a_registers: bool, b_rows: bool) -> str:
    """C[64, n] = A[64, k] B for operands staged by TMA; b_rows: B is [k, n] (n contiguous), else [n, k]."""
    k = {"bf16": 16, "e4m3": 32}[element]
    outs = ", ".join(f"%{i}" for i in range(n // 2))
    a = "{" + ", ".join(f"%{i}" for i in range(n // 2, n // 2 + 4)) + "}" if a_registers else f"%{n // 2}"
    after = n // 2 + (4 if a_registers else 1)
    flags = "1, 1, 1" + ("" if element != "bf16" else f", {int(b_rows)}" if a_registers else f", 0, {int(b_rows)}")
    registers = ", ".join(f'"+f"(c[{i}])' for i in range(n // 2))
    layout = "(u64)(1024 >> 4) << 32 | 1ull << 62" if b_rows else "(u64)(8 * W >> 4) << 32 | 3ull << 62"
    source = '"r"(*(u32*)p), "r"(*(u32*)(p + 8 * W)), "r"(*(u32*)(p + 16)), "r"(*(u32*)(p + 8 * W + 16))' if a_registers else '"l"(da)'
    return f"""typedef unsigned u32; typedef unsigned long long u64; struct __align__(64) Map {{ u64 opaque[16]; }};
    #define W {k * (2 if element == "bf16" else 1)}
    extern "C" __global__ void k(const __grid_constant__ Map A, const __grid_constant__ Map B, const unsigned char* a, float* C) {{
      extern __shared__ __align__(1024) unsigned char m[]; __shared__ u64 bar;
      const u32 s = (u32)__cvta_generic_to_shared(m), b = (u32)__cvta_generic_to_shared(&bar);
      if (threadIdx.x == 0) {{
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(b));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"((64 + {n}) * W) : "memory");
        asm volatile("{TENSOR_LOAD} [%0], [%1, {{0, 0}}], [%2];" :: "r"(s), "l"(&A), "r"(b) : "memory");
        asm volatile("{TENSOR_LOAD} [%0], [%1, {{0, 0}}], [%2];" :: "r"(s + 8192), "l"(&B), "r"(b) : "memory");
      }}
      __syncthreads();
      asm volatile("{{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }}" :: "r"(b) : "memory");
      const unsigned char* p = a + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) * W + threadIdx.x % 4 * 4;
      const u64 da = (s & 0x3ffff) >> 4 | (u64)(8 * W >> 4) << 32 | 3ull << 62;
      const u64 db = ((s + 8192) & 0x3ffff) >> 4 | {layout};
      float c[{n // 2}] = {{}};
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      asm volatile("wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{element}.{element} {{{outs}}}, {a}, %{after}, {flags};"
        : {registers} : {source}, "l"(db));
      asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
      const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
      for (int i = 0; i < {n // 2}; i++) C[(row + i / 2 % 2 * 8) * {n} + i / 4 * 8 + col + i % 2] = c[i];
    }}"""


@pytest.mark.parametrize("a_registers", [False, True])
@pytest.mark.parametrize("element, b_rows", [("bf16", False), ("bf16", True), ("e4m3", False)])
def test_wgmma(element: str, b_rows: bool, a_registers: bool) -> None:
    dtype, k, n = ml_dtypes.bfloat16 if element == "bf16" else ml_dtypes.float8_e4m3fn, 16 if element == "bf16" else 32, 64
    a, b = RNG.standard_normal((64, k)).astype(dtype), RNG.standard_normal((k, n) if b_rows else (n, k)).astype(dtype)
    buffers = [Buffer(x.nbytes) for x in (a, b)]
    for x, buffer in zip((a, b), buffers, strict=True):
        buffer.bytes[:] = x.reshape(-1).view(np.uint8)
    maps = [
        tensor_map(buffers[0], a.shape, a.itemsize, (64, k), 32),
        tensor_map(buffers[1], b.shape, b.itemsize, b.shape, 128 if b_rows else 32),
    ]
    c = np.full((64, n), np.nan, F32)
    kernel = Module(wgmma_source(element, n, a_registers, b_rows), "sm_90a").kernel("k")
    kernel.launch((1,), (128,), 16384, [*maps, a.view(np.uint8), c], buffers=buffers)
    right = b.astype(np.float64) if b_rows else b.astype(np.float64).T
    np.testing.assert_allclose(c, a.astype(np.float64) @ right, rtol=1e-5, atol=tolerance(element, a, b if not b_rows else b.T))


# ---- matrices in shared memory and bulk copies
def test_ldmatrix_stmatrix_and_their_transposes() -> None:
    source = """typedef unsigned u32; extern "C" __global__ void k(const uint4* x, uint4* y) {
      __shared__ __align__(16) uint4 s[64]; const u32 a = (u32)__cvta_generic_to_shared(s) + threadIdx.x * 16; u32 r[4];
      s[threadIdx.x] = x[threadIdx.x]; __syncwarp();
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a) : "memory");
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
        :: "r"(a + 512), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
      __syncwarp(); y[threadIdx.x] = s[32 + threadIdx.x]; }"""
    x, y = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16), np.zeros((4, 8, 8), np.uint16)
    Module(source, "sm_90").kernel("k").launch((1,), (32,), 0, [x, y])
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))


BULK = """typedef unsigned u32; typedef unsigned long long u64; struct __align__(64) Map { u64 opaque[16]; };
extern "C" __global__ void k(const __grid_constant__ Map X, const __grid_constant__ Map Y, const float* z) {
  __shared__ __align__(128) float m[8 * 32]; __shared__ __align__(128) float v[32]; __shared__ u64 bar;
  const u32 s = (u32)__cvta_generic_to_shared(m), sv = (u32)__cvta_generic_to_shared(v), b = (u32)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(b));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1152;" :: "r"(b) : "memory");
    asm volatile("TENSOR_LOAD [%0], [%1, {%3, %4}], [%2];" :: "r"(s), "l"(&X), "r"(b), "r"(-16), "r"(8) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
      :: "r"(sv), "l"(z), "r"(b) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }" :: "r"(b) : "memory");
  for (int i = threadIdx.x; i < 256; i += 32) m[i] += v[i % 32];
  FENCE
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
      :: "l"(&Y), "r"(s), "r"(16), "r"(4) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}"""


def bulk(fence: str, schedule: Schedule) -> tuple[Array, Array]:
    x, z = RNG.standard_normal((12, 40)).astype(F32), RNG.standard_normal(32).astype(F32)
    source, target = Buffer(x.nbytes), Buffer(x.nbytes)
    source.bytes[:] = x.reshape(-1).view(np.uint8)
    target.bytes[:] = 0
    maps = [tensor_map(b, x.shape, 4, (8, 32)) for b in (source, target)]
    code = BULK.replace("FENCE", fence).replace("TENSOR_LOAD", TENSOR_LOAD)
    Module(code, "sm_90").kernel("k").launch((1,), (32,), 0, [*maps, z], schedule, [source, target])
    tile = np.zeros((8, 32), F32)
    tile[:4, 16:] = x[8:12, :16]
    want = np.zeros_like(x)
    want[4:12, 16:40] = (tile + z)[:, :24]
    return target.view(F32, x.shape), want


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_tensor_copies_clip_at_the_edges(schedule: Schedule) -> None:
    got, want = bulk('asm volatile("fence.proxy.async.shared::cta;" ::: "memory");', schedule)
    np.testing.assert_array_equal(got, want)


def test_a_missing_proxy_fence_is_found() -> None:
    with pytest.raises(EmulatorError, match=r"without a fence\.proxy\.async"):
        bulk("", Schedule())


def test_cp_async_through_an_mbarrier() -> None:
    source = """typedef unsigned u32; extern "C" __global__ void k(const float4* x, float4* y) {
      __shared__ float4 s[32]; __shared__ unsigned long long bar; const u32 b = (u32)__cvta_generic_to_shared(&bar);
      if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(b) : "memory");
      __syncthreads();
      const u32 to = (u32)__cvta_generic_to_shared(s + threadIdx.x); u32 done = 0; const int bytes = threadIdx.x == 9 ? 4 : 16;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(x + threadIdx.x), "r"(bytes) : "memory");
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(b) : "memory");
      while (!done) asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(b) : "memory");
      y[threadIdx.x] = s[31 - threadIdx.x]; }"""
    x = RNG.standard_normal((32, 4)).astype(F32)
    want = x[::-1].copy()
    want[22, 1:] = 0
    for schedule in SCHEDULES:
        y = np.full_like(x, np.nan)
        Module(source, "sm_90").kernel("k").launch((1,), (32,), 0, [x, y], schedule)
        np.testing.assert_array_equal(y, want)
