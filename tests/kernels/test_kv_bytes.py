"""KV pools of 8 bits: what kernels store and read, against the references."""

from __future__ import annotations

import numpy as np
import pytest

from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.kv_values import GROUP, read_blocks
from tests.kernels.cases import assert_close
from tests.kernels.harness import Harness
from tests.kernels.kv_cases import PAIRS, case_of, layout, pool_of, scattered, shift_case


def assert_stored(got: np.ndarray, want: np.ndarray, head_dim: int) -> None:
    """The same tokens are written, and no byte is off by more than a step of its scale: f32 of a
    GPU may round a product to the other side, but seldom."""
    got, want = (read_blocks(pool, slice(None), head_dim) for pool in (got, want))
    stored = ~np.isnan(want)
    assert (np.isnan(got) == ~stored).all(), "a place was written that is no token's"
    groups = [np.abs(want[..., at : at + GROUP]).max(axis=-1) for at in range(0, head_dim, GROUP)]
    step = np.stack(groups, axis=-1).repeat(GROUP, axis=-1)[..., :head_dim] / 127
    off = np.abs(got - want)[stored]
    assert (off <= 1.02 * step[stored] + 1e-3 * np.abs(want[stored])).all()
    assert (off > 0.5 * step[stored]).mean() < 0.01


@pytest.mark.parametrize(
    ("device", "tokens", "capacity", "shape", "halves"),
    [
        ("plain", 1, 1, "odd", False),
        ("plain", 19, 24, "smollm2", False),
        ("plain", 19, 24, "phi", True),
        ("workgroup", 1, 1, "odd", False),
        ("workgroup", 1, 1, "smollm2", True),
        ("workgroup", 1, 1, "phi", True),
        ("workgroup", 33, 40, "smollm2", True),
        ("subgroup", 33, 40, "phi", True),
    ],
)
def test_attention(
    harness: Harness, device: str, tokens: int, capacity: int, shape: str, halves: bool
) -> None:
    kv = layout(shape, halves, rotary=72 if shape == "phi" else 0, precision="q8")
    case, y = case_of(device, kv, 130, tokens, capacity, scattered(kv))
    pools = [kv.pool("k", 0), kv.pool("v", 0)]
    got, *got_pools = harness.run(case, [y, *pools])
    want = case.reference()
    for pool, values in zip(pools, got_pools, strict=True):
        assert_stored(values, want[pool.name], kv.head_dim)
    assert_close(got[:tokens], want[y.name][:tokens], 2e-3)


def test_a_window_of_the_widest_heads(harness: Harness) -> None:
    kv = layout("gemma", True, precision="q8")
    case, y = case_of("workgroup", kv, 130, 1, 1, scattered(kv), window=20)
    (got,) = harness.run(case, [y])
    assert_close(got, case.reference()[y.name], 2e-3)


@pytest.mark.parametrize(("head_dim", "rotary", "halves"), [(24, 0, False), (128, 96, True)])
def test_shift(harness: Harness, head_dim: int, rotary: int, halves: bool) -> None:
    kv = KVLayout(8, 128, 4, 2, head_dim, 1.0, halves, rotary, "q8")
    rng = np.random.default_rng(head_dim)
    keys, values = (pool_of(rng.standard_normal((8, 2, KV_BLOCK, head_dim)), kv) for _ in range(2))
    case = shift_case(kv, 48, keys, values)
    got_k, got_v = harness.run(case, [kv.pool("k", 0), kv.pool("v", 0)])
    want = case.reference()
    assert_stored(got_k, want["k.0"], head_dim)
    np.testing.assert_array_equal(got_v, want["v.0"])
    untouched = [block for block in range(8) if block not in {to for _, to in PAIRS}]
    np.testing.assert_array_equal(got_k[untouched], keys[untouched])
