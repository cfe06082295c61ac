"""The engine natively on the CPU device, against the golden files and against itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import gguf
import pytest

from engine import loader
from engine.answer import Answer, Delta
from engine.backends.cpu import CpuDevice
from engine.backends.null import NullDevice
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.models.plans import DECODE, HEAD, PREFILL, SAMPLE
from engine.scheduler import DECODE_SECONDS, Pace
from tests.golden import make_tiny
from tests.native import NativeHost, ready_of
from tests.unit.engines import CHAT, GOLDEN, chat, complete, golden, loaded

pytestmark = pytest.mark.usefixtures("no_device_is_quick")


@pytest.mark.golden
@pytest.mark.parametrize("name", make_tiny.MODELS)
def test_greedy_ids_equal_the_oracle(name: str) -> None:
    async def run() -> None:
        engine = await loaded(name, shard_size=10000)
        for prompt in golden(name)["prompts"]:
            answer = await complete(engine, prompt["prompt_ids"], max_tokens=200)
            assert answer.ids == prompt["ids"]
            assert answer.finish_reason == "length"

    asyncio.run(run())


@pytest.mark.golden
@pytest.mark.parametrize("name", ["tiny", "tiny_gemma3", "tiny_phi3"])
def test_chat_equals_the_oracle(name: str) -> None:
    async def run() -> None:
        engine = await loaded(name)
        for prompt in golden(name)["prompts"]:
            if "messages" in prompt:
                answer = await chat(engine, prompt["messages"], max_tokens=200)
                assert answer.ids == prompt["ids"]
                # transformers shows bytes of pieces that are no UTF-8 in another way.
                assert name != "tiny" or answer.text == prompt["text"]

    asyncio.run(run())


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model with the vocabulary of tokens_pieces.json."""
    vocabulary = golden("tokens_pieces")

    def add_tokenizer(writer: gguf.GGUFWriter, family: make_tiny.Family) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(vocabulary["tokens"])
        writer.add_token_scores(vocabulary["scores"])
        writer.add_token_types(vocabulary["types"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    monkeypatch.setattr(make_tiny, "add_tokenizer", add_tokenizer)
    monkeypatch.setattr(make_tiny, "VOCAB", len(vocabulary["tokens"]))
    path = tmp_path / "pieces.gguf"
    make_tiny.write(path, 1, gguf.GGMLQuantizationType.Q4_0, tied=True)
    return path


def test_an_answer_in_pieces_does_not_begin_with_the_tokenizers_space(pieces: Path) -> None:
    the = golden("tokens_pieces")["tokens"].index("\u2581the")
    config: dict[str, Any] = {"logit_bias": ((the, 100.0),), "max_tokens": 3}

    async def run() -> None:
        engine = Engine(NativeHost(pieces))
        await engine.load(LoadConfig(context=256), lambda *_: None)
        answer = await chat(engine, CHAT, **config)
        assert (answer.ids, answer.text) == ([the] * 3, "the the the")
        # Ids that are given are no chat: what is said joins the text before them.
        assert (await complete(engine, [1, the], **config)).text == " the the the"
        texts = []
        async for event in engine.generate(CHAT, GenerateConfig(**config), 1):
            texts.append(event.text)
        async for event in engine.go_on(1, GenerateConfig(**config)):
            if isinstance(event, Answer):
                assert event.text == " the the the"
        assert texts[-1] == "the the the"

    asyncio.run(run())


def test_an_answer_whose_text_has_not_begun_goes_on_without_the_tokenizers_space(
    pieces: Path,
) -> None:
    the = golden("tokens_pieces")["tokens"].index("\u2581the")

    async def run() -> None:
        engine = Engine(NativeHost(pieces))
        await engine.load(LoadConfig(context=256), lambda *_: None)

        async def text(events: AsyncGenerator[Delta | Answer, None]) -> str:
            return "".join([event.text async for event in events if isinstance(event, Delta)])

        def forced(id: int) -> GenerateConfig:
            return GenerateConfig(max_tokens=1, logit_bias=((id, 1e3),))

        assert await text(engine.generate(CHAT, forced(1), 1)) == "", "a control token has no text"
        assert await text(engine.go_on(1, forced(the), 2)) == "the"
        assert await text(engine.go_on(2, forced(the), 3)) == " the"

    asyncio.run(run())


def test_chunks_and_bursts_change_nothing() -> None:
    """Prefill in one chunk or in many, and decode step by step or in bursts."""

    async def run() -> None:
        ids = golden("tiny")["prompts"][3]["prompt_ids"]
        answers = []
        for chunk, burst in ((1, 1), (3, 1), (16, 7), (16, 32)):
            engine = await loaded()
            scheduler = ready_of(engine).scheduler
            scheduler.prefill_pace.size = chunk
            scheduler.decode_pace.size = burst
            # Fixed sizes: nothing is learned.
            scheduler.prefill_pace.measured = lambda *_: None  # type: ignore[method-assign]
            scheduler.decode_pace.measured = lambda *_: None  # type: ignore[method-assign]
            answers.append((await complete(engine, ids, max_tokens=50)).ids)
        assert answers[1:] == answers[:-1]

    asyncio.run(run())


def test_same_seed_same_text_and_another_seed_another() -> None:
    async def run() -> None:
        engine = await loaded()
        texts = []
        for seed in (7, 7, 8):
            await engine.reset()
            texts.append((await chat(engine, CHAT, temperature=0.9, seed=seed, max_tokens=40)).ids)
        assert texts[0] == texts[1] != texts[2]

    asyncio.run(run())


def test_second_turn_computes_only_what_is_new() -> None:
    async def run() -> None:
        engine = await loaded()
        first = await chat(engine, CHAT, max_tokens=5)
        again = [
            *CHAT,
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "And now?"},
        ]
        second = await chat(engine, again, max_tokens=20)
        assert second.cached_tokens >= first.prompt_tokens
        fresh = await loaded()
        assert (await chat(fresh, again, max_tokens=20)).ids == second.ids

    asyncio.run(run())


def test_stop_keeps_the_text_and_the_next_answer_is_right() -> None:
    async def run(after: int) -> None:
        engine = await loaded()
        texts: list[str] = []
        async for event in engine.generate(CHAT, GenerateConfig(max_tokens=200)):
            if isinstance(event, Delta):
                texts.append(event.text)
                if event.num_tokens >= after:
                    engine.stop()
            else:
                assert event.finish_reason == "cancelled"
                assert after <= len(event.ids) < 200
                assert "".join(texts) == event.text
                assert event.ids == golden("tiny")["prompts"][1]["ids"][: len(event.ids)]
        assert engine.state == "ready"
        prompt = golden("tiny")["prompts"][0]
        assert (await chat(engine, prompt["messages"], max_tokens=200)).ids == prompt["ids"]

    for after in (1, 2, 13, 60):
        asyncio.run(run(after))


def test_stop_in_prefill() -> None:
    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device=device)
        run = device.run

        def run_and_stop(*args: Any) -> Awaitable[list[int]]:
            engine.stop()
            return run(*args)

        device.run = run_and_stop  # type: ignore[method-assign,assignment]
        prompt = golden("tiny")["prompts"][3]
        answer = await complete(engine, prompt["prompt_ids"], max_tokens=50)
        assert (answer.ids, answer.finish_reason) == ([], "cancelled")
        device.run = run  # type: ignore[method-assign]
        again = await complete(engine, prompt["prompt_ids"], max_tokens=50)
        assert again.ids == prompt["ids"][:50]
        assert again.cached_tokens == 4, "one chunk was computed, and was kept"

    asyncio.run(run())


