"""What the engine needs of a model, and reading a model out of GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from engine.errors import OctavoError
from engine.models.reading import number, positive, required
from engine.models.rope import Rope, read_rope
from engine.ops import KVLayout, Reach
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.kv_values import Precision, row_words
from engine.plan import PlanBuilder, Tensor, Weight
from engine.weights.gguf import GGUF, MAX_NAME


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of a decoder-only transformer; ``context`` is what it was trained for, in tokens.

    ``scale`` is what products of queries and keys are multiplied by; ``reach`` says of each layer
    how far back it sees, and by which of ``ropes``.
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
    eps: float
    parameters: int
    scale: float
    ropes: tuple[Rope, ...]
    reach: tuple[Reach, ...]
    rope_halves: bool = False

    def kv_block_bytes(self, precision: Precision, value_bytes: int) -> int:
        """Bytes of one block of one pool, where a device takes ``value_bytes`` for a value of f16;
        every layer has two of them."""
        quants = 4 * row_words(self.head_dim, precision)
        row = value_bytes * self.head_dim if precision == "f16" else quants
        return self.kv_heads * KV_BLOCK * row

    def kv_layout(self, num_blocks: int, context: int, precision: Precision = "f16") -> KVLayout:
        """The paged KV cache of this model."""
        return KVLayout(
            num_blocks,
            context,
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.scale,
            self.rope_halves,
            self.ropes[0].rotary,
            precision,
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
    tokens = required(meta, "tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise OctavoError("gguf.invalid", "tokenizer.ggml.tokens should be a list.")
    num_layers = positive(meta, f"{arch}.block_count")
    if num_layers > len(gguf.tensors):
        raise OctavoError("gguf.invalid", f"There are no tensors for {num_layers} layers.")
    return ModelConfig(
        architecture=arch,
        name=_name(meta, arch),
        num_layers=num_layers,
        hidden=hidden,
        ffn=positive(meta, f"{arch}.feed_forward_length"),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=len(tokens),
        context=positive(meta, f"{arch}.context_length"),
        eps=number(meta, f"{arch}.attention.layer_norm_rms_epsilon", 1e-5),
        parameters=sum(prod(t.shape) for t in gguf.tensors.values()),
        scale=head_dim**-0.5,
        ropes=(read_rope(gguf, arch, head_dim),),
        reach=(Reach(read_window(gguf, arch)),) * num_layers,
        rope_halves=rope_halves,
    )


def _name(metadata: Mapping[str, Any], arch: str) -> str:
    """What people call the model; its architecture if the file has no proper name."""
    name = metadata.get("general.name")
    return name[:MAX_NAME] if isinstance(name, str) else arch


def read_window(gguf: GGUF, arch: str) -> int:
    """The tokens that layers with sliding-window attention see; 0 if there are no such layers."""
    key = f"{arch}.attention.sliding_window"
    return positive(gguf.metadata, key) if gguf.metadata.get(key) else 0
