"""`serve`: builds dist/ and serves it."""

from __future__ import annotations

import argparse
import mimetypes
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from engine.host import assemble
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


def main(arguments: argparse.Namespace) -> int:
    """The command; returns when the server is stopped with Ctrl-C."""
    folder = assemble.build()
    listener = listen(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"Octavo is at http://{shown}:{port}/ (stop with Ctrl-C)", flush=True)
    config = uvicorn.Config(application(folder), log_level="warning", lifespan="off")
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


def application(folder: Path, headers: Mapping[str, str] | None = None) -> Starlette:
    """The web application: `folder` as a static site, each file with `headers`."""
    for suffix, kind in TYPES.items():
        mimetypes.add_type(kind, suffix)
    return Starlette(routes=[Mount("/", _Files(headers or {}, directory=folder, html=True))])
