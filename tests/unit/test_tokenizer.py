"""Tokenizer JSON from GGUF metadata: ids equal llama.cpp's, bad tables get clear errors."""

from __future__ import annotations

import asyncio
import os
import time
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat import ChatTemplate
from engine.errors import OctavoError
from engine.prompt import Prompts
from engine.tokenizer.decoder import StreamDecoder, token_bytes
from engine.tokenizer.families import FAMILIES
from engine.tokenizer.native import open_native
from engine.tokenizer.pieces import CONTINUES
from engine.tokenizer.spec import control_texts, special_ids, tokenizer_json
from engine.weights.gguf import read_header
from tests.tokens import RECORDED, Metadata, Rows, golden, kind_metadata, kind_rows, piece_metadata

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"


def tiny() -> Metadata:
    data = (GOLDEN / "tiny.gguf").read_bytes()
    return read_header(data, len(data)).metadata


@pytest.fixture(scope="module")
def smollm2() -> Metadata:
    """The real model's metadata: from OCTAVO_SMOLLM2 (a GGUF), or the first shard in dist/."""
    shard = TESTS.parent / "dist/models/smollm2-135m-instruct-q4_1/000.bin"
    path = Path(os.environ.get("OCTAVO_SMOLLM2", shard))
    if not path.exists():
        pytest.skip("SmolLM2 has not been built")
    with path.open("rb") as file:
        head = file.read(1 << 24)
    return read_header(head, 1 << 40).metadata


def mistakes(metadata: Metadata, rows: Rows) -> list[str]:
    encoder = open_native(tokenizer_json(metadata))
    return [text for text, ids in rows if encoder.ids(text) != ids]


@pytest.mark.golden
def test_smollm2_ids_equal_llama_cpp(smollm2: Metadata) -> None:
    rows = golden("tokens_smollm2.json")
    assert len(rows) > 30 and mistakes(smollm2, rows) == []


@pytest.mark.golden
@pytest.mark.parametrize("kind", RECORDED)
def test_each_kind_splits_as_other_implementations_do(kind: str) -> None:
    rows = kind_rows(kind)
    assert len(rows) > 40 and mistakes(kind_metadata(kind), rows) == []


# What these have of their own is a normalizer or first tokens, not the splitting.
ALIKE = [
    {"gpt-2", "olmo"},
    {"smollm", "command-r"},
    {"llama-bpe", "dbrx"},
    {"qwen2", "megrez", "deepseek-r1-qwen"},
]


@pytest.mark.parametrize("kind", RECORDED)
def test_the_texts_tell_the_kinds_apart(kind: str) -> None:
    composed = [
        (text, ids) for text, ids in kind_rows(kind) if unicodedata.is_normalized("NFC", text)
    ]
    for other in RECORDED:
        alike = any({kind, other} <= group for group in ALIKE)
        assert bool(mistakes(kind_metadata(other), composed)) != alike or kind == other, other


@pytest.mark.golden
def test_names_of_kinds_as_llama_cpp_has_them() -> None:
    document = golden("tokens_kinds.json")
    for kind, names in document["names"].items():
        assert all(FAMILIES[name] == FAMILIES[kind] for name in names), kind
    assert set(FAMILIES) == {name for names in document["names"].values() for name in names}


@pytest.mark.golden
@pytest.mark.parametrize("name", FAMILIES)
def test_a_first_token_by_default_as_llama_cpp_has_it(name: str) -> None:
    metadata = kind_metadata(name) | {"tokenizer.ggml.bos_token_id": 1}
    # Its model's own settings say so, llama.cpp leaves it to the file.
    expected = name in golden("tokens_kinds.json")["add_bos"] or name == "deepseek-r1-qwen"
    assert special_ids(metadata).add_bos is expected


@pytest.mark.golden
@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_equal_llama_cpp(prefix: bool) -> None:
    document = golden("tokens_pieces.json")
    rows, others = document["prefix"], document["plain"]
    rows, others = (rows, others) if prefix else (others, rows)
    assert len(rows) > 40 and mistakes(piece_metadata(prefix), rows) == []
    assert len(mistakes(piece_metadata(prefix), others)) > 30


