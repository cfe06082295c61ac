"""The worker's messages, as a page would send and get them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from engine.worker import Worker
from tests.conftest import ROOT
from tests.native import NativeHost


class Client:
    """Sends requests to a Worker and collects its messages."""

    def __init__(self, host: NativeHost | Path = ROOT / "tests/golden/tiny.gguf") -> None:
        self.messages: list[dict[str, Any]] = []
        host = NativeHost(host) if isinstance(host, Path) else host
        self.worker = Worker(host, lambda text: self.messages.append(json.loads(text)))
        self._id = 0

    def send(self, kind: Any, **content: Any) -> int:
        self._id += 1
        self.worker.handle(json.dumps({"id": self._id, "kind": kind, **content}))
        return self._id

    async def ended(self, id: Any) -> dict[str, Any]:
        """The result or error of a request."""
        while True:
            for message in self.messages:
                if message["id"] == id and message["kind"] in ("result", "error"):
                    return message
            await asyncio.sleep(0)

    async def ask(self, kind: Any, **content: Any) -> dict[str, Any]:
        return await self.ended(self.send(kind, **content))

    def texts(self, id: int, kind: str = "delta") -> str:
        return "".join(m["text"] for m in self.messages if m["id"] == id and m["kind"] == kind)
