"""From text to token ids and back.

Encoding is done by the Rust tokenizer (natively or as WebAssembly in the tab), set up by the
JSON that ``spec`` builds out of GGUF metadata; decoding is ours (``decoder``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


def valid(text: str) -> str:
    """The text with U+FFFD for lone surrogates, as in JavaScript: they can arrive in a JSON
    message, but are no text."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Encoder(Protocol):
    """Turns text into token ids."""

    async def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; control tokens written out in it become their single id."""
        ...

    async def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        ...

    def close(self) -> None:
        """Free what the tokenizer holds; it cannot encode any more."""
        ...
