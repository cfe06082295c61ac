"""The engine natively, as the tests want it: with any device, and in shards of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.backends.base import Device
from engine.config import LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.host.local import SHARD_BYTES, LocalHost
from engine.plan import Traits
from engine.resident import Ready


class NativeHost(LocalHost):
    """Serves the file or files in ``path`` in shards of ``shard_size`` bytes; ``device`` None makes
    a CPU device that computes with NumPy."""

    def __init__(
        self,
        path: Path | list[Path],
        shard_size: int = SHARD_BYTES,
        device: Device | None = None,
    ) -> None:
        self.shard_size = shard_size
        super().__init__(path if isinstance(path, list) else [path], None, shard_size)
        self.device = device
        self.cancelled = False

    @property
    def memory(self) -> dict[str, str]:
        return self._memory

    def serve(self, *paths: Path) -> None:
        """From now on the files of another model."""
        self._shard_size = self.shard_size
        self._cut(paths)

    @property
    def data(self) -> bytes:
        return b"".join(path.read_bytes() for path in dict.fromkeys(p for p, _, _ in self._shards))

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        self.cancelled = False
        return await super().open_shards(manifest, progress)

    async def read_shard(self, index: int) -> bytes:
        if self.cancelled:
            raise OctavoError("request.cancelled")
        return await super().read_shard(index)

    def cancel_shards(self) -> None:
        self.cancelled = True

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        return (self.device, "") if self.device else await super().open_device(config)


def ready_of(engine: Engine) -> Ready:
    """The model that was used or loaded last, on its device."""
    current = engine._models.current
    assert current and current.ready
    return current.ready


async def unchecked(device: object, build: Any, traits: Traits, memory: object) -> Any:
    """In place of ``engine.checks.right_plans``, for devices that only pretend to compute."""
    return build(traits), traits
