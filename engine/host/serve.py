"""`serve`: builds the site and serves it."""

from __future__ import annotations

import argparse
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

from engine.host import assemble, own_model, pins
from engine.host.errors import HostError

TYPES = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".whl": "application/zip",
    ".bin": "application/octet-stream",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The address to serve at."""
    parser.add_argument("--host", default="127.0.0.1", help="default: only this machine")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument(
        "--model", type=Path, metavar="FILE", help="a .gguf file, in place of the default model"
    )


def main(arguments: argparse.Namespace) -> int:
    """The command; returns when the server is stopped with Ctrl-C."""
    own = own_model.files_of(arguments.model) if arguments.model else []
    folder = assemble.build(() if own else pins.MODELS)
    routes = own_model.routes(folder, own) if own else []
    listener = listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"Octavo is at http://{shown}:{port}/ (stop with Ctrl-C)", flush=True)
    config = uvicorn.Config(application(folder, routes=routes), log_level="warning", lifespan="off")
    try:
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0


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
