"""What an operator is: one entry of the registry says all that the rest needs to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.errors import OctavoError, shown
from engine.graph.axes import Shape, Size, UndeterminedError, product, same
from engine.graph.known import FLOATS, Known
from engine.graph.model import Node, failure

MAX_RANK = 8
if TYPE_CHECKING:
    from engine.graph.lowering import Lowering
    from engine.ops.view import View


@dataclass(frozen=True)
class Fact:
    """What is known of a value before it is computed; of some, all (``value``)."""

    dtype: str
    shape: Shape
    value: Known | None = None

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def elements(self) -> Size:
        """The number of elements."""
        return product(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype in FLOATS


def fact_of(known: Known) -> Fact:
    """All is known."""
    return Fact(known.dtype, known.shape, known)


@dataclass(frozen=True)
class Use:
    """A node, what is known of its inputs (None: left out), the version of its domain, and the
    lengths of the graph's axes."""

    node: Node
    facts: tuple[Fact | None, ...]
    opset: int
    lengths: Mapping[str, Size] = field(default_factory=dict)

    def has(self, index: int) -> bool:
        """Whether an input is there."""
        return index < len(self.facts) and self.facts[index] is not None

    def by_place(self, inputs: Sequence[View], count: int) -> list[View | None]:
        """The inputs that are there, each at its place among ``count``."""
        left = iter(inputs)
        return [next(left) if self.has(i) else None for i in range(count)]

    def fact(self, index: int) -> Fact:
        """What is known of an input that must be there."""
        found = self.facts[index] if index < len(self.facts) else None
        if found is None:
            raise self.failure(f"input {index} is missing.")
        return found

    def known(self, index: int) -> Known:
        """An input that decides about shapes, and so must be known before anything is computed."""
        value = self.fact(index).value
        if value is None:
            raise UndeterminedError
        return value

    def ints(self, index: int) -> tuple[Any, ...]:
        """The elements of a known input of rank 0 or 1."""
        known = self.known(index)
        if len(known.shape) > 1 or known.dtype in FLOATS:
            raise self.failure(f"input {index} should be a list of whole numbers.")
        return known.data

    @property
    def knowns(self) -> tuple[Known, ...] | None:
        """The values of all inputs, if they are known."""
        found = [fact.value for fact in self.facts if fact]
        return tuple(v for v in found if v) if all(found) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute, of the type that ``default`` has."""
        value = self.node.attributes.get(name, default)
        kind = type(default)
        if kind is tuple and value == ():
            return ()  # a list without entries has any type
        if kind is float and type(value) is int:
            return float(value)
        if default is not None and type(value) is not kind:
            raise self.failure(f"{name} should be of type {kind.__name__}, not {shown(value)}.")
        return value

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute ``axis``, counted from the front."""
        return self.from_front(self.attribute(name, default), rank)

    def from_front(self, axis: Any, rank: int) -> int:
        """An axis of an array of ``rank``, counted from the front."""
        if type(axis) is not int or not -rank <= axis < rank:
            raise self.failure(f"there is no axis {shown(axis)} among {rank}.")
        return axis % rank

    def axes(self, index: int, rank: int, name: str = "axes") -> list[int] | None:
        """Axes as an input (newer versions) or an attribute, counted from the front; None if
        nobody says."""
        given = self.ints(index) if self.has(index) else self.attribute(name, ())
        if not given and not self.has(index) and name not in self.node.attributes:
            return None
        axes = [self.from_front(axis, rank) for axis in given]
        if len(set(axes)) < len(axes):
            raise self.failure("an axis is named twice.")
        return axes

    def failure(self, reason: str, code: str = "graph.invalid") -> OctavoError:
        """An error that names the node."""
        return failure(self.node, reason, code)

    def unsupported(self, reason: str) -> OctavoError:
        """graph.operator: what this is asked to do is not supported."""
        return self.failure(reason, "graph.operator")

    def broadcast(self, *shapes: Shape) -> Shape:
        """The shape that all of ``shapes`` are broadcast to, as NumPy does."""
        rank = max(map(len, shapes))
        padded = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
        return tuple(self._broadcast_size(sizes, shapes) for sizes in zip(*padded, strict=True))

    def _broadcast_size(self, sizes: Sequence[Size], shapes: Sequence[Shape]) -> Size:
        result: Size = 1
        for size in sizes:
            if size == 1 or size == result:
                continue
            if result == 1:
                result = size
            elif isinstance(size, int) and isinstance(result, int):
                raise self.failure(f"the shapes {_texts(shapes)} do not fit together.")
            elif isinstance(size, int):
                result = size  # the other one has to be 1, or the same
            elif not isinstance(result, int):
                raise UndeterminedError
        return result

    def check_same(self, a: Size, b: Size, what: str) -> None:
        """Raises graph.invalid if two sizes cannot be equal."""
        try:
            equal = same(a, b)
        except UndeterminedError:
            return
        if not equal:
            raise self.failure(f"{what} should be equal, but are {a} and {b}.")


def _texts(shapes: Sequence[Shape]) -> str:
    return " and ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes)


Infer = Callable[[Use], list[Fact]]
Lower = Callable[["Lowering", Use, Sequence["View"], Sequence[Fact]], "Sequence[View]"]


@dataclass(frozen=True)
class Operator:
    """An ONNX operator.

    ``infer`` is its shape rule: what is known of its outputs, and their values where the CPU can
    know them. ``lower`` calls the op or ops of ``engine/ops`` that compute it, given its inputs
    (left-out ones are not in the list: ``Use`` knows which are there) and the facts of its outputs.
    ``attributes`` are those that it heeds, with the values of others that mean nothing;
    ``inputs`` is how many it may have, ``opsets`` the versions of its domain with this meaning,
    ``quantized`` the input that may be a matrix in blocks.
    """

    name: str
    infer: Infer
    lower: Lower
    attributes: frozenset[str] = frozenset()
    inputs: range = range(1, 2)
    opsets: range = range(11, 25)
    ignored: Mapping[str, Any] = field(default_factory=dict)
    quantized: int = -1

    def check(self, node: Node, opset: int) -> None:
        """Raises OctavoError graph.operator if the node asks for what is not supported."""
        if opset not in self.opsets:
            wanted = f"{self.opsets.start} to {self.opsets.stop - 1}"
            raise failure(node, f"opset {opset} is not supported, only {wanted}.", "graph.operator")
        if len(node.inputs) not in self.inputs:
            raise failure(node, f"{len(node.inputs)} inputs are not supported.", "graph.operator")
        for name, value in node.attributes.items():
            if name not in self.attributes and (
                name not in self.ignored or self.ignored[name] not in (value, ...)
            ):
                reason = f"the attribute {name} = {shown(value)} is not supported."
                raise failure(node, reason, "graph.operator")
