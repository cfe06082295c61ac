"""What bad input may cost: no hang, no flood of memory, no exception but OctavoError."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from engine.errors import CODES, OctavoError

SECONDS = 3  # of the processor: slow machines are allowed three times the second that is meant
MAX_BYTES = 100_000_000
SPARE_BYTES = 1 << 30  # the process gets no more, so that a flood ends before the machine does


class TookTooLong(BaseException):
    """Not an Exception, which some code would take for its own failure."""


@contextmanager
def bounded(seconds: float = SECONDS) -> Iterator[None]:
    """Fails if what is done within takes longer, by the clock of the process, or more memory."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + SPARE_BYTES, limits[1]))
    resident = _reset_peak()
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.1)
    start = time.process_time()
    try:
        yield
        took, peak = time.process_time() - start, _status("VmHWM") - resident
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert took < seconds
    assert peak < MAX_BYTES, f"{peak} bytes at the peak"


def _reset_peak() -> int:
    """Bytes in memory now, from which the peak is counted anew (Linux's proc(5))."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    """A size of this process, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def refusal(action: Callable[[], Any]) -> OctavoError | None:
    """How ``action`` is refused, or None if it works; anything else than that fails."""
    with bounded():
        try:
            action()
        except OctavoError as error:
            assert error.code in set(CODES) - {"internal"}
            assert error.message and len(error.message) < 1500, len(error.message)
            return error
    return None
