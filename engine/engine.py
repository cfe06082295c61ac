"""The engine: one loaded model, and answers that take turns on it."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal

from engine.answer import Answer, Delta, Run
from engine.config import MAX_STOP, GenerateConfig, LoadConfig, MeasureConfig
from engine.errors import OctavoError, as_octavo_error
from engine.grammar import Grammar
from engine.kv.usage import describe_pool
from engine.loader import Host, LoadedModel, StageProgress, load
from engine.measuring import Bench
from engine.ops.attention import KV_BLOCK
from engine.prompt import Prompt
from engine.reasoning import Reasoning
from engine.scheduler import Scheduler
from engine.session import NoRoomError, Session

MOST_UNFINISHED = 64  # answers that can be continued
State = Literal["empty", "loading", "ready", "generating"]


@dataclass(frozen=True)
class _Ready:
    """A loaded model with the pace of its device."""

    model: LoadedModel
    scheduler: Scheduler

    @classmethod
    def of(cls, model: LoadedModel) -> _Ready:
        """A model that was just loaded."""
        traits = model.device.traits
        # The CPU computes a burst when it is waited for: a second one in flight would seem to take
        # no time at all, and the next be far too long.
        in_flight = 1 if traits.kind == "cpu" else 2
        scheduler = Scheduler(traits.chunk, model.context, in_flight)
        if model.prefill_sample:
            scheduler.prefill_pace.measured(*model.prefill_sample)
        return cls(model, scheduler)


@dataclass(eq=False)
class _Request:
    """An answer under way, by the ``key`` that its asker knows it by."""

    key: int | None
    stopping: bool = False
    waiting: bool = False  # for room in the KV cache: it has none of it
    run: Run | None = None


class Engine:
    """Loads a model and answers; several answers take turns."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready: _Ready | None = None
        self._loading: asyncio.Task[LoadedModel] | None = None
        self._load_config = LoadConfig()  # of the loaded model
        # Loading, unloading and resetting change what an answer stands on: one at a time, and no
        # answer begins meanwhile.
        self._changing = asyncio.Lock()
        self._healing = asyncio.Lock()
        self._requests: list[_Request] = []
        # Where answers stand that ended before the model did, by key, the latest last.
        self._unfinished: OrderedDict[int, Prompt] = OrderedDict()
        self._measuring = False
        self._watchers: list[asyncio.Future[None]] = []  # of ends and stops

    @property
    def state(self) -> State:
        """What the engine is doing."""
        if self._loading:
            return "loading"
        if self._requests:
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
            ids = (await model.prompts.encode([{"role": "user", "content": "Hello"}])).ids
            if model.prefill_sample and len(ids) < model.context:
                run = self._run(ready, GenerateConfig(max_tokens=2), model.special.eos)
                async for _ in run.deltas(ids, lambda: False):
                    pass
        model.pool.forget()

    def _run(
        self,
        ready: _Ready,
        config: GenerateConfig,
        ends: frozenset[int],
        reasoning: Reasoning | None = None,
        strip_space: bool = False,
    ) -> Run:
        model, session = ready.model, Session(ready.model.pool)
        return Run(
            model, session, ready.scheduler, config, self._host, ends, reasoning, strip_space
        )

    def generate(
        self,
        messages: list[dict[str, Any]],
        config: GenerateConfig,
        key: int | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Answer a conversation: any number of ``Delta``, then one ``Answer``. Close the iterator
        if you leave it earlier. ``stop`` finds it by its ``key``. ``messages`` and ``tools`` are
        those of a checked request (``engine.messages``).

        Answers that are generated at the same time take turns. If they do not fit into the KV
        cache together, one waits for another's end. If the GPU is lost, the model is loaded anew
        and the answer goes on where it stood.

        Raises OctavoError engine.not_loaded, engine.busy, prompt.empty, prompt.too_long,
        request.invalid, template.invalid, or gpu.lost for a second loss. However it ends, nothing
        is left running on the device.
        """
        return self._answer(lambda model: model.prompts.encode(messages, tools), config, key)

    def go_on(
        self, earlier: int, config: GenerateConfig, key: int | None = None
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue the answer with the key ``earlier``, which was stopped or ended by its length,
        exactly where it ended. Its text goes on with the next whole character.

        Raises OctavoError request.invalid if there is none, or it was forgotten by a reset or a
        load, or when 64 others came after it.
        """

        async def so_far(_: LoadedModel) -> Prompt:
            if earlier not in self._unfinished:
                raise OctavoError("request.invalid", f"There is no answer {earlier} to continue.")
            return self._unfinished[earlier]

        return self._answer(so_far, config, key)

    def complete(
        self, ids: list[int], config: GenerateConfig, key: int | None = None
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue token ids, as ``generate`` does with messages."""

        async def given(_: LoadedModel) -> Prompt:
            return Prompt(ids)

        return self._answer(given, config, key)

    async def _answer(
        self,
        prompt: Callable[[LoadedModel], Awaitable[Prompt]],
        config: GenerateConfig,
        key: int | None,
    ) -> AsyncGenerator[Delta | Answer, None]:
        request, ready = await self._begin(key)
        try:
            begin = await prompt(ready.model)
            ids, reasoning = begin.ids, copy.copy(begin.reasoning)
            if not ids:
                raise OctavoError("prompt.empty", "The chat template made an empty prompt.")
            if len(ids) >= ready.model.context and config.context_full == "stop":
                raise OctavoError(
                    "prompt.too_long",
                    f"The conversation has {len(ids)} tokens; "
                    f"the context holds {ready.model.context}.",
                    "Start a new conversation or shorten the message.",
                )
            if config.context_full == "slide" and ready.model.context < 2 * KV_BLOCK:
                raise OctavoError("request.invalid", "The context is too short to slide.")
            if config.schema is not None:
                reasoning = Reasoning()  # an answer of a form has no other part
            run = self._run(ready, config, ready.model.special.eos, reasoning, begin.strip_space)
            request.run = run
            if begin.answered:
                run.follow(ids[-begin.answered :], begin.rest, begin.tail)
            obeys = config.schema is None or await self._obey(run, request, ready, config.schema)
            if not obeys:
                run.answer.finish_reason = "cancelled"
            healed = False
            while obeys:
                try:
                    async with aclosing(run.deltas(ids, lambda: request.stopping)) as deltas:
                        async for delta in deltas:
                            yield delta
                    break
                except NoRoomError:
                    await self._wait_for_room(request)
                    if request.stopping:
                        run.answer.finish_reason = "cancelled"
                        break
                except Exception as error:
                    # Another answer may have met the loss first: then this one finds its model
                    # closed, in whatever way.
                    lost = as_octavo_error(error).code == "gpu.lost" or self._ready is not ready
                    if healed or not lost:
                        raise
                    healed = True
                    ready = await self._heal(ready)
                    run.move(ready.model, Session(ready.model.pool), ready.scheduler)
            for delta in run.flush():
                yield delta
            if key is not None:
                self._unfinished.pop(key, None)  # of an earlier answer with the same key
            if key is not None and run.answer.finish_reason != "stop":
                answered = begin.answered + len(run.answer.ids)
                so_far = ids + run.answer.ids
                tail = (begin.tail + run.answer.text)[-MAX_STOP:]
                self._unfinished[key] = Prompt(
                    so_far, reasoning, answered, run.rest, tail, begin.strip_space
                )
                while len(self._unfinished) > MOST_UNFINISHED:
                    self._unfinished.popitem(last=False)
        finally:
            if request.run:
                request.run.close()
            self._end(request)
        yield run.answer

    async def _obey(self, run: Run, request: _Request, ready: _Ready, schema: str) -> bool:
        """Have the grammar of an answer's form; whether it was not stopped meanwhile."""
        model = ready.model
        opening = asyncio.ensure_future(
            self._host.open_grammar(schema, run.config.strict, model.token_bytes, model.special.eos)
        )
        try:
            while not (opening.done() or request.stopping):
                change = asyncio.ensure_future(self._change())
                await asyncio.wait([opening, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            if not opening.done():
                opening.add_done_callback(_close_late)
        if not opening.done():
            return False
        await run.obey(opening.result())
        return True

    async def _wait_for_room(self, request: _Request) -> None:
        """Until another answer ends, or this one is stopped; NoRoomError if no other has room."""
        if all(other.waiting for other in self._requests if other is not request):
            raise NoRoomError
        request.waiting = True
        try:
            await self._change()
        finally:
            request.waiting = False

    async def _heal(self, lost: _Ready) -> _Ready:
        """The model on a new device, its weights out of the browser's cache. What the lost one
        held is gone, so that conversations have to be computed again."""
        async with self._healing:
            if self._ready and self._ready is not lost:
                return self._ready  # another answer has seen to it
            self._ready = None
            lost.model.close()
            self._ready = _Ready.of(await load(self._host, self._load_config, lambda *_: None))
            return self._ready

    async def measure(self, sizes: MeasureConfig) -> dict[str, Any]:
        """Speed of the loaded model: see ``Bench.measure``. Forgets all conversations; engine.busy
        while there are answers under way, and for those that are asked for meanwhile."""
        if self._requests:
            raise OctavoError("engine.busy", hint="Stop it, or wait until it has ended.")
        request, ready = await self._begin(None)
        self._measuring = True
        bench = Bench(self._host, ready.model, ready.scheduler)
        try:
            return await bench.measure(sizes, lambda: request.stopping)
        finally:
            self._measuring = False
            ready.model.pool.forget()
            self._end(request)

    async def _begin(self, key: int | None) -> tuple[_Request, _Ready]:
        """Join those who answer; OctavoError engine.not_loaded or engine.busy."""
        if self._loading:
            raise OctavoError("engine.busy", "A model is being loaded.")
        async with self._changing, self._healing:
            pass  # a reset or a new device under way comes first; then nothing is awaited
        if not self._ready:
            raise OctavoError("engine.not_loaded", hint="Load a model first.")
        if self._measuring:
            raise OctavoError("engine.busy", "The model's speed is being measured.")
        request = _Request(key)
        self._requests.append(request)
        return request, self._ready

    def _end(self, request: _Request) -> None:
        self._requests.remove(request)
        self._changed()

    def _changed(self) -> None:
        """An answer has ended or is to stop."""
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    async def _change(self) -> None:
        """Until an answer ends or is to stop."""
        self._watchers.append(asyncio.get_running_loop().create_future())
        await self._watchers[-1]

    def stop(self, key: int | None = None) -> bool:
        """Stop the answer with this key, or without one a load or all answers; returns whether
        there was something to stop."""
        if self._loading and key is None:
            return self._loading.cancel()
        meant = [r for r in self._requests if not r.stopping and key in (None, r.key)]
        for request in meant:
            request.stopping = True
        self._changed()
        return bool(meant)

    async def reset(self) -> None:
        """Stop, and forget all conversations; a load under way goes on, it has none yet."""
        if self._loading:
            return
        self.stop()
        async with self._changing:
            await self._stopped()
            self._unfinished.clear()
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
        """Stop all answers and wait for their ends."""
        for request in self._requests:
            request.stopping = True
        self._changed()
        while self._requests:
            await self._change()

    async def _free(self) -> None:
        await self._stopped()
        self._unfinished.clear()
        if self._ready:
            self._ready.model.close()
        self._ready = None

    @property
    def sampling(self) -> dict[str, float]:
        """What the loaded model's file recommends, by the field of a request."""
        return self._ready.model.sampling if self._ready else {}

    def status(self) -> dict[str, Any]:
        """State, device, model and KV use, as it crosses to the page."""
        status: dict[str, Any] = {"state": self.state}
        if self._ready:
            model = self._ready.model
            sessions = [request.run.session for request in self._requests if request.run]
            sequences = [(session.blocks, session.num_cached) for session in sessions]
            status |= describe(model) | {"answers": len(self._requests)}
            status["kv"] = describe_pool(
                model.pool, sequences, model.block_bytes, model.kv.max_blocks
            )
        return status


def _close_late(opening: asyncio.Future[Grammar]) -> None:
    """Nobody waits any longer for this grammar."""
    if not opening.cancelled() and not opening.exception():
        opening.result().close()


def describe(model: LoadedModel) -> dict[str, Any]:
    """Device, model and memory of a loaded model, as it crosses to the page."""
    traits, memory = model.traits, model.device.memory()
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
            "sampling": dict(model.sampling),
        },
        "memory_bytes": sum(memory.values()),
        "memory": dict(memory),
    }
