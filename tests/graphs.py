"""ONNX graphs made by tests, computed by the engine and by onnxruntime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from engine.backends.base import weights_of
from engine.backends.cpu import CpuDevice
from engine.graph.facts import axes_in, infer
from engine.graph.lowering import Recording, constants_index, record
from engine.graph.model import Graph
from engine.graph.reading import graph_to_wire, read_graph
from engine.graph.running import compute, state_of, write_known
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.convert.onnx_graph.writing import write_data
from engine.weights.loading import shard_jobs

Arrays = Mapping[str, np.ndarray]
SHARD = 1 << 20


def node_model(
    op: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    opset: int = 18,
    domain: str = "",
    constants: Mapping[int, np.ndarray] | None = None,
    free: bool = True,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and what to feed it. ``constants`` are inputs that are initializers, by
    their place; with ``free`` all sizes of the others are axes."""
    fixed = constants or {}
    count = max([len(inputs), *(place + 1 for place in fixed)])
    names, feeds = [], {}
    for i in range(count):
        value = inputs[i] if i < len(inputs) else None
        names.append(f"x{i}" if value is not None or i in fixed else "")
        if value is not None:
            feeds[f"x{i}"] = value
    infos = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [f"{name}_{i}" if free else size for i, size in enumerate(value.shape)],
        )
        for name, value in feeds.items()
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, names, results, name="the_node", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "case",
        infos,
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(value, f"x{i}") for i, value in fixed.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def wanted(model: onnx.ModelProto | Path, feeds: Arrays) -> list[np.ndarray]:
    """What onnxruntime computes."""
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


def sizes_of(graph: Graph, feeds: Arrays) -> dict[str, int]:
    """The lengths of the axes that are an input's size by themselves."""
    names = axes_in(graph)
    return {
        str(size): length
        for value in graph.inputs
        for size, length in zip(value.shape, feeds[value.name].shape, strict=True)
        if str(size) in names
    }


def as_read(graph: Graph, folder: Path) -> tuple[Graph, bytes]:
    """The graph as the tab reads it, and its data."""
    path = folder / "data"
    placed = write_data(graph, path)
    return read_graph(graph_to_wire(placed), path.stat().st_size), path.read_bytes()


def computed(
    graph: Graph, data: bytes, feeds: Arrays, recording: Recording | None = None
) -> list[np.ndarray]:
    """What the engine computes on the CPU device."""

    async def run() -> dict[str, bytes]:
        device = CpuDevice()
        made = recording or record(graph, sizes_of(graph, feeds), device.traits)
        weights = weights_of([made.plan])
        await device.allocate([*weights, *state_of(made)])
        shards = [data[i : i + SHARD] for i in range(0, len(data), SHARD)]
        jobs = shard_jobs(constants_index(graph, len(data)), weights, [len(s) for s in shards])
        for shard, job in zip(shards, jobs, strict=True):
            await device.upload(shard, job)
        await device.compile([made.plan], lambda *_: None)
        write_known(device, made)
        return await compute(device, made, {name: as_input(feeds[name]) for name in made.inputs})

    found = asyncio.run(run())
    facts = _output_facts(graph, feeds)
    return [
        np.frombuffer(found[name], np.float32 if is_float else np.int32).reshape(shape)
        for name, (shape, is_float) in facts.items()
    ]


def as_input(array: np.ndarray) -> bytes:
    """An array as a device takes it."""
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32).tobytes()


def _output_facts(graph: Graph, feeds: Arrays) -> dict[str, tuple[Any, bool]]:
    facts = infer(graph, sizes_of(graph, feeds))
    return {name: (facts[name].shape, facts[name].is_float) for name in graph.outputs}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 2
    return np.asarray(values, np.float32)


def check(tmp_path: Path, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """The engine computes what onnxruntime does."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    graph, data = as_read(open_onnx(path), tmp_path)
    for got, want in zip(computed(graph, data, feeds), wanted(model, feeds), strict=True):
        assert got.shape == want.shape
        assert (got.dtype.kind == "f") == (want.dtype.kind == "f")
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=1e-5, atol=1e-6)
