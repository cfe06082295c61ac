"""Quantizers for Q4_K, Q5_K and Q6_K, which the `gguf` package can only decode.

A block of 256 weights has 8 or 16 groups; each has a scale (Q4_K and Q5_K an offset too), stored as
a small integer times one half for the block. For each group the rounding is tried at several widths
and the scale fitted to each by weighted least squares; large weights weigh more. The layouts are
those of ggml-quants.h.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType

from engine.host.convert.model import Bytes, Floats

BLOCK = 256
OFFSET_TRIALS = np.linspace(-1.0, 1.0, 21, dtype=np.float32)  # added to the number of levels
SCALE_TRIALS = np.linspace(-0.9, 0.9, 19, dtype=np.float32)


def quantize(rows: Floats, kind: GGMLQuantizationType) -> Bytes:
    """(rows, k) float32 to (rows, bytes); k is a multiple of 256."""
    blocks = np.ascontiguousarray(rows, np.float32).reshape(-1, BLOCK)
    return PACKERS[kind](blocks).reshape(len(rows), -1)


def fit_offset(x: Floats, top: int) -> tuple[Floats, Floats]:
    """(scale, offset), both at least 0 and (n,), for groups x (n, k): x is about scale * q - offset
    with integers q from 0 to `top`."""
    weight = np.sqrt((x * x).mean(-1, keepdims=True)) + np.abs(x)
    low = np.minimum(x.min(-1, keepdims=True), 0)
    span = x.max(-1, keepdims=True) - low
    scale, offset = span / top, -low
    error = _error(x, weight, _levels((x - low) * _inverse(scale), 0, top), scale, -offset)
    sum_w, sum_x = _sum(weight), _sum(weight * x)
    for trial in OFFSET_TRIALS:
        q = _levels((x - low) * ((top + trial) * _inverse(span)), 0, top)
        weighted = weight * q
        sum_q, sum_qq, sum_qx = _sum(weighted), _sum(weighted * q), _sum(weighted * x)
        determinant = sum_w * sum_qq - sum_q * sum_q
        slope = (sum_w * sum_qx - sum_x * sum_q) * _inverse(determinant)
        start = (sum_qq * sum_x - sum_q * sum_qx) * _inverse(determinant)
        above = start > 0  # an offset below 0 cannot be stored
        slope = np.where(above, sum_qx * _inverse(sum_qq), slope)
        start = np.where(above, 0, start)
        tried = _error(x, weight, q, slope, start)
        better = (tried < error) & (determinant > 0) & (slope > 0)
        scale, offset = np.where(better, slope, scale), np.where(better, -start, offset)
        error = np.where(better, tried, error)
    return scale[:, 0], offset[:, 0]


def fit_scale(x: Floats, bottom: int, top: int) -> Floats:
    """A scale (n,), of either sign, for groups x (n, k): x is about scale * q with integers q from
    `bottom` to `top`."""
    weight = x * x
    peak = np.take_along_axis(x, np.abs(x).argmax(-1, keepdims=True), -1)
    scale = peak / bottom
    gain = np.full_like(scale, -1)
    for trial in SCALE_TRIALS:
        q = _levels(x * ((bottom + trial) * _inverse(peak)), bottom, top)
        weighted = weight * q
        sum_qq, sum_qx = _sum(weighted * q), _sum(weighted * x)
        tried = sum_qx * sum_qx * _inverse(sum_qq)  # what the fit takes off the squared error
        better = tried > gain
        scale = np.where(better, sum_qx * _inverse(sum_qq), scale)
        gain = np.where(better, tried, gain)
    return scale[:, 0]


def _sum(values: Floats) -> Floats:
    total: Floats = values.sum(-1, keepdims=True)
    return total


def _levels(values: Floats, bottom: int, top: int) -> Floats:
    return np.clip(np.rint(values), bottom, top)


def _error(x: Floats, weight: Floats, q: Floats, scale: Floats, start: Floats) -> Floats:
    difference = scale * q + start - x
    return _sum(weight * difference * difference)


def _inverse(values: Floats) -> Floats:
    """1 / values, and 0 where that is infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        result = 1 / values
    return np.where(np.isfinite(result), result, np.float32(0))


