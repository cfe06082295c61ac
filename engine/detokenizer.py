"""Detokenizer: the token ids of an answer, as they come -> its think part and its text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import MAX_STOP
from engine.prompt import Prompt
from engine.stops import StopStrings
from engine.tokenizer.decoder import StreamDecoder


@dataclass(frozen=True)
class NewText:
    """What new ids say, and those of them that belong to the answer."""

    ids: list[int]
    thought: str
    text: str
    ended: bool  # by an end token or a stop string


class Detokenizer:
    """Bytes become characters, a think part is cut off, and what follows it ends before a stop
    string. ``table`` has each token's bytes, ``ends`` are the ids that end an answer; the text goes
    on where ``begin`` says that it stands."""

    def __init__(
        self,
        table: Sequence[bytes],
        ends: frozenset[int],
        stops: tuple[str, ...],
        begin: Prompt,
    ) -> None:
        self._begin = begin
        self._ends = ends
        self._decoder = StreamDecoder(table, begin.strip_space)
        self._decoder.follow(begin.rest)
        self._reasoning = copy.copy(begin.reasoning)
        self._stops = StopStrings(stops)
        self._stops.follow(begin.tail)
        # Where no text ends an answer, all ids are decoded at once, which is quicker.
        self._one_by_one = bool(stops)

    def so_far(self, ids: list[int], text: str) -> Prompt:
        """Where it stands after all ``ids`` and their ``text``, to go on there."""
        begin, decoder = self._begin, self._decoder
        answered, tail = begin.answered + len(ids), (begin.tail + text)[-MAX_STOP:]
        ids = begin.ids + ids
        return Prompt(ids, self._reasoning, answered, decoder.rest, tail, decoder.strip_space)

    def push(self, ids: list[int], room: int) -> NewText:
        """The text that is certain with ``ids`` up to an end, and at most ``room`` of them."""
        kept: list[int] = []
        thought = text = ""
        ended = False
        for id in ids:
            kept.append(id)
            if self._one_by_one:
                new_thought, new_text = self._split(self._decoder.push([id]))
                thought, text = thought + new_thought, text + new_text
            ended = id in self._ends or self._stops.found
            if ended or len(kept) >= room:
                break
        if not self._one_by_one:
            thought, text = self._split(self._decoder.push(kept))
        return NewText(kept, thought, text, ended)

    def flush(self, is_final: bool) -> tuple[str, str]:
        """Once, at the end: the think part's and the text's share of what waited for what might
        follow. A character that was cut comes whole with a continuation; a final end shows it
        broken."""
        thought, text = self._split(self._decoder.flush() if is_final else "")
        rest, tail = self._reasoning.flush()
        return thought + rest, text + self._stops.push(tail) + self._stops.flush()

    def _split(self, text: str) -> tuple[str, str]:
        thought, text = self._reasoning.push(text)
        return thought, self._stops.push(text)
