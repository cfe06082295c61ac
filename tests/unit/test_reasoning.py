"""The think part of an answer, however its text is cut into pieces, stopped or continued."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answer import Answer, Delta
from engine.chat import ChatTemplate
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.prompt import Prompts
from engine.reasoning import Place, Reasoning
from engine.tokenizer.decoder import token_bytes
from engine.tokenizer.spec import markup_texts
from tests.conftest import ROOT
from tests.native import NativeHost, ready_of

CHAT = [{"role": "user", "content": "Where is the rain in the sea?"}]
SAMPLING: Any = {"temperature": 4.0, "seed": 3}  # so that few tokens come twice
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
OPENS = CHATML + "<think>\n"  # as DeepSeek-R1 does
KNOWS = CHATML + "{# the model opens <think> itself, as Qwen3 does #}"


def split(place: Place, *pieces: str) -> tuple[str, str]:
    reasoning = Reasoning(place)
    parts = [*(reasoning.push(piece) for piece in pieces), reasoning.flush()]
    return "".join(thought for thought, _ in parts), "".join(text for _, text in parts)


@pytest.mark.parametrize(
    ("place", "text", "thought", "answer"),
    [
        ("past", " <think>a</think>b", "", " <think>a</think>b"),
        ("before", "<think>a</think>b", "a", "b"),
        ("before", "\n<think>\n a \n\n</think>\n\nb\n", "a", "b\n"),
        ("before", "<think>\n\n</think>\n\nb", "", "b"),
        ("before", " plain\n", "", " plain\n"),
        ("before", "a <think>b</think>", "", "a <think>b</think>"),
        ("before", "<thinking>a", "", "<thinking>a"),
        ("before", "a</think>b", "", "a</think>b"),
        ("before", " <thi", "", " <thi"),
        ("before", "<think>never closed </th\n", "never closed </th\n", ""),
        ("before", "<think>", "", ""),
        ("before", "", "", ""),
        ("within", "\na\n</think>\nb", "a", "b"),
        ("within", "</think>b", "", "b"),
        ("within", "a <think> b</think>c", "a <think> b", "c"),
        ("within", "a</think>b</think>c <think>d", "a", "b</think>c <think>d"),
        ("within", "if a < b </ c", "if a < b </ c", ""),
        ("within", "a<</think>b", "a<", "b"),
    ],
)
def test_what_is_reasoning_and_what_is_not(
    place: Place, text: str, thought: str, answer: str
) -> None:
    assert split(place, text) == (thought, answer), "at once"
    assert split(place, *text) == (thought, answer), "by characters"


@given(
    place=st.sampled_from(["before", "within", "past"]),
    parts=st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "a", " ", "\n"])),
    cut=st.integers(0, 60),
)
def test_pieces_change_nothing(place: Place, parts: list[str], cut: int) -> None:
    text = "".join(parts)
    whole = split(place, text)
    assert split(place, text[:cut], text[cut:]) == split(place, *text) == whole
    if place == "before" and text.lstrip().startswith("<think>"):
        place, text = "within", text.lstrip().removeprefix("<think>")
    thought, closing, answer = text.partition("</think>")
    if place != "within":
        assert whole == ("", text)
    elif closing:
        assert whole == (thought.strip(), answer.lstrip())
    else:
        assert whole == (thought.lstrip(), "")


def continued(place: Place, text: str, cut: int) -> list[tuple[str, str]]:
    """What is told before a cut, at it, and by the answer that continues."""
    first = Reasoning(place)
    before, at = first.push(text[:cut]), first.flush()
    rest = copy.copy(first)
    pushed, flushed = rest.push(text[cut:]), rest.flush()
    return [before, at, (pushed[0] + flushed[0], pushed[1] + flushed[1])]


@pytest.mark.parametrize(
    ("place", "first", "second", "told"),
    [
        ("within", "a</t", "hink>b", [("a", ""), ("</t", ""), ("", "b")]),
        ("within", "a</t", "his", [("a", ""), ("</t", ""), ("his", "")]),
        ("within", "a \n", "</think>b", [("a", ""), (" \n", ""), ("", "b")]),
        ("within", "a \n", "b", [("a", ""), (" \n", ""), ("b", "")]),
        ("before", "<th", "ink>b", [("", ""), ("", "<th"), ("b", "")]),
        ("before", "<th", "at", [("", ""), ("", "<th"), ("", "at")]),
        ("before", "<think>", "\nb</think>c", [("", ""), ("", ""), ("b", "c")]),
        ("before", "<think>a</think>", "\nb", [("a", ""), ("", ""), ("", "b")]),
    ],
)
def test_a_cut_answer_goes_on_in_its_part(
    place: Place, first: str, second: str, told: list[tuple[str, str]]
) -> None:
    """What stands at a cut may be the beginning of a tag, which is told too early then."""
    assert continued(place, first + second, len(first)) == told


@given(
    place=st.sampled_from(["before", "within"]),
    parts=st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "a", " ", "\n"])),
)
def test_a_cut_loses_nothing_and_tells_nothing_twice(place: Place, parts: list[str]) -> None:
    text = "".join(parts)
    whole = split(place, text)
    for cut in range(len(text)):
        (a, x), (b, y), (c, z) = continued(place, text, cut)
        assert (a + b + c, x + y + z) == whole or (a + c, x + z) == whole


class Thinker:
    """The tiny model with a template; ``tokens`` replaces what some of its tokens stand for."""

    def __init__(self, template: str, tokens: dict[int, bytes] | None = None) -> None:
        self.template = template
        self.tokens = tokens or {}

    async def engine(self) -> Engine:
        engine = Engine(NativeHost(ROOT / "tests/golden/tiny.gguf"))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        model = ready_of(engine).model
        model.prompts = Prompts(
            ChatTemplate(self.template, "", ""),
            model.encoder,
            model.special,
            ["<|im_start|>", "<|im_end|>"],
        )
        for id, text in self.tokens.items():
            model.token_bytes[id] = text
        return engine

    def answer(self, **request: Any) -> Answer:
        return asyncio.run(self._answer(**request))

    async def _answer(self, **request: Any) -> Answer:
        engine = await self.engine()
        return await collect(
            engine, GenerateConfig.from_wire({"max_tokens": 120, **SAMPLING, **request})
        )


def set_burst(engine: Engine, size: int) -> None:
    """All bursts take this many tokens."""
    pace = ready_of(engine).scheduler.decode_pace
    pace.size = size
    pace.measured = lambda *_: None  # type: ignore[method-assign]


async def collect(
    engine: Engine, config: GenerateConfig, key: int = 1, continues: int | None = None
) -> Answer:
    said: dict[str, str] = {"answer": "", "reasoning": ""}
    if continues is None:
        events = engine.generate(CHAT, config, key)
    else:
        events = engine.go_on(continues, config, key)
    async for event in events:
        if isinstance(event, Delta):
            assert event.text
            assert event.kind == "answer" or not said["answer"], "reasoning comes first"
            said[event.kind] += event.text
        else:
            assert said == {"answer": event.text, "reasoning": event.reasoning}
            return event
    raise AssertionError("no answer")


@pytest.fixture(scope="module")
def thinking() -> tuple[Thinker, Answer]:
    """A model whose first token is the opening tag and a later one the closing one, and its whole
    answer without tags. These tokens, and two after each, come once in it."""
    plain = Thinker(CHATML).answer()
    once = [plain.ids.count(id) == 1 for id in plain.ids]
    at = next(i for i in range(30, 100) if all(once[i : i + 3]))
    assert all(once[:3])
    return Thinker(KNOWS, {plain.ids[0]: b"<think>", plain.ids[at]: b"</think>"}), plain


def test_an_answer_in_two_parts(thinking: tuple[Thinker, Answer]) -> None:
    model, plain = thinking
    answer = model.answer()
    assert answer.ids == plain.ids
    assert len(answer.reasoning) > 20 < len(answer.text)
    assert "think>" not in answer.reasoning + answer.text
    assert answer.reasoning in plain.text
    assert plain.text.endswith(answer.text)


@pytest.mark.parametrize("template", [CHATML, KNOWS, OPENS])
def test_without_tags_in_the_answer(template: str) -> None:
    """A part that never closes is all reasoning; one that never opens is all answer."""
    answer = Thinker(template).answer()
    assert len(answer.ids) == 120
    if template == OPENS:
        assert (bool(answer.reasoning), answer.text) == (True, "")
    else:
        assert (answer.reasoning, bool(answer.text)) == ("", True)


def test_tags_do_not_count_for_a_model_that_knows_none(thinking: tuple[Thinker, Answer]) -> None:
    model, _ = thinking
    answer = Thinker(CHATML, model.tokens).answer()
    assert answer.reasoning == ""
    assert answer.text.startswith("<think>")
    assert "</think>" in answer.text


def test_tags_split_over_tokens(thinking: tuple[Thinker, Answer]) -> None:
    """Each tag is made of three tokens, wherever bursts are cut."""
    model, plain = thinking
    (closing,) = (id for id, text in model.tokens.items() if text == b"</think>")
    at = plain.ids.index(closing)
    tokens = {**model.tokens}
    tokens |= dict(zip(plain.ids[:3], (b"<th", b"in", b"k>"), strict=True))
    tokens |= dict(zip(plain.ids[at : at + 3], (b"</", b"thi", b"nk>\n"), strict=True))
    assert len(set(plain.ids[:3] + plain.ids[at : at + 3])) == 6

    async def run(burst: int) -> Answer:
        engine = await Thinker(KNOWS, tokens).engine()
        set_burst(engine, burst)
        return await collect(engine, GenerateConfig(max_tokens=at + 5, **SAMPLING))

    answers = [asyncio.run(run(burst)) for burst in (1, 2, 3, 7, 32)]
    for answer in answers:
        assert answer.ids == plain.ids[: at + 5]
        assert (answer.reasoning, answer.text) == (answers[0].reasoning, answers[0].text)
        assert "<" not in answer.reasoning + answer.text
        assert answer.reasoning
        assert answer.text

    async def cut_within_the_tag() -> list[Answer]:
        engine = await Thinker(KNOWS, tokens).engine()
        first = await collect(engine, GenerateConfig(max_tokens=2, **SAMPLING), 1)
        return [first, await collect(engine, GenerateConfig(max_tokens=9, **SAMPLING), 2, 1)]

    first, rest = asyncio.run(cut_within_the_tag())
    assert (first.reasoning, first.text) == ("", "<thin")
    assert (bool(rest.reasoning), rest.text) == (True, "")


def test_stop_strings_apply_to_the_answer_proper(thinking: tuple[Thinker, Answer]) -> None:
    model, _ = thinking
    whole = model.answer()
    common = next(c for c in whole.text if c in whole.reasoning and whole.text.index(c) > 2)
    answer = model.answer(stop=common)
    assert answer.reasoning == whole.reasoning, "it has the text, and went on"
    assert answer.text == whole.text[: whole.text.index(common)]
    assert answer.finish_reason == "stop"
    never = model.answer(stop=["</think>", whole.reasoning[-3:] + "\n"])
    assert (never.reasoning, never.text) == (whole.reasoning, whole.text)


@pytest.mark.parametrize("counts", [(10, 110), (1, 1, 20, 98), (60, 60), (35, 1, 1, 1, 82)])
def test_an_answer_goes_on_in_its_part(
    thinking: tuple[Thinker, Answer], counts: tuple[int, ...]
) -> None:
    model, plain = thinking
    whole = model.answer()

    async def run() -> list[Answer]:
        engine = await model.engine()
        answers: list[Answer] = []
        for key, count in enumerate(counts):
            config = GenerateConfig(max_tokens=count, **SAMPLING)
            continues = key - 1 if key else None
            answers.append(await collect(engine, config, key, continues))
        return answers

    answers = asyncio.run(run())
    assert [id for answer in answers for id in answer.ids] == plain.ids

    # White space and a character at a cut may be told before it is clear what they are.
    def letters(text: str) -> str:
        return "".join(text.replace("\ufffd", "").split())

    assert letters("".join(a.reasoning for a in answers)) == letters(whole.reasoning)
    assert letters("".join(a.text for a in answers)) == letters(whole.text)


def test_an_answer_can_be_continued_twice_from_within_its_reasoning(
    thinking: tuple[Thinker, Answer],
) -> None:
    model, _ = thinking

    async def run() -> list[Answer]:
        engine = await model.engine()
        await collect(engine, GenerateConfig(max_tokens=10, **SAMPLING), 1)
        config = GenerateConfig(max_tokens=110, **SAMPLING)
        return [await collect(engine, config, key, 1) for key in (2, 3)]

    one, other = asyncio.run(run())
    assert (one.reasoning, one.text) == (other.reasoning, other.text)
    assert one.reasoning
    assert one.text


def test_stopped_within_the_reasoning(thinking: tuple[Thinker, Answer]) -> None:
    model, _ = thinking

    async def run() -> Answer:
        engine = await model.engine()
        set_burst(engine, 2)
        async for event in engine.generate(CHAT, GenerateConfig(max_tokens=400, **SAMPLING)):
            if isinstance(event, Answer):
                return event
            engine.stop()
        raise AssertionError

    answer = asyncio.run(run())
    assert answer.finish_reason == "cancelled"
    assert answer.reasoning
    assert answer.text == ""


def test_tags_that_are_control_tokens_have_a_text() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["<think>", "</think>", "<|end|>", "<tool_call>", "<table", "  "],
        "tokenizer.ggml.token_type": [3, 3, 3, 4, 4, 4],
    }
    assert token_bytes(metadata)[:3] == [b"<think>", b"</think>", b""]
    assert markup_texts(metadata) == ["<tool_call>"]
