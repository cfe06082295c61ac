"""A copy of the site whose worker files are changed for a test: what no page can reach there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.browser.conftest import link_site
from tests.conftest import ROOT

Edit = tuple[str, str]  # a text that is there once, and what takes its place

# Devices, the latest last, where Playwright finds them.
DEVICES: dict[str, list[Edit]] = {
    "gpu.mjs": [
        ("    this.device = device;", "    (self.devices ??= []).push(this.device = device);")
    ]
}
# The software adapter passes as a real one.
REAL: dict[str, list[Edit]] = {
    "adapters.mjs": [("    software: isSoftware(adapter),", "    software: false,")]
}


def python(statement: str) -> dict[str, list[Edit]]:
    """Runs ``statement`` in Pyodide before the engine starts."""
    start = "const entry = engine.start(makeHost(pyodide));"
    return {"worker.mjs": [(start, f"pyodide.runPython(`{statement}`);\n  {start}")]}


def patched_site(folder: Path, *patches: Mapping[str, list[Edit]]) -> Path:
    """The site in ``folder``; open it with service workers blocked, which would bring back the
    files as they are."""
    root = link_site(folder)
    (root / "worker").unlink()
    shutil.copytree(ROOT / "dist/worker", root / "worker")
    for patch in patches:
        for name, edits in patch.items():
            path = root / "worker" / name
            text = path.read_text(encoding="utf-8")
            for old, new in edits:
                assert text.count(old) == 1, f"{name}: {old}"
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
    return root
