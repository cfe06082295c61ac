"""The engine natively: a host that reads a GGUF file from disk and computes with NumPy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.config import LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.grammar import Grammar
from engine.resident import Ready
from engine.tokenizer import Encoder
from engine.tokenizer.native import open_native


class NativeHost:
    """Serves the file or files in ``path`` in shards of ``shard_size`` bytes; ``device`` None makes
    a CPU device."""

    def __init__(
        self, path: Path | list[Path], shard_size: int = 1 << 24, device: Device | None = None
    ) -> None:
        self.shard_size = shard_size
        self.serve(*(path if isinstance(path, list) else [path]))
        self.device = device
        self.cancelled = False
        self.memory: dict[str, str] = {}

    def serve(self, *paths: Path) -> None:
        """From now on the files of another model."""
        self.parts = [path.read_bytes() for path in paths]
        self.data = b"".join(self.parts)
        self.shards = [
            part[start : start + self.shard_size]
            for part in self.parts
            for start in range(0, len(part), self.shard_size)
        ]

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        self.cancelled = False
        progress(len(self.data), len(self.data))
        shards = [{"size": len(shard)} for shard in self.shards]
        parts = [len(part) for part in self.parts]
        return json.dumps({"size": len(self.data), "parts": parts, "shards": shards})

    async def read_shard(self, index: int) -> bytes:
        if self.cancelled:
            raise OctavoError("request.cancelled")
        return self.shards[index]

    def head_of(self, shard: bytes, count: int) -> bytes:
        return shard[:count]

    def cancel_shards(self) -> None:
        self.cancelled = True

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        return self.device or CpuDevice(), ""

    async def open_tokenizer(self, json_text: str) -> Encoder:
        return open_native(json_text)

    async def open_grammar(
        self, schema: str, strict: bool, table: list[bytes], ends: frozenset[int]
    ) -> Grammar:
        raise OctavoError("request.invalid", "There are no grammars here.")

    async def recall(self, key: str) -> str:
        return self.memory.get(key, "")

    async def remember(self, key: str, value: str) -> None:
        self.memory[key] = value

    def now(self) -> float:
        return time.monotonic()


def ready_of(engine: Engine) -> Ready:
    """The model that was used or loaded last, on its device."""
    current = engine._models.current
    assert current and current.ready
    return current.ready
