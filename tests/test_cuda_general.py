"""Products and columns as CUDA without tensor cores, on the emulator, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cascades
import emulator
import ml_dtypes
import numpy as np
import pytest
import test_fuzz
from emulator import Schedule, sanitize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redfuser_eq as rf
from redfuser_eq.cascade import Cascade
from redfuser_eq.codegen import kernel as ir
from redfuser_eq.expr import Expr, Load, Source, nodes, transform

if emulator.unavailable():
    pytest.skip(emulator.unavailable(), allow_module_level=True)
from emulated import Run, error, run

PRODUCTS = ("attention", "attention_causal", "attention_window", "attention_bias", "attention_gqa", "decode", "mla", "linear_logsumexp",
            "cross_entropy", "rms_linear", "layernorm_linear", "kmeans", "kmeans_direct", "routing", "quantised_linear",
            "attention_received")  # fmt: skip
ASC, DESC, RANDOM = Schedule("asc"), Schedule("desc", lazy=False), Schedule("pct", seed=3)


def check(w: cascades.Workload, extents: dict[str, int] | None = None, seed: int = 0, tolerance: float = 2e-6, **options: Any) -> Run:
    extents = extents or w.extents
    arrays = w.make(np.random.default_rng(seed), extents)
    choice = {"form": "tile"} | options.pop("choice", {})
    r = run(options.pop("cascade", w.cascade), arrays, extents, choice=choice, **options)
    for got, want in zip(r.outputs, w.expected(*(a.astype(np.float64) for a in arrays)), strict=True):
        assert error(got, want) < tolerance
    assert not r.flags.any()
    assert any(p.place is not None and p.place.form == "tile" for p in r.kernel.phases)
    return r


# ---- forms
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("order", [DESC, RANDOM], ids=str)
def test_fused(name: str, order: Schedule) -> None:
    check(cascades.WORKLOADS[name](), order=order)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRODUCTS)
def test_unfused(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    check(w, cascade=w.plain, order=RANDOM)


@pytest.mark.parametrize("name", ["attention", "attention_causal", "layernorm_linear", "routing", "kmeans"])
def test_small_tiles(name: str) -> None:
    check(cascades.WORKLOADS[name](), choice={"rows": 4, "depth": 8}, order=DESC)


@pytest.mark.parametrize("name", ["decode", "mla", "routing", "cross_entropy"])
def test_segments_merge(name: str) -> None:
    w = cascades.WORKLOADS[name]()
    few = {"i": 5, "r": 5} if name in ("routing", "cross_entropy") else {}
    extents = w.extents | {a: n for a, n in few.items() if a in w.extents}
    r = check(w, extents, choice={"segment": 16, "depth": 16}, order=RANDOM)
    assert r.kernel.phases[-1].name == "merge"


@pytest.mark.parametrize("columns", [1, 19, 129, 300])
def test_columns_over_the_grid(columns: int) -> None:
    check(cascades.layernorm_linear(), {"r": 35, "k": 70, "n": columns}, order=DESC)


@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name in ("attention", "attention_causal", "rms_linear", "linear_logsumexp"):
        w = cascades.WORKLOADS[name]()
        extents = {a: int(rng.integers(1, 90)) if a not in "bh" else int(rng.integers(1, 3)) for a in w.extents}
        extents |= {"j": extents["i"]} if name == "attention_causal" else {}
        check(w, extents, seed)


# ---- memory and dtypes
@pytest.mark.parametrize("kind", ["transposed", "spread"])
@pytest.mark.parametrize("name", ["attention", "attention_bias", "rms_linear", "kmeans"])
def test_strides(name: str, kind: str) -> None:
    w = cascades.WORKLOADS[name]()
    arrays = w.make(np.random.default_rng(3), w.extents)
    want = w.expected(*(a.astype(np.float64) for a in arrays))
    moved = []
    for a in arrays:
        if kind == "transposed" and a.ndim > 1:
            a = np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
        elif kind == "spread":
            room = np.full([2 * n + 1 for n in a.shape], np.nan, a.dtype)
            view = room[tuple(slice(0, 2 * n, 2) for n in a.shape)]
            view[...] = a
            a = view
        moved.append(a)
    r = run(w.cascade, moved, w.extents, choice={"form": "tile"})
    assert all(error(got, x) < 2e-6 for got, x in zip(r.outputs, want, strict=True)) and not r.flags.any()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64], ids=["f16", "bf16", "f64"])
def test_dtypes(dtype: Any) -> None:
    check(cascades.attention(np.dtype(dtype)), tolerance={2: 1e-2, 8: 1e-13}[np.dtype(dtype).itemsize])


def test_one_array_in_three_roles() -> None:
    """softmax(x @ x.T / 4) @ x: the axes are told apart though array and sizes are one."""
    w = cascades.attention()
    (p,) = w.cascade.passes

    def same(e: Expr) -> Expr:
        return transform(e, lambda x: Load("x", x.dims) if isinstance(x, Load) else None)

    accs = tuple(replace(a, lift=same(a.lift), rebase=None if a.rebase is None else same(a.rebase)) for a in p.accumulators)
    c = replace(w.cascade, passes=(replace(p, accumulators=accs),), sources=(Source("x", 0, np.dtype(np.float32), 4),))
    x = np.random.default_rng(20).standard_normal((2, 1, 33, 33), dtype=np.float32)
    r = run(c, [x], {"b": 2, "h": 1, "i": 33, "j": 33, "e": 33, "d": 33}, choice={"form": "tile"})
    x = x.astype(np.float64)
    assert error(r.outputs[0], cascades.softmax64(x @ x.swapaxes(-1, -2) / 4) @ x) < 2e-6


# ---- masks and values that are not finite
def test_masked_tiles_are_skipped() -> None:
    w = cascades.attention_causal()
    extents = w.extents | {"i": 70, "j": 70}
    r = check(w, extents, choice={"depth": 16, "rows": 16}, order=DESC)
    assert any(isinstance(s, ir.Skip) for p in r.kernel.phases for s in ir.statements(p.body))


@pytest.mark.parametrize("where", ["k", "v"])
def test_a_value_that_is_not_finite_under_a_mask_is_not_lost(where: str) -> None:
    """Its weight is 0, and 0 * NaN is NaN: every row is flagged, whether or not its tile would have been skipped."""
    w = cascades.attention_causal()
    extents = w.extents | {"i": 70, "j": 70}
    k, q, v = w.make(np.random.default_rng(7), extents)
    (k if where == "k" else v)[0, 69, 3] = np.nan
    r = run(w.cascade, [k, q, v], extents, choice={"form": "tile", "depth": 16, "rows": 16})
    assert not r.flags[1].any()
    if where == "v":
        assert r.flags[0].all()
    else:  # the masked score is replaced before anything is done with it
        assert r.flags[0].tolist() == [0] * 69 + [1]


def test_the_order_of_threads_changes_nothing() -> None:
    w = cascades.attention()
    arrays = w.make(np.random.default_rng(5), w.extents)
    first, again = (run(w.cascade, arrays, w.extents, choice={"form": "tile"}, order=o).outputs for o in (ASC, RANDOM))
    assert np.array_equal(first[0], again[0])


# ---- races
RACES = (
    ("attention_causal", {"form": "tile", "rows": 8, "depth": 8}),
    ("layernorm_linear", {"form": "tile"}),
    ("routing", {"form": "tile"}),
    ("decode", {"form": "tile", "segment": 64}),
    ("several", {"segment": 64, "group": 64, "elems": 1}),
    ("logsumexp_axis0", {}),
    ("softmax", {"group": 256, "elems": 4}),
)


def sanitized(name: str, choice: dict[str, Any]) -> None:
    w = cascades.WORKLOADS[name]()
    run(w.cascade, w.make(np.random.default_rng(0), w.extents), w.extents, choice=choice)


@pytest.mark.thorough
@pytest.mark.skipif(bool(sanitize.unavailable()), reason=sanitize.unavailable() or "available")
@pytest.mark.parametrize(("name", "choice"), RACES, ids=str)
def test_no_two_accesses_are_unordered(name: str, choice: dict[str, Any]) -> None:
    assert sanitize.races("test_cuda_general:sanitized", name, choice) == []


# ---- random cascades
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["tile", "rows"])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=test_fuzz.steps, rows=st.integers(2, 5), k=st.integers(2, 300), seed=st.integers(0, 2**32 - 1))
def test_random_cascades(form: str, steps: list[test_fuzz.Step], rows: int, k: int, seed: int) -> None:
    """Whatever the laws make of random array code, the kernels agree with NumPy in float64 where no row is flagged."""
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(rows, k)), rng.normal(size=(rows, k)) + 0.5, rng.normal(size=k)
    f = test_fuzz.program(steps)
    with np.errstate(all="ignore"):
        want = f(*arrays)
    c = rf.optimize(f, target="numpy", verify="raise").cascade(*arrays)
    extents = {a: n for s in c.sources for a, n in zip(dims_of(c, s.name), arrays[s.param].shape, strict=True)}
    r = run(c, [arrays[s.param] for s in c.sources], c.extents | extents, choice={"form": form}, order=RANDOM)
    for g, w in zip(r.outputs, want if isinstance(want, tuple) else (want,), strict=True):
        ok = np.isfinite(w) & (np.abs(w) < 1e8) & (not r.flags.any())
        scale = max(1.0, float(np.abs(w[ok]).max())) if ok.any() else 1.0
        np.testing.assert_allclose(g.reshape(w.shape)[ok], w[ok], rtol=1e-7, atol=1e-9 * scale)


def dims_of(c: Cascade, source: str) -> tuple[str, ...]:
    """The axes that a source is loaded over."""
    roots = [e for a in c.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in c.outputs]
    return next((e.dims for e in nodes(*roots) if isinstance(e, Load) and e.source == source), ())


@pytest.mark.parametrize("axes", ["ij", "hij", "j"])
def test_a_boolean_mask_is_summarised(axes: str) -> None:
    """Tiles that are masked, open and mixed; V is not finite under the mask in one head."""
    w = cascades.attention_causal()
    extents = {"h": 2, "i": 40, "j": 90, "e": 16, "d": 20}
    c = cascades.masked_by_array(axes)
    rng = np.random.default_rng(21)
    k, q, v = w.make(rng, extents)
    t = rng.random([extents[a] for a in axes]) < 0.7
    t[..., :16] = True
    t[..., 16:48] = False
    choice = {"form": "tile", "depth": 16, "rows": 16}
    r = run(c, [k, q, v, t], extents, choice=choice, order=DESC)
    assert next(s for ph in r.kernel.phases for s in ir.statements(ph.body) if isinstance(s, ir.Skip)).summary
    z = np.einsum("hie,hje->hij", q.astype(np.float64), k) * 0.25
    want = cascades.softmax64(np.where(np.broadcast_to(t, z.shape), z, -np.inf)) @ v
    assert error(r.outputs[0], want) < 2e-5 and not r.flags.any()
    v[1, 30, 2] = np.inf
    r = run(c, [k, q, v, t], extents, choice=choice)
    assert r.flags[1].all() and not r.flags[0].any() and error(r.outputs[0][0], want[0]) < 2e-5
