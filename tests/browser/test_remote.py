"""A remote server behind the page: our own `serve --api`, asked by the worker's fetch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from engine.host.access import Access
from tests.browser.acting import answers, settings
from tests.browser.chat import TINY_ON_CPU, Chat, Open
from tests.scripted import CHUNK, ScriptedServer, lines
from tests.serving import ApiServer
from tests.tiny import SHIP, TINY

pytestmark = pytest.mark.browser
KEY = "sk-a-secret-of-the-tests"


@pytest.fixture(scope="module")
def open_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("site"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("site"), Access(KEY))
    yield server
    server.close()


def shown_kind(chat: Chat) -> tuple[str, str]:
    badge = chat.page.locator("#device")
    return str(badge.get_attribute("data-kind")), str(badge.get_attribute("title"))


def test_the_page_says_that_a_server_computes(open_chat: Open, open_api: ApiServer) -> None:
    chat = open_chat(f"device=remote&remote={open_api.url}&max_tokens=40").wait_for("ready")
    assert shown_kind(chat) == ("remote", open_api.origin)
    assert open_api.origin in chat.page.locator("#notice").inner_text()
    assert not [r for r in chat.server.requests if "models/" in r], "nothing is downloaded"
    chat.send(SHIP["messages"][0]["content"]).wait_for("ready")
    assert chat.answer.startswith(SHIP["text"].strip()[:4])


def test_a_server_is_named_in_the_settings(open_chat: Open, guarded: ApiServer) -> None:
    chat = open_chat("model=models/tiny/manifest.json&max_tokens=40").wait_for("ready")
    settings(chat, device="remote", remote=guarded.url, remote_key=KEY)
    chat.until("document.querySelector('#device').dataset.kind === 'remote'")
    chat.wait_for("ready")
    chat.send(SHIP["messages"][0]["content"]).wait_for("ready")
    assert chat.answer.startswith(SHIP["text"].strip()[:4])
    kept = chat.page.evaluate("localStorage['octavo-settings']")
    assert guarded.url in kept and KEY not in kept


LOAD = """([model, device, url, key]) =>
  octavo.load({model, device, remote: {url, key}}).catch(({code, message, hint}) =>
    ({code, message, hint}))"""


def test_answers_as_from_here(open_chat: Open, guarded: ApiServer) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")
    said: list[str] = []
    chat.page.on("console", lambda message: said.append(message.text))
    refused = chat.page.evaluate(LOAD, ["", "remote", guarded.url, "sk-wrong-secret"])
    assert refused["code"] == "remote.refused" and "sk-wrong" not in str(refused)
    answers(chat)  # what was loaded still is
    loaded = chat.page.evaluate(LOAD, ["", "remote", guarded.url, KEY])
    assert loaded["device"]["kind"] == "remote" and loaded["model"]["name"] == "tiny"
    answer = chat.complete(SHIP["messages"], max_tokens=30)
    (choice,) = answer["choices"]
    assert SHIP["text"].startswith(choice["message"]["content"])
    assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 30
    parts = chat.page.evaluate(
        """async (messages) => {
          const options = {messages, max_tokens: 30, stream: true};
          const parts = [];
          for await (const chunk of octavo.chat.completions.create(options)) {
            parts.push(chunk.choices[0].delta.content ?? "");
          }
          return parts;
        }""",
        SHIP["messages"],
    )
    assert "".join(parts) == choice["message"]["content"]
    more = chat.page.evaluate(
        "async (continues) => octavo.chat.completions.create({continues, max_tokens: 3})",
        answer["octavo"]["handle"],
    )
    assert more["choices"][0]["message"]["content"]
    assert KEY not in str([loaded, answer, more, said])


def test_stop_breaks_the_request_off(open_chat: Open) -> None:
    endless = ScriptedServer(cycle([lines(CHUNK), 0.02]))
    chat = open_chat(f"device=remote&remote={endless.url}").wait_for("ready")
    chat.send("Go on for ever").wait_for("generating")
    chat.until("document.querySelector('[data-testid=answer]')?.innerText.includes('HiHi')")
    assert not endless.hung_up.is_set()
    chat.hook("stop").click()
    chat.wait_for("stopped")
    assert endless.hung_up.wait(10)
    assert chat.answer.startswith("HiHi")
    endless.close()


def test_a_server_that_is_away(open_chat: Open) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")
    failed = chat.page.evaluate(LOAD, ["", "remote", "http://127.0.0.1:9/v1", KEY])
    assert failed["code"] == "remote.unavailable" and "CORS" in failed["hint"]


@pytest.fixture
def strange(site: Path) -> Iterator[str]:
    """A model of an architecture that there is not."""
    file = site / "models" / "strange.gguf"
    file.write_bytes(TINY.read_bytes().replace(b"llama", b"lhama"))
    yield "models/strange.gguf"
    file.unlink()


def test_what_no_device_here_can_load_is_asked_for_there(
    open_chat: Open, guarded: ApiServer, strange: str
) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")
    failed: Any = chat.page.evaluate(LOAD, [strange, "cpu", guarded.url, KEY])
    assert failed["code"] == "model.architecture"
    loaded = chat.page.evaluate(LOAD, [strange, "auto", guarded.url, KEY])
    assert loaded["device"]["kind"] == "remote" and "lhama" in loaded["device"]["reason"]
    assert chat.complete(SHIP["messages"], max_tokens=9)["usage"]["completion_tokens"] == 9
