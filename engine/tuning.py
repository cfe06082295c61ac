"""Chooses kernel variants by a short measurement on the user's device.

For every distinct call of a model's plans that has variants, each of them runs on made-up tensors
of the real shapes. One that computes other numbers than the first (which the self-test has
checked, see selftest.py) is never used; another is chosen only if it is clearly faster.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from engine.backends.base import Device, Progress, persistent_tensors
from engine.checks import Notebook
from engine.errors import as_octavo_error
from engine.ops.kv_layout import KV_BLOCK
from engine.ops.state import STEP, StepRecord
from engine.plan import Call, Plan, Tensor, Weight, plane_name
from engine.shaders import fingerprint

BUDGET_SECONDS = 0.8  # of a load, after the warm-up
LARGEST_BYTES = 96 << 20  # of a call's tensors; a larger product is bound by memory in any variant
COPIES_BYTES = 64 << 20  # of a weight: calls take turns on copies that no cache holds together
MOST_COPIES = 16
SLICE_SECONDS = 0.005  # of one measurement at least
MOST_CALLS = 1 << 12  # of one measurement
LATE_SECONDS = 0.2  # that no measurement takes whose GPU has a clock that goes
KEY_SECONDS = 0.08  # for all variants of a call
WARM_SECONDS = 0.6  # at most, until a GPU that was idle has clocked up
WARM_SLICE_SECONDS = 0.05  # without a pause
STILL = 3  # slices that are not clearly faster
CLEARLY = 0.95  # of the first variant's time
SAMPLE = 1 << 11  # values compared at the beginning and at the end of a result
TOLERANCE = 2e-3  # of the largest value
POSITION = 1024  # of the step that is measured, in a context that long
PATTERN = 1 << 14  # made-up values before they repeat
Take = Callable[[int], Awaitable[None]]  # waits until so many bytes may be held


async def at_once(nbytes: int) -> None:
    """There is memory enough."""


@dataclass(frozen=True)
class Measured:
    """What was measured of one variant; ``seconds`` a call, ``nbytes`` read and written by it."""

    key: str
    label: str
    variant: str
    seconds: float
    nbytes: int
    right: bool

    def to_wire(self, best: Mapping[str, str]) -> dict[str, object]:
        """The timing as it crosses to the page; ``best`` says which variants were chosen."""
        return {
            "label": self.label,
            "variant": self.variant,
            "us": self.seconds * 1e6,
            "gb_per_s": self.nbytes / self.seconds / 1e9,
            "right": self.right,
            "chosen": best[self.key] == self.variant,
        }


class Host(Notebook, Protocol):
    """What tuning needs of the engine's host."""

    def now(self) -> float:
        """Seconds."""
        ...


async def tune(
    host: Host,
    device: Device,
    plans: Sequence[Plan],
    again: bool,
    progress: Progress,
    take: Take = at_once,
) -> tuple[dict[str, str], list[Measured]]:
    """Variant by key, for `Plan.varied`, and what was measured for it now: what this adapter has
    not been asked before, as far as BUDGET_SECONDS go; ``again``, all of it."""
    place = f"kernels {fingerprint()} {device.traits.name}"
    known: dict[str, str] = {} if again else json.loads(await host.recall(place) or "{}")
    budget = math.inf if again else BUDGET_SECONDS
    timings = await measure(device, plans, known, host.now, budget, progress, take)
    if timings:
        known |= choose(timings)
        await host.remember(place, json.dumps(known))
    return known, timings


def choose(timings: Iterable[Measured]) -> dict[str, str]:
    """The best variant by key: the first, or a right one that is clearly faster."""
    by_key: dict[str, list[Measured]] = {}
    for timing in timings:
        by_key.setdefault(timing.key, []).append(timing)
    best: dict[str, str] = {}
    for key, (first, *others) in by_key.items():
        right = [t for t in others if t.right and t.seconds < CLEARLY * first.seconds]
        best[key] = min(right, key=lambda t: t.seconds, default=first).variant
    return best


