"""Embeddings of texts by an encoder that came as a graph: batches of texts of like length, each
run as a plan for the smallest bucket that holds it. A plan is made when it is first used."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from engine.backends.base import Device, slot_sizes, weights_of
from engine.errors import OctavoError
from engine.graph.lowering import Recording, record
from engine.graph.model import Graph
from engine.graph.passes.dead import drop_dead
from engine.graph.pooling import EMBEDDING, MASK, mean_pooling
from engine.graph.running import compute, state_of, write_known
from engine.plan import Plan, Traits, Weight
from engine.room import Boundless, CrowdedError, Room

IDS, KINDS = "input_ids", "token_type_ids"
BATCH, SEQUENCE = "batch", "sequence"
SHORTEST = 16  # tokens of the smallest bucket
MOST_TOKENS = 4096  # of a run, padding included
MOST_TEXTS = 32  # of a run
FEWER = 8  # times fewer texts than that are a bucket of their own, as is one text


@dataclass(frozen=True)
class Bucket:
    """Texts of at most ``length`` tokens, ``batch`` at once."""

    batch: int
    length: int

    @property
    def name(self) -> str:
        """The name of its plan."""
        return f"embed.{self.batch}x{self.length}"


def buckets(longest: int) -> list[Bucket]:
    """Buckets for texts of up to ``longest`` tokens: lengths are a third or a half longer than the
    one before, so that a fifth is padding at most on average; of each, one text, a few, and as
    many as are run at once."""
    lengths, power = [SHORTEST], SHORTEST
    while lengths[-1] < longest:
        lengths += [power * 3 // 2, power * 2]
        power *= 2
    found = []
    for length in sorted({min(length, longest) for length in lengths}):
        most = max(1, min(MOST_TEXTS, MOST_TOKENS // length))
        found += [Bucket(n, length) for n in sorted({1, max(1, most // FEWER), most})]
    return found


def batches(
    lengths: Sequence[int], given: Sequence[Bucket], full: bool = False
) -> list[tuple[Bucket, list[int]]]:
    """Which texts, by their places, run together, the shortest first: by length, so that little is
    padded. In few runs, or in ``full`` ones, without rows that nobody asks for."""
    by_length: dict[int, list[int]] = {}
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        length = next(b.length for b in given if b.length >= lengths[i])
        by_length.setdefault(length, []).append(i)
    found: list[tuple[Bucket, list[int]]] = []
    for length, places in by_length.items():
        sizes = [bucket for bucket in given if bucket.length == length]
        while places:
            if full:
                bucket = next((b for b in reversed(sizes) if b.batch <= len(places)), sizes[0])
            else:
                bucket = next((b for b in sizes if b.batch >= len(places)), sizes[-1])
            found.append((bucket, places[: bucket.batch]))
            places = places[bucket.batch :]
    return found


@dataclass(frozen=True)
class Frame:
    """The control tokens that a tokenizer puts around a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def around(self, ids: Sequence[int], longest: int) -> list[int]:
        """The text's ids, as many as fit, within the frame."""
        room = longest - len(self.before) - len(self.after)
        return [*self.before, *ids[: max(room, 0)], *self.after]


def frame_of(tokenizer_json: str) -> Frame:
    """What the post-processor of a tokenizer.json adds; OctavoError tokenizer.unsupported if it is
    of a kind that is not known."""
    try:
        processor: Mapping[str, Any] = json.loads(tokenizer_json).get("post_processor") or {}
        kind = processor.get("type")
        if kind is None:
            return Frame()
        if kind in ("BertProcessing", "RobertaProcessing"):
            return Frame((int(processor["cls"][1]),), (int(processor["sep"][1]),))
        if kind == "TemplateProcessing":
            return _template(processor)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = f"The tokenizer's post-processor is damaged: {error!r}."
        raise OctavoError("tokenizer.unsupported", reason) from None
    raise OctavoError("tokenizer.unsupported", f"The post-processor {kind!r} is not supported.")


def _template(processor: Mapping[str, Any]) -> Frame:
    before: list[int] = []
    after: list[int] = []
    side = before
    for piece in processor["single"]:
        if "Sequence" in piece:
            side = after
        else:
            side += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return Frame(tuple(map(int, before)), tuple(map(int, after)))


