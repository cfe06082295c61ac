"""What an answer asks of the sampler: which plans end its steps, and what the device is told."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import Any

from engine.backends.base import Device
from engine.config import GenerateConfig
from engine.models.plans import CHOOSE, LOGPROBS, SAMPLE
from engine.ops.state import (
    IN_PROMPT,
    LOGPROB_WORDS,
    RING,
    SAMPLING,
    SamplingRecord,
    bias_tensor,
    counts_tensor,
    mask_tensor,
)
from engine.ops.state import LOGPROBS as LOGPROB_RING


@dataclass(frozen=True)
class TokenLogprob:
    """ln of the probability of a token, by the model's own logits, with its bytes."""

    id: int
    data: bytes
    logprob: float

    def to_wire(self) -> dict[str, Any]:
        """As OpenAI has it, and the id."""
        return {
            "token": self.data.decode(errors="replace"),
            "bytes": list(self.data),
            "id": self.id,
            "logprob": self.logprob,
        }


@dataclass(frozen=True)
class Logprobs:
    """Of a chosen token, and of those that were likeliest in its place."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]

    def to_wire(self) -> dict[str, Any]:
        """As OpenAI has it."""
        return {**self.chosen.to_wire(), "top_logprobs": [t.to_wire() for t in self.top]}


class Sampler:
    """The sampler's part of an answer; ``table`` has the bytes of every token."""

    def __init__(self, config: GenerateConfig, table: list[bytes]) -> None:
        self._config = config
        self._table = table
        self._vocab = len(table)
        self._record = SamplingRecord(
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            repetition=config.repetition_penalty,
            presence=config.presence_penalty,
            frequency=config.frequency_penalty,
            masked=config.schema is not None,
            num_top=config.top_logprobs,
        )
        self.mask = b""  # a bit for each token that may come, the lowest first
        self._neutral = self._record == SamplingRecord(num_top=config.top_logprobs)

    @property
    def plans(self) -> list[str]:
        """The plans that follow a step's logits."""
        plain = self._neutral and not self._config.logit_bias
        telling = [LOGPROBS] if self._config.logprobs else []
        return [SAMPLE if plain else CHOOSE, *telling]

    def write(self, device: Device, prompt: list[int], answer: list[int]) -> None:
        """Tell the device what it must know before the token after ``prompt`` and ``answer`` is
        chosen; afterwards it counts by itself."""
        if self.plans == [SAMPLE]:
            return
        device.write(SAMPLING, self._record.pack())
        if CHOOSE not in self.plans:
            return
        counts = array("I", bytes(4 * self._vocab))
        for id in prompt:
            counts[id] = IN_PROMPT
        for id in answer:
            counts[id] += 1
        device.write(counts_tensor(self._vocab), counts.tobytes())
        bias = array("f", bytes(4 * self._vocab))
        for id, value in self._config.logit_bias:
            if id < self._vocab:
                bias[id] = value
        device.write(bias_tensor(self._vocab), bias.tobytes())
        self.write_mask(device)

    def write_mask(self, device: Device) -> None:
        """Tell the device which tokens may come, if not all may."""
        if self._record.masked:
            device.write(mask_tensor(self._vocab), self.mask)

    async def logprobs(self, device: Device, ids: list[int], first: int) -> list[Logprobs]:
        """The log-probabilities of sampled ids, the first of which is in place ``first`` of the
        ring; none if they were not asked for."""
        if not self._config.logprobs:
            return []
        raw = await device.read(LOGPROB_RING)
        return [self._entry(raw, id, (first + i) % RING) for i, id in enumerate(ids)]

    def _entry(self, raw: bytes, id: int, place: int) -> Logprobs:
        start, count = 4 * LOGPROB_WORDS * place, self._config.top_logprobs
        chosen, *pairs = struct.unpack_from("<f" + "If" * count, raw, start)
        top = zip(pairs[::2], pairs[1::2], strict=True)
        return Logprobs(self._of(id, chosen), tuple(self._of(i, p) for i, p in top))

    def _of(self, id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(id, self._table[id], logprob)
