"""GELU (Hendrycks and Gimpel, 2016), as exporters write it out."""

from __future__ import annotations

from math import pi, sqrt

from engine.graph.model import OWN, Graph, Node
from engine.graph.passes.rewriting import Change, Finder, rewritten


def fuse_gelu(graph: Graph) -> Graph:
    """``x * (1 + erf(x / sqrt(2))) / 2``, and what tanh approximates it by, to one node."""
    return rewritten(graph, _gelu)


def _gelu(finder: Finder, node: Node) -> Change | None:
    if node.op == "Gelu":
        return Change(_node(node, node.inputs[0], node.attributes.get("approximate") == "tanh"))
    if node.op != "Mul":
        return None
    factors = _factors(finder, node.outputs[0])
    numbers = [number for name in factors if (number := finder.scalar(name)) is not None]
    others = [name for name in factors if finder.scalar(name) is None]
    if len(others) != 2 or len(numbers) != 1 or abs(numbers[0] - 0.5) > 1e-6:
        return None
    for x, gate in (others, others[::-1]):
        one_more = finder.maker(gate, "Add")
        found = finder.with_scalar(one_more) if one_more else None
        if not found or found[1] != 1:
            continue
        if _erf_of(finder, found[0], x):
            return Change(_node(node, x, False))
        if _tanh_of(finder, found[0], x):
            return Change(_node(node, x, True))
    return None


def _node(node: Node, x: str, by_tanh: bool) -> Node:
    attributes = {"approximate": "tanh" if by_tanh else "none"}
    return Node(node.name, f"{OWN}.Gelu", (x,), node.outputs, attributes)


def _factors(finder: Finder, name: str, depth: int = 2) -> list[str]:
    """What a value is the product of, a few products deep; a division by 2 is a factor of a half
    only where it is written as one."""
    node = finder.maker(name, "Mul")
    if not node or not depth:
        return [name]
    return [factor for part in node.inputs for factor in _factors(finder, part, depth - 1)]


def _erf_of(finder: Finder, name: str, x: str) -> bool:
    """Whether a value is ``erf(x / sqrt(2))``."""
    erf = finder.maker(name, "Erf")
    scaled = finder.maker(erf.inputs[0], "Div", "Mul") if erf else None
    found = finder.with_scalar(scaled) if scaled else None
    if not scaled or not found or found[0] != x:
        return False
    wanted = sqrt(2) if scaled.op == "Div" else sqrt(0.5)
    return abs(found[1] - wanted) < 1e-4


def _tanh_of(finder: Finder, name: str, x: str) -> bool:
    """Whether a value is ``tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))``."""
    tanh = finder.maker(name, "Tanh")
    scaled = finder.maker(tanh.inputs[0], "Mul") if tanh else None
    found = finder.with_scalar(scaled) if scaled else None
    if not found or abs(found[1] - sqrt(2 / pi)) > 1e-4:
        return False
    total = finder.maker(found[0], "Add")
    if not total or x not in total.inputs:
        return False
    rest = total.inputs[1] if total.inputs[0] == x else total.inputs[0]
    cubic = finder.maker(rest, "Mul")
    part = finder.with_scalar(cubic) if cubic else None
    if not part or abs(part[1] - 0.044715) > 1e-5:
        return False
    cube = finder.maker(part[0], "Pow")
    return bool(cube and cube.inputs[0] == x and finder.scalar(cube.inputs[1]) == 3)
