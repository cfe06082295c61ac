"""The pages of tests/examples that are built by a bundler, with their real frameworks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import LOAD_MS, Chat
from tests.browser.hosted import Hosted
from tests.bundling import bundle
from tests.conftest import ROOT
from tests.tiny import SHIP

pytestmark = [pytest.mark.browser, pytest.mark.slow]
BLOCK = 16  # tokens of a KV block
# Remembers what the page and its workers say to each other.
WATCH = """
window.traffic = { workers: 0, sent: [], results: [] };
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    traffic.workers++;
    this.addEventListener("message", ({ data }) => {
      if (data.kind === "result") traffic.results.push(data);
    });
  }
  postMessage(message, ...others) {
    traffic.sent.push(message);
    super.postMessage(message, ...others);
  }
};
"""
GENERATED = "traffic.sent.filter(({ kind }) => kind === 'generate')"
RESULT = "(last => last && traffic.results.find(({ id }) => id === last.id))"
ANSWERED = f"{RESULT}({GENERATED}.at(-1))"


@pytest.fixture(scope="module")
def examples(npm_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosted]:
    """They are built, and served with the policy that web/DEPLOY.md calls the least."""
    folder = tmp_path_factory.mktemp("examples")
    bundle(npm_package, folder, folder / "out", "development")
    shutil.copyfile(ROOT / "tests/golden/tiny.gguf", folder / "out/model.gguf")
    text = (ROOT / "web/DEPLOY.md").read_text(encoding="utf-8")
    policy = re.search(r"needs at least `([^`]+)`", text)
    assert policy
    said = f"/*\n  Content-Security-Policy: {' '.join(policy[1].split())}\n"
    (folder / "out/_headers").write_text(said, encoding="utf-8")
    hosted = Hosted(folder / "out")
    yield hosted
    hosted.close()
    assert not hosted.reports, "the policy forbade something"


@pytest.fixture
def open_example(examples: Hosted, plain_chromium: Any) -> Iterator[Callable[..., Chat]]:
    """Opens a page of theirs, and waits for the model. At the end nothing may have gone wrong."""
    context = plain_chromium.new_context()
    context.add_init_script(WATCH)
    problems: list[str] = []

    def open_page(name: str, until: str = "is ready") -> Chat:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: m.type in ("warning", "error") and problems.append(m.text))
        page.goto(f"{examples.url}/{name}")
        page.get_by_text(until).wait_for(timeout=LOAD_MS)
        return Chat(page, examples, page.url)

    yield open_page
    context.close()
    assert not problems


def soon(expression: str) -> str:
    """Waits for it, but lets no message in meanwhile."""
    return f"for (let i = 0; !({expression}) && i < 100; i++) await null;"


def workers(page: Any) -> list[str]:
    """Names of the scripts of workers that run, nested ones too, once they have settled."""
    page.wait_for_timeout(300)
    return [worker.url.rpartition("/")[2] for worker in page.workers]


# React's StrictMode mounts twice what is mounted, to see whether the first one is cleaned up.
@pytest.mark.parametrize(("name", "mounts"), [("react", 2), ("vue", 1)])
def test_a_component_frees_its_model(
    name: str, mounts: int, open_example: Callable[..., Chat]
) -> None:
    chat = open_example(f"{name}/")
    page = chat.page
    assert page.evaluate("traffic.workers") == mounts
    assert workers(page).count("worker.mjs") == 1
    page.get_by_label("Message").fill(SHIP["messages"][0]["content"])
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("button", name="Ask", disabled=False).wait_for()
    shown = page.locator(".assistant").text_content()
    assert len(shown) > 20 and SHIP["text"].startswith(shown[:20])

    page.get_by_label("Message").fill("Go on.")
    unanswered = page.evaluate(
        f"""async () => {{
          document.querySelector("form button").click();
          {soon(f"{GENERATED}.length === 2")}
          document.querySelector("[type=checkbox]").click();
          await new Promise((go) => setTimeout(go, 200));
          return !{ANSWERED};
        }}"""
    )
    assert unanswered, "the answer ended before the component did"
    assert workers(page) == []

    page.get_by_label("Chat").check()
    chat.until(f"traffic.workers === {2 * mounts}")
    assert workers(page).count("worker.mjs") == 1


def test_the_editor_proposes_how_the_text_goes_on(open_example: Callable[..., Chat]) -> None:
    chat = open_example("editor/")
    page = chat.page
    text = "The old lighthouse stands alone on the rock, and every evening its keeper climbs the"
    content, proposal = page.locator(".cm-content"), page.locator(".proposal")

    def answered(prompt: str) -> dict[str, Any]:
        """The usage of what was computed for this prompt, the last one."""
        chat.until(f"{GENERATED}.at(-1)?.prompt === {json.dumps(prompt)} && {ANSWERED}")
        value: dict[str, Any] = page.evaluate(f"{ANSWERED}.value")
        assert value["finish_reason"] != "cancelled"
        usage: dict[str, Any] = value["usage"]
        return usage

    content.press_sequentially(text[:-1])
    answered(text[:-1])  # however fast that was typed, it is computed now
    content.press_sequentially(text[-1])
    usage = answered(text)
    proposal.wait_for()
    assert page.evaluate(f"{GENERATED}.length") >= len(text) - text.count(" ")
    assert usage["prompt_tokens"] > 2 * BLOCK, "the text has more than a block"
    assert usage["prompt_tokens"] - usage["cached_tokens"] < BLOCK + 4, "but for the last word"

    # A key that comes while a completion is under way ends it; nothing comes between these two.
    page.evaluate(
        f"""async () => {{
          document.execCommand("insertText", false, " s");
          const count = {GENERATED}.length;
          {soon(f"{GENERATED}.length > count")}
          document.execCommand("insertText", false, "t");
        }}"""
    )
    answered(text + " st")
    stopped = page.evaluate("traffic.sent.filter(({ kind }) => kind === 'stop').at(-1).target")
    assert page.evaluate(f"{GENERATED}.at(-2)") == {
        **page.evaluate(f"{GENERATED}.at(-1)"),
        "id": stopped,
        "prompt": text + " s",
    }

    page.keyboard.press("Escape")
    assert proposal.count() == 0
    content.press_sequentially("a")
    answered(text + " sta")
    proposal.wait_for()
    proposed = proposal.evaluate("element => element.textContent")
    page.keyboard.press("Tab")
    usage = answered(f"{text} sta{proposed}".rstrip())
    assert usage["cached_tokens"] >= 2 * BLOCK

    # Of a long text the last part is read, which begins at the same place for many keys.
    page.keyboard.press("Control+a")
    long = "a sea " * 200
    page.keyboard.insert_text(long)
    answered(long[250:].rstrip())
    content.press_sequentially("of")
    usage = answered(long[250:] + "of")
    assert usage["prompt_tokens"] - usage["cached_tokens"] < BLOCK + 4


def test_the_editors_bench_measures(open_example: Callable[..., Chat]) -> None:
    chat = open_example("editor/bench.html?rate=8&keys=20", "Done.")
    found = chat.page.evaluate("window.benchResult")
    assert found["keys"] == 20 and found["device"]["kind"] == "cpu"
    for figure in ("first_ms", "token_ms", "computed", "first_behind_ms"):
        assert found[figure]["count"] > 0, figure
    assert 0 < found["first_ms"]["p50"] <= found["first_ms"]["p95"]
    assert 1 <= found["computed"]["p50"] <= BLOCK
    assert json.loads(chat.page.locator("pre").text_content()) == found
