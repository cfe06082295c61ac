"""How much do integer activations and a KV cache of 8 bits cost in accuracy? Perplexity of the
golden passage.

    .venv/bin/python -m tests.bench.accuracy [MODEL.gguf]

The whole passage goes through a plan recorded for a GPU, whose NumPy references are run natively
with the file's own weights, as the device would: KV in halves or bytes, activations rounded where
the plan says so. Without barriers (a software adapter) every matrix gets rounded activations, the
output matrix too; with them (a real GPU) only prefill does, so the output matrix gets f32. The
model is any file that a document in tests/golden was made from; without a path, the one that
`build.py` keeps under .cache. Ten seconds for SmolLM2-135M.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.models import Model, open_model
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.kv_values import Precision
from engine.ops.state import STEP, StepRecord, tokens_tensor
from engine.plan import Plan, PlanBuilder, Tensor, Traits, Weight
from engine.weights.dequantize import dequantize
from engine.weights.gguf import GGUF, read_header

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"u32": np.uint32, "f16": np.float16, "f32": np.float32}
TRAITS = [
    Traits("webgpu", "f32", barriers=False),
    Traits("webgpu", "q16, all matrices", barriers=False, activations="q16"),
    Traits("webgpu", "q8, all matrices", barriers=False, activations="q8"),
    Traits("webgpu", "q16, prefill only", activations="q16"),
    Traits("webgpu", "q8, prefill only", activations="q8"),
]
WAYS: list[tuple[Traits, Precision]] = [
    *((traits, "f16") for traits in TRAITS),
    (TRAITS[0], "q8"),
    (TRAITS[3], "q8"),
]


class Weights:
    """The weights of a GGUF file as f32 arrays, dequantized once."""

    def __init__(self, gguf: GGUF, data: bytes) -> None:
        self._gguf, self._data = gguf, memoryview(data)
        self._held: dict[str, np.ndarray] = {}

    def array(self, weight: Weight) -> np.ndarray:
        """The values of a weight, its sources stacked."""
        if weight.name not in self._held:
            parts = [
                self._source(name)[rows.start : rows.stop]
                for name, rows in zip(weight.sources, weight.rows, strict=True)
            ]
            self._held[weight.name] = np.concatenate(parts)
        return self._held[weight.name]

    def _source(self, name: str) -> np.ndarray:
        info = self._gguf.tensors[name]
        data = self._data[info.offset : info.offset + info.nbytes]
        return dequantize(info.quant, data).reshape(info.shape)


def record(
    model: Model, traits: Traits, precision: Precision, count: int, weights: Weights
) -> tuple[Plan, Tensor, dict[str, np.ndarray]]:
    """A plan from ``count`` ids to logits (count, vocab), those logits, and its constants."""
    blocks = -(-count // KV_BLOCK)
    kv = model.config.kv_layout(blocks, count, precision)
    b = PlanBuilder("accuracy", traits, count)
    x = model.layers(b, tokens_tensor(count), kv)
    # The engine runs the head for one token; its reference does as many rows as there are.
    b.tokens = 1
    logits = model.head(b, x)
    constants = {"block_table": np.arange(blocks, dtype=np.uint32)}
    for rope in model.config.ropes:
        factors = rope.factors_in(count)
        divisors = list(weights.array(factors))[: rope.rotary // 2] if factors else ()
        table = np.frombuffer(rope.table(count, divisors), np.float32)
        constants[rope.name] = table.reshape(kv.rope(rope.name).shape)
    return b.build(), logits, constants


def run(plan: Plan, constants: dict[str, np.ndarray], weights: Weights) -> dict[str, Any]:
    """All tensors after the references of ``plan``, by name; what is not given begins as zeros."""
    held: dict[str, Any] = dict(constants)
    for call in plan.calls:
        for tensor in call.args.values():
            if isinstance(tensor, Weight):
                held[tensor.name] = weights.array(tensor)
            elif tensor.name not in held:
                held[tensor.name] = np.zeros(tensor.shape, DTYPES[tensor.dtype])
        call.reference({arg: held[tensor.name] for arg, tensor in call.args.items()})
    return held


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log probabilities in double precision, by rows."""
    scores = logits.astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return scores


def passage_of(data: bytes) -> dict[str, Any]:
    """The passage in the golden document that was made from this very file."""
    digest = hashlib.sha256(data).hexdigest()
    for path in sorted((ROOT / "tests/golden").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("sha256") == digest:
            passage: dict[str, Any] = document["passage"]
            return passage
    sys.exit("No document in tests/golden was made from this file.")


def log_probabilities(
    model: Model, traits: Traits, precision: Precision, weights: Weights, ids: list[int]
) -> np.ndarray:
    """log p (tokens - 1, vocab) of the token after each of ``ids`` but the last."""
    plan, logits, constants = record(model, traits, precision, len(ids), weights)
    constants["tokens"] = np.array(ids, np.uint32)
    constants[STEP.name] = np.frombuffer(StepRecord(0, len(ids)).pack(), np.uint32)
    return log_softmax(run(plan, constants, weights)[logits.name][:-1])


def measure(path: Path) -> Iterator[str]:
    """The lines of a Markdown table, one for each kind of activations and of KV.

    ``error`` is the standard error of the ratio to f32, from the differences token by token; KL
    is the mean divergence of the distribution from that of f32, which no luck can make negative.
    """
    data = path.read_bytes()
    passage = passage_of(data)
    gguf = read_header(data, len(data))
    model, weights = open_model(gguf), Weights(gguf, data)
    ids, oracle = passage["ids"], np.array(passage["nll"])
    yield f"{path.name}, {len(oracle)} tokens; the oracle has a mean nll of {oracle.mean():.5f}"
    yield "| activations | KV | nll | perplexity | to oracle | to f32 | error | KL, nats | top |"
    yield "|---|---|---|---|---|---|---|---|---|"
    f32 = np.empty(0)
    for traits, precision in WAYS:
        log_p = log_probabilities(model, traits, precision, weights, ids)
        f32 = f32 if f32.size else log_p
        nll, loss = (-p[np.arange(len(oracle)), ids[1:]] for p in (log_p, f32))
        ratio = math.exp((nll - loss).mean())
        cells = [
            f"{nll.mean():.5f}",
            f"{math.exp(nll.mean()):.4f}",
            f"{math.exp((nll - oracle).mean()):.5f}",
            f"{ratio:.5f}",
            f"{ratio * (nll - loss).std() / math.sqrt(len(nll)):.5f}",
            f"{(np.exp(f32) * (f32 - log_p)).sum(axis=-1).mean():.2g}",
            f"{(log_p.argmax(axis=-1) == f32.argmax(axis=-1)).mean():.1%}",
        ]
        yield f"| {traits.name} | {precision} | {' | '.join(cells)} |"


def main() -> None:
    """See the module's docstring."""
    # The module, as engine.ops.linear is the function. BLAS is much faster here than einsum.
    importlib.import_module("engine.ops.linear").matmul = lambda x, w: x @ w.T  # type: ignore[attr-defined]
    found = [Path(a) for a in sys.argv[1:]] or sorted((ROOT / ".cache").rglob("*.gguf"))
    if not found:
        sys.exit("No model: give the path of a GGUF file.")
    for line in measure(found[0]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