def test_a_text_that_continues_another_gets_no_space() -> None:
    prefix, plain = (open_native(tokenizer_json(piece_metadata(p))) for p in (True, False))
    for text, _ in golden("tokens_pieces.json")["plain"]:
        if not any(token in text for token in ("<s>", "</s>", "<unk>", "<|user|>")):
            assert prefix.ids(CONTINUES + text) == plain.ids(text)
    # The sign is one only at the beginning.
    assert prefix.ids(f"a\u2581{CONTINUES}b") != prefix.ids("ab")


def test_a_prompt_cut_at_a_mark_gets_no_space_there() -> None:
    metadata = piece_metadata()
    encoder, special = open_native(tokenizer_json(metadata)), special_ids(metadata)
    template = ChatTemplate("{{ messages[0]['content'] }}</s>", "<s>", "</s>")
    prompts = Prompts(template, encoder, special, control_texts(metadata))
    messages = [{"role": "user", "content": "a </s> b<unk>"}]
    prompt = asyncio.run(prompts.encode(messages))
    assert prompt.ids[0] == 1 and prompt.ids[-1] == 2
    assert not {0, 1, 2} & set(prompt.ids[1:-1])
    assert prompt.strip_space
    shown = StreamDecoder(token_bytes(metadata), strip_space=True).push(prompt.ids)
    assert shown == "a </s> b<unk>"


@settings(deadline=None)
@given(text=st.text(max_size=20), sizes=st.lists(st.integers(0, 5), max_size=6))
def test_any_text_comes_back_from_pieces(text: str, sizes: list[int]) -> None:
    metadata = piece_metadata()
    encoder, table = piece_coders()
    ids = encoder.ids(text)
    decoder, shown, at = StreamDecoder(table, strip_space=True), "", 0
    for size in [*sizes, *[1] * len(ids)]:
        shown += decoder.push(ids[at : at + size])
        at += size
    controls = control_texts(metadata)
    if not any(control in text for control in controls) and "\u2581" not in text:
        assert shown + decoder.flush() == text.removeprefix(CONTINUES)


@cache
def piece_coders() -> tuple[Any, list[bytes]]:
    metadata = piece_metadata()
    return open_native(tokenizer_json(metadata)), token_bytes(metadata)


@settings(deadline=None)
@given(data=st.data())
def test_pieces_are_decoded_as_the_tokenizer_does(data: st.DataObject) -> None:
    """But for byte tokens: of broken characters, it shows each byte, and other decoders do not."""
    encoder, table = piece_coders()
    whole = [i for i, kind in enumerate(piece_metadata()["tokenizer.ggml.token_type"]) if kind == 1]
    ids = data.draw(st.lists(st.sampled_from(whole), max_size=24))
    assert StreamDecoder(table).push(ids) == encoder._tokenizer.decode(ids)


def test_only_one_space_of_an_answer_is_stripped() -> None:
    _, table = piece_coders()
    space = table.index(b"  ")
    decoder = StreamDecoder(table, strip_space=True)
    assert decoder.push([space]) + decoder.push([space]) == "   "
    continued = StreamDecoder(table, decoder.strip_space)
    continued.follow(decoder.rest)
    assert continued.push([space]) == "  "


