"""Elements by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from engine.graph.axes import Expression, concrete, is_concrete
from engine.graph.known import LIMIT, Known
from engine.graph.operator import Fact, Operator, Use
from engine.ops.elementwise import elementwise, reshaped
from engine.ops.gather import gather, scatter
from engine.ops.layout import Layout
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


def _depth(use: Use, batch: int = 0) -> int:
    """How many axes of the first input, behind ``batch`` ones, its indices name: those lie in
    their last axis."""
    x, indices = use.fact(0), use.fact(1)
    depth = indices.shape[-1] if indices.rank else 0
    fits = not indices.is_float and 0 <= batch < min(x.rank, indices.rank)
    if fits and isinstance(depth, int) and 1 <= depth <= x.rank - batch:
        return depth
    raise use.failure("its indices do not fit.")


def _infer_scatter(use: Use) -> list[Fact]:
    x, indices, updates = use.fact(0), use.fact(1), use.fact(2)
    depth = _depth(use)
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
    places = _places(lowering, indices, x.shape[:depth])
    scatter(b, y, places, updates, prod(x.shape[depth:]))
    return [y]


def _places(lowering: Lowering, indices: View, sizes: Sequence[int]) -> View:
    """Numbers of entries of an array of ``sizes`` by their indices, which lie in the last axis;
    negative ones count from the end."""
    b, depth = lowering.b, len(sizes)
    length = lowering.known(Known("i64", (depth,), tuple(sizes)))
    front = elementwise(b, "mod", [indices, length], indices.shape, "i32")
    if depth == 1:
        return front.with_layout(front.layout.squeezed([len(indices.shape) - 1]))
    strides = Layout.of(sizes).strides
    factor = lowering.known(Known("i64", (depth,), strides))
    scaled = elementwise(b, "mul", [front, factor], indices.shape, "i32")
    return reduce(b, "sum", scaled, [len(indices.shape) - 1])


def _counted(lowering: Lowering, places: View, axis: int, step: int) -> View:
    """Places of entries, those that are further along an axis ``step`` more for each."""
    count = places.shape[axis]
    shape = tuple(count if i == axis else 1 for i in range(len(places.shape)))
    along = lowering.known(Known("i64", shape, tuple(i * step for i in range(count))))
    return elementwise(lowering.b, "add", [places, along], places.shape, "i32")


def _infer_gather_nd(use: Use) -> list[Fact]:
    x, indices, batch = use.fact(0), use.fact(1), use.attribute("batch_dims", 0)
    depth = _depth(use, batch)
    for a, b in zip(x.shape[:batch], indices.shape[:batch], strict=True):
        use.check_same(a, b, "the sizes of batches")
    return [Fact(x.dtype, (*indices.shape[:-1], *x.shape[batch + depth :]))]


def _lower_gather_nd(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, (x, indices), batch = lowering.b, inputs, use.attribute("batch_dims", 0)
    depth = indices.shape[-1]
    sizes = x.shape[batch : batch + depth]
    places = _places(lowering, indices, sizes)
    for axis in range(batch):
        step = prod(x.shape[axis + 1 : batch]) * prod(sizes)
        places = _counted(lowering, places, axis, step)
    rows = reshaped(b, x, (prod(x.shape[: batch + depth]), *x.shape[batch + depth :]))
    return [gather(b, rows, places, 0)]


def _infer_gather_elements(use: Use) -> list[Fact]:
    x, indices = use.fact(0), use.fact(1)
    if indices.is_float or indices.rank != x.rank:
        raise use.failure("its indices do not fit.")
    use.axis(0, x.rank)
    return [Fact(x.dtype, indices.shape)]


def _lower_gather_elements(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, (x, indices), axis = lowering.b, inputs, use.axis(0, len(inputs[0].shape))
    strides = Layout.of(x.shape).strides
    length, step = (lowering.known(Known("i64", (), (n,))) for n in (x.shape[axis], strides[axis]))
    front = elementwise(b, "mod", [indices, length], indices.shape, "i32")
    places = elementwise(b, "mul", [front, step], indices.shape, "i32")
    for other, stride in enumerate(strides):
        if other != axis and indices.shape[other] > 1:
            places = _counted(lowering, places, other, stride)
    return [gather(b, reshaped(b, x, (x.elements,)), places, 0)]


OPERATORS = (
    Operator("Gather", _infer_gather, _lower_gather, frozenset({"axis"}), range(2, 3)),
    Operator(
        "GatherND", _infer_gather_nd, _lower_gather_nd, frozenset({"batch_dims"}), range(2, 3)
    ),
    Operator(
        "GatherElements",
        _infer_gather_elements,
        _lower_gather_elements,
        frozenset({"axis"}),
        range(2, 3),
    ),
    Operator(
        "ScatterND",
        _infer_scatter,
        _lower_scatter,
        inputs=range(3, 4),
        ignored={"reduction": "none"},
    ),
)
