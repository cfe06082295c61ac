"""Chat messages -> prompt text, by the template that came with the model.

A template is a program from an untrusted file: it runs in a sandbox (``engine.sandbox``), where a
budget bounds its time and its memory.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError

from engine.errors import OctavoError
from engine.sandbox import Sandbox

MAX_TEMPLATE = 1 << 18  # characters
MAX_DATE = 100  # characters of a date's pattern


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self._source = source
        self._sandbox = Sandbox()
        self._sandbox.globals["raise_exception"] = _raise_exception
        self._sandbox.globals["strftime_now"] = _strftime_now
        self._specials = {"bos_token": bos, "eos_token": eos}
        try:
            _check_source(self._source)
            self._template = self._sandbox.from_string(self._sandbox.priced(self._source))
        except Exception as error:  # a hostile template can break the compiler in any way
            _fail(error)

    def mentions(self, name: str) -> bool:
        """Whether the template's text contains ``name``."""
        return name in self._source

    def render(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt for ``messages`` and ``tools`` in OpenAI's shape; raises template.invalid."""
        self._sandbox.budget.reset()
        try:
            return self._template.render(
                messages=[_with_arguments(message) for message in messages],
                tools=tools,
                documents=None,  # templates ask whether it is none, not whether it is defined
                add_generation_prompt=add_generation_prompt,
                **self._specials,
            )
        except Exception as error:  # whatever a template does wrong is the template's failure
            _fail(error)


class _Arguments(dict[str, Any]):
    """Arguments of a tool call: a dict for templates that look into it or make JSON of it, and
    JSON for those that add it to a text, as they would add OpenAI's."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its tool calls as templates take them."""
    if not message.get("tool_calls"):
        return message
    calls = [{**c, "function": _prepared(c["function"])} for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _prepared(function: dict[str, Any]) -> dict[str, Any]:
    given = function["arguments"]
    return {**function, "arguments": _Arguments(given) if isinstance(given, dict) else given}


def _fail(error: Exception) -> NoReturn:
    reason = (str(error) or type(error).__name__)[:300]
    end = "" if reason.endswith((".", "!", "?")) else "."
    raise OctavoError(
        "template.invalid",
        f"The chat template failed: {reason}{end}",
        "The model may want the messages in another order, or its template may be broken.",
    ) from error


def _check_source(source: Any) -> None:
    if not isinstance(source, str):
        raise TemplateError("it is no text")
    if len(source) > MAX_TEMPLATE:
        raise TemplateError(f"it is longer than {MAX_TEMPLATE} characters")


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(message if isinstance(message, str) else type(message).__name__)


def _strftime_now(pattern: str) -> str:
    # The C library would pad to any width that a pattern gives.
    if len(pattern) > MAX_DATE or re.search(r"%[-_0^#+:]*\d", pattern):
        raise TemplateError("the pattern of a date is too long")
    return datetime.now().strftime(pattern)
