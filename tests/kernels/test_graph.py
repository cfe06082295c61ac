"""The kernels of graphs in Chromium: single operators and whole graphs, against onnxruntime and
against their own references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.graph.lowering import record
from engine.graph.model import Graph
from engine.host.convert.onnx_graph.bert import Config, bert, random_weights
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.convert.onnx_graph.tensors import stored
from engine.ops.elementwise import FUNCTIONS, apply, elementwise
from engine.ops.state import StepRecord
from engine.ops.view import whole
from tests.graphs import as_input, node_model, sizes_of, wanted
from tests.kernels.cases import DEVICES, assert_close, builder, numbers, state
from tests.kernels.harness import Case, Harness

ON = ["plain", "workgroup"]
ITEM = {"f32": np.float32, "i32": np.int32, "u32": np.uint32}


def run(
    harness: Harness, graph: Graph, feeds: dict[str, np.ndarray], device: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each output, as the device and as the references compute it."""
    made = record(graph, sizes_of(graph, feeds), DEVICES[device])
    given = [(t, as_input(feeds[name])) for name, t in made.inputs.items()]
    arrays = {
        tensor.name: np.frombuffer(data, ITEM[tensor.dtype]).reshape(tensor.shape)
        for tensor, data in (*given, *made.written)
    }
    held = [c for c in graph.constants.values() if not c.value]
    weights = {c.name: np.zeros(c.shape or (1,), np.float32) for c in held}
    blocks = {c.name: stored(c).tobytes() for c in held}
    case = Case(made.plan, arrays, weights, StepRecord(0, 1), blocks=blocks)
    outputs = [made.outputs[name] for name in graph.outputs]
    reference = case.reference()
    got = harness.run(case, outputs)
    return [(g, reference[t.name]) for g, t in zip(got, outputs, strict=True)]


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return numbers(seed, *shape)


