"""Qwen3: like Qwen2, with an RMS norm of every head of Q and K instead of biases."""

from __future__ import annotations

from engine.models.llama import Llama


class Qwen3(Llama):
    """Heads may be wider than the hidden state's share, so files say how wide they are."""

    rope_halves = True
    head_norm = True
