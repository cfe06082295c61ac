"""Branches of an ONNX file that choose between constants: rotary tables for short contexts and for
long ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from onnx import helper

from engine.graph.model import CONTRIB, OWN
from engine.graph.operators.sizes import CHOICE

IF = "If"
# What reads rows of a table by positions, and never one that is not there: which inputs those are.
TABLES = {("RotaryEmbedding", CONTRIB): (2, 3), ("GroupQueryAttention", CONTRIB): (7, 8)}


def without_branches(
    nodes: Iterable[Any], outputs: Collection[str], read: Callable[[Any], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The NodeProtos with choices in the place of those whose branches are constants, and the
    constants by name; ``outputs`` are the graph's, ``read`` makes an array of a TensorProto.

    A choice has values of one shape: a shorter table gets rows of zeros, if it is read by positions
    only.
    """
    given = list(nodes)
    made: list[Any] = []
    arrays: dict[str, Any] = {}
    for node in given:
        pairs = list(_pairs(node, read)) if node.op_type == IF else []
        alike = [
            _alike(pair, name not in outputs and _is_table(given, name))
            for pair, name in zip(pairs, node.output, strict=False)
        ]
        if not pairs or not all(alike):
            made.append(node)
            continue
        for i, (pair, output) in enumerate(zip(alike, node.output, strict=True)):
            names = [f"{node.name}.{branch}.{i}" for branch in ("then", "else")]
            arrays |= dict(zip(names, pair, strict=True))
            inputs, name = [node.input[0], *names], f"{node.name}.choice.{i}"
            made.append(helper.make_node(CHOICE.removeprefix(f"{OWN}."), inputs, [output], name))
            made[-1].domain = OWN
    return made, arrays


def _pairs(node: Any, read: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
    """What the branches give for each output; nothing if not all are constants."""
    branches = {a.name: _constants(a.g, read) for a in node.attribute}
    ends = [branches.get(f"{name}_branch") for name in ("then", "else")]
    if all(end is not None and len(end) == len(node.output) for end in ends):
        yield from zip(*ends, strict=True)


def _constants(graph: Any, read: Callable[[Any], Any]) -> list[Any] | None:
    found = {tensor.name: read(tensor) for tensor in graph.initializer}
    for node in graph.node:
        values = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type != "Constant" or not values:
            return None
        found[node.output[0]] = read(values[0])
    names = [output.name for output in graph.output]
    return [found[name] for name in names] if all(name in found for name in names) else None


def _is_table(nodes: list[Any], name: str) -> bool:
    """Whether a value is a rotary table for all that read it."""
    places = [(node, i) for node in nodes for i, read in enumerate(node.input) if read == name]
    return all(i in TABLES.get((node.op_type, node.domain), ()) for node, i in places)


def _alike(pair: tuple[Any, Any], is_table: bool) -> Any:
    """Two arrays of one shape and type; None if they cannot be."""
    one, other = pair
    if one.dtype != other.dtype or one.shape[1:] != other.shape[1:] or one.ndim != other.ndim:
        return None
    if one.shape == other.shape:
        return pair
    if not is_table or one.ndim != 2:
        return None
    rows = max(len(one), len(other))
    return tuple(np.pad(array, ((0, rows - len(array)), (0, 0))) for array in pair)
