"""Messages that no page should send, between good ones: each gets one error with a stable code and
its own id, and what is asked for beside it and after it works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CODES
from engine.worker import NO_ID
from tests.tiny import HELLO, SHIP
from tests.unit.worker_client import Client

HUGE = 10**400  # more than a double holds
NUMBERS = (
    st.integers(-5, 5)
    | st.floats()
    | st.sampled_from([HUGE, -HUGE, 2**31, 2**32, 2**53, 2**63, 1e300, float("nan"), float("inf")])
)
TEXTS = st.text(max_size=5) | st.sampled_from(["\ud83d", "a\udc00", "\0", "x" * 20_000, "load"])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
) | st.sampled_from([50, 900]).map(lambda depth: nested(depth))


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def is_whole(low: int, high: int) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value is None or (number and low <= value <= high and value == int(value))

    return check


def is_one_of(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is c or (isinstance(c, str) and value == c) for c in choices)


def is_from(low: float, high: float) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return value is None or (number and low <= value <= high)

    return check


def is_nothing(value: Any) -> bool:
    """JUNK makes no token ids."""
    return value in (None, {})


SAMPLING: dict[str, Callable[[Any], bool]] = {
    "temperature": is_from(0, 100),
    "seed": is_whole(0, 2**32 - 1),
    "top_k": is_whole(0, 1 << 20),
    "top_p": is_from(1e-6, 1),
    "min_p": is_from(0, 1),
    "repetition_penalty": is_from(0.01, 100),
    "presence_penalty": is_from(-100, 100),
    "frequency_penalty": is_from(-100, 100),
    "logit_bias": is_nothing,
    "logprobs": is_one_of(None, True, False),
    "top_logprobs": is_whole(0, 0),
    "context_full": is_one_of(None, "", "stop", "slide"),
    "response_format": is_one_of(None),
}


def is_stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return value is None or (
        isinstance(stops, list)
        and len(stops) <= 16
        and all(isinstance(stop, str) and 0 < len(stop) <= 1024 for stop in stops)
    )


def is_ids(value: Any) -> bool:
    is_id = is_whole(0, 500)
    return isinstance(value, list) and all(id is not None and is_id(id) for id in value)


# What each field may be; everything else is wrong.
FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "generate": {
        "messages": lambda value: False,  # of what JUNK makes
        "prompt": lambda value: value is None,  # messages are there
        "continues": lambda value: value is None,  # there is nothing to continue
        "continue_final_message": is_one_of(None, False),  # the last one is a question
        "model": is_one_of(None, ""),  # the default one is loaded
        "max_tokens": is_whole(1, 1 << 20),
        "stop": is_stop,
        **SAMPLING,
    },
    "load": {
        "model": lambda value: value is None or isinstance(value, str),
        "device": is_one_of(None, "", "auto", "gpu", "cpu"),
        "context": is_whole(16, 1 << 17),
        "activations": is_one_of(None, "", "auto", "f32", "q16", "q8"),
        "kv_tokens": is_whole(16, 1 << 20),
        "kv_bytes": is_whole(1, 1 << 40),
        "kv_precision": is_one_of(None, "", "f16", "q8"),
        "memory_bytes": is_whole(1, 1 << 40),
        "tune": is_one_of(None, True, False),
    },
    "measure": {
        "prefill": is_whole(1, 1 << 20),
        "context": is_whole(1, 1 << 20),
        "steps": is_whole(1, 1 << 20),
        "scattered": is_one_of(None, True, False),
        "model": is_one_of(None, ""),
        **SAMPLING,
    },
    "inspect": {
        "messages": lambda value: False,
        "prompt": lambda value: value is None,
        "top": is_whole(1, 100),
        "model": is_one_of(None, ""),
    },
    "stop": {"target": is_whole(0, 2**53 - 1)},
    "unload": {"model": is_one_of(None, "")},
    "tokenize": {"text": lambda value: isinstance(value, str), "model": is_one_of(None, "")},
    "detokenize": {"ids": is_ids, "model": is_one_of(None, "")},
}
GOOD: dict[str, dict[str, Any]] = {
    "generate": {"messages": HELLO, "max_tokens": 8},
    "load": {},
    "measure": {"prefill": 2, "context": 2, "steps": 2},
    "inspect": {"messages": HELLO},
    "stop": {"target": 0},
    "unload": {"model": ""},
    "tokenize": {"text": "Hello"},
    "detokenize": {"ids": [1, 2]},
}
WHOLE_ID = is_whole(0, 2**53 - 1)


@st.composite
def wrong_fields(draw: st.DrawFn) -> dict[str, Any]:
    """A request that is right but for one field."""
    kind = draw(st.sampled_from(sorted(FIELDS)))
    field = draw(st.sampled_from(sorted(FIELDS[kind])))
    value = draw(JUNK.filter(lambda value: not FIELDS[kind][field](value)))
    return {"kind": kind, **GOOD[kind], field: value}


@st.composite
def wrong_entries(draw: st.DrawFn) -> dict[str, Any]:
    """A conversation with one entry that is none."""
    right = {"role": "user", "content": "Hello"}
    wrong = draw(JUNK | st.fixed_dictionaries({"role": JUNK, "content": JUNK.filter(not_text)}))
    at = draw(st.integers(0, 2))
    return {"kind": "generate", "messages": [right] * at + [wrong] + [right] * (2 - at)}


def not_text(value: Any) -> bool:
    return not isinstance(value, str)


unknown_kinds = st.fixed_dictionaries(
    {"kind": JUNK.filter(lambda kind: not isinstance(kind, str) or kind not in KINDS)}
) | st.just({})
KINDS = (
    "load",
    "generate",
    "stop",
    "reset",
    "status",
    "unload",
    "measure",
    "inspect",
    "tokenize",
    "detokenize",
)
missing = st.sampled_from(
    [{"kind": "generate"}, {"kind": "generate", "max_tokens": 3}, {"kind": "generate", "stop": []}]
)
bad_requests = wrong_fields() | wrong_entries() | unknown_kinds | missing
bad_ids = JUNK.filter(lambda id: id is None or not WHOLE_ID(id))
bad_texts = (
    st.text(max_size=8).filter(lambda text: not is_request(text))
    | st.sampled_from(["", "{", '{"id":1', "[" * 100_000, '{"id":' * 5_000, "9" * 5_000, '"\\'])
    | JUNK.map(json.dumps).filter(lambda text: not is_request(text))
)


def is_request(text: str) -> bool:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(message, dict) and WHOLE_ID(message.get("id", ""))


@dataclass
class Bad:
    """A bad message: its text without an id of its own, or what to send under an id."""

    text: str | None = None
    request: dict[str, Any] | None = None


bad_messages = (
    bad_texts.map(lambda text: Bad(text=text))
    | st.tuples(bad_ids, bad_requests).map(
        lambda pair: Bad(text=json.dumps({"id": pair[0], **pair[1]}))
    )
    | bad_requests.map(lambda request: Bad(request=request))
)


class Fuzzed(Client):
    """A client that knows how many errors it should have got, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[int, int] = {}

    def send_bad(self, bad: Bad) -> None:
        if bad.text is None:
            self._id += 1
            self.owe(self._id, json.dumps({"id": self._id, **(bad.request or {})}))
        else:
            self.owe(NO_ID, bad.text)

    def owe(self, id: int, text: str) -> None:
        self.due[id] = self.due.get(id, 0) + 1
        self.worker.handle(text)

    def errors(self) -> dict[int, int]:
        """Errors that came, by id; each says something that a program and a person understand."""
        came: dict[int, int] = {}
        for message in self.messages:
            if message["kind"] == "error":
                error = message["error"]
                assert error["code"] in set(CODES) - {"internal"}, error
                assert error["message"] and len(error["message"]) < 1000
                came[message["id"]] = came.get(message["id"], 0) + 1
        return came

    def finals(self, id: int) -> int:
        return sum(m["id"] == id and m["kind"] in ("result", "error") for m in self.messages)


