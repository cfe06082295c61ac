"""Qwen2 and Qwen2.5: like Llama, with a bias on Q, K and V, and rotary pairs as halves."""

from __future__ import annotations

from engine.models.llama import Llama


class Qwen2(Llama):
    """GGUF leaves the rows of Q and K of this family in their order."""

    rope_halves = True
    qkv_bias = True
