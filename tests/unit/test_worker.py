"""The protocol: every request gets its answer or an error with a code, and the next one works."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat import ChatTemplate
from engine.fields import FIELDS
from engine.prompt import Prompts
from engine.tokenizer.decoder import StreamDecoder, token_bytes
from engine.tokenizer.spec import SpecialTokens
from engine.weights.gguf import read_header
from engine.worker import NO_ID
from tests.conftest import ROOT
from tests.golden import make_tiny
from tests.native import ready_of
from tests.tiny import HELLO, SHIP
from tests.unit.worker_client import Client

TOOLS = [{"type": "function", "function": {"name": "weather"}}]


@pytest.fixture(scope="module")
def recommending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny.gguf with sampling parameters, but no chat template."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"

    def add_tokenizer(writer: gguf.GGUFWriter, family: make_tiny.Family) -> None:
        original(writer, family)
        writer.add_float32("general.sampling.temp", 0.6)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_float32("general.sampling.top_p", 0.95)
        writer.add_float32("general.sampling.min_p", 7.0)  # is no share

    original = make_tiny.add_tokenizer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_tiny, "add_tokenizer", add_tokenizer)
        patch.setattr(make_tiny, "TEMPLATE", "")
        make_tiny.write_named("tiny", path)
    return path


def test_a_file_recommends_how_to_sample(recommending: Path) -> None:
    async def run() -> None:
        client = Client(recommending)
        loaded = (await client.ask("load"))["value"]
        found = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
        assert loaded["model"]["sampling"] == found

        async def ids(**fields: Any) -> list[int]:
            answer = await client.ask("generate", messages=HELLO, max_tokens=30, **fields)
            value: list[int] = answer["value"]["ids"]
            return value

        neutral = {"temperature": 0, "top_k": 0, "top_p": 1}
        assert await ids(**neutral) == SHIP["ids"][:30], "what a request says counts"
        assert await ids(temperature=0) == SHIP["ids"][:30]
        assert await ids() == await ids(**found) == await ids(**dict.fromkeys(found))
        assert await ids() != SHIP["ids"][:30]
        assert await ids() != await ids(**{**found, "top_k": 1})
        await client.ask("unload")
        assert (await client.ask("generate", messages=HELLO))["error"][
            "code"
        ] == "engine.not_loaded"

    asyncio.run(run())


def test_templates_know_the_end_that_the_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_tiny, "TEMPLATE", "{{ eos_token }}{{ bos_token }}")
    make_tiny.write_named("tiny", tmp_path / "model.gguf")

    async def run() -> None:
        client = Client(tmp_path / "model.gguf")
        await client.ask("load")
        model = ready_of(client.worker._engine).model
        assert model.special.eos == {0, 2}, "of which the file names the second"
        assert (await model.prompts.encode(HELLO)).ids == [2, 1]

    asyncio.run(run())


def test_a_file_without_a_chat_template(recommending: Path) -> None:
    async def run() -> None:
        client = Client(recommending)
        await client.ask("load")
        answer = await client.ask("generate", messages=HELLO, max_tokens=4, temperature=0)
        assert answer["value"]["usage"]["prompt_tokens"] == len(SHIP["prompt_ids"])
        assert answer["value"]["ids"] == SHIP["ids"][:4]

    asyncio.run(run())


def test_load_generate_status_unload() -> None:
    async def run() -> None:
        client = Client()
        loaded = (await client.ask("load", device="auto"))["value"]
        assert loaded["device"]["kind"] == "cpu"
        assert loaded["model"]["context"] == 512
        assert loaded["memory_bytes"] > 0
        stages = [m["stage"] for m in client.messages if m["kind"] == "progress"]
        assert [s for i, s in enumerate(stages) if s not in stages[:i]] == [
            "download",
            "device",
            "compile",
            "weights",
            "warmup",
        ]
        id = client.send("generate", messages=HELLO, max_tokens=30)
        value = (await client.ended(id))["value"]
        assert value["ids"] == SHIP["ids"][:30]
        assert value["text"] == client.texts(id)
        assert value["usage"] == {
            "prompt_tokens": 24,
            "cached_tokens": 0,
            "completion_tokens": 30,
        }
        assert (await client.ask("status"))["value"]["state"] == "ready"
        assert (await client.ask("unload"))["value"] == {}
        assert (await client.ask("status"))["value"] == {"state": "empty"}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "content", "code"),
    [
        ("dance", {}, "request.unknown"),
        (None, {}, "request.unknown"),
        (["load"], {}, "request.unknown"),
        ("generate", {"messages": HELLO, "temperature": "hot"}, "request.invalid"),
        ("generate", {"messages": HELLO, "temperature": -1}, "request.invalid"),
        ("generate", {"messages": HELLO, "max_tokens": 0}, "request.invalid"),
        ("generate", {"messages": HELLO, "seed": 1.5}, "request.invalid"),
        ("generate", {"messages": "hello"}, "request.invalid"),
        ("generate", {"messages": [{"role": "user"}]}, "request.invalid"),
        ("generate", {"messages": [{"role": "user", "content": 7}]}, "request.invalid"),
        ("generate", {"messages": [{"role": "wizard", "content": "a"}]}, "request.invalid"),
        ("generate", {"messages": HELLO, "tools": [7]}, "request.invalid"),
        ("generate", {"messages": HELLO, "tools": TOOLS}, "request.invalid"),  # no place for them
        ("generate", {"messages": []}, "prompt.empty"),
        ("generate", {"messages": [{"role": "user", "content": "  \n"}]}, "prompt.empty"),
        ("generate", {"messages": [{"role": "user", "content": "x" * 9000}]}, "prompt.too_long"),
        ("load", {"device": "abacus"}, "request.invalid"),
        ("load", {"context": 3}, "request.invalid"),
        ("load", {"model": 5}, "request.invalid"),
        ("load", {"model": 0}, "request.invalid"),
        ("load", {"device": False}, "request.invalid"),
        ("load", {"activations": []}, "request.invalid"),
        ("load", {"memory_bytes": 0}, "request.invalid"),
        ("load", {"memory_bytes": 1000}, "memory.budget"),
        ("generate", {"messages": HELLO, "model": 5}, "request.invalid"),
        ("generate", {"messages": HELLO, "model": "other"}, "engine.not_loaded"),
        ("unload", {"model": []}, "request.invalid"),
        ("unload", {"model": "other"}, "engine.not_loaded"),
        ("stop", {"target": True}, "request.invalid"),
        ("measure", {"prefill": "many"}, "request.invalid"),
        ("measure", {"prefill": 5, "context": 500, "steps": 20}, "request.invalid"),
    ],
)
def test_bad_requests(kind: Any, content: dict[str, Any], code: str) -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        error = (await client.ask(kind, **content))["error"]
        assert error["code"] == code
        assert error["message"]
        good = await client.ask("generate", messages=HELLO, max_tokens=8)
        assert good["value"]["ids"] == SHIP["ids"][:8]

    asyncio.run(run())


def test_reasoning_and_tools_cross_to_the_page() -> None:
    """A template that opens the think part itself and takes tools; the answer never closes it."""

    async def run() -> None:
        client = Client()
        await client.ask("load")
        ready = ready_of(client.worker._engine)
        assert ready
        model = ready.model
        source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}<think>"
        model.prompts = Prompts(ChatTemplate(source, "", ""), model.encoder, model.special, [])
        id = client.send("generate", messages=HELLO, tools=TOOLS, max_tokens=30)
        value = (await client.ended(id))["value"]
        assert (value["text"], client.texts(id)) == ("", "")
        assert value["reasoning"] == client.texts(id, "reasoning") != ""
        text = HELLO[0]["content"] + json.dumps(TOOLS) + "<think>"
        assert value["usage"]["prompt_tokens"] == len(await model.encoder.encode(text))

    asyncio.run(run())


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"kind":"status"}', '{"id":"1"}'])
def test_messages_that_are_none(text: str) -> None:
    async def run() -> None:
        client = Client()
        client.worker.handle(text)
        error = (await client.ended(NO_ID))["error"]
        assert error["code"] == "request.invalid"
        assert (await client.ask("status"))["value"] == {"state": "empty"}

    asyncio.run(run())


def test_generate_before_load_and_while_generating() -> None:
    async def run() -> None:
        client = Client()
        early = await client.ask("generate", messages=HELLO)
        assert early["error"]["code"] == "engine.not_loaded"
        await client.ask("load")
        first = client.send("generate", messages=HELLO, max_tokens=100)
        second = await client.ask("generate", messages=HELLO, max_tokens=20)
        assert second["value"]["ids"] == SHIP["ids"][:20]
        assert (await client.ended(first))["value"]["ids"] == SHIP["ids"][:100]

    asyncio.run(run())


def test_stop_generate_and_stop_load() -> None:
    async def run() -> None:
        client = Client()
        loading = client.send("load")
        await asyncio.sleep(0)
        assert (await client.ask("stop"))["value"] == {"stopped": True}
        assert (await client.ended(loading))["error"]["code"] == "request.cancelled"
        assert (await client.ask("stop"))["value"] == {"stopped": False}

        client = Client()
        await client.ask("load")
        id = client.send("generate", messages=HELLO, max_tokens=400)
        while not client.texts(id):
            await asyncio.sleep(0)
        assert (await client.ask("stop"))["value"] == {"stopped": True}
        value = (await client.ended(id))["value"]
        assert value["finish_reason"] == "cancelled"
        assert value["text"] == client.texts(id)
        assert value["ids"] == SHIP["ids"][: len(value["ids"])]

    asyncio.run(run())


def test_stop_with_a_target_stops_only_that() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        id = client.send("generate", messages=HELLO, max_tokens=60)
        assert (await client.ask("stop", target=id + 100))["value"] == {"stopped": False}
        assert (await client.ended(id))["value"]["ids"] == SHIP["ids"][:60]
        id = client.send("generate", messages=HELLO, max_tokens=400)
        await asyncio.sleep(0)
        assert (await client.ask("stop", target=id))["value"] == {"stopped": True}
        assert (await client.ended(id))["value"]["finish_reason"] == "cancelled"
        id = client.send("measure", prefill=100, context=100, steps=100)
        await asyncio.sleep(0)
        assert (await client.ask("stop", target=id))["value"] == {"stopped": True}
        assert (await client.ended(id))["error"]["code"] == "request.cancelled"

    asyncio.run(run())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
# For each kind what it may say, and something that it may not.
ASKED = st.sampled_from(["generate", "stop", "reset", "status", "x"]).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.dictionaries(st.sampled_from([*sorted(FIELDS.get(kind, ())), "devcie"]), JSON),
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ASKED))
def test_any_fields_get_an_answer(requests: list[tuple[str, dict[str, Any]]]) -> None:
    async def run() -> None:
        client = Client()
        for kind, fields in requests:
            id = client.send(kind, **fields)
            reply = await client.ended(id)
            assert reply["kind"] == "result" or reply["error"]["code"] != "internal"

    asyncio.run(run())


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_an_answer_goes_on_where_it_ended(temperature: float) -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        config = {"temperature": temperature, "seed": 4}
        whole = (await client.ask("generate", messages=HELLO, max_tokens=90, **config))["value"]
        await client.ask("reset")
        part = (await client.ask("generate", messages=HELLO, max_tokens=20, **config))["value"]
        parts = [part]
        for count in (1, 15, 30, 24):
            handle = parts[-1]["handle"]
            answer = await client.ask("generate", continues=handle, max_tokens=count, **config)
            parts.append(answer["value"])
            usage = answer["value"]["usage"]
            assert usage["cached_tokens"] == usage["prompt_tokens"] - 1, "nothing is computed again"
        assert [id for part in parts for id in part["ids"]] == whole["ids"]
        assert "".join(part["text"] for part in parts) == whole["text"]

    asyncio.run(run())


@pytest.mark.parametrize("stop", [None, "\U0010ffff"])
def test_a_cut_within_a_character_shows_nothing_of_it(stop: str | None) -> None:
    """Wherever an answer is cut, its text and that of its continuation are the whole one's."""

    async def run() -> None:
        client = Client()
        await client.ask("load")
        options = {"messages": SHIP["messages"], "stop": stop}
        whole = (await client.ask("generate", max_tokens=40, **options))["value"]
        begins, within = [], 0
        for count in range(1, 40):
            id = client.send("generate", max_tokens=count, **options)
            first = (await client.ended(id))["value"]
            rest = await client.ask(
                "generate", continues=first["handle"], max_tokens=40 - count, stop=stop
            )
            assert first["text"] == client.texts(id)
            assert first["text"] + rest["value"]["text"] == whole["text"]
            begins.append(first["text"])
            within += len(begins) > 1 and begins[-1] == begins[-2]
        assert within > 3, "the tokens cut characters"

    asyncio.run(run())


