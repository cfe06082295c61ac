"""The player without the memory: each buffer in turn is refused."""

from __future__ import annotations

from itertools import count

import numpy as np

from engine import ops
from engine.ops.state import StepRecord
from tests.kernels.cases import builder, numbers, rows, state, weight
from tests.kernels.harness import Case, Harness
from tests.refusing import REFUSE

# An error's code, which would not get through.
CODES = """() => {
  const {run} = harness;
  harness.run = (job) => run(job).catch(({code, message}) => {
    throw new Error(`code ${code}: ${message}`);
  });
}"""


def test_each_buffer_is_refused_once(harness: Harness) -> None:
    k, n, tokens = 256, 48, 3
    b = builder("workgroup", tokens)
    y = ops.linear(b, state("x", tokens, k), weight("w", n, k, quant="Q4_K"))
    inputs = {"x": rows(numbers(1, tokens, k), tokens)}
    case = Case(b.build(), inputs, {"w": numbers(2, n, k)}, StepRecord(0, tokens))
    (want,) = harness.run(case, [y])
    page, labels = harness.page, set[str]()
    page.evaluate(REFUSE)
    page.evaluate(CODES)
    try:
        for at in count(1):
            page.evaluate("(at) => Object.assign(refusing, {at, count: 0})", at)
            try:
                (got,) = harness.run(case, [y])
                assert np.array_equal(got, want)
                refused = ""
            except Exception as error:
                refused = str(error)
                assert "code memory.device:" in refused
                assert "bytes of memory beside" in refused
            met = page.evaluate("refusing.count >= refusing.at")
            assert met == bool(refused), "a refusal is never passed over"
            if not met:
                break
            labels.add(page.evaluate("refusing.label"))
            page.evaluate("() => void (refusing.at = 0)")
            (got,) = harness.run(case, [y])
            assert np.array_equal(got, want), "what comes next is not to blame"
        assert page.evaluate("refusing.unguarded") == []
        assert {"jobs", "shard", "staging", "readback", "step", "w/quants", "x"} <= labels
    finally:
        page.reload()
        page.wait_for_function("window.harness !== undefined")
