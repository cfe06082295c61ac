"""Messages and tools of a request: what is right passes, what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import OctavoError
from engine.messages import check_messages, check_tools

USER = {"role": "user", "content": "What is the weather in Rome?"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def called(**function: Any) -> dict[str, Any]:
    entry = {"id": "call_1", "type": "function", "function": {"name": "weather", **function}}
    return {"role": "assistant", "content": None, "tool_calls": [entry]}


def checked(*messages: Any) -> list[dict[str, Any]]:
    return check_messages({"messages": list(messages)})


def test_a_conversation_with_a_tool_passes() -> None:
    result = {"role": "tool", "content": "18 degrees", "tool_call_id": "call_1", "name": "weather"}
    messages = [
        {"role": "system", "content": ""},
        {**USER, "name": "Ann"},
        called(arguments={"city": "Rome"}),
        result,
    ]
    assert checked(*messages) == messages


@pytest.mark.parametrize(
    ("given_arguments", "arguments"),
    [
        ('{"city": "Rome", "n": [1]}', {"city": "Rome", "n": [1]}),
        ({"city": "Rome"}, {"city": "Rome"}),
        ("{}", {}),
        ("", ""),
        ("city=Rome", "city=Rome"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_an_object_where_they_parse(given_arguments: Any, arguments: Any) -> None:
    (message,) = checked(called(arguments=given_arguments))
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_what_says_nothing_is_left_out() -> None:
    calls = called(arguments={})
    del calls["tool_calls"][0]["id"], calls["tool_calls"][0]["type"]
    given_messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "a", "tool_calls": [], "reasoning_content": ""},
        {"role": "assistant", "content": "b", "tool_calls": None, "reasoning_content": "c"},
        {**calls, "content": ""},
        {"role": "user", "content": "d", "name": None, "reasoning_content": "e", "other": 7},
    ]
    function = {"name": "weather", "arguments": {}}
    assert checked(*given_messages) == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "c"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "user", "content": "d"},
    ]
    assert check_tools({"tools": []}) is check_tools({"tools": None}) is check_tools({}) is None


def test_a_developer_is_the_system() -> None:
    told = {"role": "developer", "content": "Be brief."}
    assert checked(told, USER) == [{**told, "role": "system"}, USER]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hello", "messages"),
        ([7], "messages[0]"),
        ([USER, {"content": "a"}], "messages[1].role"),
        ([{**USER, "role": "wizard"}], "messages[0].role"),
        ([{**USER, "role": ["user"]}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "tool", "content": {}}], "messages[0].content"),
        ([{**called(arguments={}), "content": 7}], "messages[0].content"),
        ([{**USER, "name": 7}], "messages[0].name"),
        ([{"role": "tool", "content": "", "tool_call_id": 7}], "messages[0].tool_call_id"),
        (
            [{"role": "assistant", "content": "", "reasoning_content": []}],
            "messages[0].reasoning_content",
        ),
        ([{"role": "assistant", "content": "", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{**called(), "tool_calls": [7]}], "messages[0].tool_calls[0]"),
        ([{**called(), "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{**called(), "tool_calls": [{"type": "code", "function": {}}]}],
            "messages[0].tool_calls[0].type",
        ),
        (
            [{**called(), "tool_calls": [{"id": 7, "function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].id",
        ),
        ([called(name="", arguments={})], "messages[0].tool_calls[0].function.name"),
        ([called()], "messages[0].tool_calls[0].function.arguments"),
        ([called(arguments=[1])], "messages[0].tool_calls[0].function.arguments"),
        (
            [called(arguments=json.loads('{"a":' * 70 + "1" + "}" * 70))],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [called(arguments='{"a":' * 70 + "1" + "}" * 70)],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_wrong_field_of_a_message_is_named(messages: Any, field: str) -> None:
    with pytest.raises(OctavoError) as caught:
        check_messages({"messages": messages})
    assert caught.value.code == "request.invalid"
    assert caught.value.message.split()[0] == field


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ({}, "tools"),
        ([7], "tools[0]"),
        ([TOOL, {}], "tools[1].function"),
        ([{**TOOL, "type": "retrieval"}], "tools[0].type"),
        ([{"function": {}}], "tools[0].function.name"),
        ([{"function": {"name": "f", "parameters": json.loads("[" * 99 + "]" * 99)}}], "tools[0]"),
    ],
)
def test_a_wrong_field_of_a_tool_is_named(tools: Any, field: str) -> None:
    with pytest.raises(OctavoError) as caught:
        check_tools({"tools": tools})
    assert caught.value.code == "request.invalid"
    assert caught.value.message.split()[0] == field


def test_tools_pass_as_they_are() -> None:
    assert check_tools({"tools": [TOOL]}) == [TOOL]


@pytest.mark.parametrize(
    ("last", "is_empty"),
    [
        ({"role": "user", "content": " \n"}, True),
        ({"role": "assistant", "content": ""}, True),
        ({"role": "tool", "content": ""}, False),
        (called(arguments={}), False),
        (USER, False),
    ],
)
def test_a_last_message_without_a_text(last: dict[str, Any], is_empty: bool) -> None:
    if not is_empty:
        assert checked(USER, last)
        return
    with pytest.raises(OctavoError) as caught:
        checked(USER, last)
    assert caught.value.code == "prompt.empty"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "function", "name", "arguments", "type"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from(["messages", "tools"]))
def test_anything_else_is_an_error_with_a_code(value: Any, field: str) -> None:
    try:
        check_messages({field: value})
        check_tools({field: value})
    except OctavoError as error:
        assert error.code in ("request.invalid", "prompt.empty")
