"""Raw texts by the page's API: completed in OpenAI's older shape, to token ids and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import TINY_ON_CPU, Chat
from tests.tiny import SHIP

pytestmark = pytest.mark.browser
# The code of an error and whether it is the client's own kind, else what came.
OUTCOME = """async (work) => {
  try {
    return await work();
  } catch (error) {
    return [error.name, error.code, error.message !== ''];
  }
}"""


def test_raw_texts(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(TINY_ON_CPU).wait_for("ready")

    def complete(**options: Any) -> Any:
        script = f"options => ({OUTCOME})(() => octavo.completions.create(options))"
        return chat.page.evaluate(script, options)

    prompt, ids = SHIP["prompt"], SHIP["ids"]
    whole = complete(prompt=prompt, max_tokens=20)
    choice = whole["choices"][0]
    assert (whole["object"], whole["id"][:5], whole["model"]) == (
        "text_completion",
        "cmpl-",
        "tiny",
    )
    assert whole["octavo"]["ids"] == ids[:20]
    assert sorted(choice) == ["finish_reason", "index", "logprobs", "text"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("length", None)
    assert choice["text"] and SHIP["text"].startswith(choice["text"].rstrip("\ufffd"))
    assert whole["usage"]["total_tokens"] == len(SHIP["prompt_ids"]) + 20

    more = complete(continues=whole["octavo"]["handle"], max_tokens=5)
    assert more["octavo"]["ids"] == ids[20:25]
    assert complete(prompt=SHIP["prompt_ids"], max_tokens=9)["octavo"]["ids"] == ids[:9]

    told = complete(prompt=prompt, max_tokens=3, logprobs=2)["choices"][0]["logprobs"]
    assert list(map(len, told.values())) == [3, 3, 3]
    for token, logprob, top in zip(*told.values(), strict=True):
        assert top[token] == logprob == max(top.values()) <= 0 and len(top) == 2

    chunks = chat.page.evaluate(
        """async (options) => {
          const chunks = [];
          for await (const chunk of octavo.completions.create(options)) chunks.push(chunk);
          return chunks;
        }""",
        {"prompt": prompt, "max_tokens": 20, "stream": True},
    )
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert (set(ends[:-1]), ends[-1]) == ({None}, "length")
    assert chunks[-1]["octavo"]["ids"] == ids[:20] and chunks[-1]["usage"] == whole["usage"] | {
        "cached_tokens": chunks[-1]["usage"]["cached_tokens"]
    }

    invalid = ["OctavoError", "request.invalid", True]
    assert complete() == complete(prompt=7) == complete(prompt=["a"]) == invalid
    assert complete(prompt=prompt, echo=True) == complete(prompt=[100_000]) == invalid
    assert complete(prompt="") == ["OctavoError", "prompt.empty", True]

    def call(method: str, *values: Any) -> Any:
        script = f"values => ({OUTCOME})(() => octavo.{method}(...values))"
        return chat.page.evaluate(script, values)

    assert call("tokenize", prompt) == SHIP["prompt_ids"]
    text = "Grüße, 世界 🚢\n"
    assert call("detokenize", call("tokenize", text)) == text
    assert call("tokenize", 7) == call("detokenize", [100_000]) == invalid
    assert call("tokenize", "a", {"model": "other"}) == ["OctavoError", "engine.not_loaded", True]
    loaded_first = chat.page.evaluate(
        "text => { octavo.load(); return octavo.tokenize(text); }", prompt
    )
    assert loaded_first == SHIP["prompt_ids"], "it waits for the load"
