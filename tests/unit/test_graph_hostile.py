"""Graphs that cannot be used are refused quickly, with the node's name."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from engine.errors import OctavoError
from engine.graph.facts import check_operators, infer
from engine.graph.lowering import record
from engine.graph.reading import read_graph
from engine.host.convert.onnx_graph.conversion import convert_graph
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.errors import HostError
from engine.plan import Traits

SIZE = 4096  # bytes of data


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> dict[str, Any]:
    return {
        "name": f"the_{op}",
        "op": op,
        "inputs": inputs,
        "outputs": outputs,
        "attributes": attributes,
    }


def named(i: int, op: str, inputs: list[str]) -> dict[str, Any]:
    """One of many nodes, which makes s1, s2, ..."""
    return {**node(op, inputs, [f"s{i + 1}"]), "name": f"m{i}"}


def wire() -> dict[str, Any]:
    """A small graph that is right: y = reshape(x + w, shape)."""
    return {
        "name": "graph",
        "opsets": {"": 18},
        "inputs": [{"name": "x", "dtype": "f32", "shape": ["n", 32]}],
        "outputs": ["y"],
        "nodes": [
            node("Add", ["x", "w"], ["sum"]),
            node("Reshape", ["sum", "shape"], ["y"]),
        ],
        "constants": [
            {"name": "w", "dtype": "f32", "shape": [32], "start": 0, "nbytes": 128},
            {"name": "shape", "dtype": "i64", "shape": [2], "values": [-1, 8]},
        ],
    }


def use(data: Any, size: int = SIZE) -> None:
    """All that is done with a graph before it runs."""
    graph = read_graph(json.loads(json.dumps(data)), size)
    check_operators(graph)
    infer(graph)
    record(graph, {"n": 3}, Traits("webgpu"))


def test_the_graph_itself_is_right() -> None:
    use(wire())


Change = Callable[[dict[str, Any]], Any]
BIG = 1 << 40
WRONG: dict[str, tuple[Change, str, str]] = {
    "operator": (
        lambda g: g["nodes"][0].update(op="Frobnicate"),
        "graph.operator",
        "Frobnicate 'the_Add'",
    ),
    "domain": (lambda g: g["nodes"][0].update(op="evil.Add"), "graph.operator", "the_Add"),
    "opset": (lambda g: g.update(opsets={"": 99}), "graph.operator", "the_Add"),
    "no opset": (lambda g: g.update(opsets={}), "graph.operator", "the_Add"),
    "attribute": (
        lambda g: g["nodes"][0].update(attributes={"axis": 1}),
        "graph.operator",
        "the_Add",
    ),
    "attribute's type": (
        lambda g: g["nodes"][1].update(attributes={"allowzero": "yes"}),
        "graph.invalid",
        "the_Reshape",
    ),
    "number of inputs": (
        lambda g: g["nodes"][0].update(inputs=["x"]),
        "graph.operator",
        "the_Add",
    ),
    "missing input": (lambda g: g["nodes"][0].update(inputs=["x", ""]), "graph.invalid", "the_Add"),
    "value that nobody makes": (
        lambda g: g["nodes"][0].update(inputs=["x", "z"]),
        "graph.invalid",
        "the_Add",
    ),
    "cycle": (lambda g: g["nodes"][0].update(inputs=["x", "y"]), "graph.invalid", "cycle"),
    "cycle of one": (lambda g: g["nodes"][0].update(inputs=["x", "sum"]), "graph.invalid", "cycle"),
    "made twice": (lambda g: g["nodes"][1].update(outputs=["sum"]), "graph.invalid", "twice"),
    "output": (lambda g: g.update(outputs=["z"]), "graph.invalid", "'z'"),
    "shapes": (
        lambda g: g["constants"][0].update(shape=[31], nbytes=124),
        "graph.invalid",
        "the_Add",
    ),
    "data beyond the end": (lambda g: g["constants"][0].update(start=4000), "graph.invalid", "'w'"),
    "data in between": (lambda g: g["constants"][0].update(start=2), "graph.invalid", "'w'"),
    "too little data": (lambda g: g["constants"][0].update(nbytes=64), "graph.invalid", "'w'"),
    "claimed elements": (
        lambda g: g["constants"][0].update(shape=[BIG], nbytes=4 * BIG),
        "graph.invalid",
        "'w'",
    ),
    "claimed axes": (
        lambda g: g["constants"][0].update(shape=[1 << 30, 1 << 30, 1 << 30]),
        "graph.invalid",
        "'w'",
    ),
    "huge input": (
        lambda g: g["inputs"][0].update(shape=[BIG, 32]),
        "graph.invalid",
        "'x'",
    ),
    "expanded to 2^40": (
        lambda g: (
            g["nodes"][1].update(op="Expand")
            or g["constants"][1].update(shape=[3], values=[1 << 35, 3, 32])
        ),
        "graph.invalid",
        "Expand 'the_Reshape'",
    ),
    "range of 2^40": (
        lambda g: g.update(
            nodes=[node("Range", ["a", "b", "c"], ["y"])],
            constants=[
                {"name": n, "dtype": "i64", "shape": [], "values": [v]}
                for n, v in (("a", 0), ("b", BIG), ("c", 1))
            ],
        ),
        "graph.operator",
        "the_Range",
    ),
    "power of known numbers": (
        lambda g: g.update(
            nodes=[node("Pow", ["a", "a"], ["p"]), node("Reshape", ["x", "p"], ["y"])],
            constants=[{"name": "a", "dtype": "i64", "shape": [1], "values": [1 << 60]}],
        ),
        "",
        "the_Reshape",
    ),
    "shape from the device": (
        lambda g: g["nodes"][1].update(inputs=["sum", "sum"]),
        "graph.operator",
        "the_Reshape",
    ),
    "nine axes": (
        lambda g: g["constants"][1].update(shape=[9], values=[1] * 8 + [-1]),
        "graph.invalid",
        "the_Reshape",
    ),
    "squared again and again": (
        lambda g: g.update(
            nodes=[
                node("Shape", ["x"], ["s0"]),
                *(named(i, "Mul", [f"s{i}"] * 2) for i in range(60)),
                node("Expand", ["x", "s60"], ["y"]),
            ]
        ),
        "",
        "the_Expand",
    ),
    "too much arithmetic": (
        lambda g: g.update(
            nodes=[
                node("ConstantOfShape", ["many"], ["s0"]),
                *(named(i, "Add", ["s0", "s0"]) for i in range(999)),
                node("Reshape", ["x", "s9"], ["y"]),
            ],
            constants=[{"name": "many", "dtype": "i64", "shape": [1], "values": [1 << 14]}],
        ),
        "graph.invalid",
        "too much",
    ),
    "a billion outputs": (
        lambda g: g["nodes"][1].update(
            op="Split", inputs=["sum"], attributes={"num_outputs": 1 << 30, "axis": 1}
        ),
        "graph.invalid",
        "the_Reshape",
    ),
    "a thousand axes": (
        lambda g: (
            g["nodes"][1].update(op="Unsqueeze")
            or g["constants"][1].update(shape=[1000], values=list(range(1000)))
        ),
        "graph.invalid",
        "the_Reshape",
    ),
    "dtype": (lambda g: g["inputs"][0].update(dtype="f128"), "graph.invalid", "'x'"),
    "number of values": (
        lambda g: g["constants"][1].update(values=[1]),
        "graph.invalid",
        "'shape'",
    ),
    "kind of values": (
        lambda g: g["constants"][1].update(values=[1, "2"]),
        "graph.invalid",
        "'shape'",
    ),
    "a number beyond all floats": (
        lambda g: g["constants"][1].update(dtype="f32", values=[10**400, 1]),
        "graph.invalid",
        "'shape'",
    ),
    "negative size": (lambda g: g["inputs"][0].update(shape=[-1, 32]), "graph.invalid", "'x'"),
    "nodes": (lambda g: g.update(nodes={}), "graph.invalid", "nodes"),
    "unknown axis": (lambda g: g["inputs"][0].update(shape=["m", 32]), "graph.invalid", "'m'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    change, code, text = WRONG[name]
    data = wire()
    change(data)
    started = time.process_time()
    with pytest.raises(OctavoError, match=text) as caught:
        use(data)
    assert time.process_time() - started < 3  # most take milliseconds
    assert not code or caught.value.code == code


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 1000), junk=JUNK)
def test_junk_anywhere_is_an_octavo_error(place: int, junk: Any) -> None:
    data = wire()
    places = list(_places(data))
    holder, key = places[place % len(places)]
    holder[key] = copy.deepcopy(junk)
    try:
        use(data)
    except OctavoError as error:
        assert error.code.split(".")[0] in ("graph", "gpu")


def _places(data: Any) -> Any:
    """Every place in nested lists and objects."""
    for key in data if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


def model_with(tensors: list[Any], op: str = "Add", opset: int = 18) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], "the_node")],
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n", 40])],
        [helper.make_empty_tensor_value_info("y")],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def external(**place: str) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones(40, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


@pytest.mark.parametrize(
    "place",
    [
        {"location": "gone.bin"},
        {"location": "../secret.bin"},
        {"location": "link.bin"},
        {"location": ""},
        {"location": "short.bin"},
        {"location": "long.bin", "offset": "2000"},
        {"location": "long.bin", "offset": "-4"},
        {"location": "long.bin", "length": "8"},
        {"location": "long.bin", "offset": "many"},
        {"location": "."},
    ],
    ids=str,
)
def test_external_data_that_is_not_there(tmp_path: Path, place: dict[str, str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "short.bin").write_bytes(bytes(100))
    (folder / "long.bin").write_bytes(bytes(1000))
    path = folder / "model.onnx"
    path.write_bytes(model_with([external(**place)]).SerializeToString())
    with pytest.raises(HostError, match="'w'"):
        convert_graph(path, tmp_path / "out")
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_absolute_external_data(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(1000))
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "model.onnx"
    tensor = external(location=str(tmp_path / "secret.bin"))
    path.write_bytes(model_with([tensor]).SerializeToString())
    with pytest.raises(HostError, match="outside"):
        open_onnx(path)


@pytest.mark.parametrize("junk", [b"", b"not a model", bytes(range(256)) * 4])
def test_files_that_are_no_models(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(junk)
    with pytest.raises(HostError, match="no ONNX file"):
        convert_graph(path, tmp_path / "out")


@pytest.mark.parametrize(("op", "opset"), [("Unheard", 18), ("Add", 5)])
def test_what_is_not_supported_is_named(tmp_path: Path, op: str, opset: int) -> None:
    tensor = numpy_helper.from_array(np.ones(40, np.float32), "w")
    path = tmp_path / "model.onnx"
    path.write_bytes(model_with([tensor], op, opset).SerializeToString())
    with pytest.raises(HostError, match=f"{op} 'the_node'"):
        convert_graph(path, tmp_path / "out")
