"""Rotary embedding, KV store and paged attention against the reference and against no paging."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ops.attention import SPLITS, Reach, attend, rotate
from engine.ops.kv_layout import KVLayout
from engine.ops.spans import tensor_of
from tests.kernels.cases import assert_close, builder, state
from tests.kernels.harness import Case, Harness
from tests.kernels.kv_cases import SHAPES, case_of, layout, rope, scattered


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("device", "tokens", "capacity"),
    [
        ("plain", 1, 1),
        ("plain", 19, 24),
        ("workgroup", 1, 1),
        ("workgroup", 33, 40),
        ("subgroup", 1, 1),
        ("subgroup", 33, 40),
        ("subgroup", 3, 40),  # few tokens are split into many spans
    ],
)
def test_attention(
    harness: Harness, device: str, tokens: int, capacity: int, shape: str, halves: bool
) -> None:
    kv = layout(shape, halves)
    for position in (0, 15, 16, 64, 130, 400 - tokens):
        case, y = case_of(device, kv, position, tokens, capacity, scattered(kv))
        pools = [kv.pool("k", 0), kv.pool("v", 0)]
        got, *got_pools = harness.run(case, [y, *pools])
        want = case.reference()
        assert_close(got[:tokens], want[y.name][:tokens], 2e-3)
        for pool, values in zip(pools, got_pools, strict=True):
            stored = ~np.isnan(want[pool.name])
            assert (np.isnan(values) == ~stored).all(), "a place was written that is no token's"
            assert_close(values[stored], want[pool.name][stored], 1e-3)


STEPS = [("plain", 1, 1), ("plain", 19, 24), ("workgroup", 1, 1), ("workgroup", 33, 40)]


@pytest.mark.parametrize(
    ("shape", "window"),
    [*(("grouped", window) for window in (1, 16, 20, 47, 150)), ("gemma", 20), ("gemma", 200)],
)
@pytest.mark.parametrize(
    ("device", "tokens", "capacity"), [*STEPS, ("subgroup", 33, 40), ("subgroup", 3, 40)]
)
def test_a_window(
    harness: Harness, device: str, tokens: int, capacity: int, shape: str, window: int
) -> None:
    """What is before the window of a step's first token is not read at all."""
    kv = layout(shape, True)
    for position in (0, 130, 400 - tokens):
        case, y = case_of(device, kv, position, tokens, capacity, scattered(kv), window)
        (got,) = harness.run(case, [y])
        assert_close(got[:tokens], case.reference()[y.name][:tokens], 2e-3)


@pytest.mark.parametrize("device", ["workgroup", "subgroup"])
def test_only_spans_that_a_token_sees_are_joined(harness: Harness, device: str) -> None:
    """Many tokens, whose windows lie in other spans: those that no workgroup wrote still have what
    an attention before left there."""
    kv = layout("grouped", True)
    case, _ = case_of(device, kv, 130, 120, 120, scattered(kv))
    b = builder(device, 120)
    qkv = state("qkv", *case.arrays["qkv"].shape)
    tensor_of(b, ops.attention(b, qkv, kv, 0, Reach(0, "own")))
    y = tensor_of(b, ops.attention(b, qkv, kv, 0, Reach(20, "own")))
    case.plan = b.build()
    (got,) = harness.run(case, [y])
    assert_close(got, case.reference()[y.name], 2e-3)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("device", "tokens", "capacity"), STEPS)
def test_a_part_of_a_head_is_rotated(
    harness: Harness, device: str, tokens: int, capacity: int, halves: bool
) -> None:
    kv = layout("phi", halves, rotary=72)
    case, y = case_of(device, kv, 130, tokens, capacity, scattered(kv))
    got, got_k = harness.run(case, [y, kv.pool("k", 0)])
    want = case.reference()
    assert_close(got[:tokens], want[y.name][:tokens], 2e-3)
    stored = ~np.isnan(want["k.0"])
    assert_close(got_k[stored], want["k.0"][stored], 1e-3)


