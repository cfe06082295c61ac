"""`serve --api`: OpenAI's chat completions, computed by the engine on this machine's CPU."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from engine.config import DEFAULT_CONTEXT
from engine.errors import OctavoError
from engine.host import assemble, native, pins, pip
from engine.host.access import Access
from engine.host.client import Asked, Client
from engine.host.completions import Shape, error_body, event, generate_fields, status_of
from engine.host.files import name_of
from engine.host.local import LocalHost
from engine.host.paths import INSTALLED, LOCK_API, ROOT
from engine.messages import parse_request

MAX_BODY = 8 << 20  # bytes
CONVERSATIONS = 4  # of a whole context that are kept at most
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
Endpoint = Callable[["Api", Request], Awaitable[Response]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether there is an API, and for whom."""
    group = parser.add_argument_group("API", "OpenAI's chat completions, computed here on the CPU")
    group.add_argument("--api", action="store_true", help="answer /v1/chat/completions too")
    group.add_argument("--context", type=int, default=DEFAULT_CONTEXT, help="in tokens")
    group.add_argument(
        "--token",
        default="",
        help="what clients must show; if others than this machine reach the server, one is made",
    )
    group.add_argument(
        "--origin",
        action="append",
        default=[],
        help="of pages elsewhere that may ask, such as https://example.com; may be repeated",
    )


def open_api(arguments: argparse.Namespace, own: Sequence[Path] = ()) -> Api:
    """The API as the arguments want it, for the model in the files `own` or for the site's, which
    is not loaded yet. Raises HostError if there is none."""
    pip.install(LOCK_API, "Installing NumPy and the tokenizer")
    files = own or [assemble.model_file(pins.MODELS[0])]
    name = name_of(own[0]) if own else pins.MODELS[0].id
    # The installed package has no compiler: there NumPy alone computes, more slowly.
    host = LocalHost(files, None if INSTALLED else ROOT / native.build(native.HERE))
    return Api(host, name, Access.to(arguments.host, arguments.token, arguments.origin))


def _answered(endpoint: Endpoint) -> Endpoint:
    """Errors become answers, and nobody is answered who may not ask."""

    @wraps(endpoint)
    async def answer(self: Api, request: Request) -> Response:
        try:
            self.access.check(request)
            return await endpoint(self, request)
        except OctavoError as error:
            shown = {"WWW-Authenticate": "Bearer"} if error.code == "request.token" else None
            return JSONResponse(error_body(error), status_of(error), shown)

    return answer


class Api:
    """Answers for the model that it is asked to ``load``, under the id ``name``."""

    def __init__(self, host: LocalHost, name: str, access: Access) -> None:
        self._host = host
        self._name = name
        self.access = access
        self._client: Client | None = None
        self._created = int(time.time())

    async def load(self, context: int = DEFAULT_CONTEXT) -> str:
        """Load the model, in the event loop that will answer; a line that says what there is.
        Raises OctavoError."""
        client = Client(self._host)
        room = {"context": context, "kv_tokens": CONVERSATIONS * context}
        loaded = await client.ask("load", **room)
        self._client = client
        return f"{loaded['model']['name']} on {loaded['device']['name']}"

    def routes(self) -> list[BaseRoute]:
        """Where the API is."""
        endpoints = {
            "/v1/models": (self.models, "GET"),
            "/v1/models/{model}": (self.model, "GET"),
            "/v1/chat/completions": (self.completions, "POST"),
        }
        cors = [self.access.cors()]
        return [
            Route("/health", self.health, methods=["GET"], middleware=cors),
            *(
                Route(path, endpoint, methods=[method, "OPTIONS"], middleware=cors)
                for path, (endpoint, method) in endpoints.items()
            ),
            Route("/v1/{path:path}", self.unknown, methods=METHODS, middleware=cors),
        ]

    async def health(self, request: Request) -> Response:
        """Whether answers can be asked for; needs no token, and tells nothing else."""
        if self._client:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "loading"}, 503)

    @_answered
    async def models(self, request: Request) -> Response:
        """The list of the one model."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    @_answered
    async def model(self, request: Request) -> Response:
        """The one model."""
        self._check_model(request.path_params["model"])
        return JSONResponse(self._described())

    @_answered
    async def unknown(self, request: Request) -> Response:
        """What else OpenAI has under /v1 is not here."""
        asked = f"There is no {request.method} {request.url.path} here."
        hint = "There are GET /v1/models and POST /v1/chat/completions."
        raise OctavoError("request.unknown", asked, hint)

    def _described(self) -> dict[str, Any]:
        owner = {"created": self._created, "owned_by": "octavo"}
        return {"id": self._name, "object": "model", **owner}

    def _check_model(self, model: Any) -> None:
        if model not in (None, "", self._name):
            raise OctavoError("model.unknown", hint=f"There is {self._name}.")

    @_answered
    async def completions(self, request: Request) -> Response:
        """An answer, whole or as a stream. It ends when the client hangs up."""
        body = await _json(request)
        self._check_model(body.get("model"))
        shape, fields = Shape(body, self._name), generate_fields(body)
        if not self._client:
            raise OctavoError("engine.busy", "The model is being loaded.")
        asked = self._client.send("generate", **fields)
        watching = asyncio.ensure_future(_watch(request, asked))
        try:
            reply = await asked.next()
            if shape.stream:  # only now: an error would have a status of its own
                return _Events(_chunks(shape, asked, reply), asked, watching)
            while reply["kind"] != "result":
                reply = await asked.next()
        except BaseException:
            watching.cancel()
            asked.stop()
            raise
        watching.cancel()
        return JSONResponse(shape.completion(reply["value"]))


async def _json(request: Request) -> dict[str, Any]:
    """The object in a request's body. Raises OctavoError request.invalid."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # of others a browser does not ask whether the page may send it
        raise OctavoError("request.invalid", "The request's content type is not application/json.")
    data = b""
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > MAX_BODY:
                raise OctavoError("request.invalid", f"A request has at most {MAX_BODY} bytes.")
    except ClientDisconnect:
        raise OctavoError("request.cancelled") from None
    return parse_request(data)


async def _watch(request: Request, asked: Asked) -> None:
    """Stop an answer when nobody waits for it any longer."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    asked.stop()


async def _chunks(shape: Shape, asked: Asked, reply: dict[str, Any]) -> AsyncIterator[bytes]:
    """The events of an answer from its first reply on."""
    yield event(shape.begin())
    try:
        while reply["kind"] != "result":
            yield event(shape.chunk(reply))
            reply = await asked.next()
        for chunk in shape.end(reply["value"]):
            yield event(chunk)
        yield event("[DONE]")
    except OctavoError as error:
        yield event(error_body(error))


class _Events(Response):
    """A stream of events. Starlette's own would cancel the task that computes; an answer that is
    stopped instead leaves what it has computed to the next one."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], asked: Asked, watching: asyncio.Future[None]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._events, self._asked, self._watching = events, asked, watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except BaseException:
            self._asked.stop()
            raise
        finally:
            self._watching.cancel()
