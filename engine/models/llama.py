"""Llama and the models built like it (SmolLM2, TinyLlama, Mistral).

GGUF stores the rows of Q and K of this family so that rotary pairs are neighbours (2i, 2i + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import ops
from engine.models.base import read_config, stack, stacked, weight
from engine.ops import KVLayout
from engine.ops.linear import Norm, Stack
from engine.plan import PlanBuilder, Tensor, Weight
from engine.weights.gguf import GGUF


@dataclass(frozen=True)
class _Layer:
    attn_norm: Norm
    qkv: Stack
    qkv_bias: Weight | None
    head_norm: Norm | None
    out: Weight
    ffn_norm: Norm
    gate_up: Weight
    down: Weight


class Llama:
    """Decoder-only transformer with RMS norm, rotary embedding and a SiLU-gated unit.

    Families built alike differ by the class attributes.
    """

    rope_halves = False  # whether rotary pairs are (i, i + head_dim / 2)
    qkv_bias = False  # whether Q, K and V add a bias
    head_norm = False  # whether every head of Q and K is normalized

    def __init__(self, gguf: GGUF) -> None:
        c = self.config = read_config(gguf, rope_halves=self.rope_halves)
        self._embedding = weight(gguf, "token_embd.weight", c.vocab, c.hidden)
        self._norm = Norm(weight(gguf, "output_norm.weight", c.hidden), c.eps)
        tied = "output.weight" not in gguf.tensors
        self._output = self._embedding if tied else weight(gguf, "output.weight", c.vocab, c.hidden)
        self._layers = [self._layer(gguf, i) for i in range(c.num_layers)]

    def _layer(self, gguf: GGUF, index: int) -> _Layer:
        c, at = self.config, f"blk.{index}"
        q, kv = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
        heads = {"q": q, "k": kv, "v": kv}
        rows = {f"{at}.attn_{part}.weight": count for part, count in heads.items()}
        biases = {f"{at}.attn_{part}.bias": count for part, count in heads.items()}
        gate_up = {f"{at}.ffn_gate.weight": c.ffn, f"{at}.ffn_up.weight": c.ffn}
        return _Layer(
            attn_norm=Norm(weight(gguf, f"{at}.attn_norm.weight", c.hidden), c.eps),
            qkv=stack(gguf, f"{at}.attn_qkv", rows, c.hidden),
            qkv_bias=stacked(gguf, f"{at}.attn_qkv_bias", biases) if self.qkv_bias else None,
            head_norm=self._head_norm(gguf, at) if self.head_norm else None,
            out=weight(gguf, f"{at}.attn_output.weight", c.hidden, q),
            ffn_norm=Norm(weight(gguf, f"{at}.ffn_norm.weight", c.hidden), c.eps),
            gate_up=stacked(gguf, f"{at}.ffn_gate_up", gate_up, c.hidden),
            down=weight(gguf, f"{at}.ffn_down.weight", c.hidden, c.ffn),
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
            found += [layer.gate_up, layer.down]
            found += [layer.qkv_bias] if layer.qkv_bias else []
            found += [layer.head_norm.gain] if layer.head_norm else []
        found += [self.config.rope_factors] if self.config.rope_factors else []
        return found

    def layers(self, b: PlanBuilder, tokens: Tensor, kv: KVLayout) -> Tensor:
        """Ids (M,) to hidden states (M, hidden) before the final norm."""
        c = self.config
        x = ops.embed(b, tokens, self._embedding)
        for i, layer in enumerate(self._layers):
            qkv = ops.linear(b, x, layer.qkv, norm=layer.attn_norm, bias=layer.qkv_bias)
            if layer.head_norm:
                ops.head_norm(b, qkv, layer.head_norm.gain, c.eps, c.q_heads, c.kv_heads)
            attended = ops.attention(b, qkv, kv, i)
            x = ops.linear(b, attended, layer.out, residual=x)
            gated = ops.gated_linear(b, x, layer.gate_up, norm=layer.ffn_norm)
            x = ops.linear(b, gated, layer.down, residual=x)
        return x

    def head(self, b: PlanBuilder, x: Tensor, into: Tensor | None = None) -> Tensor:
        """A hidden state (1, hidden) to logits (1, vocab)."""
        return ops.linear(b, x, self._output, norm=self._norm, into=into)
