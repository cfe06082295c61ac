"""tokenizer.json or tokenizer.model -> the keys `tokenizer.ggml.*`."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import gguf
from gguf import TokenType
from tokenizers import Tokenizer

from engine.errors import OctavoError
from engine.host.convert import pretokenizer
from engine.host.convert.safetensors import read_json
from engine.host.errors import HostError
from engine.tokenizer.native import open_native
from engine.tokenizer.pieces import SPACE
from engine.tokenizer.spec import tokenizer_json

JSON, PIECES = "tokenizer.json", "tokenizer.model"
CONTROL = re.compile(r"<[|｜].*[|｜]>")  # control tokens, even where a file says they are not
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
END_KINDS = ("eos", "eot", "eom")
UNREACHED = -1e9  # the score of a piece that no merge makes
# What both tokenizers must make the same ids of.
TEXTS = (
    "The tide had gone out; 1907 boats, it's said, lay 3.5 m deep.\n\n\tWe'LL go    on.",
    "Où est le café près de l'église ? Schöne Grüße! 你好，世界。 안녕하세요 Привет שלום مرحبا ٣٤",
    "def f(x):\n    return x**2  # 🙂👩\u200d👧 e\u0301 ﬁ ½ Ⅳ\r\n<b>_x_</b> $5,000.00 HelloWorld",
    "".join(map("".join, product(pretokenizer.SIGNS, repeat=2))),
)

Metadata = dict[str, Any]  # by what follows `tokenizer.ggml.`


def read_tokenizer(folder: Path, rows: int) -> Metadata:
    """Tokens, their types, merges or scores, and how text is split before; one token for each of
    the embedding's `rows`.

    Raises HostError if there is no tokenizer, if its kind is not supported, or if the engine's
    tokenizer made of the metadata does not give the same ids for TEXTS.
    """
    if (folder / JSON).is_file():
        return _from_json(folder, rows)
    if (folder / PIECES).is_file():
        return _from_pieces(folder, rows)
    raise HostError(f"{folder} has neither {JSON} nor {PIECES}.")


def describe(writer: Any, folder: Path, tokenizer: Metadata) -> None:
    """Adds the tokenizer, the special tokens and the chat template."""
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["token_type"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
        writer.add_add_space_prefix(tokenizer["add_space_prefix"])
    else:
        writer.add_tokenizer_pre(tokenizer["pre"])
        writer.add_token_merges(tokenizer["merges"])
    special = _special(folder, len(tokenizer["tokens"]))
    if "merges" in tokenizer:
        special.add_special_token.setdefault("bos", False)  # nothing in the folder says otherwise
    special.add_to_gguf(writer, quiet=True)


def _special(folder: Path, rows: int, load_merges: bool = False) -> gguf.SpecialVocab:
    """Special tokens as the tokenizer's files and config.json name them; of the ends of an answer
    in generation_config.json, two more than that."""
    try:
        special = gguf.SpecialVocab(folder, load_merges=load_merges, n_vocab=rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostError(f"{folder}: the tokenizer's files are damaged: {error}") from None
    found = special.special_token_ids
    known = {found.get(kind) for kind in END_KINDS}
    others = [end for end in _ends(folder) if end < rows and end not in known]
    for kind in END_KINDS:
        if others and kind not in found:
            found[kind] = others.pop(0)
    return special


def _ends(folder: Path) -> list[int]:
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ends = read_json(path).get("eos_token_id") if path.is_file() else None
        if ends is not None:
            ends = ends if isinstance(ends, list) else [ends]
            return [end for end in ends if type(end) is int and end >= 0]
    return []


def _from_json(folder: Path, rows: int) -> Metadata:
    path = folder / JSON
    document = read_json(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
        model = document["model"]
        added = {token["id"]: token for token in document.get("added_tokens", [])}
        texts = {index: text for text, index in model["vocab"].items()}
    except Exception as error:  # the package raises plain Exception
        raise HostError(f"{path} is no tokenizer: {error}") from None
    if model.get("type", "BPE") != "BPE":
        raise HostError(f"{path} is of the kind {model['type']}; only BPE is supported.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokens, types = _tokens(rows, texts, added)
    found: Metadata = {"tokens": tokens}
    if model.get("byte_fallback"):
        scores, unknown = _scores(model["merges"]), model.get("unk_token")
        found |= {"model": "llama", "scores": [scores.get(token, UNREACHED) for token in tokens]}
        types = [
            _piece_type(text, kind, unknown, scores)
            for text, kind in zip(tokens, types, strict=True)
        ]
        first = tokenizer.encode("a", add_special_tokens=False).tokens[0]
        found["add_space_prefix"] = first.startswith(SPACE)
    else:
        kind = pretokenizer.kind_of(tokenizer, bool(model.get("ignore_merges")))
        merges = _special(folder, rows, load_merges=True).merges
        found |= {"model": "gpt2", "pre": kind, "merges": merges}
    found["token_type"] = types
    _check(path, found, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    return found


def _tokens(
    rows: int, texts: dict[int, str], added: dict[int, dict[str, Any]]
) -> tuple[list[str], list[int]]:
    """Tokens and their types. Rows of the embedding that no token uses get a name."""
    tokens, types = [], []
    for index in range(rows):
        kind = TokenType.NORMAL
        if index in added:
            text = str(added[index]["content"])
            is_control = added[index].get("special") or CONTROL.fullmatch(text)
            kind = TokenType.CONTROL if is_control else TokenType.USER_DEFINED
        elif index in texts:
            text = texts[index]
        else:
            text, kind = f"[PAD{index}]", TokenType.UNUSED
        tokens.append(text)
        types.append(int(kind))
    return tokens, types


def _piece_type(text: str, kind: int, unknown: str | None, made: dict[str, float]) -> int:
    """The type of a piece; `made` has those that merges make.

    Gemma lists runs of spaces as added tokens, written as pieces: no text has them like that, so
    it is merges that make them.
    """
    if text == unknown:
        return int(TokenType.UNKNOWN)
    if kind == TokenType.NORMAL and BYTE.fullmatch(text):
        return int(TokenType.BYTE)
    if kind == TokenType.USER_DEFINED and SPACE in text and text in made:
        return int(TokenType.NORMAL)
    return kind


def _scores(merges: list[Any]) -> dict[str, float]:
    """A score for each piece: the earlier the first merge that makes it, the higher. The merges
    were once made of scores, so this is their order."""
    scores: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        parts = merge.split(" ", 1) if isinstance(merge, str) else merge
        scores.setdefault("".join(parts), -float(rank))
    return scores


def _from_pieces(folder: Path, rows: int) -> Metadata:
    path = folder / PIECES
    try:
        vocabulary = gguf.SentencePieceVocab(folder)
        entries = list(vocabulary.all_tokens())
    except (OSError, ValueError, RuntimeError) as error:
        raise HostError(f"{path} is no SentencePiece model: {error}") from None
    config = folder / "tokenizer_config.json"
    added = read_json(config).get("added_tokens_decoder", {}) if config.is_file() else {}
    special = {int(index): token for index, token in added.items() if token.get("special")}
    tokens, scores, types = [], [], []
    for index in range(rows):
        data, score, kind = (
            entries[index]
            if index < len(entries)
            else (f"[PAD{index}]".encode(), UNREACHED, TokenType.UNUSED)
        )
        if index in special and kind != TokenType.UNKNOWN:
            data, kind = special[index]["content"].encode(), TokenType.CONTROL
        tokens.append(data.decode())
        scores.append(float(score))
        types.append(int(kind))
    processor = vocabulary.sentencepiece_tokenizer
    found = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    found["add_space_prefix"] = processor.encode("a", out_type=str)[0].startswith(SPACE)
    _check(path, found, processor.encode)
    return found


def _check(path: Path, found: Metadata, ids_of: Callable[[str], list[int]]) -> None:
    """Raises HostError unless the engine's tokenizer gives the same ids as `ids_of`."""
    metadata = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    try:
        tokenizer = open_native(tokenizer_json(metadata))
    except OctavoError as error:
        raise HostError(f"{path}: {error.message}") from None
    for text in TEXTS:
        if tokenizer.ids(text) != ids_of(text):
            raise HostError(f"{path}: Octavo's tokenizer gives other ids, as for {text!r}.")
