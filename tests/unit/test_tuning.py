"""The choice of kernel variants: what is measured, trusted, chosen and remembered."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from engine.backends.null import NullDevice
from engine.config import LoadConfig
from engine.errors import OctavoError
from engine.loader import load
from engine.models import open_model
from engine.models.plans import DECODE, build_plans
from engine.plan import Plan, Tensor, Traits
from engine.tuning import KEY_SECONDS, Measured, choose, measure, tune
from engine.weights.gguf import read_header
from tests.native import NativeHost, unchecked
from tests.tiny import TINY

TRAITS = Traits("webgpu", "fake", subgroup=32, activations="q16", chunk=64)


class FakeDevice(NullDevice):
    """A device with a clock of 0.1 ms: every call takes so many ``seconds``, those of the variant
    ``fast`` a tenth; what ``wrong`` writes is other than what the rest writes."""

    def __init__(
        self, fast: str = "", wrong: str = "", broken: str = "", seconds: float = 1e-5
    ) -> None:
        super().__init__(TRAITS)
        self.fast, self.wrong, self.broken, self.seconds = fast, wrong, broken, seconds
        self.clock = 0.0
        self.compiled: list[str] = []
        self.warm = False
        self.longest = 0  # calls in one measurement
        self.stopped = False  # its clock
        self._last = ""

    async def compile(self, plans: Sequence[Plan], progress: object) -> None:  # type: ignore[override]
        self.compiled += [plan.calls[0].label for plan in plans]
        if self.broken and any(plan.calls[0].label.startswith(self.broken) for plan in plans):
            raise OctavoError("internal", "no pipeline")
        self.plans |= {p.name: p for p in plans}

    def _is(self, plan: Plan, variant: str) -> bool:
        call = plan.calls[0]
        ways = call.variants
        return variant in ways and call.varied(variant).shader == call.shader

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        self._last = plans[0]
        return [0] * count

    async def time(self, plan: str, tokens: int, repeat: int) -> float:
        calls = self.plans[plan].calls
        each = self.seconds / (10 if self._is(self.plans[plan], self.fast) else 1)
        self.warm |= plan == "warm"
        self.clock += each * repeat * len(calls)
        self.longest = max(self.longest, repeat * len(calls))
        return 0.0 if self.stopped else int(each * repeat * len(calls) * 1e4) / 1e4

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        value = 2.0 if self._is(self.plans[self._last], self.wrong) else 1.0
        return array("f", [value]).tobytes() * ((nbytes or tensor.nbytes) // 4)

    def now(self) -> float:
        return self.clock


def tiny_plans() -> list[Plan]:
    data = TINY.read_bytes()
    model = open_model(read_header(data, len(data)))
    return list(build_plans(model, TRAITS, model.config.kv_layout(16, 256)).values())


def measured(
    device: FakeDevice, budget: float = 1e9, known: dict[str, str] | None = None
) -> list[Measured]:
    async def run() -> list[Measured]:
        return await measure(device, tiny_plans(), known or {}, device.now, budget, lambda *_: None)

    return asyncio.run(run())


FAST = "16 lanes, 4 rows"


def test_the_fastest_is_chosen_if_it_is_right() -> None:
    device = FakeDevice(fast=FAST)
    timings = measured(device)
    assert device.warm
    assert device.longest < 1 << 15, "a clock that says 0 leads to no endless work"
    assert all(5e-7 < t.seconds < 2e-5 for t in timings), "what is too short says nothing"
    chosen = choose(timings)
    teams = {t.key for t in timings if t.label.startswith("linear_team") and t.variant == FAST}
    assert teams
    assert all(chosen[key] == FAST for key in teams)


def test_a_slow_gpu_gets_one_call_at_a_time() -> None:
    device = FakeDevice(seconds=0.05)
    assert len({t.key for t in measured(device)}) > 4
    assert device.longest == 1


def test_a_gpu_whose_clock_stands_still() -> None:
    device = FakeDevice(fast=FAST, seconds=1e-3)
    device.stopped = True
    timings = measured(device)
    assert device.longest * 1e-4 < 1, "seconds that it works without a pause"
    assert all(5e-5 < t.seconds < 2e-3 for t in timings)
    assert FAST in choose(timings).values()


def test_what_a_token_takes_most_often_comes_first() -> None:
    decode = next(plan for plan in tiny_plans() if plan.name == DECODE)
    counts = Counter(call.key for call in decode.calls)
    order = list(dict.fromkeys(t.key for t in measured(FakeDevice())))
    times = [counts[key] for key in order if key in counts]
    assert len(set(times)) > 1 and times == sorted(times, reverse=True)
    assert set(order[: len(times)]) <= set(counts)


def test_a_wrong_variant_is_never_chosen() -> None:
    timings = measured(FakeDevice(fast=FAST, wrong=FAST))
    assert any(not t.right for t in timings)
    assert FAST not in choose(timings).values()


@pytest.mark.parametrize("most", [1 << 40, 200_000, 1000])
def test_memory_is_asked_for_before_it_is_taken(most: int) -> None:
    """A call for which there is none is left as it is."""
    device, taken, held, refused = FakeDevice(), list[int](), list[int](), list[int]()
    allocate = device.allocate

    async def take(nbytes: int) -> None:
        if nbytes > most:
            refused.append(nbytes)
            raise OctavoError("memory.budget")
        taken.append(nbytes)

    async def allocating(tensors: Iterable[Tensor]) -> None:
        await allocate(tensors)
        held.append(sum(device.memory().values()))

    device.allocate = allocating  # type: ignore[method-assign]
    progress = lambda *_: None  # noqa: E731
    timings = asyncio.run(measure(device, tiny_plans(), {}, device.now, 1e9, progress, take))
    assert held == taken and max(held, default=0) <= most
    assert bool(refused) == (most < 1 << 40)
    assert {t.key for t in timings} <= {t.key for t in measured(FakeDevice())}
    assert len({t.key for t in timings}) == len(taken) - device.warm
    assert device.memory() == {}


@pytest.mark.parametrize("seconds", [0.96e-4, 1e-4])
def test_what_is_hardly_faster_is_not_chosen(seconds: float) -> None:
    def timing(variant: str, took: float) -> Measured:
        return Measured("k", "k", variant, took, 1, True)

    assert choose([timing("first", 1e-4), timing("second", seconds)]) == {"k": "first"}
    assert choose([timing("first", 1e-4), timing("second", 0.9e-4)]) == {"k": "second"}


def test_what_is_known_is_not_measured_and_the_budget_holds() -> None:
    keys = list(dict.fromkeys(t.key for t in measured(FakeDevice())))
    assert len(keys) > 4
    rest = measured(FakeDevice(), known=dict.fromkeys(keys[1:], ""))
    assert {t.key for t in rest} == {keys[0]}
    few = measured(FakeDevice(), budget=1.5 * KEY_SECONDS)
    assert 0 < len({t.key for t in few}) < len(keys)


def test_a_kernel_that_cannot_be_compiled_keeps_its_rule() -> None:
    heaviest = FakeDevice(fast=FAST, broken="attention_tile")  # what the warm-up runs
    assert measured(heaviest)
    device = FakeDevice(fast=FAST, broken="linear_tile_int")
    labels = {t.label.split()[0] for t in measured(device)}
    assert "linear_tile_int" not in labels
    assert "linear_team" in labels
    assert not device.tensors, "nothing is left on the device"


def test_choices_change_plans_and_nothing_else() -> None:
    for plan in tiny_plans():
        choices = {c.key: list(c.variants)[-1] for c in plan.calls if c.variants}
        varied = plan.varied(choices)
        assert varied.slot_of == plan.slot_of
        for before, after in zip(plan.calls, varied.calls, strict=True):
            assert after.args == before.args
            assert after.key == before.key if before.variants else after == before
            assert plan.varied({}).calls == plan.calls
        if choices:
            assert varied != plan


def test_choices_are_remembered_by_adapter_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tuning.BUDGET_SECONDS", 10.0)  # for all there is
    host = NativeHost(TINY)
    device = FakeDevice(fast=FAST)
    host.now = device.now  # type: ignore[method-assign]

    async def twice() -> tuple[dict[str, str], list[Measured], dict[str, str], list[Measured]]:
        first = await tune(host, device, tiny_plans(), False, lambda *_: None)
        second = await tune(host, device, tiny_plans(), False, lambda *_: None)
        return *first, *second

    choices, timings, again, none = asyncio.run(twice())
    assert timings
    assert not none
    assert again == choices
    assert FAST in choices.values()
    ((place, text),) = host.memory.items()
    assert place.endswith(" fake")
    assert json.loads(text) == choices


@pytest.mark.parametrize(
    ("tune", "software", "expected"),
    [(None, False, True), (False, False, False), (None, True, False), (True, True, True)],
)
def test_what_a_load_measures(
    tune: bool | None, software: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.loader.right_plans", unchecked)
    device = FakeDevice(fast=FAST)
    device.traits = Traits("webgpu", "fake", software, 32, True, "q16", 64)
    host = NativeHost(TINY, device=device)
    host.now = device.now  # type: ignore[method-assign]

    async def run() -> tuple[int, bool]:
        model = await load(host, LoadConfig(context=256, tune=tune), lambda *_: None)
        chosen = any(
            call.variants and call.shader == call.varied(FAST).shader
            for call in model.plans["decode"].calls
            if FAST in call.variants
        )
        return len(model.timings), chosen

    count, chosen = asyncio.run(run())
    assert bool(count) == expected
    assert chosen == expected