def test_no_text_is_joined_to_a_control_token() -> None:
    metadata = piece_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    parts = ["\u2581<", "/x", ">", "\u2581</x", "\u2581</x>"]
    metadata["tokenizer.ggml.tokens"] = [*tokens, *parts]
    metadata["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], *[0.5] * len(parts)]
    metadata["tokenizer.ggml.token_type"] = [*types, 1, 1, 1, 1, 3]
    last = len(tokens) + len(parts) - 1
    assert last not in open_native(tokenizer_json(metadata)).ids("</x>")


def test_byte_tokens_must_name_bytes() -> None:
    metadata = piece_metadata()
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[tokens.index("<0x41>")] = "<0x4>"
    with pytest.raises(OctavoError) as caught:
        token_bytes(metadata | {"tokenizer.ggml.tokens": tokens})
    assert caught.value.code == "gguf.invalid"


def test_special_tokens_of_pieces() -> None:
    special = special_ids(piece_metadata())
    assert (special.bos, special.eos, special.add_bos) == (1, {2}, True)
    assert special.space_prefix and not special_ids(piece_metadata(False)).space_prefix
    assert not special_ids(tiny()).space_prefix


@pytest.mark.parametrize("kind", FAMILIES)
def test_some_kinds_compose_characters_first(kind: str) -> None:
    encoder = open_native(tokenizer_json(kind_metadata(kind)))
    composing = kind in ("qwen2", "stablelm2", "qwen35", "olmo", "command-r")
    assert (encoder.ids("e\u0301") == encoder.ids("é")) is composing


def test_whole_words_of_llama_3_need_no_merges() -> None:
    metadata = kind_metadata("llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zqxj"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert open_native(tokenizer_json(metadata)).ids("zqxj") == [last]
    metadata["tokenizer.ggml.pre"] = "gpt-2"
    assert len(open_native(tokenizer_json(metadata)).ids("zqxj")) > 1


@pytest.mark.golden
@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_chat_prompts_equal_transformers(name: str, request: pytest.FixtureRequest) -> None:
    metadata = tiny() if name == "tiny" else request.getfixturevalue("smollm2")
    encoder = open_native(tokenizer_json(metadata))
    template = ChatTemplate(metadata["tokenizer.chat_template"], "", "")
    prompts = [p for p in golden(f"{name}.json")["prompts"] if "messages" in p]
    assert prompts
    for prompt in prompts:
        text = template.render(prompt["messages"])
        assert text == prompt["prompt"]
        assert encoder.ids(text) == prompt["prompt_ids"]


@pytest.mark.golden
@pytest.mark.parametrize("name", ["tiny", "smollm2"])
def test_answers_decode_as_transformers_decodes_them(
    name: str, request: pytest.FixtureRequest
) -> None:
    metadata = tiny() if name == "tiny" else request.getfixturevalue("smollm2")
    table = token_bytes(metadata)
    for prompt in golden(f"{name}.json")["prompts"]:
        decoder = StreamDecoder(table)
        shown = "".join(decoder.push([index]) for index in prompt["ids"]) + decoder.flush()
        assert shown == prompt["text"]


def test_text_survives_encoding_and_decoding() -> None:
    metadata = kind_metadata("smollm")
    encoder, table = open_native(tokenizer_json(metadata)), token_bytes(metadata)
    for text, _ in kind_rows("smollm"):
        if "<|im_" not in text and "<|endoftext|>" not in text:
            decoder = StreamDecoder(table)
            assert decoder.push(encoder.ids(text)) + decoder.flush() == text


HOSTILE = [
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f44d\U0001f3ff\U0001f1eb\U0001f1f7",
    "\u2764\ufe0f\u200d\U0001f525 1\ufe0f\u20e3",
    "你好，世界 日本語のテスト 한국어 \U00020000",
    "e\u0301a\u0308\u0323 Z\u0351\u036b\u0343\u036a\u0302 \u0915\u094d\u0937\u093f",
    "\u202eabc\u202c \ufeff\u0000\uffff\U0010ffff \ufffd",
]
KINDS = RECORDED


@cache
def coders(kind: str) -> tuple[Any, list[bytes]]:
    metadata = kind_metadata(kind)
    return open_native(tokenizer_json(metadata)), token_bytes(metadata)


def in_pieces(table: list[bytes], ids: list[int], sizes: list[int]) -> str:
    """The text streamed by bursts of these sizes, then token by token."""
    decoder, shown, at = StreamDecoder(table), "", 0
    for size in [*sizes, *[1] * len(ids)]:
        shown += decoder.push(ids[at : at + size])
        at += size
    return shown + decoder.flush()


SIZES = st.lists(st.integers(0, 5), max_size=6)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(data=st.data(), sizes=SIZES)
def test_any_tokens_streamed_say_what_the_tokenizer_says_at_once(
    kind: str, data: st.DataObject, sizes: list[int]
) -> None:
    encoder, table = coders(kind)
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=24))
    assert in_pieces(table, ids, sizes) == encoder._tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(
    text=st.sampled_from(HOSTILE)
    | st.lists(st.sampled_from("".join(HOSTILE)), max_size=20).map("".join)
    | st.text(max_size=20),
    sizes=SIZES,
)
def test_hostile_texts_come_back_whole_and_never_broken(
    kind: str, text: str, sizes: list[int]
) -> None:
    encoder, table = coders(kind)
    ids = encoder.ids(text)
    composed = unicodedata.normalize("NFC", text) if FAMILIES[kind].normalizer else text
    assert in_pieces(table, ids, sizes) == composed
    decoder = StreamDecoder(table)
    for id in ids:
        before = len(decoder.rest)
        shown = decoder.push([id])
        assert "\ufffd" not in shown or "\ufffd" in text
        assert before < 4 and len(decoder.rest) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_hostile_characters_are_cut_by_tokens(kind: str) -> None:
    encoder, table = coders(kind)
    for text in HOSTILE:
        decoder = StreamDecoder(table)
        rests = []
        for id in encoder.ids(text):
            decoder.push([id])
            rests.append(bool(decoder.rest))
        assert any(rests), text


