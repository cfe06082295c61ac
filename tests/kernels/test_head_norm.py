"""The norm of every head of Q and K against its formula, in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ops.state import StepRecord
from tests.kernels.cases import assert_close, builder, numbers, rows, state, weight
from tests.kernels.harness import Case, Harness

EPS = 1e-6


def wanted(qkv: np.ndarray, gain: np.ndarray, q_heads: int, kv_heads: int) -> np.ndarray:
    head_dim = gain.shape[0] // 2
    heads = qkv.reshape(len(qkv), -1, head_dim).astype(np.float64)
    for head in range(q_heads + kv_heads):
        x = heads[:, head]
        scale = gain[:head_dim] if head < q_heads else gain[head_dim:]
        heads[:, head] = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * scale
    return heads.reshape(qkv.shape)


@pytest.mark.parametrize("shape", [(16, 8, 128), (4, 2, 24), (3, 1, 8), (2, 2, 96), (1, 1, 256)])
@pytest.mark.parametrize(("tokens", "capacity"), [(1, 1), (7, 10)])
@pytest.mark.parametrize("device", ["plain", "workgroup"])
def test_head_norm(
    harness: Harness, device: str, tokens: int, capacity: int, shape: tuple[int, int, int]
) -> None:
    q_heads, kv_heads, head_dim = shape
    width = (q_heads + 2 * kv_heads) * head_dim
    qkv, gain = numbers(1, tokens, width), numbers(2, 2 * head_dim)
    qkv[:, :head_dim] *= 1e-3  # where eps matters
    b = builder(device, capacity)
    tensor = state("qkv", capacity, width)
    ops.head_norm(b, tensor, weight("gain", 2 * head_dim), EPS, q_heads, kv_heads)
    case = Case(b.build(), {"qkv": rows(qkv, capacity)}, {"gain": gain}, StepRecord(0, tokens))
    (got,) = harness.run(case, [tensor])
    want = wanted(qkv, gain, q_heads, kv_heads)
    assert_close(got[:tokens], want, 1e-5)
    assert_close(case.reference()["qkv"][:tokens], want, 1e-5)
    assert np.isnan(got[tokens:]).all(), "a row was written that is no token's"
    values = (q_heads + kv_heads) * head_dim
    np.testing.assert_array_equal(got[:tokens, values:], qkv[:, values:])
