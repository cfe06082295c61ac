"""`serve --api`, asked by OpenAI's own client."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.config import GenerateConfig
from engine.errors import OctavoError
from engine.host.access import Access
from engine.host.completions import Shape, event, generate_fields
from engine.host.errors import HostError
from engine.host.files import parts_of
from engine.remote import request_body
from tests.serving import ENDLESS, ApiServer, until_idle
from tests.tiny import CHATS, SHIP

TOKEN = "a token of the tests"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("site"), Access(origins=["https://known.example"]))
    yield server
    server.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("site"), Access.to("0.0.0.0", TOKEN, []))
    yield server
    server.close()


def client(server: ApiServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=60)


def ask(server: ApiServer, prompt: dict[str, Any] = SHIP, **options: Any) -> Any:
    ours = {"context_full": options.pop("context_full")} if "context_full" in options else {}
    options = {"max_tokens": len(prompt["ids"]), **options}
    return client(server).chat.completions.create(
        model="tiny", messages=prompt["messages"], extra_body=ours, **options
    )


def post(server: ApiServer, data: bytes, path: str = "chat/completions", **headers: str) -> Any:
    """Status, headers and body of a request by hand."""
    headers = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    method = headers.pop("method", "POST")
    request = urllib.request.Request(f"{server.url}/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def code_of(reply: Any) -> tuple[int, str]:
    status, _, body = reply
    return status, json.loads(body)["error"]["code"]


REQUEST = json.dumps({"messages": SHIP["messages"], "max_tokens": 3}).encode()


@pytest.mark.golden
@pytest.mark.parametrize("prompt", CHATS, ids=lambda p: p["name"])
def test_a_whole_answer(server: ApiServer, prompt: dict[str, Any]) -> None:
    answer = ask(server, prompt)
    (choice,) = answer.choices
    assert answer.octavo["ids"] == prompt["ids"]
    content = choice.message.content
    assert prompt["text"].startswith(content), "but for a character that was cut"
    assert len(prompt["text"]) - len(content) < 4
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    assert answer.usage.prompt_tokens == len(prompt["prompt_ids"])
    assert answer.usage.completion_tokens == len(prompt["ids"])
    assert answer.usage.total_tokens == len(prompt["prompt_ids"]) + len(prompt["ids"])


def test_a_stream_tells_the_same(server: ApiServer) -> None:
    whole = ask(server)
    *chunks, last, usage = ask(server, stream=True, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content for chunk in chunks]
    assert "".join(deltas) == whole.choices[0].message.content
    assert len(deltas) > 3, "it comes bit by bit"
    assert last.choices[0].finish_reason == "length"
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert last.octavo["ids"] == SHIP["ids"]
    assert usage.choices == [] and usage.usage.completion_tokens == len(SHIP["ids"])
    assert usage.usage.prompt_tokens_details.cached_tokens > 0, "the conversation is known by now"
    assert len({chunk.id for chunk in [*chunks, last, usage]}) == 1


def test_usage_comes_only_if_asked_for(server: ApiServer) -> None:
    *_, last = ask(server, stream=True)
    assert last.choices[0].finish_reason == "length" and last.usage is None


def test_a_stream_ends_with_done(server: ApiServer) -> None:
    status, headers, body = post(
        server, json.dumps({**json.loads(REQUEST), "stream": True}).encode()
    )
    assert (status, headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
    assert body.endswith(b"\n\ndata: [DONE]\n\n")
    assert all(line.startswith(b"data: ") for line in body.split(b"\n\n") if line)


def test_closing_the_stream_stops_the_answer(server: ApiServer) -> None:
    stream = ask(server, stream=True, max_tokens=1 << 20, **ENDLESS)
    for _, chunk in zip(range(5), stream, strict=False):
        assert chunk.choices[0].finish_reason is None
    assert server.ask("status")["state"] == "generating"
    stream.close()
    until_idle(server)
    assert ask(server).octavo["ids"] == SHIP["ids"], "the next one is as ever"


def test_hanging_up_stops_an_answer_that_is_no_stream(server: ApiServer) -> None:
    impatient = client(server).with_options(timeout=0.5)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(
            model="tiny",
            messages=SHIP["messages"],
            max_tokens=1 << 20,
            extra_body=ENDLESS,
        )
    until_idle(server)


def test_who_reads_slowly_keeps_nobody_waiting(server: ApiServer) -> None:
    stream = ask(server, stream=True, max_tokens=1 << 20, **ENDLESS)
    next(iter(stream))
    assert ask(server).octavo["ids"] == SHIP["ids"]
    stream.close()
    until_idle(server)


def test_requests_at_once_take_turns(server: ApiServer) -> None:
    got: dict[str, Any] = {}

    def one(prompt: dict[str, Any]) -> None:
        got[prompt["name"]] = ask(server, prompt).octavo["ids"]

    threads = [threading.Thread(target=one, args=(prompt,)) for prompt in CHATS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == {prompt["name"]: prompt["ids"] for prompt in CHATS}


def test_options_reach_the_engine(server: ApiServer) -> None:
    answer = ask(server, max_tokens=8, logprobs=True, top_logprobs=2, stop="\x00", seed=3)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 8 and all(len(token.top_logprobs) == 2 for token in tokens)
    biased = ask(server, max_tokens=5, logit_bias={str(SHIP["ids"][0]): -100})
    assert biased.octavo["ids"][0] != SHIP["ids"][0]
    part = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert generate_fields({"messages": part})["messages"][0]["content"] == "a"
    assert generate_fields({"max_completion_tokens": 4, "max_tokens": 3})["max_tokens"] == 4
    told = {"role": "system", "content": "Be brief."}
    asked = (
        {**SHIP, "messages": [said, *SHIP["messages"]]}
        for said in (told, {**told, "role": "developer"})
    )
    assert len({ask(server, prompt).octavo["ids"][0] for prompt in asked}) == 1


def test_hints_mean_nothing_here(server: ApiServer) -> None:
    hints = {"user": "me", "store": True, "metadata": {"a": "b"}, "reasoning_effort": "low"}
    neutral = {"n": 1, "tool_choice": "auto", "service_tier": "auto", "parallel_tool_calls": False}
    assert ask(server, **hints, **neutral).octavo["ids"] == SHIP["ids"]


def test_an_answer_goes_on_where_a_message_ends(server: ApiServer) -> None:
    whole = ask(server, max_tokens=20).choices[0].message.content
    first = ask(server, max_tokens=4).choices[0].message.content
    begun = [*SHIP["messages"], {"role": "assistant", "content": first}]
    vllm = {"continue_final_message": True, "add_generation_prompt": False}
    rest = client(server).chat.completions.create(
        model="tiny", messages=begun, max_tokens=16, extra_body=vllm
    )
    assert first + rest.choices[0].message.content == whole
    for one, other in ((True, True), (False, False), (None, False), (None, 1)):
        wrong = {"continue_final_message": one, "add_generation_prompt": other}
        status, _, answer = post(server, json.dumps({"messages": begun, **wrong}).encode())
        assert status == 400 and b"add_generation_prompt should be" in answer


def test_what_a_page_sends_to_a_server_is_taken(server: ApiServer) -> None:
    """By engine/remote.py, with all that it can say."""
    config = GenerateConfig(
        temperature=1.0,
        seed=3,
        stop=("x",),
        max_tokens=3,
        logit_bias=((5, 1.0),),
        top_k=4,
        top_p=0.5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
    )
    body = request_body("tiny", SHIP["messages"], config, "It")
    assert set(body) >= {"continue_final_message", "add_generation_prompt", "top_k", "min_p"}
    status, _, answer = post(server, json.dumps(body).encode())
    assert status == 200 and answer.endswith(b"[DONE]\n\n")


def test_what_else_openai_has_is_not_here(server: ApiServer, guarded: ApiServer) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client(server).embeddings.create(model="tiny", input="a")
    assert refused.value.code == "request.unknown"
    assert "POST /v1/embeddings" in refused.value.message
    with pytest.raises(openai.NotFoundError):
        client(server).responses.create(model="tiny", input="a")
    assert code_of(post(server, b"", method="GET")) == (404, "request.unknown")
    assert code_of(post(server, b"", "models/", method="PUT")) == (404, "request.unknown")
    assert code_of(post(guarded, b"{}", "embeddings")) == (401, "request.token")


def test_models(server: ApiServer) -> None:
    assert [model.id for model in client(server).models.list()] == ["tiny"]
    assert client(server).models.retrieve("tiny").owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as refused:
        client(server).models.retrieve("another")
    assert refused.value.code == "model.unknown"
    with pytest.raises(openai.NotFoundError) as refused:
        client(server).chat.completions.create(model="gpt-5", messages=SHIP["messages"])
    assert refused.value.code == "model.unknown" and "tiny" in refused.value.message


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"temperature": -1.0}, "request.invalid", "temperature"),
        ({"n": 2}, "request.invalid", "n is not supported"),
        ({"temprature": 1}, "request.invalid", "is 'temperature' meant?"),
        ({"max_token": 1}, "request.invalid", "is 'max_tokens' meant?"),
        ({"continues": 0}, "request.invalid", "'continues' is unknown"),
        ({"prompt": "a"}, "request.invalid", "'prompt' is unknown"),
        ({"id": 5}, "request.invalid", "'id' is unknown"),
        ({"messages": []}, "prompt.empty", ""),
        ({"messages": [{"role": "user", "content": "a " * 4000}]}, "prompt.too_long", "tokens"),
        ({"stream_options": 3}, "request.invalid", "stream_options"),
        ({"stream": "yes"}, "request.invalid", "stream"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "request.invalid",
            "messages[0].content",
        ),
        ({"messages": "Hello"}, "request.invalid", "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "request.invalid",
            "grammars",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_said(
    server: ApiServer, options: dict[str, Any], code: str, says: str, stream: bool
) -> None:
    body = {"messages": SHIP["messages"], "stream": stream, **options}
    status, _, reply = post(server, json.dumps(body).encode())
    error = json.loads(reply)["error"]
    assert (status, error["code"], error["type"]) == (400, code, "invalid_request_error")
    assert says in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a": ' * 9999, b" " * (9 << 20)])
def test_what_is_no_request_is_refused(server: ApiServer, body: bytes) -> None:
    assert code_of(post(server, body)) == (400, "request.invalid")


def test_a_grammar_that_is_missing_is_openais_bad_request(server: ApiServer) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="grammars"):
        ask(server, response_format=schema)


def test_a_token_is_needed_where_others_reach_the_server(guarded: ApiServer) -> None:
    for key in ("wrong", TOKEN + "x", TOKEN[:-1]):
        with pytest.raises(openai.AuthenticationError) as refused:
            client(guarded, key).models.list()
        assert refused.value.code == "request.token"
        assert TOKEN not in str(refused.value)
    for header in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN} x", "Bearer tök"):
        got = post(guarded, REQUEST, **({"Authorization": header} if header else {}))
        assert code_of(got) == (401, "request.token")
        assert got[1]["WWW-Authenticate"] == "Bearer"
    assert [model.id for model in client(guarded, TOKEN).models.list()] == ["tiny"]
    assert post(guarded, REQUEST, Authorization=f"Bearer {TOKEN}")[0] == 200
    with urllib.request.urlopen(f"{guarded.origin}/health", timeout=60) as reply:
        assert json.loads(reply.read()) == {"status": "ok"}


def test_a_token_is_made_only_where_one_is_needed() -> None:
    assert Access.to("127.0.0.1", "", []).token == ""
    assert Access.to("localhost", "mine", []).token == "mine"
    made = {Access.to(host, "", []).token for host in ("0.0.0.0", "::", "192.168.0.2", "name")}
    assert len(made) == 4 and all(len(token) >= 32 for token in made)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://known.example", 200),
        ("http://localhost:5173", 200),
        ("https://evil.example", 403),
        ("https://known.example.evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
    ],
)
def test_only_known_pages_may_ask(server: ApiServer, origin: str, status: int) -> None:
    got, headers, _ = post(server, REQUEST, Origin=origin)
    assert got == status
    assert headers["Access-Control-Allow-Origin"] == (origin if status == 200 else None)
    got, headers, _ = post(
        server,
        b"",
        method="OPTIONS",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type,x-stainless-os",
    )
    assert (got == 200) == (status == 200)
    assert headers["Access-Control-Allow-Origin"] == (origin if status == 200 else None)


def test_errors_can_be_read_by_pages(guarded: ApiServer) -> None:
    got = post(guarded, REQUEST, Origin="http://localhost:1")
    assert code_of(got) == (401, "request.token")
    assert got[1]["Access-Control-Allow-Origin"] == "http://localhost:1"
    assert code_of(post(guarded, REQUEST, Origin="https://evil.example"))[0] == 403


def test_a_name_that_leads_here_is_refused(server: ApiServer, guarded: ApiServer) -> None:
    """Of a page whose own domain was made to lead to this machine (DNS rebinding)."""
    evil = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert code_of(post(server, REQUEST, **evil)) == (403, "request.origin")
    mine = {**evil, "Authorization": f"Bearer {TOKEN}"}
    assert post(guarded, REQUEST, **mine)[0] == 200, "there the token tells"


def test_what_a_browser_sends_without_asking_is_refused(server: ApiServer) -> None:
    got = post(server, REQUEST, Content_Type="text/plain")
    assert code_of(got) == (400, "request.invalid")


def test_reasoning_is_apart() -> None:
    shape = Shape({"stream": True}, "m")
    delta = shape.chunk({"kind": "reasoning", "text": "Hm"})["choices"][0]["delta"]
    assert delta == {"reasoning_content": "Hm"}
    usage = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 2}
    result = {"text": "So", "reasoning": "Hm", "finish_reason": "length", "code": "context.full"}
    whole = shape.completion({**result, "usage": usage, "ids": [1, 2], "timing": {}})
    message = {"role": "assistant", "content": "So", "reasoning_content": "Hm"}
    assert whole["choices"][0]["message"] == message
    assert whole["octavo"]["code"] == "context.full"
    assert event("[DONE]") == b"data: [DONE]\n\n"
    with pytest.raises(OctavoError):
        Shape({"stream_options": {"include_usage": 1}}, "m")


def test_a_split_model_is_found_by_any_of_its_files(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for part in parts:
        part.touch()
    assert parts_of(parts[1]) == parts
    parts[2].unlink()
    with pytest.raises(HostError, match="00003-of-00003"):
        parts_of(parts[0])
    with pytest.raises(HostError, match=r"There is no file .*x\.gguf"):
        parts_of(tmp_path / "x.gguf")
