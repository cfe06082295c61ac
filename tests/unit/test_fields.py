"""What a request may say: the protocol, the client's types and the engine agree, and a slip of the
pen is refused."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest
from openai.resources import chat, completions, embeddings

from engine.errors import OctavoError
from engine.fields import FIELDS, HINTS, NEUTRAL, TAKEN_BEFORE, check_request
from tests.conftest import ROOT
from tests.tiny import HELLO, SHIP
from tests.unit.worker_client import Client

IDS = {"id", "kind"}
SPOKEN = {  # by the kind of a request, the types that say what it has
    "load": ["LoadRequest"],
    "generate": ["GenerateFields", "Sampling"],
    "measure": ["MeasureSizes", "Sampling"],
    "inspect": ["InspectRequest"],
    "embed": ["EmbedRequest"],
}
OPTIONS = {  # and those of the client
    "load": ["LoadOptions"],
    "generate": ["CompletionOptions", "TextFields"],
    "inspect": ["InspectOptions"],
    "embed": ["EmbeddingOptions"],
}


def properties(path: str, names: list[str], *, needed: bool = False) -> set[str]:
    """Of types that are written down one property a line; those that may not be absent."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found: set[str] = set()
    for name in names:
        body = text.split(f"@typedef {{object}} {name}", 1)[1].split("@typedef", 1)[0]
        pairs = re.findall(r"@property \{.*?\}[\s*]+(\[?)(\w+)\]?(?: |$)", body, re.DOTALL | re.M)
        found |= {name for optional, name in pairs if not (needed and optional)}
    assert found
    return found


@pytest.mark.parametrize("kind", SPOKEN)
def test_the_protocol_says_what_may_be_said(kind: str) -> None:
    said = properties("worker/protocol.mjs", SPOKEN[kind]) - IDS
    assert said - set(FIELDS[kind]) <= {"keep"}, "the worker's JavaScript takes that"
    assert set(FIELDS[kind]) <= said


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_clients_types_say_what_may_be_said(kind: str) -> None:
    said = properties("web/types.mjs", OPTIONS[kind])
    may = set(FIELDS[kind]) | set(TAKEN_BEFORE[kind])
    assert said <= may
    assert may - said <= {"share", "workerUrl"}, "those are the constructor's"


@pytest.mark.parametrize(
    ("kind", "create", "lacking"),
    [
        ("generate", chat.completions.Completions.create, set()),
        ("generate", completions.Completions.create, set()),
        ("embed", embeddings.Embeddings.create, {"dimensions"}),
    ],
)
def test_openais_options_are_known(kind: str, create: Any, lacking: set[str]) -> None:
    """All that its client can say is taken, refused where it would change the answer, or a hint."""
    said = set(inspect.signature(create).parameters) - {"self", "timeout"}
    said = {name for name in said if not name.startswith("extra_")}
    neutral = set(NEUTRAL) if kind == "generate" else set()
    assert said - {*FIELDS[kind], *TAKEN_BEFORE[kind], *HINTS[kind], *neutral} == lacking


@pytest.mark.parametrize("name", sorted(HINTS["generate"]))
def test_hints_mean_nothing(name: str) -> None:
    for value in ("low", 3, {"a": ["b"]}, None):
        check_request("generate", {"id": 1, "kind": "generate", "messages": [], name: value})
    with pytest.raises(OctavoError, match="is unknown"):
        check_request("measure", {"id": 1, "kind": "measure", name: "low"})


def test_what_would_change_the_answer_is_refused() -> None:
    harmless = {name: next(iter(values), None) for name, values in NEUTRAL.items()}
    check_request("generate", {"id": 1, "kind": "generate", **harmless})
    other = {
        "tool_choice": "required",
        "functions": [],
        "audio": {},
        "suffix": "",
        "n": 2,
        "echo": True,
    }
    for name, value in other.items():
        with pytest.raises(OctavoError, match=f"{name} is not supported") as caught:
            check_request("generate", {"id": 1, "kind": "generate", name: value})
        assert caught.value.code == "request.invalid"


