"""GGUF metadata -> the ``tokenizer.json`` that the Rust tokenizers read, and special token ids.

The splitting patterns are those that the model families publish in their tokenizer files, and
that llama.cpp names by ``tokenizer.ggml.pre``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.errors import OctavoError
from engine.tokenizer import pieces
from engine.tokenizer.vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
    string_list,
)

# Tokens that end a turn in some family, although the metadata may name another as the end.
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
)
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning of their own.

    ``bos`` begins a text, or is None; any of ``eos`` ends an answer; ``add_bos`` says that a
    prompt which does not begin with ``bos`` yet should; ``space_prefix`` that the tokenizer puts
    a space before a text, unless that begins with ``pieces.CONTINUES``.
    """

    bos: int | None
    eos: frozenset[int]
    add_bos: bool
    space_prefix: bool = False


@dataclass(frozen=True, slots=True)
class _Family:
    """What a ``tokenizer.ggml.pre`` kind stands for."""

    steps: tuple[dict[str, Any], ...]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    add_bos: bool = False


def _byte_level(use_regex: bool) -> dict[str, Any]:
    """The step into the byte alphabet; ``use_regex`` splits by GPT-2's pattern before it."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_DIGITS = {"type": "Digits", "individual_digits": True}
_NFC = {"type": "NFC"}
_GPT2 = _Family((_byte_level(True),))
_LLAMA3 = _Family((_split(_LLAMA3_PATTERN), _byte_level(False)), ignore_merges=True, add_bos=True)
_DEEPSEEK_CODER = (
    *map(_split, (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u0800-\u9fa5\uac00-\ud7ff]+")),
    _DIGITS,
    _byte_level(False),
)
_QWEN2 = (_split(_QWEN2_PATTERN), _byte_level(False))
FAMILIES: dict[str, _Family] = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _Family((_DIGITS, _byte_level(True))),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _Family(_QWEN2, normalizer=_NFC),
    "deepseek-r1-qwen": _Family(_QWEN2, add_bos=True),
    "deepseek-coder": _Family(_DEEPSEEK_CODER),
}


def tokenizer_json(metadata: dict[str, Any]) -> str:
    """A Hugging Face ``tokenizer.json`` equal to the tokenizer that the metadata describes.

    It adds no special tokens of its own: a prompt's text says where they are.
    Raises tokenizer.unsupported for an unknown kind and gguf.invalid for bad tables.
    """
    vocabulary = read_vocabulary(metadata)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, vocabulary),
        "post_processor": None,
        **(_of_pieces if vocabulary.is_pieces else _of_bytes)(metadata, vocabulary),
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _of_bytes(metadata: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """What is peculiar to byte-level BPE."""
    family = _family(metadata)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    own = {"ignore_merges": family.ignore_merges, "merges": _merges(metadata, ids)}
    return {
        "normalizer": family.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(family.steps)},
        "decoder": _byte_level(True),
        "model": {**_bpe(ids), **own},
    }


def _of_pieces(metadata: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """What is peculiar to SentencePiece."""
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    return {
        "normalizer": pieces.normalizer(metadata),
        "pre_tokenizer": None,
        "decoder": pieces.decoder(),
        "model": {**_bpe(ids), **pieces.model(metadata, vocabulary)},
    }


def _bpe(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": ids,
    }


def control_texts(metadata: dict[str, Any]) -> list[str]:
    """What the control tokens look like in a text, and the unknown token."""
    vocabulary = read_vocabulary(metadata)
    return [vocabulary.tokens[index] for index in vocabulary.of_type(CONTROL, UNKNOWN)]


def markup_texts(metadata: dict[str, Any]) -> list[str]:
    """Tokens like ``<tool_call>``, which are no control tokens, but may be a template's markup."""
    vocabulary = read_vocabulary(metadata)
    tokens = (vocabulary.tokens[index] for index in vocabulary.of_type(USER_DEFINED))
    return [token for token in tokens if token.startswith("<") and token.endswith(">")]


def special_ids(metadata: dict[str, Any]) -> SpecialTokens:
    """The special token ids; raises gguf.invalid when one is outside the vocabulary."""
    vocabulary = read_vocabulary(metadata)
    size = len(vocabulary.tokens)
    found = (_token_id(metadata, key, size) for key in END_KEYS)
    named = {index for index in found if index is not None}
    marked = {
        index for index in vocabulary.of_type(CONTROL) if vocabulary.tokens[index] in END_TOKENS
    }
    bos = _token_id(metadata, "bos_token_id", size)
    default = vocabulary.is_pieces or _family(metadata).add_bos
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default)) and bos is not None
    ends = frozenset(named | marked)
    return SpecialTokens(bos, ends, add_bos, pieces.has_space_prefix(metadata))


def _family(metadata: dict[str, Any]) -> _Family:
    kind = metadata.get("tokenizer.ggml.pre", "default")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise OctavoError(
            "tokenizer.unsupported",
            f"The pre-tokenizer {kind!r} is not supported.",
            "Known ones: " + ", ".join(FAMILIES) + ".",
        )
    return family


def _added_tokens(metadata: dict[str, Any], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    def takes_space(token: str) -> bool:
        return vocabulary.is_pieces and pieces.takes_space_behind(metadata, token)

    return [
        {
            "id": index,
            "content": vocabulary.tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": takes_space(vocabulary.tokens[index]),
            "normalized": False,
            "special": vocabulary.types[index] != USER_DEFINED,
        }
        for index in vocabulary.of_type(CONTROL, UNKNOWN, USER_DEFINED)
        if vocabulary.tokens[index]
    ]


def _merges(metadata: dict[str, Any], ids: dict[str, int]) -> list[str]:
    """The merge rules, "left right" each; the tokenizer dies on one with an unknown part."""
    merges = string_list(metadata, "tokenizer.ggml.merges")
    for merge in merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise OctavoError("gguf.invalid", f"The merge {merge!r} names unknown tokens.")
    return merges


def _token_id(metadata: dict[str, Any], key: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < size:
        raise OctavoError("gguf.invalid", f"The {key} {value!r} is not a token of the vocabulary.")
    return value