async def measure(
    device: Device,
    plans: Iterable[Plan],
    known: Mapping[str, str],
    now: Callable[[], float],
    budget: float,
    progress: Progress,
    take: Take = at_once,
) -> list[Measured]:
    """Time the variants of all calls whose key is not ``known``, until ``budget`` seconds are
    over. A call with a variant that this device cannot run, or that has no room (``take``), is left
    as it is. Whatever was on the device is freed."""
    # What every token takes comes first, and of it what it takes most often, in case that time
    # runs out.
    varying = [(p.tokens, c.key, c) for p in plans for c in p.calls if len(c.variants) > 1]
    often = Counter(key for _, key, _ in varying)
    varying.sort(key=lambda found: (found[0], -often[found[1]]))
    calls = {key: (call, tokens) for tokens, key, call in varying}
    calls = {
        key: (_apart(call), tokens)
        for key, (call, tokens) in calls.items()
        if key not in known and _nbytes(call) <= LARGEST_BYTES
    }
    if not calls:
        return []
    device.prepare([call.varied(name) for call, _ in calls.values() for name in call.variants])
    heaviest, most = max(calls.values(), key=lambda c: c[1] * _nbytes(c[0]))
    timings: list[Measured] = await _tried(device, _warm_up(device, heaviest, most, now, take))
    started = now()
    for i, (call, tokens) in enumerate(calls.values()):
        if now() - started > budget:
            break
        timings += await _tried(device, _measure_call(device, call, tokens, now, take))
        progress(i + 1, len(calls))
    return timings


async def _tried(device: Device, work: Awaitable[list[Measured]]) -> list[Measured]:
    """The outcome, or nothing if the device cannot do it; either way the device is empty again."""
    try:
        return await work
    except Exception as error:
        if as_octavo_error(error).code == "gpu.lost":
            raise
        return []
    finally:
        device.clear()


def _nbytes(call: Call) -> int:
    return sum(tensor.nbytes for tensor in call.args.values())


def _apart(call: Call) -> Call:
    """The call with activations that keep buffers of their own."""
    args = {
        name: replace(t, role="state") if t.role == "activation" else t
        for name, t in call.args.items()
    }
    return replace(call, args=args)


