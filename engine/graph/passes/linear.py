"""Products with constant matrices, which the kernels of language models compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.graph.model import OWN, Attribute, Constant, Graph, Node
from engine.graph.passes.rewriting import Change, Finder, rewritten

BLOCK = 32  # what these kernels read at once
LINEAR = f"{OWN}.Linear"


def make_linear(graph: Graph) -> Graph:
    """MatMul and Gemm with a constant matrix to ``x @ w.T``, the matrix transposed."""
    return rewritten(graph, _linear)


def _linear(finder: Finder, node: Node) -> Change | None:
    if node.op not in ("MatMul", "Gemm"):
        return None
    constant, shape = finder.constant(node.inputs[1]), finder.shape(node.inputs[0])
    if not constant or len(constant.shape) != 2 or not shape or len(shape) < 2:
        return None
    if constant.array is None or not _plain_gemm(node):
        return None
    rows = bool(node.attributes.get("transB", 0))
    matrix = constant.array if rows else constant.array.T
    if matrix.shape[1] % BLOCK:
        return None
    name = constant.name if rows else f"{constant.name}.rows"
    made = Constant(name, constant.dtype, tuple(matrix.shape), array=matrix)
    inputs, constants = [node.inputs[0], name], [made]
    if node.op == "Gemm" and len(node.inputs) > 2:
        bias = _vector(finder, node.inputs[2], matrix.shape[0])
        if bias is None:
            return None
        inputs.append(bias.name)
        constants.append(bias)
    return Change(Node(node.name, LINEAR, tuple(inputs), node.outputs), constants=constants)


def _plain_gemm(node: Node) -> bool:
    """Whether a Gemm neither scales nor transposes its first input."""
    neutral = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return all(node.attributes.get(name, value) == value for name, value in neutral.items())


def _vector(finder: Finder, name: str, size: int) -> Constant | None:
    """A constant vector, to be kept in the data."""
    constant = finder.constant(name)
    if not constant or constant.shape != (size,) or constant.array is None:
        return None
    return replace(constant, name=f"{name}.vector", value=None)


def fuse_bias(graph: Graph) -> Graph:
    """A constant vector that is added to a product, into it."""
    return rewritten(graph, _bias)


def fuse_residual(graph: Graph) -> Graph:
    """One tensor of its shape that is added to a product, into it."""
    return rewritten(graph, _residual)


def _bias(finder: Finder, node: Node) -> Change | None:
    for product, bias in _sums(node):
        linear = finder.maker(product, LINEAR)
        if not linear or len(linear.inputs) > 2 or not _open(finder, linear):
            continue
        matrix = finder.constant(linear.inputs[1])
        vector = _vector(finder, bias, matrix.shape[0]) if matrix else None
        if vector:
            made = Node(node.name, LINEAR, (*linear.inputs, vector.name), node.outputs)
            return Change(made, constants=[vector])
    return None


def _residual(finder: Finder, node: Node) -> Change | None:
    for product, other in _sums(node):
        linear = finder.maker(product, LINEAR)
        if not linear or len(linear.inputs) > 3 or not _open(finder, linear):
            continue
        shape = finder.shape(product)
        if not shape or finder.shape(other) != shape or finder.constant(other):
            continue
        inputs = (*linear.inputs, *[""] * (3 - len(linear.inputs)), other)
        return Change(Node(node.name, LINEAR, inputs, node.outputs))
    return None


def _open(finder: Finder, linear: Node) -> bool:
    """Whether something may become a part of a product: one reads it, and no activation ends it."""
    return finder.alone(linear.outputs[0]) and not linear.attributes


def fuse_activation(graph: Graph) -> Graph:
    """GELU of a product into it."""
    return rewritten(graph, _activation)


def _activation(finder: Finder, node: Node) -> Change | None:
    linear = finder.maker(node.inputs[0], LINEAR) if node.op == f"{OWN}.Gelu" else None
    if not linear or len(linear.inputs) > 3 or not _open(finder, linear):
        return None
    by_tanh = node.attributes.get("approximate") == "tanh"
    attributes: dict[str, Attribute] = {"act": "gelu" if by_tanh else "gelu_erf"}
    return Change(Node(node.name, LINEAR, linear.inputs, node.outputs, attributes))


def _sums(node: Node) -> list[tuple[str, ...]]:
    return [node.inputs, node.inputs[::-1]] if node.op == "Add" else []


def stacked(finder: Finder, name: str, parts: Sequence[str]) -> Constant | None:
    """Constants below each other; None if they do not fit."""
    import numpy as np

    found = [c for part in parts if (c := finder.constant(part)) and not c.value]
    arrays: list[Any] = [c.array for c in found if c.array is not None]
    if len(arrays) < len(parts) or len({(c.shape[1:], c.quant) for c in found}) > 1:
        return None
    joined, rows = np.concatenate(arrays), sum(c.shape[0] for c in found)
    return replace(found[0], name=name, shape=(rows, *found[0].shape[1:]), array=joined)


def fuse_qkv(graph: Graph) -> Graph:
    """Products of one input, as attention has them, to one with all matrices, and a split."""
    return rewritten(graph, _qkv)


def _qkv(finder: Finder, node: Node) -> Change | None:
    if node.op != LINEAR or len(node.inputs) > 3 or node.attributes:
        return None
    siblings = [
        other
        for other in finder.readers.get(node.inputs[0], ())
        if other.op == LINEAR
        and not other.attributes
        and other.inputs[0] == node.inputs[0]
        and len(other.inputs) == len(node.inputs)
        and other.outputs[0] not in finder.graph.outputs
        and _is_read_in_parts(finder, other.outputs[0])
    ]
    if len(siblings) < 2 or node not in siblings:
        return None
    if node is not siblings[0]:
        return Change() if _stack_all(finder, siblings) else None
    made = _stack_all(finder, siblings)
    if not made:
        return None
    matrices = [finder.constant(other.inputs[1]) for other in siblings]
    sizes = tuple(matrix.shape[0] for matrix in matrices if matrix)
    joined = f"{node.outputs[0]}.qkv"
    names = tuple(constant.name for constant in made)
    linear = Node(f"{node.name}.qkv", LINEAR, (node.inputs[0], *names), (joined,))
    outputs = tuple(other.outputs[0] for other in siblings)
    parts: dict[str, Attribute] = {"axis": -1, "split": sizes}
    split = Node(f"{node.name}.parts", "Split", (joined,), outputs, parts)
    return Change(linear, split, constants=made)


def _stack_all(finder: Finder, siblings: Sequence[Node]) -> list[Constant] | None:
    """Matrices, and vectors if there are, below each other."""
    made = []
    for i in range(1, len(siblings[0].inputs)):
        name = f"{siblings[0].name}.stacked.{i}"
        constant = stacked(finder, name, [node.inputs[i] for node in siblings])
        if not constant:
            return None
        made.append(constant)
    return made


VIEWS = ("Reshape", "Transpose", "Slice", "Unsqueeze", "Squeeze", "Split", "Expand")
# What reads a part of each row as well as whole rows; the sums and products are of rotations.
READ_VIEWS = (f"{OWN}.Attention", "Shape", "Add", "Mul", "Neg", "Concat", "Cast")


def _is_read_in_parts(finder: Finder, name: str) -> bool:
    """Whether all that reads a value, as it is or reshaped, takes a part of each row without a
    copy."""
    return all(
        reader.op in READ_VIEWS
        or (reader.op in VIEWS and all(_is_read_in_parts(finder, y) for y in reader.outputs))
        for reader in finder.readers.get(name, [])
    )
