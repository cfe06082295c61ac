"""What every device can do. The engine knows devices only by this protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Protocol

from engine.backends.summary import Summary
from engine.plan import Call, Plan, Tensor, Traits, Weight
from engine.weights.loading import ShardJobs

Progress = Callable[[int, int], None]
Buffer = bytes | bytearray | memoryview


class Device(Protocol):
    """Runs plans. Buffers live from ``allocate`` to ``clear`` and go by tensor name."""

    traits: Traits

    def needs(
        self, tensors: Iterable[Tensor], plans: Iterable[Plan], shards: Sequence[int] = ()
    ) -> int:
        """The most bytes that are held for tensors, activations of plans, and the upload of shards
        of these bytes."""
        ...

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Create the weights, KV pools and state tensors, zeroed."""
        ...

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        """Give tensors that are there a larger first dimension; what they hold stays, also what
        runs that were asked for before have yet to write. False if there is not the memory for all
        of them: then nothing has changed. Plans go on as they are."""
        ...

    def begin_upload(self, shards: Sequence[int]) -> None:
        """Shards of these bytes will come: what they go through is made meanwhile."""
        ...

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Take the next shard and fill the weights it holds."""
        ...

    def finish_upload(self) -> None:
        """All shards have come: free what only uploading needed."""
        ...

    def prepare(self, calls: Sequence[Call]) -> None:
        """Begin to compile kernels that plans will have, before there are buffers."""
        ...

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Make plans ready to run, activations included."""
        ...

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        """Write bytes into a state tensor; in order with the runs around it."""
        ...

    def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> Awaitable[list[int]]:
        """Run plans ``repeat`` times on ``tokens`` tokens; resolves to ``count`` sampled ids from
        place ``first`` of the ring on, once the work is done."""
        ...

    async def compute(self, plan: str, outputs: Sequence[Tensor]) -> list[bytes]:
        """Run a plan once, and read what it wrote: one wait for both."""
        ...

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Bytes of a state, KV or weight tensor (first plane): for the rope's
        factors, tests and measurements."""
        ...

    async def profile(self, plan: str, tokens: int) -> list[tuple[str, int, float]]:
        """GPU time of one run of a plan: (label, dispatches, milliseconds); empty if unknown."""
        ...

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """Seconds that ``repeat`` replays of a plan take, one after another."""
        ...

    async def trace(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Run one call of a compiled plan by itself; the first elements of arguments that it wrote,
        as many of each as ``wanted`` says. Activations share memory: later they are gone."""
        ...

    async def survey(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, Summary]:
        """The same, summarized; all ``wanted`` are f32."""
        ...

    def encode_ms(self) -> float:
        """Milliseconds spent recording and submitting commands, since the device was made."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by label."""
        ...

    def clear(self) -> None:
        """Free all buffers."""
        ...

    def close(self) -> None:
        """Free all buffers; the device is not used again."""
        ...


def persistent_tensors(plans: Iterable[Plan]) -> dict[str, Tensor]:
    """Weights, KV pools and state of plans, by name."""
    found: dict[str, Tensor] = {}
    for plan in plans:
        for role in ("weight", "kv", "state"):
            found |= plan.tensors(role)
    return found


def pools_of(plans: Iterable[Plan], num_blocks: int) -> dict[str, Tensor]:
    """The KV pools of plans, by name, with ``num_blocks`` blocks whatever the plans say: kernels
    know blocks only by their numbers, so a plan does not depend on how many there are."""
    pools = {name: t for plan in plans for name, t in plan.tensors("kv").items()}
    return {name: replace(t, shape=(num_blocks, *t.shape[1:])) for name, t in pools.items()}


def weights_of(plans: Iterable[Plan]) -> list[Weight]:
    """The weights that plans use."""
    return [t for t in persistent_tensors(plans).values() if isinstance(t, Weight)]


def slot_sizes(plans: Iterable[Plan]) -> list[int]:
    """Bytes of activation slots that plans share: each has its largest size."""
    return [max(sizes) for sizes in zip_longest(*(p.slot_bytes for p in plans), fillvalue=0)]
