"""Moving K and V to earlier positions against the reference, and against having computed there."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops.attention import rotate
from engine.ops.kv_layout import KV_BLOCK, KVLayout
from tests.kernels.cases import assert_close
from tests.kernels.harness import Harness
from tests.kernels.kv_cases import rope, shift_case


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "rotary", "magnitude"),
    [(16, 0, 1.0), (24, 0, 1.0), (128, 0, 1.0), (128, 96, 1.0), (24, 0, 1.2)],
)
def test_shift(
    harness: Harness, head_dim: int, rotary: int, magnitude: float, halves: bool
) -> None:
    kv = KVLayout(8, 128, 4, 2, head_dim, 1.0, halves, rotary)
    rng = np.random.default_rng(head_dim)
    keys, values = (rng.standard_normal(kv.pool("k", 0).shape) for _ in range(2))
    case = shift_case(kv, 48, keys, values, magnitude)
    got_k, got_v = harness.run(case, [kv.pool("k", 0), kv.pool("v", 0)])
    want = case.reference()
    assert_close(got_k, want["k.0"], 1e-3)
    np.testing.assert_array_equal(got_v, want["v.0"])
    untouched = [1, 4]
    np.testing.assert_array_equal(got_k[untouched], keys.astype(np.float16)[untouched])


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("magnitude", [1.0, 1.2])
def test_shifted_keys_are_those_of_the_earlier_position(halves: bool, magnitude: float) -> None:
    kv = KVLayout(8, 128, 4, 2, 32, 1.0, halves)
    table = rope(kv.context, kv.head_dim) * np.float32(magnitude)
    rng = np.random.default_rng(1)
    plain = rng.standard_normal((KV_BLOCK, kv.kv_heads, kv.head_dim)).astype(np.float32)
    late, early = (rotate(plain, table[at : at + KV_BLOCK], kv) for at in (80, 32))
    keys = np.zeros(kv.pool("k", 0).shape, np.float32)
    keys[5] = late.swapaxes(0, 1)
    moved = shift_case(kv, 48, keys, keys, magnitude).reference()["k.0"][5]
    assert_close(moved.astype(np.float32), early.swapaxes(0, 1), 2e-3)
