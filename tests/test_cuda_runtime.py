"""The CUDA runtime over the emulator: arrays, memory, launches, flags, threads, errors, and every workload through the public API.

The package believes that it drives CuPy; `emulated_cupy` stands in its place.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import emulated_cupy
import emulator
import hardware
import ml_dtypes
import numpy as np
import pytest
import test_cuda_primitives
from emulated_cupy import asarray

import redfuser_eq as rf
from redfuser_eq import runtime
from redfuser_eq.arrays import TORCH_CUDA
from redfuser_eq.cascade import Cascade, check
from redfuser_eq.codegen.kernel import Size
from redfuser_eq.codegen.launch import CudaProgram, Launch, Scratch
from redfuser_eq.errors import BackendError, ShapeError
from redfuser_eq.runtime import cuda, cuda_cupy, cuda_repair

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
RNG = np.random.default_rng(3)
F32 = np.float32


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDFUSER_CACHE", str(tmp_path_factory.getbasetemp() / "cubins"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[emulated_cupy.Current]:
    yield emulated_cupy.install(monkeypatch)
    emulated_cupy.forget()


def normal(*shape: int, dtype: Any = F32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def logsumexp(x: Any) -> Any:
    m = np.max(x, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(x - m), axis=-1)) + m[..., 0]


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def wide(x: Any) -> Any:
    return x.astype(np.float64)


# ---- launches, with a program written by hand: y[r] = sum_k x[r, k] by way of partial sums, rows over 100 flagged
TEXT = """
extern "C" __global__ void part(const float* x, long long rows, long long k, long long xr, long long xk, double* sums, unsigned* count) {
  const long long r = blockIdx.x * 64 + threadIdx.x;
  if (r >= rows) return;
  double s = 0;
  for (long long i = blockIdx.y; i < k; i += gridDim.y) s += x[r * xr + i * xk];
  sums[r * gridDim.y + blockIdx.y] = s;
  atomicAdd(count, 1u);
}
extern "C" __global__ void all(float* y, long long rows, long long yr, const double* sums, const unsigned* count, unsigned char* flags) {
  extern __shared__ double room[];
  const long long r = blockIdx.x * 32 + threadIdx.x;
  if (r >= rows) return;
  room[threadIdx.x] = 0;
  for (int i = 0; i < 3; i++) room[threadIdx.x] += sums[r * 3 + i];
  y[r * yr] = *count == 3 * rows + 0x01010101u ? (float)room[threadIdx.x] : -1;
  if (room[threadIdx.x] > 100) flags[r] = 1;
}
"""


def written(cascade: Cascade, *_: Any) -> CudaProgram:
    """The program, in the names of a cascade that sums along the last axis of one array."""
    (x,), (r,), (k,) = [s.name for s in cascade.sources], cascade.outputs[0].axes, cascade.stream_axes()
    rows, three = Size(r), Size(value=3)
    one = (("in", x), ("extent", r), ("extent", k), ("in_stride", x, 0), ("in_stride", x, 1), ("buffer", "s"), ("buffer", "n"))
    two = (("out", 0), ("extent", r), ("out_stride", 0, 0), ("buffer", "s"), ("buffer", "n"), ("flags",))
    launches = (
        Launch("part", ((Size(r, divide=64),), (three,), ()), 64, 0, one),
        Launch("all", ((Size(r, divide=32),), (), ()), 32, 60 << 10, two),
    )
    return CudaProgram(TEXT, launches, (Scratch("s", 8, (rows, three)), Scratch("n", 4, (Size(),), fill=1)), 80, "sums", (r,))


def total(x: Any) -> Any:
    return np.sum(x, axis=-1)


@pytest.fixture
def sums(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> emulated_cupy.Current:
    """Whatever is asked for, the program above is built, and it is held to differ from the plain program."""
    monkeypatch.setattr(cuda, "program", written)
    monkeypatch.setattr(cuda, "_same", lambda *_: False)
    return gpu


def executable(f: Any, *arrays: Any) -> tuple[cuda.CudaExecutable, dict[str, int]]:
    bound = rf.optimize(f, target="cuda")._bind(arrays, {})
    assert isinstance(bound.run, cuda.CudaExecutable)
    return bound.run, bound.extents


def test_a_graph_of_launches(sums: emulated_cupy.Current) -> None:
    x = normal(70, 50)
    given = asarray(x)
    got = rf.optimize(total, target="cuda")(given)
    assert isinstance(got, emulated_cupy.ndarray)
    np.testing.assert_allclose(got.get(), wide(x).sum(-1), rtol=1e-5, atol=1e-5)
    assert sums.log[:2] == [("part", (2, 3, 1), (64, 1, 1), 0), ("all", (3, 1, 1), (32, 1, 1), 60 << 10)]
    assert [name for name, *_ in sums.log[2:]] == ["any_flag", "phase_0_over_" + "k"]  # of flagged rows: always queued
    assert sorted(b.nbytes for b in sums.device.buffers.values()) == [4 * 70, 4 * 70 * 50]  # scratch is given back


def test_a_repeated_call_only_launches(sums: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = rf.optimize(total, target="cuda")
    x = asarray(normal(70, 50))
    first = fused(x).get()
    for name in ("_prepare", "_new"):
        monkeypatch.setattr(cuda.CudaExecutable, name, None)
    x.host[...] = 2
    np.testing.assert_array_equal(fused(x).get(), np.full(70, 100, F32))
    assert not np.array_equal(first, fused(x).get())


def test_strides_and_outputs_of_the_caller(sums: emulated_cupy.Current) -> None:
    base = asarray(normal(90, 200))
    x = base[10:80:2, 150:20:-3]
    out = asarray(np.full((35, 4), np.nan, F32))
    fused = rf.optimize(total, target="cuda")
    target = out[:, 2]
    assert fused(x, out=target) is target
    np.testing.assert_allclose(out.get()[:, 2], wide(x.get()).sum(-1), rtol=1e-5, atol=1e-5)
    assert np.isnan(out.get()[:, [0, 1, 3]]).all()
    np.testing.assert_array_equal(fused(x.copy()).get(), target.get())


@pytest.mark.parametrize("at", [0, 3])
def test_an_output_over_an_input(sums: emulated_cupy.Current, at: int) -> None:
    x = asarray(normal(40, 40))
    want = wide(x.get()).sum(-1)
    rf.optimize(total, target="cuda")(x, out=x[at])
    np.testing.assert_allclose(x.get()[at], want, rtol=1e-5, atol=1e-5)


def test_outputs_are_checked(sums: emulated_cupy.Current) -> None:
    fused = rf.optimize(total, target="cuda")
    x = asarray(normal(4, 5))
    with pytest.raises(ShapeError, match="shape"):
        fused(x, out=asarray(np.zeros(5, F32)))
    run, extents = executable(total, x)
    with pytest.raises(ShapeError, match="out"):
        run([x], extents, [asarray(np.zeros(5, F32))])
    with pytest.raises(ShapeError, match="axes have sizes"):
        run([asarray(normal(4, 6))], extents)


def test_flagged_rows_without_a_kernel_for_them(sums: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(70, 50)
    x[[3, 64]] = 7.0  # sums of 350, over the 100 from which rows are flagged
    monkeypatch.setattr(cuda, "programs", lambda cascade, *_: (written(cascade), None))
    monkeypatch.setattr(cuda.Repair, "__call__", flagged_as_minus_two)
    got = rf.optimize(total, target="cuda")(asarray(x)).get()
    want = np.where(np.isin(np.arange(70), [3, 64]), -2, wide(x).sum(-1))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def flagged_as_minus_two(self: Any, arrays: Any, extents: Any, axes: Any, rows: Any, results: Any) -> None:
    results[0][rows] = -2


def test_no_flags_are_read_where_the_program_is_the_plain_one(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "program", written)
    monkeypatch.setattr(cuda_cupy.CupyDevice, "to_host", None)
    x = normal(7, 50)
    np.testing.assert_allclose(rf.optimize(total, target="cuda")(asarray(x)).get(), wide(x).sum(-1), rtol=1e-5, atol=1e-5)


def test_threads_share_one_build(sums: emulated_cupy.Current) -> None:
    fused = rf.optimize(total, target="cuda")
    inputs = [normal(33, 20 + n % 3) for n in range(8)]
    results: list[Any] = [None] * 8
    ready = threading.Barrier(8)

    def work(n: int) -> None:
        ready.wait()
        for _ in range(3):
            results[n] = fused(asarray(inputs[n])).get()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_allclose(y, wide(x).sum(-1), rtol=1e-5, atol=1e-5)
    assert sum("atomicAdd(count" in text for _, text in sums.modules) <= 1


def test_axes_without_elements(gpu: emulated_cupy.Current) -> None:
    fused = rf.optimize(lambda x, y: np.sum(x, axis=-1) + y, target="cuda")
    y = normal(3)
    np.testing.assert_array_equal(fused(asarray(normal(3, 0)), asarray(y)).get(), y)
    assert fused(asarray(normal(0, 5)), asarray(normal(0))).shape == (0,)
    with pytest.raises(ShapeError, match="max"):
        rf.optimize(lambda x: np.max(x, axis=-1), target="cuda")(asarray(normal(3, 0)))
    assert gpu.log == []


# ---- errors
def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    emulated_cupy.forget()
    assert not runtime.available("cuda")
    with pytest.raises(BackendError, match=r"needs CuPy.*pip install 'redfuser-eq\[cuda13x\]'.*target='cpu'"):
        cuda_cupy.current()


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (0, r"no CUDA device is visible.*CUDA_VISIBLE_DEVICES"),
        (emulated_cupy.CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected"), "NoDevice.*nvidia-smi"),
        (emulated_cupy.CUDARuntimeError("cudaErrorInsufficientDriver: too old"), "InsufficientDriver.*install the NVIDIA driver"),
    ],
    ids=["none", "no device", "old driver"],
)
def test_no_device(gpu: emulated_cupy.Current, devices: Any, words: str) -> None:
    gpu.devices = devices
    assert not runtime.available("cuda")
    with pytest.raises(BackendError, match=words):
        runtime.build("cuda", *[None] * 2)  # type: ignore[list-item]


def test_an_old_device(gpu: emulated_cupy.Current) -> None:
    gpu.properties |= {"name": b"Tesla V100", "major": 7}
    with pytest.raises(BackendError, match=r"Tesla V100 has compute capability 7\.0.*need 8\.0"):
        rf.optimize(total)(asarray(normal(3, 4)))


def test_memory_runs_out(sums: emulated_cupy.Current) -> None:
    x = asarray(normal(300, 4))
    fused = rf.optimize(total, target="cuda")
    sums.room = 2000
    with pytest.raises(MemoryError, match=r"7200 bytes of scratch.*free_all_blocks"):
        fused(x)
    sums.room = 1 << 30
    np.testing.assert_allclose(fused(x).get(), wide(x.get()).sum(-1), rtol=1e-5, atol=1e-5)


def test_too_much_shared_memory_for_this_device(sums: emulated_cupy.Current) -> None:
    sums.properties["sharedMemPerBlockOptin"] = 48 << 10
    with pytest.raises(BackendError, match=r"all needs 61440 bytes of shared memory, a block of Emulated has 49152"):
        rf.optimize(total, target="cuda")(asarray(normal(3, 4)))


def test_a_failing_compiler_is_quoted(gpu: emulated_cupy.Current) -> None:
    with pytest.raises(BackendError, match=r"does not compile for sm_80.*\n.*no_such_thing"):
        cuda_cupy.build('extern "C" __global__ void k(int* x) { *x = no_such_thing; }', "sm_80")


def test_host_arrays_are_refused() -> None:
    with pytest.raises(BackendError, match="arrays are on the host; pass CuPy arrays"):
        rf.optimize(total, target="cuda")(normal(3, 4))


def test_arrays_of_two_devices(gpu: emulated_cupy.Current) -> None:
    x, y = asarray(normal(3, 4)), asarray(normal(3, 4))
    y.data.device_id = 1
    with pytest.raises(BackendError, match=r"on device 0 and on \[1\]; move them"):
        rf.optimize(lambda x, y: np.sum(x * y, axis=-1), target="cuda")(x, y)


def test_a_program_without_a_kernel(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise cuda.Unsupported("x is of dtype complex64")

    monkeypatch.setattr(cuda, "schedule", refuse)
    with pytest.raises(BackendError, match="no kernel for this program: x is of dtype complex64; move the arrays to the host"):
        rf.optimize(total, target="cuda")(asarray(normal(3, 4)))


def test_what_a_device_is_taken_for() -> None:
    properties = {
        "name": b"NVIDIA H200",
        "major": 9,
        "minor": 0,
        "multiProcessorCount": 66,
        "sharedMemPerBlockOptin": 232448,
        "l2CacheSize": 1,
    }
    gpu = cuda_cupy.gpu_of(properties)
    whole = rf.gpu.GPUS["h200"]
    assert (gpu.capability, gpu.arch, gpu.multiprocessors, gpu.l2) == (90, "sm_90a", 66, 1)
    assert gpu.bandwidth == whole.bandwidth and gpu.fp32 == whole.fp32 / 2 and gpu.tensor["bf16"] == whole.tensor["bf16"] / 2
    other = cuda_cupy.gpu_of({**properties, "name": "NVIDIA GeForce RTX 4090", "major": 8, "minor": 9})
    assert other.capability == 89 and other.arch == "sm_89"


# ---- whole programs
def attention(q: Any, k: Any, v: Any) -> Any:
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v


def entropy(x: Any) -> Any:
    p = softmax(x)
    return -np.sum(p * np.log(p), axis=-1)


@pytest.mark.parametrize(
    "f", [logsumexp, softmax, entropy, lambda x: np.var(x, axis=-1)], ids=["logsumexp", "softmax", "entropy", "variance"]
)
def test_rows_that_are_not_finite(gpu: emulated_cupy.Current, f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the written-out formula has them, without waiting for the device, and the other rows bit for bit as without them."""
    monkeypatch.setattr(cuda_cupy.CupyDevice, "to_host", None)
    x = normal(9, 70)
    clean = rf.optimize(f, target="cuda")(asarray(x)).get()
    x[1, 5], x[3, 7], x[4, :], x[6, 69], x[6, 0] = np.nan, np.inf, -np.inf, -np.inf, np.inf
    with np.errstate(all="ignore"):
        want = f(wide(x))
    got = rf.optimize(f, target="cuda")(asarray(x)).get()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    others = [0, 2, 5, 7, 8]
    np.testing.assert_array_equal(got[others], clean[others])


