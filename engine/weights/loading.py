"""Turns a stream of shards into jobs: which bytes become which part of which weight.

Shards cut tensors, and even blocks, anywhere. A block cut by a shard border is finished with the
next shard: its beginning is carried over in front of that shard.

    raw buffer of shard s:  [ CARRY bytes: end of shard s - 1 | shard s ]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import OctavoError
from engine.plan import Weight, plane_name
from engine.shaders import Shader, Slot
from engine.weights.gguf import GGUF, TensorInfo
from engine.weights.quants import QUANTS, Quant, planes, quant

CARRY = 512


@dataclass(frozen=True)
class Job:
    """Blocks [first, first + count) of ``weight`` from byte ``source`` of a raw buffer."""

    weight: Weight
    quant: Quant
    source: int
    first: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in the file."""
        return self.count * self.quant.block_bytes

    def to_wire(self) -> dict[str, object]:
        """The job as the player takes it; a plain copy counts in bytes."""
        copy = not self.quant.repack
        return {
            "repack": self.quant.repack,
            "source": self.source,
            "first": self.first * self.quant.block_bytes if copy else self.first,
            "count": self.count,
            "buffers": [plane_name(self.weight, p) for p in self.weight.planes],
            "bytes": self.nbytes if copy else 0,
        }


@dataclass(frozen=True)
class ShardJobs:
    """The work of one shard; ``carry`` tells whether its end belongs to the next one's work."""

    jobs: tuple[Job, ...]
    carry: bool


@dataclass(frozen=True)
class _Span:
    """Where bytes of a file go: a number of blocks of ``weight``, from ``first_block`` on."""

    weight: Weight
    quant: Quant
    offset: int
    nbytes: int
    first_block: int


def shard_jobs(
    gguf: GGUF, weights: Iterable[Weight], shard_sizes: Sequence[int]
) -> list[ShardJobs]:
    """Jobs for every shard, in order; all tensors are complete after the last one."""
    spans = sorted(_spans(gguf, weights), key=lambda s: s.offset)
    offsets = [span.offset for span in spans]
    result, start, first = [], 0, 0
    for size in shard_sizes:
        end = start + size
        # Tensors lie apart, so those of a shard stand together.
        while first < len(spans) and offsets[first] + spans[first].nbytes <= start:
            first += 1
        inside = spans[first : bisect_left(offsets, end)]
        jobs = [j for span in inside if (j := _job(span, start, end))]
        cut = any(_cut(span, end) for span in inside)
        result.append(ShardJobs(tuple(jobs), cut))
        start = end
    return result


def _spans(gguf: GGUF, weights: Iterable[Weight]) -> Iterable[_Span]:
    for weight in weights:
        first = 0
        for source, rows in zip(weight.sources, weight.rows, strict=True):
            info = gguf.tensors[source]
            q, row_bytes = quant(info.quant), info.nbytes // info.shape[0]
            offset, nbytes = info.offset + rows.start * row_bytes, len(rows) * row_bytes
            yield _Span(weight, q, offset, nbytes, first)
            first += nbytes // q.block_bytes


def _blocks_before(span: _Span, position: int) -> int:
    """Whole blocks of the span that end at or before a file position."""
    inside = min(max(position - span.offset, 0), span.nbytes)
    return inside // span.quant.block_bytes


def _job(span: _Span, start: int, end: int) -> Job | None:
    """The blocks that are complete with this shard and were not before."""
    first, last = _blocks_before(span, start), _blocks_before(span, end)
    if first == last:
        return None
    source = CARRY + span.offset + first * span.quant.block_bytes - start
    return Job(span.weight, span.quant, source, span.first_block + first, last - first)


def _cut(span: _Span, end: int) -> bool:
    """Whether a shard border at ``end`` cuts a block of the span."""
    inside = end - span.offset
    return 0 < inside < span.nbytes and inside % span.quant.block_bytes != 0


def repack_kernels() -> dict[str, Shader]:
    """The kernels that turn file blocks into planes, by name."""
    kernels = {}
    for q in QUANTS.values():
        if q.repack:
            outputs = tuple(
                Slot(p.suffix, _store_type(q, p.suffix, p.type), "read_write")
                for p in planes(q.format, (32,))
            )
            slots = (Slot("job", "Job"), Slot("raw", "array<u32>"), *outputs)
            kernels[q.repack] = Shader(q.repack, slots, lib=("raw", *q.lib))
    return kernels


def _store_type(q: Quant, suffix: str, type: str) -> str:
    # Two q8 blocks share a word of scales, so they are written with atomics.
    return "array<atomic<u32>>" if (q.format, suffix) == ("q8", "scales") else type


def check_sources(gguf: GGUF, name: str, shape: tuple[int, ...]) -> TensorInfo:
    """The tensor called ``name``, or OctavoError model.tensor if absent or of another shape."""
    info = gguf.tensors.get(name)
    if info is None:
        raise OctavoError("model.tensor", f"The file has no tensor {name}.")
    if info.shape != shape:
        raise OctavoError("model.tensor", f"{name} has shape {info.shape}, expected {shape}.")
    return info
