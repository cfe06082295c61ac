"""Another site that models are downloaded from, with the bad manners of real ones."""

from __future__ import annotations

import http.server
import re
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Manners:
    """What a server does; the first requests may fail otherwise than later ones."""

    ranges: bool = True
    exposes: bool = True  # lets pages read ETag and Content-Range
    etag: str = '"one"'
    length: bool = True  # says how long the file is
    lie: int = 0  # bytes by which it says too much
    page: bool = False  # sends a web page with status 200
    statuses: list[int] = field(default_factory=list)  # of the first requests for data
    cuts: list[int] = field(default_factory=list)  # bytes after which the first answers end
    more: bool = False  # sends more than it was asked for
    bytes_per_s: float = 0  # none: as fast as it can
    delay_s: float = 0  # before it answers
    first: int = 0  # requests, after which others wait for `let_go`; none: nobody waits
    stalls: list[int] = field(default_factory=list)  # bytes after which the first answers hang
    resets: list[int] = field(default_factory=list)  # and after which connections are reset
    flips: int = 0  # first shards have a wrong bit
    shifts: int = 0  # first ranges begin 4 bytes late, which they say
    lies: int = 0  # first ranges begin 4 bytes late, which they do not say
    garbage: int = 0  # first answers are no HTTP


class Origin:
    """Serves ``files`` by name, at an origin that is not the page's."""

    def __init__(self, files: dict[str, bytes], **manners: Any) -> None:
        self.files = files
        self.manners = Manners(**manners)
        self._closing = threading.Event()
        self._let_go = threading.Event()
        self.paths: list[str] = []
        self.requests: list[tuple[str, str]] = []  # method and range (empty: all)
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                origin.answer(self, True)

            def do_HEAD(self) -> None:
                origin.answer(self, False)

            def do_OPTIONS(self) -> None:
                self.send_response(204)
                self.send_header("Access-Control-Allow-Origin", "*")
                self.send_header("Access-Control-Allow-Headers", "Range")
                self.end_headers()

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, request: http.server.BaseHTTPRequestHandler, with_body: bool) -> None:
        """One request."""
        manners = self.manners
        self._closing.wait(manners.delay_s)
        if manners.first and len(self.paths) >= manners.first:
            self._let_go.wait(60)
        data = self.files.get(request.path.split("?")[0].lstrip("/"))
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        self.paths.append(request.path)
        self.requests.append((request.command, request.headers.get("Range", "")))
        is_probe = bool(wanted and wanted[2] == "3")
        if data is None:
            self._send(request, 404, {}, b"no such file")
            return
        if manners.page:
            self._send(request, 200, {"Content-Type": "text/html"}, b"<!doctype html>Hello")
            return
        if manners.statuses and not is_probe:
            self._send(request, manners.statuses.pop(0), {"Retry-After": "1"}, b"later")
            return
        headers = {"ETag": manners.etag, "Content-Type": "application/octet-stream"}
        first, last, status = 0, len(data), 200
        if wanted and manners.ranges:
            first = begin = int(wanted[1])
            if not is_probe and (manners.shifts or manners.lies):
                first += 4
                begin += 4 * bool(manners.shifts)
                manners.shifts -= bool(manners.shifts)
                manners.lies -= bool(manners.lies)
            last = min(int(wanted[2] or len(data)) + 1 + 10 * manners.more, len(data))
            headers["Content-Range"] = f"bytes {begin}-{last - 1}/{len(data) + manners.lie}"
            status = 206
        if manners.length:
            headers["Content-Length"] = str(last - first + manners.lie * (status == 200))
        if manners.exposes:
            headers["Access-Control-Expose-Headers"] = "ETag, Content-Range"
        body = data[first:last] if with_body else b""
        if manners.flips and not request.path.endswith(".json") and body:
            manners.flips -= 1
            body = bytes([body[0] ^ 1]) + body[1:]
        if manners.garbage and not is_probe:
            manners.garbage -= 1
            request.wfile.write(b"\x00\x01 this is not HTTP\r\n\r\n")
            return
        if manners.stalls and not is_probe:
            self._send(request, status, headers, body[: manners.stalls.pop(0)])
            request.wfile.flush()
            self._closing.wait(60)
        elif manners.resets and not is_probe:
            self._send(request, status, headers, body[: manners.resets.pop(0)])
            request.wfile.flush()
            hard = struct.pack("ii", 1, 0)  # closing sends a reset
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            request.connection.close()
        elif manners.cuts and not is_probe:
            self._send(request, status, headers, body[: manners.cuts.pop(0)])
            self._closing.wait(0.2)  # so that the page gets it before it hears of the end
        else:
            self._send(request, status, headers, body)

    def _send(self, request: Any, status: int, headers: dict[str, str], body: bytes) -> None:
        request.send_response(status)
        for name, value in {"Access-Control-Allow-Origin": "*", **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        step = 1 << 16 if not 0 < self.manners.bytes_per_s < 1e6 else 1 << 10
        for i in range(0, len(body), step):
            if self.manners.bytes_per_s:
                self._closing.wait(step / self.manners.bytes_per_s)
            request.wfile.write(body[i : i + step])

    def let_go(self) -> None:
        """Nobody waits any more."""
        self._let_go.set()

    def close(self) -> None:
        self._let_go.set()
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
