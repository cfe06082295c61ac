"""`debug` of a graph: every call beside its reference, the outputs beside onnxruntime's."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.backends.base import Device, weights_of
from engine.backends.cpu import CpuDevice
from engine.graph.facts import axes_in
from engine.graph.lowering import Recording, constants_index, record
from engine.graph.model import Graph, Value
from engine.graph.reading import read_graph
from engine.graph.running import state_of, write_known
from engine.header import Manifest, read_manifest
from engine.host import chromium, shards
from engine.host.bench import WEBGPU_FLAG
from engine.host.convert.onnx_graph.conversion import simplified
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.convert.onnx_graph.writing import write
from engine.host.debug.comparison import Comparison, Step
from engine.host.debug.files import FileWeights, host_of
from engine.host.debug.page import PageDevice, opened
from engine.host.debug.running import conclude, examine
from engine.host.errors import HostError
from engine.host.local import LocalHost
from engine.plan import Tensor
from engine.weights.loading import shard_jobs

LENGTH, BATCH = 8, 2  # of axes, the latter where it is called so
LARGEST_ID = 8  # below it are whole numbers that are given to a graph
TYPES = 2  # of tokens
# NumPy's names of types; others are whole numbers of 64 bits.
KINDS = {"f32": "f4", "f16": "f2", "f64": "f8", "bf16": "f4", "i32": "i4", "bool": "?"}
ALLOWED = 1e-3  # of an output's largest value, beside onnxruntime

Arrays = Mapping[str, Any]


def is_graph(model: Path) -> bool:
    """Whether a model is an ONNX file, or a folder that `convert` made of one."""
    manifest = model / "manifest.json"
    if not manifest.is_file():
        return model.suffix == ".onnx"
    try:
        return "graph" in json.loads(manifest.read_bytes())
    except ValueError:
        return False


@dataclass(frozen=True)
class _Opened:
    """A graph with the host of its data."""

    graph: Graph
    host: LocalHost
    manifest: Manifest


async def run(arguments: argparse.Namespace) -> int:
    """The command; 1 if something differs, or is not finite."""
    model: Path = arguments.model
    with tempfile.TemporaryDirectory() as work:
        folder = model if model.is_dir() else _written(model, Path(work))
        it = await _opened(folder)
        async with _device(arguments) as device:
            return await _examine(arguments, it, device)


def _written(model: Path, folder: Path) -> Path:
    """The shards of an ONNX file."""
    about = shards.About(model.stem, model.stem, model.name, "", "")
    write(simplified(open_onnx(model)), folder / "graph", about)
    return folder / "graph"


async def _opened(folder: Path) -> _Opened:
    fields = json.loads((folder / "manifest.json").read_bytes())
    host = host_of(folder, None)
    manifest = read_manifest(await host.open_shards("", lambda *_: None))
    return _Opened(read_graph(fields["graph"], manifest.size), host, manifest)


@asynccontextmanager
async def _device(arguments: argparse.Namespace) -> AsyncIterator[Device]:
    if arguments.device == "cpu":
        yield CpuDevice()
        return
    async with opened(chromium.ensure(), [WEBGPU_FLAG, *arguments.chromium_flag]) as player:
        yield PageDevice(player, arguments.activations)


async def _examine(arguments: argparse.Namespace, it: _Opened, device: Device) -> int:
    graph = it.graph
    sizes = {axis: BATCH if "batch" in axis.lower() else LENGTH for axis in axes_in(graph)}
    made = record(graph, sizes, device.traits)
    index = constants_index(graph, it.manifest.size)
    weights = weights_of([made.plan])
    await device.allocate([*weights, *state_of(made)])
    for i, jobs in enumerate(shard_jobs(index, weights, it.manifest.shard_sizes)):
        await device.upload(await it.host.read_shard(i), jobs)
    device.finish_upload()
    await device.compile([made.plan], lambda *_: None)
    write_known(device, made)
    feeds = {value.name: _feed(value, sizes, seed) for seed, value in enumerate(graph.inputs)}
    print(f"{graph.name} on {device.traits.name}, axes {sizes}", flush=True)
    references = FileWeights(it.host, it.manifest, index) if arguments.compare else None
    comparison = Comparison(device, 0, references, looser=arguments.looser)
    writes = tuple((tensor, _raw(feeds[name])) for name, tensor in made.inputs.items())
    found = await examine(comparison, iter([Step(made.plan, 1, writes)]), arguments.all)
    status = conclude(found, arguments.compare, made.owners)
    if arguments.compare and arguments.model.suffix == ".onnx":
        status |= await _beside_onnxruntime(arguments.model, device, made, feeds)
    return status


def _feed(value: Value, sizes: Mapping[str, int], seed: int) -> Any:
    """What an input is given: small whole numbers, positions, masks with an end, or random ones."""
    import numpy as np

    shape = tuple(size if isinstance(size, int) else sizes[str(size)] for size in value.shape)
    rng = np.random.default_rng(seed)
    kind = np.dtype(KINDS.get(value.dtype, "i8"))
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if "mask" in value.name:
        mask = np.ones(shape, kind)
        mask[..., -1:] = shape[-1:] == (1,)
        return mask
    if "position" in value.name:
        return np.broadcast_to(np.arange(shape[-1], dtype=kind), shape).copy()
    below = TYPES if "type" in value.name else LARGEST_ID
    return rng.integers(0, below, shape).astype(kind)


def _raw(array: Any) -> bytes:
    """As a device takes it."""
    import numpy as np

    raw: bytes = array.astype(np.float32 if array.dtype.kind == "f" else np.int32).tobytes()
    return raw


async def _beside_onnxruntime(model: Path, device: Device, made: Recording, feeds: Arrays) -> int:
    """Compares the outputs; 1 if one differs."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        wanted = session.run(list(made.outputs), dict(feeds))
    except Exception as error:  # of whatever kind it raises
        raise HostError(f"onnxruntime does not run {model}: {error}") from None
    status = 0
    for (name, tensor), want in zip(made.outputs.items(), wanted, strict=True):
        got = await _values(device, tensor)
        want = np.asarray(want, np.float64)
        largest = max(float(np.abs(want).max(initial=0.0)), 1e-6)
        difference = float(np.abs(got.reshape(want.shape) - want).max(initial=0.0))
        differs = not difference <= ALLOWED * largest
        status |= int(differs)
        print(
            f"Output {name} beside onnxruntime's: difference {difference:.4g}, largest value "
            f"{largest:.4g}" + ("  DIFFERS" if differs else ""),
            flush=True,
        )
    return status


async def _values(device: Device, tensor: Tensor) -> Any:
    import numpy as np

    kind = np.float32 if tensor.dtype == "f32" else np.int32
    return np.frombuffer(await device.read(tensor), kind).astype(np.float64)
