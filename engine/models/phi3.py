"""Phi-3, Phi-3.5 and Phi-4-mini: like Llama, with Q, K and V in one tensor, gate and up in another,
and rotary pairs as halves. Layers with a window are all of them, as in transformers."""

from __future__ import annotations

from engine.models.llama import Llama


class Phi3(Llama):
    """The rows of ``ffn_up`` are those of the gate, then those of up."""

    rope_halves = True
    fused = True
