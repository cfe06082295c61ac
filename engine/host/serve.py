"""`serve`: builds dist/ and serves it; with `--api`, answers of the engine on this machine too."""

from __future__ import annotations

import argparse
import asyncio
import mimetypes
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from engine.errors import OctavoError
from engine.host import api, assemble
from engine.host.errors import HostError
from engine.host.progress import Step

TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".whl": "application/zip",
    ".bin": "application/octet-stream",
}
SHUTDOWN_SECONDS = 2  # for what is still being sent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The address to serve at."""
    parser.add_argument("--host", default="127.0.0.1", help="default: only this machine")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    api.add_arguments(parser)


def main(arguments: argparse.Namespace) -> int:
    """The command; returns when the server is stopped with Ctrl-C."""
    answering = api.open_api(arguments) if arguments.api else None
    folder = assemble.build()
    listener = listen(arguments.host, arguments.port)
    routes = answering.routes() if answering else []
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

    def __init__(self, headers: Mapping[str, str], **settings: Any) -> None:
        super().__init__(**settings)
        self._headers = {"Cache-Control": "no-cache", **headers}

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(self._headers)
        return response


def application(
    folder: Path, headers: Mapping[str, str] | None = None, routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """The web application: `folder` as a static site, each file with `headers`, beside `routes`."""
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)
    files = _Files(headers or {}, directory=folder, html=True)
    return Starlette(routes=[*routes, Mount("/", files)])