def test_an_abandoned_answer_leaves_nothing_behind() -> None:
    async def run() -> None:
        engine = await loaded()
        events = engine.generate(CHAT, GenerateConfig(max_tokens=200))
        await anext(events)
        await events.aclose()
        assert engine.state == "ready"
        assert (await chat(engine, CHAT, max_tokens=30)).ids == golden("tiny")["prompts"][1]["ids"][
            :30
        ]

    asyncio.run(run())


def test_reset_gives_all_blocks_back_and_the_same_first_answer() -> None:
    async def run() -> None:
        engine = await loaded()
        first = await chat(engine, CHAT, max_tokens=60)
        assert engine.status()["kv"]["free_blocks"] < engine.status()["kv"]["num_blocks"]
        await engine.reset()
        assert engine.status()["kv"]["free_blocks"] == engine.status()["kv"]["num_blocks"]
        again = await chat(engine, CHAT, max_tokens=60)
        assert (again.ids, again.cached_tokens) == (first.ids, 0)

    asyncio.run(run())


def test_reset_while_generating_waits_for_the_end() -> None:
    async def run() -> None:
        engine = await loaded()
        task = asyncio.ensure_future(chat(engine, CHAT, max_tokens=400))
        await asyncio.sleep(0)
        assert engine.state == "generating"
        await engine.reset()
        assert (await task).finish_reason == "cancelled"
        kv = engine.status()["kv"]
        assert kv["free_blocks"] == kv["num_blocks"]

    asyncio.run(run())


