"""What an encoder of sentences has beside its graph: the tokenizer, and how long a text may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.embedding import frame_of
from engine.errors import OctavoError
from engine.graph.model import Graph
from engine.graph.pooling import mean_pooling
from engine.host.errors import HostError

TOKENIZER, CONFIG, SENTENCES = "tokenizer.json", "config.json", "sentence_bert_config.json"


def encoder_of(source: Path, graph: Graph) -> dict[str, Any]:
    """The manifest's field `encoder`, if `source` lies beside a tokenizer, or in a folder that
    does (as in exports for the web), and its graph is an encoder's; else nothing.

    Raises HostError if a file beside it is damaged.
    """
    folders = [source.resolve().parent, source.resolve().parent.parent]
    folder = next(
        (f for f in folders if (f / TOKENIZER).is_file() and (f / CONFIG).is_file()), None
    )
    if folder is None:
        return {}
    try:
        mean_pooling(graph)
        tokenizer = (folder / TOKENIZER).read_text(encoding="utf-8")
        frame_of(tokenizer)
    except OctavoError as error:
        print(f"note: no encoder of sentences: {error.message}", flush=True)
        return {}
    lengths = [
        _number(folder / CONFIG, "max_position_embeddings"),
        _number(folder / SENTENCES, "max_seq_length"),
    ]
    known = [length for length in lengths if length]
    return {"encoder": {"tokenizer": tokenizer, "longest": min(known)}} if known else {}


def _number(path: Path, key: str) -> int | None:
    """A whole number of a JSON file, if both are there."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get(key)
    except (ValueError, AttributeError) as error:
        raise HostError(f"{path} is damaged: {error}") from None
    return value if type(value) is int else None
