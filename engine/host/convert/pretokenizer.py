"""Which `tokenizer.ggml.pre` a tokenizer.json is: that whose steps split a long probe like it.

The steps are run, not compared as text: the same splitting can be written in several ways.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import product

from tokenizers import Tokenizer

from engine.host.errors import HostError
from engine.tokenizer.spec import FAMILIES, tokenizer_json

# Signs of all the classes that splitting patterns tell apart, and two that compose.
SIGNS = (
    *("a", "L", "s", "1", "٣", "'", ".", "_", "-", "/", "$", " ", "\n", "\r", "\t", "\u3000"),
    *("é", "e\u0301", "ß", "ǅ", "ʰ", "中", "ぁ", "한", "ก", "ि", "Ⅳ", "🙂", "\u200d"),
)
WORDS = "I'm you'LL he's we'Ve it'd they're n't don't 'tis 1234567 12,345.67 HelloWorld iPhone"


@cache
def probe() -> str:
    """Every sequence of three signs, words with apostrophes, and every character of the basic
    plane beside letters, digits and itself."""
    signs = "".join(map("".join, product(SIGNS, repeat=3)))
    points = [*range(1, 0xD800), *range(0xE000, 0xFFFE), *range(0x1F300, 0x1FA00)]
    swept = "".join(f"a{chr(point)} {chr(point)}{chr(point)}1" for point in points)
    return f"{WORDS} {WORDS.upper()}\n{signs}\n{swept}"


def kind_of(tokenizer: Tokenizer, ignore_merges: bool) -> str:
    """The kind of a byte-level tokenizer; raises HostError if it is none that the engine has.

    `ignore_merges` says that a piece which is a token needs no merges.
    """
    wanted = _split(tokenizer)
    alike = [kind for kind in FAMILIES if _split(_of_kind(kind)) == wanted]
    if not alike:
        raise HostError(
            "This tokenizer splits text in a way that Octavo does not know. Known ones: "
            + ", ".join(FAMILIES)
        )
    return next((kind for kind in alike if _ignores_merges(kind) == ignore_merges), alike[0])


def _split(tokenizer: Tokenizer) -> list[str]:
    text = probe()
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
