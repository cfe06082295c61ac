"""Settings of a loaded model and of one answer, with their checks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from engine.errors import OctavoError, shown, wrong_field

DEVICES = ("auto", "gpu", "cpu", "remote")
DeviceChoice = Literal["auto", "gpu", "cpu", "remote"]
Activations = Literal["auto", "f32", "q16", "q8"]
KVPrecision = Literal["f16", "q8"]
ContextFull = Literal["stop", "slide"]
DEFAULT_CONTEXT = 2048  # tokens
SMALLEST_TEMPERATURE = 1e-3  # below, logits divided by it could leave f32: that is greedy
SMALLEST_TOP_P = 1e-6
MAX_BIASES = 1024
MAX_SCHEMA = 1 << 16  # characters
MAX_TOP_LOGPROBS = 20
MAX_TOP = 100
MAX_TEXTS = 2048  # of a request for embeddings, as OpenAI allows
MAX_STOPS = 16
MAX_STOP = 1024  # characters
MAX_ADDRESS = 4096  # characters
MAX_ID = 2**53 - 1  # JavaScript's largest whole number
# What a GGUF file may recommend, by the field of a request that overrules it.
RECOMMENDED = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


@dataclass(frozen=True)
class RemoteConfig:
    """A server that speaks OpenAI's chat completions: the address under which these are, the key
    that it wants (empty: none), and the model to ask for (empty: the first one that it lists)."""

    base: str
    key: str = field(default="", repr=False)  # told to nobody else
    model: str = ""

    @property
    def origin(self) -> str:
        """Scheme, host and port: the name of the server."""
        url = urlsplit(self.base)
        return f"{url.scheme}://{url.netloc}"

    @classmethod
    def from_wire(cls, value: Any) -> RemoteConfig:
        """Check the ``remote`` of a ``load`` request: {url, key?, model?}."""
        if not isinstance(value, dict):
            raise OctavoError("request.invalid", "remote should be an object with a url.")
        check_names(value, ("url", "key", "model"))
        key = value.get("key")
        # The value is not shown.
        usable = isinstance(key, str) and len(key) <= MAX_ADDRESS and key.isascii()
        if key is not None and not (usable and (key == "" or key.isprintable())):
            raise OctavoError("request.invalid", "remote.key should be a text of plain characters.")
        model = value.get("model")
        if not (model is None or isinstance(model, str)):
            raise wrong_field("remote.model", "a text", model)
        return cls(_base(value.get("url")), (key or "").strip(), model or "")


def _base(url: Any) -> str:
    """The address under which the endpoints are; /v1 where none is given."""
    wanted = "an address of http or https"
    if not isinstance(url, str) or len(url) > MAX_ADDRESS or not url.isprintable():
        raise wrong_field("remote.url", wanted, url)
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise wrong_field("remote.url", wanted, url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise OctavoError("request.invalid", "remote.url has no place for a name, key or question.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


@dataclass(frozen=True)
class LoadConfig:
    """How to load a model: its manifest's address, the device, the context in tokens, the tokens
    or bytes that the KV cache may grow to in all conversations together (both None: one context; if
    it is less than one, the context is that much), whether its values are halves or bytes with a
    scale for each 32 (q8: about half the memory), whether activations may be rounded to integers
    (auto: to 15 bits where that is faster; in products of many tokens of a large model, on a real
    GPU, to 8 bits), whether kernel variants are measured (None: on a real GPU, those not measured
    before; true: all of them, however long it takes), and the bytes of device memory that all
    loaded models, and an encoder, may take together (None: this one takes the place of all other
    models). A ``remote`` server computes if the device is "remote", or if it is "auto" and the
    model cannot be loaded on any device here."""

    model: str = ""  # the catalogue's default
    device: DeviceChoice = "auto"
    context: int = DEFAULT_CONTEXT
    activations: Activations = "auto"
    tune: bool | None = None
    kv_tokens: int | None = None
    kv_bytes: int | None = None
    kv_precision: KVPrecision = "f16"
    memory_bytes: int | None = None
    remote: RemoteConfig | None = None

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> LoadConfig:
        """Check the fields of a ``load`` request."""
        device, remote = _one_of(message, "device", DEVICES), message.get("remote")
        if device == "remote" and remote is None:
            raise OctavoError("request.invalid", "The device remote needs a remote with a url.")
        only_one(message, "kv_tokens", "kv_bytes")
        return cls(
            model=_text(message, "model", cls.model),
            device=cast(DeviceChoice, device),
            context=_integer(message, "context", cls.context, 16, 1 << 17),
            activations=cast(
                Activations, _one_of(message, "activations", ("auto", "f32", "q16", "q8"))
            ),
            tune=_switch(message, "tune"),
            kv_tokens=_optional(message, "kv_tokens", 16, 1 << 20),
            kv_bytes=_optional(message, "kv_bytes", 1, 1 << 40),
            kv_precision=cast(KVPrecision, _one_of(message, "kv_precision", ("f16", "q8"))),
            memory_bytes=_optional(message, "memory_bytes", 1, 1 << 40),
            remote=None if remote is None else RemoteConfig.from_wire(remote),
        )


@dataclass(frozen=True)
class GenerateConfig:
    """How to answer: temperature (0 is greedy), most new tokens (None: up to the context), seed,
    and texts before which the answer ends.

    When the context is full, the answer stops, or the context slides: the oldest tokens but the
    first ones are dropped, and the rest moves up. ``top_k`` (0: any), ``top_p`` and ``min_p`` say
    which tokens may be drawn (engine/ops/choose.py); penalties and biases change their logits.
    With a ``schema``, a JSON text, the answer is JSON of it; ``strict``: with no other properties.
    Log-probabilities are told of the chosen token and of the ``top_logprobs`` likeliest.
    """

    temperature: float = 0.0
    max_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    context_full: ContextFull = "stop"
    schema: str | None = None
    strict: bool = True
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0

    @classmethod
    def from_wire(
        cls, message: Mapping[str, Any], defaults: Mapping[str, float] | None = None
    ) -> GenerateConfig:
        """Check the fields of a ``generate`` request; ``defaults`` for those that it leaves out."""
        given = {field: value for field, value in message.items() if value is not None}
        message = {**(defaults or {}), **given}
        schema, strict = _schema(message)
        return cls(
            schema=schema,
            strict=strict,
            temperature=_temperature(message),
            max_tokens=_optional(message, "max_tokens", 1, 1 << 20),
            seed=_integer(message, "seed", 0, 0, 2**32 - 1),
            stop=_stops(message),
            context_full=cast(ContextFull, _one_of(message, "context_full", ("stop", "slide"))),
            top_k=_integer(message, "top_k", 0, 0, 1 << 20),
            top_p=_number(message, "top_p", 1.0, SMALLEST_TOP_P, 1.0),
            min_p=_number(message, "min_p", 0.0, 0.0, 1.0),
            repetition_penalty=_number(message, "repetition_penalty", 1.0, 0.01, 100.0),
            presence_penalty=_number(message, "presence_penalty", 0.0, -100.0, 100.0),
            frequency_penalty=_number(message, "frequency_penalty", 0.0, -100.0, 100.0),
            logit_bias=_biases(message),
            logprobs=bool(_switch(message, "logprobs")),
            top_logprobs=_top_logprobs(message),
        )


@dataclass(frozen=True)
class MeasureConfig:
    """What to measure: tokens of the prompt, of the context, decode steps, how to sample, and
    whether the sequence has its KV blocks in random order and not one after the other; and a text
    to turn into tokens, if any."""

    prefill: int
    context: int
    steps: int
    sampling: GenerateConfig = GenerateConfig()
    scattered: bool = False
    text: str = ""

    @classmethod
    def from_wire(cls, message: Mapping[str, Any]) -> MeasureConfig:
        """Check the fields of a ``measure`` request."""
        prefill, context, steps = (
            _integer(message, name, 1, 1, 1 << 20) for name in ("prefill", "context", "steps")
        )
        scattered = bool(_switch(message, "scattered"))
        sampling, text = GenerateConfig.from_wire(message), _text(message, "text", "")
        return cls(prefill, context, steps, sampling, scattered, text)


def check_names(said: Iterable[str], known: Collection[str], others: Collection[str] = ()) -> None:
    """OctavoError request.invalid for a name that is not ``known``: it may well be a slip of the
    pen for one of these, or of ``others``."""
    for name in said:
        if name not in known:
            from difflib import get_close_matches  # rarely needed

            near = get_close_matches(name, sorted({*known, *others} - {name}), 1)
            meant = f": is {near[0]!r} meant?" if near else "."
            raise OctavoError("request.invalid", f"The option {shown(name)} is unknown{meant}")


def only_one(message: Mapping[str, Any], *names: str) -> str | None:
    """Which of these fields a request has, if any; OctavoError request.invalid if it has two."""
    given = [name for name in names if message.get(name) is not None]
    if len(given) > 1:
        raise OctavoError("request.invalid", f"Give {given[0]} or {given[1]}, not both of them.")
    return given[0] if given else None


def recommended(metadata: Mapping[str, Any]) -> dict[str, float]:
    """How the file of a model says that tokens should be drawn, by the field of a request; without
    values that no request may have."""
    found = {}
    for name, key in RECOMMENDED.items():
        value = metadata.get(key)
        with suppress(OctavoError):
            GenerateConfig.from_wire({name: value})
            if value is not None:
                found[name] = round(value, 6)  # files have f32
    return found


def check_model(message: Mapping[str, Any]) -> str | None:
    """The ``model`` of a request: the name of a loaded one, or None."""
    return None if message.get("model") is None else _text(message, "model", "")


def check_input(message: Mapping[str, Any]) -> list[str]:
    """The ``input`` of a request for embeddings: a text, or texts."""
    given = message.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_TEXTS:
        raise wrong_field("input", f"a text or a list of 1 to {MAX_TEXTS}", given)
    if not all(isinstance(text, str) and text for text in texts):
        raise wrong_field("input", "made of texts with characters", given)
    return texts


def encoder_config(message: Mapping[str, Any]) -> LoadConfig:
    """Which encoder a request for embeddings means, and on which device."""
    if message.get("model") is None:
        raise wrong_field("model", "the address of an encoder", None)
    device = _one_of(message, "device", ("auto", "gpu", "cpu"))
    return LoadConfig(model=_text(message, "model", ""), device=cast(DeviceChoice, device))


def check_handle(message: Mapping[str, Any]) -> int:
    """The ``continues`` of a request: the handle of an earlier answer."""
    return _integer(message, "continues", 0, 0, MAX_ID)


def check_goes_on(message: Mapping[str, Any]) -> bool:
    """Whether the last of a request's ``messages`` is the beginning of its answer
    (``continue_final_message``, as vLLM has it)."""
    goes_on = bool(_switch(message, "continue_final_message"))
    if goes_on and message.get("messages") is None:
        raise OctavoError("request.invalid", "continue_final_message needs messages.")
    return goes_on


def check_prompt(message: Mapping[str, Any]) -> str | list[int]:
    """The ``prompt`` of a request: a text, or token ids."""
    prompt = message.get("prompt")
    if not isinstance(prompt, str | list):
        raise wrong_field("prompt", "a text or a list of token ids", prompt)
    return prompt if isinstance(prompt, str) else check_ids(message, "prompt")


def check_text(message: Mapping[str, Any]) -> str:
    """The ``text`` of a request; it may be empty."""
    if not isinstance(message.get("text"), str):
        raise wrong_field("text", "a text", message.get("text"))
    return _text(message, "text", "")


def check_ids(message: Mapping[str, Any], field: str = "ids") -> list[int]:
    """Token ids in a request; none of them is of a model yet."""
    ids = message.get(field)
    if not isinstance(ids, list):
        raise wrong_field(field, "a list of token ids", ids)
    return [_whole(id, f"{field}[{i}]", 0, MAX_ID) for i, id in enumerate(ids)]


def check_top(message: Mapping[str, Any]) -> int:
    """The ``top`` of an ``inspect`` request: of how many tokens it tells."""
    return _integer(message, "top", 10, 1, MAX_TOP)


def check_target(message: Mapping[str, Any]) -> int | None:
    """The ``target`` of a ``stop`` request: the id of another, or None for whatever runs."""
    return _optional(message, "target", 0, MAX_ID)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _stops(message: Mapping[str, Any]) -> tuple[str, ...]:
    value = message.get("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise wrong_field("stop", f"a text or a list of at most {MAX_STOPS}", value)
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP for stop in stops):
        raise wrong_field("stop", f"made of texts of 1 to {MAX_STOP} characters", value)
    return tuple(stops)


def _temperature(message: Mapping[str, Any]) -> float:
    value = _number(message, "temperature", 0.0, 0.0, 100.0)
    return value if value >= SMALLEST_TEMPERATURE else 0.0


def _schema(message: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Schema and strictness of an OpenAI ``response_format``."""
    format = message.get("response_format", {"type": "text"})
    kind = format.get("type") if isinstance(format, dict) else None
    if kind == "text":
        return None, True
    if kind == "json_object":
        return '{"type": "object"}', False
    given = format.get("json_schema") if kind == "json_schema" else None
    if not isinstance(given, dict) or not isinstance(given.get("schema"), dict | bool):
        wanted = "of type text, json_object, or json_schema with json_schema.schema"
        raise wrong_field("response_format", wanted, format)
    text = json.dumps(given["schema"])
    if len(text) > MAX_SCHEMA:
        raise wrong_field(
            "response_format", f"a schema of at most {MAX_SCHEMA} characters", len(text)
        )
    return text, _switch(given, "strict") is not False


