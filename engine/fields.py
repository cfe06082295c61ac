"""What a request of each kind may say. A name that is none is a slip of the pen: it is refused, as
what was meant would not be done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from engine.config import GenerateConfig, LoadConfig, check_names


def _names(config: type[LoadConfig | GenerateConfig]) -> frozenset[str]:
    return frozenset(field.name for field in fields(config))


_SAMPLING = _names(GenerateConfig) - {"schema", "strict"} | {"response_format"}
_ANSWER = {"max_tokens", "stop", "context_full"}
# By the kind of a request, what it may say.
FIELDS: Mapping[str, Collection[str]] = {
    "load": _names(LoadConfig),
    "generate": _SAMPLING | {"model", "messages", "tools", "prompt", "continues"},
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


def check_request(kind: str, message: Mapping[str, Any]) -> None:
    """OctavoError request.invalid if a request of this kind says what it may not."""
    said = [name for name in message if name not in ("id", "kind")]
    check_names(said, FIELDS[kind], TAKEN_BEFORE.get(kind, ()))
