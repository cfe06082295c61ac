"""The loss of a GPU, again and again, at any time: pauses, waiting, the CPU in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine import loader, recovery
from engine.answer import Answer, Stopped
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.recovery import NOT_GIVEN, TOO_OFTEN, WRONG, News
from engine.resident import Ready
from tests.conftest import ROOT
from tests.native import NativeHost
from tests.tiny import LONG_PROMPT
from tests.unit.worker_client import Client

GOLDEN = ROOT / "tests/golden"
NEVER = 1 << 30


class FlakyHost(NativeHost):
    """GPUs come as ``script`` says, one entry each: the number of the run in which the device is
    lost, or "none", "software" or "wrong"; when it ends, devices last. Its clock moves only by
    pauses."""

    def __init__(self, *script: int | str) -> None:
        super().__init__(GOLDEN / "tiny.gguf")
        self.script = list(script)
        self.asked: list[str] = []  # kinds of devices
        self.pauses: list[float] = []
        self.clock = self.run_seconds = 0.0
        self.open = 0  # devices

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        self.asked.append(config.device)
        way = self.script.pop(0) if self.script and config.device != "cpu" else NEVER
        if way in ("none", "wrong"):
            raise OctavoError("gpu.unavailable" if way == "none" else "gpu.wrong")
        device = CpuDevice()
        device.traits = replace(device.traits, software=way == "software")
        run, close, count = device.run, device.close, 0

        def losing(*args: Any) -> Awaitable[list[int]]:
            nonlocal count
            count += 1
            self.clock += self.run_seconds
            if isinstance(way, int) and count >= way:
                raise OctavoError("gpu.lost")
            return run(*args)

        def closing() -> None:
            self.open -= 1
            close()

        self.open += 1
        device.run = losing  # type: ignore[method-assign,assignment]
        device.close = closing  # type: ignore[method-assign]
        return device, ""

    def now(self) -> float:
        return self.clock


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "QUICK_SECONDS", 0.0)  # a warm-up is two runs, and no rehearsal


@pytest.fixture
def with_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[FlakyHost], FlakyHost]:
    """Lets pauses take none but the host's time."""

    def patch(host: FlakyHost) -> FlakyHost:
        async def sleep(seconds: float) -> None:
            host.pauses.append(seconds)
            host.clock += seconds
            await asyncio.sleep(0)

        monkeypatch.setattr(recovery, "asyncio", SimpleNamespace(sleep=sleep))
        return host

    return patch


async def answered(engine: Engine, count: int = 40, key: int | None = None) -> Answer:
    config = GenerateConfig(max_tokens=count)
    async for event in engine.complete(LONG_PROMPT["prompt_ids"], config, key):
        last = event
    assert isinstance(last, Answer)
    return last


@pytest.mark.parametrize("at", [1, 2, 3])
def test_losses_in_a_row_have_growing_pauses(at: int, with_clock: Any) -> None:
    """In the warm-up of a load or in the prompt: no token comes in between."""

    async def run() -> None:
        host = with_clock(FlakyHost(3, at, at, at))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        assert host.pauses == [1, 2, 4]
        assert host.asked == ["auto", "gpu", "gpu", "gpu", "gpu"]
        assert host.open == 1

    asyncio.run(run())


def test_a_token_begins_the_count_anew(with_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BACK_OFF", (0.0,))

    async def run() -> None:
        host = with_clock(FlakyHost(*[50] * 12))  # the prompt is 33 runs at this pace
        host.run_seconds = 0.05
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, device="gpu"), lambda *_: None)
        assert (await answered(engine, 45)).ids == LONG_PROMPT["ids"][:45]
        assert len(host.asked) > 3
        assert host.pauses == []

    asyncio.run(run())


def test_one_loss_too_many_leaves_it_to_the_cpu(with_clock: Any) -> None:
    async def run() -> None:
        news: list[tuple[int, News]] = []
        host = with_clock(FlakyHost(*[3] * 5))
        engine = Engine(host, lambda key, told: news.append((key, told)))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        assert (await answered(engine, key=7)).ids == LONG_PROMPT["ids"][:40]
        assert host.asked[-1] == "cpu"
        assert engine.status()["device"]["reason"] == TOO_OFTEN
        assert {key for key, _ in news} == {7}
        states = [(told.state, told.losses) for _, told in news]
        again = [(state, n) for n in (2, 3, 4) for state in ("paused", "loading", "ready")]
        assert states == [("loading", 1), ("ready", 1), *again, ("ready", 5)]
        (device,) = [told.device for _, told in news[-1:]]
        assert device and device["reason"] == TOO_OFTEN
        assert "device" in news[-1][1].to_wire() and "device" not in news[0][1].to_wire()
        # It stays so, also after the model was away.
        engine.memory.swap_out(next(iter(engine._models)))
        assert (await answered(engine, 9)).ids == LONG_PROMPT["ids"][:9]
        assert host.asked[-2:] == ["cpu", "cpu"]
        assert host.open == 1

    asyncio.run(run())


