"""web/DEPLOY.md tells servers to send what web/_headers says, and names what there is."""

from __future__ import annotations

import json
import re

import pytest

from engine.errors import CODES
from engine.host.paths import ROOT
from engine.host.serve import site_headers

PAGE = (ROOT / "web/DEPLOY.md").read_text(encoding="utf-8")
SENT = {"Cache-Control": "no-cache", **site_headers(ROOT / "web")}


@pytest.mark.parametrize(
    ("server", "line"),
    [
        ("nginx", r'^ +add_header (\S+) "(.*)" always;$'),
        ("caddy", r'^ {8}(\S+) "(.*)"$'),
        ("apache", r'^Header always set (\S+) "(.*)"$'),
    ],
)
def test_servers_send_these_headers(server: str, line: str) -> None:
    snippet = re.search(rf"^```{server}\n(.*?)^```$", PAGE, re.M | re.S)
    assert snippet
    assert dict(re.findall(line, snippet[1], re.M)) == SENT


def test_it_says_why_each_header_is_there() -> None:
    told = re.search(r"\| header \| why \|\n(.*?)\n\n", PAGE, re.S)
    assert told
    assert re.findall(r"^\| `(\S+)` \|", told[1], re.M) == list(site_headers(ROOT / "web"))


def test_it_says_how_the_examples_copy_the_package() -> None:
    config = (ROOT / "tests/examples/vite.config.mjs").read_text(encoding="utf-8")
    copy = re.search(r"viteStaticCopy\(\{.*\}\)", config)
    assert copy and copy[0] in PAGE


def test_it_names_the_fields_of_the_catalogue() -> None:
    entries = json.loads((ROOT / "web/models.json").read_text(encoding="utf-8"))["models"]
    told = re.search(r"\| field \| \|\n(.*?)\n\n", PAGE, re.S)
    assert told
    assert set(re.findall(r"^\| `(\S+)` \|", told[1], re.M)) == {key for e in entries for key in e}


def test_it_names_error_codes_that_exist() -> None:
    told = PAGE[PAGE.index("| code | look at |") :]
    cells = re.findall(r"^\| (`.*?) \|", told, re.M)
    codes = re.findall(r"`([a-z]+(?:\.[a-z]+)?)`", " ".join(cells))
    assert len(codes) > 8 and set(codes) <= set(CODES)
    for sentence in re.findall(r', "(.*?)"', " ".join(cells)):
        places = [*(ROOT / "worker").glob("*.mjs"), *(ROOT / "web").glob("*.mjs")]
        sources = " ".join(re.sub(r'" \+\n\s+"', "", p.read_text(encoding="utf-8")) for p in places)
        assert sentence in sources
