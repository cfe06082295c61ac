"""A device without the memory: a load asks for less, and what worked goes on working."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Sequence
from itertools import count
from math import prod
from typing import Any

import pytest

from engine import economy, loader
from engine.answer import Answer
from engine.backends.base import Device, Progress, slot_sizes
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig
from engine.economy import Economy
from engine.engine import Engine
from engine.errors import OctavoError, as_octavo_error
from engine.kv import budget
from engine.plan import Plan, Tensor
from tests.conftest import ROOT
from tests.native import NativeHost

GOLDEN = ROOT / "tests/golden"
PROMPT: dict[str, Any] = json.loads((GOLDEN / "tiny.json").read_text(encoding="utf-8"))["prompts"][
    3
]
BLOCK_BYTES = 2 * 3 * 2 * 16 * 16 * 4  # of KV in the tiny model: see test_growth


@pytest.fixture(autouse=True)
def no_device_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "QUICK_SECONDS", 0.0)


class Scarce(CpuDevice):
    """Takes its memory from its host, piece by piece."""

    def __init__(self, host: ScarceHost) -> None:
        super().__init__(host.chunk)
        self.host = host

    def _take(self, sizes: Iterable[int]) -> None:
        pending = 0  # bytes
        for size in sizes:
            pending += size
            self.host.take(pending)

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self._take(4 * prod(t.shape) for t in tensors)
        await super().allocate(tensors)

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        try:
            self._take(4 * prod(t.shape) for t in tensors)
        except OctavoError:
            return False
        return await super().grow(tensors)

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        self._take(slot_sizes(plans))
        await super().compile(plans, progress)

    async def run(self, *args: Any) -> list[int]:
        self._take([4])  # as for what is read back
        return await super().run(*args)


class ScarceHost(NativeHost):
    """Its devices have ``most`` bytes together; allocation number ``fail_at`` fails anyway."""

    def __init__(self, most: int = 1 << 40, chunk: int = 512) -> None:
        super().__init__(GOLDEN / "tiny.gguf")
        self.most, self.chunk = most, chunk
        self.fail_at = -1
        self.count = 0
        self.devices: list[Scarce] = []

    @property
    def held(self) -> int:
        return sum(sum(device.memory().values()) for device in self.devices)

    def take(self, size: int) -> None:
        self.count += 1
        if self.count == self.fail_at or self.held + size > self.most:
            raise OctavoError("memory.device", f"{size} bytes are too many")

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        self.devices.append(Scarce(self))
        return self.devices[-1], ""


async def answered(engine: Engine, model: str | None = None, tokens: int = 40) -> Answer:
    config = GenerateConfig(max_tokens=tokens)
    async for event in engine.complete(PROMPT["prompt_ids"], config, model=model):
        last = event
    assert isinstance(last, Answer)
    return last


async def code(work: Awaitable[Any]) -> str:
    try:
        await work
    except OctavoError as error:
        return error.code
    return ""


def test_what_is_saved_first() -> None:
    saving = Economy()
    assert not saving.tighten(), "nothing was asked for"
    asked = [(saving.blocks(600), saving.chunk(512))]
    while saving.tighten():
        asked.append((saving.blocks(600), saving.chunk(512)))
    assert asked == [(600, 512), (150, 512), (37, 512), (32, 512), (32, 128), (32, 32)]
    small = Economy()
    assert (small.blocks(5), small.chunk(16)) == (5, 16)
    assert not small.tighten()


def test_every_allocation_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the answer is right, or the error has its code; the next load works."""
    monkeypatch.setattr(budget, "FIRST_BLOCKS", 2)

    async def run(n: int) -> bool:
        host = ScarceHost(chunk=64)
        engine = Engine(host)
        host.fail_at = n
        config = LoadConfig(context=256)
        codes = [await code(engine.load(config, lambda *_: None))]
        loaded = not codes[0]
        for _ in range(2):
            try:
                assert (await answered(engine, None, 9)).ids == PROMPT["ids"][:9]
            except OctavoError as error:
                codes.append(error.code)
        met = host.count >= n
        assert set(codes) <= {"", "memory.device", "engine.not_loaded", "prompt.too_long"}
        assert sum(c not in ("", "engine.not_loaded") for c in codes) <= 1 + (
            "prompt.too_long" in codes
        )
        if not loaded:
            assert host.held == 0
        await engine.load(config, lambda *_: None)
        assert (await answered(engine, None, 9)).ids == PROMPT["ids"][:9]
        return met

    for n in count(1):
        if not asyncio.run(run(n)):
            break
    assert n > 60


def test_a_load_is_content_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """With less and less memory: first the context is shorter, then steps are; then it fails."""
    monkeypatch.setattr(economy, "FLOOR_BLOCKS", 12)

    async def run(most: int) -> tuple[int, int] | str:
        engine = Engine(host := ScarceHost(most))
        try:
            model = await engine.load(LoadConfig(context=512), lambda *_: None)
        except OctavoError as error:
            assert host.held == 0
            return error.code
        assert host.held <= most
        assert (await answered(engine)).ids == PROMPT["ids"][:40]
        return model.context, model.device.traits.chunk

    roomy = ScarceHost()
    asyncio.run(Engine(roomy).load(LoadConfig(context=512), lambda *_: None))
    needs = roomy.held + 4  # that a run takes
    seen: list[Any] = []
    for part in range(40, 0, -1):
        got = asyncio.run(run(needs * part // 40))
        if got not in seen:
            seen.append(got)
    contexts = [got[0] for got in seen[:-1]]
    chunks = [got[1] for got in seen[:-1]]
    assert seen[0] == (512, 512) and seen[-1] == "memory.device"
    assert contexts == sorted(contexts, reverse=True) and contexts[-1] == 192
    assert chunks == sorted(chunks, reverse=True) and chunks[-1] == economy.FLOOR_CHUNK
    assert all(chunk == 512 for context, chunk in seen[:-1] if context > 192)


def test_idle_models_make_room_and_busy_ones_go_on() -> None:
    async def run() -> None:
        host = ScarceHost()
        engine = Engine(host)
        shared = {"context": 512, "memory_bytes": 1 << 30}
        await engine.load(LoadConfig(model="a", **shared), lambda *_: None)
        one = host.held
        host.most = one + one // 4
        await engine.load(LoadConfig(model="b", **shared), lambda *_: None)
        resident = {m["model"]: m["resident"] for m in engine.status()["models"]}
        assert resident == {"a": False, "b": True}
        for name in "aba":
            assert (await answered(engine, name)).ids == PROMPT["ids"][:40]
        # A second one has no room while the first one answers: nobody notices but who loads it.
        busy = asyncio.ensure_future(answered(engine, "a", 200))
        while not any(model["answers"] for model in engine.status()["models"]):
            await asyncio.sleep(0.001)
        assert not busy.done()
        assert await code(engine.load(LoadConfig(model="c", **shared), lambda *_: None)) == (
            "memory.device"
        )
        assert (await busy).ids == PROMPT["ids"][:200]
        assert (await answered(engine, "b")).ids == PROMPT["ids"][:40]

    asyncio.run(run())


def test_memory_errors_of_python_have_the_code() -> None:
    assert as_octavo_error(MemoryError("no")).code == "memory.device"
