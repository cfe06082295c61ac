"""Several models in one budget of memory: each answers as if it were alone, whoever is there."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import loader, recovery
from engine.answer import Answer, Delta
from engine.backends.base import Device, Progress
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig, MeasureConfig
from engine.encoders import Encoders
from engine.engine import Engine
from engine.errors import OctavoError
from engine.host.local import SHARD_BYTES
from engine.kv import budget
from engine.plan import Plan, Tensor
from tests.conftest import ROOT
from tests.native import NativeHost
from tests.unit.test_embedding import expected
from tests.unit.test_encoder import BERT, made_in, tokenizer
from tests.unit.worker_client import Client

GOLDEN = ROOT / "tests/golden"
NAMES = ["tiny", "tiny_qwen2", "tiny_qwen3"]
PROMPT = 3  # of the golden files: given as ids
TEXTS = ("w3 w7 w7", "w1")
BLOCK_BYTES = 2 * 3 * 2 * 16 * 16 * 4  # of KV in the tiny model: see test_growth


@pytest.fixture(autouse=True)
def no_device_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "QUICK_SECONDS", 0.0)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_in(tmp_path_factory.mktemp("encoder"))


@cache
def golden(name: str) -> dict[str, Any]:
    document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    prompt: dict[str, Any] = document["prompts"][PROMPT]
    return prompt


class Watched(CpuDevice):
    """Tells its host whenever it has taken memory; the host's ``lose`` makes its runs fail."""

    def __init__(self, host: ManyHost, key: str) -> None:
        super().__init__()
        self.host, self.key = host, key

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        await super().allocate(tensors)
        self.host.look()

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        await super().compile(plans, progress)
        self.host.look()

    async def grow(self, tensors: Sequence[Tensor]) -> bool:
        # The old pools are there until the new ones are filled.
        self.host.look(sum(4 * prod(tensor.shape) for tensor in tensors))
        grown = await super().grow(tensors)
        self.host.grown.append(self.key)
        self.host.look()
        return grown

    async def run(self, *args: Any) -> list[int]:
        for _ in range(20):  # a tiny model on the CPU would not let anybody in
            await asyncio.sleep(0)
        if self.key in self.host.lost:
            self.host.lost.remove(self.key)
            raise OctavoError("gpu.lost")
        return await super().run(*args)


class ManyHost(NativeHost):
    """Golden models by their names, and the encoder of a folder by any name that begins with
    "encoder", each on a device of its own. ``opened`` are the names in the order of loads,
    ``most`` the bytes that there were at most."""

    def __init__(self, encoder: Path | None = None) -> None:
        super().__init__(GOLDEN / "tiny.gguf")
        self.encoder = encoder
        self.shard_size = 100_000
        self.key = ""
        self.opened: list[str] = []
        self.devices: list[Watched] = []
        self.most = 0
        self.lost: list[str] = []
        self.grown: list[str] = []
        self.broken: set[str] = set()
        self.gate = asyncio.Event()  # through which shards come from ``gate_from`` on
        self.gate_from = 0
        self.gate.set()

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        self.key = manifest
        self.opened.append(manifest)
        if self.encoder and manifest.startswith("encoder"):
            self._shard_size, self.cancelled = SHARD_BYTES, False
            self._cut(sorted(self.encoder.glob("*.bin")))
            return (self.encoder / "manifest.json").read_text()
        self.serve(GOLDEN / f"{manifest or 'tiny'}.gguf")
        text = await super().open_shards(manifest, progress)
        sha256 = hashlib.sha256(self.data).hexdigest()
        return json.dumps({"name": manifest, "sha256": sha256} | json.loads(text))

    async def read_shard(self, index: int) -> bytes:
        if index >= self.gate_from:
            await self.gate.wait()
        if self.key in self.broken and index:
            raise OctavoError("shard.network")
        return await super().read_shard(index)

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        self.devices.append(Watched(self, config.model))
        return self.devices[-1], ""

    @property
    def held(self) -> int:
        return sum(sum(device.memory().values()) for device in self.devices)

    def look(self, more: int = 0) -> None:
        self.most = max(self.most, self.held + more)


