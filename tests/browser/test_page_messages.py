"""What can be done with messages: edit, answer again, switch branches, stop, copy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.acting import focused, texts
from tests.browser.chat import Chat
from tests.browser.pace import LONG, PACE

pytestmark = pytest.mark.browser

# Whether the browser has kept which branch of the only conversation is shown.
HEAD_IS_KEPT = """new Promise((resolve) => {
  const opening = indexedDB.open('octavo-conversations');
  opening.onsuccess = () => {
    const db = opening.result;
    const reading = db.transaction('conversations').objectStore('conversations').getAll();
    reading.onsuccess = () => {
      db.close();
      const shown = [...document.querySelectorAll('.reply')].at(-1).dataset.message;
      resolve(reading.result[0].head === shown);
    };
  };
})"""


@pytest.fixture
def chat(tiny_chat: Chat) -> Chat:
    tiny_chat.page.evaluate(PACE, {})
    return tiny_chat


def again(chat: Chat, name: str) -> None:
    """Press the first button with a name that lets the model answer, and wait for it."""
    chat.page.get_by_test_id(name).first.click()
    chat.wait_for("ready")


def test_an_edit_is_a_branch_beside_what_was_there(chat: Chat) -> None:
    first = [chat.ask("Where is the sea?"), chat.ask("And the rain?")]
    chat.page.get_by_test_id("edit").first.click()
    box = chat.hook("edit-text")
    assert box.input_value() == "Where is the sea?"
    box.press("Escape")
    assert focused(chat) == "edit"
    chat.page.keyboard.press("Enter")
    chat.hook("edit-text").fill("Where is the wind?")
    chat.hook("edit-text").press("Enter")
    chat.wait_for("ready")
    assert texts(chat, "question") == ["Where is the wind?"]
    assert texts(chat, "branch") == ["2/2"]
    other = chat.answer
    assert [m["content"] for m in chat.page.evaluate("sent.at(-1).messages")] == [
        "Where is the wind?"
    ]
    chat.hook("branch-previous").click()
    assert texts(chat, "question") == ["Where is the sea?", "And the rain?"]
    assert texts(chat, "answer") == first
    assert focused(chat) == "branch-next", "the other control is at its end"
    chat.page.keyboard.press("Enter")
    assert texts(chat, "answer") == [other]
    chat.until(HEAD_IS_KEPT)
    chat.page.reload()
    chat.wait_for("ready")
    assert texts(chat, "question") == ["Where is the wind?"]
    chat.hook("branch-previous").click()
    assert texts(chat, "answer") == first


def test_another_answer_is_a_branch_drawn_otherwise(chat: Chat) -> None:
    first = chat.ask("Where is the sea?")
    again(chat, "regenerate")
    second = chat.answer
    chat.hook("regenerate").evaluate("(button) => { button.click(); button.click(); }")  # once
    chat.wait_for("ready")
    third = chat.answer
    assert texts(chat, "branch") == ["3/3"]
    assert len({first, second, third}) == 3
    histories = chat.page.evaluate("sent.map(({messages}) => messages.map((m) => m.content))")
    assert histories == [["Where is the sea?"]] * 3
    chat.hook("branch-previous").click()
    assert (texts(chat, "branch"), chat.answer) == (["2/3"], second)
    chat.ask("And the rain?")
    history = [message["content"] for message in chat.page.evaluate("sent.at(-1).messages")]
    assert [text.strip() for text in history] == ["Where is the sea?", second, "And the rain?"]
    chat.hook("branch-previous").click()
    assert texts(chat, "question") == ["Where is the sea?"]
    assert chat.answer == first
    assert chat.page.get_by_test_id("branch-previous").is_disabled()


def test_escape_stops_unless_it_closes_something(chat: Chat) -> None:
    chat.page.evaluate(PACE, {"endless": True})
    chat.send(LONG)
    chat.until("document.querySelector('.answer')?.innerText.trim().length > 0")
    assert chat.page.get_by_test_id("edit").is_disabled()
    chat.hook("open-settings").click()
    chat.page.keyboard.press("Escape")
    chat.until("!document.querySelector('dialog[open]')")
    assert chat.state == "generating"
    chat.page.keyboard.press("Escape")
    chat.wait_for("stopped", "ready")
    assert chat.answer
    assert chat.hook("send").is_enabled()


def test_another_conversation_ends_the_answer_and_keeps_it(chat: Chat) -> None:
    chat.ask("And the rain?")
    chat.hook("reset").click()
    chat.page.evaluate(PACE, {"endless": True})
    chat.send(LONG)
    chat.until("document.querySelector('.answer')?.innerText.trim().length > 1")
    chat.page.get_by_test_id("conversation-open").filter(has_text="rain").click()
    chat.until("document.querySelector('[data-testid=question]').innerText.includes('rain')")
    chat.wait_for("ready")
    assert texts(chat, "question") == ["And the rain?"]
    chat.page.get_by_test_id("conversation-open").filter(has_not_text="rain").click()
    chat.until("!document.querySelector('[data-testid=question]').innerText.includes('rain')")
    assert chat.answer, "what there was of the answer"
    assert chat.page.locator(".finish").inner_text() == "Stopped."


def test_an_answer_survives_a_reload_as_far_as_it_got(chat: Chat) -> None:
    chat.page.evaluate(PACE, {"ms": 100})
    chat.send("Where is the sea?")
    chat.until("document.querySelector('.answer')?.innerText.trim().length > 0")
    chat.page.wait_for_timeout(2500)
    chat.page.reload()
    chat.wait_for("ready")
    assert texts(chat, "question") == ["Where is the sea?"]
    assert chat.answer
    assert chat.page.locator(".finish").inner_text() == "Stopped."


def test_copy_and_the_token_counter(chat: Chat) -> None:
    assert chat.hook("stats").get_attribute("data-tokens") is None
    chat.ask("Where is the sea?")
    usage = chat.complete([{"role": "user", "content": "Where is the sea?"}], max_tokens=24)[
        "usage"
    ]
    assert chat.hook("stats").get_attribute("data-tokens") == str(usage["total_tokens"])
    context = chat.status()["model"]["context"]
    assert f"{usage['total_tokens']} of {context:,} tokens" in chat.hook("stats").inner_text()
    chat.page.get_by_test_id("copy").first.click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "Where is the sea?"
    chat.hook("copy").click()
    chat.until("document.querySelector('.reply [data-testid=copy]').textContent === 'Copied'")
    assert len(chat.page.evaluate("navigator.clipboard.readText()").strip()) > 3
    chat.hook("reset").click()
    assert chat.hook("stats").get_attribute("data-tokens") is None


def nameless(page: Any) -> list[str]:
    """Controls without a name for a screen reader."""
    found: list[str] = page.evaluate(
        """[...document.querySelectorAll('button, input:not([hidden]), select, textarea')]
          .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length))
          .map((e) => e.outerHTML)"""
    )
    return found


def test_every_control_has_a_name(chat: Chat) -> None:
    chat.ask("Where is the sea?")
    again(chat, "regenerate")
    chat.hook("open-settings").click()
    assert nameless(chat.page) == []
    chat.hook("settings-close").click()
