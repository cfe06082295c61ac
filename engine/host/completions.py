"""OpenAI's shape of chat completions <-> requests and replies of the worker's protocol."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from engine.config import check_names
from engine.errors import OctavoError, wrong_field
from engine.fields import FIELDS, own_fields

# What a request may say goes to the engine as it is, which checks it; but nobody goes on with
# another one's answer.
SENT = frozenset(FIELDS["generate"]) - {"model", "prompt", "continues"}
# Here, and does not go there. vLLM wants to be told that an answer which goes on has no new turn.
TAKEN = frozenset({"model", "stream", "max_completion_tokens", "add_generation_prompt"})


def generate_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``generate`` request. Raises OctavoError request.invalid for options that
    there are not."""
    said = {name: value for name, value in body.items() if value is not None}
    said = own_fields("generate", said)
    check_names(said, SENT | TAKEN)
    is_new = said.get("continue_final_message") is not True
    if said.get("add_generation_prompt", is_new) is not is_new:
        wanted = "false with continue_final_message, and true without"
        raise wrong_field("add_generation_prompt", wanted, said["add_generation_prompt"])
    fields = {name: value for name, value in said.items() if name in SENT}
    if "max_completion_tokens" in said:
        fields["max_tokens"] = said["max_completion_tokens"]
    messages = fields.get("messages")
    if isinstance(messages, list):
        messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return fields | {"messages": messages}


def _plain(message: Any, where: str) -> Any:
    """A message with one text for the parts of its content."""
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list):
        return message
    for part in parts:
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not (is_text and isinstance(part.get("text"), str)):
            raise wrong_field(f"{where}.content", "made of parts of the type 'text'", part)
    return {**message, "content": "".join(part["text"] for part in parts)}


class Shape:
    """The answers to one request; ``body`` is that, and ``model`` the id that the model has here.
    Raises OctavoError request.invalid for options of the stream that are none."""

    def __init__(self, body: Mapping[str, Any], model: str) -> None:
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise wrong_field("stream_options", "an object", options)
        for name, value in (
            ("stream", body.get("stream")),
            ("include_usage", options.get("include_usage")),
        ):
            if not (value is None or isinstance(value, bool)):
                raise wrong_field(name, "true or false", value)
        self.stream = body.get("stream") is True
        self._tells_usage = options.get("include_usage") is True
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def completion(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """A whole answer, of the value of a ``generate``'s result."""
        message = {"role": "assistant", "content": result["text"]}
        if result["reasoning"]:
            message["reasoning_content"] = result["reasoning"]
        choice = {"index": 0, "message": message, **_end(result)}
        usage = {"usage": _usage(result)}
        return {**self._head, "object": "chat.completion", "choices": [choice], **usage} | _ours(
            result
        )

    def begin(self) -> dict[str, Any]:
        """The first chunk of a stream."""
        return self._chunk({"role": "assistant", "content": ""})

    def chunk(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """The chunk of a ``delta`` or ``reasoning``."""
        name = "content" if delta["kind"] == "delta" else "reasoning_content"
        return self._chunk({name: delta["text"]})

    def end(self, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The last chunks."""
        yield self._chunk({}, _end(result)) | _ours(result)
        if self._tells_usage:
            yield {**self._chunk({}), "choices": [], "usage": _usage(result)}

    def _chunk(self, delta: dict[str, Any], end: Mapping[str, Any] | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": None, **(end or {})}
        usage = {"usage": None} if self._tells_usage else {}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **usage}


def _end(result: Mapping[str, Any]) -> dict[str, Any]:
    logprobs = {"content": result["logprobs"]} if "logprobs" in result else None
    return {"logprobs": logprobs, "finish_reason": result["finish_reason"]}


def _ours(result: Mapping[str, Any]) -> dict[str, Any]:
    """As in web/client.mjs, but that nobody continues another one's answer by a handle."""
    return {"octavo": {name: result[name] for name in ("ids", "timing", "code") if name in result}}


def _usage(result: Mapping[str, Any]) -> dict[str, Any]:
    usage = result["usage"]
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage["cached_tokens"]},
    }


def event(data: Mapping[str, Any] | str) -> bytes:
    """A server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


# What is none of these went wrong here.
STATUS = {
    "request.token": 401,
    "request.origin": 403,
    "request.unknown": 404,
    "model.unknown": 404,
    "engine.busy": 503,
}
ASKED_WRONG = ("request.", "prompt.", "template.")


def status_of(error: OctavoError) -> int:
    """The HTTP status of an error."""
    return STATUS.get(error.code, 400 if error.code.startswith(ASKED_WRONG) else 500)


def error_body(error: OctavoError) -> dict[str, Any]:
    """An error as OpenAI tells it, with our code."""
    kind = "invalid_request_error" if status_of(error) < 500 else "server_error"
    message = f"{error.message} {error.hint}".strip()
    return {"error": {"message": message, "type": kind, "param": None, "code": error.code}}
