"""NVRTC through ctypes: CUDA source to PTX or a cubin, without a GPU or a driver."""

from __future__ import annotations

import ctypes
import functools
import glob
import importlib.util
import os


class CompileError(RuntimeError):
    """NVRTC rejects the source; the message is its log."""


def _folders() -> list[str]:
    """Where the NVIDIA packages of the running interpreter keep libraries."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    return [d for root in roots for d in sorted(glob.glob(os.path.join(root, "*", "lib")), reverse=True)]


@functools.cache
def library() -> ctypes.CDLL | None:
    """NVRTC of the newest installed nvidia-cuda-nvrtc package, or None."""
    for folder in _folders():
        found = sorted(glob.glob(os.path.join(folder, "libnvrtc.so.*")))
        if found:
            for builtins in glob.glob(os.path.join(folder, "libnvrtc-builtins.so.*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)  # some releases do not find it by themselves
            return ctypes.CDLL(found[-1])
    return None


def compile_source(source: str, arch: str, options: tuple[str, ...] = (), kind: str = "PTX") -> tuple[bytes, str]:
    """The PTX or CUBIN of a CUDA source for an architecture such as "sm_90a", and the compiler's log.

    Raises CompileError with NVRTC's log when the source does not compile.
    """
    nvrtc = library()
    if nvrtc is None:
        raise CompileError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    number = arch.removeprefix("sm_").removeprefix("compute_")
    flags = [f"--gpu-architecture={'compute' if kind == 'PTX' else 'sm'}_{number}", "--std=c++17", *options]
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None):
        raise CompileError("nvrtcCreateProgram failed")
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
        log = _text(nvrtc, program, "ProgramLog").rstrip(b"\0").decode()
        if status:
            raise CompileError(log[:4000])
        return _text(nvrtc, program, kind), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw[: size.value]
