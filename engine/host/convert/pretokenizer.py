"""Which `tokenizer.ggml.pre` a tokenizer.json is: that whose steps split a long probe like it.

The steps are run, not compared as text: the same splitting can be written in several ways.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import product

from tokenizers import Tokenizer

from engine.host.errors import HostError
from engine.tokenizer.families import FAMILIES
from engine.tokenizer.spec import tokenizer_json

# Signs of all the classes that splitting patterns tell apart, and two that compose.
SIGNS = (
    *("a", "L", "s", "1", "٣", "'", ".", "_", "-", "/", "$", " ", "\n", "\r", "\t", "\u3000"),
    *("é", "e\u0301", "ß", "ǅ", "ʰ", "中", "ぁ", "한", "ก", "ि", "Ⅳ", "🙂", "\u200d"),
)
# First and last of the large scripts, and of what lies beyond the basic plane.
EDGES = [0x4DFF, 0x4E00, 0x9FA5, 0x9FA6, 0x9FFF, 0xABFF, 0xAC00, 0xD7A3, 0xD7FF, 0xF900, 0xFEFF]
EDGES += [0x10400, 0x1D400, 0x1D7D8, 0x1F1E6, 0x1F468, 0x1F600, 0x20000, 0x2A6DF, 0xE0001]
WORDS = "I'm you'LL he's we'Ve it'd they're n't don't 'tis 1234567 12,345.67 HelloWorld iPhone"


@cache
def probes() -> tuple[str, ...]:
    """Texts, the short ones first: words with apostrophes and pairs of signs, sequences of three
    signs, and characters beside letters, digits and themselves."""
    pairs, triples = ("".join(map("".join, product(SIGNS, repeat=count))) for count in (2, 3))
    points = [*range(1, 0x3400), *range(0x3400, 0xD800, 61), *range(0xE000, 0xFFFE, 7)]
    swept = "".join(f"a{chr(point)} {chr(point)}{chr(point)}1" for point in points + EDGES)
    return f"{WORDS} {WORDS.upper()}\n{pairs}", triples, swept


def kind_of(tokenizer: Tokenizer, ignore_merges: bool) -> str:
    """The kind of a byte-level tokenizer; raises HostError if it is none that the engine has.

    `ignore_merges` says that a piece which is a token needs no merges.
    """
    ranked = sorted(FAMILIES, key=lambda kind: _ignores_merges(kind) != ignore_merges)
    for kind in ranked:
        if split_alike(tokenizer, _of_kind(kind)):
            return kind
    raise HostError(
        "This tokenizer splits text in a way that Octavo does not know. Known ones: "
        + ", ".join(FAMILIES)
    )


def split_alike(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both cut all probes into the same pieces."""
    return all(_split(one, text) == _split(other, text) for text in probes())


def _split(tokenizer: Tokenizer, text: str) -> list[str]:
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is None:
        return [text]
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def _json_of(kind: str) -> str:
    """The tokenizer.json of a kind, with the smallest vocabulary."""
    values = {"model": "gpt2", "pre": kind, "tokens": ["a", "aa"], "merges": ["a a"]}
    return tokenizer_json({f"tokenizer.ggml.{key}": value for key, value in values.items()})


def _of_kind(kind: str) -> Tokenizer:
    return Tokenizer.from_str(_json_of(kind))


def _ignores_merges(kind: str) -> bool:
    return bool(json.loads(_json_of(kind))["model"]["ignore_merges"])
