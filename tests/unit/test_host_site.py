"""The assembled site: what is served, how it is listed, and how it is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.host import assemble, modules, pins, serve
from engine.host.errors import HostError
from engine.host.files import sha256, tree, write_whole
from engine.host.paths import ROOT
from tests.serving import request


def test_precache_lists_every_file_but_the_models() -> None:
    site = {"index.html": b"a", "worker/gpu.mjs": b"b", "models/tiny/000.bin": b"c"}
    site |= {"_headers": b"d", "models.json": b"e"}
    files = json.loads(assemble.precache(site))["files"]
    assert files == {
        "": sha256(b"a"),
        "index.html": sha256(b"a"),
        "models.json": "",  # may be changed by whoever deploys the site
        "worker/gpu.mjs": sha256(b"b"),
    }


def test_precache_version_follows_contents_and_names() -> None:
    def version(site: dict[str, bytes]) -> str:
        return str(json.loads(assemble.precache(site))["version"])

    first = version({"a": b"1", "b": b"2"})
    assert first == version({"b": b"2", "a": b"1"})
    assert first == version({"a": b"1", "b": b"2", "models/x": b"3"})
    assert first != version({"a": b"1", "b": b"2", "_headers": b"3"})
    others = {version({"a": b"1", "b": b"3"}), version({"a": b"1", "c": b"2"}), version({})}
    assert len(others) == 3 and first not in others


def test_files_are_replaced_whole_and_only_when_they_differ(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert write_whole(path, b"one")
    before = path.stat().st_mtime_ns
    assert not write_whole(path, b"one")
    assert path.stat().st_mtime_ns == before
    assert write_whole(path, b"two") and path.read_bytes() == b"two"
    assert list(tree(tmp_path)) == [Path("deep/file")]


def test_a_umd_script_becomes_an_es_module() -> None:
    script = b"(function (global, factory) {})(this);\n//# sourceMappingURL=index.js.map\n"
    made = modules.from_umd(script, "tokenizers", ("Tokenizer", "Other")).decode()
    assert made.splitlines() == [
        "(function (global, factory) {})(this);",
        "export const Tokenizer = globalThis.tokenizers.Tokenizer;",
        "export const Other = globalThis.tokenizers.Other;",
    ]


def test_versions_are_the_same_in_all_pin_files() -> None:
    package = json.loads((ROOT / "package.json").read_text())
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert package["dependencies"] == pins.NPM
    for name, version in (package["dependencies"] | package["devDependencies"]).items():
        assert locked[f"node_modules/{name}"]["version"] == version
    for name, entry in locked.items():
        assert not name or entry["integrity"].startswith("sha512-")
        assert "resolved" not in entry


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda p: p.name)
def test_lock_files_pin_hashes_and_name_no_index(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    pinned = [i for i, line in enumerate(lines) if line[:1].isalnum()]
    assert pinned
    for i in pinned:
        assert "==" in lines[i] and "--hash=sha256:" in lines[i + 1]
    assert not [line for line in lines if "://" in line or line.startswith("-")]


def test_files_are_sent_with_their_types_and_checked_by_etag(tmp_path: Path) -> None:
    for name in ("index.html", "app.mjs", "pyodide.asm.wasm", "x.bin", "app.webmanifest"):
        (tmp_path / name).write_text(name)
    application = serve.application(tmp_path)
    types = {
        "/": "text/html; charset=utf-8",
        "/app.mjs": "text/javascript; charset=utf-8",
        "/pyodide.asm.wasm": "application/wasm",
        "/x.bin": "application/octet-stream",
        "/app.webmanifest": "application/manifest+json",
    }
    for path, kind in types.items():
        answer = request(application, path)
        assert (answer["status"], answer["headers"]["content-type"]) == (200, kind)
        assert answer["headers"]["cache-control"] == "no-cache"
        tag = answer["headers"]["etag"]
        assert request(application, path, {"If-None-Match": tag})["status"] == 304


def test_a_port_in_use_is_said_in_a_sentence() -> None:
    with serve.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=rf"Port {port} .*--port"):
            serve.listen("127.0.0.1", port)
