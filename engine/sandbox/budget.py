"""What a rendering may still do: steps stand for time, bytes for memory."""

from __future__ import annotations

from sys import getsizeof
from typing import Any

from jinja2 import TemplateError, Undefined

MAX_STEPS = 1 << 20
MAX_BYTES = 1 << 26  # of all texts and lists that one rendering makes
CHARACTER_BYTES = 4  # of the widest: one of them widens a whole text
GROWTH = 3  # a character escaped for JSON, for HTML or in a repr takes twelve bytes at most


class Budget:
    """What a rendering may still do."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin a new rendering."""
        self._steps, self._bytes = MAX_STEPS, MAX_BYTES

    def step(self, count: int) -> None:
        """Pay for time."""
        self._steps -= count
        if self._steps < 0:
            raise TemplateError("it runs for too long")

    def room(self, nbytes: int) -> None:
        """Check that a value of ``nbytes`` could be paid for."""
        if nbytes > self._bytes:
            raise TemplateError("it makes too much text")

    def make(self, nbytes: int) -> None:
        """Pay for memory."""
        self.room(nbytes)
        self._bytes -= nbytes

    def weigh(self, value: Any) -> int:
        """Bytes of a value and all that is in it, as often as it is in it: a list that holds
        another one twice is short, but its text is not."""
        total, rest = 0, [value]
        while rest:
            item = rest.pop()
            total += bytes_of(item)
            if isinstance(item, dict):
                rest += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | type({}.items()) | type({}.values())):
                rest += item
            if total > self._bytes:
                self.room(total)
        return total

    def text(self, value: Any) -> int:
        """Bytes that ``value`` takes as a text, at most."""
        if isinstance(value, str):
            return bytes_of(value)
        if value is None or isinstance(value, int | float | Undefined):
            return 2 * getsizeof(value)
        return GROWTH * self.weigh(value)


def bytes_of(value: Any) -> int:
    """Of a value without what is in it."""
    return 64 + CHARACTER_BYTES * len(value) if isinstance(value, str) else getsizeof(value)
