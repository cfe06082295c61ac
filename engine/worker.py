"""Messages <-> engine. The protocol is described in worker/protocol.mjs; both ways messages are
JSON texts. This is the only place where errors become messages."""

from __future__ import annotations

import asyncio
import json
import reprlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from engine.answer import Delta, Stopped
from engine.browser import BrowserHost
from engine.config import (
    MAX_ID,
    GenerateConfig,
    LoadConfig,
    MeasureConfig,
    check_goes_on,
    check_handle,
    check_ids,
    check_input,
    check_model,
    check_prompt,
    check_target,
    check_text,
    check_top,
    encoder_config,
    only_one,
)
from engine.engine import Engine
from engine.errors import OctavoError, as_octavo_error
from engine.fields import check_request
from engine.inspecting import inspect
from engine.loader import Host, LoadedModel
from engine.messages import check_messages, check_tools, parse_request
from engine.prompt import Prompt
from engine.raw import detokenize, raw_prompt, tokenize
from engine.recovery import News
from engine.resident import Ready
from engine.service import Service

Message = Mapping[str, Any]
Handler = Callable[[int, Message], Awaitable[Any]]
NO_ID = -1  # of the error that answers a message without a usable id


class Worker:
    """Answers requests: any number of progress and delta messages, then one result or error."""

    def __init__(self, host: Host, post: Callable[[str], None]) -> None:
        self._host = host
        self._post = post
        self._engine = Engine(host, self._tell)
        self._service = Service(self._engine, host)
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[int] = set()  # ids that have no final reply yet
        self._stoppable: dict[int, Callable[[], bool]] = {}  # how to stop what is under way, by id
        self._handlers: dict[str, Handler] = {
            "load": self._load,
            "generate": self._generate,
            "stop": self._stop,
            "reset": self._reset,
            "status": self._status,
            "unload": self._unload,
            "measure": self._measure,
            "inspect": self._inspect,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "embed": self._embed,
        }

    def handle(self, text: str, known_id: int = NO_ID) -> None:
        """Start to answer one request; returns at once. A text that cannot be read is answered
        under ``known_id``."""
        task = asyncio.ensure_future(self._answer(text, known_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, text: str, known_id: int) -> None:
        try:
            message = parse_request(text)
            id = _id_of(message)
        except OctavoError as error:
            self._reply(known_id, "error", error=error.to_wire())
            return
        if id in self._open:  # its id stays with the earlier one
            failure = OctavoError("request.invalid", f"The request {id} is still under way.")
            self._reply(id, "error", error=failure.to_wire())
            return
        self._open.add(id)
        kind, content = await self._outcome(id, message)
        self._open.remove(id)
        self._reply(id, kind, **content)

    async def _outcome(self, id: int, message: Message) -> tuple[str, dict[str, Any]]:
        """The final reply's kind and content."""
        try:
            kind = message.get("kind")
            handler = self._handlers.get(kind) if isinstance(kind, str) else None
            if not handler:
                known = ", ".join(self._handlers)
                raise OctavoError("request.unknown", f"{reprlib.repr(kind)} is none of {known}.")
            check_request(str(kind), message)
            return "result", {"value": await handler(id, message)}
        except Exception as error:
            return "error", {"error": as_octavo_error(error).to_wire()}

    def _reply(self, id: int, kind: str, **content: Any) -> None:
        self._post(json.dumps({"id": id, "kind": kind, **content}))

    def _progress(self, id: int, stage: str, loaded: int, total: int, unit: str) -> None:
        self._reply(id, "progress", stage=stage, loaded=loaded, total=total, unit=unit)

    def _tell(self, id: int, news: News) -> None:
        self._reply(id, "recovery", **news.to_wire())

    async def _load(self, id: int, message: Message) -> dict[str, Any]:
        started, config = self._host.now(), LoadConfig.from_wire(message)
        with self._stoppable_by(id, self._service.stop_load):
            loaded = await self._service.load(config, partial(self._progress, id), key=id)
        load_ms = (self._host.now() - started) * 1e3
        return {**loaded, "key": config.model, "load_ms": load_ms}

    async def _generate(self, id: int, message: Message) -> dict[str, Any]:
        model = check_model(message)
        config = GenerateConfig.from_wire(message, self._service.sampling(model))
        way, goes_on = only_one(message, "messages", "prompt", "continues"), check_goes_on(message)
        if way == "prompt":
            events = self._service.complete(check_prompt(message), config, key=id, model=model)
        elif way == "continues":
            events = self._service.go_on(check_handle(message), config, key=id, model=model)
        else:
            messages, tools = check_messages(message, goes_on), check_tools(message)
            events = self._service.generate(messages, config, id, tools, model, goes_on)
        with self._stoppable_by(id, lambda: self._service.stop(id)):
            async for event in events:
                if isinstance(event, Delta):
                    kind = "delta" if event.kind == "answer" else "reasoning"
                    self._reply(id, kind, text=event.text, num_tokens=event.num_tokens)
                else:
                    return {**event.to_wire(), "handle": id}
        raise AssertionError("an answer always ends")

    @contextmanager
    def _stoppable_by(self, id: int, stop: Callable[[], bool]) -> Iterator[None]:
        self._stoppable[id] = stop
        try:
            yield
        finally:
            del self._stoppable[id]

    async def _stop(self, id: int, message: Message) -> dict[str, Any]:
        target = check_target(message)
        if target is None:
            return {"stopped": self._service.stop()}
        return {"stopped": target in self._stoppable and self._stoppable[target]()}

    async def _reset(self, id: int, message: Message) -> dict[str, Any]:
        await self._service.reset()
        return {}

    async def _unload(self, id: int, message: Message) -> dict[str, Any]:
        await self._service.unload(check_model(message))
        return {}

    async def _measure(self, id: int, message: Message) -> dict[str, Any]:
        sizes, model = MeasureConfig.from_wire(message), check_model(message)
        with self._stoppable_by(id, lambda: self._service.stop(id)):
            return await self._service.measure(sizes, model, key=id)

    async def _inspect(self, id: int, message: Message) -> dict[str, Any]:
        top, model = check_top(message), check_model(message)
        begin = _beginning(message)

        async def look(ready: Ready, stopped: Stopped) -> dict[str, Any]:
            ids = (await begin(ready.model)).ids
            return await inspect(self._host, ready.model, ready.scheduler, ids, top, stopped)

        with self._stoppable_by(id, lambda: self._service.stop(id)):
            return await self._service.use(look, model, key=id)

    async def _tokenize(self, id: int, message: Message) -> dict[str, Any]:
        text, model = check_text(message), check_model(message)
        ids = await self._service.use(lambda ready, _: tokenize(ready.model, text), model, key=id)
        return {"ids": ids}

    async def _detokenize(self, id: int, message: Message) -> dict[str, Any]:
        ids, model = check_ids(message), check_model(message)
        text = await self._service.use(lambda ready, _: detokenize(ready.model, ids), model, key=id)
        return {"text": text}

    async def _embed(self, id: int, message: Message) -> dict[str, Any]:
        texts, config = check_input(message), encoder_config(message)
        with self._stoppable_by(id, lambda: self._service.stop_embedding(id)):
            return await self._service.embed(config, texts, partial(self._progress, id), key=id)

    async def _status(self, id: int, message: Message) -> dict[str, Any]:
        return self._service.status()


def _beginning(message: Message) -> Callable[[LoadedModel], Awaitable[Prompt]]:
    """What a model makes of the ``prompt`` or the ``messages`` of a request."""
    if only_one(message, "messages", "prompt") == "prompt":
        prompt = check_prompt(message)
        return lambda model: raw_prompt(model, prompt)
    messages, tools = check_messages(message), check_tools(message)
    return lambda model: model.prompts.encode(messages, tools)


def _id_of(message: Message) -> int:
    id = message.get("id")
    if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id <= MAX_ID:
        raise OctavoError("request.invalid", "A request needs a whole number as its id.")
    return id


def start(js: Any) -> Callable[[str, int], None]:
    """Called once by worker.mjs with its host object; returns the function that takes requests."""
    # As UTF-8: a long text takes Pyodide fifty times as long.
    return Worker(BrowserHost(js), lambda text: js.post(text.encode())).handle
