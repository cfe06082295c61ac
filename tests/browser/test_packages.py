"""What `build.py package` makes, installed into empty folders and used from there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from engine import __version__
from engine.host import npm
from engine.host.files import file_sha256
from engine.host.package import wheel
from tests.browser.chat import LOAD_MS
from tests.conftest import ROOT, StaticServer, alone
from tests.tiny import SHIP, TINY

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LOCK = ROOT / "requirements.lock"
WHEELS = ROOT / ".cache/locked" / file_sha256(LOCK)[:16]  # what it pins, downloaded once
Packages = tuple[Path, Path]


@pytest.fixture(scope="module")
def packages(npm_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The tarball and the wheel."""
    with alone():
        return npm_package, wheel.make(ROOT / "dist", tmp_path_factory.mktemp("packages"))


def run(command: list[str | Path], folder: Path, **variables: str) -> str:
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert not ended.returncode, ended.stdout + ended.stderr
    return ended.stdout


def test_no_package_has_a_model(packages: Packages) -> None:
    packed, built = packages
    assert (packed.name, built.name) == (
        f"octavo-{__version__}.tgz",
        f"octavo-{__version__}-py3-none-any.whl",
    )
    with tarfile.open(packed) as archive:
        names = archive.getnames()
    with zipfile.ZipFile(built) as archive:
        names += archive.namelist()
    assert not [name for name in names if name.endswith((".gguf", ".bin", ".pyc", ".map"))]
    assert not [
        name for name in names if "models/" in name and not name.startswith("engine/models")
    ]
    for file in packages:
        assert 5_000_000 < file.stat().st_size < 16_000_000


def test_a_page_out_of_node_modules_answers(
    packages: Packages, tmp_path: Path, plain_chromium: Any
) -> None:
    """The page of tests/examples/npm, as its README says, with npm off the network."""
    shutil.copytree(ROOT / "tests/examples/npm", tmp_path, dirs_exist_ok=True)
    install = [npm.find("npm"), "install", "--offline", "--no-audit", "--no-fund", packages[0]]
    run(install, tmp_path, npm_config_cache=str(tmp_path / "npm"))
    about = json.loads((tmp_path / "node_modules/octavo/package.json").read_text())
    entry = about["exports"]["."]
    for place in (entry["types"], entry["default"], about["exports"]["./worker/worker.mjs"]):
        assert (tmp_path / "node_modules/octavo" / place).is_file()
    shutil.copyfile(TINY, tmp_path / "model.gguf")
    server, context = StaticServer(tmp_path), plain_chromium.new_context()
    try:
        page = context.new_page()
        page.goto(server.url)
        page.get_by_text("is ready").wait_for(timeout=LOAD_MS)
        page.get_by_label("Message").fill(SHIP["messages"][0]["content"])
        page.get_by_role("button").click()
        page.locator("button:enabled").wait_for()
        shown = page.locator("output").text_content()
        assert len(shown) > 20 and SHIP["text"].startswith(shown[:20])
        failed = page.evaluate(
            """async () => {
              const { Octavo } = await import('octavo');
              return new Octavo().load().catch(({ name, code, hint }) => [name, code, hint]);
            }"""
        )
        assert failed == ["OctavoError", "request.invalid", "Give an address, or a file."]
    finally:
        context.close()
        server.close()
    outside = [path for path in server.requests if not path.startswith("/node_modules/octavo/")]
    assert {path.split("?")[0] for path in outside} <= {"/", "/main.mjs", "/model.gguf"}


