"""SentencePiece's BPE vocabularies (``tokenizer.ggml.model`` "llama") for the Rust tokenizers.

A piece writes a space as U+2581; a character of no piece becomes the bytes <0xNN> of its UTF-8.
GGUF keeps a score for each piece and no merges: of two neighbours, SentencePiece joins those whose
piece has the highest score (Kudo and Richardson, 2018).
"""

from __future__ import annotations

from typing import Any

from engine.errors import OctavoError
from engine.tokenizer.vocabulary import NORMAL, UNKNOWN, Vocabulary

SPACE = "\u2581"
# Before a text that continues another one, which gets no space in front: a noncharacter.
CONTINUES = "\ufdd0"
MAX_TEXT = 1 << 22  # characters of all pieces together, each of which is a place for a merge


def has_space_prefix(metadata: dict[str, Any]) -> bool:
    """Whether a space is put before a text, and before what follows a control token."""
    is_pieces = metadata.get("tokenizer.ggml.model") == "llama"
    return is_pieces and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def takes_space_behind(metadata: dict[str, Any], token: str) -> bool:
    """Whether white space behind a token of its own is dropped. Phi-3's tokenizer does so, and GGUF
    has no place to say it."""
    is_phi3 = metadata.get("general.architecture") == "phi3"
    return is_phi3 and token not in ("<unk>", "<s>", "<|endoftext|>")


def normalizer(metadata: dict[str, Any]) -> dict[str, Any]:
    """Of a ``tokenizer.json``: from text to pieces' characters."""
    steps: list[dict[str, Any]] = []
    if has_space_prefix(metadata):
        steps.append({"type": "Prepend", "prepend": SPACE})
        steps.append(_replace({"Regex": rf"\A{SPACE}{CONTINUES}"}, ""))
    steps.append(_replace({"String": " "}, SPACE))
    return {"type": "Sequence", "normalizers": steps}


def decoder() -> dict[str, Any]:
    """Of a ``tokenizer.json``: from pieces to text."""
    steps = [_replace({"String": SPACE}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {"type": "Sequence", "decoders": steps}


def model(metadata: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """The fields of a ``tokenizer.json``'s model that differ from byte-level BPE. Raises
    gguf.invalid without a score for each token."""
    unknown = [vocabulary.tokens[index] for index in vocabulary.of_type(UNKNOWN)]
    return {
        "unk_token": unknown[0] if unknown else None,
        "fuse_unk": True,
        "byte_fallback": True,
        "merges": _merges(vocabulary, _scores(metadata, len(vocabulary.tokens))),
    }


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _scores(metadata: dict[str, Any], size: int) -> list[float]:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != size or not isinstance(scores[0], float):
        raise OctavoError("gguf.invalid", "There is not exactly one score for each token.")
    return scores


def _merges(vocabulary: Vocabulary, scores: list[float]) -> list[str]:
    """Every way to join two pieces to a third, "left right", that with the highest score first; in
    the order of Hugging Face's converter where scores are equal. Only ordinary pieces take part:
    no text is joined to a control token."""
    pieces = {
        vocabulary.tokens[index]: scores[index]
        for index in vocabulary.of_type(NORMAL)
        if " " not in vocabulary.tokens[index]
    }
    if sum(map(len, pieces)) > MAX_TEXT:
        raise OctavoError("gguf.invalid", "The pieces of the vocabulary are too long.")
    found = [
        (score, cut, len(piece) - cut, piece)
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [f"{piece[:cut]} {piece[cut:]}" for _, cut, _, piece in found]