def test_the_context_ends_an_answer() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=40), lambda *_: None)
        ids = golden("tiny")["prompts"][0]["prompt_ids"]
        answer = await complete(engine, ids)
        assert answer.ids == golden("tiny")["prompts"][0]["ids"][: 40 - len(ids)]
        assert answer.finish_reason == "length"
        with pytest.raises(OctavoError) as caught:
            await complete(engine, [5] * 40)
        assert caught.value.code == "prompt.too_long"
        assert (await complete(engine, ids, max_tokens=3)).ids == answer.ids[:3]

    asyncio.run(run())


def test_busy_and_not_loaded() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        with pytest.raises(OctavoError) as caught:
            await chat(engine, CHAT)
        assert caught.value.code == "engine.not_loaded"
        engine = await loaded()
        task = asyncio.ensure_future(chat(engine, CHAT, max_tokens=100))
        await asyncio.sleep(0)
        with pytest.raises(OctavoError) as caught:
            await engine.measure(MeasureConfig(40, 100, 5))
        assert caught.value.code == "engine.busy"
        assert (await task).finish_reason == "length"
        measuring = asyncio.ensure_future(engine.measure(MeasureConfig(40, 100, 5)))
        await asyncio.sleep(0)
        with pytest.raises(OctavoError) as caught:
            await chat(engine, CHAT)
        assert caught.value.code == "engine.busy"
        await measuring
        await engine.unload()
        assert engine.status() == {"state": "empty"}

    asyncio.run(run())


def test_what_the_device_is_asked_to_do() -> None:
    """The exact runs and block table writes of a short answer, on the null device."""

    async def run() -> None:
        device = NullDevice(sampled_id=77)
        engine = await loaded(device=device)
        scheduler = ready_of(engine).scheduler
        scheduler.prefill_pace.measured = lambda *_: None  # type: ignore[method-assign]
        scheduler.decode_pace.measured = lambda *_: None  # type: ignore[method-assign]
        scheduler.prefill_pace.size, scheduler.decode_pace.size = 16, 4
        device.log.clear()
        await complete(engine, list(range(3, 33)), max_tokens=10)
        runs = [entry for entry in device.log if isinstance(entry[0], tuple)]
        assert runs == [
            ((PREFILL,), 16, 1),
            ((PREFILL,), 14, 1),
            ((HEAD, SAMPLE), 14, 1),
            ((DECODE, SAMPLE), 1, 4),
            ((DECODE, SAMPLE), 1, 4),
            ((DECODE, SAMPLE), 1, 1),
        ]
        tables = [entry[1:] for entry in device.log if entry[0] == "block_table"]
        assert tables == [(0, bytes([0, 0, 0, 0, 1, 0, 0, 0])), (8, bytes([2, 0, 0, 0]))]
        await engine.reset()
        device.log.clear()
        await complete(engine, [3, 4], max_tokens=1)
        tables = [entry[1:] for entry in device.log if entry[0] == "block_table"]
        assert tables == [(0, bytes(4))]

    asyncio.run(run())


