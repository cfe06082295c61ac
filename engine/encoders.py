"""The encoder that is loaded: one at a time, loaded when it is first asked, beside the models that
answer. It shares the memory with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from engine.backends.base import Device
from engine.config import LoadConfig
from engine.economy import Economy
from engine.encoder import SentenceEncoder, load_encoder
from engine.errors import OctavoError, as_octavo_error
from engine.loader import Host, StageProgress
from engine.room import CrowdedError, Memory, Resident, Share

GPU_LOST = ("gpu.lost", "gpu.stalled")


@dataclass(eq=False)
class Place(Resident):
    """Where an encoder is, None while there is none, and what it is loaded by."""

    config: LoadConfig | None = None
    encoder: SentenceEncoder | None = None
    noun: ClassVar[str] = "encoder"
    saving: ClassVar[str] = "choose a smaller encoder or shorter texts"

    @property
    def device(self) -> Device | None:
        """The encoder's own."""
        return self.encoder.device if self.encoder else None

    def free(self) -> None:
        """Close the encoder."""
        if self.encoder:
            self.encoder.close()
        self.encoder = None


class Encoders:
    """Answers requests for embeddings, one after another."""

    def __init__(self, host: Host, memory: Memory) -> None:
        self._host = host
        self._memory = memory
        self._place = Place()
        self._turn = asyncio.Lock()
        # By the asker's key, each with the name of its encoder.
        self._tasks: dict[int, tuple[str, asyncio.Task[Any]]] = {}

    async def create(
        self, config: LoadConfig, texts: Sequence[str], progress: StageProgress, key: int
    ) -> dict[str, Any]:
        """Embeddings of texts in OpenAI's shape, by the encoder that ``config`` names. Its load
        waits while a model is loaded or comes back.

        Raises OctavoError request.cancelled if stopped, memory.budget, memory.device; a lost GPU is
        asked for once more.
        """
        task = asyncio.current_task()
        assert task
        self._tasks[key] = config.model, task
        try:
            return await self._create(config, texts, progress)
        except asyncio.CancelledError:
            raise OctavoError("request.cancelled") from None
        finally:
            del self._tasks[key]
            self._memory.ended.fire()

    def describe(self) -> dict[str, Any] | None:
        """The encoder that is loaded, and its bytes on the device by purpose."""
        encoder, config = self._place.encoder, self._place.config
        if not (encoder and config):
            return None
        memory = dict(encoder.device.memory())
        name = {"model": config.model, "name": encoder.name}
        return {**name, "memory_bytes": sum(memory.values()), "memory": memory}

    def stop(self, key: int | None = None) -> bool:
        """Stop the request with this key, or all; whether there was one."""
        told = [task.cancel() for k, (_, task) in self._tasks.items() if key in (None, k)]
        return any(told)

    async def unload(self, model: str | None = None) -> bool:
        """Stop requests to the encoder of this name, and free it, or any; whether there was one."""
        meant = [task for name, task in self._tasks.values() if model in (None, name)]
        for task in meant:
            task.cancel()
        if meant:
            await asyncio.wait(meant)
        encoder, config = self._place.encoder, self._place.config
        is_there = bool(encoder and config and model in (None, config.model))
        if is_there and not self._place.uses:  # by one who asked for it meanwhile
            self._memory.swap_out(self._place)
        return is_there or bool(meant)

    async def _create(
        self, config: LoadConfig, texts: Sequence[str], progress: StageProgress
    ) -> dict[str, Any]:
        async with self._turn:
            place = self._place if self._place.config == config else Place(config=config)

            async def attempt(_: Economy) -> dict[str, Any]:
                return await self._with_room(place, texts, progress)

            for is_last in (False, True):
                try:
                    return await self._memory.insist(place, attempt)
                except Exception as error:
                    if as_octavo_error(error).code not in GPU_LOST:
                        raise
                    self._memory.swap_out(place)
                    if is_last:
                        raise
        raise AssertionError

    async def _with_room(
        self, place: Place, texts: Sequence[str], progress: StageProgress
    ) -> dict[str, Any]:
        """With as much room as the texts turn out to need."""
        least = 0
        while True:
            try:
                return await self._once(place, texts, progress, least)
            except CrowdedError as error:
                least = error.nbytes

    async def _once(
        self, place: Place, texts: Sequence[str], progress: StageProgress, least: int
    ) -> dict[str, Any]:
        """On its device, with room for ``least`` bytes in all. CrowdedError if the texts need more
        than there is."""

        async def give_way(nbytes: int) -> None:
            self._memory.check(place, nbytes, self._memory.budget)
            if self._place is not place:
                self._memory.swap_out(self._place)
                self._place = place

        async def bring() -> None:
            assert place.config
            share = Share(self._memory, place, give_way)
            place.encoder = await load_encoder(self._host, place.config, progress, share, least)

        await self._memory.enter(place, bring, least=least)
        assert place.encoder
        try:
            return await place.encoder.create(texts)
        finally:
            self._memory.leave(place)
