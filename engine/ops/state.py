"""The small state tensors that every plan shares, and the layout of the step record."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import ceil

from engine.config import MAX_TOP_LOGPROBS
from engine.plan import Tensor
from engine.shaders import Slot

# Words of the step record, as in wgsl/lib/step.wgsl.
POSITION, NUM_TOKENS, NUM_SAMPLED, SEED, TEMPERATURE = range(5)
STEP_WORDS = 5
# Words of the sampling record, as in wgsl/lib/sampling.wgsl.
TOP_K, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, MASKED, NUM_TOP = range(8)
SAMPLING_WORDS = 8
# Sampled ids wait in a ring until they are read; two bursts may be in flight.
RING = 256

STEP = Tensor("step", (STEP_WORDS,), "u32", "state")
SAMPLED = Tensor("sampled", (RING,), "u32", "state")
STEP_SLOT = Slot("step", "Step")
SAMPLING = Tensor("sampling", (SAMPLING_WORDS,), "u32", "state")
LOGPROB_WORDS = 1 + 2 * MAX_TOP_LOGPROBS  # of the chosen token; then id and log-probability of each
LOGPROBS = Tensor("logprobs", (RING, LOGPROB_WORDS), "u32", "state")
IN_PROMPT = 1 << 31  # set in `counts` for a token of the prompt


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


@dataclass(frozen=True)
class SamplingRecord:
    """The host's side of the sampling record; what is not asked for is neutral."""

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    masked: bool = False
    num_top: int = 0

    def pack(self) -> bytes:
        """The record as the GPU reads it."""
        return struct.pack(
            "<IfffffII",
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition,
            self.presence,
            self.frequency,
            self.masked,
            self.num_top,
        )


def logits_tensor(vocab: int) -> Tensor:
    """The logits (1, vocab) of a step's last token."""
    return Tensor("logits", (1, vocab), "f32", "state")


def counts_tensor(vocab: int) -> Tensor:
    """How often each token was sampled in an answer, and whether it is IN_PROMPT."""
    return Tensor("counts", (vocab,), "u32", "state")


def bias_tensor(vocab: int) -> Tensor:
    """What is added to each token's logit."""
    return Tensor("bias", (vocab,), "f32", "state")


def mask_tensor(vocab: int) -> Tensor:
    """A bit for each token that may come, the lowest of a word first."""
    return Tensor("mask", (ceil(vocab / 32),), "u32", "state")


def tokens_tensor(count: int) -> Tensor:
    """Input ids of a step, at most ``count``."""
    return Tensor("tokens", (count,), "u32", "state")
