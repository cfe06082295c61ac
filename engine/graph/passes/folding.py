"""Values that are known whatever the axes are."""

from __future__ import annotations

from dataclasses import replace

from engine.graph.axes import Expression
from engine.graph.facts import infer
from engine.graph.known import Known
from engine.graph.model import Graph
from engine.graph.operators.sizes import SIZES, sizes_node
from engine.graph.passes.rewriting import constant_from, without_dead

MOST = 4096  # elements of a constant that is made
MOST_SIZES = 16


def fold_known(graph: Graph) -> Graph:
    """Nodes whose outputs are known are gone: they become constants or, where they depend on axes
    but on no input, expressions."""
    facts = infer(graph)
    constants = dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        values = {name: facts[name].value for name in node.outputs if name in facts}
        known = {name: value for name, value in values.items() if value}
        if node.op == SIZES or len(known) < len([name for name in node.outputs if name]):
            nodes.append(node)
        elif all(map(_is_fixed, known.values())):
            constants |= {name: constant_from(value, name) for name, value in known.items()}
        elif len(known) == 1 and all(map(_is_short, known.values())):
            ((name, value),) = known.items()
            nodes.append(sizes_node(node.name, name, value))
        else:
            nodes.append(node)
    return without_dead(replace(graph, nodes=tuple(nodes), constants=constants))


def _is_short(known: Known) -> bool:
    return len(known.data) <= MOST_SIZES and known.dtype == "i64"


def _is_fixed(known: Known) -> bool:
    """Whether no element depends on axes; few elements, as they will be in the manifest."""
    if len(known.data) > MOST:
        return False
    return not any(isinstance(value, Expression) for value in known.data)
