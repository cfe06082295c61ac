"""A model file cut into shards with a manifest, and the catalogue that names the manifests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from engine.host import pins
from engine.host.errors import HostError
from engine.host.files import sha256, write_whole
from engine.host.progress import Step

SHARD_SIZE = 16 * 1024 * 1024  # bytes; the last shard of a model is shorter


def cut(source: Path, folder: Path, model: pins.Model, shard_size: int = SHARD_SIZE) -> bytes:
    """Cuts `source` into `folder`: 000.bin, 001.bin, ... and, last, manifest.json.

    Returns the manifest's bytes; raises HostError when `source` is not the pinned file.
    """
    total = hashlib.sha256()
    shards: list[dict[str, Any]] = []
    done, size = 0, source.stat().st_size
    with Step(f"Cutting {source.name} into shards") as step, source.open("rb") as file:
        while data := file.read(shard_size):
            total.update(data)
            shard = {"name": f"{len(shards):03}.bin", "size": len(data), "sha256": sha256(data)}
            write_whole(folder / str(shard["name"]), data)
            shards.append(shard)
            done += len(data)
            step.update(done, size)
    if total.hexdigest() != model.gguf.sha256:
        raise HostError(f"{source} is not the pinned file: delete it and run again.")
    text = _manifest(model, shard_size, shards)
    write_whole(folder / "manifest.json", text)
    return text


def existing(folder: Path, model: pins.Model, shard_size: int = SHARD_SIZE) -> bytes | None:
    """The manifest's bytes if `folder` holds a whole cut of `model`, else None."""
    try:
        text = (folder / "manifest.json").read_bytes()
        shards = json.loads(text)["shards"]
        sizes_match = all((folder / s["name"]).stat().st_size == s["size"] for s in shards)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return text if sizes_match and text == _manifest(model, shard_size, shards) else None


def _manifest(model: pins.Model, shard_size: int, shards: list[dict[str, Any]]) -> bytes:
    fields = {
        "id": model.id,
        "name": model.name,
        "file": model.gguf.file,
        "size": model.gguf.size,
        "sha256": model.gguf.sha256,
        "shard_size": shard_size,
        "shards": shards,
        "source": model.source,
        "license": model.license,
    }
    return json.dumps(fields, indent=1).encode()


def catalogue(text: bytes, manifests: dict[str, bytes]) -> bytes:
    """models.json with the hashes of the site's own manifests filled in; those are given by where
    they are, relative to the site. Other entries stay as they are."""
    fields = json.loads(text)
    listed = {entry["address"]: entry for entry in fields["models"]}
    for address, manifest in manifests.items():
        if address not in listed:
            raise HostError(f"web/models.json lacks {address}, which engine/host/pins.py has.")
        listed[address]["sha256"] = sha256(manifest)
    return json.dumps(fields, indent=2, ensure_ascii=False).encode()
