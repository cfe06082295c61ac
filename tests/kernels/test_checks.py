"""The cases by which kernels are checked on a user's GPU: the kernels pass them."""

from __future__ import annotations

import base64
from array import array

import pytest

from engine.backends.base import persistent_tensors, weights_of
from engine.backends.wire import plans_to_wire, shader_to_wire, tensors_to_wire
from engine.cases import Attend, Case, Lookup, Product, all_cases, content, expected, file_of
from engine.checks import _same, _tolerance, _Trial
from engine.plan import Weight
from engine.weights.loading import repack_kernels, shard_jobs
from tests.kernels.cases import DEVICES
from tests.kernels.harness import Harness


def passes(harness: Harness, case: Case, device: str) -> bool:
    plan, y = case.plan(DEVICES[device])
    tensors = persistent_tensors([plan])
    gguf, data = file_of(weights_of([plan]))
    jobs = shard_jobs(gguf, weights_of([plan]), [len(data)])[0] if data else None
    inputs = {
        name: base64.b64encode(content(t, case)).decode()
        for name, t in tensors.items()
        if not isinstance(t, Weight)
    }
    job = {
        "buffers": tensors_to_wire(tensors.values()),
        "shards": [
            {
                "data": base64.b64encode(data).decode(),
                "carry": int(jobs.carry),
                "jobs": [job.to_wire() for job in jobs.jobs],
            }
        ]
        if jobs
        else [],
        "kernels": {n: shader_to_wire(s, s.code()) for n, s in repack_kernels().items()},
        "inputs": inputs,
        "wire": plans_to_wire([plan]),
        "plan": plan.name,
        "tokens": case.tokens,
        "repeat": 1,
        "outputs": {y.name: y.nbytes},
    }
    read = harness.page.evaluate("job => harness.run(job)", job)["read"][y.name]
    got = array("f", base64.b64decode(read))[:: case.stride]
    return _same(got, expected()[case.name], _tolerance(_Trial(case, "", plan, y)))


# A few of each kind, for they take their time here; in the tab all ways are tried.
QUANTS = ("F16", "Q2_K", "Q4_1", "Q4_K", "Q6_K")
CASES = [
    case
    for case in all_cases()
    if isinstance(case.spec, Lookup)
    or (isinstance(case.spec, Product) and case.spec.act == "silu" and case.spec.quant in QUANTS)
    or (isinstance(case.spec, Attend) and (case.spec.head_dim, case.spec.group) == (64, 3))
]


@pytest.mark.parametrize("device", ["plain-q16", "workgroup-q8", "subgroup"])
def test_kernels_pass(harness: Harness, device: str) -> None:
    barriers = DEVICES[device].barriers
    cases = [c for c in CASES if not (barriers and isinstance(c.spec, Lookup))]
    assert [case.name for case in cases if not passes(harness, case, device)] == []
