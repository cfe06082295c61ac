"""Loads the model of `debug` on a device, runs a prompt on it call by call, says what it saw."""

from __future__ import annotations

import argparse
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import ceil

from engine.backends.base import Device
from engine.config import GenerateConfig, LoadConfig
from engine.errors import OctavoError
from engine.host import assemble, chromium, native, pins
from engine.host.bench import WEBGPU_FLAG
from engine.host.debug import report
from engine.host.debug.comparison import Comparison, Seen, Step
from engine.host.debug.files import FileWeights, host_of
from engine.host.debug.page import PageDevice, opened
from engine.host.errors import HostError
from engine.host.local import LocalHost
from engine.host.paths import ROOT
from engine.host.progress import Step as Progress
from engine.loader import LoadedModel, load
from engine.models.plans import DECODE, HEAD, PREFILL, SAMPLE
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.state import STEP, StepRecord, tokens_tensor
from engine.prompt import check_length
from engine.raw import raw_prompt


@dataclass
class Found:
    """What a run has shown."""

    seen: list[Seen] = field(default_factory=list)

    @property
    def difference(self) -> Seen | None:
        """The first tensor that differs."""
        return next((seen for seen in self.seen if seen.differs), None)

    @property
    def not_finite(self) -> Seen | None:
        """The first tensor with a value that is not finite."""
        return next((seen for seen in self.seen if seen.bad), None)


async def run(arguments: argparse.Namespace) -> int:
    """The command; 1 if something differs, or is not finite."""
    simd = arguments.device == "cpu" and arguments.activations != "f32"
    library = ROOT / native.build(native.HERE) if simd else None
    host = host_of(arguments.model or assemble.model_file(pins.MODELS[0]), library)
    fields = ("device", "context", "activations", "kv_precision")
    config = LoadConfig.from_wire({name: getattr(arguments, name) for name in fields})
    weights = await FileWeights.of(host) if arguments.compare else None
    async with _loaded(host, config, arguments.chromium_flag) as model:
        if arguments.layer is not None and not 0 <= arguments.layer < model.config.num_layers:
            raise HostError(f"The model's layers are 0 to {model.config.num_layers - 1}.")
        ids = await _ids(model, arguments.prompt, arguments.raw)
        print(f"{model.name} on {model.traits.name}, {len(ids)} tokens", flush=True)
        blocks = await lay_out(model, len(ids) + arguments.steps)
        comparison = Comparison(
            model.device, blocks, weights, arguments.layer, arguments.looser, model.kv.head_dim
        )
        found = await examine(comparison, steps_of(model, ids, arguments.steps), arguments.all)
    return conclude(found, arguments.compare)


async def examine(comparison: Comparison, steps: Iterator[Step], table: bool = False) -> Found:
    """Run steps call by call; with a ``table``, print a line for each tensor."""
    found = Found()
    if table:
        print(report.heading(comparison.weights is not None))
    async for seen in comparison.run(steps):
        found.seen.append(seen)
        if table:
            print(report.row(seen), flush=True)
    return found


def conclude(found: Found, compares: bool, owners: Sequence[str] = ()) -> int:
    """Say what was found; the exit status. ``owners`` are the nodes whose calls they are."""
    difference, bad = found.difference, found.not_finite
    lines: list[str] = []
    for seen, tell in ((difference, report.first_difference), (bad, report.first_not_finite)):
        lines += tell(seen) if seen else []
        lines += [f"  node: {owners[seen.index]}"] if seen and owners else []
    if compares and not difference:
        lines.insert(0, report.closing(found.seen))
    elif not compares and not bad:
        lines.append(f"{len(found.seen)} tensors: all values are finite")
    print("\n".join(lines), flush=True)
    return 1 if difference or bad else 0


async def lay_out(model: LoadedModel, tokens: int) -> int:
    """Give a sequence its KV blocks, the last one first, so that kernels have to find them; how
    many there are."""
    blocks = ceil(tokens / KV_BLOCK)
    if blocks > model.kv.max_blocks:
        raise OctavoError("prompt.too_long", f"The context holds {model.context} tokens.")
    await model.make_room(blocks)
    model.device.write(model.kv.block_table, array("I", reversed(range(blocks))).tobytes())
    return blocks


def steps_of(model: LoadedModel, ids: list[int], steps: int) -> Iterator[Step]:
    """The prompt in chunks, its first token, and ``steps`` tokens after that, as in an answer."""
    chunk, plans = model.traits.chunk, model.plans
    tokens = tokens_tensor(chunk)
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        record = StepRecord(start, len(part)).pack()
        yield Step(
            plans[PREFILL], len(part), ((tokens, array("I", part).tobytes()), (STEP, record))
        )
    yield Step(plans[HEAD], 1)
    yield Step(plans[SAMPLE], 1)
    for _ in range(steps):
        yield Step(plans[DECODE], 1)
        yield Step(plans[SAMPLE], 1)


async def _ids(model: LoadedModel, prompt: str, raw: bool) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    ids = (await (raw_prompt(model, prompt) if raw else model.prompts.encode(messages))).ids
    check_length(ids, model.context, GenerateConfig())
    return ids


@asynccontextmanager
async def _loaded(
    host: LocalHost, config: LoadConfig, flags: list[str]
) -> AsyncIterator[LoadedModel]:
    """The model on the device that is asked for."""
    if config.device == "cpu":
        with Progress("Loading the model"):
            model = await load(host, config, lambda *_: None)
        yield model
        return
    async with opened(chromium.ensure(), [WEBGPU_FLAG, *flags]) as player:

        async def page_device(_: LoadConfig) -> tuple[Device, str]:
            return PageDevice(player, config.activations), ""

        with Progress("Loading the model"):
            model = await load(host, config, lambda *_: None, opener=page_device)
        yield model
