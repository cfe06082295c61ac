"""What the worker asks: the engine of this device and, where a server is configured and no device
here can load a model, or the page wants it so, that server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from engine.answer import Answer, Delta
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.encoders import Encoders
from engine.engine import Engine
from engine.errors import OctavoError
from engine.loader import Host, StageProgress
from engine.remote import Remote, RemoteAnswer
from engine.request import T, Work
from engine.resident import describe
from engine.tuning import choose
from engine.unfinished import Unfinished

# What says that a model cannot be loaded here, and not that it is none or cannot be had.
NOT_HERE = ("gpu.", "memory.", "model.", "tokenizer.", "shard.quota", "internal")


@dataclass(eq=False)
class _Request:
    """A remote answer, by the key that its asker knows it by; where it stands when it has ended."""

    remote: Remote
    messages: list[dict[str, Any]]
    so_far: str = ""
    thinking: bool = False  # it ended within its think part
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Service:
    """Loads models and answers, as ``Engine`` does."""

    def __init__(self, engine: Engine, host: Host) -> None:
        self._engine = engine
        self._host = host
        self._remotes: dict[str, Remote] = {}  # by the names that they were loaded by
        self._last: Remote | None = None  # if it was loaded last of all
        self._opening: asyncio.Task[None] | None = None
        self._opening_name = ""
        self._requests: dict[int, _Request] = {}  # under way
        self._unfinished: Unfinished[Remote, _Request] = Unfinished()
        self._encoders = Encoders(host, engine.memory)
        self._keys = itertools.count(-2, -1)  # of answers whose asker knows none

    async def load(
        self, config: LoadConfig, progress: StageProgress, key: int | None = None
    ) -> dict[str, Any]:
        """Load a model as ``config`` wants it; what is told of it. Raises OctavoError."""
        is_remote = config.device == "remote"
        if self._opening or (is_remote and self._engine.loads):
            raise OctavoError("engine.busy", "A model is already being loaded.")
        failure = ""
        if not is_remote:
            try:
                model = await self._engine.load(config, progress, key)
            except OctavoError as error:
                if not (config.remote and config.device == "auto" and _is_not_here(error)):
                    raise
                failure = error.message
            else:
                await self._replace(config, None)
                best = choose(model.timings)
                timings = [timing.to_wire(best) for timing in model.timings]
                return {**describe(model), "variants": timings}
        return await self._load_there(config, failure)

    async def _load_there(self, config: LoadConfig, failure: str) -> dict[str, Any]:
        """On the server; ``failure`` says why not here, if it was tried."""
        assert config.remote
        because = f"No device here can load the model ({failure.rstrip('.')}): "
        reason = because if failure else ""
        reason += f"{config.remote.origin} computes the answers, and what you write is sent there."
        remote = Remote(self._host, config.remote, reason)
        task = self._opening = asyncio.ensure_future(remote.open())
        self._opening_name = config.model
        try:
            await task
        except asyncio.CancelledError:
            raise OctavoError("request.cancelled", "Loading was stopped.") from None
        finally:
            self._opening = None
        await self._replace(config, remote)
        return {**remote.describe(), "variants": []}

    async def _replace(self, config: LoadConfig, remote: Remote | None) -> None:
        """A model was loaded: what it takes the place of goes."""
        alone = config.memory_bytes is None
        gone = list(self._remotes) if alone else [config.model]
        await self._drop([self._remotes.pop(key) for key in gone if key in self._remotes])
        self._last = remote
        if not remote:
            return
        with suppress(OctavoError):  # there may be none of this name
            await self._engine.unload(None if alone else config.model)
        self._remotes[config.model] = remote

    async def _drop(self, remotes: list[Remote]) -> None:
        """Stop their answers, and forget them."""
        await self._stopped([r for r in self._requests.values() if r.remote in remotes])
        self._unfinished.only_of(self._remotes.values())
        if self._last in remotes:
            self._last = None

    async def _stopped(self, requests: list[_Request]) -> None:
        for request in requests:
            request.stop.set()
        for request in requests:
            await request.ended.wait()

    def _find(self, model: str | None) -> Remote | None:
        """The remote model that is meant, or None if it is one of the engine's."""
        return self._last if model is None else self._remotes.get(model)

    def generate(
        self,
        messages: list[dict[str, Any]],
        config: GenerateConfig,
        key: int | None = None,
        tools: list[dict[str, Any]] | None = None,
        model: str | None = None,
        goes_on: bool = False,
    ) -> AsyncGenerator[Delta | Answer | RemoteAnswer, None]:
        """Answer a conversation: see ``Engine.generate`` and ``Remote.answer``."""
        remote = self._find(model)
        if not remote:
            return self._engine.generate(messages, config, key, tools, model, goes_on)
        if tools:
            raise OctavoError("request.invalid", "tools are not for models of remote servers.")
        if not goes_on:
            return self._answer(_Request(remote, messages), config, key)
        *before, begun = messages
        so_far: str = begun["content"]
        return self._answer(_Request(remote, before, so_far, thinking=not so_far), config, key)

    def go_on(
        self,
        earlier: int,
        config: GenerateConfig,
        key: int | None = None,
        model: str | None = None,
    ) -> AsyncGenerator[Delta | Answer | RemoteAnswer, None]:
        """Continue an answer: see ``Engine.go_on``; of a remote server as well as that can."""
        given = self._find(model)
        # Without a name the model that began the answer is meant, not the one loaded last.
        may_be_here = not given or (model is None and self._engine.state != "empty")
        if earlier not in self._unfinished and may_be_here:
            return self._engine.go_on(earlier, config, key, model)
        remote, begun = self._unfinished.find(earlier)
        if model is not None and given is not remote:
            raise OctavoError("request.invalid", f"{model!r} did not begin the answer.")
        again = _Request(remote, begun.messages, begun.so_far, begun.thinking)
        return self._answer(again, config, key)

    def complete(
        self,
        prompt: str | list[int],
        config: GenerateConfig,
        key: int | None = None,
        model: str | None = None,
    ) -> AsyncGenerator[Delta | Answer | RemoteAnswer, None]:
        """Continue a raw text: see ``Engine.complete``."""
        self._check_here(model)
        return self._engine.complete(prompt, config, key, model)

    async def use(self, work: Work[T], model: str | None = None, key: int | None = None) -> T:
        """What ``work`` makes of a model on this device: see ``Engine.use``."""
        self._check_here(model)
        return await self._engine.use(work, model, key)

    def _check_here(self, model: str | None) -> None:
        if self._find(model):
            raise OctavoError("request.invalid", "The model is on a remote server.")

    async def _answer(
        self, request: _Request, config: GenerateConfig, key: int | None
    ) -> AsyncGenerator[Delta | Answer | RemoteAnswer, None]:
        if request.thinking:
            raise OctavoError(
                "request.invalid",
                "The answer ended within its think part: a remote server cannot go on there.",
            )
        if self._opening:
            raise OctavoError("engine.busy", "A model is being loaded.")
        place = next(self._keys) if key is None else key
        self._requests[place] = request
        try:
            remote, said = request.remote, request.so_far
            async for event in remote.answer(request.messages, config, request.stop, said):
                if isinstance(event, RemoteAnswer) and key is not None:
                    self._keep(key, request, event)
                yield event
        finally:
            del self._requests[place]
            request.ended.set()

    def _keep(self, key: int, request: _Request, answer: RemoteAnswer) -> None:
        self._unfinished.forget(key)
        if answer.finish_reason in ("length", "cancelled"):
            request.so_far += answer.text
            request.thinking = bool(answer.reasoning and not request.so_far)
            self._unfinished.keep(key, request.remote, request)

    def stop(self, key: int | None = None) -> bool:
        """Stop the answer with this key, or without one a load, all answers and embeddings; returns
        whether there was something to stop."""
        keys = [k for k, r in self._requests.items() if key in (None, k) and not r.stop.is_set()]
        for k in keys:
            self._requests[k].stop.set()
        others = [self.stop_load(), self._encoders.stop()] if key is None else []
        return self._engine.stop(key) or any(others) or bool(keys)

    def stop_load(self) -> bool:
        """Stop a load; whether there was one."""
        opening = bool(self._opening and self._opening.cancel())
        return self._engine.stop_load() or opening

    async def reset(self) -> None:
        """Stop, and forget all conversations."""
        await self._stopped(list(self._requests.values()))
        self._unfinished.only_of(())
        await self._engine.reset()

    async def embed(
        self, config: LoadConfig, texts: list[str], progress: StageProgress, key: int
    ) -> dict[str, Any]:
        """Embeddings of texts in OpenAI's shape, by the encoder that ``config`` names; it is loaded
        when it is first asked. Raises OctavoError."""
        return await self._encoders.create(config, texts, progress, key)

    def stop_embedding(self, key: int) -> bool:
        """Stop a request for embeddings; whether it was under way."""
        return self._encoders.stop(key)

    async def unload(self, model: str | None = None) -> None:
        """Stop, and free the model or encoder of this name, or all."""
        found = await self._encoders.unload(model)
        if self._opening and model in (None, self._opening_name):
            found = self._opening.cancel()
        gone = [key for key in self._remotes if model in (None, key)]
        await self._drop([self._remotes.pop(key) for key in gone])
        try:
            await self._engine.unload(model)
        except OctavoError:  # there is none of this name
            if not (found or gone):
                raise

    async def measure(
        self, sizes: MeasureConfig, model: str | None = None, key: int | None = None
    ) -> dict[str, Any]:
        """Speed of a model on this device."""
        self._check_here(model)
        return await self._engine.measure(sizes, model, key)

    def sampling(self, model: str | None = None) -> dict[str, float]:
        """What the file of a loaded model recommends; of a remote one, that is the server's."""
        return {} if self._find(model) else self._engine.sampling(model)

    def status(self) -> dict[str, Any]:
        """As ``Engine.status``; of the remote model, if it was loaded last. And the encoder."""
        status = self._engine.status()
        if self._opening:
            status["state"] = "loading"
        elif self._requests:
            status["state"] = "generating"
        elif self._remotes and status["state"] == "empty":
            status["state"] = "ready"
        if self._last:
            status |= {**self._last.describe(), "answers": len(self._requests)}
            status.pop("kv", None)
        if self._remotes:
            listed = [self._summary(key, remote) for key, remote in self._remotes.items()]
            status["models"] = [*status.get("models", []), *listed]
        encoder = self._encoders.describe()
        return status | ({"encoder": encoder} if encoder else {})

    def _summary(self, key: str, remote: Remote) -> dict[str, Any]:
        answers = sum(request.remote is remote for request in self._requests.values())
        name = remote.describe()["model"]["name"]
        summary = {"model": key, "name": name, "resident": True, "memory_bytes": 0}
        return {**summary, "answers": answers}


def _is_not_here(error: OctavoError) -> bool:
    return error.code.startswith(NOT_HERE)
