"""The GPU process dies in the middle of an answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.conftest import GPU_FLAGS, ROOT, StaticServer

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&context=512&device=gpu"
PROMPT: dict[str, Any] = json.loads((ROOT / "tests/golden/tiny.json").read_text(encoding="utf-8"))[
    "prompts"
][0]
# Asks again and again, until told to stop; what comes lands in window.answers.
ASK_ON = """async (messages) => {
  window.answers = [];
  while (!window.enough) {
    const answer = await octavo.chat.completions.create({messages, max_tokens: 200})
      .catch((error) => ({octavo: {ids: [error.code]}}));
    window.answers.push(answer.octavo.ids);
    await octavo.reset();
  }
}"""


@pytest.fixture
def chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """A browser of its own, as it loses its GPU process."""
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    yield browser
    browser.close()


def test_an_answer_goes_on_after_the_gpu_was_lost(
    site: Path, server: StaticServer, chromium: Any
) -> None:
    page = chromium.new_page()
    chat = Chat(page, server, f"{server.url}/?{TINY}").open().wait_for("ready")
    page.evaluate(f"(messages) => {{ ({ASK_ON})(messages); }}", PROMPT["messages"])
    page.wait_for_timeout(300)

    processes = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    (gpu,) = (process["id"] for process in processes if process["type"] == "GPU")
    before = page.evaluate("window.answers.length")
    os.kill(gpu, signal.SIGKILL)

    chat.until(f"window.answers.length >= {before + 2}")
    page.evaluate("window.enough = true")
    for ids in page.evaluate("window.answers"):
        assert ids == PROMPT["ids"]
    assert chat.status()["device"]["kind"] == "webgpu"
