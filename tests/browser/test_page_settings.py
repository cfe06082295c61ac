"""The dialog of settings, and the page in narrow windows, other themes and languages."""

from __future__ import annotations

import pytest

from tests.browser.acting import settings
from tests.browser.chat import Chat, Open
from tests.browser.pace import PACE

pytestmark = pytest.mark.browser
PAPER = "getComputedStyle(document.body).backgroundColor"
FRAME = """[...document.querySelectorAll('meta[name=theme-color]')]
  .find(({media}) => matchMedia(media).matches).content"""
DARK, LIGHT = "rgb(22, 21, 19)", "rgb(250, 248, 244)"


def is_open(chat: Chat) -> bool:
    return bool(chat.page.evaluate("document.querySelector('#settings').open"))


def test_settings_hold_from_the_next_answer_on_and_stay(open_chat: Open) -> None:
    chat = open_chat("model=models/tiny/manifest.json&device=cpu&top_k=7").wait_for("ready")
    chat.page.evaluate(PACE, {})
    given = {
        "temperature": 0.5, "top_p": 0.9, "min_p": 0.05,
        "repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
        "seed": 5, "max_tokens": 9, "context_full": "slide",
    }  # fmt: skip
    settings(chat, system="Be brief.", **given)
    chat.ask("Where is the sea?")
    sent = chat.page.evaluate("sent.at(-1)")
    assert sent.pop("messages") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is the sea?"},
    ]
    assert sent == {**given, "top_k": 7, "stream": True}

    # the address decides about top-k; limits hold, and nothing is saved against them
    chat.hook("open-settings").click()
    assert chat.hook("setting-top-k").is_disabled()
    assert chat.hook("setting-top-k").input_value() == "7"
    chat.hook("setting-temperature").fill("3")
    chat.hook("settings-save").click()
    assert is_open(chat)
    chat.hook("setting-temperature").fill("0.4")
    chat.hook("setting-remote").fill("javascript:alert(1)")
    chat.hook("settings-save").click()
    assert is_open(chat)
    chat.hook("settings-close").click()
    chat.hook("open-settings").click()
    assert chat.hook("setting-temperature").input_value() == "0.5"
    chat.hook("settings-close").click()

    # another context: the model is loaded again, and the conversation is still there
    settings(chat, context=256, kv_bytes=1, kv_precision="q8")
    assert not is_open(chat)
    chat.wait_for("loading", "ready")
    chat.until("octavo.status().then(({model}) => model?.context === 256)")
    chat.wait_for("ready")
    assert "of 256 tokens" in chat.hook("stats").inner_text()
    assert chat.page.get_by_test_id("answer").count() == 1
    chat.page.reload()
    chat.wait_for("ready")
    assert chat.status()["model"]["context"] == 256
    kv = chat.status()["kv"]
    # K and V of three layers and two heads, of 16 elements: a byte each, and a word with the scale
    assert kv["bytes"] == kv["num_blocks"] * 2 * 3 * 2 * kv["block_size"] * (16 + 4)
    assert chat.page.evaluate("JSON.parse(localStorage['octavo-settings']).kv_bytes") == 1e6

    chat.hook("open-settings").click()
    chat.hook("settings-reset").click()
    chat.hook("settings-save").click()
    chat.until("octavo.status().then(({model}) => (model?.context ?? 0) > 256)")
    assert chat.page.evaluate("localStorage['octavo-settings']") == "{}"


def test_damaged_settings_are_left_out(tiny_chat: Chat) -> None:
    for text in ("{", "null", "[]", '{"temperature": "hot", "theme": "pink", "seed": 1.5}'):
        tiny_chat.page.evaluate("(text) => localStorage.setItem('octavo-settings', text)", text)
        kept = tiny_chat.page.evaluate(
            "import('./settings.mjs').then(({Settings}) => new Settings().kept)"
        )
        assert kept == {}, text


def test_theme_and_language(tiny_chat: Chat) -> None:
    chat = tiny_chat
    chat.ask("Where is the sea?")
    assert chat.page.evaluate(PAPER) == LIGHT
    settings(chat, theme="dark", language="zh")
    chat.until(f"{PAPER} === '{DARK}'")
    chat.until("document.documentElement.lang === 'zh'")
    assert chat.page.evaluate(FRAME) == "#161513", "as the window of the installed page"
    assert chat.hook("reset").inner_text() == "新对话"
    assert chat.hook("regenerate").inner_text() == "重新回答"
    assert "tiny" in chat.hook("model").inner_text()
    assert chat.hook("status").inner_text() == "就绪"
    chat.page.emulate_media(color_scheme="dark")
    settings(chat, theme="light", language="en")
    chat.until("document.documentElement.lang === 'en'")
    assert chat.page.evaluate(PAPER) == LIGHT
    assert chat.page.evaluate(FRAME) == "#faf8f4"
    settings(chat, theme="auto", language="auto")
    chat.until(f"{PAPER} === '{DARK}'")
    assert chat.page.evaluate(FRAME) == "#161513"
    chat.page.emulate_media(color_scheme="light")
    assert chat.page.evaluate(PAPER) == LIGHT

    # an answer that grows meanwhile is still the one that is shown
    whole = chat.answer
    chat.page.evaluate(PACE, {"ms": 20})
    chat.anew().send("Where is the sea?")
    chat.until("document.querySelector('.answer')?.innerText.trim().length > 0")
    settings(chat, language="zh")
    chat.until("document.documentElement.lang === 'zh'")
    assert chat.state == "generating"
    chat.wait_for("ready")
    assert chat.answer == whole.replace("Copy", "复制")
    settings(chat, language="auto")
    chat.page.evaluate(PACE, {})


# What is cut off or must be scrolled to sideways.
WIDER = """() => [...document.querySelectorAll('html, main, dialog[open], .side')]
  .filter((e) => e.checkVisibility() && e.scrollWidth > Math.min(e.clientWidth + 1, innerWidth))
  .map((e) => e.id || e.tagName)"""


def test_a_narrow_window_has_a_drawer_and_no_sideways_scrolling(tiny_chat: Chat) -> None:
    chat, page = tiny_chat, tiny_chat.page
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate(WIDER) == []
    chat.ask("Averylongwordthathasnoplacewhereitcouldbebrokenintotwoparts " * 3)
    page.get_by_test_id("regenerate").click()
    chat.wait_for("ready")
    assert page.evaluate(WIDER) == []
    page.get_by_test_id("edit").click()
    assert page.evaluate(WIDER) == []
    page.keyboard.press("Escape")
    side, opener = chat.hook("conversations"), chat.hook("open-conversations")
    assert not side.is_visible()
    opener.focus()
    page.keyboard.press("Enter")
    assert side.is_visible()
    chat.until("document.querySelector('#open-side').ariaExpanded === 'true'")
    assert page.evaluate(WIDER) == []
    page.keyboard.press("Escape")
    assert not side.is_visible()
    assert opener.evaluate("(e) => e === document.activeElement")
    opener.click()
    chat.hook("conversation-open").click()
    assert not side.is_visible()
    chat.hook("open-settings").click()
    assert page.evaluate(WIDER) == []
    chat.hook("settings-close").click()
    page.set_viewport_size({"width": 1280, "height": 800})
    chat.until("document.querySelector('#side').checkVisibility()")
    assert not opener.is_visible()
