"""Llama and the models built like it (SmolLM2, TinyLlama, Mistral).

GGUF stores the rows of Q and K of this family so that rotary pairs are neighbours (2i, 2i + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import ops
from engine.models.base import ModelConfig, read_config
from engine.models.reading import stack, stacked, weight
from engine.ops import KVLayout
from engine.ops.gate import Act
from engine.ops.linear import Stack
from engine.ops.norm import Norm
from engine.ops.spans import Spans
from engine.plan import PlanBuilder, Tensor, Weight
from engine.weights.gguf import GGUF


@dataclass(frozen=True)
class _Layer:
    attn_norm: Norm
    qkv: Stack
    qkv_bias: Weight | None
    head_norm: Norm | None
    out: Weight
    out_norm: Norm | None
    ffn_norm: Norm
    gate_up: Stack
    down: Weight
    down_norm: Norm | None


class Llama:
    """Decoder-only transformer with RMS norm, rotary embedding and a gated unit.

    Families built alike differ by the class attributes.
    """

    rope_halves = False  # whether rotary pairs are (i, i + head_dim / 2)
    qkv_bias = False  # whether Q, K and V add a bias
    head_norm = False  # whether every head of Q and K is normalized
    post_norms: tuple[str, str] | None = None  # norms of what attention and the gated unit add
    fused = False  # whether Q, K and V are one tensor, and gate and up
    act: Act = "silu"  # of the gate

    def __init__(self, gguf: GGUF) -> None:
        c = self.config = self.read_config(gguf)
        self._embedding = weight(gguf, "token_embd.weight", c.vocab, c.hidden)
        self._norm = Norm(weight(gguf, "output_norm.weight", c.hidden), c.eps)
        tied = "output.weight" not in gguf.tensors
        self._output = self._embedding if tied else weight(gguf, "output.weight", c.vocab, c.hidden)
        self._layers = [self._layer(gguf, i) for i in range(c.num_layers)]

    @classmethod
    def read_config(cls, gguf: GGUF) -> ModelConfig:
        """The configuration in the metadata."""
        return read_config(gguf, rope_halves=cls.rope_halves)

    @staticmethod
    def embedding_scale(config: ModelConfig) -> float:
        """What the embedding of a token is multiplied by."""
        return 1.0

    def _layer(self, gguf: GGUF, index: int) -> _Layer:
        c, at = self.config, f"blk.{index}"
        q, kv = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
        heads = {"qkv": q + 2 * kv} if self.fused else {"q": q, "k": kv, "v": kv}
        units = {"up": 2 * c.ffn} if self.fused else {"gate": c.ffn, "up": c.ffn}
        rows = {f"{at}.attn_{part}.weight": count for part, count in heads.items()}
        biases = {f"{at}.attn_{part}.bias": count for part, count in heads.items()}
        gate_up = {f"{at}.ffn_{part}.weight": count for part, count in units.items()}

        def norm(name: str) -> Norm:
            return Norm(weight(gguf, f"{at}.{name}.weight", c.hidden), c.eps)

        out_norm, down_norm = map(norm, self.post_norms) if self.post_norms else (None, None)
        return _Layer(
            attn_norm=norm("attn_norm"),
            qkv=stack(gguf, f"{at}.attn_qkv", rows, c.hidden),
            qkv_bias=stacked(gguf, f"{at}.attn_qkv_bias", biases) if self.qkv_bias else None,
            head_norm=self._head_norm(gguf, at) if self.head_norm else None,
            out=weight(gguf, f"{at}.attn_output.weight", c.hidden, q),
            out_norm=out_norm,
            ffn_norm=norm("ffn_norm"),
            gate_up=stack(gguf, f"{at}.ffn_gate_up", gate_up, c.hidden),
            down=weight(gguf, f"{at}.ffn_down.weight", c.hidden, c.ffn),
            down_norm=down_norm,
        )

    def _head_norm(self, gguf: GGUF, at: str) -> Norm:
        """The gains of a head of Q, then of K."""
        parts = {f"{at}.attn_{part}_norm.weight": self.config.head_dim for part in "qk"}
        return Norm(stacked(gguf, f"{at}.attn_qk_norm", parts), self.config.eps)

    def weights(self) -> list[Weight]:
        """All weights of the model."""
        found = [self._embedding, self._norm.gain, self._output]
        for layer in self._layers:
            found += [layer.attn_norm.gain, *layer.qkv, layer.out, layer.ffn_norm.gain]
            found += [*layer.gate_up, layer.down]
            found += [layer.qkv_bias] if layer.qkv_bias else []
            norms = (layer.head_norm, layer.out_norm, layer.down_norm)
            found += [norm.gain for norm in norms if norm]
        return found + [w for rope in self.config.ropes for w in rope.weights()]

    def layers(self, b: PlanBuilder, tokens: Tensor, kv: KVLayout) -> Tensor:
        """Ids (M,) to hidden states (M, hidden) before the final norm."""
        c = self.config
        x = ops.embed(b, tokens, self._embedding, self.embedding_scale(c))
        for i, layer in enumerate(self._layers):
            b.layer = i
            qkv = ops.linear(b, x, layer.qkv, norm=layer.attn_norm, bias=layer.qkv_bias)
            if layer.head_norm:
                ops.head_norm(b, qkv, layer.head_norm.gain, c.eps, c.q_heads, c.kv_heads)
            attended = ops.attention(b, qkv, kv, i, c.reach[i])
            x = _added(b, x, attended, layer.out, layer.out_norm)
            gated = ops.gated_linear(b, x, layer.gate_up, norm=layer.ffn_norm, act=self.act)
            x = _added(b, x, gated, layer.down, layer.down_norm)
        b.layer = None
        return x

    def head(self, b: PlanBuilder, x: Tensor, into: Tensor | None = None) -> Tensor:
        """A hidden state (1, hidden) to logits (1, vocab)."""
        return ops.linear(b, x, self._output, norm=self._norm, into=into)


def _added(b: PlanBuilder, x: Tensor, y: Tensor | Spans, w: Weight, norm: Norm | None) -> Tensor:
    """``x + y @ w.T``, or ``x + norm(y @ w.T)``."""
    if not norm:
        return ops.linear(b, y, w, residual=x)
    return ops.rmsnorm(b, ops.linear(b, y, w), norm.gain, norm.eps, residual=x)
