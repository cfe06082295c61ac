"""Which tokens may come next in an answer that has a form, such as JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Protocol

from engine.tokenizer.decoder import to_alphabet
from engine.tokenizer.vocabulary import THINK_CLOSE, THINK_OPEN


class Grammar(Protocol):
    """Follows one answer from token to token."""

    async def next(self, tokens: Sequence[int]) -> bytes | None:
        """Take the tokens that came since, and tell which may come next: a bit for each token of
        the vocabulary, in u32 words, the lowest first. None after an end token, or if one of
        ``tokens`` may not come."""
        ...

    def close(self) -> None:
        """It is not needed any longer."""
        ...


def vocabulary_json(table: Sequence[bytes], ends: Iterable[int]) -> str:
    """What worker/grammar.mjs learns of a vocabulary. Control tokens have no bytes here, nor have
    think tags, so that no grammar ever allows them, but for the ends."""
    tags = (THINK_OPEN.encode(), THINK_CLOSE.encode())
    vocabulary = ["" if data in tags else to_alphabet(data) for data in table]
    return json.dumps({"vocabulary": vocabulary, "ends": sorted(ends)})
