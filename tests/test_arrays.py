"""Array libraries: torch tensors (and CuPy arrays, by a stand-in) in and out, without copies; torch code traces."""

from __future__ import annotations

import sys
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import redfuser_eq as rf
from redfuser_eq import arrays, runtime

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
TARGETS = [t for t in ("numpy", "cpu") if runtime.available(t)]
DTYPES = [
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"),
]
rng = np.random.default_rng(21)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def tensor(*shape: int, dtype: Any = None) -> Any:
    t = torch.from_numpy(normal(*shape))
    return t if dtype is None else t.to(dtype)


def optimize(f: Any, **options: Any) -> Any:
    return rf.optimize(f, **{"target": "numpy", "verify": "raise", **options})


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


# ---- the adapters


@needs_torch
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (4, 6), (0, 2)])
def test_memory_is_shared_both_ways(name: str, shape: tuple[int, ...]) -> None:
    t = torch.zeros(shape, dtype=torch.float32).to(getattr(torch, name))
    library = arrays.library_of(t)
    a = library.take(t)
    assert type(a) is np.ndarray and a.shape == shape
    assert a.dtype == np.dtype(getattr(ml_dtypes, name, name))
    assert not a.size or a.ctypes.data == t.data_ptr()
    back = library.give(a)
    assert back.dtype == t.dtype and tuple(back.shape) == shape
    assert not a.size or back.data_ptr() == t.data_ptr()


@needs_torch
def test_strided_tensors_are_views() -> None:
    t = tensor(6, 8)
    for view in (t.T, t[::2, 1::3], t[:1].expand(5, 8)):
        a = arrays.library_of(view).take(view)
        assert a.ctypes.data == view.data_ptr()
        np.testing.assert_array_equal(a, view.numpy())


@needs_torch
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_in_and_out(target: str, dtype: str) -> None:
    fused = optimize(softmax, target=target)
    x = tensor(5, 19, dtype=getattr(torch, dtype))
    got = fused(x)
    want = torch.softmax(x.double(), -1)
    assert isinstance(got, torch.Tensor) and got.dtype == x.dtype
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    out = torch.full((5, 38), float("nan"), dtype=x.dtype)
    assert fused(x, out=out[:, ::2]) is not None
    torch.testing.assert_close(out[:, ::2].double(), want, rtol=tolerance, atol=tolerance)
    assert out[:, 1::2].isnan().all()
    fused(x, out=x)
    torch.testing.assert_close(x.double(), want, rtol=tolerance, atol=tolerance)


@needs_torch
def test_integers_and_booleans() -> None:
    fused = optimize(lambda x: {"n": np.sum(x > 0, axis=-1), "any": np.any(x > 2, axis=-1), "at": np.argmax(x, axis=-1)})
    x = torch.from_numpy(rng.integers(-5, 5, (6, 9)).astype(np.int32))
    got = fused(x)
    assert (got["n"].dtype, got["any"].dtype, got["at"].dtype) == (torch.int64, torch.bool, torch.int64)
    assert torch.equal(got["n"], (x > 0).sum(-1)) and torch.equal(got["any"], (x > 2).any(-1))
    np.testing.assert_array_equal(got["at"].numpy(), np.argmax(x.numpy(), -1))


@needs_torch
def test_numpy_arrays_beside_tensors() -> None:
    w = normal(9, 2)
    fused = optimize(lambda x: softmax(x) @ w)
    x = tensor(4, 9)
    got = fused(x)
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, torch.softmax(x, -1) @ torch.from_numpy(w))
    assert isinstance(fused(x.numpy()), np.ndarray)
    out = np.full((4, 2), np.nan, np.float32)
    assert fused(x, out=out) is out
    np.testing.assert_allclose(out, got.numpy(), rtol=1e-6)
    mixed = optimize(lambda x, b: softmax(x) + b)
    assert isinstance(mixed(x, normal(9)), torch.Tensor)


@needs_torch
def test_captured_tensors_are_read_at_each_call() -> None:
    w = tensor(9, 2)
    fused = optimize(lambda x: torch.softmax(x, -1) @ w)
    x = tensor(4, 9)
    torch.testing.assert_close(fused(x), torch.softmax(x, -1) @ w)
    w.mul_(3)
    torch.testing.assert_close(fused(x), torch.softmax(x, -1) @ w)


@needs_torch
def test_gradients_are_refused() -> None:
    fused = optimize(softmax)
    x = tensor(3, 4).requires_grad_()
    with pytest.raises(rf.DTypeError, match=r"requires grad.*detach"):
        fused(x)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), torch.softmax(x, -1))
    torch.testing.assert_close(fused(x.detach()), torch.softmax(x.detach(), -1))


@needs_torch
def test_devices_and_dtypes_without_a_meaning() -> None:
    fused = optimize(softmax)
    with pytest.raises(rf.BackendError, match=r"torch device meta .*move the tensor"):
        fused(torch.empty(3, 4, device="meta"))
    with pytest.raises(rf.DTypeError, match="complex64"):
        fused(torch.zeros(3, 4, dtype=torch.complex64))


