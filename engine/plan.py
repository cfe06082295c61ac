"""Plans: a model step as a flat list of kernel calls, symbolic and free of any device.

A model file calls ops on a ``PlanBuilder``; each op appends ``Call``s. ``build`` freezes them
into a ``Plan`` whose activation tensors share memory slots by liveness:

    call      0    1    2    3
    x         w----r---------r        slot 0
    q              w----r             slot 1
    att                 w----r        slot 2
    y                        w...     slot 1 again, q is dead
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any, Literal

from engine.shaders import Shader

DType = Literal["f32", "u32", "i32", "f16"]
Role = Literal["activation", "weight", "kv", "state"]
ITEM_BYTES: dict[str, int] = {"f32": 4, "u32": 4, "i32": 4, "f16": 2}


@dataclass(frozen=True)
class Tensor:
    """A named array. ``shape`` is row-major; ``dtype`` f16 is stored as packed halves."""

    name: str
    shape: tuple[int, ...]
    dtype: DType = "f32"
    role: Role = "activation"

    @property
    def nbytes(self) -> int:
        """Bytes on the device, rounded up to whole u32 words."""
        return ceil(prod(self.shape) * ITEM_BYTES[self.dtype] / 4) * 4


@dataclass(frozen=True)
class Plane:
    """One GPU buffer of a weight matrix: quants, or scales."""

    suffix: str
    type: str
    nbytes: int


@dataclass(frozen=True)
class Weight(Tensor):
    """A weight matrix (N, K) or vector (K,), made of GGUF tensors stacked by rows.

    ``format`` is the one of ``weights.quants.FORMATS`` that it has on the GPU. ``rows`` are those
    that it has of each source, elements if it is a vector.
    """

    quant: str = "F32"
    format: str = "f32"
    sources: tuple[str, ...] = ()
    rows: tuple[range, ...] = ()
    planes: tuple[Plane, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(p.nbytes for p in self.planes)


@dataclass(frozen=True)
class Traits:
    """What a device is and can do; ops choose their kernels by it.

    ``subgroup`` is the number of lanes that may shuffle (0: none); ``barriers`` is false where
    workgroup barriers are ruinous (CPU adapters); ``activations`` q8 and q16 allow integer dot
    products on activations of 8 or 15 bits per block of 32; ``chunk`` is the most tokens of a
    prefill step; ``kv_value_bytes`` is what a value in the KV pools takes.
    """

    kind: Literal["webgpu", "cpu", "null"] = "null"
    name: str = "null"
    software: bool = False
    subgroup: int = 0
    barriers: bool = True
    activations: Literal["f32", "q16", "q8"] = "f32"
    chunk: int = 256
    max_binding_bytes: int = 1 << 27
    max_buffer_bytes: int = 1 << 28
    workgroup_bytes: int = 16384
    kv_value_bytes: int = 2

    @property
    def max_tensor_bytes(self) -> int:
        """The most bytes that a tensor other than a weight may take."""
        return min(self.max_binding_bytes, self.max_buffer_bytes)


@dataclass(frozen=True)
class Grid:
    """Workgroups of a dispatch; with ``tokens`` the y count is ceil(num_tokens / tokens)."""

    x: int
    y: int = 1
    z: int = 1
    tokens: int = 0

    @staticmethod
    def rows(count: int) -> Grid:
        """``count`` workgroups folded into x and y, as x is limited to 65535."""
        return Grid(count) if count <= 65535 else Grid(65535, ceil(count / 65535))


Reference = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Variant:
    """One way to run a kernel: constants that divide its work, and the grid they need."""

    consts: Mapping[str, int]
    grid: Grid


@dataclass(frozen=True)
class Call:
    """One kernel call: what the GPU dispatches, and the NumPy function that means the same.

    ``args`` maps argument names to tensors; the shader's slots are named after arguments, or
    ``<argument>_<plane>`` for the planes of a weight. ``writes`` are the arguments written.
    ``variants`` are the ways to run it that a device may choose from by measurement, by name; the
    first is what ``shader`` and ``grid`` say.

    For who compares kernel and reference: ``private`` are those of ``writes`` that each lays out in
    its own way, for the calls that read them; ``value`` is what u32 ones mean as f32, where other
    bits may mean the same.
    """

    op: str
    args: Mapping[str, Tensor]
    writes: tuple[str, ...]
    reference: Reference
    shader: Shader | None = None
    grid: Grid = Grid(1)
    variants: Mapping[str, Variant] = field(default_factory=dict)
    layer: int | None = None  # of the model; None outside of its layers
    private: tuple[str, ...] = ()
    value: Callable[[Mapping[str, Any]], Any] | None = None

    @property
    def label(self) -> str:
        """What this call is, for people: kernel, and shape and format of its weight."""
        name = self.shader.name if self.shader else self.op
        weight = self.args.get("w")
        if not isinstance(weight, Weight):
            return name
        return f"{name} {weight.shape[0]}x{weight.shape[1]} {weight.format}"

    @property
    def key(self) -> str:
        """Equal for calls that do the same work, and so have the same best variant."""
        assert self.shader is not None
        fixed = {k: v for k, v in self.shader.consts.items() if k not in self._varying}
        parts = (self.shader.lib, fixed, self.shader.overrides, self.shader.slots)
        shapes = [t.shape for t in self.args.values()]
        digest = hashlib.sha256(repr((*parts, shapes)).encode()).hexdigest()
        return f"{self.label} {digest[:12]}"

    @property
    def _varying(self) -> set[str]:
        return {name for variant in self.variants.values() for name in variant.consts}

    def chosen(self, choices: Mapping[str, str]) -> Call:
        """The same call, run as the variant that ``choices`` has for its key, if any."""
        name = choices.get(self.key, "") if self.variants else ""
        return self.varied(name) if name in self.variants else self

    def varied(self, name: str) -> Call:
        """The same call, run as the variant called ``name``."""
        assert self.shader is not None
        variant = self.variants[name]
        consts = {**self.shader.consts, **variant.consts}
        return replace(self, shader=replace(self.shader, consts=consts), grid=variant.grid)

    def buffers(self) -> list[str]:
        """Buffer names in the order of the shader's slots."""
        assert self.shader is not None
        return [self._buffer(slot.name) for slot in self.shader.slots]

    def _buffer(self, slot: str) -> str:
        if slot in self.args:
            tensor = self.args[slot]
            return (
                plane_name(tensor, tensor.planes[0]) if isinstance(tensor, Weight) else tensor.name
            )
        arg, _, suffix = slot.rpartition("_")
        return f"{self.args[arg].name}/{suffix}"