def unframed(tokenizer_json: str) -> str:
    """The tokenizer.json without cutting and padding, which is done here; OctavoError
    tokenizer.unsupported if it is none."""
    try:
        fields = json.loads(tokenizer_json)
        return json.dumps({**fields, "truncation": None, "padding": None})
    except (ValueError, TypeError) as error:
        reason = f"The tokenizer is damaged: {error!r}."
        raise OctavoError("tokenizer.unsupported", reason) from None


def _growth(plans: Sequence[Plan]) -> Plan:
    """A plan that needs by how much the last one makes the activations of them all grow."""
    before, after = slot_sizes(plans[:-1]), slot_sizes(plans)
    grown = (new - old for old, new in zip_longest(before, after, fillvalue=0))
    return Plan("", (), {}, tuple(grown))


class Embedder:
    """An encoder on a device. Its ``weights`` are allocated and loaded by whoever makes it."""

    def __init__(
        self,
        device: Device,
        graph: Graph,
        longest: int,
        traits: Traits | None = None,
        room: Room | None = None,
    ) -> None:
        """``longest`` is how many tokens a text may have, control tokens included; ``traits`` are
        those of the kernels, the device's own if absent; plans have their memory from ``room``."""
        self.longest = longest
        self._traits = traits or device.traits
        self._device = device
        self._room = room or Boundless()
        self._buckets = buckets(longest)
        self._graph = drop_dead(mean_pooling(graph))
        self._recordings: dict[Bucket, Recording] = {}  # that have been used
        # Plans of all sizes have the same weights.
        self.weights: list[Weight] = weights_of([self._record(self._buckets[0]).plan])

    def _record(self, bucket: Bucket) -> Recording:
        sizes = {BATCH: bucket.batch, SEQUENCE: bucket.length}
        return record(self._graph, sizes, self._traits, bucket.name)

    async def _recording(self, bucket: Bucket) -> Recording:
        """The plan of a bucket, ready to run."""
        known = self._recordings.get(bucket)
        if known:
            return known
        made = self._record(bucket)
        recordings = self._recordings
        # All of them: a plan may need larger buffers, which the others then share.
        plans = [recording.plan for recording in (*recordings.values(), made)]
        needs = self._device.needs(state_of(made), [_growth(plans)])
        with self._room.more(needs) as may:
            if not may:
                raise CrowdedError(sum(self._device.memory().values()) + needs)
            self._recordings = {}  # what is stopped half-way begins again
            await self._device.allocate(state_of(made))
            await self._device.compile(plans, lambda *_: None)
        write_known(self._device, made)
        self._recordings = {**recordings, bucket: made}
        return made

    async def embed(self, texts: Sequence[Sequence[int]]) -> list[array[float]]:
        """A vector of length 1 for the ids of each text, control tokens included.

        Raises OctavoError request.invalid for a text without tokens, prompt.too_long for one that
        is longer than ``longest``.
        """
        for ids in texts:
            if not ids:
                raise OctavoError("request.invalid", "A text has no tokens.")
            if len(ids) > self.longest:
                reason = f"A text has {len(ids)} tokens, and the encoder takes {self.longest}."
                raise OctavoError("prompt.too_long", reason)
        vectors: list[array[float]] = [array("f")] * len(texts)
        # A processor takes as long for rows of padding as for others.
        full = self._traits.kind == "cpu"
        for bucket, places in batches(list(map(len, texts)), self._buckets, full):
            rows = await self._run(bucket, [texts[i] for i in places])
            for i, row in zip(places, rows, strict=True):
                vectors[i] = row
        return vectors

    async def _run(self, bucket: Bucket, texts: Sequence[Sequence[int]]) -> list[array[float]]:
        """The vectors of the texts of one run."""
        ids, mask = array("i"), array("i")
        for text in texts:
            rest = bucket.length - len(text)
            ids.extend([*text, *[0] * rest])
            mask.extend([*[1] * len(text), *[0] * rest])
        # Rows that nobody asks for see their first token, so that they are numbers too.
        for _ in range(bucket.batch - len(texts)):
            ids.extend([0] * bucket.length)
            mask.extend([1, *[0] * (bucket.length - 1)])
        kinds = bytes(4 * len(ids))
        given = {IDS: ids.tobytes(), MASK: mask.tobytes(), KINDS: kinds}
        found = await compute(self._device, await self._recording(bucket), given)
        values = array("f", found[EMBEDDING])
        width = len(values) // bucket.batch
        return [values[i * width : (i + 1) * width] for i in range(len(texts))]
