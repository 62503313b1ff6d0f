"""The CPU runtime: compilers, the build cache, and calls with strides, outputs, threads and rows that are not finite."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import cascades
import ml_dtypes
import numpy as np
import pytest

from redfuser_eq import runtime
from redfuser_eq.errors import BackendError, ShapeError
from redfuser_eq.runtime import compiler, cpu, pool, tune
from redfuser_eq.runtime.device import cpu as device

WORKLOADS = cascades.WORKLOADS
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX ownership and modes")
CC = shutil.which("gcc") or shutil.which("clang")
needs_cc = pytest.mark.skipif(CC is None, reason="needs gcc or clang")
TINY = '#define RF_REAL float\n#include "prelude.h"\nRF_EXPORT int answer(void) { return %d; }\n'


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty build cache."""
    place = tmp_path / "cache of builds"
    monkeypatch.setenv("REDFUSER_CACHE", str(place))
    compiler._load.cache_clear()
    return place


def entries(place: Path) -> list[Path]:
    return sorted(p for p in place.iterdir() if (p / "checksum").exists())


# ---- compilers
def test_no_compiler_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    compiler._find.cache_clear()
    with pytest.raises(BackendError, match=r"no C compiler found; install.*redfuser-eq\[cpu\].*CC"):
        compiler.find()
    assert not cpu.available()


def test_cc_names_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    with pytest.raises(BackendError, match=r"no-such-compiler.*no such program.*unset"):
        compiler.find()
    if CC:
        monkeypatch.setenv("CC", f"{CC} -DEXTRA")
        assert compiler.find().command == (CC, "-DEXTRA")


@needs_cc
def test_a_failing_compiler_is_quoted(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="undeclared_thing"):
        compiler.load('#define RF_REAL float\n#include "prelude.h"\nRF_EXPORT int f(void) { return undeclared_thing; }')
    script = tmp_path / "cc that fails"
    script.write_text("#!/bin/sh\necho the disk is on fire >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", f"'{script}'")
    with pytest.raises(BackendError, match="the disk is on fire"):
        compiler.load(TINY % 1)
    assert entries(fresh) == [] and not list(fresh.glob("new-*"))


