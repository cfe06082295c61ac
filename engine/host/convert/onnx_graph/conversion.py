"""From an ONNX file to DST/<name>/, its shards with the graph in the manifest."""

from __future__ import annotations

import re
import time
from pathlib import Path

from engine.errors import OctavoError
from engine.graph.facts import axes_in, check_operators
from engine.graph.lowering import Recording, record
from engine.graph.model import Graph
from engine.graph.passes import PASSES
from engine.host import shards
from engine.host.convert.onnx_graph.encoder import encoder_of
from engine.host.convert.onnx_graph.quantizing import quantized
from engine.host.convert.onnx_graph.source import open_onnx
from engine.host.convert.onnx_graph.writing import write
from engine.host.convert.results import results
from engine.host.convert.writing import check_room
from engine.host.errors import HostError
from engine.host.progress import megabytes
from engine.plan import Traits

LENGTH = 16  # of every axis, where dispatches are counted


def convert_graph(source: Path, destination: Path, in_blocks: bool = False) -> Path:
    """Converts `source`, with matrices in Q8_0 if wanted; returns the folder of its shards.

    Raises HostError for a source that cannot be converted, for results that exist already, and
    where there is no room.
    """
    return write_graph(source, read_graph(source), destination, in_blocks)


def read_graph(source: Path) -> Graph:
    """The graph of an ONNX file; HostError if it cannot be read, or has an operator that is not
    supported."""
    if not source.is_file():
        raise HostError(f"{source} is missing.")
    try:
        graph = open_onnx(source)
        check_operators(graph)
    except OctavoError as error:
        raise HostError(f"{source}: {error.message}") from None
    return graph


def write_graph(source: Path, graph: Graph, destination: Path, in_blocks: bool = False) -> Path:
    """As `convert_graph`, for a graph that was read from `source`."""
    started = time.monotonic()
    try:
        small = simplified(graph)
        if in_blocks:
            small = quantized(small)
    except OctavoError as error:
        raise HostError(f"{source}: {error.message}") from None
    _tell("as it is", graph)
    _tell("after the passes", small)
    name = re.sub(r"[^\w.-]+", "-", source.stem)
    about = shards.About(name, name, f"{name}.onnx", source.name, "")
    with results(destination, name) as (folder,):
        check_room(destination, 2 * sum(4 * c.array.size for c in small.constants.values()))
        write(small, folder, about, encoder_of(source, small))
    size = sum(path.stat().st_size for path in (destination / name).glob("*.bin"))
    print(f"{megabytes(size)}, {time.monotonic() - started:.1f} s", flush=True)
    return destination / name


def simplified(graph: Graph) -> Graph:
    """The graph after all passes."""
    for change in PASSES.values():
        graph = change(graph)
    return graph


def _tell(when: str, graph: Graph) -> None:
    """Prints what a graph takes."""
    sizes = dict.fromkeys(axes_in(graph), LENGTH)
    try:
        made = record(graph, sizes, Traits("webgpu"))
    except OctavoError as error:
        # Axes of one length do not fit every graph.
        print(f"{when}: {len(graph.nodes)} nodes ({error.message})", flush=True)
        return
    print(f"{when}: {len(graph.nodes)} nodes, {dispatches(made)}", flush=True)


def dispatches(made: Recording) -> str:
    """What a recording takes, for people."""
    return (
        f"{len(made.plan.calls)} dispatches, activations of {megabytes(made.activation_bytes)} "
        f"instead of {megabytes(made.tensor_bytes)}"
    )
