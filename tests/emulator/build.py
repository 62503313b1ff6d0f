"""Builds of the runtime and of translated kernels with g++, kept in a cache of the user's temporary folder."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import nvrtc
from .translate import translate

HERE = Path(__file__).parent
RUNTIME = ("fibers.cpp", "warp.cpp", "convert.cpp", "async.cpp", "wgmma.cpp")
_COMMON = ("-std=c++20", "-fPIC", "-march=native", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", f"-I{HERE}")
_KERNEL = ("-shared", "-w")
_LARGE = 1200  # lines of C++ from which optimising costs more time than it saves in a test
_SANITIZED = ("-shared", "-w", "-g1", "-fsanitize=thread", "-fno-tree-loop-distribute-patterns")


class BuildError(RuntimeError):
    """g++ rejects a translation: a bug of the emulator."""


def unavailable() -> str:
    """Why kernels cannot be emulated here; empty when they can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the CUDA emulator runs on x86-64 Linux"
    if not shutil.which("g++"):
        return "the CUDA emulator needs g++"
    if nvrtc.library() is None:
        return "the CUDA emulator needs NVRTC: pip install nvidia-cuda-nvrtc"
    return ""


@functools.cache
def cache() -> Path:
    folder = Path(tempfile.gettempdir()) / f"redfuser_eq_emulator_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@functools.cache
def _environment() -> str:
    """Whatever a build depends on besides its source: compiler, processor, this package, NVRTC's version."""
    compiler = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True, env=_plain_environment()).stdout
    processor = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    own = [p.read_text() for p in sorted(HERE.iterdir()) if p.suffix in (".py", ".h", ".cpp")]
    return repr((compiler, processor, own, getattr(nvrtc.library(), "_name", "")))


def _key(*parts: object) -> str:
    return hashlib.sha256(repr((_environment(), *parts)).encode()).hexdigest()[:24]


def _plain_environment() -> dict[str, str]:
    """The environment without the sanitizer that this process may run under."""
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """One process builds, the others wait for its result."""
    with open(cache() / f"{name}.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def _gpp(output: Path, arguments: list[str]) -> None:
    partial = output.with_suffix(f".{os.getpid()}.tmp")
    done = subprocess.run(["g++", *_COMMON, *arguments, "-o", str(partial)], capture_output=True, text=True, env=_plain_environment())
    if done.returncode:
        raise BuildError(done.stderr[:4000])
    os.replace(partial, output)


@functools.cache
def runtime() -> ctypes.CDLL:
    """The fiber runtime, its symbols visible to kernels that are loaded later."""
    library = cache() / f"runtime_{_key()}.so"
    with _lock("runtime"):
        if not library.exists():
            objects = [library.with_name(f"{library.stem}_{name}.o") for name in RUNTIME]
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda name, o: _gpp(o, ["-c", "-O2", str(HERE / name)]), RUNTIME, objects))
            _gpp(library, ["-shared", *map(str, objects)])
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def build(source: str, arch: str, options: tuple[str, ...], sanitize: bool) -> tuple[Path, dict[str, object]]:
    """The library of a CUDA source and its description (kernels, shared layout, globals). Raises CompileError, PtxError."""
    key = _key(source, arch, options, sanitize)
    library, about = cache() / f"{key}.so", cache() / f"{key}.json"
    with _lock(key[:2]):
        if not about.exists():
            _translate_and_build(source, arch, options, sanitize, library, about)
    return library, json.loads(about.read_text())


def _translate_and_build(source: str, arch: str, options: tuple[str, ...], sanitize: bool, library: Path, about: Path) -> None:
    ptx, _ = nvrtc.compile_source(source, arch, (*options, "-lineinfo"))
    made = translate(ptx.rstrip(b"\0").decode(), lines=sanitize)
    cpp = library.with_suffix(".cpp")
    cpp.write_text(made.cpp)
    level = "-O0" if made.cpp.count("\n") > _LARGE else "-O1"
    _gpp(library, [level, *(_SANITIZED if sanitize else _KERNEL), str(cpp)])
    partial = about.with_suffix(".partial")
    partial.write_text(json.dumps(made.description()))
    os.replace(partial, about)
