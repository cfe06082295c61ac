"""A server of chat completions that says what a test has written down."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

CHUNK = {"choices": [{"delta": {"content": "Hi"}}]}
END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def lines(*events: Any) -> bytes:
    """Server-sent events."""
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


class ScriptedServer:
    """Answers completions with a status and ``pieces``; a number among these is a pause in seconds.
    ``seen`` are headers and bodies of requests."""

    def __init__(self, pieces: Iterable[bytes | float], status: int = 200) -> None:
        outer = self
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.hung_up = threading.Event()  # the client, before the end

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_OPTIONS(self) -> None:
                self.answer([], 204)

            def do_GET(self) -> None:
                self.answer([json.dumps({"data": [{"id": "m"}]}).encode()], 200)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.seen.append((dict(self.headers), json.loads(body)))
                try:
                    self.answer(pieces, status)
                except OSError:
                    outer.hung_up.set()

            def answer(self, pieces: Iterable[bytes | float], status: int) -> None:
                self.send_response(status)
                self.send_header("Access-Control-Allow-Origin", "*")
                self.send_header("Access-Control-Allow-Headers", "authorization, content-type")
                self.end_headers()
                for piece in pieces:
                    if isinstance(piece, bytes):
                        self.wfile.write(piece)
                        self.wfile.flush()
                    else:
                        time.sleep(piece)

            def handle(self) -> None:
                with suppress(OSError):  # the client has hung up
                    super().handle()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
