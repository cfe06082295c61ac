"""The engine: one loaded model, one conversation, one answer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal

from engine.answer import Answer, Delta, Run
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.errors import OctavoError, as_octavo_error
from engine.loader import Host, LoadedModel, StageProgress, load
from engine.measuring import Bench
from engine.ops.attention import KV_BLOCK
from engine.scheduler import Scheduler
from engine.session import Session

State = Literal["empty", "loading", "ready", "generating"]


@dataclass(frozen=True)
class _Ready:
    """A loaded model with the pace of its device."""

    model: LoadedModel
    scheduler: Scheduler

    @classmethod
    def of(cls, model: LoadedModel) -> _Ready:
        """A model that was just loaded."""
        scheduler = Scheduler(model.device.traits.chunk, model.context)
        if model.prefill_sample:
            scheduler.prefill_pace.measured(*model.prefill_sample)
        return cls(model, scheduler)


class Engine:
    """Loads a model and answers; one answer at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready: _Ready | None = None
        self._loading: asyncio.Task[LoadedModel] | None = None
        self._load_config = LoadConfig()  # of the loaded model
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
        return "ready" if self._ready else "empty"

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
            ready = _Ready.of(model)
            try:
                await self._rehearse(ready)
            except BaseException:
                model.close()
                raise
            self._ready, self._load_config = ready, config
            return model

    async def _rehearse(self, ready: _Ready) -> None:
        """Warm up template, tokenizer and, where that takes no time, the step loop: a first answer
        should be no slower than a second."""
        model = ready.model
        with suppress(OctavoError):  # a template may want other messages than this one
            ids = await model.prompts.encode([{"role": "user", "content": "Hello"}])
            if model.prefill_sample and len(ids) < model.context:
                run = self._run(ready, GenerateConfig(max_tokens=2), model.special.eos)
                async for _ in run.deltas(ids, lambda: False):
                    pass
        model.pool.forget()

    def _run(self, ready: _Ready, config: GenerateConfig, ends: frozenset[int]) -> Run:
        session = Session(ready.model.pool)
        return Run(ready.model, session, ready.scheduler, config, self._host, ends)

    def generate(
        self, messages: list[dict[str, str]], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Answer a conversation: any number of ``Delta``, then one ``Answer``, with which the
        engine is ready again. Close the iterator if you leave it earlier.

        If the GPU is lost, the model is loaded anew and the answer goes on where it stood.
        Raises OctavoError engine.not_loaded, engine.busy, prompt.empty, prompt.too_long,
        template.invalid, or gpu.lost for a second loss. However it ends, nothing is left running
        on the device.
        """
        return self._answer(lambda model: model.prompts.encode(messages), config)

    def complete(
        self, ids: list[int], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue token ids, as ``generate`` does with messages."""

        async def given(_: LoadedModel) -> list[int]:
            return ids

        return self._answer(given, config)

    async def _answer(
        self, prompt: Callable[[LoadedModel], Awaitable[list[int]]], config: GenerateConfig
    ) -> AsyncGenerator[Delta | Answer, None]:
        ready = await self._begin()
        model = ready.model
        try:
            ids = await prompt(model)
            if not ids:
                raise OctavoError("prompt.empty", "The chat template made an empty prompt.")
            if len(ids) >= model.context:
                raise OctavoError(
                    "prompt.too_long",
                    f"The conversation has {len(ids)} tokens; the context holds {model.context}.",
                    "Start a new conversation or shorten the message.",
                )
            run = self._run(ready, config, model.special.eos)
            healed = False
            while True:
                try:
                    async with aclosing(run.deltas(ids, lambda: self._stopping)) as deltas:
                        async for delta in deltas:
                            yield delta
                    break
                except Exception as error:
                    if healed or as_octavo_error(error).code != "gpu.lost":
                        raise
                    healed = True
                    ready = await self._heal(model)
                    run.move(ready.model, Session(ready.model.pool), ready.scheduler)
        finally:
            self._end()
        yield run.answer

    async def _heal(self, lost: LoadedModel) -> _Ready:
        """The model on a new device, its weights out of the browser's cache. What the lost one
        held is gone, so that the conversation has to be computed again."""
        self._ready = None
        lost.close()
        ready = _Ready.of(await load(self._host, self._load_config, lambda *_: None))
        self._ready = ready
        return ready

    async def measure(self, sizes: MeasureConfig) -> dict[str, Any]:
        """Speed of the loaded model: see ``Bench.measure``. Forgets the conversation."""
        ready = await self._begin()
        bench = Bench(self._host, ready.model, ready.scheduler)
        try:
            return await bench.measure(sizes, lambda: self._stopping)
        finally:
            ready.model.pool.forget()
            self._end()

    async def _begin(self) -> _Ready:
        """Take the engine for an answer; OctavoError engine.not_loaded or engine.busy."""
        if self._loading:
            raise OctavoError("engine.busy", "A model is being loaded.")
        async with self._changing:
            pass  # a reset under way ends first; from here to the end nothing is awaited
        if not self._ready:
            raise OctavoError("engine.not_loaded", hint="Load a model first.")
        if self._generating:
            raise OctavoError("engine.busy", hint="Stop it, or wait until it has ended.")
        self._generating, self._stopping = True, False
        self._idle.clear()
        return self._ready

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
        """Stop, and forget all conversations; a load under way goes on, it has none yet."""
        if self._loading:
            return
        self._stopping = True
        async with self._changing:
            await self._stopped()
            if self._ready:
                self._ready.model.pool.forget()

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
        if self._ready:
            self._ready.model.close()
        self._ready = None

    def status(self) -> dict[str, Any]:
        """State, device, model and KV use, as it crosses to the page."""
        status: dict[str, Any] = {"state": self.state}
        if self._ready:
            pool = self._ready.model.pool
            status |= describe(self._ready.model)
            status["kv"] = {
                "block_size": KV_BLOCK,
                "num_blocks": pool.num_blocks,
                "free_blocks": pool.num_free,
                "used_blocks": pool.num_used,
                "shared_blocks": pool.num_shared,
                "cached_blocks": pool.num_cached,
                "hit_rate": pool.tokens_found / max(1, pool.tokens_asked),
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
