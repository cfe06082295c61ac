"""The KV pools grow while answers are under way; nobody notices but the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.answer import Answer
from engine.backends import cpu
from engine.backends.base import persistent_tensors
from engine.backends.cpu import CpuDevice
from engine.backends.null import NullDevice
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.kv import budget
from engine.ops.kv_layout import KV_BLOCK
from engine.plan import Tensor, Traits
from engine.selftest import passes
from tests.growing import GrowingInRuns
from tests.native import NativeHost, ready_of, unchecked
from tests.tiny import TINY

# Of the tiny model on the CPU: K and V, layers, KV heads, tokens, values, bytes of a value.
BLOCK_BYTES = 2 * 3 * 2 * KV_BLOCK * 16 * 4
PROMPTS = [[40 + i, *[50] * 20] for i in range(4)]


@pytest.fixture(autouse=True)
def begins_with_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FIRST_BLOCKS", 1)


class Refusing(CpuDevice):
    """Gives no more memory than for ``most`` blocks."""

    def __init__(self, most: int = 1 << 30) -> None:
        super().__init__()
        self.most = most
        self.grown: list[int] = []

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        blocks = tensors[0].shape[0]
        if blocks > self.most:
            return False
        self.grown.append(blocks)
        return await super().grow(tensors)


async def loaded(device: Any = None, **config: Any) -> Engine:
    engine = Engine(NativeHost(TINY, device=device))
    await engine.load(LoadConfig(**{"context": 256, **config}), lambda *_: None)
    return engine


async def complete(engine: Engine, ids: list[int], count: int) -> Answer:
    async for event in engine.complete(ids, GenerateConfig(max_tokens=count)):
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


async def fresh(count: int) -> list[list[int]]:
    """What follows PROMPTS, each in an engine whose pool has its full size from the start."""
    engine = await loaded()
    await ready_of(engine).model.make_room(256 // KV_BLOCK)
    answers = []
    for prompt in PROMPTS:
        await engine.reset()
        answers.append((await complete(engine, prompt, count)).ids)
    return answers


def test_answers_under_way_go_on_while_the_pools_grow() -> None:
    async def run() -> None:
        wanted = await fresh(150)
        device = Refusing()
        engine = await loaded(device, kv_tokens=1024)
        assert engine.status()["kv"]["num_blocks"] == 8
        seen = []

        async def watch() -> None:
            while True:
                status = engine.status()
                assert status["kv"]["bytes"] == status["memory"]["kv"]
                seen.append((status["answers"], status["kv"]["num_blocks"]))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        answers = await asyncio.gather(*(complete(engine, p, 150) for p in PROMPTS))
        watching.cancel()
        assert [answer.ids for answer in answers] == wanted
        assert device.grown == [16, 32, 64]
        assert {blocks for answers, blocks in seen if answers > 1} == {8, 16, 32, 64}

    asyncio.run(run())


@pytest.mark.parametrize("most", [16, 31, 32])
def test_a_refused_growth_ends_the_budget(most: int) -> None:
    """Answers then wait for each other, as in a pool of that size."""

    async def run() -> None:
        wanted = await fresh(150)
        device = Refusing(most)
        engine = await loaded(device, kv_tokens=1024)
        answers = await asyncio.gather(*(complete(engine, p, 150) for p in PROMPTS))
        assert [answer.ids for answer in answers] == wanted
        kv = engine.status()["kv"]
        assert kv["num_blocks"] == kv["budget_blocks"] == (32 if most == 32 else 16)
        assert kv["used_blocks"] == 0
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
        assert engine.status()["memory"]["kv"] == kv["bytes"]

    asyncio.run(run())


def test_refused_before_one_answer_fits_is_an_error() -> None:
    async def run() -> None:
        engine = await loaded(Refusing(2))
        with pytest.raises(OctavoError) as caught:
            await asyncio.wait_for(complete(engine, PROMPTS[0], 50), 5)
        assert caught.value.code == "prompt.too_long"
        assert len((await complete(engine, PROMPTS[0], 5)).ids) == 5

    asyncio.run(run())


def test_conversations_stay_cached_while_the_budget_allows() -> None:
    async def run() -> None:
        engine = await loaded(kv_tokens=1024)
        answers = [await complete(engine, prompt, 20) for prompt in PROMPTS]
        kv = engine.status()["kv"]
        # Of each 21 tokens of the prompt and 19 of the answer: the last one was not computed.
        assert (kv["num_blocks"], kv["cached_blocks"], kv["tokens"]) == (16, 12, 4 * 40)
        assert kv["utilization"] == 160 / (12 * KV_BLOCK)
        assert kv["conversations"] == 4
        assert kv["bytes"] == 16 * BLOCK_BYTES
        assert kv["preallocated_bytes"] == 4 * (256 // KV_BLOCK) * BLOCK_BYTES
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert (await complete(engine, prompt + answer.ids, 1)).cached_tokens == 40

    asyncio.run(run())


def test_what_is_held_counts_answers_under_way() -> None:
    async def run() -> None:
        engine = await loaded(kv_tokens=1024)
        seen = []
        async for event in engine.complete(PROMPTS[0], GenerateConfig(max_tokens=40)):
            kv = engine.status()["kv"]
            if not isinstance(event, Answer):
                seen.append((event.num_tokens, kv["tokens"], kv["conversations"]))
        assert len(seen) > 2
        # The last token of all was only sampled so far.
        assert seen == [(n, len(PROMPTS[0]) + n - 1, 1) for n, _, _ in seen]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("config", "blocks", "context"),
    [
        ({}, 16, 256),
        ({"kv_tokens": 1024}, 64, 256),
        ({"kv_tokens": 1023}, 64, 256),
        ({"kv_tokens": 100}, 7, 112),
        ({"kv_bytes": 64 * BLOCK_BYTES + 5}, 64, 256),
        ({"kv_bytes": 3 * BLOCK_BYTES}, 3, 48),
    ],
)
def test_the_budget(config: dict[str, int], blocks: int, context: int) -> None:
    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device, **config)
        status = engine.status()
        assert status["kv"]["budget_blocks"] == blocks
        assert status["model"]["context"] == context
        answers = [await complete(engine, prompt, 300) for prompt in PROMPTS]
        assert len(PROMPTS[0]) + max(len(a.ids) for a in answers) == context
        status = engine.status()
        assert status["kv"]["bytes"] == status["memory"]["kv"] <= blocks * BLOCK_BYTES
        await engine.unload()
        assert device.memory() == {}

    asyncio.run(run())


def test_what_cannot_be_a_budget() -> None:
    async def code(**config: Any) -> str:
        with pytest.raises(OctavoError) as caught:
            await loaded(**config)
        return caught.value.code

    small = Traits("webgpu", software=True, max_binding_bytes=2 * KV_BLOCK * 16 * 2 * 15)
    assert asyncio.run(code(kv_bytes=BLOCK_BYTES - 1)) == "request.invalid"
    assert asyncio.run(code(device=NullDevice(small))) == "gpu.limits"
    with pytest.raises(OctavoError) as caught:
        LoadConfig.from_wire({"kv_tokens": 1024, "kv_bytes": 1 << 20})
    assert caught.value.code == "request.invalid"

    async def within() -> int:
        engine = await loaded(NullDevice(small), kv_tokens=1024, context=240)
        return int(engine.status()["kv"]["budget_blocks"])

    assert asyncio.run(within()) == 15, "no pool is larger than the adapter allows"


def test_at_load_an_eighth_is_there_or_64_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [budget.first_blocks(n) for n in (1, 63, 64, 500, 512, 8000)] == [
        *(1, 63, 64, 64, 64, 1000)
    ]


def test_unloading_frees_what_has_grown() -> None:
    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device, kv_tokens=1024)
        first = engine.status()["memory"]
        await complete(engine, PROMPTS[0], 200)
        assert engine.status()["memory"]["kv"] == 2 * first["kv"]
        await engine.unload()
        assert device.memory() == {}
        await engine.load(LoadConfig(context=256, kv_tokens=1024), lambda *_: None)
        assert engine.status()["memory"] == first

    asyncio.run(run())


def pools(blocks: int) -> dict[str, tuple[int, ...]]:
    return {f"{which}.{i}": (blocks, 2, KV_BLOCK, 16) for i in range(3) for which in "kv"}


def test_what_the_device_is_asked_to_do() -> None:
    """A growth lies between the runs before it and the new block table; plans stay."""

    async def run() -> None:
        device = NullDevice(sampled_id=77)
        compiled = []
        compile = device.compile

        async def compiling(*args: Any) -> None:
            compiled.append(args)
            await compile(*args)

        device.compile = compiling  # type: ignore[method-assign]
        engine = await loaded(device)
        assert device.tensors["k.0"].shape[0] == 2
        device.log.clear()
        await complete(engine, [5] * 30, 40)
        names = [entry[0] if isinstance(entry[0], str) else "run" for entry in device.log]
        assert names.count("grow") == 2
        assert [e[1] for e in device.log if e[0] == "grow"] == [pools(4), pools(8)]
        for at in [i for i, name in enumerate(names) if name == "grow"]:
            assert names[at + 1] == "block_table"
        assert "run" in names[: names.index("grow")], "it grew in the middle of the answer"
        assert len(compiled) == 1

    asyncio.run(run())


def test_kernels_that_were_measured_stay_known_whatever_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.loader.right_plans", unchecked)

    async def keys(**config: int) -> list[str]:
        engine = await loaded(NullDevice(Traits("webgpu", subgroup=32)), **config)
        plans = ready_of(engine).model.plans
        return [call.key for plan in plans.values() for call in plan.calls]

    first, second = asyncio.run(keys()), asyncio.run(keys(kv_tokens=4096))
    assert first == second
    assert any("attention" in key for key in first)


def test_the_cpu_grows_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "TURN_SECONDS", -1.0)  # lets others in after every call
    device = GrowingInRuns()
    assert asyncio.run(passes(device))
    assert device.pools[0].shape[0] > 16 + 5


def test_the_cpu_without_memory_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device)
        before = dict(device.memory())
        wanted = (await complete(engine, PROMPTS[0], 5)).ids
        zeros, count = np.zeros, 0

        def no_memory(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count > 2:  # some could be had
                raise MemoryError
            return zeros(*args)

        monkeypatch.setattr(np, "zeros", no_memory)
        tensors = persistent_tensors(ready_of(engine).model.plans.values()).values()
        assert not await device.grow([t for t in tensors if t.role == "kv"])
        monkeypatch.undo()
        assert device.memory() == before
        await engine.reset()
        assert (await complete(engine, PROMPTS[0], 5)).ids == wanted

    asyncio.run(run())


@pytest.mark.parametrize("scattered", [False, True])
def test_measuring_with_blocks_in_order_or_scattered(scattered: bool) -> None:
    async def run() -> None:
        device = NullDevice()
        engine = await loaded(device)
        # What conversations left behind has no influence.
        await asyncio.gather(*(complete(engine, prompt, 9) for prompt in PROMPTS))
        device.log.clear()
        await engine.measure(MeasureConfig(20, 200, 5, scattered=scattered))
        tables = [e for e in device.log if e[0] == "block_table"]
        assert len(tables) == 2, "all blocks of a run are there from its beginning"
        prefill, decode = (list(np.frombuffer(table[2], np.uint32)) for table in tables)
        assert prefill == [0, 1]
        assert sorted(decode) == list(range(13))
        assert (decode != sorted(decode)) == scattered
        assert engine.status()["kv"]["free_blocks"] == 16

    asyncio.run(run())
