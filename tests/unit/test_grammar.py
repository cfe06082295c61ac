"""Answers of a given form: the engine asks a grammar before every token. What a real grammar says
is tested in the browser."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from engine.answer import Answer
from engine.browser import BrowserHost
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.grammar import Grammar, vocabulary_json
from engine.prompt import Prompt, Prompts
from engine.reasoning import Reasoning
from tests.native import NativeHost
from tests.unit.engines import GOLDEN

PROMPT = list(range(20, 60))
FORMAT = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}


class Multiples:
    """Every token is a multiple of a number; after ``length`` of them comes the end, or nothing
    for the number 11."""

    def __init__(self, number: int, length: int, vocab: int, end: int) -> None:
        self.number, self.length, self.vocab, self.end = number, length, vocab, end
        self.seen: list[int] = []
        self.closed = False

    async def next(self, tokens: Sequence[int]) -> bytes | None:
        await asyncio.sleep(0)  # others go on meanwhile
        for token in tokens:
            if token != self.end and token % self.number:
                return None
            self.seen.append(token)
        if self.end in self.seen:
            return None
        done = len(self.seen) >= self.length
        last = [] if self.number == 11 else [self.end]
        allowed = last if done else range(self.number, self.vocab, self.number)
        mask = bytearray(4 * -(-self.vocab // 32))
        for token in allowed:
            mask[token // 8] |= 1 << token % 8
        return bytes(mask)

    def close(self) -> None:
        self.closed = True


class Host(NativeHost):
    """The schema's title is the number."""

    def __init__(self) -> None:
        super().__init__(GOLDEN / "tiny.gguf")
        self.grammars: list[Multiples] = []
        self.opening = asyncio.Event()
        self.opening.set()

    async def open_grammar(
        self, schema: str, strict: bool, table: list[bytes], ends: frozenset[int]
    ) -> Grammar:
        await self.opening.wait()
        number = int(schema)
        if number <= 0:
            raise OctavoError("request.invalid", "No.")
        self.grammars.append(Multiples(number, 12, len(table), min(ends)))
        return self.grammars[-1]


async def loaded() -> tuple[Engine, Host]:
    host = Host()
    engine = Engine(host)
    await engine.load(LoadConfig(context=256), lambda *_: None)
    return engine, host


async def answer(events: Any) -> Answer:
    async for event in events:
        if isinstance(event, Answer):
            return event
    raise AssertionError("no answer")


def ask(engine: Engine, key: int, number: int, **config: Any) -> Any:
    return answer(engine.complete(PROMPT, GenerateConfig(schema=str(number), **config), key))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_only_what_the_grammar_allows_comes(temperature: float) -> None:
    async def run() -> None:
        engine, host = await loaded()
        got = await ask(engine, 1, 7, temperature=temperature)
        assert len(got.ids) == 13
        assert all(id % 7 == 0 for id in got.ids[:-1])
        assert got.finish_reason == "stop"
        assert [g.closed for g in host.grammars] == [True]
        plain = await answer(engine.complete(PROMPT, GenerateConfig(max_tokens=12), 2))
        assert any(id % 7 for id in plain.ids)

    asyncio.run(run())


def test_answers_in_turns_keep_their_own_grammar() -> None:
    async def run() -> None:
        engine, _ = await loaded()
        numbers = (3, 5, 7)
        alone = [await ask(engine, n, n) for n in numbers]
        together = await asyncio.gather(*(ask(engine, n, n) for n in numbers))
        assert [a.ids for a in together] == [a.ids for a in alone]

    asyncio.run(run())


def test_an_answer_goes_on_in_its_form() -> None:
    async def run() -> None:
        engine, host = await loaded()
        whole = await ask(engine, 1, 7)
        await ask(engine, 2, 7, max_tokens=5)
        rest = await answer(engine.go_on(2, GenerateConfig(schema="7"), 3))
        assert rest.ids == whole.ids[5:]
        plain = await answer(engine.complete(PROMPT, GenerateConfig(max_tokens=12), 4))
        assert any(id % 7 for id in plain.ids)
        with pytest.raises(OctavoError, match="No token fits"):
            await answer(engine.go_on(4, GenerateConfig(schema="7"), 5))
        with pytest.raises(OctavoError, match="No"):
            await ask(engine, 6, 0)
        assert all(g.closed for g in host.grammars)
        assert engine.state == "ready"
        assert (await ask(engine, 7, 7)).ids == whole.ids

    asyncio.run(run())


def test_a_stop_is_heard() -> None:
    async def run() -> None:
        engine, host = await loaded()
        under_way = asyncio.ensure_future(ask(engine, 1, 7))
        while not host.grammars or len(host.grammars[0].seen) < 3:
            await asyncio.sleep(0)
        assert engine.stop(1)
        assert (await under_way).finish_reason == "cancelled"
        assert host.grammars[0].closed

    asyncio.run(run())