def _halves(values: Floats) -> tuple[Floats, Bytes]:
    """(n,) values as halves: what they decode to, (n, 1), and their bytes, (n, 2)."""
    halves = values.astype("<f2").reshape(-1, 1)
    return halves.astype(np.float32), halves.view(np.uint8)


def _with_offsets(blocks: Floats, top: int) -> tuple[Bytes, Bytes]:
    """The head of a Q4_K or Q5_K block (two halves, packed scales and offsets; (n, 16)), and the
    levels, (n, 8, 32)."""
    x = blocks.reshape(-1, 8, 32)
    scale, offset = (part.reshape(-1, 8) for part in fit_offset(x.reshape(-1, 32), top))
    d, d_bytes = _halves(scale.max(-1) / 63)
    dmin, dmin_bytes = _halves(offset.max(-1) / 63)
    scales = _levels(scale * _inverse(d), 0, 63)
    offsets = _levels(offset * _inverse(dmin), 0, 63)
    q = (x + (dmin * offsets)[..., None]) * _inverse(d * scales)[..., None]
    head = [d_bytes, dmin_bytes, _six_bits(scales.astype(np.uint8), offsets.astype(np.uint8))]
    return np.concatenate(head, -1), _levels(q, 0, top).astype(np.uint8)


def _six_bits(scales: Bytes, offsets: Bytes) -> Bytes:
    """8 scales and 8 offsets of 6 bits in 12 bytes: the upper two bits of the last four lie above
    the first four, their lower four bits in the last four bytes."""
    s, o = scales, offsets
    parts = [
        s[:, :4] | (s[:, 4:] >> 4 << 6),
        o[:, :4] | (o[:, 4:] >> 4 << 6),
        (s[:, 4:] & 15) | (o[:, 4:] & 15) << 4,
    ]
    return np.concatenate(parts, -1)


def _nibbles(q: Bytes) -> Bytes:
    """The low 4 bits of (n, 8, 32) levels: group 2i below group 2i + 1; (n, 128)."""
    low = q & 15
    return (low[:, 0::2] | low[:, 1::2] << 4).reshape(len(q), -1)


def _pack_q4_k(blocks: Floats) -> Bytes:
    head, q = _with_offsets(blocks, 15)
    return np.concatenate([head, _nibbles(q)], -1)


def _pack_q5_k(blocks: Floats) -> Bytes:
    head, q = _with_offsets(blocks, 31)
    high = np.packbits(q >> 4, axis=1, bitorder="little").reshape(len(q), 32)
    return np.concatenate([head, high, _nibbles(q)], -1)


def _pack_q6_k(blocks: Floats) -> Bytes:
    x = blocks.reshape(-1, 16, 16)
    scale = fit_scale(x.reshape(-1, 16), -32, 31).reshape(-1, 16)
    peak = np.take_along_axis(scale, np.abs(scale).argmax(-1, keepdims=True), -1)
    d, d_bytes = _halves(peak[:, 0] / -128)
    scales = _levels(scale * _inverse(d), -128, 127)
    q = _levels(x * _inverse(d * scales)[..., None], -32, 31) + 32
    levels = q.astype(np.uint8).reshape(-1, 2, 4, 32)  # half, quarter of it, weight
    low, high = levels & 15, levels >> 4
    lower = low[:, :, :2] | low[:, :, 2:] << 4
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    upper = np.bitwise_or.reduce(high << shifts, axis=2)
    parts = [part.reshape(len(x), -1) for part in (lower, upper)]
    return np.concatenate([*parts, scales.astype(np.int8).view(np.uint8), d_bytes], -1)


PACKERS: dict[GGMLQuantizationType, Callable[[Floats], Bytes]] = {
    GGMLQuantizationType.Q4_K: _pack_q4_k,
    GGMLQuantizationType.Q5_K: _pack_q5_k,
    GGMLQuantizationType.Q6_K: _pack_q6_k,
}
