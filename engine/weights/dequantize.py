"""File blocks to f32 in NumPy, bit for bit as ggml's reference code does it.

A function takes blocks (n, block_bytes) u8 and gives values f32 of any shape, in file order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.weights.quants import quant

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def dequantize(name: str, raw: bytes | memoryview | Array) -> Array:
    """Whole blocks of the quantization ``name`` to f32 values, flat; OctavoError
    model.quantization if there is none of that name."""
    import numpy as np

    blocks = np.frombuffer(raw, np.uint8).reshape(-1, quant(name).block_bytes)
    return _READERS[name](blocks).reshape(-1)


def _f32(blocks: Array) -> Array:
    import numpy as np

    values: Array = blocks.reshape(-1).view(np.float32)
    return values


def _f16(blocks: Array) -> Array:
    import numpy as np

    return blocks.reshape(-1).view(np.float16).astype(np.float32)


def _bf16(blocks: Array) -> Array:
    """The upper halves of f32 values."""
    import numpy as np

    values: Array = (blocks.reshape(-1).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values


def _q2_k(blocks: Array) -> Array:
    """Layout as in wgsl/repack_q2_k.wgsl."""
    import numpy as np

    q = (blocks[:, 16:80].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    scales = _half(blocks, 80) * _floats(blocks[:, :16] & 15)
    mins = _half(blocks, 82) * _floats(blocks[:, :16] >> 4)
    values: Array = scales[:, :, None] * _floats(q.reshape(-1, 16, 16)) - mins[:, :, None]
    return values


def _q3_k(blocks: Array) -> Array:
    """Layout as in wgsl/repack_q3_k.wgsl."""
    import numpy as np

    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    low = (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> shifts) & 3
    high = np.unpackbits(blocks[:, :32, None], axis=2, bitorder="little").swapaxes(1, 2)
    q = _floats(low.reshape(-1, 8, 32) | (high << 2)) - 4
    upper = (blocks[:, None, 104:108] >> shifts) & 3
    sc = _floats(_nibbles(blocks[:, 96:104]) | (upper.reshape(-1, 16) << 4)) - 32
    values: Array = (_half(blocks, 108) * sc)[:, :, None] * q.reshape(-1, 16, 16)
    return values


def _q4_0(blocks: Array) -> Array:
    values: Array = _half(blocks, 0) * (_floats(_nibbles(blocks[:, 2:])) - 8)
    return values


def _q4_1(blocks: Array) -> Array:
    values: Array = _half(blocks, 0) * _floats(_nibbles(blocks[:, 4:])) + _half(blocks, 2)
    return values


def _q4_k(blocks: Array) -> Array:
    return _superblocks(blocks, _nibbles(blocks[:, 16:].reshape(-1, 32)))


def _q5_0(blocks: Array) -> Array:
    values: Array = _half(blocks, 0) * (_floats(_fives(blocks[:, 2:6], blocks[:, 6:])) - 16)
    return values


def _q5_1(blocks: Array) -> Array:
    q = _floats(_fives(blocks[:, 4:8], blocks[:, 8:]))
    values: Array = _half(blocks, 0) * q + _half(blocks, 2)
    return values


def _q5_k(blocks: Array) -> Array:
    """Layout as in wgsl/repack_q5_k.wgsl."""
    import numpy as np

    low = _nibbles(blocks[:, 48:].reshape(-1, 32)).reshape(-1, 8, 32)
    high = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    return _superblocks(blocks, low | (high << 4))


def _iq4_nl(blocks: Array) -> Array:
    values: Array = _half(blocks, 0) * _floats(_iq4(_nibbles(blocks[:, 2:])))
    return values


def _iq4_xs(blocks: Array) -> Array:
    """Layout as in wgsl/repack_iq4_xs.wgsl."""
    import numpy as np

    upper = (blocks[:, 2:4, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    lower = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8)) & 15
    sc = _floats(lower.reshape(-1, 8) | (upper.reshape(-1, 8) << 4)) - 32
    q = _iq4(_nibbles(blocks[:, 8:].reshape(-1, 16))).reshape(-1, 8, 32)
    values: Array = (_half(blocks, 0) * sc)[:, :, None] * _floats(q)
    return values


def _q8_0(blocks: Array) -> Array:
    import numpy as np

    values: Array = _half(blocks, 0) * _floats(blocks[:, 2:].view(np.int8))
    return values


def _q6_k(blocks: Array) -> Array:
    """Layout as in wgsl/repack_q6_k.wgsl."""
    import numpy as np

    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    q = (low & 15).reshape(-1, 2, 4, 32) | ((high & 3) << 4)
    scales = _half(blocks, 208) * _floats(blocks[:, 192:208].view(np.int8))
    values: Array = scales[:, :, None] * (_floats(q.reshape(-1, 16, 16)) - 32)
    return values


def _superblocks(blocks: Array, q: Array) -> Array:
    """Weights d * sc * q - dmin * m of blocks that begin as in wgsl/lib/scales_k.wgsl, by their
    quants, 256 a block."""
    import numpy as np

    sc, m, rest = (blocks[:, start : start + 4] for start in (4, 8, 12))
    sc = np.concatenate([sc & 63, (rest & 15) | ((sc >> 2) & 48)], axis=1)
    m = np.concatenate([m & 63, (rest >> 4) | ((m >> 2) & 48)], axis=1)
    scales, mins = _half(blocks, 0) * _floats(sc), _half(blocks, 2) * _floats(m)
    values: Array = scales[..., None] * _floats(q.reshape(-1, 8, 32)) - mins[..., None]
    return values


def _half(blocks: Array, start: int) -> Array:
    """The half at byte ``start`` of every block, (n, 1) f32."""
    import numpy as np

    return _floats(blocks[:, start : start + 2].copy().view(np.float16))


def _nibbles(packed: Array) -> Array:
    """The lower halves of all bytes of a block, then the upper ones: (n, bytes) -> (n, 2 bytes)."""
    import numpy as np

    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fives(bits: Array, packed: Array) -> Array:
    """Nibbles with a high bit each, the first weight's lowest: bits (n, 4), packed (n, 16) u8
    -> (n, 32) i8."""
    import numpy as np

    high = np.unpackbits(bits, axis=1, bitorder="little")
    q: Array = _nibbles(packed) | (high << 4)
    return q.view(np.int8)


def _iq4(nibbles: Array) -> Array:
    """The signed bytes that IQ4 quants stand for (kvalues_iq4nl in ggml-common.h)."""
    import numpy as np

    table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    values: Array = np.array(table, np.int8)[nibbles]
    return values


def _floats(values: Array) -> Array:
    import numpy as np

    result: Array = values.astype(np.float32)
    return result


_READERS: dict[str, Callable[[Array], Array]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
