"""Reductions over axes, softmax and normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from engine.graph.axes import Expression, Shape
from engine.graph.known import Known, cast
from engine.graph.model import OWN
from engine.graph.operator import Fact, Operator, Use
from engine.ops.elementwise import elementwise
from engine.ops.rows import normalization, reduce, softmax
from engine.ops.view import View

if TYPE_CHECKING:
    from engine.graph.lowering import Lowering

OF_NOTHING = {"sum": 0.0, "prod": 1.0, "mean": float("nan")}  # of no elements
_KNOWN: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum,
    "prod": prod,
    "max": max,
    "min": min,
}


def _axes(use: Use) -> list[int]:
    """The axes that are reduced."""
    rank = use.fact(0).rank
    axes = use.axes(1, rank)
    if not axes:
        return [] if use.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return axes


def _reduced_shape(use: Use, axes: Sequence[int]) -> Shape:
    shape = use.fact(0).shape
    if use.attribute("keepdims", 1):
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _reduction(op: str, name: str, opset: int) -> Operator:
    def infer(use: Use) -> list[Fact]:
        x, axes = use.fact(0), _axes(use)
        shape = _reduced_shape(use, axes)
        empty = any(isinstance(x.shape[i], int) and x.shape[i] == 0 for i in axes)
        if empty and name not in OF_NOTHING:
            raise use.failure(f"there is no {name} of no elements.")
        if empty or not x.value or name not in _KNOWN or not x.value.data:
            return [Fact(x.dtype, shape)]
        return [Fact(x.dtype, shape, _reduce_known(x.value, axes, shape, _KNOWN[name]))]

    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        x, axes = inputs[0], _axes(use)
        if not axes:
            return [x]
        if not x.elements:
            return [lowering.filled(outputs[0], OF_NOTHING[name])]
        y = reduce(lowering.b, name, x, axes)
        kept = [axis for axis in axes if use.attribute("keepdims", 1)]
        return [y.with_layout(y.layout.unsqueezed(kept))]

    attributes = frozenset({"axes", "keepdims", "noop_with_empty_axes"})
    return Operator(op, infer, lower, attributes, range(1, 3))


def _reduce_known(
    known: Known, axes: Sequence[int], shape: Shape, compute: Callable[[Sequence[Any]], Any]
) -> Known | None:
    if any(isinstance(value, Expression) for value in known.data) and compute not in (sum, prod):
        return None
    kept = [i for i in range(len(known.shape)) if i not in axes]
    order = known.taken(known.layout.permuted([*kept, *axes])).data
    width = prod(known.shape[i] for i in axes)
    rows = [order[i : i + width] for i in range(0, len(order), width)]
    sizes = tuple(size for size in shape if isinstance(size, int))
    return Known(known.dtype, sizes, tuple(cast(compute(row), known.dtype) for row in rows))


def _infer_softmax(use: Use) -> list[Fact]:
    x = use.fact(0)
    use.axis(-1 if use.opset >= 13 else 1, x.rank)
    return [Fact(x.dtype, x.shape)]


def _softmax(op: str, log: bool) -> Operator:
    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        x = inputs[0]
        rank = len(x.shape)
        axis = use.axis(-1 if use.opset >= 13 else 1, rank)
        if use.opset < 13 and axis != rank - 1:
            raise use.unsupported("before opset 13, only the last axis is supported.")
        order = [*(i for i in range(rank) if i != axis), axis]
        y = softmax(lowering.b, x.with_layout(x.layout.permuted(order)), log)
        return [y.with_layout(y.layout.permuted([order.index(i) for i in range(rank)]))]

    return Operator(op, _infer_softmax, lower, frozenset({"axis"}))


def _normalized_sizes(use: Use) -> Any:
    """Of the axes that are normalized together; scale and bias have to have the same."""
    x = use.fact(0)
    sizes = x.shape[use.axis(-1, x.rank) :]
    for i in (1, 2):
        if use.has(i):
            shape = use.fact(i).shape
            if len(shape) != len(sizes):
                raise use.unsupported("scale and bias have to have the normalized axes.")
            for a, b in zip(shape, sizes, strict=True):
                use.check_same(a, b, "the sizes of scale or bias and of the normalized axes")
    return sizes


def _infer_norm(use: Use) -> list[Fact]:
    x = use.fact(0)
    _normalized_sizes(use)  # which are checked
    return [Fact(x.dtype, x.shape)]


def _normalization(op: str, centred: bool, inputs: range, opsets: range) -> Operator:
    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        x, gain, *bias = inputs
        width = prod(_normalized_sizes(use))
        eps = use.attribute("epsilon", 1e-5)
        return [normalization(lowering.b, x, width, gain, bias[0] if bias else None, eps, centred)]

    ignored = {"stash_type": 1}
    return Operator(op, _infer_norm, lower, frozenset({"axis", "epsilon"}), inputs, opsets, ignored)


def _infer_skip(use: Use) -> list[Fact]:
    """Outputs: the normalized sum, two that are not supported, and the sum."""
    x = use.fact(0)
    use.broadcast(x.shape, use.fact(1).shape)
    for i in range(2, len(use.facts)):
        if use.has(i):
            sizes = "the sizes of a vector and of what is normalized"
            use.check_same(use.fact(i).elements, x.shape[-1] if x.rank else 1, sizes)
    fact = Fact(x.dtype, x.shape)
    if any(use.node.outputs[1:3]):
        raise use.unsupported("its mean and variance are not supported.")
    return [fact] * len(use.node.outputs)


def _skip_normalization(op: str, centred: bool) -> Operator:
    """``norm(x + skip + bias)``; inputs x, skip, gain, and, if ``centred``, beta, then bias."""

    def lower(
        lowering: Lowering, use: Use, inputs: Sequence[View], outputs: Sequence[Fact]
    ) -> list[View]:
        x, skip, gain, third, fourth = use.by_place(inputs, 5)
        beta, bias = (third, fourth) if centred else (None, third)
        assert x and skip and gain
        b = lowering.b
        total = elementwise(b, "add", [x, skip], x.shape)
        if bias:
            total = elementwise(b, "add", [total, bias], x.shape)
        eps = use.attribute("epsilon", 1e-5)
        y = normalization(b, total, x.shape[-1], gain, beta, eps, centred)
        return [y, total][: len(outputs)]

    return Operator(op, _infer_skip, lower, frozenset({"epsilon"}), range(3, 6), range(1, 2))


OPERATORS = (
    _reduction("ReduceSum", "sum", 13),
    _reduction("ReduceMean", "mean", 18),
    _reduction("ReduceMax", "max", 18),
    _reduction("ReduceMin", "min", 18),
    _reduction("ReduceProd", "prod", 18),
    _softmax("Softmax", False),
    _softmax("LogSoftmax", True),
    _normalization("LayerNormalization", True, range(2, 4), range(17, 25)),
    _normalization("RMSNormalization", False, range(2, 3), range(23, 25)),
    # Of the contrib operators, this one has ONNX's own domain.
    _normalization("SimplifiedLayerNormalization", False, range(2, 3), range(1, 25)),
    _normalization(f"{OWN}.LayerNorm", True, range(3, 4), range(1, 2)),
    _normalization(f"{OWN}.RMSNorm", False, range(2, 3), range(1, 2)),
    _skip_normalization("com.microsoft.SkipLayerNormalization", True),
    _skip_normalization("com.microsoft.SkipSimplifiedLayerNormalization", False),
)
