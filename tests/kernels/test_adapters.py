"""Which adapter is asked for where a browser tells two apart."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Error as PlaywrightError

from tests.kernels.harness import Harness

# Adapters of these names, of which `broken` give no device and `silent` no answer, `mute` are not
# even given; the next long wait for those is a short one. What is preferred, twice, and how often a
# device was asked for.
CHOOSE = """async ({names, broken, silent, mute, software}) => {
  const {preferred} = await import('/worker/adapters.mjs');
  const {setTimeout} = window;
  const never = () => {
    window.setTimeout = (work) => {
      window.setTimeout = setTimeout;
      return setTimeout(work, 1);
    };
    return new Promise(() => {});
  };
  const asked = [];
  const gpu = {
    requestAdapter: async ({powerPreference}) => {
      const i = powerPreference === 'low-power' ? 1 : 0;
      if (!names[i]) return null;
      if (names[i] === mute) return never();
      const adapter = await navigator.gpu.requestAdapter();
      const info = {vendor: names[i], architecture: '', device: '', description: ''};
      return {
        info: {...info, isFallbackAdapter: names[i] === software},
        requestDevice: async () => {
          asked.push(names[i]);
          if (names[i] === silent) return never();
          if (names[i] === broken) throw new Error('no device');
          return adapter.requestDevice();
        },
      };
    },
  };
  return [await preferred(gpu), asked.length, await preferred(gpu), asked.length];
}"""
LANES = """async (info) => {
  const {describe} = await import('/worker/adapters.mjs');
  const adapter = (features) => ({info, features: new Set(features), limits: {}});
  return [describe(adapter(['subgroups'])).subgroup, describe(adapter([])).subgroup];
}"""
REMEMBER, RECALL = (
    f"import('/worker/memory.mjs').then(({{memory}}) => memory.{call})"
    for call in ("set('a verdict', 'right')", "get('a verdict')")
)
FAST, FRUGAL = "high-performance", "low-power"


def choose(harness: Harness, *names: str | None, **manners: str) -> Any:
    return harness.page.evaluate(CHOOSE, {"names": names, **manners})


def test_the_better_of_two_is_measured_once(harness: Harness) -> None:
    assert choose(harness, "a", "b", broken="a") == [FRUGAL, 2, FRUGAL, 2]
    assert choose(harness, "c", "d", broken="d") == [FAST, 2, FAST, 2]
    first, asked, again, still = choose(harness, "e", "f")
    assert (first, asked, still) == (again, 2, 2)


def test_who_never_answers_is_not_waited_for(harness: Harness) -> None:
    assert choose(harness, "i", "j", silent="i") == [FRUGAL, 2, FRUGAL, 2]
    assert choose(harness, "k", "l", silent="l") == [FAST, 2, FAST, 2]
    with pytest.raises(PlaywrightError, match="Asking for a GPU"):
        choose(harness, "m", "n", mute="n")


def test_nothing_is_measured_where_there_is_no_choice(harness: Harness) -> None:
    assert choose(harness, "a", "a") == [FAST, 0, FAST, 0]
    assert choose(harness, None, None) == [FAST, 0, FAST, 0]
    assert choose(harness, "g", "h", software="g") == [FRUGAL, 0, FRUGAL, 0]


def test_lanes_of_a_subgroup(harness: Harness) -> None:
    """The fewest that a shader may get; but those of Apple's GPUs are known."""

    def lanes(vendor: str, least: int, most: int) -> Any:
        info = {"vendor": vendor, "subgroupMinSize": least, "subgroupMaxSize": most}
        return harness.page.evaluate(LANES, info)

    assert lanes("apple", 4, 64) == lanes("apple", 32, 32) == [32, 0]
    assert lanes("intel", 8, 32) == [8, 0]
    assert lanes("intel", 4, 64) == [4, 0], "on Metal, any"
    assert lanes("amd", 32, 64) == [32, 0]


def test_what_was_learned_holds_for_the_version_of_the_browser(harness: Harness) -> None:
    page = harness.page
    agent = page.evaluate("navigator.userAgent")
    session = page.context.new_cdp_session(page)

    def recalled(version: str) -> Any:
        other = re.sub(r"Chrome/[0-9.]+", f"Chrome/{version}", agent)
        session.send("Emulation.setUserAgentOverride", {"userAgent": other})
        return page.evaluate(RECALL)

    page.evaluate(REMEMBER)
    try:
        assert recalled("999.0.0.0") is None
    finally:
        version = re.search(r"Chrome/([0-9.]+)", agent)
        assert version
        assert recalled(version[1]) == "right"
    session.detach()
