"""The KV pools grow on a GPU adapter, in the middle of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chat import Chat, Open
from tests.tiny import SHIP

pytestmark = pytest.mark.browser
MODEL = "models/tiny/manifest.json"
TINY = f"model={MODEL}&device=gpu&context=512"
COUNT = 200  # tokens of the answer
# Conversations that leave room for a short answer, and then an answer that is longer.
FILL = """async ([messages, tokens]) => {
  let i = 0;
  let kv;
  do {
    const other = [{role: "user", content: `Tell me of island ${i++}.`}];
    const left = kv ? (kv.free_blocks - 8) * kv.block_size : 400;
    await octavo.chat.completions.create({messages: other, max_tokens: Math.min(400, left)});
    ({kv} = await octavo.status());
  } while (kv.free_blocks > 9);
  const before = await octavo.status();
  const answer = await octavo.chat.completions.create({messages, max_tokens: tokens});
  return [before, answer.octavo.ids, await octavo.status()];
}"""


def load(chat: Chat, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = chat.page.evaluate(
        "options => octavo.load(options)",
        {"model": MODEL, "device": "gpu", "context": 512, **options},
    )
    return result


def test_an_answer_crosses_a_growth(open_chat: Open) -> None:
    chat = open_chat(f"{TINY}&kv_tokens=8192").wait_for("ready")
    fresh = chat.status()
    assert (fresh["kv"]["num_blocks"], fresh["kv"]["budget_blocks"]) == (64, 512)
    before, ids, after = chat.page.evaluate(FILL, [SHIP["messages"], COUNT])
    assert ids == SHIP["ids"][:COUNT]
    assert (before["kv"]["num_blocks"], after["kv"]["num_blocks"]) == (64, 128)
    assert 2 < before["kv"]["free_blocks"] < COUNT // 16, "the prompt fits, the answer does not"
    for status in (before, after):
        kv = status["kv"]
        assert status["memory"]["kv"] == kv["bytes"]
        assert kv["free_blocks"] + kv["cached_blocks"] == kv["num_blocks"]
    assert after["kv"]["cached_blocks"] > 64, "what was cached stayed so"

    chat.page.evaluate("octavo.unload()")
    assert chat.status() == {"state": "empty", "clients": 1}
    assert load(chat, kv_tokens=8192)["memory"] == fresh["memory"], "what had grown was freed"
    load(chat, kv_tokens=512)
    assert chat.status()["kv"]["num_blocks"] == chat.status()["kv"]["budget_blocks"]
    whole = chat.complete(SHIP["messages"], max_tokens=COUNT)
    assert whole["octavo"]["ids"] == ids


def test_a_budget_in_bytes(open_chat: Open) -> None:
    chat = open_chat(TINY).wait_for("ready")
    block = chat.status()["kv"]["bytes"] // 32
    load(chat, kv_bytes=200 * block)
    assert chat.status()["kv"]["budget_blocks"] == 200
    both = chat.page.evaluate("octavo.load({kv_tokens: 64, kv_bytes: 64}).catch((e) => e.code)")
    assert both == "request.invalid"
