"""GGUF metadata -> the ``tokenizer.json`` that the Rust tokenizers read, and special token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engine.errors import OctavoError, shown
from engine.tokenizer import pieces
from engine.tokenizer.families import byte_level, family_of
from engine.tokenizer.vocabulary import (
    CONTROL,
    END_TOKENS,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
    string_list,
)

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Token ids with a meaning of their own.

    ``bos`` begins a text, or is None; any of ``eos`` ends an answer; ``add_bos`` says that a
    prompt which does not begin with ``bos`` yet should; ``space_prefix`` that the tokenizer puts
    a space before a text, unless that begins with ``pieces.CONTINUES``. ``named_eos`` is the one
    that templates know as ``eos_token``, or None.
    """

    bos: int | None
    eos: frozenset[int]
    add_bos: bool
    space_prefix: bool = False
    named_eos: int | None = None

    def begun(self, ids: list[int]) -> list[int]:
        """The ids of a prompt, which begins as the model wants it."""
        if not self.add_bos or self.bos is None or ids[:1] == [self.bos]:
            return ids
        return [self.bos, *ids]


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
    family = family_of(metadata)
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    own = {"ignore_merges": family.ignore_merges, "merges": _merges(metadata, ids)}
    return {
        "normalizer": family.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(family.steps)},
        "decoder": byte_level(True),
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
    found = [_token_id(metadata, key, size) for key in END_KEYS]
    named = {index for index in found if index is not None}
    marked = {
        index for index in vocabulary.of_type(CONTROL) if vocabulary.tokens[index] in END_TOKENS
    }
    bos = _token_id(metadata, "bos_token_id", size)
    default = vocabulary.is_pieces or family_of(metadata).add_bos
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", default)) and bos is not None
    ends = frozenset(named | marked)
    name = found[0] if found[0] is not None else min(ends, default=None)
    return SpecialTokens(bos, ends, add_bos, pieces.has_space_prefix(metadata), name)


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
            raise OctavoError("gguf.invalid", f"The merge {shown(merge)} names unknown tokens.")
    return merges


def _token_id(metadata: dict[str, Any], key: str, size: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < size:
        raise OctavoError(
            "gguf.invalid", f"The {key} {shown(value)} is not a token of the vocabulary."
        )
    return value
