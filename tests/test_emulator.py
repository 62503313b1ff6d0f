"""The CUDA emulator: correct kernels pass under every schedule, planted faults are found by what should find them."""

from __future__ import annotations

from pathlib import Path

import emulator
import ml_dtypes
import numpy as np
import pytest
from emulator import CUPY_OPTIONS, SCHEDULES, Buffer, EmulatedDevice, EmulatorError, Module, PtxError, Schedule, report, sanitize
from emulator.device import tensor_map

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
KERNELS = Path(emulator.__file__).parent / "kernels"
LAZY = Schedule("asc", lazy=True)
EAGER = Schedule("asc", lazy=False)


def load(name: str, arch: str = "sm_80", faults: tuple[str, ...] = ()) -> Module:
    return Module((KERNELS / f"{name}.cu").read_text(), arch, (*CUPY_OPTIONS, *(f"-D{f}" for f in faults)))


def run(source: str, grid: int, block: int, args: list[object], schedule: Schedule = LAZY, arch: str = "sm_80", shared: int = 0) -> None:
    Module(source, arch).kernel("k").launch((grid,), (block,), shared, args, schedule)


def softmax_error(schedule: Schedule = LAZY, *faults: str) -> float:
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    y = np.full_like(x, np.nan)
    load("softmax", faults=faults).kernel("softmax").launch((4,), (256,), 0, [x, y, 1000], schedule)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return float(np.abs(y - e / e.sum(1, keepdims=True)).max())


def gemm_error(schedule: Schedule = LAZY, *faults: str, element: str = "bf16") -> float:
    rng, dtype = np.random.default_rng(1), ml_dtypes.bfloat16 if element == "bf16" else np.float16
    a, b = rng.standard_normal((64, 96)).astype(dtype), rng.standard_normal((96, 64)).astype(dtype)
    c = np.full((64, 64), np.nan, np.float32)
    kernel = load("gemm", faults=(f'ELEMENT="{element}"', *faults)).kernel("gemm")
    kernel.launch((2, 2), (128,), 8192, [a.view(np.uint16), b.view(np.uint16), c, 64, 96], schedule)
    return float(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max())


def hopper_error(schedule: Schedule = LAZY, *faults: str) -> float:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((n, 256)).astype(ml_dtypes.bfloat16) for n in (128, 64))
    buffers = [Buffer(x.nbytes, name) for x, name in ((a, "A"), (b, "B"))]
    for x, buffer in zip((a, b), buffers, strict=True):
        buffer.bytes[:] = x.reshape(-1).view(np.uint8)
    maps = [tensor_map(buffer, x.shape, 2, (64, 64), 128) for x, buffer in zip((a, b), buffers, strict=True)]
    c = np.full((128, 64), np.nan, np.float32)
    load("hopper", "sm_90a", faults).kernel("gemm").launch((1, 2), (160,), 32768, [*maps, c, 64, 256], schedule, buffers)
    return float(np.abs(c - a.astype(np.float64) @ b.astype(np.float64).T).max())


# ---- correct kernels
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_softmax_is_right_under_every_schedule(schedule: Schedule) -> None:
    assert softmax_error(schedule) < 1e-7


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("element", ["bf16", "f16"])
def test_pipelined_tensor_core_product_is_right_under_every_schedule(schedule: Schedule, element: str) -> None:
    assert gemm_error(schedule, element=element) < 1e-4


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_tma_and_wgmma_product_is_right_under_every_schedule(schedule: Schedule) -> None:
    assert hopper_error(schedule) < 1e-3


# ---- planted faults
def found(error: object, *args: object) -> bool:
    """Whether a run gives a wrong result or an error."""
    try:
        return not error(*args) < 1e-2  # type: ignore[operator]  # NaN counts as wrong
    except EmulatorError:
        return True


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("fault", ["NO_BARRIER_BEFORE_READ", "NO_BARRIER_BEFORE_REUSE"])
def test_a_missing_barrier_gives_a_wrong_softmax(fault: str, order: str) -> None:
    error = softmax_error(Schedule(order), fault)
    assert not error < 1e-4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("fault", ["NO_BARRIER_AFTER_WAIT", "NO_BARRIER_BEFORE_REUSE"])
def test_random_priorities_find_a_missing_barrier_of_the_pipeline(fault: str, seed: int) -> None:
    assert found(gemm_error, Schedule("pct", seed % 2 == 0, seed), fault)


@pytest.mark.parametrize("order", ["asc", "desc", "pct"])
def test_a_weak_wait_is_found_by_lazy_copies_only(order: str) -> None:
    assert found(gemm_error, Schedule(order, lazy=True), "WAIT_TOO_WEAK")
    assert not found(gemm_error, Schedule(order, lazy=False), "WAIT_TOO_WEAK")


