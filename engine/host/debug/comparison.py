"""Runs steps of plans call by call on a device, and the NumPy reference of each call beside it.

What a call wrote is compared twice: with the reference on the inputs that the device itself had
(then only this call can be wrong), and with a run of references alone (then errors add up).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from engine.backends.base import Device
from engine.backends.summary import Summary, summarize
from engine.checks import TOLERANCE
from engine.ops.kv_values import LARGEST, read_blocks
from engine.plan import Call, Plan, Tensor, Traits, Weight

HALF_STEP = 1e-3  # what rounding to halves may do to the largest value
LARGEST_QUANT = {1: 127, 2: 127 * 128}  # by the bytes of an integer activation
UNWRITTEN = 0x7FC0DEAD  # the bits of what no reference has written yet, as f32 not a number


class Weights(Protocol):
    """Where references have their weights from."""

    async def get(self, weight: Weight) -> Any:
        """A weight as f32."""
        ...


@dataclass(frozen=True)
class Step:
    """A plan to run on ``tokens`` tokens, after what has to be written."""

    plan: Plan
    tokens: int
    writes: tuple[tuple[Tensor, bytes], ...] = ()


@dataclass(frozen=True)
class Element:
    """Where two tensors are farthest apart; a difference is infinite if only one is finite."""

    index: tuple[int, ...]
    got: float
    wanted: float
    difference: float


@dataclass(frozen=True)
class Seen:
    """A tensor that a call wrote. Without a comparison, ``own`` and ``whole`` are None: its worst
    element beside the reference on the device's inputs, and beside references alone. ``allowed``
    is the largest difference of the former; ``bad`` is the index of the first value that is not
    finite."""

    step: Step
    index: int  # of the call
    call: Call
    arg: str
    tensor: Tensor
    shape: tuple[int, ...]  # of what means something
    summary: Summary
    bad: tuple[int, ...] | None
    own: Element | None = None
    whole: Element | None = None
    allowed: float = 0.0
    largest: float = 0.0  # wanted value

    @property
    def differs(self) -> bool:
        """More than it may."""
        return self.own is not None and not self.own.difference <= self.allowed


@dataclass
class Comparison:
    """``blocks`` are the KV blocks in use, from the first on, of heads of ``head_dim`` elements.
    With ``weights`` there are references, of one ``layer`` or of all; for one layer they are not
    run alone."""

    device: Device
    blocks: int
    weights: Weights | None = None
    layer: int | None = None
    looser: float = 1.0  # factor of all tolerances
    head_dim: int = 0
    _held: dict[str, Any] = field(default_factory=dict)  # what the device has, by tensor
    _alone: dict[str, Any] = field(default_factory=dict)  # what references alone have

    async def run(self, steps: Iterable[Step]) -> AsyncIterator[Seen]:
        """What every call wrote, in order."""
        for step in steps:
            for tensor, data in step.writes:
                self.device.write(tensor, data)
                self._forget(self._held, [tensor])
                self._forget(self._alone, [tensor])
            ends = _last_uses(step.plan)
            for index, call in enumerate(step.plan.calls):
                for seen in await self._call(step, index):
                    yield seen
                over = [t for t in call.args.values() if ends.get(t.name) == index]
                self._forget(self._held, over)
                self._forget(self._alone, over)

    def _forget(self, held: dict[str, Any], tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            held.pop(tensor.name, None)

    async def _call(self, step: Step, index: int) -> list[Seen]:
        plan, call = step.plan, step.plan.calls[index]
        selected = self.layer in (None, call.layer)
        compares = selected and self.weights is not None
        wanted = alone = None
        if compares:
            wanted = await self._referenced(call, self._held)
            if self.layer is None:
                alone = await self._referenced(call, self._alone)
        seen = [arg for arg in call.writes if arg not in call.private]
        counts = {arg: self._elements(step, call.args[arg]) for arg in seen}
        read = await self.device.trace(plan, index, step.tokens, counts)
        got = {arg: self._array(call.args[arg], counts[arg], read[arg]) for arg in seen}
        self._take(call, got, wanted)
        if call.args.get("sampled") and alone is not None:
            # From here on references go on with the device's choice.
            self._forget(self._alone, [t for t in call.args.values() if t.role == "state"])
        if not selected:
            return []
        if wanted is None:
            results = plan.results()[index]
            got = {arg: values for arg, values in got.items() if arg in results}
        return list(self._compared(step, index, got, wanted, alone))

    async def _referenced(self, call: Call, held: dict[str, Any]) -> Mapping[str, Any]:
        """All arguments after the reference has run on what is ``held``."""
        import numpy as np

        arrays = {arg: await self._now(tensor, held) for arg, tensor in call.args.items()}
        with np.errstate(all="ignore"):  # a wrong device's numbers may be any
            call.reference(arrays)
        return arrays

    async def _now(self, tensor: Tensor, held: dict[str, Any]) -> Any:
        """A tensor as it is before a call; what was not written by one yet is the device's."""
        import numpy as np

        if isinstance(tensor, Weight):
            assert self.weights
            return await self.weights.get(tensor)
        if tensor.name not in held:
            if tensor.role == "activation":
                bits = np.full(_shape_of(tensor), UNWRITTEN, np.uint32)
                held[tensor.name] = bits.view(_dtype(tensor, self.device.traits))
            else:
                shape = self._shape(tensor)
                count = prod(shape)
                raw = await self.device.read(tensor, 0, count * self._item(tensor))
                held[tensor.name] = self._array(tensor, count, raw).reshape(shape)
        array = held[tensor.name]
        shape = _shape_of(tensor)
        # Calls of graphs may see a tensor in another shape.
        return array.reshape(shape) if array.size == prod(shape) else array

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        return (self.blocks, *tensor.shape[1:]) if tensor.role == "kv" else _shape_of(tensor)

    def _elements(self, step: Step, tensor: Tensor) -> int:
        if tensor.role == "kv":
            return prod(self._shape(tensor))
        return step.plan.elements(tensor, step.tokens)

    def _item(self, tensor: Tensor) -> int:
        return int(_dtype(tensor, self.device.traits).itemsize)

    def _array(self, tensor: Tensor, count: int, raw: bytes) -> Any:
        """The first elements of a tensor, in whole rows."""
        import numpy as np

        values = np.frombuffer(raw, _dtype(tensor, self.device.traits))[:count]
        return values.reshape(-1, *tensor.shape[1:]).copy()

    def _take(self, call: Call, got: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> None:
        """Later calls have as inputs what the device computed; what only the device understands
        they have from the reference."""
        for arg in call.writes:
            name = call.args[arg].name
            if wanted is None:
                self._held.pop(name, None)
                if arg in got:
                    self._held[name] = _whole(call.args[arg], got[arg])
            elif arg in got:
                values = wanted[arg].copy()
                values[: len(got[arg])] = _unless_unwritten(values[: len(got[arg])], got[arg])
                self._held[name] = values
            else:
                self._held[name] = wanted[arg]

    def _compared(
        self,
        step: Step,
        index: int,
        got: Mapping[str, Any],
        wanted: Mapping[str, Any] | None,
        alone: Mapping[str, Any] | None,
    ) -> Iterable[Seen]:
        call = step.plan.calls[index]
        for arg, values in got.items():
            tensor, rows = call.args[arg], len(values)
            want = wanted[arg][:rows] if wanted else None
            whole = alone[arg][:rows] if alone else None
            if tensor.dtype == "u32" and (tensor.role == "kv" or call.value):
                values, want, whole = (
                    self._meant(call, arg, {**of, **{a: of[a][:rows] for a in got}}) if of else None
                    for of in (got, wanted, alone)
                )
            told = values if want is None else values[~_is_unwritten(want)]
            largest = _largest(want) if want is not None else 0.0
            yield Seen(
                step,
                index,
                call,
                arg,
                tensor,
                values.shape,
                summarize(told),
                _first_bad(values, want),
                None if want is None else farthest(values, want),
                None if whole is None else farthest(values, whole),
                self.looser * tolerance(call, tensor, self.device.traits) * max(largest, 1e-6),
                largest,
            )

    def _meant(self, call: Call, arg: str, of: Mapping[str, Any]) -> Any:
        """Words that stand for other numbers, as f32."""
        if call.args[arg].role == "kv":
            return read_blocks(of[arg], slice(None), self.head_dim)
        assert call.value
        return call.value(of)


def _shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A single number is a row."""
    return tensor.shape or (1,)


def tolerance(call: Call, tensor: Tensor, traits: Traits) -> float:
    """How far a call may be from its reference on the same inputs, as a part of the largest value.
    Whole numbers may not."""
    if call.value and call.shader:
        return 2 / LARGEST_QUANT[call.shader.consts["TERMS"]]  # a step, and the scale's rounding
    if tensor.role == "kv":
        # A byte may be rounded to its neighbour, and its scale is a half.
        return HALF_STEP if tensor.dtype == "f16" else HALF_STEP + 1 / LARGEST
    if tensor.dtype != "f32":
        return 0.0
    # Kernels of the CPU round their inputs by themselves, those of a GPU have them rounded.
    return TOLERANCE[traits.activations if traits.kind == "cpu" else "f32"]


def farthest(got: Any, wanted: Any) -> Element | None:
    """The element where two arrays differ most, of those that ``wanted`` has; None if it has
    none."""
    import numpy as np

    has = ~_is_unwritten(wanted)
    if not has.any():
        return None
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    difference = np.where(same, 0.0, np.where(np.isfinite(difference), difference, np.inf))
    difference = np.where(has, difference, -1.0)
    at = tuple(int(i) for i in np.unravel_index(difference.argmax(), difference.shape))
    return Element(at, float(a[at]), float(b[at]), float(difference[at]))


def _last_uses(plan: Plan) -> dict[str, int]:
    """The last call that has each activation."""
    return {
        tensor.name: index
        for index, call in enumerate(plan.calls)
        for tensor in call.args.values()
        if tensor.role == "activation"
    }


def _first_bad(values: Any, wanted: Any) -> tuple[int, ...] | None:
    import numpy as np

    bad = ~np.isfinite(values.astype(np.float64))
    if wanted is not None:
        bad &= ~_is_unwritten(wanted)
    found = np.argwhere(bad)
    return tuple(int(i) for i in found[0]) if len(found) else None


def _largest(wanted: Any) -> float:
    import numpy as np

    values = np.abs(wanted.astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _dtype(tensor: Tensor, traits: Traits) -> Any:
    import numpy as np

    if tensor.dtype == "f16":
        return np.dtype(np.float16 if traits.kv_value_bytes == 2 else np.float32)
    return np.dtype({"u32": np.uint32, "i32": np.int32}.get(tensor.dtype, np.float32))


def _is_unwritten(array: Any) -> Any:
    import numpy as np

    if array.dtype.itemsize == np.dtype(np.uint32).itemsize:
        return array.view(np.uint32) == UNWRITTEN
    return np.zeros(array.shape, bool)


def _unless_unwritten(wanted: Any, got: Any) -> Any:
    import numpy as np

    return np.where(_is_unwritten(wanted), wanted, got)


def _whole(tensor: Tensor, got: Any) -> Any:
    """Rows that mean something, and the rest of a tensor."""
    import numpy as np

    if len(got) == tensor.shape[0] or tensor.role == "kv":
        return got
    rest = np.full((tensor.shape[0] - len(got), *tensor.shape[1:]), UNWRITTEN, np.uint32)
    return np.concatenate([got, rest.view(got.dtype)])
