"""What computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.graph.facts import infer
from engine.graph.model import Graph, Node
from engine.graph.operator import Fact
from engine.graph.passes.rewriting import without_dead


def drop_dead(graph: Graph) -> Graph:
    """Without nodes that no output depends on."""
    return without_dead(graph)


def drop_identities(graph: Graph) -> Graph:
    """Without nodes that give what they get, but where that would rename an output."""
    facts = infer(graph)
    same: dict[str, str] = {}
    for node in graph.nodes:
        if _gives_its_input(node, facts) and node.outputs[0] not in graph.outputs:
            same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
    nodes = tuple(
        replace(node, inputs=tuple(same.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.outputs[0] not in same
    )
    return without_dead(replace(graph, nodes=nodes))


def _gives_its_input(node: Node, facts: Mapping[str, Fact]) -> bool:
    if node.op == "Cast":
        x, y = facts.get(node.inputs[0]), facts.get(node.outputs[0])
        return x is not None and y is not None and x.dtype == y.dtype
    return node.op in ("Identity", "Dropout") and not any(node.outputs[1:])
