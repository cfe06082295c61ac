"""Loading a model: header, device, plans, weights, tokenizer; each told as progress."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.backends.base import Device, persistent_tensors, pools_of, weights_of
from engine.chat import ChatTemplate
from engine.checks import right_plans
from engine.config import LoadConfig, recommended
from engine.economy import Economy
from engine.events import Exchange
from engine.grammar import Grammar
from engine.header import Manifest, Shards, read_headers, read_manifest
from engine.kv import BlockPool
from engine.kv.budget import budget_blocks, first_blocks
from engine.models import ModelConfig, open_model
from engine.models.plans import (
    CHOOSE,
    DECODE,
    HEAD,
    LOGPROBS,
    PREFILL,
    SAMPLE,
    build_plans,
)
from engine.ops.kv_layout import KV_BLOCK, KVLayout
from engine.ops.state import STEP, StepRecord
from engine.plan import Plan, Traits, Weight
from engine.prompt import Prompts
from engine.room import Boundless, Room
from engine.templates import fallback
from engine.tokenizer import Encoder
from engine.tokenizer.decoder import token_bytes
from engine.tokenizer.spec import (
    SpecialTokens,
    control_texts,
    markup_texts,
    special_ids,
    tokenizer_json,
)
from engine.tuning import Measured, tune
from engine.weights.gguf import GGUF
from engine.weights.loading import shard_jobs

BYTE_ACTIVATIONS_FROM = 1_000_000_000  # parameters
LARGE_CHUNK = 64  # tokens
QUICK_SECONDS = 0.4  # for a chunk, on devices with small ones
StageProgress = Callable[[str, int, int, str], None]


class Host(Protocol):
    """What the engine needs of the place it runs in: the browser's worker, or a test."""

    async def open_shards(self, manifest: str, progress: Callable[[int, int], None]) -> str:
        """Start the download; returns the manifest, a JSON text."""
        ...

    async def read_shard(self, index: int) -> Any:
        """A verified shard, as the device takes it."""
        ...

    def head_of(self, shard: Any, count: int) -> bytes:
        """The first bytes of a shard."""
        ...

    def cancel_shards(self) -> None:
        """Give up the download."""
        ...

    async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
        """The device to use, and why it is not the GPU (empty if it is, or if it was asked for)."""
        ...

    async def open_tokenizer(self, json_text: str) -> Encoder:
        """A tokenizer set up by a tokenizer.json."""
        ...

    async def open_grammar(
        self, schema: str, strict: bool, table: list[bytes], ends: frozenset[int]
    ) -> Grammar:
        """JSON of a schema in tokens, whose bytes are in ``table``. OctavoError request.invalid if
        the schema cannot be used."""
        ...

    def fetch(self, url: str, headers: Mapping[str, str], body: str | None) -> Exchange:
        """Begin to ask a server: POST of a ``body``, else GET. It is asked once, redirects are not
        followed, and nothing is sent but this."""
        ...

    async def recall(self, key: str) -> str:
        """What was remembered under ``key``, on an earlier visit too; empty if nothing was."""
        ...

    async def remember(self, key: str, value: str) -> None:
        """Remember a short text for later visits."""
        ...

    def now(self) -> float:
        """Seconds on a clock that only moves forward."""
        ...


@dataclass
class LoadedModel:
    """Everything that belongs to one loaded model."""

    name: str
    config: ModelConfig
    context: int
    device: Device
    device_reason: str
    traits: Traits  # of the device, as the plans were built for it
    kv: KVLayout
    pool: BlockPool
    block_bytes: int  # of a KV block in all layers
    plans: Mapping[str, Plan]
    encoder: Encoder
    prompts: Prompts
    special: SpecialTokens
    token_bytes: list[bytes]
    file_bytes: int
    sha256: str  # of the file; empty if the manifest does not say
    prefill_sample: tuple[int, float] | None  # tokens of a chunk, and the seconds it took
    timings: list[Measured]  # of kernel variants, measured in this load
    sampling: dict[str, float]  # what the file recommends, by the field of a request
    room: Room

    @property
    def kv_precision(self) -> str:
        """Of what the KV pools hold: f32 instead of f16 on a device without halves."""
        is_wide = self.kv.precision == "f16" and self.traits.kv_value_bytes == 4
        return "f32" if is_wide else self.kv.precision

    async def make_room(self, count: int) -> None:
        """Let the KV pools grow if ``count`` blocks are not free, as far as their budget goes. If
        the device has not the memory, that ends where the pools are; if other models have it, the
        pools stay as they are for now."""
        wanted = self.pool.wanted(count)
        if wanted == self.pool.num_blocks:
            return
        pools = list(pools_of(self.plans.values(), wanted).values())
        with self.room.more(self.device.needs(pools, ())) as may:  # beside the old ones, at first
            if not may:
                return
            if await self.device.grow(pools):
                self.pool.grow(wanted)
            else:
                self.pool.budget = self.pool.num_blocks

    def close(self) -> None:
        """Free the device's buffers and the tokenizer."""
        self.device.close()
        self.encoder.close()


