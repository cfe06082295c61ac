"""A GPU without the memory for a buffer, of whatever kind: in a load and in an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.chat import Chat
from tests.browser.patched import patched_site
from tests.conftest import StaticServer
from tests.refusing import REFUSE
from tests.tiny import SHIP

pytestmark = pytest.mark.browser
MODEL = "models/tiny/manifest.json"
IDS = SHIP["ids"][:20]


def test_what_worked_goes_on(tmp_path: Path, gpu_chromium: Any) -> None:
    server = StaticServer(patched_site(tmp_path / "root"))
    page = gpu_chromium.new_context(service_workers="block").new_page()
    try:
        url = f"{server.url}/?model={MODEL}&device=gpu&context=256"
        Chat(page, server, url).open().wait_for("ready")
        worker = page.workers[0]
        worker.evaluate(REFUSE)
        ask = """(messages) => octavo.chat.completions.create({messages, max_tokens: 20})
          .then((answer) => answer.octavo.ids, (error) => error.code)"""
        load = """(model) => octavo.load({model, device: 'gpu', context: 256, memory_bytes: 1e9})
          .then(() => null, (error) => error.code)"""
        absolute = f"{server.url}/{MODEL}"
        assert page.evaluate(load, absolute) is None
        assert page.evaluate(ask, SHIP["messages"]) == IDS

        # A second load that fails leaves the first model answering.
        for label in ("block_table", "k.1", "slot.0", "staging", "shard", "jobs"):
            worker.evaluate("(next) => void (refusing.next = next)", label)
            code = page.evaluate(load, f"{absolute}?{label}")
            assert worker.evaluate("refusing.next") is None, f"there is no buffer {label}"
            # After the one refusal there is memory: with less than before, if there is less.
            assert code in (None, "memory.device"), label
            assert page.evaluate(ask, SHIP["messages"]) == IDS, label
        assert worker.evaluate("refusing.unguarded") == []

        # In an answer: what it cannot do is said, and the next one is right.
        assert page.evaluate(load, absolute) is None
        worker.evaluate("() => void (refusing.next = 'readback')")
        codes = [page.evaluate(ask, SHIP["messages"]) for _ in range(3)]
        assert worker.evaluate("refusing.next") is None
        assert codes[1:] == [IDS, IDS]
        assert codes[0] in (IDS, "memory.device")
        assert worker.evaluate("refusing.unguarded") == []
    finally:
        server.close()
