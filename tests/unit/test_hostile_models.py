"""Model files from hostile hands: read as far as a prompt and the plans, or refused with a code."""

from __future__ import annotations

import asyncio
import functools
import math
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat import ChatTemplate
from engine.models import open_model
from engine.models.plans import build_plans
from engine.plan import Traits
from engine.prompt import Prompts
from engine.tokenizer.decoder import token_bytes
from engine.tokenizer.native import open_native
from engine.tokenizer.spec import (
    SpecialTokens,
    control_texts,
    markup_texts,
    special_ids,
    tokenizer_json,
)
from engine.tokenizer.vocabulary import CONTROL, USER_DEFINED
from engine.weights.gguf import GGML_TYPES, GGUF, read_header
from engine.weights.loading import shard_jobs
from engine.weights.quants import make_weight
from tests.unit import test_gguf as raw
from tests.unit.hostile import refusal

NAMES = [
    "tiny",
    "tiny_untied",
    "tiny_qwen2",
    "tiny_llama3",
    "tiny_qwen3",
    "tiny_gemma3",
    "tiny_phi3",
]
MESSAGES = [{"role": "user", "content": "Say <|im_end|> é 😀"}]
TYPE_IDS = {name: id for id, (name, _, _) in GGML_TYPES.items()}
CONTEXT = 32  # tokens


@functools.cache
def model_file(name: str) -> bytes:
    return (raw.GOLDEN / f"{name}.gguf").read_bytes()


@functools.cache
def parsed(name: str) -> GGUF:
    return read_header(model_file(name), len(model_file(name)))


def open_file(data: bytes) -> list[int]:
    """All that is done with a file before the device gets its weights; the ids of a prompt."""
    gguf = read_header(data, len(data))
    model = open_model(gguf)
    tokenizer = tokenizer_json(gguf.metadata)
    context = min(CONTEXT, model.config.context)
    kv = model.config.kv_layout(-(-context // 16), context)
    build_plans(model, Traits(), kv)
    sizes = [50_000] * (len(data) // 50_000) + [len(data) % 50_000]
    shard_jobs(gguf, model.weights(), sizes)
    for rope in model.config.ropes:
        divisors = array("f")
        if factors := rope.factors_in(context):
            info = gguf.tensors[factors.sources[0]]
            divisors = array("f", data[info.offset : info.offset + info.nbytes])
        assert all(map(math.isfinite, array("f", rope.table(context, divisors))))
    special = special_ids(gguf.metadata)
    token_bytes(gguf.metadata)
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    ends = [tokens[index] for index in special.eos]
    template = ChatTemplate(gguf.metadata.get("tokenizer.chat_template"), "", "".join(ends))
    controls, markup = control_texts(gguf.metadata), markup_texts(gguf.metadata)
    prompts = Prompts(template, open_native(tokenizer), special, controls, markup)
    return asyncio.run(prompts.encode(MESSAGES)).ids


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_right_before_they_are_changed(name: str) -> None:
    assert refusal(lambda: open_file(model_file(name))) is None
    pairs, entries = parts(name)
    assert refusal(lambda: open_file(built(name, pairs, entries))) is None


# Bytes: flipped, put in, left out, copied from elsewhere.
ODD = st.sampled_from([b"\xff" * 8, bytes(8), b"\x00\x00\x00\x00\x00\x00\x00\x10", b"\xed\xa0\x80"])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "copy", "end"]),
        st.floats(0, 1),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=9) | ODD,
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, header: int, changes: list[tuple[str, float, float, bytes]]) -> bytes:
    out = bytearray(data)
    for kind, at, other, piece in changes:
        start, source = int(at * header), int(other * header)
        if kind == "set":
            out[start : start + len(piece)] = piece
        elif kind == "insert":
            out[start:start] = piece
        elif kind == "delete":
            del out[start : start + len(piece)]
        elif kind == "copy":
            out[start : start + 200] = out[source : source + 200]
        else:
            del out[start:]
    return bytes(out)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES), CHANGES)
def test_changed_bytes(name: str, changes: list[tuple[str, float, float, bytes]]) -> None:
    data = changed(model_file(name), parsed(name).data_offset, changes)
    refusal(lambda: open_file(data))


