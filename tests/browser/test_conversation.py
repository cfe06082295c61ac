"""A conversation as a person has it, with the tiny model on both devices."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from engine.answer import Answer
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from tests.browser.chat import Chat, Open
from tests.browser.conftest import cut, link_site
from tests.conftest import StaticServer
from tests.golden import make_tiny
from tests.native import NativeHost
from tests.tiny import CHATS, RAIN, SHIP

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&context=512"
DEVICES = ["cpu", "gpu"]
# Asks without waiting; the answer lands in window.answered.
ASK = """([messages, max_tokens]) => {
  window.answered = null;
  octavo.chat.completions.create({messages, max_tokens})
    .then((answer) => { window.answered = answer; });
}"""


@pytest.fixture(params=DEVICES)
def tiny(request: pytest.FixtureRequest, open_chat: Open) -> Chat:
    query = f"{TINY}&device={request.param}&activations=f32&max_tokens=40"
    return open_chat(query).wait_for("ready")


def test_greedy_ids_equal_the_oracle_through_the_whole_stack(tiny: Chat) -> None:
    for prompt in CHATS:
        answer = tiny.complete(prompt["messages"], max_tokens=200)
        assert answer["octavo"]["ids"] == prompt["ids"]
        assert answer["choices"][0]["message"]["content"] == prompt["text"]
        assert answer["choices"][0]["finish_reason"] == "length"


def test_stream_adds_up(tiny: Chat) -> None:
    prompt = SHIP
    chunks = tiny.page.evaluate(
        """async (messages) => {
          const chunks = [];
          const stream = octavo.chat.completions.create({messages, max_tokens: 120, stream: true});
          for await (const chunk of stream) chunks.push(chunk);
          return chunks;
        }""",
        prompt["messages"],
    )
    assert chunks[-1]["octavo"]["ids"] == prompt["ids"][:120]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert (
        text
        == tiny.complete(prompt["messages"], max_tokens=120)["choices"][0]["message"]["content"]
    )
    assert len(chunks) > 5, "the text came in pieces"


def test_stop_at_a_random_moment_then_a_new_message(tiny: Chat) -> None:
    rng = random.Random(5)
    messages = [{"role": "user", "content": "Go on."}]
    whole = tiny.complete(messages, max_tokens=200)["octavo"]["ids"]
    by_itself = 0
    for seconds in (0.02, *(rng.random() * 0.6 for _ in range(3))):
        tiny.page.evaluate(ASK, [messages, 1500])
        time.sleep(seconds)
        stopped = tiny.page.evaluate("octavo.stop()")["stopped"]
        tiny.until("window.answered !== null")
        answer = tiny.page.evaluate("window.answered")
        ids, reason = answer["octavo"]["ids"], answer["choices"][0]["finish_reason"]
        assert stopped or seconds > 0.02, "there was something to stop"
        assert ids[:200] == whole[: len(ids)]
        if reason == "cancelled":
            assert stopped
        else:
            by_itself += stopped  # in the burst that was under way
        prompt = SHIP
        assert (
            tiny.complete(prompt["messages"], max_tokens=60)["octavo"]["ids"] == prompt["ids"][:60]
        )
    assert by_itself <= 1, "a stop is heard"


def test_stop_button_keeps_the_text(tiny: Chat) -> None:
    # an answer of many seconds, however busy the computer is, and room for another one
    tiny.page.goto(tiny.url.replace("max_tokens=40", "max_tokens=3000&context_full=slide"))
    tiny.wait_for("ready").send(SHIP["messages"][0]["content"])
    tiny.until(
        "[...document.querySelectorAll('[data-testid=answer]')].at(-1)?.innerText.trim().length > 3"
    )
    tiny.hook("stop").click()
    tiny.wait_for("stopped")
    text = tiny.answer
    assert text
    time.sleep(0.3)
    assert tiny.answer == text, "nothing came after the stop"
    assert tiny.ask("Is it open?")
    assert tiny.page.get_by_test_id("answer").count() == 2


def test_reset_then_the_first_answer_again_to_the_letter(tiny: Chat) -> None:
    question = RAIN["messages"][0]["content"]
    first = tiny.ask(question)
    tiny.ask("And what is under the window?")
    tiny.hook("reset").click()
    tiny.until("document.querySelectorAll('[data-testid=answer]').length === 0")
    assert tiny.status()["kv"]["free_blocks"] == tiny.status()["kv"]["num_blocks"]
    assert tiny.ask(question) == first


def test_continue(tiny: Chat) -> None:
    """The button lengthens the last answer; through the API it is the rest, to the letter."""
    tiny.ask(RAIN["messages"][0]["content"])
    short = tiny.answer
    tiny.hook("continue").click()
    tiny.until(f"document.querySelector('.answer').innerText.length > {len(short)}")
    tiny.wait_for("ready")
    assert tiny.page.get_by_test_id("answer").count() == 1
    tiny.page.reload()  # from here on there is only its text
    short = tiny.wait_for("ready").answer
    tiny.hook("continue").click()
    tiny.until(f"document.querySelector('.answer').innerText.length > {len(short)}")
    assert tiny.wait_for("ready").answer.startswith(short.rstrip("\ufffd"))
    assert tiny.page.get_by_test_id("answer").count() == 1
    tiny.ask("And now?")
    assert tiny.page.get_by_test_id("continue").count() == 1, "only the last answer can go on"

    ids = tiny.page.evaluate(
        """async (messages) => {
          const first = await octavo.chat.completions.create({messages, max_tokens: 20});
          const continues = first.octavo.handle;
          const rest = await octavo.chat.completions.create({continues, max_tokens: 30});
          return [...first.octavo.ids, ...rest.octavo.ids];
        }""",
        SHIP["messages"],
    )
    assert ids == SHIP["ids"][:50]
    first = tiny.complete(SHIP["messages"], max_tokens=4)["choices"][0]["message"]
    begun = [*SHIP["messages"], first]
    rest = tiny.complete(begun, max_tokens=30, continue_final_message=True)
    assert rest["octavo"]["ids"] == SHIP["ids"][4:34]


def test_two_tabs(tiny: Chat, open_chat: Open) -> None:
    query = tiny.url.split("?")[1]
    other = open_chat(query, context=tiny.page.context).wait_for("ready")
    for chat, prompt in ((tiny, SHIP), (other, RAIN)):
        chat.page.evaluate(ASK, [prompt["messages"], 200])
    for chat, prompt in ((tiny, SHIP), (other, RAIN)):
        chat.until("window.answered !== null")
        ids = chat.page.evaluate("window.answered.octavo.ids")
        assert len(ids) > 150
        assert ids == prompt["ids"][: len(ids)]


def test_seeds_through_the_address(open_chat: Open) -> None:
    texts = []
    for seed in (3, 3, 4):
        query = f"{TINY}&device=cpu&temperature=0.9&seed={seed}&max_tokens=30"
        texts.append(open_chat(query).wait_for("ready").ask("Where is the sea?"))
    assert texts[0] == texts[1] != texts[2]


def test_a_typed_script_stays_text(open_chat: Open) -> None:
    chat = open_chat(f"{TINY}&device=cpu&max_tokens=3").wait_for("ready")
    chat.ask("<img src=x onerror=\"document.title='owned'\"> **bold**")
    assert chat.page.title() == "Octavo"
    assert "<img" in chat.page.locator("main").inner_text()


def test_a_second_load_replaces_the_model(open_chat: Open, server: StaticServer) -> None:
    chat = open_chat(f"{TINY}&device=cpu&max_tokens=3").wait_for("ready")
    before = chat.status()["memory_bytes"]
    loaded = chat.page.evaluate(
        "octavo.load({model: 'models/tiny/manifest.json', device: 'cpu', context: 128})"
    )
    assert loaded["model"]["context"] == 128
    assert chat.status()["memory_bytes"] < before
    assert chat.complete(SHIP["messages"], max_tokens=9)["octavo"]["ids"] == SHIP["ids"][:9]
    chat.page.evaluate("octavo.unload()")
    assert chat.status()["state"] == "empty"


def test_sub_path(tmp_path: Path, site: Path, plain_chromium: Any) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some/where").symlink_to(site)
    server = StaticServer(tmp_path)
    context = plain_chromium.new_context()
    try:
        url = f"{server.url}/some/where/?{TINY}&device=cpu&max_tokens=5"
        chat = Chat(context.new_page(), server, url).open().wait_for("ready")
        assert chat.ask("Where is the sea?")
        assert all(
            path.startswith("/some/where/") for path in server.requests if path != "/favicon.ico"
        )
    finally:
        context.close()
        server.close()


QUESTION = "Where is the sea?"
OPENS = make_tiny.TEMPLATE + "<think>\n"  # as DeepSeek-R1's does, but thoughts stay in the history


@pytest.fixture
def thinker(tmp_path: Path, plain_chromium: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    """The tiny model with a template that opens a think part, and a token that closes it in the
    answer to QUESTION."""
    model = tmp_path / "thinker.gguf"
    monkeypatch.setattr(make_tiny, "TEMPLATE", OPENS)
    make_tiny.write_named("tiny", model)
    with ThreadPoolExecutor() as thread:  # this one has Playwright's event loop
        ids = thread.submit(asyncio.run, answer_ids(model)).result()
    tokens, merges = make_tiny.learn_bpe()
    free = {index for index, token in enumerate(tokens) if not_in_merges(token, merges)}
    closing = next(id for id in ids[10:] if id in free and id not in ids[:10])
    tokens[closing] = "</think>"
    monkeypatch.setattr(make_tiny, "learn_bpe", lambda: (tokens, merges))
    make_tiny.write_named("tiny", model)

    root = link_site(tmp_path / "root")
    cut(model, root / "models/thinker")
    server = StaticServer(root)
    context = plain_chromium.new_context()
    query = "model=models/thinker/manifest.json&context=512&device=cpu&max_tokens=120"
    yield Chat(context.new_page(), server, f"{server.url}/?{query}").open().wait_for("ready")
    context.close()
    server.close()


async def answer_ids(model: Path) -> list[int]:
    """The model's greedy answer to QUESTION."""
    engine = Engine(NativeHost(model))
    await engine.load(LoadConfig(context=512), lambda *_: None)
    messages = [{"role": "user", "content": QUESTION}]
    async for event in engine.generate(messages, GenerateConfig(max_tokens=120)):
        if isinstance(event, Answer):
            return event.ids
    raise AssertionError


