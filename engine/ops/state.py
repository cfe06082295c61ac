"""The small state tensors that every plan shares, and the layout of the step record."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from engine.plan import Tensor
from engine.shaders import Slot

# Words of the step record, as in wgsl/lib/step.wgsl.
POSITION, NUM_TOKENS, NUM_SAMPLED, SEED, TEMPERATURE = range(5)
STEP_WORDS = 5
# Sampled ids wait in a ring until they are read; two bursts may be in flight.
RING = 256

STEP = Tensor("step", (STEP_WORDS,), "u32", "state")
SAMPLED = Tensor("sampled", (RING,), "u32", "state")
STEP_SLOT = Slot("step", "Step")


@dataclass(frozen=True)
class StepRecord:
    """The host's side of the step record."""

    position: int
    num_tokens: int
    num_sampled: int = 0
    seed: int = 0
    temperature: float = 0.0

    def pack(self) -> bytes:
        """The record as the GPU reads it."""
        return struct.pack(
            "<IIIIf",
            self.position,
            self.num_tokens,
            self.num_sampled,
            self.seed & 0xFFFFFFFF,
            self.temperature,
        )


def tokens_tensor(count: int) -> Tensor:
    """Input ids of a step, at most ``count``."""
    return Tensor("tokens", (count,), "u32", "state")
