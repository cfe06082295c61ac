"""web/API.md is what the types and the error codes say."""

from __future__ import annotations

from engine.errors import CODES
from engine.host.package import api_page
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
