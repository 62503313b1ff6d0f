"""A CUDA device as CuPy drives it: builds, memory and launches, on the caller's current stream.

Nothing here waits for the device except `to_host`. Builds go through NVRTC rather than `RawModule`'s own call of it, which
cannot name an architecture with its specific features (sm_90a); the compiled file lies in the cache of builds, and
`RawModule` loads it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..codegen.launch import CudaProgram
from ..errors import BackendError
from ..gpu import GPUS, Gpu, by_capability
from . import tensor_map
from .compiler import cache_dir, entry

OPTIONS = ("--std=c++17", "-ftz=true", "--device-as-default-execution-space")  # but for the first, what RawModule compiles with
LEAST = 80  # compute capability
UNASKED = 48 << 10  # bytes of dynamic shared memory that a kernel may use without asking
_INSTALL = "pip install 'redfuser-eq[cuda13x]' (or cuda12x, after the driver's version)"
_HOST = "move the arrays to the host and use target='cpu' or 'numpy'"

_devices: dict[int, CupyDevice] = {}
_lock = threading.Lock()


def module() -> Any:
    """CuPy. Raises BackendError where it is not installed or does not load."""
    try:
        import cupy
    except ImportError as error:
        raise BackendError(f"target='cuda' needs CuPy, which does not import here ({error}); {_INSTALL}, or {_HOST}") from error
    return cupy


def count() -> int:
    """CUDA devices that this process sees. Raises BackendError where there is no device or no usable driver."""
    runtime = module().cuda.runtime
    try:
        found = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        old = "InsufficientDriver" in str(error)
        remedy = "install the NVIDIA driver, a newer one if there is one, or CuPy for an older CUDA" if old else "look at `nvidia-smi`"
        raise BackendError(f"target='cuda': CUDA does not start here ({error}); {remedy}, or {_HOST}") from error
    if not found:
        raise BackendError(f"target='cuda': no CUDA device is visible; look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, or {_HOST}")
    return found


def current() -> CupyDevice:
    """The caller's current device."""
    if not _devices:
        count()
    return device(module().cuda.runtime.getDevice())


def device(index: int) -> CupyDevice:
    """A device by number. Raises BackendError where there is none or it is older than compute capability 8.0."""
    found = _devices.get(index)
    if found is None:
        count()
        with _lock:
            found = _devices.setdefault(index, CupyDevice(index))
    return found


def gpu_of(properties: Any) -> Gpu:
    """What schedules need to know, from CUDA's device properties; rates that CUDA does not tell are those of the table's
    nearest GPU, in proportion to the multiprocessors. Raises BackendError where the device is too old."""
    name = properties["name"]
    name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    capability = 10 * int(properties["major"]) + int(properties["minor"])
    if capability < LEAST:
        raise BackendError(
            f"target='cuda': {name} has compute capability {capability / 10:.1f}, and the kernels need {LEAST / 10:.1f} or newer; {_HOST}"
        )
    base = next((g for n, g in GPUS.items() if n in name.lower().replace(" ", "")), by_capability(capability))
    units = int(properties["multiProcessorCount"])
    part = units / base.multiprocessors
    return replace(
        base,
        name=name,
        capability=capability,
        multiprocessors=units,
        shared_limit=int(properties["sharedMemPerBlockOptin"]),
        l2=int(properties["l2CacheSize"]),
        fp32=base.fp32 * part,
        tensor={k: v * part for k, v in base.tensor.items()},
    )


