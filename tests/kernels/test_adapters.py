"""Which adapter is asked for where a browser tells two apart."""

from __future__ import annotations

from typing import Any

from tests.kernels.harness import Harness

# Adapters of these names, of which `broken` give no device. What is preferred, twice, and how often
# a device was asked for.
CHOOSE = """async ({names, broken, software}) => {
  const {preferred} = await import('/worker/adapters.mjs');
  const asked = [];
  const gpu = {
    requestAdapter: async ({powerPreference}) => {
      const i = powerPreference === 'low-power' ? 1 : 0;
      if (!names[i]) return null;
      const adapter = await navigator.gpu.requestAdapter();
      const info = {vendor: names[i], architecture: '', device: '', description: ''};
      return {
        info: {...info, isFallbackAdapter: software.includes(names[i])},
        requestDevice: async () => {
          asked.push(names[i]);
          if (broken.includes(names[i])) throw new Error('no device');
          return adapter.requestDevice();
        },
      };
    },
  };
  return [await preferred(gpu), asked.length, await preferred(gpu), asked.length];
}"""
FAST, FRUGAL = "high-performance", "low-power"


def choose(harness: Harness, *names: str | None, broken: str = "", software: str = "") -> Any:
    options = {"names": names, "broken": [broken], "software": [software]}
    return harness.page.evaluate(CHOOSE, options)


def test_the_better_of_two_is_measured_once(harness: Harness) -> None:
    assert choose(harness, "a", "b", broken="a") == [FRUGAL, 2, FRUGAL, 2]
    assert choose(harness, "c", "d", broken="d") == [FAST, 2, FAST, 2]
    first, asked, again, still = choose(harness, "e", "f")
    assert (first, asked, still) == (again, 2, 2)


def test_nothing_is_measured_where_there_is_no_choice(harness: Harness) -> None:
    assert choose(harness, "a", "a") == [FAST, 0, FAST, 0]
    assert choose(harness, None, None) == [FAST, 0, FAST, 0]
    assert choose(harness, "g", "h", software="g") == [FRUGAL, 0, FRUGAL, 0]
