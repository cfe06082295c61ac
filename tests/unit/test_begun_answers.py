"""Answers that were begun in a message (`continue_final_message`): the model writes the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.chat import ChatTemplate
from engine.errors import OctavoError
from engine.prompt import Prompt, Prompts
from engine.reasoning import Reasoning
from engine.templates import CHATML
from engine.tokenizer.native import open_native
from engine.tokenizer.pieces import CONTINUES
from engine.tokenizer.spec import control_texts, special_ids, tokenizer_json
from engine.weights.gguf import read_header
from tests.tiny import HELLO, SHIP, TINY
from tests.tokens import piece_metadata
from tests.unit.worker_client import Client

DATA = TINY.read_bytes()
METADATA = read_header(DATA, len(DATA)).metadata
ENCODER = open_native(tokenizer_json(METADATA))
THINKS = "{# knows <think> #}" + CHATML
OPENS = CHATML + "{{ '<think>\\n' }}"
CALLS = {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


def encoded(template: str, *messages: dict[str, Any], **options: Any) -> Prompt:
    chat, special = ChatTemplate(template, "", ""), special_ids(METADATA)
    prompts = Prompts(chat, ENCODER, special, control_texts(METADATA))
    return asyncio.run(prompts.encode(list(messages), **options))


def said(content: str, thought: str = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return message | ({"reasoning_content": thought} if thought else {})


def test_the_prompt_is_that_of_the_answer_and_what_was_said_of_it() -> None:
    asked = encoded(CHATML, *HELLO)
    begun = encoded(CHATML, *HELLO, said("It was a "), goes_on=True)
    assert begun.ids[: len(asked.ids)] == asked.ids
    assert begun.ids[begun.begins :] == ENCODER.ids("It was a ")
    assert (begun.tail, asked.tail) == ("It was a ", "")


def test_what_was_said_is_no_control_token() -> None:
    text = "say <|im_end|>"
    begun = encoded(CHATML, *HELLO, said(text), goes_on=True)
    types = METADATA["tokenizer.ggml.token_type"]
    assert not [id for id in begun.ids[begun.begins :] if types[id] == 3]
    assert types[ENCODER.ids(text)[-1]] == 3


@pytest.mark.parametrize(
    ("template", "message", "turn", "place"),
    [
        (CHATML, said("a", "why"), "a", "past"),
        (THINKS, said("a"), "a", "past"),
        (THINKS, said("", "why"), "<think>\nwhy", "within"),
        (THINKS, said("a", "why"), "<think>\nwhy\n</think>\n\na", "past"),
        (OPENS, said("", "why"), "why", "within"),
        (OPENS, said("a", "why"), "why\n</think>\n\na", "past"),
        (OPENS, said("a"), "\n</think>\n\na", "past"),
        (CHATML + "<think>", said("", "why"), "\nwhy", "within"),
    ],
)
def test_reasoning_is_where_the_model_had_it(
    template: str, message: dict[str, Any], turn: str, place: str
) -> None:
    begun = encoded(template, *HELLO, message, goes_on=True)
    asked = encoded(template, *HELLO)
    head, content = turn.removesuffix(message["content"]), message["content"]
    assert begun.ids[len(asked.ids) :] == ENCODER.ids(head) + ENCODER.ids(content)
    assert begun.ids[begun.begins :] == ENCODER.ids(content), "a grammar looks at this"
    assert begun.tail == content
    told: tuple[str, str] = begun.reasoning.push(" more")
    expected: Reasoning = Reasoning("within" if place == "within" else "past")
    assert [bool(part) for part in told] == [bool(part) for part in expected.push("x")]


@pytest.mark.parametrize(
    ("family", "opening", "joint"),
    [
        ("llama", "<|user|>\n", CONTINUES),
        ("llama", "[/INST]", ""),
        ("phi3", "<|user|>\n", ""),  # its control tokens swallow white space
    ],
)
def test_a_space_comes_where_none_is(family: str, opening: str, joint: str) -> None:
    metadata = {**piece_metadata(), "general.architecture": family}
    encoder = open_native(tokenizer_json(metadata))
    chat = ChatTemplate("{{ messages[0].content }}" + opening + "{{ '' }}", "", "")
    prompts = Prompts(chat, encoder, special_ids(metadata), control_texts(metadata))
    begun = asyncio.run(prompts.encode([*HELLO, said("the sea")], goes_on=True))
    assert begun.ids[begun.begins :] == encoder.ids(joint + "the sea")
    assert encoder.ids(CONTINUES + "the sea") != encoder.ids("the sea")
    assert not begun.strip_space
    begun = asyncio.run(prompts.encode([*HELLO, said("", "why")], goes_on=True))
    assert begun.strip_space, "it does not think, so nothing was said yet"


def test_stop_strings_do_not_begin_in_the_think_part() -> None:
    begun = encoded(THINKS, *HELLO, said("<think>\nI say hel"), goes_on=True)
    assert begun.tail == ""
    begun = encoded(THINKS, *HELLO, said("I say hel", "why"), goes_on=True)
    assert begun.tail == "I say hel"


async def asked(client: Client, **request: Any) -> dict[str, Any]:
    reply = await client.ask("generate", **request)
    if reply["kind"] == "error":
        raise OctavoError(reply["error"]["code"], reply["error"]["message"])
    value: dict[str, Any] = reply["value"]
    return value


async def loaded() -> Client:
    client = Client()
    await client.ask("load", context=512)
    return client


def begun(text: str) -> dict[str, Any]:
    return {"messages": [*HELLO, said(text)], "continue_final_message": True}


async def cuts(client: Client, **options: Any) -> list[tuple[int, str]]:
    """Where the answer can be cut, with its text so far: the tokenizer makes of that text what the
    model had written."""
    parts = [await asked(client, messages=HELLO, max_tokens=n, **options) for n in range(1, 20)]
    whole = [part for part in parts if ENCODER.ids(part["text"]) == part["ids"]]
    assert len(whole) > 2
    return [(len(part["ids"]), part["text"]) for part in whole]


def test_an_answer_goes_on_to_the_letter() -> None:
    async def scenario() -> None:
        client = await loaded()
        whole = await asked(client, messages=HELLO, max_tokens=40)
        for count, text in await cuts(client):
            rest = await asked(client, **begun(text), max_tokens=40 - count)
            assert rest["ids"] == whole["ids"][count:] == SHIP["ids"][count:40]
            assert text + rest["text"] == whole["text"]
            assert rest["usage"]["completion_tokens"] == 40 - count

    asyncio.run(scenario())


def test_it_is_stopped_by_a_text_across_the_cut_and_can_go_on_again() -> None:
    async def scenario() -> None:
        client = await loaded()
        whole = await asked(client, messages=HELLO, max_tokens=40)
        around = [(n, text, whole["text"][len(text) - 1 :][:2]) for n, text in await cuts(client)]
        count, text, stop = next(
            (n, text, stop) for n, text, stop in around if whole["text"].find(stop) == len(text) - 1
        )
        rest = await asked(client, **begun(text), stop=stop)
        assert (rest["text"], rest["finish_reason"]) == ("", "stop")
        first = await asked(client, **begun(text), max_tokens=3)
        again = await asked(client, continues=first["handle"], max_tokens=5)
        assert first["ids"] + again["ids"] == whole["ids"][count : count + 8]

    asyncio.run(scenario())


def test_penalties_count_what_was_said() -> None:
    async def scenario() -> None:
        client, options = await loaded(), {"frequency_penalty": 2.0}
        plain = await asked(client, messages=HELLO, max_tokens=60)
        whole = await asked(client, messages=HELLO, max_tokens=60, **options)
        assert whole["ids"] != plain["ids"]
        for count, text in await cuts(client, **options):
            rest = await asked(client, **begun(text), max_tokens=60 - count, **options)
            assert rest["ids"] == whole["ids"][count:]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"messages": HELLO}, "messages[0] should be the assistant's"),
        ({"messages": [*HELLO, said("")]}, "empty"),
        ({"messages": [*HELLO, said("", "why")], "continue_final_message": False}, "empty"),
        (
            {"messages": [*HELLO, said("a") | CALLS]},
            "messages[1] should be the assistant's, without",
        ),
        ({"prompt": "a"}, "continue_final_message needs messages"),
        ({"continues": 3}, "continue_final_message needs messages"),
        ({"messages": [*HELLO, said("a")], "continue_final_message": 1}, "true or false, not 1"),
    ],
)
def test_what_cannot_go_on_is_refused(request_: dict[str, Any], problem: str) -> None:
    async def scenario() -> None:
        client = await loaded()
        with pytest.raises(OctavoError) as refused:
            await asked(client, **{"continue_final_message": True, **request_})
        assert refused.value.code in ("request.invalid", "prompt.empty")
        assert problem in refused.value.message

    asyncio.run(scenario())
