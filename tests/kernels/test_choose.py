"""Penalties, bias, mask, truncation and log-probabilities against their references, which sort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ops.state import (
    IN_PROMPT,
    LOGPROBS,
    NUM_SAMPLED,
    POSITION,
    RING,
    SAMPLED,
    SAMPLING,
    STEP,
    SamplingRecord,
    StepRecord,
    counts_tensor,
    tokens_tensor,
)
from tests.kernels.cases import assert_close, builder, numbers, state
from tests.kernels.harness import Case, Harness

EVERYTHING = SamplingRecord(40, 0.9, 0.02, 1.2, 0.4, 0.3, masked=True)
ASKED = {
    "nothing": SamplingRecord(),
    "top_k": SamplingRecord(top_k=5),
    "one": SamplingRecord(top_k=1),
    "top_p": SamplingRecord(top_p=0.8),
    "little": SamplingRecord(top_p=0.01),
    "min_p": SamplingRecord(min_p=0.1),
    "repetition": SamplingRecord(repetition=1.5),
    "presence": SamplingRecord(presence=2.0),
    "frequency": SamplingRecord(frequency=1.0),
    "masked": SamplingRecord(masked=True),
    "everything": EVERYTHING,
}


def choose_case(
    device: str, logits: np.ndarray, step: StepRecord, asked: SamplingRecord, **arrays: Any
) -> Case:
    n = logits.shape[1]
    rng = np.random.default_rng(n)
    b = builder(device)
    ops.choose(b, state("logits", *logits.shape), tokens_tensor(4))
    counts = rng.choice(np.array([0, 0, 1, 3, IN_PROMPT, IN_PROMPT + 2], np.uint32), n)
    given = {
        "logits": logits,
        "sampling": np.frombuffer(asked.pack(), np.uint32),
        "counts": counts,
        "bias": np.where(rng.random(n) < 0.1, rng.normal(0, 3, n), 0).astype(np.float32),
        "mask": rng.integers(1, 1 << 32, -(-n // 32), dtype=np.uint32),
        **arrays,
    }
    return Case(b.build(), given, {}, step)


@pytest.mark.parametrize("device", ["plain", "workgroup"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.5])
def test_choose(harness: Harness, device: str, asked: str, temperature: float) -> None:
    for seed, n in enumerate((3, 100, 1000, 5003)):
        logits = numbers(seed, 1, n) * 2
        step = StepRecord(17, 5, num_sampled=254, seed=seed, temperature=temperature)
        case = choose_case(device, logits, step, ASKED[asked])
        wanted = [STEP, SAMPLED, tokens_tensor(4), counts_tensor(n)]
        got_step, got_ids, got_tokens, got_counts = harness.run(case, wanted)
        want = case.reference()
        assert got_tokens[0] == want["tokens"][0] == got_ids[254]
        assert (got_step[POSITION], got_step[NUM_SAMPLED]) == (22, 255)
        np.testing.assert_array_equal(got_counts, want["counts"])


@pytest.mark.parametrize("device", ["plain", "workgroup"])
def test_nothing_asked_for_is_plain_sampling(harness: Harness, device: str) -> None:
    for temperature in (0.0, 0.9):
        logits = numbers(1, 1, 3000)
        step = StepRecord(9, 1, seed=3, temperature=temperature)
        none = np.zeros(3000, np.uint32)
        case = choose_case(
            device, logits, step, SamplingRecord(), counts=none, bias=none.view("f4")
        )
        (chosen,) = harness.run(case, [SAMPLED])
        b = builder(device)
        ops.sample(b, state("logits", 1, 3000), tokens_tensor(4))
        (sampled,) = harness.run(Case(b.build(), {"logits": logits}, {}, step), [SAMPLED])
        assert chosen[0] == sampled[0]


def test_a_burst_counts_what_it_chose(harness: Harness) -> None:
    """Greedy with a presence penalty takes another token each time."""
    logits = np.arange(100, dtype=np.float32).reshape(1, 100) / 100
    none = np.zeros(100, np.uint32)
    asked = SamplingRecord(presence=5.0)
    case = choose_case("plain", logits, StepRecord(0, 1), asked, counts=none, bias=none.view("f4"))
    (ids,) = harness.run(case, [SAMPLED], repeat=6)
    assert list(ids[:6]) == [99, 98, 97, 96, 95, 94]


def test_truncated_draws_are_those_of_the_rest() -> None:
    """The reference draws from softmax over what is left, renormalized."""
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    draws = []
    for seed in range(3000):
        step = StepRecord(0, 1, seed=seed, temperature=1.0)
        none = np.zeros(4, np.uint32)
        asked = SamplingRecord(top_p=0.75)
        case = choose_case("plain", logits, step, asked, counts=none, bias=none.view("f4"))
        draws.append(int(case.reference()["tokens"][0]))
    share = np.bincount(draws, minlength=4) / len(draws)
    # 0.4 + 0.3 is less than 0.75, so the third may come, and the fourth may not.
    assert np.abs(share - np.array([4, 3, 2, 0]) / 9).max() < 0.03


@pytest.mark.parametrize("device", ["plain", "workgroup"])
@pytest.mark.parametrize("n", [25, 4001])
def test_logprobs(harness: Harness, device: str, n: int) -> None:
    for count, place in ((0, 0), (1, 7), (20, RING - 1)):
        logits = numbers(count, 1, n)
        logits[0, 3] = logits[0, 11] = 60.0  # as likely as each other
        b = builder(device)
        ops.logprobs(b, state("logits", 1, n), tokens_tensor(4))
        arrays = {
            "logits": logits,
            SAMPLING.name: np.frombuffer(SamplingRecord(num_top=count).pack(), np.uint32),
            "tokens": np.array([17, 0, 0, 0], np.uint32),
        }
        case = Case(b.build(), arrays, {}, replace(StepRecord(5, 1), num_sampled=RING + place + 1))
        (got,) = harness.run(case, [LOGPROBS])
        want = case.reference()[LOGPROBS.name]
        words = got.reshape(want.shape)[place, : 1 + 2 * count]
        np.testing.assert_array_equal(words[1::2], want[place, 1 : 1 + 2 * count : 2])
        values, wanted = (
            w[place, : 1 + 2 * count : 2].copy() for w in (got.reshape(want.shape), want)
        )
        assert_close(values.view(np.float32), wanted.view(np.float32), 1e-5)
        others = np.delete(got.reshape(want.shape), place, axis=0)
        assert not others.any()