def test_stores_past_a_shared_array_are_reported() -> None:
    with pytest.raises(EmulatorError, match=r"thread \(224,0,0\): line 32: st.shared.*byte 32 of shared .*part.*which has 32 bytes"):
        softmax_error(LAZY, "PAST_THE_ARRAY")


def test_loads_past_a_buffer_are_reported() -> None:
    with pytest.raises(EmulatorError, match=r"kernel softmax, block \(3,0,0\).*ld.global.*at byte 16000 of argument 0, which has 16000"):
        softmax_error(LAZY, "PAST_THE_ROW")


def test_a_try_wait_without_a_loop_is_found() -> None:
    assert found(hopper_error, LAZY, "WAIT_ONCE")


def test_a_stage_released_before_wgmma_has_read_it_is_found() -> None:
    with pytest.raises(EmulatorError, match="overwritten before this wait"):
        hopper_error(LAZY, "RELEASE_TOO_EARLY")


KERNEL = 'extern "C" __global__ void k(int* o) {{ {} }}'
FAULTS = {
    "shuffle of half a warp": ("if (threadIdx.x < 16) o[threadIdx.x] = __shfl_xor_sync(~0u, o[threadIdx.x], 1);", "ended|deadlock"),
    "lane outside its mask": ("o[threadIdx.x] = __shfl_xor_sync(0xffffu, o[threadIdx.x], 1);", "not in its own mask"),
    "different shuffles": (
        "int v = o[0]; if (threadIdx.x & 1) v = __shfl_xor_sync(~0u, v, 2); else v = __shfl_xor_sync(~0u, v, 4) + 1; o[threadIdx.x] = v;",
        "diverges",
    ),
    "different barriers": ("if (threadIdx.x < 32) { __syncthreads(); o[0] = 1; } else { __syncthreads(); o[1] = 1; }", "diverges"),
    "barrier that waits forever": ('if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); o[0] = 1;', "deadlock.*barrier"),
    "loop without end": ("while (*(volatile int*)o == 0) {} o[1] = 1;", "does not end"),
    "misaligned load": ("o[0] = *(int*)((char*)o + threadIdx.x);", "misaligned"),
    "null pointer": ("*(int*)0 = o[0];", "out of bounds|traps"),
    "copy never waited for": (
        '__shared__ int s[4]; asm volatile("cp.async.ca.shared.global [%0], [%1], 16; cp.async.commit_group;"'
        ' :: "r"((unsigned)__cvta_generic_to_shared(s)), "l"(o) : "memory");',
        "never waited for",
    ),
    "trap": ("if (threadIdx.x == 3) __trap(); o[0] = 1;", r"thread \(3,0,0\).*traps"),
    "mbarrier before its init": (
        "__shared__ unsigned long long b; const unsigned a = (unsigned)__cvta_generic_to_shared(&b);"
        'asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(a));',
        "no initialised mbarrier",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_explained(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, message = FAULTS[fault]
    monkeypatch.setattr(emulator.device, "BUDGET", 100_000)
    with pytest.raises(EmulatorError, match=message):
        run(KERNEL.format(body), 1, 64, [np.zeros(64, np.int32)])


def test_shared_memory_and_allocations_hold_nan_until_written() -> None:
    source = 'extern "C" __global__ void k(float* o, const float* x) { volatile __shared__ float s[2]; o[0] = s[0]; o[1] = x[0]; }'
    device = EmulatedDevice()
    out, empty = device.alloc(8), device.alloc(8)
    device.launch(device.compile(source).get_function("k"), (1,), (1,), 0, [out, empty])
    assert np.isnan(out.view(np.float32)).all()


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(PtxError, match=r"line 1: .*match"):
        run(KERNEL.format("o[threadIdx.x] = __match_any_sync(~0u, o[threadIdx.x]);"), 1, 32, [np.zeros(32, np.int32)])


# ---- host code over the device
LAST_BLOCK = """
extern "C" __global__ void k(const float* x, float* part, unsigned* count, float* out, int n) {
  __shared__ bool last;
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = s;
    FENCE
    last = atomicAdd(count, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) { float r = 0; for (int b = 0; b < gridDim.x; b++) r += part[b]; *out = r; }
}
"""


def merge_in_last_block(fence: str = "__threadfence();", order: str = "asc", seed: int = 0) -> float:
    device = EmulatedDevice(schedule=Schedule(order, seed=seed))
    function = device.compile(LAST_BLOCK.replace("FENCE", fence)).get_function("k")
    x = np.arange(1000, dtype=np.float32)
    part, out, count = device.alloc(4 * 5), device.alloc(4), device.to_device(np.zeros(1, np.uint32))
    device.launch(function, (5,), (32,), 0, [device.to_device(x), part, count, out, np.int32(1000)])
    return float(out.view(np.float32)[0])


@pytest.mark.parametrize("order", ["asc", "desc", "pct"])
def test_last_block_merge(order: str) -> None:
    assert merge_in_last_block(order=order) == 499500


def test_the_device_is_as_strict_as_cupy() -> None:
    device = EmulatedDevice()
    function = device.compile(KERNEL.format("extern __shared__ int s[]; s[threadIdx.x] = 1; o[0] = s[0];")).get_function("k")
    out = device.alloc(4)
    with pytest.raises(EmulatorError, match="max_dynamic_shared_size_bytes"):
        device.launch(function, (1,), (1,), 64 << 10, [out])
    function.max_dynamic_shared_size_bytes = 64 << 10
    device.launch(function, (1,), (1,), 64 << 10, [out])
    assert out.view(np.int32)[0] == 1
    with pytest.raises(EmulatorError, match="not a buffer, NumPy scalar or bytes"):
        device.launch(function, (1,), (1,), 0, [3])
    function.max_dynamic_shared_size_bytes = 1 << 20
    with pytest.raises(EmulatorError, match="shared memory"):
        device.launch(function, (1,), (1,), 200 << 10, [out])
    with pytest.raises(ValueError, match="takes 1 arguments"):
        device.launch(function, (1,), (1,), 0, [out, out])


# ---- ThreadSanitizer
needs_sanitizer = pytest.mark.skipif(bool(sanitize.unavailable()), reason=sanitize.unavailable() or "available")


def line_of(name: str, text: str) -> int:
    return next(n for n, line in enumerate((KERNELS / f"{name}.cu").read_text().splitlines(), 1) if text in line)


def sanitized(name: str, *faults: str) -> None:
    {"softmax": softmax_error, "gemm": gemm_error, "hopper": hopper_error}[name](LAZY, *faults)


@needs_sanitizer
@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "gemm", "hopper"])
def test_correct_kernels_have_no_race(name: str) -> None:
    assert sanitize.races("test_emulator:sanitized", name) == []


@needs_sanitizer
def test_the_sanitizer_names_both_lines_of_a_race() -> None:
    races = sanitize.races("test_emulator:sanitized", "softmax", "NO_BARRIER_BEFORE_READ")
    assert {line_of("softmax", "part[warp] = m"), line_of("softmax", "m = part[0]")} in [set(r.lines) for r in races]


@needs_sanitizer
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, fault", [("softmax", "NO_BARRIER_BEFORE_REUSE"), ("gemm", "NO_BARRIER_AFTER_WAIT"), ("gemm", "NO_BARRIER_BEFORE_REUSE")]
)
def test_the_sanitizer_finds_missing_barriers(name: str, fault: str) -> None:
    assert sanitize.races("test_emulator:sanitized", name, fault)


