"""The thread pool: every item once, any number of threads and callers, fork, scratch memory, the environment."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from redfuser_eq.runtime import compiler, device, pool
from redfuser_eq.runtime.device import cpu

KERNEL = """#define RF_REAL float
#include "prelude.h"
#include <time.h>
struct context { int64_t items; int64_t *runs, *worker, *spin; int *live; int threads, clash, nested; int64_t done; };
static void inner(void *c, int64_t item, int worker) { (void)worker; __atomic_fetch_add((int64_t *)c + item, 1, __ATOMIC_RELAXED); }
static void body(void *c, int64_t item, int worker) {
  struct context *x = c;
  if (worker < 0 || worker >= x->threads || __atomic_fetch_add(&x->live[worker], 1, __ATOMIC_SEQ_CST)) x->clash = 1;
  for (volatile int64_t t = 0; t < x->spin[item]; t++) {}
  for (time_t end = time(NULL) + 60; __atomic_load_n(&x->done, __ATOMIC_RELAXED) < -x->spin[item] && !x->clash;)
    if (time(NULL) > end) x->clash = 3;
  x->worker[item] = worker;
  __atomic_fetch_add(&x->runs[item], 1, __ATOMIC_RELAXED);
  if (x->nested) {
    int64_t counts[10] = {0};
    rf_parallel(inner, counts, 10, 4, 0);
    for (int i = 0; i < 10; i++) if (counts[i] != 1) x->clash = 2;
  }
  if (worker >= 0 && worker < x->threads) __atomic_fetch_sub(&x->live[worker], 1, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(&x->done, 1, __ATOMIC_RELAXED);
}
RF_EXPORT int rf_run(int64_t items, int threads, int shared, int nested, int64_t *spin, int64_t *runs, int64_t *worker) {
  int live[1100] = {0};
  struct context c = {items, runs, worker, spin, live, threads < 1 ? 1 : threads, 0, nested, 0};
  rf_parallel(body, &c, items, threads, shared);
  return c.clash;
}
RF_EXPORT void *rf_get(size_t bytes) { return rf_alloc(bytes); }
RF_EXPORT void rf_put(void *p) { rf_free(p); }
"""


@cache
def kernel(bound: bool = True) -> ctypes.CDLL:
    lib = compiler.load(KERNEL if bound else KERNEL + "/* unbound */")
    if bound:
        lib.rf_bind(ctypes.byref(pool.table()))
    lib.rf_get.restype = ctypes.c_void_p
    lib.rf_get.argtypes = (ctypes.c_size_t,)
    lib.rf_put.argtypes = (ctypes.c_void_p,)
    return lib


def run(items: int, threads: int, shared: bool = False, nested: bool = False, spin=None, lib=None) -> tuple[np.ndarray, np.ndarray]:
    """How often each item ran, and on which worker. spin: turns of a loop for each item, or -n: it waits until n items are done."""
    runs, worker = np.zeros(max(items, 1), np.int64), np.full(max(items, 1), -1, np.int64)
    spin = np.zeros(max(items, 1), np.int64) if spin is None else np.asarray(spin, np.int64)
    places = (ctypes.c_void_p(a.ctypes.data) for a in (spin, runs, worker))
    clash = (lib or kernel()).rf_run(ctypes.c_int64(items), threads, int(shared), int(nested), *places)
    assert clash == 0
    return runs[:items], worker[:items]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("items", [0, 1, 2, 5, 64, 1000])
def test_every_item_runs_once(items: int, threads: int, shared: bool) -> None:
    for _ in range(5):
        runs, worker = run(items, threads, shared)
        assert (runs == 1).all()
        assert (worker >= 0).all() and (worker < max(threads, 1)).all()


def test_a_thread_that_is_slow_is_helped() -> None:
    """The first item ends after all others but those that its thread has taken with it: a quarter of its half."""
    spin = np.zeros(16)
    spin[0] = -14
    runs, worker = run(16, 2, spin=spin)
    assert (runs == 1).all() and worker[0] == worker[1]
    assert (worker[2:8] != worker[0]).all()


def test_more_than_one_thread_takes_part() -> None:
    """With work enough that a sleeping thread has time to wake, whatever else the machine does."""
    for shared in (False, True):
        for _ in range(20):
            _, worker = run(64, 3, shared, spin=np.full(64, 500_000))
            if len(set(worker)) > 1:
                break
        else:
            pytest.fail("one thread did everything twenty times")


def test_uneven_items_with_a_counter() -> None:
    spin = np.where(np.arange(200) % 50 == 0, 300_000, 0)
    runs, _ = run(200, 4, True, spin=spin)
    assert (runs == 1).all()


def test_many_short_jobs() -> None:
    for i in range(3000):
        runs, _ = run(1 + i % 9, 1 + i % 5, bool(i & 1))
        assert (runs == 1).all()


def test_a_call_inside_a_body_runs_there() -> None:
    for _ in range(50):
        runs, _ = run(37, 4, nested=True)
        assert (runs == 1).all()


def test_several_python_threads() -> None:
    failures: list[BaseException] = []

    def many(seed: int) -> None:
        try:
            for i in range(300):
                runs, _ = run(1 + (seed * 7 + i) % 50, 1 + i % 4, bool(i & 1), nested=i % 10 == 0)
                assert (runs == 1).all()
        except BaseException as error:
            failures.append(error)

    callers = [threading.Thread(target=many, args=(s,)) for s in range(6)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not failures


def test_without_the_pool_a_kernel_is_serial() -> None:
    runs, worker = run(20, 4, lib=kernel(bound=False))
    assert (runs == 1).all() and (worker == 0).all()
    p = kernel(False).rf_get(1000)
    assert p % 64 == 0
    kernel(False).rf_put(p)
    kernel(False).rf_put(None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork() -> None:
    """A child of a process with a running pool has a pool of its own; so has its child; the parent's goes on."""
    run(50, 4)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ok = all((run(50, 4, s)[0] == 1).all() for s in (False, True) for _ in range(20))
                grandchild = os.fork()
                if grandchild == 0:
                    os._exit(0 if (run(50, 3)[0] == 1).all() else 1)
                code = 0 if ok and os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (run(50, 4)[0] == 1).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_another_thread_computes() -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            run(40, 3, spin=np.full(40, 2000))

    t = threading.Thread(target=busy)
    t.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if (run(50, 4)[0] == 1).all() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        t.join()


def test_blocks() -> None:
    """Aligned, apart from each other, reused after being freed, and given back on demand."""
    lib = kernel()
    rng = np.random.default_rng(0)
    live: list[tuple[int, int, int]] = []
    for i in range(400):
        size = int(2 ** rng.uniform(0, 21))
        p = lib.rf_get(size)
        assert p and p % 64 == 0
        ctypes.memset(p, i % 251, size)
        live.append((p, size, i % 251))
        if rng.random() < 0.6:
            p, size, mark = live.pop(rng.integers(len(live)))
            assert (np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(p)) == mark).all()
            lib.rf_put(p)
    for p, size, mark in live:
        assert (np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(p)) == mark).all()
        lib.rf_put(p)
    if not compiler.sanitizers():
        first = lib.rf_get(100_000)
        lib.rf_put(first)
        assert lib.rf_get(99_000) == first
        lib.rf_put(first)
        assert pool.trim() > 0
    assert pool.trim() == 0
    assert lib.rf_get((1 << 62) - 1) is None


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDFUSER_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    pool.set_num_threads(None)
    machine = pool.get_num_threads()
    assert 1 <= machine <= (os.cpu_count() or 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert device.default_threads() == 5
    monkeypatch.setenv("REDFUSER_NUM_THREADS", "3")
    assert device.default_threads() == 3
    pool.set_num_threads(2)
    assert pool.get_num_threads() == 2
    pool.set_num_threads(None)
    assert pool.get_num_threads() == 3
    monkeypatch.setenv("REDFUSER_NUM_THREADS", "many")
    with pytest.warns(UserWarning, match="REDFUSER_NUM_THREADS='many'"):
        assert device.default_threads() == 5
    with pytest.raises(ValueError, match="at least 1"):
        pool.set_num_threads(0)
    monkeypatch.undo()
    pool.set_num_threads(None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this platform")
def test_affinity_is_respected() -> None:
    text = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    text += "from redfuser_eq.runtime import pool; print(pool.get_num_threads())"
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "REDFUSER_NUM_THREADS")}
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=env, check=True).stdout.strip() == "1"


