"""The site as `build.py serve` sends it, and witnesses of what a browser asks whom for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from engine.host import serve


def replace(path: Path, data: bytes) -> None:
    """Writes a file anew, which may be a hard link to that of dist/."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


class Hosted:
    """Serves a folder by the server of ``build.py serve``, with the site's own headers; browsers
    report to it what the site's policy forbids."""

    def __init__(self, folder: Path) -> None:
        self.reports: list[str] = []
        self.requests: list[str] = []
        headers = serve.site_headers(folder)
        headers["Content-Security-Policy"] += "; report-uri /report"
        self._app = serve.application(folder, headers)
        listener = serve.listen("127.0.0.1", 0)
        self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            self._answer, interface="asgi3", log_level="warning", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()

    async def _answer(
        self,
        scope: Any,
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.requests.append(scope["path"])
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.reports.append(body.decode())
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    def is_told(self, what: str, seconds: float = 10) -> bool:
        """Whether the browser reports a breach of the policy that names this; it takes its time."""
        deadline = time.monotonic() + seconds
        while not any(what in report for report in self.reports):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=10)


class Witness:
    """A proxy that lets nothing through and remembers what it was asked for. A browser that must
    go through it for all but one site cannot ask anybody else unnoticed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(2)
                try:
                    line = connection.recv(4096).split(b"\r\n")[0].decode("latin-1")
                    self.asked.append(line)
                    connection.sendall(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n")
                except OSError:
                    self.asked.append("?")

    def until(self, text: str, seconds: float = 10) -> None:
        """Until something with ``text`` in it has been asked for."""
        deadline = time.monotonic() + seconds
        while not any(text in line for line in self.asked):
            assert time.monotonic() < deadline, f"nobody asked for {text}: {self.asked}"
            time.sleep(0.02)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=5)
