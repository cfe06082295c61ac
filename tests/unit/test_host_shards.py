"""Cutting a model file into shards, and the catalogue."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from engine.host import pins, shards
from engine.host.errors import HostError

SIZE = 1000


def a_model(data: bytes) -> pins.Model:
    wheel = pins.PyPI("some-package", "1.0", "00")
    member = pins.Member(wheel, "inside/tiny.gguf", hashlib.sha256(data).hexdigest(), len(data))
    return pins.Model("tiny", "Tiny", member, "mit")


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE + 7])
def test_shards_join_to_the_file(tmp_path: Path, length: int) -> None:
    data = bytes(i * i % 251 for i in range(length))
    source = tmp_path / "tiny.gguf"
    source.write_bytes(data)
    folder = tmp_path / "cut"
    text = shards.cut(source, folder, a_model(data), SIZE)

    assert (folder / "manifest.json").read_bytes() == text
    manifest = json.loads(text)
    pieces = [(folder / shard["name"]).read_bytes() for shard in manifest["shards"]]
    assert b"".join(pieces) == data
    assert all(len(piece) == SIZE for piece in pieces[:-1])
    assert 0 < len(pieces[-1]) <= SIZE
    for shard, piece in zip(manifest["shards"], pieces, strict=True):
        assert shard["size"] == len(piece)
        assert shard["sha256"] == hashlib.sha256(piece).hexdigest()
    names = [shard["name"] for shard in manifest["shards"]]
    assert names == [f"{i:03}.bin" for i in range(len(names))]
    del manifest["shards"]
    assert manifest == {
        "id": "tiny",
        "name": "Tiny",
        "file": "tiny.gguf",
        "size": length,
        "sha256": hashlib.sha256(data).hexdigest(),
        "shard_size": SIZE,
        "source": "PyPI package some-package 1.0",
        "license": "mit",
    }


def test_a_whole_cut_is_recognized_and_a_broken_one_is_not(tmp_path: Path) -> None:
    data = b"x" * 2500
    (tmp_path / "tiny.gguf").write_bytes(data)
    folder = tmp_path / "cut"
    model = a_model(data)
    assert shards.existing(folder, model, SIZE) is None
    text = shards.cut(tmp_path / "tiny.gguf", folder, model, SIZE)
    assert shards.existing(folder, model, SIZE) == text
    assert shards.existing(folder, model, SIZE + 1) is None
    assert shards.existing(folder, a_model(b"another"), SIZE) is None
    (folder / "002.bin").write_bytes(b"short")
    assert shards.existing(folder, model, SIZE) is None
    (folder / "002.bin").unlink()
    assert shards.existing(folder, model, SIZE) is None
    (folder / "manifest.json").write_text("[]")
    assert shards.existing(folder, model, SIZE) is None


def test_a_file_that_is_not_the_pinned_one_gets_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"changed")
    with pytest.raises(HostError, match="not the pinned file"):
        shards.cut(tmp_path / "tiny.gguf", tmp_path / "cut", a_model(b"expected"), SIZE)
    assert not (tmp_path / "cut" / "manifest.json").exists()


def test_catalogue_gets_the_manifests_hash() -> None:
    own = {"id": "tiny", "address": "models/tiny/manifest.json", "sha256": "", "context": 8}
    other = {"id": "other", "address": "https://example.org/other.gguf", "sha256": "ab"}
    text = json.dumps({"default": "tiny", "models": [own, other]}).encode()
    filled = json.loads(shards.catalogue(text, {"models/tiny/manifest.json": b"manifest"}))
    digest = hashlib.sha256(b"manifest").hexdigest()
    assert filled["models"] == [own | {"sha256": digest}, other]
    assert "encoder" not in filled
    place = "models/encoder/manifest.json"
    assert json.loads(shards.catalogue(text, {}, place))["encoder"] == place
    named = json.dumps({**json.loads(text), "encoder": "models/another.json"}).encode()
    assert json.loads(shards.catalogue(named, {}, place))["encoder"] == "models/another.json"
    with pytest.raises(HostError, match="models/more/manifest"):
        shards.catalogue(text, {"models/more/manifest.json": b"manifest"})


def test_the_shard_size_is_sixteen_mebibytes() -> None:
    assert shards.SHARD_SIZE == 1 << 24
