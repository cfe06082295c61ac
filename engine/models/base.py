"""What the engine needs of a model, and reading a model out of GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, Protocol

from engine.errors import OctavoError
from engine.ops import KVLayout
from engine.ops.attention import KV_BLOCK
from engine.ops.linear import Stack
from engine.plan import PlanBuilder, Tensor, Weight
from engine.weights.gguf import GGUF
from engine.weights.loading import check_sources
from engine.weights.quants import make_weight


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of a decoder-only transformer; ``context`` is what it was trained for, in tokens.

    ``rope_scale`` divides positions ("linear" scaling); ``rope_factors``, (head_dim / 2,) f32,
    divide the frequencies of the rotary pairs (Llama 3).
    """

    architecture: str
    name: str
    num_layers: int
    hidden: int
    ffn: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_base: float
    eps: float
    parameters: int
    rope_halves: bool = False
    rope_scale: float = 1.0
    rope_factors: Weight | None = None

    def kv_block_values(self) -> int:
        """Values in one block of one pool; every layer has two of them."""
        return self.kv_heads * KV_BLOCK * self.head_dim

    def kv_layout(self, num_blocks: int, context: int) -> KVLayout:
        """The paged KV cache of this model."""
        return KVLayout(
            num_blocks,
            context,
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.head_dim**-0.5,
            self.rope_halves,
        )


class Model(Protocol):
    """A model: its shapes and the ops of a step. ``layers`` takes ids to hidden states (M, hidden),
    ``head`` takes one hidden state (1, hidden) to logits (1, vocab)."""

    config: ModelConfig

    def __init__(self, gguf: GGUF) -> None: ...

    def weights(self) -> list[Weight]:
        """All weights of the model."""
        ...

    def layers(self, b: PlanBuilder, tokens: Tensor, kv: KVLayout) -> Tensor:
        """Append embedding and all layers."""
        ...

    def head(self, b: PlanBuilder, x: Tensor, into: Tensor | None = None) -> Tensor:
        """Append final norm and output matrix; the logits go ``into`` a tensor, if given."""
        ...


def required(metadata: Mapping[str, Any], key: str) -> Any:
    """A metadata value, or OctavoError gguf.invalid."""
    if key not in metadata:
        raise OctavoError("gguf.invalid", f"The file does not say {key}.")
    return metadata[key]


def positive(metadata: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A metadata value that must be a positive integer, or OctavoError gguf.invalid."""
    value = metadata.get(key, default) if default is not None else required(metadata, key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise OctavoError("gguf.invalid", f"{key} should be a positive number, not {value!r}.")
    return value


def number(metadata: Mapping[str, Any], key: str, default: float) -> float:
    """A metadata value that must be a positive number, or OctavoError gguf.invalid."""
    value = metadata.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise OctavoError("gguf.invalid", f"{key} should be a number above 0, not {value!r}.")
    return float(value)


def read_config(gguf: GGUF, *, rope_halves: bool) -> ModelConfig:
    """The configuration that Llama-like models keep in their metadata."""
    meta = gguf.metadata
    arch = str(required(meta, "general.architecture"))
    hidden = positive(meta, f"{arch}.embedding_length")
    q_heads = positive(meta, f"{arch}.attention.head_count")
    kv_heads = positive(meta, f"{arch}.attention.head_count_kv", q_heads)
    head_dim = positive(meta, f"{arch}.attention.key_length", max(1, hidden // q_heads))
    if q_heads % kv_heads or head_dim % 8:
        raise OctavoError(
            "gguf.invalid", f"{q_heads} heads of {head_dim} cannot share {kv_heads} KV heads."
        )
    if positive(meta, f"{arch}.rope.dimension_count", head_dim) != head_dim:
        raise OctavoError("model.architecture", "Rope over a part of a head is not supported.")
    tokens = required(meta, "tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise OctavoError("gguf.invalid", "tokenizer.ggml.tokens should be a list.")
    context = positive(meta, f"{arch}.context_length")
    return ModelConfig(
        architecture=arch,
        name=str(meta.get("general.name", arch)),
        num_layers=positive(meta, f"{arch}.block_count"),
        hidden=hidden,
        ffn=positive(meta, f"{arch}.feed_forward_length"),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=len(tokens),
        # Within its window, a model with sliding-window attention attends to everything.
        context=min(context, positive(meta, f"{arch}.attention.sliding_window", context)),
        rope_base=number(meta, f"{arch}.rope.freq_base", 10000.0),
        eps=number(meta, f"{arch}.attention.layer_norm_rms_epsilon", 1e-5),
        parameters=sum(prod(t.shape) for t in gguf.tensors.values()),
        rope_halves=rope_halves,
        rope_scale=_rope_scale(meta, arch),
        rope_factors=_rope_factors(gguf, head_dim),
    )


def _rope_scale(metadata: Mapping[str, Any], arch: str) -> float:
    """What positions are divided by. As in llama.cpp, a file that names no type means "linear"."""
    kind = metadata.get(f"{arch}.rope.scaling.type", "linear")
    if kind == "none":
        return 1.0
    if kind != "linear":
        raise OctavoError("model.architecture", f"Rope scaling {kind!r} is not supported.")
    old_name = number(metadata, f"{arch}.rope.scale_linear", 1.0)
    return number(metadata, f"{arch}.rope.scaling.factor", old_name)


def _rope_factors(gguf: GGUF, head_dim: int) -> Weight | None:
    """The tensor that llama.cpp's converter makes of Llama 3's rope scaling, if there is one."""
    name = "rope_freqs.weight"
    return weight(gguf, name, head_dim // 2) if name in gguf.tensors else None


def weight(gguf: GGUF, source: str, *shape: int) -> Weight:
    """The weight in one GGUF tensor."""
    return stacked(gguf, source, {source: shape[0]}, *shape[1:])


def stacked(gguf: GGUF, name: str, parts: Mapping[str, int], *row: int) -> Weight:
    """One matrix (sum of rows, k) made of several, or one vector (sum of rows,): ``parts`` maps
    tensor names to rows, ``row`` is the shape of a row. OctavoError model.quantization if they are
    quantized differently."""
    first, *others = stack(gguf, name, parts, *row)
    if others:
        quants = sorted({first.quant, *(other.quant for other in others)})
        raise OctavoError(
            "model.quantization", f"{name}: parts are quantized differently ({quants})."
        )
    return first


def stack(gguf: GGUF, name: str, parts: Mapping[str, int], *row: int) -> Stack:
    """As `stacked`, but neighbours that are quantized differently make matrices of their own."""
    quants = {s: check_sources(gguf, s, (rows, *row)).quant for s, rows in parts.items()}
    if not row and set(quants.values()) != {"F32"}:
        raise OctavoError(
            "model.quantization", f"{name}: a vector should be F32, not {set(quants.values())}."
        )
    groups = [(quant, tuple(sources)) for quant, sources in groupby(parts, key=quants.__getitem__)]
    names = [name] if len(groups) == 1 else [f"{name}.{i}" for i in range(len(groups))]
    return tuple(
        make_weight(own, row, quant, {source: parts[source] for source in sources})
        for own, (quant, sources) in zip(names, groups, strict=True)
    )
