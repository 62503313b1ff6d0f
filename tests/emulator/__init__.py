"""Runs emitted CUDA on the CPU: NVRTC makes PTX, the PTX becomes C++, a fiber runtime runs one CUDA thread per fiber.

    module = Module(source, arch="sm_80")
    module.kernel("scale").launch((blocks,), (threads,), 0, [x, y, 2.0], Schedule("pct", seed=3))

Checked on every access: bounds and alignment of global and shared memory. NaN until written: shared memory, local arrays,
allocations, destinations of copies in flight. Faults raise EmulatorError with kernel, block, thread and source line.
Not modelled: clusters of several blocks, blocks that wait for other blocks, the rounding inside tensor cores (products and
sums are exact, then rounded once), the error of approximate functions other than tanh.
"""

from .build import BuildError, unavailable
from .device import CUPY_OPTIONS, SCHEDULES, Buffer, EmulatedDevice, EmulatorError, Kernel, Module, Schedule
from .nvrtc import CompileError
from .ptx import PtxError

__all__ = [
    "CUPY_OPTIONS",
    "SCHEDULES",
    "Buffer",
    "BuildError",
    "CompileError",
    "EmulatedDevice",
    "EmulatorError",
    "Kernel",
    "Module",
    "PtxError",
    "Schedule",
    "unavailable",
]
