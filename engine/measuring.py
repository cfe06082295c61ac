"""How fast a loaded model is here: what `measure` answers, for the bench."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from engine.answer import Run, Stopped
from engine.config import GenerateConfig, MeasureConfig
from engine.errors import OctavoError
from engine.loader import Host, LoadedModel
from engine.models.plans import DECODE, PREFILL, SAMPLE
from engine.ops.kv_layout import KV_BLOCK
from engine.plan import Call, Plan
from engine.prompt import Prompt
from engine.scheduler import Scheduler
from engine.session import Session
from engine.shaders import Shader, Slot

SKELETON = "skeleton"


def skeleton(step: Plan, sampler: Plan) -> Plan:
    """A step's matrix products with nothing but idle kernels between them: how fast this browser
    lets a token be with these products, in as many dispatches."""
    calls = (*step.calls, *sampler.calls)
    idle = tuple(c if c.op == "linear" else _idle(c) for c in calls)
    slot_of = {**step.slot_of, **sampler.slot_of}
    sizes = zip_longest(step.slot_bytes, sampler.slot_bytes, fillvalue=0)
    return Plan(SKELETON, idle, slot_of, tuple(map(max, sizes)), step.tokens)


def _idle(call: Call) -> Call:
    target = call.args[call.writes[0]]
    shader = Shader("idle", (Slot("y", "array<f32>", "read_write"),))
    return Call("idle", {"y": target}, ("y",), lambda _: None, shader)


class _Pretending(Session):
    """Takes its first ``cached`` tokens as if they were in the KV cache, whatever it holds; nobody
    finds them afterwards. All blocks for ``most`` tokens come at once, one after the other or, if
    ``scattered``, in random order."""

    def __init__(self, model: LoadedModel, cached: int, most: int, scattered: bool) -> None:
        super().__init__(model.pool)
        self._cached, self._most, self._scattered = cached, most, scattered

    def prompt(self, ids: list[int]) -> int:
        self.tokens, self.num_cached = list(ids), self._cached
        return self._cached

    def reserve(self, num_tokens: int) -> list[int]:
        added = super().reserve(max(num_tokens, self._most))
        if added:
            self.blocks.sort()
        if added and self._scattered:
            random.Random(1).shuffle(self.blocks)
        return added

    def release(self) -> None:
        self.num_cached = 0
        super().release()


@dataclass
class Bench:
    """One loaded model; conversations are forgotten."""

    host: Host
    model: LoadedModel
    scheduler: Scheduler

    async def measure(self, sizes: MeasureConfig, stopped: Stopped) -> dict[str, Any]:
        """Prefill of ``sizes.prefill`` tokens, then ``sizes.steps`` decode steps at a context of
        ``sizes.context`` tokens whose KV cache holds anything; the decode plan's skeleton where
        the device has dispatches; then ``sizes.text`` to tokens. OctavoError request.invalid if
        there are more of them than the context holds, the text's aside; request.cancelled if
        stopped."""
        model, device = self.model, self.model.device
        if max(sizes.prefill, sizes.context + sizes.steps) >= model.context:
            raise OctavoError("request.invalid", f"The context holds only {model.context} tokens.")
        model.pool.forget()
        most = max(sizes.prefill, sizes.context + sizes.steps)
        await model.make_room(-(-most // KV_BLOCK))  # so that it is not measured
        greedy = GenerateConfig(max_tokens=1)
        prefill = await self._run(sizes.prefill, _Pretending(model, 0, 0, False), greedy, stopped)
        encoding = device.encode_ms()
        config = replace(sizes.sampling, max_tokens=sizes.steps + 1, seed=1)
        session = _Pretending(
            model, sizes.context - 1, sizes.context + sizes.steps, sizes.scattered
        )
        decode = await self._run(sizes.context, session, config, stopped)
        encoding = device.encode_ms() - encoding
        burst = self.scheduler.decode_pace.size
        result = {
            "prefill_tokens_per_s": prefill["prefill_tokens_per_s"],
            "decode_tokens_per_s": decode["decode_tokens_per_s"],
            "host_ms_per_token": decode["host_ms_per_token"],
            "encode_ms_per_token": encoding / (sizes.steps + 1),
            "dispatches_per_token": sum(len(model.plans[p].calls) for p in (DECODE, SAMPLE)),
            "layers": model.config.num_layers,
            "chunk": self.scheduler.prefill_pace.size,
            "burst": burst,
            "kernels": {
                PREFILL: await device.profile(PREFILL, self.scheduler.prefill_pace.size),
                DECODE: await device.profile(DECODE, 1) + await device.profile(SAMPLE, 1),
            },
            "memory": dict(device.memory()),
        }
        if device.traits.kind == "webgpu":
            plan = skeleton(model.plans[DECODE], model.plans[SAMPLE])
            await device.compile([plan], lambda *_: None)
            result["skeleton_tokens_per_s"] = await self._steps(SKELETON, burst, sizes.steps)
        if sizes.text:
            started = self.host.now()
            ids = await model.encoder.encode(sizes.text)
            result["encoded"] = {"tokens": len(ids), "ms": (self.host.now() - started) * 1e3}
        return result

    async def _run(
        self, length: int, session: Session, config: GenerateConfig, stopped: Stopped
    ) -> Mapping[str, Any]:
        prompt = Prompt([100 + i % 100 for i in range(length)])
        run = Run(self.model, session, self.scheduler, config, self.host, prompt)
        async for _ in run.deltas(stopped):
            pass
        if stopped():
            raise OctavoError("request.cancelled")
        timing: Mapping[str, Any] = run.answer.to_wire()["timing"]
        return timing

    async def _steps(self, plan: str, burst: int, count: int) -> float:
        """Replays a second, in bursts of which two are in flight, as in an answer."""
        flying: deque[Awaitable[list[int]]] = deque()
        started, done = self.host.now(), 0
        for _ in range(max(3, count // burst)):
            flying.append(self.model.device.run([plan], 1, burst, 0, 1))
            if len(flying) == self.scheduler.depth:
                await flying.popleft()
                if not done:  # the first burst only fills the queue
                    started = self.host.now()
                done += burst
        while flying:
            await flying.popleft()
            done += burst
        return (done - burst) / max(self.host.now() - started, 1e-6)
