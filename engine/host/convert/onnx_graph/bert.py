"""BERT encoders as ONNX graphs, written out as torch.onnx.export does at opset 14: layer
normalization, GELU and attention by single steps, shapes computed by nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gguf.utility import LocalTensor, SafetensorsLocal
from onnx import TensorProto, helper, numpy_helper

from engine.host.convert.safetensors import SINGLE, read_json

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Config:
    """As in config.json of a BERT."""

    vocab_size: int = 90
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 128
    max_position_embeddings: int = 48
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


def random_weights(config: Config, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of a BERT under the names of Hugging Face."""
    rng = np.random.default_rng(seed)
    hidden, inner = config.hidden_size, config.intermediate_size

    def normal(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape) * 0.3, np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": 1 + normal(hidden), f"{name}.bias": normal(hidden)}

    def dense(name: str, rows: int, columns: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": normal(rows, columns), f"{name}.bias": normal(rows)}

    weights = {
        "embeddings.word_embeddings.weight": normal(config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": normal(config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": normal(config.type_vocab_size, hidden),
        **norm("embeddings.LayerNorm"),
    }
    for i in range(config.num_hidden_layers):
        layer = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            weights |= dense(f"{layer}.attention.self.{part}", hidden, hidden)
        weights |= dense(f"{layer}.attention.output.dense", hidden, hidden)
        weights |= norm(f"{layer}.attention.output.LayerNorm")
        weights |= dense(f"{layer}.intermediate.dense", inner, hidden)
        weights |= dense(f"{layer}.output.dense", hidden, inner)
        weights |= norm(f"{layer}.output.LayerNorm")
    return weights


class _Writer:
    """Nodes under construction; what is asked for twice is there once."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_output"], name, **attributes))
        return f"{name}_output"

    def number(self, value: Any, dtype: Any = np.float32) -> str:
        array = np.array(value, dtype)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def weight(self, name: str, transposed: bool = False) -> str:
        array = self.weights[name]
        key = f"onnx::MatMul_{name}" if transposed else name
        self.initializers[key] = numpy_helper.from_array(
            np.ascontiguousarray(array.T if transposed else array), key
        )
        return key

    def dense(self, name: str, x: str) -> str:
        product = self.op("MatMul", x, self.weight(f"{name}.weight", True))
        return self.op("Add", self.weight(f"{name}.bias"), product)

    def norm(self, name: str, x: str) -> str:
        mean = self.op("ReduceMean", x, axes=[-1])
        centred = self.op("Sub", x, mean)
        square = self.op("Pow", centred, self.number(2.0))
        variance = self.op("ReduceMean", square, axes=[-1])
        raised = self.op("Add", variance, self.number(self.config.layer_norm_eps))
        normal = self.op("Div", centred, self.op("Sqrt", raised))
        scaled = self.op("Mul", normal, self.weight(f"{name}.weight"))
        return self.op("Add", scaled, self.weight(f"{name}.bias"))

    def size(self, x: str, axis: int) -> str:
        picked = self.op("Gather", self.op("Shape", x), self.number(axis, np.int64), axis=0)
        return self.op("Unsqueeze", picked, self.number([0], np.int64))

    def heads(self, x: str, perm: tuple[int, ...]) -> str:
        heads = self.config.num_attention_heads
        sizes = [self.size(x, 0), self.size(x, 1)]
        sizes += [self.number([heads], np.int64)]
        sizes += [self.number([self.config.hidden_size // heads], np.int64)]
        split = self.op("Reshape", x, self.op("Concat", *sizes, axis=0))
        return self.op("Transpose", split, perm=perm)

    def attention(self, layer: str, x: str, mask: str) -> str:
        own = f"{layer}.attention.self"
        q = self.heads(self.dense(f"{own}.query", x), (0, 2, 1, 3))
        k = self.heads(self.dense(f"{own}.key", x), (0, 2, 3, 1))
        v = self.heads(self.dense(f"{own}.value", x), (0, 2, 1, 3))
        width = self.config.hidden_size / self.config.num_attention_heads
        scores = self.op("Div", self.op("MatMul", q, k), self.number(width**0.5))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, v), perm=(0, 2, 1, 3))
        sizes = [self.size(mixed, 0), self.size(mixed, 1)]
        sizes += [self.number([self.config.hidden_size], np.int64)]
        joined = self.op("Reshape", mixed, self.op("Concat", *sizes, axis=0))
        return self.op("Add", self.dense(f"{layer}.attention.output.dense", joined), x)

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.number(2**0.5)))
        gate = self.op("Add", erf, self.number(1.0))
        return self.op("Mul", self.op("Mul", x, gate), self.number(0.5))

    def encoder(self) -> str:
        length = self.size("input_ids", 1)
        places = np.arange(self.config.max_position_embeddings)[None]
        name = "embeddings.position_ids"
        self.initializers[name] = numpy_helper.from_array(places, name)
        own = self.op("Slice", name, self.number([0], np.int64), length, self.number([1], np.int64))
        words = self.op("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        kinds = self.weight("embeddings.token_type_embeddings.weight")
        x = self.op("Add", words, self.op("Gather", kinds, "token_type_ids"))
        positions = self.weight("embeddings.position_embeddings.weight")
        x = self.norm("embeddings.LayerNorm", self.op("Add", x, self.op("Gather", positions, own)))
        mask = self.op("Unsqueeze", "attention_mask", self.number([1, 2], np.int64))
        mask = self.op("Sub", self.number(1.0), self.op("Cast", mask, to=TensorProto.FLOAT))
        mask = self.op("Mul", mask, self.number(float(np.finfo(np.float32).min)))
        for i in range(self.config.num_hidden_layers):
            layer = f"encoder.layer.{i}"
            x = self.norm(f"{layer}.attention.output.LayerNorm", self.attention(layer, x, mask))
            inner = self.gelu(self.dense(f"{layer}.intermediate.dense", x))
            outer = self.op("Add", self.dense(f"{layer}.output.dense", inner), x)
            x = self.norm(f"{layer}.output.LayerNorm", outer)
        return x


def bert(config: Config, weights: Weights) -> onnx.ModelProto:
    """input_ids, attention_mask and token_type_ids (batch, sequence) i64 -> last_hidden_state
    (batch, sequence, hidden) f32."""
    writer = _Writer(config, weights)
    writer.nodes.append(helper.make_node("Identity", [writer.encoder()], ["last_hidden_state"]))
    axes = ["batch", "sequence"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, axes)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, [*axes, config.hidden_size]
    )
    graph = helper.make_graph(
        writer.nodes, "bert", inputs, [output], list(writer.initializers.values())
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def save_onnx(folder: Path, path: Path) -> None:
    """Writes the BERT of a Hugging Face folder, with weights in f32, as an ONNX file."""
    given = read_json(folder / "config.json")
    config = Config(**{field.name: given[field.name] for field in fields(Config)})
    tensors = SafetensorsLocal(folder / SINGLE).tensors.items()
    weights = {name: _array(tensor) for name, tensor in tensors if tensor.dtype == "F32"}
    onnx.save(bert(config, weights), path)


def _array(tensor: LocalTensor) -> np.ndarray:
    return np.asarray(np.frombuffer(tensor.mmap_bytes(), "<f4").reshape(tensor.shape))
