"""Random sequences on a real page and the GPU kernels: conversations that go on, are edited,
forked, stopped, continued, reset and unloaded, several at once. Every answer is that of a fresh
engine which has seen nothing else; afterwards every KV block is accounted for."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pytest

from engine.answer import Answer
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.ops.sample import gumbel
from tests.browser.chat import Chat, Open
from tests.kernels.model_cases import CONTEXT, tiny_case
from tests.native import NativeHost
from tests.tiny import TINY

pytestmark = [pytest.mark.browser, pytest.mark.slow]
TEMPERATURE = 0.9
TIE = 0.02  # of a score; two devices' keys and values differ in the last bit of their halves
LONGEST = 10  # tokens of an answer
MOST = 4 * LONGEST  # of an answer and its continuations
SEQUENCES = 50
LOADS_EVERY = 7  # sequences: a load takes as long as some answers
SEED = int(os.environ.get("OCTAVO_SEED", "20261129"))
QUERY = (
    "model=models/tiny/manifest.json&device=gpu&activations=f32"
    f"&context={CONTEXT}&kv_tokens={2 * CONTEXT}"
)
WORDS = ["sea", "ship", "你好", "🤖", "rain at the window", "Go on."]
Messages = list[dict[str, str]]

# `start` asks without waiting and aborts after some tokens or milliseconds, or never.
HELPERS = """() => {
  const outcomes = {};
  const start = (key, options, tokens, ms) => {
    const controller = new AbortController();
    const {signal} = controller;
    const run = async () => {
      let text = '', last;
      const stream = octavo.chat.completions.create({...options, stream: true, signal});
      for await (const chunk of stream) {
        text += chunk.choices[0].delta.content ?? '';
        if (tokens !== null && chunk.octavo.num_tokens >= tokens) controller.abort();
        last = chunk;
      }
      const {ids, handle} = last.octavo;
      return {ids, handle: handle ?? null, text, reason: last.choices[0].finish_reason};
    };
    if (ms !== null) setTimeout(() => controller.abort(), ms);
    outcomes[key] = run().catch((error) => ({code: error.code, message: error.message}));
  };
  window.seq = {start, outcome: (key) => outcomes[key]};
}"""


@dataclass
class Asked:
    """An answer under way: what it answers, the ids before it, and where they were said."""

    messages: Messages
    before: list[int]
    seed: int
    count: int
    may_be_stopped: bool
    text: str = ""  # of the answer that it continues


class Alone:
    """What a fresh engine answers on the native CPU device, in a thread: Playwright has this one's
    event loop. Where two tokens are equally good to it, it goes on with the one that was chosen."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._known: dict[tuple[str, int], tuple[list[int], list[int]] | None] = {}
        self.ties = 0

    def answer(self, messages: Messages, seed: int, said: list[int]) -> list[int] | None:
        """The answer, which begins with ``said`` if that is right; None if it is too long."""
        key = (repr(messages), seed)
        if key not in self._known:
            self._known[key] = self._run(self._whole(messages, seed))
        known = self._known[key]
        if known is None:
            return None
        prompt, ids = known
        while said != ids[: len(said)]:
            at = next(i for i, (a, b) in enumerate(zip_longest(said, ids)) if a != b)
            if at == len(ids) or not self._as_good(prompt + ids[:at], said[at], ids[at], seed):
                break
            self.ties += 1
            so_far = said[: at + 1]
            ids = so_far + self._run(self._rest(prompt + so_far, seed, MOST - len(so_far)))
            self._known[key] = prompt, ids
        return ids

    def _run(self, work: Any) -> Any:
        return self._thread.submit(lambda: asyncio.run(work)).result()

    async def _whole(self, messages: Messages, seed: int) -> tuple[list[int], list[int]] | None:
        engine = Engine(NativeHost(TINY))
        model = await engine.load(LoadConfig(context=CONTEXT), lambda *_: None)
        prompt = (await model.prompts.encode(messages)).ids
        if len(prompt) >= CONTEXT:
            return None
        return prompt, await self._rest(prompt, seed, MOST)

    async def _rest(self, ids: list[int], seed: int, count: int) -> list[int]:
        engine = Engine(NativeHost(TINY))
        model = await engine.load(LoadConfig(context=CONTEXT), lambda *_: None)
        if not count or len(ids) >= CONTEXT or ids[-1] in model.special.eos:
            return []
        config = GenerateConfig(TEMPERATURE if seed else 0.0, count, seed)
        async for event in engine.complete(ids, config):
            last = event
        assert isinstance(last, Answer)
        return last.ids

    def _as_good(self, ids: list[int], chosen: int, best: int, seed: int) -> bool:
        """Whether the next token after ``ids`` might as well be another than the best one."""
        case, logits = tiny_case("plain", ids)
        scores = case.reference()[logits.name].ravel()
        if seed:
            scores = scores / TEMPERATURE + gumbel(seed, len(ids), len(scores))
        return bool(scores[best] - scores[chosen] < TIE)

    def close(self) -> None:
        self._thread.shutdown()


