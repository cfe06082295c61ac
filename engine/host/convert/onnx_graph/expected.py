"""The model that a config.json describes, as the engine will read it in a GGUF file: graphs are
compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from engine.errors import OctavoError
from engine.host.convert.families import family_of
from engine.host.convert.hyperparameters import Config, describe, read_rope, rope_tensors
from engine.host.convert.onnx_graph.glue import Floats
from engine.host.convert.onnx_graph.skeleton import UnlikeError
from engine.host.errors import HostError
from engine.models import ARCHITECTURES
from engine.models.base import ModelConfig
from engine.models.llama import Llama
from engine.models.rope import Rope
from engine.weights.gguf import GGUF, TensorInfo


@dataclass(frozen=True)
class Expected:
    """A model of ``kind``; ``factors`` are the numbers of the tensors that its rotary embeddings
    read, by name."""

    kind: type[Llama]
    model: ModelConfig
    factors: dict[str, tuple[float, ...]]

    def rope(self, layer: int) -> Rope:
        """The rotary embedding of a layer."""
        name = self.model.reach[layer].rope
        return next(rope for rope in self.model.ropes if rope.name == name)

    def table(self, rope: Rope, context: int, count: int) -> Floats:
        """(count, rotary / 2, 2): cosines and sines of the first positions, in a context of so many
        tokens."""
        weight = rope.factors_in(context)
        table = rope.table(count, self.factors[weight.name] if weight else ())
        return np.frombuffer(table, np.float32).reshape(count, -1, 2)[:, : rope.rotary // 2]


def expected_of(config: Config, rows: int) -> Expected:
    """What a config.json describes; ``rows`` are those of the embedding.

    Raises UnlikeError if the engine has no such model.
    """
    family = family_of(config)
    kind: Any = ARCHITECTURES.get(family.architecture)
    if not (isinstance(kind, type) and issubclass(kind, Llama)):
        raise UnlikeError(f"{config.path}: only families like Llama are supported")
    writer = gguf.GGUFWriter(None, family.architecture)
    try:
        describe(writer, config, rows)
        family.describe(writer, config)
        vectors = rope_tensors(config)
        factors = {v.name: tuple(map(float, v.read(0, v.shape[0]))) for v in vectors}
        shapes = {v.name: v.shape for v in vectors}
        # A file has to have tensors for its layers.
        shapes |= {f"blk.{i}.attn_norm.weight": (1,) for i in range(config.layers)}
        infos = {name: TensorInfo(name, shape, "F32", 0, 0) for name, shape in shapes.items()}
        metadata = {key: entry.value for key, entry in writer.kv_data[0].items()}
        metadata["tokenizer.ggml.tokens"] = [""] * rows
        model = kind.read_config(GGUF(3, metadata, infos, 0, 0))
    except (HostError, OctavoError) as error:
        raise UnlikeError(f"{config.path}: {error}") from None
    if model.ropes[0].rotary < model.head_dim and not model.rope_halves:
        raise UnlikeError(f"{config.path}: heads of this family are rotated as a whole")
    return Expected(kind, model, factors)


def with_whole_context(config: Config) -> Config | None:
    """A config.json with Llama 3's scaling as onnxruntime-genai's builder has read it up to 0.11:
    the original context is the whole one. None for other scalings."""
    if read_rope(config).kind != "llama3":
        return None
    key = "rope_parameters" if config.section("rope_parameters").fields else "rope_scaling"
    scaling = config.section(key)
    original = {"original_max_position_embeddings": config.count("max_position_embeddings")}
    return Config(config.fields | {key: scaling.fields | original}, config.path)
