"""Moving K and V to earlier positions against the reference, and against having computed there."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ops.attention import KV_BLOCK, KVLayout, rotate
from engine.ops.shift import pack_shift, shift_tensor
from engine.ops.state import StepRecord
from tests.kernels.cases import assert_close, builder
from tests.kernels.harness import Case, Harness
from tests.kernels.test_attention import rope

PAIRS = [(5, 5), (0, 3), (6, 6), (2, 7)]


def shift_case(
    kv: KVLayout, moved: int, keys: np.ndarray, values: np.ndarray, magnitude: float = 1.0
) -> Case:
    b = builder("plain")
    ops.shift(b, kv, 0, "own")
    words = np.zeros(shift_tensor(kv).shape, np.uint32)
    given = np.frombuffer(pack_shift(moved, PAIRS), np.uint32)
    words[: len(given)] = given
    arrays = {
        "shift": words,
        "own": rope(kv.context, kv.head_dim, kv.rotary) * np.float32(magnitude),
        "k.0": keys if kv.precision == "q8" else keys.astype(np.float16),
        "v.0": values if kv.precision == "q8" else values.astype(np.float16),
    }
    return Case(b.build(), arrays, {}, StepRecord(0, 1))


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
