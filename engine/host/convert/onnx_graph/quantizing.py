"""Matrices of a graph in blocks, as kernels of language models know them: a fourth of the bytes,
and on a CPU the kernels that are written in C."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from engine.graph.model import OWN, Constant, Graph, Node

QUANT = "Q8_0"
BLOCK = 32  # elements
LEAST = 32 * BLOCK  # elements of a matrix that is worth it
MATRIX = {f"{OWN}.Linear": 1, f"{OWN}.GatedLinear": 1, f"{OWN}.Embed": 0}  # operator: its input


def quantized(graph: Graph) -> Graph:
    """The simplified graph with all matrices in Q8_0 that are read as matrices only."""
    nodes = [_embedding(graph, node) for node in graph.nodes]
    elsewhere = {name for node in nodes for name in _others(node)} | set(graph.outputs)
    wanted = {node.inputs[MATRIX[node.op]] for node in nodes if node.op in MATRIX} - elsewhere
    constants = {
        name: _in_blocks(constant) if name in wanted and _fits(constant) else constant
        for name, constant in graph.constants.items()
    }
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _embedding(graph: Graph, node: Node) -> Node:
    """Rows of a constant matrix that are gathered: an embedding."""
    constant = graph.constants.get(node.inputs[0]) if node.op == "Gather" else None
    if constant is None or not _fits(constant) or node.attributes.get("axis", 0) != 0:
        return node
    return Node(node.name, f"{OWN}.Embed", node.inputs, node.outputs)


def _others(node: Node) -> Iterator[str]:
    """The inputs of a node but its matrix."""
    return (name for i, name in enumerate(node.inputs) if MATRIX.get(node.op) != i)


def _fits(constant: Constant) -> bool:
    shape = constant.shape
    is_plain = constant.quant == "F32" and constant.value is None and constant.dtype == "f32"
    return is_plain and len(shape) == 2 and not shape[1] % BLOCK and shape[0] * shape[1] >= LEAST


def _in_blocks(constant: Constant) -> Constant:
    rows = np.asarray(constant.array, np.float32)
    blocks = quantize(rows, GGMLQuantizationType[QUANT])
    return replace(constant, quant=QUANT, array=blocks)