def test_a_stop_is_heard_while_the_grammar_opens() -> None:
    async def run() -> None:
        engine, host = await loaded()
        host.opening.clear()
        under_way = asyncio.ensure_future(ask(engine, 1, 7))
        for _ in range(20):
            await asyncio.sleep(0)
        other = await answer(engine.complete(PROMPT, GenerateConfig(max_tokens=3), 2))
        assert len(other.ids) == 3, "nobody else waits for it"
        assert engine.stop(1)
        stopped = await asyncio.wait_for(under_way, 5)
        assert (stopped.finish_reason, stopped.ids) == ("cancelled", [])
        host.opening.set()
        while not host.grammars:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert host.grammars[0].closed, "it came too late"
        assert engine.state == "ready"

    asyncio.run(run())


def test_an_answer_ends_where_nothing_may_come() -> None:
    async def run() -> None:
        engine, _ = await loaded()
        got = await ask(engine, 1, 11)
        assert (len(got.ids), got.finish_reason) == (12, "stop")
        assert all(id % 11 == 0 for id in got.ids)
        with pytest.raises(OctavoError, match="No token fits"):
            await ask(engine, 2, 10**6)

    asyncio.run(run())


def test_what_has_a_form_is_no_reasoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the template opened a think part, which the form does not let end."""

    async def run() -> None:
        engine, _ = await loaded()
        within = Prompt(PROMPT, Reasoning("within"))

        async def encode(self: Prompts, *_: Any) -> Prompt:
            return within

        monkeypatch.setattr(Prompts, "encode", encode)
        messages = [{"role": "user", "content": "Hello"}]
        plain = await answer(engine.generate(messages, GenerateConfig(max_tokens=9)))
        assert (plain.reasoning != "", plain.text) == (True, "")
        formed = await answer(engine.generate(messages, GenerateConfig(schema="7")))
        assert (formed.reasoning, formed.text != "") == ("", True)

    asyncio.run(run())


def test_what_a_format_may_be() -> None:
    def config(format: Any) -> GenerateConfig:
        return GenerateConfig.from_wire({"response_format": format})

    assert config(None).schema is config({"type": "text"}).schema is None
    assert (config(FORMAT).schema, config(FORMAT).strict) == ('{"type": "object"}', True)
    loose = {"type": "json_schema", "json_schema": {"schema": True, "strict": False}}
    assert (config(loose).schema, config(loose).strict) == ("true", False)
    assert config({"type": "json_object"}).schema == '{"type": "object"}'
    long = {"type": "json_schema", "json_schema": {"schema": {"title": "x" * 70000}}}
    for bad in (5, 0, {}, "json", {"type": "xml"}, {"type": "json_schema"}, long, {"type": []}):
        with pytest.raises(OctavoError) as caught:
            config(bad)
        assert caught.value.code == "request.invalid"


def test_the_vocabulary_has_all_bytes_but_no_control_tokens() -> None:
    assert vocabulary_json([b"", b" a", b"\n\xff", b"<think>", b"</think>"], {0}) == (
        '{"vocabulary": ["", "\\u0120a", "\\u010a\\u00ff", "", ""], "ends": [0]}'
    )


class FakeGrammars:
    """The grammars of one vocabulary, as worker/grammars.mjs has them."""

    def __init__(self, made: list[FakeGrammars]) -> None:
        made.append(self)
        self.ready = self.closed = False
        self.learned = 0
        self.begun: list[str] = []

    async def learn(self, json: str) -> None:
        await asyncio.sleep(0)
        self.learned += 1
        self.ready = True

    async def begin(self, schema: str, strict: bool) -> int:
        await asyncio.sleep(0)
        if schema == "bad":
            raise RuntimeError
        self.begun.append(schema)
        return len(self.begun)

    def free(self, matcher: int) -> None:
        self.begun[matcher - 1] += ", freed"

    def close(self) -> None:
        self.closed = True


def test_models_with_other_vocabularies_do_not_disturb_each_others_answers() -> None:
    class Js:
        made: list[FakeGrammars] = []  # noqa: RUF012

        def openGrammars(self) -> FakeGrammars:  # noqa: N802 - JavaScript's name
            return FakeGrammars(self.made)

    async def run() -> None:
        js = Js()
        host = BrowserHost(js)
        ends = frozenset({0})
        one, two, three = [b"", b"a"], [b"", b"b"], [b"", b"c"]

        async def begin(schema: str, table: list[bytes]) -> Grammar:
            return await host.open_grammar(schema, True, table, ends)

        first, second, _ = await asyncio.gather(
            begin("1", one), begin("2", two), begin("3", list(one))
        )
        assert [g.begun for g in js.made] == [["1", "3"], ["2"]]
        assert [g.learned for g in js.made] == [1, 1]
        with pytest.raises(OctavoError):
            await begin("bad", two)
        second.close()
        assert js.made[1].begun == ["2, freed"]
        await begin("4", three)
        assert [g.closed for g in js.made] == [False, True, False], "the first has open answers"
        first.close()
        assert js.made[0].begun == ["1, freed", "3"]

    asyncio.run(run())
