"""The CPU device: runs every call's NumPy reference, or a SIMD kernel that does the same. It gives
the event loop a turn often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeGuard

from engine.backends.base import Buffer, Progress, slot_sizes
from engine.backends.native import Native, Run
from engine.backends.summary import Summary, summarize
from engine.ops.state import RING
from engine.plan import Call, Plan, Tensor, Traits, Weight
from engine.weights.dequantize import dequantize
from engine.weights.loading import CARRY, ShardJobs
from engine.weights.quants import block_bytes

TURN_SECONDS = 0.04
UNLIMITED = 1 << 40  # bytes
_Slots = Mapping[int, Any]  # memory of activations, which plans compiled together share


class CpuDevice:
    """Tensors are NumPy arrays; the KV pools are f32. Weights are dequantized to f32, unless
    ``native`` has kernels that take them as they are; these round activations to 16 bits."""

    def __init__(self, chunk: int = 16, native: Native | None = None) -> None:
        self.traits = Traits(
            kind="cpu",
            name=f"CPU ({native.name if native else 'NumPy'})",
            activations="q16" if native else "f32",
            chunk=chunk,
            max_binding_bytes=UNLIMITED,
            max_buffer_bytes=UNLIMITED,
            kv_value_bytes=4,
        )
        self._native = native
        self._arrays: dict[str, Any] = {}
        self._labels: dict[str, int] = {}
        self._compiled: dict[str, tuple[Plan, _Slots]] = {}
        self._plans: dict[str, list[tuple[str, Sequence[Run]]]] = {}
        self._tail = b""
        self._turn = 0.0
        self._lock = asyncio.Lock()

    def needs(
        self, tensors: Iterable[Tensor], plans: Iterable[Plan], shards: Sequence[int] = ()
    ) -> int:
        """Bytes of arrays and slots; an upload takes no more."""
        return sum(map(self._nbytes, tensors)) + sum(slot_sizes(plans))

    def _nbytes(self, tensor: Tensor) -> int:
        if self._keeps_blocks(tensor):
            return block_bytes(tensor.quant, tensor.shape)
        return 4 * prod(tensor.shape)

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Create zeroed arrays."""
        import numpy as np

        for tensor in tensors:
            if self._keeps_blocks(tensor):
                array = np.zeros(block_bytes(tensor.quant, tensor.shape), np.uint8)
            else:
                array = np.zeros(tensor.shape, _item(tensor))
            self._arrays[tensor.name] = array
            self._labels[tensor.role] = self._labels.get(tensor.role, 0) + array.nbytes

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        """Copy into larger arrays, and bind all calls anew: kernels hold addresses. A run under way
        ends first."""
        import numpy as np

        async with self._lock:
            olds = {t.name: self._arrays[t.name] for t in tensors}
            try:
                news = {t.name: np.zeros(t.shape, olds[t.name].dtype) for t in tensors}
            except MemoryError:
                return False
            for tensor in tensors:
                old, new = olds[tensor.name], news[tensor.name]
                new[: len(old)] = old
                self._labels[tensor.role] += new.nbytes - old.nbytes
            self._arrays |= news
            for plan, slots in self._compiled.values():
                self._bind_plan(plan, slots)
        return True

    def _keeps_blocks(self, tensor: Tensor) -> TypeGuard[Weight]:
        """Whether a tensor is a weight that is kept as the file's blocks, and not as f32."""
        native = self._native
        return native is not None and isinstance(tensor, Weight) and native.takes_blocks(tensor)

    def begin_upload(self, shards: Sequence[int]) -> None:
        """Nothing is needed for it."""

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Dequantize or copy the blocks of a shard: bytes, or a JavaScript Uint8Array."""
        import numpy as np

        data: bytes = shard if isinstance(shard, bytes) else shard.to_bytes()  # type: ignore[attr-defined]
        raw = memoryview(self._tail.rjust(CARRY, b"\0") + data)
        for job in jobs.jobs:
            values: Any = np.frombuffer(raw[job.source : job.source + job.nbytes], np.uint8)
            if not self._keeps_blocks(job.weight):
                values = dequantize(job.quant.name, values)
            start = job.first * (len(values) // job.count)  # values or bytes a block
            array = self._arrays[job.weight.name].reshape(-1)
            array[start : start + len(values)] = values.view(array.dtype)
            await self._breathe()
        self._tail = bytes(raw[-CARRY:]) if jobs.carry else b""

    def finish_upload(self) -> None:
        """Nothing is left over: the last shard carries nothing."""

    def prepare(self, calls: Sequence[Call]) -> None:
        """Nothing is compiled here."""

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Bind kernels and references to arrays; activations of a slot share memory, as on the
        GPU."""
        import numpy as np

        sizes = slot_sizes(plans)
        slots = {slot: np.zeros(size, np.uint8) for slot, size in enumerate(sizes)}
        self._labels["activations"] = sum(sizes)
        for plan in plans:
            self._compiled[plan.name] = plan, slots
            self._bind_plan(plan, slots)
        progress(1, 1)

    def _bind_plan(self, plan: Plan, slots: _Slots) -> None:
        """Bind the calls of a plan to the arrays that there are now."""
        bound = [
            (call, {arg: self._array(plan, t, slots) for arg, t in call.args.items()})
            for call in plan.calls
        ]
        self._plans[plan.name] = [(call.label, self._bind(call, args)) for call, args in bound]

    def _array(self, plan: Plan, tensor: Tensor, slots: _Slots) -> Any:
        if tensor.role == "activation":
            memory = slots[plan.slot_of[tensor.name]][: 4 * prod(tensor.shape)]
            return memory.view(_item(tensor)).reshape(tensor.shape)
        array = self._arrays[tensor.name]
        # Calls may see a tensor in another shape; pools have as many blocks as there are.
        seen_whole = tensor.role == "kv" or self._keeps_blocks(tensor)
        return array if seen_whole else array.reshape(tensor.shape)

    def _bind(self, call: Call, arrays: Mapping[str, Any]) -> Sequence[Run]:
        runs = self._native.bind(call, arrays) if self._native else None
        return runs or [partial(call.reference, arrays)]

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
                    for _, runs in self._plans[name]:
                        for run in runs:
                            run()
                            await self._breathe()
        if not count:
            return []
        ring = self._arrays["sampled"]
        return [int(ring[(first + i) % RING]) for i in range(count)]

    async def _breathe(self) -> None:
        """Let messages in, at least every TURN_SECONDS between runs, and whom they wake."""
        if time.monotonic() - self._turn > TURN_SECONDS:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self._turn = time.monotonic()

    async def compute(self, plan: str, outputs: Sequence[Tensor]) -> list[bytes]:
        """Run the calls, and copy the arrays."""
        await self.run([plan], 1, 1, 0, 0)
        return [await self.read(tensor) for tensor in outputs]

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        """The array's bytes: of a weight f32 values, or blocks."""
        async with self._lock:  # a run that has begun ends before
            data: bytes = self._arrays[tensor.name].tobytes()
        return data[offset:][:nbytes]

    async def profile(self, plan: str, tokens: int) -> list[tuple[str, int, float]]:
        """Time of each kind of call, as one run took it."""
        rows: dict[str, tuple[str, int, float]] = {}
        for label, runs in self._plans[plan]:
            started = time.perf_counter()
            for run in runs:
                run()
            ms = (time.perf_counter() - started) * 1e3
            _, count, total = rows.get(label, (label, 0, 0.0))
            rows[label] = (label, count + 1, total + ms)
        return list(rows.values())

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """Seconds by the clock."""
        started = time.perf_counter()
        await self.run([plan], tokens, repeat, 0, 0)
        return time.perf_counter() - started

    async def trace(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Run one call; the beginnings of arrays that it wrote."""
        found = await self._traced(plan, index, wanted)
        return {arg: values.tobytes() for arg, values in found.items()}

    async def survey(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, Summary]:
        """Run one call, and summarize the beginnings of arrays that it wrote."""
        found = await self._traced(plan, index, wanted)
        return {arg: summarize(values) for arg, values in found.items()}

    async def _traced(self, plan: Plan, index: int, wanted: Mapping[str, int]) -> dict[str, Any]:
        async with self._lock:
            for run in self._plans[plan.name][index][1]:
                run()
                await self._breathe()
        compiled, slots = self._compiled[plan.name]
        args = compiled.calls[index].args
        arrays = {arg: self._array(compiled, args[arg], slots) for arg in wanted}
        return {arg: arrays[arg].reshape(-1)[:count] for arg, count in wanted.items()}

    def encode_ms(self) -> float:
        """Nothing is recorded here."""
        return 0.0

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by label."""
        return {"weights" if k == "weight" else k: v for k, v in self._labels.items()}

    def close(self) -> None:
        """Drop all arrays."""
        self.clear()

    def clear(self) -> None:
        """Drop all arrays."""
        self._arrays.clear()
        self._compiled.clear()
        self._plans.clear()
        self._labels.clear()


def _item(tensor: Tensor) -> str:
    """NumPy's name of a tensor's elements; halves are f32 here."""
    return {"u32": "u4", "i32": "i4"}.get(tensor.dtype, "f4")