class CupyDevice:
    """One CUDA device. gpu: its description. maps: kernels may use tensor maps. Arrays are CuPy's; memory comes from CuPy's pool."""

    def __init__(self, index: int) -> None:
        self.cupy, self.index = module(), index
        self.gpu = gpu_of(self.cupy.cuda.runtime.getDeviceProperties(index))
        self.maps = self.gpu.capability == 90 and tensor_map.driver() is not None
        self._functions: dict[str, tuple[Any, ...]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Make this the current device for a while."""
        with self.cupy.cuda.Device(self.index):
            yield

    # ---- memory
    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """An array. Raises MemoryError."""
        try:
            return self.cupy.ndarray(shape, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(f"target='cuda': no memory for a result of shape {tuple(shape)} and dtype {dtype}: {error}") from error

    def alloc(self, nbytes: int) -> Any:
        """Memory with an address in `ptr`; it is the pool's again once nothing refers to it, which is safe as soon as all
        work with it is queued. Raises MemoryError."""
        try:
            return self.cupy.cuda.alloc(nbytes)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(
                f"target='cuda': no memory for {nbytes} bytes of scratch: {error}; free arrays, "
                "or give back what CuPy's pool holds: cupy.get_default_memory_pool().free_all_blocks()"
            ) from error

    def fill(self, memory: Any, value: int, nbytes: int) -> None:
        """Set bytes, in the order of the stream."""
        memory.memset_async(value, nbytes)

    def array(self, memory: Any, shape: Sequence[int], dtype: Any) -> Any:
        """An array over memory."""
        return self.cupy.ndarray(shape, dtype, memory)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """A copy on the host. Waits for the stream."""
        found: np.ndarray[Any, Any] = self.cupy.ascontiguousarray(array).get() if array.ndim else array.get()
        return found

    def write(self, array: Any, values: np.ndarray[Any, Any]) -> None:
        """Overwrite an array with one of the host's."""
        fresh = self.empty(values.shape, values.dtype)
        fresh.set(np.ascontiguousarray(values).reshape(values.shape))
        self.copy(array, fresh)

    def copy(self, to: Any, source: Any) -> None:
        """Copy within the device. Floats that CuPy's kernels do not know go as integers of their width."""
        if to.dtype.kind == "V":
            to, source = (a.view(np.dtype(f"u{a.itemsize}")) for a in (to, source))
        to[...] = source

    def tensor_map(
        self, address: int, element: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int], rounded: bool
    ) -> Any:
        """See `tensor_map.tensor_map`."""
        return tensor_map.tensor_map(address, element, shape, strides, box, rounded=rounded)

    # ---- programs
    def compile(self, programs: Sequence[CudaProgram]) -> None:
        """Compile what `functions` will load, side by side: NVRTC releases Python's lock. Raises BackendError as `functions` does."""
        new = [p for p in programs if p.key not in self._functions]
        if len(new) > 1:
            with ThreadPoolExecutor(len(new)) as pool:
                for _ in pool.map(lambda p: build(p.text, self.arch(p)), new):
                    pass

    def functions(self, program: CudaProgram) -> tuple[Any, ...]:
        """The kernels of a program's launches, built and loaded once. Raises BackendError with the compiler's message."""
        found = self._functions.get(program.key)
        if found is None:
            with self._lock:
                found = self._functions.get(program.key)
                if found is None:
                    found = self._functions[program.key] = self._load(program)
        return found

    def arch(self, program: CudaProgram) -> str:
        """What to compile a program for."""
        return replace(self.gpu, capability=program.capability).arch

    def _load(self, program: CudaProgram) -> tuple[Any, ...]:
        raw = self.cupy.RawModule(path=str(build(program.text, self.arch(program))))
        functions = []
        for launch in program.launches:
            if launch.shared > self.gpu.shared_limit:
                raise BackendError(
                    f"target='cuda': {launch.name} needs {launch.shared} bytes of shared memory, "
                    f"a block of {self.gpu.name} has {self.gpu.shared_limit}; use target='cpu'"
                )
            function = raw.get_function(launch.name)
            if launch.shared > UNASKED:
                function.max_dynamic_shared_size_bytes = launch.shared
            functions.append(function)
        return tuple(functions)

    def launch(self, function: Any, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, args: tuple[Any, ...]) -> None:
        """Queue a kernel on the current stream. args: arrays, NumPy scalars of the parameters' sizes, and records by value."""
        function(grid, block, args, shared_mem=shared)


@functools.lru_cache(maxsize=1024)
def build(text: str, arch: str) -> Path:
    """The compiled file of a source for an architecture ("sm_90a"), from the cache of builds when it is there.

    Raises BackendError with the compiler's log."""
    nvrtc = module().cuda.nvrtc
    options = (f"--gpu-architecture={arch}", *OPTIONS)
    try:
        version = nvrtc.getVersion()
    except Exception as error:  # CuPy's loader raises its own kinds, which differ between its releases
        raise BackendError(
            f"target='cuda': NVRTC does not load ({error}); pip install nvidia-cuda-nvrtc, of CuPy's CUDA version"
        ) from error
    key = hashlib.sha256(repr((text, options, version)).encode()).hexdigest()[:32]

    def make(folder: Path) -> None:
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        (folder / "kernel.cubin").write_bytes(_compiled(nvrtc, text, options))

    return entry(cache_dir() / key, "kernel.cubin", make)


def _compiled(nvrtc: Any, text: str, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = str(nvrtc.getProgramLog(program)).strip()
        raise BackendError(
            f"target='cuda': NVRTC does not compile for {options[0].partition('=')[2]}: {error}\n{log[:4000]}\n"
            "If it does not know the architecture, install a newer nvidia-cuda-nvrtc"
        ) from error
    finally:
        nvrtc.destroyProgram(program)
