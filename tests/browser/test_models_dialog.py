"""The dialog of models, as a person uses it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.test_sources import NONE, TINY, TINY_FILE, Open, Serve

pytestmark = pytest.mark.browser
DROP = """(text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(['nothing'], 'notes.txt'));
  dataTransfer.items.add(new File([bytes], 'dropped.gguf'));
  dispatchEvent(new DragEvent('drop', {dataTransfer}));
}"""


def test_an_address_is_opened_paused_kept_and_deleted(open_chat: Open, serve: Serve) -> None:
    origin = serve({"some.gguf": TINY + bytes(40_000_000)}, bytes_per_s=3e6)
    chat = open_chat(NONE.replace("model=none/manifest.json&", ""))
    chat.hook("model").click()
    chat.hook("address").fill(f"{origin.url}/some.gguf")
    chat.hook("open-address").click()
    speed = chat.hook("progress-speed")
    chat.until("/MB\\/s/.test(document.querySelector('[data-testid=progress-speed]').textContent)")
    assert "left" in speed.inner_text()
    chat.hook("pause").click()
    chat.until("document.querySelector('[data-testid=pause]').textContent === 'Resume'")
    assert speed.inner_text() == "paused"
    origin.manners.bytes_per_s = 0
    chat.hook("pause").click()
    chat.wait_for("ready")
    assert "some" in chat.hook("model").inner_text()
    chat.page.reload()  # the choice is remembered, and needs no network
    chat.wait_for("ready")
    assert "some" in chat.hook("model").inner_text()
    assert chat.ask("Where is the sea?")
    chat.hook("model").click()
    item = chat.page.get_by_test_id("model-item").filter(has_text="some")
    assert "kept in this browser" in item.inner_text()
    chat.page.on("dialog", lambda dialog: dialog.accept())
    item.get_by_test_id("model-delete").click()
    item.wait_for(state="detached")
    chat.hook("models-close").click()
    assert chat.ask("And the rain?"), "what is loaded goes on"


def test_files_are_chosen_or_dropped(open_chat: Open, tmp_path: Path) -> None:
    chat = open_chat(NONE)
    chat.error_code()
    chat.hook("model").click()
    picked = tmp_path / "picked.gguf"
    picked.write_bytes(TINY_FILE.read_bytes())
    chat.hook("keep-files").check()
    chat.page.set_input_files("[data-testid=model-files]", picked)
    chat.wait_for("ready")
    assert "picked" in chat.hook("model").inner_text()
    kept: list[dict[str, Any]] = chat.page.evaluate("octavo.models()")["models"]
    assert [model["name"] for model in kept if not model["catalogued"]] == ["picked"]
    chat.page.evaluate(DROP, base64.b64encode(TINY).decode())
    chat.until("document.querySelector('[data-testid=model]').textContent === 'dropped'")
    assert chat.wait_for("ready").ask("Where is the sea?")
