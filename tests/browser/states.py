"""The page in its main states, one after the other in one tab, to be looked at in each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.browser.chat import Chat
from tests.browser.origin import Origin

STATES = ("loading", "welcome", "chat", "conversations", "settings", "models", "error")
HEIGHT = 740
DRAWER = 960  # narrower windows have the conversations in a drawer
LONG_WORD = "Averylongwordthathasnoplacewhereitcouldbebroken" * 2
ANSWER = f"""A haiku has **three lines** of 5, 7 and 5 syllables; see [a poem](https://example.org/).

1. Gray waves come ashore
2. {LONG_WORD}

```python
def reverse(text: str) -> str:
    return "".join(character for character in reversed(text) if character is not None)  # {"x" * 40}
```

| Line | Syllables | What it says |
| --- | ---: | --- |
| first | 5 | where we are |
| second | 7 | what happens there, in so many words that a phone has no room for it |

> Old pond, a frog jumps in.

تتكون القصيدة من `ثلاثة أسطر` فقط، و Octavo يعرف ذلك."""
ARABIC = "ما هي قصيدة الهايكو؟"


def _message(name: str, parent: str | None, role: str, content: str, **more: Any) -> dict[str, Any]:
    created = ord(name)
    return {
        "id": name, "parent": parent, "role": role, "content": content, "created": created, **more
    }  # fmt: skip


# As the page saves conversations: one with branches and all kinds of text, and others beside it.
FILE = {
    "format": "octavo.conversations",
    "version": 1,
    "conversations": [
        {
            "id": f"c{i}", "title": title, "created": i, "updated": i, "head": "c",
            "messages": [
                _message("a", None, "user", f"{ARABIC} {LONG_WORD}"),
                _message("b", "a", "assistant", "Ein Gedicht."),
                _message("c", "a", "assistant", ANSWER, reasoning="They ask for a poem.\n" * 3,
                         thought_ms=4200, tokens=321),
            ],
        }
        for i, title in enumerate(
            ["Plans for a garden", f"{LONG_WORD} and more", ARABIC, "What is a haiku?"]
        )
    ],
}  # fmt: skip


def walk(chat: Chat, origin: Origin, widths: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Leads a page through its main states, in windows of each width; yields (state, width).

    The page was opened with a model of ``origin``, which is slow until its loading has been seen.
    """
    page = chat.page

    def each(state: str) -> Iterator[tuple[str, int]]:
        for width in widths:
            page.set_viewport_size({"width": width, "height": HEIGHT})
            chat.until(
                f"document.querySelector('#open-side').hidden === {str(width >= DRAWER).lower()}"
            )
            has_drawer = state == "conversations" and width < DRAWER
            if has_drawer:
                chat.hook("open-conversations").click()
            yield state, width
            if has_drawer:
                page.keyboard.press("Escape")

    chat.until("document.querySelector('[data-testid=progress-speed]').textContent !== ''")
    yield from each("loading")
    origin.manners.bytes_per_s = 0
    chat.wait_for("ready")
    yield from each("welcome")
    text = json.dumps(FILE)
    file = {"name": "some.json", "mimeType": "application/json", "buffer": text.encode()}
    page.set_input_files("[data-testid=import-file]", file)
    chat.until("document.querySelectorAll('[data-testid=conversation]').length === 4")
    open_last = "document.querySelector('[data-testid=conversation-open]').click()"
    page.evaluate(open_last)
    chat.until("document.querySelectorAll('[data-testid=answer]').length === 1")
    yield from each("chat")
    yield from each("conversations")
    for state, opener in (("settings", "open-settings"), ("models", "model")):
        chat.hook(opener).click()
        chat.until("document.querySelector('dialog[open] .hint')?.textContent !== ''")
        chat.until("!document.querySelector('#model-list > .hint')")
        yield from each(state)
        page.keyboard.press("Escape")
        chat.until("!document.querySelector('dialog[open]')")
    chat.hook("model").click()
    chat.hook("address").fill(f"{origin.url}/none.gguf")
    chat.hook("open-address").click()
    chat.error_code()
    chat.wait_for("ready")  # with the model that was there
    yield from each("error")