def test_the_reference_of_a_window() -> None:
    """Against a mask over all scores, in double precision."""
    kv = layout("grouped", False)
    rng = np.random.default_rng(1)
    pools = {f"{w}_pool": rng.standard_normal(kv.pool(w, 0).shape) for w in "kv"}
    table = scattered(kv)
    q = rng.standard_normal((19, kv.q_heads * kv.head_dim))
    arrays = {"step": [130, 19], "block_table": table, **pools}
    flat = {
        name: pool[table].swapaxes(1, 2).reshape(-1, kv.kv_heads, kv.head_dim)
        for name, pool in pools.items()
    }
    for window in (1, 16, 20, 50, 149, 0):
        got = attend(q.astype(np.float32), arrays, kv, window).reshape(19, kv.q_heads, -1)
        for i in range(19):
            seen = slice(max(0, 131 + i - window) if window else 0, 131 + i)
            for head in range(kv.q_heads):
                keys, values = (flat[p][seen, head // kv.group] for p in ("k_pool", "v_pool"))
                scores = keys @ q[i].reshape(kv.q_heads, -1)[head] * kv.scale
                weights = np.exp(scores - scores.max())
                assert_close(got[i, head], weights / weights.sum() @ values, 1e-5)


def test_the_reference_of_a_part_rotated() -> None:
    x = np.random.default_rng(2).standard_normal((3, 2, 96)).astype(np.float32)
    whole, part = layout("phi", True), layout("phi", True, rotary=72)
    table = rope(3, 96, 72)
    got = rotate(x, table, part)
    np.testing.assert_array_equal(got[..., 72:], x[..., 72:])
    narrow = KVLayout(1, 16, 2, 2, 72, 1.0, True)
    np.testing.assert_array_equal(got[..., :72], rotate(x[..., :72], table[:, :36], narrow))
    assert not np.array_equal(got, rotate(x, table, whole))


@pytest.mark.parametrize(
    ("device", "tokens"),
    [("plain", 1), ("plain", 19), ("workgroup", 1), ("workgroup", 19), ("subgroup", 19)],
)
def test_paged_equals_unpaged(harness: Harness, device: str, tokens: int) -> None:
    kv = layout("smollm2", False)
    outputs = []
    for table in (np.arange(kv.max_blocks, dtype=np.uint32), scattered(kv)):
        case, y = case_of(device, kv, 200, tokens, tokens, table)
        outputs.append(harness.run(case, [y])[0])
    np.testing.assert_array_equal(outputs[0], outputs[1])


def test_prefill_equals_decode(harness: Harness) -> None:
    """The last token of a chunk sees what a single step at its position sees."""
    kv = layout("grouped", False)
    many, y_many = case_of("workgroup", kv, 60, 5, 8, scattered(kv))
    (chunk, *pools) = harness.run(many, [y_many, kv.pool("k", 0), kv.pool("v", 0)])
    one, y_one = case_of("workgroup", kv, 64, 1, 1, scattered(kv))
    arrays: dict[str, Any] = dict(one.arrays)
    arrays["qkv"] = many.arrays["qkv"][4:5]
    arrays["k.0"], arrays["v.0"] = pools
    single, *_ = harness.run(Case(one.plan, arrays, {}, one.step), [y_one])
    assert_close(single[0], chunk[4], 1e-3)


@pytest.mark.parametrize(("device", "tile"), [("workgroup", 128), ("subgroup", 64)])
def test_long_context(harness: Harness, device: str, tile: int) -> None:
    """Beyond SPLITS * TILE tokens a span has several tiles, and the softmax runs over them."""
    kv = layout("single", False, context=SPLITS * tile + 200)
    for position in (SPLITS * tile // 2, SPLITS * tile + 100):
        case, y = case_of(device, kv, position, 1, 1, scattered(kv))
        assert case.plan.calls[0].shader.consts["TILE"] == tile
        (got,) = harness.run(case, [y])
        assert_close(got, case.reference()[y.name], 2e-3)
