"""Plans as the JSON that worker/gpu.mjs takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.backends.base import slot_sizes
from engine.plan import ITEM_BYTES, Call, Plan, Tensor, Weight, plane_name
from engine.shaders import Shader


def shader_to_wire(shader: Shader, code: str) -> dict[str, Any]:
    """A pipeline; ``code`` names (or is) its module."""
    return {
        "code": code,
        "layout": [slot.access for slot in shader.slots],
        "constants": dict(shader.overrides),
    }


def plans_to_wire(plans: Sequence[Plan]) -> dict[str, Any]:
    """Modules, pipelines and dispatches of plans, each module and pipeline once."""
    modules: dict[str, str] = {}
    pipelines: dict[str, int] = {}
    wire_pipelines: list[dict[str, Any]] = []

    def pipeline(shader: Shader) -> int:
        text = shader.code()
        name = modules.setdefault(text, f"{shader.name}.{len(modules)}")
        wire = shader_to_wire(shader, name)
        key = repr(wire)
        if key not in pipelines:
            pipelines[key] = len(wire_pipelines)
            wire_pipelines.append(wire)
        return pipelines[key]

    def dispatch(plan: Plan, call: Call) -> dict[str, Any]:
        assert call.shader is not None, f"{call.op} has no kernel"
        return {
            "label": call.label,
            "pipeline": pipeline(call.shader),
            "buffers": [_place(plan, name) for name in call.buffers()],
            "grid": [call.grid.x, call.grid.y, call.grid.z],
            "tokens": call.grid.tokens,
        }

    dispatches = {plan.name: [dispatch(plan, call) for call in plan.calls] for plan in plans}
    return {
        "modules": {name: text for text, name in modules.items()},
        "pipelines": wire_pipelines,
        "plans": dispatches,
    }


def reads_to_wire(plan: Plan, index: int, wanted: Mapping[str, int]) -> list[dict[str, Any]]:
    """The beginnings of what a call writes: as many elements of each argument as ``wanted``."""
    args = plan.calls[index].args
    return [
        read_to_wire(_place(plan, args[a].name), count * ITEM_BYTES[args[a].dtype])
        for a, count in wanted.items()
    ]


def read_to_wire(buffer: str, nbytes: int) -> dict[str, Any]:
    """The first bytes of a buffer."""
    return {"buffer": buffer, "bytes": nbytes}


def _place(plan: Plan, buffer: str) -> str:
    """Activations live in shared slots; everything else under its own name."""
    return f"slot.{plan.slot_of[buffer]}" if buffer in plan.slot_of else buffer


def slots_to_wire(plans: Iterable[Plan]) -> list[dict[str, Any]]:
    """The buffers of activation slots."""
    return [_buffer(f"slot.{i}", n, "activations") for i, n in enumerate(slot_sizes(plans))]


def tensors_to_wire(tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
    """The buffers of weights (one a plane), KV pools and state."""
    wire = []
    for tensor in tensors:
        if isinstance(tensor, Weight):
            wire += [_buffer(plane_name(tensor, p), p.nbytes, "weights") for p in tensor.planes]
        else:
            wire.append(_buffer(tensor.name, tensor.nbytes, tensor.role))
    return wire


def _buffer(name: str, nbytes: int, label: str) -> dict[str, Any]:
    return {"name": name, "bytes": nbytes, "label": label}
