"""Asking a server from Python, as the browser's worker does: see ``engine.events.Exchange``."""

from __future__ import annotations

import asyncio
import http.client
import socket
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from engine.errors import OctavoError

T = TypeVar("T")
CONNECT = 20.0  # seconds
AT_MOST = 600.0  # seconds in which nothing comes; whoever asks waits less
PIECE = 1 << 16  # bytes


class LocalExchange:
    """A request that begins with ``status``."""

    def __init__(self, url: str, headers: Mapping[str, str], body: str | None) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=CONNECT)
        self._path = parts.path
        self._headers = dict(headers)
        self._body = body
        self._socket: socket.socket | None = None
        self._reply: http.client.HTTPResponse | None = None
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._closed = False

    async def status(self) -> int:
        """Send the request; the status of the reply."""
        return await self._in_thread(self._send)

    def _send(self) -> int:
        self._connection.connect()
        self._socket = self._connection.sock
        self._socket.settimeout(AT_MOST)
        if self._closed:
            self.close()
        method = "GET" if self._body is None else "POST"
        body = None if self._body is None else self._body.encode()
        self._connection.request(method, self._path, body, self._headers)
        self._reply = self._connection.getresponse()
        return self._reply.status

    async def next(self) -> str:
        """The next piece; empty at the end."""
        while True:
            data = await self._in_thread(self._read)
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text

    def _read(self) -> bytes:
        assert self._reply
        return self._reply.read1(PIECE)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise OctavoError("remote.unavailable", hint=f"{type(error).__name__}.") from None

    def close(self) -> None:
        """Break the connection, which wakes whoever reads."""
        self._closed = True
        if self._socket:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._reply:
            self._reply.close()
        self._connection.close()
