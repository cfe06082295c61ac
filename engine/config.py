"""Settings of a loaded model and of one answer, with their checks."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from engine.errors import OctavoError

DeviceChoice = Literal["auto", "gpu", "cpu"]
Activations = Literal["auto", "f32", "q16", "q8"]
DEFAULT_CONTEXT = 2048  # tokens
MAX_STOPS = 16
MAX_STOP = 1024  # characters
MAX_ID = 2**53 - 1  # JavaScript's largest whole number


@dataclass(frozen=True)
class LoadConfig:
    """How to load a model: its manifest's address, the device, the context in tokens, the tokens
    that the KV cache has room for in all conversations together (None: one context), whether
    activations may be rounded to integers (auto: to 15 bits where that is faster; in products of
    many tokens of a large model, on a real GPU, to 8 bits), and whether kernel variants are
    measured (None: on a real GPU, those not measured before; true: all of them, however long it
    takes)."""

    model: str = ""  # the catalogue's default
    device: DeviceChoice = "auto"
    context: int = DEFAULT_CONTEXT
    activations: Activations = "auto"
    tune: bool | None = None
    kv_tokens: int | None = None

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> LoadConfig:
        """Check the fields of a ``load`` request."""
        return cls(
            model=_text(message, "model", cls.model),
            device=cast(DeviceChoice, _one_of(message, "device", ("auto", "gpu", "cpu"))),
            context=_integer(message, "context", cls.context, 16, 1 << 17),
            activations=cast(
                Activations, _one_of(message, "activations", ("auto", "f32", "q16", "q8"))
            ),
            tune=_switch(message, "tune"),
            kv_tokens=_optional(message, "kv_tokens", 16, 1 << 20),
        )


@dataclass(frozen=True)
class GenerateConfig:
    """How to answer: temperature (0 is greedy), most new tokens (None: up to the context), seed,
    and texts before which the answer ends."""

    temperature: float = 0.0
    max_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> GenerateConfig:
        """Check the fields of a ``generate`` request."""
        temperature = _temperature(message)
        limit = _optional(message, "max_tokens", 1, 1 << 20)
        seed = _integer(message, "seed", 0, 0, 2**32 - 1)
        return cls(temperature, limit, seed, _stops(message))


@dataclass(frozen=True)
class MeasureConfig:
    """What to measure: tokens of the prompt, of the context, decode steps, temperature."""

    prefill: int
    context: int
    steps: int
    temperature: float = 0.0

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> MeasureConfig:
        """Check the fields of a ``measure`` request."""
        prefill, context, steps = (
            _integer(message, name, 1, 1, 1 << 20) for name in ("prefill", "context", "steps")
        )
        return cls(prefill, context, steps, _temperature(message))


def check_messages(message: Mapping[str, Any]) -> list[dict[str, str]]:
    """The ``messages`` of a request: a list of {role, content}; prompt.empty without a text."""
    messages = message.get("messages")
    if not isinstance(messages, list):
        raise _invalid("messages", "a list", messages)
    for entry in messages:
        if not isinstance(entry, dict) or not all(
            isinstance(entry.get(key), str) for key in ("role", "content")
        ):
            raise _invalid("messages", "a list of {role, content}, both texts", entry)
    if not messages or not messages[-1]["content"].strip():
        raise OctavoError("prompt.empty", hint="Type a message first.")
    return [{"role": entry["role"], "content": entry["content"]} for entry in messages]


def check_handle(message: Mapping[str, Any]) -> int:
    """The ``continues`` of a request: the handle of an earlier answer."""
    return _integer(message, "continues", 0, 0, MAX_ID)


def check_target(message: Mapping[str, Any]) -> int | None:
    """The ``target`` of a ``stop`` request: the id of another, or None for whatever runs."""
    return _optional(message, "target", 0, MAX_ID)


def _invalid(field: str, wanted: str, got: object) -> OctavoError:
    return OctavoError("request.invalid", f"{field} should be {wanted}, not {reprlib.repr(got)}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _stops(message: Mapping[str, Any]) -> tuple[str, ...]:
    value = message.get("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise _invalid("stop", f"a text or a list of at most {MAX_STOPS}", value)
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in stops):
        raise _invalid("stop", f"made of texts of 1 to {MAX_STOP} characters", value)
    return tuple(stops)


def _temperature(message: Mapping[str, Any]) -> float:
    value = message.get("temperature", 0.0)
    if not _is_number(value) or not 0 <= value <= 100:
        raise _invalid("temperature", "a number from 0 to 100", value)
    return float(value)


def _text(message: Mapping[str, Any], field: str, default: str) -> str:
    value = message.get(field)
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise _invalid(field, "a text", value)
    return value


def _one_of(message: Mapping[str, Any], field: str, choices: tuple[str, ...]) -> str:
    value = message.get(field)
    if value is None or value == "":
        return choices[0]
    if value not in choices:
        raise _invalid(field, f"one of {', '.join(choices)}", value)
    return str(value)


def _switch(message: Mapping[str, Any], field: str) -> bool | None:
    value = message.get(field)
    if value is None or isinstance(value, bool):
        return value
    raise _invalid(field, "true or false", value)


def _optional(message: Mapping[str, Any], field: str, low: int, high: int) -> int | None:
    return None if message.get(field) is None else _integer(message, field, low, low, high)


def _integer(message: Mapping[str, Any], field: str, default: int, low: int, high: int) -> int:
    value = message.get(field)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _invalid(field, f"a whole number from {low} to {high}", value)
    return value
