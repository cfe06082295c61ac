"""Several conversations on one model: what they share, whose turn it is, and who waits for room."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from engine.answer import Answer, Delta
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.kv import BlockPool
from engine.scheduler import Pace
from tests.native import NativeHost, ready_of
from tests.unit.engines import GOLDEN, ISLANDS, alone, chat, complete, loaded

pytestmark = pytest.mark.usefixtures("no_device_is_quick")


def test_conversations_share_what_begins_alike() -> None:
    """Two conversations by turns, an edited message and a fork: only what is new is computed, and
    every answer is that of an engine which has seen nothing else."""

    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=400, kv_tokens=1200), lambda *_: None)
        system = {"role": "system", "content": "You are a sailor who answers in few words. " * 3}

        async def fresh(messages: list[dict[str, str]]) -> list[int]:
            other = await loaded()
            return (await chat(other, messages, max_tokens=24)).ids

        def user(text: str) -> dict[str, str]:
            return {"role": "user", "content": text}

        one, two = [system, user("Where is the sea?")], [system, user("Where is the moon?")]
        first = await chat(engine, one, max_tokens=24)
        second = await chat(engine, two, max_tokens=24)
        assert second.cached_tokens >= 48, "the system prompt was computed once"
        for conversation, answer in ((one, first), (two, second)):
            assert answer.ids == await fresh(conversation)
            conversation += [{"role": "assistant", "content": answer.text}, user("And now?")]
        for conversation in (one, two):
            answer = await chat(engine, conversation, max_tokens=24)
            assert answer.ids == await fresh(conversation)
            assert answer.cached_tokens > 48
        again = await chat(engine, one, max_tokens=24)
        assert again.cached_tokens >= again.prompt_tokens - 16, "a block at most is computed again"
        edited = [*one[:-1], user("And then?")]
        assert (await chat(engine, edited, max_tokens=24)).ids == await fresh(edited)
        kv = engine.status()["kv"]
        assert kv["used_blocks"] == 0
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
        assert 0.5 < kv["hit_rate"] < 1

    asyncio.run(run())


def test_many_conversations_in_little_room_stay_right() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=160), lambda *_: None)
        histories = [[{"role": "user", "content": f"Tell me of island {i}."}] for i in range(6)]
        wanted = []
        for history in histories:
            other = await loaded()
            wanted.append((await chat(other, history, max_tokens=30)).ids)
        for _ in range(3):
            for history, ids in zip(histories, wanted, strict=True):
                assert (await chat(engine, history, max_tokens=30)).ids == ids

    asyncio.run(run())


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_take_turns_and_are_what_they_would_be_alone(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    # Bursts of a length that does not depend on what else the machine does.
    monkeypatch.setattr(Pace, "measured", lambda self, units, seconds: None)

    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=512, kv_tokens=2048), lambda *_: None)
        burst = ready_of(engine).scheduler.decode_pace.size = 8  # two are in flight
        config = {"max_tokens": 300, "temperature": temperature, "seed": 5}
        counts = [0] * 4
        when_one_ended: list[list[int]] = []

        async def one(i: int) -> Answer:
            async for event in engine.generate(ISLANDS[i], GenerateConfig(**config)):
                if isinstance(event, Answer):
                    when_one_ended.append(list(counts))
                    return event
                counts[i] = event.num_tokens
            raise AssertionError

        answers = await asyncio.gather(*map(one, range(4)))
        for messages, answer in zip(ISLANDS, answers, strict=True):
            assert answer.ids == (await alone(messages, **config)).ids
        first = when_one_ended[0]
        assert max(first) - min(first) <= 2 * burst, "none waits for another's end"

    asyncio.run(run())


def test_each_answer_has_its_own_stop() -> None:
    async def run() -> None:
        engine = await loaded()
        wanted = await alone(ISLANDS[1], max_tokens=300)
        begun: set[int] = set()

        async def collect(key: int) -> Answer:
            async for event in engine.generate(ISLANDS[key], GenerateConfig(max_tokens=300), key):
                if isinstance(event, Answer):
                    return event
                begun.add(key)
                if key == 0 and begun == {0, 1}:
                    begun.add(2)  # once
                    assert engine.stop(0)
                    assert not engine.stop(0), "it stops already"
                    assert not engine.stop(7)
            raise AssertionError

        stopped, other = await asyncio.gather(collect(0), collect(1))
        assert stopped.finish_reason == "cancelled"
        assert begun == {0, 1, 2}
        assert other.ids == wanted.ids

    asyncio.run(run())


@pytest.mark.parametrize("stop", [False, True])
def test_answers_that_do_not_fit_together_wait_for_each_other(stop: bool) -> None:
    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=128), lambda *_: None)
        wanted = [(await alone(messages, max_tokens=70)).ids for messages in ISLANDS]
        tasks = [asyncio.ensure_future(chat(engine, m, max_tokens=70)) for m in ISLANDS]
        if stop:
            for _ in range(60):
                await asyncio.sleep(0)
            engine.stop()
        for ids, answer in zip(wanted, await asyncio.gather(*tasks), strict=True):
            assert answer.ids == ids[: len(answer.ids)]
            assert stop or answer.ids == ids
        kv = engine.status()["kv"]
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]

    asyncio.run(run())


def test_a_long_prompt_lets_a_short_one_pass() -> None:
    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device=device)
        run_at_once = device.run

        async def run_later(*args: Any) -> list[int]:
            await asyncio.sleep(0)  # a small model on the CPU would not let anybody in
            return await run_at_once(*args)

        device.run = run_later  # type: ignore[method-assign]
        ended: list[str] = []

        async def ask(name: str, ids: list[int]) -> None:
            async for _ in engine.complete(ids, GenerateConfig(max_tokens=2)):
                pass
            ended.append(name)

        long, short = [5 + i % 90 for i in range(400)], [7, 8, 9]
        await asyncio.gather(ask("long", long), ask("short", short))
        assert ended == ["short", "long"]

    asyncio.run(run())


def test_no_room_for_one_alone_is_an_error() -> None:
    async def run() -> None:
        engine = await loaded()
        ready_of(engine).model.pool = BlockPool(1)
        with pytest.raises(OctavoError) as caught:
            await asyncio.wait_for(complete(engine, [5] * 40), 5)
        assert caught.value.code == "prompt.too_long"
        assert engine.state == "ready"

    asyncio.run(run())


def test_three_hundred_answers_leave_nothing_behind() -> None:
    """Answers, stopped and abandoned ones, resets: objects and blocks stay level."""

    async def run() -> None:
        engine = await loaded()
        counts: list[int] = []
        for i in range(300):
            messages = [{"role": "user", "content": f"Tell me of island {i % 7}."}]
            events = engine.generate(messages, GenerateConfig(max_tokens=1 + i % 23), key=i)
            async for event in events:
                if i % 3 == 0:
                    engine.stop(i)
                if i % 5 == 0 and isinstance(event, Delta):
                    break
            await events.aclose()
            if i % 10 == 9:
                await engine.reset()
            if i in (99, 299):
                gc.collect()
                counts.append(len(gc.get_objects()))
        assert counts[1] <= counts[0] + 50
        kv = engine.status()["kv"]
        assert kv["free_blocks"] == kv["num_blocks"]

    asyncio.run(run())
