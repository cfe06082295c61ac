"""The memory of devices, within one budget for the models that are loaded and the encoder. One that
has to make room is swapped out; it comes back, from the browser's cache, when it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Protocol, TypeVar

from engine.backends.base import Device
from engine.economy import Economy
from engine.errors import OctavoError, as_octavo_error
from engine.turns import Signal

T = TypeVar("T")


class Room(Protocol):
    """The part of the memory that one of those has who share it."""

    async def take(self, nbytes: int) -> None:
        """Before it holds ``nbytes`` in all: wait until it may. OctavoError memory.budget if it
        never will."""
        ...

    def more(self, nbytes: int) -> AbstractContextManager[bool]:
        """Whether it may hold ``nbytes`` more while this lasts; what it has, it keeps."""
        ...


class Boundless:
    """Room without a limit."""

    async def take(self, nbytes: int) -> None:
        """At once."""

    def more(self, nbytes: int) -> AbstractContextManager[bool]:
        """Always."""
        return nullcontext(True)


class CrowdedError(Exception):
    """Others have the memory for now; with it, one would hold ``nbytes`` in all."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"{nbytes:,} bytes")
        self.nbytes = nbytes


@dataclass(eq=False, kw_only=True)
class Resident:
    """What is on a device or can come back to one. ``uses`` counts those who need it where it is,
    ``used`` says when it was used last."""

    uses: int = 0
    used: int = 0
    reserved: int = 0  # bytes that it is about to hold in all
    noun: ClassVar[str]  # in messages
    saving: ClassVar[str]  # of memory: what a person can do

    @property
    def device(self) -> Device | None:
        """None while it is swapped out."""
        raise NotImplementedError

    def free(self) -> None:
        """Leave the device."""
        raise NotImplementedError

    @property
    def held(self) -> int:
        """Bytes of its device."""
        return sum(self.device.memory().values()) if self.device else 0

    @property
    def bytes(self) -> int:
        """Of memory, those that it is about to take included."""
        return max(self.held, self.reserved)


class Memory:
    """Who is on a device, and who may come there."""

    def __init__(self) -> None:
        self.budget: int | None = None  # bytes
        self.changed = Signal()  # somebody is left or is to stop, or it is another's turn
        self.ended = Signal()  # a request or a load, or it is to stop
        self._there: list[Resident] = []  # on a device, or with room for it
        self._clock = count(1)
        self._turns: deque[object] = deque()  # of those who change who is there
        self._short = False  # somebody waits for others to be left

    async def enter(
        self,
        resident: Resident,
        bring: Callable[[], Awaitable[object]],
        stopped: Callable[[], bool] = lambda: False,
        least: int = 0,
    ) -> bool:
        """Have one on its device until ``leave``, with room for ``least`` bytes in all; ``bring``
        is what brings it there if it is swapped out. Others may have to be left for it. False if
        stopped before. Raises OctavoError memory.budget, and what ``bring`` raises."""
        if resident.device and not least and not self._short:
            self._use(resident)
            return True
        async with self.turn(stopped) as mine:
            if not mine:
                return False
            with self.coming(resident):
                if not resident.device:
                    await bring()
                elif least:
                    await self.make_room(resident, least)
                if resident.device:
                    self._use(resident)
                return resident.device is not None

    def _use(self, resident: Resident) -> None:
        resident.uses += 1
        resident.used = next(self._clock)

    def leave(self, resident: Resident) -> None:
        """Somebody needs it there no longer."""
        resident.uses -= 1
        if not resident.uses:
            resident.reserved = 0
        self.changed.fire()

    @contextmanager
    def coming(self, resident: Resident) -> Iterator[None]:
        """It is not swapped out while it comes to its device."""
        resident.uses += 1
        try:
            yield
            resident.used = next(self._clock)
        finally:
            self.leave(resident)

    def is_used(self, but: Container[Resident]) -> bool:
        """Whether anybody needs one that is there, beside these."""
        return any(one.uses and one not in but for one in self._there)

    def swap_out(self, resident: Resident) -> None:
        """Free the device of one that nobody uses, or whose device was lost."""
        resident.reserved = 0
        if resident in self._there:
            self._there.remove(resident)
        if resident.device:
            resident.free()
            self.changed.fire()

    @asynccontextmanager
    async def turn(self, stopped: Callable[[], bool] = lambda: False) -> AsyncIterator[bool]:
        """One after the other: the host opens one file at a time, and who waits for room gets it
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

    def check(self, resident: Resident, nbytes: int, budget: int | None) -> None:
        """OctavoError memory.budget if one of so many bytes never has room in a budget."""
        if budget is not None and nbytes > budget:
            raise OctavoError(
                "memory.budget",
                f"The {resident.noun} needs {nbytes:,} bytes; the budget is {budget:,}.",
                f"Raise memory_bytes, or {resident.saving}.",
            )

    async def make_room(self, resident: Resident, nbytes: int) -> None:
        """Reserve what one will hold in all, in its turn: idle ones are swapped out, the one that
        was used longest ago first, and if that is not enough, it is waited until others are left.
        """
        self.check(resident, nbytes, self.budget)
        try:
            while not self.fits(resident, nbytes):
                self._short = True
                await self.changed.wait()
        finally:
            self._short = False

    def fits(self, resident: Resident, nbytes: int) -> bool:
        """Reserve what one will hold in all, if there is room but for idle ones; these are swapped
        out then."""
        if self.budget is not None:
            others = [one for one in self._there if one is not resident]
            excess = sum(one.bytes for one in others) + nbytes - self.budget
            idle = self._idle(resident)
            if excess > sum(one.bytes for one in idle):
                return False
            for other in idle:
                if excess <= 0:
                    break
                excess -= other.bytes
                self.swap_out(other)
        resident.reserved = nbytes
        if resident not in self._there:
            self._there.append(resident)
        return True

    def _idle(self, resident: Resident) -> list[Resident]:
        """Others on a device that nobody uses, the one that was used longest ago first."""
        idle = [one for one in self._there if one.device and not one.uses and one is not resident]
        return sorted(idle, key=lambda one: one.used)

    async def insist(self, resident: Resident, attempt: Callable[[Economy], Awaitable[T]]) -> T:
        """The outcome of the first attempt for which the device has the memory: with an economy,
        and then without one idle model more. OctavoError memory.device if that does not help."""
        economy = Economy()
        while True:
            try:
                return await attempt(economy)
            except Exception as error:
                if as_octavo_error(error).code != "memory.device":
                    raise
                if economy.tighten():
                    continue
                idle = self._idle(resident)
                if not idle:
                    raise
                self.swap_out(idle[0])
                economy = Economy()


@dataclass(frozen=True)
class Share:
    """The room of a resident. ``give_way`` is asked before it takes so many bytes: only then goes
    what it takes the place of, if it can have them at all."""

    memory: Memory
    resident: Resident
    give_way: Callable[[int], Awaitable[None]] | None = None

    async def take(self, nbytes: int) -> None:
        """In its turn."""
        if self.give_way:
            await self.give_way(nbytes)
        await self.memory.make_room(self.resident, nbytes)

    @contextmanager
    def more(self, nbytes: int) -> Iterator[bool]:
        """Idle ones are swapped out for it."""
        try:
            yield self.memory.fits(self.resident, self.resident.held + nbytes)
        finally:
            self.resident.reserved = 0
