"""An ONNX file as a graph."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto
from onnx.inliner import inline_local_functions

from engine.errors import OctavoError
from engine.graph.axes import Shape, axis, parse_size
from engine.graph.known import FLOATS
from engine.graph.model import DTYPES, Attribute, Constant, Graph, Node, Value, ordered
from engine.host.convert.onnx_graph.branches import without_branches
from engine.host.convert.onnx_graph.folding import Folder
from engine.host.convert.onnx_graph.tensors import constant_of, dtype_name, known_of, read_tensor
from engine.host.errors import HostError

ATTRIBUTES = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
}


def open_onnx(path: Path) -> Graph:
    """The graph of an ONNX file, its constants folded.

    Raises HostError for a file that cannot be read, and OctavoError graph.invalid or
    graph.operator, with the node's name, for a graph that cannot be used.
    """
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:  # of whatever kind protobuf raises
        raise HostError(f"{path} is no ONNX file: {error}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise HostError(f"{path} is no ONNX file: it has no graph.")
    if model.functions:
        model = inline_local_functions(model)
    return _Reader(model, path).graph()


class _Reader:
    def __init__(self, model: Any, path: Path) -> None:
        self._proto = model.graph
        self._path = path
        self._opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}

    def graph(self) -> Graph:
        proto, folder = self._proto, self._path.parent
        if proto.sparse_initializer:
            raise HostError(f"{self._path}: sparse tensors are not supported.")
        arrays = {tensor.name: read_tensor(tensor, folder) for tensor in proto.initializer}
        # Before IR version 4, initializers are inputs too.
        inputs = tuple(self._value(v) for v in proto.input if v.name not in arrays)
        outputs = tuple(value.name for value in proto.output)
        named, read = _named(proto.node), partial(read_tensor, folder=folder)
        protos, chosen = without_branches(named, outputs, read)
        arrays |= chosen
        nodes = tuple(self._node(node) for node in protos)
        given = {*arrays, *(value.name for value in inputs)}
        nodes = ordered(nodes, given)
        by_name = {node.name: node for node in protos}
        folder_of = Folder(self._opsets, arrays)
        kept = tuple(node for node in nodes if not folder_of.fold(by_name[node.name]))
        constants = {name: constant_of(name, array) for name, array in arrays.items()}
        made = given | {name for node in nodes for name in node.outputs}
        for name in outputs:
            if name not in made:
                raise OctavoError("graph.invalid", f"Nobody makes the output {name!r}.")
        name = proto.name or self._path.stem
        return without_unused(Graph(name, inputs, outputs, kept, constants, self._opsets))

    def _value(self, value: Any) -> Value:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type not in DTYPES:
            reason = f"The input {value.name!r} is of a type that is not supported."
            raise OctavoError("graph.operator", reason)
        if not tensor.HasField("shape"):
            reason = f"The input {value.name!r} has no shape."
            raise OctavoError("graph.invalid", reason)
        return Value(value.name, dtype_name(tensor.elem_type), _shape(value.name, tensor.shape.dim))

    def _node(self, node: Any) -> Node:
        domain = _domain(node.domain)
        op = f"{domain}.{node.op_type}" if domain else node.op_type
        bare = Node(node.name, op, tuple(node.input), tuple(node.output))
        attributes = {a.name: self._attribute(bare, a) for a in node.attribute}
        target = attributes.get("to")
        if op == "Cast" and isinstance(target, int) and DTYPES.get(target, "") in FLOATS:
            attributes["to"] = TensorProto.FLOAT
        return Node(bare.name, op, bare.inputs, bare.outputs, attributes)

    def _attribute(self, node: Node, attribute: Any) -> Attribute:
        if attribute.type in ATTRIBUTES:
            value = getattr(attribute, ATTRIBUTES[attribute.type])
            return value if isinstance(value, int | float) else tuple(value)
        if attribute.type == AttributeProto.STRING:
            return str(attribute.s.decode("utf-8", "replace"))
        if attribute.type == AttributeProto.STRINGS:
            return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
        if attribute.type == AttributeProto.TENSOR:
            return known_of(read_tensor(attribute.t, self._path.parent))
        kind = AttributeProto.AttributeType.Name(attribute.type)
        reason = f"{node.label}: the attribute {attribute.name} of type {kind} is not supported."
        raise OctavoError("graph.operator", reason)


def _named(protos: Any) -> list[Any]:
    """The nodes, each with a name of its own."""
    taken: set[str] = set()
    nodes = []
    for i, node in enumerate(protos):
        name = node.name or f"{node.op_type}_{i}"
        node.name = name if name not in taken else f"{name}.{i}"
        taken.add(node.name)
        nodes.append(node)
    return nodes


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _shape(owner: str, dims: Any) -> Shape:
    """Sizes; what has a name is an axis, or an expression of axes, and what has none is an axis of
    its own."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else _axis(dim.dim_param or f"{owner}_{i}")
        for i, dim in enumerate(dims)
    )


def _axis(text: str) -> Any:
    try:
        return parse_size(text)
    except OctavoError:
        return axis(re.sub(r"\W", "_", f"axis_{text}")[:100])


def without_unused(graph: Graph) -> Graph:
    """The graph without constants that nobody reads."""
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    constants: dict[str, Constant] = {n: c for n, c in graph.constants.items() if n in read}
    return Graph(graph.name, graph.inputs, graph.outputs, graph.nodes, constants, graph.opsets)
