"""config.json -> the hyperparameters in a GGUF file's metadata, and the tensors made of them.

The keys are those of ggml's docs/gguf.md; what each family writes is what llama.cpp reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np

from engine.host.convert.model import Floats, Tensor
from engine.host.errors import HostError


class Config:
    """A config.json whose values are checked when they are asked for."""

    def __init__(self, fields: dict[str, Any], path: str) -> None:
        self.fields = fields
        self.path = path

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where there is none or null."""
        value = self.fields.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; raises HostError for anything else."""
        return int(self._number(key, default, int))

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; raises HostError for anything else."""
        return float(self._number(key, default, (int, float)))

    def section(self, key: str) -> Config:
        """The object under `key`, empty where there is none."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise HostError(f"{self.path}: {key} should be an object, not {value!r}.")
        return Config(value, f"{self.path}: {key}")

    def _number(self, key: str, default: float | None, kind: Any) -> Any:
        value = self.get(key, default)
        if not isinstance(value, kind) or isinstance(value, bool) or value <= 0:
            raise HostError(f"{self.path}: {key} should be a number above 0, not {value!r}.")
        return value

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.count("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.count("num_key_value_heads", self.heads)

    @property
    def layers(self) -> int:
        """Transformer blocks."""
        return self.count("num_hidden_layers")

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.count("head_dim", max(1, self.count("hidden_size") // self.heads))


@dataclass(frozen=True)
class Rope:
    """The rotary embedding: `dim` rotated dimensions of a head, its base, how it is scaled.

    `local_base` is that of layers with a sliding window, where they have one of their own.
    """

    dim: int
    base: float
    scaling: Config
    local_base: float | None = None

    @property
    def kind(self) -> str:
        """The name of the scaling: "default" for none."""
        return str(self.scaling.get("rope_type", self.scaling.get("type", "default")))


def read_rope(config: Config) -> Rope:
    """The rotary embedding, in a config.json of older and of newer versions of transformers."""
    newer = config.section("rope_parameters")
    local = newer.section("sliding_attention") if "sliding_attention" in newer.fields else config
    key = "rope_local_base_freq" if local is config else "rope_theta"
    local_base = local.number(key) if key in local.fields else None
    if "full_attention" in newer.fields:
        newer = newer.section("full_attention")
    scaling = newer if newer.fields else config.section("rope_scaling")
    key = "partial_rotary_factor"
    share = newer.number(key, config.number(key, 1.0))
    base = newer.number("rope_theta", config.number("rope_theta", 10000.0))
    rope = Rope(int(config.head_dim * share), base, scaling, local_base)
    if rope.kind not in ("default", "linear", "llama3", "yarn", "longrope", "su"):
        raise HostError(f"{config.path}: rope scaling {rope.kind!r} is not supported.")
    return rope


def read_window(config: Config) -> int:
    """The tokens that layers with a sliding window see; 0 if there are no such layers."""
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return config.count("sliding_window")
    return 0


def describe(writer: Any, config: Config, rows: int) -> None:
    """Adds the hyperparameters; `rows` is how many tokens the embedding has."""
    writer.add_context_length(config.count("max_position_embeddings"))
    writer.add_embedding_length(config.count("hidden_size"))
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.count("intermediate_size"))
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps", 1e-6))
    writer.add_vocab_size(rows)
    if window := read_window(config):
        writer.add_sliding_window(window)
    _describe_rope(writer, config, read_rope(config))


def _describe_rope(writer: Any, config: Config, rope: Rope) -> None:
    writer.add_rope_dimension_count(rope.dim)
    writer.add_rope_freq_base(rope.base)
    if rope.local_base is not None:
        writer.add_rope_freq_base_swa(rope.local_base)
    if rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.kind))
        writer.add_rope_scaling_factor(rope.scaling.number("factor"))
    if rope.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(_original_context(config, rope))
    if rope.kind in ("longrope", "su"):
        original = _original_context(config, rope)
        stretch = config.count("max_position_embeddings") / original
        factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(rope.scaling.number("attention_factor", factor))


def _original_context(config: Config, rope: Rope) -> int:
    key = "original_max_position_embeddings"
    return rope.scaling.count(key, config.get(key, config.count("max_position_embeddings")))


def rope_tensors(config: Config) -> list[Tensor]:
    """What GGUF keeps of a scaling as tensors: divisors of the frequencies, (dim / 2,) float32."""
    rope = read_rope(config)
    if rope.kind == "llama3":
        return [_vector("rope_freqs.weight", llama3_factors(rope))]
    if rope.kind in ("longrope", "su"):
        return [
            _vector(f"rope_factors_{length}.weight", rope.scaling.get(f"{length}_factor"))
            for length in ("long", "short")
        ]
    return []


def llama3_factors(rope: Rope) -> list[float]:
    """The divisors of Llama 3.1's scaling: 1 for wave lengths that the original context holds
    `high_freq_factor` times, `factor` for those it holds less than `low_freq_factor` times, and
    blended by how often between them."""
    factor = rope.scaling.number("factor")
    low, high = (rope.scaling.number(f"{end}_freq_factor") for end in ("low", "high"))
    original = rope.scaling.count("original_max_position_embeddings")
    factors = []
    for i in range(rope.dim // 2):
        turns = original * rope.base ** (-2 * i / rope.dim) / math.tau
        blend = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - blend) / factor + blend))
    return factors


def _vector(name: str, values: Any) -> Tensor:
    try:
        data: Floats = np.array(values, np.float32)
    except (TypeError, ValueError):
        data = np.zeros((0, 0), np.float32)
    if data.ndim != 1 or not data.size:
        raise HostError(f"The config.json lacks the list of numbers for {name}.")
    kind = gguf.GGMLQuantizationType.F32
    return Tensor(name, data.shape, kind, lambda first, last: data[first:last])
