"""What an answer asks of the sampler, end to end on the CPU device."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Any

import pytest

from engine.answer import Answer
from engine.config import GenerateConfig, recommended
from engine.engine import Engine
from engine.errors import OctavoError
from tests.unit.engines import CHAT, chat, complete, loaded

PROMPT = list(range(20, 60))
ASKED: dict[str, Any] = {
    "temperature": 1.3,
    "seed": 11,
    "top_k": 50,
    "top_p": 0.95,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.4,
    "logit_bias": ((70, 3.0), (71, -100.0)),
    "logprobs": True,
    "top_logprobs": 3,
}


async def go_on(engine: Engine, earlier: int, key: int, **config: Any) -> Answer:
    async for event in engine.go_on(earlier, GenerateConfig(**config), key):
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


async def keyed(engine: Engine, key: int, ids: list[int] = PROMPT, **config: Any) -> Answer:
    async for event in engine.complete(ids, GenerateConfig(**config), key):
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


@pytest.mark.parametrize("other", [{}, {"frequency_penalty": 100.0, "logit_bias": ((70, 40.0),)}])
def test_a_continued_answer_is_sampled_as_one_that_was_not_cut(other: dict[str, Any]) -> None:
    """In the second case the biased token comes first, and then never again."""

    async def run() -> None:
        engine = await loaded()
        asked = ASKED | other
        whole = await keyed(engine, 1, max_tokens=30, **asked)
        await engine.reset()
        first = await keyed(engine, 2, max_tokens=7, **asked)
        second = await go_on(engine, 2, 3, max_tokens=9, **asked)
        third = await go_on(engine, 3, 4, max_tokens=14, **asked)
        parts = [first, second, third]
        assert [id for part in parts for id in part.ids] == whole.ids
        told = [t.chosen.logprob for part in parts for t in part.logprobs]
        assert told == pytest.approx([t.chosen.logprob for t in whole.logprobs], abs=1e-4)

    asyncio.run(run())


def test_answers_in_turns_keep_their_own_counts() -> None:
    async def run() -> None:
        engine = await loaded()
        alone = [
            await complete(engine, PROMPT[i:], max_tokens=25, **ASKED | {"seed": i})
            for i in range(3)
        ]
        together = await asyncio.gather(
            *(keyed(engine, i, PROMPT[i:], max_tokens=25, **ASKED | {"seed": i}) for i in range(3))
        )
        assert [a.ids for a in together] == [a.ids for a in alone]

    asyncio.run(run())


def test_penalties_keep_from_saying_the_same() -> None:
    async def run() -> None:
        engine = await loaded()
        plain = await complete(engine, PROMPT, max_tokens=60)
        assert Counter(plain.ids).most_common(1)[0][1] > 3
        for penalty in ("presence_penalty", "frequency_penalty"):
            asked = await complete(engine, PROMPT, max_tokens=60, **{penalty: 100.0})
            assert len(set(asked.ids)) == 60
        known = await complete(engine, PROMPT, max_tokens=60, repetition_penalty=100.0)
        assert not set(known.ids) & set(PROMPT)

    asyncio.run(run())


def test_biases_force_and_forbid() -> None:
    async def run() -> None:
        engine = await loaded()
        forced = await complete(engine, PROMPT, max_tokens=5, logit_bias=((77, 100.0),))
        assert forced.ids == [77] * 5
        plain = await complete(engine, PROMPT, max_tokens=5)
        other = await complete(engine, PROMPT, max_tokens=5, logit_bias=((plain.ids[0], -100.0),))
        assert other.ids[0] != plain.ids[0]
        beyond = await complete(engine, PROMPT, max_tokens=5, logit_bias=((10**9, 5.0),))
        assert beyond.ids == plain.ids

    asyncio.run(run())


def test_log_probabilities() -> None:
    async def run() -> None:
        engine = await loaded()
        plain = await chat(engine, CHAT, max_tokens=12)
        told = await chat(engine, CHAT, max_tokens=12, logprobs=True, top_logprobs=20)
        assert told.ids == plain.ids
        assert not plain.logprobs
        assert len(told.logprobs) == len(told.ids)
        for id, entry in zip(told.ids, told.logprobs, strict=True):
            likeliest = [t.logprob for t in entry.top]
            assert entry.chosen.id == entry.top[0].id == id
            assert entry.chosen.logprob == entry.top[0].logprob
            assert likeliest == sorted(likeliest, reverse=True)
            assert sum(map(math.exp, likeliest)) <= 1.0001
        wire = told.to_wire()["logprobs"]
        data = b"".join(bytes(t["bytes"]) for t in wire)
        assert data.decode(errors="replace") == told.text
        assert len(wire[0]["top_logprobs"]) == 20

    asyncio.run(run())


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"min_p": "0.1"},
        {"min_p": float("nan")},
        {"repetition_penalty": 0},
        {"presence_penalty": True},
        {"frequency_penalty": 1e9},
        {"logit_bias": [1, 2]},
        {"logit_bias": 0},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"5": 101}},
        {"logit_bias": {"5": None}},
        {"logprobs": "yes"},
        {"logprobs": True, "top_logprobs": 21},
        {"top_logprobs": 2},
    ],
)
def test_what_cannot_be_asked_for(fields: dict[str, Any]) -> None:
    with pytest.raises(OctavoError) as caught:
        GenerateConfig.from_wire(fields)
    assert caught.value.code == "request.invalid"
    assert next(reversed(fields)) in caught.value.message


def test_what_is_not_asked_for_is_neutral() -> None:
    empty = dict.fromkeys(("top_k", "top_p", "min_p", "logit_bias", "logprobs", "top_logprobs"))
    assert GenerateConfig.from_wire(empty) == GenerateConfig()
    assert GenerateConfig.from_wire({"temperature": 1e-4}).temperature == 0


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({}, {}),
        ({"general.sampling.temp": 0.6000000238418579}, {"temperature": 0.6}),
        ({"general.sampling.temp": 0.0}, {"temperature": 0}),
        ({"general.sampling.top_k": 64, "general.sampling.top_p": 1.0}, {"top_k": 64, "top_p": 1}),
        ({"general.sampling.penalty_repeat": 1.05}, {"repetition_penalty": 1.05}),
        ({"general.sampling.min_p": 0.05, "general.sampling.mirostat": 2}, {"min_p": 0.05}),
        ({"general.sampling.temp": math.nan, "general.sampling.top_k": -1}, {}),
        ({"general.sampling.temp": "hot", "general.sampling.top_p": [0.5]}, {}),
        ({"general.sampling.temp": True, "general.sampling.min_p": math.inf}, {}),
    ],
)
def test_what_a_file_recommends(metadata: dict[str, Any], found: dict[str, float]) -> None:
    assert recommended(metadata) == found
