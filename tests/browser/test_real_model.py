"""SmolLM2-135M-Instruct, the default model, in the page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.browser.chat import Open
from tests.conftest import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FRANCE = "What is the capital of France?"
GOLDEN: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/golden/smollm2.json").read_text(encoding="utf-8")
)["prompts"]
LONG_TASK_MS = 50  # what the Long Tasks specification calls long
MARGIN = 0.05  # below it the oracle itself is undecided


def assert_agrees(ids: list[int], prompt: dict[str, Any]) -> None:
    """Equal to the oracle's ids, up to a step at which the oracle itself was undecided."""
    pairs = zip(ids, prompt["ids"], strict=False)
    same = next((i for i, (got, want) in enumerate(pairs) if got != want), len(prompt["ids"]))
    if same < len(prompt["ids"]):
        assert prompt["margins"][same] <= MARGIN, f"{prompt['name']} differs at step {same}"
    else:
        assert ids == prompt["ids"]


def test_a_newcomer_without_a_gpu_gets_a_real_answer(open_chat: Open) -> None:
    """No address parameters, no flags: what a fresh visitor sees."""
    chat = open_chat().wait_for("ready")
    assert chat.ask(FRANCE) == "The capital of France is Paris."
    assert chat.status()["device"]["kind"] == "cpu"
    stats = chat.hook("stats")
    assert float(stats.get_attribute("data-tokens-per-s")) > 0
    assert float(stats.get_attribute("data-ttft-ms")) > 0
    assert 96e6 < int(stats.get_attribute("data-memory-bytes")) < 250e6

    for prompt in GOLDEN:
        answer = chat.complete(prompt["messages"], max_tokens=48)
        assert_agrees(answer["octavo"]["ids"], prompt)


def main_thread_tasks(trace: bytes, mark: str) -> list[float]:
    """Milliseconds of processor time of each task of the thread that set ``mark``, in a trace.

    Processor time and not time by the clock (which a PerformanceObserver of long tasks gives):
    whatever else is busy takes none of it.
    """
    events = json.loads(trace)["traceEvents"]
    (marked,) = (event for event in events if event["name"] == mark)
    thread = marked["pid"], marked["tid"]
    tasks = (e for e in events if e["name"] == "RunTask" and (e["pid"], e["tid"]) == thread)
    return [task["tdur"] / 1000 for task in tasks if "tdur" in task]  # without it: under 1 µs


def test_the_page_never_blocks_while_generating(open_chat: Open) -> None:
    chat = open_chat().wait_for("ready")
    browser = chat.page.context.browser
    browser.start_tracing(
        page=chat.page,
        categories=["blink.user_timing", "disabled-by-default-devtools.timeline"],
    )
    try:
        chat.page.evaluate("performance.mark('octavo-asks')")
        chat.ask("Write a Python function that reverses a string, and explain it.")
    finally:
        trace = browser.stop_tracing()
    assert len(chat.answer) > 100
    tasks = main_thread_tasks(trace, "octavo-asks")
    assert len(tasks) > 100  # pieces of an answer and their frames
    assert max(tasks) < LONG_TASK_MS


def test_on_the_software_adapter(open_chat: Open) -> None:
    """The whole WebGPU path on real weights: load, repack, prefill, bursts."""
    chat = open_chat("device=gpu").wait_for("ready")
    device = chat.status()["device"]
    assert (device["kind"], device["software"]) == ("webgpu", True)
    prompt = GOLDEN[0]
    answer = chat.complete(prompt["messages"])
    assert answer["octavo"]["ids"] == prompt["ids"]
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
