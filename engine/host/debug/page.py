"""The player in a page of real Chromium, driven from this Python as it is from Pyodide's."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backends.base import Buffer, Progress
from engine.backends.webgpu import WebGpuDevice
from engine.backends.wire import plans_to_wire, slots_to_wire
from engine.config import Activations
from engine.errors import CODES, OctavoError
from engine.host.errors import HostError
from engine.host.paths import ROOT
from engine.host.serve import TYPES
from engine.plan import Call, Plan, Tensor
from engine.weights.loading import ShardJobs

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

ORIGIN = "http://localhost"  # nobody serves it: the page gets its files from here
PAGE = Path(__file__).with_name("player.html")


@dataclass
class _Bytes:
    """As a JavaScript Uint8Array is to the device."""

    data: bytes

    def to_bytes(self) -> bytes:
        """A copy in Python's memory."""
        return self.data


@dataclass
class PagePlayer:
    """The page's ``Gpu``. What the device does without waiting is done before what it waits for
    next."""

    page: Page
    description: str
    encodeMs: float = 0.0  # noqa: N815 (the player's name for it)
    _queue: list[list[Any]] = field(default_factory=list)

    def describe(self) -> str:
        """What the page said of the adapter."""
        return self.description

    def later(self, method: str, *arguments: Any) -> None:
        """Call a method before the next one that is waited for."""
        self._queue.append([method, *map(_outward, arguments)])

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the player. Raises OctavoError with the code of its errors."""
        self.later(method, *arguments)
        calls, self._queue = self._queue, []
        from playwright.async_api import Error

        try:
            answer = await self.page.evaluate("calls => player.call(calls)", calls)
        except Error as error:  # the page is gone
            raise OctavoError("gpu.lost", _first_line(error)) from None
        if failed := answer.get("error"):
            code = failed["code"] if failed["code"] in CODES else "internal"
            raise OctavoError(code, failed["message"])
        return _inward(answer.get("value"))

    async def allocate(self, buffers: str) -> None:
        """As ``Gpu.allocate``."""
        await self.call("allocate", buffers)

    async def grow(self, buffers: str) -> bool:
        """As ``Gpu.grow``."""
        return bool(await self.call("grow", buffers))

    async def read(self, name: str, offset: int, nbytes: int) -> _Bytes:
        """As ``Gpu.read``."""
        found: _Bytes = await self.call("read", name, offset, nbytes)
        return found

    async def compute(self, plan: str, tokens: int, reads: str) -> list[_Bytes]:
        """As ``Gpu.compute``."""
        found: list[_Bytes] = await self.call("compute", plan, tokens, reads)
        return found

    async def trace(self, plan: str, index: int, tokens: int, reads: str) -> list[_Bytes]:
        """As ``Gpu.trace``."""
        found: list[_Bytes] = await self.call("trace", plan, index, tokens, reads)
        return found

    async def survey(self, plan: str, index: int, tokens: int, reads: str) -> str:
        """As ``Gpu.survey``."""
        return str(await self.call("survey", plan, index, tokens, reads))

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        """As ``Gpu.time``."""
        return float(await self.call("time", plan, tokens, repeat))

    async def profile(self, plan: str, tokens: int) -> str:
        """As ``Gpu.profile``."""
        return str(await self.call("profile", plan, tokens))

    def memory(self) -> str:
        """Nobody asks here."""
        return "{}"

    def useRepacks(self, kernels: str) -> None:  # noqa: N802
        """As ``Gpu.useRepacks``."""
        self.later("useRepacks", kernels)

    def beginUpload(self, nbytes: int, count: int) -> None:  # noqa: N802
        """As ``Gpu.beginUpload``."""
        self.later("beginUpload", nbytes, count)

    def finishUpload(self) -> None:  # noqa: N802 (the player's name for it)
        """As ``Gpu.finishUpload``."""
        self.later("finishUpload")

    def clear(self) -> None:
        """As ``Gpu.clear``."""
        self.later("clear")

    def release(self) -> None:
        """The page ends with the command, and all that it has."""


class PageDevice(WebGpuDevice):
    """The GPU of a page."""

    def __init__(self, player: PagePlayer, activations: Activations) -> None:
        super().__init__(player, activations)
        self._player = player

    async def upload(self, shard: object, jobs: ShardJobs) -> None:
        """Hand a shard to the page."""
        wire = json.dumps([job.to_wire() for job in jobs.jobs])
        await self._player.call("upload", shard, int(jobs.carry), wire)

    def prepare(self, calls: Sequence[Call]) -> None:
        """Compiled later, with all others."""

    async def compile(self, plans: Sequence[Plan], progress: Progress) -> None:
        """Compile all pipelines."""
        await self._player.allocate(json.dumps(slots_to_wire(plans)))
        await self._player.call("compile", json.dumps(plans_to_wire(plans)))

    def write(self, tensor: Tensor, data: Buffer, offset: int = 0) -> None:
        """Queue a write."""
        self._player.later("write", tensor.name, offset, bytes(data))

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        """Replay plans."""
        ids = await self._player.call("run", ",".join(plans), tokens, repeat, first, count)
        return list(memoryview(ids.data).cast("I"))


@asynccontextmanager
async def opened(browser: str, flags: Sequence[str]) -> AsyncIterator[PagePlayer]:
    """A page with a GPU device. Raises HostError if ``browser`` does not start, and OctavoError
    gpu.unavailable without an adapter."""
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        try:
            chromium = await playwright.chromium.launch(executable_path=browser, args=list(flags))
        except Error as error:
            raise HostError(f"{browser} does not start: {_first_line(error)}") from None
        page = await chromium.new_page()
        await page.route("**/*", _send)
        await page.goto(f"{ORIGIN}/player.html")
        await page.wait_for_function("window.player !== undefined")
        description = await page.evaluate("player.open()")
        if description is None:
            raise OctavoError("gpu.unavailable", "This Chromium offers no WebGPU adapter.")
        yield PagePlayer(page, description)
        await chromium.close()


async def _send(route: Route) -> None:
    """The page's files."""
    name = route.request.url.removeprefix(ORIGIN)
    path = PAGE if name == "/player.html" else ROOT / "worker" / Path(name).name
    if not path.is_file():
        await route.fulfill(status=404)
        return
    kind = TYPES.get(path.suffix, "text/html")
    await route.fulfill(path=path, content_type=kind)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _outward(value: Any) -> Any:
    is_bytes = isinstance(value, bytes)
    return {"base64": base64.b64encode(value).decode()} if is_bytes else value


def _inward(value: Any) -> Any:
    if isinstance(value, list):
        return [_inward(one) for one in value]
    if isinstance(value, Mapping) and "base64" in value:
        return _Bytes(base64.b64decode(value["base64"]))
    return value
