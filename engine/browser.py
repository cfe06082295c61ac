"""The browser's worker as the engine's host: wraps the object that worker.mjs hands over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from engine import selftest
from engine.backends.base import Device
from engine.backends.cpu import CpuDevice
from engine.backends.native import open_native
from engine.backends.webgpu import WebGpuDevice
from engine.config import LoadConfig
from engine.errors import OctavoError, as_octavo_error
from engine.events import Exchange
from engine.grammar import Grammar, vocabulary_json
from engine.shaders import fingerprint
from engine.tokenizer import Encoder, valid

NO_ADAPTER = "This browser offers no GPU adapter (WebGPU), so the CPU computes the answers."
WRONG_NUMBERS = "This GPU failed a self-test, so the CPU computes the answers."
SOFTWARE_ADAPTER = (
    "The only WebGPU adapter is a slow software one, so the CPU computes the answers."
)


class _JsEncoder:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def encode(self, text: str) -> list[int]:
        # As UTF-8: a long text takes Pyodide fifty times as long.
        return list((await self._tokenizer.encode(valid(text).encode())).to_py())

    async def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        # All at once: each way to the worker and back takes longer than a sentence.
        raw = json.dumps([valid(text) for text in texts]).encode()
        ids = (await self._tokenizer.encodeAll(raw)).to_py().tolist()
        ends = accumulate(ids[: len(texts)], initial=len(texts))
        return [ids[start:end] for start, end in pairwise(ends)]

    def close(self) -> None:
        self._tokenizer.dispose()


@dataclass(eq=False)
class _Vocabulary:
    """Grammars of answers in one vocabulary, in a worker of their own; how many are open."""

    table: list[bytes]
    ends: frozenset[int]
    grammars: Any
    open: int = 0


class _JsGrammar:
    def __init__(self, vocabulary: _Vocabulary, matcher: Any) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher

    async def next(self, tokens: Sequence[int]) -> bytes | None:
        mask = await self._vocabulary.grammars.next(self._matcher, json.dumps(list(tokens)))
        return mask.to_bytes() if mask else None

    def close(self) -> None:
        self._vocabulary.open -= 1
        self._vocabulary.grammars.free(self._matcher)


class _JsExchange:
    """``js`` is that of worker/exchange.mjs."""

    def __init__(self, js: Any) -> None:
        self._js = js

    async def status(self) -> int:
        return int(await self._told(self._js.status()))

    async def next(self) -> str:
        return str(await self._told(self._js.next()))

    def close(self) -> None:
        self._js.close()

    async def _told(self, promise: Any) -> Any:
        try:
            return await promise
        except Exception as error:
            raise OctavoError(
                "remote.unavailable",
                hint="It may be down, or not allow pages from here to ask it (CORS).",
            ) from error


class BrowserHost:
    """``js`` is the host object of worker/worker.mjs."""

    def __init__(self, js: Any) -> None:
        self._js = js
        self._learning = asyncio.Lock()
        self._vocabularies: list[_Vocabulary] = []  # that grammars know

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        """The manifest; the download goes on."""
        return str(await self._js.shards.open(manifest, progress))

    async def read_shard(self, index: int) -> Any:
        """A shard as a JavaScript Uint8Array."""
        return await self._js.shards.read(index)

    def head_of(self, shard: Any, count: int) -> bytes:
        """The first bytes of a shard, copied into Python."""
        data: bytes = shard.subarray(0, count).to_bytes()
        return data

    def cancel_shards(self) -> None:
        """Stop the download."""
        self._js.shards.cancel()

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        """A GPU if there is a real one that computes right (or a software one was asked for),
        else the CPU. OctavoError gpu.unavailable or gpu.wrong if only the GPU would do.
        """
        reason = ""
        if config.device != "cpu":
            gpu = await self._request_gpu()
            if not gpu and config.device == "gpu":
                raise OctavoError("gpu.unavailable", hint="Use device=auto or device=cpu.")
            reason = NO_ADAPTER
            if gpu:
                device = WebGpuDevice(gpu, config.activations)
                try:
                    reason = await self._why_not(device, config)
                except BaseException:
                    device.close()
                    raise
                if not reason:
                    return device, ""
                device.close()
                if config.device == "gpu":
                    raise OctavoError("gpu.wrong", hint="Use device=auto or device=cpu.")
        await self._js.installNumpy()
        return CpuDevice(native=None if config.activations == "f32" else open_native()), reason

    async def _why_not(self, device: Device, config: LoadConfig) -> str:
        """Why a GPU is not used; empty if it is."""
        if device.traits.software and config.device != "gpu":
            return SOFTWARE_ADAPTER
        return "" if await self._is_right(device) else WRONG_NUMBERS

    async def _is_right(self, device: Device) -> bool:
        """Whether a GPU passes the self-test; that it did is remembered for the next visit."""
        key = f"selftest {fingerprint()} {device.traits.name}"
        if await self.recall(key):
            return True
        try:
            if not await selftest.passes(device, self):
                return False
        except OctavoError as error:
            if error.code != "gpu.wrong":
                raise
            return False
        await self.remember(key, "passed")
        return True

    async def _request_gpu(self) -> Any:
        """The player's Gpu, or None where there is no adapter or it refuses to give a device."""
        try:
            return await self._js.gpu.request()
        except Exception as error:
            if as_octavo_error(error).code != "gpu.unavailable":
                raise
            return None

    async def open_tokenizer(self, json_text: str) -> Encoder:
        """The Rust tokenizer in WebAssembly, in a worker of its own."""
        return _JsEncoder(await self._js.openTokenizer(json_text.encode()))

    async def open_grammar(
        self, schema: str, strict: bool, table: list[bytes], ends: frozenset[int]
    ) -> Grammar:
        """XGrammar in a worker of its own, which learns a model's vocabulary once. One for another
        vocabulary ends when no answer needs it."""
        async with self._learning:
            vocabulary = await self._learned(table, ends)
            vocabulary.open += 1
        try:
            return _JsGrammar(vocabulary, await vocabulary.grammars.begin(schema, strict))
        except BaseException as error:
            vocabulary.open -= 1
            if not isinstance(error, Exception):
                raise
            raise OctavoError(
                "request.invalid",
                "The schema of response_format cannot be used.",
                "The browser's console says why.",
            ) from error

    async def _learned(self, table: list[bytes], ends: frozenset[int]) -> _Vocabulary:
        known = self._vocabularies
        mine = next((v for v in known if v.table == table and v.ends == ends), None)
        if not mine:
            for unused in [v for v in known if not v.open]:
                unused.grammars.close()
                known.remove(unused)
            mine = _Vocabulary(table, ends, self._js.openGrammars())
            known.append(mine)
        if not mine.grammars.ready:
            await mine.grammars.learn(vocabulary_json(table, ends))
        return mine

    def fetch(self, url: str, headers: Mapping[str, str], body: str | None) -> Exchange:
        """By the worker's fetch."""
        return _JsExchange(self._js.exchange(url, json.dumps(dict(headers)), body))

    async def recall(self, key: str) -> str:
        """What the browser kept under ``key``."""
        return str(await self._js.memory.get(key) or "")

    async def remember(self, key: str, value: str) -> None:
        """Kept in the browser's cache, where it has one."""
        await self._js.memory.set(key, value)

    def now(self) -> float:
        """Seconds since the worker started."""
        return float(self._js.now()) / 1e3
