"""The KV cache in 8 bits: half the memory, nearly the same answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.backends.null import NullDevice
from engine.config import LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.plan import Traits
from tests.conftest import ROOT
from tests.native import NativeHost
from tests.unit.sliding import PROMPT, accounted, complete, loaded

GOLDEN = ROOT / "tests/golden"
GPU = Traits("webgpu", "a GPU", software=True)
# Of the tiny model on a GPU: K and V, layers, KV heads, tokens; 16 halves, or 16 bytes and a word.
HALVES, BYTES = (2 * 3 * 2 * 16 * size for size in (16 * 2, 16 + 4))


async def on_gpu(**config: Any) -> dict[str, Any]:
    engine = Engine(NativeHost(GOLDEN / "tiny.gguf", device=NullDevice(GPU)))
    await engine.load(LoadConfig(context=512, **config), lambda *_: None)
    status: dict[str, Any] = engine.status()
    assert status["memory"]["kv"] == status["kv"]["bytes"]
    return status


def test_a_budget_has_more_blocks() -> None:
    async def run() -> None:
        halves = await on_gpu(kv_bytes=20 * HALVES)
        quants = await on_gpu(kv_bytes=20 * HALVES, kv_precision="q8")
        assert halves["kv"]["budget_blocks"] == 20
        assert [of["kv"]["precision"] for of in (halves, quants)] == ["f16", "q8"]
        assert quants["kv"]["budget_blocks"] == 20 * HALVES // BYTES == 32
        assert (halves["model"]["context"], quants["model"]["context"]) == (320, 512)
        for given, held in (("f16", "f32"), ("q8", "q8")):  # the CPU has no halves
            engine = await loaded(context=256, kv_precision=given)
            assert engine.status()["kv"]["precision"] == held
        same = await on_gpu(kv_tokens=512, kv_precision="q8")
        assert same["kv"]["bytes"] == same["kv"]["num_blocks"] * BYTES
        with pytest.raises(OctavoError, match=f"at least {BYTES}"):
            await on_gpu(kv_bytes=1, kv_precision="q8")

    asyncio.run(run())


def test_what_is_no_precision() -> None:
    assert LoadConfig.from_wire({}).kv_precision == "f16"
    assert LoadConfig.from_wire({"kv_precision": "q8"}).kv_precision == "q8"
    for other in ("q4", 8, True, ["q8"]):
        with pytest.raises(OctavoError) as caught:
            LoadConfig.from_wire({"kv_precision": other})
        assert caught.value.code == "request.invalid"


@pytest.mark.parametrize("name", ["tiny", "tiny_llama3", "tiny_qwen2"])
def test_answers_are_mostly_the_same(name: str) -> None:
    """Of these models, whose weights are random, whole answers; on the whole three in four."""
    document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))

    async def run() -> list[bool]:
        engine = await loaded(name=name, context=256, kv_precision="q8")
        same = []
        for prompt in document["prompts"]:
            answer = await complete(engine, prompt["prompt_ids"], max_tokens=16)
            assert answer.ids[:4] == prompt["ids"][:4]
            same.append(answer.ids == prompt["ids"][:16])
        accounted(engine)
        return same

    same = asyncio.run(run())
    assert sum(same) >= len(same) * 0.6


def test_it_is_slid_shared_and_begun_anew() -> None:
    async def run() -> None:
        engine = await loaded(kv_precision="q8", kv_tokens=512)
        first = await complete(engine, PROMPT, max_tokens=150, context_full="slide")
        assert (len(first.ids), first.finish_reason) == (150, "length")
        both = await asyncio.gather(
            complete(engine, PROMPT, 1, max_tokens=30), complete(engine, PROMPT, 2, max_tokens=30)
        )
        assert [answer.ids for answer in both] == [first.ids[:30]] * 2
        accounted(engine)
        await engine.reset()
        again = await complete(engine, PROMPT, max_tokens=150, context_full="slide")
        assert again.ids == first.ids

    asyncio.run(run())
