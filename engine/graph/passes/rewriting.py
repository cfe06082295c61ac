"""What passes share: finding nodes by what they read, and putting others in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.graph.facts import infer
from engine.graph.known import Known
from engine.graph.model import Constant, Graph, Node, ordered
from engine.graph.operator import Fact


class Finder:
    """A graph, indexed for one pass."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.makers = graph.makers()
        self.readers = graph.readers()
        self.facts: Mapping[str, Fact] = infer(graph)

    def maker(self, name: str, *ops: str) -> Node | None:
        """The node that makes a value, if it is one of these operators (any if none is named)."""
        node = self.makers.get(name)
        return node if node and (not ops or node.op in ops) else None

    def alone(self, name: str) -> bool:
        """Whether a value has one reader, which may read it twice, and is no output."""
        readers = {id(node) for node in self.readers.get(name, ())}
        return len(readers) == 1 and name not in self.graph.outputs

    def scalar(self, name: str) -> float | None:
        """The only element of a known value."""
        fact = self.facts.get(name)
        known = fact.value if fact else None
        if known is None or len(known.data) != 1 or not isinstance(known.data[0], int | float):
            return None
        return float(known.data[0])

    def with_scalar(self, node: Node) -> tuple[str, float] | None:
        """The input that is computed and the one that is a number, of a node with one of each."""
        a, b = node.inputs
        for name, other in ((a, b), (b, a)):
            number = self.scalar(other)
            if number is not None and self.scalar(name) is None:
                return name, number
        return None

    def shape(self, name: str) -> Sequence[Any] | None:
        """The shape of a value, if it is known as an expression."""
        fact = self.facts.get(name)
        return fact.shape if fact else None

    def constant(self, name: str) -> Constant | None:
        """The constant of this name."""
        return self.graph.constants.get(name)


Rewrite = Callable[[Finder, Node], "Change | None"]


class Change:
    """New nodes and constants in the place of one node; what only it needed dies with it."""

    def __init__(self, *nodes: Node, constants: Iterable[Constant] = ()) -> None:
        self.nodes = nodes
        self.constants = tuple(constants)


def rewritten(graph: Graph, rewrite: Rewrite) -> Graph:
    """The graph with every node replaced for which ``rewrite`` has a change: it makes the same
    values. Nodes that nobody reads any more are gone."""
    finder = Finder(graph)
    nodes: list[Node] = []
    constants = dict(graph.constants)
    for node in graph.nodes:
        change = rewrite(finder, node)
        nodes += change.nodes if change else [node]
        if change:
            constants |= {constant.name: constant for constant in change.constants}
    return without_dead(replace(graph, nodes=tuple(nodes), constants=constants))


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes and constants that no output depends on, in an order that works."""
    made = graph.makers()
    wanted, kept = list(graph.outputs), {}
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        node = made.get(name)
        if node:
            kept[id(node)] = node
            wanted += node.inputs
    nodes = [node for node in graph.nodes if id(node) in kept]
    constants = {name: c for name, c in graph.constants.items() if name in seen}
    given = {*constants, *(value.name for value in graph.inputs)}
    return replace(graph, nodes=ordered(nodes, given), constants=constants)


def constant_from(known: Known, name: str) -> Constant:
    """A constant with known elements."""
    return Constant(name, known.dtype, known.shape, known)
