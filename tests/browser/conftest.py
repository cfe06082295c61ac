"""The built site with the tiny model beside the default one, and pages in real Chromium."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.host.package import tarball
from tests.browser.chat import Chat
from tests.browser.hosted import Hosted, Witness
from tests.browser.origin import Origin
from tests.conftest import BROWSER_FLAGS, GPU_FLAGS, ROOT, StaticServer, alone

TINY_SHARD = 40_000
# Deletes all conversations that pages keep, behind the back of this one.
FORGET = """async () => {
  const done = (request) =>
    new Promise((resolve) => (request.onsuccess = () => resolve(request.result)));
  const db = await done(indexedDB.open('octavo-conversations'));
  for (const name of db.objectStoreNames) {
    await done(db.transaction(name, 'readwrite').objectStore(name).clear());
  }
  db.close();
  const search = document.querySelector('[data-testid=conversation-search]');
  search.value = '';
  search.dispatchEvent(new Event('input'));
}"""


def cut(source: Path, folder: Path, shard_size: int = TINY_SHARD) -> None:
    """A model in shards with its manifest, as the build makes them."""
    folder.mkdir(parents=True)
    data = source.read_bytes()
    shards = []
    for i in range(0, len(data), shard_size):
        part = data[i : i + shard_size]
        name = f"{len(shards):03}.bin"
        (folder / name).write_bytes(part)
        shards.append({"name": name, "size": len(part), "sha256": hashlib.sha256(part).hexdigest()})
    manifest = {
        "id": folder.name,
        "name": folder.name,
        "file": source.name,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "shard_size": shard_size,
        "shards": shards,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def link_site(folder: Path) -> Path:
    """dist/ as links in ``folder``, with models/tiny and room for more."""
    dist = ROOT / "dist"
    assert (dist / "index.html").exists(), "no dist/: run the tests by `python3 build.py test`"
    folder.mkdir(parents=True, exist_ok=True)
    for entry in dist.iterdir():
        if entry.name != "models":
            os.symlink(entry, folder / entry.name)
    (folder / "models").mkdir()
    for entry in (dist / "models").iterdir():
        os.symlink(entry, folder / "models" / entry.name)
    cut(ROOT / "tests/golden/tiny.gguf", folder / "models/tiny")
    return folder


def copy_site(folder: Path) -> Path:
    """dist/ without its models, but with the tiny one, as files of its own: no links, which a
    server refuses when they lead elsewhere."""

    def place(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    ignored = shutil.ignore_patterns("SmolLM2*")
    shutil.copytree(ROOT / "dist", folder, copy_function=place, ignore=ignored)
    cut(ROOT / "tests/golden/tiny.gguf", folder / "models/tiny")
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link_site(tmp_path_factory.mktemp("site") / "root")


@pytest.fixture
def server(site: Path) -> Iterator[StaticServer]:
    server = StaticServer(site)
    yield server
    server.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Origin]]:
    """Starts sites of other people: ``serve(files, **manners)``."""
    origins = []

    def start(files: dict[str, bytes], **manners: Any) -> Origin:
        origins.append(Origin(files, **manners))
        return origins[-1]

    yield start
    for origin in origins:
        origin.close()


@pytest.fixture(scope="session")
def npm_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball that `build.py package` makes."""
    with alone():
        return tarball.make(ROOT / "dist", tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="session")
def plain_chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """Chromium without any WebGPU flag: it offers no adapter."""
    browser = playwright.chromium.launch(executable_path=chromium_path, args=BROWSER_FLAGS)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def gpu_chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """Chromium with its software WebGPU adapter."""
    browser = playwright.chromium.launch(executable_path=chromium_path, args=GPU_FLAGS)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def tiny_page(site: Path, plain_chromium: Any) -> Iterator[Chat]:
    """One page with the tiny model on the CPU, for all tests of a file."""
    server = StaticServer(site)
    context = plain_chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    query = "model=models/tiny/manifest.json&device=cpu&activations=f32&max_tokens=24"
    yield Chat(page, server, f"{server.url}/?{query}").open().wait_for("ready")
    context.close()
    server.close()
    assert not problems, "the page threw"


@pytest.fixture
def tiny_chat(tiny_page: Chat) -> Chat:
    """That page with no conversations; answers have at most 24 tokens."""
    tiny_page.page.set_viewport_size({"width": 1280, "height": 800})
    tiny_page.hook("reset").click()
    tiny_page.wait_for("ready")
    tiny_page.page.evaluate(FORGET)
    tiny_page.until("document.querySelectorAll('[data-testid=conversation]').length === 0")
    return tiny_page


@pytest.fixture
def open_chat(
    server: StaticServer, plain_chromium: Any, gpu_chromium: Any
) -> Iterator[Callable[..., Chat]]:
    """Opens a page in a fresh profile; ``device=gpu`` in the query takes Chromium with WebGPU."""
    contexts = []
    problems: list[str] = []

    def open_page(query: str = "", *, browser: Any = None, context: Any = None) -> Chat:
        browser = browser or (gpu_chromium if "device=gpu" in query else plain_chromium)
        if context is None:
            context = browser.new_context()
            contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        return Chat(page, server, f"{server.url}/?{query}").open()

    yield open_page
    for context in contexts:
        context.close()
    assert not problems, "the page threw"


@pytest.fixture(scope="session")
def site_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_site(tmp_path_factory.mktemp("hosted") / "root")


@pytest.fixture
def hosted(site_copy: Path) -> Iterator[Hosted]:
    hosted = Hosted(site_copy)
    yield hosted
    hosted.close()


@pytest.fixture(scope="session")
def witness() -> Iterator[Witness]:
    witness = Witness()
    yield witness
    witness.close()


@pytest.fixture(scope="session")
def watched_chromium(playwright: Any, chromium_path: str) -> Iterator[Any]:
    """Chromium whose own questions get lost; contexts say who hears those of pages."""
    quiet = "--disable-features=AutofillServerCommunication,OptimizationHints"
    nobody = {"server": "http://127.0.0.1:9"}
    browser = playwright.chromium.launch(
        executable_path=chromium_path, args=[*BROWSER_FLAGS, quiet], proxy=nobody
    )
    yield browser
    browser.close()


@pytest.fixture
def watched(hosted: Hosted, witness: Witness, watched_chromium: Any) -> Iterator[Chat]:
    """A page from which only the site itself can be reached unnoticed; it loads no model."""
    proxy = {"server": witness.url, "bypass": f"127.0.0.1:{hosted.port}"}
    context = watched_chromium.new_context(proxy=proxy)
    witness.asked.clear()
    chat = Chat(context.new_page(), hosted, f"{hosted.url}/?model=none/manifest.json&device=cpu")
    yield chat
    context.close()
