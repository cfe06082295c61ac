"""A model on a server that speaks OpenAI's chat completions, behind what a loaded model does.

The server has its own template, tokenizer and sampler. So an answer has no token ids, its tokens
are counted by the server, and a continuation sends the text so far as the assistant's last message:
servers go on with it (ours and vLLM are told to, llama.cpp and Ollama do so anyway) or answer anew,
and their tokenizer may cut the text in other places than the model did.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.answer import Delta, FinishReason
from engine.config import GenerateConfig, RemoteConfig
from engine.errors import OctavoError
from engine.events import Events, Exchange
from engine.loader import Host
from engine.timing import rate

T = TypeVar("T")
MOST_SHOWN = 300  # characters of what a server says about an error
MAX_REPLY = 1 << 22  # characters, of one that is no stream
# OpenAI's names, and those that vLLM and llama.cpp have for the others.
SENT = (
    *("max_tokens", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)


@dataclass(frozen=True)
class Patience:
    """Seconds until a server is taken for gone: when its models are asked for, until an answer
    begins, which may take the computing of a long prompt, and between two pieces of it."""

    models: float = 20.0
    first: float = 120.0
    between: float = 60.0


@dataclass
class RemoteAnswer:
    """An answer as far as it has come; ``usage`` is what the server says, or else counts pieces of
    text."""

    text: str = ""
    reasoning: str = ""
    finish_reason: FinishReason | None = None
    pieces: int = 0
    usage: dict[str, int] = field(default_factory=dict)
    first_seconds: float = 0.0
    later_seconds: float = 0.0

    def to_wire(self) -> dict[str, Any]:
        """The answer as it crosses to the page."""
        counted = {"prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": self.pieces}
        usage = counted | self.usage
        later = max(0, usage["completion_tokens"] - 1)
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "ids": [],
            "finish_reason": self.finish_reason or "stop",
            "usage": usage,
            "timing": {
                "ttft_ms": self.first_seconds * 1e3,
                "prefill_tokens_per_s": rate(usage["prompt_tokens"], self.first_seconds),
                "decode_tokens_per_s": rate(later, self.later_seconds),
            },
        }


class _StoppedError(Exception):
    """The answer is to stop."""


class Remote:
    """A server's model; ``reason`` says why it is used. ``open`` first."""

    def __init__(
        self, host: Host, config: RemoteConfig, reason: str, patience: Patience | None = None
    ) -> None:
        self._host = host
        self._config = config
        self._reason = reason
        self._patience = patience or Patience()
        self._model = config.model

    async def open(self) -> None:
        """Find the server, and what model it has if none is named. Raises OctavoError
        remote.unavailable, remote.refused or remote.invalid."""
        never, seconds = asyncio.Event(), self._patience.models
        exchange = self._ask("/models", None)
        try:
            status = await _within(exchange.status(), seconds, never)
            if status == 404 and self._model:
                return  # some do not list what they have
            text = await _whole(exchange, seconds, never)
        finally:
            exchange.close()
        self._check(status, text)
        if not self._model:
            self._model = _first_model(text)

    def describe(self) -> dict[str, Any]:
        """Device, model and memory, as for a model here; what the server does not say is 0."""
        return {
            "device": {
                "kind": "remote",
                "name": self._config.origin,
                "software": False,
                "activations": "",
                "reason": self._reason,
            },
            "model": {
                "name": self._model,
                "architecture": "",
                "context": 0,
                "parameters": 0,
                "bytes": 0,
                "sampling": {},
            },
            "memory_bytes": 0,
            "memory": {},
        }

    async def answer(
        self,
        messages: list[dict[str, Any]],
        config: GenerateConfig,
        stop: asyncio.Event,
        so_far: str = "",
    ) -> AsyncGenerator[Delta | RemoteAnswer, None]:
        """Any number of ``Delta``, then one ``RemoteAnswer``. It continues the text ``so_far``, if
        there is one. The server is asked once, and never again for what has come.

        Raises OctavoError remote.unavailable, remote.refused, remote.invalid, and request.invalid
        for what only a model here can do."""
        body = json.dumps(request_body(self._model, messages, config, so_far))
        answer, started = RemoteAnswer(), self._host.now()
        first = 0.0  # when text came
        exchange = self._ask("/chat/completions", body)
        try:
            status = await _within(exchange.status(), self._patience.first, stop)
            if not 200 <= status < 300:
                self._check(status, await _whole(exchange, self._patience.between, stop))
            async for event in self._events(exchange, answer, stop):
                for delta in _take(event, answer):
                    first = first or self._host.now()
                    yield delta
        except _StoppedError:
            answer.finish_reason = "cancelled"
        except OctavoError as error:
            raise OctavoError(error.code, self._without_key(error.message), error.hint) from None
        finally:
            exchange.close()
        now = self._host.now()
        answer.first_seconds = (first or now) - started
        answer.later_seconds = now - (first or now)
        yield answer

    async def _events(
        self, exchange: Exchange, answer: RemoteAnswer, stop: asyncio.Event
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of an answer, up to its end."""
        events, text = Events(), "begin"
        while text:
            seconds = self._patience.between if answer.pieces else self._patience.first
            text = await _within(exchange.next(), seconds, stop)
            for data in events.push(text or "\n\n"):  # not all end their last event
                if data.strip() == "[DONE]":
                    return
                yield _event(data)
        if not answer.finish_reason:
            raise OctavoError("remote.unavailable", "The remote server broke off its answer.")

    def _ask(self, path: str, body: str | None) -> Exchange:
        headers = {"Accept": "application/json" if body is None else "text/event-stream"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._config.key:
            headers["Authorization"] = f"Bearer {self._config.key}"
        return self._host.fetch(self._config.base + path, headers, body)

    def _check(self, status: int, text: str) -> None:
        """Raises what a server's status and text mean, if that is an error."""
        if 200 <= status < 300:
            return
        said = self._without_key(_said(text))
        message = f"The remote server refused the request ({status})" + (
            f": {said}" if said else "."
        )
        if status in (401, 403):
            raise OctavoError("remote.refused", message, "Does it want another key?")
        if status == 404:
            raise OctavoError("remote.refused", message, "Check address and model.")
        # Of a gateway whose server is away, too.
        code = "remote.refused" if 400 <= status < 500 else "remote.unavailable"
        raise OctavoError(code, message)

    def _without_key(self, text: str) -> str:
        """A server may repeat what it was sent."""
        return text.replace(self._config.key, "…") if self._config.key else text


def request_body(
    model: str, messages: list[dict[str, Any]], config: GenerateConfig, so_far: str = ""
) -> dict[str, Any]:
    """A request in OpenAI's shape: what is not said is left to the server, but that temperature 0
    is meant if none is given. Raises request.invalid for what servers have not."""
    if config.logprobs:
        raise _only_here("logprobs")
    if config.context_full != "stop":
        raise _only_here("context_full")
    plain = GenerateConfig()
    sent = {
        name: value for name in SENT if (value := getattr(config, name)) != getattr(plain, name)
    }
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": config.temperature,
        **sent,
    }
    if config.temperature:
        body["seed"] = config.seed
    if config.stop:
        body["stop"] = list(config.stop)
    if config.logit_bias:
        body["logit_bias"] = {str(id): bias for id, bias in config.logit_bias}
    if config.schema is not None:
        form = {"name": "answer", "schema": json.loads(config.schema), "strict": config.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    if so_far:
        body["messages"].append({"role": "assistant", "content": so_far})
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    return body


def _only_here(option: str) -> OctavoError:
    return OctavoError("request.invalid", f"{option} is not for models of remote servers.")


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A checked message as servers take it: arguments as JSON, and no reasoning of earlier answers,
    which some refuse."""
    sent = {name: value for name, value in message.items() if name != "reasoning_content"}
    if "tool_calls" in sent:
        sent["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _json(call)}}
            for call in sent["tool_calls"]
        ]
    return sent


def _json(call: dict[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _event(data: str) -> dict[str, Any]:
    """Raises remote.invalid for what is no object, and the server's own error."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise OctavoError("remote.invalid", "The remote server sent an event that is no object.")
    if event.get("error"):
        raise OctavoError("remote.refused", f"The remote server says: {_said(data) or 'error'}")
    return event


def _take(event: dict[str, Any], answer: RemoteAnswer) -> Iterator[Delta]:
    """Add an event to the answer; its new text."""
    usage = event.get("usage")
    if isinstance(usage, dict):
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        counts = {"cached_tokens": cached} | {
            name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")
        }
        answer.usage |= {n: c for n, c in counts.items() if type(c) is int and c >= 0}
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return
    if isinstance(choice.get("finish_reason"), str):
        answer.finish_reason = "length" if choice["finish_reason"] == "length" else "stop"
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return
    thought = delta.get("reasoning_content") or delta.get("reasoning")  # vLLM has had both
    text = delta.get("content")
    if isinstance(thought, str) and thought:
        answer.pieces += 1
        answer.reasoning += thought
        yield Delta(thought, answer.pieces, "reasoning")
    if isinstance(text, str) and text:
        answer.pieces += 1
        answer.text += text
        yield Delta(text, answer.pieces)


def _first_model(text: str) -> str:
    """The first model of a list of them. Raises remote.invalid."""
    with suppress(ValueError, RecursionError, KeyError, IndexError, TypeError):
        id = json.loads(text)["data"][0]["id"]
        if isinstance(id, str) and id:
            return id
    raise OctavoError("remote.invalid", "The remote server lists no model.", "Name one.")


def _said(text: str) -> str:
    """What a server says about an error, in OpenAI's shape or another."""
    said: Any = text
    with suppress(ValueError, RecursionError):
        said = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(said, dict) and name in said:
                said = said[name]
    said = said if isinstance(said, str) else ""
    return " ".join(said.split())[:MOST_SHOWN] if not said.lstrip().startswith("<") else ""


async def _whole(exchange: Exchange, seconds: float, stop: asyncio.Event) -> str:
    """All of a reply's text, or as much as is of use."""
    text = ""
    while len(text) < MAX_REPLY and (more := await _within(exchange.next(), seconds, stop)):
        text += more
    return text


async def _within(work: Awaitable[T], seconds: float, stop: asyncio.Event) -> T:
    """The result of waiting for a server. Raises remote.unavailable when it takes too long, and
    _StoppedError."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait(
            [working, stopping], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if stop.is_set():
            raise _StoppedError
        if working.done():
            return working.result()
        message = f"The remote server has said nothing for {seconds:g} seconds."
        raise OctavoError("remote.unavailable", message)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
