"""Attention (Vaswani et al., 2017), as exporters write it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.graph.model import OWN, Graph, Node
from engine.graph.passes.rewriting import Change, Finder, rewritten


def fuse_attention(graph: Graph) -> Graph:
    """``softmax(scale * q @ k.T + mask) @ v`` to one node: q (..., M, D), k (..., N, D), v
    (..., N, D), mask broadcast to (..., M, N)."""
    return rewritten(graph, _attention)


def _attention(finder: Finder, node: Node) -> Change | None:
    if node.op != "MatMul":
        return None
    weights, guarded = _weights(finder, node.inputs[0])
    if not weights or not _over_last(finder, weights):
        return None
    scores, mask, scale = weights.inputs[0], "", 1.0
    found = _masked(finder, scores)
    if found:
        scores, mask = found
    scaled = finder.maker(scores, "Div", "Mul")
    number = finder.with_scalar(scaled) if scaled else None
    if scaled and number:
        if scaled.op == "Div" and finder.scalar(scaled.inputs[1]) is None:
            return None
        scores = number[0]
        scale = 1 / number[1] if scaled.op == "Div" else number[1]
    product = finder.maker(scores, "MatMul")
    if not product or not finder.alone(scores):
        return None
    q, keys = product.inputs
    key_node = finder.maker(keys, "Transpose")
    k, scale_k, swapped = _keys(finder, keys, key_node)
    q, scale_q = _unscaled(finder, q)
    v = node.inputs[1]
    scale *= scale_q * scale_k
    shapes = [finder.shape(name) for name in (q, k, v)]
    if not _fits(shapes, swapped):
        return None
    inputs = (q, k, v, *([mask] if mask else []))
    attributes: dict[str, Any] = {"scale": scale, "transposed": int(swapped)}
    attributes |= {"guarded": 1} if guarded else {}
    return Change(Node(node.name, f"{OWN}.Attention", inputs, node.outputs, attributes))


def _weights(finder: Finder, name: str) -> tuple[Node | None, bool]:
    """The softmax that makes a value that only this node reads; and whether what is no number in it
    is put to zero, as it is for a query that sees no key."""
    softmax, chosen = finder.maker(name, "Softmax"), finder.maker(name, "Where")
    if not finder.alone(name):
        return None, False
    if not chosen:
        return softmax, False
    inner = chosen.inputs[2]
    softmax, test = finder.maker(inner, "Softmax"), finder.maker(chosen.inputs[0], "IsNaN")
    if not test or test.inputs != (inner,) or finder.scalar(chosen.inputs[1]) != 0:
        return None, False
    readers = {id(reader) for reader in finder.readers[inner]}
    if readers != {id(test), id(chosen)} or inner in finder.graph.outputs:
        return None, False
    return softmax, True


def _over_last(finder: Finder, softmax: Node) -> bool:
    shape = finder.shape(softmax.inputs[0])
    axis = softmax.attributes.get("axis", -1 if finder.graph.opsets.get("", 13) >= 13 else 1)
    return bool(shape) and axis in (-1, len(shape or ()) - 1)


def _masked(finder: Finder, scores: str) -> tuple[str, str] | None:
    """The scores and the mask, of a sum of both: it is the scores that a product makes."""
    total = finder.maker(scores, "Add")
    if not total or not finder.alone(scores):
        return None
    for a, mask in (total.inputs, total.inputs[::-1]):
        made = finder.maker(a, "Div", "Mul", "MatMul")
        if made and finder.alone(a) and (made.op == "MatMul" or finder.with_scalar(made)):
            return a, mask
    return None


def _keys(finder: Finder, keys: str, node: Node | None) -> tuple[str, float, bool]:
    """What k.T is made of, its scale, and whether it still has to be turned: a transposition that
    only swaps the last two axes is taken in."""
    name, scale = _unscaled(finder, keys)
    node = finder.maker(name, "Transpose")
    shape = finder.shape(name)
    if node and shape:
        rank = len(shape)
        order = node.attributes.get("perm", tuple(reversed(range(rank))))
        if order == (*range(rank - 2), rank - 1, rank - 2):
            inner, more = _unscaled(finder, node.inputs[0])
            return inner, scale * more, False
    return name, scale, True


def _unscaled(finder: Finder, name: str) -> tuple[str, float]:
    """What a value is a multiple of, and how much of it."""
    node = finder.maker(name, "Mul", "Div")
    found = finder.with_scalar(node) if node else None
    if not node or not found or (node.op == "Div" and finder.scalar(node.inputs[1]) is None):
        return name, 1.0
    return found[0], 1 / found[1] if node.op == "Div" else found[1]


def _fits(shapes: Sequence[Sequence[Any] | None], swapped: bool) -> bool:
    """Whether q, k and v have the same axes in front."""
    q, k, v = shapes
    if not q or not k or not v or not len(q) == len(k) == len(v) or len(q) < 3:
        return False
    heads = k[-2] if swapped else k[-1]
    return q[:-2] == k[:-2] == v[:-2] and heads == q[-1]