@pytest.fixture(scope="module")
def octavo(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, in a fresh environment with the locked versions of what it needs."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    with alone():
        if not WHEELS.is_dir():
            part = WHEELS.with_name("part")
            run([*pip, "download", "--no-deps", "--require-hashes", "-r", LOCK, "-d", part], ROOT)
            part.replace(WHEELS)
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    places = folder / ("Scripts" if os.name == "nt" else "bin")
    install = ["--python", folder, "install", "--no-index", "--find-links", WHEELS, packages[1]]
    run([*pip, *install], folder)
    return places / "octavo"


@contextmanager
def serving(octavo: Path, folder: Path, *words: str | Path, **variables: str) -> Iterator[str]:
    """`octavo serve` in an empty folder; its address without the closing slash."""
    process = subprocess.Popen(
        [octavo, "serve", "--port", "0", *words],
        cwd=folder,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HOME": str(folder),
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    try:
        shown = ""
        for line in process.stdout:
            shown += line
            if found := re.search(r"Octavo is at (\S+)/ ", line):
                break
        assert found, shown
        yield found[1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urlopen(Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, b""


def test_the_command_serves_a_model_of_ones_own(
    octavo: Path, tmp_path: Path, plain_chromium: Any
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    shutil.copyfile(TINY, own / "My Model.gguf")
    with serving(octavo, tmp_path, "--model", own / "My Model.gguf") as url:
        assert b"<title>" in get(url)[1]
        assert get(f"{url}/models/own/My%20Model.gguf", Range="bytes=0-3") == (206, b"GGUF")
        for other in ("other.gguf", "..%2Fown%2FMy%20Model.gguf"):
            assert get(f"{url}/models/own/{other}")[0] == 404
        listed, plain = (json.loads(get(f"{url}/{n}.json")[1]) for n in ("models", "precache"))
        assert [entry["name"] for entry in listed["models"]] == ["My Model"]
        site = next(tmp_path.rglob("site/precache.json"))
        assert json.loads(site.read_text())["version"] != plain["version"]
        context = plain_chromium.new_context()
        try:
            page = context.new_page()
            page.goto(f"{url}/?device=cpu&context=512")
            page.wait_for_selector("[data-testid=status][data-state=ready]", timeout=LOAD_MS)
            answer = page.evaluate(
                "messages => octavo.chat.completions.create({messages, max_tokens: 9})",
                SHIP["messages"],
            )
            assert answer["octavo"]["ids"] == SHIP["ids"][:9]
        finally:
            context.close()
    assert not list(tmp_path.rglob("*.bin")), "the default model was not wanted"


def test_the_command_serves_the_default_model(octavo: Path, tmp_path: Path) -> None:
    """Its file is in the cache, as after the first download."""
    kept = tmp_path / "cache/octavo/models"
    kept.mkdir(parents=True)
    for file in (ROOT / ".cache/models").glob("SmolLM2*.gguf"):
        os.symlink(file, kept / file.name)
    with serving(octavo, tmp_path) as url:
        (entry,) = json.loads(get(f"{url}/models.json")[1])["models"]
        status, manifest = get(f"{url}/{entry['address']}")
        assert status == 200 and len(entry["sha256"]) == 64
        shard = json.loads(manifest)["shards"][0]
        folder = entry["address"].rpartition("/")[0]
        assert len(get(f"{url}/{folder}/{shard['name']}")[1]) == shard["size"]
    assert [path.name for path in tmp_path.iterdir()] == ["cache"], "nothing else is written"


def test_the_command_says_what_is_not_there(octavo: Path, tmp_path: Path) -> None:
    def fails(*words: str | Path) -> str:
        ended = subprocess.run(
            [octavo, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode in (1, 2) and "Traceback" not in ended.stderr, ended.stderr
        return ended.stderr

    assert "no file" in fails("serve", "--model", "missing.gguf")
    assert "no .gguf" in fails("serve", "--model", TINY.with_suffix(".json"))
    assert "octavo[convert]" in fails("convert", TINY, "out")
    assert "octavo[api]" in fails("serve", "--api", "--model", TINY)
    assert "octavo[bench]" in fails("bench")
    assert "invalid choice" in fails("package")
    assert "serve" in run([octavo, "--help"], tmp_path)


@pytest.fixture
def extras() -> str:
    """The extras' packages come from the tests' own environment."""
    import numpy

    return str(Path(numpy.__file__).parents[1])


def test_the_command_answers_with_its_extra(octavo: Path, tmp_path: Path, extras: str) -> None:
    """By NumPy: nothing is compiled."""
    body = {"messages": SHIP["messages"], "max_tokens": 9}
    words = ("--api", "--model", TINY, "--context", "512")
    with serving(octavo, tmp_path, *words, PYTHONPATH=extras) as url:
        assert [m["id"] for m in json.loads(get(f"{url}/v1/models")[1])["data"]] == ["tiny"]
        asked = Request(
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["octavo"]["ids"] == SHIP["ids"][:9]
            assert "Content-Security-Policy" in answer.headers
        listed = json.loads(get(f"{url}/models.json")[1])
        assert listed["default"] == "tiny", "one option names the model of both"
        version = get(f"{url}/worker/version.mjs")[1]
        assert version == (ROOT / "dist/worker/version.mjs").read_bytes()
        assert re.search(rb'VERSION = "[0-9a-f]{16}"', version)
    assert not list(tmp_path.rglob("*.so"))


def test_the_command_converts_with_its_extra(octavo: Path, tmp_path: Path, extras: str) -> None:
    output = run([octavo, "convert", TINY, "out", "--quant", "q8_0"], tmp_path, PYTHONPATH=extras)
    assert "is ready" in output or "are ready" in output
    assert list((tmp_path / "out").rglob("manifest.json"))
