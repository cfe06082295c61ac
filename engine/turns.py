"""Whose turn it is: several answers share one device, which holds the state of one step."""

from __future__ import annotations

import asyncio
from collections import deque


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
