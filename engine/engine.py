"""The engine: loaded models, and answers that take turns on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from engine.answer import Answer, Delta, Run, Stopped
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.errors import OctavoError
from engine.kv.usage import describe_pool
from engine.loader import Host, LoadedModel, StageProgress
from engine.measuring import Bench
from engine.prompt import Prompt, check_length
from engine.raw import raw_prompt
from engine.reasoning import Reasoning
from engine.recovery import News
from engine.request import Request, Requests, T, Work
from engine.resident import Models, Ready, Slot
from engine.room import Memory
from engine.session import NoRoomError, Session
from engine.unfinished import Unfinished

State = Literal["empty", "loading", "ready", "generating"]


class Engine:
    """Loads models and answers; several answers take turns."""

    def __init__(
        self, host: Host, tell: Callable[[int, News], None] = lambda key, news: None
    ) -> None:
        self._host = host
        self.memory = Memory()
        self._models = Models(host, self.memory, self._rehearse, self._tell)
        self._tell_asker = tell  # by the key of a request
        self._loading: asyncio.Task[LoadedModel] | None = None
        self._loading_name = ""
        self._loading_key: int | None = None
        # Loading, unloading and resetting change what an answer stands on: one at a time, and no
        # answer begins meanwhile.
        self._changing = asyncio.Lock()
        self._requests = Requests(self._models, self.memory)
        self._queued: list[Request] = []  # that wait for the end of a change
        self._unfinished: Unfinished[Slot, Prompt] = Unfinished()

    @property
    def state(self) -> State:
        """What the engine is doing."""
        if self._loading:
            return "loading"
        if self._requests:
            return "generating"
        return "ready" if self._models.current else "empty"

    @property
    def loads(self) -> bool:
        """Whether a model is being loaded, and nobody has stopped that."""
        return bool(self._loading and not self._loading.cancelling())

    async def load(
        self, config: LoadConfig, progress: StageProgress, key: int | None = None
    ) -> LoadedModel:
        """Load a model: in place of all that are there or, with ``memory_bytes``, beside them, but
        in place of one of the same name, whose answers are stopped. If there is not room for all,
        idle ones are swapped out, and answers are waited for if need be.

        What it takes the place of goes when the device is to give it memory: if the load fails
        before, or is stopped, everything is as it was, and answers go on.

        OctavoError request.cancelled if stopped; engine.busy while another one loads; memory.budget
        if the model does not fit alone."""
        if self.loads:
            raise OctavoError("engine.busy", "A model is already being loaded.")
        task = self._loading = asyncio.ensure_future(self._replace(config, progress))
        self._loading_name, self._loading_key = config.model, key
        try:
            return await task
        except asyncio.CancelledError:
            raise OctavoError("request.cancelled", "Loading was stopped.") from None
        finally:
            if self._loading is task:
                self._loading = None
            self.memory.ended.fire()

    async def _replace(self, config: LoadConfig, progress: StageProgress) -> LoadedModel:
        async with self._changing:
            try:
                return await self._models.load(config, progress, self._requests.stop_those_of)
            finally:
                self._unfinished.only_of(list(self._models))

    async def _rehearse(self, ready: Ready) -> None:
        """Warm up template, tokenizer and, where that takes no time, the step loop: a first answer
        should be no slower than a second."""
        model = ready.model
        try:
            prompt = await model.prompts.encode([{"role": "user", "content": "Hello"}])
            if model.prefill_sample and len(prompt.ids) < model.context:
                run = self._run(ready, GenerateConfig(max_tokens=2), prompt)
                async for _ in run.deltas(lambda: False):
                    pass
        except OctavoError as error:  # a template may want other messages than this one
            if error.code == "gpu.lost":
                raise
        model.pool.forget()

    def _tell(self, slot: Slot, news: News) -> None:
        """Whoever waits for a model that is recovered hears how that stands."""
        asked = [r.key for r in self._requests if r.slot is slot]
        for key in asked if slot in list(self._models) else [self._loading_key]:
            if key is not None:
                self._tell_asker(key, news)

    def _run(self, ready: Ready, config: GenerateConfig, prompt: Prompt) -> Run:
        model, session = ready.model, Session(ready.model.pool)
        ends = model.special.eos
        return Run(model, session, ready.scheduler, config, self._host, prompt, ends)

    def generate(
        self,
        messages: list[dict[str, Any]],
        config: GenerateConfig,
        key: int | None = None,
        tools: list[dict[str, Any]] | None = None,
        model: str | None = None,
        goes_on: bool = False,
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Answer a conversation by the ``model`` that was loaded by this name, or by the one that
        was loaded last: any number of ``Delta``, then one ``Answer``. Close the iterator if you
        leave it earlier. ``stop`` finds it by its ``key``. ``messages`` and ``tools`` are those of
        a checked request (``engine.messages``); with ``goes_on``, the last message is the beginning
        of the answer, which is its rest.

        Answers that are generated at the same time take turns. If they do not fit into the KV
        cache together, one waits for another's end. A model that is swapped out comes back first.
        If the GPU is lost, the model is loaded anew and the answer goes on where it stood: see
        ``engine.recovery``.

        Raises OctavoError engine.not_loaded, engine.busy, prompt.empty, prompt.too_long,
        request.invalid, template.invalid, memory.budget, memory.device, or gpu.lost if there is
        no going on. However it ends, nothing is left running on the device.
        """
        find = partial(self._models.find, model)
        return self._answer(find, lambda m: m.prompts.encode(messages, tools, goes_on), config, key)

    def go_on(
        self,
        earlier: int,
        config: GenerateConfig,
        key: int | None = None,
        model: str | None = None,
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue the answer with the key ``earlier``, which was stopped or ended by its length,
        exactly where it ended, by the model that began it. Its text goes on with the next whole
        character.

        Raises OctavoError request.invalid if there is none, or not of this ``model``, or it was
        forgotten by a reset or a load, or when 64 others came after it.
        """
        begin = Prompt([])

        def find() -> Slot:
            nonlocal begin
            given = self._models.find(model)
            slot, begin = self._unfinished.find(earlier)
            if model is not None and slot is not given:
                raise OctavoError("request.invalid", f"{model!r} did not begin the answer.")
            if key is not None:
                self._unfinished.keep(key, slot, begin)  # if it is stopped at once
            return slot

        async def so_far(_: LoadedModel) -> Prompt:
            return begin

        return self._answer(find, so_far, config, key)

    def complete(
        self,
        prompt: str | list[int],
        config: GenerateConfig,
        key: int | None = None,
        model: str | None = None,
    ) -> AsyncGenerator[Delta | Answer, None]:
        """Continue a text or token ids as they are, as ``generate`` does with messages."""
        find = partial(self._models.find, model)
        return self._answer(find, lambda m: raw_prompt(m, prompt), config, key)

    async def _answer(
        self,
        find: Callable[[], Slot],
        prompt: Callable[[LoadedModel], Awaitable[Prompt]],
        config: GenerateConfig,
        key: int | None,
    ) -> AsyncGenerator[Delta | Answer, None]:
        request = await self._begin(key, find, alone=False)
        answer = Answer(finish_reason="cancelled")  # if it is stopped before its model is there
        try:
            begun = await self._requests.made(request, lambda ready, _: prompt(ready.model))
            if begun:
                async with aclosing(self._deltas(request, *begun, config)) as deltas:
                    async for delta in deltas:
                        yield delta
                assert request.run
                answer = request.run.answer
        finally:
            if request.run:
                request.run.close()
            self._requests.end(request)
        yield answer

    async def _deltas(
        self, request: Request, ready: Ready, begin: Prompt, config: GenerateConfig
    ) -> AsyncGenerator[Delta, None]:
        check_length(begin.ids, ready.model.context, config)
        if config.schema is not None:
            begin = replace(begin, reasoning=Reasoning())  # an answer of a form has no other part
        run = self._run(ready, config, begin)
        request.run, run.answer.timing.asked = run, request.asked
        obeys = config.schema is None or await self._obey(run, request, ready, config.schema)
        if not obeys:
            run.answer.finish_reason = "cancelled"
        while obeys:
            try:
                async with aclosing(run.deltas(lambda: request.stopping)) as deltas:
                    async for delta in deltas:
                        request.slot.recovery.works()
                        yield delta
                break
            except NoRoomError:
                await self._requests.wait_for_room(request, bool(self._loading))
            except Exception as error:
                if not self._requests.is_lost(request, ready, error):
                    raise
            # What a lost device held is gone: the conversation is computed again.
            again = None if request.stopping else await self._requests.enter(request)
            if not again:
                run.answer.finish_reason = "cancelled"
                break
            if again is not ready:
                ready = again
                # There may be less memory than there was.
                check_length(begin.ids + run.answer.ids, ready.model.context, config)
                run.move(ready.model, Session(ready.model.pool), ready.scheduler)
        for delta in run.flush():
            yield delta
        if request.key is None:
            return
        self._unfinished.forget(request.key)
        if run.answer.finish_reason != "stop":
            self._unfinished.keep(request.key, request.slot, run.so_far)

    async def _obey(self, run: Run, request: Request, ready: Ready, schema: str) -> bool:
        """Have the grammar of an answer's form; whether it was not stopped meanwhile."""
        table, ends = ready.model.token_bytes, ready.model.special.eos
        opening = self._host.open_grammar(schema, run.config.strict, table, ends)
        closing = (lambda: request.stopping), (lambda late: late.close())
        grammar = await self.memory.ended.result(opening, *closing)
        if grammar:
            await run.obey(grammar)
        return grammar is not None

    async def measure(
        self, sizes: MeasureConfig, model: str | None = None, key: int | None = None
    ) -> dict[str, Any]:
        """Speed of a loaded model: see ``Bench.measure``. Forgets its conversations; engine.busy
        while there are answers under way, and for those that are asked for meanwhile."""

        async def bench(ready: Ready, stopped: Stopped) -> dict[str, Any]:
            try:
                bench = Bench(self._host, ready.model, ready.scheduler)
                return await bench.measure(sizes, stopped)
            finally:
                ready.model.pool.forget()

        return await self.use(bench, model, key, alone=True)

    async def use(
        self, work: Work[T], model: str | None, key: int | None = None, alone: bool = False
    ) -> T:
        """What ``work`` makes of a loaded model; it begins again if the GPU was lost meanwhile.
        With ``alone``, nobody else is answered. OctavoError request.cancelled if stopped first."""
        request = await self._begin(key, partial(self._models.find, model), alone)
        try:
            made = await self._requests.made(request, work)
            if not made:
                raise OctavoError("request.cancelled")
            return made[1]
        finally:
            self._requests.end(request)

    async def _begin(self, key: int | None, find: Callable[[], Slot], alone: bool) -> Request:
        """Join those who answer; OctavoError engine.not_loaded or engine.busy."""
        request = Request(key, self._host.now(), alone)
        if self._loading:
            raise OctavoError("engine.busy", "A model is being loaded.")
        self._queued.append(request)
        try:
            async with self._changing:
                pass  # a reset under way comes first; then nothing is awaited
        finally:
            self._queued.remove(request)
        request.slot = find()
        self._requests.begin(request)
        return request

    def stop(self, key: int | None = None) -> bool:
        """Stop the answer with this key, or without one a load or all answers; returns whether
        there was something to stop."""
        cancelled = key is None and self.stop_load()
        asked = [*self._requests, *self._queued]
        meant = [r for r in asked if not r.stopping and key in (None, r.key)]
        self._requests.tell_to_stop(meant)
        return cancelled or bool(meant)

    def stop_load(self) -> bool:
        """Stop a load; whether there was one."""
        return bool(self._loading and self._loading.cancel())

    async def reset(self) -> None:
        """Stop, and forget all conversations; a load under way goes on, it has none yet."""
        self._requests.tell_to_stop(self._requests)
        # While a model loads, which may wait for answers to end, none begins anyway.
        async with nullcontext() if self._loading else self._changing:
            await self._requests.stop_those_of(list(self._models))
            self._unfinished.only_of(())
            for slot in self._models:
                if slot.ready:
                    slot.ready.model.pool.forget()

    async def unload(self, model: str | None = None) -> None:
        """Stop, and free the model of this name (OctavoError engine.not_loaded), or all."""
        loading = self._loading if model in (None, self._loading_name) else None
        if loading:
            loading.cancel()
            await asyncio.wait([loading])
        meant = self._models.named(model)
        self._requests.tell_to_stop(r for r in self._requests if r.slot in meant)
        async with self._changing:
            if model is not None and not loading:
                self._models.find(model)
            slots = self._models.named(model)
            await self._requests.stop_those_of(slots)
            for slot in slots:
                self._models.drop(slot)
            self._unfinished.only_of(list(self._models))

    def sampling(self, model: str | None = None) -> dict[str, float]:
        """What the file of a loaded model recommends, by the field of a request."""
        slots = self._models.named(model)
        return slots[-1].describe()["model"]["sampling"] if slots else {}

    def status(self) -> dict[str, Any]:
        """State, loaded models, and device, model and KV use of the one that was used or loaded
        last, as it crosses to the page."""
        status: dict[str, Any] = {"state": self.state}
        current = self._models.current
        if not current:
            return status
        status |= current.describe() | {"answers": len(self._requests)}
        status["models"] = [slot.summarize() for slot in self._models]
        if self.memory.budget is not None:
            status["budget_bytes"] = self.memory.budget
        if current.ready:
            model = current.ready.model
            runs = [r.run for r in self._requests if r.run and r.slot is current]
            sequences = [(run.session.blocks, run.session.num_cached) for run in runs]
            status["kv"] = describe_pool(
                model.pool, sequences, model.block_bytes, model.kv.max_blocks, model.kv_precision
            )
        return status
