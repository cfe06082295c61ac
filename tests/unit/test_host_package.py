"""What goes into the packages, and the model of the user's own that `serve` puts in the list."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path

import pytest

from engine import __version__
from engine.host import api, own_model, paths, pins, pip, serve
from engine.host.errors import HostError
from engine.host.files import parts_of
from engine.host.package import tarball, wheel
from engine.host.paths import LOCK_API, LOCK_BUILD, ROOT
from tests.serving import request


def test_the_wheel_pins_what_the_lock_files_have(tmp_path: Path) -> None:
    project = tomllib.loads(wheel.project())["project"]
    assert project["version"] == __version__
    assert [line.split("==")[0] for line in project["dependencies"]] == list(wheel.NEEDED)
    for lock, (extra, packages) in pip.EXTRAS.items():
        listed = project["optional-dependencies"][extra]
        assert {line.split("==")[0] for line in listed} == set(packages)
        assert all(
            "==" in line and line.split(";")[0].strip() in lock.read_text() for line in listed
        )
    with pytest.raises(HostError, match=r"requirements\.lock lacks nothing-like-this"):
        wheel.pinned(LOCK_BUILD, ("nothing-like-this",))


def test_the_notice_names_every_part_that_is_packed() -> None:
    names = [name for name in pins.NPM if name not in tarball.ONLY_OF_THE_PAGE]
    notice = tarball.third_party(names)
    assert all(f"{name} {pins.NPM[name]}: " in notice for name in names)
    used = {source.rsplit("/", 1)[0] for source, *_ in pins.NPM_UMD.values()}
    assert all(any(path.startswith(name) for name in names) for path in used)


def test_the_repository_is_not_an_installed_package() -> None:
    assert not paths.INSTALLED
    assert (paths.CACHE, paths.DIST) == (ROOT / ".cache", ROOT / "dist")


def test_the_cache_of_the_installed_package_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert paths._user_cache() == Path("/somewhere/octavo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths._user_cache() == Path.home() / ".cache/octavo"
    monkeypatch.setattr(paths.sys, "platform", "darwin")
    assert paths._user_cache() == Path.home() / "Library/Caches/octavo"


def test_all_files_of_a_split_model_are_served_and_no_others(tmp_path: Path) -> None:
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "b.gguf"):
        (tmp_path / name).write_text(name)
    (tmp_path / "precache.json").write_text(
        json.dumps({"version": "one", "files": {"": "1", "x": "2"}})
    )
    (tmp_path / "models.json").write_text('{"models": [], "encoder": "models/e/manifest.json"}')
    files = parts_of(tmp_path / "a-00002-of-00002.gguf")
    assert [file.name[:7] for file in files] == ["a-00001", "a-00002"]

    from starlette.applications import Starlette

    application = Starlette(routes=own_model.routes(tmp_path, files))
    for file in files:
        assert request(application, f"/models/own/{file.name}")["body"].decode() == file.name
    for other in ("b.gguf", "../a-00001-of-00002.gguf", "precache.json", ""):
        assert request(application, f"/models/own/{other}")["status"] == 404
    listed = json.loads(request(application, "/models.json")["body"])
    (entry,) = listed["models"]
    assert listed["default"] == entry["id"] and entry["size"] == 42
    assert entry["address"] == "models/own/a-00001-of-00002.gguf"
    assert listed["encoder"] == "models/e/manifest.json", "as the site has it"
    kept = json.loads(request(application, "/precache.json")["body"])
    assert kept["files"] == {"": "1", "x": "2"}
    versions = {"one", kept["version"]}
    for model in (files, [tmp_path / "b.gguf"]):
        again = Starlette(routes=own_model.routes(tmp_path, model))
        versions.add(json.loads(request(again, "/precache.json")["body"])["version"])
    assert len(versions) == 3, "one for each list of models"


@pytest.mark.parametrize("installed", [False, True])
def test_only_the_repository_compiles_for_the_api(
    installed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "a-00001-of-00001.gguf"
    file.write_text("a")
    asked = []
    monkeypatch.setattr(api, "INSTALLED", installed)
    monkeypatch.setattr(api.pip, "install", lambda lock, title: asked.append(lock))
    monkeypatch.setattr(api.native, "build", lambda target: Path("compiled"))
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    arguments = parser.parse_args(["--api", "--model", str(file)])
    opened = api.open_api(arguments, parts_of(arguments.model))
    assert asked == [LOCK_API]
    assert opened._name == own_model.catalogue([file])["default"], "the page's and the API's model"
    assert opened._host._library == (None if installed else ROOT / "compiled")
