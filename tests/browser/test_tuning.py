"""Kernel variants measured in the tab: all compute the same, and the answer stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.chat import Chat
from tests.tiny import SHIP

pytestmark = pytest.mark.browser


def test_a_load_measures_variants_and_remembers_the_best(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat("model=models/tiny/manifest.json&device=gpu&context=256").wait_for("ready")
    load = "(tune) => octavo.load({tune}).then((result) => result.variants)"
    variants = chat.page.evaluate(load, True)
    assert len({row["label"] for row in variants}) >= 5
    assert all(row["right"] and row["us"] > 0 for row in variants)
    for label in {row["label"] for row in variants}:
        rows = [row for row in variants if row["label"] == label]
        assert 1 <= sum(row["chosen"] for row in rows) < len(rows)
    assert chat.complete(SHIP["messages"], max_tokens=9)["octavo"]["ids"] == SHIP["ids"][:9]

    assert chat.page.evaluate(load, None) == [], "a software adapter is measured on request only"
    kept = chat.page.evaluate(
        """async () => {
          const cache = await caches.open('octavo-memory');
          const places = (await cache.keys()).filter(({url}) => url.includes('kernels'));
          return Promise.all(places.map(async (key) => (await cache.match(key)).json()));
        }"""
    )
    chosen = {(row["label"], row["variant"]) for row in variants if row["chosen"]}
    (remembered,) = kept
    assert {(key.rsplit(" ", 1)[0], name) for key, name in remembered.items()} == chosen
