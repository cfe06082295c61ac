"""web/API.md is what the types and the error codes say."""

from __future__ import annotations

import re

from engine.errors import CODES
from engine.host.package import api_page, declarations
from tests.conftest import alone


def test_the_page_is_current() -> None:
    with alone():
        text = api_page.make()
    assert api_page.PAGE.read_text(encoding="utf-8") == text, (
        "run `python3 -m engine.host.package.api_page`"
    )
    for heading in ("## Octavo", "### chat.completions.create", "### fork", "### Recovery"):
        assert f"\n{heading}\n" in text
    assert all(f"| `{code}` |" in text for code in CODES)
    assert "#private" not in text and "/**" not in text


def test_what_the_page_names_can_be_imported() -> None:
    text = api_page.PAGE.read_text(encoding="utf-8")
    types = text.partition("\n## Types\n")[2].partition("\n## ")[0]
    with alone():
        made = declarations.make()
        exported = (made / "types.d.mts").read_text(encoding="utf-8")
        client = (made / "client.d.mts").read_text(encoding="utf-8")
    named = re.findall(r"^### (\w+)$", types, re.M)
    assert len(named) > 40
    assert set(named) <= set(re.findall(r"^export type (\w+)", exported, re.M))
    assert 'export * from "./types.mjs";' in client
    classes = re.findall(r"^## (\w+)$", text, re.M)
    own = re.findall(r"^export (?:declare class (\w+)|\{ (.*) \};)", client, re.M)
    assert set(classes) - {"Types"} <= {name for a, b in own for name in [a, *b.split(", ")]}
