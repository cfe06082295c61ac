"""Loads that fail: what is loaded stays, and answers, until the device is to give memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.answer import Answer
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.plan import Traits
from tests.native import NativeHost, ready_of
from tests.tiny import SHIP, TINY
from tests.unit.engines import complete
from tests.unit.test_loading import renamed, with_type

pytestmark = pytest.mark.usefixtures("no_device_is_quick")
SHARD = 20_000
LOADED: dict[str, Any] = {"context": 512}


@dataclass
class Cause:
    """Why the model "other" cannot be loaded: what is done to its file, its manifest or the
    reading of a shard, and what is asked for it."""

    code: str
    edit: Callable[[bytes], bytes] = lambda data: data
    manifest: Callable[[str], str] = lambda text: text
    failing_shard: int | None = None
    traits: Traits | None = None
    asked: dict[str, Any] = field(default_factory=dict)


def not_there(_: str) -> str:
    raise OctavoError("shard.network", "Nobody answers.")


def odd(text: str) -> str:
    said = json.loads(text)
    sizes = [{"size": 4098}, {"size": said["size"] - 4098}]
    return json.dumps({**said, "shards": sizes})


CAUSES = {
    "the address is wrong": Cause("shard.network", manifest=not_there),
    "the manifest is no manifest": Cause("manifest.invalid", manifest=lambda _: '{"shards": 3}'),
    "shards are odd": Cause("manifest.invalid", manifest=odd),
    "the first shard is wrong": Cause("shard.hash", failing_shard=0),
    "it is something else": Cause("gguf.invalid", lambda data: b"PK\3\4" + data[4:]),
    "it ends early": Cause("gguf.truncated", lambda data: data[:-4000]),
    "the architecture": Cause("model.architecture", renamed(b"\0llama", b"\0mamba")),
    "a tensor is missing": Cause("model.tensor", renamed(b"blk.1.ffn_up", b"blk.1.ffn_xx")),
    "the quantization": Cause("model.quantization", with_type(b"blk.0.attn_output.weight", 999)),
    "the tokenizer": Cause("tokenizer.unsupported", renamed(b"smollm", b"smellm")),
    "a special token": Cause("gguf.invalid", lambda data: with_eos(data, 1 << 20)),
    "the template": Cause("template.invalid", renamed(b"{% for", b"{% fur")),
    "no room for a block": Cause("request.invalid", asked={"kv_bytes": 1}),
    "no such device": Cause("gpu.unavailable", asked={"device": "gpu"}),
    "the device's limits": Cause("gpu.limits", traits=Traits("cpu", chunk=16, max_buffer_bytes=99)),
    "the budget": Cause("memory.budget", asked={"memory_bytes": 1000}),
}  # fmt: skip


def with_eos(data: bytes, id: int) -> bytes:
    key = b"tokenizer.ggml.eos_token_id"
    place = data.index(key) + len(key) + 4
    return data[:place] + id.to_bytes(4, "little") + data[place + 4 :]


class Host(NativeHost):
    """The tiny model by any name; "other" fails as ``cause`` says."""

    def __init__(self, cause: Cause, folder: Path) -> None:
        super().__init__(TINY, SHARD)
        self.cause = cause
        self.other = folder / "other.gguf"
        self.other.write_bytes(cause.edit(TINY.read_bytes()))
        self.key = ""
        self.opened: list[str] = []

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        self.key = manifest
        self.opened.append(manifest)
        self.serve(self.other if manifest == "other" else TINY)
        text = await super().open_shards(manifest, progress)
        return self.cause.manifest(text) if manifest == "other" else text

    async def read_shard(self, index: int) -> bytes:
        if self.key == "other" and index == self.cause.failing_shard:
            raise OctavoError("shard.hash")
        return await super().read_shard(index)

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        device, reason = await super().open_device(config)
        if config.model == "other" and self.cause.traits:
            assert isinstance(device, CpuDevice)
            device.traits = self.cause.traits
        return device, reason


class Stages(list[str]):
    """The stages of a load that are over."""

    def __call__(self, stage: str, loaded: int, total: int, unit: str) -> None:
        if loaded == total:
            self.append(stage)


async def first(engine: Engine, **config: Any) -> None:
    await engine.load(LoadConfig(model="first", **LOADED, **config), Stages())


async def fails(engine: Engine, cause: Cause, name: str = "other") -> Stages:
    """The stages that a load got through."""
    stages = Stages()
    with pytest.raises(OctavoError) as caught:
        await engine.load(LoadConfig(model=name, **{**LOADED, **cause.asked}), stages)
    assert caught.value.code == cause.code
    return stages


async def ended(events: Any) -> Answer:
    async for event in events:
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


def answered(engine: Engine, key: int, count: int) -> asyncio.Task[Answer]:
    asked = engine.complete(SHIP["prompt_ids"], GenerateConfig(max_tokens=count), key)
    return asyncio.ensure_future(ended(asked))


@pytest.mark.parametrize("memory_bytes", [None, 1 << 30])
@pytest.mark.parametrize("why", CAUSES)
def test_what_is_loaded_stays_and_goes_on_answering(
    why: str, memory_bytes: int | None, tmp_path: Path
) -> None:
    async def run() -> None:
        cause = CAUSES[why]
        engine = Engine(Host(cause, tmp_path))
        await first(engine, memory_bytes=memory_bytes)
        cut = await answered(engine, 1, 60)
        before = engine.status()
        under_way = answered(engine, 2, 150)
        await asyncio.sleep(0)
        stages = await fails(engine, cause)
        assert "device" not in stages, "else what was there is gone"
        answer = await under_way
        assert (answer.ids, answer.finish_reason) == (SHIP["ids"][:150], "length")
        assert engine.status()["models"] == before["models"]
        assert engine.status().get("budget_bytes") == memory_bytes
        # What was computed is found again, and the answer that was cut can go on.
        again = await complete(engine, SHIP["prompt_ids"] + SHIP["ids"][:60], max_tokens=20)
        assert again.ids == SHIP["ids"][60:80]
        assert again.cached_tokens >= len(SHIP["prompt_ids"]) + 60 - 16
        more = await ended(engine.go_on(1, GenerateConfig(max_tokens=20), 3))
        assert cut.ids + more.ids == SHIP["ids"][:80]
        assert isinstance(engine._host, Host)
        assert "first" not in engine._host.opened[1:], "nothing of it was loaded again"

    asyncio.run(run())


def test_the_same_model_with_what_it_cannot_have_stays_too(tmp_path: Path) -> None:
    async def run(cause: Cause, memory_bytes: int | None) -> None:
        engine = Engine(Host(cause, tmp_path))
        await first(engine, memory_bytes=memory_bytes)
        under_way = answered(engine, 1, 60)
        await asyncio.sleep(0)
        await fails(engine, cause, "first")
        assert (await under_way).ids == SHIP["ids"][:60]
        again = await complete(engine, SHIP["prompt_ids"], max_tokens=5)
        assert again.ids == SHIP["ids"][:5] and again.cached_tokens

    asyncio.run(run(CAUSES["no room for a block"], None))
    asyncio.run(run(Cause("request.invalid", asked={"kv_bytes": 1, "memory_bytes": 9}), 1 << 30))
    asyncio.run(run(CAUSES["the budget"], 1 << 30))
    asyncio.run(run(CAUSES["the budget"], None))


def test_a_load_that_fails_later_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        cause = Cause("shard.hash", failing_shard=1)
        engine = Engine(Host(cause, tmp_path))
        await first(engine, memory_bytes=1 << 30)
        under_way = answered(engine, 1, 400)
        await asyncio.sleep(0)
        stages = await fails(engine, cause)
        assert "device" in stages
        assert (await under_way).finish_reason == "cancelled"
        assert engine.status() == {"state": "empty"}
        assert engine.memory.budget is None
        await first(engine)
        assert (await answered(engine, 1, 5)).ids == SHIP["ids"][:5]

    asyncio.run(run())


def test_beside_others_only_the_one_of_its_name_makes_room(tmp_path: Path) -> None:
    async def run() -> None:
        cause = Cause("shard.hash", failing_shard=1, asked={"memory_bytes": 1 << 29})
        host = Host(Cause("internal"), tmp_path)
        engine = Engine(host)
        await first(engine, memory_bytes=1 << 30)
        config = LoadConfig(model="other", context=512, memory_bytes=1 << 30)
        await engine.load(config, Stages())
        host.cause = cause
        await fails(engine, cause)
        resident = {m["model"]: m["resident"] for m in engine.status()["models"]}
        assert resident == {"first": True, "other": False}
        assert engine.status()["budget_bytes"] == 1 << 30
        host.cause = Cause("internal")
        asked = engine.complete(SHIP["prompt_ids"], GenerateConfig(max_tokens=5), 1, "other")
        assert (await ended(asked)).ids == SHIP["ids"][:5], "it comes back"

    asyncio.run(run())


class Slow(Host):
    """Of the model "other" one shard does not come until it may."""

    def __init__(self, folder: Path, shard: int = 0) -> None:
        super().__init__(Cause("internal"), folder)
        self.shard = shard
        self.waits, self.goes_on = asyncio.Event(), asyncio.Event()

    async def read_shard(self, index: int) -> bytes:
        if self.key == "other" and index == self.shard:
            self.waits.set()
            await self.goes_on.wait()
        return await super().read_shard(index)


@pytest.mark.parametrize("shard", [0, 1])
def test_a_load_that_is_stopped_before_it_needs_memory_leaves_what_there_is(
    shard: int, tmp_path: Path
) -> None:
    async def run() -> None:
        host = Slow(tmp_path, shard)
        engine = Engine(host)
        await first(engine)
        under_way = answered(engine, 1, 150)
        load = asyncio.ensure_future(engine.load(LoadConfig(model="other"), Stages()))
        await host.waits.wait()
        assert engine.stop_load()
        with pytest.raises(OctavoError) as caught:
            await load
        assert caught.value.code == "request.cancelled"
        answer = await under_way
        if shard:
            assert answer.finish_reason == "cancelled"
            assert engine.status() == {"state": "empty"}
        else:
            assert answer.ids == SHIP["ids"][:150]
            assert (await complete(engine, SHIP["prompt_ids"], max_tokens=5)).cached_tokens

    asyncio.run(run())


@pytest.mark.parametrize("change", ["reset", "unload", "unload first"])
def test_what_there_is_can_be_reset_and_unloaded_while_a_load_is_at_its_beginning(
    change: str, tmp_path: Path
) -> None:
    async def run() -> None:
        host = Slow(tmp_path)
        engine = Engine(host)
        await first(engine)
        under_way = answered(engine, 1, 400)
        config = LoadConfig(model="other", **LOADED)
        load = asyncio.ensure_future(engine.load(config, Stages()))
        await host.waits.wait()
        work = engine.reset() if change == "reset" else engine.unload(change[7:] or None)
        changing = asyncio.ensure_future(work)
        assert (await under_way).finish_reason == "cancelled"
        if change != "unload first":
            await changing
        host.goes_on.set()
        if change == "unload":
            with pytest.raises(OctavoError):
                await load
            assert engine.status() == {"state": "empty"}
            return
        await load
        if change == "unload first":
            with pytest.raises(OctavoError) as caught:
                await changing
            assert caught.value.code == "engine.not_loaded", "the load has taken its place"
        assert [m["model"] for m in engine.status()["models"]] == ["other"]
        answer = await answered(engine, 2, 5)
        assert (answer.ids, answer.cached_tokens) == (SHIP["ids"][:5], 0)

    asyncio.run(run())


def test_the_budget_holds_until_what_is_in_it_goes(tmp_path: Path) -> None:
    async def run() -> None:
        host = Slow(tmp_path)
        engine = Engine(host)
        room: dict[str, Any] = {"kv_tokens": 4096}
        await first(engine, **room)
        full = engine.status()["memory_bytes"]
        await first(engine, memory_bytes=full, **room)
        model = ready_of(engine).model
        load = asyncio.ensure_future(engine.load(LoadConfig(model="other"), Stages()))
        await host.waits.wait()
        await model.make_room(model.pool.num_blocks + 1)
        assert engine.status()["memory_bytes"] == full
        host.goes_on.set()
        await load
        assert engine.memory.budget is None

    asyncio.run(run())
