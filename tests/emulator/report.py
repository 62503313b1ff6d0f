"""What ptxas makes of a kernel: registers, spills, shared memory, and how often each SASS instruction occurs. No GPU needed."""

from __future__ import annotations

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from .device import CUPY_OPTIONS
from .nvrtc import compile_source


@dataclass(frozen=True)
class KernelReport:
    """registers: per thread. spills: bytes stored and loaded. shared: static bytes. sass: opcode with its modifiers -> count.

    warnings: what ptxas says about performance, such as serialised wgmma.
    """

    registers: int
    spills: int
    stack: int
    shared: int
    barriers: int
    sass: Counter[str] = field(default_factory=Counter)
    warnings: tuple[str, ...] = ()

    def count(self, opcode: str) -> int:
        """How many SASS instructions have the opcode, whatever their modifiers: count("HMMA")."""
        return sum(n for name, n in self.sass.items() if name.split(".")[0] == opcode)


def compile_report(source: str, arch: str = "sm_90a", options: Sequence[str] = CUPY_OPTIONS) -> dict[str, KernelReport]:
    """A report for every kernel of the source. SASS counts are empty without a disassembler (see disassembler).

    Raises CompileError.
    """
    cubin, log = compile_source(source, arch, (*options, "--ptxas-options=-v"), "CUBIN")
    sass = _disassemble(cubin) if disassembler() else {}
    warnings = tuple(line for line in log.splitlines() if "serialized" in line or "Performance" in line)
    reports = {}
    for name, text in re.findall(r"Compiling entry function '([^']+)'[^\n]*\n(.*?)(?=Compiling entry|\Z)", log, re.S):
        stores, loads = _number(r"(\d+) bytes spill stores", text), _number(r"(\d+) bytes spill loads", text)
        reports[name] = KernelReport(
            _number(r"Used (\d+) registers", text),
            stores + loads,
            _number(r"(\d+) bytes stack frame", text),
            _number(r"(\d+) bytes smem", text),
            _number(r"used (\d+) barriers", text),
            sass.get(name, Counter()),
            warnings,
        )
    return reports


def _number(pattern: str, text: str) -> int:
    m = re.search(pattern, text)
    return int(m[1]) if m else 0


@functools.cache
def disassembler() -> str:
    """nvdisasm of the nvidia-cuda-nvdisasm package or of an installed toolkit; empty when there is none."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(glob.glob(os.path.join(root, "*", "bin", "nvdisasm")), reverse=True):
            return found
    nvcc = shutil.which("nvcc")
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm") if nvcc else ""
    return shutil.which("nvdisasm") or (beside if os.path.exists(beside) else "")


def _disassemble(cubin: bytes) -> dict[str, Counter[str]]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        text = subprocess.run([disassembler(), "-c", f.name], capture_output=True, text=True, check=True).stdout
    counts: dict[str, Counter[str]] = {}
    for name, body in re.findall(r"\.section\s+\.text\.([\w$]+)[^\n]*\n(.*?)(?=\n\s*\.section\s|\Z)", text, re.S):
        counts[name] = Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", body))
    return counts
