"""The dialog of models, as a person uses it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import TINY_ON_CPU, Open
from tests.browser.sources import DATA, NONE, Serve
from tests.tiny import TINY

pytestmark = pytest.mark.browser
DROP = """(text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(['nothing'], 'notes.txt'));
  dataTransfer.items.add(new File([bytes], 'dropped.gguf'));
  dispatchEvent(new DragEvent('drop', {dataTransfer}));
}"""

# Notes the errors that are shown, be it for a moment.
ALERTS = """() => {
  window.alerts = [];
  const area = document.querySelector('[data-testid=error]');
  const note = () => area.hidden || alerts.push(area.dataset.code);
  new MutationObserver(note).observe(area, {attributes: true});
}"""
LAUNCH = """LaunchQueue.prototype.setConsumer = (consume) => {
  window.launch = (text, name) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    consume({files: [{getFile: async () => new File([bytes], name)}]});
  };
};"""


def test_an_address_is_opened_paused_kept_and_deleted(open_chat: Open, serve: Serve) -> None:
    origin = serve({"some.gguf": DATA + bytes(40_000_000)}, bytes_per_s=3e6)
    chat = open_chat(NONE.replace("model=none/manifest.json&", ""))
    chat.page.evaluate(ALERTS)
    chat.until_listening()
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
    assert chat.page.evaluate("alerts") == [], "that another model is not loaded is no news"
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
    chat.hook("model").click()
    chat.hook("address").fill(f"{origin.url}/nowhere.gguf")
    chat.hook("open-address").click()
    assert chat.error_code() == "shard.network"
    chat.wait_for("ready")
    assert "some" in chat.hook("model").inner_text()
    assert chat.ask("And the ship?"), "and when another one cannot be loaded"


def test_files_are_chosen_or_dropped(open_chat: Open, tmp_path: Path) -> None:
    chat = open_chat(NONE)
    chat.error_code()
    chat.hook("model").click()
    picked = tmp_path / "picked.gguf"
    picked.write_bytes(TINY.read_bytes())
    chat.hook("keep-files").check()
    chat.page.set_input_files("[data-testid=model-files]", picked)
    chat.wait_for("ready")
    assert "picked" in chat.hook("model").inner_text()
    kept: list[dict[str, Any]] = chat.page.evaluate("octavo.models()")["models"]
    assert [model["name"] for model in kept if not model["catalogued"]] == ["picked"]
    chat.page.evaluate(DROP, base64.b64encode(DATA).decode())
    chat.until("document.querySelector('[data-testid=model]').textContent === 'dropped'")
    chat.wait_for("ready")
    chat.until("document.querySelector('#attached').innerText.includes('notes.txt')")
    chat.hook("file-remove").click()  # the text would go along with the question
    assert chat.ask("Where is the sea?")

    chat.page.add_init_script(LAUNCH)  # as a system opens a file with the installed app
    chat.page.reload()
    chat.error_code()
    chat.page.evaluate("(text) => launch(text, 'launched.gguf')", base64.b64encode(DATA).decode())
    chat.until("document.querySelector('[data-testid=model]').textContent === 'launched'")


def test_the_offline_copy_is_removed_and_made_again(open_chat: Open) -> None:
    chat = open_chat(NONE)
    chat.error_code()
    apps = """caches.keys().then(
      (names) => names.filter((name) => name.startsWith('octavo-app')).length)"""
    chat.until(f"{apps}.then((count) => count === 2)")
    chat.hook("model").click()
    button = chat.hook("offline")
    chat.until("document.getElementById('offline').textContent === 'Remove offline copy'")
    chat.page.once("dialog", lambda dialog: dialog.dismiss())
    button.click()
    assert chat.page.evaluate(apps) == 2
    chat.page.once("dialog", lambda dialog: dialog.accept())
    button.click()
    chat.until("document.getElementById('offline').textContent === 'Keep an offline copy'")
    assert chat.page.evaluate(apps) == 0
    chat.page.reload()
    chat.error_code()
    chat.hook("model").click()
    chat.until("document.getElementById('offline').textContent === 'Keep an offline copy'")
    button.click()
    chat.until("document.getElementById('offline').textContent === 'Remove offline copy'")
    chat.until(f"{apps}.then((count) => count === 2)")


def test_what_cannot_be_kept_is_said_and_what_is_kept_is_protected(
    open_chat: Open, serve: Serve
) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")
    asked = """() => {
      window.asked = 0;
      navigator.storage.persisted = async () => false;
      navigator.storage.persist = async () => Boolean(++window.asked);
    }"""
    chat.page.evaluate(asked)
    loaded = chat.page.evaluate("octavo.load({model: 'models/tiny/manifest.json'})")
    assert loaded["kept"] is True
    assert "not_kept" not in loaded
    [worker] = [worker for worker in chat.page.workers if "worker.mjs" in worker.url]
    worker.evaluate(
        """() => {
          const put = Cache.prototype.put;
          Cache.prototype.put = function (url, ...rest) {
            if (/000\\.bin/.test(url)) throw new DOMException('full', 'QuotaExceededError');
            return put.call(this, url, ...rest);
          };
        }"""
    )
    origin = serve({"some.gguf": DATA})
    chat.hook("model").click()
    chat.hook("address").fill(f"{origin.url}/some.gguf")
    chat.hook("open-address").click()
    chat.until("document.getElementById('notice').textContent.includes('0 MB of the model')")
    chat.wait_for("ready")
    assert "tiny (1 MB)" in chat.page.locator("#notice").inner_text(), "which could be deleted"
    chat.page.locator("#notice-dismiss").click()
    assert not chat.page.locator("#notice").is_visible()
    assert chat.page.evaluate("window.asked") == 0, "it is not kept"
    chat.hook("model").click()
    item = chat.page.get_by_test_id("model-item").filter(has_text="tiny")
    item.get_by_test_id("model-load").click()
    chat.until("window.asked === 1")
    chat.wait_for("ready")