# ---- torch code


CASES: list[tuple[str, Any, Any]] = []


def case(name: str, *shapes: Any) -> Any:
    def add(f: Any) -> Any:
        CASES.append((name, f, shapes))
        return f

    return add


@case("softmax function", (4, 7))
def _(x: Any) -> Any:
    return torch.softmax(x, dim=-1), F.softmax(x, 0), x.softmax(-1), x.log_softmax(dim=1), torch.log_softmax(x, -1)


@case("attention", (2, 5, 8), (2, 7, 8), (2, 7, 3))
def _(q: Any, k: Any, v: Any) -> Any:
    s = torch.matmul(q, k.transpose(-2, -1)) / q.size(-1) ** 0.5
    return torch.bmm(torch.softmax(s, dim=-1), v)


@case("attention with a causal mask", (2, 3, 6, 8), (2, 3, 6, 8), (2, 3, 6, 4))
def _(q: Any, k: Any, v: Any) -> Any:
    s = torch.einsum("bhid,bhjd->bhij", q, k) * (1.0 / q.shape[-1] ** 0.5)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    s = s.masked_fill(~mask, float("-inf"))
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v).transpose(1, 2).reshape(2, 6, 12)


@case("safe softmax", (4, 7))
def _(x: Any) -> Any:
    m = x.max(dim=-1, keepdim=True).values
    e = (x - m).exp()
    return e / e.sum(-1, keepdim=True)


@case("max and min", (4, 7), (4, 7))
def _(x: Any, y: Any) -> Any:
    values, indices = torch.min(x, 1)
    return values, indices, torch.max(x, y), x.max(), x.amax((0, 1)), x.argmax(-1), x.argmin(dim=0, keepdim=True), torch.maximum(x, y)


@case("moments", (4, 7))
def _(x: Any) -> Any:
    return x.mean(-1), x.var(-1), torch.std(x, dim=0), x.var(1, unbiased=False), torch.var(x, -1, correction=0), x.std(), x.mean(axis=0)


@case("sums", (4, 7))
def _(x: Any) -> Any:
    return x.sum(), x.sum(dim=(0, 1)), torch.prod(x, 1), (x > 0).sum(-1), (x > 0).any(), torch.all(x > -9, dim=1), x.logsumexp(-1)


@case("norms", (4, 7))
def _(x: Any) -> Any:
    return torch.norm(x, dim=-1), F.normalize(x, dim=-1), torch.linalg.vector_norm(x, dim=1), x.norm(p=1, dim=0)


@case("layers", (4, 8), (3, 8), (3,), (8,), (8,))
def _(x: Any, w: Any, b: Any, g: Any, h: Any) -> Any:
    x = F.layer_norm(x, (8,), g, h) + F.rms_norm(x, (8,), g, 1e-6)
    return F.gelu(F.linear(x, w, b)), F.silu(x), F.relu(x), F.gelu(x, approximate="tanh"), torch.sigmoid(x)


@case("elementwise", (4, 7), (7,))
def _(x: Any, y: Any) -> Any:
    a = torch.sqrt(x.abs() + 1) + torch.rsqrt(x.square() + 1) - x.tanh() * y.clamp(min=-0.5, max=0.5)
    return a, torch.where(x > y, x, 0.0), torch.add(x, y, alpha=2), x**2, 1 / (2 + x.exp()), 3 - x, torch.clamp(x, 0, 1), -x, abs(x)


@case("shapes", (4, 6), (6,))
def _(x: Any, y: Any) -> Any:
    z = x.unsqueeze(1).expand(-1, 3, -1)
    parts = x.split(2, dim=-1)
    return (
        z.permute(1, 0, 2), x.view(4, 2, 3), x.flatten(), z.squeeze(0), torch.cat([x, x], dim=1), torch.stack((y, y)), parts[2],
        x.T, x.t(), x.chunk(2)[1], x.repeat_interleave(2, dim=0), y.expand_as(x), x[:, 1::2], x[None, ..., 0], x.repeat(2, 1),
    )  # fmt: skip


@case("gather and top-k", (4, 9))
def _(x: Any) -> Any:
    values, indices = torch.topk(x, 3, dim=-1)
    lowest = x.topk(2, largest=False)
    return values, indices, lowest.values, lowest.indices, x.gather(1, indices[:, :1])


@case("a captured tensor on the left", (4, 7))
def _(x: Any) -> Any:
    w = torch.arange(1.0, 8.0)
    return w * x, w - x, w / (x.abs() + 1), w > x, torch.outer(w, w)[:4] * x, torch.ones(3, 4) @ x


def flat(value: Any) -> list[Any]:
    return [x for v in value for x in flat(v)] if isinstance(value, (tuple, list)) else [value]