def test_user_defined_tokens_are_whole_and_visible() -> None:
    metadata = kind_metadata("smollm")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<tool call>"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4]
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert open_native(tokenizer_json(metadata)).ids("a<tool call>")[-1] == last
    assert token_bytes(metadata)[last] == b"<tool call>"


def test_a_lone_surrogate_is_replaced() -> None:
    encoder = open_native(tokenizer_json(tiny()))
    assert encoder.ids("a\ud83d") == encoder.ids("a\ufffd")


def test_special_tokens() -> None:
    special = special_ids(tiny())
    assert special.bos == 1
    assert special.eos == {0, 2}
    assert special.add_bos is False


def test_real_special_tokens_and_speed(smollm2: Metadata) -> None:
    assert special_ids(smollm2).eos == {0, 2}
    start = time.process_time()
    tokenizer_json(smollm2)
    token_bytes(smollm2)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("changes", "bos", "eos", "add_bos"),
    [
        ({}, None, {0, 2}, False),
        ({"bos_token_id": 1, "add_bos_token": True}, 1, {0, 2}, True),
        ({"bos_token_id": 1, "pre": "llama-bpe"}, 1, {0, 2}, True),
        ({"bos_token_id": 1, "pre": "llama-bpe", "add_bos_token": False}, 1, {0, 2}, False),
        ({"add_bos_token": True}, None, {0, 2}, False),
        ({"eos_token_id": 7, "eot_token_id": 8, "eom_token_id": 9}, None, {0, 2, 7, 8, 9}, False),
    ],
)
def test_special_tokens_by_metadata(
    changes: Metadata, bos: int | None, eos: set[int], add_bos: bool
) -> None:
    metadata = kind_metadata("smollm") | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    special = special_ids(metadata)
    assert (special.bos, special.eos, special.add_bos) == (bos, eos, add_bos)