class Closable(Protocol):
    """What holds memory, or a worker, until it is closed."""

    def close(self) -> None:
        """Give it back."""
        ...


@contextmanager
def or_nothing(host: Host) -> Iterator[list[Closable]]:
    """A load of which nothing stays behind if it fails or is stopped: no more shards are read, and
    whatever it has put into the list is closed."""
    opened: list[Closable] = []
    try:
        yield opened
    except BaseException:
        host.cancel_shards()
        for closable in opened:
            closable.close()
        raise


async def load(
    host: Host,
    config: LoadConfig,
    progress: StageProgress,
    room: Room | None = None,
    opener: Callable[[LoadConfig], Awaitable[tuple[Device, str]]] | None = None,
    economy: Economy | None = None,
) -> LoadedModel:
    """Load a model, with memory from ``room`` and as ``economy`` allows, on the host's device or
    that of ``opener``. On any error or cancellation nothing of it stays behind.

    Whatever can be known of it without its weights is checked before it asks for room: until then
    the device has what it had."""
    room, economy = room or Boundless(), economy or Economy()
    with or_nothing(host) as opened:

        async def open_device() -> tuple[Device, str]:
            device, reason = await (opener or host.open_device)(config)
            opened.append(device)  # even if what else is done meanwhile fails
            return device, reason

        async def open_tokenizer(json_text: str) -> Encoder:
            opened.append(encoder := await host.open_tokenizer(json_text))
            return encoder

        manifest = read_manifest(
            await host.open_shards(config.model, lambda n, of: progress("download", n, of, "bytes"))
        )
        (first, gguf), (device, reason) = await _together(
            read_headers(host, manifest), open_device()
        )
        progress("device", 1, 2, "steps")
        model = open_model(gguf)
        tokenizer, special = tokenizer_json(gguf.metadata), special_ids(gguf.metadata)
        texts, template = token_bytes(gguf.metadata), _template_of(gguf.metadata, special)
        device.traits = replace(device.traits, chunk=economy.chunk(device.traits.chunk))
        traits = _traits_for(model.config, device, config)
        context, block_bytes, budget = _budget_of(model.config, config, traits, economy)
        # Plans say that the pools hold one context: so kernels that were measured once stay known,
        # whatever the budget.
        kv = model.config.kv_layout(-(-context // KV_BLOCK), context, config.kv_precision)
        plans, traits = await right_plans(
            device, lambda simpler: build_plans(model, simpler, kv), traits, host
        )
        num_blocks = first_blocks(budget)
        tensors = persistent_tensors(plans.values()) | pools_of(plans.values(), num_blocks)
        ropes = {rope: rope.factors_in(context) for rope in model.config.ropes}
        extra = [factors for factors in ropes.values() if factors]  # weights of no plan
        weights = weights_of(plans.values()) + extra
        needs = device.needs([*tensors.values(), *extra], plans.values(), manifest.shard_sizes)
        await room.take(needs)
        progress("device", 2, 2, "steps")  # what was in its place is gone
        timings: list[Measured] = []
        if config.tune or (config.tune is None and _is_real_gpu(device)):
            choices, timings = await tune(
                host,
                device,
                list(plans.values()),
                bool(config.tune),
                lambda n, of: progress("tune", n, of, "steps"),
                lambda nbytes: room.take(max(nbytes, needs)),
            )
            plans = {name: plan.varied(choices) for name, plan in plans.items()}
            await room.take(needs)
        await device.allocate([*tensors.values(), *extra])
        for rope, factors in ropes.items():
            if not factors:
                device.write(kv.rope(rope.name), rope.table(context))
        device.begin_upload(manifest.shard_sizes)
        # In this order, as each begins with work for this thread; then all three mostly wait.
        _, encoder, _ = await _together(
            device.compile(list(plans.values()), lambda n, of: progress("compile", n, of, "steps")),
            open_tokenizer(tokenizer),
            upload_weights(host, device, gguf, manifest, weights, first, progress),
        )
        for rope, factors in ropes.items():
            if factors:
                # Only now have they come; the device has them, as it has all weights.
                divisors = array("f", await device.read(factors))[: rope.rotary // 2]
                device.write(kv.rope(rope.name), rope.table(context, divisors))
        sample = await _warm_up(host, device, context, progress)
        controls, markup = control_texts(gguf.metadata), markup_texts(gguf.metadata)
        return LoadedModel(
            name=manifest.name or model.config.name,
            config=model.config,
            context=context,
            device=device,
            device_reason=reason,
            traits=traits,
            kv=kv,
            pool=BlockPool(num_blocks, budget),
            block_bytes=block_bytes,
            plans=plans,
            encoder=encoder,
            prompts=Prompts(template, encoder, special, controls, markup),
            special=special,
            token_bytes=texts,
            file_bytes=manifest.size,
            sha256=manifest.sha256,
            prefill_sample=sample,
            timings=timings,
            sampling=recommended(gguf.metadata),
            room=room,
        )


def _budget_of(
    model: ModelConfig, config: LoadConfig, traits: Traits, economy: Economy
) -> tuple[int, int, int]:
    """The context in tokens, the bytes of a KV block in all layers, and how many of these there
    may be: a context is never longer than the budget."""
    context = min(config.context, model.context)
    pool_bytes = model.kv_block_bytes(config.kv_precision, traits.kv_value_bytes)
    block_bytes = 2 * model.num_layers * pool_bytes
    most = traits.max_tensor_bytes // pool_bytes
    budget = economy.blocks(budget_blocks(config, context, block_bytes, most))
    return min(context, budget * KV_BLOCK), block_bytes, budget


def _template_of(metadata: dict[str, Any], special: SpecialTokens) -> ChatTemplate:
    """The file's chat template, or one that its vocabulary tells of."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    bos = tokens[special.bos] if special.bos is not None else ""
    eos = tokens[special.named_eos] if special.named_eos is not None else ""
    return ChatTemplate(metadata.get("tokenizer.chat_template") or fallback(tokens), bos, eos)


def _traits_for(model: ModelConfig, device: Device, config: LoadConfig) -> Traits:
    """A large model's products of many tokens take 8-bit activations on a real GPU, unless told
    otherwise: half the work, and large models bear it (tests/bench/LOG.md)."""
    large = model.parameters >= BYTE_ACTIVATIONS_FROM
    if config.activations == "auto" and large and _is_real_gpu(device):
        return replace(device.traits, activations="q8")
    return device.traits


def _is_real_gpu(device: Device) -> bool:
    """Software adapters take too long to measure; their rules come from tests/bench/LOG.md."""
    return device.traits.kind == "webgpu" and not device.traits.software


async def _together(*work: Awaitable[Any]) -> list[Any]:
    """All results; if one part fails or the whole is cancelled, no part goes on."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def upload_weights(
    host: Shards,
    device: Device,
    gguf: GGUF,
    manifest: Manifest,
    weights: list[Weight],
    first: Any,
    progress: StageProgress,
) -> None:
    """All shards, in order; the next one is read while the device takes this one."""
    jobs = shard_jobs(gguf, weights, manifest.shard_sizes)
    done = 0
    progress("weights", 0, manifest.size, "bytes")
    shard = first
    for index, size in enumerate(manifest.shard_sizes):
        more = index + 1 < len(manifest.shard_sizes)
        reading = asyncio.ensure_future(host.read_shard(index + 1)) if more else None
        try:
            await device.upload(shard, jobs[index])
        except BaseException:
            if reading:
                reading.cancel()
            raise
        shard = await reading if reading else None
        done += size
        progress("weights", done, manifest.size, "bytes")
    device.finish_upload()


async def _warm_up(
    host: Host, device: Device, context: int, progress: StageProgress
) -> tuple[int, float] | None:
    """Run every plan once: drivers finish their compilation at the first dispatch. What it writes
    into KV block 0 is never read, as no sequence owns it yet. On a device that takes no time for a
    whole chunk, returns the tokens of one and the seconds it took."""
    device.write(STEP, StepRecord(position=0, num_tokens=1).pack())
    await device.run([PREFILL, HEAD, CHOOSE, LOGPROBS], 1, 1, 0, 1)
    progress("warmup", 1, 3, "steps")
    started = host.now()
    await device.run([DECODE, SAMPLE], 1, 1, 1, 1)
    token_seconds = host.now() - started
    progress("warmup", 2, 3, "steps")
    sample = None
    tokens = min(device.traits.chunk, context)
    if tokens >= LARGE_CHUNK or tokens * token_seconds < QUICK_SECONDS:
        device.write(STEP, StepRecord(position=0, num_tokens=tokens).pack())
        await device.run([PREFILL], tokens, 1, 0, 0)
        started = host.now()
        await device.run([PREFILL], tokens, 1, 0, 0)
        sample = (tokens, host.now() - started)
    progress("warmup", 3, 3, "steps")
    return sample
