"""Where answers stand that ended before the model did, so that they can be continued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Generic, TypeVar

from engine.errors import OctavoError

MOST_UNFINISHED = 64
Owner = TypeVar("Owner")
Begun = TypeVar("Begun")


class Unfinished(Generic[Owner, Begun]):
    """The latest answers that can be continued, each with the model that began it, by the asker's
    key."""

    def __init__(self) -> None:
        self._answers: OrderedDict[int, tuple[Owner, Begun]] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._answers

    def find(self, key: int) -> tuple[Owner, Begun]:
        """Model and answer so far; OctavoError request.invalid if they are not known."""
        if key not in self._answers:
            raise OctavoError("request.invalid", f"There is no answer {key} to continue.")
        return self._answers[key]

    def keep(self, key: int, owner: Owner, begun: Begun) -> None:
        """An answer ended here; one with the same key is forgotten, and so is the oldest of too
        many."""
        self.forget(key)
        self._answers[key] = owner, begun
        while len(self._answers) > MOST_UNFINISHED:
            self._answers.popitem(last=False)

    def forget(self, key: int) -> None:
        """It cannot be continued, if it could."""
        self._answers.pop(key, None)

    def only_of(self, owners: Collection[Owner]) -> None:
        """Forget those of all other models."""
        for key in [key for key, (owner, _) in self._answers.items() if owner not in owners]:
            del self._answers[key]
