"""The values of the KV cache in 8 bits: how they are rounded, and where they lie."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops.attention import rotate
from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.kv_values import (
    GROUP,
    Precision,
    dequantize,
    quantize,
    read_blocks,
    write_tokens,
)
from tests.kernels.cases import numbers
from tests.kernels.kv_cases import rope

PRECISIONS: tuple[Precision, ...] = ("f16", "q8")


def test_the_rule() -> None:
    x = np.zeros((3, 40), np.float32)
    x[0, :4] = (127, 2.5, 3.5, -0.5)  # a scale of 1; halves go to even
    x[0, 32:] = -254  # the last group is shorter
    x[1, 0] = 1e-9  # its scale is zero as a half
    x[2] = numbers(1, 40)
    quants, scales = quantize(x)
    assert quants.dtype == np.int8 and scales.dtype == np.float16
    assert quants[0, :5].tolist() == [127, 2, 4, 0, 0]
    assert (scales[0].tolist(), quants[0, 32:].tolist()) == ([1.0, 2.0], [-127] * 8)
    assert not quants[1].any() and not scales[1].any()
    wide = scales.astype(np.float32).repeat(GROUP, axis=-1)[:, :40]
    assert (np.abs(dequantize(quants, scales) - x) <= wide * 0.501 + 1e-9).all()


@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 80, 96, 256])
def test_the_pools(head_dim: int) -> None:
    """A token's bytes and scales lie where only its own are; rounding again changes nothing."""
    kv = KVLayout(3, 48, 2, 2, head_dim, 1.0, precision="q8")
    values = numbers(head_dim, 2, KV_BLOCK, head_dim)
    pool = np.full(kv.pool("k", 0).shape, 0x7C007C00, np.uint32)
    for token in range(KV_BLOCK):
        write_tokens(pool, 1, token, values[:, token])
    (stored,) = read_blocks(pool, [1], head_dim)
    np.testing.assert_array_equal(stored, dequantize(*quantize(values)))
    assert (pool[[0, 2]] == 0x7C007C00).all()
    again = pool.copy()
    write_tokens(again, 1, slice(None), stored)
    np.testing.assert_array_equal(again, pool)


def test_pools_take_half() -> None:
    sizes = {p: KVLayout(3, 48, 9, 3, 64, 1.0, precision=p).pool("k", 0).nbytes for p in PRECISIONS}
    assert sizes["q8"] / sizes["f16"] == 0.53125


def test_errors_grow_slowly_with_slides() -> None:
    """Keys are rounded anew with each slide: by half a step at most, in either direction."""
    kv = KVLayout(1, 128, 4, 2, 64, 1.0, True, precision="q8")
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((KV_BLOCK, 2, 64)).astype(np.float32)
    table = rope(128, 64)
    back = (table[16] * (1, -1))[None].repeat(KV_BLOCK, axis=0)
    errors = []
    exact, rounded = keys, dequantize(*quantize(keys))
    for _ in range(16):
        exact = rotate(exact, back, kv)
        rounded = dequantize(*quantize(rotate(rounded, back, kv)))
        errors.append(float(np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))))
    assert errors[0] < 0.009
    assert errors[15] < 4 * errors[0]
