"""The WebGPU device: drives worker/gpu.mjs. The only file that imports from Pyodide."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from engine.backends.base import Buffer, Progress
from engine.backends.summary import Summary
from engine.backends.wire import (
    plans_to_wire,
    read_to_wire,
    reads_to_wire,
    shader_to_wire,
    slots_to_wire,
    tensors_to_wire,
)
from engine.config import Activations
from engine.errors import OctavoError
from engine.plan import Call, Plan, Tensor, Traits, Weight
from engine.weights.loading import CARRY, ShardJobs, repack_kernels

JOBS_BYTES = 1 << 18  # that upload.mjs takes for the jobs of a shard
# Fewer lanes than this gain nothing over workgroup memory.
MIN_SUBGROUP = 8


def traits_of(description: Mapping[str, Any], activations: Activations) -> Traits:
    """The traits of an adapter that gpu.mjs described. A software adapter gets kernels without
    barriers. Unless told otherwise, products of many tokens take 15-bit activations, on software
    adapters all products do: faster than f32, and no less exact in the end (tests/bench/LOG.md).
    """
    software = bool(description["software"])
    subgroup = int(description["subgroup"])
    if activations == "auto":
        activations = "q16"
    return Traits(
        kind="webgpu",
        name=str(description["name"]),
        software=software,
        subgroup=subgroup if subgroup >= MIN_SUBGROUP and not software else 0,
        barriers=not software,
        activations=activations,
        chunk=16 if software else 512,
        max_binding_bytes=int(description["max_binding_bytes"]),
        max_buffer_bytes=int(description["max_buffer_bytes"]),
        workgroup_bytes=int(description["workgroup_bytes"]),
    )


class WebGpuDevice:
    """Plans replayed by the player; ``gpu`` is an instance of its ``Gpu`` class."""

    def __init__(self, gpu: Any, activations: Activations) -> None:
        self._gpu = gpu
        self.traits = traits_of(json.loads(gpu.describe()), activations)
        kernels = {name: shader_to_wire(s, s.code()) for name, s in repack_kernels().items()}
        gpu.useRepacks(json.dumps(kernels))

    def needs(
        self, tensors: Iterable[Tensor], plans: Iterable[Plan], shards: Sequence[int] = ()
    ) -> int:
        """Bytes of all buffers, those that upload.mjs takes for shards included; OctavoError
        gpu.limits if one of a tensor, or of a shard, is larger than the adapter allows."""
        buffers = [*self._allowed(tensors), *slots_to_wire(plans)]
        sizes: list[int] = [max(16, ceil(buffer["bytes"] / 16) * 16) for buffer in buffers]
        shard = ceil(max(shards, default=0) / 4) * 4
        if CARRY + shard > self.traits.max_tensor_bytes:
            raise OctavoError(
                "gpu.limits",
                f"A shard has {shard:,} bytes; this GPU allows {self.traits.max_tensor_bytes:,}.",
                "Cut the model into smaller shards, or use device=cpu.",
            )
        return sum(sizes) + min(len(shards), 2) * (CARRY + 2 * shard + JOBS_BYTES)

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Create buffers; OctavoError gpu.limits if one is larger than the adapter allows."""
        buffers = self._allowed(tensors)
        await self._gpu.allocate(json.dumps(buffers))

    def _allowed(self, tensors: Iterable[Tensor]) -> list[dict[str, Any]]:
        buffers = tensors_to_wire(tensors)
        limit = self.traits.max_tensor_bytes
        for buffer in buffers:
            if buffer["bytes"] > limit:
                raise OctavoError(
                    "gpu.limits",
                    f"{buffer['name']} takes {buffer['bytes']:,} bytes; this GPU allows {limit:,}.",
                    "Choose a smaller model, a shorter context, or device=cpu.",
                )
        return buffers

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        """Have the player make larger buffers and copy into them what there is."""
        return bool(await self._gpu.grow(json.dumps(tensors_to_wire(tensors))))

    def begin_upload(self, shards: Sequence[int]) -> None:
        """Have the player make staging buffers."""
        self._gpu.beginUpload(max(shards), len(shards))

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Hand a shard, a JavaScript Uint8Array, to the GPU; it never enters Python's memory.
        Only the tiny model of the self-test comes as bytes."""
        if isinstance(shard, bytes):
            from pyodide.ffi import to_js

            shard = to_js(shard)
        wire = json.dumps([job.to_wire() for job in jobs.jobs])
        await self._gpu.upload(shard, int(jobs.carry), wire)

    def finish_upload(self) -> None:
        """Free the staging buffers."""
        self._gpu.finishUpload()

    def prepare(self, calls: Sequence[Call]) -> None:
        """Begin to compile pipelines."""
        self._gpu.prepare(json.dumps(plans_to_wire([Plan("", tuple(calls), {}, ())])))

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Compile all pipelines."""
        wire = json.dumps(plans_to_wire(plans))  # now, for later other work would wait for it
        await self._gpu.allocate(json.dumps(slots_to_wire(plans)))
        await self._gpu.compile(wire, progress)

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        """Queue a write."""
        from pyodide.ffi import to_js

        self._gpu.write(tensor.name, offset, to_js(data))

    def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> Awaitable[list[int]]:
        """Replay plans. They are submitted at once; only the ids are waited for."""
        promise = self._gpu.run(",".join(plans), tokens, repeat, first, count)
        ids: Awaitable[list[int]] = promise.then(_ids)
        return ids

    async def compute(self, plan: str, outputs: Sequence[Tensor]) -> list[bytes]:
        """Replay a plan, and read buffers back."""
        reads = json.dumps([read_to_wire(tensor.name, tensor.nbytes) for tensor in outputs])
        return [data.to_bytes() for data in await self._gpu.compute(plan, 1, reads)]

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Read a buffer back; of a weight, its first plane."""
        name = (
            f"{tensor.name}/{tensor.planes[0].suffix}"
            if isinstance(tensor, Weight)
            else tensor.name
        )
        size = tensor.nbytes - offset if nbytes is None else nbytes
        data: bytes = (await self._gpu.read(name, offset, size)).to_bytes()
        return data

    async def profile(self, plan: str, tokens: int) -> list[tuple[str, int, float]]:
        """GPU time by kernel and shape."""
        return [tuple(row) for row in json.loads(await self._gpu.profile(plan, tokens))]

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """Seconds of the GPU, all replays in one submit."""
        return float(await self._gpu.time(plan, tokens, repeat)) / 1e3

    async def trace(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Replay one dispatch, and read what it wrote."""
        reads = json.dumps(reads_to_wire(plan, index, wanted))
        found = await self._gpu.trace(plan.name, index, tokens, reads)
        return {arg: data.to_bytes() for arg, data in zip(wanted, found, strict=True)}

    async def survey(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, Summary]:
        """Replay one dispatch, and have JavaScript summarize what it wrote."""
        reads = json.dumps(reads_to_wire(plan, index, wanted))
        found = json.loads(await self._gpu.survey(plan.name, index, tokens, reads))
        return {arg: Summary(*numbers) for arg, numbers in zip(wanted, found, strict=True)}

    def encode_ms(self) -> float:
        """JavaScript's share of the host's time."""
        return float(self._gpu.encodeMs)

    def memory(self) -> Mapping[str, int]:
        """GPU bytes by label."""
        held: dict[str, int] = json.loads(self._gpu.memory())
        return held

    def clear(self) -> None:
        """Destroy all buffers."""
        self._gpu.clear()

    def close(self) -> None:
        """Destroy all buffers; the GPU, with its compiled kernels, is there for the next model."""
        self._gpu.release()


def _ids(sampled: Any) -> list[int]:
    return list(sampled.to_py())
