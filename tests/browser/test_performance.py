"""The performance panel: what it shows is what is, it is quiet when closed, and its report says
nothing of conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.acting import settings
from tests.browser.chat import Chat
from tests.browser.pace import LONG, PACE
from tests.conftest import StaticServer

pytestmark = pytest.mark.browser
SYSTEM = "Quillfeather zanzibar"
QUESTION = "Wombat marmalade lighthouse?"
# Whether a colour is on the canvas of the chart, and how many squares of each colour the map has.
PAINTED = """(colour) => {
  const canvas = document.querySelector('[data-testid=figure-speed] canvas');
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) {
    const isLike = colour.every((value, j) => Math.abs(value - data[i + j]) < 8);
    if (isLike && data[i + 3] > 200) return true;
  }
  return false;
}"""
SQUARES = """() => Object.fromEntries([...document.querySelectorAll('.map-picture path')].map(
  (path) => [path.classList[0], path.getAttribute('d').split('M').length - 1]))"""
COUNT = """() => {
  const status = octavo.status.bind(octavo);
  window.asked = 0;
  octavo.status = () => (window.asked++, status());
}"""
ACCENT, ACCENT_DARK = [156, 61, 42], [226, 147, 124]


@pytest.fixture
def chat(site: Any, plain_chromium: Any) -> Iterator[Chat]:
    server = StaticServer(site)
    view = {"width": 1440, "height": 900}
    permissions = ["clipboard-read", "clipboard-write"]
    context = plain_chromium.new_context(viewport=view, permissions=permissions)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: m.type == "error" and problems.append(m.text))
    query = "model=models/tiny/manifest.json&device=cpu&activations=f32&max_tokens=24"
    yield Chat(page, server, f"{server.url}/?{query}").open().wait_for("ready")
    context.close()
    server.close()
    assert problems == []


def shown(chat: Chat, figure: str) -> str:
    return str(chat.hook(f"figure-{figure}").inner_text())


def figures_follow_an_answer(chat: Chat) -> None:
    """Beside the conversation, while it goes on."""
    page = chat.page
    page.evaluate(PACE, {"endless": True})
    chat.send(LONG).wait_for("generating")
    chat.until(f"({SQUARES})()['tone-a'] > 0")
    page.evaluate(COUNT)
    page.wait_for_timeout(1000)
    assert 2 <= page.evaluate("asked") <= 5, "a look in a quarter of a second"
    chat.hook("performance-close").focus()
    page.keyboard.press("Escape")
    assert not chat.hook("performance-panel").is_visible()
    assert chat.state == "generating", "Escape in the panel ends no answer"
    page.wait_for_timeout(300)
    asked = page.evaluate("asked")
    page.wait_for_timeout(700)
    assert page.evaluate("asked") == asked, "closed, it asks for nothing"
    chat.hook("stop").click()
    chat.wait_for("stopped")
    page.evaluate(PACE, {})


def test_the_panel(chat: Chat) -> None:
    page = chat.page
    loaded = "performance.getEntriesByType('resource').map((entry) => entry.name).join()"
    assert "uPlot" not in page.evaluate(loaded), "only who opens the panel fetches it"
    chat.hook("performance").press("Enter")
    chat.hook("performance-panel").wait_for()
    assert "uPlot" in page.evaluate(loaded)
    assert "No answer" in shown(chat, "speed")
    figures_follow_an_answer(chat)
    answers = [chat.answer]
    chat.anew()
    settings(chat, system=SYSTEM)
    chat.ask(QUESTION)
    chat.hook("performance").click()

    # the chart, and the colours of the page in it
    chat.until(f"({PAINTED})({ACCENT})")
    settings(chat, theme="dark")
    chat.until(f"({PAINTED})({ACCENT_DARK}) && !({PAINTED})({ACCENT})")
    assert re.search(r"Last answer: [\d,.]+ tokens/s", shown(chat, "speed"))
    for part in ("Queue", "Prefill", "First step"):
        assert re.search(rf"{part}\s+[\d.]+ ms", shown(chat, "first-token"))

    # blocks and bytes are those of the status
    status = chat.status()
    kv, memory = status["kv"], status["memory"]
    names = {"tone-a": "used", "tone-b": "shared", "tone-c": "cached", "tone-e": "free"}
    counts = {tone: kv[f"{name}_blocks"] for tone, name in names.items()}
    assert counts["tone-c"] > 1
    assert sum(counts.values()) == kv["num_blocks"]
    chat.until(f"JSON.stringify(({SQUARES})()['tone-c']) === '{counts['tone-c']}'")
    assert page.evaluate(SQUARES) == counts
    assert f"Cached\n{counts['tone-c']}" in shown(chat, "kv-map")
    assert "blocks of 16 tokens in 32 bits, at most" in shown(chat, "kv-map")
    assert sum(memory.values()) == status["memory_bytes"]
    bars = page.eval_on_selector_all(
        "[data-testid=figure-memory] rect",
        "rects => rects.map((r) => [r.x, r.width].map((length) => length.baseVal.value))",
    )
    widths = [1000 * nbytes / status["memory_bytes"] for nbytes in memory.values()]
    starts = [sum(widths[:i]) for i in range(len(widths))]
    assert [at for at, _ in bars] == pytest.approx(starts, abs=0.01)
    assert [width for _, width in bars] == pytest.approx(widths, abs=0.01)

    # kernels, and everything as text
    page.evaluate("octavo.measure = async () => ({kernels: {prefill: [], decode: []}})")
    chat.hook("perf-measure").click()
    chat.until("document.querySelector('#figure-kernels-summary').innerText.includes('no timest')")
    page.evaluate("delete octavo.measure")
    chat.hook("perf-measure").click()
    page.wait_for_selector("[data-testid=figure-kernels] th")
    assert "linear" in shown(chat, "kernels")
    chat.hook("perf-copy").click()
    chat.until("document.querySelector('[data-testid=perf-copy]').textContent === 'Copied'")
    report = page.evaluate("navigator.clipboard.readText()")
    assert chat.hook("performance-report").input_value() == report
    version = page.evaluate("import('./worker/version.mjs').then(({VERSION}) => VERSION)")
    for text in (
        version,
        "HeadlessChrome",
        "tiny, llama",
        "activations=f32",
        "queue",
        "weights: ",
        "map: ",
    ):
        assert text in report
    assert "kernels of decode:\n  " in report
    title = chat.hook("conversation").inner_text()
    answers += page.get_by_test_id("answer").all_inner_texts()
    for text in (*QUESTION.split(), *SYSTEM.split(), LONG, title, "models/tiny", *answers):
        assert text.strip() and text.strip().lower() not in report.lower()

    # a narrow window makes a dialog of it
    page.set_viewport_size({"width": 360, "height": 740})
    assert chat.until("document.querySelector('.performance').matches(':modal')")
    panel = page.locator(".performance")
    assert panel.evaluate("(it) => it.scrollWidth <= it.clientWidth")
    assert panel.evaluate("(it) => it.getBoundingClientRect().width <= innerWidth")
    for figure in page.locator(".figure-picture[role=img]").all():
        for attribute in ("aria-labelledby", "aria-describedby"):
            ids = str(figure.get_attribute(attribute)).split()
            assert "".join(page.locator(f"#{id}").inner_text() for id in ids)
    page.keyboard.press("Escape")
    assert not panel.is_visible()
