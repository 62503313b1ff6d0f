"""Builds of the runtime and of translated kernels with g++, kept in a cache of the user's temporary folder."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import nvrtc
from .translate import translate

HERE = Path(__file__).parent
RUNTIME = ("fibers.cpp", "warp.cpp", "convert.cpp", "async.cpp", "wgmma.cpp")
_COMMON = ("-std=c++20", "-fPIC", "-shared", "-march=native", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", f"-I{HERE}")
_KERNEL = ("-O1", "-w")
_SANITIZED = ("-O1", "-w", "-g1", "-fsanitize=thread", "-fno-tree-loop-distribute-patterns")


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
    if not library.exists():
        _gpp(library, ["-O2", *(str(HERE / name) for name in RUNTIME)])
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def build(source: str, arch: str, options: tuple[str, ...], sanitize: bool) -> tuple[Path, dict[str, object]]:
    """The library of a CUDA source and its description (kernels, shared layout, globals). Raises CompileError, PtxError."""
    key = _key(source, arch, options, sanitize)
    library, about = cache() / f"{key}.so", cache() / f"{key}.json"
    if not about.exists():
        ptx, _ = nvrtc.compile_source(source, arch, (*options, "-lineinfo"))
        made = translate(ptx.rstrip(b"\0").decode(), lines=sanitize)
        cpp = cache() / f"{key}.cpp"
        cpp.write_text(made.cpp)
        _gpp(library, [*(_SANITIZED if sanitize else _KERNEL), str(cpp)])
        partial = about.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(made.description()))
        os.replace(partial, about)
    return library, json.loads(about.read_text())
