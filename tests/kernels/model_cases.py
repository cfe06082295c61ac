"""Steps of whole tiny models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import gguf as gguf_oracle
import numpy as np

from engine.models import Model, open_model
from engine.ops import KVLayout
from engine.ops.state import StepRecord, tokens_tensor
from engine.plan import PlanBuilder, Tensor
from engine.weights.gguf import read_header
from tests.kernels.cases import DEVICES
from tests.kernels.harness import Case
from tests.tiny import TINY

CONTEXT = 128


def tiny_case(
    device: str,
    tokens: list[int],
    position: int = 0,
    path: Path = TINY,
    kinds: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Case, Tensor]:
    """Logits of the last token after a chunk of ``tokens``; ``kinds`` are other quantizations than
    the file's, by tensor name."""
    from engine import ops

    data = path.read_bytes()
    header = read_header(data, len(data))
    tensors = {n: replace(t, quant=kinds.get(n, t.quant)) for n, t in header.tensors.items()}
    model = open_model(replace(header, tensors=tensors))
    kv = model.config.kv_layout(12, CONTEXT)
    b = PlanBuilder("case", DEVICES[device], len(tokens))
    hidden = Tensor("hidden", (1, model.config.hidden), "f32", "state")
    x = model.layers(b, tokens_tensor(len(tokens)), kv)
    if len(tokens) > 1:
        ops.last_token(b, x, hidden)
        x = hidden
    b.tokens = 1
    logits = model.head(b, x)
    case = Case(b.build(), {}, {}, StepRecord(position, len(tokens)), 1 << 16)
    case = tiny_inputs(case, model, kv, path)
    case.arrays = {**case.arrays, "tokens": np.array(tokens, np.uint32)}
    return case, logits


def tiny_inputs(case: Case, model: Model, kv: KVLayout, path: Path = TINY) -> Case:
    """The case with the tables and the weights of a tiny model."""
    reader = gguf_oracle.GGUFReader(path)
    weights = {
        t.name: gguf_oracle.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in reader.tensors
    }
    case.arrays = {"block_table": np.array([3, 9, 1, 4, 0, 7, 2, 8], np.uint32)}
    for rope in model.config.ropes:
        factors = rope.factors_in(CONTEXT)
        table = rope.table(CONTEXT, list(weights[factors.name]) if factors else ())
        shape = kv.rope(rope.name).shape
        case.arrays[rope.name] = np.frombuffer(table, np.float32).reshape(shape)
        for own in rope.weights():  # they are weights of no kernel
            del weights[own.name]
    case.weights = weights
    return case
