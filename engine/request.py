"""What was asked of loaded models and has not ended: answers, and whatever else needs one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from engine.answer import Run, Stopped
from engine.errors import OctavoError, as_octavo_error
from engine.resident import Models, Ready, Slot
from engine.room import Memory
from engine.session import NoRoomError

T = TypeVar("T")
# What is made of a model on its device, and may end with any outcome once it is stopped.
Work: TypeAlias = Callable[[Ready, Stopped], Awaitable[T]]


@dataclass(eq=False)
class Request:
    """Something under way on a model, by the ``key`` that its asker knows it by."""

    key: int | None
    asked: float  # when, in seconds
    alone: bool = False  # nothing may be under way beside it
    slot: Slot = field(init=False)  # when it begins
    stopping: bool = False
    waiting: bool = False  # for room in the KV cache: it has none of it
    ready: Ready | None = None  # the model, where it may not be swapped out
    run: Run | None = None


class Requests:
    """All requests under way, in the order in which they came."""

    def __init__(self, models: Models, memory: Memory) -> None:
        self._models = models
        self._memory = memory
        self._requests: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, request: Request) -> None:
        """It is under way until ``end``. OctavoError engine.busy if it or another one wants to be
        alone."""
        if any(other.alone for other in self._requests):
            raise OctavoError("engine.busy", "The model's speed is being measured.")
        if request.alone and self._requests:
            raise OctavoError("engine.busy", hint="Stop it, or wait until it has ended.")
        self._requests.append(request)

    def end(self, request: Request) -> None:
        """It is over, however it went."""
        self._leave(request)
        self._requests.remove(request)
        self._memory.ended.fire()

    async def enter(self, request: Request) -> Ready | None:
        """Its model, on the device until the request ends, waits for room or has lost it; None if
        stopped first."""
        request.ready = await self._models.enter(request.slot, lambda: request.stopping)
        return request.ready

    def _leave(self, request: Request) -> None:
        if request.ready:
            request.ready = None
            self._memory.leave(request.slot)

    async def made(self, request: Request, work: Work[T]) -> tuple[Ready, T] | None:
        """A request's model and what ``work`` makes of it, which begins again if the GPU was lost
        meanwhile; None if stopped first."""
        while ready := await self.enter(request):
            try:
                return ready, await work(ready, lambda: request.stopping)
            except Exception as error:
                if not self.is_lost(request, ready, error):
                    raise
            if request.stopping:
                break
        return None

    def is_lost(self, request: Request, ready: Ready, error: Exception) -> bool:
        """Whether the model was lost under a request, which has left it then. Another may have met
        that first: then this one found model or tokenizer closed, in whatever way."""
        if request.slot.ready is ready:
            if as_octavo_error(error).code != "gpu.lost":
                return False
            self._models.lost(request.slot)
        self._leave(request)
        return True

    async def wait_for_room(self, request: Request, is_loading: bool) -> None:
        """Until another answer ends, or a load, or embeddings, or this one is stopped; its model
        may be swapped out meanwhile. NoRoomError if no other has room."""
        alone = all(r.waiting for r in self._requests if r is not request)
        if alone and not is_loading and not self._memory.is_used(but=list(self._models)):
            raise NoRoomError
        request.waiting = True
        self._leave(request)
        try:
            await self._memory.ended.wait()
        finally:
            request.waiting = False

    def tell_to_stop(self, requests: Iterable[Request]) -> None:
        """Let them end soon, also those that wait."""
        for request in requests:
            request.stopping = True
        self._memory.ended.fire()
        self._memory.changed.fire()

    async def stop_those_of(self, slots: list[Slot]) -> None:
        """Stop all answers of models and wait for their ends."""
        meant = [request for request in self._requests if request.slot in slots]
        self.tell_to_stop(meant)
        while any(request in self._requests for request in meant):
            await self._memory.ended.wait()