@needs_torch
@pytest.mark.parametrize(("name", "f", "shapes"), CASES, ids=[c[0] for c in CASES])
def test_torch_code(name: str, f: Any, shapes: Any) -> None:
    given = [tensor(*s) for s in shapes]
    got, want = flat(optimize(f)(*given)), flat(f(*given))
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        torch.testing.assert_close(g, w, rtol=2e-5, atol=5e-6)


@needs_torch
def test_torch_code_fuses() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return torch.softmax(q @ k.mT * 0.3, dim=-1) @ v

    r = optimize(attention).report(tensor(5, 8), tensor(70, 8), tensor(70, 4))
    assert (r.passes_before, r.passes_after) == (3, 1)


@needs_torch
@pytest.mark.parametrize(
    "f",
    [
        lambda i, x: i / 2,
        lambda i, x: i * 0.5,
        lambda i, x: torch.exp(i),
        lambda i, x: i + x,
        lambda i, x: i / i.abs(),
        lambda i, x: x * torch.tensor(2.0, dtype=torch.float64),
        lambda i, x: i + torch.tensor(2.5),
        lambda i, x: (i > 0).sum(0),
        lambda i, x: i.sum(dtype=torch.float32),
        lambda i, x: x.to(torch.bfloat16) * 2.0,
        lambda i, x: x.half() + x,
        lambda i, x: i.float().mean(),
        lambda i, x: torch.where(i > 0, x, 1),
        lambda i, x: i.to(x.dtype) + x.type_as(i.double()),
        lambda i, x: torch.zeros_like(i) + torch.full_like(x, 2) if False else torch.ones_like(x),
        lambda i, x: torch.div(i, 2, rounding_mode="floor"),
    ],
)
def test_promotion_is_torchs(f: Any) -> None:
    i, x = torch.tensor([1, -2, 3, 7], dtype=torch.int32), tensor(4)
    got, want = optimize(lambda i, x: f(i, x) + i * 0)(i, x), f(i, x) + i * 0
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=1e-2 if want.dtype == torch.bfloat16 else 1e-3, atol=1e-3)


@needs_torch
@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda x: torch.cumsum(x, 0), "torch's cumsum cannot be traced"),
        (lambda x: torch.sort(x), "torch's sort cannot be traced: use rf.top_k"),
        (lambda x: torch.linalg.inv(x), "torch's linalg_inv cannot be traced"),
        (lambda x: x.add_(1), "no attribute 'add_'"),
        (lambda x: torch.ones(3).add_(x), "torch's add_ cannot be traced"),
        (lambda x: torch.softmax(x, 0) if x.sum() > 0 else x, "truth value"),
        (lambda x: x.sum(0, nonsense=1), "torch's sum with these arguments cannot be traced"),
        (lambda x: x.view(torch.int32), "bytes as another dtype"),
        (lambda x: F.softmax(x), "needs dim="),
    ],
)
def test_torch_code_that_cannot_be_traced(f: Any, message: str) -> None:
    with pytest.raises((rf.TraceError, AttributeError), match=message) as caught:
        optimize(f)(tensor(3, 3))
    assert "test_arrays.py" in str(caught.value)


@needs_torch
def test_torch_functions_on_symbolic_arrays() -> None:
    x = rf.array("x", ("m", "n"), "float32")
    fused = optimize(torch.softmax(x * 2, dim=-1).sum(0))
    t = tensor(4, 6)
    torch.testing.assert_close(fused(t), torch.softmax(t * 2, -1).sum(0))


@needs_torch
def test_numpy_functions_on_traced_tensors_keep_torchs_manners() -> None:
    x = tensor(4, 7)
    got = optimize(lambda x: np.exp(x).max(-1).values)(x)
    torch.testing.assert_close(got, x.exp().max(-1).values)


# ---- choosing a library


class Gpu:
    """Stands in for an array on a CUDA device."""

    shape, dtype, data = (3, 4), np.dtype(np.float32), types.SimpleNamespace(device_id=0)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    return type("ndarray", (Gpu,), {"__module__": "cupy"})


def test_cupy_arrays_want_the_cuda_target(cupy: Any) -> None:
    library = arrays.library_of(cupy())
    assert (library.name, library.device) == ("cupy", "cuda")
    a = cupy()
    assert library.take(a) is a and library.give(a) is a
    with pytest.raises(rf.BackendError, match="on a CUDA device; move them to the host"):
        optimize(softmax, target="cpu")(a)


def test_kinds_do_not_mix(cupy: Any) -> None:
    with pytest.raises(rf.BackendError, match="several kinds"):
        optimize(lambda x, y: x + y)(cupy(), normal(3, 4))
    assert arrays.library([normal(2), normal(3)]) is arrays.NUMPY
    assert arrays.library([]) is arrays.NUMPY
    if torch is not None:
        with pytest.raises(rf.BackendError, match="several kinds"):
            arrays.library([cupy(), tensor(2)])
