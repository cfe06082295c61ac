"""What a person does in the page, and what the page shows then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browser.chat import Chat
from tests.tiny import SHIP


def texts(chat: Chat, name: str) -> list[str]:
    """What all elements with a test id say."""
    return [text.strip() for text in chat.page.get_by_test_id(name).all_inner_texts()]


def focused(chat: Chat) -> str:
    """The test id of what has the focus."""
    return str(chat.page.evaluate("document.activeElement.dataset.testid ?? ''"))


# Of the element that has the focus: its test id, where it is, and whether that can be seen.
FOCUS = """() => {
  const e = document.activeElement;
  if (e === document.body) return ['body', true];
  const {outlineStyle, outlineWidth, boxShadow} = getComputedStyle(e);
  const ring = outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2;
  const box = e.closest('#composer');
  const shadow = e.id === 'prompt' && getComputedStyle(box).boxShadow.includes('3px');
  const {top, bottom, left, right} = e.getBoundingClientRect();
  const isInside = bottom > 0 && top < innerHeight && right > 0 && left < innerWidth;
  return [e.dataset.testid || e.id || e.tagName, (ring || shadow) && isInside];
}"""


def press(chat: Chat, *keys: str) -> None:
    for key in keys:
        chat.page.keyboard.press(key)


def tab_to(chat: Chat, name: str, *, backwards: bool = False) -> list[str]:
    """Press Tab until an element has the focus; all on the way can be seen to have it."""
    way = []
    for _ in range(60):
        at, is_seen = chat.page.evaluate(FOCUS)
        assert is_seen, f"it cannot be seen that {at} has the focus"
        if at == name:
            return way
        way.append(at)
        press(chat, "Shift+Tab" if backwards else "Tab")
    raise AssertionError(f"{name} cannot be reached by the Tab key: {way}")


def settings(chat: Chat, **values: Any) -> None:
    """Fill in the dialog and save it."""
    chat.hook("open-settings").click()
    for name, value in values.items():
        field = chat.hook(f"setting-{name.replace('_', '-')}")
        if field.evaluate("(e) => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(str(value))
    chat.hook("settings-save").click()


def menu(chat: Chat, title: str, entry: str) -> None:
    """Choose an entry of a conversation's menu."""
    item = chat.page.get_by_test_id("conversation").filter(has_text=title)
    item.get_by_test_id("conversation-more").click()
    chat.page.get_by_test_id("conversation-menu").get_by_test_id(entry).click()


def saved(chat: Chat, action: Callable[[], None]) -> str:
    """The text of the file that an action saves."""
    with chat.page.expect_download() as download:
        action()
    return Path(download.value.path()).read_text(encoding="utf-8")


def put(chat: Chat, data: object) -> str:
    """Import a file; what the page says then."""
    text = data if isinstance(data, str) else json.dumps(data)
    file = {"name": "some.json", "mimeType": "application/json", "buffer": text.encode()}
    chat.page.evaluate("document.querySelector('#side-note').hidden = true")
    chat.page.set_input_files("[data-testid=import-file]", file)
    chat.page.wait_for_selector("#side-note:not([hidden])")
    return str(chat.hook("side-note").inner_text())


def choose(chat: Chat, **files: bytes | str) -> None:
    """Attach files by the button; the ``_`` of a name is its dot."""
    chosen = [
        {
            "name": name.replace("_", "."),
            "mimeType": "",
            "buffer": data if isinstance(data, bytes) else data.encode(),
        }
        for name, data in files.items()
    ]
    chat.page.set_input_files("[data-testid=attach-files]", chosen)


def until_chips(chat: Chat, count: int) -> None:
    chat.until(f"document.querySelectorAll('#attached [data-testid=chip]').length === {count}")


def answers(chat: Chat) -> None:
    """The engine is free and right."""
    answer = chat.complete(SHIP["messages"], max_tokens=9)
    assert answer["octavo"]["ids"] == SHIP["ids"][:9]
