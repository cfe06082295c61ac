"""GPUs that are lost at random moments, by themselves and with the GPU process: every conversation
goes on and has the right ids. And browsers that give no GPU any more."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.recovery import NOT_GIVEN
from tests.browser.chat import Chat
from tests.browser.patched import DEVICES, REAL, patched_site, python
from tests.conftest import GPU_FLAGS, StaticServer
from tests.tiny import CHATS

pytestmark = pytest.mark.browser
LOSSES = int(os.environ.get("OCTAVO_LOSSES", "4"))
SEED = int(os.environ.get("OCTAVO_SEED", "20261130"))
UNLIMITED = ["--disable-gpu-process-crash-limit", "--disable-domain-blocking-for-3d-apis"]
MODEL = "models/tiny/manifest.json"
COUNT = 60  # tokens
MOMENTS = ["load", "answers", "idle", "measure", "answers", "answers"]

# Begins something and returns at once; `outcome` waits for it.
HELPERS = """([model, chats, count]) => {
  window.news = [];
  octavo.addEventListener('recovery', ({detail}) => news.push(detail.state));
  const ask = (messages) =>
    octavo.chat.completions.create({messages, max_tokens: count}).then((a) => a.octavo.ids);
  const work = {
    load: () => octavo.load({model, device: 'gpu', context: 512, kv_tokens: 2048}),
    answers: () => Promise.all(chats.map(ask)),
    idle: async () => {},
    measure: () => octavo.measure({prefill: 40, context: 60, steps: 8}),
  };
  let pending;
  window.begin = (what) => {
    pending = work[what]().then((value) => ({value}), ({code, message}) => ({code, message}));
  };
  window.outcome = () => pending;
}"""


@pytest.fixture
def launch(playwright: Any, chromium_path: str) -> Iterator[Callable[..., Any]]:
    """Browsers of its own, as they lose their GPU processes."""
    browsers = []

    def start(*flags: str) -> Any:
        args = [*GPU_FLAGS, *flags]
        browsers.append(playwright.chromium.launch(executable_path=chromium_path, args=args))
        return browsers[-1]

    yield start
    for browser in browsers:
        browser.close()


@pytest.fixture
def open_patched(tmp_path: Path, launch: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A page on a patched site, and what crashes its GPU process."""
    servers = []

    def start(query: str, flags: list[str], *patches: Any) -> tuple[Chat, Callable[[], None]]:
        servers.append(StaticServer(patched_site(tmp_path / "root", DEVICES, *patches)))
        browser = launch(*flags)
        session = browser.new_browser_cdp_session()
        page = browser.new_context(service_workers="block").new_page()
        url = f"{servers[0].url}/?model={MODEL}&context=512&{query}"
        chat = Chat(page, servers[0], url).open().wait_for("ready")
        page.evaluate(HELPERS, [MODEL, [chat["messages"] for chat in CHATS], COUNT])
        return chat, lambda: session.send("Browser.crashGpuProcess")

    yield start
    for server in servers:
        server.close()


def test_whatever_is_under_way_goes_on(open_patched: Callable[..., Any]) -> None:
    rng = random.Random(SEED)
    chat, crash = open_patched("device=gpu&kv_tokens=2048", UNLIMITED)
    page = chat.page

    def destroy() -> None:
        page.workers[0].evaluate("self.devices.at(-1).destroy()")

    def took(what: str) -> float:
        started = time.monotonic()
        page.evaluate("(what) => begin(what)", what)
        assert "value" in page.evaluate("outcome()")
        return time.monotonic() - started

    seconds = {what: took(what) for what in dict.fromkeys(MOMENTS)}
    for i in range(LOSSES):
        what = MOMENTS[i] if i < len(MOMENTS) else rng.choice(MOMENTS)
        page.evaluate("(what) => begin(what)", what)
        page.wait_for_timeout(1e3 * rng.uniform(0, seconds[what]))
        how = rng.choice([destroy, crash])
        how()
        outcome = page.evaluate("outcome()")
        where = f"seed {SEED}, loss {i}, {how.__name__} in {what}: {outcome}"
        assert "value" in outcome, where
        # What comes next is right, too.
        page.evaluate("begin('answers')")
        for answers in [outcome, page.evaluate("outcome()")][what != "answers" :]:
            assert answers.get("value") == [c["ids"][:COUNT] for c in CHATS], f"{where}: {answers}"
    assert chat.status()["device"]["kind"] == "webgpu"
    news = page.evaluate("news")
    assert news.count("ready") >= LOSSES // 2  # some losses are met by a load's own first attempt


def lose_it_for_good(chat: Chat, crash: Callable[[], None]) -> None:
    """After two crashes Chromium gives no adapter for some time, in the middle of an answer."""
    chat.page.evaluate("begin('answers')")
    assert "value" in chat.page.evaluate("outcome()")
    for _ in range(6):
        crash()
        chat.page.wait_for_timeout(400)
        missing = "navigator.gpu.requestAdapter().then((adapter) => !adapter)"
        if chat.page.evaluate(missing):
            return
    raise AssertionError("Chromium still gives an adapter")


def test_the_cpu_takes_over_where_no_gpu_is_given(open_patched: Callable[..., Any]) -> None:
    patience = python(
        "import engine.recovery as r; r.PATIENCE_SECONDS = 4.0; "
        "import engine.tuning as t; t.BUDGET_SECONDS = 0.0"
    )
    chat, crash = open_patched("device=auto", [], REAL, patience)
    assert chat.status()["device"]["kind"] == "webgpu"
    lose_it_for_good(chat, crash)
    chat.page.evaluate("begin('answers')")
    chat.page.wait_for_selector("#notice[data-recovery=waiting]:not([hidden])")
    assert chat.page.evaluate("outcome()")["value"] == [c["ids"][:COUNT] for c in CHATS]
    badge = chat.page.locator("#device")
    assert badge.get_attribute("data-kind") == "cpu"
    assert chat.page.locator("#notice").inner_text() == NOT_GIVEN
    assert chat.status()["device"]["reason"] == NOT_GIVEN
    assert set(chat.page.evaluate("news")) >= {"waiting", "ready"}


def test_stop_ends_the_wait_for_a_gpu(open_patched: Callable[..., Any]) -> None:
    chat, crash = open_patched("device=gpu", [])
    lose_it_for_good(chat, crash)
    chat.send("Hello")
    chat.page.wait_for_selector("#notice[data-recovery=waiting]:not([hidden])")
    started = time.monotonic()
    chat.hook("stop").click()
    chat.wait_for("stopped", timeout=5000)
    assert time.monotonic() - started < 2
