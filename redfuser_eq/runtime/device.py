"""The CPU as schedules and builds see it: instruction set, cores, cache sizes, and how many threads to use."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from ..errors import BackendError

# instruction set -> bytes of a vector, compiler flags when it is not simply the machine's own
_ISAS: dict[str, tuple[int, tuple[str, ...]]] = {
    "avx512": (64, ("-march=x86-64-v4", "-mprefer-vector-width=512")),
    "avx2": (32, ("-march=x86-64-v3",)),
    "neon": (16, ()),
    "generic": (16, ()),
    "scalar": (0, ("-DRF_SCALAR",)),
}


@dataclass(frozen=True)
class Device:
    """A CPU. isa: "avx512", "avx2", "neon", "generic" (16-byte vectors of whatever kind) or "scalar" (one lane).
    vector_bytes: width of a vector, 0 for one lane. cores: physical cores this process may use. l1, l2: bytes of data
    cache of one core; l3: bytes of the last level. flags: what the compiler is told about the instruction set. pairs: formats that are
    multiplied in pairs of 16-bit numbers: "i16" everywhere, "bf16" where there is an instruction for it."""

    isa: str
    vector_bytes: int
    cores: int
    l1: int
    l2: int
    l3: int
    name: str = ""
    flags: tuple[str, ...] = ("-march=native",)
    pairs: tuple[str, ...] = ("i16",)

    def lanes(self, itemsize: int) -> int:
        """Numbers of `itemsize` bytes in a vector."""
        return max(1, self.vector_bytes // itemsize)


@functools.cache
def cpu(isa: str | None = None) -> Device:
    """This machine's CPU. isa: build for a lesser instruction set than the machine's own (also: the environment
    variable REDFUSER_ISA). Raises BackendError for one that is unknown or that the machine lacks."""
    own = _isa()
    wanted = isa or os.environ.get("REDFUSER_ISA") or own
    order = ["scalar", "generic", "avx2", "avx512"] if own != "neon" else ["scalar", "neon"]
    if wanted not in order or order.index(wanted) > order.index(own):
        usable = ", ".join(order[: order.index(own) + 1])
        raise BackendError(f"instruction set {wanted!r} is not available on this CPU; choose one of {usable}")
    width, flags = _ISAS[wanted]
    if wanted == own:
        flags = ("-march=native", *(f for f in flags if not f.startswith("-march")))
    elif wanted == "generic" and platform.machine().lower() in ("x86_64", "amd64"):
        flags = ("-march=x86-64",)
    l1, l2, l3 = _caches()
    pairs = ("i16", "bf16") if wanted == own == "avx512" and "avx512_bf16" in _x86_flags() else ("i16",)
    return Device(wanted, width, _cores(), l1, l2, l3, _name(), flags, pairs)


def default_threads() -> int:
    """Threads to use when nothing is said: REDFUSER_NUM_THREADS, else OMP_NUM_THREADS, else the physical cores that
    the affinity mask and the control group's quota leave."""
    for variable in ("REDFUSER_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(variable, "").split(",")[0].strip()  # OpenMP allows a list, one number per nesting level
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text:
            warnings.warn(f"{variable}={text!r} is not a positive number and is ignored", stacklevel=2)
    return _cores()


def _isa() -> str:
    if platform.machine().lower() in ("arm64", "aarch64"):
        return "neon"
    flags = _x86_flags()
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "generic"


def _x86_flags() -> set[str]:
    if sys.platform == "linux":
        return set(re.findall(r"\w+", _match(r"^flags\s*:(.*)$", _read("/proc/cpuinfo"))))
    if sys.platform == "darwin":
        return set(re.findall(r"\w+", (_sysctl("machdep.cpu.features") + " " + _sysctl("machdep.cpu.leaf7_features")).lower()))
    if sys.platform == "win32":
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        # PF_AVX2 (every CPU that has it has FMA, but for one VIA) and PF_AVX512F; the latter alone does not say BW, VL, DQ
        return {"avx2", "fma"} if present(40) else set()
    return set()


@functools.cache
def _cores() -> int:
    """Physical cores among the CPUs that this process may run on, at most the control group's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    physical = set()
    for c in allowed:
        at = f"/sys/devices/system/cpu/cpu{c}/topology/"
        package, core = _read(at + "physical_package_id"), _read(at + "core_id")
        physical.add((package, core) if core else c)
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    limit = math.ceil(int(quota[0]) / int(quota[1])) if len(quota) == 2 and quota[0].isdecimal() else len(physical)
    return max(1, min(len(physical), limit))


def _caches() -> tuple[int, int, int]:
    """Bytes of L1 data, L2 and last-level cache; common sizes where the system does not say."""
    sizes: dict[int, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if _read(index / "type").strip() != "Instruction":
            number = _match(r"(\d+)K", _read(index / "size"))
            level = _read(index / "level").strip()
            if number and level.isdecimal():
                sizes[int(level)] = int(number) << 10
    if sys.platform == "darwin":
        for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
            text = _sysctl(name)
            if text.isdecimal() and int(text):
                sizes[level] = int(text)
    l1 = sizes.get(1, 32 << 10)
    l2 = sizes.get(2, 512 << 10)
    return l1, l2, sizes.get(4, sizes.get(3, max(l2, 8 << 20)))


def _name() -> str:
    if sys.platform == "linux":
        return _match(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo")) or platform.machine()
    return _sysctl("machdep.cpu.brand_string") if sys.platform == "darwin" else platform.processor()


def _sysctl(name: str) -> str:
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()  # empty for a name this system does not know


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1) if found else ""


@functools.cache
def _read(path: str | Path) -> str:
    """The text of a system file, empty where there is none."""
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
