"""Drives the page as a person does, by its stable hooks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.browser.hosted import Hosted
from tests.conftest import StaticServer

LOAD_MS = 240_000
ANSWER_MS = 240_000
# The query of a page with the tiny model, as every computer has it.
TINY_ON_CPU = "model=models/tiny/manifest.json&device=cpu&context=512"


class Chat:
    """One open page."""

    def __init__(self, page: Any, server: StaticServer | Hosted, url: str) -> None:
        self.page = page
        self.server = server
        self.url = url

    def open(self) -> Chat:
        self.page.goto(self.url)
        return self

    def hook(self, name: str) -> Any:
        """The element with a test id; of several, the last."""
        return self.page.get_by_test_id(name).last

    def wait_for(self, *states: str, timeout: float = LOAD_MS) -> Chat:
        """Until the status is one of ``states``; an error that was not asked for fails at once."""
        wanted = ",".join(f'[data-testid=status][data-state="{s}"]' for s in {*states, "error"})
        while True:
            self.page.wait_for_selector(wanted, state="attached", timeout=timeout)
            state = self.state
            if state in states:
                return self
            # else it has changed since: an answer has begun
            assert state != "error", f"{state}: {self.hook('error').inner_text()}"

    def until(self, expression: str, seconds: float = 120) -> Any:
        """Poll until a JavaScript expression is true (the page's CSP forbids waiting in it)."""
        deadline = time.monotonic() + seconds
        while not (value := self.page.evaluate(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.02)
        return value

    @property
    def state(self) -> str:
        return str(self.hook("status").get_attribute("data-state"))

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        return str(self.hook("answer").inner_text()).strip()

    def send(self, text: str) -> Chat:
        """Type and press Enter."""
        self.hook("prompt").fill(text)
        self.hook("prompt").press("Enter")
        return self.wait_for("generating", "ready")

    def ask(self, text: str) -> str:
        """Send and wait for the whole answer."""
        self.send(text)
        self.wait_for("ready", timeout=ANSWER_MS)
        return self.answer

    def until_listening(self) -> Chat:
        """Until the page that has just been opened hears keys and clicks."""
        self.until("document.querySelector('[data-testid=status]').textContent")
        return self

    def anew(self) -> Chat:
        """Begin a new conversation: a reload keeps the one that was open."""
        self.hook("reset").click()
        return self.wait_for("ready")

    def complete(self, messages: list[dict[str, str]], **options: Any) -> dict[str, Any]:
        """An answer by the page's API object."""
        result: dict[str, Any] = self.page.evaluate(
            "options => octavo.chat.completions.create(options)", {"messages": messages, **options}
        )
        return result

    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.page.evaluate("octavo.status()")
        return result

    def error_code(self) -> str:
        """The code in the error area, once it shows one."""
        self.page.wait_for_selector('[data-testid="error"][data-code]:not([hidden])')
        return str(self.hook("error").get_attribute("data-code"))


Open = Callable[..., Chat]  # of a page, by its query: the fixture open_chat
