"""Families that are not quite like Llama, and files as the builder of onnxruntime-genai makes them:
recognized in ONNX files, they compute what onnxruntime does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.host.convert.onnx_graph.conversion import read_graph, simplified
from engine.host.convert.onnx_graph.language_model import language_model
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.errors import HostError
from tests import hugging_face
from tests.graphs import as_read, computed, wanted
from tests.hugging_face import write_json
from tests.onnx_models import Layout, Oracle, write_onnx
from tests.unit.test_onnx_language_models import (
    GOLDEN,
    Edit,
    attribute,
    check,
    converted,
    inserted,
    write_export,
)

BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "head_dim": 16}
# Factors of frequencies, for short contexts and for long ones.
FOUR = {"short_factor": [1.0, 1.1, 1.2, 1.4], "long_factor": [1.1, 1.5, 3.0, 6.0]}
EIGHT = {
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8],
    "long_factor": [1.1, 1.3, 1.8, 2.5, 4.0, 6.0, 8.0, 10.0],
}
ORIGINAL = {"original_max_position_embeddings": 32}
# What config.json has of each, but for what all golden exports have.
FIELDS: dict[str, dict[str, Any]] = {
    "onnx_dynamo_gemma3": {
        **BASES,
        "num_hidden_layers": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "onnx_dynamo_phi3": {
        "rms_norm_eps": 1e-5,
        "rope_parameters": {**FOUR, **ORIGINAL, "rope_type": "longrope", "rope_theta": 1e4},
    },
    "onnx_dynamo_cached_phi3": {"sliding_window": 8, "rms_norm_eps": 1e-5},
    "genai_gemma3": {**BASES, "num_hidden_layers": 6, "sliding_window": 20},
    "genai_phi3": {
        **ORIGINAL,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {**EIGHT, "type": "longrope"},
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "genai_qwen3": {"num_hidden_layers": 2, "head_dim": 16},
}
SEVERAL = [i * 7 % 40 for i in range(40)]


@pytest.mark.parametrize("name", FIELDS)
def test_exports(name: str, tmp_path: Path) -> None:
    path = write_export(tmp_path / "model", name, **FIELDS[name])
    file = converted(path, tmp_path / "out")
    oracle = Oracle(path, FIELDS[name].get("head_dim", 0))
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
    assert kinds["blk.0.ffn_up.weight"] == ("Q4_0" if "genai" in name else "F32")
    check(file, oracle, SEVERAL)
    if "factor" in str(FIELDS[name]):
        # Other factors hold in a shorter context.
        check(file, oracle, SEVERAL[:8], context=32)


def edited(edit: Callable[[onnx.ModelProto], None], name: str, folder: Path) -> Path:
    """A golden export that has been changed."""
    path = write_export(folder / "model", name, **FIELDS[name])
    model = onnx.load(path)
    edit(model)
    onnx.save(model, path)
    return path


def constant(name: str, value: float) -> Edit:
    """Another number in a Constant."""

    def edit(graph: onnx.GraphProto) -> None:
        (node,) = (node for node in graph.node if name in node.output)
        old = numpy_helper.to_array(node.attribute[0].t)
        changed = numpy_helper.from_array(np.full_like(old, value), node.attribute[0].t.name)
        node.attribute[0].t.CopyFrom(changed)

    return edit


def without(name: str) -> Edit:
    """A node whose readers read its first input instead."""

    def edit(graph: onnx.GraphProto) -> None:
        (gone,) = (node for node in graph.node if node.name == name)
        for node in graph.node:
            for i, read in enumerate(node.input):
                node.input[i] = gone.input[0] if read == gone.output[0] else read
        graph.node.remove(gone)

    return edit


AT = "/model/layers.5"
NEARLY: dict[str, tuple[str, str, Edit]] = {
    "an embedding that is not scaled": (
        *("genai_gemma3", "not the RMS norm"),
        constant("/model/constants/FLOAT/5.66", 1.0),
    ),
    "GELU as it is defined": (
        *("genai_gemma3", "gated by GELU"),
        attribute(f"{AT}/mlp/act_fn/FastGelu", "approximate", "none"),
    ),
    "no norm of what is added": (
        *("genai_gemma3", "depends on"),
        without(f"{AT}/post_feedforward_layernorm/LayerNorm"),
    ),
    "another epsilon of what is added": (
        *("genai_gemma3", "not the RMS norm"),
        attribute(f"{AT}/post_attention_layernorm/LayerNorm", "epsilon", 1e-4),
    ),
    "what is added is scaled": (
        *("genai_gemma3", "not the RMS norm"),
        inserted(f"{AT}/pre_feedforward_layernorm/SkipLayerNorm", "Mul", 0.5, 1),
    ),
    "heads without norms": (
        *("genai_gemma3", "have 1 norms, not two"),
        without(f"{AT}/attn/k_norm/SimplifiedLayerNormalization"),
    ),
    "a window where everything is seen": (
        *("genai_gemma3", "sees 20 tokens, not 0"),
        attribute(f"{AT}/attn/GroupQueryAttention", "local_window_size", 20),
    ),
    "another length from which factors are long": (
        *("genai_phi3", "differs in long texts"),
        constant("/model/constants/INT64/32", 31),
    ),
    "factors that are always short": (
        *("genai_phi3", "differs in long texts"),
        constant("/model/constants/INT64/32", 64),
    ),
}


@pytest.mark.parametrize("what", NEARLY)
def test_what_only_looks_like_one_stays_a_graph(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, reason, edit = NEARLY[what]
    path = edited(lambda model: edit(model.graph), name, tmp_path)
    assert language_model(path, read_graph(path)) is None
    assert reason in capsys.readouterr().out


def test_tables_that_take_the_whole_context_for_the_original_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So some builders read Llama 3's scaling: what the file computes is what counts."""
    said = hugging_face.config("tiny_llama3")
    scaling = said["rope_scaling"] | {"original_max_position_embeddings": 512}
    path = write_onnx(tmp_path / "x", "tiny_llama3", Layout(8), rope_scaling=scaling)
    write_json(tmp_path / "x/config.json", said)
    check(converted(path, tmp_path / "out"), Oracle(path), SEVERAL)
    assert "note: its rotary tables take the whole context" in capsys.readouterr().out
    scaling["factor"] = 9.0
    path = write_onnx(tmp_path / "y", "tiny_llama3", Layout(8), rope_scaling=scaling)
    write_json(tmp_path / "y/config.json", said)
    with pytest.raises(HostError, match="'cos_cache' has other numbers from position 1 on"):
        language_model(path, read_graph(path))