@settings(max_examples=200, deadline=None)
@given(st.lists(bad_messages, min_size=1, max_size=6), st.data())
def test_each_bad_message_gets_one_error_and_good_ones_their_answers(
    bad: list[Bad], data: st.DataObject
) -> None:
    async def run() -> None:
        client = Fuzzed()
        at_load = data.draw(st.integers(0, len(bad)))
        good = []
        for i, message in enumerate(bad):
            if i == at_load:
                await client.ask("load")
            client.send_bad(message)
            if i >= at_load and data.draw(st.booleans()):
                good.append(client.send("generate", messages=HELLO, max_tokens=9))
            if data.draw(st.booleans()):
                await asyncio.sleep(0)
        if at_load == len(bad):
            await client.ask("load")
        assert (await client.ask("status"))["value"]["state"] in ("ready", "generating")
        good.append(client.send("generate", messages=HELLO, max_tokens=9))
        for id in good:
            assert (await client.ended(id))["value"]["ids"] == SHIP["ids"][:9]
        while client.worker._tasks:
            await asyncio.sleep(0)
        assert client.errors() == client.due
        assert all(client.finals(id) == n for id, n in client.due.items()), "no result beside it"
        assert (await client.ask("unload"))["value"] == {}

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_is_under_way_is_refused_and_what_has_it_goes_on(kind: str) -> None:
    async def run() -> None:
        client = Fuzzed()
        await client.ask("load")
        id = client.send("generate", messages=HELLO, max_tokens=60)
        client.owe(id, json.dumps({"id": id, "kind": kind, "messages": HELLO}))
        await asyncio.sleep(0)
        assert client.errors() == {id: 1}
        while client.finals(id) < 2:
            await asyncio.sleep(0)
        assert (await client.ask("status"))["value"]["state"] == "ready"
        result = next(m for m in client.messages if m["id"] == id and m["kind"] == "result")
        assert result["value"]["ids"] == SHIP["ids"][:60]

    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_id_that_has_ended_can_be_used_again() -> None:
    async def run() -> None:
        client = Fuzzed()
        await client.ask("load")
        for count in (5, 9):
            client.messages.clear()
            client._id = 100
            answer = await client.ask("generate", messages=HELLO, max_tokens=count)
            assert answer["value"]["ids"] == SHIP["ids"][:count]
        rest = await client.ask("generate", continues=101, max_tokens=9)
        assert rest["value"]["ids"] == SHIP["ids"][9:18], "the later answer goes on"

        client.messages.clear()
        client._id = 100
        stop = SHIP["text"][0]
        answer = await client.ask("generate", messages=HELLO, stop=stop)
        assert answer["value"]["finish_reason"] == "stop"
        rest = await client.ask("generate", continues=101)
        assert rest["error"]["code"] == "request.invalid", "it ended for good"

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\\ud800", "9" * 5000])
def test_what_cannot_be_read_is_answered_under_the_id_that_its_sender_knows(text: str) -> None:
    async def run() -> None:
        client = Fuzzed()
        client.due[7] = 1
        client.worker.handle(text, 7)
        assert (await client.ended(7))["error"]["code"] == "request.invalid"
        assert client.errors() == client.due

    asyncio.run(asyncio.wait_for(run(), 30))


def test_other_fields_of_a_conversation_are_passed_over() -> None:
    async def run() -> None:
        client = Fuzzed()
        await client.ask("load")
        messages = [{**HELLO[0], "extra": 7, "refusal": None, "": [HUGE], "\ud800": {}}]
        answer = await client.ask("generate", messages=messages, max_tokens=9)
        assert answer["value"]["ids"] == SHIP["ids"][:9]

    asyncio.run(asyncio.wait_for(run(), 30))
