"""The CPU device's SIMD kernels as they are compiled for this machine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engine import ops
from engine.backends import cpu
from engine.backends.base import persistent_tensors
from engine.backends.cpu import CpuDevice
from engine.backends.native import Native
from engine.host import native
from engine.host.paths import ROOT
from engine.ops.state import STEP, StepRecord
from engine.plan import PlanBuilder, Traits
from tests.kernels.cases import numbers, state, weight
from tests.kernels.native_cases import Case, cases


@pytest.fixture(scope="module")
def kernels() -> Native:
    return Native(ROOT / native.build(native.HERE), "SIMD")


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_kernels_equal_their_references(kernels: Native, case: Case) -> None:
    assert case.error(kernels) <= case.tolerance


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_messages_get_in_within_a_long_call(
    kernels: Native, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "TURN_SECONDS", -1.0)  # after every run
    b = PlanBuilder("long", Traits("cpu"), 300)
    x, y = state("x", 300, 512), state("y", 300, 640)
    ops.linear(b, x, weight("w", 640, 512, quant=kind), bias=weight("bias", 640), into=y)
    plan = b.build()
    computed = []

    async def run() -> None:
        device = CpuDevice(native=kernels)
        await device.allocate(persistent_tensors([plan]).values())
        await device.compile([plan], lambda *_: None)
        device.write(STEP, StepRecord(0, 300).pack())
        device.write(weight("bias", 640), numbers(1, 640).tobytes())
        running = asyncio.ensure_future(device.run(["long"], 300, 1, 0, 0))
        while not running.done():
            await asyncio.sleep(0)
            computed.append(int(np.count_nonzero(device._arrays["y"].any(axis=1))))

    asyncio.run(run())
    assert sorted(set(computed)) == [96, 192, 288, 300]
