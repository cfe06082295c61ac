"""Passes: what each makes of a graph, that it still computes the same, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.graph.facts import infer
from engine.graph.model import Graph
from engine.graph.passes import PASSES
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.source import open_onnx
from tests.graphs import as_read, computed, wanted


class Sketch:
    """A model under construction: x is (batch, sequence, 64) f32."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], f"n{output}", **attributes))
        return output

    def array(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def random(self, *shape: int) -> str:
        return self.array(self.rng.standard_normal(shape) * 0.3)

    def model(self, *outputs: str, opset: int = 14) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", 64])
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "sketch", [x], results, self.tensors)
        opsets = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds(batch: int = 2, sequence: int = 5) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).standard_normal((batch, sequence, 64))
    return {"x": np.asarray(x, np.float32)}


def opened(model: onnx.ModelProto, tmp_path: Path) -> Graph:
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return open_onnx(path)


def ops(graph: Graph) -> list[str]:
    return [node.op.removeprefix("octavo.") for node in graph.nodes]


def check(model: onnx.ModelProto, tmp_path: Path) -> list[str]:
    """The operators after all passes, with which the model computes the same."""
    graph = simplified(opened(model, tmp_path))
    for given in (feeds(), feeds(1, 1), feeds(3, 0)):
        read, data = as_read(graph, tmp_path)
        for got, want in zip(computed(read, data, given), wanted(model, given), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return ops(graph)


def layer_norm(s: Sketch, x: str, eps: float = 1e-5, axis: int = -1) -> str:
    centred = s.op("Sub", x, s.op("ReduceMean", x, axes=[axis]))
    square = s.op("Pow", centred, s.array(2.0))
    raised = s.op("Add", s.op("ReduceMean", square, axes=[axis]), s.array(eps))
    normal = s.op("Div", centred, s.op("Sqrt", raised))
    return s.op("Add", s.op("Mul", normal, s.random(64)), s.random(64))


def rms_norm(s: Sketch, x: str) -> str:
    square = s.op("Pow", x, s.array(2.0))
    raised = s.op("Add", s.op("ReduceMean", square, axes=[-1]), s.array(1e-6))
    inverse = s.op("Div", s.array(1.0), s.op("Sqrt", raised))
    return s.op("Mul", s.random(64), s.op("Mul", x, inverse))


def gelu(s: Sketch, x: str, half: float = 0.5, root: float = 2**0.5) -> str:
    gate = s.op("Add", s.op("Erf", s.op("Div", x, s.array(root))), s.array(1.0))
    return s.op("Mul", s.op("Mul", x, gate), s.array(half))


def gelu_tanh(s: Sketch, x: str) -> str:
    cube = s.op("Mul", s.array(0.044715), s.op("Pow", x, s.array(3.0)))
    inner = s.op("Mul", s.array(0.7978845608), s.op("Add", x, cube))
    gate = s.op("Add", s.array(1.0), s.op("Tanh", inner))
    return s.op("Mul", s.op("Mul", s.array(0.5), x), gate)


def attention(s: Sketch, x: str, heads: int = 4, mask: str = "", guarded: bool = False) -> str:
    def split(perm: tuple[int, ...]) -> str:
        shape = s.array([0, 0, heads, 64 // heads], np.int64)
        return s.op(
            "Transpose", s.op("Reshape", s.op("MatMul", x, s.random(64, 64)), shape), perm=perm
        )

    q, k, v = split((0, 2, 1, 3)), split((0, 2, 3, 1)), split((0, 2, 1, 3))
    scores = s.op("Div", s.op("MatMul", q, k), s.array(4.0))
    scores = s.op("Add", scores, mask) if mask else scores
    weights = s.op("Softmax", scores, axis=-1)
    if guarded:
        weights = s.op("Where", s.op("IsNaN", weights), s.array(0.0), weights)
    mixed = s.op("MatMul", weights, v)
    shape = s.array([0, 0, 64], np.int64)
    return s.op("Reshape", s.op("Transpose", mixed, perm=(0, 2, 1, 3)), shape)


def test_layer_normalization(tmp_path: Path) -> None:
    s = Sketch()
    assert check(s.model(layer_norm(s, "x")), tmp_path) == ["LayerNorm"]


def test_a_norm_over_another_axis_stays(tmp_path: Path) -> None:
    s = Sketch()
    assert "LayerNorm" not in ops(simplified(opened(s.model(layer_norm(s, "x", axis=1)), tmp_path)))


def test_what_is_read_elsewhere_too_is_kept(tmp_path: Path) -> None:
    s = Sketch()
    y = layer_norm(s, "x")
    inner = s.nodes[0].output[0]
    assert check(s.model(y, inner), tmp_path) == ["ReduceMean", "LayerNorm"]


def test_rms_normalization(tmp_path: Path) -> None:
    s = Sketch()
    assert check(s.model(rms_norm(s, "x")), tmp_path) == ["RMSNorm"]


@pytest.mark.parametrize("make", [gelu, gelu_tanh])
def test_gelu(tmp_path: Path, make: Callable[[Sketch, str], str]) -> None:
    s = Sketch()
    assert check(s.model(make(s, "x")), tmp_path) == ["Gelu"]


@pytest.mark.parametrize("numbers", [(0.4, 2**0.5), (0.5, 1.5)])
def test_what_is_almost_a_gelu_stays(tmp_path: Path, numbers: tuple[float, float]) -> None:
    s = Sketch()
    assert "Gelu" not in check(s.model(gelu(s, "x", *numbers)), tmp_path)


def test_products_with_bias_and_residual(tmp_path: Path) -> None:
    s = Sketch()
    product = s.op("MatMul", "x", s.random(64, 64))
    y = s.op("Add", s.op("Add", s.random(64), product), "x")
    assert check(s.model(y), tmp_path) == ["Linear"]


def test_a_product_of_an_odd_width_stays(tmp_path: Path) -> None:
    s = Sketch()
    narrow = s.op("MatMul", "x", s.random(64, 20))
    assert check(s.model(s.op("MatMul", narrow, s.random(20, 3))), tmp_path) == ["Linear", "MatMul"]


def test_a_bias_for_each_token_is_no_vector(tmp_path: Path) -> None:
    s = Sketch()
    y = s.op("Add", s.op("MatMul", "x", s.random(64, 64)), s.random(1, 1, 64))
    assert check(s.model(y), tmp_path) == ["Linear", "Add"]


def test_gemm(tmp_path: Path) -> None:
    s = Sketch()
    flat = s.op("Reshape", "x", s.array([-1, 64], np.int64))
    y = s.op("Gemm", flat, s.random(32, 64), s.random(32), transB=1)
    assert check(s.model(y), tmp_path) == ["Reshape", "Linear"]


def test_silu_and_swiglu(tmp_path: Path) -> None:
    s = Sketch()
    gate, up = s.op("MatMul", "x", s.random(64, 96)), s.op("MatMul", "x", s.random(64, 96))
    act = s.op("Mul", gate, s.op("Sigmoid", gate))
    y = s.op("MatMul", s.op("Mul", act, up), s.random(96, 64))
    assert check(s.model(y), tmp_path) == ["GatedLinear", "Linear"]


def test_attention_with_qkv(tmp_path: Path) -> None:
    s = Sketch()
    found = check(s.model(attention(s, "x")), tmp_path)
    assert found.count("Attention") == 1 and found.count("Linear") == 1
    assert not {"MatMul", "Softmax", "Div"} & set(found)


def test_attention_with_a_mask(tmp_path: Path) -> None:
    s = Sketch()
    length = s.op("Slice", s.op("Shape", "x"), s.array([1], np.int64), s.array([2], np.int64))
    shape = s.op("Concat", length, length, axis=0)
    value = numpy_helper.from_array(np.array([-1e9], np.float32))
    mask = s.op("Trilu", s.op("ConstantOfShape", shape, value=value), s.array(1, np.int64))
    found = check(s.model(attention(s, "x", mask=mask)), tmp_path)
    assert found.count("Attention") == 1 and "Softmax" not in found


@pytest.mark.parametrize("guarded", [False, True])
def test_queries_that_see_no_key(tmp_path: Path, guarded: bool) -> None:
    s = Sketch()
    mask = np.zeros((1, 1, 5, 5), np.float32)
    mask[..., 2, :] = -np.inf
    mask[..., 3, 1:] = -np.inf
    y = attention(s, "x", mask=s.array(mask), guarded=guarded)
    model = s.model(y)
    graph = simplified(opened(model, tmp_path))
    assert "Softmax" not in ops(graph) and "IsNaN" not in ops(graph)
    read, data = as_read(graph, tmp_path)
    (got,), (want,) = computed(read, data, feeds()), wanted(model, feeds())
    assert np.isnan(want).any() != guarded
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_softmax_over_another_axis_is_no_attention(tmp_path: Path) -> None:
    s = Sketch()
    scores = s.op("MatMul", "x", s.op("Transpose", "x", perm=(0, 2, 1)))
    y = s.op("MatMul", s.op("Softmax", scores, axis=1), "x")
    assert "Attention" not in ops(simplified(opened(s.model(y), tmp_path)))


def test_known_values_and_shapes(tmp_path: Path) -> None:
    s = Sketch()
    axes = s.op("Gather", s.op("Shape", "x"), s.array([0, 1], np.int64))
    heads = s.op(
        "Div", s.op("Gather", s.op("Shape", "x"), s.array([2], np.int64)), s.array([16], np.int64)
    )
    shape = s.op("Concat", axes, heads, s.array([16], np.int64), axis=0)
    graph = PASSES["known values"](opened(s.model(s.op("Reshape", "x", shape)), tmp_path))
    assert ops(graph) == ["Sizes", "Reshape"]
    assert graph.nodes[0].attributes["sizes"] == ("batch", "sequence", "4", "16")


def test_shapes_that_depend_on_where_a_range_begins(tmp_path: Path) -> None:
    """As masks of exports with a cache: the rows of new tokens, the columns of all."""
    s = Sketch()
    batch, sequence = (
        s.op("Gather", s.op("Shape", "x"), s.array(i, np.int64), axis=0) for i in (0, 1)
    )
    new = s.op("Range", batch, s.op("Add", batch, sequence), s.array(1, np.int64))
    square = s.op("ConstantOfShape", s.op("Concat", *[s.op("Shape", new)] * 2, axis=0))
    mask = s.op("Trilu", square, s.op("Sub", batch, s.array(3, np.int64)))
    model = s.model(new, mask)
    facts = infer(opened(model, tmp_path))
    assert [str(size) for size in facts[new].shape] == ["sequence"]
    assert [str(size) for size in facts[mask].shape] == ["sequence", "sequence"]
    check(model, tmp_path)


def test_identities_and_dead_nodes(tmp_path: Path) -> None:
    s = Sketch()
    s.op("Erf", "x")
    y = s.op("Neg", s.op("Identity", s.op("Cast", "x", to=TensorProto.FLOAT)))
    assert check(s.model(y), tmp_path) == ["Neg"]


def test_an_output_keeps_its_name(tmp_path: Path) -> None:
    s = Sketch()
    assert check(s.model(s.op("Identity", "x")), tmp_path) == ["Identity"]


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_alone_changes_no_result(tmp_path: Path, name: str) -> None:
    s = Sketch()
    x = layer_norm(s, s.op("Add", attention(s, rms_norm(s, "x")), "x"))
    y = s.op(
        "Add", s.op("MatMul", gelu(s, s.op("MatMul", x, s.random(64, 96))), s.random(96, 64)), x
    )
    model = s.model(y)
    graph, data = as_read(PASSES[name](opened(model, tmp_path)), tmp_path)
    (got,), (want,) = computed(graph, data, feeds()), wanted(model, feeds())
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_product_that_is_read_twice_is_computed_once(tmp_path: Path) -> None:
    s = Sketch()
    product = s.op("MatMul", "x", s.random(64, 64))
    y, z = s.op("Add", product, s.random(64)), s.op("Mul", product, s.array(2.0))
    assert check(s.model(y, z), tmp_path).count("Linear") == 1