def test_where_only_a_gpu_will_do_it_is_an_error(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(*[3] * 5))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, device="gpu"), lambda *_: None)
        with pytest.raises(OctavoError) as caught:
            await answered(engine)
        assert caught.value.code == "gpu.lost"
        assert host.open == 0
        # Whoever asks next begins anew.
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        assert set(host.asked) <= {"gpu"}

    asyncio.run(run())


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_losses_in_a_load(device: Any, with_clock: Any) -> None:
    async def run() -> None:
        news: list[tuple[int, News]] = []
        host = with_clock(FlakyHost(1, 2, 1))
        engine = Engine(host, lambda key, told: news.append((key, told)))
        await engine.load(LoadConfig(context=512, device=device), lambda *_: None, key=3)
        assert [key for key, _ in news] == [3] * len(news) != []
        assert host.pauses == [1, 2]
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        host.script = [1] * 9
        if device == "auto":
            model = await engine.load(LoadConfig(context=512), lambda *_: None)
            assert model.device_reason == TOO_OFTEN
        else:
            with pytest.raises(OctavoError) as caught:
                await engine.load(LoadConfig(context=512, device="gpu"), lambda *_: None)
            assert caught.value.code == "gpu.lost"
        assert host.open == (device == "auto")

    asyncio.run(run())


@pytest.mark.parametrize("refusals", [3, 58, 300])
@pytest.mark.parametrize("device", ["auto", "gpu"])
@pytest.mark.parametrize("way", ["none", "software"])
def test_a_gpu_that_is_not_given_is_waited_for(
    refusals: int, device: Any, way: str, with_clock: Any
) -> None:
    """A software adapter is none for whom "auto" has given a real one."""

    async def run() -> None:
        host = with_clock(FlakyHost(6, *[way] * refusals))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, device=device), lambda *_: None)
        ends = (device, way) == ("gpu", "none") and refusals == 300
        if ends:
            with pytest.raises(OctavoError) as caught:
                await answered(engine)
            assert caught.value.code == "gpu.lost"
        else:
            assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        if (device, way) == ("gpu", "software"):
            assert host.pauses == []  # it was asked for
        else:
            waited = min(refusals, 60)
            assert host.pauses == [recovery.ASK_SECONDS] * waited
        fallen = device == "auto" and refusals == 300
        assert (host.asked[-1] == "cpu") == fallen
        if not ends:
            reason = engine.status()["device"]["reason"]
            assert reason == (NOT_GIVEN if fallen else "")
        assert host.open == (not ends)

    asyncio.run(run())


def test_a_gpu_that_is_wrong_after_a_loss(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(6, "wrong"))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        assert engine.status()["device"]["reason"] == WRONG

    asyncio.run(run())


@pytest.mark.parametrize("script", [[6, *["none"] * 999], [6, 1, 1, 1]])
def test_stop_ends_the_wait_at_once(script: list[Any]) -> None:
    """Real pauses, of a second and more."""

    async def run() -> None:
        host = FlakyHost(*script)
        host.clock = 5.0
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        waiting = asyncio.ensure_future(answered(engine, key=1))
        for _ in range(400):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert engine.stop(1)
        answer = await asyncio.wait_for(waiting, 0.5)
        assert answer.finish_reason == "cancelled"
        assert host.open == 0
        host.script = []
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]
        # The same in a load.
        host.script = script[1:2] * 3 if script[1] == 1 else [1, *script[1:]]
        loading = asyncio.ensure_future(engine.load(LoadConfig(context=512), lambda *_: None))
        for _ in range(400):
            await asyncio.sleep(0)
        assert not loading.done()
        assert engine.stop()
        with pytest.raises(OctavoError) as caught:
            await asyncio.wait_for(loading, 0.5)
        assert caught.value.code == "request.cancelled"

    asyncio.run(run())


def test_a_stopped_wait_is_no_part_of_the_next(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(6, *["none"] * 40))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, device="gpu"), lambda *_: None)
        waiting = asyncio.ensure_future(answered(engine, key=1))
        while len(host.pauses) < 2:
            await asyncio.sleep(0)
        engine.stop(1)
        assert (await waiting).finish_reason == "cancelled"
        host.clock += 3600
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]

    asyncio.run(run())


