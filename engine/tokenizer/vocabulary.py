"""The vocabulary in GGUF metadata, checked once so that its users can rely on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.errors import OctavoError, shown

# Values of tokenizer.ggml.token_type (llama.cpp's llama_token_type).
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Real vocabularies stay far below these; they bound the work that a hostile one can cause.
MAX_TOKEN = 1024  # characters
MAX_SPECIAL = 1 << 14  # tokens that are found in a text before it is split
MAX_SPECIAL_TEXT = 1 << 18  # characters of them
# Texts of control tokens that end a turn in some family, although the metadata may name another.
END_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<end_of_turn>",
        "<eos>",
        "</s>",
        "<EOT>",
        "\u2581<EOT>",
        "<|EOT|>",
        "<end_of_utterance>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
# Around what a reasoning model writes before its answer.
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts as stored, and one type for each.

    They are in the byte-level alphabet, or, with ``is_pieces``, SentencePiece's
    (``engine.tokenizer.pieces``).
    """

    tokens: list[str]
    types: list[int]
    is_pieces: bool = False

    def of_type(self, *kinds: int) -> list[int]:
        """Ids of the tokens of these types, ascending."""
        return [index for index, kind in enumerate(self.types) if kind in kinds]


def read_vocabulary(metadata: dict[str, Any]) -> Vocabulary:
    """The vocabulary of a BPE model, byte-level or SentencePiece's. A user-defined token that is
    one of END_TOKENS is a control token: many fine-tuned models' files name it so.

    Raises tokenizer.unsupported for another tokenizer model and gguf.invalid for bad lists.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise OctavoError(
            "tokenizer.unsupported",
            f"The tokenizer model {shown(model)} is not supported.",
            "Byte-level BPE (gpt2) and SentencePiece BPE (llama) are.",
        )
    tokens = string_list(metadata, "tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if not isinstance(types, list) or len(types) != len(tokens) or type(types[0]) is not int:
        raise OctavoError("gguf.invalid", "There is not exactly one token type for each token.")
    vocabulary = Vocabulary(tokens, list(types), model == "llama")
    for index in vocabulary.of_type(USER_DEFINED):
        if tokens[index] in END_TOKENS:
            vocabulary.types[index] = CONTROL
    _check_lengths(vocabulary)
    return vocabulary


def _check_lengths(vocabulary: Vocabulary) -> None:
    longest = max(map(len, vocabulary.tokens))
    if longest > MAX_TOKEN:
        raise OctavoError("gguf.invalid", f"A token has {longest} characters.")
    special = vocabulary.of_type(CONTROL, UNKNOWN, USER_DEFINED)
    text = sum(len(vocabulary.tokens[index]) for index in special)
    if len(special) > MAX_SPECIAL or text > MAX_SPECIAL_TEXT:
        raise OctavoError("gguf.invalid", f"There are too many special tokens: {len(special)}.")


def string_list(metadata: dict[str, Any], key: str) -> list[str]:
    """The non-empty list of strings under ``key``; raises gguf.invalid without one."""
    value = metadata.get(key)
    # Arrays in GGUF are of one type, so the first element speaks for all.
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise OctavoError("gguf.invalid", f"The metadata lacks the list of strings {key!r}.")
    return value
