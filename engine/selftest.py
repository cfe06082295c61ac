"""A tiny model with known answers, run on a GPU before it is trusted with a real one.

Some drivers compute wrong numbers without any error. The tiny model goes through the same plans
and kernels as every model; its greedy ids were computed by an independent implementation.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path

from engine.backends.base import Device, persistent_tensors, weights_of
from engine.models import open_model
from engine.models.plans import CHOOSE, DECODE, HEAD, PREFILL, SAMPLE, build_plans
from engine.ops.state import SAMPLING, STEP, SamplingRecord, StepRecord, tokens_tensor
from engine.weights.gguf import read_header
from engine.weights.loading import shard_jobs

CONTEXT = 256  # tokens
PROMPT = 3  # of the golden file: 130 tokens, more than a tile and than a block
NUM_IDS = 24


@cache
def _folder() -> Path:
    """Where tiny.gguf and tiny.json are: in the wheel, or among the golden files of a checkout."""
    here = Path(__file__).parent
    packed = here / "golden"
    return packed if packed.is_dir() else here.parent / "tests" / "golden"


async def passes(device: Device) -> bool:
    """Whether the device computes the ids it should. It holds nothing afterwards."""
    data = (_folder() / "tiny.gguf").read_bytes()
    golden = json.loads((_folder() / "tiny.json").read_text(encoding="utf-8"))["prompts"][PROMPT]
    gguf = read_header(data, len(data))
    model = open_model(gguf)
    kv = model.config.kv_layout(CONTEXT // 16, CONTEXT)
    # 8-bit activations are a choice of less precision, not a fault of the device.
    plans = build_plans(model, replace(device.traits, activations="q16"), kv)
    try:
        await device.allocate(persistent_tensors(plans.values()).values())
        (rope,) = model.config.ropes
        device.write(kv.rope(rope.name), rope.table(CONTEXT))
        device.write(kv.block_table, array("I", range(kv.max_blocks - 1, -1, -1)).tobytes())
        await device.upload(data, shard_jobs(gguf, weights_of(plans.values()), [len(data)])[0])
        await device.compile(list(plans.values()), lambda *_: None)
        got = await _greedy(device, golden["prompt_ids"])
        ids: list[int] = golden["ids"][:NUM_IDS]
        return got == ids
    finally:
        device.clear()


async def _greedy(device: Device, prompt: list[int]) -> list[int]:
    """The first NUM_IDS ids after a prompt, by both samplers in turn."""
    chunk = device.traits.chunk
    first: list[int] = []
    for start in range(0, len(prompt), chunk):
        ids = prompt[start : start + chunk]
        device.write(tokens_tensor(chunk), array("I", ids).tobytes())
        device.write(STEP, StepRecord(start, len(ids)).pack())
        last = start + chunk >= len(prompt)
        plans = [PREFILL, HEAD, SAMPLE] if last else [PREFILL]
        first = list(await device.run(plans, len(ids), 1, 0, int(last)))
    device.write(SAMPLING, SamplingRecord().pack())
    half = NUM_IDS // 2
    chosen = list(await device.run([DECODE, CHOOSE], 1, half, 1, half))
    rest = NUM_IDS - 1 - half
    return first + chosen + list(await device.run([DECODE, SAMPLE], 1, rest, 1 + half, rest))
