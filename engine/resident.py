"""The models that are loaded, and which of them are on a device: these share its memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from engine.backends.base import Device
from engine.config import LoadConfig
from engine.economy import Economy
from engine.errors import OctavoError
from engine.loader import Host, LoadedModel, StageProgress, load
from engine.recovery import News, Open, Recovery
from engine.room import Memory, Resident, Share
from engine.scheduler import Scheduler


@dataclass(frozen=True)
class Ready:
    """A model on its device, with the pace of that."""

    model: LoadedModel
    scheduler: Scheduler

    @classmethod
    def of(cls, model: LoadedModel) -> Ready:
        """A model that was just loaded."""
        traits = model.device.traits
        # The CPU computes a burst when it is waited for: a second one in flight would seem to take
        # no time at all, and the next be far too long.
        in_flight = 1 if traits.kind == "cpu" else 2
        scheduler = Scheduler(traits.chunk, model.context, in_flight)
        if model.prefill_sample:
            scheduler.prefill_pace.measured(*model.prefill_sample)
        return cls(model, scheduler)


@dataclass(eq=False)
class Slot(Resident):
    """A loaded model. ``ready`` is None while it is swapped out."""

    config: LoadConfig
    ready: Ready | None = None
    sha256: str = ""  # of the file; empty if its manifest does not say
    recovery: Recovery = field(default_factory=Recovery)
    about: dict[str, Any] = field(default_factory=dict)  # see ``describe``
    noun: ClassVar[str] = "model"
    saving: ClassVar[str] = "choose a smaller model or a shorter context"

    @property
    def key(self) -> str:
        """The name that it was loaded by."""
        return self.config.model

    @property
    def device(self) -> Device | None:
        """The model's own."""
        return self.ready.model.device if self.ready else None

    def free(self) -> None:
        """Close the model."""
        if self.ready:
            self.describe()
            self.ready.model.close()
            self.ready = None

    def describe(self) -> dict[str, Any]:
        """Device, model and memory, as they cross to the page."""
        if self.ready:
            self.about = describe(self.ready.model)
            return self.about
        return self.about | {"memory_bytes": 0, "memory": {}}

    def summarize(self) -> dict[str, Any]:
        """One of the loaded models, as it crosses to the page."""
        about = self.describe()
        return {
            "model": self.key,
            "name": about["model"]["name"],
            "resident": self.ready is not None,
            "memory_bytes": about["memory_bytes"],
            "answers": self.uses,
        }


