"""One step looked into, on the page and by its API."""

from __future__ import annotations

from collections.abc import Callable

from tests.browser.chat import Chat
from tests.browser.test_access import OUTSIDE

TINY = "model=models/tiny/manifest.json&max_tokens=4"
HELLO = [{"role": "user", "content": "How do you find the ship on the shore?"}]


def test_the_page_looks_inside(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(f"{TINY}&device=gpu").wait_for("ready")
    chat.hook("performance").click()
    chat.hook("inspect").click()
    chat.hook("inspect-run").click()
    assert "conversation" in chat.hook("inspect-status").inner_text()  # there is none
    chat.hook("inspect-close").click()
    chat.hook("performance-close").click()
    chat.ask(HELLO[0]["content"])
    direct = chat.page.evaluate("messages => octavo.inspect({messages, top: 3})", HELLO)
    answer = chat.complete(HELLO, max_tokens=1, logprobs=True, top_logprobs=3)
    likely = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert [token["id"] for token in direct["top"]] == [token["id"] for token in likely]
    assert {call["layer"] for call in direct["calls"]} == {None, 0, 1, 2}
    assert all(call["rms"] > 0 and not call["not_finite"] for call in direct["calls"])
    stopped = """messages => {
      const abort = new AbortController();
      setTimeout(() => abort.abort(), 30);
      return octavo.inspect({messages, signal: abort.signal}).catch(({code}) => code);
    }"""
    long = [{"role": "user", "content": "word " * 100}]  # some seconds
    assert chat.page.evaluate(stopped, long) == "request.cancelled"

    chat.page.set_viewport_size({"width": 360, "height": 740})
    chat.hook("performance").click()
    chat.page.wait_for_selector("[data-testid=performance-panel][open]")
    chat.hook("inspect").focus()
    chat.page.keyboard.press("Enter")
    chat.page.wait_for_selector("[data-testid=inspect-dialog]")
    assert chat.page.evaluate("document.activeElement.closest('dialog') !== null")
    chat.hook("inspect-run").click()  # without a prompt: the open conversation
    chat.page.wait_for_selector("[data-testid=inspect-heat] tbody tr:nth-child(5)")
    top = chat.hook("inspect-top").locator("tbody tr")
    assert top.count() == 10
    assert top.first.locator("code").inner_text().strip('"') == direct["top"][0]["text"]
    heat = chat.hook("inspect-heat").locator("tbody tr")
    assert heat.count() == 5  # the embedding, three layers, the logits
    rms = heat.nth(1).locator("td").first.inner_text()
    chat.hook("inspect-value").select_option("high")
    assert heat.nth(1).locator("td").first.inner_text() != rms
    width = chat.page.evaluate("document.querySelector('[data-testid=inspect-dialog]').scrollWidth")
    assert width <= 360
    chat.page.evaluate("document.documentElement.style.fontSize = '200%'")
    chat.until(f"({OUTSIDE})().length === 0")  # a frame later
    chat.page.evaluate("document.documentElement.style.fontSize = ''")
    chat.hook("inspect-prompt").fill("word " * 3000)  # longer than the context
    chat.hook("inspect-run").click()
    chat.page.wait_for_selector("[data-testid=inspect-status][data-code='prompt.too_long']")
    chat.page.keyboard.press("Escape")
    chat.until("!document.querySelector('[data-testid=inspect-dialog]')")
