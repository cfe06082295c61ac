"""The CPU device: runs every call's NumPy reference. It gives the event loop a turn often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from engine.backends.base import Buffer, Progress
from engine.ops.state import RING
from engine.plan import Plan, Tensor, Traits
from engine.weights.loading import CARRY, ShardJobs
from engine.weights.quants import dequantize

TURN_SECONDS = 0.04


class CpuDevice:
    """Tensors are NumPy arrays; weights are dequantized to f32, the KV pools are f32."""

    def __init__(self, chunk: int = 16) -> None:
        self.traits = Traits(kind="cpu", name="CPU (NumPy)", chunk=chunk)
        self._arrays: dict[str, Any] = {}
        self._labels: dict[str, int] = {}
        self._plans: dict[str, list[tuple[str, Any, dict[str, Any]]]] = {}
        self._tail = b""
        self._turn = 0.0
        self._lock = asyncio.Lock()

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Create zeroed arrays."""
        import numpy as np

        for tensor in tensors:
            dtype = np.uint32 if tensor.dtype == "u32" else np.float32
            self._arrays[tensor.name] = np.zeros(tensor.shape, dtype)
            size = self._arrays[tensor.name].nbytes
            self._labels[tensor.role] = self._labels.get(tensor.role, 0) + size

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Dequantize the blocks of a shard, given as bytes or as a JavaScript Uint8Array."""
        data: bytes = shard if isinstance(shard, bytes) else shard.to_bytes()  # type: ignore[attr-defined]
        raw = memoryview(self._tail.rjust(CARRY, b"\0") + data)
        for job in jobs.jobs:
            values = dequantize(job.quant.name, raw[job.source : job.source + job.nbytes])
            start = job.first * job.quant.block_size
            self._arrays[job.weight.name].reshape(-1)[start : start + len(values)] = values
            await self._breathe()
        self._tail = bytes(raw[-CARRY:]) if jobs.carry else b""

    def finish_upload(self) -> None:
        """Nothing is left over: the last shard carries nothing."""

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Bind references to arrays; activations of a slot share memory, as on the GPU."""
        import numpy as np

        sizes: dict[int, int] = {}
        for plan in plans:
            for slot, size in enumerate(plan.slot_bytes):
                sizes[slot] = max(sizes.get(slot, 0), size)
        slots = {slot: np.zeros(size, np.uint8) for slot, size in sizes.items()}
        self._labels["activations"] = sum(sizes.values())

        def array(plan: Plan, tensor: Tensor) -> Any:
            if tensor.role != "activation":
                return self._arrays[tensor.name]
            dtype = np.uint32 if tensor.dtype == "u32" else np.float32
            memory = slots[plan.slot_of[tensor.name]][: 4 * prod(tensor.shape)]
            return memory.view(dtype).reshape(tensor.shape)

        for plan in plans:
            self._plans[plan.name] = [
                (call.label, call.reference, {arg: array(plan, t) for arg, t in call.args.items()})
                for call in plan.calls
            ]
        progress(1, 1)

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        """Copy bytes into an array."""
        import numpy as np

        flat = self._arrays[tensor.name].reshape(-1).view(np.uint8)
        flat[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        """Run the calls one by one."""
        async with self._lock:
            for _ in range(repeat):
                for name in plans:
                    for _, reference, args in self._plans[name]:
                        reference(args)
                        await self._breathe()
        if not count:
            return []
        ring = self._arrays["sampled"]
        return [int(ring[(first + i) % RING]) for i in range(count)]

    async def _breathe(self) -> None:
        """Let messages in, at least every TURN_SECONDS between calls."""
        if time.monotonic() - self._turn > TURN_SECONDS:
            await asyncio.sleep(0)
            self._turn = time.monotonic()

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        """The array's bytes."""
        data: bytes = self._arrays[tensor.name].tobytes()
        return data[offset:][:nbytes]

    async def profile(self, plan: str, tokens: int) -> list[tuple[str, int, float]]:
        """Time of each kind of call, as one run took it."""
        rows: dict[str, tuple[str, int, float]] = {}
        for label, reference, args in self._plans[plan]:
            started = time.perf_counter()
            reference(args)
            ms = (time.perf_counter() - started) * 1e3
            _, count, total = rows.get(label, (label, 0, 0.0))
            rows[label] = (label, count + 1, total + ms)
        return list(rows.values())

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """Seconds by the clock."""
        started = time.perf_counter()
        await self.run([plan], tokens, repeat, 0, 0)
        return time.perf_counter() - started

    def encode_ms(self) -> float:
        """Nothing is recorded here."""
        return 0.0

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by label."""
        return {"weights" if k == "weight" else k: v for k, v in self._labels.items()}

    def close(self) -> None:
        """Drop all arrays."""
        self._arrays.clear()
        self._plans.clear()
        self._labels.clear()
