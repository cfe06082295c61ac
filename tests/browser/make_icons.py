"""Draws the PNG icons of web/icon.svg anew: ``python -m tests.browser.make_icons``."""

from __future__ import annotations

import base64
import re
from typing import Any

from tests.conftest import BROWSER_FLAGS, ROOT

WEB = ROOT / "web"
# By name: side in pixels, and the share of it that the drawing takes. Systems cut maskable icons
# into their own shapes, and promise to leave a circle of 80 % of the side.
ICONS = {
    "192": (192, 1.0),
    "512": (512, 1.0),
    "maskable-192": (192, 0.8),
    "maskable-512": (512, 0.8),
}


def draw(page: Any, name: str) -> bytes:
    """The PNG of an icon; ``page`` is any blank one."""
    side, share = ICONS[name]
    svg = (WEB / "icon.svg").read_text(encoding="utf-8")
    ground = re.search(r'<rect [^>]*fill="([^"]+)"', svg)
    assert ground, "the icon has no ground"
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    colour = ground[1] if share < 1 else "transparent"
    page.set_viewport_size({"width": side, "height": side})
    page.set_content(
        f'<body style="margin: 0; display: grid; place-items: center; height: 100vh; '
        f'background: {colour}"><img src="{address}" width="{round(side * share)}">'
    )
    drawn: bytes = page.screenshot(omit_background=True)
    return drawn


def main() -> None:
    """Writes web/icons/."""
    from playwright.sync_api import sync_playwright

    from engine.host import chromium

    (WEB / "icons").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.ensure(), args=BROWSER_FLAGS)
        page = browser.new_page()
        for name in ICONS:
            (WEB / "icons" / f"{name}.png").write_bytes(draw(page, name))
        browser.close()


if __name__ == "__main__":
    main()
