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
from tests.browser.conftest import cut, link_site
from tests.conftest import GPU_FLAGS, ROOT, StaticServer
from tests.tiny import SHIP

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&context=512&device=gpu"
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


# The same of two models at once.
ASK_BOTH = """async ([models, chats]) => {
  const memory_bytes = 2 ** 28;
  for (const model of models) await octavo.load({model, device: 'gpu', context: 512, memory_bytes});
  window.answers = [];
  const ask = (i) => octavo.chat.completions.create(
    {model: models[i], messages: chats[i], max_tokens: 60}).then((answer) => answer.octavo.ids);
  (async () => {
    while (!window.enough) {
      window.answers.push(await Promise.all([0, 1].map(ask)).catch((error) => error.code));
      await octavo.reset();
    }
    window.ended = true;
  })();
}"""


@pytest.fixture
def chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """A browser of its own, as it loses its GPU process."""
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    yield browser
    browser.close()


def kill_gpu(chromium: Any) -> None:
    processes = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    (gpu,) = (process["id"] for process in processes if process["type"] == "GPU")
    os.kill(gpu, signal.SIGKILL)


def test_an_answer_goes_on_after_the_gpu_was_lost(
    site: Path, server: StaticServer, chromium: Any
) -> None:
    page = chromium.new_page()
    chat = Chat(page, server, f"{server.url}/?{TINY}").open().wait_for("ready")
    page.evaluate(f"(messages) => {{ ({ASK_ON})(messages); }}", SHIP["messages"])
    page.wait_for_timeout(300)

    before = page.evaluate("window.answers.length")
    kill_gpu(chromium)

    chat.until(f"window.answers.length >= {before + 2}")
    page.evaluate("window.enough = true")
    for ids in page.evaluate("window.answers"):
        assert ids == SHIP["ids"]
    assert chat.status()["device"]["kind"] == "webgpu"


def test_two_models_go_on_after_the_gpu_was_lost(tmp_path: Path, chromium: Any) -> None:
    root = link_site(tmp_path / "root")
    names = ["tiny", "tiny_qwen2"]
    cut(ROOT / "tests/golden/tiny_qwen2.gguf", root / "models/tiny_qwen2")
    prompts = []
    for name in names:
        text = (ROOT / f"tests/golden/{name}.json").read_text(encoding="utf-8")
        prompts.append(next(p for p in json.loads(text)["prompts"] if "messages" in p))
    server = StaticServer(root)
    try:
        page = chromium.new_context(service_workers="block").new_page()
        chat = Chat(page, server, f"{server.url}/?{TINY}").open().wait_for("ready")
        models = [f"models/{name}/manifest.json" for name in names]
        page.evaluate(ASK_BOTH, [models, [prompt["messages"] for prompt in prompts]])
        chat.until("window.answers.length")
        before = page.evaluate("window.answers.length")
        kill_gpu(chromium)
        chat.until(f"window.answers.length >= {before + 2}")
        page.evaluate("window.enough = true")
        chat.until("window.ended")
        for answers in page.evaluate("window.answers"):
            assert answers == [prompt["ids"][:60] for prompt in prompts]
        assert [m["resident"] for m in chat.status()["models"]] == [True, True]
    finally:
        server.close()
