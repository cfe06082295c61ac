"""Token ids -> text: the table of each token's bytes, and UTF-8 decoded as tokens arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from engine.tokenizer.vocabulary import (
    CONTROL,
    THINK_CLOSE,
    THINK_OPEN,
    USER_DEFINED,
    read_vocabulary,
)

_NOT_A_BYTE = 0xFFFF


class _ByteAlphabet(dict[int, int]):
    """GPT-2's printable stand-ins: code point -> byte; everything else is no byte."""

    def __missing__(self, code_point: int) -> int:
        return _NOT_A_BYTE


def _byte_alphabet() -> _ByteAlphabet:
    """Printable Latin-1 stands for itself; the other bytes, in order, for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = _ByteAlphabet({byte: byte for byte in printable})
    hidden = [byte for byte in range(256) if byte not in alphabet]
    alphabet.update({0x100 + index: byte for index, byte in enumerate(hidden)})
    return alphabet


_ALPHABET = _byte_alphabet()


_STAND_INS = {byte: chr(code) for code, byte in _ALPHABET.items()}


def to_alphabet(data: bytes) -> str:
    """Bytes as GPT-2's printable stand-ins."""
    return "".join([_STAND_INS[byte] for byte in data])


def token_bytes(metadata: dict[str, Any]) -> list[bytes]:
    """For each token id the bytes it stands for; control tokens stand for none, but
    for those that ``engine.reasoning`` looks for.

    User-defined tokens are stored as plain text, all others in the byte alphabet.
    """
    vocabulary = read_vocabulary(metadata)
    table = [_from_alphabet(token) for token in vocabulary.tokens]
    for index in vocabulary.of_type(USER_DEFINED):
        table[index] = vocabulary.tokens[index].encode()
    for index in vocabulary.of_type(CONTROL):
        text = vocabulary.tokens[index]
        table[index] = text.encode() if text in (THINK_OPEN, THINK_CLOSE) else b""
    return table


def _from_alphabet(token: str) -> bytes:
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        # A character outside the alphabet: the token is plain text, as other decoders take it.
        return token.encode()


class StreamDecoder:
    """Turns token ids into text as they come, never showing half a character.

    The pieces, the flushed one too, add up to the joined bytes decoded at once with
    ``errors="replace"``.
    """

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; bytes of an unfinished character wait.

        Ids past the table are padding of the output matrix and stand for nothing.
        """
        table, size = self._table, len(self._table)
        return self._utf8.decode(b"".join([table[i] for i in ids if 0 <= i < size]))

    @property
    def rest(self) -> bytes:
        """The bytes of a character that has begun."""
        return self._utf8.getstate()[0]

    def follow(self, rest: bytes) -> None:
        """Begin with the ``rest`` of a text that this one continues."""
        self._utf8.setstate((rest, 0))

    def flush(self) -> str:
        """What is left of an unfinished character (U+FFFD), ready for another text."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
