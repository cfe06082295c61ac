"""The page for everyone: what axe, a narrow screen, a finger, an eye that wants no motion, and a
screen reader find in each of its main states. They are walked through once, in one tab."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.browser import make_icons
from tests.browser.audit import AXE, OUTSIDE, RUN_AXE
from tests.browser.chat import Chat
from tests.browser.origin import Origin
from tests.browser.states import HEIGHT, STATES, walk
from tests.conftest import BROWSER_FLAGS, ROOT, StaticServer
from tests.tiny import TINY

pytestmark = pytest.mark.browser
PHONE, TABLET, DESKTOP = WIDTHS = (360, 768, 1440)
# Controls that are smaller than so many pixels; a check box may be hit by its label.
SMALL = """(least) => [...document.querySelectorAll('button, input, select, textarea, summary')]
  .filter((e) => e.checkVisibility())
  .map((e) => (e.type === 'checkbox' ? e.labels[0] : e))
  .filter((e) => {
    const {width, height} = e.getBoundingClientRect();
    return Math.min(width, height) < least - 0.5;
  })
  .map((e) => e.outerHTML.slice(0, 120))"""
# Which way texts run: a question and a paragraph in Arabic, a title, code, and what is in English.
DIRECTIONS = """() => [
  '.question .text', '.answer > :last-child p', '.conversation:nth-child(2) button',
  '.answer pre', '.answer > :first-child p',
].map((selector) => getComputedStyle(document.querySelector(selector)).direction)"""
MOVING = "document.getAnimations().filter(({playState}) => playState === 'running').length"


@dataclass
class Seen:
    """What was found, state by state."""

    states: list[str] = field(default_factory=list)
    axe: list[str] = field(default_factory=list)
    passed: int = 0  # rules of axe, at least
    outside: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    moving: dict[str, tuple[int, int]] = field(default_factory=dict)  # without and with less motion
    tree: dict[str, str] = field(default_factory=dict)  # as a screen reader is told
    directions: list[str] = field(default_factory=list)
    progress: str = ""  # of the loading, in words


def ask_axe(chat: Chat, seen: Seen, where: str, *rules: str) -> None:
    result = chat.page.evaluate(RUN_AXE, list(rules))
    seen.axe += [f"{where}: {found}" for found in result["found"]]
    if not rules:
        seen.passed = min(seen.passed or 1000, result["passed"])


def look(chat: Chat, touch: Any, seen: Seen, state: str, width: int) -> None:
    """Everything that is to be found in one state and width."""
    page, where = chat.page, f"{state} {width}"
    seen.outside += [f"{where}: {found}" for found in page.evaluate(OUTSIDE)]
    seen.small += [f"{where}: {found}" for found in page.evaluate(SMALL, 24)]
    if width == TABLET:
        return
    ask_axe(chat, seen, where)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    ask_axe(chat, seen, f"{where} dark", "color-contrast")
    if width == DESKTOP:
        seen.tree[state] = page.locator("body").aria_snapshot()
        still = page.evaluate(MOVING)
        page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        seen.moving[state] = (page.evaluate(MOVING), still)
        return
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    touch(True)
    seen.small += [f"{where} by finger: {found}" for found in page.evaluate(SMALL, 44)]
    seen.outside += [f"{where} by finger: {found}" for found in page.evaluate(OUTSIDE)]
    if state not in ("settings", "models"):  # as when the keyboard of a phone is there
        page.set_viewport_size({"width": 320, "height": 360})
        seen.outside += [f"{state}, low: {found}" for found in page.evaluate(OUTSIDE)]
        page.set_viewport_size({"width": width, "height": HEIGHT})
    touch(False)
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    seen.outside += [f"{where}, large text: {found}" for found in page.evaluate(OUTSIDE)]
    page.evaluate("document.documentElement.style.fontSize = ''")


@pytest.fixture(scope="module")
def seen(site: Path, plain_chromium: Any) -> Iterator[Seen]:
    server = StaticServer(site)
    origin = Origin({"some.gguf": TINY.read_bytes() + bytes(60_000_000)}, bytes_per_s=2e6)
    context = plain_chromium.new_context(locale="en-US", service_workers="block")
    page = context.new_page()
    session = context.new_cdp_session(page)

    def touch(enabled: bool) -> None:
        session.send("Emulation.setTouchEmulationEnabled", {"enabled": enabled})

    query = f"model={origin.url}/some.gguf&max_tokens=24"  # and a notice that there is no GPU
    chat = Chat(page, server, f"{server.url}/?{query}").open()
    page.evaluate(AXE.read_text(encoding="utf-8"))
    seen = Seen()
    for state, width in walk(chat, origin, WIDTHS):
        if state == "loading":
            seen.progress = page.locator("progress").get_attribute("aria-valuetext") or ""
        if state == "chat":
            seen.directions = page.evaluate(DIRECTIONS)
        seen.states.append(state)
        look(chat, touch, seen, state, width)
    chat.hook("open-settings").click()  # and the same in Chinese
    chat.hook("setting-language").select_option("zh")
    chat.hook("settings-save").click()
    chat.until("document.documentElement.lang === 'zh'")
    ask_axe(chat, seen, "Chinese")
    for opener in ("open-settings", "model"):
        chat.hook(opener).click()
        chat.until("document.querySelector('dialog[open]')")
        ask_axe(chat, seen, f"Chinese {opener}")
        page.keyboard.press("Escape")
    yield seen
    context.close()
    origin.close()
    server.close()


def test_axe_finds_nothing(seen: Seen) -> None:
    assert tuple(dict.fromkeys(seen.states)) == STATES
    assert seen.passed > 25, "it has looked"
    assert not seen.axe, "\n".join(seen.axe)


def test_nothing_lies_outside_on_any_screen(seen: Seen) -> None:
    assert not seen.outside, "\n".join(seen.outside)


def test_texts_run_as_they_are_written(seen: Seen) -> None:
    assert seen.directions == ["rtl", "rtl", "rtl", "ltr", "ltr"]


def test_controls_are_large_enough_for_a_finger(seen: Seen) -> None:
    assert not seen.small, "\n".join(seen.small)


def test_nothing_moves_where_that_is_not_wanted(seen: Seen) -> None:
    assert seen.moving["loading"][0] > 0, "else it moves"
    assert {still for _, still in seen.moving.values()} == {0}


# What a screen reader meets, in this order.
BEFORE = """- link "Skip to the message box"
- navigation "Conversations"
- searchbox "Search"
- banner:
- heading "Octavo" [level=1]
button "Model
- button "New chat"
- button "Settings"
- main "Conversation"
"""
AFTER = """- contentinfo:
- textbox "Your message"
- button "Send"
"""
CHAT = """- log "Messages"
- heading "You" [level=2]
- button "Edit"
- heading "Octavo" [level=2]
- code:
- columnheader
- blockquote:
- button "Answer again"
- group "Branches":
- button "Previous branch"
"""
TOLD = {
    "loading": BEFORE + AFTER.replace("\n", '\n- progressbar "Loading the model"\n', 1),
    "chat": BEFORE + CHAT + AFTER,
    "conversations": '- button "More for “What is a haiku?”"',
    "settings": """- dialog "Settings":
