"""How long an answer took: where the time to its first token went, and how fast it was."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Timing:
    """Moments of an answer by the host's clock, in seconds.

    asked ── queue ──> begun ── prefill ──> computed ── first step ──> first ── decode ──> last

    The queue is all that comes before the device's first step: the template, the tokenizer, a model
    that has to come back, room in the KV cache, others' turns. Prefill computes the prompt, turns
    that it hands over meanwhile included. The first step is the model's head and the sampler, until
    the token has reached the engine. ``host_seconds`` is what Python and the JavaScript that it
    called took beside waiting for the device, ``host_first`` as much of it until the first token.
    """

    asked: float = 0.0
    begun: float = 0.0
    computed: float = 0.0
    first: float = 0.0
    last: float = 0.0
    host_seconds: float = 0.0
    host_first: float = 0.0

    def prefilled(self, now: float, host_seconds: float) -> None:
        """The first token is there, or it was stopped before: in the queue, or in prefill."""
        self.first = now
        self.host_first = host_seconds
        self.begun = self.begun or now
        self.computed = max(self.computed, self.begun)

    def to_wire(self, computed_tokens: int, num_tokens: int) -> dict[str, float]:
        """Milliseconds and speeds as they cross to the page, of a prompt of which so many tokens
        were computed, and an answer of ``num_tokens``."""
        decoded = max(0, num_tokens - 1)
        host = self.host_seconds - self.host_first
        return {
            "ttft_ms": (self.first - self.asked) * 1e3,
            "queue_ms": (self.begun - self.asked) * 1e3,
            "prefill_ms": (self.computed - self.begun) * 1e3,
            "first_step_ms": (self.first - self.computed) * 1e3,
            "prefill_tokens_per_s": rate(computed_tokens, self.first - self.begun),
            "decode_tokens_per_s": rate(decoded, self.last - self.first),
            "host_ms_per_token": host * 1e3 / max(1, decoded),
        }


def rate(count: int, seconds: float) -> float:
    """Tokens per second; 0 for no time."""
    return count / seconds if seconds > 0 else 0.0