def norms_inside(graph: onnx.GraphProto) -> None:
    """Heads that attention normalizes by itself, as in models for WebGPU."""
    gone = ("Reshape_1", "SimplifiedLayerNormalization", "Reshape_2")
    split = {i: f"qkv_proj/Split/output_{i}" for i in range(2)}
    kept = [n for n in graph.node if "_norm/" not in n.name or not n.name.endswith(gone)]
    for node in kept:
        if node.op_type == "GroupQueryAttention":
            at = node.name.removesuffix("/GroupQueryAttention")
            for i, name in split.items():
                node.input[i] = f"{at}/{name}"
            gains = [f"{at}.{part}_norm.layernorm.weight" for part in "qk"]
            gains = [gain.removeprefix("/").replace("/", ".") for gain in gains]
            node.input.extend([*[""] * (14 - len(node.input)), *gains])
            node.attribute.append(helper.make_attribute("qk_norm_epsilon", 1e-6))
    del graph.node[:]
    graph.node.extend(kept)


def test_heads_that_attention_normalizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = write_export(tmp_path / "plain", "genai_qwen3", **FIELDS["genai_qwen3"])
    path = edited(lambda model: norms_inside(model.graph), "genai_qwen3", tmp_path)
    pair = [
        gguf.GGUFReader(converted(p, tmp_path / f"out{i}")) for i, p in enumerate((path, plain))
    ]
    for one, other in zip(*(file.tensors for file in pair), strict=True):
        assert one.name == other.name and np.array_equal(one.data, other.data)
    model = onnx.load(path)
    attribute("GroupQueryAttention", "qk_norm_epsilon", 1e-5)(model.graph)
    onnx.save(model, path)
    assert language_model(path, read_graph(path)) is None
    assert "has the epsilon 1e-05" in capsys.readouterr().out


