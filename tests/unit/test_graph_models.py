"""Whole graphs, as torch.onnx.export writes them, against onnxruntime; and what they take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.graph.lowering import record
from engine.graph.model import Graph
from engine.graph.reading import graph_to_wire, read_graph
from engine.host import cli
from engine.host.convert import command
from engine.host.convert.onnx_graph.conversion import convert_graph, simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.plan import Traits
from tests.conftest import ROOT
from tests.graphs import as_read, computed, wanted

GOLDEN = ROOT / "tests/golden"
VOCABULARY = 40
# Dispatches at a batch of 2 and 16 tokens, before and after the passes.
DISPATCHES = {
    "onnx_bert": (65, 21),
    "onnx_llama": (70, 39),
    "onnx_qwen2": (69, 35),
    "onnx_dynamo_bert": (48, 26),
    "onnx_dynamo_llama": (68, 34),
}


def feeds_of(graph: Graph, batch: int, sequence: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(sequence).integers(0, VOCABULARY, (batch, sequence))
    mask = np.ones_like(ids)
    mask[-1, max(sequence * 2 // 3, 1) :] = 0
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    return {value.name: given[value.name] for value in graph.inputs}


@pytest.mark.parametrize("name", DISPATCHES)
def test_exported_models(tmp_path: Path, name: str) -> None:
    path = GOLDEN / f"{name}.onnx"
    plain = open_onnx(path)
    graphs = [as_read(graph, tmp_path) for graph in (plain, simplified(plain))]
    for batch, sequence in ((1, 1), (2, 16), (3, 64)):
        feeds = feeds_of(plain, batch, sequence)
        want = wanted(path, feeds)
        for graph, data in graphs:
            for got, one in zip(computed(graph, data, feeds), want, strict=True):
                np.testing.assert_allclose(got, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DISPATCHES)
def test_dispatches_and_memory(name: str) -> None:
    plain = open_onnx(GOLDEN / f"{name}.onnx")
    sizes = {"batch": 2, "sequence": 16}
    made = [record(graph, sizes, Traits("webgpu")) for graph in (plain, simplified(plain))]
    assert tuple(len(m.plan.calls) for m in made) == DISPATCHES[name]
    for recording in made:
        assert recording.activation_bytes * 2 < recording.tensor_bytes


def test_shapes_are_expressions_of_the_axes() -> None:
    graph = simplified(open_onnx(GOLDEN / "onnx_bert.onnx"))
    shapes = {value.name: tuple(map(str, value.shape)) for value in graph.inputs}
    assert shapes["input_ids"] == ("batch", "sequence")
    wire = json.loads(json.dumps(graph_to_wire(graph), allow_nan=False))
    sizes = [node["attributes"]["sizes"] for node in wire["nodes"] if node["op"] == "octavo.Sizes"]
    assert ["batch", "sequence", "4", "8"] in sizes


def test_convert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.pip, "install", lambda *_: None)
    source = GOLDEN / "onnx_bert.onnx"
    assert cli.main(["convert", str(source), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "as it is: " in printed and "after the passes: " in printed and "dispatches" in printed
    folder = tmp_path / "out/onnx_bert"
    manifest = json.loads((folder / "manifest.json").read_text())
    data = b"".join((folder / shard["name"]).read_bytes() for shard in manifest["shards"])
    assert manifest["size"] == len(data) and {p.name for p in folder.iterdir()} == {
        "manifest.json",
        *(shard["name"] for shard in manifest["shards"]),
    }
    graph = read_graph(manifest["graph"], manifest["size"])
    feeds = feeds_of(graph, 2, 9)
    for got, want in zip(computed(graph, data, feeds), wanted(source, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_external_data(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load(GOLDEN / "onnx_bert.onnx")
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert path.stat().st_size < 40_000
    folder = convert_graph(path, tmp_path / "out")
    inside = convert_graph(GOLDEN / "onnx_bert.onnx", tmp_path / "out")
    assert [p.read_bytes() for p in sorted(folder.glob("*.bin"))] == [
        p.read_bytes() for p in sorted(inside.glob("*.bin"))
    ]
