"""A graph as data: what ``convert`` writes into a manifest and what passes change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import OctavoError
from engine.graph.axes import Shape
from engine.graph.known import Known

# Element types, by the numbers of ONNX's TensorProto.DataType.
DTYPES = {
    1: "f32",
    2: "u8",
    3: "i8",
    4: "u16",
    5: "i16",
    6: "i32",
    7: "i64",
    9: "bool",
    10: "f16",
    11: "f64",
    12: "u32",
    13: "u64",
    16: "bf16",
}
OWN = "octavo"  # the domain of what passes make
CONTRIB = "com.microsoft"

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Known


@dataclass(frozen=True)
class Value:
    """An input of the graph: its shape may depend on axes."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Constant:
    """A tensor that the file holds: few elements as they are (``value``), others as ``nbytes`` of
    f32 or i32 from byte ``start`` of the data on, matrices perhaps in the blocks of a quantization
    (``quant``). While a model is converted ``array`` holds them, as a NumPy array: of the elements,
    or of the blocks' bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    value: Known | None = None
    start: int = 0
    nbytes: int = 0
    quant: str = "F32"
    array: Any = field(default=None, compare=False)


@dataclass(frozen=True)
class Node:
    """One use of an operator. ``op`` has its domain in front of a dot, unless it is ONNX's own;
    an input that is left out is ""."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The node in a message."""
        return f"{self.op} {self.name!r}"


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each comes after those that it reads from. ``opsets`` are the
    versions of the domains."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    opsets: Mapping[str, int] = field(default_factory=dict)

    def readers(self) -> dict[str, list[Node]]:
        """The nodes that read each value; one that reads it twice is there twice."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, []).append(node)
        return found

    def makers(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {name: node for node in self.nodes for name in node.outputs if name}


def failure(node: Node, reason: str, code: str = "graph.invalid") -> OctavoError:
    """An error that names the node."""
    return OctavoError(code, f"{node.label}: {reason}")


def ordered(nodes: Sequence[Node], given: set[str]) -> tuple[Node, ...]:
    """The nodes so that each comes after those that it reads from; ``given`` is known before.

    Raises OctavoError graph.invalid for a cycle, a value that nobody makes, or one made twice.
    """
    makers: dict[str, Node] = {}
    for node in nodes:
        for name in filter(None, node.outputs):
            if name in makers or name in given:
                raise failure(node, f"the value {name!r} is made twice.")
            makers[name] = node
    waits = {id(node): set(filter(None, node.inputs)) - given for node in nodes}
    for node in nodes:
        for name in sorted(waits[id(node)]):
            if name not in makers:
                raise failure(node, f"nobody makes its input {name!r}.")
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in waits[id(node)]:
            readers.setdefault(name, []).append(node)
    ready = [node for node in nodes if not waits[id(node)]]
    done: list[Node] = []
    for node in ready:  # grows while it is read
        done.append(node)
        for name in filter(None, node.outputs):
            for reader in readers.get(name, ()):
                waits[id(reader)].discard(name)
                if not waits[id(reader)]:
                    ready.append(reader)
    if len(done) < len(nodes):
        stuck = next(node for node in nodes if waits[id(node)])
        raise failure(stuck, "it is part of a cycle, or waits for one.")
    return tuple(done)
