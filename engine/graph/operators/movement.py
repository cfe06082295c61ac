"""Operators that only say where elements lie: on the device most of them are views, and cost
nothing. What they do is said once, as layouts: of shapes, of known elements and of buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from engine.graph.axes import (
    Expression,
    Shape,
    UndeterminedError,
    concrete,
    is_concrete,
    product,
    same,
    sign,
)
from engine.graph.known import LIMIT, Known, cast
from engine.graph.operator import MAX_RANK, Fact, Operator, Use
from engine.ops.elementwise import apply, contiguous, elementwise, reshaped
from engine.ops.layout import Layout
from engine.ops.view import View, new_view

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering

Move = Callable[[Use, Layout], list[Layout]]


def _moving(name: str, move: Move, inputs: range, *attributes: str, **more: Any) -> Operator:
    """An operator whose outputs are views of its first input."""

    def infer(use: Use) -> list[Fact]:
        x = use.fact(0)
        layouts = move(use, Layout.of(x.shape))
        return [Fact(x.dtype, layout.shape, _taken(x.value, layout)) for layout in layouts]

    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        x = inputs[0]
        kept = [x.with_layout(layout) for layout in move(use, x.layout)]
        return [view for view, name in zip(kept, use.node.outputs, strict=False) if name]

    return Operator(name, infer, lower, frozenset(attributes), inputs, **more)


def _taken(value: Known | None, layout: Layout) -> Known | None:
    if value is None or not is_concrete((*layout.shape, layout.offset)):
        return None
    return value.taken(layout) if prod(layout.shape) <= LIMIT else None


def _transpose(use: Use, x: Layout) -> list[Layout]:
    rank = len(x.shape)
    order = use.attribute("perm", ()) or tuple(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise use.failure(f"perm = {order} is no order of {rank} axes.")
    return [x.permuted(order)]


def _unsqueeze(use: Use, x: Layout) -> list[Layout]:
    given = use.ints(1) if use.has(1) else use.attribute("axes", ())
    if len(given) > MAX_RANK:
        raise use.failure(f"it adds {len(given)} axes, more than {MAX_RANK}.")
    axes = [use.from_front(axis, len(x.shape) + len(given)) for axis in given]
    if len(set(axes)) < len(axes):
        raise use.failure("an axis is named twice.")
    return [x.unsqueezed(axes)]


def _squeeze(use: Use, x: Layout) -> list[Layout]:
    axes = use.axes(1, len(x.shape))
    if axes is None:
        axes = [i for i, size in enumerate(x.shape) if same(size, 1)]
    for axis in axes:
        use.check_same(x.shape[axis], 1, "the length of an axis that is dropped, and 1,")
    return [x.squeezed(axes)]


def _expand(use: Use, x: Layout) -> list[Layout]:
    return [x.expanded(use.broadcast(x.shape, use.ints(1)))]


def _slice(use: Use, x: Layout) -> list[Layout]:
    starts, ends = use.ints(1), use.ints(2)
    axes = use.axes(3, len(x.shape)) if use.has(3) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = use.ints(4) if use.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(axes) > len(x.shape):
        raise use.failure("starts, ends, axes and steps have different lengths.")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not isinstance(step, int) or step == 0:
            raise use.failure(f"a step of {step} is not possible.")
        x = _cut(x, axis, start, end, step)
    return [x]


def _cut(x: Layout, axis: int, start: Any, end: Any, step: int) -> Layout:
    """A slice as Python's, of one axis."""
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        taken = range(
            *slice(start, end if end >= -size else None if step < 0 else 0, step).indices(size)
        )
        return x.sliced(axis, taken.start, step, len(taken))
    if step != 1:
        raise UndeterminedError
    start, end = (_clamped(value, size) for value in (start, end))
    return x.sliced(axis, start, 1, end - start)


def _clamped(value: Any, size: Any) -> Any:
    """A place in an axis of a length that depends on others: counted from the front, within the
    axis. What cannot be told is taken to lie within, as a graph means it; with axes that have
    lengths it is exact."""
    if isinstance(value, int):
        if value >= 1 << 31:
            return size
        return value + size if value < 0 else value
    try:
        return size if sign(value - size) > 0 else value
    except UndeterminedError:
        return value


