"""An answer, or a measurement, that was asked for and has not ended."""

from __future__ import annotations

from dataclasses import dataclass

from engine.answer import Run
from engine.resident import Ready, Slot


@dataclass(eq=False)
class Request:
    """Something under way on a model, by the ``key`` that its asker knows it by."""

    key: int | None
    slot: Slot
    stopping: bool = False
    waiting: bool = False  # for room in the KV cache: it has none of it
    ready: Ready | None = None  # the model, where it may not be swapped out
    run: Run | None = None