def test_a_query_that_sees_nothing(gpu: emulated_cupy.Current) -> None:
    q, k, v = normal(5, 8), normal(40, 8), normal(40, 8)
    q[2] = np.nan
    v[7, 3] = np.inf
    got = rf.optimize(attention, target="cuda")(asarray(q), asarray(k), asarray(v)).get()
    with np.errstate(all="ignore"):
        want = attention(wide(q), wide(k), wide(v))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_two_schedules_of_threads_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for schedule in (emulator.Schedule("desc"), emulator.Schedule("pct", False, 5)):
        emulated_cupy.install(monkeypatch, schedule=schedule, multiprocessors=3)
        results.append(rf.optimize(logsumexp, target="cuda")(asarray(np.linspace(-3, 3, 3000, dtype=F32).reshape(3, 1000))).get())
        emulated_cupy.forget()
    np.testing.assert_array_equal(*results)


def test_one_build_for_other_lengths(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = rf.optimize(logsumexp, target="cuda")
    built = []
    load = cuda_cupy.CupyDevice._load
    monkeypatch.setattr(cuda_cupy.CupyDevice, "_load", lambda self, program: built.append(program.key) or load(self, program))
    for rows, length in ((3, 9000), (50, 9000), (7, 9001)):
        x = normal(rows, length)
        np.testing.assert_allclose(fused(asarray(x)).get(), logsumexp(wide(x)), rtol=1e-5)
    assert len(built) == 3  # the kernel, the look for flags, and the plain program


def test_programs_of_a_call_are_compiled_side_by_side(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    meet, met, known = threading.Barrier(3, timeout=30), set[str](), cuda_cupy.build

    def build(text: str, arch: str) -> Any:
        if text not in met:
            met.add(text)
            meet.wait()
        return known(text, arch)

    build.cache_clear = known.cache_clear  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_cupy, "build", build)
    x = normal(3, 700)
    np.testing.assert_allclose(rf.optimize(logsumexp, target="cuda")(asarray(x)).get(), logsumexp(wide(x)), rtol=1e-5)
    assert len(met) == 3


def test_source_and_explain_need_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    emulated_cupy.forget()
    fused = rf.optimize(attention, target="cuda")
    q, k, v = (normal(64, 32) for _ in range(3))
    assert "__global__" in fused.source("cuda", q, k, v)
    text = str(fused.explain(q, k, v))
    assert "kernels, as modelled for an h200" in text and "bound by" in text


def test_captured_arrays_of_the_host(gpu: emulated_cupy.Current) -> None:
    """They are read at each call, as everywhere."""
    bias = normal(40)
    fused = rf.optimize(lambda x: logsumexp(x + bias), target="cuda")
    x = normal(6, 40)
    for _ in range(2):
        np.testing.assert_allclose(fused(asarray(x)).get(), logsumexp(wide(x + bias)), rtol=1e-5)
        bias += 3


def test_the_plain_program_of_flagged_rows_needs_no_matrix_in_memory(gpu: emulated_cupy.Current) -> None:
    plan = rf.optimize(attention, target="cuda")._bind([asarray(normal(50, 8)) for _ in range(3)], {}).plan
    plain = plan.plain
    extents = {a: int(n or 0) for a, n in plain.extents.items()}
    scores = [a for p in plain.passes for a in p.accumulators if len(a.axes) == 2 and a.axes[1] in plain.stream_axes()]
    assert len(scores) == 1
    cut = cuda_repair.in_place(plain, extents)
    check(cut)
    assert scores[0].name not in {a.name for a in cut.accumulators()}
    few = {**extents, scores[0].axes[0]: 3}  # fewer queries than columns: the scores are smaller than the keys
    assert cuda_repair.in_place(plain, few) == plain


def test_arrays_on_a_device_choose_the_target(gpu: emulated_cupy.Current) -> None:
    x = normal(5, 60)
    fused = rf.optimize(logsumexp)
    np.testing.assert_allclose(fused(asarray(x)).get(), logsumexp(wide(x)), rtol=1e-5)
    assert fused.report(asarray(x)).target == "cuda" and "kernels, as modelled for an h200" in str(fused.explain(asarray(x)))
    np.testing.assert_allclose(fused(x), logsumexp(wide(x)), rtol=1e-5)
    assert fused.report(x).target != "cuda" and "kernels" not in str(fused.explain(x))


def test_results_in_structures(gpu: emulated_cupy.Current) -> None:
    x = normal(4, 6, 33)
    got = rf.optimize(lambda x: {"best": rf.top_k(x, 3), "lse": logsumexp(x)}, target="cuda")(asarray(x))
    order = np.argsort(-x, axis=-1, kind="stable")[..., :3]
    np.testing.assert_array_equal(got["best"][0].get(), np.take_along_axis(x, order, -1))
    np.testing.assert_array_equal(got["best"][1].get(), order)
    np.testing.assert_allclose(got["lse"].get(), logsumexp(wide(x)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes(gpu: emulated_cupy.Current, dtype: Any) -> None:
    x = normal(20, 300, dtype=dtype)
    got = rf.optimize(logsumexp, target="cuda")(asarray(x)).get()
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(float), logsumexp(wide(x)), rtol=1e-12 if dtype == np.float64 else 1e-2)


# ---- torch
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool"])
def test_tensors_travel_without_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    cupy = types.SimpleNamespace(from_dlpack=np.from_dlpack)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, name))
    taken = TORCH_CUDA.take(tensor)
    assert taken.dtype == np.dtype(getattr(ml_dtypes, name, name)) and taken.ctypes.data == tensor.data_ptr()
    given = TORCH_CUDA.give(taken)
    assert given.dtype == tensor.dtype and given.data_ptr() == tensor.data_ptr() and bool((given == tensor).all())


def test_work_joins_torchs_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    entered: list[int] = []

    class Stream:
        @staticmethod
        def from_external(stream: Any) -> Any:
            entered.append(stream.__cuda_stream__()[1])
            return contextlib.nullcontext()

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=types.SimpleNamespace(Stream=Stream)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=77))
    with TORCH_CUDA.within():
        assert entered == [77]


def test_the_conformance_tests_run_kernels(gpu: emulated_cupy.Current, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they would do on a device, on the emulator."""
    hardware.stand_in(monkeypatch, test_cuda_primitives)
    test_cuda_primitives.test_lane_reductions(8)
    staged = test_cuda_primitives.test_staged_tiles_and_tensor_cores_with_ragged_edges
    staged("bf16", ml_dtypes.bfloat16, "async", emulator.Schedule())
    assert len(gpu.log) == 2
    on = emulated_cupy.install(monkeypatch, arch="sm_90a")
    test_cuda_primitives.test_boxes_of_a_tensor_swizzled_and_filled_with_zeros(3, emulator.Schedule())
    test_cuda_primitives.test_warp_specialised_product_on_hopper("bf16_sst", emulator.Schedule())
    assert len(on.log) == 2
