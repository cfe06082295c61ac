"""The idioms of well-known chat templates, rendered as Hugging Face transformers renders them.

The templates are written for these tests, close to those that the models come with.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest

from engine import chat
from engine.chat import ChatTemplate
from engine.errors import OctavoError
from engine.messages import check_messages, check_tools
from tests.unit.rendering import (
    BOS,
    CALLED,
    CONVERSATIONS,
    EOS,
    ROME,
    SOURCES,
    TURNS,
    USER,
    WITH_SYSTEM,
    Messages,
    call,
    message,
    reference,
)


class FixedDay(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> FixedDay:
        return cls(2026, 3, 9)


@pytest.fixture(autouse=True)
def fixed_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "datetime", FixedDay)


def render(name: str, messages: Messages, tools: Any = None, prompt: bool = True) -> str:
    """What the engine makes of a request."""
    checked = check_messages({"messages": messages})
    template = ChatTemplate(SOURCES[name], BOS, EOS)
    return template.render(checked, prompt, check_tools({"tools": tools}))


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The <weather> of a café's city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def outcome(make: Any) -> str:
    """A rendered text, or why there is none."""
    try:
        return str(make())
    except jinja2.TemplateError as error:
        return f"refused: {error}"
    except OctavoError as error:
        assert error.code == "template.invalid"
        cause = error.__cause__
        assert cause
        assert str(cause) in error.message, "the template's own words"
        return f"refused: {cause}"
    except TypeError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", SOURCES)
def test_as_transformers_renders_it(name: str, conversation: str, tools: Any, prompt: bool) -> None:
    messages = CONVERSATIONS[conversation]
    theirs = messages
    if name == "deepseek_r1":  # it takes arguments as a text
        theirs = json.loads(json.dumps(messages), object_hook=with_text_arguments)
    ours = outcome(lambda: render(name, messages, tools, prompt))
    assert ours == outcome(lambda: reference(SOURCES[name], theirs, tools, prompt))


def with_text_arguments(fields: dict[str, Any]) -> dict[str, Any]:
    if "arguments" in fields:
        fields["arguments"] = json.dumps(fields["arguments"])
    return fields


TEXTS = {
    ("chatml", "system"): (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    ("phi3", "system"): (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n"
        "<|user|>\nBye<|end|>\n<|assistant|>\n"
    ),
    ("gemma3", "system"): (
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello."
        "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    ),
    ("llama3", "system"): (
        "<s><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 09 Mar 2026\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
        "\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    ("mistral", "system"): ("<s>[INST] Hi[/INST] Hello.</s>[INST] Be brief.\n\nBye[/INST]"),
    ("mistral_nemo", "system"): "<s>[INST]Hi[/INST]Hello.</s>[INST]Be brief.\n\nBye[/INST]",
    ("phi3_5", "system"): (
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello.<|end|>\n"
        "<|user|>\nBye<|end|>\n<|assistant|>\n"
    ),
    ("phi4_mini", "system"): (
        "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello.<|end|>"
        "<|user|>Bye<|end|><|assistant|>"
    ),
    ("zephyr", "system"): (
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n"
        "<|user|>\nBye</s>\n<|assistant|>\n"
    ),
    ("qwen2_5", "called"): (
        "<|im_start|>system\nYou are Qwen.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "Rome", "days": 2}}\n</tool_call><|im_end|>\n<|im_start|>user\n'
        '<tool_response>\n{"t": 18}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    ),
    ("qwen3", "thought"): (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    ),
    ("qwen3", "reasoned"): (
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n<think>\nI need it.\n"
        '</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 2}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
        '{"t": 18}\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
    ),
    ("deepseek_r1", "thought"): (
        "<s><｜User｜>Hi<｜Assistant｜>\n\nHello.<｜end▁of▁sentence｜><｜User｜>Bye"
        "<｜Assistant｜><think>\n"
    ),
    ("deepseek_r1", "go on"): (
        "<s><｜User｜>Weather?<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
        '<｜tool▁sep｜>weather\n```json\n{"city": "Rome", "days": 2}\n```<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜><｜end▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>"
        '{"t": 18}<｜tool▁output▁end｜><｜tool▁outputs▁end｜>18 degrees.<｜end▁of▁sentence｜>'
        "<｜User｜>Thanks<｜Assistant｜><think>\n"
    ),
    ("generation", "turns"): (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|end|>\n<|im_end|>2"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    ),
}


@pytest.mark.parametrize(("name", "conversation"), TEXTS)
def test_the_text_itself(name: str, conversation: str) -> None:
    assert render(name, CONVERSATIONS[conversation]) == TEXTS[name, conversation]


def test_tools_are_written_as_json() -> None:
    line = json.dumps(TOOLS[0], ensure_ascii=False)
    assert f"<tools>\n{line}\n</tools>" in render("qwen2_5", USER, TOOLS)
    assert f"<tools>\n{line}\n</tools>" in render("qwen3", USER, TOOLS)
    assert json.dumps(TOOLS[0], ensure_ascii=False, indent=4) in render("llama3", USER, TOOLS)
    assert '[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "weather"' in render(
        "mistral", USER, TOOLS
    )


@pytest.mark.parametrize("arguments", [ROME, json.dumps(ROME)])
@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2_5", "qwen3", "deepseek_r1"])
def test_arguments_are_the_same_as_an_object_and_as_json(name: str, arguments: Any) -> None:
    messages = [CALLED[0], message("assistant", None, tool_calls=[call(arguments)]), CALLED[2]]
    text = render(name, messages)
    assert '{"city": "Rome", "days": 2}' in text
    assert text == render(name, CALLED)


def test_arguments_that_are_no_json_stay_a_text() -> None:
    messages = [CALLED[0], message("assistant", None, tool_calls=[call("Rome?")]), CALLED[2]]
    assert '"arguments": Rome?}' in render("qwen3", messages)
    assert "```json\nRome?\n```" in render("deepseek_r1", messages)


@pytest.mark.parametrize("content", [None, ""])
def test_calls_without_a_text(content: str | None) -> None:
    """DeepSeek tells them by a content that is none."""
    messages = [CALLED[0], message("assistant", content, tool_calls=[call(ROME)]), CALLED[2]]
    for name in ("llama3", "mistral", "qwen2_5", "qwen3", "deepseek_r1"):
        assert render(name, messages) == render(name, CALLED)
        assert "weather" in render(name, messages)


@pytest.mark.parametrize(
    ("name", "messages", "reason"),
    [
        ("gemma2", WITH_SYSTEM, "System role not supported"),
        ("gemma2", [*USER, *USER], "roles must alternate"),
        ("gemma3", [*USER, *USER], "roles must alternate"),
        ("mistral", [*USER, *USER], "roles must alternate user/assistant/user/assistant/"),
        ("mistral", [*TURNS, WITH_SYSTEM[0]], "Only user and assistant roles are supported"),
        (
            "mistral",
            [CALLED[0], {**CALLED[1], "tool_calls": [{**call(ROME), "id": "1"}]}],
            "length 9",
        ),
        ("llama3", CONVERSATIONS["two calls"], "only supports single tool-calls"),
    ],
)
def test_what_a_template_refuses_is_said_in_its_words(
    name: str, messages: Messages, reason: str
) -> None:
    with pytest.raises(OctavoError, match=reason) as caught:
        render(name, messages)
    assert caught.value.code == "template.invalid"
    assert caught.value.hint
    assert caught.value.message.endswith((f"{reason}.", "/...", "!"))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true) }}", '{"a": "é", "b": 1}'),
        ("{{ ['é'] | tojson(ensure_ascii=true) }}", '["\\u00e9"]'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ messages[0].missing is defined }}{{ messages[0].get('missing', 7) }}", "False7"),
        ("{% set x = messages | map(attribute='role') | join(',') %}{{ x }}", "user"),
        ("{{ (messages | selectattr('role', 'equalto', 'user') | list | length) }}", "1"),
        ("{{ messages[-1].content | replace('H', 'J') | trim | upper }}", "JÉ <B>?"),
        ("{% for k, v in messages[0] | dictsort %}{{ k }};{% endfor %}", "content;role;"),
        ("{% for m in messages %}{{ loop.first and loop.last }}{% else %}x{% endfor %}", "True"),
        ("{%- macro f(a, b=2) -%} {{ a + b }} {%- endmacro -%} {{ f(1) }}", "3"),
        ("{{ namespace(a=[]).a + [1] }}", "[1]"),
        ("{{ '%s: %d' | string }}{{ 7 // 2 }}{{ -7 % 3 }}", "%s: %d32"),
    ],
)
def test_small_idioms(source: str, text: str) -> None:
    assert ChatTemplate(source, BOS, EOS).render(USER) == text
    assert reference(source, USER, None, True) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ [1] | tojson(indent='" + " " * 999_999 + "') }}",
        "{{ [1, 2] | tojson(separators=('a' * 60000, 'b')) }}",
        "{% generation %}{% for i in range(999999) %}{% endfor %}{% endgeneration %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% continue %}{% endfor %}"
        "{% endfor %}",
        "{% for c in messages[0].tool_calls %}{% for i in range(999999) %}"
        "{{ c.function.arguments.update({'a': 1}) }}{% endfor %}{% endfor %}",
        "{{ messages[0].tool_calls[0].function.arguments.update({'a': 1}) }}",
        "{{ messages[0].tool_calls[0].function.arguments.__class__.__mro__ }}",
    ],
    ids=lambda source: source[:40],
)
def test_limits_hold_here_too(source: str) -> None:
    with pytest.raises(OctavoError) as caught:
        ChatTemplate(source, "", "").render([CALLED[1]])
    assert caught.value.code == "template.invalid"
