"""Operators of exported language models against onnxruntime, and their quantized matrices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.errors import OctavoError
from engine.graph.facts import infer
from engine.graph.lowering import record
from engine.graph.passes.quantized import BLOCK
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.plan import Traits
from tests.graphs import as_read, check, computed, floats, node_model, wanted

CONTRIB = {"domain": "com.microsoft"}


def tables(count: int, half: int) -> tuple[np.ndarray, np.ndarray]:
    angles = np.arange(count)[:, None] * 0.3 ** np.arange(half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("shape", [(2, 3, 32), (1, 5, 32), (2, 4, 3, 8)])
@pytest.mark.parametrize("single", [False, True])
def test_rotary_embedding(tmp_path: Path, shape: Any, single: bool) -> None:
    batch, count = shape[0], shape[-2]
    positions = np.array([2]) if single else np.arange(batch * count).reshape(batch, count) + 1
    inputs = [floats(*shape), positions, *tables(20, 4)]
    check(tmp_path, *node_model("RotaryEmbedding", inputs, **CONTRIB))


def test_rotary_embedding_of_a_part(tmp_path: Path) -> None:
    inputs = [floats(2, 3, 32), np.arange(6).reshape(2, 3), *tables(20, 2)]
    more = {"rotary_embedding_dim": 4, "num_heads": 4}
    check(tmp_path, *node_model("RotaryEmbedding", inputs, **CONTRIB, **more))


@pytest.mark.parametrize("biased", [False, True])
def test_multi_head_attention(tmp_path: Path, biased: bool) -> None:
    q, k, v = floats(2, 3, 32), floats(2, 5, 32, seed=1), floats(2, 5, 32, seed=2)
    inputs = [q, k, v, floats(96) if biased else None, None, floats(1, 4, 3, 5) if biased else None]
    inputs = inputs if biased else inputs[:3]
    check(tmp_path, *node_model("MultiHeadAttention", inputs, num_heads=4, **CONTRIB))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("more", [{}, {"do_rotary": 1}, {"local_window_size": 2}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention(
    tmp_path: Path, batch: int, past: int, more: dict[str, int], packed: bool
) -> None:
    heads, kv_heads, width, count = 4, 2, 16, 1 if past else 4
    total = past + count
    q, k, v = (
        floats(batch, count, n * width, seed=i) for i, n in enumerate((heads, kv_heads, kv_heads))
    )
    own = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    cached = [floats(batch, kv_heads, past, width, seed=i) for i in (3, 4)]
    lengths = [np.full(batch, total - 1, np.int32), np.array(total, np.int32)]
    inputs = [*own, *cached, *lengths, *(tables(20, width // 2) if "do_rotary" in more else [])]
    sizes = {"num_heads": heads, "kv_num_heads": kv_heads}
    check(tmp_path, *node_model("GroupQueryAttention", inputs, 3, **sizes, **more, **CONTRIB))


@pytest.mark.parametrize("more", [{}, {"qk_norm_epsilon": 0.5}], ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention_of_normalized_heads(
    tmp_path: Path, more: dict[str, Any], packed: bool
) -> None:
    """On a CPU, onnxruntime has no norms there: they are computed in front of it."""
    own = [floats(1, 4, n * 16, seed=n) for n in (4, 2, 2)]
    gains = [1 + floats(16, seed=i) for i in (5, 6)]
    turning = tables(20, 8) if more else [None, None]
    rest = [*[floats(1, 2, 0, 16)] * 2, np.array([3], np.int32), np.array(4, np.int32), *turning]
    eps = more.get("qk_norm_epsilon", 1e-6)
    normal = [rms_norm(x, gain, eps) for x, gain in zip(own, gains, strict=False)]
    same = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": len(more), **CONTRIB}
    wants = wanted(*node_model("GroupQueryAttention", [*normal, own[2], *rest], 3, **same))
    given = [np.concatenate(own, axis=2), None, None] if packed else own
    inputs = [*given, *rest, *[None] * 5, *gains]
    model, feeds = node_model("GroupQueryAttention", inputs, 3, **same, **more)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    for got, want in zip(computed(*as_read(open_onnx(path), tmp_path), feeds), wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def rms_norm(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    heads = x.reshape(*x.shape[:2], -1, len(gain))
    root = np.sqrt(np.square(heads).mean(-1, keepdims=True) + eps)
    return np.asarray((heads / root * gain).reshape(x.shape), np.float32)


def quantized(n: int, k: int, block: int, bits: int, zeros: bool, seed: int = 0) -> list[Any]:
    """Blocks, scales and zero points as MatMulNBits has them; scales are halves already."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8)
    scales = (rng.random((n, k // block)) * 0.1).astype(np.float16).astype(np.float32)
    packed = rng.integers(0, 256, (n, (k // block * bits + 7) // 8), np.uint8)
    return [blocks, scales, *([packed] if zeros else [])]


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("kind", ["4 bits", "4 bits, zeros", "8 bits", "8 bits, zeros"])
def test_matmul_on_quantized_matrices(tmp_path: Path, kind: str, block: int) -> None:
    n, k, bits, zeros = 12, 128, int(kind[0]), "zeros" in kind
    arrays = quantized(n, k, block, bits, zeros)
    constants = {i + 1: array for i, array in enumerate(arrays)}
    attributes = {"N": n, "K": k, "bits": bits, "block_size": block, **CONTRIB}
    model, feeds = node_model("MatMulNBits", [floats(2, 3, k)], constants=constants, **attributes)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph = simplified(open_onnx(path))
    (matrix,) = graph.constants.values()
    quants = {"8 bits": "Q8_0", "8 bits, zeros": "F32", "4 bits, zeros": "Q4_1", "4 bits": "Q4_0"}
    assert matrix.quant == quants[kind]
    graph, data = as_read(graph, tmp_path)
    (got,), (want,) = computed(graph, data, feeds), wanted(model, feeds)
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error < (2e-3 if zeros else 1e-5)  # zeros times scales are rounded to halves


def test_what_cannot_be_taken_over_is_said(tmp_path: Path) -> None:
    arrays = quantized(12, 128, 16, 4, False)
    constants = {i + 1: array for i, array in enumerate(arrays)}
    attributes = {"N": 12, "K": 128, "bits": 4, "block_size": 16, **CONTRIB}
    model, _ = node_model("MatMulNBits", [floats(3, 128)], constants=constants, **attributes)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph = simplified(open_onnx(path))
    with pytest.raises(OctavoError, match="MatMulNBits 'the_node'"):
        record(graph, {"x0_0": 3, "x0_1": 128}, Traits("webgpu"))


def test_only_products_read_blocks(tmp_path: Path) -> None:
    arrays = quantized(12, 128, 32, 4, False)
    constants = {i + 1: array for i, array in enumerate(arrays)}
    attributes = {"N": 12, "K": 128, "bits": 4, "block_size": 32, **CONTRIB}
    model, _ = node_model("MatMulNBits", [floats(3, 128)], constants=constants, **attributes)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph = simplified(open_onnx(path))
    (node,) = graph.nodes
    hostile = replace(graph, nodes=(replace(node, op="Mul", inputs=(node.inputs[1],) * 2),))
    with pytest.raises(OctavoError, match="quantized"):
        record(hostile, {"x0_0": 3, "x0_1": 128}, Traits("webgpu"))


def embedding(tensors: list[onnx.TensorProto], **more: Any) -> onnx.ModelProto:
    """GatherBlockQuantized of a matrix, scales and perhaps zero points."""
    attributes = {"block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1, **CONTRIB, **more}
    names = [tensor.name for tensor in tensors]
    inputs = [names[0], "ids", *names[1:]]
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], "the_node", **attributes)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    output = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [ids], [output], tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check_embedding(
    tmp_path: Path, model: onnx.ModelProto, quant: str, tolerance: float = 1e-6
) -> None:
    path = tmp_path / "model.onnx"
    feeds = {"ids": np.array([0, 19, 7, 7])}
    want = wanted(model, feeds)[0]
    onnx.save(model, path, save_as_external_data=True, location="d", size_threshold=0)
    graph = simplified(open_onnx(path))
    assert [c.quant for c in graph.constants.values()] == [quant]
    (got,) = computed(*as_read(graph, tmp_path), feeds)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=1e-6)


def test_embedding_by_quantized_rows(tmp_path: Path) -> None:
    n, k = 20, 64
    blocks, scales = quantized(n, k, BLOCK, 4, False)
    blocks = blocks.reshape(n, k // 2)
    tensors = [numpy_helper.from_array(blocks, "w"), numpy_helper.from_array(scales, "scales")]
    check_embedding(tmp_path, embedding(tensors, bits=4), "Q4_0")


def test_embedding_by_rows_of_eight_bits_with_zero_points(tmp_path: Path) -> None:
    """GGUF has no such blocks: they become halves."""
    n, k = 20, 64
    blocks, scales, zeros = quantized(n, k, BLOCK, 8, True)
    names = {"w": blocks.reshape(n, k), "scales": scales, "zeros": zeros}
    tensors = [numpy_helper.from_array(array, name) for name, array in names.items()]
    check_embedding(tmp_path, embedding(tensors, bits=8), "F32", 2.0**-11)


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_embedding_by_rows_of_four_bits(tmp_path: Path, kind: str, zeros: bool) -> None:
    """Tensors of a type of their own: without zero points, theirs is 0."""
    n, k = 20, 96
    low = -8 if kind == "INT4" else 0
    numbers = np.random.default_rng(0).integers(low, low + 16, (n, k))
    scales = 2.0 ** np.random.default_rng(1).integers(-6, 0, (n, k // BLOCK))
    middle = np.random.default_rng(2).integers(low, low + 16, scales.shape)
    given = [("w", numbers), *([("zeros", middle)] if zeros else [])]
    tensors = [
        helper.make_tensor(name, TensorProto.DataType.Value(kind), a.shape, a.ravel().tolist())
        for name, a in given
    ]
    tensors.insert(1, numpy_helper.from_array(scales.astype(np.float32), "scales"))
    is_plain = kind == "INT4" and not zeros
    check_embedding(tmp_path, embedding(tensors), "Q4_0" if is_plain else "Q4_1")


def test_zero_points_that_are_no_bytes_are_not_taken(tmp_path: Path) -> None:
    """They may be floats, which are no numbers of 4 bits."""
    n, k = 12, BLOCK
    blocks, scales = quantized(n, k, BLOCK, 4, False)
    attributes = {"N": n, "K": k, "bits": 4, "block_size": BLOCK, **CONTRIB}
    for zeros in (np.full((n, 1), 8, np.float32), np.full((n, 2), 8, np.uint8)):
        constants = {1: blocks, 2: scales, 3: zeros}
        model, _ = node_model("MatMulNBits", [floats(3, k)], constants=constants, **attributes)
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        (node,) = simplified(open_onnx(path)).nodes
        assert node.op.endswith("MatMulNBits")


def test_a_skipped_norm_with_another_width(tmp_path: Path) -> None:
    inputs = [floats(2, 3, 32), floats(2, 3, 32), floats(31)]
    model, _ = node_model("SkipSimplifiedLayerNormalization", inputs, free=False, **CONTRIB)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(OctavoError, match=r"SkipSimplifiedLayerNormalization 'the_node'.*31"):
        infer(open_onnx(path))


@pytest.mark.parametrize("more", [{"num_heads": 100}, {"num_heads": 8}, {"num_heads": 5}], ids=str)
def test_heads_that_tables_do_not_fit(tmp_path: Path, more: dict[str, int]) -> None:
    inputs = [floats(2, 3, 32), np.arange(6).reshape(2, 3), *tables(20, 4)]
    model, _ = node_model("RotaryEmbedding", inputs, free=False, **CONTRIB, **more)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    with pytest.raises(OctavoError, match="RotaryEmbedding 'the_node'"):
        infer(open_onnx(path))
