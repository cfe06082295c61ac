"""What does it take the page to show a long answer?

    .venv/bin/python -m tests.bench.streaming [tokens per second]

A scripted engine says answers of 4000 tokens, after `build.py build`. Prints milliseconds a frame
that renders (its script, and layout as far as that asks for it), by the clock; all that the main
thread did, in seconds of CPU time and in milliseconds a rendering; and tasks of more than 50 ms.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from playwright.sync_api import sync_playwright

from tests.browser.chat import Chat
from tests.browser.long_answers import answers
from tests.browser.scripted_engine import open_scripted, tokens_of
from tests.conftest import BROWSER_FLAGS, ROOT, StaticServer

TOKENS = 4000
# Times every animation frame's callbacks that take any time, and notes long tasks.
WATCH = """
  window.frames_ms = [];
  window.long_ms = [];
  const request = window.requestAnimationFrame;
  window.requestAnimationFrame = (work) => request((time) => {
    const start = performance.now();
    work(time);
    frames_ms.push(performance.now() - start);
  });
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) long_ms.push(duration);
  }).observe({ type: 'longtask' });
"""


def measure(chat: Chat, session: Any, kind: str) -> dict[str, Any]:
    """Of one answer, after 300 ms in which code gets its colours."""
    chat.page.evaluate("frames_ms.length = long_ms.length = 0")
    before = cpu_seconds(session)
    chat.ask(kind)
    chat.page.wait_for_timeout(300)
    found: dict[str, Any] = chat.page.evaluate("({frames: frames_ms, long: long_ms})")
    found["cpu"] = cpu_seconds(session) - before
    chat.anew()
    return found


def cpu_seconds(session: Any) -> float:
    """Of the main thread, in tasks."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))


def main() -> None:
    """Prints a row for each kind of answer."""
    rate = float(sys.argv[1]) if len(sys.argv) > 1 else 250
    scripts = {kind: {"answer": tokens_of(text)} for kind, text in answers(TOKENS).items()}
    scripts["reasoning"] = {"reasoning": scripts["paragraph"]["answer"], "answer": ["."]}
    server = StaticServer(ROOT / "dist")
    path = os.environ.get("OCTAVO_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        chat = open_scripted(browser, server, scripts, tokens_per_s=rate)
        chat.page.evaluate(WATCH)
        session = chat.page.context.new_cdp_session(chat.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        print("| answer | renderings | median | p95 | longest | CPU s | CPU ms each | long tasks |")
        print("|---|---|---|---|---|---|---|---|")
        for kind in scripts:
            found = measure(chat, session, kind)
            frames = sorted(ms for ms in found["frames"] if ms > 0.15)
            middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.95)]
            long = ", ".join(f"{ms:.0f}" for ms in found["long"]) or "none"
            each = 1000 * found["cpu"] / len(frames)
            figures = (
                f"{middle:.1f} | {high:.1f} | {frames[-1]:.1f} | {found['cpu']:.2f} | {each:.1f}"
            )
            print(f"| {kind} | {len(frames)} | {figures} | {long} |", flush=True)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
