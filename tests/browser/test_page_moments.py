"""Unhappy moments: between two clicks, a change in another tab, a browser without room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.acting import menu, texts
from tests.browser.chat import Chat
from tests.browser.scripted_engine import open_scripted, scripted, tokens_of
from tests.conftest import StaticServer

pytestmark = pytest.mark.browser
STORY = "Once upon a time there was a sea. " * 100  # takes some seconds
LINES = "\n\n".join(f"{i}" for i in range(40))
# Where a reader is that scrolls up: before the event of the last scrolling to the end has come, and
# before that of its own has, while the text goes on.
SCROLL_UP = """async (frames) => {
  const {stickToBottom} = await import('./dom.mjs');
  const area = document.createElement('div');
  area.style.cssText = 'height: 100px; overflow: auto';
  document.body.append(area);
  const grow = () => area.append(Object.assign(document.createElement('p'), {textContent: 'text'}));
  const follow = stickToBottom(area);
  for (let i = 0; i < 40; i++) grow();
  follow();
  const end = area.scrollTop;
  area.scrollTop = 50;
  const pass = async (count) => {
    for (let i = 0; i < count; i++) await new Promise(requestAnimationFrame);
  };
  await pass(frames);
  grow();
  follow();
  const at = area.scrollTop;
  area.scrollTop = area.scrollHeight; // back to the end: the text is followed again
  await pass(2);
  grow();
  follow();
  const again = area.scrollHeight - area.clientHeight - area.scrollTop;
  area.remove();
  return [end > 1000, at, again];
}"""
# From now on, stops and answers wait for `go(reason)`; with a reason, the answers fail for it.
GATE = """async () => {
  const {OctavoError} = await import('./client.mjs');
  const {promise, resolve} = Promise.withResolvers();
  const {stop, chat: {completions}} = octavo;
  const {create} = completions;
  window.go = (code) => {
    Object.assign(octavo, {stop});
    Object.assign(completions, {create});
    resolve(code);
  };
  octavo.stop = async () => {
    await promise;
    return octavo.stop();
  };
  completions.create = async function* () {
    throw new OctavoError(await promise, 'It failed.');
  };
}"""
# An engine that took the place of another cannot load the model: answers fail, too.
FAIL = """(code) => {
  go(code);
  const error = {code, message: 'It failed.', hint: ''};
  octavo.dispatchEvent(new CustomEvent('recovery', {detail: {state: 'failed', losses: 1, error}}));
}"""

# From now on, a button that says how it went says so until a test does what is due (copy.mjs).
LATER = """() => {
  const [soon, never] = [setTimeout, clearTimeout];
  window.due = [];
  window.setTimeout = (work, ms) => (ms === 1500 ? -due.push(work) : soon(work, ms));
  window.clearTimeout = (id) => (id < 0 ? delete due[-id - 1] : never(id));
}"""


@pytest.fixture(scope="module")
def page(plain_chromium: Any, site: Path) -> Iterator[Chat]:
    scripts = {"story": {"answer": tokens_of(STORY)}, "saga": {"answer": tokens_of(STORY * 20)}}
    with scripted(plain_chromium, site, scripts, tokens_per_s=300) as chat:
        yield chat


@pytest.fixture
def chat(page: Chat) -> Chat:
    return page.anew()


@pytest.fixture
def other(page: Chat) -> Iterator[Chat]:
    """Another tab, with the newest conversation."""
    other = Chat(page.page.context.new_page(), page.server, page.url).open().wait_for("ready")
    yield other
    other.page.close()


def begun(chat: Chat, title: str = "saga") -> Chat:
    """A long answer is under way."""
    chat.send(title)
    chat.until("[...document.querySelectorAll('.answer')].at(-1)?.innerText.length > 20")
    return chat


def opened(chat: Chat, title: str, question: str = "") -> None:
    chat.page.get_by_test_id("conversation-open").filter(has_text=title).first.click()
    asked = question or title
    chat.until(f"document.querySelector('[data-testid=question]')?.innerText === '{asked}'")


def test_an_answer_that_went_on_to_its_end_does_not_go_on(chat: Chat) -> None:
    begun(chat, "story").hook("stop").click()
    chat.hook("continue").click()
    chat.wait_for("generating").wait_for("ready")
    assert chat.answer.split() == STORY.split()
    assert chat.page.get_by_test_id("continue").count() == 0


def test_a_conversation_is_left_and_opened_again_at_once(chat: Chat) -> None:
    chat.ask("sea")
    begun(chat.anew())
    chat.page.evaluate(GATE)
    opened(chat, "sea")
    opened(chat, "saga")
    chat.page.evaluate("go()")
    chat.wait_for("ready")
    chat.until("document.querySelector('.finish')?.innerText === 'Stopped.'")
    assert chat.answer.startswith(STORY[:20])


def test_a_new_chat_is_begun_while_another_conversation_is_read(chat: Chat) -> None:
    chat.ask("sea")
    chat.anew()
    chat.page.evaluate(
        """() => ['conversation-open', 'reset'].forEach(
          (name) => document.querySelector(`[data-testid=${name}]`).click())"""
    )
    chat.page.wait_for_timeout(200)
    assert texts(chat, "question") == []


def test_the_list_stays_as_it_is_while_nothing_in_it_changes(chat: Chat) -> None:
    chat.ask("gulf")
    item = chat.page.get_by_test_id("conversation").first.element_handle()
    chat.ask("rain")
    chat.page.wait_for_timeout(100)
    assert item.evaluate("(item) => item.isConnected")
    menu(chat, "gulf", "rename")
    chat.hook("conversation-title").press("Escape")
    chat.until("!document.querySelector('[data-testid=conversation-title]')")


def test_a_text_is_copied_twice_and_then_refused(chat: Chat) -> None:
    chat.ask("```js\n1;\n```")
    copy = chat.hook("copy-code")
    label = copy.get_attribute("aria-label")
    chat.page.evaluate(LATER)
    for count in (1, 2):
        copy.click()
        chat.until(f"due.length === {count}")
        assert copy.inner_text() == "Copied"
    assert chat.page.evaluate("Object.keys(due).length") == 1, "the first one is called off"
    chat.page.evaluate("due.forEach((work) => work())")
    assert copy.inner_text() == "Copy"
    assert copy.get_attribute("aria-label") == label
    chat.page.evaluate(
        "void (navigator.clipboard.writeText = () => Promise.reject(new DOMException('No')))"
    )
    copy.click()
    chat.until("document.querySelector('[data-testid=copy-code]').innerText.includes('allow')")
    assert chat.hook("error").is_hidden()
    chat.page.reload()
    chat.wait_for("ready")


def test_a_dialog_is_opened_once(chat: Chat) -> None:
    chat.hook("performance").click()
    inspect = chat.hook("inspect")
    inspect.evaluate("(button) => { button.click(); button.click(); }")
    chat.hook("inspect-dialog").wait_for()
    chat.page.wait_for_timeout(100)
    assert chat.page.get_by_test_id("inspect-dialog").count() == 1
    chat.page.keyboard.press("Escape")
    chat.hook("performance-close").click()


def test_escape_ends_the_editing_or_clears_the_search_alone(chat: Chat) -> None:
    chat.ask("sea")
    chat.hook("edit").click()
    begun(chat)
    chat.hook("edit-text").press("Escape")
    assert chat.page.get_by_test_id("edit-text").count() == 0
    chat.page.wait_for_timeout(100)  # a stop takes a moment
    assert chat.state == "generating"
    search = chat.hook("conversation-search")
    search.fill("sea")
    search.press("Escape")  # clears it
    chat.page.wait_for_timeout(100)
    assert (search.input_value(), chat.state) == ("", "generating")
    search.press("Escape")
    chat.wait_for("stopped")


@pytest.mark.parametrize("frames", [0, 2])
def test_a_reader_who_scrolls_up_is_let_be(chat: Chat, frames: int) -> None:
    assert chat.page.evaluate(SCROLL_UP, frames) == [True, 50, 0]


def test_another_tab_disturbs_neither_editing_nor_reading(chat: Chat, other: Chat) -> None:
    chat.page.set_viewport_size({"width": 1000, "height": 400})
    chat.ask(LINES)
    other.page.get_by_test_id("conversation-open").first.click()
    other.until("document.querySelectorAll('[data-testid=answer]').length === 1")
    chat.page.evaluate("document.querySelector('#scroll').scrollTop = 0")
    chat.hook("edit").click()
    chat.hook("edit-text").fill("another story")
    other.ask("sea")
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 2")
    chat.until("!document.querySelector('.answer[aria-busy=true]')")
    assert chat.hook("edit-text").input_value() == "another story"
    assert chat.page.evaluate("document.activeElement.dataset.testid") == "edit-text"
    assert chat.page.evaluate("document.querySelector('#scroll').scrollTop") < 100


def test_an_answer_goes_on_that_another_tab_has_led_on(chat: Chat, other: Chat) -> None:
    begun(chat).hook("stop").click()
    short = chat.wait_for("stopped").answer
    other.page.get_by_test_id("conversation-open").first.click()
    other.hook("continue").click()
    other.until(f"document.querySelector('.answer').innerText.length > {len(short) + 20}")
    other.hook("stop").click()
    longer = other.wait_for("stopped").answer
    chat.until(f"document.querySelector('.answer').innerText.length >= {len(longer)}")
    chat.hook("continue").click()
    chat.until(f"document.querySelector('.answer').innerText.length > {len(longer) + 20}")
    chat.hook("stop").click()
    assert (STORY * 20).startswith(chat.wait_for("stopped").answer)


def test_an_answer_that_another_tab_is_at_is_let_be(chat: Chat, other: Chat) -> None:
    begun(chat)
    opened(other, "saga")
    other.hook("continue").click()  # what is kept meanwhile looks like an answer that was stopped
    other.until("!document.querySelector('[data-testid=continue]')")
    assert (other.state, chat.state) == ("ready", "generating")
    chat.hook("stop").click()
    chat.wait_for("stopped")
    other.hook("continue").click()
    other.wait_for("generating")
    other.hook("stop").click()
    assert (STORY * 20).startswith(other.wait_for("stopped").answer)


def test_a_question_that_another_tab_takes_back_leaves_the_answer_before_it(
    chat: Chat, other: Chat
) -> None:
    begun(chat).hook("stop").click()
    chat.wait_for("stopped")
    opened(other, "saga")
    other.page.evaluate(GATE)
    other.send("rain")
    chat.until("!document.querySelector('[data-testid=continue]')")
    other.page.evaluate("go('engine.busy')")
    chat.until("document.querySelector('[data-testid=continue]')")
    assert (texts(chat, "question"), texts(other, "question")) == (["saga"], ["saga"])


def test_an_answer_that_could_not_go_on_ended_as_before(chat: Chat) -> None:
    question = {"id": "a", "parent": None, "role": "user", "content": "Go", "created": 1}
    answer = {"id": "b", "parent": "a", "role": "assistant", "content": "Well", "created": 2}
    whole = {"id": "c", "title": "full", "created": 1, "updated": 2, "head": "b"}
    whole["messages"] = [question, answer | {"finish": "context.full"}]
    text = json.dumps({"format": "octavo.conversations", "version": 1, "conversations": [whole]})
    file = {"name": "some.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.page.set_input_files("[data-testid=import-file]", file)
    opened(chat, "full", "Go")
    chat.page.evaluate(GATE)
    chat.hook("continue").click()
    chat.wait_for("generating")
    chat.page.evaluate("go('prompt.too_long')")
    assert chat.error_code() == "prompt.too_long"
    assert "context is full" in chat.page.locator(".finish").inner_text()
    chat.page.reload()
    assert "context is full" in chat.wait_for("ready").page.locator(".finish").inner_text()


def test_what_another_tab_has_asked_ends_the_answer_before_it(chat: Chat, other: Chat) -> None:
    begun(chat).hook("stop").click()
    chat.wait_for("stopped")
    other.page.get_by_test_id("conversation-open").first.click()
    other.until("document.querySelector('[data-testid=continue]')")
    other.ask("sea")
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 2")
    assert chat.page.get_by_test_id("continue").count() == 0


def test_a_conversation_that_is_gone_is_not_renamed(chat: Chat, other: Chat) -> None:
    chat.ask("mine")
    chat.page.get_by_test_id("conversation-more").first.click()
    menu(other, "mine", "conversation-delete")
    shown = "[...document.querySelectorAll('[data-testid=conversation-open]')]"
    chat.until(f"!{shown}.some((each) => each.textContent === 'mine')")
    chat.page.get_by_test_id("rename").click()
    chat.ask("yours")
    chat.until(f"{shown}.some((each) => each.textContent === 'yours')")
    assert chat.hook("error").is_hidden()


def test_the_browser_has_no_room(plain_chromium: Any, server: StaticServer) -> None:
    chat = open_scripted(plain_chromium, server, {})
    session = chat.page.context.new_cdp_session(chat.page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": server.url, "quotaSize": 1000})
    chat.ask("a lot " * 1500)
    assert chat.error_code() == "conversation.not_kept"
    chat.page.wait_for_timeout(100)
    assert chat.error_code() == "conversation.not_kept", "no other error takes its place"
    assert "no room" in chat.hook("error").inner_text()
    chat.page.context.close()


def test_an_answer_fails_with_the_engine(chat: Chat) -> None:
    """The page knows that no model is there, and no text is lost."""
    chat.page.evaluate(GATE)
    chat.send("sea")
    chat.hook("prompt").fill("rain")
    chat.page.evaluate(FAIL, "shard.network")
    chat.until("document.querySelector('[data-testid=error]').checkVisibility()")
    chat.page.wait_for_timeout(100)
    assert chat.state == "error"
    assert chat.error_code() == "shard.network"
    assert chat.hook("prompt").input_value() == "sea\n\nrain"
    chat.hook("prompt").fill("")
    chat.page.locator("#retry").click()
    chat.wait_for("ready")
    assert texts(chat, "question") == []