def plane_name(weight: Weight, plane: Plane) -> str:
    """The buffer name of one plane of a weight."""
    return f"{weight.name}/{plane.suffix}"


@dataclass(frozen=True)
class Plan:
    """A frozen step: calls in order, the memory slot of every activation, and the most tokens
    that one replay handles."""

    name: str
    calls: tuple[Call, ...]
    slot_of: Mapping[str, int]
    slot_bytes: tuple[int, ...]
    tokens: int = 1

    def varied(self, choices: Mapping[str, str]) -> Plan:
        """The same plan with the variants that ``choices`` names by ``Call.key``."""
        return replace(self, calls=tuple(call.chosen(choices) for call in self.calls))

    def elements(self, tensor: Tensor, tokens: int) -> int:
        """How many elements of a tensor, from the first on, mean something after a step of
        ``tokens`` tokens: activations have a row for each of the most tokens."""
        if tensor.role == "activation" and self.tokens > 1 and tensor.shape[0] == self.tokens:
            return tokens * prod(tensor.shape[1:])
        return prod(tensor.shape)

    def results(self) -> list[tuple[str, ...]]:
        """For each call, the arguments that are whole after it, and that anybody understands: the
        pieces of a divided weight write one tensor together."""
        last = {(c.op, c.args[arg].name): i for i, c in enumerate(self.calls) for arg in c.writes}
        return [
            tuple(a for a in c.writes if last[c.op, c.args[a].name] == i and a not in c.private)
            for i, c in enumerate(self.calls)
        ]

    def tensors(self, role: Role) -> dict[str, Tensor]:
        """All tensors of one role, by name, in order of first use."""
        found: dict[str, Tensor] = {}
        for call in self.calls:
            found |= {t.name: t for t in call.args.values() if t.role == role}
        return found


class PlanBuilder:
    """Collects calls; ``tokens`` is the most tokens that one replay of the plan handles."""

    def __init__(self, name: str, traits: Traits, tokens: int = 1) -> None:
        self.name = name
        self.traits = traits
        self.tokens = tokens
        self.calls: list[Call] = []
        self.layer: int | None = None  # that calls belong to from here on
        self._count = 0

    def activation(self, label: str, *shape: int, dtype: DType = "f32") -> Tensor:
        """A new activation tensor; its memory is decided when the plan is built."""
        self._count += 1
        return Tensor(f"{label}.{self._count}", shape, dtype)

    def call(self, call: Call) -> None:
        """Append a kernel call."""
        self.calls.append(replace(call, layer=self.layer))

    def build(self) -> Plan:
        """Freeze the plan and assign activation slots by liveness."""
        slot_of, slot_bytes = assign_slots(self.calls)
        return Plan(self.name, tuple(self.calls), slot_of, tuple(slot_bytes), self.tokens)


def assign_slots(calls: Sequence[Call]) -> tuple[dict[str, int], list[int]]:
    """Slots for the activations of ``calls``; two live at the same call never share one."""
    last_use: dict[str, int] = {}
    for i, call in enumerate(calls):
        last_use |= {t.name: i for t in call.args.values() if t.role == "activation"}
    slot_of: dict[str, int] = {}
    slot_bytes: list[int] = []
    free: list[int] = []
    for i, call in enumerate(calls):
        live = {t.name: t for t in call.args.values() if t.role == "activation"}
        for tensor in live.values():
            if tensor.name not in slot_of:
                slot_of[tensor.name] = _take_slot(free, slot_bytes, tensor.nbytes)
        free += [slot_of[name] for name in live if last_use[name] == i]
    return slot_of, slot_bytes


def _take_slot(free: list[int], slot_bytes: list[int], nbytes: int) -> int:
    """The free slot that wastes or grows least, or a new one."""
    if not free:
        slot_bytes.append(nbytes)
        return len(slot_bytes) - 1
    best = min(free, key=lambda s: (abs(slot_bytes[s] - nbytes), s))
    free.remove(best)
    slot_bytes[best] = max(slot_bytes[best], nbytes)
    return best
