"""Who takes part: each contender turns a workload and its arrays into a function to time, or says why it cannot.

Thread counts are per process: the caller has restricted the process to as many CPUs as threads (JAX and XLA offer no
other way), and sets the libraries' own numbers besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .workloads import Bench

Run = Callable[[], Any]


class Skip(Exception):
    """A contender does not take part; the message says why."""


def ours(w: Bench, arrays: list[Any], threads: int) -> Run:
    import redfuser_eq as rf

    fused = rf.optimize(lambda *a: w.function(np, *a), target="cpu", threads=threads)
    return _reusing(w, fused, arrays)


def ours_tuned(w: Bench, arrays: list[Any], threads: int) -> Run:
    import redfuser_eq as rf

    fused = rf.optimize(lambda *a: w.function(np, *a), target="cpu", threads=threads, tune=True)
    return _reusing(w, fused, arrays)


def _reusing(w: Bench, fused: Any, arrays: list[Any]) -> Run:
    if w.reuse:
        out = fused(*arrays)
        return lambda: fused(*arrays, out=out)
    return lambda: fused(*arrays)


def numpy(w: Bench, arrays: list[Any], threads: int) -> Run:
    """BLAS with as many threads as the process has CPUs."""
    f = w.numpy
    return (lambda: f(*arrays)) if f is not None else (lambda: w.function(np, *arrays))


def _torch(threads: int) -> Any:
    try:
        import torch
    except ImportError:
        raise Skip("torch is not installed") from None
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def tensors(torch: Any, arrays: list[Any]) -> list[Any]:
    def one(a: Any) -> Any:
        if a.dtype.name == "bfloat16":
            return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(a)

    return [one(a) for a in arrays]


def _spelling(w: Bench, f: Any) -> Any:
    if f is None:
        raise Skip("no spelling for this workload")
    return f


def torch_eager(w: Bench, arrays: list[Any], threads: int) -> Run:
    torch, f = _torch(threads), _spelling(w, w.torch)
    given = tensors(torch, arrays)
    if w.reuse and w.name.startswith("softmax"):
        out = torch.zeros_like(given[0])
        return lambda: torch.softmax(given[0], -1, out=out)
    return lambda: f(torch, *given)


def torch_compiled(w: Bench, arrays: list[Any], threads: int) -> Run:
    torch, f = _torch(threads), _spelling(w, w.torch)
    given = tensors(torch, arrays)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: f(torch, *t), dynamic=False)
    return lambda: compiled(*given)


def jax_jit(w: Bench, arrays: list[Any], threads: int) -> Run:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        raise Skip("jax is not installed") from None
    jax.config.update("jax_enable_x64", True)
    given = [jnp.asarray(a) for a in arrays]
    compiled = jax.jit(lambda *t: w.function(jnp, *t))
    return lambda: jax.block_until_ready(compiled(*given))


def onnx_runtime(w: Bench, arrays: list[Any], threads: int) -> Run:
    """One operator on bound inputs; its threads do not spin, which would slow the other contenders."""
    build = _spelling(w, w.onnx)
    try:
        import onnxruntime as rt
        from onnx import TensorProto, helper
    except ImportError:
        raise Skip("onnxruntime and onnx are not installed") from None
    operator, domain, attributes, given = build(*arrays)
    names = [f"i{n}" for n in range(len(given))]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(a.shape)) for n, a in zip(names, given, strict=True)]
    output = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(operator, names, ["o"], domain=domain, **attributes)], "g", inputs, [output])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = rt.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = rt.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    for n, a in zip(names, given, strict=True):
        bound.bind_ortvalue_input(n, rt.OrtValue.ortvalue_from_numpy(a))
    bound.bind_output("o", "cpu")

    def run() -> Any:
        session.run_with_iobinding(bound)
        return bound.get_outputs()[0]

    return run


CONTENDERS: dict[str, Callable[[Bench, list[Any], int], Run]] = {
    "ours": ours,
    "ours, tuned": ours_tuned,
    "NumPy": numpy,
    "torch": torch_eager,
    "torch.compile": torch_compiled,
    "JAX": jax_jit,
    "ONNX Runtime": onnx_runtime,
}
OURS = ("ours", "ours, tuned")


def named(w: Bench, arrays: list[Any], threads: int) -> Iterator[tuple[str, Callable[[], Run]]]:
    """torch's operations made for just this workload."""

    def build(f: Any) -> Run:
        torch = _torch(threads)
        given = tensors(torch, arrays)
        return lambda: f(torch, *given)

    for name, f in w.named.items():
        yield name, lambda f=f: build(f)


def as_arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    """What a contender returned, as NumPy arrays, widened where NumPy lacks the dtype."""
    if isinstance(result, (tuple, list)):
        return [a for r in result for a in as_arrays(r)]
    if hasattr(result, "detach"):
        result = result.detach()
        return [(result.float() if result.dtype.itemsize == 2 else result).numpy()]
    if hasattr(result, "numpy") and not isinstance(result, np.ndarray):
        return [np.asarray(result.numpy())]
    return [np.asarray(result)]