class Models:
    """Loaded models, the one loaded last at the end, by the names that they were loaded by."""

    def __init__(
        self,
        host: Host,
        memory: Memory,
        rehearse: Callable[[Ready], Awaitable[None]],
        tell: Callable[[Slot, News], None],
    ) -> None:
        self.host = host
        self._memory = memory
        self._tell = tell
        self._by_key: dict[str, Slot] = {}
        self._rehearse = rehearse

    def __iter__(self) -> Iterator[Slot]:
        return iter(dict.fromkeys(self._by_key.values()))

    @property
    def current(self) -> Slot | None:
        """The model that was used or loaded last."""
        return max(self, key=lambda slot: slot.used, default=None)

    def find(self, key: str | None) -> Slot:
        """The model of this name, or the one that was loaded last; OctavoError
        engine.not_loaded."""
        if not self._by_key:
            raise OctavoError("engine.not_loaded", hint="Load a model first.")
        if key is None:
            return next(reversed(self._by_key.values()))
        if key not in self._by_key:
            raise OctavoError("engine.not_loaded", f"The model {key!r} is not loaded.", "Load it.")
        return self._by_key[key]

    def named(self, key: str | None) -> list[Slot]:
        """The model of this name, if there is one; all of them without a name."""
        return [slot for slot in self if key is None or self._by_key.get(key) is slot]

    async def load(
        self,
        config: LoadConfig,
        progress: StageProgress,
        stop: Callable[[list[Slot]], Awaitable[None]],
    ) -> LoadedModel:
        """Load a model, within the budget that ``config`` gives to all of them, or in their place.
        When all but weights and memory is known to be right, ``stop`` ends the use of those that
        it takes the place of; in the end, of others that are the same file, as far as manifests
        tell: their names become names of this one. If it fails, what is left, and the budget, are
        as they were."""
        slot, budget = Slot(config), self._memory.budget

        async def give_way(nbytes: int) -> None:
            self._memory.check(slot, nbytes, config.memory_bytes)
            alone = config.memory_bytes is None
            gone = list(self) if alone else self.named(config.model)
            await stop(gone)
            for other in gone:
                self._memory.swap_out(other)
            if alone:
                self._by_key.clear()
            self._memory.budget = config.memory_bytes

        async with self._memory.turn():
            with self._memory.coming(slot):
                try:
                    ready = await self._open(slot, config, progress, self._rehearse, give_way)
                    twins = [other for other in self if other.sha256 == slot.sha256 != ""]
                    await stop(twins)
                except BaseException:
                    self._memory.swap_out(slot)
                    self._memory.budget = budget if self._by_key else None
                    raise
            for twin in twins:
                self._memory.swap_out(twin)
            self._by_key.pop(config.model, None)
            names = [name for name, other in self._by_key.items() if other in twins]
            others = {name: other for name, other in self._by_key.items() if other not in twins}
            self._by_key = others | dict.fromkeys([*names, config.model], slot)
            return ready.model

    async def enter(self, slot: Slot, stopped: Callable[[], bool]) -> Ready | None:
        """Have the model on its device until it is left; one that is swapped out comes back, for
        which others' answers may have to end. None if stopped before.

        Raises OctavoError memory.budget if there is not the memory, or what ``load`` raises."""
        entered = await self._memory.enter(slot, lambda: self._bring(slot, stopped), stopped)
        return slot.ready if entered else None

    def lost(self, slot: Slot) -> None:
        """The device of a model is gone; who uses it enters again."""
        slot.recovery.losses += 1
        self._memory.swap_out(slot)

    def drop(self, slot: Slot) -> None:
        """It is loaded no longer."""
        self._memory.swap_out(slot)
        self._by_key = {key: other for key, other in self._by_key.items() if other is not slot}
        if not self._by_key:
            self._memory.budget = None

    async def _bring(self, slot: Slot, stopped: Callable[[], bool]) -> None:
        """Load a model again, unless that is stopped."""
        # What was measured once is known.
        config = replace(slot.config, tune=slot.config.tune and None)
        opening = asyncio.ensure_future(self._open(slot, config, lambda *_: None))
        try:
            if await self._memory.changed.outlasts(opening, stopped):
                opening.result()
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    async def _open(
        self,
        slot: Slot,
        config: LoadConfig,
        progress: StageProgress,
        rehearse: Callable[[Ready], Awaitable[None]] | None = None,
        give_way: Callable[[int], Awaitable[None]] | None = None,
    ) -> Ready:
        """Load a model, again and again if its device is lost (see ``Recovery.load``), and with
        less memory if the device has not enough. OctavoError memory.device if that does not help,
        and neither does the room of idle models."""

        async def once(opener: Open, economy: Economy) -> Ready:
            try:
                share = Share(self._memory, slot, give_way)
                model = await load(self.host, config, progress, share, opener, economy)
                slot.ready, slot.sha256 = Ready.of(model), model.sha256
                if rehearse:
                    await rehearse(slot.ready)
                return slot.ready
            except BaseException:
                self._memory.swap_out(slot)
                raise
            finally:
                slot.reserved = 0

        async def attempt(opener: Open) -> Ready:
            return await self._memory.insist(slot, partial(once, opener))

        recovery = slot.recovery
        ready = await recovery.load(attempt, self.host, config, partial(self._tell, slot))
        if recovery.losses:
            self._tell(slot, News("ready", recovery.losses, slot.describe()["device"]))
        return ready


def describe(model: LoadedModel) -> dict[str, Any]:
    """Device, model and memory of a loaded model, as it crosses to the page."""
    traits, memory = model.traits, model.device.memory()
    return {
        "device": {
            "kind": traits.kind,
            "name": traits.name,
            "software": traits.software,
            "activations": traits.activations,
            "reason": model.device_reason,
        },
        "model": {
            "name": model.name,
            "architecture": model.config.architecture,
            "context": model.context,
            "parameters": model.config.parameters,
            "bytes": model.file_bytes,
            "sampling": dict(model.sampling),
        },
        "memory_bytes": sum(memory.values()),
        "memory": dict(memory),
    }
