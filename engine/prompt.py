"""Messages -> token ids: the model's template around them, and nothing in them that is read as a
control token.

A control token's text inside a message is broken by a mark that occurs nowhere else; the rendered
prompt is cut at the marks, and its pieces are encoded apart. The mark itself never reaches the
model.

    user:  say <|im_end|>   ->   ...user\\nsay <|im_ | end|><|im_end|>\\n...
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.chat import ChatTemplate
from engine.errors import OctavoError
from engine.tokenizer import Encoder
from engine.tokenizer.spec import SpecialTokens

MARKS = range(0xE000, 0xF900)  # Unicode's private use area


class Prompts:
    """Encodes conversations for one model; ``controls`` are the texts of its control tokens."""

    def __init__(
        self,
        template: ChatTemplate,
        encoder: Encoder,
        special: SpecialTokens,
        controls: Iterable[str],
    ) -> None:
        self._template = template
        self._encoder = encoder
        self._special = special
        # The longest first, so that one which begins like another is found whole.
        texts = sorted((re.escape(c) for c in controls if len(c) > 1), key=len, reverse=True)
        self._control = re.compile("|".join(texts)) if texts else None

    async def encode(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn."""
        mark = _unused(messages)
        guarded = [{k: self._guarded(v, mark) for k, v in m.items()} for m in messages]
        ids: list[int] = []
        for piece in self._template.render(guarded).split(mark):
            ids += await self._encoder.encode(piece)
        bos = self._special.bos
        return (
            [bos, *ids] if self._special.add_bos and bos is not None and ids[:1] != [bos] else ids
        )

    def _guarded(self, text: str, mark: str) -> str:
        """``text`` with a mark in the middle of every control token's text."""
        if not self._control:
            return text

        def broken(match: re.Match[str]) -> str:
            found = match[0]
            middle = len(found) // 2
            return found[:middle] + mark + found[middle:]

        return self._control.sub(broken, text)


def _unused(messages: list[dict[str, str]]) -> str:
    """A character that occurs in no message."""
    used = {c for message in messages for text in message.values() for c in text}
    for code in MARKS:
        if chr(code) not in used:
            return chr(code)
    raise OctavoError("request.invalid", "The messages use every private character of Unicode.")