def _split(use: Use, x: Layout) -> list[Layout]:
    axis = use.axis(0, len(x.shape))
    size = x.shape[axis]
    sizes = use.ints(1) if use.has(1) else use.attribute("split", ())
    if not sizes:
        count = len(use.node.outputs)
        if count < 1 or use.attribute("num_outputs", count) != count:
            raise use.failure("it has not as many outputs as it says.")
        each = size // count if isinstance(size, Expression) else -(-size // count)
        sizes = (*[each] * (count - 1), size - each * (count - 1))
    use.check_same(sum(sizes), size, "the length of an axis, and those of its parts together,")
    if len(sizes) < len(use.node.outputs):
        raise use.failure(f"it has {len(use.node.outputs)} outputs and {len(sizes)} parts.")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = [x.sliced(axis, at, 1, n) for at, n in zip(starts, sizes, strict=True)]
    return parts[: len(use.node.outputs)]


def _identity(use: Use, x: Layout) -> list[Layout]:
    return [x]


def _new_shape(use: Use) -> Shape:
    """The shape that Reshape asks for."""
    x, wanted = use.fact(0), list(use.ints(1))
    keeps = not use.attribute("allowzero", 0)
    for i, size in enumerate(wanted):
        if keeps and isinstance(size, int) and size == 0:
            if i >= x.rank:
                raise use.failure("it keeps an axis that its input has not.")
            wanted[i] = x.shape[i]
    free = [i for i, size in enumerate(wanted) if isinstance(size, int) and size == -1]
    if len(free) > 1:
        raise use.failure("two sizes are left open.")
    for i in free:
        rest = product(size for j, size in enumerate(wanted) if j != i)
        if isinstance(rest, int) and rest == 0:
            raise use.failure("a size is left open where there are no elements.")
        if isinstance(rest, int) and isinstance(x.elements, int) and x.elements % rest:
            raise use.failure(f"{x.elements} elements cannot have the shape {tuple(wanted)}.")
        wanted[i] = x.elements // rest
    use.check_same(x.elements, product(wanted), "the numbers of elements before and after")
    return tuple(wanted)


