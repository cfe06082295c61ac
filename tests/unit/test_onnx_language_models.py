"""Language models in ONNX files: recognized, they become what a GGUF file of them is, and compute
what onnxruntime does; what only looks like one stays a graph."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from engine.answer import Answer
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.host import cli
from engine.host.convert import command
from engine.host.convert.conversion import write_model
from engine.host.convert.onnx_graph.conversion import read_graph
from engine.host.convert.onnx_graph.language_model import language_model
from engine.host.errors import HostError
from engine.ops.state import logits_tensor
from tests import hugging_face
from tests.conftest import ROOT
from tests.hugging_face import write_json
from tests.native import NativeHost, ready_of
from tests.onnx_models import BLOCK, Layout, Oracle, quantize, write_onnx

GOLDEN = ROOT / "tests/golden"
PROMPT = [5, 300, 7, 61, 200, 33, 90, 412]
STEPS = 24
LAYOUTS = {
    "4 bits": ("tiny", Layout(4, packed=True, last=True)),
    "zero points": ("tiny_untied", Layout(4, zeros=True, keep=True)),
    "8 bits": ("tiny_llama3", Layout(8)),
    "biases": ("tiny_qwen2", Layout(4, packed=True)),
    "plain": ("tiny_qwen2", Layout(rotary=False)),
    "head norms": ("tiny_qwen3", Layout(4, rotary=False)),
    "halves": ("tiny", Layout(dtype="float16")),
}


def converted(path: Path, out: Path, quant: str | None = None) -> Path:
    """The GGUF file of a model that is recognized."""
    model = language_model(path, read_graph(path))
    assert model
    return write_model(model, path, out, quant).gguf


def ran(
    path: Path, prompt: list[int], count: int, context: int = 64
) -> tuple[np.ndarray, list[int]]:
    """The logits after a prompt, and the most likely next tokens, as a session has them."""

    async def run() -> tuple[np.ndarray, list[int]]:
        engine = Engine(NativeHost(path))
        await engine.load(LoadConfig(context=context, activations="f32"), lambda *_: None)
        found: list[Any] = []
        for steps in (1, count):
            async for event in engine.complete(prompt, GenerateConfig(max_tokens=steps)):
                if isinstance(event, Answer):
                    ids = event.ids
            model = ready_of(engine).model
            found.append(await model.device.read(logits_tensor(model.config.vocab)))
        return np.frombuffer(found[0], np.float32), ids

    return asyncio.run(run())


def check(
    file: Path, oracle: Oracle, prompt: list[int], tolerance: float = 1e-3, context: int = 64
) -> None:
    logits, ids = ran(file, prompt, STEPS, context)
    want = oracle.logits(prompt)
    assert np.abs(logits - want).max() < tolerance * np.abs(want).max()
    assert ids == oracle.greedy(prompt, STEPS)[: len(ids)] and len(ids) > 1


@pytest.mark.parametrize("kind", LAYOUTS)
def test_exports_for_the_web(kind: str, tmp_path: Path) -> None:
    name, layout = LAYOUTS[kind]
    path = write_onnx(tmp_path / name, name, layout)
    file = converted(path, tmp_path / "out")
    assert file.name == f"{name}.gguf"
    check(file, Oracle(path), PROMPT, 1e-2 if kind == "halves" else 1e-3)


def test_blocks_are_taken_over_as_they_are(tmp_path: Path) -> None:
    for name, layout, wanted in (
        ("tiny", Layout(4), "Q4_0"),
        ("tiny_qwen2", Layout(4, zeros=True, packed=True), "Q4_1"),
        ("tiny_llama3", Layout(8), "Q8_0"),
        ("tiny_untied", Layout(dtype="float16"), "F16"),
    ):
        path = write_onnx(tmp_path / name, name, layout)
        found = {t.name: t for t in gguf.GGUFReader(converted(path, tmp_path / "out")).tensors}
        assert ("output.weight" in found) == (name == "tiny_untied")
        for own, other in (("ffn_up", "mlp.up_proj"), ("attn_v", "self_attn.v_proj")):
            tensor = found[f"blk.1.{own}.weight"]
            matrix = hugging_face.weights(name)[f"model.layers.1.{other}.weight"]
            assert tensor.tensor_type.name == wanted
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            if layout.bits:
                assert np.array_equal(values, dequantized(matrix, layout))
            else:
                assert np.array_equal(values, matrix.astype(np.float16))


def dequantized(matrix: np.ndarray, layout: Layout) -> np.ndarray:
    blocks, scales, *zeros = quantize(matrix, layout.bits, layout.zeros)
    if layout.bits == 4:
        blocks = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:2], BLOCK)
    middle = np.full(scales.shape, 1 << (layout.bits - 1), np.float32)
    if zeros:
        pairs = np.stack([zeros[0] & 15, zeros[0] >> 4], -1).reshape(len(matrix), -1)
        middle = pairs[:, : scales.shape[1]].astype(np.float32)
    values: np.ndarray = (blocks - middle[..., None]) * scales[..., None]
    return values.reshape(matrix.shape)


CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


def write_export(folder: Path, name: str, **fields: Any) -> Path:
    """One of the golden exports, which have 40 tokens, with files beside it."""
    folder.mkdir(parents=True)
    (family,) = (found for part, found in CLASSES.items() if part in name)
    config = {
        "architectures": [family],
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
    }
    write_json(folder / "config.json", config | fields)
    tokenizer = hugging_face.tokenizer("tiny")
    few = {k: v for k, v in tokenizer["model"]["vocab"].items() if v < 39} | {'!"': 39}
    bpe = tokenizer["model"] | {"vocab": few, "merges": [["!", '"']]}
    write_json(folder / "tokenizer.json", tokenizer | {"model": bpe})
    model = onnx.load(GOLDEN / f"{name}.onnx")
    for node in model.graph.node:
        if node.name == "node_embedding":
            # Both inputs were one tensor when it was exported, and became one.
            node.input[1] = "input_ids"
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


EXPORTS = ("onnx_llama", "onnx_qwen2", "onnx_cached_qwen2", "onnx_dynamo_llama")


@pytest.mark.parametrize("name", [*EXPORTS, "onnx_dynamo_cached_llama"])
@pytest.mark.parametrize("bits", [0, 4])
def test_exports_of_torch(name: str, bits: int, tmp_path: Path) -> None:
    # Whether embedding and head share a matrix, the file says.
    path = write_export(tmp_path / "model", name, tie_word_embeddings=bool(bits))
    if bits:
        model = onnx.load(path)
        put_into_blocks(model.graph)
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)
    file = converted(path, tmp_path / "out")
    kinds = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
    assert kinds["blk.0.attn_q.weight"] == kinds["output.weight"] == ("Q4_0" if bits else "F32")
    check(file, Oracle(path), [i % 40 for i in PROMPT])


def put_into_blocks(graph: onnx.GraphProto) -> None:
    """Products with constant matrices by ones in blocks of 4 bits, as quantizers do it."""
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for i, node in enumerate(graph.node):
        array = arrays.get(node.input[1]) if node.op_type == "MatMul" else None
        if array is None or array.ndim != 2:
            continue
        names = [f"{node.name}.blocks", f"{node.name}.scales"]
        for name, values in zip(names, quantize(array.T, 4, False), strict=True):
            graph.initializer.append(numpy_helper.from_array(values, name))
        made = helper.make_node(
            "MatMulNBits",
            [node.input[0], *names],
            list(node.output),
            node.name,
            domain="com.microsoft",
            K=array.shape[0],
            N=array.shape[1],
            bits=4,
            block_size=BLOCK,
        )
        graph.node[i].CopyFrom(made)


def test_a_window(tmp_path: Path) -> None:
    window = {"sliding_window": 4, "architectures": ["MistralForCausalLM"]}
    path = write_onnx(tmp_path / "tiny", "tiny", Layout(4, window=4), **window)
    check(converted(path, tmp_path / "out"), Oracle(path), PROMPT)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.pip, "install", lambda *_: None)
    path = write_onnx(tmp_path / "tiny_qwen2", "tiny_qwen2", Layout())
    arguments = ["convert", str(path), str(tmp_path / "out")]
    assert cli.main([*arguments, "--quant", "q8_0"]) == 0
    manifest = json.loads((tmp_path / "out/tiny_qwen2-q8_0/manifest.json").read_text())
    assert (manifest["source"], "graph" in manifest) == ("model.onnx", False)
    file = tmp_path / "out/tiny_qwen2-q8_0.gguf"
    kinds = {t.tensor_type.name for t in gguf.GGUFReader(file).tensors if len(t.shape) > 1}
    assert kinds == {"Q8_0"}
    (tmp_path / "tiny_qwen2/config.json").unlink()
    assert cli.main(arguments) == 0
    assert "no language model, but a graph: no config.json" in capsys.readouterr().out
    assert "graph" in json.loads((tmp_path / "out/model/manifest.json").read_text())
    with pytest.raises(HostError, match="A graph takes --quant q8_0 only"):
        cli.main([*arguments, "--quant", "q4_0"])


Edit = Callable[[onnx.GraphProto], None]


def attribute(ending: str, name: str, value: Any) -> Edit:
    """Another attribute for nodes whose names end so."""

    def edit(graph: onnx.GraphProto) -> None:
        found = [node for node in graph.node if node.name.endswith(ending)]
        assert found
        for node in found:
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return edit


def operator(ending: str, op: str) -> Edit:
    """Another operator for a node."""

    def edit(graph: onnx.GraphProto) -> None:
        (node,) = (node for node in graph.node if node.name == ending)
        node.op_type = op

    return edit


def inserted(before: str, op: str, value: float | list[float], index: int = 0) -> Edit:
    """A node with a number in front of what a node reads."""

    def edit(graph: onnx.GraphProto) -> None:
        place = next(i for i, node in enumerate(graph.node) if node.name == before)
        node = graph.node[place]
        constant = numpy_helper.from_array(np.array(value, np.float32), "number")
        graph.initializer.append(constant)
        made = helper.make_node(op, [node.input[index], "number"], ["changed"], "inserted")
        node.input[index] = "changed"
        graph.node.insert(place, made)

    return edit


def scaled_logits(graph: onnx.GraphProto) -> None:
    """What Granite does."""
    (head,) = (node for node in graph.node if node.name == "lm_head")
    head.output[0] = "unscaled"
    graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "number"))
    graph.node.append(helper.make_node("Mul", ["unscaled", "number"], ["logits"], "scaled"))


LAST = "model.layers.2"
NEARLY: dict[str, tuple[str, Edit]] = {
    "another activation": (
        "gated by SiLU",
        operator(f"{LAST}.sig", "Tanh"),
    ),
    "a gate that is scaled": ("gated by SiLU", inserted(f"{LAST}.sig", "Mul", 1.7)),
    "a bias": (
        "adds a bias",
        inserted(f"{LAST}.post_attention_layernorm", "Add", [0.5] * 64, 1),
    ),
    "a window": ("sees 16 tokens", attribute(f"{LAST}.attn", "local_window_size", 16)),
    "a soft cap": ("soft caps", attribute(f"{LAST}.attn", "softcap", 20.0)),
    "pairs that are neighbours": (
        "rotary_interleaved is not supported",
        attribute(f"{LAST}.attn", "rotary_interleaved", 1),
    ),
    "no rotation": ("not the attention", attribute(f"{LAST}.attn", "do_rotary", 0)),
    "another scale": ("not the attention", attribute(f"{LAST}.attn", "scale", 0.2)),
    "another epsilon": ("not the RMS norm", attribute(f"{LAST}.input_layernorm", "epsilon", 1e-4)),
    "a residual that is scaled": (
        "not the RMS norm",
        inserted(f"{LAST}.post_attention_layernorm", "Mul", 0.5, 1),
    ),
    "an embedding that is scaled": (
        "not the RMS norm",
        inserted("model.layers.0.input_layernorm", "Mul", 8.0),
    ),
    "logits that are scaled": ("not the last that is done for the logits", scaled_logits),
    "attention that is scaled": (
        "not the attention",
        inserted(f"{LAST}.self_attn.o_proj", "Mul", 2.0),
    ),
}


@pytest.mark.parametrize("what", NEARLY)
def test_what_only_looks_like_one_stays_a_graph(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reason, edit = NEARLY[what]
    path = write_onnx(tmp_path / "tiny", "tiny", Layout())
    model = onnx.load(path)
    edit(model.graph)
    onnx.save(model, path)
    assert language_model(path, read_graph(path)) is None
    assert reason in capsys.readouterr().out


def test_the_products_of_keys_and_values_in_any_order(tmp_path: Path) -> None:
    """What they are shows in what becomes of them, not in names or places."""
    path = write_onnx(tmp_path / "tiny", "tiny", Layout())
    straight = gguf.GGUFReader(converted(path, tmp_path / "straight"))
    model = onnx.load(path)
    nodes = list(model.graph.node)
    for pair in (("k_proj", "v_proj"), ("gate_proj", "up_proj")):
        places = [[i for i, node in enumerate(nodes) if node.name.endswith(part)] for part in pair]
        for i, j in zip(*places, strict=True):
            nodes[i], nodes[j] = nodes[j], nodes[i]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for node in model.graph.node:
        node.name = ""
    onnx.save(model, path)
    crossed = gguf.GGUFReader(converted(path, tmp_path / "crossed"))
    for one, other in zip(straight.tensors, crossed.tensors, strict=True):
        assert one.name == other.name and np.array_equal(one.data, other.data)


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "layers": ("2 layers, but 3 lie in front of octavo.Linear 'lm_head'", {"num_hidden_layers": 2}),
    "width": (r"Gather 'embed' has a matrix \(600, 64\).*\(600, 96\)", {"hidden_size": 96}),
    "unit": (r"octavo.Linear 'model.layers.0.mlp.\w+_proj'", {"intermediate_size": 96}),
    "heads": (r"Linear 'model.layers.0.self_attn.k_proj'", {"num_key_value_heads": 4}),
    "base": ("'model.layers.0.attn': the table 'cos_cache'.*position 1 on", {"rope_theta": 5e5}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_config_that_contradicts_the_graph(what: str, tmp_path: Path) -> None:
    match, fields = WRONG[what]
    path = write_onnx(tmp_path / "tiny", "tiny", Layout())
    write_json(tmp_path / "tiny/config.json", hugging_face.config("tiny") | fields)
    with pytest.raises(HostError, match=match):
        language_model(path, read_graph(path))


@pytest.mark.parametrize("fields", [{"architectures": ["GPT2LMHeadModel"]}, {"architectures": 7}])
def test_an_unknown_family_stays_a_graph(
    fields: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_onnx(tmp_path / "tiny", "tiny", Layout(), **fields)
    assert language_model(path, read_graph(path)) is None
    assert "names none of LlamaForCausalLM" in capsys.readouterr().out


def test_a_missing_tokenizer_is_told(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "tiny", "tiny", Layout())
    (tmp_path / "tiny/tokenizer.json").unlink()
    with pytest.raises(HostError, match=r"tokenizer\.json"):
        language_model(path, read_graph(path))


def test_tables_that_differ_far_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_onnx(tmp_path / "tiny", "tiny", Layout())
    model = onnx.load(path)
    (table,) = (t for t in model.graph.initializer if t.name == "sin_cache")
    values = numpy_helper.to_array(table).copy()
    values[400:] *= -1
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, path)
    with pytest.raises(HostError, match="'sin_cache' has other numbers from position 400 on"):
        language_model(path, read_graph(path))
    path = write_export(tmp_path / "model", "onnx_qwen2")
    model = onnx.load(path)
    for node in model.graph.node:
        tensor = node.attribute[0].t if node.op_type == "Constant" else onnx.TensorProto()
        if list(tensor.dims) == [64, 8]:
            values = numpy_helper.to_array(tensor).copy()
            values[30:] = 1
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(values))
    onnx.save(model, path)
    assert language_model(path, read_graph(path)) is None
    assert "differs in long texts" in capsys.readouterr().out
