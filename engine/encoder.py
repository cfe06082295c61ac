"""Loading an encoder of sentences, and what it answers: a manifest with a graph and a tokenizer."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.base import Device
from engine.config import LoadConfig
from engine.embedding import Embedder, Frame, frame_of, unframed
from engine.encoder_check import right_traits
from engine.errors import OctavoError
from engine.graph.facts import check_operators
from engine.graph.lowering import constants_index
from engine.graph.model import Graph
from engine.graph.reading import read_graph
from engine.header import Manifest, read_manifest
from engine.loader import Host, StageProgress, or_nothing, upload_weights
from engine.plan import Traits
from engine.room import Boundless, Room
from engine.tokenizer import Encoder as Tokenizer

LONGEST = 8192  # tokens of a text, whatever a manifest says


@dataclass(frozen=True)
class EncoderManifest:
    """The graph of an encoder, its tokenizer.json, and the most tokens of a text."""

    manifest: Manifest
    graph: Graph
    tokenizer: str
    longest: int


def read_encoder(text: str) -> EncoderManifest:
    """Raises OctavoError manifest.invalid, graph.invalid or graph.operator."""
    manifest = read_manifest(text)
    fields: Mapping[str, Any] = json.loads(text)
    about = fields.get("encoder")
    if not isinstance(about, dict) or "graph" not in fields:
        raise OctavoError("manifest.invalid", "The model is no encoder of sentences.")
    tokenizer, longest = about.get("tokenizer"), about.get("longest")
    if not isinstance(tokenizer, str) or type(longest) is not int or not 2 < longest <= LONGEST:
        raise OctavoError("manifest.invalid", "The tokenizer or the length of texts is missing.")
    graph = read_graph(fields["graph"], manifest.size)
    check_operators(graph)
    return EncoderManifest(manifest, graph, tokenizer, longest)


@dataclass
class SentenceEncoder:
    """A loaded encoder."""

    name: str
    device: Device
    embedder: Embedder
    tokenizer: Tokenizer
    frame: Frame

    async def embed(self, texts: Sequence[str]) -> tuple[list[array[float]], int]:
        """A vector of length 1 for each text, of which as much is taken as fits; and the number of
        tokens taken. Raises OctavoError request.invalid for a text without tokens."""
        longest = self.embedder.longest
        encoded = await self.tokenizer.encode_all(texts)
        ids = [self.frame.around(own, longest) for own in encoded]
        return await self.embedder.embed(ids), sum(map(len, ids))

    async def create(self, texts: Sequence[str]) -> dict[str, Any]:
        """The answer to a request for embeddings, in OpenAI's shape; vectors are base64 of f32,
        little-endian: as text, numbers would take longer than the GPU does."""
        vectors, tokens = await self.embed(texts)
        data = [
            {"object": "embedding", "index": i, "embedding": b64encode(vector.tobytes()).decode()}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "model": self.name, "data": data, "usage": usage}

    def close(self) -> None:
        """Free the device's buffers and the tokenizer."""
        self.device.close()
        self.tokenizer.close()


async def load_encoder(
    host: Host,
    config: LoadConfig,
    progress: StageProgress,
    room: Room | None = None,
    least: int = 0,
) -> SentenceEncoder:
    """Load the encoder of ``config.model``, with memory from ``room``: at least so many bytes in
    all. Whatever fails or is stopped leaves nothing behind."""
    room = room or Boundless()
    with or_nothing(host) as opened:
        text = await host.open_shards(
            config.model, lambda n, of: progress("download", n, of, "bytes")
        )
        encoder = read_encoder(text)
        frame, manifest = frame_of(encoder.tokenizer), encoder.manifest
        device, _ = await host.open_device(config)
        opened.append(device)
        weights = Embedder(device, encoder.graph, encoder.longest).weights
        bare, index = unframed(encoder.tokenizer), constants_index(encoder.graph, manifest.size)
        await room.take(max(device.needs(weights, (), manifest.shard_sizes), least))
        await device.allocate(weights)
        device.begin_upload(manifest.shard_sizes)
        tokenizer = await host.open_tokenizer(bare)
        opened.append(tokenizer)
        first = await host.read_shard(0)
        await upload_weights(host, device, index, manifest, weights, first, progress)

        def embedder_of(traits: Traits) -> Embedder:
            return Embedder(device, encoder.graph, encoder.longest, traits, room)

        traits = await right_traits(
            device.traits, manifest.name, lambda traits: embedder_of(traits).embed, host
        )
        return SentenceEncoder(manifest.name, device, embedder_of(traits), tokenizer, frame)
