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
# Asks for more answers, one after another, until one fails; its code lands in window.failed.
ASK_ON = """async (messages) => {
  window.failed = null;
  while (!window.failed) {
    await octavo.chat.completions.create({messages, max_tokens: 200})
      .catch((error) => { window.failed = error.code; });
  }
}"""


@pytest.fixture
def chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """A browser of its own, as it loses its GPU process."""
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    yield browser
    browser.close()


def test_a_lost_gpu_is_said_and_the_next_load_works(
    site: Path, server: StaticServer, chromium: Any
) -> None:
    page = chromium.new_page()
    chat = Chat(page, server, f"{server.url}/?{TINY}").open().wait_for("ready")
    page.evaluate(f"(messages) => {{ ({ASK_ON})(messages); }}", PROMPT["messages"])
    page.wait_for_timeout(300)

    processes = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    (gpu,) = (process["id"] for process in processes if process["type"] == "GPU")
    os.kill(gpu, signal.SIGKILL)

    assert chat.until("window.failed") == "gpu.lost"
    assert chat.status()["state"] == "empty"
    page.evaluate("octavo.load({model: 'models/tiny/manifest.json', device: 'gpu', context: 512})")
    answer = chat.complete(PROMPT["messages"], max_tokens=60)
    assert answer["octavo"]["ids"] == PROMPT["ids"][:60]