class Bench:
    """An engine of three models, and an encoder, in a budget of so many bytes."""

    def __init__(self, nbytes: int | None, encoder: Path | None = None) -> None:
        self.host = ManyHost(encoder)
        self.engine = Engine(self.host)
        self.encoders = Encoders(self.host, self.engine.memory)
        self.nbytes = nbytes

    async def load(self, *names: str, **config: Any) -> None:
        for name in names:
            settings = {"context": 512, "memory_bytes": self.nbytes, **config}
            await self.engine.load(LoadConfig(model=name, **settings), lambda *_: None)
            self.within()

    def ask(
        self, model: str | None = None, count: int = 20, key: int | None = None
    ) -> asyncio.Task[Answer]:
        prompt = golden(model or NAMES[0])["prompt_ids"]
        config = GenerateConfig(max_tokens=count)
        return collect(self.engine.complete(prompt, config, key, model))

    def embed(
        self, texts: Sequence[str] = TEXTS, name: str = "encoder", key: int = -1
    ) -> asyncio.Task[list[Any]]:
        async def vectors() -> list[Any]:
            config = LoadConfig(name, device="cpu")
            answer = await self.encoders.create(config, texts, lambda *_: None, key)
            return [
                np.frombuffer(b64decode(each["embedding"]), np.float32) for each in answer["data"]
            ]

        return asyncio.ensure_future(vectors())

    async def embeds(self, texts: Sequence[str] = TEXTS) -> None:
        np.testing.assert_allclose(await self.embed(texts), vectors_of(*texts), atol=1e-5)
        self.check()

    async def right(self, model: str, count: int = 20) -> None:
        answer = await self.ask(model, count)
        assert answer.ids == golden(model)["ids"][:count]
        self.check()

    @property
    def resident(self) -> list[str]:
        return [m["model"] for m in self.engine.status().get("models", []) if m["resident"]]

    def within(self) -> None:
        assert self.nbytes is None or self.host.most <= self.nbytes

    def check(self) -> None:
        """With no model on its way."""
        self.within()
        held = sum(m["memory_bytes"] for m in self.engine.status().get("models", []))
        held += (self.encoders.describe() or {"memory_bytes": 0})["memory_bytes"]
        assert held == self.host.held, "what is swapped out holds nothing"


@cache
def vectors_of(*texts: str) -> list[Any]:
    plain = tokenizer()
    plain.no_padding()
    plain.enable_truncation(20)
    return [expected(BERT, plain.encode(text).ids) for text in texts]


def collect(events: Any) -> asyncio.Task[Answer]:
    async def run() -> Answer:
        text = ""
        async for event in events:
            if isinstance(event, Answer):
                assert event.text == text
                return event
            text += event.text
        raise AssertionError

    return asyncio.ensure_future(run())


async def until(condition: Callable[[], object], steps: int = 20_000) -> None:
    for _ in range(steps):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def some_steps() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def code(work: Awaitable[Any]) -> str:
    with pytest.raises(OctavoError) as caught:
        await work
    return caught.value.code


@cache
def size(name: str, **config: Any) -> int:
    """Bytes that a model holds alone."""

    async def run() -> int:
        bench = Bench(None)
        await bench.load(name, **config)
        assert bench.host.held == bench.host.most
        return bench.host.held

    return asyncio.run(run())


