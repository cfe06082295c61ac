"""Kernels stay within what every WebGPU device has: bindings, memory and lanes of a workgroup, and
workgroups of a dispatch, also where a model is large."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pytest

from engine import ops
from engine.cases import all_cases
from engine.ops.kv_layout import KVLayout
from engine.ops.norm import Norm
from engine.ops.spans import tensor_of
from engine.ops.state import logits_tensor, tokens_tensor
from engine.plan import Call, Plan, PlanBuilder, Traits
from engine.shaders import Shader
from tests.kernels.cases import weight

MOST_BUFFERS, MOST_MEMORY, MOST_LANES, MOST_GROUPS = 8, 16384, 256, 65535
VOCAB, WIDTH, HIDDEN, CHUNK = 262144, 640, 28672, 2048  # a table of Gemma 3 that is not divided
TRAITS = {
    "no barriers": Traits("webgpu", barriers=False, activations="q16"),
    "no subgroups": Traits("webgpu", activations="q16"),
    "subgroups of 8": Traits("webgpu", subgroup=8, activations="q8"),
    "subgroups of 16": Traits("webgpu", subgroup=16),
    "subgroups of 32": Traits("webgpu", subgroup=32, activations="q16"),
    "subgroups of 64": Traits("webgpu", subgroup=64),
}
SIZES = {"f32": 4, "u32": 4, "i32": 4}
SIZES |= {f"vec{n}<{scalar}>": 4 * n for n in (2, 4) for scalar in SIZES}
SIZES |= {f"vec3<{scalar}>": 16 for scalar in ("f32", "u32")}  # as far apart as those of four


def numbers(shader: Shader) -> dict[str, int]:
    """The constants of a module by name, those that kernels compute of others too."""
    known = {**shader.overrides, **shader.consts}
    for name, value in re.findall(r"^const (\w+)(?:: u32)? = ([^;]+);", shader.code(), re.M):
        if name not in known and re.fullmatch(r"[A-Z\du\s_+*/()-]+", value):
            known[name] = computed(value, known)
    return known


def computed(value: str, known: dict[str, int]) -> int:
    """A sum or the like of whole numbers and names."""
    text = re.sub(r"\b(\d+)u\b", r"\1", value).replace("/", "//")
    return int(eval(text, {"__builtins__": {}}, known))


def workgroup_memory(shader: Shader) -> int:
    """Bytes of its variables, each from a multiple of 16 on."""
    code, known, total = shader.code(), numbers(shader), 0
    aliases = dict(re.findall(r"^alias (\w+) = ([^;]+);", code, re.M))
    for kind in re.findall(r"^var<workgroup> \w+: ([^;]+);", code, re.M):
        element, count = kind, "1"
        if kind.startswith("array<"):
            element, count = kind[6:-1].rsplit(",", 1)
        size = SIZES[aliases.get(element, element)] * computed(count, known)
        total += -(-size // 16) * 16
    return total


def lanes(shader: Shader) -> int:
    """Those of a workgroup."""
    (sizes,) = re.findall(r"@workgroup_size\(([^)]+)\)", shader.code())
    total = 1
    for size in sizes.split(","):
        total *= computed(size, numbers(shader))
    return total


def ways(calls: Iterable[Call]) -> Iterator[Call]:
    for call in calls:
        yield from (call.varied(name) for name in call.variants) if call.variants else (call,)


def large(traits: Traits) -> list[Plan]:
    """The operations on a large model's shapes, in steps of one token and of many."""
    kv = KVLayout(8192, 131072, 8, 4, 256, 0.1)
    plans = []
    for tokens in (1, CHUNK):
        b = PlanBuilder("large", traits, tokens)
        ids, norm = tokens_tensor(tokens), Norm(weight("gain", WIDTH), 1e-6)
        x = ops.embed(b, ids, weight("table", VOCAB, WIDTH, quant="Q4_0"))
        qkv = ops.linear(b, x, weight("qkv", 16 * 256, WIDTH, quant="Q4_0"), norm=norm)
        ops.head_norm(b, qkv, weight("heads", 512), 1e-6, 8, 4)
        x = tensor_of(b, ops.attention(b, qkv, kv, 0))
        x = ops.linear(b, x, weight("out", WIDTH, 2048, quant="Q6_K"))
        ops.gated_linear(b, x, weight("up", 2 * HIDDEN, WIDTH, quant="Q4_0"), norm=norm)
        ops.linear(b, x, weight("table", VOCAB, WIDTH, quant="Q4_0"), norm=norm)
        ops.shift(b, kv, 0)
        ops.sample(b, logits_tensor(VOCAB), ids)
        ops.choose(b, logits_tensor(VOCAB), ids)
        ops.logprobs(b, logits_tensor(VOCAB), ids)
        plans.append(b.build())
    return plans


def assert_within_limits(call: Call, tokens: int) -> None:
    assert call.shader
    assert len(call.shader.slots) <= MOST_BUFFERS, call.label
    assert workgroup_memory(call.shader) <= MOST_MEMORY, call.label
    assert lanes(call.shader) <= MOST_LANES, call.label
    y = -(-tokens // call.grid.tokens) if call.grid.tokens else call.grid.y
    assert max(call.grid.x, y, call.grid.z) <= MOST_GROUPS, call.label


@pytest.mark.parametrize("device", TRAITS)
def test_large_models(device: str) -> None:
    for plan in large(TRAITS[device]):
        for call in ways(plan.calls):
            assert_within_limits(call, plan.tokens)


@pytest.mark.parametrize("device", TRAITS)
def test_every_use_of_a_kernel(device: str) -> None:
    most = 0
    for case in all_cases():
        plan, _ = case.plan(TRAITS[device])
        for call in ways(plan.calls):
            assert_within_limits(call, plan.tokens)
            assert call.shader
            most = max(most, workgroup_memory(call.shader))
    assert most == (0 if device == "no barriers" else MOST_MEMORY)