def with_tokens(metadata: Metadata, texts: dict[str, int]) -> tuple[Metadata, list[int]]:
    """The metadata with more tokens, of these types; and their ids."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    more = {
        "tokenizer.ggml.tokens": [*tokens, *texts],
        "tokenizer.ggml.token_type": [*types, *texts.values()],
    }
    return metadata | more, list(range(len(tokens), len(tokens) + len(texts)))


# Kind; the tokens that end an answer, that called eos first; the one that begins a text.
ENDS = {
    "Llama 3": ("llama-bpe", ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"], "<|begin_of_text|>"),
    "Qwen": ("qwen2", ["<|im_end|>", "<|endoftext|>"], None),
    "R1-Distill-Qwen": ("deepseek-r1-qwen", ["<｜end▁of▁sentence｜>"], "<｜begin▁of▁sentence｜>"),
    "R1-Distill-Llama": ("llama-bpe", ["<｜end▁of▁sentence｜>"], "<｜begin▁of▁sentence｜>"),
    "Phi-3": ("smaug-bpe", ["<|endoftext|>", "<|end|>", "</s>"], None),
    "Phi-4-mini": ("gpt-4o", ["<|endoftext|>", "<|end|>"], None),
    "Mistral Nemo": ("tekken", ["</s>"], "<s>"),
    "Gemma": ("default", ["<eos>", "<end_of_turn>"], None),
    "DeepSeek Coder": ("deepseek-coder", ["<|EOT|>"], None),
}


@pytest.mark.parametrize("family", ENDS)
@pytest.mark.parametrize("type", [3, 4], ids=["control", "user-defined"])
def test_what_ends_an_answer_by_family(family: str, type: int) -> None:
    kind, ends, first = ENDS[family]
    metadata = kind_metadata(kind)
    ordinary = metadata["tokenizer.ggml.tokens"][3:]
    metadata["tokenizer.ggml.tokens"] = ["<|pad|>", "<|a|>", "<|b|>", *ordinary]
    texts = dict.fromkeys(ends, type) | ({first: 3} if first else {})
    metadata, ids = with_tokens(metadata, texts)
    metadata["tokenizer.ggml.eos_token_id"] = ids[0]
    if first:
        metadata["tokenizer.ggml.bos_token_id"] = ids[-1]
    special = special_ids(metadata)
    assert special.eos == set(ids[: len(ends)]) and special.named_eos == ids[0]
    assert special.bos == (ids[-1] if first else None) and special.add_bos is bool(first)
    assert set(control_texts(metadata)) >= set(texts)
    encoder, table = open_native(tokenizer_json(metadata)), token_bytes(metadata)
    for text, id in zip(texts, ids, strict=True):
        assert encoder.ids(f"x{text}")[-1] == id and table[id] == b""


def test_the_word_for_an_end_in_ordinary_tokens_ends_nothing() -> None:
    metadata = kind_metadata("smollm")
    metadata["tokenizer.ggml.token_type"] = [1] * len(metadata["tokenizer.ggml.tokens"])
    assert special_ids(metadata).eos == frozenset()


BROKEN: list[tuple[Metadata, str]] = [
    ({"model": "t5"}, "tokenizer.unsupported"),
    ({"model": "llama"}, "gguf.invalid"),
    ({"model": "llama", "scores": [0.5]}, "gguf.invalid"),
    ({"model": "llama", "scores": "high"}, "gguf.invalid"),
    ({"model": None}, "tokenizer.unsupported"),
    ({"pre": "viking"}, "tokenizer.unsupported"),
    ({"pre": ["smollm"]}, "tokenizer.unsupported"),
    ({"tokens": []}, "gguf.invalid"),
    ({"tokens": 3}, "gguf.invalid"),
    ({"tokens": [1, 2]}, "gguf.invalid"),
    ({"token_type": [1]}, "gguf.invalid"),
    ({"token_type": 1}, "gguf.invalid"),
    ({"merges": None}, "gguf.invalid"),
    ({"merges": ["a"]}, "gguf.invalid"),
    ({"merges": ["a zz"]}, "gguf.invalid"),
    ({"merges": ["a b c"]}, "gguf.invalid"),
]


@pytest.mark.parametrize(("changes", "code"), BROKEN)
def test_broken_metadata_gets_a_clear_error(changes: Metadata, code: str) -> None:
    metadata = kind_metadata("smollm") | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    with pytest.raises(OctavoError) as caught:
        tokenizer_json(metadata)
    assert caught.value.code == code


@pytest.mark.parametrize("value", [-1, 10**9, "2", 2.0, True])
def test_special_ids_outside_the_vocabulary_are_refused(value: Any) -> None:
    metadata = kind_metadata("smollm") | {"tokenizer.ggml.eos_token_id": value}
    with pytest.raises(OctavoError) as caught:
        special_ids(metadata)
    assert caught.value.code == "gguf.invalid"


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(OctavoError, match="viking"):
        tokenizer_json(kind_metadata("viking"))


def test_no_tokenizer_json_is_an_error() -> None:
    with pytest.raises(OctavoError) as caught:
        open_native("{}")
    assert caught.value.code == "tokenizer.unsupported"