def test_an_outage_is_not_the_hosts_work(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(13, 3, 3))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        answer = await answered(engine)
        assert host.pauses == [1, 2]
        timing = answer.to_wire()["timing"]
        assert timing["host_ms_per_token"] == 0
        assert timing["ttft_ms"] in (0, 3e3), "the clock stands still otherwise"

    asyncio.run(run())


def test_several_answers_and_losses(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(*range(8, 30, 2)))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, kv_tokens=2048), lambda *_: None)
        answers = await asyncio.gather(*(answered(engine, 60) for _ in range(3)))
        assert [answer.ids for answer in answers] == [LONG_PROMPT["ids"][:60]] * 3
        assert len(host.asked) > 2
        assert host.open == 1

    asyncio.run(run())


def test_a_loss_in_a_measurement(with_clock: Any) -> None:
    async def run() -> None:
        host = with_clock(FlakyHost(4, 6))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        speed = await engine.measure(MeasureConfig(40, 100, 5))
        assert speed["burst"]
        assert len(host.asked) == 3
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]

    asyncio.run(run())


def test_a_loss_in_other_work_on_a_model(with_clock: Any) -> None:
    async def run() -> None:
        engine = Engine(with_clock(FlakyHost()))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        models = []

        async def work(ready: Ready, stopped: Stopped) -> int:
            models.append(ready)
            if len(models) == 1:
                raise OctavoError("gpu.lost")
            return len(models)

        assert await engine.use(work, None) == 2
        assert models[0] is not models[1]
        with pytest.raises(ZeroDivisionError):
            await engine.use(lambda *_: 1 // 0, None)  # type: ignore[arg-type]
        assert engine.state == "ready"

    asyncio.run(run())


def test_a_load_that_fails_in_another_way_is_not_repeated() -> None:
    async def run() -> None:
        host = FlakyHost("none")
        with pytest.raises(OctavoError) as caught:
            await Engine(host).load(LoadConfig(device="gpu"), lambda *_: None)
        assert caught.value.code == "gpu.unavailable"
        assert host.asked == ["gpu"]

    asyncio.run(run())


def test_the_page_is_told() -> None:
    async def run() -> None:
        client = Client(FlakyHost(3))
        await client.ask("load", context=512)
        messages = [{"role": "user", "content": "Hello"}]
        await client.ask("generate", messages=messages, max_tokens=9)
        told = [reply for reply in client.messages if reply["kind"] == "recovery"]
        assert [(reply["state"], reply["losses"]) for reply in told] == [
            ("loading", 1),
            ("ready", 1),
        ]
        assert len({reply["id"] for reply in told}) == 1
        assert told[-1]["device"]["kind"] == "cpu"

    asyncio.run(run())


@pytest.mark.parametrize("at", [5, 6])
def test_a_loss_in_the_rehearsal_of_a_load(
    at: int, with_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the warm-up, which is four runs where that is quick."""
    monkeypatch.setattr(loader, "QUICK_SECONDS", 1e9)

    async def run() -> None:
        host = with_clock(FlakyHost(at, at))
        engine = Engine(host)
        await engine.load(LoadConfig(context=512), lambda *_: None)
        assert host.pauses == [1]
        assert host.open == 1
        assert (await answered(engine)).ids == LONG_PROMPT["ids"][:40]

    asyncio.run(run())


def test_a_loss_while_another_answer_is_tokenized() -> None:
    """Its tokenizer is closed under it."""

    async def run() -> None:
        host = FlakyHost(7)
        client = Client(host)
        await client.ask("load", context=512)
        slot = next(iter(client.worker._engine._models))
        assert slot.ready
        encoder, reached = slot.ready.model.encoder, asyncio.Event()

        async def closed(text: str) -> list[int]:
            reached.set()
            while slot.ready and slot.ready.model.encoder is encoder:
                await asyncio.sleep(0)
            raise RuntimeError("The helper has been closed.")

        encoder.encode = closed  # type: ignore[method-assign]
        messages = [{"role": "user", "content": "Hello"}]
        late = client.send("generate", messages=messages, max_tokens=9)
        await reached.wait()
        assert (await answered(client.worker._engine)).ids == LONG_PROMPT["ids"][:40]
        first = await client.ended(late)
        again = await client.ask("generate", messages=messages, max_tokens=9)
        assert first["kind"] == "result", first
        assert first["value"]["ids"] == again["value"]["ids"]

    asyncio.run(run())
