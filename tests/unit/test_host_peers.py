"""Octavo beside its peers: the jobs, the table, the folder that is served, and its weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.host import bench, cli, comparison, peers
from engine.host.comparison import Entry, Job
from engine.host.errors import HostError
from engine.host.paths import ROOT
from engine.weights.dequantize import dequantize
from engine.weights.gguf import read_header
from tests.bench.peers import make_onnx, onnx_graph

OCTAVO = Entry("Octavo", "GPU", "m", {"decode_64": 300.0, "ttft_32": 20.0, "load": 5.0})
SLOW = Entry("slow 1", "GPU", "q4", {"decode_64": 100.0, "ttft_32": 30.0, "prefill_512": 9.0})
FAST = Entry("fast 2", "CPU", "", {"decode_64": 150.0, "ttft_32": 10.0})


def run(name: str = "wllama 1", **values: float) -> dict[str, Any]:
    """A result of the page."""
    rows = [{"id": id, "value": value} for id, value in values.items()]
    facts = {"name": name, "device": "CPU", "note": "n"}
    return {"compared": {**facts, "rows": rows}}


# The table


def test_ratios_say_how_many_times_as_fast_as_the_best_peer() -> None:
    assert comparison.ratios(OCTAVO, [SLOW, FAST]) == {
        "decode_64": {"ratio": 2.0, "peer": "fast 2"},
        "ttft_32": {"ratio": 0.5, "peer": "fast 2"},  # where less is better, turned round
    }
    assert comparison.ratios(OCTAVO, []) == {}


def test_the_table_has_a_line_for_each_engine_and_says_what_it_ran_on() -> None:
    broken = comparison.failed(
        Job({"engine": "onnxruntime", "graph": "model_q4.onnx"}), "No adapter."
    )
    lines = comparison.table(OCTAVO, [SLOW, broken, FAST])
    assert lines[1].split() == ["decode_64", "ttft_32", "ms", "load", "s"]
    assert lines[2].split() == ["Octavo", "300", "20", "5"]
    assert lines[3].split() == ["slow", "1", "100", "30", "-"]
    assert lines[4].split() == ["fast", "2", "150", "10", "-"]
    assert lines[5].split() == ["Octavo", "/", "best", "peer", "2.00", "x", "0.50", "x", "-"]
    assert lines[6:] == [
        "Octavo: GPU; m",
        "slow 1: GPU; q4",
        "onnxruntime model_q4.onnx: not measured: No adapter.",
        "fast 2: CPU",
    ]


def test_an_entry_holds_the_medians_of_its_runs() -> None:
    runs = [run(load=1.0, decode_64=9.0), run(load=4.0), run(load=2.0, decode_64=7.0)]
    entry = comparison.entry(runs)
    assert (entry.name, entry.device, entry.note) == ("wllama 1", "CPU", "n")
    assert entry.values == {"load": 2.0, "decode_64": 8.0}


def test_the_document_can_be_written_as_json() -> None:
    document = json.loads(json.dumps(comparison.document(OCTAVO, [SLOW, FAST])))
    assert [engine["name"] for engine in document["engines"]] == ["Octavo", "slow 1", "fast 2"]
    assert document["ratios"]["decode_64"]["peer"] == "fast 2"


def test_a_table_can_be_made_of_what_pages_have_reported() -> None:
    sent = [{"progress": "Loading"}, run("peer", load=1.0), run("peer", load=3.0), {"done": 1}]
    lines = ["a runner's own line", *map(json.dumps, [*sent, run("Octavo", load=4.0)])]
    entries = comparison.from_log(lines)
    assert [(entry.name, entry.values) for entry in entries] == [
        ("peer", {"load": 2.0}),
        ("Octavo", {"load": 4.0}),
    ]


# The jobs


def test_every_job_names_an_adapter_and_a_graph_that_there_is() -> None:
    for job in (*comparison.jobs("gpu"), *comparison.jobs("cpu")):
        adapter = peers.SOURCE / f"{job.parameters['engine']}.mjs"
        assert "export async function load(" in adapter.read_text()
        source = (peers.SOURCE / "make_onnx.py").read_text()
        assert f'"{job.parameters["graph"]}"' in source if "graph" in job.parameters else True
    assert comparison.jobs("software") == comparison.jobs("gpu")


def arguments(*words: str) -> argparse.Namespace:
    return cli._parse(["bench", *words])


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str]]:
    """Nothing is installed, built or served; the headers asked for are kept."""
    asked: list[Mapping[str, str]] = []

    @contextmanager
    def served(folder: Path, headers: Mapping[str, str]) -> Iterator[str]:
        asked.append(headers)
        yield "http://there"

    monkeypatch.setattr(bench.pip, "install", lambda lock, title: None)
    monkeypatch.setattr(bench.chromium, "ensure", lambda: "chromium")
    monkeypatch.setattr(bench.peers, "build", lambda: Path())
    monkeypatch.setattr(bench, "_served", served)
    return asked


def test_peers_are_measured_as_octavo_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prepared: list[Mapping[str, str]]
) -> None:
    urls: list[str] = []

    def measured(playwright: Any, browser: str, flags: list[str], url: str) -> dict[str, Any]:
        urls.append(url)
        if "threads=2" in url:
            return {"error": {"code": "Error", "message": "No threads."}}
        if "engine=" in url:
            return run(decode_64=4.0)
        device = {"kind": "cpu", "name": "CPU", "software": False, "reason": ""}
        own = {"device": device, "model": {"name": "m"}, "rows": []}
        return {**own, **run("Octavo", decode_64=10.0)}

    monkeypatch.setattr(bench, "_run", measured)
    file = tmp_path / "result.json"
    words = ("--peers", "--device", "cpu", "--set", "model=some", "--json", str(file))
    assert bench.main(arguments(*words)) == 0
    assert prepared == [peers.ISOLATED]
    assert urls[0] == "http://there/bench.html?device=cpu&start=1&compare=1&model=some"
    assert "device=cpu&start=1" in urls[1] and "model=some&engine=wllama" in urls[1]
    found = json.loads(file.read_text())["measured"][0]["comparison"]
    assert found["ratios"] == {"decode_64": {"ratio": 2.5, "peer": "wllama 1"}}
    assert [engine["error"] for engine in found["engines"]] == ["", "", "No threads.", ""]


def test_the_folder_alone_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[Path] = []
    monkeypatch.setattr(bench.peers, "write", written.append)
    assert bench.main(arguments("--peers-site", str(tmp_path))) == 0
    assert written == [tmp_path]


# The folder


def test_only_the_copy_of_the_page_lets_blobs_run() -> None:
    page = (ROOT / "web" / "bench.html").read_text()
    assert "blob:" not in page
    changed = peers.relaxed(page)
    for directive in ("script-src", "worker-src", "connect-src"):
        assert f"{directive} 'self' blob:" in changed
    with pytest.raises(HostError, match="script-src"):
        peers.relaxed("<html>")


def test_the_lock_pins_hashes_and_the_versions_that_are_said() -> None:
    package = json.loads((peers.SOURCE / "package.json").read_text())
    text = (peers.SOURCE / "package-lock.json").read_text()
    locked = json.loads(text)["packages"]
    for name, version in package["dependencies"].items():
        assert locked[f"node_modules/{name}"]["version"] == version
    for name, entry in locked.items():
        assert not name or entry["integrity"].startswith("sha512-")
        assert "resolved" not in entry
    for name in ("@wllama/wllama", "@huggingface/tokenizers"):
        source = (peers.SOURCE / f"{name.partition('/')[2]}.mjs").read_text()
        assert f'const VERSION = "{package["dependencies"][name]}"' in source


# The weights


@pytest.mark.parametrize("graph, layers", [("smollm2-135m.onnx", 30), ("qwen2.5-1.5b.onnx", 28)])
def test_graphs_lie_in_one_data_file_without_gaps(graph: str, layers: int) -> None:
    tensors = list(onnx_graph.externals((make_onnx.GRAPHS / graph).read_bytes()))
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        assert tensor.offset == end
        end += tensor.length
    assert sum(tensor.name.endswith("down_proj.MatMul.weight_Q4") for tensor in tensors) == layers


def test_a_graph_changes_only_where_it_is_told_to() -> None:
    graph = (make_onnx.GRAPHS / "smollm2-135m.onnx").read_bytes()
    assert onnx_graph.with_attribute(graph, "no such attribute", 1) == graph
    assert onnx_graph.with_dimension(graph, "no such dimension", 1) == graph
    exact = onnx_graph.with_attribute(graph, "accuracy_level", 0)
    assert exact.count(b"accuracy_level") == graph.count(b"accuracy_level") == 30 * 5 + 1
    assert sum(a != b for a, b in zip(graph, exact, strict=True)) == graph.count(b"accuracy_level")
    sized = onnx_graph.with_dimension(graph, "kv_cache_dim", 64)
    assert b"kv_cache_dim" in graph and b"kv_cache_dim" not in sized
    moved = onnx_graph.with_data_file(graph, "weights")
    assert list(onnx_graph.externals(moved)) == list(onnx_graph.externals(graph))


def test_quantized_again_a_matrix_stays_within_a_step_of_itself() -> None:
    matrix = np.random.default_rng(3).standard_normal((6, 64)).astype(np.float32)
    matrix[0, :32] = 0
    codes, scales = make_onnx.quantize(matrix)
    assert (codes.shape, scales.shape) == ((6, 2, 16), (6, 2))
    nibbles = np.stack([codes & 15, codes >> 4], axis=3).reshape(6, 2, 32).astype(np.float32)
    restored = (nibbles - 8) * scales[:, :, None]
    error = np.abs(restored - matrix.reshape(6, 2, 32))
    assert (error <= np.abs(scales)[:, :, None] * 1.001).all()


def test_rows_of_q_get_rotary_pairs_as_halves() -> None:
    data = (ROOT / "tests" / "golden" / "tiny.gguf").read_bytes()
    gguf = read_header(data, len(data))
    stacked = make_onnx.Weights(gguf, data).matrix("model.layers.1.attn.qkv_proj.MatMul.weight")
    info = gguf.tensors["blk.1.attn_q.weight"]
    raw = data[info.offset : info.offset + info.nbytes]
    q = dequantize(info.quant, raw).reshape(info.shape)
    assert stacked.shape == (64 + 2 * 32, 64)
    head = q[16:32]  # the second of 4 heads of 16
    assert (stacked[16:32] == np.concatenate([head[0::2], head[1::2]])).all()
