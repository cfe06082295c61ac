"""Replies that come in pieces, and the server-sent events in them (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from typing import Protocol

from engine.errors import OctavoError

MAX_EVENT = 1 << 20  # characters


class Exchange(Protocol):
    """A request to a server, under way. Whatever fails is OctavoError remote.unavailable."""

    async def status(self) -> int:
        """The status of the reply, when it begins."""
        ...

    async def next(self) -> str:
        """The next piece of its text; empty at its end."""
        ...

    def close(self) -> None:
        """Break it off, if it has not ended."""
        ...


class Events:
    """Takes a text as it comes; ``push`` gives the data of the events that are whole by now."""

    def __init__(self) -> None:
        self._rest = ""  # of a line
        self._data: list[str] = []  # of an event

    def push(self, text: str) -> list[str]:
        """Raises OctavoError remote.invalid for an event without an end."""
        text = self._rest + text
        cut = "\r" if text.endswith("\r") else ""  # its \n may follow
        lines = text.removesuffix(cut).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + cut
        events = [event for line in lines if (event := self._line(line)) is not None]
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT:
            raise OctavoError("remote.invalid", "The remote server sends an event without an end.")
        return events

    def _line(self, line: str) -> str | None:
        """The data of the event that a line ends, if it has any."""
        if line:
            name, _, value = line.partition(":")
            if name == "data":
                self._data.append(value.removeprefix(" "))
            return None
        data, self._data = self._data, []
        return "\n".join(data) if data else None
