"""The self-test of a GPU, and what happens to one that fails it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from engine import selftest
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.browser import WRONG_NUMBERS, BrowserHost
from engine.config import LoadConfig
from engine.errors import OctavoError


@pytest.mark.parametrize("chunk", [16, 512])
def test_a_right_device_passes_and_holds_nothing(chunk: int) -> None:
    device = CpuDevice(chunk)
    assert asyncio.run(selftest.passes(device))
    assert device.memory() == {}


def test_a_wrong_device_fails() -> None:
    """One weight that is off is enough."""

    async def run() -> bool:
        device = CpuDevice()
        upload = device.upload

        async def slightly_wrong(shard: Any, jobs: Any) -> None:
            await upload(shard, jobs)
            device._arrays["blk.2.ffn_down.weight"] *= 1.5

        device.upload = slightly_wrong  # type: ignore[method-assign]
        return await selftest.passes(device)

    assert not asyncio.run(run())


class FakeJs:
    """The worker's host object with a GPU that would be taken if it passes the self-test."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.gpu = self.memory = self
        self.taken = 0  # devices

    async def request(self) -> Any:
        self.taken += 1
        return self

    def useRepacks(self, kernels: str) -> None:  # noqa: N802
        pass

    def release(self) -> None:
        self.taken -= 1

    def describe(self) -> str:
        fields = ("max_binding_bytes", "max_buffer_bytes", "workgroup_bytes")
        limits = dict.fromkeys(fields, 1 << 30)
        return json.dumps({"name": "fake", "software": False, "subgroup": 32, **limits})

    async def get(self, key: str) -> str | None:
        return self.kept.get(key)

    async def set(self, key: str, value: str) -> None:
        self.kept[key] = value

    async def installNumpy(self) -> None:  # noqa: N802 - JavaScript's name
        pass


def test_what_follows_from_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[bool] = []

    def verdict(right: bool) -> Any:
        def passes(device: Device, memory: Any) -> Awaitable[bool]:
            runs.append(right)
            return asyncio.sleep(0, right)

        return passes

    async def run() -> None:
        js = FakeJs()
        host = BrowserHost(js)
        monkeypatch.setattr(selftest, "passes", verdict(False))
        device, reason = await host.open_device(LoadConfig(device="auto"))
        assert (device.traits.kind, reason) == ("cpu", WRONG_NUMBERS)
        with pytest.raises(OctavoError) as caught:
            await host.open_device(LoadConfig(device="gpu"))
        assert caught.value.code == "gpu.wrong"
        assert js.kept == {}, "a failure is not remembered: a driver may be mended"
        assert js.taken == 0, "what is not used is given back"

        def lost(device: Device, memory: Any) -> Awaitable[bool]:
            raise OctavoError("gpu.lost")

        monkeypatch.setattr(selftest, "passes", lost)
        with pytest.raises(OctavoError):
            await host.open_device(LoadConfig(device="auto"))
        assert js.taken == 0

        monkeypatch.setattr(selftest, "passes", verdict(True))
        for _ in range(3):
            device, reason = await host.open_device(LoadConfig(device="auto"))
            assert (device.traits.kind, reason) == ("webgpu", "")
        assert runs == [False, False, True], "a pass is remembered"
        assert js.taken == 3, "each model has its own"

    asyncio.run(run())
