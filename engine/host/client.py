"""The worker's protocol (worker/protocol.mjs) within one process: whoever asks awaits replies."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from engine.errors import OctavoError
from engine.loader import Host
from engine.worker import Worker


class Client:
    """Asks an engine of its own on ``host``. Needs a running event loop."""

    def __init__(self, host: Host) -> None:
        self._worker = Worker(host, self._receive)
        self._ids = itertools.count()
        self._asked: dict[int, Asked] = {}

    def send(self, kind: str, **fields: Any) -> Asked:
        """Start a request."""
        id = next(self._ids)
        asked = self._asked[id] = Asked(self, id)
        self._worker.handle(json.dumps({**fields, "id": id, "kind": kind}), id)
        return asked

    async def ask(self, kind: str, **fields: Any) -> Any:
        """The result's value of a request. Raises the OctavoError of an error."""
        asked = self.send(kind, **fields)
        while True:
            reply = await asked.next()
            if reply["kind"] == "result":
                return reply["value"]

    def _receive(self, text: str) -> None:
        reply = json.loads(text)
        id = reply["id"]
        final = reply["kind"] in ("result", "error")
        asked = self._asked.pop(id) if final else self._asked[id]
        asked.replies.put_nowait(reply)


class Asked:
    """A request under way. Its replies wait here: the engine waits for nobody who reads slowly."""

    def __init__(self, client: Client, id: int) -> None:
        self._client = client
        self._id = id
        self.replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def next(self) -> dict[str, Any]:
        """The next reply; the last one is a result. Raises the OctavoError of an error."""
        reply = await self.replies.get()
        if reply["kind"] == "error":
            raise OctavoError(**reply["error"])
        return reply

    def stop(self) -> None:
        """End the answer, which keeps its text."""
        self._client.send("stop", target=self._id)
