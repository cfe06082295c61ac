"""Stop strings, however the text is cut into pieces."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.answer import Answer, Delta
from engine.config import GenerateConfig, LoadConfig
from engine.engine import Engine
from engine.errors import OctavoError
from engine.stops import StopStrings
from tests.conftest import ROOT
from tests.native import NativeHost

TEXT = st.text(alphabet="ab\n", max_size=40)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3).map(tuple)


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 40), max_size=8))
def test_the_text_ends_before_the_first_stop_string(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    borders = [0, *sorted(cuts), len(text)]
    filter = StopStrings(stops)
    out = ""
    for start, end in pairwise(borders):
        out += filter.push(text[start:end])
        assert text.startswith(out)
        if filter.found:
            break
    out += filter.flush()
    if filter.found:
        # A longer stop string may have begun earlier and not ended when the first one did.
        ended = [text.find(stop) + len(stop) for stop in stops if stop in text]
        assert out in {text[:at] for at in places}
        assert len(out) < max(ended)
    else:
        assert not places
        assert out == text


@given(text=TEXT, stops=STOPS, cut=st.integers(0, 40))
def test_a_stop_string_across_a_cut_ends_the_continuation(
    text: str, stops: tuple[str, ...], cut: int
) -> None:
    """All was told before the cut; what follows ends as early as it can."""
    before, after = text[:cut], text[cut:]
    if any(stop in before for stop in stops):
        return
    filter = StopStrings(stops)
    filter.follow(before)
    out = filter.push(after) + filter.flush()
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    assert filter.found == bool(places)
    assert out == (text[: max(min(places), len(before))] if places else text)[len(before) :]


def answer_with(stop: Any) -> tuple[Answer, list[str]]:
    async def run() -> tuple[Answer, list[str]]:
        engine = Engine(NativeHost(ROOT / "tests/golden/tiny.gguf"))
        await engine.load(LoadConfig(context=512), lambda *_: None)
        config = GenerateConfig.from_wire({"max_tokens": 150, "stop": stop})
        texts: list[str] = []
        async for event in engine.generate([{"role": "user", "content": "Where is it?"}], config):
            if isinstance(event, Delta):
                texts.append(event.text)
            else:
                return event, texts
        raise AssertionError

    return asyncio.run(run())


def test_an_answer_ends_before_a_stop_string() -> None:
    whole, _ = answer_with(None)
    for start, length in ((0, 1), (10, 3), (40, 7), (len(whole.text) - 3, 2)):
        stop = whole.text[start : start + length]
        answer, texts = answer_with(["never to be found", stop])
        assert answer.text == whole.text[: whole.text.index(stop)]
        assert "".join(texts) == answer.text
        assert answer.finish_reason == "stop"
        assert answer.ids == whole.ids[: len(answer.ids)]
    for stop in ("never to be found", whole.text[-2:] + " never to be found"):
        answer, texts = answer_with(stop)
        assert (answer.text, answer.ids) == (whole.text, whole.ids)
        assert "".join(texts) == whole.text


@pytest.mark.parametrize("stop", [7, "", [""], ["a"] * 17, ["a" * 1025], [1], {"a": 1}])
def test_what_is_no_stop_string(stop: Any) -> None:
    with pytest.raises(OctavoError) as caught:
        GenerateConfig.from_wire({"stop": stop})
    assert caught.value.code == "request.invalid"