def test(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


test.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.golden
def test_two_models_answer_in_turn_in_a_budget_for_one_and_for_both() -> None:
    one, two = NAMES[:2]
    each = max(size(one), size(two))

    async def run(nbytes: int, resident: int, loads: list[str]) -> None:
        bench = Bench(nbytes)
        await bench.load(one, two)
        for _ in range(2):
            for name in (one, two):
                await bench.right(name, 60)
                assert len(bench.resident) == resident
                assert name in bench.resident
        assert bench.host.opened == loads
        assert bench.engine.status()["budget_bytes"] == nbytes
        answers = await asyncio.gather(bench.ask(one, 60), bench.ask(two, 60), bench.ask(None, 60))
        assert [a.ids for a in answers[:2]] == [golden(n)["ids"][:60] for n in (one, two)]
        bench.check()

    test(lambda: run(each, 1, [one, two, one, two, one, two]))
    test(lambda: run(size(one) + size(two) - 1, 1, [one, two, one, two, one, two]))
    test(lambda: run(size(one) + size(two), 2, [one, two]))


def test_what_a_model_needs_is_known_to_the_byte() -> None:
    async def run() -> None:
        for name in NAMES:
            await Bench(size(name)).load(name)
            bench = Bench(size(name) - 1)
            assert await code(bench.load(name)) == "memory.budget"
            assert bench.host.most == 0, "it is refused before anything is allocated"
            assert bench.engine.status() == {"state": "empty"}

    for name in NAMES:
        size(name)
    test(run)


def test_the_error_says_what_is_wanted_and_what_there_is() -> None:
    async def run() -> None:
        with pytest.raises(OctavoError) as caught:
            await Bench(1000).load("tiny")
        assert f"{wanted:,}" in caught.value.message and "1,000" in caught.value.message

    wanted = size("tiny")
    test(run)


def test_the_model_that_was_used_longest_ago_goes_first() -> None:
    async def run() -> None:
        bench = Bench(sum(sizes) - 1)
        one, two, three = NAMES
        await bench.load(one, two)
        await bench.right(one)
        await bench.load(three)
        assert bench.resident == [one, three]
        await bench.right(two)
        assert bench.resident == [two, three]
        await bench.right(three)
        await bench.right(one)
        assert bench.resident == [one, three]
        assert [m["model"] for m in bench.engine.status()["models"]] == NAMES

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_model_that_answers_is_not_swapped_out() -> None:
    """Who needs its room waits, and is not passed by those who come later."""

    async def run() -> None:
        bench = Bench(max(sizes))
        one, two = NAMES[:2]
        await bench.load(two, one)
        long = bench.ask(one, 100)
        await until(lambda: bench.engine.state == "generating")
        other = bench.ask(two)
        await until(lambda: bench.engine.memory._short)
        later = [bench.ask(one), bench.ask(two)]
        while not long.done():
            assert bench.resident == [one] and not any(t.done() for t in (other, *later))
            await asyncio.sleep(0)
        assert (await long).ids == golden(one)["ids"][:100]
        assert (await other).ids == golden(two)["ids"][:20]
        assert not later[0].done(), "each had its turn"
        assert (await later[0]).ids == golden(one)["ids"][:20]
        assert (await later[1]).ids == golden(two)["ids"][:20]
        assert bench.host.opened == [two, one, two, one, two] or bench.host.opened == [
            *(two, one, two, one)
        ]
        bench.check()

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_stop_ends_the_wait() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        one, two = NAMES[:2]
        await bench.load(two, one)
        long = bench.ask(one, 150, key=1)
        await until(lambda: bench.engine.state == "generating")
        waiting = [bench.ask(two, key=2), bench.ask(two, key=3)]
        await some_steps()
        for key, task in zip((3, 2), reversed(waiting), strict=True):
            assert bench.engine.stop(key)
            answer = await task
            assert (answer.ids, answer.finish_reason) == ([], "cancelled")
            assert not long.done()
        assert (await long).ids == golden(one)["ids"][:150]
        await bench.right(two)
        await bench.right(one)

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_stop_ends_the_way_back() -> None:
    """While its weights are read: nothing of it stays, and it comes back for the next."""

    async def run() -> None:
        bench = Bench(max(sizes))
        one, two = NAMES[:2]
        await bench.load(two, one)
        bench.host.gate.clear()
        answers = [bench.ask(two, key=1), bench.ask(two, key=2)]
        await until(lambda: bench.host.opened.count(two) == 2)
        assert bench.engine.stop(1)
        assert (await answers[0]).finish_reason == "cancelled"
        await until(lambda: bench.host.opened.count(two) == 3)
        assert bench.engine.stop()
        assert (await answers[1]).finish_reason == "cancelled"
        bench.host.gate.set()
        bench.check()
        await bench.right(one)
        await bench.right(two)

    sizes = [size(name) for name in NAMES]
    test(run)


def test_an_answer_goes_on_with_its_own_model() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        one, two = NAMES[:2]
        await bench.load(one, two)
        first = await bench.ask(one, 7, key=1)
        await bench.right(two)
        assert bench.resident == [two]
        engine = bench.engine

        def go_on(earlier: int, key: int, model: str | None = None) -> asyncio.Task[Answer]:
            return collect(engine.go_on(earlier, GenerateConfig(max_tokens=8), key, model))

        bench.host.gate.clear()
        stopped = go_on(1, 2)
        await some_steps()
        engine.stop(2)
        assert (await stopped).ids == []
        bench.host.gate.set()
        assert await code(go_on(1, 9, two)) == "request.invalid"
        second = await go_on(2, 3, one)
        await bench.right(two)
        third = await go_on(3, 4)
        assert first.ids + second.ids + third.ids == golden(one)["ids"][:23]
        await engine.unload(one)
        assert await code(go_on(4, 5)) == "request.invalid"
        await bench.right(two)

    sizes = [size(name) for name in NAMES]
    test(run)


@pytest.mark.parametrize("resident", [False, True])
def test_one_is_unloaded(resident: bool) -> None:
    async def run() -> None:
        bench = Bench(sum(sizes[:2]) if resident else max(sizes))
        one, two = NAMES[:2]
        await bench.load(one, two)
        answer, stays = bench.ask(one, 300), None
        await until(lambda: bench.engine.status()["models"][0]["answers"])
        if resident:
            stays = bench.ask(two, 100)
        await bench.engine.unload(one)
        assert (await answer).finish_reason == "cancelled"
        assert not stays or (await stays).ids == golden(two)["ids"][:100]
        assert await code(bench.ask(one)) == "engine.not_loaded"
        assert await code(bench.engine.unload(one)) == "engine.not_loaded"
        assert (await bench.ask(None)).finish_reason == "length", "by the other one"
        await bench.right(two)
        await bench.engine.unload()
        assert bench.engine.status() == {"state": "empty"}
        assert bench.host.held == 0

    sizes = [size(name) for name in NAMES]
    test(run)


@pytest.mark.parametrize("fit", [1, 2])
def test_a_lost_device_takes_no_other_with_it(fit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BACK_OFF", (0.0,))

    async def run() -> None:
        bench = Bench(sum(sizes[:2]) if fit == 2 else max(sizes))
        one, two = NAMES[:2]
        await bench.load(one, two)
        await bench.right(one)
        bench.host.lost = [one]
        answers = [bench.ask(one, 60), bench.ask(two, 60), bench.ask(one, 60)]
        got = await asyncio.gather(*answers)
        assert [a.ids for a in got] == [golden(n)["ids"][:60] for n in (one, two, one)]
        assert bench.host.lost == []
        if fit == 2:
            assert [bench.host.opened.count(name) for name in (one, two)] == [2, 1]
        bench.check()
        # Lost again and again, with no token in between: that ends, and nothing else.
        await bench.load(one, device="gpu")
        bench.host.lost = [one, one]
        assert await code(bench.ask(one)) == "gpu.lost"
        assert one not in bench.resident
        await bench.right(two)
        await bench.right(one)

    sizes = [size(name) for name in NAMES]
    test(run)


@pytest.mark.parametrize("answering", [False, True])
@pytest.mark.parametrize("why", ["network", "budget", "stop"])
def test_a_load_that_fails_leaves_the_others(why: str, answering: bool) -> None:
    async def run() -> None:
        bench = Bench(sum(sizes))
        one, two, three = NAMES
        await bench.load(one, two)
        answer = bench.ask(two, 60) if answering else None
        await asyncio.sleep(0)
        config = LoadConfig(three, context=512, memory_bytes=100 if why == "budget" else max(sizes))
        if why == "network":
            bench.host.broken = {three}
            bench.host.shard_size = 20_000
        loading = asyncio.ensure_future(bench.engine.load(config, lambda *_: None))
        if why == "stop":
            bench.host.gate.clear()
            await until(lambda: three in bench.host.opened)
            loading.cancel()
            bench.host.gate.set()
        names = {"network": "shard.network", "budget": "memory.budget", "stop": "request.cancelled"}
        assert await code(loading) == names[why]
        assert not answer or (await answer).ids == golden(two)["ids"][:60]
        assert bench.engine.status()["budget_bytes"] == sum(sizes)
        assert await code(bench.ask(three)) == "engine.not_loaded"
        await bench.right(one)
        await bench.right(two)
        assert bench.resident == [one, two]
        bench.host.broken.clear()
        await bench.load(three)
        for name in NAMES:
            await bench.right(name)

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_load_waits_for_answers_and_a_stop_ends_that() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        one, two, three = NAMES
        await bench.load(one)
        answer = bench.ask(one, 150, key=1)
        await until(lambda: bench.engine.status()["models"][0]["answers"])
        for stop in (True, False):
            loading = asyncio.ensure_future(bench.load(two))
            await some_steps()
            assert bench.resident == [one] and not loading.done()
            assert await code(bench.ask(one)) == "engine.busy"
            if stop:
                bench.engine._loading.cancel()  # type: ignore[union-attr]
                assert await code(loading) == "request.cancelled"
        assert (await answer).ids == golden(one)["ids"][:150]
        await loading
        assert bench.resident == [two]
        # A reset ends the answers, and the load goes on.
        answer = bench.ask(two, 300)
        await until(lambda: bench.engine.status()["models"][1]["answers"])
        loading = asyncio.ensure_future(bench.load(three))
        await some_steps()
        await bench.engine.reset()
        assert (await answer).finish_reason == "cancelled"
        await loading
        for name in NAMES:
            await bench.right(name)

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_second_load_of_the_same_name_takes_its_place() -> None:
    async def run() -> None:
        bench = Bench(sum(sizes[:2]))
        one, two = NAMES[:2]
        await bench.load(one, two)
        answers = [bench.ask(one, 200), bench.ask(two, 60)]
        await until(lambda: all(m["answers"] for m in bench.engine.status()["models"]))
        await bench.load(one, context=256)
        assert (await answers[0]).finish_reason == "cancelled"
        assert (await answers[1]).ids == golden(two)["ids"][:60]
        status = bench.engine.status()
        assert [m["model"] for m in status["models"]] == [two, one]
        assert status["model"]["context"] == 256
        # One that fails leaves the earlier.
        config = LoadConfig(one, context=512, memory_bytes=100)
        assert await code(bench.engine.load(config, lambda *_: None)) == "memory.budget"
        await bench.right(one)
        assert bench.engine.status()["model"]["context"] == 256

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_file_has_room_once_whatever_its_names() -> None:
    async def run() -> None:
        bench = Bench(1 << 30)
        one, two = NAMES[:2]
        await bench.load(one, two)
        answers = [bench.ask(one, 200), bench.ask(two, 40)]
        part = await bench.ask(one, 5, key=7)
        assert part.ids
        await bench.load("")
        assert (await answers[0]).finish_reason == "cancelled", "its place was taken"
        assert (await answers[1]).ids == golden(two)["ids"][:40]
        assert bench.resident == ["", two] or bench.resident == [two, ""]
        for name in (one, two):
            await bench.right(name)
        assert (await bench.ask(None, 9)).ids == golden(one)["ids"][:9]
        assert await code(collect(bench.engine.go_on(7, GenerateConfig()))) == "request.invalid"
        assert len(bench.host.opened) == 3
        await bench.engine.unload(one)
        assert await code(bench.ask("")) == "engine.not_loaded"
        assert bench.resident == [two]
        bench.check()

    test(run)


def test_a_load_that_is_stopped_at_its_very_end_leaves_nothing() -> None:
    """While the answers of the same file by another name end."""

    async def run() -> None:
        bench = Bench(1 << 30)
        one, two = NAMES[:2]
        await bench.load(one, two)
        part, answer = await bench.ask(one, 5, key=7), bench.ask(one, 200)
        loading = asyncio.ensure_future(bench.load(""))
        await until(lambda: any(request.stopping for request in bench.engine._requests))
        assert bench.engine.stop_load()
        assert await code(loading) == "request.cancelled"
        assert [m["model"] for m in bench.engine.status()["models"]] == [one, two]
        assert (await answer).finish_reason == "cancelled"
        bench.check()
        more = await collect(bench.engine.go_on(7, GenerateConfig(max_tokens=5)))
        assert part.ids + more.ids == golden(one)["ids"][:10]

    test(run)


def test_the_model_loaded_last_is_the_same_for_all_that_is_asked() -> None:
    async def run() -> None:
        bench = Bench(1 << 30)
        await bench.load(*NAMES[:2], "")
        assert bench.resident == [NAMES[1], ""]
        models = bench.engine._models
        assert list(models)[-1] is models.find(None) is models.find(NAMES[0])

    test(run)


def test_an_answer_begins_while_another_model_comes_back() -> None:
    async def run() -> None:
        bench = Bench(sum(sizes) - 1)
        await bench.load(*NAMES)
        assert bench.resident == NAMES[1:]
        bench.host.gate.clear()
        coming = bench.ask(NAMES[0])
        await until(lambda: bench.host.opened.count(NAMES[0]) == 2)
        assert (await bench.ask(NAMES[2])).ids == golden(NAMES[2])["ids"][:20]
        assert not coming.done()
        bench.host.gate.set()
        assert (await coming).ids == golden(NAMES[0])["ids"][:20]

    sizes = [size(name) for name in NAMES]
    test(run)


def test_a_stop_of_a_load_stops_no_answer() -> None:
    async def run() -> None:
        client = Client(ManyHost())
        await client.ask("load", model=NAMES[0], memory_bytes=1 << 30, context=512)
        chat = chat_of(NAMES[0])
        answer = client.send("generate", messages=chat["messages"], max_tokens=60)
        load = client.send("load", model=NAMES[1], memory_bytes=1 << 30)
        await asyncio.sleep(0)
        assert (await client.ask("stop", target=load))["value"] == {"stopped": True}
        assert (await client.ended(load))["error"]["code"] == "request.cancelled"
        assert (await client.ended(answer))["value"]["ids"] == chat["ids"][:60]
        answer = client.send("generate", messages=chat["messages"], max_tokens=200)
        load = client.send("load", model=NAMES[1], memory_bytes=1 << 30)
        await asyncio.sleep(0)
        assert (await client.ask("stop"))["value"] == {"stopped": True}
        assert (await client.ended(load))["error"]["code"] == "request.cancelled"
        assert (await client.ended(answer))["value"]["finish_reason"] == "cancelled"

    test(run)


def test_a_load_without_a_budget_takes_the_place_of_all() -> None:
    async def run() -> None:
        bench = Bench(1 << 30)
        await bench.load(*NAMES[:2])
        bench.nbytes = None
        await bench.load(NAMES[2])
        status = bench.engine.status()
        assert [m["model"] for m in status["models"]] == NAMES[2:]
        assert "budget_bytes" not in status
        assert await code(bench.ask(NAMES[0])) == "engine.not_loaded"
        bench.nbytes = 1 << 30
        await bench.load("")
        assert bench.resident == [NAMES[2], ""]
        assert (await bench.ask("", 9)).ids == golden("tiny")["ids"][:9]
        await bench.right(NAMES[2])

    test(run)


def test_a_smaller_budget_swaps_out_what_is_too_much() -> None:
    async def run() -> None:
        bench = Bench(1 << 30)
        await bench.load(*NAMES[:2])
        bench.nbytes = None
        config = LoadConfig(NAMES[2], context=512, memory_bytes=size2)
        await bench.engine.load(config, lambda *_: None)
        assert bench.resident == NAMES[2:]

    size2 = size(NAMES[2])
    test(run)


@pytest.fixture
def begins_with_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "FIRST_BLOCKS", 1)


@pytest.mark.usefixtures("begins_with_a_block")
def test_pools_grow_into_the_room_of_idle_models() -> None:
    async def run() -> None:
        one, two = NAMES[:2]
        small = [size(one, kv_tokens=1024), size(two, kv_tokens=1024)]
        bench = Bench(sum(small) + 10_000)
        await bench.load(one, two, kv_tokens=1024)
        assert bench.resident == [one, two]
        await bench.right(one, 200)
        assert bench.host.grown and set(bench.host.grown) == {one}
        assert bench.resident == [one]

    for name in NAMES[:2]:
        size(name, kv_tokens=1024)
    test(run)


@pytest.mark.usefixtures("begins_with_a_block")
def test_pools_do_not_grow_into_the_room_of_busy_models() -> None:
    """One of them waits for the other's end then, and has no room for ever only if it is alone."""

    async def run() -> None:
        one, two = NAMES[:2]
        bench = Bench(sum(small) + 100_000)
        await bench.load(one, two, kv_tokens=1024)
        for _ in range(2):
            answers = [bench.ask(name, 200) for name in (one, two, one)]
            got = await asyncio.gather(*answers)
            assert [a.ids for a in got] == [golden(n)["ids"][:200] for n in (one, two, one)]
            bench.check()
        assert set(bench.host.grown) == {one, two}
        alone = Bench(small[0] + 1000)
        await alone.load(one, kv_tokens=1024)
        assert await code(alone.ask(one, 200)) == "prompt.too_long"
        alone.check()

    small = [size(name, kv_tokens=1024) for name in NAMES[:2]]
    test(run)


@pytest.mark.usefixtures("begins_with_a_block")
def test_pools_do_not_grow_into_the_room_of_a_model_that_is_loaded() -> None:
    """An answer that needs it waits for the end of the load."""

    async def run() -> None:
        one = NAMES[0]
        bench = Bench(most)
        await bench.load(one, kv_tokens=1024)
        bench.host.gate_from = 1  # the device has taken its memory by then
        bench.host.gate.clear()
        answer = bench.ask(one, 200)
        await until(lambda: bench.host.grown)
        loading = asyncio.ensure_future(bench.engine.load(config, lambda *_: None))
        await until(lambda: len(bench.host.devices) == 2 and bench.host.devices[1].memory())
        await until(lambda: any(r.waiting for r in bench.engine._requests))
        assert not loading.done()
        bench.host.gate.set()
        await loading
        assert (await answer).ids == golden(one)["ids"][:200]
        bench.check()

    small = [size(name, kv_tokens=1024) for name in NAMES[:2]]
    most = sum(small) + 8 * BLOCK_BYTES  # by which the first pools have grown
    config = LoadConfig(NAMES[1], context=512, kv_tokens=1024, memory_bytes=most)
    test(run)


def test_measuring_brings_a_model_back() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        await bench.load(*NAMES[:2])
        speed = await bench.engine.measure(MeasureConfig(40, 100, 5), NAMES[0])
        assert speed["decode_tokens_per_s"] > 0
        assert bench.resident == NAMES[:1]
        assert await code(bench.engine.measure(MeasureConfig(4, 10, 5), "x")) == "engine.not_loaded"
        await bench.right(NAMES[1])

    sizes = [size(name) for name in NAMES]
    test(run)


def test_status_of_a_model_that_is_swapped_out() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        await bench.load(*NAMES[:2])
        bench.host.broken, bench.host.shard_size = {NAMES[0]}, 20_000
        assert await code(bench.ask(NAMES[0])) == "shard.network"
        status = bench.engine.status()
        assert status["state"] == "ready"
        assert [m["resident"] for m in status["models"]] == [False, False]
        assert status["memory_bytes"] == 0
        assert status["device"]["kind"] == "cpu"
        assert "kv" not in status
        bench.host.broken = set()
        for name in NAMES[:2]:
            await bench.right(name)

    sizes = [size(name) for name in NAMES]
    test(run)


def chat_of(name: str) -> dict[str, Any]:
    document = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return next(prompt for prompt in document["prompts"] if "messages" in prompt)


def test_models_by_name_through_the_protocol() -> None:
    async def run() -> None:
        host = ManyHost()
        client = Client(host)
        for name in NAMES[:2]:
            reply = await client.ask("load", model=name, memory_bytes=max(sizes), context=512)
            assert reply["kind"] == "result"
        for name in (*NAMES[:2], NAMES[0]):
            chat = chat_of(name)
            asked = {"messages": chat["messages"], "model": name}
            value = (await client.ask("generate", max_tokens=30, **asked))["value"]
            assert value["ids"] == chat["ids"][:30]
        last = chat_of(NAMES[1])
        value = (await client.ask("generate", max_tokens=9, messages=last["messages"]))["value"]
        assert value["ids"] == last["ids"][:9], "by the one that was loaded last"
        go_on = {"continues": value["handle"], "max_tokens": 9}
        assert (await client.ask("generate", model=NAMES[0], **go_on))["kind"] == "error"
        more = (await client.ask("generate", **go_on))["value"]
        assert more["ids"] == last["ids"][9:18]
        status = (await client.ask("status"))["value"]
        assert status["models"] == [
            {"model": name, "name": name, "resident": i == 1, "answers": 0}
            | {"memory_bytes": sizes[1] if i else 0}
            for i, name in enumerate(NAMES[:2])
        ]
        assert (status["budget_bytes"], status["memory_bytes"]) == (max(sizes), sizes[1])
        sizes_of = {"prefill": 4, "context": 9, "steps": 2}
        assert (await client.ask("measure", model=NAMES[0], **sizes_of))["kind"] == "result"
        assert (await client.ask("unload", model=NAMES[0]))["value"] == {}
        status = (await client.ask("status"))["value"]
        assert [m["model"] for m in status["models"]] == NAMES[1:2]
        assert host.most <= max(sizes)

    sizes = [size(name) for name in NAMES[:2]]
    test(run)


def test_a_delta_is_told_by_a_model_that_came_back() -> None:
    async def run() -> None:
        bench = Bench(max(sizes))
        await bench.load(*NAMES[:2])
        prompt = golden(NAMES[0])["prompt_ids"]
        kinds = [
            type(event)
            async for event in bench.engine.complete(
                prompt, GenerateConfig(max_tokens=9), model=NAMES[0]
            )
        ]
        assert kinds[-1] is Answer and set(kinds[:-1]) == {Delta}

    sizes = [size(name) for name in NAMES]
    test(run)


LONG = ("w1 w2", *TEXTS, *(f"w{i} " * 20 for i in range(4, 36)))  # of buckets of all sizes
WHICH = st.sampled_from(NAMES)
STEPS = st.lists(
    st.tuples(st.sampled_from(["load", "ask", "ask", "ask", "go on", "lose", "unload"]), WHICH)
    | st.tuples(st.just("embed"), st.sampled_from([1, 3, 40]))
    | st.tuples(st.sampled_from(["stop", "stop all", "reset", "settle", "forget"]), st.none())
    | st.tuples(st.just("wait"), st.integers(1, 60)),
    max_size=14,
)
ALLOWED = {
    "load": {"engine.busy", "request.cancelled", "gpu.lost"},
    "ask": {"engine.busy", "engine.not_loaded", "gpu.lost"},
    "go on": {"engine.busy", "engine.not_loaded", "gpu.lost", "request.invalid"},
    "unload": {"engine.not_loaded"},
    "embed": {"request.cancelled", "gpu.lost"},
}


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([1, 2, 3]))
def test_whatever_is_asked_in_whatever_order(
    encoder: Path, steps: list[tuple[str, Any]], fit: int
) -> None:
    """Requests that overlap: each ends as it may, in the budget, and nothing stays behind."""

    async def run() -> None:
        bench = Bench(sum(sorted(sizes)[-fit:]), encoder)
        engine, tasks = bench.engine, list[tuple[str, str, asyncio.Future[Any]]]()
        begun: dict[str, int] = {}
        await bench.load(*NAMES[:2])
        for key, (step, value) in enumerate(steps):
            work: Awaitable[Any] | None = None
            if step == "load":
                work = bench.load(value)
            elif step == "ask":
                work, begun[value] = bench.ask(value, 40, key), key
            elif step == "go on":
                earlier = begun.get(value, -1)
                work = collect(engine.go_on(earlier, GenerateConfig(max_tokens=5), key))
            elif step == "embed":
                work = bench.embed(LONG[:value], key=key)
            elif step == "forget":
                work = bench.encoders.unload()
            elif step == "unload":
                work = engine.unload(value)
            elif step == "reset":
                work = engine.reset()
            elif step == "lose":
                bench.host.lost += [value, "encoder"]
            elif step == "stop":
                engine.stop(key - 1)
                bench.encoders.stop(key - 1)
            elif step == "stop all":
                engine.stop()
            elif step == "settle":
                await asyncio.gather(*(t for _, _, t in tasks), return_exceptions=True)
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
            if work:
                tasks.append((step, value, asyncio.ensure_future(work)))
            bench.within()
        for step, value, task in tasks:
            try:
                answer = await task
            except OctavoError as error:
                assert error.code in ALLOWED[step], (step, error.code)
            else:
                if step == "embed":
                    np.testing.assert_allclose(answer, vectors_of(*LONG[:value]), atol=1e-5)
                if step == "ask":
                    assert answer.ids == golden(value)["ids"][: len(answer.ids)]
                    assert len(answer.ids) == 40 or answer.finish_reason == "cancelled"
        bench.host.lost.clear()
        status = engine.status()
        assert status["state"] in ("ready", "empty")
        assert not any(m["answers"] for m in status.get("models", []))
        for model in status.get("models", []):
            await bench.right(model["model"], 9)
        await bench.embeds()
        await bench.encoders.unload()
        await engine.unload()
        assert engine.status() == {"state": "empty"}
        assert bench.host.held == 0

    sizes = [size(name) for name in NAMES]
    test(run)