def test_results_have_what_the_protocol_says() -> None:
    async def run() -> dict[str, dict[str, Any]]:
        client = Client()
        got = {"EngineLoadResult": await client.ask("load")}
        told = {"logprobs": True, "messages": HELLO, "max_tokens": 8}
        got["GenerateResult"] = await client.ask("generate", **told)
        sizes = {"prefill": 8, "context": 8, "steps": 2, "text": "a"}
        got["Measurement"] = await client.ask("measure", **sizes)
        got["Inspection"] = await client.ask("inspect", messages=HELLO)
        got["Status"] = await client.ask("status")
        return {name: reply["value"] for name, reply in got.items()}

    got = asyncio.run(run())
    got |= {
        "DeviceInfo": got["Status"]["device"],
        "ModelInfo": got["Status"]["model"],
        "ModelStatus": got["Status"]["models"][0],
        "KvStatus": got["Status"]["kv"],
        "Usage": got["GenerateResult"]["usage"],
        "Timing": got["GenerateResult"]["timing"],
        "InspectedCall": got["Inspection"]["calls"][0],
    }
    for name, value in got.items():
        needed = properties("worker/protocol.mjs", [name], needed=True)
        assert needed <= set(value) <= properties("worker/protocol.mjs", [name]), name


def test_every_kind_of_request_has_its_fields() -> None:
    assert set(FIELDS) == set(Client().worker._handlers)


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("load", "devcie", "device"),
        ("load", "kv_token", "kv_tokens"),
        ("load", "shrae", "share"),
        ("load", "Context", "context"),
        ("load", "share", ""),
        ("generate", "temprature", "temperature"),
        ("generate", "maxTokens", "max_tokens"),
        ("generate", "singal", "signal"),
        ("generate", "wallpaper", ""),
        ("measure", "step", "steps"),
        ("measure", "max_tokens", ""),
        ("inspect", "promt", "prompt"),
        ("embed", "devise", "device"),
        ("embed", "dimensions", ""),
        ("tokenize", "modle", "model"),
        ("unload", "modle", "model"),
        ("stop", "taget", "target"),
        ("status", "model", ""),
        ("generate", "", ""),
        ("generate", "x" * 100_000, ""),
    ],
)
def test_a_name_that_is_none_is_said_and_what_was_meant(kind: str, name: str, meant: str) -> None:
    with pytest.raises(OctavoError) as caught:
        check_request(kind, {"id": 1, "kind": kind, name: 1})
    assert caught.value.code == "request.invalid"
    shown = f"'{name}'" if len(name) < 80 else "xxx"
    assert shown in caught.value.message and len(caught.value.message) < 200
    found = re.search(r"is '(\w+)' meant\?$", caught.value.message)
    assert (found[1] if found else "") == meant


def test_slips_of_the_pen_change_nothing() -> None:
    asked: list[tuple[str, dict[str, Any]]] = [
        ("load", {"devcie": "cpu"}),
        ("load", {"remote": {"url": "https://example.com", "kye": "secret"}}),
        ("unload", {"modle": "other"}),
        ("reset", {"model": ""}),
        ("stop", {"id_of": 3}),
        ("generate", {"messages": HELLO, "temprature": 1}),
        ("measure", {"prefil": 5}),
        ("embed", {"model": "encoder", "input": "a", "dimensions": 5}),
    ]

    async def run() -> None:
        client = Client()
        await client.ask("load")
        await client.ask("generate", messages=HELLO, max_tokens=8)
        for kind, content in asked:
            error = (await client.ask(kind, **content))["error"]
            assert error["code"] == "request.invalid"
            assert "secret" not in error["message"]
        good = (await client.ask("generate", messages=HELLO, max_tokens=8))["value"]
        assert good["ids"] == SHIP["ids"][:8]
        assert good["usage"]["cached_tokens"] > 0, "nothing was unloaded or forgotten"

    asyncio.run(run())
