"""Products of float32 on tensor cores, where `numerics="fast"` lets them be multiplied as tf32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import numpy as np
import pytest
from test_cuda_mma import A100, H200, check, padded, some, transposed

import redfuser_eq
from redfuser_eq.cuda_schedule import schedule
from redfuser_eq.gpu import Gpu

pytestmark = pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")
NAMES = ("attention", "linear_logsumexp", "layernorm_linear", "quantised_linear", "attention_window", "attention_gqa", "mla",
         "cross_entropy", "rms_linear")  # fmt: skip
TOLERANCE = {"linear_logsumexp": 1e-3, "cross_entropy": 1e-3}


def fast(name: str) -> cascades.Workload:
    w = cascades.WORKLOADS[name]()
    return replace(w, cascade=replace(w.cascade, numerics="fast"))


@pytest.mark.parametrize("name", some(NAMES[:4], NAMES[4:]))
def test_workloads(name: str) -> None:
    r = check(fast(name), tolerance=TOLERANCE.get(name, 3e-3))
    assert "mma_tf32" in r.program.text


@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda g: g.name)
@pytest.mark.parametrize("sizes", some([{"i": 17, "j": 129, "e": 136, "d": 144}], [{"i": 130, "j": 33, "e": 20, "d": 8}]), ids=str)
def test_ragged_sizes(sizes: dict[str, int], gpu: Gpu) -> None:
    check(fast("attention_causal"), {"h": 1, **sizes, "j": max(sizes["i"], sizes["j"])}, 3e-3, gpu=gpu)


@pytest.mark.parametrize("arrange", some([transposed], [padded]))
def test_strides(arrange: Any) -> None:
    check(fast("attention_causal"), {"h": 1}, 3e-3, arrange=arrange)
    check(fast("rms_linear"), {"r": 35}, 3e-3, arrange=arrange)


def test_never_by_default() -> None:
    for numerics in ("strict", "default"):
        w = cascades.attention()
        kernel = schedule(replace(w.cascade, numerics=numerics), w.extents, {}, A100)
        assert all(p.place is None or p.place.form != "mma" for p in kernel.phases)


def test_the_program_says_it() -> None:
    def f(q: Any, k: Any) -> Any:
        s = q @ k.T
        m = s.max(-1, keepdims=True)
        return np.log(np.exp(s - m).sum(-1)) + m[:, 0]

    q, k = np.ones((64, 64), np.float32), np.ones((300, 64), np.float32)
    assert "mma_tf32" in redfuser_eq.optimize(f, numerics="fast").source("cuda", q, k)
    assert "mma_tf32" not in redfuser_eq.optimize(f).source("cuda", q, k)
