"""Lays out a GGUF model as the ONNX folder that transformers.js and onnxruntime-web load.

    .venv/bin/python -m tests.bench.peers.make_onnx MODEL.gguf FOLDER

The graph is one of graphs/, which hold no weights; it is chosen by the model's shape. The weights
are the file's own, dequantized and quantized again to what the graph takes: symmetric 4 bits with
an f32 scale for every 32 inputs. A manifest.json is taken for its file, joined from its shards.
FOLDER gets config.json, generation_config.json and onnx/: model_q4.onnx (products may round
activations, as exported models have it), model_q4a0.onnx (they may not: accuracy_level 0), and
model_q4.onnx_data, which both share. Needs NumPy; 1.5B parameters take 10 seconds.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.models import open_model
from engine.models.base import ModelConfig
from engine.weights.dequantize import dequantize
from engine.weights.gguf import GGUF, read_header
from tests.bench.peers.onnx_graph import (
    External,
    externals,
    with_attribute,
    with_data_file,
    with_dimension,
)

Array: TypeAlias = npt.NDArray[Any]

GRAPHS = Path(__file__).parent / "graphs"
# Architecture and number of layers -> graph, and the class name that transformers.js looks up.
KINDS = {
    ("llama", 30): ("smollm2-135m.onnx", "LlamaForCausalLM"),
    ("qwen2", 28): ("qwen2.5-1.5b.onnx", "Qwen2ForCausalLM"),
}
DATA_FILE = "model_q4.onnx_data"
BLOCK = 32
TABLES = ("cos_cache", "sin_cache")  # of the rotary embedding
# Names inside a layer of the graph -> names inside a block of a GGUF file.
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
MATRICES = {
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


class Weights:
    """The tensors of a graph, computed from those of a GGUF file."""

    def __init__(self, gguf: GGUF, data: bytes) -> None:
        self._gguf, self._data = gguf, memoryview(data)
        self._config = open_model(gguf).config

    def values(self, tensor: External) -> Array:
        """A tensor that is not quantized."""
        if tensor.name in TABLES:
            return self._rotary(tensor)
        layer, part = tensor.name.split(".")[2:4]
        if part == "final_norm_layernorm":
            return self._source("output_norm.weight")
        return self._source(f"blk.{layer}.{NORMS[part]}.weight")

    def matrix(self, name: str) -> Array:
        """A matrix of the graph, before it is quantized."""
        if name.startswith("lm_head"):
            tied = "output.weight" not in self._gguf.tensors
            return self._source("token_embd.weight" if tied else "output.weight")
        _, _, layer, _, part, *_ = name.split(".")
        if part != "qkv_proj":
            return self._source(f"blk.{layer}.{MATRICES[part]}.weight")
        q, k, v = (self._source(f"blk.{layer}.attn_{letter}.weight") for letter in "qkv")
        heads = self._config.q_heads, self._config.kv_heads
        return np.concatenate([self._halves(q, heads[0]), self._halves(k, heads[1]), v])

    def _halves(self, rows: Array, heads: int) -> Array:
        """Rows of Q or K with the rotary pairs as halves, as the graph takes them."""
        if self._config.rope_halves:
            return rows
        pairs = rows.reshape(heads, -1, 2, rows.shape[1])
        return pairs.swapaxes(1, 2).reshape(rows.shape)

    def _rotary(self, tensor: External) -> Array:
        half = self._config.head_dim // 2
        frequencies = self._config.ropes[0].base ** -(np.arange(half) / half)
        angles = np.outer(np.arange(tensor.shape[0]), frequencies)
        values: Array = np.cos(angles) if tensor.name == "cos_cache" else np.sin(angles)
        return values

    def _source(self, name: str) -> Array:
        info = self._gguf.tensors[name]
        raw = self._data[info.offset : info.offset + info.nbytes]
        values: Array = dequantize(info.quant, raw).reshape(info.shape)
        return values


def quantize(matrix: Array) -> tuple[Array, Array]:
    """(N, K) to packed nibbles (N, K / 32, 16) and scales (N, K / 32); 8 stands for zero.

    The value of a block that is farthest from zero gets the code 0, as ggml's Q4_0 does: -8 is
    the one code without a counterpart.
    """
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    at = np.abs(blocks).argmax(axis=2, keepdims=True)
    scales = np.take_along_axis(blocks, at, 2) / np.float32(-8)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.clip(np.rint(blocks * inverse) + 8, 0, 15).astype(np.uint8)
    return codes[:, :, 0::2] | codes[:, :, 1::2] << 4, scales[:, :, 0]


def write_data(path: Path, tensors: list[External], weights: Weights) -> None:
    """The file that holds the values of `tensors`, each at its place."""
    places = {tensor.name: tensor for tensor in tensors}

    def write(tensor: External) -> None:
        name, _, kind = tensor.name.rpartition("_")
        if kind == "scales":
            return  # written with its codes
        if kind != "Q4":
            put(tensor, weights.values(tensor).astype(np.float32))
            return
        codes, scales = quantize(weights.matrix(name))
        put(tensor, codes)
        put(places[f"{name}_scales"], scales.astype(np.float32))

    def put(tensor: External, values: Array) -> None:
        if values.shape != tensor.shape or values.nbytes != tensor.length:
            raise ValueError(f"{tensor.name} is {tensor.shape} in the graph, not {values.shape}")
        with path.open("r+b") as file:
            file.seek(tensor.offset)
            file.write(np.ascontiguousarray(values).data)

    path.write_bytes(b"")
    with ThreadPoolExecutor(4) as pool:  # NumPy computes without Python's lock
        list(pool.map(write, tensors))


def configs(gguf: GGUF, config: ModelConfig, class_name: str) -> dict[str, dict[str, Any]]:
    """config.json and generation_config.json, as far as the peers read them."""
    tokens = {
        "bos_token_id": gguf.metadata.get("tokenizer.ggml.bos_token_id", 1),
        "eos_token_id": gguf.metadata.get("tokenizer.ggml.eos_token_id", 2),
    }
    shape = {
        "architectures": [class_name],
        "model_type": gguf.metadata["general.architecture"],
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.eps,
        "rope_theta": config.ropes[0].base,
    }
    own = {
        "use_external_data_format": {"model_q4.onnx": 1},
        "kv_cache_dtype": {"q4": "float32"},
    }
    return {
        "config.json": {**shape, **tokens, "transformers.js_config": own},
        "generation_config.json": tokens,
    }


def make(source: Path, folder: Path) -> None:
    """Writes the ONNX folder of the model in `source`, a GGUF file or a manifest of shards."""
    data = joined(source) if source.suffix == ".json" else source.read_bytes()
    gguf = read_header(data, len(data))
    config = open_model(gguf).config
    graph_name, class_name = KINDS[gguf.metadata["general.architecture"], config.num_layers]
    graph = with_data_file((GRAPHS / graph_name).read_bytes(), DATA_FILE)
    # transformers.js sizes the empty cache by this dimension
    graph = with_dimension(graph, "kv_cache_dim", config.head_dim)
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    write_data(folder / "onnx" / DATA_FILE, list(externals(graph)), Weights(gguf, data))
    (folder / "onnx" / "model_q4.onnx").write_bytes(graph)
    exact = with_attribute(graph, "accuracy_level", 0)
    (folder / "onnx" / "model_q4a0.onnx").write_bytes(exact)
    for name, fields in configs(gguf, config, class_name).items():
        (folder / name).write_text(json.dumps(fields, indent=1) + "\n")


def joined(manifest: Path) -> bytes:
    """The file that was cut into the shards of `manifest`."""
    shards = json.loads(manifest.read_text())["shards"]
    return b"".join((manifest.parent / shard["name"]).read_bytes() for shard in shards)


def main(words: list[str]) -> int:
    """The command line."""
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    make(Path(words[0]), Path(words[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
