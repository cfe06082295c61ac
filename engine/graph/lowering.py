"""A graph to a plan, for given lengths of its axes.

What depends on shapes alone is computed here and now (``facts.infer``); the rest becomes calls of
``engine/ops``. Reshapes, transposes, slices and broadcasts are views of the same buffer, until an
op needs its elements in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import overload

from engine.errors import OctavoError
from engine.graph.axes import UndeterminedError
from engine.graph.facts import check_sizes, infer, operator_of
from engine.graph.known import FLOATS, Known
from engine.graph.model import Constant, Graph, Node, failure
from engine.graph.operator import Fact, Use
from engine.ops.elementwise import apply, elementwise, tensor_of
from engine.ops.embed import embed
from engine.ops.gate import Act
from engine.ops.linear import gated_linear, linear
from engine.ops.state import STEP, StepRecord
from engine.ops.view import View, whole
from engine.plan import Call, DType, Plan, PlanBuilder, Tensor, Traits, Variant, Weight
from engine.weights.gguf import GGUF, TensorInfo
from engine.weights.quants import make_weight


@dataclass(frozen=True)
class Recording:
    """A plan with what it reads and writes. ``written`` is to be in its tensors before it runs;
    inputs are f32 or i32, as are outputs, row-major. An output of which all is known before is in
    ``known``, and one without elements has no tensor."""

    plan: Plan
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    known: Mapping[str, Known]
    written: tuple[tuple[Tensor, bytes], ...]
    owners: tuple[str, ...] = ()  # the node that each call is a part of, for people

    @property
    def activation_bytes(self) -> int:
        """Bytes that the plan takes for what it computes."""
        return sum(self.plan.slot_bytes)

    @property
    def tensor_bytes(self) -> int:
        """Bytes that it would take if no two tensors shared memory."""
        return sum(t.nbytes for t in self.plan.tensors("activation").values())


def record(
    graph: Graph, sizes: Mapping[str, int], traits: Traits, name: str = "graph"
) -> Recording:
    """The plan of a graph with axes of these lengths.

    Raises OctavoError graph.invalid or graph.operator with the node's name, or gpu.limits.
    """
    check_sizes(graph, sizes)
    facts = infer(graph, sizes)
    lowering = Lowering(PlanBuilder(name, traits), facts)
    inputs = {value.name: lowering.input(value.name) for value in graph.inputs}
    for constant in graph.constants.values():
        if not constant.value:
            lowering.views[constant.name] = constant_view(constant)
    owners: list[str] = []

    def owned(owner: str) -> None:
        owners.extend([owner] * (len(lowering.b.calls) - len(owners)))

    for node in graph.nodes:
        _lower(graph, node, lowering)
        owned(node.label)
    outputs = {name: lowering.output(name) for name in graph.outputs if not facts[name].value}
    owned("outputs")
    known = {name: value for name in graph.outputs if (value := facts[name].value)}
    used = lowering.b.build()
    given = {name: tensor for name, tensor in inputs.items() if prod(tensor.shape)}
    return Recording(used, given, outputs, known, tuple(lowering.written.values()), tuple(owners))


def _lower(graph: Graph, node: Node, lowering: Lowering) -> None:
    """The calls of a node, unless the values of its outputs are known."""
    names = [name for name in node.outputs if name]
    outputs = [lowering.facts[name] for name in names]
    if all(fact.value for fact in outputs):
        return
    operator, opset = operator_of(graph, node)
    for i, name in enumerate(node.inputs):
        constant = graph.constants.get(name)
        if constant and constant.quant != "F32" and i != operator.quantized:
            raise failure(node, f"it cannot read {name!r}, which is quantized.", "graph.operator")
    facts = tuple(lowering.facts[name] if name else None for name in node.inputs)
    try:
        views = Views(lowering, tuple(name for name in node.inputs if name))
        found = operator.lower(lowering, Use(node, facts, opset), views, outputs)
    except UndeterminedError:
        raise failure(node, "an input has to be known before it runs.", "graph.operator") from None
    except OverflowError:
        raise failure(node, "a whole number does not fit into 32 bits.", "graph.operator") from None
    except OctavoError as error:
        known = node.label in error.message
        raise error if known else failure(node, error.message, error.code) from None
    for name, view, fact in zip(names, found, outputs, strict=True):
        assert view.shape == fact.shape, f"{node.label}: {view.shape}, not {fact.shape}"
        limit = lowering.b.traits.max_tensor_bytes
        if view.tensor.nbytes > limit:
            reason = f"an output takes {view.tensor.nbytes} bytes, and the device binds {limit}."
            raise failure(node, reason, "gpu.limits")
        lowering.views[name] = view


def device_dtype(dtype: str) -> DType:
    """The type of elements on a device: floats are f32, all else is i32."""
    return "f32" if dtype in FLOATS else "i32"


def constant_view(constant: Constant) -> View:
    """A constant that the data holds."""
    if constant.quant != "F32":
        rows, k = constant.shape
        return whole(make_weight(constant.name, (k,), constant.quant, {constant.name: rows}))
    weight = make_weight(constant.name, (), "F32", {constant.name: prod(constant.shape)})
    own = (range(_stored_shape(constant)[0]),)
    typed = replace(weight, dtype=device_dtype(constant.dtype), rows=own)
    return whole(typed, constant.shape)


def _stored_shape(constant: Constant) -> tuple[int, ...]:
    """The shape of a constant as a tensor of a file: it has rows."""
    return constant.shape or (1,)


def constants_index(graph: Graph, size: int) -> GGUF:
    """Where the constants lie in ``size`` bytes of data, for ``weights.loading.shard_jobs``."""
    infos = {
        c.name: TensorInfo(c.name, _stored_shape(c), c.quant, c.start, c.nbytes)
        for c in graph.constants.values()
        if not c.value
    }
    return GGUF(3, {}, infos, 0, size)


class Views(Sequence[View]):
    """The inputs of a node; what is known becomes a tensor only when it is asked for."""

    def __init__(self, lowering: Lowering, names: tuple[str, ...]) -> None:
        self._lowering = lowering
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> View: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[View]: ...

    def __getitem__(self, index: int | slice) -> View | Sequence[View]:
        if isinstance(index, slice):
            return [self._lowering.view(name) for name in self._names[index]]
        return self._lowering.view(self._names[index])


class Lowering:
    """What operators use to become calls."""

    def __init__(self, b: PlanBuilder, facts: Mapping[str, Fact]) -> None:
        self.b = b
        self.facts = facts
        self.views: dict[str, View] = {}
        self.written: dict[str, tuple[Tensor, bytes]] = {}

    def input(self, name: str) -> Tensor:
        """The tensor that the caller writes."""
        fact = self.facts[name]
        tensor = self._state(f"input.{name}", _ints(fact), device_dtype(fact.dtype))
        self.views[name] = whole(tensor)
        return tensor

    def output(self, name: str) -> Tensor:
        """A tensor that the caller reads, with a copy of a value."""
        view = self.views[name]
        tensor = self._state(f"output.{name}", view.shape, view.dtype)
        apply(self.b, "copy", [view], whole(tensor))
        return tensor

    def _state(self, name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A tensor of this plan that outlives a run of it."""
        return Tensor(f"{self.b.name}.{name}", shape, dtype, "state")

    def view(self, name: str) -> View:
        """A value: computed by calls so far, or known."""
        if name not in self.views:
            known = self.facts[name].value
            assert known is not None, name
            self.views[name] = self.known(known)
        return self.views[name]

    def known(self, known: Known) -> View:
        """A tensor with known elements; the same elements are there once."""
        data = known.to_bytes()
        dtype = device_dtype(known.dtype)
        key = f"{dtype} {data.hex()}"
        if key not in self.written:
            tensor = self._state(f"known.{len(self.written)}", (len(known.data),), dtype)
            self.written[key] = tensor, data
        return whole(self.written[key][0], known.shape)

    def filled(self, fact: Fact, value: float) -> View:
        """An output all of whose elements are the same."""
        one = self.known(Known(fact.dtype, (), (value,)))
        return one.with_layout(one.layout.expanded(_ints(fact)))

    def linear(
        self,
        x: View,
        w: Weight,
        bias: Weight | None,
        residual: View | None,
        act: Act | None = None,
    ) -> View:
        """``x @ w.T + bias + residual``, or ``act(x @ w.T + bias)``, by the kernels of language
        models: x (..., K), w (N, K), bias (N,) -> (..., N)."""
        *front, k = x.shape
        rows, n = prod(front), w.shape[0]
        tensor = tensor_of(self.b, x, rows, k)
        added = tensor_of(self.b, residual, rows, n) if residual else None
        with self._of_rows(rows):
            y = linear(self.b, tensor, w, bias=bias, residual=added, act=act)
        return whole(y, (*front, n))

    def gated_linear(self, x: View, w: Weight, act: Act) -> View:
        """``act(g) * u`` with ``g, u = split(x @ w.T)``: x (..., K), w (2F, K) -> (..., F)."""
        *front, k = x.shape
        rows = prod(front)
        tensor = tensor_of(self.b, x, rows, k)
        with self._of_rows(rows):
            y = gated_linear(self.b, tensor, w, act=act)
        return whole(y, (*front, w.shape[0] // 2))

    def embed(self, indices: View, w: Weight) -> View:
        """``w[indices]``: i32 indices of any shape, w (N, K) -> (..., K). Those beyond an end name
        the row there."""
        count, (n, k) = indices.elements, w.shape
        for name, bound in (("max", 0), ("min", n - 1)):
            limit = self.known(Known("i32", (), (bound,)))
            indices = elementwise(self.b, name, [indices, limit], indices.shape, "i32")
        tensor = tensor_of(self.b, indices, count)
        with self._of_rows(count):
            y = embed(self.b, tensor, w)
        return whole(y, (*indices.shape, k))

    @contextmanager
    def _of_rows(self, rows: int) -> Iterator[None]:
        """Calls that are made inside take ``rows`` tokens, whatever a run says."""
        tensor = replace(STEP, name=f"rows.{rows}")
        self.written[tensor.name] = tensor, StepRecord(0, rows).pack()
        before, tokens = len(self.b.calls), self.b.tokens
        self.b.tokens = rows
        try:
            yield
        finally:
            self.b.tokens = tokens
        self.b.calls[before:] = [_fixed(call, tensor, rows) for call in self.b.calls[before:]]


def _fixed(call: Call, step: Tensor, rows: int) -> Call:
    """A call whose grid depends on the number of tokens, for ``rows`` of them."""
    if "step" not in call.args:
        return call

    def fixed(variant: Variant) -> Variant:
        grid = variant.grid
        y = ceil(rows / grid.tokens) if grid.tokens else grid.y
        return replace(variant, grid=replace(grid, y=y, tokens=0))

    own = fixed(Variant({}, call.grid)).grid
    variants = {name: fixed(variant) for name, variant in call.variants.items()}
    return replace(call, args={**call.args, "step": step}, grid=own, variants=variants)


def _ints(fact: Fact) -> tuple[int, ...]:
    shape = tuple(size for size in fact.shape if isinstance(size, int))
    assert len(shape) == fact.rank
    return shape