# Values: of another type, absurd, missing, twice.
WHOLE = st.sampled_from([0, 1, -1, 3, 7, 8, 2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1])
REAL = st.sampled_from([0.0, -1.0, 1e-45, 1e-38, 1e38, math.nan, math.inf, -math.inf, 0.5])
TEXTS = st.sampled_from(
    [
        *("", " ", "a", "llama", "qwen2", "qwen3", "gpt2", "default", "llama-bpe", "linear"),
        *("none", "<0x41>", "<0xZZ>", "a b", "<think>", "<|im_end|>", "\x00", "é", "x" * 5000, "▁"),
        *("{{ 'x' * 10**9 }}", "{% for a in range(99999) %}{{ a }}{% endfor %}" * 9, "{% if"),
    ]
)
SCALARS = WHOLE | REAL | TEXTS | st.booleans()
LISTS = (
    st.lists(WHOLE, max_size=3)
    | st.lists(REAL, max_size=3)
    | st.lists(TEXTS, max_size=3)
    | st.integers(0, 700).map(lambda n: [f"t{i}" for i in range(n)])
    | st.just([1] * 100_000)
)


def typed(value: Any) -> tuple[int, bytes]:
    """A value's GGUF type and bytes."""
    if isinstance(value, bool):
        return raw.BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return (raw.U64, struct.pack("<Q", value)) if value >= 0 else (11, struct.pack("<q", value))
    if isinstance(value, float):
        return 12, struct.pack("<d", value)
    if isinstance(value, str):
        return raw.STRING, raw.text(value)
    items = [typed(item) for item in value]
    kind = items[0][0] if items else raw.STRING
    return raw.ARRAY, raw.array(kind, len(items), b"".join(body for _, body in items))


def parts(name: str) -> tuple[list[tuple[str, Any]], list[list[Any]]]:
    """The metadata of a model, and its tensors: name, dimensions, type, offset."""
    gguf = parsed(name)
    entries = [
        [t.name, list(t.shape[::-1]), TYPE_IDS[t.quant], t.offset - gguf.data_offset]
        for t in gguf.tensors.values()
    ]
    return list(gguf.metadata.items()), entries


def built(name: str, pairs: list[tuple[str, Any]], entries: list[list[Any]]) -> bytes:
    """A file of these parts, with the tensor data of a model."""
    head = raw.header([(key, *typed(value)) for key, value in pairs], [tuple(e) for e in entries])
    return head + bytes(-len(head) % 32) + model_file(name)[parsed(name).data_offset :]


@st.composite
def hostile_lists(draw: st.DrawFn, values: list[Any]) -> list[Any]:
    """Another list of the same type: shorter, longer, or with other values in it."""
    same = TEXTS if isinstance(values[0], str) else REAL if isinstance(values[0], float) else WHOLE
    same = same | st.integers(0, 9) if type(values[0]) is int else same
    same = same.filter(lambda value: type(value) is not int or value >= 0)
    new = list(values)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(values) - 1))
        kind = draw(st.sampled_from(["set", "cut", "add", "copy", "all"]))
        if kind == "set":
            new[at:at] = [draw(same)]
            del new[at + 1 : at + 2]
        elif kind == "cut":
            del new[at:]
        elif kind == "add":
            new.append(draw(same))
        elif kind == "copy":
            new[at : at + 1] = values[:1]
        else:
            new = [draw(same)] * len(values)
    return new


@st.composite
def hostile_files(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(NAMES))
    pairs, entries = parts(name)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(pairs) - 1))
        key, value = pairs[at]
        kind = draw(st.sampled_from(["value", "value", "value", "delete", "again", "pieces"]))
        if kind == "pieces":
            scores = [float(i) for i in range(draw(st.sampled_from([599, 600, 601])))]
            pairs += [("tokenizer.ggml.scores", scores)]
            pairs = [(k, "llama" if k == "tokenizer.ggml.model" else v) for k, v in pairs]
        elif kind == "value" and isinstance(value, list) and value and draw(st.booleans()):
            pairs[at] = (key, draw(hostile_lists(value)))
        elif kind == "value":
            pairs[at] = (key, draw(SCALARS | LISTS))
        elif kind == "again":
            pairs.append(pairs[at])
        else:
            del pairs[at]
    for _ in range(draw(st.integers(0, 2))):
        entry = entries[draw(st.integers(0, len(entries) - 1))]
        kind = draw(st.integers(0, 4))
        if kind == 0:
            entry[0] = draw(st.sampled_from([e[0] for e in entries]) | TEXTS)
        elif kind == 1:
            positive = WHOLE.filter(lambda size: size >= 0) | st.integers(1, 99)
            entry[1] = draw(st.lists(positive, max_size=5))
        elif kind == 2:
            entry[2] = draw(st.sampled_from(sorted(GGML_TYPES)) | st.integers(0, 2**32 - 1))
        elif kind == 3:
            entry[3] = draw(st.integers(0, 9999).map(lambda n: n * 32) | st.just(2**62))
        else:
            entry[1] = entry[1][::-1]
    return built(name, pairs, entries)