- group "From the next answer on":
- textbox "System prompt"
- spinbutton "Temperature"
- combobox "Language"
""",
    "models": """- dialog "Models":
- heading "Models" [level=2]
- button "Load"
- checkbox "Keep it in this browser"
- textbox "An address of a .gguf file"
- meter "Storage"
""",
    "error": """- alert:
- button "Try again"
- button "Dismiss"
""",
}


def test_a_screen_reader_is_told_what_is_what(seen: Seen) -> None:
    assert re.fullmatch(r"Downloading the model \d?0%", seen.progress)
    for state, parts in TOLD.items():
        at = 0
        for part in parts.splitlines():
            found = seen.tree[state].find(part, at)
            assert found >= 0, f"{state}: no {part} in its place in\n{seen.tree[state]}"
            at = found + len(part)


def test_the_page_can_be_installed(
    site: Path, playwright: Any, chromium_path: str, tmp_path: Path
) -> None:
    server = StaticServer(site)
    context = playwright.chromium.launch_persistent_context(
        str(tmp_path), executable_path=chromium_path, args=BROWSER_FLAGS
    )
    page = context.new_page()
    page.goto(f"{server.url}/?model=none/manifest.json&device=cpu")
    session = context.new_cdp_session(page)
    found = session.send("Page.getAppManifest")
    assert (found["url"], found["errors"]) == (f"{server.url}/app.webmanifest", [])
    assert session.send("Page.getInstallabilityErrors")["installabilityErrors"] == []
    manifest = json.loads(found["data"])
    kept = json.loads((site / "precache.json").read_text())["files"]
    icons = [icon["src"] for icon in manifest["icons"]]
    assert {"app.webmanifest", "adapt.css", *icons} <= kept.keys()
    for shown in manifest["screenshots"]:
        assert shown["src"] not in kept  # nobody downloads them to use the app
        size = struct.unpack(">II", (site / shown["src"]).read_bytes()[16:24])  # of a PNG's header
        assert shown["sizes"] == f"{size[0]}x{size[1]}"

    page = context.new_page()
    for name, (side, _) in make_icons.ICONS.items():
        drawn = make_icons.draw(page, name)
        kept_png = (ROOT / f"web/icons/{name}.png").read_bytes()
        assert f"icons/{name}.png" in icons
        assert unlike(page, drawn, kept_png) < 2, f"{name}: draw the icons anew"
        assert page.evaluate("[images[1].width, images[1].height]") == [side, side]
    context.close()
    server.close()


def unlike(page: Any, *pngs: bytes) -> float:
    """By how much two images differ: the mean of a channel of a pixel, of 255."""
    difference: float = page.evaluate(
        """async (pngs) => {
          window.images = await Promise.all(pngs.map(async (png) => {
            const bytes = Uint8Array.from(atob(png), (c) => c.charCodeAt(0));
            return createImageBitmap(new Blob([bytes]));
          }));
          const [one, other] = images.map(({width, height}, i) => {
            const context = new OffscreenCanvas(width, height).getContext('2d');
            context.drawImage(images[i], 0, 0);
            return context.getImageData(0, 0, width, height).data;
          });
          return one.reduce((sum, value, i) => sum + Math.abs(value - other[i]), 0) / one.length;
        }""",
        [base64.b64encode(png).decode() for png in pngs],
    )
    return difference
