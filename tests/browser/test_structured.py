"""JSON of a schema, with the real grammar in the tab."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.chat import Chat

pytestmark = pytest.mark.browser
TINY = "model=models/tiny/manifest.json&context=512"
MESSAGES = [{"role": "user", "content": "Say something."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dög"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "count", "tags"],
}


# In a fresh client, whose grammars nobody has asked for yet.
AT_ONCE = """async ([messages, formats]) => {
  const {Octavo} = await import('./client.mjs');
  const client = new Octavo();
  await client.load({model: 'models/tiny/manifest.json', device: 'cpu'});
  const said = await Promise.all(formats.map((response_format) =>
    client.chat.completions.create({messages, response_format}).then(
      (answer) => answer.choices[0].message.content, (error) => error.code)));
  client.close();
  return said;
}"""


def format_of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_json_of_a_schema(open_chat: Callable[..., Chat], device: str) -> None:
    """The tiny model says nothing of sense by itself: what is valid is the grammar's work."""
    chat = open_chat(f"{TINY}&device={device}").wait_for("ready")

    def ask(format: Any, **options: Any) -> Any:
        return chat.complete(MESSAGES, response_format=format, **options)["choices"][0]

    for seed in range(3):
        choice = ask(format_of(SCHEMA), temperature=1.5, seed=seed)
        assert choice["finish_reason"] == "stop"
        got = json.loads(choice["message"]["content"])
        assert list(got) == ["name", "kind", "count", "tags"]
        assert len(got["name"]) <= 12 and got["kind"] in ("cat", "dög") and 0 <= got["count"] <= 99
        assert 1 <= len(got["tags"]) <= 3 and {type(tag) for tag in got["tags"]} == {bool}
    begun = [*MESSAGES, {"role": "assistant", "content": '{"name": "a", "kind": "d'}]
    options = {"response_format": format_of(SCHEMA), "continue_final_message": True}
    rest = chat.complete(begun, **options)["choices"][0]["message"]["content"]
    got = json.loads(begun[-1]["content"] + rest)
    assert (got["name"], got["kind"]) == ("a", "dög")
    with pytest.raises(Exception, match="No token fits"):
        chat.complete([*MESSAGES, {"role": "assistant", "content": "No"}], **options)
    assert ask(format_of({"const": 17}))["message"]["content"] == "17"
    assert ask({"type": "json_object"}, max_tokens=1)["message"]["content"] == "{"
    # A schema that cannot be read ends its own answer and nothing else.
    with pytest.raises(Exception, match="schema of response_format"):
        ask(format_of({"type": "nonsense"}))
    assert ask(format_of({"const": "ok"}))["message"]["content"] == '"ok"'
    formats = [{"const": 1}, {"type": "nonsense"}, {"const": 2}, {"const": 3}]
    assert chat.page.evaluate(AT_ONCE, [MESSAGES, list(map(format_of, formats))]) == [
        "1",
        "request.invalid",
        "2",
        "3",
    ]
    assert ask({"type": "text"}, max_tokens=5)["finish_reason"] == "length"
