"""Every variant that a device may choose by measurement computes what the reference does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from engine import ops
from engine.ops.attention import Reach
from engine.ops.kv_layout import KVLayout
from engine.ops.norm import Norm
from engine.ops.state import StepRecord
from engine.plan import PlanBuilder, Tensor
from engine.weights.quants import QUANTS
from tests.kernels.cases import DEVICES, assert_close, builder, numbers, rows, state, weight
from tests.kernels.harness import Case, Harness
from tests.kernels.kv_cases import case_of, layout, scattered


def assert_all_right(harness: Harness, case: Case, y: Tensor, tokens: int, tolerance: float) -> int:
    """The number of variants compared: with the reference in ``y``, and with the first variant in
    all that the kernel writes, since that is what the engine compares."""
    want = case.reference()[y.name][:tokens]
    count = 0
    for call in case.plan.calls:
        written = [call.args[name] for name in call.writes if call.args[name].dtype == "f32"]
        first: list[np.ndarray] = []
        for name in call.variants:
            varied = Case(case.plan.varied({call.key: name}), case.arrays, case.weights, case.step)
            got, *values = harness.run(varied, [y, *written])
            assert_close(got[:tokens], want, tolerance)
            first = first or values
            for ours, theirs in zip(values, first, strict=True):
                assert_close(ours, theirs, tolerance)
            count += 1
    return count


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("device", "tokens", "capacity", "quant"),
    [
        ("workgroup", 1, 1, "Q4_1"),
        ("subgroup", 1, 1, "Q4_1"),
        ("workgroup", 37, 40, "Q4_1"),
        ("workgroup-q16", 37, 40, "Q4_1"),
        ("workgroup-q16", 37, 40, "Q2_K"),
        ("workgroup-q8", 37, 40, "Q6_K"),
        ("plain-q16", 1, 1, "Q4_1"),
        ("plain-q16", 6, 8, "Q4_1"),
        ("plain-q16", 6, 8, "Q6_K"),
        ("plain", 6, 8, "Q4_1"),
        ("workgroup", 70, 80, "F32"),
    ],
)
def test_linear(
    harness: Harness, device: str, tokens: int, capacity: int, quant: str, gated: bool
) -> None:
    k, n = max(96, QUANTS[quant].block_size), 140
    b = builder(device, capacity)
    x, norm = state("x", capacity, k), Norm(weight("gain", k), 1e-5)
    op = ops.gated_linear if gated else ops.linear
    y = op(b, x, weight("w", n, k, quant=quant), norm=norm)
    weights: Mapping[str, np.ndarray] = {"w": numbers(n, n, k) / 8, "gain": numbers(1, k) / 4}
    inputs = {"x": rows(numbers(k, tokens, k), capacity)}
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    assert assert_all_right(harness, case, y, tokens, 1e-5) > 1


def test_linear_in_more_memory(harness: Harness) -> None:
    """Of seven blocks of K, the last four slices have three."""
    tokens, k, n = 70, 224, 140
    b = PlanBuilder("case", replace(DEVICES["workgroup"], workgroup_bytes=32768), tokens)
    y = ops.linear(b, state("x", tokens, k), weight("w", n, k))
    inputs, weights = {"x": numbers(k, tokens, k)}, {"w": numbers(n, n, k) / 8}
    case = Case(b.build(), inputs, weights, StepRecord(0, tokens))
    assert assert_all_right(harness, case, y, tokens, 1e-5) == 4


@pytest.mark.parametrize("shape", ["grouped", "smollm2"])
@pytest.mark.parametrize(
    ("device", "tokens"), [("workgroup", 1), ("subgroup", 1), ("subgroup", 21)]
)
def test_attention(harness: Harness, device: str, tokens: int, shape: str) -> None:
    kv = layout(shape, False)
    for position in (50, 130):  # from 50 on, only the last tokens reach into the second span
        case, y = case_of(device, kv, position, tokens, tokens, scattered(kv))
        assert assert_all_right(harness, case, y, tokens, 2e-3) > 1


@pytest.mark.parametrize("window", [0, 140])
@pytest.mark.parametrize("device", ["workgroup", "subgroup"])
def test_a_product_that_joins_spans(harness: Harness, device: str, window: int) -> None:
    """The product that follows attention of one token reads its spans: of four, of two of them."""
    kv, n = layout("smollm2", False), 70
    for position in (20, 390):
        alone, _ = case_of(device, kv, position, 1, 1, scattered(kv), window)
        b = builder(device)
        attended = ops.attention(b, state("qkv", 1, 960), kv, 0, Reach(window, "own"))
        w, residual = weight("w", n, 576, quant="Q4_1"), state("residual", 1, n)
        y = ops.linear(b, attended, w, residual=residual)
        assert [call.op for call in b.calls] == ["attention_split", "linear"]
        arrays = {**alone.arrays, "residual": numbers(5, 1, n)}
        case = Case(b.build(), arrays, {"w": numbers(n, n, 576) / 8}, StepRecord(position, 1))
        assert assert_all_right(harness, case, y, 1, 2e-3) > 1


def test_too_much_to_join() -> None:
    """Spans are joined before the product where each of many workgroups would read many."""
    kv = KVLayout(8, 1 << 17, 40, 8, 128, 0.1)
    b = builder("subgroup")
    attended = ops.attention(b, state("qkv", 1, 56 * 128), kv, 0, Reach())
    ops.linear(b, attended, weight("w", 5120, 5120, quant="Q4_1"))
    assert [call.op for call in b.calls] == ["attention_split", "attention_merge", "linear"]
