"""Sampling against its reference, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ops.sample import gumbel
from engine.ops.state import (
    NUM_SAMPLED,
    NUM_TOKENS,
    POSITION,
    SAMPLED,
    STEP,
    StepRecord,
    tokens_tensor,
)
from tests.kernels.cases import builder, numbers, state
from tests.kernels.harness import Case, Harness


def sample_case(device: str, logits: np.ndarray, step: StepRecord) -> Case:
    b = builder(device)
    ops.sample(b, state("logits", *logits.shape), tokens_tensor(4))
    return Case(b.build(), {"logits": logits}, {}, step)


@pytest.mark.parametrize("device", ["plain", "workgroup"])
@pytest.mark.parametrize("n", [3, 1000, 49152])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sample(harness: Harness, device: str, n: int, temperature: float) -> None:
    for seed in range(3):
        logits = numbers(seed, 1, n)
        step = StepRecord(17, 5, num_sampled=254, seed=seed, temperature=temperature)
        case = sample_case(device, logits, step)
        got_step, got_ids, got_tokens = harness.run(case, [STEP, SAMPLED, tokens_tensor(4)])
        want = case.reference()
        assert got_tokens[0] == want["tokens"][0] == got_ids[254]
        assert got_step[POSITION] == 22
        assert got_step[NUM_TOKENS] == 1
        assert got_step[NUM_SAMPLED] == 255


@pytest.mark.parametrize("device", ["plain", "workgroup"])
def test_ties_go_to_the_lowest_id(harness: Harness, device: str) -> None:
    logits = np.zeros((1, 5000), np.float32)
    logits[0, [77, 4100, 2125]] = 1.0
    (ids,) = harness.run(sample_case(device, logits, StepRecord(0, 1)), [SAMPLED])
    assert ids[0] == 77


def test_a_burst_fills_the_ring(harness: Harness) -> None:
    """Each step of a burst draws with another position, as single steps would."""
    logits = numbers(5, 1, 300)
    step = StepRecord(9, 1, num_sampled=250, seed=4, temperature=1.0)
    (ids,) = harness.run(sample_case("plain", logits, step), [SAMPLED], repeat=10)
    noise = [gumbel(4, 10 + i, 300) for i in range(10)]
    want = [int((logits[0] + n).argmax()) for n in noise]
    assert [int(ids[(250 + i) % 256]) for i in range(10)] == want


def test_the_largest_noise_is_exact(harness: Harness) -> None:
    """That of uniform values next to 1, whose logarithm WGSL may give all wrong."""
    margin, found = 0.003, 0
    for position in range(2200):
        noise = gumbel(1, position + 1, 4096)
        second, best = np.argsort(noise)[-2:]
        if noise[best] < 14:  # less than 8e-7 from 1
            continue
        found += 1
        for winner, more in ((best, -margin), (second, margin)):
            logits = np.full((1, 4096), -100, np.float32)
            logits[0, best], logits[0, second] = 0, noise[best] - noise[second] + more
            case = sample_case("plain", logits, StepRecord(position, 1, seed=1, temperature=1.0))
            (ids,) = harness.run(case, [SAMPLED])
            assert ids[0] == winner
    assert found > 3


def test_noise_samples_from_softmax() -> None:
    logits = np.array([0.0, 1.0, 2.0], np.float32)
    draws = [int((logits + gumbel(1, position, 3)).argmax()) for position in range(6000)]
    share = np.bincount(draws, minlength=3) / 6000
    want = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(share - want).max() < 0.02
