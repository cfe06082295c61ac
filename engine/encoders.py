"""The encoder that is loaded: one at a time, loaded when it is first asked, beside the models that
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.config import LoadConfig
from engine.encoder import SentenceEncoder, load_encoder
from engine.errors import OctavoError
from engine.loader import Host, StageProgress

GPU_LOST = ("gpu.lost", "gpu.stalled")


class Encoders:
    """Answers requests for embeddings, one after another."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._config: LoadConfig | None = None
        self._encoder: SentenceEncoder | None = None
        self._turn = asyncio.Lock()
        self._tasks: dict[int, asyncio.Task[dict[str, Any]]] = {}  # by the asker's key
        self.is_loading = False

    async def create(
        self,
        config: LoadConfig,
        texts: Sequence[str],
        progress: StageProgress,
        key: int,
        is_free: Callable[[], bool],
    ) -> dict[str, Any]:
        """Embeddings of texts in OpenAI's shape, by the encoder that ``config`` names.

        Raises OctavoError engine.busy if it has to be loaded while ``is_free`` is false,
        request.cancelled if stopped; a lost GPU is asked for once more.
        """
        task = asyncio.ensure_future(self._create(config, texts, progress, is_free))
        self._tasks[key] = task
        try:
            return await task
        except asyncio.CancelledError:
            raise OctavoError("request.cancelled") from None
        finally:
            del self._tasks[key]

    def describe(self) -> dict[str, Any] | None:
        """The encoder that is loaded, and its bytes on the device by purpose."""
        if not (self._encoder and self._config):
            return None
        memory = dict(self._encoder.device.memory())
        name = {"model": self._config.model, "name": self._encoder.name}
        return {**name, "memory_bytes": sum(memory.values()), "memory": memory}

    def stop(self, key: int | None = None) -> bool:
        """Stop a request, or all; whether there was one."""
        tasks = [task for k, task in self._tasks.items() if key in (None, k)]
        for task in tasks:
            task.cancel()
        return bool(tasks)

    async def unload(self, model: str | None = None) -> bool:
        """Stop, and free the encoder of this name, or any; whether there was one."""
        if model is not None and not (self._config and self._config.model == model):
            return False
        self.stop()
        async with self._turn:
            self._free()
        return True

    async def _create(
        self,
        config: LoadConfig,
        texts: Sequence[str],
        progress: StageProgress,
        is_free: Callable[[], bool],
    ) -> dict[str, Any]:
        async with self._turn:
            encoder = await self._loaded(config, progress, is_free)
            try:
                return await encoder.create(texts)
            except OctavoError as error:
                if error.code not in GPU_LOST:
                    raise
            self._free()
            encoder = await self._loaded(config, progress, is_free)
            return await encoder.create(texts)

    async def _loaded(
        self, config: LoadConfig, progress: StageProgress, is_free: Callable[[], bool]
    ) -> SentenceEncoder:
        if self._encoder and self._config == config:
            return self._encoder
        if not is_free():
            raise OctavoError("engine.busy", "A model is being loaded.")
        self._free()
        self.is_loading = True
        try:
            self._encoder = await load_encoder(self._host, config, progress)
        finally:
            self.is_loading = False
        self._config = config
        return self._encoder

    def _free(self) -> None:
        if self._encoder:
            self._encoder.close()
        self._encoder = self._config = None
