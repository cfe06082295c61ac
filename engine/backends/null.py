"""The null device: records what it is asked and computes nothing; for planning tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.backends.base import Buffer, Progress
from engine.backends.summary import Summary
from engine.plan import Call, Plan, Tensor, Traits
from engine.weights.loading import ShardJobs


class NullDevice:
    """Every sampled id is ``sampled_id``. ``log`` holds (plans, tokens, repeat) of each run,
    (tensor name, offset, bytes) of each write and ("grow", {tensor name: shape}) of each growth."""

    def __init__(self, traits: Traits | None = None, sampled_id: int = 0) -> None:
        self.traits = traits or Traits()
        self._sampled_id = sampled_id
        self.log: list[tuple[object, ...]] = []
        self.tensors: dict[str, Tensor] = {}
        self.plans: dict[str, Plan] = {}

    def needs(
        self, tensors: Iterable[Tensor], plans: Iterable[Plan], shards: Sequence[int] = ()
    ) -> int:
        """What ``memory`` will tell of the tensors."""
        return sum(tensor.nbytes for tensor in tensors)

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Remember the tensors."""
        self.tensors |= {t.name: t for t in tensors}

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        """Log the growth and remember the new shapes."""
        self.log.append(("grow", {t.name: t.shape for t in tensors}))
        self.tensors |= {t.name: t for t in tensors}
        return True

    def begin_upload(self, shards: Sequence[int]) -> None:
        """Nothing is needed for it."""

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Take a shard and forget it."""

    def finish_upload(self) -> None:
        """Nothing was kept."""

    def prepare(self, calls: Sequence[Call]) -> None:
        """Nothing is compiled here."""

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Remember the plans."""
        self.plans |= {p.name: p for p in plans}
        progress(1, 1)

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        """Log the write."""
        self.log.append((tensor.name, offset, bytes(data)))

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        """Log the run."""
        self.log.append((tuple(plans), tokens, repeat))
        return [self._sampled_id] * count

    async def compute(self, plan: str, outputs: Sequence[Tensor]) -> list[bytes]:
        """Zeros."""
        await self.run([plan], 1, 1, 0, 0)
        return [await self.read(tensor) for tensor in outputs]

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Zeros."""
        return bytes(tensor.nbytes - offset if nbytes is None else nbytes)

    async def profile(self, plan: str, tokens: int) -> list[tuple[str, int, float]]:
        """Nothing takes time here."""
        return []

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """Nothing takes time here."""
        return 0.0

    async def trace(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, bytes]:
        """Log the call; zeros."""
        self.log.append(("trace", plan.name, index, tokens))
        return {arg: bytes(4 * count) for arg, count in wanted.items()}

    async def survey(
        self, plan: Plan, index: int, tokens: int, wanted: Mapping[str, int]
    ) -> dict[str, Summary]:
        """Log the call; zeros."""
        self.log.append(("trace", plan.name, index, tokens))
        return {arg: Summary(count, 0, 0.0, 0.0, 0.0, 0.0) for arg, count in wanted.items()}

    def encode_ms(self) -> float:
        """Nothing is recorded here."""
        return 0.0

    def memory(self) -> Mapping[str, int]:
        """What the tensors would take."""
        held: dict[str, int] = {}
        for tensor in self.tensors.values():
            held[tensor.role] = held.get(tensor.role, 0) + tensor.nbytes
        return held

    def clear(self) -> None:
        """Forget everything."""
        self.tensors.clear()
        self.plans.clear()

    def close(self) -> None:
        """Forget everything."""
        self.clear()
