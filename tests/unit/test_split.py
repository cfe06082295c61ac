"""Models split over several GGUF files, and manifests that say so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.header import read_manifest
from engine.weights.gguf import GGUF, read_header
from engine.weights.split import join
from tests.native import NativeHost
from tests.splitting import split
from tests.tiny import TINY
from tests.unit.engines import complete, golden


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return split(TINY, tmp_path_factory.mktemp("split"))


def headers(parts: list[Path]) -> list[GGUF]:
    return [read_header(part.read_bytes(), part.stat().st_size) for part in parts]


def test_tensors_lie_where_the_files_have_them(parts: list[Path]) -> None:
    data = b"".join(part.read_bytes() for part in parts)
    whole = TINY.read_bytes()
    joined, single = join(headers(parts)), read_header(whole, len(whole))
    assert joined.size == len(data)
    assert joined.metadata.items() >= single.metadata.items()
    assert joined.tensors.keys() == single.tensors.keys()
    for name, info in single.tensors.items():
        moved = joined.tensors[name]
        assert (moved.shape, moved.quant) == (info.shape, info.quant)
        assert data[moved.offset :][: moved.nbytes] == whole[info.offset :][: info.nbytes]


@pytest.mark.parametrize("shard_size", [1 << 24, 20_000])
def test_a_split_model_answers_as_the_whole(parts: list[Path], shard_size: int) -> None:
    """Parts have sizes that are no multiples of 4 here: only cuts within a file must be."""

    async def run() -> None:
        engine = Engine(NativeHost(parts, shard_size))
        await engine.load(LoadConfig(context=256), lambda *_: None)
        prompt = golden("tiny")["prompts"][0]
        answer = await complete(engine, prompt["prompt_ids"], max_tokens=200)
        assert answer.ids == prompt["ids"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda parts: parts[:1], "there are 1"),
        (lambda parts: parts[:-1], "split into"),
        (lambda parts: [parts[0], parts[0], *parts[2:]], "another one"),
        (lambda parts: [parts[0], *parts[:0:-1]], "another one"),
        (lambda parts: parts[1:], "split into"),
    ],
    ids=["one", "last missing", "twice", "disordered", "first missing"],
)
def test_files_that_are_no_model_together(parts: list[Path], choose: Any, message: str) -> None:
    with pytest.raises(OctavoError, match=message) as caught:
        join(headers(choose(parts)))
    assert caught.value.code == "gguf.invalid"


def test_a_part_of_another_model(parts: list[Path], tmp_path: Path) -> None:
    others = split(TINY, tmp_path, most_tensors=6)
    with pytest.raises(OctavoError, match="in two files"):
        join(headers([*parts[:2], others[2], *parts[3:]]))
    fewer = headers(parts)
    fewer[1].tensors.popitem()
    with pytest.raises(OctavoError, match="tensors of"):
        join(fewer)


def manifest(**fields: Any) -> str:
    return json.dumps({"size": 30, "shards": [{"size": n} for n in (8, 5, 12, 5)]} | fields)


def test_shards_end_where_files_do() -> None:
    assert read_manifest(manifest(parts=[13, 17])).parts == (13, 17)
    for parts in ([30], [8, 22], [12, 18], [13, 16], [13, 17, 0], [], [25, 5], [-1, 31]):
        with pytest.raises(OctavoError) as caught:
            read_manifest(manifest(parts=parts))
        assert caught.value.code == "manifest.invalid", parts
    for wrong in ("x", 3, None, ["a"], [[13]]):
        with pytest.raises(OctavoError) as caught:
            read_manifest(manifest(parts=wrong))
        assert caught.value.code == "manifest.invalid", wrong
