"""Every CUDA primitive, run on the emulator against NumPy."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulator
import ml_dtypes
import numpy as np
import pytest
from emulator import SCHEDULES, Buffer, Module, Schedule, report
from emulator.device import tensor_map

from redfuser_eq.codegen.primitives import paste, primitives
from redfuser_eq.errors import BackendError

needs_emulator = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
Array = np.ndarray
F32, U16, U32 = np.float32, np.uint16, np.uint32
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
RNG = np.random.default_rng(11)
SPECIAL = [0, -0.0, 448, 464, 1e9, -1e9, np.inf, -np.inf, np.nan, 0.5, -6, 2**-9]
X = np.concatenate([RNG.standard_normal(500) * np.exp(RNG.uniform(-8, 8, 500)), SPECIAL]).astype(F32)


def build(body: str, arch: str = "sm_80", threads: int = 512) -> emulator.Kernel:
    """A kernel `k` of at most so many threads whose primitives are pasted in."""
    source = paste(body, int(re.sub(r"\D", "", arch))) + f'extern "C" __global__ void __launch_bounds__({threads}, 1) k' + body
    _assemble(source, arch)
    return Module(source, arch).kernel("k")


@functools.cache
def _assemble(source: str, arch: str) -> None:
    """ptxas takes the source, without spilling or serialising its wgmma."""
    made = report.compile_report(source, arch)["k"]
    assert made.spills == 0 and made.warnings == ()


SCALARS: dict[str, tuple[str, Callable[[Array], Array], float]] = {
    "ex2": ("ex2(a)", np.exp2, 3e-7),
    "lg2": ("lg2(fabsf(a))", lambda a: np.log2(np.abs(a)), 3e-7),
    "rcp": ("rcp(a)", lambda a: 1 / a, 2e-7),
    "rsqrt_fast": ("rsqrt_fast(fabsf(a))", lambda a: 1 / np.sqrt(np.abs(a)), 3e-7),
    "tanh_fast": ("tanh_fast(a)", np.tanh, 5e-4),
    "fmax_nan": ("fmax_nan(a, 0.25f)", lambda a: np.maximum(a, 0.25), 0),
    "fmin_nan": ("fmin_nan(a, 0.25f)", lambda a: np.minimum(a, 0.25), 0),
    "imin": ("(float)imin((int)threadIdx.x, 100)", lambda a: np.minimum(np.arange(512), 100), 0),
    "imax": ("(float)imax((int)threadIdx.x, 100)", lambda a: np.maximum(np.arange(512), 100), 0),
    "settled": ("settled(a)", lambda a: np.where(np.isinf(a), 0, a), 0),
    "bf16": ("from_bf16(to_bf16(a))", lambda a: a.astype(F32).astype(BF16).astype(float), 0),
    "f16": ("from_f16(to_f16(a))", lambda a: a.astype(F32).astype(np.float16), 0),
    "e4m3": ("from_e4m3(to_e4m3(a))", lambda a: np.clip(a, -448, 448).astype(F32).astype(E4M3).astype(float), 0),
    "in_e4m3": ("in_e4m3(a)", lambda a: np.where(np.abs(a) <= 464, a, np.nan), 0),
    "pack_i8": (
        "(float)(signed char)(pack_i8(7, (float)(threadIdx.x % 256) - 128.0f, -1, 1) >> 8)",
        lambda a: np.arange(512) % 256 - 128,
        0,
    ),
    "tf32": ("__uint_as_float(to_tf32(a))", lambda a: tf32(a.astype(F32)), 0),
    "all_tf32": (
        "[&] { u32 r[4] = {0, 0, __float_as_uint(a), 0}; all_tf32(r); return __uint_as_float(r[2]); }()",
        lambda a: tf32(a.astype(F32)),
        0,
    ),
}


def tf32(x: Array) -> Array:
    rounded = ((x.view(U32).astype(np.uint64) + 0x1000) & 0xFFFFE000).astype(U32).view(F32)
    return np.where(np.isfinite(x), rounded, x)


@needs_emulator
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", SCALARS)
@np.errstate(all="ignore")
def test_scalars(name: str, arch: str) -> None:
    expression, meaning, tolerance = SCALARS[name]
    out = np.full(512, np.nan, F32)
    build(f"(const float* x, float* y) {{ const float a = x[threadIdx.x]; y[threadIdx.x] = {expression}; }}", arch).launch(
        (1,), (512,), 0, [X, out]
    )
    np.testing.assert_allclose(out, meaning(X.astype(np.float64)).astype(F32), rtol=tolerance, atol=1e-37)


@needs_emulator
@pytest.mark.parametrize("load", ["load128", "load128_once"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name, dtype, each", [("f32", F32, 4), ("bf16", BF16, 8), ("f16", np.float16, 8), ("e4m3", E4M3, 16)])
def test_sixteen_byte_accesses(name: str, dtype: Any, each: int, arch: str, load: str) -> None:
    x = RNG.standard_normal(32 * each).astype(dtype)
    out = np.zeros_like(x)
    body = f"""(const char* x, char* y) {{ float v[{each}]; spread_{name}(v, {load}(x + threadIdx.x * 16));
      for (int i = 0; i < {each}; i++) v[i] = 2 * v[i] + 1; store128(y + threadIdx.x * 16, gather_{name}(v)); }}"""
    build(body, arch).launch((1,), (32,), 0, [x.view(np.uint8), out.view(np.uint8)])
    want = (x.astype(F32) * 2 + 1).astype(dtype)
    np.testing.assert_array_equal(out.astype(F32), want.astype(F32))


@needs_emulator
@pytest.mark.parametrize("width", [4, 8, 32])
def test_lane_reductions(width: int) -> None:
    x = RNG.standard_normal(64).astype(F32)
    x[5] = np.nan
    out = np.full((4, 64), np.inf, F32)
    body = f"""(const float* x, float* y) {{ const float a = x[threadIdx.x]; y += threadIdx.x;
      y[0] = lanes_sum<{width}>(a); y[64] = lanes_max<{width}>(a); y[128] = lanes_min<{width}>(a); y[192] = shfl(a, {width // 2}); }}"""
    build(body).launch((1,), (64,), 0, [x, out])
    groups = x.reshape(-1, width)
    for row, fold in zip(out, (np.sum, np.max, np.min), strict=False):
        np.testing.assert_allclose(row, np.repeat(fold(groups, 1), width), rtol=1e-5)
    np.testing.assert_array_equal(out[3], x[np.arange(64) ^ width // 2])


@needs_emulator
@pytest.mark.parametrize("schedule", SCHEDULES[::2], ids=str)
def test_last_block_sees_all_blocks_and_resets_its_ticket(schedule: Schedule) -> None:
    body = """(float* part, u32* ticket, float* out) { part[blockIdx.x * 64 + threadIdx.x] = blockIdx.x + 1;
      if (!last_block(ticket, gridDim.x)) return;
      float s = 0; for (int b = 0; b < gridDim.x; b++) s += part[b * 64 + threadIdx.x];
      out[threadIdx.x] += s; }"""
    part, ticket, out = np.full(320, np.nan, F32), np.zeros(1, U32), np.zeros(64, F32)
    kernel = build(body)
    for _ in range(2):
        kernel.launch((5,), (64,), 0, [part, ticket, out], schedule)
    assert (out == 30).all() and ticket[0] == 0


@needs_emulator
def test_named_barriers() -> None:
    body = """(int* o) { __shared__ int s[32]; const int t = threadIdx.x % 32;
      if (threadIdx.x < 32) { barrier_sync(1, 64); o[t] = s[31 - t]; } else { s[t] = t; barrier_arrive(1, 64); } }"""
    kernel = build(body)
    for schedule in SCHEDULES:
        o = np.zeros(32, np.int32)
        kernel.launch((1,), (64,), 0, [o], schedule)
        assert list(o) == list(range(31, -1, -1))


PRODUCT = """(const u16* A, const u16* B, float* C, int m, int n, int k) {
  __shared__ __align__(1024) unsigned char tiles[2 * 64 * 128];
  const u32 a = smem(tiles), b = a + 64 * 128; const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
  float d[8][4] = {};
  for (int k0 = 0; k0 < k; k0 += 64) {
    STAGE(A, a, m); STAGE(B, b, n);
    cp_async_commit(); cp_async_wait<0>(); __syncthreads();
    for (int s = 0; s < 4; s++) {
      u32 x[4], y[4]; ldmatrix(x, cell(a, 64, w * 16 + lane % 16, s * 2 + lane / 16));
      for (int j = 0; j < 4; j++) {
        ldmatrix(y, cell(b, 64, j * 16 + lane % 8 + lane / 16 * 8, s * 2 + lane / 8 % 2));
        mma_ELEMENT(d[2 * j], x, y[0], y[1]); mma_ELEMENT(d[2 * j + 1], x, y[2], y[3]);
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < 8; j++) for (int e = 0; e < 4; e++) {
    const int r = w * 16 + lane / 4 + e / 2 * 8, c = j * 8 + lane % 4 * 2 + e % 2;
    if (r < m && c < n) C[r * n + c] = d[j][e];
  }
}"""
STAGES = {
    "async": "stage_async<128, 64, 8>({2}, {0} + k0, k * 2, {1}, (k - k0) * 2)",
    "plain": "stage_plain<128, 64, 8>({2}, {0} + k0, k, 1, {1}, k - k0)",
}


@needs_emulator
@pytest.mark.parametrize("schedule", SCHEDULES[::3], ids=str)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("element, dtype", [("bf16", BF16), ("f16", np.float16)])
def test_staged_tiles_and_tensor_cores_with_ragged_edges(element: str, dtype: Any, stage: str, schedule: Schedule) -> None:
    m, n, k = 37, 61, 104 if stage == "async" else 101
    a, b, c = RNG.standard_normal((m, k)).astype(dtype), RNG.standard_normal((n, k)).astype(dtype), np.full((m, n), np.nan, F32)
    body = PRODUCT.replace("ELEMENT", element)
    body = re.sub(r"STAGE\((\w), (\w), (\w)\)", lambda x: STAGES[stage].format(x[1], x[3], x[2]), body)
    build(body).launch((1,), (128,), 0, [a.view(U16), b.view(U16), c, m, n, k], schedule)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-4)


@needs_emulator
@pytest.mark.parametrize("k", [104, 101])  # rows of eight bytes read at once, and byte by byte
def test_bytes_staged_as_wider_elements(k: int) -> None:
    m, n = 37, 61
    a, b, c = RNG.standard_normal((m, k)).astype(E4M3), RNG.integers(-100, 100, (n, k)).astype(np.int8), np.full((m, n), np.nan, F32)
    pack = "[](float x, float y) { return pack_bf16(x, y); }"
    get = {"A": "[](u8 x) { return from_e4m3(x); }", "B": "[](u8 x) { return (float)(signed char)x; }"}
    stage = "stage_wider<128, 64, 8>({to}, (const u8*){at} + k0, k, 1, {rows}, k - k0, {get}, {pack})"
    body = re.sub(
        r"STAGE\((\w), (\w), (\w)\)", lambda x: stage.format(to=x[2], at=x[1], rows=x[3], get=get[x[1]], pack=pack), PRODUCT
    ).replace("ELEMENT", "bf16")
    build(body).launch((1,), (128,), 0, [a.view(np.uint8), b.view(np.uint8), c, m, n, k])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-3)


@needs_emulator
@pytest.mark.parametrize("dtype", [np.uint8, U16, U32])
def test_elements_of_any_size_staged_by_plain_loads(dtype: Any) -> None:
    """11 of 16 rows, 3 rows apart, and every other column but the last three of 64 bytes; padded with zeros."""
    n = 64 // np.dtype(dtype).itemsize
    x = RNG.integers(0, 200, (33, 2 * n)).astype(dtype)
    y = np.zeros((16, 64), np.uint8)
    body = f"""(const {"u" + str(8 * np.dtype(dtype).itemsize)}* x, u32* y) {{ __shared__ __align__(1024) u32 tile[512];
      stage_plain<64, 16, 4>(smem(tile), x, {6 * n}, 2, 11, {n - 3}); __syncthreads();
      u32 r[2]; const u32 at = cell(smem(tile), 16, threadIdx.x / 4, threadIdx.x % 4);
      shared_pairs(r, at); for (int i = 0; i < 2; i++) y[threadIdx.x * 4 + i] = r[i];
      y[threadIdx.x * 4 + 2] = shared_one(at + 8) | shared_one(at + 10) << 16; y[threadIdx.x * 4 + 3] = shared_word(at + 12); }}"""
    build(body).launch((1,), (64,), 0, [x, y])
    want = np.zeros((16, n), dtype)
    want[:11, : n - 3] = x[::3, ::2][:, : n - 3]
    np.testing.assert_array_equal(y.view(dtype), want)


@needs_emulator
def test_integers_in_32_bits_and_fragments_as_one_array() -> None:
    x = np.array([0, 5, -7, 2**31 - 1, 2**31, 2**40, -(2**31), -(2**40)], np.int64)
    out, order = np.zeros(8, np.int32), np.full(8, np.nan, F32)
    body = """(const i64* x, int* o, float* y) { float d[2][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}};
      o[threadIdx.x] = in_32_bits(x[threadIdx.x]); y[threadIdx.x] = flat(d)[threadIdx.x]; }"""
    build(body, "sm_90a").launch((1,), (8,), 0, [x, out, order])
    assert out.tolist() == np.clip(x, -(2**31) + 1, 2**31 - 1).tolist()
    assert order.tolist() == list(range(8))


LOST = 2e-2  # tensor cores keep 14 bits of each term of a sum of e4m3 products


def numbers(shape: tuple[int, ...], dtype: Any) -> Array:
    """Random numbers of a dtype."""
    return RNG.integers(-128, 128, shape).astype(dtype) if dtype == np.int8 else RNG.standard_normal(shape).astype(dtype)


@needs_emulator
@pytest.mark.parametrize("element, dtype, k, arch", [("tf32", F32, 8, "sm_80"), ("i8", np.int8, 32, "sm_80"), ("e4m3", E4M3, 32, "sm_89")])
def test_other_mma_elements(element: str, dtype: Any, k: int, arch: str) -> None:
    a, b = numbers((16, k), dtype), numbers((8, k), dtype)
    if element == "tf32":
        a, b = tf32(a), tf32(b)
    body = f"""(const u32* A, const u32* B, float* C) {{ const int g = threadIdx.x / 4, t = threadIdx.x % 4;
      {"int" if element == "i8" else "float"} d[4] = {{}};
      const u32 *p = A + g * 8 + t, *q = B + g * 8 + t, a[4] = {{p[0], p[64], p[4], p[68]}};
      mma_{element}(d, a, q[0], q[4]);
      for (int e = 0; e < 4; e++) C[(g + e / 2 * 8) * 8 + t * 2 + e % 2] = d[e]; }}"""
    c = np.full((16, 8), np.nan, F32)
    build(body, arch).launch((1,), (32,), 0, [a.view(U32), b.view(U32), c])
    tolerance = LOST if element == "e4m3" else 1e-5
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=tolerance, atol=tolerance)


@needs_emulator
def test_transposed_loads_and_matrix_stores() -> None:
    body = """(const uint4* x, uint4* y) { __shared__ uint4 s[64]; const u32 a = smem(s) + threadIdx.x * 16; u32 r[4];
      s[threadIdx.x] = x[threadIdx.x]; __syncwarp(); ldmatrix_t(r, a); stmatrix(a + 512, r); __syncwarp();
      y[threadIdx.x] = s[32 + threadIdx.x]; }"""
    x, y = RNG.integers(0, 1 << 16, (4, 8, 8)).astype(U16), np.zeros((4, 8, 8), U16)
    build(body, "sm_90a").launch((1,), (32,), 0, [x, y])
    np.testing.assert_array_equal(y, x.transpose(0, 2, 1))


def on_device(x: Array) -> Buffer:
    buffer = Buffer(x.nbytes)
    buffer.bytes[:] = x.reshape(-1).view(np.uint8)
    return buffer


@needs_emulator
@pytest.mark.parametrize("schedule", SCHEDULES[::3], ids=str)
@pytest.mark.parametrize("rank", [2, 3, 4, 5])
def test_boxes_of_a_tensor_swizzled_and_filled_with_zeros(rank: int, schedule: Schedule) -> None:
    """A box that begins before the first row and ends past the last column, row and layer of a tensor with gaps."""
    shape, box, corner = (2, 3, 2, 9, 72)[-rank:], (1, 1, 2, 16, 64)[-rank:], (1, 2, 1, -3, 40)[-rank:]
    rng = np.random.default_rng(rank)
    x = rng.integers(1, 1 << 16, (*shape[:-1], 80)).astype(U16)
    memory, out = on_device(x), np.zeros((int(np.prod(box)) // 64, 8, 8), U16)
    tile = tensor_map(memory, shape, 2, box, 128, x.strides)
    body = f"""(const __grid_constant__ TensorMap map, uint4* out) {{
      extern __shared__ __align__(1024) unsigned char m[]; __shared__ u64 bar[1]; const u32 full = smem(bar), to = smem(m);
      if (threadIdx.x == 0) {{ mbarrier_init(full, 1); fence_mbarrier_init(); mbarrier_expect(full, {2 * np.prod(box)});
        tma_load{rank}(to, &map, {", ".join(map(str, corner[::-1]))}, full); }}
      __syncthreads(); mbarrier_wait(full, 0);
      for (int i = threadIdx.x; i < {out.size // 8}; i += 32) out[i] = *(uint4*)(m + (i / 8 * 8 + (i ^ i / 8) % 8) * 16); }}"""
    build(body, "sm_90a").launch((1,), (32,), 2 * int(np.prod(box)), [tile, out], schedule, [memory])
    room = np.zeros([n + 2 * b for n, b in zip(shape, box, strict=True)], U16)
    room[tuple(slice(b, b + n) for n, b in zip(shape, box, strict=True))] = x[..., : shape[-1]]
    want = room[tuple(slice(b + c, 2 * b + c) for b, c in zip(box, corner, strict=True))]
    np.testing.assert_array_equal(out.reshape(box), want)


def to_nearest_even(x: Array) -> Array:
    """What the copy engine makes of floats for tf32; infinities and NaN stay."""
    bits = x.view(U32)
    rounded = ((bits + 0xFFF + (bits >> 13 & 1)) & ~U32(0x1FFF)).view(F32)
    return np.where(np.isfinite(x), rounded, x)


@needs_emulator
def test_the_copy_engine_rounds_to_tf32() -> None:
    """Ties to even, up and down; a carry into the exponent; numbers that are tf32 already; infinities and NaN."""
    odd = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-23, 2 - 2**-23, -(1 + 2**-11), 1 + 2**-10, 3e38, np.inf, -np.inf, np.nan, 0, -0.0]
    x = np.concatenate([np.array(odd, F32), RNG.standard_normal(8 * 32 - len(odd)).astype(F32)]).reshape(8, 32)
    memory, out = on_device(x), np.zeros((8, 32), F32)
    body = """(const __grid_constant__ TensorMap map, uint4* out) {
      extern __shared__ __align__(1024) unsigned char m[]; __shared__ u64 bar[1]; const u32 full = smem(bar);
      if (threadIdx.x == 0) { mbarrier_init(full, 1); fence_mbarrier_init(); mbarrier_expect(full, 1024);
        tma_load2(smem(m), &map, 0, 0, full); }
      __syncthreads(); mbarrier_wait(full, 0);
      for (int i = threadIdx.x; i < 64; i += 32) out[i] = *(uint4*)(m + (i / 8 * 8 + (i ^ i / 8) % 8) * 16); }"""
    tile = tensor_map(memory, x.shape, 4, x.shape, 128, rounded=True)
    build(body, "sm_90a").launch((1,), (32,), 1024, [tile, out], SCHEDULES[0], [memory])
    np.testing.assert_array_equal(out, to_nearest_even(x))


@needs_emulator
@pytest.mark.parametrize("name", ["round_cells", "round_evens"])
def test_tiles_are_rounded_where_they_lie(name: str) -> None:
    """Two panels of 40 rows; of eight neighbours the even ones come first, or all stay."""
    x, out = numbers((80, 32), F32), np.zeros((80, 32), F32)
    body = f"""(const float4* x, float4* out) {{ __shared__ __align__(1024) float4 m[640];
      for (int i = threadIdx.x; i < 640; i += 96) m[i / 8 * 8 + (i ^ i / 8) % 8] = x[i];
      __syncthreads(); {name}<96, 80>(smem(m), threadIdx.x); __syncthreads();
      for (int i = threadIdx.x; i < 640; i += 96) out[i] = m[i / 8 * 8 + (i ^ i / 8) % 8]; }}"""
    build(body).launch((1,), (96,), 0, [x, out])
    want = tf32(x).reshape(80, 4, 4, 2)
    np.testing.assert_array_equal(out, (want.swapaxes(2, 3) if name == "round_evens" else want).reshape(80, 32))


HOPPER = """(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, const __grid_constant__ TensorMap C, int steps) {
  extern __shared__ __align__(1024) unsigned char m[]; __shared__ u64 bars[4];
  const u32 tiles = smem(m), full = smem(bars), empty = full + 16; float* out = (float*)(m + 2 * 24576);
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; s++) { mbarrier_init(full + 8 * s, 1); mbarrier_init(empty + 8 * s, 128); }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    registers_less<24>();
    if (threadIdx.x == 128) for (int k = 0; k < steps; k++) {
      const int s = k % 2; const u32 to = tiles + s * 24576;
      if (k >= 2) mbarrier_wait(empty + 8 * s, (k / 2 - 1) & 1);
      mbarrier_expect(full + 8 * s, 24576);
      tma_load2(to, &A, k * COLS, 0, full + 8 * s);
      LOAD_B
    }
    return;
  }
  registers_more<240>();
  SUM d[64] = {};
  for (int k = 0; k < steps; k++) {
    const int s = k % 2; const u32 a = tiles + s * 24576, b = a + 8192;
    mbarrier_wait(full + 8 * s, k / 2 & 1);
    wgmma_fence();
    UNROLL for (int kk = 0; kk < 4; kk++) { LOAD_A wgmma_ELEMENT_n128(d, OPERAND_A, DESCRIPTOR_B, k + kk > 0); }
    wgmma_commit(); wgmma_wait<0>();
    mbarrier_arrive(empty + 8 * s);
  }
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
  for (int i = 0; i < 64; i++) out[(row + i / 2 % 2 * 8) * 128 + i / 4 * 8 + col + i % 2] = d[i];
  fence_async();
  barrier_sync(1, 128);
  if (threadIdx.x == 0) { tma_store2(&C, 0, 0, smem(out)); tma_store_wait(); }
}"""
# element and form -> (dtype, columns of a stage, how B is loaded, its descriptor)
FORMS: dict[str, tuple[Any, int, str, str]] = {
    "bf16_ss": (BF16, 64, "tma_load2(to + 8192, &B, k * COLS, 0, full + 8 * s);", "descriptor(b + kk * 32, 16)"),
    "f16_ss": (np.float16, 64, "tma_load2(to + 8192, &B, k * COLS, 0, full + 8 * s);", "descriptor(b + kk * 32, 16)"),
    "e4m3_ss": (E4M3, 128, "tma_load2(to + 8192, &B, k * COLS, 0, full + 8 * s);", "descriptor(b + kk * 32, 16)"),
    "bf16_sst": (BF16, 64, "tma_load3(to + 8192, &B, 0, k * COLS, 0, full + 8 * s);", "descriptor(b + kk * 2048, 8192)"),
}


FORMS |= {f"{e}_{form}": (dtype, cols, *FORMS["e4m3_ss"][2:]) for e, dtype, cols in (("e4m3", E4M3, 128), ("i8", np.int8, 128),
                                                                                 ("tf32", F32, 32)) for form in ("ss", "rs")}  # fmt: skip
FORMS["bf16_rs"], FORMS["f16_rst"] = FORMS["bf16_ss"], (np.float16, *FORMS["bf16_sst"][1:])
FRAGMENT = """u32 x[4];
ldmatrix(x, cell(a, 64, threadIdx.x / 32 * 16 + threadIdx.x % 16, kk * 2 + threadIdx.x % 32 / 16)); wgmma_fence();"""


@needs_emulator
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schedule", SCHEDULES[::3], ids=str)
def test_warp_specialised_product_on_hopper(form: str, schedule: Schedule) -> None:
    dtype, cols, load, descriptor = FORMS[form]
    k, transposed = 3 * cols, form.endswith("t")
    a, b = numbers((64, k), dtype), numbers((k, 128) if transposed else (128, k), dtype)
    a, b = (tf32(a), tf32(b)) if dtype == F32 else (a, b)
    da, db, dc = on_device(a), on_device(b), Buffer(64 * 128 * 4)
    if transposed:  # two panels of 64 columns: dimensions (panel, k, column)
        map_b = tensor_map(db, (2, k, 64), 2, (2, 64, 64), 128, (128, 256, 2))
    else:
        map_b = tensor_map(db, b.shape, b.itemsize, (128, cols), 128)
    maps = [tensor_map(da, a.shape, a.itemsize, (64, cols), 128), map_b, tensor_map(dc, (64, 128), 4, (64, 128))]
    registers = "_r" in form
    body = HOPPER.replace("LOAD_B", load).replace("DESCRIPTOR_B", descriptor).replace("COLS", str(cols)).replace("ELEMENT", form)
    body = body.replace("SUM", "int" if dtype == np.int8 else "float")
    body = body.replace("LOAD_A", FRAGMENT * registers).replace("OPERAND_A", "x" if registers else "descriptor(a + kk * 32, 16)")
    build(body, "sm_90a", 256).launch((1,), (256,), 2 * 24576 + 64 * 128 * 4, [*maps, 3], schedule, [da, db, dc])
    right = b.astype(np.float64) if transposed else b.astype(np.float64).T
    tolerance = 10 * LOST if dtype == E4M3 else 1e-4
    np.testing.assert_allclose(dc.view(F32, (64, 128)), a.astype(np.float64) @ right, rtol=tolerance, atol=tolerance)


@needs_emulator
def test_every_primitive_is_tested() -> None:
    text = "".join((Path(__file__).parent / f"test_cuda_{name}.py").read_text() for name in ("primitives", "access"))
    family = {name: name.rpartition("_")[0] for name in primitives()}  # of some the last part is a parameter of a test
    named = [n for n, f in family.items() if re.search(rf"\b({n}\b|{f}_({{name}}|{{element}}|ELEMENT))", text)]
    named += [n for n in family if re.sub(r"\d$", "{rank}", n) in text]
    reached = set(re.findall(r"\w+", paste(" ".join(named), 90)))
    assert sorted(set(primitives()) - reached) == []


def test_only_what_is_used_is_pasted_and_in_order() -> None:
    source = paste("v = lanes_max<32>(v);")
    assert source.index("fmax_nan(float") < source.index("lanes_max(float") and "mma" not in source and "#include" not in source


def test_a_primitive_beyond_the_target_is_refused() -> None:
    with pytest.raises(BackendError, match="mbarrier_arrive needs compute capability 90, the target has 80"):
        paste("mbarrier_arrive(", 80)
    with pytest.raises(BackendError, match="only elements of 16 bits"):
        paste("wgmma_e4m3_sst_n64(", 90)