def test_on_windows_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.sys, "platform", "win32")
    assert pool.get_num_threads() == 1
    with pytest.warns(UserWarning, match="one thread on Windows"):
        pool.set_num_threads(4)
    monkeypatch.undo()
    pool.set_num_threads(None)


def test_device_describes_this_machine() -> None:
    d = cpu()
    assert d.isa in ("avx512", "avx2", "neon", "generic", "scalar")
    assert 8 << 10 <= d.l1 <= d.l2 <= d.l3 and d.cores >= 1
    assert d.lanes(4) == max(1, d.vector_bytes // 4) and cpu("scalar").lanes(4) == 1
    with pytest.raises(device.BackendError, match=r"'mmx' is not available.*scalar"):
        cpu("mmx")


RACES = """
#include "pool.c"
#include <stdio.h>
struct job { int64_t in[4096], out[4096]; };
static void twice(void *c, int64_t item, int worker) { struct job *j = c; (void)worker; j->out[item] = 2 * j->in[item]; }
static void *caller(void *arg) {
  struct job *j = calloc(1, sizeof *j);
  int wrong = 0;
  for (int round = 0; round < 300; round++) {
    const int64_t items = 1 + (round * 37) % 4096;
    for (int64_t i = 0; i < items; i++) j->in[i] = i + round; /* plain writes that the pool must publish */
    rf_pool_parallel(twice, j, items, 1 + round % 5, round & 1);
    for (int64_t i = 0; i < items; i++) wrong += j->out[i] != 2 * (i + round); /* and plain reads of what it did */
    void *p = rf_pool_alloc(1 << (round % 22));
    memset(p, round, 1 << (round % 22));
    rf_pool_free(p);
  }
  free(j);
  *(int *)arg = wrong;
  return 0;
}
int main(void) {
  int wrong[3] = {0};
  pthread_t threads[3];
  for (int t = 0; t < 3; t++) pthread_create(&threads[t], 0, caller, &wrong[t]);
  for (int t = 0; t < 3; t++) pthread_join(threads[t], 0);
  printf("wrong %d, threads %d\\n", wrong[0] + wrong[1] + wrong[2], rf_pool_threads());
  return 0;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ThreadSanitizer is tried on Linux only")
def test_no_data_races(tmp_path: Path) -> None:
    """Under ThreadSanitizer: three callers, plain memory on both sides of every job."""
    source, program = tmp_path / "races.c", tmp_path / "races"
    source.write_text(RACES)
    folder = Path(str(compiler.__file__)).parents[1]
    include = next(p for p in (folder / "codegen", folder.parent / "codegen") if (p / "pool.c").exists())
    command = [*compiler.find().command, "-std=gnu11", "-O1", "-g", "-fsanitize=thread", f"-I{include}", str(source), "-o", str(program)]
    built = subprocess.run([*command, "-lpthread"], capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"the compiler has no ThreadSanitizer: {built.stderr.splitlines()[-1:]}")
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, env={**os.environ, "TSAN_OPTIONS": "exitcode=66"})
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot place its memory on this kernel")
    assert done.returncode == 0, done.stderr[:4000]
    assert "wrong 0" in done.stdout
    assert "threads 1\n" not in done.stdout
