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


def quantized(n: int, k: int, block: int, bits: int, zeros: bool, seed: int = 0) -> list[Any]:
    """Blocks, scales and zero points as MatMulNBits has them; scales are halves already."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8)
    scales = (rng.random((n, k // block)) * 0.1).astype(np.float16).astype(np.float32)
    packed = rng.integers(0, 256, (n, (k // block * bits + 7) // 8), np.uint8)
    return [blocks, scales, *([packed] if zeros else [])]


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("kind", ["4 bits", "4 bits, zeros", "8 bits"])
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
    assert matrix.quant == ("Q8_0" if bits == 8 else "Q4_1" if zeros else "Q4_0")
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


def test_embedding_by_quantized_rows(tmp_path: Path) -> None:
    n, k, block = 20, 64, 32
    blocks, scales = quantized(n, k, block, 4, False)
    blocks = blocks.reshape(n, k // 2)
    tensors = [numpy_helper.from_array(blocks, "w"), numpy_helper.from_array(scales, "scales")]
    attributes = {"block_size": block, "bits": 4, "gather_axis": 0, "quantize_axis": 1, **CONTRIB}
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "ids", "scales"], ["y"], "the_node", **attributes
    )
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
    output = helper.make_empty_tensor_value_info("y")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [ids], [output], tensors)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    read, data = as_read(simplified(open_onnx(path)), tmp_path)
    feeds = {"ids": np.array([0, 19, 7, 7])}
    (got,), (want,) = computed(read, data, feeds), wanted(model, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-6)


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
