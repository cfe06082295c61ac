"""`serve --api` on a thread of this process, with the tiny model."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from engine.host import serve
from engine.host.access import Access
from engine.host.api import Api
from tests.native import NativeHost
from tests.tiny import TINY

FOREVER = 60  # seconds: nothing here takes that long


class ApiServer:
    """The API of one model at ``url``, beside an empty site in ``folder``."""

    def __init__(
        self, folder: Path, access: Access | None = None, model: Path = TINY, name: str = "tiny"
    ) -> None:
        self.api = Api(NativeHost(model), name, access or Access())
        listener = serve.listen("127.0.0.1", 0)
        self.origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.url = f"{self.origin}/v1"
        app = serve.application(folder, routes=self.api.routes())
        config = uvicorn.Config(
            app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._loaded = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listener,), daemon=True)
        self._thread.start()
        assert self._loaded.wait(FOREVER)

    def _run(self, listener: Any) -> None:
        asyncio.set_event_loop(self._loop)

        async def answer() -> None:
            await self.api.load(512)
            self._loaded.set()
            await self._server.serve(sockets=[listener])

        self._loop.run_until_complete(answer())

    def ask(self, kind: str) -> Any:
        """A request to the engine itself."""
        assert self.api._client
        asking = self.api._client.ask(kind)
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result(FOREVER)

    def close(self) -> None:
        """Stop the server, and whatever it does."""
        self._server.should_exit = True
        self._thread.join(FOREVER)
        assert not self._thread.is_alive()


# Options of an answer that does not end by itself.
ENDLESS = {"context_full": "slide", "temperature": 1.5, "logit_bias": {"0": -100, "2": -100}}


def until_idle(server: ApiServer) -> None:
    """Wait until no answer is under way."""
    deadline = time.monotonic() + 30
    while server.ask("status")["state"] != "ready":
        assert time.monotonic() < deadline, "the answer goes on"
        time.sleep(0.01)


def request(application: Any, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """One GET through the ASGI interface: status, headers, body."""
    got: dict[str, Any] = {"body": b""}

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()  # the client says nothing more, and does not hang up
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            got["status"] = message["status"]
            got["headers"] = {k.decode().lower(): v.decode() for k, v in message["headers"]}
        else:
            got["body"] += message.get("body", b"")

    sent = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": sent, "query_string": b""}
    asyncio.run(application({**scope, "root_path": ""}, receive, send))
    return got