@settings(max_examples=100, deadline=None)
@given(hostile_files())
def test_hostile_values(data: bytes) -> None:
    refusal(lambda: open_file(data))


def with_values(values: dict[str, Any]) -> bytes:
    """A model whose metadata says something else; ``values`` by the last part of the key."""
    pairs, entries = parts("tiny")
    changed_keys = {key.split(".")[-1] for key, _ in pairs} & values.keys()
    assert changed_keys == values.keys()
    pairs = [(key, values.get(key.split(".")[-1], value)) for key, value in pairs]
    return built("tiny", pairs, entries)


LONG = "x" * 3_000_000


@pytest.mark.parametrize(
    "values",
    [
        {"architecture": LONG},
        {"architecture": ["x"] * 300_000},
        {"block_count": LONG},
        {"layer_norm_rms_epsilon": LONG},
        {"pre": LONG},
        {"model": LONG},
        {"model": ["x"] * 300_000},
        {"eos_token_id": LONG},
        {"merges": [LONG]},
        {"merges": [f"{LONG} x"]},
        {"block_count": 2**31},
        {"block_count": 2**60},
        {"head_count": 3},
        {"head_count": 2**60},
        {"head_count_kv": 2**60},
        {"freq_base": 0.0},
        {"freq_base": math.inf},
        {"layer_norm_rms_epsilon": math.nan},
        {"token_type": ["1"] * 600},
        {"token_type": [1.0] * 600},
        {"token_type": [1] * 599},
        {"token_type": []},
        {"tokens": []},
        {"tokens": [1] * 600},
    ],
)
def test_absurd_values_are_refused_in_few_words(values: dict[str, Any]) -> None:
    error = refusal(lambda: open_file(with_values(values)))
    assert error and error.code in {
        "gguf.invalid",
        "model.architecture",
        "model.tensor",
        "tokenizer.unsupported",
    }


@pytest.mark.parametrize("name", [LONG, ["x"] * 300_000, 7])
def test_a_name_that_is_none_is_no_reason_to_refuse_a_model(name: Any) -> None:
    def check() -> None:
        data = with_values({"name": name})
        assert len(open_model(read_header(data, len(data))).config.name) <= 1024
        assert open_file(data)

    assert refusal(check) is None


def test_huge_contexts_are_cut_to_what_is_asked_for() -> None:
    for context in (2**31, 2**60):
        data = with_values({"context_length": context})
        assert refusal(functools.partial(open_file, data)) is None


def vocabulary(model: str, tokens: list[str], kind: int = 1) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kind] * len(tokens),
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.merges": ["a b"],
    }


@pytest.mark.parametrize(
    "metadata",
    [
        vocabulary("llama", [LONG]),
        vocabulary("gpt2", [LONG], CONTROL),
        vocabulary("llama", [f"{i:01000}" for i in range(5000)]),
        vocabulary("gpt2", [f"{i:01000}" for i in range(5000)], CONTROL),
        vocabulary("gpt2", [f"<{i}>" for i in range(100_000)], USER_DEFINED),
    ],
    ids=["long piece", "long control token", "long pieces", "long control tokens", "many tags"],
)
def test_vocabularies_that_would_take_long_are_refused(metadata: dict[str, Any]) -> None:
    error = refusal(lambda: tokenizer_json(metadata))
    assert error and error.code == "gguf.invalid"


def test_long_control_tokens_are_guarded_in_little_memory() -> None:
    metadata = vocabulary("gpt2", [f"{i:01000}" for i in range(250)], CONTROL)
    text = control_texts(metadata)[7]

    def guard() -> None:
        template = ChatTemplate("{{ messages[0].content }}", "", "")
        nothing = SpecialTokens(None, frozenset(), False)
        prompts = Prompts(template, _Letters(), nothing, control_texts(metadata))
        ids = asyncio.run(prompts.encode([{"role": "user", "content": text[:999]}])).ids
        assert len(ids) == 999, "in pieces, as it begins a token"

    assert refusal(guard) is None


class _Letters:
    async def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def close(self) -> None:
        pass


def test_many_tensors_in_many_shards_are_no_square_of_work() -> None:
    count = 4000
    entries = [(f"t{i}", [8], 0, 32 * i) for i in range(count)]
    head = raw.header([], entries)
    gguf = read_header(head + bytes(4096), len(head) + 4096 + 32 * count)
    weights = [make_weight(f"t{i}", (), "F32", {f"t{i}": 8}) for i in range(count)]
    sizes = [8] * (gguf.size // 8) + [gguf.size % 8]

    def place() -> None:
        jobs = [job for shard in shard_jobs(gguf, weights, sizes) for job in shard.jobs]
        assert sum(job.count for job in jobs) == 8 * count

    assert refusal(place) is None
