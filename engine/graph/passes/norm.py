"""Layer and RMS normalization, as exporters write them out."""

from __future__ import annotations

from typing import Any

from engine.graph.model import OWN, Graph, Node
from engine.graph.passes.rewriting import Change, Finder, rewritten


def fuse_layer_norm(graph: Graph) -> Graph:
    """``(x - mean) / sqrt(mean((x - mean)^2) + eps) * gain + bias`` to one node."""
    return rewritten(graph, _layer_norm)


def fuse_rms_norm(graph: Graph) -> Graph:
    """``x / sqrt(mean(x^2) + eps) * gain`` to one node."""
    return rewritten(graph, _rms_norm)


def _layer_norm(finder: Finder, node: Node) -> Change | None:
    if node.op != "Add":
        return None
    for normal, bias in (node.inputs, node.inputs[::-1]):
        scaled = finder.maker(normal, "Mul")
        if not scaled or not finder.alone(normal):
            continue
        for divided, gain in (scaled.inputs, scaled.inputs[::-1]):
            found = _divided(finder, divided)
            if not found:
                continue
            centred, root, eps = found
            x = _centred(finder, centred)
            if x and _mean_square_of(finder, root, centred) and _vectors(finder, x, gain, bias):
                return Change(_norm(node, "LayerNorm", (x, gain, bias), eps))
    return None


def _rms_norm(finder: Finder, node: Node) -> Change | None:
    if node.op != "Mul":
        return None
    for divided, gain in (node.inputs, node.inputs[::-1]):
        cast = finder.maker(divided, "Cast")
        found = _divided(finder, cast.inputs[0] if cast else divided)
        if not found:
            continue
        x, root, eps = found
        if _mean_square_of(finder, root, x) and _vectors(finder, x, gain):
            return Change(_norm(node, "RMSNorm", (x, gain), eps))
    return None


def _norm(node: Node, op: str, inputs: tuple[str, ...], eps: float) -> Node:
    attributes: dict[str, Any] = {"axis": -1, "epsilon": eps}
    return Node(node.name, f"{OWN}.{op}", inputs, node.outputs, attributes)


def _divided(finder: Finder, name: str) -> tuple[str, str, float] | None:
    """``x / sqrt(v + eps)``, or a product with the reciprocal: x, v and eps."""
    node = finder.maker(name, "Div", "Mul")
    if not node or not finder.alone(name):
        return None
    if node.op == "Div":
        pairs = [(node.inputs[0], node.inputs[1])]
    else:
        pairs = []
        for x, inverse in (node.inputs, node.inputs[::-1]):
            below = finder.maker(inverse, "Reciprocal")
            ratio = finder.maker(inverse, "Div")
            if below:
                pairs.append((x, below.inputs[0]))
            elif ratio and finder.scalar(ratio.inputs[0]) == 1:
                pairs.append((x, ratio.inputs[1]))
    for x, root in pairs:
        rooted = finder.maker(root, "Sqrt")
        total = finder.maker(rooted.inputs[0], "Add") if rooted else None
        found = finder.with_scalar(total) if total else None
        if found:
            return x, *found
    return None


def _mean_square_of(finder: Finder, name: str, x: str) -> bool:
    """Whether a value is the mean, over the last axis, of the squares of x."""
    mean = finder.maker(name, "ReduceMean")
    if not mean or not _over_last(finder, mean):
        return False
    square = finder.maker(mean.inputs[0], "Pow", "Mul")
    if not square:
        return False
    if square.op == "Mul":
        return square.inputs == (x, x)
    return square.inputs[0] == x and finder.scalar(square.inputs[1]) == 2


def _centred(finder: Finder, name: str) -> str | None:
    """x, if a value is ``x - mean(x)``."""
    node = finder.maker(name, "Sub")
    mean = finder.maker(node.inputs[1], "ReduceMean") if node else None
    if not node or not mean or mean.inputs[0] != node.inputs[0]:
        return None
    return node.inputs[0] if _over_last(finder, mean) else None


def _over_last(finder: Finder, mean: Node) -> bool:
    """Whether a mean is taken over the last axis, which is kept."""
    shape = finder.shape(mean.inputs[0])
    axes: Any = mean.attributes.get("axes", ())
    if len(mean.inputs) > 1 and mean.inputs[1]:
        fact = finder.facts.get(mean.inputs[1])
        axes = fact.value.data if fact and fact.value else ()
    if not shape or mean.attributes.get("keepdims", 1) != 1:
        return False
    return tuple(axes) in ((-1,), (len(shape) - 1,))


def _vectors(finder: Finder, x: str, *names: str) -> bool:
    """Whether values have the shape of x's last axis."""
    shape = finder.shape(x)
    return bool(shape) and all(finder.shape(name) == tuple(shape[-1:]) for name in names if shape)
