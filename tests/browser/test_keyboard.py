"""A conversation by keyboard alone, and what a screen reader says of one."""

from __future__ import annotations

import pytest

from tests.browser.acting import focused, press, tab_to, texts
from tests.browser.chat import Chat
from tests.browser.pace import LONG, PACE

pytestmark = pytest.mark.browser
# Notes what screen readers say by themselves from now on, in all places that speak.
LISTEN = """() => {
  window.said = [];
  const speaks = '[role=status], [role=alert], [aria-live]:not([aria-live=off]), output';
  window.speaking = [...document.querySelectorAll(speaks)].map((e) => e.dataset.testid);
  for (const area of document.querySelectorAll(speaks)) {
    new MutationObserver((changes) => {
      for (const {addedNodes} of changes) {
        window.said.push(...[...addedNodes].map((e) => e.textContent));
      }
    }).observe(area, {childList: true, subtree: true, characterData: true});
  }
}"""


@pytest.fixture
def chat(tiny_chat: Chat) -> Chat:
    tiny_chat.page.evaluate(PACE, {})
    tiny_chat.page.evaluate("document.querySelector('#announcer').replaceChildren()")
    return tiny_chat


def until_focus(chat: Chat, name: str) -> None:
    chat.until(f"document.activeElement.dataset.testid === '{name}'")


