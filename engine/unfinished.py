"""Where answers stand that ended before the model did, so that they can be continued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from engine.errors import OctavoError
from engine.prompt import Prompt
from engine.resident import Slot

MOST_UNFINISHED = 64


class Unfinished:
    """The latest answers that can be continued, each with its model, by the asker's key."""

    def __init__(self) -> None:
        self._answers: OrderedDict[int, tuple[Slot, Prompt]] = OrderedDict()

    def find(self, key: int) -> tuple[Slot, Prompt]:
        """Model and text so far; OctavoError request.invalid if they are not known."""
        if key not in self._answers:
            raise OctavoError("request.invalid", f"There is no answer {key} to continue.")
        return self._answers[key]

    def keep(self, key: int, slot: Slot, prompt: Prompt) -> None:
        """An answer ended here; one with the same key is forgotten, and so is the oldest of too
        many."""
        self.forget(key)
        self._answers[key] = slot, prompt
        while len(self._answers) > MOST_UNFINISHED:
            self._answers.popitem(last=False)

    def forget(self, key: int) -> None:
        """It cannot be continued, if it could."""
        self._answers.pop(key, None)

    def only_of(self, slots: Collection[Slot]) -> None:
        """Forget those of all other models."""
        for key in [key for key, (slot, _) in self._answers.items() if slot not in slots]:
            del self._answers[key]
