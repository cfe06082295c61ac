"""How long does a load take, and how much memory does the tab need for it?

    .venv/bin/python -m tests.bench.loading [MODEL.gguf] [--device gpu]

Loads the tiny model, then MODEL (the default one if none is given) from a server on this machine
and once more from the browser's cache, each in a tab of its own, after `build.py build`. Prints
seconds, seconds a GB, and the most anonymous memory that the tab's process held (RssAnon, so on
Linux only); beside them, how fast this machine copies and hashes the file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from engine.host import assemble, chromium, pins
from tests.browser.conftest import cut, link_site
from tests.conftest import GPU_FLAGS, StaticServer

SHARD_BYTES = 1 << 24
BOOT_SECONDS = 60
BEGIN = """([model, device]) => {
  window.outcome = undefined;
  const began = performance.now();
  octavo.load({model, device, context: 2048}).then(
    ({model}) => { window.outcome = [performance.now() - began, model.bytes]; },
    (error) => { window.outcome = [error.message, 0]; });
}"""


def tab_bytes(session: Any) -> int:
    """Anonymous memory of the largest tab's process."""
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return max(anonymous(p["id"]) for p in found if p["type"] == "renderer")


def anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def load(browser: Any, context: Any, url: str, model: str, device: str, what: str) -> None:
    """Load a model in a new tab; a line that says how it went."""
    session = browser.new_browser_cdp_session()
    page = context.new_page()
    page.goto(f"{url}/?model=none/manifest.json&device={device}")
    page.wait_for_selector("[data-code]", timeout=1000 * BOOT_SECONDS)  # the page itself loads none
    booted = most = tab_bytes(session)
    page.evaluate(BEGIN, [model, device])
    while not (outcome := page.evaluate("window.outcome")):
        most = max(most, tab_bytes(session))
        time.sleep(0.03)
    ms, nbytes = outcome
    if not nbytes:
        raise SystemExit(f"{what}: {ms}")
    per_gb = f", {ms / 1e3 / (nbytes / 1e9):.1f} s a GB" if nbytes > 1e7 else ""
    print(
        f"{what}: {ms / 1e3:.1f} s{per_gb}; the tab {booted / 1e6:.0f} MB when it has started, "
        f"{most / 1e6:.0f} at most, {tab_bytes(session) / 1e6:.0f} afterwards",
        flush=True,
    )
    page.close()
    session.detach()


def machine(path: Path, folder: Path) -> None:
    """How fast this machine copies and hashes a file."""
    gigabytes = path.stat().st_size / 1e9
    began = time.monotonic()
    shutil.copyfile(path, folder / "copy")
    copied = time.monotonic()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    hashed = time.monotonic()
    print(
        f"this machine: copies {gigabytes / (copied - began):.2f} GB/s, "
        f"hashes {gigabytes / (hashed - copied):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="a .gguf file")
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    arguments = parser.parse_args()
    path = arguments.model or assemble.model_file(pins.MODELS[0])
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        site = link_site(folder / "site")
        cut(path, site / "models/measured", SHARD_BYTES)
        machine(path, folder)
        server = StaticServer(site)
        executable = os.environ.get(chromium.VARIABLE) or chromium.ensure()
        browser = playwright.chromium.launch(executable_path=executable, args=GPU_FLAGS)
        context = browser.new_context(service_workers="block")
        for model, what in (("tiny", "tiny"), ("measured", "cold"), ("measured", "cached")):
            address = f"models/{model}/manifest.json"
            load(browser, context, server.url, address, arguments.device, what)
        browser.close()
        server.close()


if __name__ == "__main__":
    main()
