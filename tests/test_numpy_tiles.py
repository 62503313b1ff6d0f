"""Blocked NumPy: rows that are their own, memory of a tile, threads, products, accuracy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import cascades
import numpy as np
import pytest
from cascades import WORKLOADS
from writing import (
    Array,
    Builder,
    T,
    Workload,
    close,
    expected,
    load,
    lse64,
    normal,
    total,
    workload,
)

from redfuser_eq.expr import Index, Map, nodes
from redfuser_eq.runtime import contract, tiling
from redfuser_eq.runtime import numpy as backend

NAN, INF = np.nan, np.inf
COLUMNS = {"d", "n"}  # axes of the workloads that are columns of a matrix product, not rows


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def run(w: Workload, arrays: list[Any], extents: Mapping[str, int], plain: bool = False, out: list[Array] | None = None) -> list[Array]:
    return backend.build(w.plain if plain else w.cascade, w.plain)(arrays, extents, out)


# ---- a row is its own


def rows_of(w: Workload) -> list[str]:
    """Axes along which results are independent of each other and do not know their position."""
    exprs = [e for a in w.cascade.accumulators() for e in (a.lift, a.rebase) if e is not None] + [o.expr for o in w.cascade.outputs]
    positions = {e.axis for e in nodes(*exprs) if isinstance(e, Index)}
    swept = {p.axis for p in w.cascade.passes}
    shared = set.intersection(*(set(o.axes) for o in w.cascade.outputs))
    return sorted(shared - positions - swept - COLUMNS - {"t"})


@pytest.mark.parametrize("tiles", ["large", "small_tiles"])
@pytest.mark.parametrize("name", [n for n in WORKLOADS if rows_of(WORKLOADS[n]())])
def test_a_row_alone_and_in_a_batch(name: str, tiles: str, request: pytest.FixtureRequest, rng: np.random.Generator) -> None:
    """Bit-equal, wherever the row stands and however many others there are."""
    w = WORKLOADS[name]()
    extents = dict(w.extents)
    if tiles == "large":
        extents |= {"i": 290, "r": 270} if "attention" not in name else {"i": 290}
        extents |= {a: n for a, n in {"k": 1500, "j": 700, "v": 700}.items() if a in extents}
        extents = {a: extents[a] for a in w.extents}
    else:
        request.getfixturevalue(tiles)
    arrays = w.make(rng, extents)
    batch = run(w, arrays, extents)
    dims = {e.source: e.dims for e in nodes(*(o.expr for o in w.program.outputs)) if hasattr(e, "dims")}
    for axis in rows_of(w):
        for chosen in ([0], [extents[axis] - 1], sorted({1 % extents[axis], extents[axis] // 2, extents[axis] - 1})):
            picked = [
                np.take(a, chosen, axis=dims[s.name].index(axis)) if axis in dims[s.name] else a
                for a, s in zip(arrays, w.cascade.sources, strict=True)
            ]
            alone = run(w, picked, {**extents, axis: len(chosen)})
            for o, x, y in zip(w.cascade.outputs, alone, batch, strict=True):
                np.testing.assert_array_equal(x, np.take(y, chosen, axis=o.axes.index(axis)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_rows_do_not_depend_on_their_place(dtype: Any, rng: np.random.Generator) -> None:
    for n, k in ((1, 7), (3, 64), (16, 16), (77, 1000), (500, 100), (600, 1)):
        a, b = rng.standard_normal((50, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype)
        for right in (b, np.asfortranarray(b)):
            whole = contract.multiply_rows(a, right)
            np.testing.assert_allclose(whole, a @ b.T, rtol=1e-4, atol=1e-4)
            for rows in ([0], [49], [3, 30], list(range(5, 50, 2))):
                for left in (a[rows], np.asfortranarray(a[rows]), a[rows[0] :][: len(rows)] if len(rows) == 1 else a[rows]):
                    np.testing.assert_array_equal(contract.multiply_rows(left, right), whole[rows])


# ---- memory, threads, planning


def peak(f: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        f()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("plain", [False, True])
def test_attention_never_holds_the_scores(plain: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Scores of 4096 x 4096 take 64 MB."""
    monkeypatch.setenv("REDFUSER_NUM_THREADS", "2")
    w = cascades.attention()
    extents = {"b": 1, "h": 1, "i": 4096, "j": 4096, "e": 64, "d": 64}
    arrays = w.make(rng, extents)
    out = [np.empty((1, 1, 4096, 64), np.float32)]
    assert peak(lambda: run(w, arrays, extents, plain, out)) < 4 << 20
    rows = slice(0, 4096, 999)
    close([out[0][:, :, rows]], [expected(w, [arrays[0], arrays[1][:, :, rows], arrays[2]])[0]])


