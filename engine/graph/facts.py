"""What is known of every value of a graph before it is computed: one walk through the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.errors import OctavoError
from engine.graph.axes import Size, UndeterminedError, axes_of, axis, product, value_of
from engine.graph.known import Known
from engine.graph.model import CONTRIB, OWN, Graph, Node, failure
from engine.graph.operator import MAX_RANK, Fact, Operator, Use, fact_of
from engine.graph.operators import OPERATORS
from engine.graph.reading import MAX_ELEMENTS

MOST_KNOWN = 1 << 20  # elements that the arithmetic of shapes may make in all


def axes_in(graph: Graph) -> tuple[str, ...]:
    """The axes that the inputs' shapes depend on."""
    return tuple(
        sorted({name for value in graph.inputs for size in value.shape for name in axes_of(size)})
    )


def operator_of(graph: Graph, node: Node) -> tuple[Operator, int]:
    """The entry of a node, and the version of its domain; OctavoError graph.operator."""
    operator = OPERATORS.get(node.op)
    if operator is None:
        raise failure(node, "the operator is not supported.", "graph.operator")
    domain = node.op.rpartition(".")[0]
    opset = graph.opsets.get(domain, 1 if domain in (CONTRIB, OWN) else 0)
    operator.check(node, opset)
    return operator, opset


def check_operators(graph: Graph) -> None:
    """Raises OctavoError graph.operator for the first node that is not supported."""
    for node in graph.nodes:
        operator_of(graph, node)


def infer(graph: Graph, sizes: Mapping[str, Size] | None = None) -> dict[str, Fact]:
    """Facts of all values, by name, where axes have ``sizes``.

    Without sizes, shapes are expressions of the axes, and values that cannot be told without them
    are not there. Raises OctavoError graph.invalid or graph.operator with the node's name.
    """
    symbolic = sizes is None
    lengths = {name: axis(name) for name in axes_in(graph)} if sizes is None else sizes
    facts = {c.name: _fact_of_constant(c.dtype, c.shape, c.value) for c in graph.constants.values()}
    for value in graph.inputs:
        shape = tuple(value_of(size, lengths) for size in value.shape)
        elements = product(shape)
        if isinstance(elements, int) and not 0 <= elements <= MAX_ELEMENTS:
            reason = f"The input {value.name!r} has {elements} elements, too many."
            raise OctavoError("graph.invalid", reason)
        facts[value.name] = Fact(value.dtype, shape)
    spent = 0
    for node in graph.nodes:
        operator, opset = operator_of(graph, node)
        if symbolic and any(name and name not in facts for name in node.inputs):
            continue
        inputs = tuple(facts[name] if name else None for name in node.inputs)
        try:
            found = operator.infer(Use(node, inputs, opset, lengths))
        except UndeterminedError:
            if symbolic:
                continue
            reason = "its shape depends on values that are computed on the device."
            raise failure(node, reason, "graph.operator") from None
        except ArithmeticError as error:
            raise failure(node, f"its shape cannot be computed: {error}.") from None
        for name, fact in zip(node.outputs, found, strict=False):
            if name:
                facts[name] = _checked(node, fact)
                spent += len(fact.value.data) if fact.value else 0
        if spent > MOST_KNOWN:
            raise failure(node, "there is too much to compute before anything runs.")
        for name in node.outputs[len(found) :]:
            if name:
                reason = f"the output {name!r} is not supported."
                raise failure(node, reason, "graph.operator")
    return facts


def _fact_of_constant(dtype: str, shape: tuple[int, ...], value: Known | None) -> Fact:
    return fact_of(value) if value else Fact(dtype, shape)


def _checked(node: Node, fact: Fact) -> Fact:
    """The fact, if the tensor can exist; one without elements is known."""
    if fact.rank > MAX_RANK:
        raise failure(node, f"its output has {fact.rank} axes, more than {MAX_RANK}.")
    if any(isinstance(size, int) and size < 0 for size in fact.shape):
        raise failure(node, f"its output has a negative size: {fact.shape}.")
    elements = fact.elements
    if not isinstance(elements, int):
        return fact
    if elements > MAX_ELEMENTS:
        raise failure(node, f"its output has {elements} elements, too many.")
    if elements == 0 and not fact.value:
        shape = tuple(size for size in fact.shape if isinstance(size, int))
        return (
            replace(fact, value=Known(fact.dtype, shape, ())) if len(shape) == fact.rank else fact
        )
    return fact


def check_sizes(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Raises OctavoError graph.invalid unless ``sizes`` has a length for every axis."""
    for name in axes_in(graph):
        length = sizes.get(name)
        if type(length) is not int or not 0 <= length <= MAX_ELEMENTS:
            raise OctavoError("graph.invalid", f"The axis {name!r} has no usable length.")
