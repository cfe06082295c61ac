"""Reasoning: cuts the text of an answer into its think part and the answer proper.

A model *knows* the tags if its template writes one of them or its vocabulary has a token for each.
"""

from __future__ import annotations

from typing import Literal

from engine.stops import begun
from engine.tokenizer.vocabulary import THINK_CLOSE, THINK_OPEN

# Where the text stands: before a think part that may come, within it, or past it.
Place = Literal["before", "within", "past"]


class Reasoning:
    """Takes the text as it comes. A think part counts only at the very beginning of an answer, and
    ends with the first closing tag; white space beside the tags belongs to neither part."""

    def __init__(self, place: Place = "past") -> None:
        self._place: Place = place
        self._trims = place == "within"  # white space that comes now is beside a tag
        self._held = ""  # may turn out to be a tag, or white space beside one
        self._told = 0  # characters of it that flush has given out

    def push(self, text: str) -> tuple[str, str]:
        """The parts of reasoning and of the answer that are certain by now."""
        self._held += text
        if self._place == "before":
            self._look_for_opening()
        thought = self._think() if self._place == "within" else ""
        return thought, self._answer() if self._place == "past" else ""

    def flush(self) -> tuple[str, str]:
        """What waited, as the answer ends here. If it is continued, the same object goes on: what
        turns out to be no tag is not given out again."""
        rest = self._held[self._told :]
        self._told = len(self._held)
        return (rest, "") if self._place == "within" else ("", rest)

    def _look_for_opening(self) -> None:
        bare = self._held.lstrip()
        if bare.startswith(THINK_OPEN):
            self._enter("within", bare.removeprefix(THINK_OPEN))
        elif not THINK_OPEN.startswith(bare):
            self._place = "past"

    def _think(self) -> str:
        if self._trims:
            self._held = self._held.lstrip()
        thought, closing, rest = self._held.partition(THINK_CLOSE)
        if closing:
            out = thought.rstrip()[self._told :]
            self._enter("past", rest)
            return out
        certain = self._held[: len(self._held) - begun(self._held, (THINK_CLOSE,))].rstrip()
        return self._give(len(certain))

    def _answer(self) -> str:
        if self._trims:
            self._held = self._held.lstrip()
        return self._give(len(self._held))

    def _enter(self, place: Place, rest: str) -> None:
        """Go on behind a tag."""
        self._place, self._held, self._told, self._trims = place, rest, 0, True

    def _give(self, count: int) -> str:
        """The first ``count`` characters that are held, less those given out before."""
        out, self._held = self._held[self._told : count], self._held[count:]
        self._told = max(0, self._told - count)
        self._trims = self._trims and not count
        return out
