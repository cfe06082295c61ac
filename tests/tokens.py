"""Tokenizers of each kind, and the ids that other implementations give to texts."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import ROOT

Metadata = dict[str, Any]
Rows = list[tuple[str, list[int]]]


def golden(name: str) -> Any:
    return json.loads((ROOT / "tests/golden" / name).read_text(encoding="utf-8"))


def kind_metadata(kind: str) -> Metadata:
    document = golden("tokens_kinds.json")
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": document["tokens"],
        "tokenizer.ggml.merges": document["merges"],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(document["tokens"]) - 3),
    }


def kind_rows(kind: str) -> Rows:
    """Texts with the ids in which the implementations that know the kind agree."""
    document = golden("tokens_kinds.json")
    rows = zip(document["texts"], document["kinds"][kind], strict=True)
    return [(text, ids) for text, ids in rows if ids is not None]


RECORDED = list(golden("tokens_kinds.json")["kinds"])


def piece_metadata(prefix: bool = True) -> Metadata:
    document = golden("tokens_pieces.json")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": document["tokens"],
        "tokenizer.ggml.scores": document["scores"],
        "tokenizer.ggml.token_type": document["types"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }
