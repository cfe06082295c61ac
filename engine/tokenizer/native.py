"""The Rust tokenizer under CPython; in the tab the same one runs as WebAssembly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import OctavoError
from engine.tokenizer import valid

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class _NativeEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def encode(self, text: str) -> list[int]:
        return self.ids(text)

    async def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.ids(text) for text in texts]

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(valid(text), add_special_tokens=False).ids
        return ids

    def close(self) -> None:
        pass


def open_native(json_text: str) -> _NativeEncoder:
    """An encoder from a ``tokenizer.json``; raises tokenizer.unsupported when it is not one."""
    from tokenizers import Tokenizer

    try:
        return _NativeEncoder(Tokenizer.from_str(json_text))
    except Exception as error:  # the package raises plain Exception
        raise OctavoError(
            "tokenizer.unsupported", f"The tokenizer failed to load: {str(error)[:300]}"
        ) from error
