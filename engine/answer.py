"""One answer: schedule -> run -> commit, until something ends it."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.config import GenerateConfig
from engine.loader import Host, LoadedModel
from engine.models.plans import DECODE, HEAD, PREFILL
from engine.ops.state import STEP, StepRecord, tokens_tensor
from engine.scheduler import Scheduler
from engine.session import Session
from engine.stops import StopStrings
from engine.tokenizer.decoder import StreamDecoder

FinishReason = Literal["stop", "length", "cancelled"]
Stopped = Callable[[], bool]


@dataclass(frozen=True)
class Delta:
    """New text of the answer; ``num_tokens`` counts all tokens of the answer so far."""

    text: str
    num_tokens: int


@dataclass
class Answer:
    """A finished answer. Times are in seconds; ``host_seconds`` is what Python and the
    JavaScript it called took beside waiting for the device."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    host_seconds: float = 0.0

    def to_wire(self) -> dict[str, Any]:
        """The answer as it crosses to the page."""
        computed = self.prompt_tokens - self.cached_tokens
        later = max(0, len(self.ids) - 1)
        return {
            "text": self.text,
            "ids": self.ids,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": len(self.ids),
            },
            "timing": {
                "ttft_ms": self.first_token_seconds * 1e3,
                "prefill_tokens_per_s": _rate(computed, self.first_token_seconds),
                "decode_tokens_per_s": _rate(later, self.decode_seconds),
                "host_ms_per_token": self.host_seconds * 1e3 / max(1, len(self.ids)),
            },
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


