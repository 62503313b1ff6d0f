"""On a CUDA device: every primitive does what the emulator does, and every workload is right. Without one, all of it skips."""

from __future__ import annotations

from typing import Any

import hardware
import ml_dtypes
import numpy as np
import pytest
import test_cuda_primitives as primitives
from emulator import Schedule
from test_workloads import ROUNDING, leaves, rng

import redfuser_eq as rf
from redfuser_eq.demo.workloads import WORKLOADS, Workload
from redfuser_eq.errors import BackendError
from redfuser_eq.rules import NAMED
from redfuser_eq.runtime import cuda_cupy


def unavailable() -> str:
    try:
        cuda_cupy.current()
    except BackendError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available")]
F32, BF16 = np.float32, ml_dtypes.bfloat16
# test and arguments; the architecture whose features it needs
CASES: list[tuple[Any, dict[str, Any], int]] = [
    *((primitives.test_scalars, {"name": name, "arch": "sm_80"}, 80) for name in primitives.SCALARS),
    *(
        (primitives.test_sixteen_byte_accesses, {"load": load, "arch": "sm_80", "name": name, "dtype": dtype, "each": each}, 80)
        for load in ("load128", "load128_once")
        for name, dtype, each in (("f32", F32, 4), ("bf16", BF16, 8), ("f16", np.float16, 8), ("e4m3", primitives.E4M3, 16))
    ),
    *((primitives.test_lane_reductions, {"width": width}, 80) for width in (4, 8, 32)),
    (primitives.test_last_block_sees_all_blocks_and_resets_its_ticket, {"schedule": Schedule()}, 80),
    (primitives.test_named_barriers, {}, 80),
    *(
        (
            primitives.test_staged_tiles_and_tensor_cores_with_ragged_edges,
            {"element": element, "dtype": dtype, "stage": stage, "schedule": Schedule()},
            80,
        )
        for element, dtype in (("bf16", BF16), ("f16", np.float16))
        for stage in primitives.STAGES
    ),
    (primitives.test_other_mma_elements, {"element": "tf32", "dtype": F32, "k": 8, "arch": "sm_80"}, 80),
    (primitives.test_other_mma_elements, {"element": "e4m3", "dtype": primitives.E4M3, "k": 32, "arch": "sm_89"}, 89),
    (primitives.test_transposed_loads_and_matrix_stores, {}, 90),
    *((primitives.test_boxes_of_a_tensor_swizzled_and_filled_with_zeros, {"rank": n, "schedule": Schedule()}, 90) for n in (2, 3, 4, 5)),
    (primitives.test_the_copy_engine_rounds_to_tf32, {}, 90),
    *((primitives.test_tiles_are_rounded_where_they_lie, {"name": name}, 80) for name in ("round_cells", "round_evens")),
    *((primitives.test_warp_specialised_product_on_hopper, {"form": form, "schedule": Schedule()}, 90) for form in primitives.FORMS),
]
HOPPER_ONLY = (primitives.test_warp_specialised_product_on_hopper,)  # later devices have other instructions


@pytest.mark.parametrize(("test", "arguments", "least"), CASES, ids=[f"{t.__name__[5:]} {list(a.values())}" for t, a, _ in CASES])
def test_conformance(test: Any, arguments: dict[str, Any], least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test that holds the emulator to NumPy holds the hardware to it."""
    capability = cuda_cupy.current().gpu.capability
    if capability < least or (test in HOPPER_ONLY and capability != 90):
        pytest.skip(f"needs compute capability {least / 10}")
    hardware.stand_in(monkeypatch, primitives)
    test(**arguments)


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.name)
def test_workloads(w: Workload) -> None:
    cupy = cuda_cupy.module()
    arrays = w.example(rng(w), small=True)
    got = leaves_on_host(rf.optimize(w.function, rules=NAMED[w.numerics], target="cuda", verify="raise")(*map(cupy.asarray, arrays)))
    want = leaves(w.function(*arrays) if w.name in ROUNDING else w.exact(arrays))
    for g, e in zip(got, want, strict=True):
        if e.dtype.kind in "iu":
            np.testing.assert_array_equal(g, e)
        else:
            assert np.max(np.abs(g - e)) <= (0.1 if w.numerics == "fast" else 1e-4) * max(1.0, np.max(np.abs(e)))


def leaves_on_host(result: Any) -> list[Any]:
    if isinstance(result, dict):
        result = tuple(result.values())
    return [r.get() for r in (result if isinstance(result, tuple) else (result,))]
