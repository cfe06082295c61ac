"""A graph into shards with a manifest: constants one after another, the graph as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.graph.model import Constant, Graph
from engine.graph.reading import ALIGN, graph_to_wire, read_graph
from engine.host import shards
from engine.host.convert.onnx_graph.tensors import stored

DATA = "data.part"


def write(
    graph: Graph, folder: Path, about: shards.About, more: Mapping[str, Any] | None = None
) -> Graph:
    """Writes `graph` into `folder` as shards and a manifest, which has the fields `more` too;
    returns it as the tab reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / DATA
    placed = write_data(graph, data)
    wire = graph_to_wire(placed)
    read = read_graph(wire, data.stat().st_size)
    shards.cut_unpinned(data, folder, about, extra={"graph": wire, **(more or {})})
    data.unlink()
    return read


def write_data(graph: Graph, path: Path) -> Graph:
    """Writes the constants that are not in the graph itself; returns it with their places."""
    constants: dict[str, Constant] = {}
    with path.open("wb") as file:
        for name, constant in graph.constants.items():
            if constant.value:
                constants[name] = replace(constant, array=None)
                continue
            data = stored(constant)
            place = replace(constant, array=None, start=file.tell(), nbytes=data.nbytes)
            constants[name] = place
            data.tofile(file)
            file.write(b"\0" * (-file.tell() % ALIGN))
        if not file.tell():
            file.write(b"\0" * ALIGN)  # a file without bytes has no shards
    return replace(graph, constants=constants)
