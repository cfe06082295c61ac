"""Manifests and catalogues from hostile hands: only right ones pass, others are refused."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import CODES, OctavoError
from engine.header import read_manifest
from engine.host import npm
from tests.conftest import ROOT

Ask = Callable[..., dict[str, Any]]
HASH = "0123456789abcdef" * 4
GOOD = {
    "name": "A model",
    "size": 22,
    "shards": [{"name": f"{i:03}.bin", "size": n, "sha256": HASH} for i, n in enumerate([8, 8, 6])],
}
CATALOGUE = {"default": "a", "models": [{"id": "a", "address": "models/a/manifest.json"}]}


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """What worker/manifest.mjs makes of some texts, all in one Node."""
    command = [npm.node(), str(ROOT / "tests/unit/manifests.mjs")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8") as process:
        assert process.stdin and process.stdout
        stdin, stdout = process.stdin, process.stdout

        def ask(*question: str) -> dict[str, Any]:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            answer: dict[str, Any] = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()


def is_right(manifest: Any) -> bool:
    """Whether the documented rules allow a manifest."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("shards"), list):
        return False
    shards = manifest["shards"]
    if not 0 < len(shards) <= 1 << 14:
        return False
    for shard in shards:
        if not isinstance(shard, dict) or not {"name", "size", "sha256"} <= shard.keys():
            return False
        name, size, sha256 = shard["name"], shard["size"], shard["sha256"]
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            return False
        if len(name) > 255 or type(size) is not int or not 0 < size < 2**31:
            return False
        if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            return False
    sizes = [shard["size"] for shard in shards]
    names = {shard["name"] for shard in shards}
    words = all(size % 4 == 0 for size in sizes[:-1])
    size = manifest.get("size")
    return type(size) is int and sum(sizes) == size and len(names) == len(shards) and words


SIZES = st.sampled_from(
    [0, -8, 4, 6, 8, 22, 2**31 - 4, 2**31, 2**53, 2**60, 10**400, -(2**63), "8", None, True, [8]]
)
REALS = st.sampled_from([8.5, 1e300, -0.5, float("nan"), float("inf")])
NAMES = st.sampled_from(
    [
        *("../000.bin", "/000.bin", "..", ".", "", "a/b", "a\\b", "https://evil.test/x"),
        *("//evil.test/x", "data:,x", "%2e%2e", "a.bin\n", "a b", "é", "x?y", "x#y", "000.bin"),
        *("-", "a..b", "x" * 255, "x" * 256, ["000.bin"], None, 5, True, {}),
    ]
)
HASHES = st.sampled_from(
    [HASH, HASH.upper(), HASH[1:], HASH + "0", HASH + "\n", "", None, [HASH], 0]
)
VALUES = SIZES | REALS | NAMES | HASHES | st.builds(lambda: [dict(GOOD["shards"][0])])
FIELDS = {"name": NAMES, "size": SIZES | REALS, "sha256": HASHES}


@st.composite
def manifests(draw: st.DrawFn) -> Any:
    """The good manifest with a few things changed."""
    manifest: Any = json.loads(json.dumps(GOOD))
    for _ in range(draw(st.integers(0, 3))):
        shards = manifest["shards"] if isinstance(manifest.get("shards"), list) else []
        kind = draw(st.sampled_from(["field", "field", "shard", "delete", "twice", "top", "cut"]))
        at = draw(st.integers(0, 2))
        shard = shards[at] if at < len(shards) and isinstance(shards[at], dict) else {}
        if kind == "field":
            field = draw(st.sampled_from(sorted(FIELDS)))
            shard[field] = draw(FIELDS[field] | VALUES)
        elif kind == "shard" and shards:
            shards[at % len(shards)] = draw(VALUES)
        elif kind == "delete":
            shard.pop(draw(st.sampled_from(sorted(FIELDS))), None)
        elif kind == "twice":
            shards += shards[at : at + 1]
        elif kind == "cut":
            del shards[at:]
        else:
            manifest[draw(st.sampled_from(["size", "shards", "name"]))] = draw(VALUES)
    if draw(st.booleans()) and isinstance(manifest.get("shards"), list):
        sizes = [shard.get("size") for shard in manifest["shards"] if isinstance(shard, dict)]
        manifest["size"] = sum(size for size in sizes if type(size) is int)
    return manifest


def engine_takes(text: str) -> bool:
    """Whether the engine, which checks sizes once more, takes a manifest."""
    try:
        read_manifest(text)
    except OctavoError as error:
        assert error.code == "manifest.invalid" and len(error.message) < 500
        return False
    return True


def check(ask: Ask, text: str, right: bool) -> None:
    answer = ask("manifest", text)
    assert ("ok" in answer) == right, answer
    assert right or (answer["code"] == "manifest.invalid" and len(answer["message"]) < 500)
    assert engine_takes(text) or not right


def test_a_good_manifest_passes(ask: Ask) -> None:
    assert ask("manifest", json.dumps(GOOD)) == {"ok": 22}
    assert ".gguf" in ask("manifest", "<!doctype html>")["hint"], "a page came"
    assert is_right(GOOD) and engine_takes(json.dumps(GOOD))


@settings(max_examples=200, deadline=None)
@given(manifests())
def test_only_right_manifests_pass(ask: Ask, manifest: Any) -> None:
    text = json.dumps(manifest)
    is_json = not re.search("NaN|Infinity", text)  # Python's own
    check(ask, text, is_json and is_right(manifest))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["shards", "size", "name", "sha256", "x"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(JUNK.map(json.dumps) | st.text(max_size=20))
def test_junk_is_refused(ask: Ask, text: str) -> None:
    check(ask, text, False)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", "7", '"x"', "[" * 100_000, '{"shards":[null]}', "\ud800"]
)
def test_other_texts_are_refused(ask: Ask, text: str) -> None:
    check(ask, text, False)


def test_the_number_of_shards_is_bounded(ask: Ask) -> None:
    for count, right in ((1 << 14, True), ((1 << 14) + 1, False)):
        shards = [{"name": f"{i}", "size": 4, "sha256": HASH} for i in range(count)]
        check(ask, json.dumps({"size": 4 * count, "shards": shards}), right)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("", "https://octavo.test/web/models/a/manifest.json"),
        ("a", "https://octavo.test/web/models/a/manifest.json"),
        ("x/manifest.json", "https://octavo.test/web/x/manifest.json"),
        ("http://other.test/m.json", "http://other.test/m.json"),
        ("b", None),
        ("http://", None),
        ("https://[", None),
        ("javascript:alert(1)", None),
        ("data:application/json,{}", None),
        ("file:///etc/passwd", None),
        ("x" * 5000 + "://", None),
    ],
)
def test_models_are_found_at_addresses_of_the_web(ask: Ask, key: str, wanted: str | None) -> None:
    answer = ask("model", key, json.dumps(CATALOGUE))
    if wanted:
        assert answer["ok"]["url"] == wanted
    else:
        assert answer["code"] == "request.invalid" and len(answer["message"]) < 500


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "default": JUNK,
            "encoder": JUNK,
            "models": JUNK | st.lists(st.fixed_dictionaries({"id": JUNK, "address": JUNK})),
        },
    )
    | JUNK,
    st.text(max_size=6),
)
def test_whatever_the_catalogue_says_has_a_code(ask: Ask, catalogue: Any, key: str) -> None:
    answer = ask("model", key, json.dumps(catalogue))
    assert "ok" in answer or answer["code"] in CODES