def _biases(message: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
    value = message.get("logit_bias", {})
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise wrong_field("logit_bias", f"an object of at most {MAX_BIASES} token ids", value)
    for id, bias in value.items():
        if not (str(id).isdecimal() and len(str(id)) < 10 and _is_number(bias)):
            raise wrong_field("logit_bias", "made of token ids with a number each", {id: bias})
        if not -100 <= bias <= 100:
            raise wrong_field("logit_bias", "made of numbers from -100 to 100", bias)
    return tuple((int(id), float(bias)) for id, bias in value.items())


def _top_logprobs(message: Mapping[str, Any]) -> int:
    count = _integer(message, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if count and not message.get("logprobs"):
        raise wrong_field("top_logprobs", "asked for together with logprobs", count)
    return count


def _number(
    message: Mapping[str, Any], field: str, default: float, low: float, high: float
) -> float:
    value = message.get(field)
    if value is None:
        return default
    if not _is_number(value) or not low <= value <= high:
        raise wrong_field(field, f"a number from {low:g} to {high:g}", value)
    return float(value)


def _text(message: Mapping[str, Any], field: str, default: str) -> str:
    value = message.get(field)
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise wrong_field(field, "a text", value)
    return value


def _one_of(message: Mapping[str, Any], field: str, choices: tuple[str, ...]) -> str:
    value = message.get(field)
    if value is None or value == "":
        return choices[0]
    if value not in choices:
        raise wrong_field(field, f"one of {', '.join(choices)}", value)
    return str(value)


def _switch(message: Mapping[str, Any], field: str) -> bool | None:
    value = message.get(field)
    if value is None or isinstance(value, bool):
        return value
    raise wrong_field(field, "true or false", value)


def _optional(message: Mapping[str, Any], field: str, low: int, high: int) -> int | None:
    return None if message.get(field) is None else _integer(message, field, low, low, high)


def _integer(message: Mapping[str, Any], field: str, default: int, low: int, high: int) -> int:
    value = message.get(field)
    return default if value is None else _whole(value, field, low, high)


def _whole(value: object, field: str, low: int, high: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong_field(field, f"a whole number from {low} to {high}", value)
    return value
