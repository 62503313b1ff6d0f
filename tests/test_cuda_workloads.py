"""Every workload and every difficult input on CUDA: through the public API, over the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import emulated_cupy
import emulator
import numpy as np
import pytest
from emulated_cupy import asarray
from test_cases import CASES, Case
from test_programs import CASES as PROGRAMS
from test_programs import clipped
from test_workloads import ROUNDING, leaves, rng

import redfuser_eq as rf
from redfuser_eq.demo.workloads import WORKLOADS, Workload, named
from redfuser_eq.rules import NAMED

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(emulator.unavailable()), reason=emulator.unavailable() or "available")]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[emulated_cupy.Current]:
    monkeypatch.setenv("REDFUSER_CACHE", str(tmp_path_factory.getbasetemp() / "cubins"))
    yield emulated_cupy.install(monkeypatch)
    emulated_cupy.forget()


@pytest.mark.parametrize("w", WORKLOADS, ids=lambda w: w.name)
def test_workloads(gpu: emulated_cupy.Current, w: Workload) -> None:
    arrays = w.example(rng(w), small=True)
    got = on_host(rf.optimize(w.function, rules=NAMED[w.numerics], target="cuda", verify="raise")(*map(asarray, arrays)))
    want = leaves(w.function(*arrays) if w.name in ROUNDING else w.exact(arrays))
    assert len(got) == len(want)
    for g, e in zip(got, want, strict=True):
        assert g.shape == e.shape
        if e.dtype.kind in "iu":
            np.testing.assert_array_equal(g, e)
        else:
            assert np.max(np.abs(g - e)) <= (0.1 if w.numerics == "fast" else 2e-5) * max(1.0, np.max(np.abs(e)))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.number}-{c.name}")
def test_cases(gpu: emulated_cupy.Current, case: Case) -> None:
    args = [emulated_cupy.like(a) if isinstance(a, np.ndarray) else a for a in case.args]
    got, want = on_host(rf.optimize(case.f, target="cuda", verify="raise", **case.options)(*args)), case.expected()
    for g, e in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert g.shape == np.shape(e)
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(e, np.float64), rtol=case.rtol, atol=case.rtol / 10)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(gpu: emulated_cupy.Current, name: str) -> None:
    case, rng = PROGRAMS[name], np.random.default_rng(7)
    arrays = [rng.standard_normal(s, dtype=np.float32) + 1 for s in case.shapes(3, 37)]
    got = on_host(rf.optimize(case.f, target="cuda", verify="raise")(*map(asarray, arrays)))
    for g, e in zip(got, leaves(case.f(*(a.astype(np.float64) for a in arrays))), strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(g, e, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_an_unfused_program_keeps_what_is_not_finite(gpu: emulated_cupy.Current, value: float) -> None:
    x = np.ones((3, 5), np.float32)
    x[1, 2] = value
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(rf.optimize(clipped, target="cuda")(asarray(x)).get(), clipped(x))


def on_host(result: Any) -> list[Any]:
    if isinstance(result, dict):
        result = tuple(result.values())
    return [r.get() for r in (result if isinstance(result, tuple) else (result,))]


def test_warpgroups_through_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """On compute capability 9.0: more shared memory than a kernel gets unasked, and products by warpgroups."""
    on = emulated_cupy.install(monkeypatch, arch="sm_90a")
    w = named("attention, 3-D")
    arrays = [rng(w).standard_normal((2, 150, 64)).astype(np.float16) for _ in range(3)]
    got = rf.optimize(w.function, target="cuda")(*map(asarray, arrays)).get()
    want = w.function(*(a.astype(np.float64) for a in arrays))
    assert np.max(np.abs(got - want)) <= 2e-3 * np.max(np.abs(want))
    assert max(shared for *_, shared in on.log) > 48 << 10
    emulated_cupy.forget()