class Run:
    """One answer under way; ``ends`` are the ids that end it."""

    def __init__(
        self,
        model: LoadedModel,
        session: Session,
        scheduler: Scheduler,
        config: GenerateConfig,
        host: Host,
        ends: frozenset[int],
    ) -> None:
        self.move(model, session, scheduler)
        self._config = config
        self._now = host.now
        self._ends = ends
        self._decoder = StreamDecoder(model.token_bytes)
        self._stops = StopStrings(config.stop)
        self.answer = Answer()
        self._num_sampled = 0
        self._position = 0  # of the next token to compute
        self._waited = 0.0
        self._last_token = 0.0  # when it came
        self._has_turn = False
        self._started = host.now()

    def move(self, model: LoadedModel, session: Session, scheduler: Scheduler) -> None:
        """Go on with the same model loaded anew, after its device was lost: ``deltas`` then takes
        the same ids, computes prompt and answer again, and continues where the answer stands."""
        self._model = model
        self._device = model.device
        self._session = session
        self._scheduler = scheduler

    @property
    def rest(self) -> bytes:
        """Of a character that was cut, and that a continuation says whole."""
        return self._decoder.rest

    def follow(self, rest: bytes) -> None:
        """The answer continues one that ended with this ``rest``."""
        self._decoder.follow(rest)

    async def deltas(self, ids: list[int], stopped: Stopped) -> AsyncGenerator[Delta, None]:
        """The new text as it comes; after the last one, ``answer`` is complete.

        After a gpu.lost (and ``move``) or a NoRoomError it can be called again with the same ids:
        it computes prompt and answer so far anew and goes on.
        """
        await self._take_turn()
        try:
            async with aclosing(self._deltas(ids, stopped)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._session.release()
            if self._has_turn:
                self._give_turn()

    async def _take_turn(self) -> None:
        started = self._now()
        await self._scheduler.turns.take()
        self._waited += self._now() - started
        self._has_turn = True

    def _give_turn(self) -> None:
        self._has_turn = False
        self._scheduler.turns.give()

    async def _share(self) -> bool:
        """Let another answer have its turn, if one wants it; whether the device's state was
        another's in between."""
        if not self._scheduler.turns.wanted:
            return False
        self._give_turn()
        await self._take_turn()
        self._write_table(0)
        return True

    async def _deltas(self, ids: list[int], stopped: Stopped) -> AsyncGenerator[Delta, None]:
        started, answer = self._started, self.answer
        answer.prompt_tokens = len(ids)
        cached = self._session.prompt(ids + answer.ids)
        limit = self._model.context - len(ids)
        if self._config.max_tokens is not None:
            limit = min(limit, self._config.max_tokens)
        begins = not answer.ids
        first = await self._prefill(stopped)
        if begins:
            answer.cached_tokens = cached
            answer.first_token_seconds = self._now() - started
        self._last_token = self._now()
        if first is None:
            answer.finish_reason = "cancelled"
        else:
            async with aclosing(self._decode(first, limit, stopped)) as deltas:
                async for delta in deltas:
                    yield delta
        # Bursts that were in flight beyond the end do not count.
        answer.decode_seconds = self._last_token - started - answer.first_token_seconds
        answer.host_seconds = self._now() - started - self._waited
        # A character that was cut comes whole with a continuation; a final end shows it broken.
        broken = self._decoder.flush() if answer.finish_reason == "stop" else ""
        tail = self._stops.push(broken) + self._stops.flush()
        answer.text += tail
        if tail:
            yield Delta(tail, len(answer.ids))

    async def _prefill(self, stopped: Stopped) -> int | None:
        """Compute the prompt chunk by chunk; the first sampled id, or None if stopped."""
        session, config = self._session, self._config
        session.reserve(len(session.tokens))
        self._write_table(0)
        tokens = tokens_tensor(self._device.traits.chunk)
        while not stopped():
            step = self._scheduler.next_prefill(session)
            chunk = session.tokens[step.start : step.start + step.num_tokens]
            self._device.write(tokens, array("I", chunk).tobytes())
            record = StepRecord(step.start, step.num_tokens, 0, config.seed, config.temperature)
            self._device.write(STEP, record.pack())
            plans = [PREFILL, HEAD] if step.last else [PREFILL]
            started = self._now()
            sampled = await self._wait(
                self._device.run(plans, step.num_tokens, 1, 0, 1 if step.last else 0)
            )
            self._scheduler.prefill_pace.measured(step.num_tokens, self._now() - started)
            session.num_cached = step.start + step.num_tokens
            if step.last:
                self._num_sampled = 1
                return sampled[0]
            await self._share()
        return None

    async def _decode(
        self, first: int, limit: int, stopped: Stopped
    ) -> AsyncGenerator[Delta, None]:
        """Commit sampled ids burst by burst, with the next bursts already under way."""
        self._position = len(self._session.tokens)
        flying: deque[tuple[int, asyncio.Future[list[int]]]] = deque()
        ids = [first]
        try:
            while True:
                ended, delta = self._commit(ids, limit)
                if delta:
                    yield delta
                if ended:
                    return
                if stopped():
                    self.answer.finish_reason = "cancelled"
                    return
                if not flying and await self._share():
                    self._write_step()
                    self._last_token = self._now()
                if not (flying and self._scheduler.turns.wanted):
                    self._launch(flying, limit)
                if not flying:
                    return
                steps, run = flying.popleft()
                ids = await self._wait(run)
                now = self._now()
                self._scheduler.decode_pace.measured(steps, now - self._last_token)
                self._last_token = now
        finally:
            # Nothing may be left in flight: the next run writes the same state.
            for _, run in flying:
                await self._wait(run)

    def _launch(self, flying: deque[tuple[int, asyncio.Future[list[int]]]], limit: int) -> None:
        """Submit bursts until enough are in flight or all tokens are on their way."""
        while len(flying) < self._scheduler.depth:
            on_their_way = sum(steps for steps, _ in flying)
            remaining = limit - len(self.answer.ids) - on_their_way
            step = self._scheduler.next_decode(self._position, remaining)
            if not step:
                return
            self._reserve(step.start + step.num_steps)
            run = self._device.run([DECODE], 1, step.num_steps, self._num_sampled, step.num_steps)
            flying.append((step.num_steps, asyncio.ensure_future(run)))
            self._position += step.num_steps
            self._num_sampled += step.num_steps

    def _commit(self, ids: list[int], limit: int) -> tuple[bool, Delta | None]:
        """Add sampled ids up to an end token or the limit; whether the answer has ended, and its
        new text."""
        answer = self.answer
        kept: list[int] = []
        text = ""
        ended = False
        for id in ids:
            kept.append(id)
            if self._config.stop:  # else all at once is quicker
                text += self._stops.push(self._decoder.push([id]))
            if id in self._ends or self._stops.found:
                answer.finish_reason, ended = "stop", True
            elif len(answer.ids) + len(kept) >= limit:
                ended = True
            if ended:
                break
        self._session.append(kept)
        answer.ids += kept
        if not self._config.stop:
            text = self._decoder.push(kept)
        answer.text += text
        return ended, Delta(text, len(answer.ids)) if text else None

    def _reserve(self, num_tokens: int) -> None:
        """Have blocks for ``num_tokens`` tokens and tell the device the new ones."""
        added = self._session.reserve(num_tokens)
        if added:
            self._write_table(len(self._session.blocks) - len(added))

    def _write_table(self, first: int) -> None:
        """Tell the device the blocks of the sequence, from ``first`` on."""
        blocks = array("I", self._session.blocks[first:])
        self._device.write(self._model.kv.block_table, blocks.tobytes(), 4 * first)

    def _write_step(self) -> None:
        """Tell the device where the answer stands: its last token is computed next."""
        config, tokens = self._config, self._session.tokens
        self._device.write(tokens_tensor(1), array("I", tokens[-1:]).tobytes())
        record = StepRecord(self._position, 1, self._num_sampled, config.seed, config.temperature)
        self._device.write(STEP, record.pack())

    async def _wait(self, awaitable: Any) -> list[int]:
        started = self._now()
        try:
            ids: list[int] = await awaitable
            return ids
        finally:
            self._waited += self._now() - started
