"""The thread pool in C (`codegen/pool.c`), shared by all kernels, and how many threads they use."""

from __future__ import annotations

import ctypes
import functools
import sys
import warnings

from .compiler import SOURCES, load
from .device import cpu, default_threads

_chosen: int | None = None


class Table(ctypes.Structure):
    """`rf_pool` of prelude_pool.h: what `rf_bind` installs in a kernel."""

    _fields_ = (("parallel", ctypes.c_void_p), ("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


def set_num_threads(threads: int | None) -> None:
    """Use this many threads for kernels from now on; None: as the environment and the machine say (see
    `device.default_threads`). Raises ValueError below 1. On Windows kernels run on one thread whatever is asked."""
    global _chosen
    if threads is not None and threads < 1:
        raise ValueError(f"set_num_threads({threads}): at least 1, or None for the default")
    if threads is not None and threads > 1 and sys.platform == "win32":
        warnings.warn("kernels run on one thread on Windows", stacklevel=2)
    _chosen = threads
    _default.cache_clear()


def get_num_threads() -> int:
    """Threads that kernels use when a call does not say."""
    if sys.platform == "win32":
        return 1
    return _default() if _chosen is None else _chosen


@functools.cache
def _default() -> int:
    """Read once, as OpenMP does; `set_num_threads` reads it again."""
    return default_threads()


@functools.cache
def library() -> ctypes.CDLL:
    """The pool, built at first use. Loaded once per process; threads start at the first parallel call."""
    lib = load((SOURCES / "pool.c").read_text(encoding="utf-8"), cpu())
    lib.rf_pool_trim.restype = ctypes.c_size_t
    lib.rf_pool_alloc.restype = ctypes.c_void_p
    lib.rf_pool_alloc.argtypes = (ctypes.c_size_t,)
    lib.rf_pool_free.argtypes = (ctypes.c_void_p,)
    lib.rf_pool_free.restype = None
    return lib


@functools.cache
def table() -> Table:
    """The addresses of the pool's functions."""
    lib = library()
    return Table(*(ctypes.cast(f, ctypes.c_void_p).value for f in (lib.rf_pool_parallel, lib.rf_pool_alloc, lib.rf_pool_free)))


def trim() -> int:
    """Give scratch memory that kernels keep for their next call back to the system. Returns its bytes."""
    return int(library().rf_pool_trim())
