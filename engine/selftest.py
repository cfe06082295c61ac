"""A tiny model with known answers, run on a GPU before it is trusted with a real one.

Some drivers compute wrong numbers without any error. The tiny model goes through the same plans
and kernels as every model; its greedy ids were computed by an independent implementation.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

from engine.backends.base import Device, persistent_tensors, weights_of
from engine.checks import Notebook, right_plans
from engine.files import golden
from engine.models import open_model
from engine.models.plans import CHOOSE, DECODE, HEAD, PREFILL, SAMPLE, build_plans
from engine.ops.state import SAMPLING, STEP, SamplingRecord, StepRecord, tokens_tensor
from engine.weights.gguf import read_header
from engine.weights.loading import shard_jobs

CONTEXT = 256  # tokens
PROMPT = 3  # of the golden file: 130 tokens, more than a tile and than a block
NUM_IDS = 24


async def passes(device: Device, notebook: Notebook | None = None) -> bool:
    """Whether the device computes the ids it should, with those kernels that are right on it (see
    ``engine.checks``). It holds nothing afterwards. OctavoError gpu.wrong if no kernels are."""
    data = (golden() / "tiny.gguf").read_bytes()
    text = (golden() / "tiny.json").read_text(encoding="utf-8")
    prompt = json.loads(text)["prompts"][PROMPT]
    gguf = read_header(data, len(data))
    model = open_model(gguf)
    kv = model.config.kv_layout(CONTEXT // 16, CONTEXT)
    # 8-bit activations are a choice of less precision, not a fault of the device.
    traits = replace(device.traits, activations="q16")
    plans, _ = await right_plans(device, lambda t: build_plans(model, t, kv), traits, notebook)
    try:
        await device.allocate(persistent_tensors(plans.values()).values())
        (rope,) = model.config.ropes
        device.write(kv.rope(rope.name), rope.table(CONTEXT))
        device.write(kv.block_table, array("I", range(kv.max_blocks - 1, -1, -1)).tobytes())
        await device.upload(data, shard_jobs(gguf, weights_of(plans.values()), [len(data)])[0])
        await device.compile(list(plans.values()), lambda *_: None)
        got = await _greedy(device, prompt["prompt_ids"])
        ids: list[int] = prompt["ids"][:NUM_IDS]
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
