"""`octavo.embeddings.create` in the page: an encoder that `convert` made, on both devices."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import shaders
from engine.backends.base import Device
from engine.config import LoadConfig
from engine.encoder import load_encoder
from engine.errors import OctavoError
from engine.host.bench import WEBGPU_FLAG
from engine.host.convert.onnx_graph.conversion import convert_graph
from engine.host.debug.page import PageDevice, PagePlayer, opened
from tests.browser.conftest import link_site
from tests.conftest import StaticServer
from tests.refusing import REFUSE
from tests.unit.test_embedding import expected
from tests.unit.test_encoder import BERT, FolderHost, tokenizer

pytestmark = pytest.mark.browser
TEXTS = ["w3 w7 w7", "w1", " ".join(["w5", "w6"] * 12), "w3 nonsense w7"]
EMBED = """async ({ device, input }) => {
  const { Octavo } = await import('/client.mjs');
  globalThis.octavo ??= new Octavo();
  const model = 'models/encoder/manifest.json';
  const hints = { user: 'me', encoding_format: null };
  const answer = await octavo.embeddings.create({ model, input, device, ...hints });
  const failure = await octavo.embeddings.create({ model, input: 3 }).catch((error) => error.code);
  return { answer, failure };
}"""


def encoder(root: Path, work: Path) -> None:
    """An encoder in a site's models."""
    work.mkdir()
    shutil.copy(BERT, work / "encoder.onnx")
    tokenizer().save(str(work / "tokenizer.json"))
    (work / "config.json").write_text(json.dumps({"max_position_embeddings": 32}))
    convert_graph(work / "encoder.onnx", root / "models")


# The encoder is asked for while a model is loaded, in a budget that has not room for both.
TOGETHER = """async ({ input }) => {
  const alone = (await octavo.status()).encoder.memory_bytes;
  await octavo.unload();
  const load = (memory_bytes, heard) => octavo.load(
    { model: 'models/tiny/manifest.json', device: 'cpu', context: 64, memory_bytes }, heard);
  const { memory_bytes } = await load();
  await octavo.unload();
  const ask = () => octavo.embeddings.create(
    { model: 'models/encoder/manifest.json', device: 'cpu', input });
  const both = memory_bytes + alone;
  let loading;
  await new Promise((heard) => (loading = load(both - 1, heard)));
  const [{ kept }, { data }] = await Promise.all([loading, ask()]);
  const { models, encoder } = await octavo.status();
  const wrong = await octavo.load({ model: 'models/tiny/manifest.json', memory_bytes: 9 })
    .catch((error) => error.code);
  const { choices } = await octavo.chat.completions.create(
    { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 3 });
  const after = await octavo.status();
  return {
    kept, data, wrong, text: typeof choices[0].message.content, encoder: Boolean(encoder),
    resident: models[0].resident, now: after.models[0].resident, gone: !after.encoder,
  };
}"""


class PageHost(FolderHost):
    """Has the GPU of a page, which it takes for a ``real`` one."""

    def __init__(self, folder: Path, player: PagePlayer, real: bool = True) -> None:
        super().__init__(folder)
        self._real = real
        self.notes: dict[str, str] = {}
        self._player = player

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        device = PageDevice(self._player, "f32")
        if self._real:
            device.traits = replace(device.traits, software=False, barriers=True)
        return device, ""

    async def recall(self, key: str) -> str:
        return self.notes.get(key, "")

    async def remember(self, key: str, value: str) -> None:
        self.notes[key] = value


