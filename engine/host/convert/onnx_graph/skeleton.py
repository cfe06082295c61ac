"""The products of a decoder-only language model in a graph: what lies between them is not looked at
here."""

from __future__ import annotations

from dataclasses import dataclass

from engine.graph.model import OWN, Graph, Node
from engine.graph.passes.linear import LINEAR
from engine.graph.passes.quantized import GATHER, MATMUL

IDS = "input_ids"
EMBED = f"{OWN}.Embed"
LAYER = 4  # groups of products: Q, K and V; output; gate and up; down


class UnlikeError(Exception):
    """The graph is not that of a language model that the engine has; the text says why."""


@dataclass(frozen=True)
class Layer:
    """The products of a layer; those of one input may be one, with all matrices in a stack."""

    qkv: tuple[Node, ...]
    out: Node
    units: tuple[Node, ...]
    down: Node


@dataclass(frozen=True)
class Skeleton:
    """The products of a model, in the order of its layers."""

    embedding: Node
    layers: tuple[Layer, ...]
    head: Node


def skeleton_of(graph: Graph) -> Skeleton:
    """The products of ``graph``, which has been through the passes that make them.

    Raises UnlikeError where a decoder has others.
    """
    embedding = _embedding(graph)
    groups = _groups(graph)
    if len(groups) % LAYER != 1 or len(groups) == 1:
        raise UnlikeError(f"{len(groups)} products behind each other are no layers and a head.")
    layers = []
    for i in range(0, len(groups) - 1, LAYER):
        qkv, out, units, down = groups[i : i + LAYER]
        for group, sizes, what in (
            (qkv, (1, 3), "Q, K and V"),
            (out, (1,), "attention"),
            (units, (1, 2), "gate and up"),
            (down, (1,), "the gated unit"),
        ):
            if len(group) not in sizes or len({node.inputs[0] for node in group}) > 1:
                raise UnlikeError(f"{group[0].label} is not the product of {what}.")
        layers.append(Layer(tuple(qkv), out[0], tuple(units), down[0]))
    if len(groups[-1]) > 1:
        raise UnlikeError(f"{groups[-1][0].label} is not the only product at the end.")
    return Skeleton(embedding, tuple(layers), groups[-1][0])


def _embedding(graph: Graph) -> Node:
    """The node that takes rows of a matrix by the ids of tokens."""
    ids = {IDS}
    for node in graph.nodes:
        if node.op == "Cast" and node.inputs[0] in ids:
            ids.add(node.outputs[0])
        takes = node.op == EMBED or (node.op == "Gather" and not node.attributes.get("axis", 0))
        matrix = graph.constants.get(node.inputs[0]) if takes else None
        if matrix and len(matrix.shape) == 2 and node.inputs[1] in ids:
            return node
    raise UnlikeError(f"no embedding is read by an input {IDS!r}.")


def _groups(graph: Graph) -> list[list[Node]]:
    """Products by how many others lie in front of them."""
    depths: dict[str, int] = {}
    groups: list[list[Node]] = []
    for node in graph.nodes:
        depth = max((depths.get(name, 0) for name in node.inputs), default=0)
        if node.op in (MATMUL, GATHER):
            raise UnlikeError(f"{node.label} has blocks that no quantization of GGUF has.")
        if node.op == LINEAR:
            matrix = graph.constants.get(node.inputs[1])
            if not matrix or len(matrix.shape) != 2 or len(node.inputs) > 3:
                raise UnlikeError(f"{node.label} is no product with a matrix alone.")
            groups += [[] for _ in range(depth + 1 - len(groups))]
            groups[depth].append(node)
            depth += 1
        depths |= dict.fromkeys(node.outputs, depth)
    return groups
