"""An answer, or a measurement, that was asked for and has not ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from engine.answer import Run, Stopped
from engine.resident import Ready, Slot

T = TypeVar("T")
# What is made of a model on its device, and may end with any outcome once it is stopped.
Work: TypeAlias = Callable[[Ready, Stopped], Awaitable[T]]


@dataclass(eq=False)
class Request:
    """Something under way on a model, by the ``key`` that its asker knows it by."""

    key: int | None
    slot: Slot
    asked: float  # when, in seconds
    alone: bool = False  # nothing may be asked for beside it
    stopping: bool = False
    waiting: bool = False  # for room in the KV cache: it has none of it
    ready: Ready | None = None  # the model, where it may not be swapped out
    run: Run | None = None
