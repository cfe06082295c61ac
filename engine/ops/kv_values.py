"""How keys and values lie in the KV pools: as halves, or as bytes that share scales."""

from __future__ import annotations

from typing import Any, Literal

Precision = Literal["f16", "q8"]
GROUP = 32  # neighbouring elements of a head that share a scale; a head's last ones may be fewer
LARGEST = 127  # of a byte's absolute value


def quant_words(head_dim: int) -> int:
    """Words of a token's bytes, of one head."""
    return head_dim // 4


def scale_words(head_dim: int) -> int:
    """Words of a token's scales, of one head: halves, two a word."""
    return -(-head_dim // (2 * GROUP))


def row_words(head_dim: int, precision: Precision) -> int:
    """Words that a head of a token takes in a pool on a GPU."""
    if precision == "f16":
        return head_dim // 2
    return quant_words(head_dim) + scale_words(head_dim)


def quantize(x: Any) -> tuple[Any, Any]:
    """NumPy: x (..., head_dim) f32 as bytes (..., head_dim) i8 and scales (..., groups) f16: x is
    about scale * byte. The scale is the group's largest absolute value / 127, rounded to a half;
    the byte is x / scale, rounded to the nearest, halves to even, and 0 where the scale is."""
    import numpy as np

    head_dim = x.shape[-1]
    groups = -(-head_dim // GROUP)
    padded = np.zeros((*x.shape[:-1], groups * GROUP), np.float32)
    padded[..., :head_dim] = x
    grouped = padded.reshape(*x.shape[:-1], groups, GROUP)
    scales = (np.abs(grouped).max(axis=-1) / np.float32(LARGEST)).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    rounded = np.clip(np.rint(grouped * inverse), -LARGEST, LARGEST)
    return rounded.reshape(padded.shape)[..., :head_dim].astype(np.int8), scales


def dequantize(quants: Any, scales: Any) -> Any:
    """NumPy: what ``quantize`` made, as f32."""
    import numpy as np

    wide = scales.astype(np.float32).repeat(GROUP, axis=-1)[..., : quants.shape[-1]]
    return quants.astype(np.float32) * wide


def read_blocks(pool: Any, blocks: Any, head_dim: int) -> Any:
    """NumPy: the values of some blocks of a pool, (blocks, kv_heads, tokens, head_dim) f32."""
    import numpy as np

    words = pool[blocks]
    if pool.dtype != np.uint32:
        return words.astype(np.float32, copy=False)
    quants, scales = _parts(words, head_dim)
    return dequantize(quants, scales[..., : -(-head_dim // GROUP)])


def write_tokens(pool: Any, block: int, tokens: Any, values: Any) -> None:
    """NumPy: put values (kv_heads, [tokens,] head_dim) f32 to places ``tokens``, a number or a
    slice, of a block."""
    import numpy as np

    if pool.dtype != np.uint32:
        pool[block, :, tokens] = values
        return
    quants, scales = quantize(values)
    quants_there, scales_there = _parts(pool[block], values.shape[-1])
    quants_there[:, tokens] = quants
    scales_there[:, tokens] = 0
    scales_there[:, tokens, ..., : scales.shape[-1]] = scales


def _parts(words: Any, head_dim: int) -> tuple[Any, Any]:
    """Bytes (..., tokens, head_dim) i8 and scales (..., tokens, 2 scale_words) f16 in words of q8,
    in the same memory."""
    import numpy as np

    tokens = words.shape[-1] // row_words(head_dim, "q8")
    cut = tokens * quant_words(head_dim)
    quants, scales = words[..., :cut], words[..., cut:]
    shape = (*words.shape[:-1], tokens, -1)
    return quants.view(np.int8).reshape(shape), scales.view(np.float16).reshape(shape)