def test_stopping_a_load_leaves_nothing() -> None:
    class SlowHost(NativeHost):
        async def read_shard(self, index: int) -> bytes:
            await asyncio.sleep(0.01)
            return await super().read_shard(index)

    async def run() -> None:
        host = SlowHost(GOLDEN / "tiny.gguf", shard_size=5000)
        engine = Engine(host)
        task = asyncio.ensure_future(engine.load(LoadConfig(), lambda *_: None))
        await asyncio.sleep(0.1)
        assert engine.state == "loading"
        assert engine.stop()
        with pytest.raises(OctavoError) as caught:
            await task
        assert caught.value.code == "request.cancelled"
        assert host.cancelled
        assert engine.status() == {"state": "empty"}

    asyncio.run(run())


def test_two_loads_at_once() -> None:
    """The second is refused, also while the first still waits for an answer to end."""

    async def run() -> None:
        engine = await loaded()
        answer = asyncio.ensure_future(chat(engine, CHAT, max_tokens=400))
        await asyncio.sleep(0)
        loads = [
            asyncio.ensure_future(engine.load(LoadConfig(context=512), lambda *_: None))
            for _ in range(2)
        ]
        outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert [getattr(o, "code", "loaded") for o in outcomes] == ["loaded", "engine.busy"]
        assert (await answer).finish_reason == "cancelled"
        again = await chat(engine, CHAT, max_tokens=9)
        assert again.ids == golden("tiny")["prompts"][1]["ids"][:9]

    asyncio.run(run())


def test_load_stop_load() -> None:
    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        first = asyncio.ensure_future(engine.load(LoadConfig(), lambda *_: None))
        await asyncio.sleep(0)
        engine.stop()
        engine._host = engine._models.host = NativeHost(GOLDEN / "tiny.gguf")
        await engine.load(LoadConfig(context=512), lambda *_: None)
        with pytest.raises(OctavoError):
            await first
        answer = await chat(engine, CHAT, max_tokens=9)
        assert answer.ids == golden("tiny")["prompts"][1]["ids"][:9]

    asyncio.run(run())


def test_a_load_that_waits_for_an_answer_can_be_stopped() -> None:
    async def run() -> None:
        engine = await loaded()
        answer = asyncio.ensure_future(chat(engine, CHAT, max_tokens=400))
        await asyncio.sleep(0)
        load = asyncio.ensure_future(engine.load(LoadConfig(), lambda *_: None))
        await asyncio.sleep(0)
        assert engine.stop()
        with pytest.raises(OctavoError) as caught:
            await load
        assert caught.value.code == "request.cancelled"
        await answer

    asyncio.run(run())


@pytest.mark.parametrize("change", ["reset", "unload"])
def test_no_answer_begins_in_the_middle_of_a_change(change: str) -> None:
    """Answers are queued all around a reset or an unload; none of them sees half of it."""

    async def run() -> None:
        engine = await loaded()
        tasks = [asyncio.ensure_future(chat(engine, CHAT, max_tokens=30)) for _ in range(3)]
        for _ in range(40):
            await asyncio.sleep(0)
            tasks.append(asyncio.ensure_future(getattr(engine, change)()))
            tasks.append(asyncio.ensure_future(chat(engine, CHAT, max_tokens=30)))
        want = golden("tiny")["prompts"][1]["ids"]
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Answer):
                assert outcome.ids == want[: len(outcome.ids)]
            elif outcome is not None:
                assert isinstance(outcome, OctavoError)
                assert outcome.code in ("engine.busy", "engine.not_loaded")
        await engine.reset()
        kv = engine.status().get("kv", {})
        assert kv.get("free_blocks") == kv.get("num_blocks")

    asyncio.run(run())


