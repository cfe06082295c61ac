"""Several pages of one browser, which share an engine: none disturbs another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chat import Chat, Open
from tests.tiny import RAIN, SHIP

pytestmark = pytest.mark.browser
COUNT = 200  # tokens of each golden answer

# Streams an answer into window.stream.
STREAM = """([messages, max_tokens]) => {
  const state = window.stream = {tokens: 0, ids: null, text: '', error: null};
  (async () => {
    const stream = octavo.chat.completions.create({messages, max_tokens, stream: true});
    for await (const chunk of stream) {
      state.tokens = chunk.octavo.num_tokens;
      state.text += chunk.choices[0].delta.content ?? '';
      state.ids = chunk.octavo.ids ?? null;
    }
  })().catch((error) => (state.error = error.message));
}"""

# Two answers at once, again and again.
ENDLESS = """(messages) => {
  window.answers = 0;
  const go = async () => {
    for (;;) {
      await octavo.chat.completions.create({messages, max_tokens: 60});
      window.answers++;
    }
  };
  go();
  go();
}"""


def stream(chat: Chat, prompt: dict[str, Any], count: int = COUNT) -> None:
    chat.page.evaluate(STREAM, [prompt["messages"], count])


def finished(chat: Chat, prompt: dict[str, Any]) -> None:
    """The answer has come, and is right."""
    chat.until("stream.ids !== null || stream.error !== null")
    state = chat.page.evaluate("stream")
    assert state["error"] is None
    assert state["ids"] == prompt["ids"][:COUNT]


def idle(chat: Chat, clients: int) -> None:
    """Nothing is left of all answers at the engine that so many pages share, once it has heard of
    a page that was closed."""
    for _ in range(50):
        status = chat.status()
        left = (status["answers"], status["kv"]["used_blocks"], status["clients"])
        if left == (0, 0, clients):
            return
        chat.page.wait_for_timeout(100)
    assert left == (0, 0, clients)


@pytest.fixture(params=["cpu", "gpu"])
def query(request: pytest.FixtureRequest) -> str:
    return f"model=models/tiny/manifest.json&context=512&activations=f32&device={request.param}"


def test_two_tabs_generate_two_conversations_each_at_once(query: str, open_chat: Open) -> None:
    first = open_chat(query).wait_for("ready")
    second = open_chat(query, context=first.page.context).wait_for("ready")
    tabs = [(first, SHIP), (second, RAIN)]
    for chat, prompt in tabs:
        stream(chat, prompt)
    # Beside its own, each tab answers the other's conversation.
    for chat, prompt in ((first, RAIN), (second, SHIP)):
        ids = chat.complete(prompt["messages"], max_tokens=30)["octavo"]["ids"]
        assert ids == prompt["ids"][:30]
    for chat, prompt in tabs:
        finished(chat, prompt)
    idle(first, clients=2)


def test_a_tab_closed_in_the_middle_of_an_answer(query: str, open_chat: Open) -> None:
    staying = open_chat(query).wait_for("ready")
    context = staying.page.context
    closing = open_chat(query, context=context).wait_for("ready")
    # Answers without an end, so that the tab is closed in the middle of them however fast they are.
    closing.page.evaluate(ENDLESS, RAIN["messages"])
    stream(staying, SHIP)
    closing.until("window.answers > 2")
    closing.page.close()
    finished(staying, SHIP)
    idle(staying, clients=1)

    fresh = open_chat(query, context=context).wait_for("ready")
    for chat, prompt in ((fresh, RAIN), (staying, RAIN)):
        stream(chat, prompt)
    for chat in (fresh, staying):
        finished(chat, RAIN)
    idle(fresh, clients=2)
