"""Requests that came as JSON, and their messages and tools, in OpenAI's shape, with their checks.

A checked message has these fields and no others, each only where it says something:

    role               "system", "user", "assistant" or "tool"
    content            text; None in an assistant message that only calls tools
    name               text
    reasoning_content  text, in an assistant message: its think part
    tool_calls         in an assistant message: [{id?, type, function: {name, arguments}}], the
                       arguments a dict, or a text that is no JSON object
    tool_call_id       text, in a tool message
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import OctavoError, wrong_field

ROLES = ("system", "user", "assistant", "tool")
MAX_DEPTH = 64  # of JSON in arguments and tools


def parse_request(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text is. Raises request.invalid."""
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OctavoError("request.invalid", f"A request should be JSON: {error}.") from error
    if not isinstance(request, dict):
        raise OctavoError("request.invalid", "A request should be an object.")
    return request


def check_messages(request: Mapping[str, Any], goes_on: bool = False) -> list[dict[str, Any]]:
    """The ``messages`` of a request; with ``goes_on``, the last one is the beginning of the answer.
    Raises request.invalid, which names the field, or prompt.empty if the last one says nothing."""
    messages = [
        _message(message, f"messages[{i}]")
        for i, message in enumerate(_list(request.get("messages"), "messages"))
    ]
    if not messages or _says_nothing(messages[-1], goes_on):
        raise OctavoError("prompt.empty", hint="Type a message first.")
    last = messages[-1]
    if goes_on and (last["role"] != "assistant" or "tool_calls" in last):
        wanted = "the assistant's, without tool_calls: it is to go on"
        raise wrong_field(f"messages[{len(messages) - 1}]", wanted, request["messages"][-1])
    return messages


def check_tools(request: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The ``tools`` of a request, [{type: "function", function: {name, ...}}]; None without one.
    Raises request.invalid, which names the field."""
    if request.get("tools") is None:
        return None
    tools = _list(request["tools"], "tools")
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        _function(_object(tool, where), where)
        _check_depth(tool, where)
    return tools or None


def _says_nothing(message: dict[str, Any], goes_on: bool) -> bool:
    """A tool may well answer with nothing, and an answer that goes on may still be thinking."""
    speaks = message["role"] == "tool" or "tool_calls" in message
    speaks = speaks or (goes_on and "reasoning_content" in message)
    return not speaks and not message["content"].strip()


def _message(value: Any, where: str) -> dict[str, Any]:
    message = _object(value, where)
    role = message.get("role")
    role = "system" if role == "developer" else role  # OpenAI's newer name
    if role not in ROLES:
        raise wrong_field(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    checked: dict[str, Any] = {"role": role, "content": message.get("content")}
    _optional_texts(checked, message, where, "name")
    if role == "tool":
        _optional_texts(checked, message, where, "tool_call_id")
    if role == "assistant":
        _optional_texts(checked, message, where, "reasoning_content")
        calls = message.get("tool_calls")
        if calls is not None and _list(calls, f"{where}.tool_calls"):
            checked["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
            ]
    if "tool_calls" in checked and not checked["content"]:
        checked["content"] = None  # some templates tell calls by that
    if "tool_calls" not in checked or checked["content"] is not None:
        _text(checked["content"], f"{where}.content")
    return checked


def _optional_texts(
    checked: dict[str, Any], message: dict[str, Any], where: str, field: str
) -> None:
    if message.get(field) not in (None, ""):
        checked[field] = _text(message[field], f"{where}.{field}")


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    call = _object(value, where)
    function = _function(call, where)
    checked: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": _arguments(function.get("arguments"), f"{where}.function.arguments"),
        },
    }
    _optional_texts(checked, call, where, "id")
    return checked


def _function(entry: dict[str, Any], where: str) -> dict[str, Any]:
    """The function of a tool or of a call."""
    if entry.get("type", "function") != "function":
        raise wrong_field(f"{where}.type", "'function'", entry["type"])
    function = _object(entry.get("function"), f"{where}.function")
    if not _text(function.get("name"), f"{where}.function.name"):
        raise wrong_field(f"{where}.function.name", "a text with characters", "")
    return function


def _arguments(value: Any, where: str) -> dict[str, Any] | str:
    """An object, also out of its JSON; a text that is none stays one."""
    if isinstance(value, dict):
        _check_depth(value, where)
        return value
    text = _text(value, where)
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(parsed, dict):
        return text
    _check_depth(parsed, where)
    return parsed


def _check_depth(value: Any, where: str, left: int = MAX_DEPTH) -> None:
    """What walks through the value later does so recursively."""
    if not left:
        raise OctavoError("request.invalid", f"{where} is nested deeper than {MAX_DEPTH}.")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, where, left - 1)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong_field(where, "a text", value)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_field(where, "a list", value)
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_field(where, "an object", value)
    return value
