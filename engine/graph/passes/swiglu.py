"""SiLU (Elfwing et al., 2017), and units gated by it or by GELU (Shazeer, 2020)."""

from __future__ import annotations

from engine.graph.model import OWN, Graph, Node
from engine.graph.passes.linear import stacked
from engine.graph.passes.rewriting import Change, Finder, rewritten


def fuse_silu(graph: Graph) -> Graph:
    """``x * sigmoid(x)`` to one node."""
    return rewritten(graph, _silu)


def _silu(finder: Finder, node: Node) -> Change | None:
    if node.op != "Mul":
        return None
    for x, gate in (node.inputs, node.inputs[::-1]):
        sigmoid = finder.maker(gate, "Sigmoid")
        if sigmoid and sigmoid.inputs[0] == x:
            return Change(Node(node.name, f"{OWN}.Silu", (x,), node.outputs))
    return None


def fuse_swiglu(graph: Graph) -> Graph:
    """``act(x @ g) * (x @ u)`` to one product with both matrices, whose end is the gate."""
    return rewritten(graph, _gated)


def _gated(finder: Finder, node: Node) -> Change | None:
    if node.op != "Mul":
        return None
    for gate, up in (node.inputs, node.inputs[::-1]):
        act = finder.maker(gate, f"{OWN}.Silu", f"{OWN}.Gelu")
        lower = finder.maker(act.inputs[0], f"{OWN}.Linear") if act else None
        upper = finder.maker(up, f"{OWN}.Linear")
        if not act or not lower or not upper or lower is upper:
            continue
        plain = len(lower.inputs) == len(upper.inputs) == 2
        if not plain or lower.inputs[0] != upper.inputs[0]:
            continue
        if act.op.endswith("Gelu") and act.attributes.get("approximate") != "tanh":
            continue
        if not all(map(finder.alone, (gate, up, act.inputs[0]))):
            continue
        matrix = stacked(finder, f"{node.name}.gate_up", [lower.inputs[1], upper.inputs[1]])
        if matrix:
            kind = "silu" if act.op.endswith("Silu") else "gelu"
            inputs = (lower.inputs[0], matrix.name)
            made = Node(node.name, f"{OWN}.GatedLinear", inputs, node.outputs, {"act": kind})
            return Change(made, constants=[matrix])
    return None
