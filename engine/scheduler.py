"""Decides the next step of a sequence, and how much of it: chunks of prefill, bursts of decode."""

from __future__ import annotations

from dataclasses import dataclass

from engine.ops.kv_layout import KV_BLOCK
from engine.session import Session
from engine.turns import Turns

PREFILL_SECONDS = 0.05  # stop is heard between chunks
DECODE_SECONDS = 0.02  # and between bursts, of which two are in flight
SMALLEST_CHUNK = 4  # the kernels without barriers take tokens by four
MAX_BURST = 32
MOST_KEPT_BLOCKS = 4  # models lean on the first tokens (Xiao et al., 2023)


@dataclass(frozen=True)
class Prefill:
    """Compute tokens [start, start + num_tokens); ``last`` also samples the next token."""

    start: int
    num_tokens: int
    last: bool


@dataclass(frozen=True)
class Decode:
    """Compute and sample ``num_steps`` tokens, the first at position ``start``."""

    start: int
    num_steps: int


class Pace:
    """How many units of work fit into a time, learned from what was measured.

    A step costs something however small it is, so a short one makes the device look slower than
    it is: it may raise the size, but lowers it only if it alone took too long, and a smaller
    one is to be had.
    """

    def __init__(self, seconds: float, smallest: int, largest: int) -> None:
        self._seconds = seconds
        self._smallest = smallest
        self._largest = largest
        self.size = smallest

    def measured(self, units: int, seconds: float) -> None:
        """``units`` took ``seconds``."""
        fitting = int(units * self._seconds / max(seconds, 1e-6))
        too_long = seconds > self._seconds and units > self._smallest
        if fitting > self.size or units >= self.size or too_long:
            self.size = max(self._smallest, min(self._largest, fitting))


class Scheduler:
    """Plans the steps of sequences, and whose they are; knows the device only by its chunk size
    and pace."""

    def __init__(self, chunk: int, context: int, most_in_flight: int = 2) -> None:
        self.context = context
        self._most_in_flight = most_in_flight
        self.turns = Turns()
        self.prefill_pace = Pace(PREFILL_SECONDS, min(SMALLEST_CHUNK, chunk), chunk)
        self.decode_pace = Pace(DECODE_SECONDS, 1, MAX_BURST)

    def next_prefill(self, session: Session) -> Prefill:
        """The next chunk of the tokens that are not cached."""
        start = session.num_cached
        count = min(self.prefill_pace.size, len(session.tokens) - start)
        return Prefill(start, count, start + count == len(session.tokens))

    def next_decode(self, position: int, remaining: int) -> Decode | None:
        """The next burst from ``position`` on, of at most ``remaining`` tokens; None when nothing
        is left to do or the context is full."""
        steps = min(self.decode_pace.size, remaining, self.context - position)
        return Decode(position, steps) if steps > 0 else None

    @property
    def slide(self) -> tuple[int, int]:
        """Blocks to keep at the beginning of a full context, and blocks to drop after them."""
        blocks = self.context // KV_BLOCK
        return min(MOST_KEPT_BLOCKS, blocks // 4), max(1, blocks // 8)

    @property
    def depth(self) -> int:
        """Bursts in flight: two hide the way to the GPU and back, but a burst of one step is
        slow enough to hide it by itself."""
        return self._most_in_flight if self.decode_pace.size > 1 else 1