class Sequence:
    """One random sequence; ``rng`` decides all of it but the moment in which a stop is heard."""

    def __init__(self, chat: Chat, alone: Alone, rng: random.Random) -> None:
        self.page, self.alone, self.rng = chat.page, alone, rng
        self.conversations: list[Messages] = []
        self.asked: dict[int, Asked] = {}
        self.unfinished: list[tuple[int, Asked, list[int], str]] = []
        self.forgotten: list[int] = []  # handles
        self.next_key = 0
        self.checked = 0

    def run(self, with_load: bool) -> None:
        often = [self.begin, self.go_on, self.edit, self.rewrite, self.fork, self.continue_cut]
        often.append(self.finish_one)
        self.begin()
        self.begin()
        self.finish_all()
        for _ in range(self.rng.randint(6, 10)):
            self.rng.choice([*often, *often, self.stop_all, self.reset])()
            while len(self.asked) > 3:
                self.finish_one()
        if with_load:
            self.unload_and_load()
            self.begin()
        self.finish_all()
        self.check_forgotten()

    def begin(self) -> None:
        self.ask([{"role": "user", "content": self.rng.choice(WORDS)}])

    def go_on(self) -> None:
        if self.conversations:
            history = self.rng.choice(self.conversations)
            self.ask([*history, {"role": "user", "content": self.rng.choice(WORDS)}])

    def edit(self) -> None:
        """An earlier question is another one; what came after it is gone."""
        if self.conversations:
            history = self.rng.choice(self.conversations)
            at = self.rng.randrange(0, len(history), 2)
            self.ask([*history[:at], {"role": "user", "content": "No: " + self.rng.choice(WORDS)}])

    def rewrite(self) -> None:
        """The first question is another one of the same length; what came after it stays."""
        if self.conversations:
            first, *later = self.rng.choice(self.conversations)
            other = {**first, "content": first["content"][::-1]}
            self.ask([other, *later, {"role": "user", "content": self.rng.choice(WORDS)}])

    def fork(self) -> None:
        """Two questions at once after the same beginning."""
        if self.conversations:
            history = self.rng.choice(self.conversations)
            for word in self.rng.sample(WORDS, 2):
                self.ask([*history, {"role": "user", "content": word}])

    def continue_cut(self) -> None:
        if self.unfinished:
            at = self.rng.randrange(len(self.unfinished))
            handle, asked, ids, text = self.unfinished.pop(at)
            self.start({"continues": handle}, asked.messages, ids, asked.seed, text)

    def ask(self, messages: Messages) -> None:
        self.start({"messages": messages}, messages, [], self.rng.choice([0, 0, 1, 2]), "")

    def start(
        self, what: dict[str, Any], messages: Messages, before: list[int], seed: int, text: str
    ) -> None:
        count = self.rng.randint(1, LONGEST)
        tokens = self.rng.choice([None] * 4 + [self.rng.randint(1, count)])
        ms = self.rng.choice([None] * 4 + [self.rng.randint(0, 150)])
        stopped = tokens is not None or ms is not None
        self.next_key += 1
        self.asked[self.next_key] = Asked(messages, before, seed, count, stopped, text)
        options = {
            **what,
            "max_tokens": count,
            "seed": seed,
            "temperature": TEMPERATURE if seed else 0,
        }
        self.page.evaluate("(args) => seq.start(...args)", [self.next_key, options, tokens, ms])

    def finish_one(self) -> None:
        if self.asked:
            self.finish(self.rng.choice(sorted(self.asked)))

    def finish_all(self) -> None:
        for key in sorted(self.asked):
            self.finish(key)

    def finish(self, key: int) -> None:
        """Wait for an answer and compare it with the fresh engine's."""
        asked = self.asked.pop(key)
        got = self.page.evaluate("(key) => seq.outcome(key)", key)
        ids = asked.before + got.get("ids", [])
        want = self.alone.answer(asked.messages, asked.seed, ids)
        if got.get("code") == "prompt.too_long":
            full = want is not None and len(asked.before) >= len(want)
            assert want is None or full, "it fits"
            return
        assert "code" not in got, got
        if want is None:
            assert got["reason"] == "cancelled" and not ids, "it was stopped before it was read"
            return
        assert ids == want[: len(ids)], f"{asked.messages}, seed {asked.seed}"
        if got["reason"] == "length":
            is_full = len(ids) == len(want) and len(want) < MOST
            assert len(got["ids"]) == asked.count or is_full
        elif got["reason"] == "stop":
            assert ids == want
        else:
            assert got["reason"] == "cancelled" and asked.may_be_stopped, got
        self.checked += len(got["ids"])
        text = asked.text + got["text"]
        self.conversations.append([*asked.messages, {"role": "assistant", "content": text}])
        room = len(ids) <= MOST - LONGEST  # the fresh engine has said that much and one more answer
        if got["reason"] != "stop" and got["handle"] is not None and room:
            self.unfinished.append((got["handle"], asked, ids, text))

    def stop_all(self) -> None:
        self.may_stop()
        self.page.evaluate("octavo.stop()")

    def reset(self) -> None:
        self.may_stop()
        self.page.evaluate("octavo.reset()")
        self.forget()

    def unload_and_load(self) -> None:
        self.may_stop()
        self.page.evaluate("octavo.unload()")
        assert self.page.evaluate("octavo.status()") == {"state": "empty", "clients": 1}
        self.page.evaluate("octavo.load()")
        self.forget()

    def may_stop(self) -> None:
        for asked in self.asked.values():
            asked.may_be_stopped = True

    def forget(self) -> None:
        """What ended before can be continued no more."""
        self.finish_all()
        self.forgotten += [handle for handle, *_ in self.unfinished]
        self.unfinished.clear()

    def check_forgotten(self) -> None:
        for handle in self.forgotten[:2]:
            code = self.page.evaluate(
                "(continues) => octavo.chat.completions.create({continues}).catch((e) => e.code)",
                handle,
            )
            assert code == "request.invalid"


@pytest.fixture
def alone() -> Iterator[Alone]:
    oracle = Alone()
    yield oracle
    oracle.close()


def test_random_sequences_answer_as_a_fresh_engine_does(open_chat: Open, alone: Alone) -> None:
    print(f"OCTAVO_SEED={SEED}")
    chat = open_chat(QUERY).wait_for("ready")
    chat.page.evaluate(HELPERS)
    assert chat.status()["device"]["kind"] == "webgpu"
    checked = 0
    for number in range(SEQUENCES):
        print(f"sequence {number}")
        sequence = Sequence(chat, alone, random.Random(f"{SEED} {number}"))
        sequence.run(with_load=number % LOADS_EVERY == LOADS_EVERY - 1)
        checked += sequence.checked
        status = chat.status()
        kv = status["kv"]
        assert (status["state"], status["answers"], kv["used_blocks"]) == ("ready", 0, 0)
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
    print(f"{checked} tokens compared, {alone.ties} ties")
    assert checked > 20 * SEQUENCES, "most answers said something"
    assert alone.ties < checked / 200
