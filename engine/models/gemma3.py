"""Gemma 3, its text model: norms before and after attention and the gated unit, and local layers.

Gains of norms have their 1 added already in GGUF. As in llama.cpp, five of six layers see a window
of tokens, at positions that are scaled in no way.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.base import ModelConfig, read_window
from engine.models.llama import Llama
from engine.models.reading import number, positive
from engine.models.rope import Rope
from engine.ops import Reach
from engine.ops.gate import Act
from engine.weights.gguf import GGUF

LOCAL = "rope.local"  # the table of layers with a window
LOCAL_BASE = 10000.0
PERIOD = 6  # the last of so many layers sees everything
LAYERS_27B = 62


class Gemma3(Llama):
    """Gemma 3, and Gemma 3 270M."""

    rope_halves = True
    head_norm = True
    post_norms = ("post_attention_norm", "post_ffw_norm")
    act: Act = "gelu"

    @classmethod
    def read_config(cls, gguf: GGUF) -> ModelConfig:
        """The scale of attention is no part of a file: it is that of heads, but in the 27B model
        that of the hidden state's share of a head."""
        c, meta = super().read_config(gguf), gguf.metadata
        if c.num_layers == LAYERS_27B:
            c = replace(c, scale=(c.hidden / c.q_heads) ** -0.5)
        window = read_window(gguf, c.architecture)
        if not window:
            return c
        period = positive(meta, f"{c.architecture}.attention.sliding_window_pattern", PERIOD)
        base = number(meta, f"{c.architecture}.rope.freq_base_swa", LOCAL_BASE)
        local = Rope(c.head_dim, c.ropes[0].rotary, base, LOCAL)
        layers = range(1, c.num_layers + 1)
        reach = tuple(Reach(window, LOCAL) if i % period else Reach() for i in layers)
        used = {r.rope for r in reach}
        ropes = tuple(rope for rope in (*c.ropes, local) if rope.name in used)
        return replace(c, ropes=ropes, reach=reach)

    @staticmethod
    def embedding_scale(config: ModelConfig) -> float:
        """The square root of the width."""
        return float(config.hidden**0.5)
