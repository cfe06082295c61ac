"""A kernel that is wrong on the user's GPU: it is found, and the answer is right all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.browser import WRONG_NUMBERS
from tests.browser.chat import Chat
from tests.browser.patched import REAL, Edit, patched_site, python
from tests.conftest import StaticServer
from tests.tiny import SHIP

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MODEL = "models/tiny/manifest.json"
NO_TUNING = python("import engine.tuning as t; t.BUDGET_SECONDS = 0.0")
KEPT = """async () => {
  const cache = await caches.open('octavo-memory');
  const found = {};
  for (const key of await cache.keys()) {
    if (!key.url.includes('checks')) continue;
    Object.assign(found, (await (await cache.match(key)).json()).wrong);
  }
  return found;
}"""


def broken(text: str, edit: str) -> dict[str, list[Edit]]:
    """A driver that computes something else in kernels that have a ``text``: ``edit`` is what
    JavaScript makes of their ``code``."""
    make = "module = this.device.createShaderModule({ code });"
    bad = (
        f"module = this.device.createShaderModule({{ code: /{text}/.test(code) ? {edit} : code }});"
    )
    return {"gpu.mjs": [(make, bad)]}


FIRST_WAY = r"const TEAM: u32 = 16u;\nconst ROWS: u32 = 2u"
FIRST = "16 lanes, 2 rows"
WRONG = "code.replace('+= w.d * d', '+= 1.1 * w.d * d')"


def open_broken(
    tmp_path: Path, browser: Any, patch: dict[str, list[Edit]]
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Device and what was found wrong; the answer is right."""
    server = StaticServer(patched_site(tmp_path / "root", REAL, NO_TUNING, patch))
    context = browser.new_context(service_workers="block")
    try:
        page = context.new_page()
        url = f"{server.url}/?model={MODEL}&device=auto&context=256"
        chat = Chat(page, server, url).open().wait_for("ready")
        answer = chat.complete(SHIP["messages"], max_tokens=40)
        assert answer["octavo"]["ids"] == SHIP["ids"][:40]
        device: dict[str, Any] = chat.status()["device"]
        found: dict[str, list[str]] = page.evaluate(KEPT)
        return device, found
    finally:
        context.close()
        server.close()


@pytest.mark.by_hand
def test_all_is_right_here(tmp_path: Path, gpu_chromium: Any) -> None:
    device, found = open_broken(tmp_path, gpu_chromium, {})
    assert device["kind"] == "webgpu"
    assert len(found) > 8
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(WRONG, id="wrong"),
        pytest.param("code + ' no WGSL'", id="no pipeline", marks=pytest.mark.by_hand),
    ],
)
def test_a_broken_way_is_not_taken(tmp_path: Path, gpu_chromium: Any, edit: str) -> None:
    device, found = open_broken(tmp_path, gpu_chromium, broken(FIRST_WAY, edit))
    assert device["kind"] == "webgpu"
    ways = [tuple(ways) for case, ways in found.items() if "Product" in case and "tokens=1" in case]
    assert set(ways) == {(FIRST,), (f"{FIRST}, 256",)}  # that of products which join spans, too
    assert not any(ways for case, ways in found.items() if "Product" not in case)


@pytest.mark.by_hand
def test_simpler_kernels_take_the_place_of_broken_ones(tmp_path: Path, gpu_chromium: Any) -> None:
    patch = broken("const TEAM: u32 = (16|32)u;\\nconst ROWS", WRONG)
    device, found = open_broken(tmp_path, gpu_chromium, patch)
    assert device["kind"] == "webgpu"
    assert {key.split(" ")[-3] for key in found} == {"True", "False"}  # barriers


def test_the_cpu_takes_the_place_of_a_broken_gpu(tmp_path: Path, gpu_chromium: Any) -> None:
    patch = broken("override SCALE: f32;", "code.replace('* SCALE', '* 1.1 * SCALE')")
    device, _ = open_broken(tmp_path, gpu_chromium, patch)
    assert device["kind"] == "cpu"
    assert device["reason"] == WRONG_NUMBERS