@needs_sanitizer
@pytest.mark.slow
def test_the_sanitizer_asks_for_the_fence_of_a_last_block_merge() -> None:
    assert sanitize.races("test_emulator:merge_in_last_block") == []
    assert sanitize.races("test_emulator:merge_in_last_block", "")


# ---- reports of ptxas
@pytest.mark.skipif(not report.disassembler(), reason="no nvdisasm: pip install nvidia-cuda-nvdisasm")
@pytest.mark.parametrize("name, arch, opcodes", [("gemm", "sm_80", ("HMMA", "LDGSTS", "LDSM")), ("hopper", "sm_90a", ("HGMMA", "UTMALDG"))])
def test_compile_report(name: str, arch: str, opcodes: tuple[str, ...]) -> None:
    made = report.compile_report((KERNELS / f"{name}.cu").read_text(), arch)["gemm"]
    assert 16 <= made.registers <= 128 and made.spills == 0 and made.warnings == ()
    assert all(made.count(opcode) > 0 for opcode in opcodes) and made.count("FFMA2") == 0


def test_compile_report_sees_spills() -> None:
    source = 'extern "C" __global__ void __launch_bounds__(1024, 2) k(const float* x, float* y, int n) { float a[96];\n'
    source += "#pragma unroll\nfor (int i = 0; i < 96; i++) a[i] = x[i * n];\n"
    source += "#pragma unroll\nfor (int i = 0; i < 96; i++) y[i] = a[95 - i] * a[i]; }"
    assert report.compile_report(source, "sm_80")["k"].spills > 0
