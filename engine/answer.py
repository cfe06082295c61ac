"""One answer: schedule -> run -> commit, until something ends it."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, TypeVar

from engine.config import GenerateConfig
from engine.detokenizer import Detokenizer
from engine.errors import OctavoError
from engine.grammar import Grammar
from engine.loader import Host, LoadedModel
from engine.models.plans import DECODE, HEAD, PREFILL, SHIFT
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.shift import pack_shift, shift_tensor
from engine.ops.state import STEP, StepRecord, tokens_tensor
from engine.prompt import Prompt
from engine.sampling import Logprobs, Sampler
from engine.scheduler import Prefill, Scheduler
from engine.session import Session
from engine.timing import Timing

FinishReason = Literal["stop", "length", "cancelled"]
Stopped = Callable[[], bool]
T = TypeVar("T")
NO_LIMIT = 1 << 40  # tokens


@dataclass(frozen=True)
class Delta:
    """New text of the answer, or of its reasoning; ``num_tokens`` counts all tokens so far."""

    text: str
    num_tokens: int
    kind: Literal["answer", "reasoning"] = "answer"


@dataclass
class Answer:
    """A finished answer: ``text`` without its think part, which is ``reasoning``."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    finish_reason: FinishReason = "length"
    context_full: bool = False  # that is why it ended
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0  # of the prompt
    timing: Timing = field(default_factory=Timing)

    def to_wire(self) -> dict[str, Any]:
        """The answer as it crosses to the page."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "ids": self.ids,
            **({"logprobs": [t.to_wire() for t in self.logprobs]} if self.logprobs else {}),
            "finish_reason": self.finish_reason,
            **({"code": "context.full"} if self.context_full else {}),
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": len(self.ids),
            },
            "timing": self.timing.to_wire(self.computed_tokens, len(self.ids)),
        }


@dataclass(frozen=True)
class _Burst:
    """Decode steps in flight; ``first`` is the place of their ids in the ring."""

    steps: int
    first: int
    run: asyncio.Future[list[int]]


class Run:
    """One answer under way, which ``prompt`` may have begun; ``ends`` are the ids that end it."""

    def __init__(
        self,
        model: LoadedModel,
        session: Session,
        scheduler: Scheduler,
        config: GenerateConfig,
        host: Host,
        prompt: Prompt,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.move(model, session, scheduler)
        self.config = config
        self._now = host.now
        self._sampler = Sampler(config, model.token_bytes)
        self._grammar: Grammar | None = None
        self._prompt = prompt
        self._dropped = 0  # tokens, after the first ones that are kept, for want of room
        self._detokenizer = Detokenizer(model.token_bytes, ends, config.stop, prompt)
        self.answer = Answer(timing=Timing(asked=host.now()))
        self._num_sampled = 0
        self._position = 0  # of the next token to compute
        self._started = self._waited = 0.0  # of this call of ``deltas``
        self._last_token = 0.0  # when it came
        self._has_turn = False

    def move(self, model: LoadedModel, session: Session, scheduler: Scheduler) -> None:
        """Go on with the same model loaded anew, after its device was lost: ``deltas`` then
        computes prompt and answer again, and continues where the answer stands."""
        self._model = model
        self._device = model.device
        self._session = session
        self._scheduler = scheduler

    @property
    def session(self) -> Session:
        """The sequence; it has blocks while it computes."""
        return self._session

    @property
    def so_far(self) -> Prompt:
        """Where the answer stands, to go on there."""
        return self._detokenizer.so_far(self.answer.ids, self.answer.text)

    async def deltas(self, stopped: Stopped) -> AsyncGenerator[Delta, None]:
        """The new text as it comes; after the last one and ``flush``, ``answer`` is complete.

        After a gpu.lost (and ``move``) or a NoRoomError it can be called again: it computes prompt
        and answer so far anew and goes on.
        """
        self._started, self._waited = self._now(), 0.0
        await self._take_turn()
        try:
            async with aclosing(self._deltas(stopped)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._session.release()
            if self._has_turn:
                self._give_turn()
            # Bursts that were in flight beyond the end do not count.
            self.answer.timing.last = self._last_token
            self.answer.timing.host_seconds = self._host_seconds

    async def obey(self, grammar: Grammar) -> None:
        """Only what ``grammar`` allows may come. OctavoError request.invalid if that is nothing, as
        the answer that is continued, if any, is not of its format."""
        self._grammar = grammar
        if not await self._constrain(self._prompt.ids[self._prompt.begins :]):
            raise OctavoError("request.invalid", "No token fits the format here.")

    async def _constrain(self, ids: list[int]) -> bool:
        """After ``ids``, let the grammar decide which tokens may come; whether any may."""
        if not self._grammar:
            return True
        mask = await self._grammar.next(ids)
        self._sampler.mask = mask or b""
        return any(self._sampler.mask)

    def close(self) -> None:
        """There will be no more deltas."""
        if self._grammar:
            self._grammar.close()

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

    async def _deltas(self, stopped: Stopped) -> AsyncGenerator[Delta, None]:
        answer, ids = self.answer, self._prompt.ids
        answer.prompt_tokens = len(ids)
        cached = self._session.prompt(self._window(ids + answer.ids))
        computed = len(self._session.tokens) - cached
        room = NO_LIMIT if self._slides else self._model.context - len(ids)
        limit = min(room, self.config.max_tokens or NO_LIMIT)
        begins = not answer.ids
        first = await self._prefill(stopped)
        if begins:
            answer.cached_tokens = cached
            answer.computed_tokens = computed
            answer.timing.prefilled(self._now(), self._host_seconds)
        self._last_token = self._now()
        if first is None:
            answer.finish_reason = "cancelled"
        else:
            async with aclosing(self._decode(first, limit, stopped)) as deltas:
                async for delta in deltas:
                    yield delta
        answer.context_full = answer.finish_reason == "length" and len(answer.ids) == room

    @property
    def _host_seconds(self) -> float:
        """Spent in ``deltas`` so far on anything but waiting."""
        return self.answer.timing.host_seconds + self._now() - self._started - self._waited

    def flush(self) -> list[Delta]:
        """Once, after the last of ``deltas``: the text that waited for what might follow."""
        timing = self.answer.timing
        if not timing.first:  # it was stopped while it waited for room, a device or a grammar
            timing.prefilled(self._now(), timing.host_seconds)
        return self._told(*self._detokenizer.flush(self.answer.finish_reason == "stop"))

    async def _prefill(self, stopped: Stopped) -> int | None:
        """Compute the prompt chunk by chunk; the first sampled id, or None if stopped."""
        session, config = self._session, self.config
        await self._add_blocks(len(session.tokens))
        self._write_table(0)
        tokens = tokens_tensor(self._device.traits.chunk)
        while not stopped():
            step = self._scheduler.next_prefill(session)
            chunk = session.tokens[step.start : step.start + step.num_tokens]
            self._device.write(tokens, array("I", chunk).tobytes())
            record = StepRecord(step.start, step.num_tokens, 0, self._seed, config.temperature)
            self._device.write(STEP, record.pack())
            if step.last:
                self._write_sampler()
            started = self._now()
            sampled = await self._wait(self._compute(step))
            self._scheduler.prefill_pace.measured(step.num_tokens, self._now() - started)
            session.num_cached = step.start + step.num_tokens
            if step.last:
                self._num_sampled = 1
                await self._tell(sampled, 0)
                return sampled[0]
            await self._share()
        return None

    async def _compute(self, step: Prefill) -> list[int]:
        """Compute a chunk, and after the last one sample. Both are submitted at once, so that it
        costs nothing to know when the first has ended."""
        run, tokens = self._device.run, step.num_tokens
        timing = Timing() if self.answer.ids else self.answer.timing  # it began once
        timing.begun = timing.begun or self._now()

        async def noted(work: Awaitable[list[int]]) -> list[int]:
            ids = await work
            timing.computed = self._now()
            return ids

        prefill = last = asyncio.ensure_future(noted(run([PREFILL], tokens, 1, 0, 0)))
        try:
            if step.last:
                last = asyncio.ensure_future(run([HEAD, *self._sampler.plans], tokens, 1, 0, 1))
            await prefill
        finally:
            sampled = await last  # nothing may be left in flight
        return sampled

    async def _decode(
        self, first: int, limit: int, stopped: Stopped
    ) -> AsyncGenerator[Delta, None]:
        """Commit sampled ids burst by burst, with the next bursts already under way."""
        self._position = len(self._session.tokens)
        flying: deque[_Burst] = deque()
        ids = [first]
        try:
            while True:
                ended, deltas = self._commit(ids, limit)
                for delta in deltas:
                    yield delta
                if ended:
                    return
                if stopped():
                    self.answer.finish_reason = "cancelled"
                    return
                if not await self._constrain(ids):
                    self.answer.finish_reason = "stop"
                    return
                self._sampler.write_mask(self._device)
                if not flying and await self._share():
                    self._write_step()
                    self._last_token = self._now()
                if not flying and self._slides and self._position == self._model.context:
                    await self._slide()
                if not (flying and self._scheduler.turns.wanted):
                    await self._launch(flying, limit)
                if not flying:
                    return
                burst = flying.popleft()
                ids = await self._wait(burst.run)
                now = self._now()
                if not self._grammar:
                    self._scheduler.decode_pace.measured(burst.steps, now - self._last_token)
                self._last_token = now
                await self._tell(ids, burst.first)
        finally:
            # Nothing may be left in flight: the next run writes the same state.
            for burst in flying:
                await self._wait(burst.run)

    @property
    def _slides(self) -> bool:
        return self.config.context_full == "slide"

    @property
    def _seed(self) -> int:
        """Positions come again after a slide; the noise shall not."""
        return self.config.seed + self._dropped

    def _window(self, tokens: list[int]) -> list[int]:
        """The tokens that are in the context, or all if it does not slide."""
        keep, drop = (blocks * KV_BLOCK for blocks in self._scheduler.slide)
        if self._slides and len(tokens) - self._dropped >= self._model.context:
            excess = len(tokens) - self._dropped - (self._model.context - drop)
            self._dropped += ceil(excess / KV_BLOCK) * KV_BLOCK
        return tokens[:keep] + tokens[keep + self._dropped :]

    async def _slide(self) -> None:
        """Make room in a full context, with nothing in flight."""
        keep, drop = self._scheduler.slide
        await self._model.make_room(self._session.copies_to_slide(keep, drop))
        pairs = self._session.slide(keep, drop)
        moved = drop * KV_BLOCK
        self._dropped += moved
        self._position -= moved
        self._device.write(shift_tensor(self._model.kv), pack_shift(moved, pairs))
        await self._wait(self._device.run([SHIFT], 1, 1, 0, 0))
        self._write_table(0)
        self._write_step()

    async def _launch(self, flying: deque[_Burst], limit: int) -> None:
        """Submit bursts until enough are in flight or all tokens are on their way."""
        # What may come after a token is known when it has come.
        depth = 1 if self._grammar else self._scheduler.depth
        while len(flying) < depth:
            on_their_way = sum(burst.steps for burst in flying)
            remaining = limit - len(self.answer.ids) - on_their_way
            remaining = min(remaining, 1) if self._grammar else remaining
            step = self._scheduler.next_decode(self._position, remaining)
            if not step:
                return
            added = await self._add_blocks(step.start + step.num_steps)
            if added:
                self._write_table(len(self._session.blocks) - len(added))
            plans, first, steps = [DECODE, *self._sampler.plans], self._num_sampled, step.num_steps
            run = asyncio.ensure_future(self._device.run(plans, 1, steps, first, steps))
            flying.append(_Burst(steps, first, run))
            self._position += step.num_steps
            self._num_sampled += step.num_steps

    def _commit(self, ids: list[int], limit: int) -> tuple[bool, list[Delta]]:
        """Add sampled ids up to an end token or the limit; whether the answer has ended, and its
        new text."""
        answer = self.answer
        new = self._detokenizer.push(ids, limit - len(answer.ids))
        if new.ended:
            answer.finish_reason = "stop"
        self._session.append(new.ids)
        answer.ids += new.ids
        del answer.logprobs[len(answer.ids) :]
        ended = new.ended or len(answer.ids) >= limit
        return ended, self._told(new.thought, new.text)

    def _told(self, thought: str, text: str) -> list[Delta]:
        """New reasoning and text, added to the answer, as deltas."""
        answer = self.answer
        answer.reasoning += thought
        answer.text += text
        count = len(answer.ids)
        deltas = [Delta(thought, count, "reasoning"), Delta(text, count)]
        return [delta for delta in deltas if delta.text]

    async def _add_blocks(self, num_tokens: int) -> list[int]:
        """Have blocks for ``num_tokens`` tokens, for which the pools may have to grow; bursts in
        flight go on meanwhile. Returns the blocks that were added."""
        started = self._now()
        await self._model.make_room(self._session.missing(num_tokens))
        self._waited += self._now() - started
        return self._session.reserve(num_tokens)

    def _write_table(self, first: int) -> None:
        """Tell the device the blocks of the sequence, from ``first`` on."""
        blocks = array("I", self._session.blocks[first:])
        self._device.write(self._model.kv.block_table, blocks.tobytes(), 4 * first)

    def _write_step(self) -> None:
        """Tell the device where the answer stands: its last token is computed next."""
        config, tokens = self.config, self._session.tokens
        self._device.write(tokens_tensor(1), array("I", tokens[-1:]).tobytes())
        record = StepRecord(self._position, 1, self._num_sampled, self._seed, config.temperature)
        self._device.write(STEP, record.pack())
        self._write_sampler()

    def _write_sampler(self) -> None:
        ids, begins = self._prompt.ids, self._prompt.begins
        self._sampler.write(self._device, ids[:begins], ids[begins:] + self.answer.ids)

    async def _tell(self, ids: list[int], first: int) -> None:
        """Keep the log-probabilities of sampled ids, from place ``first`` of the ring on."""
        self.answer.logprobs += await self._wait(self._sampler.logprobs(self._device, ids, first))

    async def _wait(self, awaitable: Awaitable[T]) -> T:
        started = self._now()
        try:
            return await awaitable
        finally:
            self._waited += self._now() - started
