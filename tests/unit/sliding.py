"""An engine with a context so short that it slides."""

from __future__ import annotations

from typing import Any

from engine.answer import Answer
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from tests.native import NativeHost
from tests.unit.engines import GOLDEN

CONTEXT = 128
PROMPT = [3 + 7 * i % 400 for i in range(90)]


async def loaded(device: CpuDevice | None = None, name: str = "tiny", **config: Any) -> Engine:
    engine = Engine(NativeHost(GOLDEN / f"{name}.gguf", device=device))
    await engine.load(LoadConfig(**{"context": CONTEXT, **config}), lambda *_: None)
    return engine


async def complete(engine: Engine, ids: list[int], key: int = 0, **config: Any) -> Answer:
    async for event in engine.complete(ids, GenerateConfig(**config), key):
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


def accounted(engine: Engine) -> None:
    kv = engine.status()["kv"]
    assert kv["used_blocks"] == 0
    assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
