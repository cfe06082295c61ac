"""The page's strings: every language has all of them, and the page asks for no others."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conftest import ROOT

WEB = ROOT / "web"
STRINGS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (WEB / "locales").glob("*.json")
}


def test_languages_have_the_same_strings() -> None:
    english = STRINGS["en"]
    for language, strings in STRINGS.items():
        assert strings.keys() == english.keys(), language
        for key, text in strings.items():
            assert places(text) == places(english[key]), f"{language}: {key}"


def test_what_the_page_asks_for_is_there() -> None:
    page = (WEB / "index.html").read_text(encoding="utf-8")
    asked = set(re.findall(r'data-i18n(?:-label|-placeholder)?="([^"]+)"', page))
    for path in WEB.glob("*.mjs"):
        asked |= set(re.findall(r'\bt\("([^"]+)"', path.read_text(encoding="utf-8")))
    assert len(asked) > 50
    assert asked <= STRINGS["en"].keys()


def test_every_setting_has_its_strings() -> None:
    source = (WEB / "settings.mjs").read_text(encoding="utf-8")
    settings = re.findall(r'\{ name: "(\w+)", group: "(\w+)"(.*)\}', source)
    assert len(settings) > 10
    for name, group, rest in settings:
        wanted = {f"setting_{name}", f"hint_{name}", f"group_{group}"}
        if choices := re.search(r'choices: \[(.*)\], prefix: "(\w+)"', rest):
            wanted |= {f"{choices[2]}_{choice}" for choice in re.findall(r"\w+", choices[1])}
        assert wanted <= STRINGS["en"].keys(), name


def places(text: object) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text)) if isinstance(text, str) else set()
