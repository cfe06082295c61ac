"""Running a recorded graph on a device."""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.base import Buffer, Device, persistent_tensors
from engine.errors import OctavoError
from engine.graph.lowering import Recording
from engine.plan import Tensor, Weight


def state_of(recording: Recording) -> list[Tensor]:
    """What a recording needs beside weights and activations."""
    written = [tensor for tensor, _ in recording.written]
    used = {
        name: tensor
        for name, tensor in persistent_tensors([recording.plan]).items()
        if not isinstance(tensor, Weight)
    }
    # Calls may see a tensor in another shape: what it really is comes last.
    whole = [*recording.inputs.values(), *recording.outputs.values(), *written]
    return list({**used, **{tensor.name: tensor for tensor in whole}}.values())


def write_known(device: Device, recording: Recording) -> None:
    """Put what is known before into its tensors: once, after they are allocated."""
    for tensor, data in recording.written:
        device.write(tensor, data)


async def compute(
    device: Device, recording: Recording, inputs: Mapping[str, Buffer]
) -> dict[str, bytes]:
    """The outputs, f32 or i32 row-major, for inputs of the same kind."""
    for name, tensor in recording.inputs.items():
        data = inputs.get(name, b"")
        if len(data) != tensor.nbytes:
            reason = f"The input {name!r} has {len(data)} bytes, not {tensor.nbytes}."
            raise OctavoError("request.invalid", reason)
        device.write(tensor, data)
    read = await device.compute(recording.plan.name, list(recording.outputs.values()))
    found = dict(zip(recording.outputs, read, strict=True))
    return found | {name: known.to_bytes() for name, known in recording.known.items()}
