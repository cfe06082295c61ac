"""The model of `debug`: GGUF files or a folder of shards, and its weights as the references take
them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.backends.cpu import CpuDevice
from engine.header import Manifest, read_headers, read_manifest
from engine.host.errors import HostError
from engine.host.files import parts_of
from engine.host.local import LocalHost
from engine.plan import Weight
from engine.weights.gguf import GGUF
from engine.weights.loading import shard_jobs

CACHE_BYTES = 1 << 30  # of weights as f32 that are kept for their next use


class _ShardsHost(LocalHost):
    """Serves a folder of shards, all of one file."""

    def _cut(self, files: Sequence[Path]) -> None:
        self._shards = [(path, 0, path.stat().st_size) for path in files]
        self._parts = [sum(size for _, _, size in self._shards)]


def host_of(model: Path, library: Path | None) -> LocalHost:
    """A host of the model that `model` is: a .gguf, any part of a split one, or a folder of shards
    with its manifest. Raises HostError if it is none."""
    if not model.is_dir():
        return LocalHost(parts_of(model), library)
    manifest = model / "manifest.json"
    try:
        listed = json.loads(manifest.read_bytes())["shards"]
        shards = [model / str(shard["name"]) for shard in listed]
    except (OSError, ValueError, KeyError, TypeError):
        raise HostError(f"{manifest} is no manifest of a folder of shards.") from None
    missing = next((path for path in shards if not path.is_file()), None)
    if missing or not shards:
        raise HostError(f"{missing or 'A shard'} of {manifest} is not there.")
    return _ShardsHost(shards, library)


class FileWeights:
    """Weights as NumPy arrays, f32 or i32, read from the files when they are asked for."""

    def __init__(self, host: LocalHost, manifest: Manifest, gguf: GGUF) -> None:
        self._host = host
        self._sizes = manifest.shard_sizes
        self._gguf = gguf
        self._kept: OrderedDict[str, Any] = OrderedDict()

    @classmethod
    async def of(cls, host: LocalHost) -> FileWeights:
        """Those of a host's model."""
        manifest = read_manifest(await host.open_shards("", lambda *_: None))
        _, gguf = await read_headers(host, manifest)
        return cls(host, manifest, gguf)

    async def get(self, weight: Weight) -> Any:
        """A weight, in its shape."""
        if weight.name not in self._kept:
            self._kept[weight.name] = await self._read(weight)
        self._kept.move_to_end(weight.name)
        array = self._kept[weight.name]
        while len(self._kept) > 1 and sum(a.nbytes for a in self._kept.values()) > CACHE_BYTES:
            self._kept.popitem(last=False)
        return array

    async def _read(self, weight: Weight) -> Any:
        """By the engine's own way of loading, on a device that has nothing else."""
        import numpy as np

        device = CpuDevice()
        await device.allocate([weight])
        carries = False
        for index, jobs in enumerate(shard_jobs(self._gguf, [weight], self._sizes)):
            if jobs.jobs or jobs.carry or carries:
                await device.upload(await self._host.read_shard(index), jobs)
            carries = jobs.carry
        kind = np.int32 if weight.dtype == "i32" else np.float32
        return np.frombuffer(await device.read(weight), kind).reshape(weight.shape)
