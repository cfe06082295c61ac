"""The engine natively: a host that reads a GGUF file from disk and computes with NumPy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.config import LoadConfig
from engine.errors import OctavoError
from engine.grammar import Grammar
from engine.tokenizer import Encoder
from engine.tokenizer.native import open_native


class NativeHost:
    """Serves the file or files in ``path`` in shards of ``shard_size`` bytes; ``device`` None makes
    a CPU device."""

    def __init__(
        self, path: Path | list[Path], shard_size: int = 1 << 24, device: Device | None = None
    ) -> None:
        self.parts = [p.read_bytes() for p in (path if isinstance(path, list) else [path])]
        self.data = b"".join(self.parts)
        self.shards = [
            part[start : start + shard_size]
            for part in self.parts
            for start in range(0, len(part), shard_size)
        ]
        self.device = device
        self.cancelled = False
        self.memory: dict[str, str] = {}

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