def not_in_merges(token: str, merges: list[str]) -> bool:
    return not any(token in (*pair, "".join(pair)) for pair in (m.split(" ") for m in merges))


def test_reasoning(thinker: Chat) -> None:
    """Folded above the answer, and not in the history; through the API a field of its own."""
    chunks = thinker.page.evaluate(
        """async (content) => {
          const messages = [{role: 'user', content}];
          const chunks = [];
          const stream = octavo.chat.completions.create({messages, max_tokens: 120, stream: true});
          for await (const chunk of stream) chunks.push(chunk);
          return chunks;
        }""",
        QUESTION,
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    message = thinker.complete([{"role": "user", "content": QUESTION}], max_tokens=120)["choices"][
        0
    ]["message"]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == message[name] != ""
        assert "think>" not in message[name]

    thinker.page.evaluate(
        """() => {
          window.sent = [];
          const create = octavo.chat.completions.create;
          octavo.chat.completions.create = (options) => {
            window.sent.push(structuredClone(options.messages));
            return create(options);
          };
        }"""
    )
    thinker.ask(QUESTION)
    reasoning = thinker.hook("reasoning")
    assert reasoning.get_attribute("open") is None
    assert not reasoning.locator(".text").is_visible()
    summary = reasoning.locator("summary")
    assert re.fullmatch(r"Thought for \d+ s", summary.inner_text())
    summary.click()
    shown = reasoning.locator(".text")
    assert shown.is_visible()
    assert shown.evaluate("(e) => e.textContent") == message["reasoning_content"]
    assert message["reasoning_content"][:9] not in thinker.answer
    thinker.ask("And now?")
    answered = thinker.page.evaluate("window.sent[1][1]")
    assert answered == {"role": "assistant", "content": message["content"].replace("\r", "")}


def test_an_answer_that_is_cut_in_its_reasoning_goes_on_there(thinker: Chat) -> None:
    thinker.page.goto(thinker.url.replace("max_tokens=120", "max_tokens=6"))
    thinker.wait_for("ready").ask(QUESTION)
    text = "document.querySelector('.reasoning .text').textContent"
    first = thinker.page.evaluate(text)
    assert first
    assert thinker.answer == ""
    assert thinker.hook("reasoning").is_visible()
    thinker.hook("continue").click()
    longer = thinker.until(f"{text}.length > {len(first)} && {text}")
    assert longer.startswith(first.rstrip("\ufffd"))
    thinker.wait_for("ready")
    assert thinker.page.get_by_test_id("reasoning").count() == 1
    thinker.page.reload()
    thinker.wait_for("ready")
    first = thinker.page.evaluate(text)
    thinker.hook("continue").click()
    assert thinker.until(f"{text}.length > {len(first)} && {text}").startswith(first[:20])
    thinker.wait_for("ready")
    assert thinker.page.get_by_test_id("reasoning").count() == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_full_context_is_said_and_slides_on_request(open_chat: Open, device: str) -> None:
    chat = open_chat(f"model=models/tiny/manifest.json&device={device}&context=64")
    before = chat.wait_for("ready").ask("Hello")
    assert "context is full" in chat.page.locator(".finish").last.inner_text()
    chat.hook("continue").click()
    shown = "document.querySelector('[data-testid=answer]').innerText.length"
    chat.until(f"{shown} > {len(before) + 200}")
    chat.page.keyboard.press("Escape")
    chat.wait_for("stopped", "ready")
    assert chat.answer.startswith(before[:20])
