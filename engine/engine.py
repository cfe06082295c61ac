"""The engine: one loaded model, one conversation, and the step loop as an async iterator."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.config import GenerateConfig, LoadConfig
from engine.errors import OctavoError
from engine.loader import Host, LoadedModel, StageProgress, load
from engine.models.plans import DECODE, HEAD, PREFILL
from engine.ops.attention import KV_BLOCK
from engine.ops.state import STEP, StepRecord, tokens_tensor
from engine.scheduler import Scheduler
from engine.session import Session
from engine.tokenizer.decoder import StreamDecoder

FinishReason = Literal["stop", "length", "cancelled"]
State = Literal["empty", "loading", "ready", "generating"]


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


class Engine:
    """Loads a model and answers; one answer at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._model: LoadedModel | None = None
        self._session: Session | None = None
        self._scheduler: Scheduler | None = None
        self._loading: asyncio.Task[LoadedModel] | None = None
        # Loading, unloading and resetting change what an answer stands on: one at a time, and no
        # answer begins meanwhile.
        self._changing = asyncio.Lock()
        self._generating = False
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def state(self) -> State:
        """What the engine is doing."""
        if self._loading:
            return "loading"
        if self._generating:
            return "generating"
        return "ready" if self._model else "empty"

    async def load(self, config: LoadConfig, progress: StageProgress) -> LoadedModel:
        """Load a model in place of the one that is there. OctavoError request.cancelled if
        stopped; engine.busy while another one loads."""
        if self._loading and not self._loading.cancelling():
            raise OctavoError("engine.busy", "A model is already being loaded.")
        task = self._loading = asyncio.ensure_future(self._replace(config, progress))
        try:
            return await task
        except asyncio.CancelledError:
            raise OctavoError("request.cancelled", "Loading was stopped.") from None
        finally:
            if self._loading is task:
                self._loading = None

    async def _replace(self, config: LoadConfig, progress: StageProgress) -> LoadedModel:
        async with self._changing:
            await self._free()
            model = await load(self._host, config, progress)
            self._model = model
            self._session = Session(model.pool)
            self._scheduler = Scheduler(model.device.traits.chunk, model.context)
            if model.prefill_sample:
                self._scheduler.prefill_pace.measured(*model.prefill_sample)
            return model

    def generate(
        self, messages: list[dict[str, str]], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Answer a conversation: any number of ``Delta``, then one ``Answer``, with which the
        engine is ready again. Close the iterator if you leave it earlier.

        Raises OctavoError engine.not_loaded, engine.busy, prompt.empty, prompt.too_long,
        template.invalid or gpu.lost. However it ends, nothing is left running on the device.
        """
        return self._answer(lambda model: model.encode(messages), config)

    def complete(
        self, ids: list[int], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue token ids, as ``generate`` does with messages."""
        return self._answer(lambda _: ids, config)

    async def _answer(
        self, prompt: Callable[[LoadedModel], list[int]], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        model, session, scheduler = await self._begin()
        try:
            ids = prompt(model)
            if not ids:
                raise OctavoError("prompt.empty", "The chat template made an empty prompt.")
            if len(ids) >= model.context:
                raise OctavoError(
                    "prompt.too_long",
                    f"The conversation has {len(ids)} tokens; the context holds {model.context}.",
                    "Start a new conversation or shorten the message.",
                )
            run = _Run(model, session, scheduler, config, self._host, model.special.eos)
            async with aclosing(run.deltas(ids, lambda: self._stopping)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._end()
        yield run.answer

    async def measure(self, prefill: int, context: int, steps: int) -> dict[str, Any]:
        """Speed of the loaded model: prefill of ``prefill`` tokens, then ``steps`` decode steps
        at a context of ``context`` tokens whose KV cache holds anything. Forgets the conversation.

        Raises OctavoError request.invalid if that does not fit into the context.
        """
        model, session, scheduler = await self._begin()
        try:
            if max(prefill, context + steps) >= model.context:
                raise OctavoError(
                    "request.invalid", f"The context holds only {model.context} tokens."
                )
            session.reset()
            answers = []
            for length, cached, count in ((prefill, 0, 1), (context, context - 1, steps + 1)):
                config = GenerateConfig(max_tokens=count)
                session.pretend([100 + i % 100 for i in range(length)], cached)
                run = _Run(model, session, scheduler, config, self._host, ends=frozenset())
                async for _ in run.deltas(session.tokens, lambda: self._stopping):
                    pass
                answers.append(run.answer.to_wire()["timing"])
            return {
                "prefill_tokens_per_s": answers[0]["prefill_tokens_per_s"],
                "decode_tokens_per_s": answers[1]["decode_tokens_per_s"],
                "host_ms_per_token": answers[1]["host_ms_per_token"],
                "dispatches_per_token": len(model.plans[DECODE].calls),
                "chunk": scheduler.prefill_pace.size,
                "burst": scheduler.decode_pace.size,
                "kernels": {
                    PREFILL: await model.device.profile(PREFILL, scheduler.prefill_pace.size),
                    DECODE: await model.device.profile(DECODE, 1),
                },
                "memory": dict(model.device.memory()),
            }
        finally:
            session.reset()
            self._end()

    async def _begin(self) -> tuple[LoadedModel, Session, Scheduler]:
        """Take the engine for an answer; OctavoError engine.not_loaded or engine.busy."""
        if self._loading:
            raise OctavoError("engine.busy", "A model is being loaded.")
        async with self._changing:
            pass  # a reset under way ends first; from here to the end nothing is awaited
        if not self._model or not self._session or not self._scheduler:
            raise OctavoError("engine.not_loaded", hint="Load a model first.")
        if self._generating:
            raise OctavoError("engine.busy", hint="Stop it, or wait until it has ended.")
        self._generating, self._stopping = True, False
        self._idle.clear()
        return self._model, self._session, self._scheduler

    def _end(self) -> None:
        self._generating = False
        self._idle.set()

    def stop(self) -> bool:
        """Stop loading or generating; returns whether there was something to stop."""
        if self._loading:
            return self._loading.cancel()
        was_running = self._generating and not self._stopping
        self._stopping = True
        return was_running

    async def reset(self) -> None:
        """Stop, and forget the conversation; a load under way goes on, it has none yet."""
        if self._loading:
            return
        self._stopping = True
        async with self._changing:
            await self._stopped()
            if self._session:
                self._session.reset()

    async def unload(self) -> None:
        """Stop, and free the model."""
        if self._loading:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        async with self._changing:
            await self._free()

    async def _stopped(self) -> None:
        """Stop the answer and wait for its end."""
        self._stopping = True
        await self._idle.wait()

    async def _free(self) -> None:
        await self._stopped()
        if self._model:
            self._model.close()
        self._model = self._session = self._scheduler = None

    def status(self) -> dict[str, Any]:
        """State, device, model and KV use, as it crosses to the page."""
        status: dict[str, Any] = {"state": self.state}
        if self._model:
            pool = self._model.pool
            status |= describe(self._model)
            status["kv"] = {
                "block_size": KV_BLOCK,
                "num_blocks": pool.num_blocks,
                "free_blocks": pool.num_free,
                "cached_tokens": self._session.num_cached if self._session else 0,
            }
        return status


def describe(model: LoadedModel) -> dict[str, Any]:
    """Device, model and memory of a loaded model, as it crosses to the page."""
    traits, memory = model.device.traits, model.device.memory()
    return {
        "device": {
            "kind": traits.kind,
            "name": traits.name,
            "software": traits.software,
            "activations": traits.activations,
            "reason": model.device_reason,
        },
        "model": {
            "name": model.name,
            "architecture": model.config.architecture,
            "context": model.context,
            "parameters": model.config.parameters,
            "bytes": model.file_bytes,
        },
        "memory_bytes": sum(memory.values()),
        "memory": dict(memory),
    }


class _Run:
    """One answer: schedule -> run -> commit, until something ends it."""

    def __init__(
        self,
        model: LoadedModel,
        session: Session,
        scheduler: Scheduler,
        config: GenerateConfig,
        host: Host,
        ends: frozenset[int],
    ) -> None:
        self._model = model
        self._device = model.device
        self._session = session
        self._scheduler = scheduler
        self._config = config
        self._now = host.now
        self._ends = ends
        self._decoder = StreamDecoder(model.token_bytes)
        self.answer = Answer()
        self._num_sampled = 0
        self._position = 0  # of the next token to compute
        self._waited = 0.0

    async def deltas(self, ids: list[int], stopped: Any) -> AsyncGenerator[Delta, None]:
        """The new text as it comes; after the last one, ``answer`` is complete."""
        started = self._now()
        answer, session = self.answer, self._session
        answer.prompt_tokens = len(ids)
        answer.cached_tokens = session.prompt(ids)
        limit = self._model.context - len(ids)
        if self._config.max_tokens is not None:
            limit = min(limit, self._config.max_tokens)
        first = await self._prefill(stopped)
        answer.first_token_seconds = self._now() - started
        if first is None:
            answer.finish_reason = "cancelled"
        else:
            async with aclosing(self._decode(first, limit, stopped)) as deltas:
                async for delta in deltas:
                    yield delta
        answer.decode_seconds = self._now() - started - answer.first_token_seconds
        answer.host_seconds = self._now() - started - self._waited
        tail = self._decoder.flush()
        answer.text += tail
        if tail:
            yield Delta(tail, len(answer.ids))

    async def _prefill(self, stopped: Any) -> int | None:
        """Compute the prompt chunk by chunk; the first sampled id, or None if stopped."""
        session, config = self._session, self._config
        self._reserve(len(session.tokens), whole_table=True)
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
        return None

    async def _decode(self, first: int, limit: int, stopped: Any) -> AsyncGenerator[Delta, None]:
        """Commit sampled ids burst by burst, with the next bursts already under way."""
        self._position = len(self._session.tokens)
        flying: deque[tuple[int, asyncio.Task[list[int]]]] = deque()
        ids, finished_at = [first], self._now()
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
                self._launch(flying, limit)
                if not flying:
                    return
                steps, task = flying.popleft()
                ids = await self._wait(task)
                now = self._now()
                self._scheduler.decode_pace.measured(steps, now - finished_at)
                finished_at = now
        finally:
            # Nothing may be left in flight: the next run writes the same state.
            for _, task in flying:
                await self._wait(task)

    def _launch(self, flying: deque[tuple[int, asyncio.Task[list[int]]]], limit: int) -> None:
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
        ended = False
        for id in ids:
            kept.append(id)
            if id in self._ends:
                answer.finish_reason, ended = "stop", True
            elif len(answer.ids) + len(kept) >= limit:
                ended = True
            if ended:
                break
        self._session.append(kept)
        answer.ids += kept
        text = self._decoder.push(kept)
        answer.text += text
        return ended, Delta(text, len(answer.ids)) if text else None

    def _reserve(self, num_tokens: int, whole_table: bool = False) -> None:
        """Own blocks for ``num_tokens`` tokens and tell the device their places."""
        added = self._session.reserve(num_tokens)
        blocks = self._session.blocks if whole_table else added
        if blocks:
            start = len(self._session.blocks) - len(blocks)
            self._device.write(self._model.kv.block_table, array("I", blocks).tobytes(), 4 * start)

    async def _wait(self, awaitable: Any) -> list[int]:
        started = self._now()
        try:
            ids: list[int] = await awaitable
            return ids
        finally:
            self._waited += self._now() - started
