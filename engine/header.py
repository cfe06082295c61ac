"""What is read of a model before its weights: the manifest, and the headers of its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from engine.errors import OctavoError
from engine.weights.gguf import GGUF, MAX_NAME, HeaderIncomplete, read_header
from engine.weights.split import join

HEADER_BYTES = 4 << 20  # what is read of the first shard at once
MAX_HEADER_BYTES = 64 << 20  # the largest vocabularies take a quarter of it


class Shards(Protocol):
    """Where shards are read."""

    async def read_shard(self, index: int) -> Any:
        """A verified shard, as the device takes it."""
        ...

    def head_of(self, shard: Any, count: int) -> bytes:
        """The first bytes of a shard."""
        ...


@dataclass(frozen=True)
class Manifest:
    """``parts`` are the sizes of the files that the model is split into, in bytes; no shard has
    bytes of two files."""

    name: str
    size: int
    shard_sizes: tuple[int, ...]
    parts: tuple[int, ...]
    sha256: str  # of the file; empty if nobody says


def read_manifest(text: str) -> Manifest:
    """Raises OctavoError manifest.invalid."""
    try:
        data = json.loads(text)
        sizes = tuple(shard["size"] for shard in data["shards"])
        name, size, sha256 = data.get("name", ""), data["size"], data.get("sha256", "")
        parts = tuple(data.get("parts", [size]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"The manifest cannot be read: {str(error)[:100]!r}."
        raise OctavoError("manifest.invalid", reason) from error
    if not all(type(number) is int and number > 0 for number in (*sizes, *parts, size)):
        raise OctavoError("manifest.invalid", "The sizes in the manifest are not whole numbers.")
    name, sha256 = (text[:MAX_NAME] if isinstance(text, str) else "" for text in (name, sha256))
    manifest = Manifest(name, size, sizes, parts, sha256)
    if sum(sizes) != size:
        raise OctavoError("manifest.invalid", "The shards do not add up to the file's size.")
    ends = set(accumulate(parts))
    if sum(parts) != size or not ends <= set(accumulate(sizes)):
        raise OctavoError("manifest.invalid", "The shards do not add up to the files' sizes.")
    if any(n % 4 for n, end in zip(sizes, accumulate(sizes), strict=True) if end not in ends):
        raise OctavoError("manifest.invalid", "A shard's size is not a multiple of 4 bytes.")
    return manifest


async def read_headers(host: Shards, manifest: Manifest) -> tuple[Any, GGUF]:
    """The first shard, and the headers of all files as one."""
    headers = []
    first = None
    starts = [0, *accumulate(manifest.shard_sizes)]
    begin = 0
    for size in manifest.parts:
        index = starts.index(begin)
        shard = await host.read_shard(index)
        if first is None:
            first = shard
        headers.append(await _read_one(host, manifest, index, shard, size))
        begin += size
    return first, join(headers)


async def _read_one(host: Shards, manifest: Manifest, index: int, shard: Any, size: int) -> GGUF:
    """The header of the file of ``size`` bytes that begins with ``shard``, the one at ``index``
    (and goes on in the next ones, if it is very long)."""
    here = manifest.shard_sizes[index]
    head = host.head_of(shard, min(HEADER_BYTES, here))
    while True:
        try:
            return read_header(head, size)
        except HeaderIncomplete as incomplete:
            if incomplete.needed > MAX_HEADER_BYTES:
                raise OctavoError("gguf.invalid", "The header is larger than 64 MB.") from None
            wanted = max(incomplete.needed, 2 * len(head))
        if len(head) < here:
            head = host.head_of(shard, here)
        while len(head) < min(wanted, size):
            index += 1
            head += host.head_of(await host.read_shard(index), manifest.shard_sizes[index])