def whole_numbers(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    return np.random.default_rng(shape).integers(low, high, shape)


CASES: dict[str, Any] = {
    "broadcasting": ("Add", [floats(4, 1, 3), floats(2, 1, seed=1)], {}),
    "scalar": ("Mul", [floats(2, 3), np.array(3, np.float32)], {}),
    "six axes": ("Sub", [floats(2, 1, 2, 1, 2, 3), floats(1, 3, 1, 2, 1, 1)], {}),
    "whole numbers": ("Div", [whole_numbers(3, 4), whole_numbers(4, low=1)], {}),
    "remainder": ("Mod", [whole_numbers(3, 4), whole_numbers(4, low=1)], {}),
    "comparison": ("Less", [floats(3, 4), floats(4, seed=1)], {}),
    "where": ("Where", [whole_numbers(2, 1) > 0, floats(2, 3), floats()], {}),
    "transposed": ("Transpose", [floats(2, 3, 4)], {"perm": (2, 0, 1)}),
    "sum": ("ReduceSum", [floats(3, 4, 70)], {"keepdims": 0}),
    "sum of whole numbers": ("ReduceSum", [whole_numbers(3, 4)], {}),
    "mean of an axis": ("ReduceMean", [floats(3, 4, 70)], {"axes": (1,), "opset": 13}),
    "largest": ("ReduceMax", [floats(3, 130)], {"axes": (-1,), "opset": 13}),
    "product": ("ReduceProd", [floats(3, 5)], {"axes": (-1,), "opset": 13}),
    "softmax": ("Softmax", [floats(5, 130)], {}),
    "softmax of another axis": ("Softmax", [floats(5, 3, 2)], {"axis": 1}),
    "log softmax": ("LogSoftmax", [floats(2, 3)], {}),
    "layer normalization": ("LayerNormalization", [floats(5, 70), floats(70), floats(70)], {}),
    "RMS normalization": ("SimplifiedLayerNormalization", [floats(5, 70), floats(70)], {}),
    "matrices": ("MatMul", [floats(2, 3, 37, 19), floats(3, 19, 33)], {}),
    "vectors": ("MatMul", [floats(19), floats(19)], {}),
    "gather": ("Gather", [floats(4, 5), whole_numbers(2, 3, low=-5, high=5)], {"axis": 1}),
    "scatter": ("ScatterND", [floats(4, 5), np.array([[3], [-3]]), floats(2, 5)], {}),
    "attention without a mask": (
        "MultiHeadAttention",
        [floats(2, 70, 32), floats(2, 5, 32, seed=1), floats(2, 5, 32, seed=2)],
        {"num_heads": 4, "domain": "com.microsoft"},
    ),
    "attention of many keys": (
        "MultiHeadAttention",
        [
            *(floats(2, n, 64, seed=n) for n in (40, 70, 70)),
            None,
            None,
            floats(1, 2, 40, 70, seed=3),
        ],
        {"num_heads": 2, "domain": "com.microsoft"},
    ),
    "attention with wide heads": (
        "MultiHeadAttention",
        [floats(1, n, 64, seed=n) for n in (20, 33, 33)],
        {"num_heads": 1, "domain": "com.microsoft"},
    ),
    "grouped attention": (
        "GroupQueryAttention",
        [
            *(floats(2, 1, n * 16, seed=n) for n in (4, 2, 2)),
            *(floats(2, 2, 3, 16, seed=n) for n in (5, 6)),
            np.full(2, 3, np.int32),
            np.array(4, np.int32),
        ],
        {"num_heads": 4, "kv_num_heads": 2, "domain": "com.microsoft", "outputs": 3},
    ),
    "reversed": ("Einsum", [floats(2, 3, 4), floats(2, 5, 4)], {"equation": "bid,bjd->jbi"}),
}


@pytest.mark.parametrize("device", ON)
def test_operators(harness: Harness, tmp_path: Path, device: str) -> None:
    for name, (op, inputs, more) in CASES.items():
        model, feeds = node_model(op, inputs, **more)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        pairs = run(harness, open_onnx(path), feeds, device)
        for (got, reference), want in zip(pairs, wanted(model, feeds), strict=True):
            assert got.shape == want.shape, name
            for found in (got, reference):
                scale = max(float(np.abs(want).max()), 1e-6)
                error = float(np.abs(found.astype(np.float64) - want).max()) / scale
                assert error <= 2e-5, f"{name}: relative error {error:.3g}"


def test_functions(harness: Harness) -> None:
    """Every function of elements against its reference, on numbers where each is defined."""
    x, y, c = numbers(1, 40), numbers(2, 40), whole_numbers(40)
    integers = whole_numbers(40).astype(np.int32)
    arrays = {
        "x": x,
        "positive": np.abs(x) + 0.1,
        "y": np.where(np.abs(y) < 0.1, 1, y).astype(np.float32),
        "i": integers,
        "j": np.where(c == 0, 3, c).astype(np.int32),
    }
    b = builder("plain")
    held = {n: whole(state(n, 40, dtype="i32" if n in "ij" else "f32")) for n in arrays}
    results = {}
    for name, function in FUNCTIONS.items():
        kind = "f32"
        if name in ("sqrt", "log"):
            inputs = [held["positive"]]
        elif name == "pow":
            inputs = [held["positive"], held["y"]]
        elif name in ("and", "or", "xor", "not", "to_float"):
            inputs, kind = [held["i"], held["j"]], "f32" if name == "to_float" else "i32"
        elif name == "where":
            inputs = [held["i"], held["x"], held["y"]]
        else:
            inputs = [held["x"], held["y"]]
            kind = "i32" if function.code in (20, 22, 23, *range(40, 48)) else "f32"
        inputs = inputs if function.code >= 30 else inputs[:1]
        results[name] = elementwise(b, name, inputs, (40,), kind).tensor  # type: ignore[arg-type]
        if name in ("neg", "abs", "add", "sub", "mul", "min", "max", "mod", "less", "equal"):
            own = [held["i"], held["j"]][: 2 if function.code >= 30 else 1]
            results[f"{name} of i32"] = elementwise(b, name, own, (40,), "i32").tensor
    kept = {n: state(f"kept {n}", 40, dtype=t.dtype) for n, t in results.items()}
    for name, tensor in results.items():
        apply(b, "copy", [whole(tensor)], whole(kept[name]))
    case = Case(b.build(), arrays, {}, StepRecord(0, 1))
    reference = case.reference()
    found = harness.run(case, list(kept.values()))
    for got, (name, tensor) in zip(found, kept.items(), strict=True):
        want = reference[tensor.name]
        finite = np.isfinite(want)
        assert finite.sum() > 30, name
        error = np.abs(got[finite].astype(np.float64) - want[finite])
        assert (error <= 2e-5 * np.maximum(np.abs(want[finite]), 1)).all(), name


# On the workgroup device products alone would take seconds here: see below.
@pytest.mark.parametrize(
    ("device", "passes"), [("plain", False), ("plain", True), ("workgroup", False)]
)
def test_bert(harness: Harness, tmp_path: Path, device: str, passes: bool) -> None:
    config = Config(num_hidden_layers=1)
    model = bert(config, random_weights(config))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph = simplified(open_onnx(path)) if passes else open_onnx(path)
    ids = whole_numbers(2, 13, low=0, high=config.vocab_size)
    mask = np.ones_like(ids)
    mask[1, 9:] = 0
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}
    ((got, reference),) = run(harness, graph, feeds, device)
    (want,) = wanted(model, feeds)
    assert_close(got, want, 1e-4)
    assert_close(reference, want, 1e-5)


@pytest.mark.parametrize("device", ["plain", "plain-q16", "workgroup"])
def test_quantized_matrices(harness: Harness, tmp_path: Path, device: str) -> None:
    rng = np.random.default_rng(0)
    n, k = 40, 64
    blocks = rng.integers(0, 256, (n, k // 32, 16), np.uint8)
    constants = {1: blocks, 2: rng.random((n, k // 32)).astype(np.float16).astype(np.float32)}
    sizes = {"N": n, "K": k, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    model, feeds = node_model("MatMulNBits", [floats(3, k)], constants=constants, **sizes)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ((got, reference),) = run(harness, simplified(open_onnx(path)), feeds, device)
    (want,) = wanted(model, feeds)
    assert_close(got, want, 1e-3)
    assert_close(reference, want, 1e-3)
