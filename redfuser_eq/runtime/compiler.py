"""C text to a loaded library: finding a compiler, compiling, and a cache of builds on disk.

An entry of the cache is a folder named by the hash of all that decides the machine code: the text, the prelude, the
compiler, the flags and the CPU. It is written aside and renamed into place, so that of two processes that build one
kernel one wins and both find a whole entry; no locks. A library whose checksum does not fit is built again.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .. import codegen
from ..errors import BackendError
from .device import Device, cpu

SOURCES = Path(codegen.__file__).resolve().parent
COMMON_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-fPIC", "-shared", "-fvisibility=hidden", "-Wno-psabi")
_SANITIZE_FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_REMEDY = "install the `cpu` extra (pip install 'redfuser-eq[cpu]', a compiler from PyPI), or gcc or clang, or set CC to one"


@dataclass(frozen=True)
class Compiler:
    """command: how it is called. identity: changes when the compiler does."""

    command: tuple[str, ...]
    identity: str

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command


def find() -> Compiler:
    """The C compiler: $CC when set, else the ziglang wheel, else cc, gcc or clang on the path.

    $CC comes first because it is the user's word. The wheel comes before what the system has: who installed the `cpu`
    extra asked for it, its version is pinned, and it is the same Clang on every machine, while `cc` may be a GCC without
    the machine's instruction set. (Its very first run on a machine builds its C runtime, some ten seconds, once.)
    Raises BackendError, with the remedy, when there is none."""
    return _find(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(cc: str, path: str) -> Compiler:
    if cc.strip():
        words = shlex.split(cc)
        where = shutil.which(words[0], path=path)
        if where is None:
            raise BackendError(f"CC={cc!r}: no such program; correct CC, or unset it to let a compiler be found")
        return Compiler((where, *words[1:]), _identity(where))
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler((sys.executable, "-m", "ziglang", "cc"), "ziglang " + importlib.metadata.version("ziglang"))
    for name in ("cc", "gcc", "clang"):
        if where := shutil.which(name, path=path):
            return Compiler((where,), _identity(where))
    raise BackendError(f"no C compiler found; {_REMEDY}")


def _identity(program: str) -> str:
    """Asking for the version would cost a process on every start; a new compiler is a new file."""
    real = os.path.realpath(program)
    info = os.stat(real)
    return f"{real} {info.st_size} {info.st_mtime_ns}"


def cache_dir() -> Path:
    """The folder of builds, private to the user: $REDFUSER_CACHE, else in $XDG_CACHE_HOME or the platform's place.

    Raises BackendError when it belongs to someone else, since libraries in it are loaded into this process. Where it
    cannot be made, a temporary one serves this process, with a warning."""
    return _cache_dir(os.environ.get("REDFUSER_CACHE", ""), os.environ.get("XDG_CACHE_HOME", ""))


@functools.cache
def _cache_dir(own: str, xdg: str) -> Path:
    place = Path(own).expanduser() if own else _platform_cache(xdg) / "redfuser_eq"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = os.access(place, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable and not place.is_dir():
        warnings.warn(f"{place} cannot be made, so kernels are built anew in every process; set REDFUSER_CACHE", stacklevel=2)
        place = Path(tempfile.mkdtemp(prefix="redfuser_eq-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
    if hasattr(os, "getuid"):
        info = place.stat()
        if info.st_uid != os.getuid():
            raise BackendError(f"the cache {place} belongs to user {info.st_uid}; set REDFUSER_CACHE to a folder of your own")
        if stat.S_IMODE(info.st_mode) & 0o077:
            place.chmod(0o700)
    return place


def _platform_cache(xdg: str) -> Path:
    if xdg:
        return Path(xdg)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home() / "AppData" / "Local")))
    return Path.home() / ".cache"


def sanitizers() -> str:
    """The sanitizers to build with, from REDFUSER_SANITIZE ("address,undefined"); empty: none."""
    return os.environ.get("REDFUSER_SANITIZE", "").strip()


def load(text: str, device: Device | None = None) -> ctypes.CDLL:
    """The C text, which may include "prelude.h", compiled for the device and loaded; from the cache when it is there.

    Raises BackendError with the compiler's own message when it does not compile or load."""
    return _load(text, device or cpu(), find(), sanitizers(), cache_dir())


@functools.lru_cache(maxsize=1024)
def _load(text: str, device: Device, compiler: Compiler, sanitize: str, cache: Path) -> ctypes.CDLL:
    if sanitize and compiler.is_zig:
        raise BackendError("REDFUSER_SANITIZE: the ziglang wheel has no sanitizer runtime; set CC=gcc or CC=clang")
    flags = [*COMMON_FLAGS, *(_zig_flag(f) if compiler.is_zig else f for f in device.flags)]
    if sanitize:
        flags += [*_SANITIZE_FLAGS, f"-fsanitize={sanitize}"]
    parts = (text, _prelude_digest(), compiler.identity, *compiler.command[1:], *flags, device.name, sys.platform)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    library = "kernel.dll" if sys.platform == "win32" else "kernel.so"

    def build(folder: Path) -> None:
        (folder / "kernel.c").write_text(text, encoding="utf-8")
        _compile([*compiler.command, *flags, f"-I{SOURCES}", "kernel.c", "-o", library, "-lm", "-pthread"], folder, library)

    path = entry(cache / key, library, build)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"the built kernel {path} does not load: {error}; delete that folder, or try another compiler with CC"
        ) from error


def _zig_flag(flag: str) -> str:
    """zig reads "-" in the name of a CPU as "without the feature"."""
    option, _, value = flag.partition("=")
    return f"{option}={value.replace('-', '_')}" if option == "-march" else flag


@functools.cache
def _prelude_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(command: list[str], folder: Path, library: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}  # a sanitizer's runtime is for this process alone
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", timeout=300, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"the C compiler did not run: {shlex.join(command)}: {error}; {_REMEDY}") from error
    if done.returncode or not (folder / library).is_file():
        raise BackendError(f"the C compiler failed: {shlex.join(command)}\n{done.stderr.strip()}\nIf it is too old or broken: {_REMEDY}")


def entry(place: Path, name: str, build: Callable[[Path], None]) -> Path:
    """The file `name` in the cache entry `place`, made by `build(folder)` unless a whole one is there."""
    for _ in range(5):  # more than once only when others remove or replace the entry at this moment
        if _is_whole(place, name):
            return place / name
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
        try:
            build(fresh)
            (fresh / "checksum").write_text(hashlib.sha256((fresh / name).read_bytes()).hexdigest(), encoding="ascii")
            if place.exists() and not _is_whole(place, name):
                _discard(place)
            fresh.rename(place)
        except OSError:
            if not place.exists():  # else another process put its own there first
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    raise BackendError(
        f"the cache entry {place} is replaced by another program again and again; set REDFUSER_CACHE to a folder of your own"
    )


def _is_whole(place: Path, name: str) -> bool:
    try:
        wanted = (place / "checksum").read_text(encoding="ascii", errors="replace")
        return hashlib.sha256((place / name).read_bytes()).hexdigest() == wanted
    except OSError:
        return False


def _discard(place: Path) -> None:
    """Move a broken entry away in one step, then delete it at leisure."""
    aside = Path(tempfile.mkdtemp(prefix="old-", dir=place.parent))
    try:
        place.rename(aside / "entry")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
