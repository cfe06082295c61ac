"""A graph from the manifest of a model, checked: manifests come from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import Any

from engine.errors import OctavoError, shown
from engine.graph.axes import parse_size, sign
from engine.graph.known import FLOATS, LIMIT, Known
from engine.graph.model import DTYPES, Attribute, Constant, Graph, Node, Value, failure, ordered
from engine.graph.operator import MAX_RANK
from engine.weights.quants import QUANTS, block_bytes

MAX_NODES = 100_000
MAX_NAME = 1000  # characters
MAX_ELEMENTS = 1 << 31  # of a tensor
ALIGN = 32  # bytes; where tensors begin in the data
_NAMES = frozenset(DTYPES.values())
_SPECIAL = {"nan", "inf", "-inf"}


def read_graph(data: object, size: int) -> Graph:
    """The graph of a manifest's field ``graph``; ``size`` is how many bytes of data there are.

    Raises OctavoError graph.invalid, with the node's name where there is one.
    """
    fields = _mapping(data, "graph")
    constants = {c.name: c for c in (_constant(e, size) for e in _list(fields, "constants"))}
    inputs = tuple(_value(entry) for entry in _list(fields, "inputs"))
    outputs = tuple(_name(name) for name in _list(fields, "outputs"))
    nodes = tuple(_node(entry) for entry in _list(fields, "nodes"))
    given = {*constants, *(value.name for value in inputs)}
    nodes = ordered(nodes, given)
    made = given | {name for node in nodes for name in node.outputs}
    for name in outputs:
        if name not in made:
            raise OctavoError("graph.invalid", f"Nobody makes the output {name!r}.")
    opsets = {
        _name(k, empty=True): _whole(v, "opset")
        for k, v in _mapping(fields.get("opsets"), "opsets").items()
    }
    return Graph(_name(fields.get("name", "graph")), inputs, outputs, nodes, constants, opsets)


def _mapping(data: object, what: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise OctavoError("graph.invalid", f"{what} should be an object, not {shown(data)}.")
    return data


def _list(fields: Mapping[str, Any], key: str, most: int = MAX_NODES) -> list[Any]:
    entries = fields.get(key)
    if not isinstance(entries, list) or len(entries) > most:
        raise OctavoError("graph.invalid", f"{key} should be a list of at most {most} entries.")
    return entries


def _name(name: object, empty: bool = False) -> str:
    if not isinstance(name, str) or len(name) > MAX_NAME or not (name or empty):
        raise OctavoError("graph.invalid", f"{shown(name)} is not a name.")
    return name


def _whole(number: object, what: str) -> int:
    if type(number) is not int or not 0 <= number < 1 << 53:
        raise OctavoError("graph.invalid", f"{what} should be a whole number, not {shown(number)}.")
    return number


def _dtype(name: object, owner: str) -> str:
    if not isinstance(name, str) or name not in _NAMES:
        raise OctavoError("graph.invalid", f"{owner!r}: {shown(name)} is no element type.")
    return name


def _sizes(fields: Mapping[str, Any], owner: str) -> list[Any]:
    shape = _list(fields, "shape")
    if len(shape) > MAX_RANK:
        raise OctavoError("graph.invalid", f"{owner!r} has {len(shape)} axes, more than 8.")
    return shape


def _value(data: object) -> Value:
    fields = _mapping(data, "an input")
    name = _name(fields.get("name"))
    shape = tuple(parse_size(size) for size in _sizes(fields, name))
    if any(isinstance(size, int) and sign(size) < 0 for size in shape):
        raise OctavoError("graph.invalid", f"{name!r} has a negative size.")
    return Value(name, _dtype(fields.get("dtype"), name), shape)


def _concrete(fields: Mapping[str, Any], owner: str) -> tuple[int, ...]:
    shape = tuple(_whole(size, f"a size of {owner!r}") for size in _sizes(fields, owner))
    if prod(shape) > MAX_ELEMENTS:
        raise OctavoError("graph.invalid", f"{owner!r} has {prod(shape)} elements, too many.")
    return shape


def _constant(data: object, size: int) -> Constant:
    fields = _mapping(data, "a constant")
    name = _name(fields.get("name"))
    dtype, shape = _dtype(fields.get("dtype"), name), _concrete(fields, name)
    if "values" in fields:
        return Constant(name, dtype, shape, _known(fields, dtype, shape, name))
    start, nbytes = (_whole(fields.get(key), f"{key} of {name!r}") for key in ("start", "nbytes"))
    quant = fields.get("quant", "F32")
    if quant != "F32" and not _is_matrix(quant, shape):
        reason = f"The constant {name!r} cannot be of type {shown(quant)}."
        raise OctavoError("graph.invalid", reason)
    if nbytes != block_bytes(quant, shape) or not nbytes:
        reason = f"The constant {name!r} has {nbytes} bytes, not those of its shape."
        raise OctavoError("graph.invalid", reason)
    if start % ALIGN or start + nbytes > size:
        raise OctavoError("graph.invalid", f"The data of the constant {name!r} is missing.")
    return Constant(name, dtype, shape, None, start, nbytes, quant)


def _is_matrix(quant: object, shape: tuple[int, ...]) -> bool:
    """Whether a constant of this shape has rows of whole blocks."""
    found = QUANTS.get(quant) if isinstance(quant, str) else None
    return found is not None and len(shape) == 2 and shape[1] % max(32, found.block_size) == 0


def _known(fields: Mapping[str, Any], dtype: str, shape: tuple[int, ...], owner: str) -> Known:
    values = _list(fields, "values", LIMIT)
    if len(values) != prod(shape):
        raise OctavoError("graph.invalid", f"{owner!r} has not as many values as its shape says.")
    return Known(dtype, shape, tuple(_number(value, dtype, owner) for value in values))


def _number(value: object, dtype: str, owner: str) -> int | float | bool:
    if dtype in FLOATS and (type(value) in (int, float) or str(value) in _SPECIAL):
        with suppress(OverflowError):  # of a whole number beyond all floats
            return float(value)  # type: ignore[arg-type]
    if dtype == "bool" and type(value) is bool:
        return value
    if dtype not in FLOATS and dtype != "bool" and type(value) is int and abs(value) <= 1 << 64:
        return value
    raise OctavoError("graph.invalid", f"{owner!r}: {shown(value)} is no {dtype}.")


def _node(data: object) -> Node:
    fields = _mapping(data, "a node")
    op = _name(fields.get("op"))
    inputs = tuple(_name(name, empty=True) for name in _list(fields, "inputs", 1000))
    outputs = tuple(_name(name, empty=True) for name in _list(fields, "outputs", 1000))
    node = Node(_name(fields.get("name")), op, inputs, outputs)
    attributes = {
        _name(key): _attribute(value, node)
        for key, value in _mapping(fields.get("attributes", {}), "attributes").items()
    }
    return Node(node.name, op, inputs, outputs, attributes)


def _attribute(value: object, node: Node) -> Attribute:
    if type(value) in (int, str, float):
        return value  # type: ignore[return-value]
    if isinstance(value, list) and len(value) <= LIMIT:
        for kind in (int, float, str):
            if all(type(entry) is kind for entry in value):
                return tuple(value)
    if isinstance(value, dict):
        return _known(
            value, _dtype(value.get("dtype"), node.name), _concrete(value, node.name), node.name
        )
    raise failure(node, f"{shown(value)} is no attribute.")


def graph_to_wire(graph: Graph) -> dict[str, Any]:
    """The graph as ``read_graph`` takes it."""
    return {
        "name": graph.name,
        "opsets": dict(graph.opsets),
        "inputs": [
            {"name": v.name, "dtype": v.dtype, "shape": [_size_to_wire(s) for s in v.shape]}
            for v in graph.inputs
        ],
        "outputs": list(graph.outputs),
        "nodes": [_node_to_wire(node) for node in graph.nodes],
        "constants": [_constant_to_wire(c) for c in graph.constants.values()],
    }


def _size_to_wire(size: Any) -> int | str:
    return size if isinstance(size, int) else str(size)


def _node_to_wire(node: Node) -> dict[str, Any]:
    fields = {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": list(node.outputs),
    }
    attributes = {k: _attribute_to_wire(v) for k, v in node.attributes.items()}
    return {**fields, "attributes": attributes} if attributes else fields


def _attribute_to_wire(value: Attribute) -> Any:
    if isinstance(value, Known):
        return _known_to_wire(value)
    return list(value) if isinstance(value, tuple) else value


def _known_to_wire(known: Known) -> dict[str, Any]:
    # JSON has no word for what is no finite number.
    values = [str(v) if str(v) in _SPECIAL else v for v in known.data]
    return {"dtype": known.dtype, "shape": list(known.shape), "values": values}


def _constant_to_wire(constant: Constant) -> dict[str, Any]:
    if constant.value:
        return {"name": constant.name, **_known_to_wire(constant.value)}
    return {
        "name": constant.name,
        "dtype": constant.dtype,
        "shape": list(constant.shape),
        "start": constant.start,
        "nbytes": constant.nbytes,
        **({"quant": constant.quant} if constant.quant != "F32" else {}),
    }
