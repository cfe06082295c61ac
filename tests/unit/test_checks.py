"""Kernels are checked before they are used: what is wrong on a device is never used there."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import checks
from engine.backends.base import Device
from engine.backends.null import NullDevice
from engine.cases import (
    HALVES,
    MANY,
    Attend,
    Case,
    Lookup,
    Product,
    all_cases,
    blocks,
    expected,
)
from engine.checks import right_plans
from engine.config import LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.files import golden
from engine.models import open_model
from engine.models.plans import build_plans
from engine.plan import Call, Plan, Tensor, Traits, Weight
from engine.recovery import WRONG
from engine.weights.gguf import read_header
from engine.weights.quants import QUANTS
from tests.conftest import ROOT
from tests.golden import make_kernels
from tests.golden.make_kernels import outcome
from tests.kernels.cases import DEVICES
from tests.native import NativeHost

GPU = Traits("webgpu", "fake", subgroup=32, activations="q16", chunk=64)
MODELS = sorted(path.name for path in (ROOT / "tests/golden").glob("tiny*.gguf"))


def builder_of(name: str) -> Any:
    data = (ROOT / "tests/golden" / name).read_bytes()
    model = open_model(read_header(data, len(data)))
    kv = model.config.kv_layout(16, 256)
    return lambda traits: build_plans(model, traits, kv)


def test_what_has_to_come_out_is_what_the_references_compute() -> None:
    assert set(expected()) == {case.name for case in all_cases()}
    for case in all_cases():
        want = outcome(case)[:: case.stride]
        got = np.array(expected()[case.name])
        assert np.isfinite(want).all() and np.abs(want).max() > 0.01, case.name
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), case.name


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_a_gpu_for_which_subnormal_halves_are_zeros_is_wrong(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flushed(weight: Weight) -> bytes:
        rows = np.frombuffer(blocks(weight), np.uint8).reshape(-1, QUANTS[kind].block_bytes).copy()
        for start in HALVES[kind]:
            halves = rows[:, start : start + 2].view(np.float16)
            halves[np.abs(halves) < np.finfo(np.float16).smallest_normal] = 0
        return rows.tobytes()

    for spec in (Product(kind), Product(kind, residual=True), Lookup(kind)):
        case = Case(spec, True)
        want, tolerance = expected()[case.name], max(checks.TOLERANCE.values())
        same = array("f", outcome(case)[:: case.stride])
        assert checks._same(same, want, tolerance)
        with monkeypatch.context() as patched:
            patched.setattr(make_kernels, "blocks", flushed)
            other = array("f", outcome(case)[:: case.stride])
        assert not checks._same(other, want, tolerance)


def test_the_file_is_small() -> None:
    assert (golden() / "kernels.json").stat().st_size < 200_000


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_every_kernel_that_can_be_quantized_or_chosen_has_a_case(model: str, device: str) -> None:
    """And the case runs the same kernel, in the same ways."""
    traits = DEVICES[device]
    for plan in builder_of(model)(traits).values():
        cases = [(case, call) for case, call in checks._cases_of(plan)]
        found = {id(call) for _, call in cases}
        for call in plan.calls:
            wanted = call.op in ("linear", "embed") or bool(call.variants)
            assert id(call) in found or not wanted, f"{plan.name}: {call.label}"
        for case, call in cases:
            mine, _ = case.plan(traits)
            assert call.shader
            same = [c for c in mine.calls if c.shader and c.shader.name == call.shader.name]
            assert any(_kind(c) == _kind(call) for c in same), f"{case.name}: {call.label}"


def _ways_of(plans: dict[str, Plan]) -> Any:
    return [(c.shader, c.grid, c.variants) for plan in plans.values() for c in plan.calls]


def _kind(call: Call) -> Any:
    assert call.shader
    return call.shader.lib, call.shader.enable, call.shader.slots, set(call.variants)


class Checked(NullDevice):
    """Computes what has to come out, but for ways in which ``wrong`` (kernel, way) has a part; some
    cannot be compiled, in some it is ``lost``."""

    def __init__(
        self,
        traits: Traits = GPU,
        wrong: Sequence[tuple[str, str]] = (),
        broken: str = "",
        lost: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(traits)
        self.wrong, self.broken, self.lost = wrong, broken, lost
        self.runs: list[str] = []
        self.last: Plan | None = None

    def _is(self, plan: Plan, kernel: str, way: str) -> bool:
        ways = [
            name
            for call in plan.calls
            for name in call.variants
            if call.shader and call.varied(name).shader == call.shader
        ]
        names = [call.shader.name for call in plan.calls if call.shader]
        return kernel in names and way in (ways or [checks.PLAIN])

    async def compile(self, plans: Sequence[Plan], progress: Any) -> None:
        if self.broken and any(
            call.shader and call.shader.name == self.broken for p in plans for call in p.calls
        ):
            raise OctavoError("internal", "no pipeline")
        await super().compile(plans, progress)

    async def run(
        self, plans: Sequence[str], tokens: int, repeat: int, first: int, count: int
    ) -> list[int]:
        assert "," not in plans[0], "which divides the names of plans on their way"
        self.last = self.plans[plans[0]]
        self.runs.append(plans[0])
        if self.lost and self._is(self.last, *self.lost):
            raise OctavoError("gpu.lost")
        return [0] * count

    async def read(self, tensor: Tensor, offset: int = 0, nbytes: int | None = None) -> bytes:
        assert self.last
        name = self.last.name[: self.last.name.index(f"={_tokens(self.last)} ") + 2]
        case = next(case for case in all_cases() if case.name == name)
        values = array("f", bytes(tensor.nbytes))
        for i, value in enumerate(expected()[case.name]):
            values[i * case.stride] = value
        if any(self._is(self.last, *wrong) for wrong in self.wrong):
            values[case.stride * (len(expected()[case.name]) // 2)] *= 1.1
        return values.tobytes()


def _tokens(plan: Plan) -> int:
    return MANY if plan.tokens > 1 else 1


def checked(device: NullDevice, host: NativeHost | None = None) -> tuple[dict[str, Plan], Traits]:
    build = builder_of("tiny.gguf")
    plans, traits = asyncio.run(right_plans(device, build, device.traits, host))
    assert not device.tensors, "nothing is left on the device"
    return dict(plans), traits


def kernels(plans: dict[str, Plan]) -> set[str]:
    return {c.shader.name for plan in plans.values() for c in plan.calls if c.shader}


def test_what_is_right_is_left_as_it_is() -> None:
    plans, traits = checked(device := Checked())
    assert traits == GPU
    assert _ways_of(plans) == _ways_of(builder_of("tiny.gguf")(GPU))
    assert len(device.runs) > 30


FIRST = "16 lanes, 2 rows"  # of linear_team


def first_way(plans: dict[str, Plan], kernel: str) -> set[str]:
    return {
        next(iter(call.variants))
        for plan in plans.values()
        for call in plan.calls
        if call.shader and call.shader.name == kernel
    }


def test_a_wrong_way_is_never_taken() -> None:
    firsts = first_way(builder_of("tiny.gguf")(GPU), "linear_team")
    plans, traits = checked(Checked(wrong=[("linear_team", first) for first in firsts]))
    assert traits == GPU, "others are right"
    for plan in plans.values():
        for call in plan.calls:
            if call.shader and call.shader.name == "linear_team":
                assert not firsts & set(call.variants)
                way = next(iter(call.variants))
                assert call.shader == call.varied(way).shader
                assert call.grid == call.variants[way].grid


@pytest.mark.parametrize(
    ("kernel", "way", "expect"),
    [
        ("linear_tile_int", None, {"activations": "f32"}),
        ("linear_team", None, {"barriers": False, "subgroup": 0}),
        ("attention_tile", None, {"subgroup": 0}),
    ],
)
@pytest.mark.parametrize("compiles", [True, False])
def test_a_kernel_without_a_right_way(
    kernel: str, way: None, expect: dict[str, Any], compiles: bool
) -> None:
    """Plans are made of simpler ones."""
    ways = {
        name
        for plan in builder_of("tiny.gguf")(GPU).values()
        for call in plan.calls
        if call.shader and call.shader.name == kernel
        for name in call.variants
    }
    if compiles:
        device = Checked(wrong=[(kernel, name) for name in ways])
    else:
        device = Checked(broken=kernel)
    plans, traits = checked(device)
    if kernel == "attention_tile" and not compiles:
        expect = {"barriers": False, "subgroup": 0}
    if kernel == "linear_tile_int" or kernel not in kernels(plans):
        assert kernel not in kernels(plans)
    assert traits.activations == expect.get("activations", "q16") or traits.barriers is False
    assert traits != GPU
    assert kernel not in kernels(plans) or traits.subgroup == 0


def test_a_device_on_which_nothing_is_right() -> None:
    with pytest.raises(OctavoError) as caught:
        checked(Checked(wrong=[("embed", checks.PLAIN)]))
    assert caught.value.code == "gpu.wrong"


def test_what_was_found_is_remembered_by_adapter_and_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = NativeHost(ROOT / "tests/golden/tiny.gguf")
    wrong = [("linear_team", FIRST)]
    first, _ = checked(Checked(wrong=wrong), host)
    again, _ = checked(device := Checked(wrong=wrong), host)
    assert _ways_of(again) == _ways_of(first)
    assert device.runs == []
    other = Checked(replace(GPU, name="another driver"))
    checked(other, host)
    assert other.runs, "it is another one"
    monkeypatch.setattr(checks, "fingerprint", lambda: "changed")
    changed = Checked()
    plans, _ = checked(changed, host)
    assert changed.runs, "the kernels are others"
    assert _ways_of(plans) == _ways_of(builder_of("tiny.gguf")(GPU)), "this time they are right"


def test_a_way_in_which_the_gpu_is_lost_is_found() -> None:
    """It is lost twice: with all, then with this one alone."""
    host = NativeHost(ROOT / "tests/golden/tiny.gguf")
    lost = ("linear_team", FIRST)
    losses = 0
    for _ in range(20):
        try:
            plans, traits = checked(Checked(lost=lost), host)
            break
        except OctavoError as error:
            assert error.code == "gpu.lost"
            losses += 1
    assert traits == GPU
    cases = {
        case.name
        for plan in builder_of("tiny.gguf")(GPU).values()
        for case, call in checks._cases_of(plan)
        if call.shader and call.shader.name == "linear_team" and FIRST in call.variants
    }
    assert losses == 1 + len(cases)
    for plan in plans.values():
        for call in plan.calls:
            assert call.shader and (call.shader.name != lost[0] or FIRST not in call.variants)


@pytest.mark.parametrize("traits", [replace(GPU, software=True), Traits("cpu")])
def test_others_are_not_checked(traits: Traits) -> None:
    device = Checked(traits)
    plans, _ = checked(device)
    assert device.runs == []
    assert _ways_of(plans) == _ways_of(builder_of("tiny.gguf")(traits))


def test_a_load_takes_the_cpu_if_it_may() -> None:
    class Host(NativeHost):
        async def open_device(self, config: LoadConfig) -> tuple[Device, str]:
            if config.device == "cpu":
                return await super().open_device(config)
            return Checked(wrong=[("embed", checks.PLAIN)]), ""

    async def run() -> None:
        engine = Engine(Host(ROOT / "tests/golden/tiny.gguf"))
        model = await engine.load(LoadConfig(context=256), lambda *_: None)
        assert (model.traits.kind, model.device_reason) == ("cpu", WRONG)
        with pytest.raises(OctavoError) as caught:
            await engine.load(LoadConfig(context=256, device="gpu"), lambda *_: None)
        assert caught.value.code == "gpu.wrong"

    asyncio.run(run())


def test_names_say_what_a_case_is() -> None:
    assert Case(Product("Q4_0", norm=True, act="silu"), True).name == (
        "Product quant=Q4_0 norm=True act=silu tokens=3"
    )
    assert Case(Attend(64, 3), False).name == "Attend head_dim=64 group=3 tokens=1"
    assert json.loads((golden() / "kernels.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1.01])
def test_what_is_no_number_is_wrong(bad: float) -> None:
    want = array("f", [0.5, 1.0, -0.25])
    assert checks._same(array("f", want), want, 1e-3)
    for i in range(3):
        got = array("f", want)
        got[i] *= bad
        assert not checks._same(got, want, 1e-3)
    assert not checks._same(want[:2], want, 1e-3)
