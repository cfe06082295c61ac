"""Embeddings of texts: buckets, batches, pooling, and vectors against onnxruntime."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from engine.backends.cpu import CpuDevice
from engine.backends.native import Native
from engine.embedding import Bucket, Embedder, batches, buckets, frame_of, unframed
from engine.errors import OctavoError
from engine.graph.lowering import constants_index
from engine.graph.model import Constant, Graph, Node
from engine.graph.pooling import mean_pooling
from engine.host import native
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.quantizing import quantized
from engine.host.convert.onnx_graph.source import open_onnx
from engine.weights.loading import shard_jobs
from tests.conftest import ROOT
from tests.graphs import as_read, wanted

BERT = ROOT / "tests/golden/onnx_bert.onnx"
LONGEST, VOCABULARY = 64, 40


async def embedder(
    graph: Graph, data: bytes, longest: int, kernels: Native | None = None
) -> Embedder:
    device = CpuDevice(native=kernels)
    made = Embedder(device, graph, longest)
    await device.allocate(made.weights)
    (jobs,) = shard_jobs(constants_index(graph, len(data)), made.weights, [len(data)])
    await device.upload(data, jobs)
    return made


def embed(
    path: Path,
    folder: Path,
    texts: Sequence[Sequence[int]],
    longest: int,
    change: Callable[[Graph], Graph] = simplified,
    kernels: Native | None = None,
) -> np.ndarray:
    graph, data = as_read(change(open_onnx(path)), folder)

    async def run() -> np.ndarray:
        return np.array(await (await embedder(graph, data, longest, kernels)).embed(texts))

    return asyncio.run(run())


def expected(path: Path, text: Sequence[int]) -> np.ndarray:
    """The mean of what onnxruntime computes for one text alone, of length 1."""
    ids = np.array([text])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": ids * 0}
    mean: np.ndarray = wanted(path, feeds)[0][0].astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def random_texts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, VOCABULARY, rng.integers(1, LONGEST + 1)).tolist() for _ in range(count)
    ]


def in_blocks(graph: Graph) -> Graph:
    return quantized(simplified(graph))


def test_matrices_in_blocks(tmp_path: Path) -> None:
    plain, made = simplified(open_onnx(BERT)), in_blocks(open_onnx(BERT))
    kinds = {name: constant.quant for name, constant in made.constants.items()}
    matrices = {node.inputs[1] for node in made.nodes if node.op == "octavo.Linear"}
    words = {node.inputs[0] for node in made.nodes if node.op == "octavo.Embed"}
    assert len(matrices) == 5 and words
    assert {name for name, quant in kinds.items() if quant == "Q8_0"} == matrices | words
    assert set(kinds) == set(plain.constants)
    texts = random_texts(20)
    found = embed(BERT, tmp_path, texts, LONGEST, in_blocks)
    cosines = [v @ expected(BERT, text) for v, text in zip(found, texts, strict=True)]
    assert 0.9995 < min(cosines) < 0.9999999, "near, and not the same"


def test_what_is_read_otherwise_stays() -> None:
    rng = np.random.default_rng(0)
    matrix = Constant("w", "f32", (64, 64), array=rng.random((64, 64)))
    odd = Constant("odd", "f32", (64, 33), array=rng.random((64, 33)))
    nodes = [
        Node("a", "octavo.Linear", ("x", "w"), ("y",)),
        Node("b", "octavo.Linear", ("x", "odd"), ("z",)),
    ]
    constants = {"w": matrix, "odd": odd}
    alone = Graph("g", (), ("y", "z"), tuple(nodes), constants)
    read = Graph("g", (), ("y", "s"), (*nodes, Node("c", "Add", ("w", "y"), ("s",))), constants)
    shown = Graph("g", (), ("y", "w"), tuple(nodes), constants)
    kinds = [quantized(graph).constants["w"].quant for graph in (alone, read, shown)]
    assert kinds == ["Q8_0", "F32", "F32"]
    assert quantized(alone).constants["odd"].quant == "F32"


@pytest.mark.parametrize("by", ["NumPy", "SIMD"])
def test_vectors(tmp_path: Path, by: str) -> None:
    kernels = Native(ROOT / native.build(native.HERE), by) if by == "SIMD" else None
    texts = [*random_texts(40), [7], [3] * LONGEST]
    found = embed(BERT, tmp_path, texts, LONGEST, kernels=kernels)
    for vector, text in zip(found, texts, strict=True):
        np.testing.assert_allclose(vector, expected(BERT, text), atol=1e-5)


def test_texts_that_cannot_be_embedded(tmp_path: Path) -> None:
    for text, code in (([], "request.invalid"), ([1] * 65, "prompt.too_long")):
        with pytest.raises(OctavoError) as caught:
            embed(BERT, tmp_path, [[1], text], LONGEST)
        assert caught.value.code == code


def test_buckets() -> None:
    assert buckets(24) == [Bucket(n, length) for length in (16, 24) for n in (1, 4, 32)]
    lengths = [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 500]
    assert sorted({b.length for b in buckets(500)}) == lengths
    assert [b.batch for b in buckets(500) if b.length > 300] == [1, 10, 1, 8]
    assert buckets(5) == [Bucket(n, 5) for n in (1, 4, 32)]


def test_batches_have_texts_of_like_length() -> None:
    given = [Bucket(2, 16), Bucket(2, 32)]
    lengths = [20, 3, 16, 17, 1, 32]
    found = [(bucket.length, places) for bucket, places in batches(lengths, given)]
    assert found == [(16, [4, 1]), (16, [2]), (32, [3, 0]), (32, [5])]


def test_few_texts_take_a_small_batch() -> None:
    found = batches([9] * 37, buckets(16))
    assert [(bucket.batch, len(places)) for bucket, places in found] == [(32, 32), (32, 5)]
    assert [b.batch for b, _ in batches([9] * 3, buckets(16))] == [4]
    assert [b.batch for b, _ in batches([9], buckets(16))] == [1]


def test_full_batches_have_no_rows_that_nobody_asks_for() -> None:
    found = batches([9] * 42, buckets(16), full=True)
    counts = [(bucket.batch, len(places)) for bucket, places in found]
    assert counts == [(32, 32), (4, 4), (4, 4), (1, 1), (1, 1)]
    assert sorted(place for _, places in found for place in places) == list(range(42))
    assert [len(places) for _, places in batches([9], [Bucket(2, 16)], full=True)] == [1]


def test_a_processor_runs_full_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    run = Embedder._run

    def recorded(self: Embedder, bucket: Bucket, texts: Sequence[Sequence[int]]) -> Any:
        ran.append((bucket.batch, len(texts)))
        return run(self, bucket, texts)

    monkeypatch.setattr(Embedder, "_run", recorded)
    embed(BERT, tmp_path, [[1, 2, 3]] * 6, LONGEST)
    assert ran == [(4, 4), (1, 1), (1, 1)]


def test_only_encoders_are_pooled() -> None:
    with pytest.raises(OctavoError, match="no encoder"):
        mean_pooling(
            Graph("g", (), ("y",), (), {}, {}),
        )


@pytest.mark.parametrize(
    "processor",
    [
        processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
        processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        ),
        processors.TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", 2)]),
        None,
    ],
    ids=["BERT", "template", "end only", "none"],
)
def test_frame(processor: object) -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if processor:
        tokenizer.post_processor = processor
    frame = frame_of(tokenizer.to_str())
    plain = tokenizer.encode("a b a", add_special_tokens=False).ids
    assert frame.around(plain, 100) == tokenizer.encode("a b a").ids
    tokenizer.enable_padding(length=20)
    padded = Tokenizer.from_str(unframed(tokenizer.to_str()))
    assert padded.encode("a b a", add_special_tokens=False).ids == plain
    tokenizer.no_padding()
    tokenizer.enable_truncation(4)
    assert frame.around(plain, 4) == tokenizer.encode("a b a").ids


@pytest.mark.parametrize("text", ["{", "[]", '{"post_processor": {"type": "Odd"}}'])
def test_frames_that_are_not_known(text: str) -> None:
    with pytest.raises(OctavoError) as caught:
        frame_of(text)
    assert caught.value.code == "tokenizer.unsupported"
    broken = json.dumps({"post_processor": {"type": "BertProcessing", "cls": 3}})
    with pytest.raises(OctavoError):
        frame_of(broken)
