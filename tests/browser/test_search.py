"""Search in attached files, with an encoder: asked with a question, and looked at without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import choose, texts, until_chips
from tests.browser.audit import AXE, OUTSIDE, RUN_AXE
from tests.browser.chat import TINY_ON_CPU, Chat
from tests.browser.conftest import link_site
from tests.browser.test_embeddings import encoder
from tests.conftest import StaticServer

pytestmark = pytest.mark.browser
# Of a paragraph the encoder takes the first 30 words: one of the same words is as near as can be.
PARAGRAPHS = [" ".join([f"w{i}", f"w{i + 1}", f"w{i}"] * 20) for i in range(20)]
NOTES = "\n\n".join(PARAGRAPHS)
QUESTION = " ".join(["w7", "w8", "w7"] * 10)
WATCH = """() => {
  const { completions } = octavo.chat;
  const { create } = completions;
  completions.create = (options) => {
    window.asked = options.messages.at(-1).content;
    return create(options);
  };
}"""
# Stops a search of many passages once it has begun: at once, for it may end soon.
STOP_SEARCH = """(() => {
  const isUnderWay = document.querySelector('[data-testid=progress]').dataset.total > 1000;
  if (isUnderWay) document.querySelector('[data-testid=stop]').click();
  return isUnderWay;
})()"""
SIMILARITIES = """[...document.querySelectorAll('[data-testid=search-hit] .hint')]
  .map((e) => Number(e.innerText.split(' · ')[1]))"""


@pytest.fixture
def chat(tmp_path: Path, plain_chromium: Any) -> Iterator[Chat]:
    """A page with a small context and an encoder."""
    root = link_site(tmp_path / "root")
    encoder(root, tmp_path / "work")
    catalogue = json.loads((root / "models.json").read_text())
    (root / "models.json").unlink()
    named = {**catalogue, "encoder": "models/encoder/manifest.json"}
    (root / "models.json").write_text(json.dumps(named))
    server = StaticServer(root)
    context = plain_chromium.new_context(service_workers="block")
    query = f"{TINY_ON_CPU}&max_tokens=4"
    chat = Chat(context.new_page(), server, f"{server.url}/?{query}")
    problems: list[str] = []
    chat.page.on("pageerror", lambda error: problems.append(str(error)))
    yield chat.open().wait_for("ready")
    context.close()
    server.close()
    assert not problems, "the page threw"


def test_the_best_passages_go_along(chat: Chat) -> None:
    page = chat.page
    page.evaluate(WATCH)
    choose(chat, notes_txt=NOTES)
    until_chips(chat, 1)
    page.wait_for_selector("[data-testid=search-inside]")

    # looked at without a question to the model, on a phone
    page.set_viewport_size({"width": 360, "height": 740})
    chat.hook("search-open").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=search-dialog]")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-code='search.no_question']")
    chat.hook("search-question").fill(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-testid=search-hit]")
    first = page.get_by_test_id("search-hit").first
    assert PARAGRAPHS[7] in first.inner_text()
    assert "notes.txt" in first.inner_text() and "line 15 · 1.00" in first.inner_text()
    near = page.evaluate(SIMILARITIES)
    assert len(near) == 10 and near == sorted(near, reverse=True) and near[9] < 1
    assert page.evaluate(OUTSIDE) == []
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(RUN_AXE, [])["found"] == []
    first.get_by_test_id("search-add").click()
    page.keyboard.press("Escape")
    chat.until("!document.querySelector('[data-testid=search-dialog]')")
    until_chips(chat, 2)
    assert "line 15" in texts(chat, "chip")[1]
    page.get_by_test_id("file-remove").last.click()
    until_chips(chat, 1)
    page.set_viewport_size({"width": 1440, "height": 900})

    # the whole file does not fit, its passages do
    chat.hook("prompt").fill(QUESTION)
    chat.hook("prompt").press("Enter")
    assert chat.error_code() == "prompt.too_long"
    assert "Search in it" in page.locator("#error-hint").inner_text()
    chat.hook("search-inside").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.ariaPressed") == "true"
    chat.hook("prompt").press("Enter")
    page.wait_for_selector("[data-testid=source]")
    chat.wait_for("ready")
    asked = page.evaluate("window.asked")
    assert f'File "notes.txt", lines 15-15:\n```\n{PARAGRAPHS[7]}\n```\n' in asked
    assert asked.endswith(f"\n\n{QUESTION}") and PARAGRAPHS[0] not in asked
    sources = page.get_by_test_id("source")
    shown = [source.inner_text() for source in sources.all()]
    assert len(shown) == asked.count("File ") and any("line 15" in one for one in shown)
    at = next(i for i, one in enumerate(shown) if "1.00" in one)
    sources.nth(at).locator("summary").press("Enter")
    assert PARAGRAPHS[7] in sources.nth(at).inner_text()
    assert page.evaluate(RUN_AXE, [])["found"] == []
    until_chips(chat, 0)

    # a search that is stopped leaves the question as it was
    choose(chat, long_txt=NOTES * 150)
    page.wait_for_selector("[data-testid=search-inside]")
    chat.hook("search-inside").click()
    chat.hook("prompt").fill("w1")
    chat.hook("prompt").press("Enter")
    chat.until(STOP_SEARCH)
    chat.wait_for("ready", timeout=5000)
    until_chips(chat, 1)
    assert chat.hook("prompt").input_value() == "w1"
    assert chat.hook("error").is_hidden(), chat.hook("error").inner_text()
    assert len(texts(chat, "question")) == 1

    # passages are kept with their question; the address names another encoder, which is not there
    page.goto(f"{chat.url}&encoder=models/none/manifest.json")
    chat.wait_for("ready")
    assert page.get_by_test_id("source").count() == len(shown)
    choose(chat, notes_txt=NOTES)
    page.wait_for_selector("[data-testid=search-inside]")
    chat.hook("search-inside").click()
    chat.hook("prompt").fill("w1")
    chat.hook("prompt").press("Enter")
    assert chat.error_code() == "shard.network"
    chat.wait_for("ready")
    until_chips(chat, 1)
