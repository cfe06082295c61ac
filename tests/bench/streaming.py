"""What it takes the page to show long answers, by a scripted engine: `python -m tests.bench.streaming
[tokens per second]`, after a build. Milliseconds of the main thread a frame, layout included as far
as a frame's script asks for it, and tasks of more than 50 ms."""

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


def measure(chat: Chat, kind: str) -> dict[str, Any]:
    """Of one answer, after 300 ms in which code gets its colours."""
    chat.page.evaluate("frames_ms.length = long_ms.length = 0")
    chat.ask(kind)
    chat.page.wait_for_timeout(300)
    found: dict[str, Any] = chat.page.evaluate("({frames: frames_ms, long: long_ms})")
    chat.anew()
    return found


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
        print("| answer | renderings | median ms | p95 ms | longest ms | sum ms | long tasks, ms |")
        print("|---|---|---|---|---|---|---|")
        for kind in scripts:
            found = measure(chat, kind)
            frames = sorted(ms for ms in found["frames"] if ms > 0.15)
            middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.95)]
            long = ", ".join(f"{ms:.0f}" for ms in found["long"]) or "none"
            figures = f"{middle:.1f} | {high:.1f} | {frames[-1]:.1f} | {sum(frames):.0f}"
            print(f"| {kind} | {len(frames)} | {figures} | {long} |", flush=True)
        browser.close()
    server.close()


if __name__ == "__main__":
    main()
