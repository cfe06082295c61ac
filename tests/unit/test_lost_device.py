"""Answers go on after their device was lost: what comes is what would have come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from engine.answer import Delta
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from tests.native import NativeHost
from tests.unit.engines import GOLDEN, ISLANDS, alone, chat, complete, golden, loaded

pytestmark = pytest.mark.usefixtures("no_device_is_quick")


class LosingHost(NativeHost):
    """Its first ``losses`` devices are lost at run number ``at`` of their life."""

    def __init__(self, at: int, losses: int = 1) -> None:
        super().__init__(GOLDEN / "tiny.gguf")
        self.at, self.losses, self.opened = at, losses, 0

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        device = CpuDevice()
        self.opened += 1
        if self.opened <= self.losses:
            run, count = device.run, 0

            def losing(*args: Any) -> Awaitable[list[int]]:
                nonlocal count
                count += 1
                if count >= self.at:
                    raise OctavoError("gpu.lost")
                return run(*args)

            device.run = losing  # type: ignore[method-assign,assignment]
        return device, ""


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_goes_on_after_the_device_was_lost(temperature: float) -> None:
    """Lost in prefill, at the first token or later: the text is that of an undisturbed run."""

    async def run() -> None:
        ids = golden("tiny")["prompts"][3]["prompt_ids"]
        settings = {"max_tokens": 60, "temperature": temperature, "seed": 5}
        want = await complete(await loaded(), ids, **settings)
        lost_at = []
        for at in range(3, 40):  # the warm-up takes two runs
            host = LosingHost(at)
            engine = Engine(host)
            await engine.load(LoadConfig(context=512), lambda *_: None)
            texts: list[str] = []
            async for event in engine.complete(ids, GenerateConfig(**settings)):
                if isinstance(event, Delta):
                    texts.append(event.text)
                else:
                    assert (event.ids, event.text) == (want.ids, want.text)
                    assert event.prompt_tokens == len(ids)
            assert "".join(texts) == want.text
            assert engine.state == "ready"
            if host.opened == 1:
                break  # an answer takes fewer runs than that
            lost_at.append(at)
        assert len(lost_at) > 10, "prefill takes nine runs; decode was interrupted too"

    asyncio.run(run())


def test_all_answers_go_on_after_the_device_was_lost() -> None:
    """It is replaced once, and whoever asks meanwhile waits for it."""

    async def run(at: int) -> int:
        host = LosingHost(at)
        engine = Engine(host)
        await engine.load(LoadConfig(context=512, kv_tokens=2048), lambda *_: None)
        tasks = [asyncio.ensure_future(chat(engine, m, max_tokens=120)) for m in ISLANDS[:2]]
        while host.opened == 1 and not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(chat(engine, ISLANDS[2], max_tokens=120)))
        for ids, answer in zip(wanted, await asyncio.gather(*tasks), strict=True):
            assert answer.ids == ids
        return host.opened

    wanted = [asyncio.run(alone(m, max_tokens=120)).ids for m in ISLANDS[:3]]
    opened = [asyncio.run(run(at)) for at in (5, 8, 11, 14)]
    assert set(opened) <= {1, 2}
    assert 2 in opened
