"""An encoder from the converter's folder to OpenAI's shape, on the CPU device."""

from __future__ import annotations

import asyncio
import json
import shutil
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from engine.backends.cpu import CpuDevice
from engine.config import LoadConfig
from engine.encoder import SentenceEncoder, load_encoder
from engine.encoder_check import right_traits
from engine.encoders import Encoders
from engine.errors import OctavoError
from engine.host.convert.onnx_graph.conversion import convert_graph
from engine.host.local import LocalHost
from engine.plan import Traits
from engine.room import Memory
from engine.worker import Worker
from tests.conftest import ROOT
from tests.unit.test_embedding import expected
from tests.unit.worker_client import Client

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(36))]
BERT = ROOT / "tests/golden/onnx_bert.onnx"


class FolderHost(LocalHost):
    """Serves what `convert` has written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(sorted(folder.glob("*.bin")))

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        return (self.folder / "manifest.json").read_text()


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_padding(length=50)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_in(tmp_path)


def made_in(tmp_path: Path) -> Path:
    """The folder of an encoder."""
    source = tmp_path / "model/onnx"
    source.mkdir(parents=True)
    shutil.copy(BERT, source / "model.onnx")
    tokenizer().save(str(tmp_path / "model/tokenizer.json"))
    (tmp_path / "model/config.json").write_text('{"max_position_embeddings": 64}')
    (tmp_path / "model/sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    return convert_graph(source / "model.onnx", tmp_path / "out")


def loaded(folder: Path) -> SentenceEncoder:
    return asyncio.run(load_encoder(FolderHost(folder), LoadConfig(), lambda *_: None))


def test_embeddings_in_openais_shape(folder: Path) -> None:
    texts = ["w3 w7 w7", "w1", " ".join(["w5"] * 100), "w3 nonsense w7"]
    encoder = loaded(folder)
    answer = asyncio.run(encoder.create(texts))
    assert json.loads(json.dumps(answer))["object"] == "list"
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2, 3]
    plain = tokenizer()
    plain.no_padding()
    plain.enable_truncation(20)
    ids = [plain.encode(text).ids for text in texts]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    for entry, one in zip(answer["data"], ids, strict=True):
        vector = np.frombuffer(b64decode(entry["embedding"]), np.float32)
        np.testing.assert_allclose(vector, expected(BERT, one), atol=1e-5)
    encoder.close()


@pytest.mark.parametrize("texts", [[], [""], [3], ["a"] * 2049], ids=["none", "empty", "3", "many"])
def test_requests_that_are_wrong(texts: Any) -> None:
    """They are refused before anything is loaded: there is nothing to load."""

    async def run() -> None:
        reply = await Client().ask("embed", model="an encoder", input=texts)
        assert reply["error"]["code"] == "request.invalid"
        assert reply["error"]["message"].startswith("input should be")

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": None},
        {"encoder": {"tokenizer": "{}"}},
        {"encoder": {"tokenizer": 3, "longest": 20}},
        {"encoder": {"tokenizer": "{}", "longest": 1 << 40}},
        {"graph": None},
        {"size": 5},
    ],
    ids=str,
)
def test_manifests_that_are_wrong(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(OctavoError) as caught:
        loaded(folder)
    assert caught.value.code in ("manifest.invalid", "graph.invalid")


def test_without_a_tokenizer_there_is_no_encoder(tmp_path: Path) -> None:
    folder = convert_graph(BERT, tmp_path / "out")
    assert "encoder" not in json.loads((folder / "manifest.json").read_text())


@pytest.mark.parametrize("wrong", [0.0, 0.1, float("nan")])
def test_kernels_that_are_wrong_on_this_gpu(wrong: float) -> None:
    """They are tried once, and then those without barriers are taken."""
    notes: dict[str, str] = {}
    tried: list[bool] = []

    class Notes:
        async def recall(self, key: str) -> str:
            return notes.get(key, "")

        async def remember(self, key: str, value: str) -> None:
            notes[key] = value

    def embed(traits: Traits) -> Any:
        async def vectors(texts: list[list[int]]) -> list[list[float]]:
            tried.append(traits.barriers)
            assert all(len(text) > 1 for text in texts)
            spoiled = wrong if traits.barriers else 0.0
            return [[1.0 - spoiled, 0.0]] * (len(texts) - 1) + [[1.0, 0.0]]

        return vectors

    gpu = Traits("webgpu", "some", subgroup=32)
    for _ in range(2):
        found = asyncio.run(right_traits(gpu, "e", embed, Notes()))
        assert (found == gpu) is (wrong == 0) and found.barriers is (wrong == 0)
    assert tried == [False, True]
    software = replace(gpu, software=True)
    assert asyncio.run(right_traits(software, "e", embed, Notes())) == software


def ask(folder: Path, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """The last replies of a worker to requests, which are asked one after another."""
    replies: list[dict[str, Any]] = []

    async def run() -> None:
        worker = Worker(FolderHost(folder), lambda text: replies.append(json.loads(text)))
        for id, message in enumerate(messages):
            worker.handle(json.dumps({"id": id, **message}))
            while not any(r["id"] == id and r["kind"] in ("result", "error") for r in replies):
                await asyncio.sleep(0)

    asyncio.run(run())
    return [r for r in replies if r["kind"] in ("result", "error")]


def test_the_worker_embeds(folder: Path) -> None:
    wanted = {"kind": "embed", "model": "e"}
    one, before, many, gone, after, again = ask(
        folder,
        {**wanted, "input": "w3 w7"},
        {"kind": "status"},
        {**wanted, "input": ["w3 w7", "w1"]},
        {"kind": "unload", "model": "e"},
        {"kind": "status"},
        {**wanted, "input": ["w1"]},
    )
    assert gone["kind"] == "result"
    held, none = before["value"]["encoder"], after["value"]
    assert held["model"] == "e" and held["memory"]["weights"] > 0 and "encoder" not in none
    assert held["memory_bytes"] == sum(held["memory"].values())
    first, second = (entry["embedding"] for entry in many["value"]["data"])
    assert one["value"]["data"][0]["embedding"] == first
    assert again["value"]["data"][0]["embedding"] == second


@pytest.mark.parametrize(
    "fields",
    [{}, {"model": "e"}, {"model": "e", "input": 3}, {"model": "e", "input": ["a", None]}],
    ids=str,
)
def test_requests_without_what_they_need(folder: Path, fields: dict[str, Any]) -> None:
    (reply,) = ask(folder, {"kind": "embed", **fields})
    assert reply["error"]["code"] == "request.invalid"


@pytest.mark.parametrize("target", [0, None])
def test_a_stop_ends_embeddings(folder: Path, target: int | None) -> None:
    """A targeted one, and one of all that runs."""
    asked = {"kind": "embed", "model": "e", "input": "w1"}

    async def run() -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []
        worker = Worker(FolderHost(folder), lambda text: replies.append(json.loads(text)))
        worker.handle(json.dumps({"id": 0, **asked}))
        worker.handle(json.dumps({"id": 1, "kind": "stop", "target": target}))
        while sum(reply["kind"] in ("result", "error") for reply in replies) < 2:
            await asyncio.sleep(0)
        return sorted(replies, key=lambda reply: int(reply["id"]))

    ended, stopped = (r for r in asyncio.run(run()) if r["kind"] in ("result", "error"))
    assert stopped["value"] == {"stopped": True}
    assert ended["error"]["code"] == "request.cancelled"


def test_a_request_is_stopped(folder: Path) -> None:
    async def run() -> None:
        encoders = Encoders(FolderHost(folder), Memory())
        config = LoadConfig("e")
        waiting = asyncio.ensure_future(encoders.create(config, ["w1"], lambda *_: None, 1))
        await asyncio.sleep(0)
        assert encoders.stop(1) and not encoders.stop(2)
        with pytest.raises(OctavoError) as caught:
            await waiting
        assert caught.value.code == "request.cancelled"
        assert not encoders.describe()
        answer = await encoders.create(config, ["w1"], lambda *_: None, 1)
        assert len(answer["data"]) == 1

    asyncio.run(run())


@pytest.mark.parametrize(("losses", "works"), [(1, True), (2, False)])
def test_a_lost_gpu_is_asked_for_once_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, losses: int, works: bool
) -> None:
    left = losses
    run = CpuDevice.run

    async def losing(self: CpuDevice, *arguments: Any) -> list[int]:
        nonlocal left
        if left:
            left -= 1
            raise OctavoError("gpu.lost")
        return await run(self, *arguments)

    monkeypatch.setattr(CpuDevice, "run", losing)
    encoders = Encoders(FolderHost(folder), Memory())
    request = encoders.create(LoadConfig("e"), ["w1"], lambda *_: None, 1)
    if works:
        assert len(asyncio.run(request)["data"]) == 1
    else:
        with pytest.raises(OctavoError, match="lost"):
            asyncio.run(request)