def test_a_whole_conversation_by_keyboard_alone(chat: Chat) -> None:
    page, keyboard = chat.page, chat.page.keyboard
    page.reload()  # a question that waits for the model
    chat.until_listening()
    until_focus(chat, "prompt")
    keyboard.type("Where is the sea?")
    press(chat, "Enter")
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 1")
    chat.wait_for("ready")
    assert focused(chat) == "prompt"

    page.evaluate(PACE, {"endless": True})
    keyboard.type(LONG)
    press(chat, "Enter")
    chat.until("[...document.querySelectorAll('.answer')].at(-1).innerText.trim().length > 3")
    assert chat.state == "generating"
    press(chat, "Escape")
    chat.wait_for("stopped", "ready")
    assert focused(chat) == "prompt"
    stopped = chat.answer
    page.evaluate(PACE, {"ms": 1})  # goes on to its end
    tab_to(chat, "continue", backwards=True)
    press(chat, "Enter")
    assert focused(chat) == "prompt", "the button has gone"
    chat.until(
        f"document.querySelector('.reply:last-child .answer').innerText.length > {len(stopped)}"
    )
    chat.wait_for("ready", "stopped")
    page.evaluate(PACE, {})

    tab_to(chat, "regenerate", backwards=True)
    press(chat, "Enter")
    chat.wait_for("ready")
    assert texts(chat, "branch") == ["2/2"]
    assert focused(chat) == "prompt"
    tab_to(chat, "edit", backwards=True)
    press(chat, "Enter")
    assert focused(chat) == "edit-text"
    press(chat, "Escape")
    assert focused(chat) == "edit"
    press(chat, "Enter", "Control+a")
    keyboard.type("And the rain?")
    press(chat, "Enter")
    chat.wait_for("ready")
    assert texts(chat, "question")[-1] == "And the rain?"
    tab_to(chat, "branch-previous", backwards=True)
    press(chat, "Enter")
    assert texts(chat, "question")[-1] == LONG
    until_focus(chat, "branch-next")
    tab_to(chat, "copy")
    press(chat, "Enter")
    chat.until("document.activeElement.textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == LONG

    press(chat, "Escape")  # nothing to close or to stop
    tab_to(chat, "conversation-more", backwards=True)
    press(chat, "Enter")
    assert focused(chat) == "rename"
    press(chat, "ArrowUp")
    assert focused(chat) == "conversation-delete"
    press(chat, "ArrowDown", "ArrowDown")
    assert focused(chat) == "export-json"
    press(chat, "Escape")
    assert focused(chat) == "conversation-more"
    press(chat, "Enter", "Tab")
    chat.until("!document.querySelector('#conversation-menu:popover-open')")
    assert focused(chat) == "import", "the one behind it"
    press(chat, "Shift+Tab", "Enter", "Home", "Enter")
    until_focus(chat, "conversation-title")
    keyboard.type("Sea")
    press(chat, "Enter")
    until_focus(chat, "conversation-more")
    assert texts(chat, "conversation-open") == ["Sea"]

    tab_to(chat, "conversation-search", backwards=True)
    keyboard.type("nothing has this")
    chat.until("document.querySelectorAll('[data-testid=conversation]').length === 0")
    press(chat, "Control+a", "Delete")
    chat.until("document.querySelectorAll('[data-testid=conversation]').length === 1")
    press(chat, "Shift+Tab")
    assert focused(chat) == "skip"
    press(chat, "Enter")
    assert focused(chat) == "prompt"
    assert "#" not in page.url

    tab_to(chat, "reset", backwards=True)
    press(chat, "Enter")
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 0")
    assert focused(chat) == "prompt"
    tab_to(chat, "conversation-open", backwards=True)
    press(chat, "Enter")
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 2")

    tab_to(chat, "open-settings", backwards=True)
    press(chat, "Enter")
    tab_to(chat, "setting-temperature")
    keyboard.type("0.5")
    tab_to(chat, "settings-save")
    press(chat, "Enter")
    chat.until("!document.querySelector('dialog[open]')")
    assert focused(chat) == "open-settings"
    assert page.evaluate("JSON.parse(localStorage['octavo-settings']).temperature") == 0.5
    for opener in ("open-settings", "model"):
        tab_to(chat, opener, backwards=True)
        press(chat, "Enter")
        chat.until("document.querySelector('dialog[open]')")
        press(chat, "Escape")
        chat.until("!document.querySelector('dialog[open]')")
        assert focused(chat) == opener
    page.evaluate("localStorage.removeItem('octavo-settings')")

    # all around, without a trap, in the order in which it is to be seen
    tab_to(chat, "send")
    press(chat, "Tab")  # out of the page, or to its beginning again
    way = tab_to(chat, "send")
    wanted = [
        "skip",
        "conversation-search",
        "conversation-open",
        "import",
        "model",
        "reset",
        "open-settings",
        "scroll",
        "edit",
        "regenerate",
        "prompt",
    ]
    assert [name for name in dict.fromkeys(way) if name in wanted] == wanted


def test_what_is_said_of_a_long_answer(chat: Chat) -> None:
    """Its beginning: whole sentences, or whole words."""
    begin = """(text) => import('./announcer.mjs').then(({beginning}) => beginning(text))"""
    for text, expected in {
        "  Short,\n\nand in  lines. ": "Short, and in lines.",
        "One sentence. " * 99: ("One sentence. " * 42).strip(),
        "word " * 300: ("word " * 120).strip() + "…",
        "长" * 900: "长" * 600 + "…",
        "一句话。" * 300: "一句话。" * 150,
        "1.5 " * 300: ("1.5 " * 150).strip() + "…",
    }.items():
        assert chat.page.evaluate(begin, text) == expected


def test_a_screen_reader_says_an_answer_once(chat: Chat) -> None:
    page = chat.page
    page.wait_for_timeout(700)  # until a search of the test before has been told
    page.evaluate(LISTEN)
    assert page.evaluate("speaking") == ["announcer", "error"], "nothing else speaks by itself"
    first = chat.ask("Where is the sea?")
    said = page.evaluate("said")
    assert said[0] == "Octavo is answering."
    shown = " ".join(first.replace("Copy", " ").split())[:20]  # but for the button of code
    assert said[1].startswith(shown)
    assert len(said) == 2, said
    page.get_by_test_id("continue").click()
    chat.until("said.length > 3")
    chat.wait_for("ready")
    rest = page.evaluate("said.slice(2)")
    assert rest[0] == "Octavo is answering."
    assert shown not in rest[1], "only what is new"
    page.evaluate(
        """() => {
          said.length = 0;
          octavo.chat.completions.create = () => { throw new Error('no answer'); };
        }"""
    )
    chat.hook("prompt").fill("And the rain?")
    chat.hook("prompt").press("Enter")
    chat.wait_for("error")
    assert "Error: no answer" in chat.hook("error").inner_text()
    assert page.evaluate("said")[0] == "Octavo is answering."
    assert "Error: no answer" in page.evaluate("said")
