"""Where the time to the first token went, by a clock that only the device moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from engine.answer import Answer
from engine.backends.null import NullDevice
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.kv import BlockPool
from engine.models.plans import DECODE, HEAD, PREFILL
from engine.timing import Timing, rate
from tests.conftest import ROOT
from tests.native import NativeHost, ready_of

TOKEN, FIRST_STEP, STEP = 0.1, 0.5, 0.25  # seconds


class Clocked(NullDevice):
    """Takes some seconds for a token of the prompt, for the first step and for a later one."""

    def __init__(self, turns: int) -> None:
        super().__init__(sampled_id=77)
        self.turns = turns  # of the event loop, in which a run lets others in
        self.seconds = 1000.0
        self.asked: list[str] = []
        self._lock = asyncio.Lock()

    def run(self, *args: Any) -> Awaitable[list[int]]:
        """Takes its order now, as a GPU does, not when it is waited for."""
        self.asked.append(args[0][0])
        return self._run(*args)

    async def _run(self, *args: Any) -> list[int]:
        plans, tokens, repeat = args[:3]
        took = {PREFILL: TOKEN * tokens, HEAD: FIRST_STEP, DECODE: STEP * repeat}
        async with self._lock:
            for _ in range(self.turns):
                await asyncio.sleep(0)
            self.seconds += took[plans[0]]
            return await super().run(*args)


class ClockedHost(NativeHost):
    def __init__(self, turns: int = 5) -> None:
        self.clock = Clocked(turns)
        super().__init__(ROOT / "tests/golden/tiny.gguf", device=self.clock)

    def now(self) -> float:
        return self.clock.seconds


async def loaded(host: ClockedHost) -> Engine:
    engine = Engine(host)
    await engine.load(LoadConfig(context=512), lambda *_: None)
    scheduler = ready_of(engine).scheduler
    scheduler.prefill_pace.size, scheduler.decode_pace.size = 16, 1
    scheduler.prefill_pace.measured = lambda *_: None  # type: ignore[method-assign]
    scheduler.decode_pace.measured = lambda *_: None  # type: ignore[method-assign]
    return engine


async def timed(engine: Engine, ids: list[int], key: int | None = None) -> dict[str, float]:
    async for event in engine.complete(ids, GenerateConfig(max_tokens=5), key):
        if isinstance(event, Answer):
            timing: dict[str, float] = event.to_wire()["timing"]
            parts = timing["queue_ms"] + timing["prefill_ms"] + timing["first_step_ms"]
            assert parts == pytest.approx(timing["ttft_ms"]), "they are all of it"
            return timing
    raise AssertionError("no answer")


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_the_parts_of_the_time_to_the_first_token(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        host = ClockedHost(turns)
        engine = await loaded(host)
        timing = await timed(engine, list(range(3, 33)))
        assert host.clock.asked[-7:] == [PREFILL, PREFILL, HEAD, *[DECODE] * 4]
        assert timing["queue_ms"] == 0
        assert timing["prefill_ms"] == pytest.approx(30 * TOKEN * 1e3), "two chunks"
        assert timing["first_step_ms"] == pytest.approx(FIRST_STEP * 1e3)
        assert timing["prefill_tokens_per_s"] == pytest.approx(30 / (30 * TOKEN + FIRST_STEP))
        assert timing["decode_tokens_per_s"] == pytest.approx(1 / STEP)

        prompts = ready_of(engine).model.prompts
        encode = prompts.encode

        async def slow(*args: Any) -> Any:
            host.clock.seconds += 7
            return await encode(*args)

        monkeypatch.setattr(prompts, "encode", slow)
        events = engine.generate(
            [{"role": "user", "content": "rain"}], GenerateConfig(max_tokens=1)
        )
        async for event in events:
            if isinstance(event, Answer):
                waited = event.to_wire()["timing"]
        assert waited["queue_ms"] == pytest.approx(7e3), "template and tokenizer come first"

    asyncio.run(run())


def test_waiting_for_a_turn_is_queue() -> None:
    async def run() -> None:
        engine = await loaded(ClockedHost())
        long, short = list(range(3, 99)), list(range(203, 207))
        first, second = await asyncio.gather(timed(engine, long, 1), timed(engine, short, 2))
        assert first["queue_ms"] == 0
        assert second["queue_ms"] == pytest.approx(16 * TOKEN * 1e3), "the first one's chunk"
        assert second["prefill_ms"] == pytest.approx(4 * TOKEN * 1e3)
        assert first["prefill_ms"] > len(long) * TOKEN * 1e3, "it handed turns over meanwhile"

    asyncio.run(run())


def test_an_answer_that_was_stopped_in_prefill_has_no_first_step() -> None:
    async def run() -> None:
        host = ClockedHost()
        engine = await loaded(host)
        answering = asyncio.ensure_future(timed(engine, list(range(3, 99)), 1))
        began = host.clock.seconds
        while host.clock.seconds == began:
            await asyncio.sleep(0)
        engine.stop(1)
        timing = await answering
        assert timing["prefill_ms"] == pytest.approx(16 * TOKEN * 1e3)
        assert timing["first_step_ms"] == timing["decode_tokens_per_s"] == 0

    asyncio.run(run())


def test_an_answer_that_was_stopped_in_the_queue_has_nothing_else() -> None:
    async def run() -> None:
        engine = await loaded(ClockedHost())
        first = asyncio.ensure_future(timed(engine, list(range(3, 99)), 1))
        second = asyncio.ensure_future(timed(engine, list(range(203, 207)), 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.stop(2)
        timing = await second
        assert timing["queue_ms"] == timing["ttft_ms"] == pytest.approx(16 * TOKEN * 1e3)
        await first

    asyncio.run(run())


def test_an_answer_that_was_stopped_while_it_waited_for_room_has_nothing_else() -> None:
    async def run() -> None:
        engine = await loaded(ClockedHost())
        ready_of(engine).model.pool = BlockPool(7)
        first = asyncio.ensure_future(timed(engine, list(range(3, 99)), 1))
        second = asyncio.ensure_future(timed(engine, list(range(203, 233)), 2))
        while not any(request.waiting for request in engine._requests):
            await asyncio.sleep(0)
        assert engine.stop(2)
        timing = await second
        assert timing["queue_ms"] == timing["ttft_ms"] == pytest.approx(16 * TOKEN * 1e3)
        assert min(timing.values()) == 0
        await first

    asyncio.run(run())


def test_an_answer_that_never_began_took_no_time() -> None:
    assert set(Timing().to_wire(0, 0).values()) == {0}
    assert set(Answer().to_wire()["timing"].values()) == {0}
    assert rate(5, 0) == 0


def test_a_status_tells_memory_by_purpose() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(ROOT / "tests/golden/tiny.gguf"))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        status = engine.status()
        assert {"weights", "kv", "activations", "state"} == set(status["memory"])
        assert min(status["memory"].values()) > 0
        assert sum(status["memory"].values()) == status["memory_bytes"]
        assert sum(status["memory"].values()) == status["models"][0]["memory_bytes"]
        # The CPU device keeps keys and values as f32, which is what a block is counted with.
        assert status["memory"]["kv"] == status["kv"]["bytes"]

    asyncio.run(run())
