"""An encoder beside models, in one budget of memory and on a device that has not enough."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

from engine import loader
from engine.backends.base import Device, Progress, slot_sizes
from engine.config import LoadConfig
from engine.encoders import Encoders
from engine.errors import OctavoError
from engine.kv import budget
from engine.plan import Plan, Tensor
from engine.room import CrowdedError, Memory, Share
from tests.unit.test_resident import (
    LONG,
    NAMES,
    TEXTS,
    Bench,
    ManyHost,
    Watched,
    code,
    encoder,
    golden,
    size,
    some_steps,
    test,
    until,
)

__all__ = ["encoder"]
ONE, TWO, THREE = NAMES


@pytest.fixture(autouse=True)
def sizes_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "QUICK_SECONDS", 0.0)
    for name in NAMES:
        size(name)


@pytest.fixture(scope="module")
def needed(encoder: Path) -> int:
    """Bytes that the encoder holds alone, once it has embedded two short texts."""
    return held_after(encoder, TEXTS)


def held_after(encoder: Path, *requests: Sequence[str]) -> int:
    async def run() -> int:
        bench = Bench(None, encoder)
        for texts in requests:
            await bench.embeds(texts)
        assert bench.host.held == bench.host.most
        return bench.host.held

    return asyncio.run(run())


def is_there(bench: Bench) -> bool:
    return bench.encoders.describe() is not None


def test_without_a_budget_it_is_beside_all(encoder: Path) -> None:
    async def run() -> None:
        bench = Bench(None, encoder)
        await bench.embeds()
        await bench.load(ONE)
        await bench.embeds(LONG)
        assert bench.resident == [ONE] and is_there(bench)
        assert bench.host.opened == ["encoder", ONE]
        await bench.right(ONE)

    test(run)


def test_what_was_used_longest_ago_makes_room(encoder: Path, needed: int) -> None:
    async def run() -> None:
        bench = Bench(size(ONE) + size(TWO) + needed - 1, encoder)
        await bench.load(ONE, TWO)
        await bench.right(ONE)
        await bench.embeds()
        assert bench.resident == [ONE] and is_there(bench)
        await bench.right(TWO)
        assert bench.resident == [TWO] and is_there(bench)
        await bench.right(ONE)
        assert bench.resident == [ONE, TWO] and not is_there(bench)
        await bench.embeds()
        assert bench.resident == [ONE]
        assert bench.host.opened.count("encoder") == 2

    test(run)


def test_all_of_them_have_room_to_the_byte(encoder: Path, needed: int) -> None:
    async def run() -> None:
        bench = Bench(size(ONE) + needed, encoder)
        await bench.load(ONE)
        await bench.embeds()
        await bench.right(ONE)
        await bench.embeds()
        assert bench.host.opened == [ONE, "encoder"]
        assert bench.host.most == size(ONE) + needed

    test(run)


def test_one_that_does_not_fit_alone_is_refused(encoder: Path, needed: int) -> None:
    async def run() -> None:
        bench = Bench(size(ONE), encoder)
        await bench.load(ONE)
        bench.engine.memory.budget = few = needed // 3
        with pytest.raises(OctavoError) as caught:
            await bench.embed()
        assert caught.value.code == "memory.budget"
        assert f"{few:,}" in caught.value.message and "encoder" in caught.value.message
        assert bench.resident == [ONE] and not is_there(bench)
        # Its weights fit, and what it computes with does not.
        bench.engine.memory.budget = needed - 1
        with pytest.raises(OctavoError, match=f"needs {needed:,} bytes.* is {needed - 1:,}"):
            await bench.embed()
        bench.engine.memory.budget = needed
        await bench.embeds()
        assert bench.host.held == needed

    test(run)


def test_one_at_work_is_waited_for(encoder: Path, needed: int) -> None:
    async def run() -> None:
        bench = Bench(max(size(ONE), needed), encoder)
        await bench.embeds()
        embedding = bench.embed()
        await until(lambda: bench.encoders._place.uses)
        loading = asyncio.ensure_future(bench.load(ONE))
        while not embedding.done():
            assert is_there(bench) and not loading.done()
            await asyncio.sleep(0)
        await loading
        assert not is_there(bench)
        # And so does it wait for an answer, unless it is stopped.
        answer = bench.ask(ONE, 100)
        await until(lambda: bench.engine.state == "generating")
        embeddings = [bench.embed(key=key) for key in (1, 2)]
        await some_steps()
        assert bench.resident == [ONE] and not answer.done()
        assert bench.encoders.stop(1)
        assert await code(embeddings[0]) == "request.cancelled"
        assert (await answer).ids == golden(ONE)["ids"][:100]
        await embeddings[1]
        assert bench.resident == []
        await bench.right(ONE)

    test(run)


def test_more_texts_need_more_room(encoder: Path, needed: int) -> None:
    """For which idle models go, and answers are waited for."""

    async def run() -> None:
        for answers in (False, True):
            bench = Bench(all_of_it + size(ONE) - 1, encoder)
            await bench.load(ONE)
            await bench.embeds()
            assert bench.resident == [ONE]
            answer = bench.ask(ONE, 100) if answers else None
            await some_steps()
            await bench.embeds(LONG)
            assert bench.resident == [], "there was no room for it too"
            assert not answer or (await answer).ids == golden(ONE)["ids"][:100]
            await bench.embeds(LONG)
            assert bench.host.opened == [ONE, "encoder"], "it has not gone for its own room"

    all_of_it = held_after(encoder, TEXTS, LONG)
    assert all_of_it > needed
    test(run)


def test_an_answer_waits_for_the_room_of_embeddings(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "FIRST_BLOCKS", 1)

    async def run() -> None:
        bench = Bench(small + held_after_all + 1000, encoder)
        await bench.load(ONE, kv_tokens=1024)
        await bench.embeds(LONG)
        stopping = False

        async def embed_on() -> None:
            while not stopping:
                await bench.embed(LONG)

        embedding = asyncio.ensure_future(embed_on())
        await until(lambda: bench.encoders._place.uses)
        answer = bench.ask(ONE, 200)
        await until(lambda: any(r.waiting for r in bench.engine._requests))
        stopping = True
        await embedding
        assert (await answer).ids == golden(ONE)["ids"][:200]
        assert not is_there(bench)

    small = size(ONE, kv_tokens=1024)
    held_after_all = held_after(encoder, LONG)
    test(run)


@pytest.mark.parametrize("again", [False, True], ids=["loaded", "comes back"])
def test_it_waits_while_a_model_is_on_its_way(again: bool, encoder: Path, needed: int) -> None:
    async def run() -> None:
        bench = Bench(size(ONE) + size(TWO), encoder)
        if again:
            await bench.load(ONE)
            bench.engine.memory.swap_out(next(iter(bench.engine._models)))
        bench.host.gate.clear()
        coming: asyncio.Future[Any] = (
            bench.ask(ONE) if again else asyncio.ensure_future(bench.load(ONE))
        )
        await until(lambda: bench.host.opened.count(ONE) == 1 + again)
        stopped, stays = bench.embed(key=1), bench.embed(key=2)
        await some_steps()
        assert "encoder" not in bench.host.opened
        assert bench.encoders.stop(1)
        assert await code(stopped) == "request.cancelled"
        bench.host.gate.set()
        await asyncio.gather(stays, coming)
        assert bench.host.opened[-1] == "encoder"
        await bench.embeds()
        await bench.right(ONE)

    test(run)


@pytest.mark.parametrize("what", ["load", "answer"])
def test_a_model_waits_while_it_is_on_its_way(what: str, encoder: Path) -> None:
    async def run() -> None:
        bench = Bench(size(ONE) + size(TWO), encoder)
        await bench.load(ONE)
        if what == "answer":
            bench.engine.memory.swap_out(next(iter(bench.engine._models)))
        bench.host.gate.clear()
        embedding = bench.embed()
        await until(lambda: "encoder" in bench.host.opened)

        def begin() -> asyncio.Future[Any]:
            return asyncio.ensure_future(bench.load(TWO)) if what == "load" else bench.ask(ONE)

        stopped = begin()
        await some_steps()
        assert bench.engine.stop()
        if what == "load":
            assert await code(stopped) == "request.cancelled"
        else:
            assert (await stopped).finish_reason == "cancelled"
        stays = begin()
        await some_steps()
        assert bench.host.opened == [ONE, "encoder"] and not embedding.done()
        bench.host.gate.set()
        await asyncio.gather(embedding, stays)
        await bench.right(ONE)
        await bench.embeds()

    test(run)


@pytest.mark.parametrize("name", ["encoder", None])
def test_unloading_ends_its_load_and_what_waits_for_it(name: str | None, encoder: Path) -> None:
    async def run() -> None:
        bench = Bench(None, encoder)
        assert not await bench.encoders.unload(name)
        bench.host.gate.clear()
        requests = [bench.embed(key=1), bench.embed(key=2)]
        other = bench.embed(name="encoder of others", key=3)
        await until(lambda: bench.host.opened)
        assert await bench.encoders.unload(name)
        for request in requests:
            assert await code(request) == "request.cancelled"
        bench.host.gate.set()
        if name:
            await other
        else:
            assert await code(other) == "request.cancelled"
        assert bench.host.opened[1:] == (["encoder of others"] if name else [])
        assert not await bench.encoders.unload("encoder")
        await bench.encoders.unload()
        assert bench.host.held == 0

    test(run)


def test_unloading_ends_what_it_is_at(encoder: Path) -> None:
    async def run() -> None:
        bench = Bench(None, encoder)
        embedding = bench.embed()
        await until(lambda: bench.encoders._place.encoder)
        assert await bench.encoders.unload("encoder")
        assert bench.host.held == 0
        assert await code(embedding) == "request.cancelled"
        await bench.embeds()

    test(run)


def test_a_load_that_fails_leaves_its_room(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: ManyHost, json_text: str) -> Any:
        raise OctavoError("tokenizer.unsupported")

    async def run() -> None:
        *others, largest = sorted(NAMES, key=size)
        bench = Bench(size(largest), encoder)
        await bench.load(others[0])
        with monkeypatch.context() as patch:
            patch.setattr(ManyHost, "open_tokenizer", broken)
            assert await code(bench.embed()) == "tokenizer.unsupported"
        bench.check()
        await bench.right(others[0])
        await bench.load(largest)
        await bench.embeds()

    test(run)


class LostError(Exception):
    """As it comes from JavaScript."""

    code = "gpu.lost"
    message = "It was lost."


def test_a_lost_gpu_may_be_told_by_javascript(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = 1
    original = Watched.run

    async def losing(self: Watched, *args: Any) -> list[int]:
        nonlocal losses
        if losses:
            losses -= 1
            raise LostError
        return await original(self, *args)

    async def run() -> None:
        nonlocal losses
        bench = Bench(None, encoder)
        await bench.embeds()
        losses = 2
        with pytest.raises(LostError):
            await bench.embed()
        bench.check()
        await bench.embeds()

    monkeypatch.setattr(Watched, "run", losing)
    test(run)


class Scarce(Watched):
    """Takes its memory from its host, piece by piece."""

    host: ScarceHost

    async def allocate(self, tensors: Iterable[Tensor]) -> None:
        tensors = list(tensors)
        self.host.take(sum(4 * prod(tensor.shape) for tensor in tensors))
        await super().allocate(tensors)

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        self.host.take(sum(slot_sizes(plans)) - self.memory().get("activations", 0))
        await super().compile(plans, progress)


class ScarceHost(ManyHost):
    """Its devices have ``capacity`` bytes together; allocation number ``fail_at`` fails anyway."""

    def __init__(self, encoder: Path) -> None:
        super().__init__(encoder)
        self.capacity, self.fail_at, self.count = 1 << 40, -1, 0

    def take(self, nbytes: int) -> None:
        self.count += 1
        if self.count == self.fail_at or self.held + nbytes > self.capacity:
            raise OctavoError("memory.device")

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        self.devices.append(Scarce(self, config.model))
        return self.devices[-1], ""


class ScarceBench(Bench):
    host: ScarceHost

    def __init__(self, encoder: Path) -> None:
        super().__init__(None)
        self.host = ScarceHost(encoder)
        self.engine = type(self.engine)(self.host)
        self.encoders = Encoders(self.host, self.engine.memory)


def test_whichever_allocation_fails_nothing_stays_and_the_next_works(encoder: Path) -> None:
    async def run() -> None:
        alone = ScarceBench(encoder)
        await alone.embeds(TEXTS)
        await alone.embeds(LONG)
        assert alone.host.count == 5
        for fail_at in range(1, alone.host.count + 1):
            bench = ScarceBench(encoder)
            bench.host.fail_at = fail_at
            failures = 0
            for texts in (TEXTS, LONG):
                embedding = bench.embed(texts)
                await asyncio.wait([embedding])
                if embedding.exception():
                    failures += 1
                    assert await code(embedding) == "memory.device"
                bench.check()
                await bench.embeds(texts)
            assert failures == 1
            await bench.encoders.unload()
            assert bench.host.held == 0

    test(run)


@pytest.mark.parametrize("texts", [TEXTS, LONG], ids=["load", "more texts"])
def test_a_device_without_the_memory_loses_idle_models(texts: Sequence[str], encoder: Path) -> None:
    async def run() -> None:
        bench = ScarceBench(encoder)
        await bench.load(ONE, memory_bytes=1 << 40)
        await bench.load(TWO, memory_bytes=1 << 40)
        if texts is LONG:
            await bench.embeds()
        bench.host.capacity = bench.host.held + 100
        answer = bench.ask(TWO, 60)
        await until(lambda: bench.engine.state == "generating")
        await bench.embeds(texts)
        assert bench.resident == [TWO]
        assert (await answer).ids == golden(TWO)["ids"][:60]
        bench.check()

    test(run)


def test_a_share_counts_what_is_about_to_come(encoder: Path) -> None:
    """What has been promised to one is not promised to another."""

    async def run() -> None:
        bench = Bench(None, encoder)
        await bench.embeds()
        memory, place = bench.engine.memory, bench.encoders._place
        memory.budget = place.held + 100
        with Share(memory, place).more(101) as may:
            assert not may
        with Share(memory, place).more(100) as may:
            assert may and place.bytes == memory.budget
        assert place.bytes == place.held
        assert isinstance(memory, Memory) and str(CrowdedError(1000)) == "1,000 bytes"

    test(run)


def test_one_that_cannot_be_loaded_leaves_the_other(encoder: Path, needed: int) -> None:
    """Until the device is to give it memory; so does a model in place of which there is none."""

    async def run() -> None:
        bench = Bench(None, encoder)
        await bench.embeds()
        assert await code(bench.embed(name="tiny")) == "manifest.invalid"
        bench.engine.memory.budget = needed
        await bench.embeds()
        bench.engine.memory.budget = needed // 3
        assert await code(bench.embed(name="encoder too large")) == "memory.budget"
        bench.engine.memory.budget = None
        held = bench.host.held
        await bench.embeds()
        assert bench.host.held == held == needed
        assert bench.host.opened == ["encoder", "tiny", "encoder too large"]

    test(run)


def test_one_that_breaks_off_takes_the_place_of_the_other(encoder: Path) -> None:
    class Failing(ManyHost):
        async def open_tokenizer(self, json_text: str) -> Any:
            raise OctavoError("tokenizer.unsupported")

    async def run() -> None:
        bench = Bench(None, encoder)
        await bench.embeds()
        bench.encoders._host = Failing(encoder)
        assert await code(bench.embed(name="encoder that breaks off")) == "tokenizer.unsupported"
        assert not is_there(bench) and bench.host.held == 0
        assert not await bench.encoders.unload("encoder that breaks off")
        bench.encoders._host = bench.host
        await bench.embeds()
        assert await bench.encoders.unload("encoder") and not is_there(bench)

    test(run)
