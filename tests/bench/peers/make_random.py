"""Makes a model with random weights in the shape of Qwen2.5-1.5B, cut into shards.

    .venv/bin/python -m tests.bench.peers.make_random SMOLLM2 FOLDER

Q4_0 matrices, a Q8_0 embedding used as the output too, from a fixed seed. SMOLLM2 is SmolLM2's
GGUF or the manifest of its shards: its vocabulary is taken, and filled up to the size of Qwen's.
FOLDER gets a manifest.json and the shards, and can be a folder in models/ of a site. For speed
only: such a model says nothing. Needs NumPy and the package gguf; writes 1 GB.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import numpy.typing as npt

from engine.host import pins, shards
from engine.host.files import file_sha256
from engine.weights.gguf import read_header
from tests.bench.peers.make_onnx import joined

Bytes: TypeAlias = npt.NDArray[np.uint8]

ID = "random-qwen2.5-1.5b-q4_0"
SEED = 7
VOCAB, HIDDEN, FFN, LAYERS = 151936, 1536, 8960, 28
HEADS, KV_HEADS, HEAD_DIM = 12, 2, 128
CONTEXT = 32768
DEVIATION = 0.02  # of the weights, about what trained models have
BLOCK = 32
POOL = (64 << 20) + 4096  # random bytes; matrices repeat them from different starts
Q4_0, Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0
# Bytes of codes a block, and the deviation of codes that are uniformly random.
CODES = {Q4_0: (16, 4.6), Q8_0: (32, 73.0)}


class RandomModel(pins.Model):
    """A model that was never published."""

    @property
    def source(self) -> str:
        """Where the file comes from, in words."""
        return "random numbers"


class RandomWeights:
    """Tensors of random blocks, added to a GGUF file."""

    def __init__(self, writer: gguf.GGUFWriter) -> None:
        self._writer = writer
        self._rng = np.random.default_rng(SEED)
        self._pool = self._rng.integers(0, 256, POOL, dtype=np.uint8)

    def matrix(self, name: str, rows: int, columns: int, kind: Any = Q4_0) -> None:
        """A quantized matrix: every block is a scale in half precision, and its codes."""
        size, spread = CODES[kind]
        count = rows * columns // BLOCK
        factor = 0.75 + 0.5 * self._rng.random(count, dtype=np.float32)
        scales = (factor * (DEVIATION / spread)).astype(np.float16)
        blocks = np.empty((count, 2 + size), np.uint8)
        blocks[:, :2] = scales.view(np.uint8).reshape(count, 2)
        blocks[:, 2:] = self._bytes(count * size).reshape(count, size)
        self._writer.add_tensor(f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=kind)

    def norm(self, name: str) -> None:
        """Gains of one."""
        self._writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    def bias(self, name: str, count: int) -> None:
        """Normally distributed values."""
        values = self._rng.standard_normal(count) * DEVIATION
        self._writer.add_tensor(f"{name}.bias", values.astype(np.float32))

    def _bytes(self, count: int) -> Bytes:
        start = int(self._rng.integers(0, 4096))
        return np.resize(self._pool[start:], count)


def add_metadata(writer: gguf.GGUFWriter, vocabulary: dict[str, Any]) -> None:
    """Shapes, and the tokenizer of `vocabulary` (the metadata of another GGUF file)."""
    writer.add_name("Random weights, Qwen2.5-1.5B's shape")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    tokens = vocabulary["tokenizer.ggml.tokens"]
    missing = VOCAB - len(tokens)
    normal = int(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, *(f"<filler {i}>" for i in range(missing))])
    writer.add_token_types([*vocabulary["tokenizer.ggml.token_type"], *[normal] * missing])
    writer.add_token_merges(vocabulary["tokenizer.ggml.merges"])
    writer.add_bos_token_id(vocabulary["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(vocabulary["tokenizer.ggml.eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary["tokenizer.chat_template"])


def add_tensors(weights: RandomWeights) -> None:
    """All weights of the model."""
    attention = {"attn_q": HEADS * HEAD_DIM, "attn_k": KV_HEADS * HEAD_DIM}
    attention["attn_v"] = attention["attn_k"]
    weights.matrix("token_embd", VOCAB, HIDDEN, Q8_0)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        weights.norm(at + "attn_norm")
        for name, rows in attention.items():
            weights.matrix(at + name, rows, HIDDEN)
            weights.bias(at + name, rows)
        weights.matrix(at + "attn_output", HIDDEN, HEADS * HEAD_DIM)
        weights.norm(at + "ffn_norm")
        weights.matrix(at + "ffn_gate", FFN, HIDDEN)
        weights.matrix(at + "ffn_up", FFN, HIDDEN)
        weights.matrix(at + "ffn_down", HIDDEN, FFN)
    weights.norm("output_norm")


def write(path: Path, vocabulary: dict[str, Any]) -> None:
    """The GGUF file."""
    writer = gguf.GGUFWriter(path, "qwen2")
    add_metadata(writer, vocabulary)
    add_tensors(RandomWeights(writer))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cut(path: Path, folder: Path) -> None:
    """The file as shards with a manifest."""
    unpublished = pins.PyPI("none", "0", "0" * 64)
    member = pins.Member(unpublished, path.name, file_sha256(path), path.stat().st_size)
    name = "Random weights in the shape of Qwen2.5-1.5B (Q4_0)"
    shards.cut(path, folder, RandomModel(ID, name, member, license="none"))


def main(words: list[str]) -> int:
    """The command line."""
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, folder = Path(words[0]), Path(words[1])
    data = joined(source) if source.suffix == ".json" else source.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / f"{ID}.gguf"
        write(path, read_header(data, len(data)).metadata)
        cut(path, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
