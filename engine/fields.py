"""What a request of each kind may say. A name that is none is a slip of the pen: it is refused, as
what was meant would not be done. Options of OpenAI's that the engine has not are refused where they
would change the answer, and mean nothing where they are hints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from engine.config import GenerateConfig, LoadConfig, check_names
from engine.errors import OctavoError


def _names(config: type[LoadConfig | GenerateConfig]) -> frozenset[str]:
    return frozenset(field.name for field in fields(config))


_SAMPLING = _names(GenerateConfig) - {"schema", "strict"} | {"response_format"}
_ANSWER = {"max_tokens", "stop", "context_full"}
# By the kind of a request, what it may say.
FIELDS: Mapping[str, Collection[str]] = {
    "load": _names(LoadConfig),
    "generate": _SAMPLING
    | {"model", "messages", "tools", "prompt", "continues", "continue_final_message"},
    "stop": {"target"},
    "reset": (),
    "status": (),
    "unload": {"model"},
    "measure": _SAMPLING - _ANSWER | {"model", "prefill", "context", "steps", "scattered", "text"},
    "inspect": {"model", "messages", "tools", "prompt", "top"},
    "tokenize": {"model", "text"},
    "detokenize": {"model", "ids"},
    "embed": {"model", "input", "device"},
}
# What the client, or the worker's JavaScript, takes for itself: a person may have meant these.
TAKEN_BEFORE: Mapping[str, Collection[str]] = {
    "load": {"keep", "share", "workerUrl"},
    "generate": {"max_completion_tokens", "stream", "signal"},
    "inspect": {"signal"},
    "embed": {"encoding_format", "signal"},
}
# OpenAI's options that would change the answer, each with the values that do not.
NEUTRAL: Mapping[str, Collection[Any]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": (),
    "tool_choice": ("auto",),
    "functions": (),
    "function_call": ("auto", "none"),  # nothing, without functions
    "audio": (),
    "modalities": (["text"],),
}
# And those that mean nothing here, or are no more than a hint.
HINTS: Mapping[str, Collection[str]] = {
    "generate": {
        *("metadata", "moderation", "parallel_tool_calls", "prediction", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
        *("safety_identifier", "service_tier", "store", "stream_options", "user", "verbosity"),
        "web_search_options",
    },
    "embed": {"user"},
}


def check_request(kind: str, message: Mapping[str, Any]) -> None:
    """OctavoError request.invalid if a request of this kind says what it may not."""
    said = [name for name in own_fields(kind, message) if name not in ("id", "kind")]
    check_names(said, FIELDS[kind], TAKEN_BEFORE.get(kind, ()))


def own_fields(kind: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """A request of this kind without what only OpenAI's has. OctavoError request.invalid if that
    would change the answer."""
    neutral, hints = NEUTRAL if kind == "generate" else {}, HINTS.get(kind, ())
    for name, values in neutral.items():
        if message.get(name) is not None and message[name] not in values:
            raise OctavoError("request.invalid", f"The option {name} is not supported.")
    return {name: value for name, value in message.items() if name not in {*neutral, *hints}}
