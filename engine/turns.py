"""Whose turn it is: several answers share one device, which holds the state of one step. And what
wakes those who wait for something to change."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """One may go on at a time; the others wait in the order in which they came."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether anybody waits for a turn."""
        return any(not future.done() for future in self._waiting)

    async def take(self) -> None:
        """Wait for a turn."""
        if not self._taken:
            self._taken = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give()  # the turn came in the same moment
            raise

    def give(self) -> None:
        """End a turn: the next in line begins."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._taken = False


class Signal:
    """Something has changed: whoever waits looks again."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake all who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def wait(self) -> asyncio.Future[None]:
        """Until the next change after this call."""
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    async def outlasts(self, work: asyncio.Future[Any], stopped: Callable[[], bool]) -> bool:
        """Wait for work until ``stopped``, which is asked at each change; whether it is done."""
        while not (work.done() or stopped()):
            await asyncio.wait([work, self.wait()], return_when=asyncio.FIRST_COMPLETED)
        return work.done()

    async def result(
        self, work: Awaitable[T], stopped: Callable[[], bool], late: Callable[[T], None]
    ) -> T | None:
        """The outcome of work; None if ``stopped`` first, and then ``late`` gets it if it comes
        all the same."""

        def forgotten(future: asyncio.Future[T]) -> None:
            if not future.cancelled() and not future.exception():
                late(future.result())

        future = asyncio.ensure_future(work)
        try:
            return future.result() if await self.outlasts(future, stopped) else None
        finally:
            if not future.done():
                future.add_done_callback(forgotten)