@pytest.mark.parametrize(
    ("make", "extents"),
    [
        (cascades.logsumexp, {"r": 64, "k": 50_000}),
        (cascades.logsumexp, {"r": 1, "k": 3_000_000}),
        (cascades.logsumexp_axis0, {"r": 3, "k": 1_000_000}),
        (cascades.linear_logsumexp, {"r": 300, "v": 20_000, "h": 64}),
        (cascades.kmeans_direct, {"i": 3000, "f": 16, "j": 700}),
        (cascades.layernorm_linear, {"r": 500, "k": 1000, "n": 700}),
        (cascades.softmax_variance, {"r": 40, "k": 40_000}),
    ],
)
def test_memory_of_a_tile(
    make: Callable[..., Workload], extents: dict[str, int], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setenv("REDFUSER_NUM_THREADS", "1")
    w = make()
    arrays = w.make(rng, extents)
    out = run(w, arrays, extents)
    assert peak(lambda: run(w, arrays, extents, out=out)) < 6 << 20


def test_a_product_is_never_spread_out() -> None:
    """Reductions of products become matrix products, whichever way they are written."""
    for name in ("attention", "attention_gqa", "linear_logsumexp", "rms_linear", "layernorm_linear", "kmeans", "decode", "mla"):
        w = WORKLOADS[name]()
        for c in (w.cascade, w.plain):
            plan = backend.Plan(c, w.extents)
            roots = [(a.lift, p.axis) for p in c.passes for a in p.accumulators]
            for e in tiling.held(roots, plan.layout.sums):
                if isinstance(e, Map):
                    assert len(e.axes) <= {"attention": 4, "attention_gqa": 5}.get(name, 3 if name == "mla" else 2)


def test_sums_of_products_are_taken_term_by_term(rng: np.random.Generator) -> None:
    """sum_f (c**2 - 2 x c) * w / s, with a denominator, a negation and a factor shared by both operands."""
    x, c, u, s = load("x", "if"), load("c", "jf"), load("u", "f"), load("s", "i")
    far = total("f", square_(c) - (x * c * u) / s - -(x * c) * 2.0 + u)
    b = Builder("j", "i")
    lo = b.add("lo", "min", far)
    w = workload(
        "terms",
        {"i": 23, "j": 31, "f": 12},
        [b.done()],
        [(lo, "i")],
        [total("j", far, "min")],
        normal(x="if", c="jf", u="f", s="i"),
        lambda c, s, u, x: [((c[None] ** 2) - x[:, None] * c * u / s[:, None, None] + 2 * x[:, None] * c + u).sum(-1).min(-1)],
    )
    arrays = w.make(rng, w.extents)
    arrays[1] = np.abs(arrays[1]) + 1
    assert backend.Plan(w.cascade, w.extents).layout.sums
    close(run(w, arrays, w.extents), expected(w, arrays))


def square_(x: T) -> T:
    return x * x


def test_three_operands(rng: np.random.Generator) -> None:
    """sum_k a[i,k] b[j,k] c[d,k]: no two operands hold all axes."""
    a, b, c = load("a", "ik"), load("b", "jk"), load("c", "dk")
    builder = Builder("k", "ijd")
    y = builder.add("y", "sum", a * b * c)
    w = workload(
        "three",
        {"i": 5, "j": 6, "d": 7, "k": 50},
        [builder.done()],
        [(y, "ijd")],
        [total("k", a * b * c)],
        normal(a="ik", b="jk", c="dk"),
        lambda a, b, c: [np.einsum("ik,jk,dk->ijd", a, b, c)],
    )
    arrays = w.make(rng, w.extents)
    close(run(w, arrays, w.extents), expected(w, arrays))


def test_calls_from_several_threads(rng: np.random.Generator) -> None:
    w = cascades.attention_causal()
    arrays = w.make(rng, w.extents)
    f = backend.build(w.cascade, w.plain)
    want = f(arrays, w.extents)[0]
    got: list[Array] = []
    workers = [threading.Thread(target=lambda: got.extend(f(arrays, w.extents))) for _ in range(4)]
    for t in workers:
        t.start()
    for t in workers:
        t.join()
    assert len(got) == 4 and all(np.array_equal(g, want) for g in got)


@pytest.mark.parametrize(
    ("name", "value", "threads"), [("REDFUSER_NUM_THREADS", "2", 2), ("OMP_NUM_THREADS", "1", 1), ("OMP_NUM_THREADS", "999", 8)]
)
def test_number_of_threads(name: str, value: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDFUSER_NUM_THREADS", raising=False)
    monkeypatch.setenv(name, value)
    assert backend._threads() == threads


def test_no_warnings(rng: np.random.Generator, recwarn: pytest.WarningsRecorder) -> None:
    w = cascades.entropy()
    x = np.full((3, 40), -INF, np.float32)
    x[1], x[2] = INF, 3e38
    np.testing.assert_array_equal(np.isnan(run(w, [x], {"r": 3, "k": 40})[0]), [True, True, False])
    assert not recwarn.list


def test_plans_serve_other_extents(rng: np.random.Generator) -> None:
    w = cascades.rms_linear()
    f = backend.build(w.cascade, w.plain)
    for n in range(1, 80):
        extents = {"r": n, "k": 20 + n, "n": 5}
        arrays = w.make(rng, extents)
        close(f(arrays, extents), expected(w, arrays), 1e-5)


def test_accuracy_against_two_passes(rng: np.random.Generator) -> None:
    """Within twice the error of float32 NumPy's two passes, on ordinary and on ill-conditioned rows."""
    for offset in (0, 1e3, 1e4):
        w = cascades.variance()
        extents = {"r": 50, "k": 3000}
        x = (rng.standard_normal((50, 3000)) + offset).astype(np.float32)
        want = x.astype(np.float64).var(-1)
        two = np.abs(((x - x.mean(-1, keepdims=True)) ** 2).mean(-1) - want).max()
        assert np.abs(run(w, [x], extents)[0] - want).max() <= 2 * two + 1e-7
    w = cascades.logsumexp()
    x = (rng.standard_normal((50, 3000)) * 20).astype(np.float32)
    m = x.max(-1, keepdims=True)
    two = np.abs(np.log(np.exp(x - m).sum(-1)) + m[:, 0] - lse64(x.astype(np.float64))).max()
    assert np.abs(run(w, [x], {"r": 50, "k": 3000})[0] - lse64(x.astype(np.float64))).max() <= 2 * two + 1e-6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_call() -> None:
    """Nothing that was started for a call is left behind."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import cascades, numpy as np\n"
        "from redfuser_eq.runtime import numpy as backend, tiling\n"
        "backend.MANY, tiling.BUDGET = 0, 200\n"
        "w = cascades.logsumexp(); x = w.make(np.random.default_rng(0), w.extents)\n"
        "f = backend.build(w.cascade, w.plain); a = f(x, w.extents)[0]\n"
        "child = os.fork()\n"
        "ok = np.array_equal(f(x, w.extents)[0], a)\n"
        "os._exit(not ok) if child == 0 else sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not ok)\n"
    )
    env = {**os.environ, "REDFUSER_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], check=True, timeout=60, env=env)