def test_an_answer_that_waits_for_the_end_of_a_reset_can_be_stopped() -> None:
    async def run() -> None:
        engine = await loaded()

        def asked(key: int) -> asyncio.Task[Answer]:
            async def last() -> Answer:
                async for event in engine.generate(CHAT, GenerateConfig(max_tokens=300), key):
                    if isinstance(event, Answer):
                        return event
                raise AssertionError

            return asyncio.ensure_future(last())

        first = asked(1)
        while engine.state != "generating":
            await asyncio.sleep(0)
        reset, second, third = asyncio.ensure_future(engine.reset()), asked(2), asked(3)
        await asyncio.sleep(0)
        assert not first.done()
        assert engine.stop(2) and not engine.stop(2)
        ends = [answer.finish_reason for answer in await asyncio.gather(first, second, third)]
        assert ends == ["cancelled", "cancelled", "length"]
        await reset

    asyncio.run(run())


def test_a_measurement_begins_beside_no_answer() -> None:
    """One that was asked for earlier, and has not begun, is beside it, too."""

    async def run() -> None:
        engine = await loaded()
        first = asyncio.ensure_future(chat(engine, CHAT, max_tokens=300))
        while engine.state != "generating":
            await asyncio.sleep(0)
        reset = asyncio.ensure_future(engine.reset())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(chat(engine, CHAT, max_tokens=9))
        while engine.state == "generating":
            await asyncio.sleep(0)
        with pytest.raises(OctavoError) as caught:
            await engine.measure(MeasureConfig(4, 9, 1))
        assert caught.value.code == "engine.busy"
        assert (await second).ids == golden("tiny")["prompts"][1]["ids"][:9]
        await asyncio.gather(first, reset)

    asyncio.run(run())


def test_a_device_that_fails_leaves_the_engine_usable() -> None:
    async def run(failing_run: int) -> None:
        device = CpuDevice()
        engine = await loaded(device=device)
        scheduler = ready_of(engine).scheduler
        scheduler.decode_pace.size = 8  # two bursts in flight, as on a GPU
        scheduler._most_in_flight = 2
        good, count = device.run, 0

        def sometimes(*args: Any) -> Awaitable[list[int]]:
            nonlocal count
            count += 1
            if count == failing_run:
                raise RuntimeError("the device broke")
            return good(*args)

        device.run = sometimes  # type: ignore[method-assign,assignment]
        with pytest.raises(RuntimeError):
            await chat(engine, CHAT, max_tokens=100)
        assert engine.state == "ready"
        answer = await chat(engine, CHAT, max_tokens=9)
        assert answer.ids == golden("tiny")["prompts"][1]["ids"][:9]

    for failing_run in range(1, 8):
        asyncio.run(run(failing_run))


def test_an_empty_prompt() -> None:
    async def run() -> None:
        engine = await loaded()
        with pytest.raises(OctavoError) as caught:
            await complete(engine, [])
        assert caught.value.code == "prompt.empty"

    asyncio.run(run())


def test_stopping_in_the_rehearsal_leaves_nothing() -> None:
    """On a device with large chunks, loading ends with a short answer."""

    async def run() -> None:
        device = CpuDevice(chunk=512)
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf", device=device))
        run, count = device.run, 0

        async def stopping(*args: Any) -> list[int]:
            nonlocal count
            count += 1
            if count == 5:  # the warm-up takes four runs
                engine.stop()
                await asyncio.sleep(0)
            return await run(*args)

        device.run = stopping  # type: ignore[method-assign,assignment]
        with pytest.raises(OctavoError) as caught:
            await engine.load(LoadConfig(context=512), lambda *_: None)
        assert caught.value.code == "request.cancelled"
        assert count == 6, "its head and sampler were submitted with it, and nothing after"
        assert engine.status() == {"state": "empty"}
        assert device.memory() == {}

    asyncio.run(run())


