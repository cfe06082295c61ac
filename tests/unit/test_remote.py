"""Models on a server: our own `serve --api`, and servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answer import Delta
from engine.backends.base import Device
from engine.config import GenerateConfig, LoadConfig, RemoteConfig
from engine.errors import OctavoError
from engine.events import MAX_EVENT, Events
from engine.host.access import Access
from engine.host.client import Client
from engine.remote import Patience, Remote, RemoteAnswer, request_body
from tests.native import NativeHost
from tests.scripted import CHUNK, END, ScriptedServer, lines
from tests.serving import ENDLESS, ApiServer, until_idle
from tests.tiny import SHIP, TINY

Start = Callable[..., ScriptedServer]
KEY = "sk-a-secret-of-the-tests"
ASK = {"messages": SHIP["messages"], "max_tokens": 40}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("site"), Access(KEY))
    yield server
    server.close()


class Poor(NativeHost):
    """A machine whose devices fail: those named in ``without``."""

    def __init__(self, *without: str) -> None:
        super().__init__(TINY)
        self.without = without
        self.asked: list[str] = []

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        self.asked.append(config.device)
        kind = "gpu" if config.device == "auto" else config.device
        if kind in self.without:
            code = "gpu.limits" if kind == "gpu" else "internal"
            raise OctavoError(code, f"The {kind} has no memory.")
        return await super().open_device(LoadConfig(device="cpu"))


def remote(server: ApiServer, key: str = KEY, **more: str) -> dict[str, Any]:
    return {"url": server.url, "key": key, **more}


def ran(work: Callable[[Client], Awaitable[None]], host: NativeHost | None = None) -> None:
    async def run() -> None:
        await work(Client(host or NativeHost(TINY)))

    asyncio.run(asyncio.wait_for(run(), 100))


async def replies(client: Client, kind: str = "generate", **fields: Any) -> list[dict[str, Any]]:
    asked = client.send(kind, **fields)
    got = [await asked.next()]
    while got[-1]["kind"] != "result":
        got.append(await asked.next())
    return got


# ---- Events -------------------------------------------------------------------------------------


@given(
    parts=st.lists(
        st.sampled_from(
            ["data: a", "data:b", "data", ": note", "event: x", "\n", "\r\n", "\r", "\u2028", "é"]
        )
    ),
    cuts=st.lists(st.integers(0, 60)),
)
def test_events_do_not_depend_on_the_cuts(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts) + "\n\n"
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    events = Events()
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert [e for piece in pieces for e in events.push(piece)] == Events().push(text)


def test_events_are_what_the_standard_says() -> None:
    text = ": hi\r\ndata: a\r\ndata:b\r\rid: 1\n\ndata:  c\nevent: x\n\ndata: {\u2028}\n\ndata: cut"
    assert Events().push(text) == ["a\nb", " c", "{\u2028}"]
    with pytest.raises(OctavoError, match="without an end"):
        Events().push("data: " + "a" * MAX_EVENT)


# ---- Our own server -----------------------------------------------------------------------------


def test_a_remote_model_answers_as_one_here(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        loaded = await client.ask("load", device="remote", remote=remote(server))
        assert loaded["device"]["kind"] == "remote"
        assert loaded["device"]["name"] == server.origin
        assert server.origin in loaded["device"]["reason"]
        assert loaded["model"]["name"] == "tiny" and loaded["memory_bytes"] == 0
        assert (await client.ask("status"))["state"] == "ready"
        got = await replies(client, **ASK)
        deltas, value = got[:-1], got[-1]["value"]
        assert SHIP["text"].startswith(value["text"]) and len(value["text"]) > 60
        assert "".join(delta["text"] for delta in deltas) == value["text"]
        assert {delta["kind"] for delta in deltas} == {"delta"} and len(deltas) > 1
        counts = {"prompt_tokens": len(SHIP["prompt_ids"]), "completion_tokens": 40}
        assert value["usage"] | counts == value["usage"]
        assert value["finish_reason"] == "length" and value["ids"] == []
        status = await client.ask("status")
        assert status["device"] == loaded["device"]
        assert [model["model"] for model in status["models"]] == [""]
        assert KEY not in json.dumps([loaded, got, status])

    ran(work)


def test_stop_breaks_the_request_off() -> None:
    endless = ScriptedServer(cycle([lines(CHUNK), 0.02]))

    async def work(client: Client) -> None:
        await client.ask("load", device="remote", remote={"url": endless.url})
        asked = client.send("generate", **ASK)
        await asked.next()
        asked.stop()
        while (reply := await asked.next())["kind"] != "result":
            pass
        assert reply["value"]["finish_reason"] == "cancelled" and reply["value"]["text"]

    ran(work)
    assert endless.hung_up.wait(10)
    endless.close()


def test_stop_reaches_a_server_that_would_go_on_for_ever(server: ApiServer) -> None:
    """The server itself is told: its context slides."""

    async def work() -> None:
        it = Remote(NativeHost(TINY), RemoteConfig(server.url, KEY), "")
        await it.open()
        stop, said = asyncio.Event(), 0
        config = GenerateConfig(temperature=1.5, logit_bias=((0, -100.0), (2, -100.0)))
        body = request_body("tiny", SHIP["messages"], config)
        it._host.fetch = _endless(it._host.fetch, body)  # type: ignore[method-assign]
        async for event in it.answer(SHIP["messages"], config, stop):
            said += 1
            if said == 3:
                assert server.ask("status")["state"] == "generating"
                stop.set()
            if isinstance(event, RemoteAnswer):
                assert event.finish_reason == "cancelled"
        assert said < 200, "of an endless one"

    asyncio.run(asyncio.wait_for(work(), 60))
    until_idle(server)


def _endless(fetch: Any, body: dict[str, Any]) -> Any:
    return lambda url, headers, _: fetch(url, headers, json.dumps({**body, **ENDLESS}))


def test_an_answer_goes_on_where_the_server_can(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        await client.ask("load", device="remote", remote=remote(server))
        first = await client.ask("generate", messages=SHIP["messages"], max_tokens=4)
        assert first["finish_reason"] == "length"
        more = await client.ask("generate", continues=first["handle"], max_tokens=5)
        whole = await client.ask("generate", messages=SHIP["messages"], max_tokens=9)
        assert first["text"] + more["text"] == whole["text"]
        assert more["handle"] != first["handle"]
        begun = [*SHIP["messages"], {"role": "assistant", "content": first["text"][:5]}]
        asked = {"messages": begun, "continue_final_message": True, "max_tokens": 1}
        some = await client.ask("generate", **asked)
        rest = await client.ask("generate", continues=some["handle"], max_tokens=2)
        assert first["text"][:5] + some["text"] + rest["text"] == first["text"]
        begun[-1] |= {"content": "", "reasoning_content": "Why"}
        with pytest.raises(OctavoError, match="within its think part"):
            await client.ask("generate", **asked)
        await client.ask("reset")
        with pytest.raises(OctavoError, match="no answer") as refused:
            await client.ask("generate", continues=more["handle"])
        assert refused.value.code in ("request.invalid", "engine.not_loaded")

    ran(work)


def test_a_continuation_sends_the_text_so_far() -> None:
    body = request_body("m", SHIP["messages"], GenerateConfig(), "Once upon")
    assert body["messages"] == [*SHIP["messages"], {"role": "assistant", "content": "Once upon"}]
    assert body["continue_final_message"] is True and body["add_generation_prompt"] is False


def test_what_a_request_says_is_sent_and_nothing_else() -> None:
    assert request_body("m", [], GenerateConfig()) == {
        "model": "m",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
    }
    said = {"temperature": 0.5, "seed": 3, "stop": ["x"], "top_k": 2, "max_tokens": 9}
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "array"}, "strict": False}}
    config = GenerateConfig.from_wire({**said, "logit_bias": {"5": 1}, "response_format": schema})
    body = request_body("m", [], config)
    assert body | said == body and body["logit_bias"] == {"5": 1.0}
    assert body["response_format"]["json_schema"]["schema"] == {"type": "array"}
    assert body["response_format"]["json_schema"]["strict"] is False
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "assistant", "content": "", "reasoning_content": "Hm", "tool_calls": [call]}
    ]
    (sent,) = request_body("m", messages, GenerateConfig())["messages"]
    assert sent["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert "reasoning_content" not in sent
    for only_here in ({"logprobs": True}, {"context_full": "slide"}):
        with pytest.raises(OctavoError, match=next(iter(only_here))):
            request_body("m", [], GenerateConfig.from_wire(only_here))


def test_a_wrong_key_is_the_servers_refusal(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(OctavoError) as refused:
            await client.ask("load", device="remote", remote=remote(server, "sk-another-secret"))
        assert refused.value.code == "remote.refused"
        assert "token is missing or wrong" in refused.value.message
        assert "sk-another-secret" not in str(refused.value.to_wire())
        await client.ask("load", device="remote", remote=remote(server, model="unheard-of"))
        with pytest.raises(OctavoError, match="no such model") as refused:
            await client.ask("generate", **ASK)
        assert refused.value.code == "remote.refused"

    ran(work)


# ---- The chain of devices -----------------------------------------------------------------------


def test_the_server_is_used_only_if_no_device_here_is(server: ApiServer) -> None:
    async def here(client: Client) -> None:
        loaded = await client.ask("load", remote=remote(server))
        assert loaded["device"]["kind"] == "cpu"

    ran(here)

    host = Poor("gpu")

    async def cpu(client: Client) -> None:
        loaded = await client.ask("load", remote=remote(server))
        assert (
            loaded["device"]["kind"] == "cpu"
            and "gpu has no memory" in (loaded["device"]["reason"])
        )
        assert host.asked == ["auto", "cpu"]

    ran(cpu, host)
    poor = Poor("gpu", "cpu")

    async def there(client: Client) -> None:
        loaded = await client.ask("load", remote=remote(server))
        assert loaded["device"]["kind"] == "remote"
        assert "cpu has no memory" in loaded["device"]["reason"]
        assert (await client.ask("generate", **ASK))["text"]
        assert poor.asked == ["auto", "cpu"], "what failed is not tried for each answer"
        poor.without = ()
        loaded = await client.ask("load", remote=remote(server))
        assert loaded["device"]["kind"] == "cpu", "but by a new load"
        assert (await client.ask("generate", **ASK))["ids"] == SHIP["ids"][:40]

    ran(there, poor)


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_a_device_that_was_asked_for_is_meant(server: ApiServer, device: str) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(OctavoError, match="has no memory"):
            await client.ask("load", device=device, remote=remote(server))
        assert (await client.ask("status"))["state"] == "empty"

    ran(work, Poor("gpu", "cpu"))


def test_what_is_no_failure_of_the_gpu_is_not_tried_on_the_cpu() -> None:
    class Offline(Poor):
        async def read_shard(self, index: int) -> bytes:
            raise OctavoError("shard.network")

    host = Offline()

    async def work(client: Client) -> None:
        with pytest.raises(OctavoError) as caught:
            await client.ask("load")
        assert caught.value.code == "shard.network"
        assert host.asked == ["auto"]

    ran(work, host)


def test_without_a_server_the_failure_is_told() -> None:
    async def work(client: Client) -> None:
        with pytest.raises(OctavoError, match="cpu has no memory"):
            await client.ask("load")

    ran(work, Poor("gpu", "cpu"))


def test_a_file_that_is_no_model_is_not_sent_elsewhere(server: ApiServer, tmp_path: Path) -> None:
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"no model" * 99)

    async def work(client: Client) -> None:
        with pytest.raises(OctavoError) as refused:
            await client.ask("load", remote=remote(server))
        assert refused.value.code.startswith("gguf.")

    ran(work, NativeHost(broken))


def test_a_model_here_stays_if_neither_device_nor_server_has_another(tmp_path: Path) -> None:
    mixture = tmp_path / "model.gguf"
    mixture.write_bytes(TINY.read_bytes().replace(b"\0llama", b"\0mamba"))
    host = NativeHost(TINY)

    async def work(client: Client) -> None:
        await client.ask("load", context=512)
        await replies(client, **ASK)
        host.serve(mixture)
        for device in ("auto", "remote"):
            with pytest.raises(OctavoError) as failed:
                await client.ask("load", device=device, remote={"url": "http://127.0.0.1:9/v1"})
            assert failed.value.code == "remote.unavailable"
        value = (await replies(client, **ASK))[-1]["value"]
        assert value["ids"] == SHIP["ids"][:40] and value["usage"]["cached_tokens"]

    ran(work, host)


def test_an_answer_goes_on_where_it_began_whatever_was_loaded_last(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        room = {"memory_bytes": 1 << 30}
        await client.ask("load", model="here", **room)
        first = await client.ask("generate", **ASK | {"max_tokens": 10})
        await client.ask("load", model="there", device="remote", remote=remote(server), **room)
        more = await client.ask("generate", continues=first["handle"], max_tokens=10)
        assert first["ids"] + more["ids"] == SHIP["ids"][:20]
        there = await client.ask("generate", **ASK | {"max_tokens": 5})
        await client.ask("load", model="here", **room)
        assert (await client.ask("generate", continues=there["handle"], max_tokens=5))["ids"] == []
        for model, handle in (("there", more["handle"]), ("here", there["handle"])):
            with pytest.raises(OctavoError) as caught:
                await client.ask("generate", continues=handle, model=model)
            assert caught.value.code == "request.invalid"

    ran(work)


def test_unloading_one_stops_no_other_load(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        await client.ask("load", model="here")
        wanted = {"model": "there", "device": "remote", "memory_bytes": 1 << 30}
        loading = asyncio.ensure_future(client.ask("load", remote=remote(server), **wanted))
        await client.ask("status")
        await client.ask("unload", model="here")
        await loading
        loading = asyncio.ensure_future(client.ask("load", remote=remote(server), **wanted))
        await client.ask("status")
        await client.ask("unload", model="there")
        with pytest.raises(OctavoError, match="stopped"):
            await loading
        assert (await client.ask("status"))["state"] == "empty"

    ran(work)


def test_one_model_is_loaded_at_a_time_here_or_there(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        loading = asyncio.ensure_future(client.ask("load", model="here"))
        await asyncio.sleep(0)
        with pytest.raises(OctavoError) as caught:
            await client.ask("load", model="there", device="remote", remote=remote(server))
        assert caught.value.code == "engine.busy"
        await client.ask("stop")
        await client.ask("load", model="there", device="remote", remote=remote(server))
        with pytest.raises(OctavoError, match="stopped"):
            await loading

    ran(work)


def test_models_here_and_there_side_by_side(server: ApiServer) -> None:
    async def work(client: Client) -> None:
        room = {"memory_bytes": 1 << 30}
        await client.ask("load", model="here", **room)
        await client.ask("load", model="there", device="remote", remote=remote(server), **room)
        assert (await client.ask("generate", **ASK))["ids"] == [], "the one loaded last"
        assert (await client.ask("generate", model="here", **ASK))["ids"] == SHIP["ids"][:40]
        listed = [model["model"] for model in (await client.ask("status"))["models"]]
        assert listed == ["here", "there"]
        await client.ask("unload", model="there")
        assert (await client.ask("generate", **ASK))["ids"] == SHIP["ids"][:40]
        with pytest.raises(OctavoError):
            await client.ask("generate", model="there", **ASK)
        await client.ask("load", model="there", device="remote", remote=remote(server))
        with pytest.raises(OctavoError):
            await client.ask("generate", model="here", **ASK)
        for request in (
            {"kind": "measure", "prefill": 2, "context": 4, "steps": 2},
            {"kind": "generate", "prompt": "Once"},
            {"kind": "tokenize", "text": "Once"},
            {"kind": "detokenize", "ids": [1]},
        ):
            with pytest.raises(OctavoError, match="remote server"):
                await client.ask(**request)
        tools = [{"type": "function", "function": {"name": "f"}}]
        with pytest.raises(OctavoError, match="tools"):
            await client.ask("generate", tools=tools, **ASK)
        await client.ask("unload")
        assert (await client.ask("status"))["state"] == "empty"

    ran(work)


@pytest.mark.parametrize(
    "given_remote",
    [
        None,
        "http://127.0.0.1",
        {},
        {"url": ""},
        {"url": "ftp://a"},
        {"url": "http://"},
        {"url": "http://a:b"},
        {"url": "http://user:password@a/v1"},
        {"url": "http://a/v1?key=3"},
        {"url": "http://a/\n"},
        {"url": "http://a", "key": 3},
        {"url": "http://a", "key": KEY + "\r\nHost: b"},
        {"url": "http://a", "key": "ключ-secret"},
        {"url": "http://a", "model": 3},
    ],
)
def test_wrong_servers_are_refused(given_remote: Any) -> None:
    with pytest.raises(OctavoError) as refused:
        LoadConfig.from_wire({"device": "remote", "remote": given_remote})
    assert refused.value.code == "request.invalid"
    assert "secret" not in str(refused.value.to_wire())


def test_addresses() -> None:
    def base(url: str) -> str:
        return RemoteConfig.from_wire({"url": url}).base

    assert base("http://a:1") == base("http://a:1/") == base("http://a:1/v1/") == "http://a:1/v1"
    assert base("https://a/x/v4/chat/completions") == "https://a/x/v4"
    config = RemoteConfig.from_wire({"url": "http://[::1]:80/v1", "key": KEY})
    assert config.origin == "http://[::1]:80" and KEY not in repr(LoadConfig(remote=config))


# ---- Servers that misbehave ---------------------------------------------------------------------


@pytest.fixture
def scripted() -> Iterator[Start]:
    servers: list[ScriptedServer] = []

    def start(*pieces: bytes | float, **status: int) -> ScriptedServer:
        servers.append(ScriptedServer(pieces, **status))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


async def answered(
    url: str, patience: Patience | None = None, stop: asyncio.Event | None = None
) -> tuple[list[Delta], RemoteAnswer]:
    it = Remote(NativeHost(TINY), RemoteConfig(url, KEY), "", patience)
    await it.open()
    deltas: list[Delta] = []
    async for event in it.answer(SHIP["messages"], GenerateConfig(), stop or asyncio.Event()):
        if isinstance(event, RemoteAnswer):
            return deltas, event
        deltas.append(event)
    raise AssertionError("an answer always ends")


def outcome(url: str, patience: Patience | None = None) -> tuple[list[Delta], RemoteAnswer]:
    return asyncio.run(asyncio.wait_for(answered(url, patience), 30))


def test_reasoning_usage_and_the_request(scripted: Start) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    said = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "Hm"}}]},
        {"choices": [{"delta": {"reasoning": "m", "content": None}}]},
        CHUNK,
        {"choices": [{"delta": {"content": "!"}, "finish_reason": "length"}]},
        {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 4}}},
        "[DONE]",
        "is never read",
    ]
    deltas, answer = outcome((server := scripted(lines(*said))).url)
    assert [(d.kind, d.text) for d in deltas] == [
        ("reasoning", "Hm"),
        ("reasoning", "m"),
        ("answer", "Hi"),
        ("answer", "!"),
    ]
    wire = answer.to_wire()
    assert (wire["text"], wire["reasoning"], wire["finish_reason"]) == ("Hi!", "Hmm", "length")
    assert wire["usage"] == {**usage, "cached_tokens": 4}
    ((headers, body),) = server.seen
    assert headers["Authorization"] == f"Bearer {KEY}" and body["model"] == "m"


def test_a_server_without_usage_and_done(scripted: Start) -> None:
    text = lines(CHUNK, CHUNK) + b"data: " + json.dumps(END).encode()
    deltas, answer = outcome(scripted(text[:9], 0.05, text[9:]).url)
    assert len(deltas) == 2 and answer.finish_reason == "stop"
    assert answer.to_wire()["usage"]["completion_tokens"] == 2


def test_why_it_ended_may_come_alone(scripted: Start) -> None:
    end = {"choices": [{"delta": None, "finish_reason": "length"}]}
    _, answer = outcome(scripted(lines(CHUNK, end)).url)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(
    ("pieces", "status", "code", "says"),
    [
        ([lines(CHUNK)], 200, "remote.unavailable", "broke off"),
        ([b""], 200, "remote.unavailable", "broke off"),
        ([lines("{")], 200, "remote.invalid", "no object"),
        ([lines("[1]")], 200, "remote.invalid", "no object"),
        ([lines({"error": {"message": f"{KEY} is full"}})], 200, "remote.refused", "… is full"),
        (
            [b'{"error": {"message": "Bad key ' + KEY.encode() + b'"}}'],
            401,
            "remote.refused",
            "key …",
        ),
        ([b'{"detail": "No"}'], 422, "remote.refused", "No"),
        ([b"<html>Bad gateway</html>"], 502, "remote.unavailable", "(502)."),
        ([b"busy"], 429, "remote.refused", "(429)"),
        ([b'{"error": "gone"}'], 404, "remote.refused", "gone"),
        ([b"data: " + b"a" * (MAX_EVENT + 9)], 200, "remote.invalid", "without an end"),
        ([lines(CHUNK), b"", 5.0], 200, "remote.unavailable", "nothing for 0.3 seconds"),
        ([5.0], 200, "remote.unavailable", "nothing for 0.6 seconds"),
    ],
)
def test_failures_have_codes(
    scripted: Start, pieces: list[Any], status: int, code: str, says: str
) -> None:
    server = scripted(*pieces, status=status)
    with pytest.raises(OctavoError) as failed:
        outcome(server.url, Patience(5, 0.6, 0.3))
    assert failed.value.code == code and says in failed.value.message
    assert KEY not in str(failed.value.to_wire())
    assert len(server.seen) == 1, "nothing is asked for twice"


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(OctavoError) as failed:
        outcome("http://127.0.0.1:9/v1")
    assert failed.value.code == "remote.unavailable"


def test_a_silent_server_can_be_stopped(scripted: Start) -> None:
    async def work() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        started = time.monotonic()
        _, answer = await answered(scripted(9.0).url, None, stop)
        assert answer.finish_reason == "cancelled"
        assert time.monotonic() - started < 3

    asyncio.run(work())


def test_a_load_that_waits_for_a_server_can_be_stopped() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"

        async def work(client: Client) -> None:
            asked = client.send("load", device="remote", remote={"url": url})
            await asyncio.sleep(0.1)
            assert (await client.ask("status"))["state"] == "loading"
            assert (await client.ask("stop"))["stopped"]
            with pytest.raises(OctavoError) as stopped:
                await asked.next()
            assert stopped.value.code == "request.cancelled"
            assert (await client.ask("status"))["state"] == "empty"

        ran(work)
