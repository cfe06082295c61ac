"""Elements by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from engine.graph.axes import Expression, concrete, is_concrete
from engine.graph.known import LIMIT, Known
from engine.graph.operator import Fact, Operator, Use
from engine.ops.elementwise import elementwise
from engine.ops.gather import gather, scatter
from engine.ops.rows import reduce
from engine.ops.view import View

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering


def _infer_gather(use: Use) -> list[Fact]:
    x, indices = use.fact(0), use.fact(1)
    if indices.is_float:
        raise use.failure("its indices are no whole numbers.")
    axis = use.axis(0, x.rank)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    length = x.shape[axis]
    if isinstance(length, int):
        for index in indices.value.data if indices.value else ():
            if isinstance(index, int) and not -length <= index < length:
                raise use.failure(f"there is no entry {index} among {length}.")
        if length == 0 and not indices.value:
            raise use.failure("there is nothing to gather from.")
    if not use.knowns or not is_concrete(shape):
        return [Fact(x.dtype, shape)]
    return [Fact(x.dtype, shape, _gather_known(use.knowns, axis, concrete(shape)))]


def _gather_known(knowns: Sequence[Known], axis: int, shape: tuple[int, ...]) -> Known | None:
    x, indices = knowns
    if prod(shape) > LIMIT or any(isinstance(i, Expression) for i in indices.data):
        return None
    length, inner = x.shape[axis], prod(x.shape[axis + 1 :])
    data = [
        value
        for outer in range(prod(x.shape[:axis]))
        for index in indices.data
        for value in x.data[(outer * length + index % length) * inner :][:inner]
    ]
    return Known(x.dtype, shape, tuple(data))


def _lower_gather(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    x = inputs[0]
    axis, known = use.axis(0, len(x.shape)), use.fact(1).value
    if known and not known.shape:
        # One entry is a part of what is there.
        part = x.layout.sliced(axis, known.data[0] % x.shape[axis], 1, 1)
        return [x.with_layout(part.squeezed([axis]))]
    return [gather(lowering.b, x, inputs[1], axis)]


def _infer_scatter(use: Use) -> list[Fact]:
    x, indices, updates = use.fact(0), use.fact(1), use.fact(2)
    depth = indices.shape[-1] if indices.rank else 0
    if indices.is_float or not isinstance(depth, int) or not 1 <= depth <= x.rank:
        raise use.failure("its indices do not fit.")
    wanted = (*indices.shape[:-1], *x.shape[depth:])
    if len(wanted) != updates.rank:
        raise use.failure("its updates have not the shape that its indices ask for.")
    for a, b in zip(wanted, updates.shape, strict=True):
        use.check_same(a, b, "the sizes of the updates and of what the indices name")
    return [Fact(x.dtype, x.shape)]


def _lower_scatter(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, (x, indices, updates) = lowering.b, inputs
    y = elementwise(b, "copy", [x], x.shape, x.dtype)
    if not updates.elements:
        return [y]
    depth = indices.shape[-1]
    sizes, strides = x.shape[:depth], y.layout.strides[:depth]
    inner = prod(x.shape[depth:])
    # A place is the sum of indices times strides, in units of what one index names.
    length = lowering.known(Known("i64", (depth,), sizes))
    front = elementwise(b, "mod", [indices, length], indices.shape, "i32")
    factor = lowering.known(Known("i64", (depth,), tuple(s // inner for s in strides)))
    scaled = elementwise(b, "mul", [front, factor], indices.shape, "i32")
    places = reduce(b, "sum", scaled, [len(indices.shape) - 1])
    scatter(b, y, places, updates, inner)
    return [y]


OPERATORS = (
    Operator("Gather", _infer_gather, _lower_gather, frozenset({"axis"}), range(2, 3)),
    Operator(
        "ScatterND",
        _infer_scatter,
        _lower_scatter,
        inputs=range(3, 4),
        ignored={"reduction": "none"},
    ),
)