def _copies(call: Call) -> list[Call]:
    """The call on several weights, as the layers of a model have them."""
    weights = {name: t for name, t in call.args.items() if isinstance(t, Weight)}
    nbytes = sum(t.nbytes for t in weights.values())
    count = min(MOST_COPIES, COPIES_BYTES // nbytes) if nbytes else 1
    copies = [
        {name: replace(t, name=f"{t.name}.{i}") for name, t in weights.items()}
        for i in range(1, count)
    ]
    return [call, *(replace(call, args={**call.args, **copy}) for copy in copies)]


async def _measure_call(
    device: Device, call: Call, tokens: int, now: Callable[[], float], take: Take
) -> list[Measured]:
    once, timed = dict[str, Plan](), dict[str, Plan]()
    for i, name in enumerate(call.variants):
        calls = tuple(copy.varied(name) for copy in _copies(call))
        once[name] = Plan(f"once.{i}", calls[:1], {}, (), tokens)
        timed[name] = Plan(f"timed.{i}", calls, {}, (), tokens)
    tensors = persistent_tensors(timed.values()).values()
    await take(device.needs(tensors, timed.values()))
    await device.allocate(tensors)
    _fill_all(device, call, tokens)
    await device.compile([*once.values(), *timed.values()], lambda *_: None)

    results = {name: await _result(device, call, plan) for name, plan in once.items()}
    first, alone = next(iter(results.values())), next(iter(once.values()))
    if await _clocked(device, alone, 1, SLICE_SECONDS, now) >= SLICE_SECONDS:
        timed = once  # long enough; a slow GPU that is busy with many of them at once may be reset
    best = dict.fromkeys(timed, math.inf)
    repeats = dict.fromkeys(timed, 1)
    started = now()
    while math.inf in best.values() or now() - started < KEY_SECONDS:
        for name, plan in timed.items():
            seconds, repeats[name] = await _seconds(device, plan, repeats[name], SLICE_SECONDS, now)
            best[name] = min(seconds, best[name])
    return [
        Measured(call.key, call.label, name, best[name], _nbytes(call), _same(result, first))
        for name, result in results.items()
    ]


async def _warm_up(
    device: Device, call: Call, tokens: int, now: Callable[[], float], take: Take
) -> list[Measured]:
    """Work without a pause until it gets no faster: an idle GPU's clock takes its time to come
    up, and does not while there is little to do."""
    plan = Plan("warm", (call,), {}, (), tokens)
    tensors = persistent_tensors([plan]).values()
    await take(device.needs(tensors, [plan]))
    await device.allocate(tensors)
    _fill_all(device, call, tokens)
    await device.compile([plan], lambda *_: None)
    started, best, still, repeat = now(), math.inf, 0, 1
    while still < STILL and now() - started < WARM_SECONDS:
        seconds, repeat = await _seconds(device, plan, repeat, WARM_SLICE_SECONDS, now)
        still = 0 if seconds < CLEARLY * best else still + 1
        best = min(best, seconds)
    return []


async def _seconds(
    device: Device, plan: Plan, repeat: int, shortest: float, now: Callable[[], float]
) -> tuple[float, int]:
    """Time of one call, and how often the plan had to be replayed for it. Only what takes at least
    ``shortest`` seconds says anything: browsers round timestamps to 0.1 ms."""
    while True:
        seconds = await _clocked(device, plan, repeat, shortest, now)
        count = repeat * len(plan.calls)
        if seconds >= shortest or count >= MOST_CALLS:
            return max(seconds, 1e-9) / count, repeat
        repeat *= 4


async def _clocked(
    device: Device, plan: Plan, repeat: int, shortest: float, now: Callable[[], float]
) -> float:
    """Seconds of so many replays. WebGPU does not promise that a GPU's clock goes: where it says
    less than ``shortest`` of a long time, ours counts."""
    started = now()
    seconds = await device.time(plan.name, plan.tokens, repeat)
    took = now() - started
    return took if seconds < shortest and took > LATE_SECONDS else seconds


async def _result(device: Device, call: Call, plan: Plan) -> list[float]:
    """Beginning and end of what the call writes, after one run."""
    written = [call.args[name] for name in call.writes if call.args[name].dtype == "f32"]
    places = [(t, at, size) for t in written for at, size in _samples(t)]
    for tensor, at, size in places:
        # What a kernel leaves as it was shall not look like a result of the one before.
        device.write(tensor, array("f", [7.0]).tobytes() * (size // 4), at)
    await device.run([plan.name], plan.tokens, 1, 0, 0)
    values = array("f")
    for tensor, at, size in places:
        values.frombytes(await device.read(tensor, at, size))
    return list(values)


def _samples(tensor: Tensor) -> list[tuple[int, int]]:
    """Offset and bytes of the parts that are looked at."""
    size = min(4 * SAMPLE, tensor.nbytes)
    return [(0, size)] if size == tensor.nbytes else [(0, size), (tensor.nbytes - size, size)]


def _same(got: Sequence[float], want: Sequence[float]) -> bool:
    scale = max(map(abs, want), default=0.0)
    worst = max((abs(a - b) for a, b in zip(got, want, strict=True)), default=0.0)
    return worst <= TOLERANCE * scale  # false for what is not a number


def _fill_all(device: Device, call: Call, tokens: int) -> None:
    """Made-up contents for all that a call reads, the same every time."""
    for tensor in call.args.values():
        _fill(device, tensor, call, tokens)


def _fill(device: Device, tensor: Tensor, call: Call, tokens: int) -> None:
    if tensor == STEP:
        table = call.args.get("block_table")
        room = table.shape[0] * KV_BLOCK - tokens if table else 0
        device.write(tensor, StepRecord(min(POSITION, room), tokens).pack())
    elif tensor.name == "block_table":
        device.write(tensor, array("I", range(tensor.shape[0])).tobytes())
    elif isinstance(tensor, Weight):
        for plane in tensor.planes:
            words = Tensor(plane_name(tensor, plane), (plane.nbytes // 4,), "u32", "state")
            halves = plane.suffix == "scales" or tensor.format in ("f16", "bf16")
            kind = "halves" if halves else "floats" if tensor.format == "f32" else "bytes"
            device.write(words, _pattern(kind, words.nbytes))
    else:
        kinds = {"f32": "floats", "f16": "halves", "u32": "bytes"}
        # Pools of bytes have scales among their words, which are halves.
        kind = "halves" if tensor.role == "kv" else kinds[tensor.dtype]
        device.write(tensor, _pattern(kind, tensor.nbytes))


@cache
def _block(kind: str) -> bytes:
    rng = random.Random(1)
    if kind == "bytes":
        return rng.randbytes(4 * PATTERN)
    code = "e" if kind == "halves" else "f"
    return struct.pack(f"<{PATTERN}{code}", *(rng.uniform(-1, 1) for _ in range(PATTERN)))


def _pattern(kind: str, nbytes: int) -> bytes:
    """``nbytes`` of random ``bytes``, ``floats`` (f32) or ``halves`` (f16) from -1 to 1."""
    block = _block(kind)
    return (block * (nbytes // len(block) + 1))[:nbytes]
