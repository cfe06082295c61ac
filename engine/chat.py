"""Chat messages -> prompt text, by the template that came with the model.

A template is a program from an untrusted file: it runs in jinja2's immutable sandbox, a budget
bounds its loops and calls, and what could make huge texts out of short ones is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import OctavoError

MAX_TEMPLATE = 1 << 18  # characters
MAX_OUTPUT = 1 << 24  # characters
MAX_REPEATED = 1 << 16  # elements that * may make
MAX_STEPS = 1 << 18  # loop rounds and calls
MAX_INDENT = 16
# Names by which loops and concatenations pass through the budget; no template can spell them.
_COUNTED = "octavo counted"
_SIZED = "octavo sized"
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^}]*\{")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self._source = source
        self._environment = _Environment()
        self._specials = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = self._environment.from_string(self._environment.counted(self._source))
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
        self._environment.steps_left = MAX_STEPS
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=[_with_arguments(message) for message in messages],
                tools=tools,
                documents=None,  # templates ask whether it is none, not whether it is defined
                add_generation_prompt=add_generation_prompt,
                **self._specials,
            ):
                size += len(piece)
                if size > MAX_OUTPUT:
                    raise TemplateError("the prompt is too long")
                pieces.append(piece)
        except Exception as error:  # whatever a template does wrong is the template's failure
            _fail(error)
        return "".join(pieces)


class _Arguments(dict[str, Any]):
    """Arguments of a tool call: a dict for templates that look into it or make JSON of it, and
    JSON for those that add it to a text, as they would add OpenAI's."""

    def __str__(self) -> str:
        return _to_json(self)

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


class _Generation(Extension):
    """``{% generation %}``: a mark for training that changes nothing in the text; what is set
    within it stays within it."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with the functions that chat templates use, and a budget of steps."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.steps_left = MAX_STEPS
        for name in ("center", "format", "indent"):
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.filters[_COUNTED] = self._counted
        self.filters[_SIZED] = _sized
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def counted(self, source: str) -> nodes.Template:
        """The parsed template with loops made to count rounds and ``~`` to check sizes."""
        if len(source) > MAX_TEMPLATE:
            raise TemplateError(f"it is longer than {MAX_TEMPLATE} characters")
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = self._filtered(loop.iter, _COUNTED)
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [self._filtered(part, _SIZED) for part in concat.nodes]
        return tree

    def _filtered(self, expression: nodes.Node, name: str) -> nodes.Filter:
        return nodes.Filter(
            expression, name, [], [], None, None, lineno=expression.lineno, environment=self
        )

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call of a template comes through here."""
        self._step()
        _check_method(__obj)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators that could make huge results out of short templates."""
        if operator == "**":
            raise TemplateError("powers are not allowed")
        if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise TemplateError("a format is too wide")
        if operator == "*" and _product_size(left, right) > MAX_REPEATED:
            raise TemplateError("a repetition is too long")
        return super().call_binop(context, operator, _sized(left), _sized(right))

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._step()
            yield item

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TemplateError("it runs for too long")


def _sized(value: Any) -> Any:
    """``value``, if it is short enough to build something longer from."""
    if isinstance(value, str | list | tuple) and len(value) > MAX_OUTPUT:
        raise TemplateError("a text is too long")
    return value


def _check_method(method: Any) -> None:
    """Refuse the string methods that pad to any width."""
    method = getattr(method, "__wrapped__", method)  # the sandbox wraps str.format
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if not isinstance(text, str):
        return
    if name in _PADDING:
        raise TemplateError(f"the method {name} is not allowed")
    if name.startswith("format") and _WIDE_FORMAT.search(text):
        raise TemplateError("a format is too wide")


def _product_size(left: Any, right: Any) -> int:
    """Elements of a sequence times a number; products of plain numbers count by their bits."""
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() + right.bit_length()
    if isinstance(right, int) and hasattr(left, "__len__"):
        return len(left) * right
    if isinstance(left, int) and hasattr(right, "__len__"):
        return left * len(right)
    return 0


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which would change the prompt."""
    if indent is not None and not (isinstance(indent, int) and indent <= MAX_INDENT):
        raise TemplateError("the JSON is indented too far")
    if separators and any(len(separator) > MAX_INDENT for separator in separators):
        raise TemplateError("the JSON's separators are too long")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
