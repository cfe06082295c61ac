"""The models that are loaded, and which of them are on a device: these fit into one budget of
memory. One that has to make room is swapped out; it comes back, from the browser's cache, when it
is used."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from engine.config import LoadConfig
from engine.economy import Economy
from engine.errors import OctavoError, as_octavo_error
from engine.loader import Host, LoadedModel, StageProgress, load
from engine.recovery import News, Open, Recovery
from engine.scheduler import Scheduler
from engine.turns import Signal


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
class Slot:
    """A loaded model. ``ready`` is None while it is swapped out; ``uses`` counts answers that need
    it where it is, ``used`` says when it was used last."""

    config: LoadConfig
    ready: Ready | None = None
    uses: int = 0
    used: int = 0
    reserved: int = 0  # bytes that it is about to hold in all
    sha256: str = ""  # of the file; empty if its manifest does not say
    recovery: Recovery = field(default_factory=Recovery)
    about: dict[str, Any] = field(default_factory=dict)  # see ``describe``

    @property
    def key(self) -> str:
        """The name that it was loaded by."""
        return self.config.model

    @property
    def bytes(self) -> int:
        """Of memory, those that it is about to take included."""
        held = sum(self.ready.model.device.memory().values()) if self.ready else 0
        return max(held, self.reserved)

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
        rehearse: Callable[[Ready], Awaitable[None]],
        tell: Callable[[Slot, News], None],
    ) -> None:
        self.host = host
        self._tell = tell
        self._by_key: dict[str, Slot] = {}
        self.budget: int | None = None  # bytes
        self.changed = Signal()  # somebody leaves a model or is to stop, or it is another's turn
        self._rehearse = rehearse
        self._clock = count(1)
        self._turns: deque[object] = deque()  # of those who change what is on the device
        self._coming: Slot | None = None  # loaded for the first time
        self._short = False  # answers are waited for, for their models' room

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

    async def load(self, config: LoadConfig, progress: StageProgress) -> LoadedModel:
        """Load a model, within the budget that ``config`` gives to all of them. Nobody may use one
        of the same name. If it fails, all others, and the budget, are as they were."""
        slot, budget = Slot(config), self.budget
        async with self._turn():
            for same in self.named(config.model):
                self.swap_out(same)
            self._coming, self.budget = slot, config.memory_bytes
            try:
                ready = await self._open(slot, config, progress, self._rehearse)
            except BaseException:
                self.swap_out(slot)
                self.budget = budget
                raise
            finally:
                self._coming = None
            self._by_key.pop(config.model, None)
            self._by_key[config.model] = slot
            slot.used = next(self._clock)
            return ready.model

    def twins(self, key: str) -> list[Slot]:
        """Models of other names that are the same file, as far as its manifest tells."""
        slot = self._by_key[key]
        return [s for s in self if s is not slot and s.sha256 == slot.sha256 != ""]

    def join(self, twin: Slot, key: str) -> None:
        """From now on all names of a model that nobody uses are names of the one with this key."""
        self.swap_out(twin)
        names = [name for name, slot in self._by_key.items() if slot is twin]
        self._by_key = dict.fromkeys(names, self._by_key[key]) | {
            name: slot for name, slot in self._by_key.items() if slot is not twin
        }

    async def enter(self, slot: Slot, stopped: Callable[[], bool]) -> Ready | None:
        """Have the model on its device until ``leave``; one that is swapped out comes back, for
        which others' answers may have to end. None if stopped before.

        Raises OctavoError memory.budget if there is not the memory, or what ``load`` raises."""
        if not slot.ready or self._short:
            async with self._turn(stopped) as mine:
                if not mine:
                    return None
                if not slot.ready and not await self._bring(slot, stopped):
                    return None
                return self._entered(slot)
        return self._entered(slot)

    def _entered(self, slot: Slot) -> Ready | None:
        slot.uses += 1
        slot.used = next(self._clock)
        return slot.ready

    def leave(self, slot: Slot) -> None:
        """An answer no longer needs the model."""
        slot.uses -= 1
        self.changed.fire()

    def lost(self, slot: Slot) -> None:
        """The device of a model is gone; who uses it enters again."""
        slot.recovery.losses += 1
        self.swap_out(slot)

    def swap_out(self, slot: Slot) -> None:
        """Free the device of a model that nobody uses, or whose device was lost."""
        if slot.ready:
            slot.describe()
            slot.ready.model.close()
            slot.ready = None
            self.changed.fire()

    def drop(self, slot: Slot) -> None:
        """It is loaded no longer."""
        self.swap_out(slot)
        self._by_key = {key: other for key, other in self._by_key.items() if other is not slot}
        if not self._by_key:
            self.budget = None

    @asynccontextmanager
    async def _turn(self, stopped: Callable[[], bool] = lambda: False) -> AsyncIterator[bool]:
        """One after the other: the host opens one model at a time, and who waits for room gets it
        before those who come later. False if stopped before it is one's turn."""
        me = object()
        self._turns.append(me)
        try:
            while self._turns[0] is not me and not stopped():
                await self.changed.wait()
            yield self._turns[0] is me
        finally:
            self._turns.remove(me)
            self.changed.fire()

    async def _bring(self, slot: Slot, stopped: Callable[[], bool]) -> bool:
        """Load a model again; whether that was not stopped."""
        # What was measured once is known.
        config = replace(slot.config, tune=slot.config.tune and None)
        opening = asyncio.ensure_future(self._open(slot, config, lambda *_: None))
        try:
            if await self.changed.outlasts(opening, stopped):
                opening.result()
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        return slot.ready is not None

    async def _open(
        self,
        slot: Slot,
        config: LoadConfig,
        progress: StageProgress,
        rehearse: Callable[[Ready], Awaitable[None]] | None = None,
    ) -> Ready:
        """Load a model, again and again if its device is lost (see ``Recovery.load``), and with
        less memory if the device has not enough. OctavoError memory.device if that does not help,
        and neither does the room of idle models."""

        async def once(opener: Open, economy: Economy) -> Ready:
            try:
                share = _Share(self, slot)
                model = await load(self.host, config, progress, share, opener, economy)
                slot.ready, slot.sha256 = Ready.of(model), model.sha256
                if rehearse:
                    await rehearse(slot.ready)
                return slot.ready
            except BaseException:
                self.swap_out(slot)
                raise
            finally:
                slot.reserved = 0

        async def attempt(opener: Open) -> Ready:
            economy = Economy()
            while True:
                try:
                    return await once(opener, economy)
                except Exception as error:
                    if as_octavo_error(error).code != "memory.device":
                        raise
                    if not economy.tighten():
                        idle = self._idle(slot)
                        if not idle:
                            raise
                        self.swap_out(idle[0])
                        economy = Economy()

        recovery = slot.recovery
        ready = await recovery.load(attempt, self.host, config, partial(self._tell, slot))
        if recovery.losses:
            self._tell(slot, News("ready", recovery.losses, slot.describe()["device"]))
        return ready

    async def make_room(self, slot: Slot, nbytes: int) -> None:
        """Reserve what a model will hold in all: idle ones are swapped out, the one that was used
        longest ago first, and if that is not enough, answers are waited for."""
        if self.budget is not None and nbytes > self.budget:
            raise OctavoError(
                "memory.budget",
                f"The model needs {nbytes:,} bytes; the budget is {self.budget:,}.",
                "Raise memory_bytes, or choose a smaller model or a shorter context.",
            )
        try:
            while not self.fits(slot, nbytes):
                self._short = True
                await self.changed.wait()
        finally:
            self._short = False

    def fits(self, slot: Slot, nbytes: int) -> bool:
        """Reserve what a model will hold in all, if there is room but for idle models; these are
        swapped out then."""
        if self.budget is not None:
            others = [s for s in (*self, self._coming) if s and s is not slot]
            excess = sum(s.bytes for s in others) + nbytes - self.budget
            idle = self._idle(slot)
            if excess > sum(s.bytes for s in idle):
                return False
            for other in idle:
                if excess <= 0:
                    break
                excess -= other.bytes
                self.swap_out(other)
        slot.reserved = nbytes
        return True

    def _idle(self, slot: Slot) -> list[Slot]:
        """Other models on a device that nobody uses, the one that was used longest ago first."""
        idle = [s for s in self if s.ready and not s.uses and s not in (slot, self._coming)]
        return sorted(idle, key=lambda s: s.used)


@dataclass(frozen=True)
class _Share:
    """A model's part of the memory, as the loader asks for it."""

    models: Models
    slot: Slot

    async def take(self, nbytes: int) -> None:
        await self.models.make_room(self.slot, nbytes)

    @contextmanager
    def more(self, nbytes: int) -> Iterator[bool]:
        try:
            yield self.models.fits(self.slot, self.slot.bytes + nbytes)
        finally:
            self.slot.reserved = 0


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
