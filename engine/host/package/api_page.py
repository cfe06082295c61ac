"""web/API.md: the JavaScript API as a page, made of the client's types and of the error codes.

Run `python3 -m engine.host.package.api_page` after a change of either; a test compares.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from engine.errors import CODES
from engine.host import npm
from engine.host.package import declarations
from engine.host.paths import ROOT

PAGE = ROOT / "web" / "API.md"
SCRIPT = Path(__file__).with_suffix(".mjs")
HEAD = """# The JavaScript API

(Made by `python3 -m engine.host.package.api_page` out of `client.mjs` and its types.)
"""
ERRORS = """## Error codes

Errors have a `code`, which never changes its meaning, a `message` that says what happened, and a
`hint` that says what to do, which may be empty. Codes mean:

| code | |
|---|---|
"""


def make() -> str:
    """The page's text. Needs node, and the packages of package-lock.json."""
    folder = declarations.make()
    command = [npm.node(), str(SCRIPT), str(folder)]
    made = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    codes = "".join(f"| `{code}` | {sentence} |\n" for code, sentence in CODES.items())
    return "\n".join([HEAD, made.stdout, ERRORS + codes])


if __name__ == "__main__":
    PAGE.write_text(make(), encoding="utf-8")
