"""Random sequences of answers, stops, continuations, resets, edits, forks, evictions and loads:
every answer is that of an engine that has seen nothing else, and every block is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.answer import Answer, Delta
from engine.config import GenerateConfig, KVPrecision, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.kv import budget
from tests.native import NativeHost
from tests.tiny import TINY

CONTEXT = 128
LONGEST = 24  # tokens of an answer
# Runs of a token, often a block long, so that conversations begin alike and end at block borders.
RUN = st.tuples(st.integers(40, 41), st.sampled_from([1, 3, 15, 16, 17, 32]))
PROMPT = st.lists(RUN, min_size=1, max_size=2).map(
    lambda runs: tuple(id for id, n in runs for _ in range(n))
)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "warm": {"temperature": 0.9, "seed": 1},
    "asked": {
        "temperature": 1.2,
        "seed": 2,
        "top_k": 60,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "frequency_penalty": 100.0,
        "logit_bias": ((40, 12.0), (41, 12.0)),
    },
}


def config_of(way: str, count: int) -> GenerateConfig:
    return GenerateConfig(max_tokens=count, **WAYS[way])


async def answer_of(events: AsyncGenerator[Delta | Answer, None]) -> Answer:
    last = None
    async for event in events:
        last = event
    assert isinstance(last, Answer)
    return last


class Alone:
    """An engine that forgets everything before each answer."""

    def __init__(self, precision: KVPrecision) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = Engine(NativeHost(TINY))
        config = LoadConfig(context=CONTEXT, kv_precision=precision)
        self._run(self._engine.load(config, lambda *_: None))

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @cache  # noqa: B019 - there is one for all tests
    def ids(self, prompt: tuple[int, ...], way: str) -> list[int]:
        """What follows a prompt."""

        async def answer() -> list[int]:
            await self._engine.reset()
            events = self._engine.complete(list(prompt), config_of(way, LONGEST))
            return (await answer_of(events)).ids

        ids: list[int] = self._run(answer())
        return ids


@cache
def oracle(precision: KVPrecision) -> Alone:
    return Alone(precision)


class Asked:
    """An answer under way, or its part after ``so_far``."""

    def __init__(
        self, prompt: tuple[int, ...], way: str, so_far: list[int], count: int, task: Any
    ) -> None:
        self.prompt, self.way, self.so_far = prompt, way, so_far
        self.count, self.task = count, task


class Conversations(RuleBasedStateMachine):
    precision: KVPrecision = "f16"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.engine = Engine(NativeHost(TINY))
        self.asked: dict[int, Asked] = {}
        self.histories: list[tuple[int, ...]] = [()]
        self.cut: dict[int, Asked] = {}  # ended before the model did, with all so far
        self.next_key = 0
        self.first_blocks = budget.FIRST_BLOCKS
        budget.FIRST_BLOCKS = 1
        self.load(None)

    def _run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 20))

    def load(self, kv_tokens: int | None) -> None:
        config = LoadConfig(context=CONTEXT, kv_tokens=kv_tokens, kv_precision=self.precision)
        self._run(self.engine.load(config, lambda *_: None))
        assert self.engine.status()["kv"]["num_blocks"] <= 2

    @rule(
        data=st.data(),
        more=PROMPT,
        cut=st.sampled_from([0, 0, 1, 16, 40]),
        way=st.sampled_from(list(WAYS)),
    )
    def ask(self, data: Any, more: tuple[int, ...], cut: int, way: str) -> None:
        """A conversation goes on, or is edited or forked, or a new one begins."""
        history = data.draw(st.sampled_from(self.histories))
        kept = history[: max(0, min(len(history), CONTEXT - LONGEST - 40) - cut)]
        prompt = (kept + more)[: CONTEXT - LONGEST]
        count = data.draw(st.integers(1, LONGEST))
        key = self.next_key = self.next_key + 1
        events = self.engine.complete(list(prompt), config_of(way, count), key)
        task = self.loop.create_task(answer_of(events))
        self.asked[key] = Asked(prompt, way, [], count, task)

    @precondition(lambda self: self.cut)
    @rule(data=st.data())
    def go_on(self, data: Any) -> None:
        """An answer that was cut is continued, maybe more than once."""
        earlier = data.draw(st.sampled_from(sorted(self.cut)))
        before = self.cut[earlier]
        count = data.draw(st.integers(1, LONGEST - len(before.so_far)))
        key = self.next_key = self.next_key + 1
        events = self.engine.go_on(earlier, config_of(before.way, count), key)
        task = self.loop.create_task(answer_of(events))
        self.asked[key] = Asked(before.prompt, before.way, before.so_far, count, task)

    @precondition(lambda self: self.asked)
    @rule(turns=st.integers(1, 12))
    def let_them(self, turns: int) -> None:
        """Answers under way go on a little."""

        async def wait() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self._run(wait())

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        self._finish(data.draw(st.sampled_from(sorted(self.asked))))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def stop_one(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.asked)))
        self.engine.stop(key)
        self._finish(key, stopped=True)

    @rule()
    def reset(self) -> None:
        self._run(self.engine.reset())
        self._finish_all(stopped=True)
        self._forgotten()

    @rule(kv_tokens=st.sampled_from([None, CONTEXT + 48, 2 * CONTEXT]))
    def load_again(self, kv_tokens: int | None) -> None:
        self.load(kv_tokens)
        self._finish_all(stopped=True)
        self._forgotten()

    def _forgotten(self) -> None:
        """No answer that ended before can be continued."""
        for key in self.cut:
            with pytest.raises(OctavoError, match="no answer"):
                self._run(answer_of(self.engine.go_on(key, GenerateConfig(), None)))
        self.cut.clear()

    def _finish_all(self, stopped: bool) -> None:
        for key in sorted(self.asked):
            self._finish(key, stopped)

    def _finish(self, key: int, stopped: bool = False) -> None:
        asked = self.asked.pop(key)
        try:
            answer: Answer = self._run(asked.task)
        except OctavoError as error:
            assert stopped, "nothing disturbed it"
            busy = error.code == "engine.busy"  # it came while a model was loaded
            gone = asked.so_far and "no answer" in error.message  # or after a reset
            assert busy or gone
            return
        want = oracle(self.precision).ids(asked.prompt, asked.way)[len(asked.so_far) :]
        assert answer.ids == want[: len(answer.ids)]
        if answer.finish_reason == "length":
            assert len(answer.ids) == asked.count
        elif answer.finish_reason == "stop":
            assert answer.ids == want
        else:
            assert stopped
        asked.so_far = asked.so_far + answer.ids
        self.histories.append(asked.prompt + tuple(asked.so_far))
        if answer.finish_reason != "stop" and len(asked.so_far) < LONGEST:
            self.cut[key] = asked

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        status = self.engine.status()
        kv = status["kv"]
        assert kv["num_blocks"] <= kv["budget_blocks"]
        assert kv["bytes"] == status["memory"]["kv"]
        assert kv["tokens"] <= 16 * (kv["used_blocks"] + kv["cached_blocks"])
        assert kv["free_blocks"] + kv["cached_blocks"] + kv["used_blocks"] == kv["num_blocks"]
        if not self.asked:
            assert kv["used_blocks"] == 0

    def teardown(self) -> None:
        self._finish_all(stopped=False)
        self._run(self.engine.unload())
        self.loop.close()
        budget.FIRST_BLOCKS = self.first_blocks


class Rounded(Conversations):
    """With a KV cache of 8 bits: fewer, for what is counted and found again is the same."""

    precision: KVPrecision = "q8"


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=400,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRounded = Rounded.TestCase
TestRounded.settings = settings(TestConversations.settings, max_examples=12)
