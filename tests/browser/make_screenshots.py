"""Takes the pictures of web/screenshots/ anew: ``python -m tests.browser.make_screenshots``.

Of dist/ with the default model, on the CPU device. app.webmanifest shows them to those who are
about to install the app, and README.md to its readers.
"""

from __future__ import annotations

from typing import Any

from tests.browser.chat import Chat
from tests.conftest import ROOT, StaticServer

PICTURES = ROOT / "web" / "screenshots"
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 412, "height": 892}
EARLIER = ("How long is a year?", "Name three kinds of tea.")
QUESTIONS = (
    "Write a Python function that says whether a number is even, and show how it is used.",
    "What is the capital of France?",
)


def take(context: Any, server: StaticServer) -> None:
    """All pictures, of one visit."""
    chat = Chat(context.new_page(), server, f"{server.url}/?device=cpu").open()
    chat.wait_for("ready")
    for question in EARLIER:
        chat.ask(question)
        chat.anew()
    for question in QUESTIONS:
        chat.ask(question)
    shoot(chat.page, "conversation", WIDE)
    shoot(chat.page, "phone", NARROW)
    chat.page.set_viewport_size(WIDE)
    chat.hook("performance").click()
    chat.page.wait_for_timeout(1000)  # its figures come by and by
    shoot(chat.page, "performance", WIDE)


def shoot(page: Any, name: str, size: dict[str, int]) -> None:
    """One picture of a window of this size."""
    page.set_viewport_size(size)
    page.wait_for_timeout(500)  # what moves comes to rest
    page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")


def main() -> None:
    """Writes web/screenshots/."""
    from playwright.sync_api import sync_playwright

    from engine.host import chromium

    PICTURES.mkdir(exist_ok=True)
    server = StaticServer(ROOT / "dist")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.ensure())
        take(browser.new_context(viewport=WIDE, reduced_motion="reduce"), server)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
