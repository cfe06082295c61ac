"""Chat templates, conversations, and how Hugging Face transformers renders them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Messages = list[dict[str, Any]]
SOURCES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
BOS, EOS = "<s>", "</s>"
DAY = datetime(2026, 3, 9)


class Tracker(Extension):
    """``{% generation %}`` as transformers has it: a call of a block."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_generate")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _generate(self, caller: Any) -> str:
        return str(caller())


def reference(source: str, messages: Messages, tools: Any, prompt: bool) -> str:
    """What transformers' ``apply_chat_template`` makes of it."""

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        x: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None,
        sort_keys: Any = False,
    ) -> str:  # fmt: skip
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Tracker, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = DAY.strftime
    return environment.from_string(source).render(
        messages=messages,
        tools=tools,
        documents=None,
        add_generation_prompt=prompt,
        bos_token=BOS,
        eos_token=EOS,
    )


def message(role: str, content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(arguments: Any, name: str = "weather") -> dict[str, Any]:
    return {
        "id": "call00001",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


USER = [message("user", " Hé <b>? ")]
TURNS = [message("user", "Hi"), message("assistant", "Hello."), message("user", "Bye")]
WITH_SYSTEM = [message("system", "Be brief."), *TURNS]
THOUGHT = [
    message("user", "Hi"),
    message("assistant", "<think>\nHm.\n</think>\n\nHello."),
    message("user", "Bye"),
]
ROME = {"city": "Rome", "days": 2}
CALLED = [
    message("user", "Weather?"),
    message("assistant", None, tool_calls=[call(ROME)]),
    message("tool", '{"t": 18}', tool_call_id="call00001", name="weather"),
]
GO_ON = [*CALLED, message("assistant", "18 degrees."), message("user", "Thanks")]
CONVERSATIONS = {
    "user": USER,
    "turns": TURNS,
    "system": WITH_SYSTEM,
    "thought": THOUGHT,
    "called": CALLED,
    "go on": GO_ON,
    "two users": [*USER, *USER],
    "two calls": [
        CALLED[0],
        message("assistant", "Wait.", tool_calls=[call(ROME), call({}, "time")]),
        *CALLED[2:] * 2,
    ],
    "reasoned": [
        CALLED[0],
        {**CALLED[1], "reasoning_content": "I need it."},
        CALLED[2],
    ],
}
