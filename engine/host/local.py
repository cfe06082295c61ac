"""The engine on the build machine: a host that reads GGUF files from disk and has the CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.backends.native import Native
from engine.config import LoadConfig
from engine.errors import OctavoError
from engine.events import Exchange
from engine.grammar import Grammar
from engine.host.fetch import LocalExchange
from engine.tokenizer import Encoder
from engine.tokenizer.native import open_native

SHARD_BYTES = 1 << 24


class LocalHost:
    """Serves the model in ``files`` (all files of a split one, in order) in shards of at most
    ``shard_size`` bytes, whichever model is asked for; with the SIMD kernels of ``library``, if
    there is one, the CPU device takes them."""

    def __init__(
        self, files: Sequence[Path], library: Path | None = None, shard_size: int = SHARD_BYTES
    ) -> None:
        self._shard_size = shard_size
        self._cut(files)
        self._library = library
        self._memory: dict[str, str] = {}

    def _cut(self, files: Sequence[Path]) -> None:
        self._parts = [path.stat().st_size for path in files]
        self._shards = [
            (path, start, min(self._shard_size, size - start))
            for path, size in zip(files, self._parts, strict=True)
            for start in range(0, size, self._shard_size)
        ]

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        """The manifest of the files; nothing has to be downloaded."""
        size = sum(self._parts)
        progress(size, size)
        shards = [{"size": size} for _, _, size in self._shards]
        return json.dumps({"size": size, "parts": self._parts, "shards": shards})

    async def read_shard(self, index: int) -> bytes:
        """A part of a file. Raises OctavoError shard.file if it cannot be read."""
        return _read(*self._shards[index])

    def head_of(self, shard: bytes, count: int) -> bytes:
        """The first bytes of a shard."""
        return shard[:count]

    def cancel_shards(self) -> None:
        """Nothing goes on by itself."""

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        """The CPU. Raises OctavoError gpu.unavailable if only a GPU would do."""
        if config.device == "gpu":
            raise OctavoError("gpu.unavailable", "Here the CPU computes.")
        simd = self._library if config.activations != "f32" else None
        return CpuDevice(native=Native(simd, "SIMD") if simd else None), ""

    async def open_tokenizer(self, json_text: str) -> Encoder:
        """The Rust tokenizer as Python's package."""
        return open_native(json_text)

    async def open_grammar(
        self, schema: str, strict: bool, table: list[bytes], ends: frozenset[int]
    ) -> Grammar:
        """There is none: XGrammar is here only as the browser's WebAssembly."""
        raise OctavoError(
            "request.invalid",
            "response_format needs grammars, and there are none here.",
            "Answers of a form are given in the browser.",
        )

    def fetch(self, url: str, headers: Mapping[str, str], body: str | None) -> Exchange:
        """By Python's own client."""
        return LocalExchange(url, headers, body)

    async def recall(self, key: str) -> str:
        """What this process kept under ``key``."""
        return self._memory.get(key, "")

    async def remember(self, key: str, value: str) -> None:
        """Kept while this process runs."""
        self._memory[key] = value

    def now(self) -> float:
        """Seconds of the system's clock."""
        return time.monotonic()


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(size)
    except OSError as error:
        raise OctavoError("shard.file", f"{path.name} cannot be read: {error.strerror}.") from error
    if len(data) < size:
        raise OctavoError("shard.file", f"{path.name} has become shorter.")
    return data