def _flat_shape(use: Use) -> Shape:
    x = use.fact(0)
    axis = use.attribute("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise use.failure(f"there is no axis {axis} among {x.rank}.")
    axis = axis % x.rank if axis < 0 else axis
    return product(x.shape[:axis]), product(x.shape[axis:])


def _reshaping(
    name: str, shape: Callable[[Use], Shape], inputs: range, *attributes: str
) -> Operator:
    def infer(use: Use) -> list[Fact]:
        x, new = use.fact(0), shape(use)
        value = None
        if x.value and is_concrete(new):
            value = Known(x.dtype, concrete(new), x.value.data)
        return [Fact(x.dtype, new, value)]

    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        return [reshaped(lowering.b, inputs[0], concrete(outputs[0].shape))]

    return Operator(name, infer, lower, frozenset(attributes), inputs)


def _infer_concat(use: Use) -> list[Fact]:
    facts = [use.fact(i) for i in range(len(use.facts))]
    first = facts[0]
    axis = use.axis(0, first.rank)
    for fact in facts[1:]:
        if fact.rank != first.rank or fact.dtype != first.dtype:
            raise use.failure("its inputs have different ranks or types.")
        for i in range(first.rank):
            if i != axis:
                use.check_same(fact.shape[i], first.shape[i], "the sizes beside the joined axis")
    total: Any = sum(fact.shape[axis] for fact in facts)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    if not use.knowns or not is_concrete(shape) or prod(concrete(shape)) > LIMIT:
        return [Fact(first.dtype, shape)]
    data = _joined(use.knowns, axis)
    return [Fact(first.dtype, shape, Known(first.dtype, concrete(shape), data))]


def _joined(knowns: Sequence[Known], axis: int) -> tuple[Any, ...]:
    """The elements of known arrays beside each other."""
    data: list[Any] = []
    outer = prod(knowns[0].shape[:axis])
    for row in range(outer):
        for known in knowns:
            width = len(known.data) // outer
            data += known.data[row * width : (row + 1) * width]
    return tuple(data)


def _lower_concat(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    axis = use.axis(0, outputs[0].rank)
    y = new_view(lowering.b, "joined", concrete(outputs[0].shape), inputs[0].dtype)
    at = 0
    for view in inputs:
        part = y.layout.sliced(axis, at, 1, view.shape[axis])
        apply(lowering.b, "copy", [view], y.with_layout(part))
        at += view.shape[axis]
    return [y]


def _infer_tile(use: Use) -> list[Fact]:
    x, repeats = use.fact(0), use.ints(1)
    if len(repeats) != x.rank:
        raise use.failure(f"it repeats {len(repeats)} axes of {x.rank}.")
    return [Fact(x.dtype, tuple(a * b for a, b in zip(x.shape, repeats, strict=True)))]


def _lower_tile(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    x, repeats = inputs[0], use.ints(1)
    apart = x.layout.unsqueezed(range(0, 2 * len(repeats), 2))
    shape = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    repeated = contiguous(lowering.b, x.with_layout(apart.expanded(shape)))
    return [reshaped(lowering.b, repeated, concrete(outputs[0].shape))]


def _infer_trilu(use: Use) -> list[Fact]:
    x = use.fact(0)
    if x.rank < 2:
        raise use.failure("it needs a matrix.")
    k = use.ints(1)[0] if use.has(1) else 0
    # Where the diagonal lies may depend on axes, the shape does not.
    if not x.value or not isinstance(k, int):
        return [Fact(x.dtype, x.shape)]
    rows, columns = x.value.shape[-2:]
    upper, zero = use.attribute("upper", 1), cast(0, x.dtype)
    places = (divmod(i % (rows * columns), columns) for i in range(len(x.value.data)))
    data = (
        value if (column - row >= k if upper else column - row <= k) else zero
        for value, (row, column) in zip(x.value.data, places, strict=True)
    )
    return [Fact(x.dtype, x.shape, Known(x.dtype, x.value.shape, tuple(data)))]


def _lower_trilu(
    lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
) -> list[View]:
    b, x = lowering.b, inputs[0]
    rows, columns = x.shape[-2:]
    k = use.ints(1)[0] if use.has(1) else 0
    down = lowering.known(Known("i64", (rows, 1), tuple(range(k, rows + k))))
    across = lowering.known(Known("i64", (1, columns), tuple(range(columns))))
    name = "greater_equal" if use.attribute("upper", 1) else "less_equal"
    keep = elementwise(b, name, [across, down], (rows, columns), "i32")
    zero = lowering.known(Known(use.fact(0).dtype, (), (cast(0, use.fact(0).dtype),)))
    return [elementwise(b, "where", [keep, x, zero], x.shape, x.dtype)]


OPERATORS = (
    _moving("Identity", _identity, range(1, 2)),
    _moving("Dropout", _identity, range(1, 4), "ratio", "seed"),
    _moving("Transpose", _transpose, range(1, 2), "perm"),
    _moving("Unsqueeze", _unsqueeze, range(1, 3), "axes"),
    _moving("Squeeze", _squeeze, range(1, 3), "axes"),
    _moving("Expand", _expand, range(2, 3)),
    _moving("Slice", _slice, range(3, 6)),
    _moving("Split", _split, range(1, 3), "axis", "split", "num_outputs"),
    _reshaping("Reshape", _new_shape, range(2, 3), "allowzero"),
    _reshaping("Flatten", _flat_shape, range(1, 2), "axis"),
    Operator("Concat", _infer_concat, _lower_concat, frozenset({"axis"}), range(1, 10_000)),
    Operator("Tile", _infer_tile, _lower_tile, inputs=range(2, 3)),
    Operator("Trilu", _infer_trilu, _lower_trilu, frozenset({"upper"}), range(1, 3), range(14, 25)),
)
