"""`serve`: builds the site and serves it; with `--api`, this machine's engine answers too."""

from __future__ import annotations

import argparse
import asyncio
import mimetypes
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import OctavoError
from engine.host import api, assemble, own_model, pins
from engine.host.errors import HostError
from engine.host.files import parts_of
from engine.host.progress import Step

TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".whl": "application/zip",
    ".bin": "application/octet-stream",
}
SHUTDOWN_SECONDS = 2  # for what is still being sent

HEADERS = assemble.HEADERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The address to serve at."""
    parser.add_argument("--host", default="127.0.0.1", help="default: only this machine")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a .gguf file, in place of the default model"
    )
    assemble.add_arguments(parser)
    api.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """The command; returns when the server is stopped with Ctrl-C."""
    own = parts_of(arguments.model) if arguments.model else []
    if own and own[0].suffix.lower() != ".gguf":
        raise HostError(f"{own[0].name} is no .gguf file.")
    answering = api.open_api(arguments, own) if arguments.api else None
    folder = assemble.build(() if own else pins.MODELS, arguments.encoder)
    routes = own_model.routes(folder, own) if own else []
    routes += answering.routes() if answering else []
    listener = listen(arguments.host, arguments.port)
    site = application(folder, routes=routes)
    config = uvicorn.Config(
        site, log_level="warning", lifespan="off", timeout_graceful_shutdown=SHUTDOWN_SECONDS
    )
    try:
        asyncio.run(_serve(uvicorn.Server(config), listener, answering, arguments))
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    answering: api.Api | None,
    arguments: argparse.Namespace,
) -> None:
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    if answering:
        try:
            with Step("Loading the model"):
                model = await answering.load(arguments.context)
        except OctavoError as error:
            raise HostError(f"{error.message} {error.hint}".strip()) from None
        token = answering.access.token
        print(f"{model} answers at {address}v1", flush=True)
        if token and token != arguments.token:
            print(f"Its token is {token}", flush=True)
    print(f"Octavo is at {address} (stop with Ctrl-C)", flush=True)
    await server.serve(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises HostError when the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise HostError(
            f"Port {port} of {host} cannot be used ({error.strerror}). "
            "Choose another with --port, or --port 0 for any free one."
        ) from None


class _Files(StaticFiles):
    """Static files that the browser may keep, but asks about each time (by ETag)."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """404 for hidden files and the one that says how to serve."""
        parts = path.split(os.sep)
        if path == HEADERS or any(part.startswith(".") and part != "." for part in parts):
            raise HTTPException(status_code=404)
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


class _WithHeaders:
    """Every answer with the same headers, errors and redirects too."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def application(
    folder: Path, headers: Mapping[str, str] | None = None, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The web application: `folder` as a static site beside `routes`, each answer with `headers`;
    if they are None, with those that the site's own file _headers asks for."""
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)
    sent = site_headers(folder) if headers is None else headers
    return Starlette(
        routes=[*routes, Mount("/", _Files(directory=folder, html=True))],
        middleware=[Middleware(_WithHeaders, headers=sent)],
    )


def site_headers(folder: Path) -> dict[str, str]:
    """What a site's file of headers says: lines `Name: value` below the path `/*`, in the format
    that static hosts read. Raises HostError where it says something else."""
    path = folder / HEADERS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    headers = {}
    for line in lines:
        name, colon, value = line.strip().partition(": ")
        if line.startswith(" ") and colon:
            headers[name] = value
        elif line.strip() not in ("", "/*") and not line.startswith("#"):
            raise HostError(f"{path} has a line that cannot be read: {line}")
    return headers