def test_a_stop_string_across_a_cut_ends_an_answer() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        messages = SHIP["messages"]
        whole = (await client.ask("generate", messages=messages, max_tokens=40))["value"]["text"]
        stop = whole[len(whole) // 2 :][:20]
        before, within = whole.index(stop), 0
        for count in range(1, 40):
            asked = {"messages": messages, "max_tokens": count, "stop": stop}
            first = (await client.ask("generate", **asked))["value"]
            if first["finish_reason"] == "stop":
                break
            asked = {"continues": first["handle"], "max_tokens": 40, "stop": stop}
            rest = (await client.ask("generate", **asked))["value"]
            assert rest["finish_reason"] == "stop"
            text = first["text"] + rest["text"]
            assert text == whole[: max(before, len(first["text"]))]
            within += len(first["text"]) > before
        assert within > 3, "answers were cut within it"

    asyncio.run(run())


def test_a_continuation_that_is_cut_at_once_loses_nothing() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        whole = (await client.ask("generate", messages=SHIP["messages"], max_tokens=40))["value"]
        part = (await client.ask("generate", messages=SHIP["messages"], max_tokens=1))["value"]
        text = part["text"]
        while len(text) < len(whole["text"]):
            id = client.send("generate", continues=part["handle"], max_tokens=1)
            if len(text) % 2:
                client.send("stop", target=id)
            part = (await client.ended(id))["value"]
            text += part["text"]
            assert whole["text"].startswith(text)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_answer_that_ended_for_good_shows_what_is_broken(monkeypatch: Any) -> None:
    ids = SHIP["ids"]
    model = read_header((ROOT / "tests/golden/tiny.gguf").read_bytes(), 1 << 20).metadata
    table = token_bytes(model)

    def broken(count: int) -> bool:
        decoder = StreamDecoder(table)
        decoder.push(ids[:count])
        return bool(decoder.rest) and ids[count - 1] not in ids[: count - 1]

    count = next(n for n in range(2, len(ids)) if broken(n))
    ends = SpecialTokens(None, frozenset(ids[count - 1 : count]), False)
    monkeypatch.setattr("engine.loader.special_ids", lambda _: ends)

    async def run() -> None:
        client = Client()
        await client.ask("load")
        for stop in (None, "\U0010ffff"):
            id = client.send("generate", messages=SHIP["messages"], stop=stop)
            value = (await client.ended(id))["value"]
            assert value["finish_reason"] == "stop" and value["ids"] == ids[:count]
            assert value["text"] == client.texts(id)
            joined = b"".join(table[i] for i in ids[:count])
            assert value["text"] == joined.decode("utf-8", "replace")
            assert value["text"].endswith("\ufffd")

    asyncio.run(run())


def test_what_cannot_be_continued() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        first = await client.ask("generate", messages=HELLO, max_tokens=3)
        handle = first["value"]["handle"]
        for continues, code in ((handle + 99, "invalid"), ("1", "invalid"), (-1, "invalid")):
            answer = await client.ask("generate", continues=continues)
            assert answer["error"]["code"] == f"request.{code}"
        await client.ask("reset")
        assert (await client.ask("generate", continues=handle))["error"][
            "code"
        ] == "request.invalid"

    asyncio.run(run())


def test_a_raw_text_is_completed_without_a_template() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        for prompt in (SHIP["prompt"], SHIP["prompt_ids"]):
            id = client.send("generate", prompt=prompt, max_tokens=30)
            value = (await client.ended(id))["value"]
            assert value["ids"] == SHIP["ids"][:30]
            assert value["text"] == client.texts(id) != ""
            assert value["usage"]["prompt_tokens"] == len(SHIP["prompt_ids"])
        part = (await client.ask("generate", prompt=SHIP["prompt"], max_tokens=12))["value"]
        rest = (await client.ask("generate", continues=part["handle"], max_tokens=18))["value"]
        assert part["ids"] + rest["ids"] == SHIP["ids"][:30]

    asyncio.run(run())


def test_a_raw_text_begins_as_the_model_wants_it() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        model = ready_of(client.worker._engine).model
        model.special = SpecialTokens(1, model.special.eos, True)

        async def tokens(**prompt: Any) -> int:
            value = (await client.ask("generate", max_tokens=1, **prompt))["value"]
            count: int = value["usage"]["prompt_tokens"]
            return count

        ids = (await client.ask("tokenize", text="ship"))["value"]["ids"]
        assert 1 not in ids
        assert await tokens(prompt="ship") == len(ids) + 1
        assert await tokens(prompt="<|im_start|>ship") == len(ids) + 1, "it is there already"
        assert await tokens(prompt=ids) == len(ids), "ids are taken as they are"

    asyncio.run(run())


@given(st.text(max_size=40))
@settings(max_examples=30, deadline=None)
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        ids = (await client.ask("tokenize", text=text))["value"]["ids"]
        assert (await client.ask("detokenize", ids=ids))["value"] == {"text": text}

    asyncio.run(run())


def test_ids_of_control_tokens_and_broken_characters() -> None:
    async def run() -> None:
        client = Client()
        await client.ask("load")
        ids = (await client.ask("tokenize", text=SHIP["prompt"]))["value"]["ids"]
        assert ids == SHIP["prompt_ids"]
        text = (await client.ask("detokenize", ids=ids))["value"]["text"]
        assert text == re.sub(r"<\|im_\w+\|>", "", SHIP["prompt"])
        euro = (await client.ask("tokenize", text="€"))["value"]["ids"]
        assert len(euro) > 1, "its bytes are tokens"
        assert (await client.ask("detokenize", ids=euro[:1]))["value"]["text"] == "\ufffd"
        assert (await client.ask("status"))["value"]["answers"] == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "content", "code"),
    [
        ("generate", {"prompt": ""}, "prompt.empty"),
        ("generate", {"prompt": []}, "prompt.empty"),
        ("generate", {"prompt": 5}, "request.invalid"),
        ("generate", {"prompt": ["a"]}, "request.invalid"),
        ("generate", {"prompt": [1, -1]}, "request.invalid"),
        ("generate", {"prompt": [1, None]}, "request.invalid"),
        ("generate", {"prompt": [1, 1 << 40]}, "request.invalid"),
        ("generate", {"prompt": [1, 100_000]}, "request.invalid"),
        ("generate", {"prompt": "a", "messages": HELLO}, "request.invalid"),
        ("generate", {"prompt": "a", "model": "other"}, "engine.not_loaded"),
        ("generate", {"prompt": "a " * 5000}, "prompt.too_long"),
        ("tokenize", {}, "request.invalid"),
        ("tokenize", {"text": 5}, "request.invalid"),
        ("tokenize", {"text": "a", "model": "other"}, "engine.not_loaded"),
        ("detokenize", {"ids": "a"}, "request.invalid"),
        ("detokenize", {"ids": [True]}, "request.invalid"),
        ("detokenize", {"ids": [None]}, "request.invalid"),
        ("detokenize", {"ids": [100_000]}, "request.invalid"),
        ("detokenize", {"ids": [], "model": "other"}, "engine.not_loaded"),
    ],
)
def test_bad_texts_and_ids(kind: str, content: dict[str, Any], code: str) -> None:
    async def run() -> None:
        client = Client()
        assert (await client.ask("tokenize", text="a"))["error"]["code"] == "engine.not_loaded"
        await client.ask("load")
        error = (await client.ask(kind, **content))["error"]
        assert (error["code"], bool(error["message"])) == (code, True)
        good = await client.ask("generate", prompt=SHIP["prompt"], max_tokens=8)
        assert good["value"]["ids"] == SHIP["ids"][:8]

    asyncio.run(run())
