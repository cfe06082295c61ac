"""An engine with a model of tests/golden, and what it answers."""

from __future__ import annotations

import json
from typing import Any

from engine.answer import Answer, Delta
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from tests.conftest import ROOT
from tests.native import NativeHost

GOLDEN = ROOT / "tests/golden"
CHAT = [{"role": "user", "content": "Where is the rain in the sea?"}]


async def loaded(name: str = "tiny", **host: Any) -> Engine:
    """An engine that has loaded a model of tests/golden."""
    engine = Engine(NativeHost(GOLDEN / f"{name}.gguf", **host))
    await engine.load(LoadConfig(context=512), lambda *_: None)
    return engine


async def complete(engine: Engine, ids: list[int], **config: Any) -> Answer:
    """The answer to token ids."""
    async for event in engine.complete(ids, GenerateConfig(**config)):
        if isinstance(event, Answer):
            assert engine.state == "ready", "with the answer, the engine is ready again"
            return event
    raise AssertionError("no answer")


async def chat(engine: Engine, messages: list[dict[str, str]], **config: Any) -> Answer:
    """The answer to a conversation."""
    texts: list[str] = []
    async for event in engine.generate(messages, GenerateConfig(**config)):
        if isinstance(event, Delta):
            texts.append(event.text)
        else:
            assert "".join(texts) == event.text, "the deltas add up to the answer"
            return event
    raise AssertionError("no answer")


def golden(name: str) -> dict[str, Any]:
    """What an independent implementation says to a model's prompts."""
    document: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return document


ISLANDS = [[{"role": "user", "content": f"Tell me of island {i}."}] for i in range(4)]


async def alone(messages: list[dict[str, str]], **config: Any) -> Answer:
    """The answer of an engine that has seen nothing else."""
    return await chat(await loaded(), messages, **config)
