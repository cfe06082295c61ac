"""Shared fixtures: a static server, Chromium, and the places of things."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from engine.host.files import exclusive

ROOT = Path(__file__).resolve().parent.parent
BROWSER_FLAGS = ["--no-sandbox", "--disable-background-networking", "--no-first-run"]
# OCTAVO_GPU_FLAGS are more of them, so that tests run on another adapter than the software one.
GPU_FLAGS = [
    *BROWSER_FLAGS,
    "--enable-unsafe-webgpu",
    *os.environ.get("OCTAVO_GPU_FLAGS", "").split(),
]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fast tests first; and while Playwright runs, no test can start an event loop of its own.
    Those that are marked ``by_hand`` run with OCTAVO_ALL=1."""
    if not os.environ.get("OCTAVO_ALL"):
        left_out = [item for item in items if item.get_closest_marker("by_hand")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # the long files of kernels before many short ones, so that both processes end at about a time
    items.sort(key=lambda item: (_uses_browser(item), "kernels" not in item.path.parts))


def _uses_browser(item: pytest.Item) -> bool:
    return "playwright" in getattr(item, "fixturenames", ())


def alone() -> AbstractContextManager[None]:
    """For what two processes of tests cannot do at the same time: it writes where both do."""
    return exclusive(ROOT / ".cache/tests.lock")


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {  # noqa: RUF012 - the base class declares it so
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *_: Any) -> None:
        pass


class _QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that breaks off a download is no news."""


class StaticServer:
    """Serves a folder on 127.0.0.1; remembers the paths that were asked for."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(_Handler):
            def do_GET(self) -> None:
                requests.append(self.path)
                super().do_GET()

        handler = functools.partial(Handler, directory=str(folder))
        self._server = _QuietServer(("127.0.0.1", port), handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser that `build.py test` found, or one on the PATH."""
    path = (
        os.environ.get("OCTAVO_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome")
    )
    assert path, "no Chromium: run the tests through `python3 build.py test`"
    return path


@pytest.fixture(scope="session")
def playwright() -> Iterator[Any]:
    """One Playwright for the whole run."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        yield p