def test_wrong_kernels_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chromium_path: str
) -> None:
    (tmp_path / "models").mkdir()
    encoder(tmp_path, tmp_path / "work")
    original = shaders.piece
    right, wrong = "total * mine + other.y * theirs", "total * mine + other.y"
    assert original("attend_tile").count(right) == 1

    async def noted() -> tuple[str, list[float]]:
        async with opened(chromium_path, [WEBGPU_FLAG]) as player:
            host = PageHost(tmp_path / "models/encoder", player)
            made = await load_encoder(host, LoadConfig(), lambda *_: None)
            (vector,), _ = await made.embed(TEXTS[:1])
            made.close()
            return "".join(host.notes.values()), list(vector)

    found, vector = asyncio.run(noted())
    monkeypatch.setattr(shaders, "piece", lambda name: original(name).replace(right, wrong))
    known, same = asyncio.run(noted())
    assert (found, known) == ("right", "wrong")
    np.testing.assert_allclose(same, vector, atol=1e-5)


# Names of the buffers that have not been freed, but for those that copies go through.
LIVE = """() => {
  const device = GPUDevice.prototype, buffer = GPUBuffer.prototype;
  const {createBuffer} = device, {destroy} = buffer;
  const live = new Set();
  self.live = () => [...live].map(({label}) => label).filter((label) => label !== 'readback');
  device.createBuffer = function (descriptor) {
    const made = createBuffer.call(this, descriptor);
    live.add(made);
    return made;
  };
  buffer.destroy = function () {
    live.delete(this);
    return destroy.call(this);
  };
}"""


def test_a_gpu_without_the_memory_for_more_texts(tmp_path: Path, chromium_path: str) -> None:
    """They fail, nothing of it stays, and what comes next is right."""
    (tmp_path / "models").mkdir()
    encoder(tmp_path, tmp_path / "work")

    async def run() -> None:
        async with opened(chromium_path, [WEBGPU_FLAG]) as player:
            await player.page.evaluate(LIVE)
            await player.page.evaluate(REFUSE)
            host = PageHost(tmp_path / "models/encoder", player, real=False)
            made = await load_encoder(host, LoadConfig(), lambda *_: None)
            (wanted,), _ = await made.embed(TEXTS[:1])
            for count, label in ((2, "slot.0"), (20, "embed.32x16.input.input_ids")):
                texts = TEXTS[:1] * count
                await player.page.evaluate("(next) => void (refusing.next = next)", label)
                with pytest.raises(OctavoError) as caught:
                    await made.embed(texts)
                assert caught.value.code == "memory.device"
                assert await player.page.evaluate("refusing.next") is None
                assert label not in await player.page.evaluate("live()")
                for again in (TEXTS[:1], texts, TEXTS[:1]):
                    vectors, _ = await made.embed(again)
                    for vector in vectors:
                        np.testing.assert_allclose(vector, wanted, atol=1e-5)
                live = await player.page.evaluate("live()")
                assert len(live) == len(set(live)), "what is too small goes"
            assert await player.page.evaluate("refusing.unguarded") == []

    asyncio.run(run())


def test_embeddings_on_both_devices(tmp_path: Path, gpu_chromium: Any) -> None:
    root = link_site(tmp_path / "root")
    encoder(root, tmp_path / "work")
    plain = tokenizer()
    plain.no_padding()
    plain.enable_truncation(32)
    wanted = [expected(BERT, plain.encode(text).ids) for text in TEXTS]
    server = StaticServer(root)
    context = gpu_chromium.new_context(service_workers="block")
    try:
        page = context.new_page()
        page.goto(f"{server.url}/models.json")
        for device in ("gpu", "cpu"):  # only the second has NumPy
            result = page.evaluate(EMBED, {"device": device, "input": TEXTS})
            assert result["failure"] == "request.invalid"
            found = [entry["embedding"] for entry in result["answer"]["data"]]
            np.testing.assert_allclose(found, wanted, atol=1e-3)
        result = page.evaluate(TOGETHER, {"input": TEXTS})
        found = [entry["embedding"] for entry in result.pop("data")]
        np.testing.assert_allclose(found, wanted, atol=1e-3)
        assert result == {
            "kept": True,
            "wrong": "memory.budget",
            "text": "string",
            "encoder": True,
            "resident": False,
            "now": True,
            "gone": True,
        }
    finally:
        context.close()
        server.close()
