"""What computes nothing."""

from __future__ import annotations

from dataclasses import replace

from engine.graph.model import Graph
from engine.graph.passes.rewriting import without_dead


def drop_dead(graph: Graph) -> Graph:
    """Without nodes that no output depends on."""
    return without_dead(graph)


def drop_identities(graph: Graph) -> Graph:
    """Without nodes that give what they get, but where that would rename an output."""
    same: dict[str, str] = {}
    for node in graph.nodes:
        is_same = node.op in ("Identity", "Dropout") and not any(node.outputs[1:])
        if is_same and node.outputs[0] not in graph.outputs:
            same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
    nodes = tuple(
        replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.outputs[0] not in same
    )
    return without_dead(replace(graph, nodes=nodes))
