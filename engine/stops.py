"""Stop strings: where an answer ends although the model would go on."""

from __future__ import annotations

from collections.abc import Sequence


def begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that begins one of ``marks`` and is not all of it."""
    longest = max(map(len, marks), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(len(mark) > count and mark.startswith(text[-count:]) for mark in marks):
            return count
    return 0


class StopStrings:
    """Passes text on up to the first stop string; what may be the beginning of one waits."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self._told = 0  # characters of what is held that were passed on already
        self.found = False

    def follow(self, tail: str) -> None:
        """The text continues one that ended with ``tail`` and was passed on: a stop string may
        have begun in it."""
        self._told = begun(tail, self._stops)
        self._held = tail[len(tail) - self._told :]

    def _new(self, text: str) -> str:
        """``text``, which was held, without what was passed on already."""
        new, self._told = text[self._told :], max(0, self._told - len(text))
        return new

    def push(self, text: str) -> str:
        """The text that is certain by now; ``found`` tells whether a stop string came."""
        if not self._stops or self.found:
            return "" if self.found else text
        self._held += text
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.found = True
            out, self._held = self._held[: min(places)], ""
            return self._new(out)
        certain = len(self._held) - begun(self._held, self._stops)
        out, self._held = self._held[:certain], self._held[certain:]
        return self._new(out)

    def flush(self) -> str:
        """What waited, as nothing more will come."""
        out, self._held = self._held, ""
        return self._new(out)
