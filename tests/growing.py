"""A CPU device whose KV pools grow while it runs; Pyodide imports this too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.backends.cpu import CpuDevice
from engine.plan import Tensor


class GrowingInRuns(CpuDevice):
    """Grows by a block after the first calls of every run, or as soon as the run lets it."""

    pools: list[Tensor]

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.pools = [t for t in tensors if t.role == "kv"]
        await super().allocate(tensors)

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        running = asyncio.ensure_future(super().run(plans, tokens, repeat, first, count))
        for _ in range(7):
            await asyncio.sleep(0)
        self.pools = [replace(t, shape=(t.shape[0] + 1, *t.shape[1:])) for t in self.pools]
        assert await self.grow(self.pools)
        return await running
