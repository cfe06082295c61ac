"""Operators of the arithmetic of shapes: what they give is known when a plan is recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from engine.graph.axes import Expression, UndeterminedError, parse_size, value_of
from engine.graph.known import LIMIT, Known, scalar, vector
from engine.graph.model import OWN, Node
from engine.graph.operator import Fact, Operator, Use, fact_of
from engine.ops.view import View

SIZES = f"{OWN}.Sizes"
CHOICE = f"{OWN}.Choice"
LONGEST_RANGE = 1 << 16
if TYPE_CHECKING:
    from engine.graph.lowering import Lowering


def _infer_shape(use: Use) -> list[Fact]:
    shape = use.fact(0).shape
    start, end = use.attribute("start", 0), use.attribute("end", len(shape))
    return [fact_of(vector(shape[start:end]))]


def _infer_size(use: Use) -> list[Fact]:
    return [fact_of(scalar("i64", use.fact(0).elements))]


def _infer_constant(use: Use) -> list[Fact]:
    found = [
        (name, value) for name, value in use.node.attributes.items() if name.startswith("value")
    ]
    if len(found) != 1:
        raise use.failure("it needs one value.")
    ((name, value),) = found
    if isinstance(value, Known):
        return [fact_of(value)]
    dtype = "f32" if "float" in name else "i64"
    return [fact_of(vector(value, dtype) if isinstance(value, tuple) else scalar(dtype, value))]


def _infer_constant_of_shape(use: Use) -> list[Fact]:
    shape = use.ints(0)
    one = _fill_value(use)
    if any(isinstance(size, Expression) for size in shape) or prod(shape) > LIMIT:
        return [Fact(one.dtype, shape)]
    if any(size < 0 for size in shape):
        raise use.failure(f"there is no shape {shape}.")
    return [fact_of(Known(one.dtype, shape, one.data * prod(shape)))]


def _fill_value(use: Use) -> Known:
    value = use.node.attributes.get("value", scalar("f32", 0.0))
    if not isinstance(value, Known) or len(value.data) != 1:
        raise use.failure("it needs a value of one element.")
    return value


def _lower_constant_of_shape(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    return [lowering.filled(outputs[0], _fill_value(use).data[0])]


def _infer_sizes(use: Use) -> list[Fact]:
    """Expressions of the graph's axes: what passes leave of the arithmetic of shapes."""
    texts, shape = use.attribute("sizes", ()), use.attribute("shape", ())
    if prod(shape) != len(texts) or any(type(size) is not int for size in shape):
        raise use.failure("it has not as many sizes as its shape says.")
    data = tuple(value_of(parse_size(text), use.lengths) for text in texts)
    return [fact_of(Known("i64", shape, data))]


def _infer_range(use: Use) -> list[Fact]:
    start, limit, delta = (use.known(i).data[0] for i in range(3))
    dtype = use.fact(0).dtype
    if isinstance(delta, int | float) and delta == 0:
        raise use.failure("its step is zero.")
    length = limit - start
    if isinstance(length, Expression) or isinstance(delta, Expression):
        # Axes are not negative: neither is their sum.
        if delta == 1 and (start == 0 or all(factor > 0 for _, factor in length.terms)):
            return [Fact(dtype, (length,))]
        raise UndeterminedError
    count = max(math.ceil(length / delta), 0)
    if count > LONGEST_RANGE:
        raise use.unsupported(f"a range of {count} elements is too long.")
    return [fact_of(vector([start + i * delta for i in range(count)], dtype))]


def _infer_choice(use: Use) -> list[Fact]:
    """Inputs: a condition, and two values of one shape: that which it chooses, and the other."""
    one, other = use.fact(1), use.fact(2)
    if one.shape != other.shape or one.dtype != other.dtype:
        raise use.failure("its two values are not alike.")
    condition = use.fact(0).value
    if condition is None:
        return [Fact(one.dtype, one.shape)]
    return [one if condition.data[0] else other]


def _lower_choice(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    return [inputs[1 if use.known(0).data[0] else 2]]


def _on_the_cpu(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> Any:
    """Its value is always known, so it is never asked for on the device."""
    raise UndeterminedError


def sizes_node(name: str, output: str, known: Known) -> Node:
    """A node that makes known whole numbers that depend on axes."""
    texts = tuple(map(str, known.data))
    return Node(name, SIZES, (), (output,), {"sizes": texts, "shape": known.shape})


_VALUES = frozenset({"value", "value_float", "value_floats", "value_int", "value_ints"})
OPERATORS = (
    Operator("Shape", _infer_shape, _on_the_cpu, frozenset({"start", "end"})),
    Operator("Size", _infer_size, _on_the_cpu),
    Operator("Constant", _infer_constant, _on_the_cpu, _VALUES, range(1)),
    Operator(
        "ConstantOfShape", _infer_constant_of_shape, _lower_constant_of_shape, frozenset({"value"})
    ),
    Operator(
        SIZES, _infer_sizes, _on_the_cpu, frozenset({"sizes", "shape"}), range(1), range(1, 2)
    ),
    Operator(CHOICE, _infer_choice, _lower_choice, inputs=range(3, 4), opsets=range(1, 2)),
    Operator("Range", _infer_range, _on_the_cpu, inputs=range(3, 4)),
)
