"""Decoding: the byte table, and streamed text equal to decoding everything at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokenizer.decoder import StreamDecoder, token_bytes

BYTES = [bytes([byte]) for byte in range(256)]
TEXTS = [
    "plain",
    "naïve café",
    "你好，世界",
    "🤖👩‍👩‍👧‍👦🇫🇷",
    "e\u0301 a\u0308\u0323",
    "مرحبا",
    "\U0010ffff\u0000\ufffd",
]


def metadata(tokens: list[str], types: list[int]) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }


def streamed(data: bytes, cuts: list[int]) -> list[str]:
    decoder = StreamDecoder(BYTES)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [decoder.push(data[a:b]) for a, b in pairwise(edges)]
    return [*pieces, decoder.flush()]


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=8))
def test_any_bytes_in_any_pieces_equal_the_whole(data: bytes, cuts: list[int]) -> None:
    assert "".join(streamed(data, cuts)) == data.decode("utf-8", errors="replace")


@given(
    st.lists(
        st.sampled_from(
            [b"\xf0", b"\x9f", b"\xa4", b"\x96", b"\xed\xa0\x80", b"\xc0", b"a", b"\xe4"]
        )
    ).map(b"".join),
    st.lists(st.integers(0, 64), max_size=8),
)
def test_broken_sequences_in_any_pieces_equal_the_whole(data: bytes, cuts: list[int]) -> None:
    assert "".join(streamed(data, cuts)) == data.decode("utf-8", errors="replace")


@given(st.text(max_size=40), st.lists(st.integers(0, 160), max_size=8))
def test_valid_text_never_shows_a_broken_character(text: str, cuts: list[int]) -> None:
    shown = ""
    for piece in streamed(text.encode(), cuts):
        shown += piece
        assert text.startswith(shown)
    assert shown == text


@pytest.mark.parametrize("text", TEXTS)
def test_every_split_in_two_and_byte_by_byte(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        first, second, rest = streamed(data, [cut])
        assert first == data[:cut].decode(errors="ignore")
        assert (first + second, rest) == (text, "")
    assert "".join(streamed(data, list(range(len(data))))) == text


def test_flush_gives_what_is_left_and_starts_anew() -> None:
    decoder = StreamDecoder(BYTES)
    assert decoder.push(b"a\xf0\x9f") == "a"
    assert decoder.flush() == "\ufffd"
    assert decoder.push("é".encode()) == "é"
    assert decoder.flush() == ""


@given(
    st.sampled_from(TEXTS).map(str.encode) | st.text(max_size=6).map(str.encode) | st.binary(),
    st.integers(0, 32),
)
def test_a_text_that_follows_another_brings_its_cut_character(data: bytes, cut: int) -> None:
    first, second = StreamDecoder(BYTES), StreamDecoder(BYTES)
    text = first.push(data[:cut])
    second.follow(first.rest)
    text += second.push(data[cut:]) + second.flush()
    assert text == data.decode("utf-8", errors="replace")


def test_ids_outside_the_table_stand_for_nothing() -> None:
    assert StreamDecoder([b"a", b"b"]).push([0, 2, 10**9, -1, 1]) == "ab"


def test_all_256_bytes_are_in_the_alphabet() -> None:
    # The table of the original: each byte's stand-in, spelled out for the bytes that move.
    moved = {0x00: "Ā", 0x0A: "Ċ", 0x20: "Ġ", 0x7F: "ġ", 0x80: "Ģ", 0xA0: "ł", 0xAD: "Ń"}
    tokens = [*moved.values(), "!", "~", "¡", "ÿ", "Ġworld", "Ã©"]
    expected = [bytes([byte]) for byte in moved] + [
        b"!",
        b"~",
        b"\xa1",
        b"\xff",
        b" world",
        b"\xc3\xa9",
    ]
    assert token_bytes(metadata(tokens, [1] * len(tokens))) == expected


def test_control_tokens_are_silent_and_user_tokens_are_plain_text() -> None:
    tokens = ["<|im_end|>", "Ġ", "<Ġ>", "Ġ 你"]
    # The last is no byte-level text at all: it stands for itself.
    assert token_bytes(metadata(tokens, [3, 1, 4, 1])) == [
        b"",
        b" ",
        "<Ġ>".encode(),
        "Ġ 你".encode(),
    ]
