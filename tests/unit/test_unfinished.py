"""Answers that can be continued: the latest ones, by key."""

from __future__ import annotations

import pytest

from engine.errors import OctavoError
from engine.unfinished import MOST_UNFINISHED, Unfinished


def test_the_oldest_are_forgotten_and_one_that_is_kept_again_is_new() -> None:
    answers: Unfinished[str, int] = Unfinished()
    for key in range(MOST_UNFINISHED):
        answers.keep(key, "model", key)
    answers.keep(0, "model", 100)
    answers.keep(99, "model", 99)
    assert answers.find(0) == ("model", 100)
    assert 1 not in answers
    assert 2 in answers
    with pytest.raises(OctavoError, match="no answer 1 to continue"):
        answers.find(1)


def test_those_of_other_models_are_forgotten() -> None:
    answers: Unfinished[str, int] = Unfinished()
    for key, owner in enumerate("aba"):
        answers.keep(key, owner, key)
    answers.only_of(["b"])
    assert [key in answers for key in range(3)] == [False, True, False]
    answers.forget(1)
    answers.forget(1)
    assert 1 not in answers