# ---- the cache
@posix
def test_the_cache_is_private(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.mkdir(mode=0o755)
    assert compiler.load(TINY % 7).answer() == 7
    assert fresh.stat().st_mode & 0o777 == 0o700
    assert all(p.stat().st_mode & 0o077 == 0 for p in fresh.iterdir())
    compiler._cache_dir.cache_clear()
    monkeypatch.setattr(compiler.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(BackendError, match=r"belongs to user.*REDFUSER_CACHE"):
        compiler.load(TINY % 7)


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REDFUSER_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert compiler.cache_dir() == tmp_path / "xdg" / "redfuser_eq"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REDFUSER_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match=r"cannot be made.*REDFUSER_CACHE"):
        place = compiler.cache_dir()
    assert place.is_dir()


def counting_compiler(tmp_path: Path) -> tuple[str, Path]:
    """A compiler that leaves a line for each of its runs."""
    log, script = tmp_path / "log", tmp_path / "counting-cc"
    script.write_text(f'#!/bin/sh\necho run >> "{log}"\nexec {CC} "$@"\n')
    script.chmod(0o755)
    log.write_text("")
    return str(script), log


@needs_cc
@posix
def test_a_build_is_found_again_and_changes_with_what_decides_it(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CC", script)
    for runs, (text, isa) in enumerate([(TINY % 1, None), (TINY % 2, None), (TINY % 1, "scalar")], 1):
        for _ in range(3):
            compiler._load.cache_clear()
            compiler.load(text, device(isa))
            assert len(log.read_text().split()) == runs
    monkeypatch.setenv("CC", script + " -DANOTHER")
    compiler.load(TINY % 1)
    assert len(log.read_text().split()) == 4 == len(entries(fresh))


@needs_cc
@posix
@pytest.mark.parametrize("damage", ["truncated", "changed", "no library", "no checksum", "empty", "not a folder"])
def test_a_broken_entry_is_built_again(fresh: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.load(TINY % 3)
    place = entries(fresh)[0]
    (fresh / "away").mkdir()
    shutil.move(place, fresh / "away" / "e")  # the loaded file stays as it is
    shutil.copytree(fresh / "away" / "e", place)
    library = place / "kernel.so"
    if damage == "truncated":
        library.write_bytes(library.read_bytes()[:1000])
    elif damage == "changed":
        library.write_bytes(library.read_bytes()[:-1] + b"?")
    elif damage == "no library":
        library.unlink()
    elif damage == "no checksum":
        (place / "checksum").unlink()
    else:
        shutil.rmtree(place)
        place.mkdir() if damage == "empty" else place.write_text("")
    compiler._load.cache_clear()
    assert compiler.load(TINY % 3).answer() == 3
    assert entries(fresh) == [place] and not list(fresh.glob("old-*"))


CHILD = """
import sys
from redfuser_eq.runtime import compiler
total = 0
sys.stdin.readline()
for i in range(4):
    total += compiler.load({text!r} % i).answer()
print(total)
"""


@needs_cc
def test_processes_that_build_the_same_at_once(fresh: Path) -> None:
    env = {**os.environ, "CC": str(CC)}
    command = [sys.executable, "-c", CHILD.format(text=TINY)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(5)]
    for c in children:
        assert c.stdin is not None
        c.stdin.write("go\n")
        c.stdin.flush()
    assert [c.communicate()[0].strip() for c in children] == ["6"] * 5
    assert len(entries(fresh)) == 4
    assert not list(fresh.glob("new-*")) and not list(fresh.glob("old-*"))


@needs_cc
def test_sanitizers_are_part_of_the_key(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(CC))
    compiler.load(TINY % 1)
    monkeypatch.setenv("REDFUSER_SANITIZE", "undefined")
    compiler.load(TINY % 1)
    assert len(entries(fresh)) == 2


# ---- calls
def made(name: str, seed: int = 0, **extents: int):
    """A workload, its arrays, its extents, and what is expected in float64."""
    w = WORKLOADS[name]()
    sizes = {**w.extents, **extents}
    arrays = w.make(np.random.default_rng(seed), sizes)
    want = w.expected(*(a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays))
    return w, arrays, sizes, want


def close(got, want, rtol=2e-5) -> None:
    for g, x in zip(got, want, strict=True):
        x = np.asarray(x)
        scale = np.abs(x[np.isfinite(x)]).max(initial=1e-30) if x.dtype.kind == "f" else 1
        np.testing.assert_allclose(g.astype(x.dtype), x, rtol=rtol, atol=rtol * scale)


def test_the_interface() -> None:
    w, arrays, sizes, want = made("logsumexp")
    assert runtime.available("cpu") and runtime.available("numpy")
    e = runtime.build("cpu", w.cascade, w.plain)
    assert "pass" in e.source or e.source  # before any call: the cascade as text
    close(e(arrays, sizes), want)
    assert "rf_kernel" in e.source and e.reason is None
    assert runtime.source("cpu", w.cascade, arrays, sizes) == e.source
    assert runtime.source("numpy", w.cascade, arrays, sizes)
    with pytest.raises(BackendError, match="'tpu' is not one of"):
        runtime.build("tpu", w.cascade, w.plain)


SAMPLE = ["logsumexp", "softmax", "attention", "attention_causal", "weighted_variance", "kmeans", "rms_linear", "decode"]


def disguised(a: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    """The same values with other strides; NaN lies around them."""
    if how == "every other":
        room = np.full([2 * n + 1 for n in a.shape], 99, a.dtype)
        view = room[tuple(slice(1, None, 2) for _ in a.shape)]
    elif how == "backwards":
        room = np.full([n + 2 for n in a.shape], 99, a.dtype)
        view = room[tuple(slice(n, 0, -1) for n in a.shape)]
    else:
        order = rng.permutation(a.ndim)
        view = np.empty([a.shape[i] for i in order], a.dtype).transpose(np.argsort(order))
    if a.dtype.kind == "f" and how != "transposed":
        room[...] = np.nan
    view[...] = a
    return view


@pytest.mark.parametrize("how", ["every other", "backwards", "transposed"])
@pytest.mark.parametrize("name", SAMPLE)
def test_strides_in_and_out(name: str, how: str) -> None:
    w, arrays, sizes, want = made(name, 1)
    rng = np.random.default_rng(2)
    e = cpu.build(w.cascade, w.plain)
    plain = e(arrays, sizes)
    close(plain, want)
    odd = [disguised(a, how, rng) for a in arrays]
    close(e(odd, sizes), want)
    out = [disguised(np.zeros(r.shape, r.dtype), how, rng) for r in plain]
    given = e(odd, sizes, out)
    assert all(g is o for g, o in zip(given, out, strict=True))
    close(out, want)


def test_broadcast_inputs() -> None:
    w, arrays, sizes, _ = made("weighted_variance", 3)
    flat = [np.broadcast_to(a[:1], a.shape) for a in arrays]
    want = w.expected(*(a.astype(np.float64) for a in flat))
    close(cpu.build(w.cascade, w.plain)(flat, sizes), want)


def test_outputs_that_share_memory_with_inputs() -> None:
    w, arrays, sizes, want = made("softmax", 4)
    e = cpu.build(w.cascade, w.plain)
    x = arrays[0].copy()
    assert e([x], sizes, [x])[0] is x
    close([x], want)
    room = np.concatenate([arrays[0], arrays[0]])  # overlapping, shifted by a row
    rows = len(arrays[0])
    room[1 : 1 + rows] = arrays[0]
    e([room[1 : 1 + rows]], sizes, [room[:rows]])
    close([room[:rows]], want)


def test_out_of_the_wrong_kind() -> None:
    w, arrays, sizes, _ = made("softmax")
    e = cpu.build(w.cascade, w.plain)
    with pytest.raises(ShapeError, match=r"out\[0\]"):
        e(arrays, sizes, [np.zeros_like(arrays[0], np.float64)])
    with pytest.raises(ShapeError, match=r"out\[0\]"):
        e(arrays, sizes, [np.zeros((1, 1), np.float32)])
    with pytest.raises(ShapeError, match="the array has shape"):
        e([arrays[0][:, :-1]], sizes)


def test_unaligned_and_foreign_arrays() -> None:
    w, arrays, sizes, want = made("logsumexp", 5)
    x = arrays[0]
    e = cpu.build(w.cascade, w.plain)
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    shifted[...] = x
    close(e([shifted], sizes), want)
    record = np.zeros(x.shape, [("a", "i1"), ("x", "f4")])
    record["x"] = x
    close(e([record["x"]], sizes), want)
    close(e([x.astype(x.dtype.newbyteorder())], sizes), want)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    w, arrays, sizes, want = made(name, 6)
    results = []
    for threads in (1, 2, 3, 7):
        e = cpu.build(w.cascade, w.plain, threads=threads)
        with pytest.MonkeyPatch.context() as m:
            m.setattr(cpu, "GRAIN", 1)
            results.append(e(arrays, sizes))
    close(results[0], want)
    for r in results[1:]:
        for a, b in zip(results[0], r, strict=True):
            np.testing.assert_array_equal(a, b)


def test_calls_from_several_python_threads() -> None:
    w, arrays, sizes, _ = made("attention", 7)
    with pytest.MonkeyPatch.context() as m:
        m.setattr(cpu, "GRAIN", 1)
        e = cpu.build(w.cascade, w.plain, threads=3)
        want = e(arrays, sizes)[0]
    bad: list[int] = []

    def many() -> None:
        for i in range(100):
            if not np.array_equal(e(arrays, sizes)[0], want):
                bad.append(i)

    callers = [threading.Thread(target=many) for _ in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not bad


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "attention", "weighted_variance"])
def test_rows_that_are_not_finite(name: str) -> None:
    """NaN and infinities come out as the written-out formula has them, and other rows do not change by a bit."""
    w, arrays, sizes, _ = made(name, 8)
    e = cpu.build(w.cascade, w.plain)
    clean = e(arrays, sizes)[0]
    rowwise = next((i for i, s in enumerate(w.cascade.sources) if s.name == "q"), 0)  # a source whose rows are the result's rows
    rows = np.argwhere(np.ones(arrays[rowwise].shape[:-1], bool))
    for value in (np.nan, np.inf, -np.inf):
        hurt = [a.copy() for a in arrays]
        at = tuple(rows[len(rows) // 2])
        hurt[rowwise][at] = value
        with np.errstate(all="ignore"):
            want = w.expected(*(a.astype(np.float64) for a in hurt))[0]
        got = e(hurt, sizes)[0]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want))
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(want))
        kept = np.ones(got.shape, bool)
        kept[at] = False
        np.testing.assert_array_equal(got[kept], clean[kept])


@needs_cc
@posix
def test_other_extents_do_not_compile_again(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script, log = counting_compiler(tmp_path)
    monkeypatch.setenv("CC", script)
    monkeypatch.setattr(cpu, "_builds", {})
    w = WORKLOADS["logsumexp"]()
    e = cpu.build(w.cascade, w.plain)
    for rows in (3, 4, 50, 51, 200):
        _, arrays, sizes, want = made("logsumexp", rows, r=rows)
        close(e(arrays, sizes), want)
    assert len(log.read_text().split()) <= 3, "the pool, and at most two variants of the kernel"


@pytest.mark.parametrize("extents", [{"r": 0}, {"r": 1, "k": 1}, {"k": 1}])
def test_tiny_and_empty(extents: dict[str, int]) -> None:
    w, arrays, sizes, want = made("logsumexp", 9, **extents)
    got = cpu.build(w.cascade, w.plain)(arrays, sizes)
    close(got, want)


def test_unsupported_runs_numpy_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    w, arrays, sizes, want = made("logsumexp", 10)

    def refuse(*_: object, **__: object) -> None:
        raise cpu.Unsupported("three stream axes")

    monkeypatch.setattr(cpu, "schedule", refuse)
    e = cpu.build(w.cascade, w.plain)
    close(e(arrays, sizes), want)
    assert e.reason == "three stream axes"
    assert e.source == runtime.source("numpy", w.cascade, arrays, sizes)


def failing(status: int) -> str:
    head = "RF_EXPORT int rf_kernel(const void *const *in, void *const *out, const int64_t *n, int threads)"
    return TINY % 0 + head + f" {{ (void)in; (void)out; (void)n; (void)threads; return {status}; }}"


def test_a_kernel_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    w, arrays, sizes, _ = made("logsumexp", 11)
    for status, error in ((1, MemoryError), (2, BackendError)):
        monkeypatch.setattr(cpu, "_builds", {})
        monkeypatch.setattr(cpu, "text_of", lambda kernel, status=status: failing(status))
        with pytest.raises(error):
            cpu.build(w.cascade, w.plain)(arrays, sizes)


def test_bfloat16_and_float64() -> None:
    w = cascades.logsumexp(ml_dtypes.bfloat16)
    rng = np.random.default_rng(12)
    x = rng.normal(size=(w.extents["r"], w.extents["k"])).astype(ml_dtypes.bfloat16)
    got = cpu.build(w.cascade, w.plain)([x], w.extents)[0]
    np.testing.assert_allclose(got.astype(np.float64), w.expected(x.astype(np.float64))[0], rtol=8e-3)
    w = cascades.logsumexp(np.float64)
    x = rng.normal(size=(w.extents["r"], w.extents["k"]))
    np.testing.assert_allclose(cpu.build(w.cascade, w.plain)([x], w.extents)[0], w.expected(x)[0], rtol=1e-14)


def test_tuning_remembers_the_winner(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, arrays, sizes, want = made("attention", 13)
    measured: list[int] = []
    measure = tune._measure
    monkeypatch.setattr(tune, "_measure", lambda runs: measured.append(len(runs)) or measure(runs))
    for _ in range(2):
        e = cpu.build(w.cascade, w.plain, tune=True)
        close(e(arrays, sizes), want)
    assert len(measured) <= 1 and all(n > 1 for n in measured)
    for file in (fresh / "tuned").glob("*.json"):
        file.write_text("{ broken")
        close(cpu.build(w.cascade, w.plain, tune=True)(arrays, sizes), want)
    assert len(measured) in (0, 2)


SANITIZED = """
import dataclasses, sys
import numpy as np
import cascades
from redfuser_eq.runtime import cpu
cpu.GRAIN = 1
rng = np.random.default_rng(0)
for w in [f() for f in cascades.WORKLOADS.values()]:
    if w.name not in sys.argv[1:]:
        continue
    e = cpu.build(w.cascade, w.plain, threads=3)
    for scale in range(3):
        sizes = {a: n + scale if n > 4 else n for a, n in w.extents.items()}
        arrays = w.make(rng, sizes)
        got = e(arrays, sizes)
        want = w.expected(*(a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays))
        for g, x in zip(got, want):
            x = np.asarray(x)
            assert np.allclose(g.astype(x.dtype), x, rtol=1e-3, atol=1e-3 * np.abs(x).max(initial=1e-9)), w.name
    print(w.name, e.reason)
print("finished")
"""


def sanitized() -> dict[str, str]:
    """The environment of a process that builds with sanitizers."""
    command = [str(CC), "-print-file-name=libasan.so"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if sys.platform != "linux" or not Path(library).is_absolute():
        pytest.skip("the compiler has no address sanitizer that can be preloaded")
    own = {"CC": str(CC), "REDFUSER_SANITIZE": "address,undefined", "ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": library}
    return {**os.environ, **own, "PYTHONMALLOC": "malloc"}


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("part", range(4))
def test_workloads_under_sanitizers(part: int) -> None:
    """Address and undefined-behaviour sanitizers, on every workload, over several sizes and three threads."""
    command = [sys.executable, "-c", SANITIZED, *list(WORKLOADS)[part::4]]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=sanitized(), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0 and "finished" in done.stdout, done.stdout + done.stderr[-8000:]


FAULT = "RF_EXPORT float past(int64_t n) { float *p = rf_alloc(4 * n); p[0] = 1; float x = p[n]; rf_free(p); return x; }"
READ_PAST = """
import ctypes
from redfuser_eq.runtime import compiler, pool
lib = compiler.load({text!r})
{bind}
lib.past(ctypes.c_int64(64))
"""


@pytest.mark.slow
@needs_cc
@pytest.mark.parametrize("bind", ["", "lib.rf_bind(ctypes.byref(pool.table()))"], ids=["malloc", "pool"])
def test_the_sanitizer_build_does_see_a_fault(bind: str) -> None:
    script = READ_PAST.format(text=TINY % 0 + FAULT, bind=bind)
    done = subprocess.run([sys.executable, "-c", script], env=sanitized(), capture_output=True, text=True, check=False)
    assert done.returncode and "heap-buffer-overflow" in done.stderr


def test_a_frozen_device() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        device().l1 = 1  # type: ignore[misc]
    assert pool.get_num_threads() >= 1
