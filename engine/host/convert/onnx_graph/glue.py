"""What lies between the products of a language model, by its definition: f32 (tokens, width)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = Any  # a NumPy array of float32


def rms_norm(x: Floats, gain: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * gain (Zhang and Sennrich, 2019)."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * gain


@dataclass(frozen=True)
class Heads:
    """``queries`` heads of Q for ``keys`` of K and V; products of them are multiplied by ``scale``,
    and a token sees ``window`` of the last, all with 0. ``gains`` of Q and K, and ``eps``, are of
    heads that are normalized."""

    queries: int
    keys: int
    width: int
    scale: float
    window: int
    eps: float
    gains: tuple[Floats, Floats] | None = None

    def attention(
        self, q: Floats, k: Floats, v: Floats, past: tuple[Floats, Floats], rope: Floats
    ) -> Floats:
        """Causal attention (Vaswani et al., 2017) with rotary embedding (Su et al., 2021), pairs
        half of what is rotated apart: the last tokens of those in ``rope``, (all tokens, rotated /
        2, 2), behind ``past`` keys and values, (heads, tokens, width)."""
        count = len(q)
        q, k, v = (
            x.reshape(count, -1, self.width).swapaxes(0, 1) for x in (q, k, v)
        )  # heads first
        if self.gains:
            q, k = (rms_norm(x, g, self.eps) for x, g in zip((q, k), self.gains, strict=True))
        q, k = (_rotated(x, rope[-count:]) for x in (q, k))
        k, v = (np.concatenate([old, new], 1) for old, new in zip(past, (k, v), strict=True))
        group, total = self.queries // self.keys, k.shape[1]
        scores = q.reshape(self.keys, group, count, -1) @ k[:, None].swapaxes(-1, -2)
        own, other = np.arange(total - count, total)[:, None], np.arange(total)
        hidden = (other > own) | (other <= own - (self.window or total))
        scores = np.where(hidden, -np.inf, scores * np.float32(self.scale))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        y = (weights @ v[:, None]).reshape(self.queries, count, -1)
        return y.swapaxes(0, 1).reshape(count, -1)


def _rotated(x: Floats, rope: Floats) -> Floats:
    """The first elements of heads (heads, tokens, width) turned by cosines and sines (tokens,
    rotated / 2, 2)."""
    half = rope.shape[1]
    first, second, rest = np.split(x, [half, 2 * half], -1)
    cos, sin = rope[..., 0], rope[..., 1]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)
