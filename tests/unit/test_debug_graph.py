"""`build.py debug` of a graph: the first tensor that differs is named with its node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.host.convert.onnx_graph.conversion import convert_graph
from engine.host.debug import graphs
from engine.host.debug.command import main as run
from engine.ops import rows
from tests.conftest import ROOT
from tests.unit.debugging import arguments

BERT = ROOT / "tests/golden/onnx_bert.onnx"


def test_files_that_are_graphs(tmp_path: Path) -> None:
    assert graphs.is_graph(BERT)
    assert graphs.is_graph(convert_graph(BERT, tmp_path))
    assert not graphs.is_graph(tmp_path)
    assert not graphs.is_graph(ROOT / "tests/golden/tiny.gguf")


@pytest.mark.parametrize("name", ["onnx_bert", "onnx_qwen2"])
def test_nothing_differs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / f"tests/golden/{name}.onnx"
    assert run(arguments(model=path)) == 0
    said = capsys.readouterr().out
    assert "nothing differs" in said and "beside onnxruntime's: difference" in said


def test_a_folder_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments(model=convert_graph(BERT, tmp_path))) == 0
    said = capsys.readouterr().out
    assert "nothing differs" in said and "onnxruntime" not in said


def test_an_operator_that_means_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Device and reference agree on the CPU; onnxruntime does not."""

    def wrong(b: Any, x: Any, width: int, gain: Any, bias: Any, eps: float, centred: bool) -> Any:
        return rows.normalization(b, x, width, gain, bias, eps + 0.5, centred)

    monkeypatch.setattr("engine.graph.operators.reduction.normalization", wrong)
    assert run(arguments(model=BERT)) == 1
    said = capsys.readouterr().out
    assert "nothing differs" in said and "DIFFERS" in said


def test_the_node_of_a_wrong_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that computes the second normalization wrongly."""
    record = graphs.record

    def spoiled(*given: Any) -> Any:
        made = record(*given)
        calls = list(made.plan.calls)
        place = [i for i, call in enumerate(calls) if call.op == "normalization"][1]
        right, count = calls[place].reference, [0]

        def wrong(args: Mapping[str, Any]) -> None:
            right(args)
            count[0] += 1
            if count[0] == 3:  # the references come first: on the device's inputs, and alone
                args["y"].reshape(-1)[5] += 1

        object.__setattr__(calls[place], "reference", wrong)
        return made

    monkeypatch.setattr(graphs, "record", spoiled)
    assert run(arguments(model=BERT)) == 1
    said = capsys.readouterr().out
    assert "First tensor that differs" in said
    assert "node: octavo.LayerNorm '/" in said
