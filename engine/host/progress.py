"""Progress of long steps: one changing line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

QUIET_S = 1.0  # a step shorter than this shows only its closing line
TERMINAL_EVERY_S = 0.2
PLAIN_EVERY_S = 5.0


def megabytes(count: int) -> str:
    """`count` bytes as a person reads them."""
    return f"{count / 1e6:.1f} MB"


class Step:
    """A named piece of work: `with Step("Cutting shards") as step: ... step.update(done, total)`.

    Shows bytes and percent once `update` was called, and the elapsed time before that.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._done = 0
        self._total = 0
        self._terminal = sys.stdout.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._start = time.monotonic()

    def __enter__(self) -> Step:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        elapsed = time.monotonic() - self._start
        outcome = f"{elapsed:.1f} s" if kind is None else f"failed after {elapsed:.1f} s"
        self._show(f"{self.title}: {outcome}", last=True)

    def update(self, done: int, total: int) -> None:
        """Says how many of how many bytes are done."""
        self._done, self._total = done, total

    def line(self) -> str:
        """The progress as text, for example `Cutting shards: 16.8 of 98.4 MB (17 %)`."""
        if not self._total:
            return f"{self.title}: {time.monotonic() - self._start:.0f} s"
        percent = 100 * self._done // self._total
        return f"{self.title}: {self._done / 1e6:.1f} of {megabytes(self._total)} ({percent} %)"

    def _watch(self) -> None:
        if self._over.wait(QUIET_S):
            return
        pause = TERMINAL_EVERY_S if self._terminal else PLAIN_EVERY_S
        self._show(self.line())
        while not self._over.wait(pause):
            self._show(self.line())

    def _show(self, text: str, last: bool = False) -> None:
        if self._terminal:
            print(f"\r\x1b[K{text}", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)
