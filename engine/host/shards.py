"""A model file cut into shards with a manifest, and the catalogue that names the manifests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.host import pins
from engine.host.errors import HostError
from engine.host.files import sha256, write_whole
from engine.host.progress import Step

SHARD_SIZE = 16 * 1024 * 1024  # bytes; the last shard of a model is shorter

Shard = dict[str, Any]  # name, size, sha256


@dataclass(frozen=True)
class About:
    """What a manifest says of a model beside its shards; `file` is the name of the GGUF file."""

    id: str
    name: str
    file: str
    source: str
    license: str


def cut(source: Path, folder: Path, model: pins.Model, shard_size: int = SHARD_SIZE) -> bytes:
    """Cuts `source` into `folder`: 000.bin, 001.bin, ... and, last, manifest.json.

    Returns the manifest's bytes; raises HostError when `source` is not the pinned file.
    """
    shards, digest = _write(source, folder, model.gguf.file, shard_size)
    if digest != model.gguf.sha256:
        raise HostError(f"{source} is not the pinned file: delete it and run again.")
    text = _manifest(_about(model), shards, digest, shard_size)
    write_whole(folder / "manifest.json", text)
    return text


def cut_unpinned(
    source: Path,
    folder: Path,
    about: About,
    shard_size: int = SHARD_SIZE,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """As `cut`, for a file of which nothing is known before; `extra` are more fields of the
    manifest."""
    text = _manifest(about, *_write(source, folder, about.file, shard_size), shard_size, extra)
    write_whole(folder / "manifest.json", text)
    return text


def _write(source: Path, folder: Path, name: str, shard_size: int) -> tuple[list[Shard], str]:
    """The shards as the manifest lists them, and the sha256 of the whole."""
    total = hashlib.sha256()
    shards: list[Shard] = []
    done, size = 0, source.stat().st_size
    with Step(f"Cutting {name} into shards") as step, source.open("rb") as file:
        while data := file.read(shard_size):
            total.update(data)
            shard = {"name": f"{len(shards):03}.bin", "size": len(data), "sha256": sha256(data)}
            write_whole(folder / str(shard["name"]), data)
            shards.append(shard)
            done += len(data)
            step.update(done, size)
    return shards, total.hexdigest()


def existing(folder: Path, model: pins.Model, shard_size: int = SHARD_SIZE) -> bytes | None:
    """The manifest's bytes if `folder` holds a whole cut of `model`, else None."""
    try:
        text = (folder / "manifest.json").read_bytes()
        shards = json.loads(text)["shards"]
        sizes_match = all((folder / s["name"]).stat().st_size == s["size"] for s in shards)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    expected = _manifest(_about(model), shards, model.gguf.sha256, shard_size)
    return text if sizes_match and text == expected else None


def _about(model: pins.Model) -> About:
    return About(model.id, model.name, model.gguf.file, model.source, model.license)


def _manifest(
    about: About,
    shards: list[Shard],
    digest: str,
    shard_size: int,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    fields = {
        "id": about.id,
        "name": about.name,
        "file": about.file,
        "size": sum(shard["size"] for shard in shards),
        "sha256": digest,
        "shard_size": shard_size,
        "shards": shards,
        "source": about.source,
        "license": about.license,
        **(extra or {}),
    }
    return json.dumps(fields, indent=1).encode()


def catalogue(text: bytes, manifests: dict[str, bytes], encoder: str | None = None) -> bytes:
    """models.json with the hashes of the site's own manifests filled in; those are given by where
    they are, relative to the site. Other entries stay as they are, and so does an encoder; one that
    names none gets `encoder`, an address relative to the site."""
    fields = json.loads(text)
    listed = {entry["address"]: entry for entry in fields["models"]}
    for address, manifest in manifests.items():
        if address not in listed:
            raise HostError(f"web/models.json lacks {address}, which engine/host/pins.py has.")
        listed[address]["sha256"] = sha256(manifest)
    if encoder:
        fields.setdefault("encoder", encoder)
    return json.dumps(fields, indent=2, ensure_ascii=False).encode()