def test_parts_of_a_matrix_that_are_quantized_differently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shifted(model: onnx.ModelProto) -> None:
        (node,) = (n for n in model.graph.node if n.name.endswith("layers.1/mlp/up_proj/MatMul_Q4"))
        zeros = np.full((64, 1), 0x77, np.uint8)
        model.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
        node.input.append("zeros")

    path = edited(shifted, "genai_phi3", tmp_path)
    assert language_model(path, read_graph(path)) is None
    reason = "the parts of model.layers.1.mlp.gate_up_proj.weight are Q4_0 and Q4_1"
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize("name", ["genai_gemma3", "genai_phi3"])
def test_tables_of_other_layers_or_lengths(name: str, tmp_path: Path) -> None:
    def crossed(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "If":
                one, other = node.attribute
                one.name, other.name = other.name, one.name
            for i, read in enumerate(node.input):
                node.input[i] = read.replace("_cache_local", "_cache_global")

    path = edited(crossed, name, tmp_path)
    with pytest.raises(HostError, match=r"cos_cache|then.*has other numbers from position"):
        language_model(path, read_graph(path))


@pytest.mark.parametrize("count", [5, 40])
def test_a_graph_chooses_by_its_sizes(count: int, tmp_path: Path) -> None:
    path = GOLDEN / "genai_phi3.onnx"
    graph, data = as_read(simplified(open_onnx(path)), tmp_path)
    past = np.zeros((1, 1, 0, 16), np.float32)
    feeds = {value.name: past for value in graph.inputs}
    feeds["input_ids"] = np.array([SEVERAL[:count]])
    feeds["attention_mask"] = np.ones((1, count), np.int64)
    logits, want = computed(graph, data, feeds)[0], wanted(path, feeds)[0]
    assert np.abs(logits - want).max() < 1e-4 * np.abs(want).max()


def joined_tables(graph: onnx.GraphProto) -> None:
    """Tables for long contexts below those for short ones, as where there are no branches: whoever
    reads them moves the positions."""
    (chosen,) = (node for node in graph.node if node.op_type == "If")
    (greater,) = (node for node in graph.node if chosen.input[0] in node.output)
    branches = {a.name: a.g for a in chosen.attribute}
    for i, name in enumerate(chosen.output):
        long, short = (
            {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in branch.node}[
                branch.output[i].name
            ]
            for branch in (branches["then_branch"], branches["else_branch"])
        )
        graph.initializer.append(numpy_helper.from_array(np.concatenate([short, long]), name))
    numbers = {"zero": np.int64(0), "one": np.int64(1), "axis": np.array([0]), "moved": len(short)}
    for name, value in numbers.items():
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    total = greater.input[0]
    made = [
        helper.make_node("Shape", ["input_ids"], ["ids.shape"]),
        helper.make_node("Gather", ["ids.shape", "one"], ["count"]),
        helper.make_node("Sub", [total, "count"], ["first"]),
        helper.make_node("Range", ["first", total, "one"], ["range"]),
        helper.make_node("Where", [chosen.input[0], "moved", "zero"], ["offset"]),
        helper.make_node("Add", ["range", "offset"], ["places"]),
        helper.make_node("Unsqueeze", ["places", "axis"], ["positions"]),
    ]
    at = list(graph.node).index(chosen)
    for node in reversed(made):
        graph.node.insert(at, node)
    graph.node.remove(chosen)
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input[9] = "positions"


def test_tables_of_two_lengths_below_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(lambda model: joined_tables(model.graph), "genai_phi3", tmp_path)
    file = converted(path, tmp_path / "out")
    check(file, Oracle(path), SEVERAL)
    check(file, Oracle(path), SEVERAL[:8], context=32)
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Where":
            node.input[1] = "zero"
    onnx.save(model, path)
    assert language_model(path, read_graph(path)) is None
    assert "differs in long texts" in capsys.readouterr().out


def test_branches_that_are_no_constants_are_told(tmp_path: Path) -> None:
    def computed(model: onnx.ModelProto) -> None:
        (node,) = (node for node in model.graph.node if node.op_type == "If")
        graph = node.attribute[0].g
        (name,) = graph.node[0].output
        graph.node[0].output[0] = "before"
        graph.node.append(helper.make_node("Neg", ["before"], [name]))

    path = edited(computed, "genai_phi3", tmp_path)
    with pytest.raises(HostError, match=r"If .*branch of type GRAPH is not supported"):
        read_graph(path)


@pytest.mark.parametrize("name", ["size", "cos_cache"])
def test_branches_of_two_shapes_that_are_no_tables(name: str, tmp_path: Path) -> None:
    def shown(model: onnx.ModelProto) -> None:
        if name == "size":
            model.graph.node.append(helper.make_node("Shape", ["cos_cache"], ["size"]))
        model.graph.output.append(helper.make_empty_tensor_value_info(name))

    path = edited(shown, "genai_phi3", tmp_path)
    with pytest.raises(HostError, match=r"If .*branch of type GRAPH is not supported"):
        read_graph(path)
