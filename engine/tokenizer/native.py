"""The Rust tokenizer under CPython; in the tab the same one runs as WebAssembly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.errors import OctavoError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class _NativeEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def encode(self, text: str) -> list[int]:
        return self.ids(text)

    def ids(self, text: str) -> list[int]:
        # A lone surrogate can arrive in a JSON message, but is no text: JavaScript replaces it too.
        valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = self._tokenizer.encode(valid, add_special_tokens=False).ids
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