def test_a_quick_device_rehearses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        slow = await loaded()
        monkeypatch.setattr(loader, "QUICK_SECONDS", 1e9)
        quick = await loaded()
        assert ready_of(slow).model.prefill_sample is None
        assert ready_of(quick).model.prefill_sample
        paces = [ready_of(engine).scheduler.prefill_pace.size for engine in (slow, quick)]
        assert paces[0] < paces[1]
        ids = golden("tiny")["prompts"][1]["ids"][:9]
        assert (await chat(quick, CHAT, max_tokens=9)).ids == ids

    asyncio.run(run())


def test_measure() -> None:
    async def run() -> None:
        engine = await loaded()
        speed = await engine.measure(MeasureConfig(40, 100, 5))
        assert speed["prefill_tokens_per_s"] > 0 < speed["decode_tokens_per_s"]
        assert "encoded" not in speed
        encoded = (await engine.measure(MeasureConfig(4, 9, 1, text="1 2 3")))["encoded"]
        assert encoded["tokens"] == 5 and encoded["ms"] > 0
        assert speed["dispatches_per_token"] == 6 * 3 + 4
        assert (await chat(engine, CHAT, max_tokens=9)).ids == golden("tiny")["prompts"][1]["ids"][
            :9
        ]

    asyncio.run(run())


def test_bursts_of_the_cpu_are_as_long_as_they_should_be() -> None:
    """A device that computes when it is waited for is not thought quicker than it is."""

    async def run() -> None:
        device = CpuDevice()
        engine = await loaded(device=device)
        run_burst, sizes = device.run, list[int]()

        async def slowly(
            plans: list[str], tokens: int, repeat: int, first: int, count: int
        ) -> list[int]:
            if plans[0] == DECODE:
                sizes.append(repeat)
                time.sleep(repeat * DECODE_SECONDS / 2.5)
            return await run_burst(plans, tokens, repeat, first, count)

        device.run = slowly  # type: ignore[method-assign,assignment]
        await chat(engine, CHAT, max_tokens=40)
        assert max(sizes[3:]) <= 3

    asyncio.run(run())


def test_what_waited_for_a_stop_string_is_said_by_an_answer_stopped_while_it_waits() -> None:
    """For room in the KV cache: four blocks, of which the other answer needs three."""

    async def run() -> None:
        engine = Engine(NativeHost(GOLDEN / "tiny.gguf"))
        await engine.load(LoadConfig(context=64), lambda *_: None)
        short, long = list(range(40, 54)), list(range(3, 37))
        alone = await complete(engine, short, max_tokens=30)
        await engine.reset()
        ready_of(engine).scheduler.decode_pace = Pace(1.0, 1, 1)  # one token a turn
        # What it says might be the beginning of this all the time.
        held = GenerateConfig(stop=(alone.text + "!",))

        async def end_of(events: Any) -> Answer:
            async for event in events:
                if isinstance(event, Answer):
                    return event
            raise AssertionError("no answer")

        other = asyncio.ensure_future(end_of(engine.complete(long, GenerateConfig(), 1)))
        mine = asyncio.ensure_future(end_of(engine.complete(short, held, 2)))
        while not any(request.waiting for request in engine._requests):
            assert not mine.done() and not other.done()
            await asyncio.sleep(0)
        assert engine.stop(2)
        answer = await mine
        assert answer.finish_reason == "cancelled"
        assert answer.text == alone.text[: len(answer.text)] != ""
        await other

    asyncio.run(run())
