"""Token ids -> text: the table of each token's bytes, and UTF-8 decoded as tokens arrive."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any

from engine.errors import OctavoError, shown
from engine.tokenizer.pieces import SPACE
from engine.tokenizer.vocabulary import (
    BYTE,
    CONTROL,
    THINK_CLOSE,
    THINK_OPEN,
    UNKNOWN,
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

    User-defined tokens are stored as plain text, all others in the byte alphabet or as
    SentencePiece's pieces. An unknown token stands for nothing either.
    """
    vocabulary = read_vocabulary(metadata)
    read = _from_piece if vocabulary.is_pieces else _from_alphabet
    table = [read(token) for token in vocabulary.tokens]
    if vocabulary.is_pieces:
        for index in vocabulary.of_type(BYTE):
            table[index] = _from_byte(vocabulary.tokens[index])
        for index in vocabulary.of_type(UNKNOWN):
            table[index] = b""
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


def _from_piece(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _from_byte(token: str) -> bytes:
    """<0xNN>, or OctavoError gguf.invalid."""
    match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    if not match:
        raise OctavoError("gguf.invalid", f"The byte token {shown(token)} names no byte.")
    return bytes.fromhex(match[1])


class StreamDecoder:
    """Turns token ids into text as they come, never showing half a character.

    The pieces, the flushed one too, add up to the joined bytes decoded at once with
    ``errors="replace"``, without the space at the beginning if ``strip_space``.
    """

    def __init__(self, table: Sequence[bytes], strip_space: bool = False) -> None:
        self._table = table
        self.strip_space = strip_space  # as long as the text has not begun
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` complete; bytes of an unfinished character wait.

        Ids past the table are padding of the output matrix and stand for nothing.
        """
        table, size = self._table, len(self._table)
        text = self._utf8.decode(b"".join([table[i] for i in ids if 0 <= i < size]))
        if self.strip_space and text:
            self.strip_space = False
            return text.removeprefix(" ")
        return text

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
